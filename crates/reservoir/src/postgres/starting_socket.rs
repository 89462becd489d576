//! Starting socket: holds the dial's slot while a session starts, and after an abandoned start.
//!
//! Invariant: a connected socket holds a clone of the dial's slot until the server has closed its
//! end, or until its session has started; then the ledger counts the connection.
//! Enforced by: on drop, [`StartingSocket`] passes the slot to a task that waits for the server's
//! close.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::dial::DialDeadline;
use super::socket::PostgresSocket;
use crate::connect::DialSlot;

/// How long a dial waits for the server to close a connection that it refused.
const REFUSED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Guard of a socket during start-up. Created before the stream on the same socket, so dropped
/// after it.
pub(super) struct StartingSocket {
    socket: PostgresSocket,
    /// `None` if the session has started, the server has closed its end, or no reservoir counts the
    /// socket.
    slot: Option<DialSlot>,
}

impl StartingSocket {
    pub(super) fn new(socket: &PostgresSocket, slot: Option<&DialSlot>) -> Self {
        StartingSocket { socket: socket.clone(), slot: slot.cloned() }
    }

    /// Drops the clone of the slot: from now on the ledger counts the connection.
    pub(super) fn started(&mut self) {
        self.slot = None;
    }

    /// Shuts the socket down and waits briefly for the server's close; returns whether it has
    /// closed.
    pub(super) async fn shutdown_and_wait(&mut self, deadline: DialDeadline) -> bool {
        let until = deadline.at.min(Instant::now() + REFUSED_CLOSE_TIMEOUT);
        let is_closed = timeout_at(until, self.socket.shutdown_and_wait()).await.is_ok();
        if is_closed {
            self.slot = None;
        }
        is_closed
    }
}

impl Drop for StartingSocket {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        // Without a runtime no task can wait, and nothing is counted any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let socket = self.socket.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = socket.shutdown_and_wait() => {}
                // The reservoir has released the slot: close the socket.
                () = slot.released() => {}
            }
        });
    }
}
