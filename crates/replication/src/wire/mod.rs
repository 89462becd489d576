//! Wire client: one connection in replication mode.
//!
//! Invariants: no message of the server causes a panic, an endless loop, or memory use beyond a
//! stated bound. Readers of frames borrow rows from the read buffer, without a copy. No error
//! contains a secret.
//! Enforced by: one buffer with framing (`read_buffer.rs`), status updates that never wait
//! (`status_outbox.rs`), and the reservoir's deadline for the startup (`start.rs`).
//! Decision: tokio-postgres 0.7 has no replication mode, and pgwire-replication passes each message
//! through a channel. `cargo run --release -p races -- replication` compares with it. A row takes
//! 0.57 µs of CPU against 27 µs in transactions of one row, and 0.16 µs against 6.9 µs in those of
//! 10,000 (`docs/benchmarks.md`). postgres-protocol parses the messages of the startup.
//! Out of scope: hosts, addresses and TLS (reservoir), the contents of frames (pgoutput), when to
//! connect and what to acknowledge (`source/`).

mod auth;
mod channel;
mod command;
mod error;
mod pace;
mod query;
mod read_buffer;
mod replication_stream;
mod start;
mod status_outbox;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_pgoutput::Lsn;
use forebay_reservoir::{PostgresConnect, PostgresError, PostgresStream};

use self::channel::{BackendReply, Channel, ReplicationTransport};
pub(crate) use self::error::WireError;
pub(crate) use self::query::QueryRows;
pub(crate) use self::replication_stream::{Frames, ReplicationStream, StatusSender};
use self::start::ReplicationStartup;

/// Time limit for the server to close the connection after `Terminate`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// `Terminate`: tag and length.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// A connection with `replication=database`: accepts SQL and replication commands.
#[derive(Debug)]
pub(crate) struct ReplicationConnection<S = PostgresStream> {
    channel: Channel<S>,
    backend_pid: i32,
    is_broken: bool,
}

impl ReplicationConnection {
    /// Opens a connection, with fresh credentials.
    ///
    /// # Errors
    /// Fails if no server accepts the connection; see [`PostgresConnect`].
    pub(crate) async fn open(connect: &PostgresConnect) -> Result<ReplicationConnection, PostgresError> {
        connect.open_with(&ReplicationStartup).await
    }
}

impl<S: ReplicationTransport> ReplicationConnection<S> {
    fn new(mut channel: Channel<S>, backend_pid: i32) -> Self {
        channel.input.set_limit(query::MAX_BYTES);
        ReplicationConnection { channel, backend_pid, is_broken: false }
    }

    /// Returns the last reported value of a server parameter, such as `server_version`.
    #[cfg_attr(not(test), expect(dead_code, reason = "used by tests only"))]
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.channel.parameter(name)
    }

    /// Returns the backend's process id; 0 if the server didn't send it.
    pub(crate) fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// Returns the server's address, for errors and logs.
    #[cfg_attr(not(test), expect(dead_code, reason = "used by tests only"))]
    pub(crate) fn address(&self) -> &str {
        &self.channel.address
    }

    /// Returns whether the connection is unusable: it was lost, or a query was cancelled.
    #[cfg_attr(not(test), expect(dead_code, reason = "used by tests only"))]
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Runs SQL or a replication command, and returns the rows of its last result. Dropping the
    /// future makes the connection unusable.
    ///
    /// # Errors
    /// Fails if the server returns an error; the connection stays usable. After any other error it
    /// may be unusable; see [`ReplicationConnection::is_broken`].
    pub(crate) async fn query(&mut self, sql: &str) -> Result<QueryRows, WireError> {
        if self.is_broken {
            return Err(WireError::Broken);
        }
        self.is_broken = true;
        self.channel.send_query(sql).await?;
        let result = self.channel.read_result().await;
        self.is_broken = match &result {
            Ok(_) => false,
            Err(WireError::Server(error)) => error.severity() != "ERROR",
            Err(_) => true,
        };
        result
    }

    /// Starts to stream a logical slot at `from`, or at the slot's confirmed position if that is
    /// later.
    ///
    /// # Errors
    /// Fails if the server returns an error, and closes the connection.
    pub(crate) async fn start_replication(
        mut self,
        slot: &str,
        from: Lsn,
        options: &[(&str, &str)],
    ) -> Result<ReplicationStream<S>, WireError> {
        if self.is_broken {
            return Err(WireError::Broken);
        }
        self.channel.send_query(&command::start_replication(slot, from, options)).await?;
        match self.channel.reply().await? {
            BackendReply::CopyBoth => Ok(ReplicationStream::new(self.channel)),
            BackendReply::Error(error) => {
                self.close().await;
                Err(WireError::Server(error))
            }
            BackendReply::Message(_) => Err(WireError::protocol("no CopyBothResponse to START_REPLICATION")),
        }
    }

    /// Sends `Terminate`, and waits up to a second for the server to close the connection.
    pub(crate) async fn close(self) {
        let Channel { stream, .. } = self.channel;
        let closing = async {
            let mut stream = stream;
            tokio::io::AsyncWriteExt::write_all(&mut stream, &TERMINATE).await?;
            stream.shutdown_and_wait().await;
            std::io::Result::Ok(())
        };
        // A timeout and a lost connection are ignored: the socket is dropped anyway.
        let _timeout_or_lost = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}
