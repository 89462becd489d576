//! Records of the write-ahead log and the catalog.
//!
//! The types that implement `Serialize` are stored as JSON: the names of their fields and variants
//! are part of the format. `frame.rs` encodes all records.

use bytes::Bytes;
use forebay_pgoutput::{Snapshot, Xid};
use serde::{Deserialize, Serialize};

use super::frame;
use crate::definition::{CatalogState, ShapeOptions, TableSchema};

/// Maximum text of a record, in bytes. The rest of the payload is for its other fields.
pub(crate) const MAX_TEXT: usize = frame::MAX_PAYLOAD_BYTES - (128 << 20);

/// One entry of the write-ahead log or the catalog.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// A part of a transaction that is not its last.
    Part(TransactionPart),
    /// The last part of a transaction, and its commit.
    Commit(TransactionPart, CommitRecord),
    /// Any other event, and bytes that belong to it.
    Note(Note, Bytes),
}

/// The changes of a transaction, or of a part of one, to all shapes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TransactionPart {
    /// LSN of the transaction's commit.
    pub(crate) lsn: u64,
    /// Whether this is the transaction's first part. Parts staged before it belong to a stream that
    /// was interrupted. Postgres sends their transaction again.
    pub(crate) is_first: bool,
    /// Which messages of `text` belong to which shape.
    pub(crate) touches: Vec<ShapeTouch>,
    /// Messages, each one once, and each with [`MORE`](crate::encode::MORE) at its end.
    pub(crate) text: Bytes,
}

/// The messages of a [`TransactionPart`] that belong to one shape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShapeTouch {
    /// Id of the shape.
    pub(crate) shape: u64,
    pub(crate) ranges: Vec<MessageRange>,
}

impl ShapeTouch {
    /// Returns the size of the messages, in bytes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.ranges.iter().map(|range| (range.to - range.from) as usize).sum()
    }

    /// Returns the size in memory, without the messages.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<ShapeTouch>() + size_of::<MessageRange>() * self.ranges.capacity()
    }
}

/// Consecutive messages in the text of a [`TransactionPart`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MessageRange {
    /// Index of the first byte.
    pub(crate) from: u32,
    /// Index after the last byte.
    pub(crate) to: u32,
    /// Offset of the last message, without its LSN: the number of the change in its transaction.
    pub(crate) last_op: u64,
}

/// The commit of a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    /// LSN after the transaction. 0 for a late commit: the transaction itself was logged before.
    /// Its changes for one shape were held until the visibility of the shape's snapshot was known,
    /// or until Postgres had judged their rows.
    pub(crate) end: u64,
    /// Ids of the shapes that earlier parts changed and this part doesn't.
    pub(crate) earlier: Vec<u64>,
    /// Shapes that are held from another commit on than before, or aren't held any more.
    pub(crate) holds: Vec<HoldChange>,
}

impl CommitRecord {
    /// Returns whether the transaction itself was logged before: see [`end`](Self::end).
    pub(crate) fn is_late(&self) -> bool {
        self.end == 0
    }
}

/// A shape is held from a commit on: its log doesn't have this transaction and later ones yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldChange {
    /// Id of the shape.
    pub(crate) shape: u64,
    /// LSN of the commit. 0: the shape isn't held.
    pub(crate) from: u64,
}

impl HoldChange {
    /// Returns the LSN of the commit; `None`: the shape isn't held.
    pub(crate) fn start(self) -> Option<u64> {
        (self.from > 0).then_some(self.from)
    }
}

/// A record without changes, encoded as JSON. The names of its variants and fields are part of the
/// format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// No change for any shape up to this LSN.
    Advance { lsn: u64 },
    /// A table. Later records refer to it by `id`, which is its fingerprint. Its catalog state is
    /// the new baseline of all shapes of its oid.
    Table { id: u64, table: Box<TableSchema> },
    /// A shape is created. Its snapshot is not complete yet.
    Create {
        id: u64,
        handle: String,
        table: u64,
        #[serde(rename = "choice")]
        options: ShapeOptions,
    },
    /// The snapshot of a shape is complete. The record's bytes are the snapshot, unless it has a
    /// file.
    Complete(CompletedSnapshot),
    /// A shape is deleted.
    Delete { id: u64 },
    /// All shapes with an id below `below` are deleted. The records after it are the history of
    /// `origin` from `lsn` on.
    Reset { origin: String, lsn: u64, below: u64 },
    /// The history continues under another origin.
    Adopt { origin: String },
    /// First record of the catalog.
    Catalog(CatalogHeader),
    /// Catalog only: a shape.
    Shape(Box<CatalogShape>),
    /// Catalog only: the last record, with the number of shapes.
    End { shapes: usize },
}

/// A complete snapshot of a shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompletedSnapshot {
    pub(crate) id: u64,
    pub(crate) seen: SnapshotVisibility,
    /// Length of the snapshot, in bytes.
    pub(crate) len: u64,
    /// End of each chunk, in bytes.
    pub(crate) chunks: Vec<u64>,
}

/// Postgres snapshot of a shape: which transactions it sees. The log has the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotVisibility {
    pub(crate) xmin: u64,
    pub(crate) xmax: u64,
    pub(crate) xip: Vec<u64>,
    /// The snapshot sees no transaction whose commit is at or after this LSN.
    pub(crate) lsn: u64,
}

impl SnapshotVisibility {
    /// Returns the visibility of a snapshot that was taken at the WAL position `lsn`.
    pub(crate) fn new(snapshot: &Snapshot, lsn: u64) -> Self {
        SnapshotVisibility { xmin: snapshot.xmin, xmax: snapshot.xmax, xip: snapshot.xip.clone(), lsn }
    }

    /// Returns whether the snapshot sees the transaction `xid`, whose commit is at `lsn`.
    pub(crate) fn sees(&self, lsn: u64, xid: u32) -> bool {
        // The same rule as `Snapshot::sees`, without a copy of the list.
        let full = Xid(xid).widen(self.xmax);
        lsn < self.lsn && (full < self.xmin || full < self.xmax && !self.xip.contains(&full))
    }
}

/// First record of the catalog: the state that belongs to no single table or shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogHeader {
    /// Format of the whole storage directory.
    pub(crate) format: u32,
    /// Origin of the history, as given to `Shapes::reset` or `Shapes::adopt`.
    pub(crate) origin: Option<String>,
    /// LSN up to which the stream is durable.
    pub(crate) lsn: u64,
    /// The offset `<seen>_0` is after all visible messages and before all later ones.
    pub(crate) seen: u64,
    /// Id of the next shape.
    pub(crate) next_id: u64,
    /// Time in the last handle, in microseconds. The next handle gets a later time.
    pub(crate) last_handle: u64,
    /// First WAL segment that the catalog doesn't cover.
    pub(crate) segment: u64,
    /// Catalog state that is the baseline of a table's shapes, by the table's oid.
    #[serde(default)]
    pub(crate) states: Vec<(u32, CatalogState)>,
}

/// A shape in the catalog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogShape {
    pub(crate) id: u64,
    pub(crate) handle: String,
    /// Fingerprint of its table: the `id` of a [`Note::Table`].
    pub(crate) table: u64,
    #[serde(rename = "choice")]
    pub(crate) options: ShapeOptions,
    /// `None` if the snapshot was not complete.
    pub(crate) snapshot: Option<CompletedSnapshot>,
    pub(crate) log: CatalogLog,
    /// LSN of the commit from which on the shape is held; `None`: it isn't held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_from: Option<u64>,
}

/// Log of a shape in the catalog.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogLog {
    /// Length of the log, in bytes, with the merged part counted at its old length.
    pub(crate) len: u64,
    /// LSN and operation of the last visible offset.
    pub(crate) last: (u64, u64),
    /// Each closed chunk from `base` on: its end in bytes of the log, and the LSN and operation of
    /// its last offset.
    pub(crate) chunks: Vec<(u64, u64, u64)>,
    /// Start of the log file, in bytes of the log. Messages before it are merged.
    #[serde(default)]
    pub(crate) base: u64,
    /// Closed chunks of the merged part, as in `chunks`. Their ends are positions in the merged
    /// file.
    #[serde(default)]
    pub(crate) past: Vec<(u64, u64, u64)>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_snapshot_sees_the_same_transactions_after_it_was_stored(
            epoch in 0..3_u64,
            xmin in 5..30_u64,
            running: [bool; 8],
            lsn in 1..100_u64,
        ) {
            let base = (epoch << 32) + xmin;
            let running = (base..).zip(running).filter(|(_, is_running)| *is_running);
            let snapshot = Snapshot { xmin: base, xmax: base + 8, xip: running.map(|(xid, _)| xid).collect() };
            let stored = SnapshotVisibility::new(&snapshot, lsn);
            for xid in (3..50).chain(u32::MAX - 20..=u32::MAX) {
                prop_assert_eq!(stored.sees(lsn - 1, xid), snapshot.sees(xid), "{}", xid);
                prop_assert!(!stored.sees(lsn, xid), "the commit is after the snapshot");
            }
        }
    }
}
