//! Minimal Postgres client over a Unix socket: readiness checks and simple queries.
//!
//! Out of scope: passwords (the socket trusts all users), types (every value is text), COPY.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
const PROTOCOL_3: u32 = 196_608;
/// Maximum size of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 26;

/// Rows of text values; `None` is NULL.
pub(crate) type TextRows = Vec<Vec<Option<String>>>;

/// Connection of the superuser `postgres`; closed when dropped.
pub(crate) struct PgConnection {
    stream: BufReader<UnixStream>,
}

impl PgConnection {
    pub(crate) fn open(socket: &Path, database: &str) -> io::Result<PgConnection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut session = PgConnection { stream: BufReader::new(stream) };
        let version = PROTOCOL_3.to_be_bytes();
        let start = [&version[..], b"user\0postgres\0database\0", database.as_bytes(), b"\0\0"];
        session.send(None, &start.concat())?;
        session.until_ready()?;
        Ok(session)
    }

    /// Runs statements and returns the rows of all of them, in order.
    pub(crate) fn run(&mut self, sql: &str) -> io::Result<TextRows> {
        self.send(Some(b'Q'), &[sql.as_bytes(), b"\0"].concat())?;
        self.until_ready()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        self.stream.get_mut().write_all(&message)
    }

    /// Reads until ReadyForQuery, which also follows a failed statement. It doesn't follow a failed
    /// startup; that error is returned at the end of the stream.
    fn until_ready(&mut self) -> io::Result<TextRows> {
        let mut outcome = Ok(TextRows::new());
        loop {
            let mut head = [0; 5];
            if let Err(error) = self.stream.read_exact(&mut head) {
                return outcome.and(Err(error));
            }
            let [kind, length @ ..] = head;
            let length = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
            if !(4..=MAX_MESSAGE_BYTES).contains(&length) {
                return Err(io::Error::other(format!("message length out of range: {length} bytes")));
            }
            let mut body = vec![0; length - 4];
            self.stream.read_exact(&mut body)?;
            match kind {
                b'Z' => return outcome,
                b'E' => outcome = Err(io::Error::other(error_text(&body))),
                b'D' => {
                    let row = row(&body).ok_or_else(|| io::Error::other("row is not valid text"))?;
                    if let Ok(rows) = &mut outcome {
                        rows.push(row);
                    }
                }
                // The server would wait for COPY data.
                b'G' | b'W' => return Err(io::Error::other("COPY from the client is not supported")),
                _ => {}
            }
        }
    }
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        // Without a Terminate message the server logs an unexpected end.
        let _ = self.send(Some(b'X'), b"");
    }
}

/// Decodes a DataRow: a count, then each value's length (-1 for NULL) and bytes.
fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut values = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, tail) = rest.split_first_chunk()?;
        rest = tail;
        values.push(match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => None,
            Ok(length) => {
                let (value, tail) = rest.split_at_checked(length)?;
                rest = tail;
                Some(String::from_utf8(value.to_vec()).ok()?)
            }
        });
    }
    Some(values)
}

/// Returns the message and SQLSTATE fields of an ErrorResponse.
fn error_text(body: &[u8]) -> String {
    let field = |kind| {
        let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
        String::from_utf8_lossy(field.and_then(|field| field.get(1..)).unwrap_or_default()).into_owned()
    };
    format!("{} ({})", field(b'M'), field(b'C'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_text_has_the_message_and_the_sqlstate() {
        let body = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(error_text(body), "the database system is starting up (57P03)");
    }

    #[test]
    fn a_row_distinguishes_null_from_an_empty_value() {
        let body = b"\0\x03\0\0\0\x02hi\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(row(body), Some(vec![Some("hi".to_owned()), None, Some(String::new())]));
        assert_eq!(row(&body[..10]), None, "truncated");
    }
}
