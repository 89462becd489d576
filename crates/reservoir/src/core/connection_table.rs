//! Connection table: age, expiry and checkout of every connection that is ready, lent or resetting.

use std::panic::Location;
use std::time::{Duration, Instant};

/// Age, expiry and checkout of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionRecord {
    pub(super) opened_at: Instant,
    pub(super) expires_at: Instant,
    /// `None` while the connection isn't lent.
    pub(super) checkout: Option<CheckoutRecord>,
}

/// When and where a connection was checked out.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckoutRecord {
    pub(super) since: Instant,
    /// Source location of the checkout; `None` for a pool adapter, which may hold it for long.
    pub(super) location: Option<&'static Location<'static>>,
    /// Whether the leak was already reported.
    pub(super) leak_reported: bool,
}

/// A connection that a caller has held for longer than `leak_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) held_for: Duration,
    pub(crate) checked_out_at: &'static Location<'static>,
}

/// Records by index; free indexes are reused.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    records: Vec<Option<ConnectionRecord>>,
    free: Vec<usize>,
}

impl ConnectionTable {
    pub(super) fn add(&mut self, record: ConnectionRecord) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.records[at] = Some(record);
                at
            }
            None => {
                self.records.push(Some(record));
                self.records.len() - 1
            }
        }
    }

    pub(super) fn get(&mut self, at: usize) -> &mut ConnectionRecord {
        self.records[at].as_mut().expect("an entry that isn't retired has a record")
    }

    pub(super) fn remove(&mut self, at: usize) -> ConnectionRecord {
        self.free.push(at);
        self.records[at].take().expect("an entry is retired once")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ConnectionRecord> {
        self.records.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut ConnectionRecord> {
        self.records.iter_mut().flatten()
    }

    /// Returns the number of connections that expire at or before `at`.
    pub(super) fn expiring_by(&self, at: Instant) -> u32 {
        self.iter().filter(|record| record.expires_at <= at).count() as u32
    }

    /// Returns connections held for longer than `leak_after`; each is returned once.
    pub(super) fn take_leaks(&mut self, leak_after: Duration, now: Instant) -> Vec<Leak> {
        let mut leaks = Vec::new();
        for record in self.iter_mut() {
            if let Some(checkout) = &mut record.checkout
                && let Some(checked_out_at) = checkout.location
                && !checkout.leak_reported
                && now.saturating_duration_since(checkout.since) >= leak_after
            {
                checkout.leak_reported = true;
                leaks.push(Leak { held_for: now - checkout.since, checked_out_at });
            }
        }
        leaks
    }
}
