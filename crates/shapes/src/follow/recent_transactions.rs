//! Recent transactions: commits that the stream has sent and that a snapshot may not see yet.
//!
//! Postgres writes a commit to its WAL, where the stream reads it. It makes the commit visible to
//! snapshots later: with synchronous replication, when the standbys have confirmed it. A shape that
//! is followed in between gets such a commit neither from the stream nor in its snapshot, unless
//! the snapshot is taken again.
//!
//! Invariant: an entry is dropped only when every later snapshot sees its transaction.
//! Enforced by: an entry is dropped when two conditions hold. A snapshot sees it, so all later
//! snapshots do. Every shape that waits for its snapshot was followed after that snapshot, so its
//! own snapshot is later.
//! Bound: when one table, or all tables together, have too many entries, the oldest entry of the
//! table becomes part of its [`ForgottenTransactions`]. They count as missed until the snapshot's
//! `xmin` is newer.

use std::collections::{HashMap, VecDeque};

use forebay_pgoutput::Xid;

use crate::store::record::SnapshotVisibility;

/// Maximum number of entries of one table. An entry takes 24 bytes: 24 MiB.
const MAX_ENTRIES: usize = 1 << 20;

/// Maximum number of entries of all tables: 96 MiB.
const MAX_ENTRIES_TOTAL: usize = 4 << 20;

/// `seen_at` of an entry that no snapshot is known to see.
const UNSEEN: u64 = u64::MAX;

/// Recent transactions by table oid.
#[derive(Debug, Default)]
pub(super) struct RecentTransactions {
    tables: HashMap<u32, TableTransactions>,
    /// Number of entries of all tables.
    entries: usize,
}

#[derive(Debug, Default)]
struct TableTransactions {
    entries: VecDeque<RecentTransaction>,
    forgotten: Option<ForgottenTransactions>,
}

#[derive(Debug)]
struct RecentTransaction {
    lsn: u64,
    xid: u32,
    /// Number of shapes that had been followed when a snapshot was known to see the transaction.
    seen_at: u64,
}

/// Entries that were dropped because of the bounds.
#[derive(Debug)]
struct ForgottenTransactions {
    /// Newest transaction id among them.
    xid: u32,
    /// Maximum of their `seen_at`.
    seen_at: u64,
}

impl RecentTransactions {
    pub(super) fn clear(&mut self) {
        *self = RecentTransactions::default();
    }

    pub(super) fn push(&mut self, oid: u32, lsn: u64, xid: u32) {
        let table = self.tables.entry(oid).or_default();
        let is_full = table.entries.len() == MAX_ENTRIES || self.entries == MAX_ENTRIES_TOTAL;
        // If the table has no older entry, the new one is forgotten itself.
        let entry = RecentTransaction { lsn, xid, seen_at: UNSEEN };
        let oldest = if is_full { table.entries.pop_front() } else { None };
        match oldest {
            None if is_full => table.forget(&entry),
            None => {
                table.entries.push_back(entry);
                self.entries += 1;
            }
            Some(oldest) => {
                table.forget(&oldest);
                table.entries.push_back(entry);
            }
        }
    }

    /// Returns whether a snapshot may miss a transaction that changed a table and was committed
    /// before `since`.
    pub(super) fn is_missed(&self, oid: u32, since: u64, seen: &SnapshotVisibility) -> bool {
        let Some(table) = self.tables.get(&oid) else { return false };
        table.forgotten.as_ref().is_some_and(|forgotten| !is_newer(seen.xmin as u32, forgotten.xid))
            || table.entries.iter().any(|entry| entry.lsn < since && !seen.sees(entry.lsn, entry.xid))
    }

    /// Records what a snapshot sees, for one table or for all, and drops entries.
    ///
    /// `follows` is the number of shapes followed so far. `oldest` is the number of the first shape
    /// that waits for its snapshot; `u64::MAX`: none.
    pub(super) fn prune(&mut self, oid: Option<u32>, seen: &SnapshotVisibility, follows: u64, oldest: u64) {
        let entries = &mut self.entries;
        let mut prune = |table: &mut TableTransactions| {
            *entries -= table.prune(seen, follows, oldest);
            !table.entries.is_empty() || table.forgotten.is_some()
        };
        match oid {
            None => self.tables.retain(|_, table| prune(table)),
            Some(oid) => {
                if self.tables.get_mut(&oid).is_some_and(|table| !prune(table)) {
                    self.tables.remove(&oid);
                }
            }
        }
    }
}

impl TableTransactions {
    fn forget(&mut self, entry: &RecentTransaction) {
        let RecentTransaction { xid, seen_at, .. } = *entry;
        let before = self.forgotten.take().unwrap_or(ForgottenTransactions { xid, seen_at });
        let xid = if is_newer(before.xid, xid) { before.xid } else { xid };
        // Together, they are visible only when the last of them is.
        let seen_at = before.seen_at.max(seen_at);
        self.forgotten = Some(ForgottenTransactions { xid, seen_at });
    }

    /// Does the same as [`RecentTransactions::prune`] for one table. Returns the number of dropped
    /// entries.
    fn prune(&mut self, seen: &SnapshotVisibility, follows: u64, oldest: u64) -> usize {
        let before = self.entries.len();
        let stays = |seen_at: &mut u64, is_seen: &dyn Fn() -> bool| {
            if *seen_at == UNSEEN && is_seen() {
                *seen_at = follows;
            }
            *seen_at == UNSEEN || oldest < *seen_at
        };
        self.entries
            .retain_mut(|RecentTransaction { lsn, xid, seen_at }| stays(seen_at, &|| seen.sees(*lsn, *xid)));
        let is_newer = |forgotten: &ForgottenTransactions| is_newer(seen.xmin as u32, forgotten.xid);
        self.forgotten.take_if(|forgotten| {
            let is_seen = is_newer(forgotten);
            !stays(&mut forgotten.seen_at, &|| is_seen)
        });
        before - self.entries.len()
    }
}

/// Returns whether a transaction id was assigned after another one. Ids wrap around.
fn is_newer(xid: u32, than: u32) -> bool {
    Xid(than).precedes(Xid(xid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a snapshot that sees all transactions before this one.
    fn before(xid: u64) -> SnapshotVisibility {
        SnapshotVisibility { xmin: xid, xmax: xid, xip: Vec::new(), lsn: u64::MAX }
    }

    #[test]
    fn an_entry_stays_until_a_snapshot_sees_it_and_no_waiting_shape_is_older() {
        let mut recent = RecentTransactions::default();
        recent.push(1, 10, 700);
        recent.push(2, 10, 700);
        assert!(recent.is_missed(1, 11, &before(700)));
        assert!(!recent.is_missed(1, 10, &before(700)) && !recent.is_missed(3, 11, &before(700)));
        recent.prune(None, &before(700), 5, u64::MAX);
        assert!(recent.is_missed(1, 11, &before(700)));
        // Shape 4 was followed before the entry was seen, and may have an older snapshot.
        recent.prune(None, &before(701), 5, 4);
        assert!(recent.is_missed(1, 11, &before(700)));
        // All waiting shapes were followed after the entry was seen.
        recent.prune(Some(1), &before(600), 9, 5);
        assert!(!recent.is_missed(1, 11, &before(700)) && recent.is_missed(2, 11, &before(700)));
        recent.prune(None, &before(600), 9, 9);
        assert!(recent.tables.is_empty());
    }

    #[test]
    fn a_forgotten_transaction_counts_as_missed_until_xmin_is_newer() {
        let mut recent = RecentTransactions::default();
        // Ids wrap around, and skip the reserved ones.
        let ids = [u32::MAX - 1, u32::MAX].into_iter().chain(3..);
        for (lsn, xid) in (10..).zip(ids).take(MAX_ENTRIES + 5) {
            recent.push(1, lsn, xid);
        }
        assert_eq!(recent.tables[&1].entries.len(), MAX_ENTRIES);
        let (last_forgotten, end) = ((1_u64 << 32) + 5, (1_u64 << 32) + MAX_ENTRIES as u64 + 6);
        let sees_all = |xmin| SnapshotVisibility { xmin, xmax: end, xip: Vec::new(), lsn: u64::MAX };
        assert!(recent.is_missed(1, u64::MAX, &sees_all(last_forgotten)));
        assert!(!recent.is_missed(1, u64::MAX, &sees_all(last_forgotten + 1)));
        recent.prune(None, &sees_all(last_forgotten), 1, u64::MAX);
        assert!(recent.is_missed(1, u64::MAX, &sees_all(last_forgotten)));
        recent.prune(None, &sees_all(last_forgotten + 1), 1, 0);
        assert!(recent.is_missed(1, u64::MAX, &sees_all(last_forgotten)));
        recent.prune(None, &sees_all(last_forgotten + 1), 1, u64::MAX);
        assert!(recent.tables.is_empty());
    }

    #[test]
    fn a_forgotten_transaction_that_a_snapshot_saw_is_not_missed() {
        let mut recent = RecentTransactions::default();
        recent.push(1, 10, 700);
        // A snapshot sees it, but not an older transaction that still runs. The first shape waits.
        let sees_it = SnapshotVisibility { xmin: 650, xmax: 701, xip: vec![650], lsn: u64::MAX };
        recent.prune(None, &sees_it, 1, 0);
        let last = 701 + MAX_ENTRIES as u32;
        (701..last).for_each(|xid| recent.push(1, u64::from(xid), xid));
        assert_eq!(recent.tables[&1].entries.len(), MAX_ENTRIES);
        let sees_all = SnapshotVisibility { xmin: 650, xmax: last.into(), xip: vec![650], lsn: u64::MAX };
        assert!(recent.is_missed(1, u64::MAX, &sees_all));
        recent.prune(None, &sees_all, 2, u64::MAX);
        assert!(!recent.is_missed(1, u64::MAX, &sees_all));
        assert!(recent.tables.is_empty() && recent.entries == 0);
    }

    #[test]
    fn all_tables_share_one_bound() {
        let mut recent = RecentTransactions::default();
        for xid in (0..MAX_ENTRIES_TOTAL as u32).map(|xid| xid + 3) {
            recent.push(xid % 8, 10, xid);
        }
        let next = MAX_ENTRIES_TOTAL as u32 + 3;
        let end = SnapshotVisibility { xmin: next.into(), ..before(u64::from(next) + 2) };
        assert!(!recent.is_missed(0, 11, &end));
        // The first replaces the oldest entry of its table; the second has no older entry.
        recent.push(0, 10, next);
        recent.push(9, 10, next + 1);
        assert_eq!(recent.entries, MAX_ENTRIES_TOTAL);
        assert_eq!(recent.tables[&0].forgotten.as_ref().map(|forgotten| forgotten.xid), Some(8));
        assert!(recent.tables[&9].entries.is_empty() && recent.is_missed(9, 11, &end));
        recent.prune(None, &before(u64::from(next) + 2), 1, u64::MAX);
        assert!(recent.tables.is_empty() && recent.entries == 0);
    }
}
