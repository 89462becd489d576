//! A transaction while it is taken in: what was written of it, and for whom.
//!
//! Invariant: its text stays below what a record can hold. Kept by: it is given to the store in parts, and a message that is too large isn't
//! kept.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::followed::Followed;
use super::relation::StreamRelation;
use crate::config::StoreConfig;
use crate::encode::{LogPosition, RowEncoder, ShapeChange};
use crate::row_keys::KeyChange;
use crate::shape::Shape;
use crate::store::record::{MAX_TEXT, MessageRange, ShapeTouch, TransactionPart};

/// A part hasn't more ranges, but for those of its last change.
const PART_RANGES: usize = 1 << 16;

/// Bound of the keys that are remembered of a transaction, 8 bytes each and room to grow: 32 MiB.
const MAX_ENTERED: usize = 1 << 20;

/// Bound of the keys of rows that wait for the commit, 16 bytes each: 16 MiB.
const MAX_KEY_CHANGES: usize = 1 << 20;

/// A row, in the order of its table's columns.
pub(super) type Values<'a> = Vec<Option<&'a [u8]>>;

#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) lsn: u64,
    pub(super) xid: u32,
    /// Whether the store has it.
    pub(super) is_known: bool,
    /// The number of the change that is being taken in.
    pub(super) op: u64,
    /// The tables that it changes.
    pub(super) oids: Vec<u32>,
    /// The versions of relations whose relatives it is known to concern, and the last of them.
    met: (u64, HashSet<u64>),
    /// Hashes of keys of tables with deferrable ones: those that rows got in it.
    entered: HashSet<u64>,
    /// Of shapes whose tables have no primary key, by their ids: keys of rows, in order.
    key_changes: HashMap<u64, Vec<KeyChange>>,
    /// How many those are.
    keys: usize,
    part_bytes: usize,
    message_bytes: usize,
    has_parts: bool,
    text: Vec<u8>,
    touches: Vec<ShapeTouch>,
    ranges: usize,
    /// Where a shape is among the touches.
    places: HashMap<u64, usize>,
    /// Shapes that were touched by parts.
    earlier: HashSet<u64>,
}

/// What a change is for a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Insert,
    Update,
    Delete,
    /// The same row, in the shape before and after, under another key.
    Rekey,
}

/// Hashes of the keys of a row before and after a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowChangeKeys {
    pub(super) old: Option<u64>,
    pub(super) new: Option<u64>,
}

/// A change as it was written for all shapes with one layout, which is told by its address.
#[derive(Debug)]
pub(super) struct Written {
    layout: usize,
    effect: Effect,
    message: Encoded,
}

#[derive(Debug, Clone, Copy)]
enum Encoded {
    /// Nothing that is shown has changed.
    Nothing,
    At(MessageRange),
    TooLarge,
}

impl Transaction {
    pub(super) fn new(lsn: u64, xid: u32, is_known: bool, config: &StoreConfig) -> Self {
        Transaction {
            lsn,
            xid,
            is_known,
            op: 0,
            oids: Vec::new(),
            met: (0, HashSet::new()),
            entered: HashSet::new(),
            key_changes: HashMap::new(),
            keys: 0,
            part_bytes: config.part_bytes.min(MAX_TEXT),
            message_bytes: config.message_bytes.min(MAX_TEXT),
            has_parts: false,
            text: Vec::new(),
            touches: Vec::new(),
            ranges: 0,
            places: HashMap::new(),
            earlier: HashSet::new(),
        }
    }

    /// Writes the message, unless another shape with the same layout has had it written, and gives it to the shape; `false`: it is too large.
    pub(super) fn write(
        &mut self,
        shape: &Shape,
        effect: Effect,
        rows: (Option<&Values<'_>>, Option<&Values<'_>>),
        written: &mut Vec<Written>,
    ) -> bool {
        let layout = Arc::as_ptr(&shape.layout).addr();
        let before = written.iter().find(|written| written.layout == layout && written.effect == effect);
        let message = match before {
            Some(written) => written.message,
            None => {
                let message = self.encode(&shape.layout, effect, rows);
                written.push(Written { layout, effect, message });
                message
            }
        };
        match message {
            Encoded::Nothing => true,
            Encoded::At(range) => {
                self.touch(shape.id, range);
                true
            }
            Encoded::TooLarge => false,
        }
    }

    fn encode(
        &mut self,
        layout: &RowEncoder,
        effect: Effect,
        rows: (Option<&Values<'_>>, Option<&Values<'_>>),
    ) -> Encoded {
        let values = [rows.0, rows.1].into_iter().flatten().flatten().flatten();
        if values.map(|value| value.len()).sum::<usize>() > self.message_bytes {
            return Encoded::TooLarge;
        }
        let place = |op: u64| LogPosition { lsn: self.lsn, op, xid: self.xid };
        let (here, next) = (place(self.op), place(self.op + 1));
        let from = self.text.len();
        let text = &mut self.text;
        let wrote = match (effect, rows) {
            (Effect::Insert, (_, Some(row))) => {
                layout.change(text, ShapeChange::Insert { row, from: None }, here)
            }
            (Effect::Update, (Some(old), Some(new))) => {
                layout.change(text, ShapeChange::Update { old, new }, here)
            }
            (Effect::Delete, (Some(row), _)) => {
                layout.change(text, ShapeChange::Delete { row, to: None }, here)
            }
            (Effect::Rekey, (Some(old), Some(new))) => {
                layout.change(text, ShapeChange::Delete { row: old, to: Some(new) }, here)
                    && layout.change(text, ShapeChange::Insert { row: new, from: Some(old) }, next)
            }
            _ => false,
        };
        if !wrote {
            return Encoded::Nothing;
        }
        match (u32::try_from(from), u32::try_from(text.len())) {
            (Ok(from), Ok(to)) if text.len() <= MAX_TEXT && (to - from) as usize <= self.message_bytes => {
                let last_op = if effect == Effect::Rekey { next.op } else { here.op };
                Encoded::At(MessageRange { from, to, last_op })
            }
            _ => {
                text.truncate(from);
                text.shrink_to(self.part_bytes);
                Encoded::TooLarge
            }
        }
    }

    fn touch(&mut self, shape: u64, range: MessageRange) {
        let next = self.touches.len();
        let at = *self.places.entry(shape).or_insert(next);
        if at == next {
            self.touches.push(ShapeTouch { shape, ranges: Vec::with_capacity(1) });
        }
        match self.touches[at].ranges.last_mut() {
            Some(last) if last.to == range.from => (last.to, last.last_op) = (range.to, range.last_op),
            Some(_) | None => {
                self.touches[at].ranges.push(range);
                self.ranges += 1;
            }
        }
    }

    /// It changes a table.
    pub(super) fn concerns(&mut self, oid: u32) {
        if !self.oids.contains(&oid) {
            self.oids.push(oid);
        }
    }

    /// It changes a relation with relatives; `true`: for the first time.
    pub(super) fn meets(&mut self, relation: &StreamRelation) -> bool {
        let version = relation.described.version;
        if self.met.0 == version {
            return false;
        }
        self.met.0 = version;
        let is_first = self.met.1.insert(version);
        if is_first {
            relation.ancestors.iter().for_each(|oid| self.concerns(*oid));
        }
        is_first
    }

    /// In a table whose key is deferrable, a row leaves a key and gets one. Returns whether clients
    /// can be told.
    ///
    /// Within a transaction two rows may have one key, and a client knows only the key. Of the two,
    /// one got the key in this transaction, and one has to leave it before the commit. So if no key
    /// is left that was entered before, no two rows ever had one key, and the messages are exact.
    /// If one is left, it isn't known whose row the client would lose.
    pub(super) fn rekey(&mut self, left: Option<u64>, entered: Option<u64>) -> bool {
        let is_crossed = left.is_some_and(|key| self.entered.contains(&key));
        let has_room = self.entered.len() < MAX_ENTERED;
        self.entered.extend(entered.filter(|_| has_room));
        !is_crossed && (has_room || entered.is_none())
    }

    /// Takes note of the keys of rows that enter a shape, or leave it. Its table has no primary
    /// key.
    pub(super) fn note_keys(&mut self, shape: u64, effect: Effect, keys: &RowChangeKeys) {
        if effect == Effect::Update {
            return;
        }
        let changes = self.key_changes.entry(shape).or_default();
        let before = changes.len();
        if let (Effect::Delete | Effect::Rekey, Some(old)) = (effect, keys.old) {
            changes.push(KeyChange::Left(old));
        }
        if let (Effect::Insert | Effect::Rekey, Some(new)) = (effect, keys.new) {
            changes.push(KeyChange::Entered(new));
        }
        self.keys += changes.len() - before;
    }

    /// Whether the keys of rows have to be counted before the commit. Should the stream be cut
    /// then, some are counted twice, which may end a shape too early.
    pub(super) fn has_many_keys(&self) -> bool {
        self.keys > MAX_KEY_CHANGES
    }

    pub(super) fn take_key_changes(&mut self) -> HashMap<u64, Vec<KeyChange>> {
        self.keys = 0;
        mem::take(&mut self.key_changes)
    }

    /// Whether it is time for a part.
    pub(super) fn is_large(&self) -> bool {
        self.text.len() >= self.part_bytes || self.ranges >= PART_RANGES
    }

    /// What came since the last part, if it concerns the store by now; without what is held.
    pub(super) fn part(&mut self, followed: &mut Followed) -> Option<TransactionPart> {
        let changes = self.next_part(followed);
        (!changes.touches.is_empty()).then(|| {
            self.has_parts = true;
            self.earlier.extend(changes.touches.iter().map(|touch| touch.shape));
            changes
        })
    }

    pub(super) fn last_part(&mut self, followed: &mut Followed) -> TransactionPart {
        self.next_part(followed)
    }

    /// Shapes that earlier parts touched, and this one doesn't.
    pub(super) fn earlier(&mut self, last: &TransactionPart) -> Vec<u64> {
        for touch in &last.touches {
            self.earlier.remove(&touch.shape);
        }
        self.earlier.drain().collect()
    }

    fn next_part(&mut self, followed: &mut Followed) -> TransactionPart {
        self.places.clear();
        self.ranges = 0;
        let mut text = Bytes::from(mem::take(&mut self.text));
        let mut touches = mem::take(&mut self.touches);
        touches.retain(|touch| followed.pass_on(touch, &text, self));
        if touches.is_empty() {
            text = Bytes::new();
        }
        TransactionPart { lsn: self.lsn, is_first: !self.has_parts, touches, text }
    }
}
