//! Open transaction: the messages encoded so far, and the shapes that get them.
//!
//! Invariant: the messages since the last part have at most `MAX_TEXT` bytes, the maximum of a
//! record.
//! Enforced by: the transaction is queued in parts, and a message beyond the maximum is discarded.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::decision::{TouchDestination, TransactionReceipt};
use super::followed_shapes::FollowedShapes;
use super::row_effect::{EncodedMessages, RowChangeKeys, RowEffect, RowsOfChange};
use super::stream_relation::StreamRelation;
use crate::config::StoreConfig;
use crate::encode::{LogPosition, RowEncoder};
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

/// Transaction that is being applied.
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
    /// Maximum size of what is held for a shape, and of `deferred`.
    pub(super) held_bytes: usize,
    /// Maximum size of what is held for all shapes.
    pub(super) total_held_bytes: usize,
    has_parts: bool,
    /// Shapes for which this transaction is held, and rows are kept.
    pub(super) held_shapes: BTreeSet<u64>,
    /// Earlier messages of shapes that may still be held because of this transaction. Together at
    /// most `held_bytes`: beyond it, they are queued, and an undecided row deletes its shape.
    deferred: Vec<(Bytes, Vec<ShapeTouch>)>,
    /// Size of the messages in `deferred` and of their ranges, in bytes.
    deferred_bytes: usize,
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
            held_bytes: config.held_bytes.min(MAX_TEXT),
            total_held_bytes: config.total_held_bytes,
            has_parts: false,
            held_shapes: BTreeSet::new(),
            deferred: Vec::new(),
            deferred_bytes: 0,
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
        rows: RowsOfChange<'_, '_>,
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
        rows: RowsOfChange<'_, '_>,
    ) -> EncodeOutcome {
        let at = LogPosition { lsn: self.lsn, op: self.op, xid: self.xid };
        let from = self.text.len();
        let encoded = effect.encode(encoder, rows, at, self.message_bytes, &mut self.text);
        let last_op = match encoded {
            EncodedMessages::Nothing => return EncodeOutcome::Nothing,
            EncodedMessages::Written { last_op } if self.text.len() <= MAX_TEXT => Some(last_op),
            EncodedMessages::Written { .. } | EncodedMessages::TooLarge => None,
        };
        match (u32::try_from(from), u32::try_from(self.text.len()), last_op) {
            (Ok(from), Ok(to), Some(last_op)) => EncodeOutcome::At(MessageRange { from, to, last_op }),
            _ => {
                self.text.truncate(from);
                self.text.shrink_to(self.part_bytes);
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
    pub(super) fn add_key_changes(&mut self, shape: u64, effect: RowEffect, keys: &RowChangeKeys) {
        if effect == RowEffect::Update {
            return;
        }
        let changes = self.key_changes.entry(shape).or_default();
        let before = changes.len();
        changes.extend(effect.key_changes(keys));
        self.key_change_count += changes.len() - before;
    }

    /// Removes the key changes of a shape that aren't counted yet.
    pub(super) fn take_key_changes_of(&mut self, shape: u64) -> Vec<KeyChange> {
        let changes = self.key_changes.remove(&shape).unwrap_or_default();
        self.key_change_count -= changes.len();
        changes
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

    /// Returns the changes since the last part, in parts. Changes of shapes without a snapshot are
    /// held instead, and those of shapes that may still be held wait. Empty: no other changes are
    /// left.
    pub(crate) fn parts(&mut self, followed: &mut FollowedShapes) -> Vec<TransactionPart> {
        let (touches, deferred, text) = self.take_changes(followed, false);
        if !deferred.is_empty() {
            self.deferred_bytes += text.len() + deferred.iter().map(ShapeTouch::bytes).sum::<usize>();
            self.deferred.push((text.clone(), deferred));
        }
        let is_beyond = self.deferred_bytes > self.held_bytes;
        let mut parts = if is_beyond { self.deferred_parts() } else { Vec::new() };
        parts.extend(self.queued_part(touches, text));
        parts
    }

    /// Returns the rest of the transaction: parts, and the last part.
    pub(crate) fn last_parts(
        &mut self,
        followed: &mut FollowedShapes,
    ) -> (Vec<TransactionPart>, TransactionPart) {
        let earlier = self.deferred_parts();
        let (touches, _, mut text) = self.take_changes(followed, true);
        if touches.is_empty() {
            text = Bytes::new();
        }
        (earlier, TransactionPart { lsn: self.lsn, is_first: !self.has_parts, touches, text })
    }

    /// Returns the shapes that earlier parts touched and the last part doesn't.
    pub(crate) fn shapes_of_earlier_parts(&mut self, last: &TransactionPart) -> Vec<u64> {
        for touch in &last.touches {
            self.touched_by_parts.remove(&touch.shape);
        }
        self.touched_by_parts.drain().collect()
    }

    /// Removes the messages of a shape that aren't queued yet. Returns them, and the operation
    /// number of the last one. `None`: messages of the shape are queued already.
    pub(super) fn detach(&mut self, shape: u64) -> Option<(Vec<u8>, u64)> {
        if self.touched_by_parts.contains(&shape) {
            return None;
        }
        let (mut messages, mut last) = (Vec::new(), 0);
        let mut detach_from = |touch: &mut ShapeTouch, text: &[u8]| {
            for MessageRange { from, to, last_op } in touch.ranges.drain(..) {
                messages.extend_from_slice(&text[from as usize..to as usize]);
                last = last_op;
            }
        };
        for (text, touches) in &mut self.deferred {
            touches
                .iter_mut()
                .filter(|touch| touch.shape == shape)
                .for_each(|touch| detach_from(touch, text));
        }
        if let Some(at) = self.touch_indexes.get(&shape) {
            detach_from(&mut self.touches[*at], &self.text);
        }
        Some((messages, last))
    }

    /// Returns the deferred messages as parts.
    fn deferred_parts(&mut self) -> Vec<TransactionPart> {
        self.deferred_bytes = 0;
        let deferred = mem::take(&mut self.deferred).into_iter();
        deferred.filter_map(|(text, touches)| self.queued_part(touches, text)).collect()
    }

    /// Returns a part with these changes; `None`: there are none.
    fn queued_part(&mut self, mut touches: Vec<ShapeTouch>, text: Bytes) -> Option<TransactionPart> {
        touches.retain(|touch| !touch.ranges.is_empty());
        if touches.is_empty() {
            return None;
        }
        let is_first = !mem::replace(&mut self.has_parts, true);
        self.touched_by_parts.extend(touches.iter().map(|touch| touch.shape));
        Some(TransactionPart { lsn: self.lsn, is_first, touches, text })
    }

    /// Removes the changes since the last part. Returns those for the store, those that are
    /// deferred, and their text. At the commit, no changes are deferred.
    fn take_changes(
        &mut self,
        followed: &mut FollowedShapes,
        is_commit: bool,
    ) -> (Vec<ShapeTouch>, Vec<ShapeTouch>, Bytes) {
        self.touch_indexes.clear();
        self.range_count = 0;
        let (text, mut deferred) = (Bytes::from(mem::take(&mut self.text)), Vec::new());
        let mut touches = mem::take(&mut self.touches);
        touches.retain_mut(|touch| {
            let is_empty = touch.ranges.is_empty();
            match followed.route(touch, &text, self) {
                TouchDestination::Store => !is_empty,
                TouchDestination::Deferred if is_commit => !is_empty,
                TouchDestination::Deferred => {
                    deferred.push(mem::take(touch));
                    false
                }
                TouchDestination::Held | TouchDestination::Nowhere => false,
            }
        });
        (touches, deferred, text)
    }
}

impl fmt::Debug for OpenTransaction {
    /// Never shows messages: they have row values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut transaction = f.debug_struct("OpenTransaction");
        transaction.field("lsn", &self.lsn).field("xid", &self.xid).field("receipt", &self.receipt);
        transaction.field("op", &self.op).finish_non_exhaustive()
    }
}
