//! Which protocol a client speaks, from its first bytes.
//!
//! HTTP/2 without TLS is spoken by prior knowledge: its preface is no HTTP/1 request, and differs from all of them in the
//! third byte at the latest (`PRI` is no method here).

use std::io;

use tokio::net::TcpStream;

/// What an HTTP/2 client sends first.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
    /// More bytes must come.
    Unknown,
}

/// Judges by what has come so far.
pub(crate) fn judge(bytes: &[u8]) -> Speaks {
    if bytes.len() >= PREFACE.len() && bytes.starts_with(PREFACE) {
        Speaks::Http2
    } else if PREFACE.starts_with(bytes) {
        Speaks::Unknown
    } else {
        Speaks::Http1
    }
}

/// Whether so few bytes already say HTTP/2: `PRI` is no method, but `P` and `PR` begin some.
pub(crate) fn leans_to_http2(bytes: &[u8]) -> bool {
    bytes.len() > 2 && PREFACE.starts_with(bytes)
}

/// The first bytes of a connection, which tell its protocol.
#[derive(Debug, Default)]
pub(crate) struct First {
    bytes: [u8; PREFACE.len()],
    len: u8,
}

impl First {
    pub(crate) fn heard(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Takes what the socket has, if it has any and there is room; `Ok(0)` at its end.
    pub(crate) fn fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let count = stream.try_read(&mut self.bytes[usize::from(self.len)..])?;
        self.len += u8::try_from(count).expect("there is room for 24");
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_differs_decides() {
        for (bytes, speaks) in [
            (&b""[..], Speaks::Unknown),
            (b"G", Speaks::Http1),
            (b"P", Speaks::Unknown),
            (b"PO", Speaks::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", Speaks::Unknown),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Speaks::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Speaks::Http2),
            (b"PRI * HTTP/1.1\r\n", Speaks::Http1),
            (b"\x16\x03\x01", Speaks::Http1),
        ] {
            assert_eq!(judge(bytes), speaks, "{}", bytes.escape_ascii());
        }
    }
}
