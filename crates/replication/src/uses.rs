//! Who needs the database now.
//!
//! Invariant: the gate closes only when nobody is inside, and nobody gets in while it is closed: so a connection is never closed
//! under somebody who was let in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLOSED: u64 = u64::MAX;

/// Counts those who use the database.
#[derive(Debug)]
pub(crate) struct Uses {
    inside: AtomicU64,
    /// When the last one left, in milliseconds since `origin`.
    left: AtomicU64,
    origin: Instant,
}

/// Keeps the connections open for as long as it lives.
#[derive(Debug)]
#[must_use = "the connections may be closed when this is dropped"]
pub struct Awake(Arc<Uses>);

impl Uses {
    pub(crate) fn new(origin: Instant) -> Self {
        Uses { inside: AtomicU64::new(0), left: AtomicU64::new(0), origin }
    }

    /// `None`: the gate is closed.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Awake> {
        let enter = |inside| (inside != CLOSED).then(|| inside + 1);
        let entered = self.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
        entered.ok().map(|_| Awake(self.clone()))
    }

    /// Closes the gate, unless somebody is inside.
    pub(crate) fn close(&self) -> bool {
        self.inside.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn open(&self) {
        let _was_open = self.inside.compare_exchange(CLOSED, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// When somebody was last inside, and whether somebody is.
    pub(crate) fn last(&self) -> (Instant, bool) {
        let inside = self.inside.load(Ordering::Acquire);
        let left = self.origin + Duration::from_millis(self.left.load(Ordering::Acquire));
        (left, inside != 0 && inside != CLOSED)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        let since = tokio::time::Instant::now().into_std().saturating_duration_since(self.0.origin);
        self.0.left.fetch_max(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::AcqRel);
        self.0.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_closes_only_on_an_empty_room_and_keeps_it_empty() {
        let uses = Arc::new(Uses::new(Instant::now()));
        let inside = uses.begin().expect("it is open");
        assert!(!uses.close() && uses.last().1);
        drop(inside);
        assert!(uses.close() && uses.begin().is_none() && !uses.last().1);
        uses.open();
        assert!(uses.begin().is_some());
    }
}
