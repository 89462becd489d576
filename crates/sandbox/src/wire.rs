//! Just enough of Postgres's protocol to ask whether it is ready and to run a statement, over its Unix socket.
//!
//! Not here: passwords (the socket trusts), results (only success or the server's error).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Errors and parameter messages are far below this; anything longer is not Postgres.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Connects as `postgres` and, given a statement, runs it.
pub(crate) fn run(socket: &Path, database: &str, statement: Option<&str>) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let start = [&196_608_u32.to_be_bytes()[..], b"user\0postgres\0database\0", database.as_bytes(), b"\0\0"];
    send(&mut stream, None, &start.concat())?;
    until_ready(&mut stream)?;
    if let Some(statement) = statement {
        send(&mut stream, Some(b'Q'), &[statement.as_bytes(), b"\0"].concat())?;
        until_ready(&mut stream)?;
    }
    send(&mut stream, Some(b'X'), b"")
}

fn send(stream: &mut UnixStream, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    stream.write_all(&message)
}

/// Reads up to ReadyForQuery; after an error in a statement, that still comes. After one in the start it doesn't, and
/// the error is returned at the end of the stream.
fn until_ready(stream: &mut UnixStream) -> io::Result<()> {
    let mut outcome = Ok(());
    loop {
        let mut head = [0; 5];
        if let Err(error) = stream.read_exact(&mut head) {
            return outcome.and(Err(error));
        }
        let [kind, length @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
        if !(4..=MAX_MESSAGE_BYTES).contains(&length) {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body)?;
        match kind {
            b'Z' => return outcome,
            b'E' => outcome = Err(io::Error::other(error_text(&body))),
            _ => {}
        }
    }
}

/// The message and SQLSTATE fields of an ErrorResponse.
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
    fn an_error_is_its_message_and_state() {
        let body = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(error_text(body), "the database system is starting up (57P03)");
    }
}
