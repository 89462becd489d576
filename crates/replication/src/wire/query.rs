//! The simple query protocol: a text goes, rows of texts come.
//!
//! Invariant: a connection is asked again only when the answer before was read to its end (`ReadyForQuery`); one whose
//! query was given up is broken and says so. What an answer may hold is bounded.

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;

use super::channel::{Channel, Line, Reply, malformed};
use super::error::WireError;

/// The rows of an answer; `None` is NULL.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// What the rows of an answer may have together, and so a message: a timeline's history is the longest we ask for.
pub(super) const MAX_BYTES: usize = 16 * 1024 * 1024;
const MAX_ROWS: usize = 10_000;

impl<S: Line> Channel<S> {
    /// Sends a text. What follows is up to the server.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<(), WireError> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out).map_err(malformed)?;
        self.send(&out).await
    }

    /// Reads an answer to its end.
    pub(super) async fn answer(&mut self) -> Result<Rows, WireError> {
        let (mut rows, mut bytes, mut refused) = (Rows::new(), 0, None);
        loop {
            let message = match self.reply().await {
                Ok(Reply::Message(message)) => message,
                Ok(Reply::Error(said)) => {
                    refused.get_or_insert(said);
                    continue;
                }
                Ok(Reply::CopyBoth) => return Err(WireError::protocol("a stream that nobody asked for")),
                // After its last word a server hangs up.
                Err(WireError::Lost(error)) => {
                    return Err(refused.map_or(WireError::Lost(error), WireError::Server));
                }
                Err(error) => return Err(error),
            };
            match message {
                Message::RowDescription(_) => (rows, bytes) = (Rows::new(), 0),
                Message::DataRow(body) => {
                    bytes += body.buffer().len();
                    if rows.len() == MAX_ROWS || bytes > MAX_BYTES {
                        return Err(WireError::Big { rows: MAX_ROWS, bytes: MAX_BYTES });
                    }
                    rows.push(row(&body)?);
                }
                Message::CommandComplete(_) | Message::EmptyQueryResponse => {}
                Message::ReadyForQuery(_) => {
                    return refused.map_or(Ok(rows), |said| Err(WireError::Server(said)));
                }
                _ => return Err(WireError::protocol("a message that has no place in an answer")),
            }
        }
    }
}

fn row(body: &DataRowBody) -> Result<Vec<Option<String>>, WireError> {
    let value = |range: std::ops::Range<usize>| {
        let text = body.buffer()[range].to_vec();
        String::from_utf8(text).map_err(|_| WireError::protocol("a value that isn't UTF-8"))
    };
    let (mut row, mut ranges) = (Vec::new(), body.ranges());
    while let Some(range) = ranges.next().map_err(malformed)? {
        row.push(range.map(value).transpose()?);
    }
    Ok(row)
}
