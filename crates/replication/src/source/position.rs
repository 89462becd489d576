//! Stream position: how far the stream was passed to the consumer.
//!
//! Invariant: every transaction whose commit ends at or before the position was passed to the
//! consumer on the current connection, or is before the start of its stream.
//! Enforced by: the position is set after the consumer has received a batch, and at the start of a
//! stream.

use forebay_pgoutput::Lsn;
use tokio::sync::watch;

/// Position of the stream, shared with the tasks that wait for it.
#[derive(Debug, Default)]
pub(crate) struct StreamPosition(watch::Sender<u64>);

impl StreamPosition {
    /// Returns the position.
    pub(crate) fn get(&self) -> u64 {
        *self.0.borrow()
    }

    /// Sets the position, and wakes the tasks that wait for it.
    pub(super) fn set(&self, received: Lsn) {
        self.0.send_if_modified(|position| {
            let is_new = *position != received.0;
            *position = received.0;
            is_new
        });
    }

    /// Waits until the position is at or after `lsn`.
    pub(crate) async fn reaches(&self, lsn: Lsn) {
        let mut received = self.0.subscribe();
        let found = received.wait_for(|received| *received >= lsn.0).await;
        found.expect("the sender is borrowed during the call");
    }
}
