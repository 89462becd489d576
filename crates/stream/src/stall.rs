//! A deadline for a client that takes nothing.
//!
//! The timer exists only while a write is blocked: an idle stream has none, and pays a null pointer for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

#[derive(Debug, Default)]
pub(crate) struct Stall(Option<Pin<Box<Sleep>>>);

impl Stall {
    /// The client took something.
    pub(crate) fn progress(&mut self) {
        self.0 = None;
    }

    /// The client takes nothing now; ready when that has been so for `limit`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        self.0.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx)
    }
}
