//! Store progress: how far the store has followed the replication stream.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::offset::Offset;

/// Callback for each new durable position.
type DurableCallback = Box<dyn Fn(u64) + Send + Sync>;

/// Position of a store in the history of a database.
#[derive(Default)]
pub(crate) struct StoreProgress {
    /// Name of the followed database history.
    origin: Mutex<Option<String>>,
    /// LSN up to which everything is durable.
    durable: AtomicU64,
    /// LSN such that the offset `<seen>_0` is after all visible changes and before all later ones.
    seen: AtomicU64,
    /// Shapes that are held, each with the LSN of the commit from which on it is. Empty for most
    /// stores.
    holds: Mutex<HashMap<u64, u64>>,
    /// Wakes the tasks that wait for `durable` or `seen`.
    changed: Notify,
    on_durable: Mutex<Option<DurableCallback>>,
}

impl StoreProgress {
    pub(crate) fn origin(&self) -> Option<String> {
        self.origin.lock().clone()
    }

    pub(crate) fn set_origin(&self, origin: Option<String>) {
        *self.origin.lock() = origin;
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the LSN up to which Postgres needs to repeat nothing: at most the first commit from
    /// which on a shape is held.
    pub(crate) fn acknowledgeable(&self) -> u64 {
        let first_hold = self.holds.lock().values().copied().min();
        self.durable().min(first_hold.unwrap_or(u64::MAX))
    }

    /// Sets the commit from which on a shape is held; `None`: it isn't held.
    pub(crate) fn set_hold(&self, shape: u64, from: Option<u64>) {
        let mut holds = self.holds.lock();
        match from {
            Some(from) => drop(holds.insert(shape, from)),
            None => drop(holds.remove(&shape)),
        }
    }

    /// Forgets the holds of other shapes than those for which `is_kept` is true.
    pub(crate) fn retain_holds(&self, is_kept: impl Fn(u64) -> bool) {
        self.holds.lock().retain(|shape, _| is_kept(*shape));
    }

    /// Forgets all holds.
    pub(crate) fn clear_holds(&self) {
        self.holds.lock().clear();
    }

    /// Returns the LSN for which `<seen>_0` is after all visible messages and before all later
    /// ones.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    pub(crate) fn advance_durable(&self, lsn: u64) {
        self.durable.fetch_max(lsn, Ordering::AcqRel);
    }

    pub(crate) fn advance_seen(&self, lsn: u64) {
        self.seen.fetch_max(lsn, Ordering::AcqRel);
    }

    /// Moves to another history, or to the positions of a catalog. May go back.
    pub(crate) fn set(&self, durable: u64, seen: u64) {
        self.durable.store(durable, Ordering::Release);
        self.seen.store(seen, Ordering::Release);
    }

    /// Wakes the tasks that wait for a position.
    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Returns whether the store hasn't reached the LSN of an offset yet.
    pub(crate) fn is_behind(&self, offset: Offset) -> bool {
        offset.lsn > self.durable().max(self.seen())
    }

    /// Waits until the store has reached the LSN of an offset.
    pub(crate) async fn wait_until_reached(&self, offset: Offset) {
        while self.is_behind(offset) {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on, no notification is missed.
            changed.as_mut().enable();
            if !self.is_behind(offset) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn on_durable(&self, callback: DurableCallback) {
        *self.on_durable.lock() = Some(callback);
    }

    /// Passes the position that may be acknowledged to the callback.
    pub(crate) fn report_durable(&self) {
        let position = self.acknowledgeable();
        if let Some(on_durable) = &*self.on_durable.lock() {
            on_durable(position);
        }
    }
}

impl fmt::Debug for StoreProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut progress = f.debug_struct("StoreProgress");
        progress.field("durable", &self.durable()).field("seen", &self.seen()).finish_non_exhaustive()
    }
}
