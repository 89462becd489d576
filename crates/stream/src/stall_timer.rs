//! Timer for a client that accepts no bytes.
//!
//! The timer is allocated only while a write is blocked; an idle stream holds a null pointer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Timer that runs while a write is blocked.
#[derive(Debug, Default)]
pub(crate) struct StallTimer(Option<Pin<Box<Sleep>>>);

impl StallTimer {
    /// Stops the timer, since the client accepted bytes.
    pub(crate) fn progress(&mut self) {
        self.0 = None;
    }

    /// Starts the timer if it isn't running; ready after `limit`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        self.0.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx)
    }

    /// Passes the outcome of a write on; fails with `TimedOut` if writes are blocked for `limit`.
    pub(crate) fn bound_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        limit: Duration,
    ) -> Poll<io::Result<T>> {
        match outcome {
            Poll::Ready(done) => {
                self.progress();
                Poll::Ready(done)
            }
            Poll::Pending => {
                ready!(self.poll(cx, limit));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}
