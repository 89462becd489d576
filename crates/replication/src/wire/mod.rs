//! The wire client: one connection in replication mode.
//!
//! Invariants: nothing that the server sends makes it panic, wait for ever in its own code, or take memory beyond a stated
//! bound; a row is never copied between the socket's buffer and whoever reads its frame; secrets are in no error.
//! Kept by: one buffer with its own framing (`input.rs`), answers that never wait (`outbox.rs`), a start-up that is bounded
//! by the reservoir's deadline (`start.rs`).
//! Not here: hosts, addresses and TLS, which are the reservoir's; what the frames hold, which is pgoutput's; when to connect
//! and what to acknowledge, which is the source's.

mod auth;
mod channel;
mod command;
mod copy;
mod error;
mod input;
mod outbox;
mod pace;
mod query;
mod start;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_pgoutput::Lsn;
use forebay_reservoir::{PostgresConnect, PostgresError, PostgresStream};

use self::channel::{Channel, Line, Reply};
pub(crate) use self::copy::{Answer, Copy, Frames};
pub(crate) use self::error::WireError;
pub(crate) use self::query::Rows;
use self::start::Replication;

/// How long the server may take to let go of a connection that is closed.
const GOODBYE: Duration = Duration::from_secs(1);
/// `Terminate`: its tag and its length.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// A connection in replication mode, of a database: it takes SQL and commands of the replication protocol.
#[derive(Debug)]
pub(crate) struct Wire<S = PostgresStream> {
    channel: Channel<S>,
    backend_pid: i32,
    is_broken: bool,
}

impl Wire {
    /// Opens a connection as `connect` says, with a password or token that is asked for anew.
    ///
    /// # Errors
    /// As for any connection of `connect`.
    pub(crate) async fn open(connect: &PostgresConnect) -> Result<Wire, PostgresError> {
        connect.open_with(&Replication).await
    }
}

impl<S: Line> Wire<S> {
    fn ready(mut channel: Channel<S>, backend_pid: i32) -> Self {
        channel.input.set_limit(query::MAX_BYTES);
        Wire { channel, backend_pid, is_broken: false }
    }

    /// What the server last said of one of the settings that it reports, such as `server_version`.
    #[cfg_attr(not(test), expect(dead_code, reason = "agreed on, and not asked for yet"))]
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.channel.parameter(name)
    }

    /// The server's process; 0 if it didn't say.
    pub(crate) fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// Where the server is, as errors and logs say it.
    #[cfg_attr(not(test), expect(dead_code, reason = "agreed on, and not asked for yet"))]
    pub(crate) fn address(&self) -> &str {
        &self.channel.address
    }

    /// Whether it is of no use any more: it was lost, or a query was given up.
    #[cfg_attr(not(test), expect(dead_code, reason = "agreed on, and not asked for yet"))]
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Runs a text of SQL, or a command of the replication protocol, and reads the rows of its last result. Dropping the
    /// future breaks the connection.
    ///
    /// # Errors
    /// When the server says no, after which the connection can still be used; for others, see [`Wire::is_broken`].
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Rows, WireError> {
        if self.is_broken {
            return Err(WireError::Broken);
        }
        self.is_broken = true;
        self.channel.ask(sql).await?;
        let answer = self.channel.answer().await;
        self.is_broken = match &answer {
            Ok(_) => false,
            Err(WireError::Server(said)) => said.severity() != "ERROR",
            Err(_) => true,
        };
        answer
    }

    /// Starts to stream a logical slot from a place on; the server may begin later, where it knows that we have been.
    ///
    /// # Errors
    /// When the server says no; the connection is closed then.
    pub(crate) async fn start_replication(
        mut self,
        slot: &str,
        from: Lsn,
        options: &[(&str, &str)],
    ) -> Result<Copy<S>, WireError> {
        if self.is_broken {
            return Err(WireError::Broken);
        }
        self.channel.ask(&command::start_replication(slot, from, options)).await?;
        match self.channel.reply().await? {
            Reply::CopyBoth => Ok(Copy::new(self.channel)),
            Reply::Error(said) => {
                self.close().await;
                Err(WireError::Server(said))
            }
            Reply::Message(_) => Err(WireError::protocol("something else than a stream that was asked for")),
        }
    }

    /// Says goodbye, and waits for the server to let go; a second at most.
    pub(crate) async fn close(self) {
        let Channel { stream, .. } = self.channel;
        let closing = async {
            let mut stream = stream;
            tokio::io::AsyncWriteExt::write_all(&mut stream, &TERMINATE).await?;
            stream.hang_up().await;
            std::io::Result::Ok(())
        };
        // Whoever is gone already needs no goodbye, and for others there is no more time.
        let _late_or_gone = tokio::time::timeout(GOODBYE, closing).await;
    }
}
