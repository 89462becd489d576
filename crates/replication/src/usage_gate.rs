//! Usage gate: counts the users of the database, so that only an unused one sleeps.
//!
//! Invariant: the gate closes only while the count is zero, and a closed gate admits no user. So no
//! connection is closed while an [`AwakeGuard`] exists.
//! Enforced by: count and closed state share one atomic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Value of `users` while the gate is closed.
const CLOSED: u64 = u64::MAX;

/// Number of users of the database, with a gate.
#[derive(Debug)]
pub(crate) struct UsageGate {
    users: AtomicU64,
    /// When a guard was last dropped, in milliseconds since `origin`.
    last_drop: AtomicU64,
    origin: Instant,
}

/// Guard that keeps the connections open while it exists.
#[derive(Debug)]
#[must_use = "the connections may be closed when this is dropped"]
pub struct AwakeGuard(Arc<UsageGate>);

impl UsageGate {
    pub(crate) fn new(origin: Instant) -> Self {
        UsageGate { users: AtomicU64::new(0), last_drop: AtomicU64::new(0), origin }
    }

    /// Admits a user; `None` if the gate is closed.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<AwakeGuard> {
        let increment = |users| (users != CLOSED).then(|| users + 1);
        let admitted = self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment);
        admitted.ok().map(|_| AwakeGuard(self.clone()))
    }

    /// Closes the gate. Returns `false` if the database is in use.
    pub(crate) fn close(&self) -> bool {
        self.users.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn open(&self) {
        let _was_open = self.users.compare_exchange(CLOSED, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns when a guard was last dropped, and whether the database is in use.
    pub(crate) fn last_use(&self) -> (Instant, bool) {
        let users = self.users.load(Ordering::Acquire);
        let last = self.origin + Duration::from_millis(self.last_drop.load(Ordering::Acquire));
        (last, users != 0 && users != CLOSED)
    }
}

impl Drop for AwakeGuard {
    fn drop(&mut self) {
        let since = tokio::time::Instant::now().into_std().saturating_duration_since(self.0.origin);
        self.0.last_drop.fetch_max(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::AcqRel);
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_closes_only_without_users_and_admits_none_while_closed() {
        let gate = Arc::new(UsageGate::new(Instant::now()));
        let guard = gate.admit().expect("the gate is open");
        assert!(!gate.close() && gate.last_use().1);
        drop(guard);
        assert!(gate.close() && gate.admit().is_none() && !gate.last_use().1);
        gate.open();
        assert!(gate.admit().is_some());
    }
}
