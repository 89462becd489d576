//! Open transaction: the messages encoded so far, and the shapes that get them.
//!
//! Invariant: the messages since the last part have at most `MAX_TEXT` bytes, the maximum of a
//! record.
//! Enforced by: the transaction is queued in parts, and a message beyond the maximum is discarded.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::decision::{TouchDestination, TransactionReceipt};
use super::followed_shapes::FollowedShapes;
use super::stream_relation::StreamRelation;
use crate::config::StoreConfig;
use crate::encode::{LogPosition, RowEncoder, ShapeChange};
use crate::row_keys::{AmbiguousKey, KeyChange};
use crate::shape::Shape;
use crate::store::record::{MAX_TEXT, MessageRange, ShapeTouch, TransactionPart};

/// Number of ranges at which a part is queued. Checked after each change, so a part may exceed it
/// by the ranges of one change.
const PART_RANGES: usize = 1 << 16;

/// Maximum number of entries in `entered_keys`. With spare capacity, they take 32 MiB.
const MAX_ENTERED: usize = 1 << 20;

/// Maximum number of key changes that wait for the commit. A change takes 16 bytes: 16 MiB.
const MAX_KEY_CHANGES: usize = 1 << 20;

/// Values of a row, in the order of its table's columns.
pub(crate) type DecodedRow<'a> = Vec<Option<&'a [u8]>>;

/// Transaction that is being applied.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    /// Position of its commit.
    pub(crate) lsn: u64,
    pub(crate) xid: u32,
    /// The changes of a repeated transaction are skipped.
    pub(crate) receipt: TransactionReceipt,
    /// Number of the current change. Increases by 2, because a change of the key has two messages.
    pub(crate) op: u64,
    /// Oids of the tables that it changes.
    pub(crate) oids: Vec<u32>,
    /// Versions of the changed relations that have ancestors or descendants in a partition tree.
    /// First the version of the relation that changed last, then the set of all versions.
    related: (u64, HashSet<u64>),
    /// Hashes of the keys that rows got in this transaction, for tables with a deferrable key.
    entered_keys: HashSet<u64>,
    /// Changes of row keys in order, by shape id, for tables without a primary key.
    key_changes: HashMap<u64, Vec<KeyChange>>,
    /// Number of all entries in `key_changes`.
    key_change_count: usize,
    part_bytes: usize,
    message_bytes: usize,
    has_parts: bool,
    /// Messages since the last part.
    text: Vec<u8>,
    /// Ranges of `text`, by shape.
    touches: Vec<ShapeTouch>,
    /// Number of ranges in `touches`.
    range_count: usize,
    /// Index into `touches` by shape id.
    touch_indexes: HashMap<u64, usize>,
    /// Ids of the shapes that earlier parts touched.
    touched_by_parts: HashSet<u64>,
}

/// Effect of a row change on a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowEffect {
    Insert,
    Update,
    Delete,
    /// The row is in the shape before and after, with another key.
    Rekey,
}

/// Hashes of the keys of a row before and after a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowChangeKeys {
    pub(crate) old: Option<u64>,
    pub(crate) new: Option<u64>,
}

/// Change encoded for all shapes with the same row encoder.
#[derive(Debug)]
pub(crate) struct EncodedChange {
    /// Address of the row encoder, which identifies it.
    encoder: usize,
    effect: RowEffect,
    message: EncodeOutcome,
}

/// The message of a change is larger than [`StoreConfig::message_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageTooLarge;

/// Result of encoding a change.
#[derive(Debug, Clone, Copy)]
enum EncodeOutcome {
    /// No shown column has changed.
    Nothing,
    At(MessageRange),
    TooLarge,
}

impl OpenTransaction {
    pub(crate) fn new(lsn: u64, xid: u32, receipt: TransactionReceipt, config: &StoreConfig) -> Self {
        OpenTransaction {
            lsn,
            xid,
            receipt,
            op: 0,
            oids: Vec::new(),
            related: (0, HashSet::new()),
            entered_keys: HashSet::new(),
            key_changes: HashMap::new(),
            key_change_count: 0,
            part_bytes: config.part_bytes.min(MAX_TEXT),
            message_bytes: config.message_bytes.min(MAX_TEXT),
            has_parts: false,
            text: Vec::new(),
            touches: Vec::new(),
            range_count: 0,
            touch_indexes: HashMap::new(),
            touched_by_parts: HashSet::new(),
        }
    }

    /// Adds a change to a shape. Encodes it, unless `encoded` already has its message for the
    /// shape's row encoder.
    pub(crate) fn write(
        &mut self,
        shape: &Shape,
        effect: RowEffect,
        rows: (Option<&DecodedRow<'_>>, Option<&DecodedRow<'_>>),
        encoded: &mut Vec<EncodedChange>,
    ) -> Result<(), MessageTooLarge> {
        let encoder = Arc::as_ptr(&shape.encoder).addr();
        let before = encoded.iter().find(|encoded| encoded.encoder == encoder && encoded.effect == effect);
        let message = match before {
            Some(encoded) => encoded.message,
            None => {
                let message = self.encode(&shape.encoder, effect, rows);
                encoded.push(EncodedChange { encoder, effect, message });
                message
            }
        };
        match message {
            EncodeOutcome::Nothing => Ok(()),
            EncodeOutcome::At(range) => {
                self.touch(shape.id, range);
                Ok(())
            }
            EncodeOutcome::TooLarge => Err(MessageTooLarge),
        }
    }

    fn encode(
        &mut self,
        encoder: &RowEncoder,
        effect: RowEffect,
        rows: (Option<&DecodedRow<'_>>, Option<&DecodedRow<'_>>),
    ) -> EncodeOutcome {
        let values = [rows.0, rows.1].into_iter().flatten().flatten().flatten();
        if values.map(|value| value.len()).sum::<usize>() > self.message_bytes {
            return EncodeOutcome::TooLarge;
        }
        let place = |op: u64| LogPosition { lsn: self.lsn, op, xid: self.xid };
        let (here, next) = (place(self.op), place(self.op + 1));
        let from = self.text.len();
        let text = &mut self.text;
        let is_written = match (effect, rows) {
            (RowEffect::Insert, (_, Some(row))) => {
                encoder.change(text, ShapeChange::Insert { row, from: None }, here)
            }
            (RowEffect::Update, (Some(old), Some(new))) => {
                encoder.change(text, ShapeChange::Update { old, new }, here)
            }
            (RowEffect::Delete, (Some(row), _)) => {
                encoder.change(text, ShapeChange::Delete { row, to: None }, here)
            }
            (RowEffect::Rekey, (Some(old), Some(new))) => {
                encoder.change(text, ShapeChange::Delete { row: old, to: Some(new) }, here)
                    && encoder.change(text, ShapeChange::Insert { row: new, from: Some(old) }, next)
            }
            _ => false,
        };
        if !is_written {
            return EncodeOutcome::Nothing;
        }
        match (u32::try_from(from), u32::try_from(text.len())) {
            (Ok(from), Ok(to)) if text.len() <= MAX_TEXT && (to - from) as usize <= self.message_bytes => {
                let last_op = if effect == RowEffect::Rekey { next.op } else { here.op };
                EncodeOutcome::At(MessageRange { from, to, last_op })
            }
            _ => {
                text.truncate(from);
                text.shrink_to(self.part_bytes);
                EncodeOutcome::TooLarge
            }
        }
    }

    fn touch(&mut self, shape: u64, range: MessageRange) {
        let next = self.touches.len();
        let at = *self.touch_indexes.entry(shape).or_insert(next);
        if at == next {
            self.touches.push(ShapeTouch { shape, ranges: Vec::with_capacity(1) });
        }
        match self.touches[at].ranges.last_mut() {
            Some(last) if last.to == range.from => (last.to, last.last_op) = (range.to, range.last_op),
            Some(_) | None => {
                self.touches[at].ranges.push(range);
                self.range_count += 1;
            }
        }
    }

    /// Adds a table to those that the transaction changes.
    pub(crate) fn add_table(&mut self, oid: u32) {
        if !self.oids.contains(&oid) {
            self.oids.push(oid);
        }
    }

    /// Adds a changed relation that has ancestors or descendants. Returns `true` if this is the
    /// first call for the relation in this transaction.
    pub(crate) fn add_relation(&mut self, relation: &StreamRelation) -> bool {
        let version = relation.described.version;
        if self.related.0 == version {
            return false;
        }
        self.related.0 = version;
        let is_first = self.related.1.insert(version);
        if is_first {
            relation.ancestors.iter().for_each(|oid| self.add_table(*oid));
        }
        is_first
    }

    /// Records that a row leaves one key and gets another, in a table whose key is deferrable.
    ///
    /// Within a transaction, two rows may have the same key, and a client identifies a row by its
    /// key. One of the two got the key in this transaction, and one must leave it before the
    /// commit. So if no row leaves a key that a row got earlier in the same transaction, no two
    /// rows had the same key, and the messages are exact. Otherwise it is unknown which of the two
    /// rows the client would lose.
    pub(crate) fn move_deferrable_key(
        &mut self,
        left: Option<u64>,
        entered: Option<u64>,
    ) -> Result<(), AmbiguousKey> {
        let leaves_entered_key = left.is_some_and(|key| self.entered_keys.contains(&key));
        let has_room = self.entered_keys.len() < MAX_ENTERED;
        self.entered_keys.extend(entered.filter(|_| has_room));
        if leaves_entered_key || (!has_room && entered.is_some()) { Err(AmbiguousKey) } else { Ok(()) }
    }

    /// Adds the keys of rows that enter or leave a shape, whose table has no primary key.
    pub(crate) fn add_key_changes(&mut self, shape: u64, effect: RowEffect, keys: &RowChangeKeys) {
        if effect == RowEffect::Update {
            return;
        }
        let changes = self.key_changes.entry(shape).or_default();
        let before = changes.len();
        if let (RowEffect::Delete | RowEffect::Rekey, Some(old)) = (effect, keys.old) {
            changes.push(KeyChange::Left(old));
        }
        if let (RowEffect::Insert | RowEffect::Rekey, Some(new)) = (effect, keys.new) {
            changes.push(KeyChange::Entered(new));
        }
        self.key_change_count += changes.len() - before;
    }

    /// Returns whether there are so many key changes that they must be counted before the commit.
    /// If the stream is interrupted between the count and the commit, some keys are counted twice.
    /// That may delete a shape too early.
    pub(crate) fn has_many_keys(&self) -> bool {
        self.key_change_count > MAX_KEY_CHANGES
    }

    pub(crate) fn take_key_changes(&mut self) -> HashMap<u64, Vec<KeyChange>> {
        self.key_change_count = 0;
        mem::take(&mut self.key_changes)
    }

    /// Returns whether the current part should be queued.
    pub(crate) fn is_part_full(&self) -> bool {
        self.text.len() >= self.part_bytes || self.range_count >= PART_RANGES
    }

    /// Returns the changes since the last part. Changes of shapes without a snapshot are held
    /// instead. `None`: no other changes are left.
    pub(crate) fn part(&mut self, followed: &mut FollowedShapes) -> Option<TransactionPart> {
        let changes = self.next_part(followed);
        (!changes.touches.is_empty()).then(|| {
            self.has_parts = true;
            self.touched_by_parts.extend(changes.touches.iter().map(|touch| touch.shape));
            changes
        })
    }

    pub(crate) fn last_part(&mut self, followed: &mut FollowedShapes) -> TransactionPart {
        self.next_part(followed)
    }

    /// Returns the shapes that earlier parts touched and the last part doesn't.
    pub(crate) fn shapes_of_earlier_parts(&mut self, last: &TransactionPart) -> Vec<u64> {
        for touch in &last.touches {
            self.touched_by_parts.remove(&touch.shape);
        }
        self.touched_by_parts.drain().collect()
    }

    fn next_part(&mut self, followed: &mut FollowedShapes) -> TransactionPart {
        self.touch_indexes.clear();
        self.range_count = 0;
        let mut text = Bytes::from(mem::take(&mut self.text));
        let mut touches = mem::take(&mut self.touches);
        touches.retain(|touch| followed.route(touch, &text, self) == TouchDestination::Store);
        if touches.is_empty() {
            text = Bytes::new();
        }
        TransactionPart { lsn: self.lsn, is_first: !self.has_parts, touches, text }
    }
}
