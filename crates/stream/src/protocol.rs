//! Protocol detection from the first bytes of a connection.
//!
//! HTTP/2 without TLS starts with a fixed preface (prior knowledge). It differs from every HTTP/1
//! request in the third byte at the latest, because `PRI` is no HTTP/1 method here.

use std::io;

use tokio::net::TcpStream;

/// HTTP/2 connection preface.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    Http1,
    Http2,
    /// More bytes are needed.
    Undecided,
}

/// Returns the protocol that starts with `bytes`.
pub(crate) fn detect(bytes: &[u8]) -> ClientProtocol {
    if bytes.len() >= PREFACE.len() && bytes.starts_with(PREFACE) {
        ClientProtocol::Http2
    } else if PREFACE.starts_with(bytes) {
        ClientProtocol::Undecided
    } else {
        ClientProtocol::Http1
    }
}

/// Returns true if `bytes` can only be HTTP/2: `PRI` is no method, but `P` and `PR` begin some.
pub(crate) fn is_http2_prefix(bytes: &[u8]) -> bool {
    bytes.len() > 2 && PREFACE.starts_with(bytes)
}

/// First bytes of a connection, as many as the HTTP/2 preface has.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    bytes: [u8; PREFACE.len()],
    len: u8,
}

impl FirstBytes {
    pub(crate) fn received(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Reads available bytes up to the preface's length; `Ok(0)` means end of input.
    pub(crate) fn fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let count = stream.try_read(&mut self.bytes[usize::from(self.len)..])?;
        self.len += u8::try_from(count).expect("at most 24 bytes are read");
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_differs_from_the_preface_decides() {
        for (bytes, protocol) in [
            (&b""[..], ClientProtocol::Undecided),
            (b"G", ClientProtocol::Http1),
            (b"P", ClientProtocol::Undecided),
            (b"PO", ClientProtocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", ClientProtocol::Undecided),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ClientProtocol::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", ClientProtocol::Http2),
            (b"PRI * HTTP/1.1\r\n", ClientProtocol::Http1),
            (b"\x16\x03\x01", ClientProtocol::Http1),
        ] {
            assert_eq!(detect(bytes), protocol, "{}", bytes.escape_ascii());
        }
    }
}
