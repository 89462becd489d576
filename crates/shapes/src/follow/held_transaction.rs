//! Held transaction: the changes of one transaction that aren't in a shape's log yet.
//!
//! Reasons: the shape has no snapshot, a row waits for a verdict of Postgres, or an earlier
//! transaction is held.

use std::sync::Arc;

use super::open_transaction::OpenTransaction;
use super::row_effect::{EncodedMessages, RowChangeKeys, RowEffect, RowsOfChange};
use super::row_verdicts::{HeldVerdict, PackedRow};
use crate::encode::LogPosition;
use crate::row_keys::{KeyChange, RowKeys};
use crate::shape::Shape;
use crate::store::record::MAX_TEXT;

/// Transaction that is held for a shape.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) xid: u32,
    pub(super) lsn: u64,
    /// Operation number of the last message in `text`.
    pub(super) last_op: u64,
    /// Messages of the first changes.
    pub(super) text: Vec<u8>,
    /// The changes after those in `text`.
    changes: Vec<HeldChange>,
    /// Size of the rows in `changes`, in bytes.
    rows_bytes: usize,
    /// Number of changes at the start of `changes` whose verdicts are known.
    decided: usize,
    /// The log can't represent the transaction. Unless the snapshot sees it, the shape is deleted.
    pub(super) is_unfit: bool,
    /// Changes of row keys by the messages in `text`, if the table has no primary key.
    pub(super) key_changes: Vec<KeyChange>,
}

/// Row change that isn't encoded: its effect on the shape may be unknown.
#[derive(Debug)]
pub(super) struct HeldChange {
    /// Number of the change in its transaction.
    pub(super) op: u64,
    pub(super) rows: Arc<ChangedRows>,
    /// Whether the old row and the new row are in the shape.
    pub(super) was: HeldVerdict,
    pub(super) is: HeldVerdict,
}

/// Rows of a change, shared by all shapes that hold it.
#[derive(Debug)]
pub(super) struct ChangedRows {
    old: Option<PackedRow>,
    new: Option<PackedRow>,
}

/// The log can't represent a change: the shape must be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnfitChange;

impl ChangedRows {
    pub(super) fn new((old, new): RowsOfChange<'_, '_>) -> Self {
        let pack = |row: &Vec<Option<&[u8]>>| PackedRow::new(row.iter().copied());
        ChangedRows { old: old.map(pack), new: new.map(pack) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.old.as_ref().map_or(0, PackedRow::bytes) + self.new.as_ref().map_or(0, PackedRow::bytes)
    }
}

impl HeldTransaction {
    /// Returns an entry without changes for the transaction that is being applied.
    pub(super) fn new(transaction: &OpenTransaction) -> Self {
        HeldTransaction {
            xid: transaction.xid,
            lsn: transaction.lsn,
            last_op: 0,
            text: Vec::new(),
            changes: Vec::new(),
            rows_bytes: 0,
            decided: 0,
            is_unfit: false,
            key_changes: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, change: HeldChange) {
        self.rows_bytes += change.rows.bytes();
        self.changes.push(change);
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len()
            + self.key_changes.len() * size_of::<KeyChange>()
            + self.changes.len() * size_of::<HeldChange>()
            + self.rows_bytes
    }

    /// Returns whether all verdicts are known.
    pub(super) fn is_decided(&mut self) -> bool {
        let is_known = |change: &HeldChange| change.was.get().is_some() && change.is.get().is_some();
        while self.changes.get(self.decided).is_some_and(is_known) {
            self.decided += 1;
        }
        self.decided == self.changes.len()
    }

    /// Encodes all changes, and counts the row keys that they change. The transaction is decided.
    /// Afterwards, `text` has the messages.
    pub(super) fn encode(
        &mut self,
        shape: &Shape,
        keys: Option<&mut RowKeys>,
        message_bytes: usize,
    ) -> Result<(), UnfitChange> {
        for HeldChange { op, rows, was, is } in std::mem::take(&mut self.changes) {
            let (Some(was), Some(is)) = (was.get(), is.get()) else { return Err(UnfitChange) };
            let (old, new) =
                (rows.old.as_ref().map(PackedRow::values), rows.new.as_ref().map(PackedRow::values));
            let rows = (old.as_ref(), new.as_ref());
            let Some(effect) = RowEffect::of(&shape.encoder, (was, is), rows) else { continue };
            if keys.is_some() {
                self.key_changes.extend(effect.key_changes(&RowChangeKeys::of(shape, rows)));
            }
            let at = LogPosition { lsn: self.lsn, op, xid: self.xid };
            match effect.encode(&shape.encoder, rows, at, message_bytes, &mut self.text) {
                EncodedMessages::Nothing => {}
                EncodedMessages::Written { last_op } => self.last_op = last_op,
                EncodedMessages::TooLarge => return Err(UnfitChange),
            }
        }
        let is_exact = keys.is_none_or(|keys| keys.apply(&self.key_changes).is_ok());
        if is_exact && self.text.len() <= MAX_TEXT { Ok(()) } else { Err(UnfitChange) }
    }
}
