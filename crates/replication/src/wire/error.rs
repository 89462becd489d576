//! Errors of the wire client.
//!
//! Invariant: no error contains a password. Values of rows appear only in the server's own
//! messages.

use std::io;

use forebay_reservoir::PostgresServerError;

/// Why a query or a stream failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The server returned an error. After a query the connection is usable, unless the severity is
    /// `FATAL`.
    #[error("{0}")]
    Server(PostgresServerError),
    /// The connection was lost.
    #[error("the connection was lost: {0}: the server's log may have the reason")]
    Lost(#[source] io::Error),
    /// The server ended the stream.
    #[error("the server ended the replication stream, as it does when it shuts down: reconnect")]
    Ended,
    /// A message exceeds the limit.
    #[error("a message {:?} of {bytes} bytes is over the limit of {limit}: make the row smaller", char::from(*.tag))]
    TooLong {
        /// Type of the message.
        tag: u8,
        /// Length of the message.
        bytes: usize,
        /// Maximum length.
        limit: usize,
    },
    /// A query's result exceeds the limits.
    #[error("a query's result is over the limit of {rows} rows and {bytes} bytes")]
    TooBig {
        /// Maximum number of rows.
        rows: usize,
        /// Maximum size of all rows.
        bytes: usize,
    },
    /// The server violated the protocol.
    #[error("protocol violation by the server: {0}: check that no proxy is in between")]
    Protocol(String),
    /// An earlier query was cancelled before its result was read.
    #[error("an earlier query was cancelled before its result was read: open another connection")]
    Broken,
}

impl WireError {
    pub(super) fn protocol(what: impl Into<String>) -> Self {
        WireError::Protocol(what.into())
    }

    /// Returns the error of a connection that the server closed without a message.
    pub(super) fn closed() -> Self {
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
        WireError::Lost(closed)
    }
}
