//! Shape hold: the transactions that are held for one shape, in commit order.
//!
//! A shape is *held* from a commit on if a row of that transaction waits for a verdict. The
//! messages of this transaction and of all later ones are appended to the log when the verdicts are
//! known, in order. Then the log has the same offsets as without a hold.
//!
//! Invariant: while a committed transaction is held for a shape with a snapshot, the WAL states
//! from which commit on. Nothing after it is acknowledged to Postgres, which sends it again after a
//! crash.
//! Enforced by: the record of the commit has the start of the hold. The record of each released
//! transaction has the start of the next one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::held_transaction::HeldTransaction;
use super::open_transaction::OpenTransaction;
use crate::store::record::{HoldChange, SnapshotVisibility};

/// Size of the holds of all shapes in this process, in bytes.
static ALL_HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Transactions that are held for one shape.
#[derive(Debug, Default)]
pub(super) struct ShapeHold {
    transactions: VecDeque<HeldTransaction>,
    /// Whether rows are kept, instead of messages. It is so from the first undecided row until no
    /// transaction is held.
    pub(super) keeps_rows: bool,
    /// Commit from which on the shape is held, as the WAL has it. `None`: the shape isn't held.
    pub(super) recorded: Option<u64>,
    /// Where the stream must continue for this shape. `None`: it receives the stream.
    pub(super) resume: Option<ResumePoint>,
    /// Size of all held transactions, in bytes.
    bytes: HeldBytes,
}

/// Size of a hold, in bytes. It is part of [`all_held_bytes`] until it is dropped.
#[derive(Debug, Default)]
struct HeldBytes(usize);

/// Where the stream must continue for a shape that was held when a process began to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResumePoint {
    /// The shape needs all transactions with a commit at or after this LSN.
    pub(super) next: u64,
    /// Whether the stream has sent the first of them.
    pub(super) has_begun: bool,
}

impl ShapeHold {
    /// Returns the hold of a shape that was held from a commit on when a process began to write.
    pub(super) fn resumed(from: u64) -> Self {
        let resume = Some(ResumePoint { next: from, has_begun: false });
        ShapeHold { keeps_rows: true, recorded: Some(from), resume, ..ShapeHold::default() }
    }

    /// Changes the entry of the transaction that is being applied. Adds it if it is missing.
    pub(super) fn update<T>(
        &mut self,
        transaction: &OpenTransaction,
        change: impl FnOnce(&mut HeldTransaction) -> T,
    ) -> T {
        if self.transactions.back().is_none_or(|held| held.lsn != transaction.lsn) {
            self.transactions.push_back(HeldTransaction::new(transaction));
        }
        let held = self.transactions.back_mut().expect("an entry was added");
        let before = held.bytes();
        let done = change(held);
        let after = held.bytes();
        self.bytes.set(self.bytes.0 + after - before);
        done
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    pub(super) fn has_unfit(&self) -> bool {
        self.transactions.iter().any(|held| held.is_unfit)
    }

    /// Drops the transaction with this commit, which was interrupted. Does nothing if the shape has
    /// received the whole transaction before.
    pub(super) fn abandon(&mut self, lsn: u64) {
        if self.resume.is_some_and(|resume| resume.next > lsn) {
            return;
        }
        if let Some(held) = self.transactions.pop_back_if(|held| held.lsn == lsn) {
            self.bytes.set(self.bytes.0 - held.bytes());
        }
    }

    /// Drops the transactions that a snapshot sees.
    pub(super) fn drop_seen(&mut self, seen: &SnapshotVisibility) {
        self.transactions.retain(|held| !seen.sees(held.lsn, held.xid));
        self.bytes.set(self.transactions.iter().map(HeldTransaction::bytes).sum());
    }

    /// Removes the first transaction if it is committed and all its verdicts are known. `open` is
    /// the commit of the transaction that is being applied.
    pub(super) fn pop_decided(&mut self, open: Option<u64>) -> Option<HeldTransaction> {
        let held = self.transactions.pop_front_if(|held| Some(held.lsn) != open && held.is_decided())?;
        self.bytes.set(self.bytes.0 - held.bytes());
        Some(held)
    }

    /// Returns the first committed transaction.
    pub(super) fn first_committed(&self, open: Option<u64>) -> Option<u64> {
        self.transactions.front().map(|held| held.lsn).filter(|lsn| Some(*lsn) != open)
    }

    /// Moves the recorded start of the hold forward to `first`; `None`: the hold ends. Returns the
    /// change for the WAL. The start never moves back, because later positions may be acknowledged.
    pub(super) fn record(&mut self, shape: u64, first: Option<u64>) -> Option<HoldChange> {
        let before = self.recorded?;
        if first.is_some_and(|first| first <= before) {
            return None;
        }
        self.recorded = first;
        Some(HoldChange { shape, from: first.unwrap_or(0) })
    }
}

/// Returns the size of the holds of all shapes in this process, in bytes. A row that several shapes
/// hold counts for each.
pub(crate) fn all_held_bytes() -> usize {
    ALL_HELD_BYTES.load(Ordering::Relaxed)
}

impl HeldBytes {
    fn set(&mut self, bytes: usize) {
        ALL_HELD_BYTES.fetch_add(bytes, Ordering::Relaxed);
        ALL_HELD_BYTES.fetch_sub(self.0, Ordering::Relaxed);
        self.0 = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}
