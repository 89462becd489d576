//! Following: decides which changes of the replication stream go to which shapes.
//!
//! This module has no lock, no queue and no disk. [`FollowedShapes`] returns its decisions as
//! [`FollowEffect`]s, which the engine performs in order under the lock of the followed shapes.
//! The [`Follower`](crate::Follower) passes the messages of the stream to it.
//!
//! A [`ShapeHold`](shape_hold) keeps the transactions that can't reach the log of a shape yet.
//! There are two causes:
//! - The shape has no snapshot. Messages are kept, until the snapshot's visibility is known. The
//!   WAL doesn't have the shape's transactions: after a crash, the shape is gone.
//! - A row waits for a verdict. The shape is in `held_shapes` of its transaction, and *held* from
//!   that commit on, which the WAL states. The rows of later changes are kept, too.
//!
//! `release` decides when kept transactions reach the log. They are late commits: each one concerns
//! one shape, and may have any LSN above the last one in that shape's log.

mod decision;
mod followed_shape;
mod followed_shapes;
mod held_transaction;
mod holds;
mod open_transaction;
mod recent_transactions;
mod row_effect;
mod row_verdicts;
mod shape_hold;
mod stream_relation;
mod table_group;

pub use self::decision::SnapshotTiming;
pub(crate) use self::decision::{FollowEffect, TransactionReceipt};
pub(crate) use self::followed_shapes::FollowedShapes;
pub(crate) use self::open_transaction::OpenTransaction;
pub(crate) use self::row_verdicts::{RowQuestion, cached_verdicts};
pub(crate) use self::shape_hold::all_held_bytes;
pub use self::stream_relation::PartitionTree;
pub(crate) use self::stream_relation::StreamRelation;
pub(crate) use self::table_group::{ChangeScratch, RowChange};
