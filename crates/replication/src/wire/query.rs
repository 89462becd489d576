//! Simple query protocol: sends SQL, returns rows of texts.
//!
//! Invariant: a query is sent only after the previous result was read up to `ReadyForQuery`. A
//! connection with a cancelled query is marked as broken. Results are bounded.

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;

use super::channel::{BackendReply, Channel, ReplicationTransport, malformed};
use super::error::WireError;

/// Rows of a result; `None` is NULL.
pub(crate) type QueryRows = Vec<Vec<Option<String>>>;

/// Maximum size of a result's rows, and of a message. A timeline history is the longest result.
pub(super) const MAX_BYTES: usize = 16 * 1024 * 1024;
const MAX_ROWS: usize = 10_000;

impl<S: ReplicationTransport> Channel<S> {
    /// Sends a query without reading its result.
    pub(super) async fn send_query(&mut self, sql: &str) -> Result<(), WireError> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out).map_err(malformed)?;
        self.send(&out).await
    }

    /// Reads a result up to `ReadyForQuery`.
    pub(super) async fn read_result(&mut self) -> Result<QueryRows, WireError> {
        let (mut rows, mut bytes, mut server_error) = (QueryRows::new(), 0, None);
        loop {
            let message = match self.reply().await {
                Ok(BackendReply::Message(message)) => message,
                Ok(BackendReply::Error(error)) => {
                    server_error.get_or_insert(error);
                    continue;
                }
                Ok(BackendReply::CopyBoth) => {
                    return Err(WireError::protocol("an unexpected CopyBothResponse"));
                }
                // After a fatal error the server closes the connection.
                Err(WireError::Lost(error)) => {
                    return Err(server_error.map_or(WireError::Lost(error), WireError::Server));
                }
                Err(error) => return Err(error),
            };
            match message {
                Message::RowDescription(_) => (rows, bytes) = (QueryRows::new(), 0),
                Message::DataRow(body) => {
                    bytes += body.buffer().len();
                    if rows.len() == MAX_ROWS || bytes > MAX_BYTES {
                        return Err(WireError::TooBig { rows: MAX_ROWS, bytes: MAX_BYTES });
                    }
                    rows.push(row(&body)?);
                }
                Message::CommandComplete(_) | Message::EmptyQueryResponse => {}
                Message::ReadyForQuery(_) => {
                    return server_error.map_or(Ok(rows), |error| Err(WireError::Server(error)));
                }
                _ => return Err(WireError::protocol("an unexpected message in a query result")),
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
