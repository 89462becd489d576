//! Held transaction: waits until the snapshot of a shape is taken.

use super::open_transaction::OpenTransaction;
use crate::row_keys::KeyChange;
use crate::store::record::{CommitRecord, MessageRange, Record, ShapeTouch, TransactionPart};

/// Transaction that is held until the snapshot of a shape is taken.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) xid: u32,
    pub(super) lsn: u64,
    pub(super) last_op: u64,
    pub(super) text: Vec<u8>,
    /// The log can't represent the transaction. Unless the snapshot sees it, the shape is deleted.
    pub(super) is_unfit: bool,
    /// Changes of row keys, if the table has no primary key.
    pub(super) key_changes: Vec<KeyChange>,
}

impl HeldTransaction {
    /// Returns the entry of the transaction that is being applied. Adds it if it is missing.
    pub(super) fn find_or_add<'a>(
        transaction: &OpenTransaction,
        held: &'a mut Vec<HeldTransaction>,
    ) -> &'a mut HeldTransaction {
        if held.last().is_none_or(|held| held.lsn != transaction.lsn) {
            let OpenTransaction { lsn, xid, .. } = *transaction;
            let (text, key_changes) = (Vec::new(), Vec::new());
            held.push(HeldTransaction { xid, lsn, last_op: 0, text, is_unfit: false, key_changes });
        }
        held.last_mut().expect("an entry was pushed")
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.key_changes.len() * size_of::<KeyChange>()
    }

    /// Returns a WAL record with this transaction for one shape. Other shapes got the transaction
    /// with an earlier record.
    pub(super) fn record(self, shape: u64) -> Record {
        let to = u32::try_from(self.text.len()).expect("held bytes are bounded");
        let ranges = vec![MessageRange { from: 0, to, last_op: self.last_op }];
        let touches = vec![ShapeTouch { shape, ranges }];
        let changes = TransactionPart { lsn: self.lsn, is_first: true, touches, text: self.text.into() };
        Record::Commit(changes, CommitRecord::default())
    }
}
