//! Row effect: what a row change means for a shape, and its messages.

use crate::encode::{LogPosition, RowEncoder, ShapeChange};
use crate::row_keys::{self, KeyChange};
use crate::shape::Shape;

/// Values of a row, in the order of its table's columns.
pub(crate) type DecodedRow<'a> = Vec<Option<&'a [u8]>>;

/// The row before a change, and after it.
pub(super) type RowsOfChange<'a, 'b> = (Option<&'a DecodedRow<'b>>, Option<&'a DecodedRow<'b>>);

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

/// Result of encoding a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncodedMessages {
    /// No shown column has changed.
    Nothing,
    /// The operation number of the last message.
    Written { last_op: u64 },
    /// They are larger than [`StoreConfig::message_bytes`](crate::StoreConfig::message_bytes).
    TooLarge,
}

impl RowEffect {
    /// Returns the effect of a change. `was` and `is`: whether the row is in the shape before and
    /// after. `None`: the change doesn't concern the shape.
    pub(super) fn of(
        encoder: &RowEncoder,
        (was, is): (bool, bool),
        (old, new): RowsOfChange<'_, '_>,
    ) -> Option<Self> {
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(RowEffect::Insert),
            (true, false) => Some(RowEffect::Delete),
            (true, true) => match (old, new) {
                (Some(old), Some(new)) if !encoder.has_same_key(old, new) => Some(RowEffect::Rekey),
                _ => Some(RowEffect::Update),
            },
        }
    }

    /// Returns the keys that leave a shape and enter it, in this order. The table has no primary
    /// key.
    pub(super) fn key_changes(self, keys: &RowChangeKeys) -> impl Iterator<Item = KeyChange> + use<> {
        let left = matches!(self, RowEffect::Delete | RowEffect::Rekey).then_some(keys.old).flatten();
        let entered = matches!(self, RowEffect::Insert | RowEffect::Rekey).then_some(keys.new).flatten();
        left.map(KeyChange::Left).into_iter().chain(entered.map(KeyChange::Entered))
    }

    /// Appends the messages of a change to `out`. `at` is the position of the first one.
    pub(super) fn encode(
        self,
        encoder: &RowEncoder,
        rows: RowsOfChange<'_, '_>,
        at: LogPosition,
        message_bytes: usize,
        out: &mut Vec<u8>,
    ) -> EncodedMessages {
        let values = [rows.0, rows.1].into_iter().flatten().flatten().flatten();
        if values.map(|value| value.len()).sum::<usize>() > message_bytes {
            return EncodedMessages::TooLarge;
        }
        let next = LogPosition { op: at.op + 1, ..at };
        let from = out.len();
        let is_written = match (self, rows) {
            (RowEffect::Insert, (_, Some(row))) => {
                encoder.change(out, ShapeChange::Insert { row, from: None }, at)
            }
            (RowEffect::Update, (Some(old), Some(new))) => {
                encoder.change(out, ShapeChange::Update { old, new }, at)
            }
            (RowEffect::Delete, (Some(row), _)) => {
                encoder.change(out, ShapeChange::Delete { row, to: None }, at)
            }
            (RowEffect::Rekey, (Some(old), Some(new))) => {
                encoder.change(out, ShapeChange::Delete { row: old, to: Some(new) }, at)
                    && encoder.change(out, ShapeChange::Insert { row: new, from: Some(old) }, next)
            }
            _ => false,
        };
        if !is_written {
            return EncodedMessages::Nothing;
        }
        if out.len() - from > message_bytes {
            out.truncate(from);
            return EncodedMessages::TooLarge;
        }
        EncodedMessages::Written { last_op: if self == RowEffect::Rekey { next.op } else { at.op } }
    }
}

impl RowChangeKeys {
    /// Returns hashes of the keys of both rows, in the form that messages have.
    pub(super) fn of(shape: &Shape, (old, new): RowsOfChange<'_, '_>) -> Self {
        let mut text = Vec::new();
        let mut key = |row: &DecodedRow<'_>| {
            text.clear();
            shape.encoder.key(&mut text, row);
            row_keys::hash(&text)
        };
        RowChangeKeys { old: old.map(&mut key), new: new.map(key) }
    }
}
