//! Why a connection in replication mode can't go on.
//!
//! Invariant: nothing here holds a password or what a row holds, apart from what the server itself says.

use std::io;

use forebay_reservoir::PostgresServerError;

/// Why a query or a stream failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The server said no. After a query the connection is as good as before, unless the severity is `FATAL`.
    #[error("{0}")]
    Server(PostgresServerError),
    /// The connection broke.
    #[error("the connection was lost: {0}: the server's log may say why")]
    Lost(#[source] io::Error),
    /// The server ended the stream of its own accord.
    #[error("the server ended the replication stream, as it does when it shuts down: connect anew")]
    Ended,
    /// A message is longer than it may be.
    #[error("a message {:?} of {bytes} bytes is over the limit of {limit}: raise it, or make the row smaller", char::from(*.tag))]
    Long {
        /// What kind of message.
        tag: u8,
        /// How long it would be.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The answer to a query is bigger than it may be.
    #[error("the answer to a query is over the limit of {rows} rows and {bytes} bytes")]
    Big {
        /// How many rows there may be.
        rows: usize,
        /// How many bytes all of them may have.
        bytes: usize,
    },
    /// What came makes no sense.
    #[error("the server sent what the protocol doesn't allow: {0}: check that nothing in between changes it")]
    Protocol(String),
    /// A query before this one was given up while the server answered.
    #[error("an earlier query was given up before its answer was read: open another connection")]
    Broken,
}

impl WireError {
    pub(super) fn protocol(what: impl Into<String>) -> Self {
        WireError::Protocol(what.into())
    }

    /// The server is gone without a word.
    pub(super) fn closed() -> Self {
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
        WireError::Lost(closed)
    }
}
