//! Followed shape: a shape that is matched with changes, its snapshot and its held transactions.

use std::sync::Arc;

use super::decision::TransactionReceipt;
use super::held_transaction::{ChangedRows, HeldChange};
use super::open_transaction::OpenTransaction;
use super::row_effect::{DecodedRow, RowsOfChange};
use super::row_verdicts::{HeldVerdict, PackedRow, RowVerdicts};
use super::shape_hold::{self, ShapeHold};
use crate::filter::{Candidate, Filter, RowVerdict};
use crate::row_keys::{KeyCounts, RowKeys, WaitingKeyChanges};
use crate::shape::Shape;
use crate::store::record::SnapshotVisibility;

/// Shape that is matched with changes.
#[derive(Debug)]
pub(crate) struct FollowedShape {
    pub(super) shape: Arc<Shape>,
    pub(super) snapshot: SnapshotPhase,
    /// Whether a row may be undecided.
    pub(super) may_be_undecided: bool,
    /// Row keys, if the table has no primary key.
    pub(super) keys: Option<RowKeys>,
    /// Held transactions. `None`: nothing is held.
    pub(super) hold: Option<Box<ShapeHold>>,
    /// Verdicts of Postgres. `None`: no row was undecided yet.
    pub(super) verdicts: Option<Box<RowVerdicts>>,
}

/// Whether the snapshot of a shape is taken, and which transactions it sees.
#[derive(Debug)]
pub(super) enum SnapshotPhase {
    /// The snapshot isn't taken yet: transactions are held.
    Pending {
        /// Transactions with a commit at or after this LSN are held. The snapshot must see all
        /// earlier ones.
        since: u64,
    },
    /// The snapshot sees these transactions.
    Taken(SnapshotVisibility),
}

/// What happens to a change of rows that may be undecided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    /// Nothing is held. Whether the old row and the new row are in the shape.
    Decided(bool, bool),
    Held,
    /// More than the limit would be held: the shape must be deleted.
    Overfull,
}

impl FollowedShape {
    /// Returns a shape whose snapshot isn't taken. All transactions from `since` on are held.
    pub(super) fn pending(shape: Arc<Shape>, since: u64) -> Self {
        let keys = shape.definition().table.key.is_empty();
        let keys = keys.then(|| RowKeys::Waiting(WaitingKeyChanges::default()));
        let (snapshot, hold) = (SnapshotPhase::Pending { since }, Some(Box::default()));
        FollowedShape::new(shape, snapshot, keys, hold)
    }

    /// Returns a shape with a complete snapshot, which is held from the commit `held_from` on.
    pub(super) fn complete(
        shape: Arc<Shape>,
        seen: SnapshotVisibility,
        keys: Option<KeyCounts>,
        held_from: Option<u64>,
    ) -> Self {
        let hold = held_from.map(|from| Box::new(ShapeHold::resumed(from)));
        let (snapshot, keys) = (SnapshotPhase::Taken(seen), keys.map(RowKeys::Counted));
        FollowedShape::new(shape, snapshot, keys, hold)
    }

    fn new(
        shape: Arc<Shape>,
        snapshot: SnapshotPhase,
        keys: Option<RowKeys>,
        hold: Option<Box<ShapeHold>>,
    ) -> Self {
        let may_be_undecided = shape.filter.as_ref().is_some_and(Filter::may_be_undecided);
        FollowedShape { shape, snapshot, may_be_undecided, keys, hold, verdicts: None }
    }

    /// Returns whether a transaction doesn't concern the shape: its snapshot sees the transaction,
    /// or the shape got it before.
    pub(super) fn skips(&self, transaction: &OpenTransaction) -> bool {
        let is_seen = match &self.snapshot {
            SnapshotPhase::Taken(seen) => seen.sees(transaction.lsn, transaction.xid),
            SnapshotPhase::Pending { .. } => false,
        };
        is_seen || (transaction.receipt == TransactionReceipt::Resumed && !self.resumes(transaction.lsn))
    }

    fn resumes(&self, lsn: u64) -> bool {
        let resume = self.hold.as_ref().and_then(|hold| hold.resume);
        resume.is_some_and(|resume| resume.next <= lsn)
    }

    /// Returns whether rows are kept instead of messages.
    pub(super) fn keeps_rows(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.keeps_rows)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.hold.as_ref().map_or(0, |hold| hold.bytes())
    }

    /// Returns the verdict on a row without Postgres. `candidate` is the index's candidate.
    pub(super) fn judge(&self, candidate: Option<&Candidate>, row: Option<&DecodedRow<'_>>) -> RowVerdict {
        match (candidate, row, &self.shape.filter) {
            (None, _, _) | (_, None, _) => RowVerdict::NoMatch,
            (Some(candidate), Some(_), _) if candidate.certain => RowVerdict::Match,
            (Some(_), Some(_), None) => RowVerdict::Match,
            (Some(_), Some(row), Some(filter)) => filter.judge(row),
        }
    }

    /// Holds a change if its verdicts aren't known, or if earlier changes are held. `shared` has
    /// the rows if another shape holds the change, too.
    pub(super) fn hold_change(
        &mut self,
        transaction: &mut OpenTransaction,
        rows: RowsOfChange<'_, '_>,
        (was, is): (RowVerdict, RowVerdict),
        shared: &mut Option<Arc<ChangedRows>>,
    ) -> HoldOutcome {
        let (was, is) = (self.find_or_ask(was, rows.0), self.find_or_ask(is, rows.1));
        match (was.get(), is.get()) {
            (Some(false), Some(false)) => return HoldOutcome::Decided(false, false),
            (Some(was), Some(is)) if !self.keeps_rows() => return HoldOutcome::Decided(was, is),
            (Some(_) | None, _) => {}
        }
        let (limit, hold) = (transaction.held_bytes, self.hold.get_or_insert_default());
        hold.keeps_rows = true;
        if transaction.held_shapes.insert(self.shape.id) {
            // Its earlier changes of this transaction come first.
            let Some((text, last_op)) = transaction.detach(self.shape.id) else {
                return HoldOutcome::Overfull;
            };
            // One row may begin the holds of many shapes, and each copies its earlier messages.
            if !text.is_empty() && shape_hold::all_held_bytes() + text.len() > transaction.total_held_bytes {
                return HoldOutcome::Overfull;
            }
            let key_changes = transaction.take_key_changes_of(self.shape.id);
            hold.update(transaction, |held| {
                if !text.is_empty() {
                    held.text.extend_from_slice(&text);
                    held.last_op = last_op;
                }
                held.key_changes.extend(key_changes);
            });
        }
        let rows = Arc::clone(shared.get_or_insert_with(|| Arc::new(ChangedRows::new(rows))));
        let op = transaction.op;
        hold.update(transaction, |held| held.push(HeldChange { op, rows, was, is }));
        if hold.bytes() > limit { HoldOutcome::Overfull } else { HoldOutcome::Held }
    }

    fn find_or_ask(&mut self, verdict: RowVerdict, row: Option<&DecodedRow<'_>>) -> HeldVerdict {
        match (verdict, row, &self.shape.filter) {
            (RowVerdict::Match, _, _) => HeldVerdict::Known(true),
            (RowVerdict::Undecided, Some(row), Some(filter)) => {
                let values = filter.columns().iter().map(|column| row[*column]);
                self.verdicts.get_or_insert_default().find_or_ask(PackedRow::new(values))
            }
            (RowVerdict::NoMatch | RowVerdict::Undecided, _, _) => HeldVerdict::Known(false),
        }
    }
}
