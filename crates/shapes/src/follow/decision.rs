//! Decisions about followed shapes, and about the transactions and snapshots that concern them.

use std::sync::Arc;

use crate::shape::Shape;
use crate::store::record::Record;

/// Decision about shapes. The engine performs decisions in order, before it unlocks the followed
/// shapes, so that the WAL has them in that order.
#[derive(Debug)]
pub(crate) enum FollowEffect {
    /// Queue a record for the WAL.
    Log(Record),
    /// Delete a shape permanently. It isn't followed any more.
    Delete(u64),
    /// Wake the creation of a shape. Its transactions from before its snapshot are dropped, and the
    /// others are queued before this, or held until Postgres has judged their rows.
    Settle(Arc<Shape>),
    /// Wake the tasks that pass undecided rows to Postgres.
    Ask,
}

/// Whether the stream has sent a transaction before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionReceipt {
    First,
    /// It was queued for the store before.
    Repeated,
    /// It was queued for the store before. Some shapes were held then and need it again.
    Resumed,
}

/// Where a transaction's messages for a shape go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TouchDestination {
    Store,
    /// They wait in memory for the commit, because a later row of the transaction may be undecided.
    Deferred,
    /// They are held until the snapshot of the shape is taken.
    Held,
    /// The shape isn't followed any more.
    Nowhere,
}

/// Whether a snapshot can be used for a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum SnapshotTiming {
    /// The snapshot sees every transaction from before the shape was followed.
    InTime,
    /// The snapshot misses such a transaction: take another one.
    TooEarly,
}

impl SnapshotTiming {
    /// Returns whether the snapshot can be used.
    pub fn is_in_time(self) -> bool {
        self == SnapshotTiming::InTime
    }
}
