//! A socket on which a session is being started, and what becomes of it when the start is given up.
//!
//! Invariant: from the moment a socket is connected until the server has closed its end, it holds a clone of the dial's slot,
//! unless its session has started; then the session counts.
//! Kept by: [`StartingSocket`] passes the slot on to a task when it is dropped: after an error, at a deadline, or with a dial
//! that is dropped.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::dial::Deadline;
use super::socket::Socket;
use crate::connect::DialSlot;

/// How long a dial waits for a server that refused it to close its end.
const GOODBYE: Duration = Duration::from_secs(1);

/// Made before the stream that uses the same socket, so that it is dropped after it.
pub(super) struct StartingSocket {
    socket: Socket,
    /// `None`: the session has started, the server has closed its end, or nothing counts the socket.
    slot: Option<DialSlot>,
}

impl StartingSocket {
    pub(super) fn new(socket: &Socket, slot: Option<&DialSlot>) -> Self {
        StartingSocket { socket: socket.clone(), slot: slot.cloned() }
    }

    /// From now on the session counts.
    pub(super) fn started(&mut self) {
        self.slot = None;
    }

    /// Hangs up, and waits for a moment until the server has closed its end. `false`: it hasn't.
    pub(super) async fn hang_up(&mut self, deadline: Deadline) -> bool {
        let until = deadline.at.min(Instant::now() + GOODBYE);
        let is_closed = timeout_at(until, self.socket.hang_up()).await.is_ok();
        if is_closed {
            self.slot = None;
        }
        is_closed
    }
}

impl Drop for StartingSocket {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        // Without a runtime nothing can wait, and nothing is counted any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let socket = self.socket.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = socket.hang_up() => {}
                // The reservoir has given the place back: nothing may be left open.
                () = slot.given_back() => {}
            }
        });
    }
}
