//! Followed shapes: the shapes that are matched with changes, and the transactions held for them.
//!
//! Invariant: between transactions, the first transaction that is held for a shape whose snapshot
//! is taken waits for a verdict.
//! Enforced by: `release` runs after each commit, each taken snapshot, and each verdict. The
//! exception is a shape that [resumes](super::shape_hold::ResumePoint): its transactions are
//! released when it has received all of them.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::Snapshot;

use super::decision::{FollowEffect, SnapshotTiming, TouchDestination, TransactionReceipt};
use super::followed_shape::{FollowedShape, SnapshotPhase};
use super::open_transaction::OpenTransaction;
use super::recent_transactions::RecentTransactions;
use super::shape_hold;
use super::table_group::{DescribedTable, TableGroup};
use crate::config::StoreConfig;
use crate::definition::TableSchema;
use crate::row_keys::{AmbiguousKey, KeyCounts};
use crate::shape::Shape;
use crate::store::record::{MAX_TEXT, MessageRange, Record, ShapeTouch, SnapshotVisibility};

/// Shapes that are matched with changes.
#[derive(Debug, Default)]
pub(crate) struct FollowedShapes {
    /// Decisions that aren't performed yet.
    pub(super) effects: Vec<FollowEffect>,
    /// Number of times the set was cleared.
    pub(super) generation: u64,
    /// Position before which every commit was queued for the store.
    pub(super) queued_to: u64,
    /// Commit position and id of the transaction that is being applied.
    pub(super) transaction: Option<(u64, u32)>,
    recent: RecentTransactions,
    /// Number of calls of [`add`](Self::add) so far. Never reset.
    follow_count: u64,
    /// Oids of the tables below each partitioned table.
    descendants: HashMap<u32, Vec<u32>>,
    /// Shapes by table oid. A table has several groups while its schema changes.
    pub(super) groups: HashMap<u32, Vec<TableGroup>>,
    /// Table oid of each shape.
    oids: HashMap<u64, u32>,
    /// Shapes whose snapshot was taken and isn't applied yet.
    unsettled: Vec<(u64, SnapshotVisibility)>,
    /// Shapes without a snapshot, each with the value of `follow_count` when it was followed.
    /// Transactions are held for them.
    awaiting_snapshot: HashMap<u64, u64>,
    /// Shapes with undecided rows that are in no batch.
    pub(super) asking: VecDeque<u64>,
    /// Shapes that were held when this process began to write, and need earlier transactions again.
    pub(super) resuming: Vec<u64>,
    /// Commit of the last transaction that the store had then.
    pub(super) resume_to: u64,
    /// Maximum size of a message, in bytes.
    pub(super) message_bytes: usize,
    /// Maximum size of the changes held for a shape; of those held for all shapes, in bytes.
    held_limits: (usize, usize),
    /// Number of shapes that were deleted because too much would be held. Never reset.
    overfull_count: u64,
}

impl FollowedShapes {
    /// Returns no shapes.
    pub(crate) fn new(config: &StoreConfig) -> Self {
        FollowedShapes {
            message_bytes: config.message_bytes.min(MAX_TEXT),
            held_limits: (config.held_bytes.min(MAX_TEXT), config.total_held_bytes),
            ..FollowedShapes::default()
        }
    }

    /// Removes all shapes. Commits before `lsn` will be skipped. Streams that started earlier must
    /// start over.
    pub(crate) fn clear(&mut self, lsn: u64) {
        debug_assert!(self.effects.is_empty(), "effects are performed before the lock is released");
        let former = mem::take(self);
        *self = FollowedShapes {
            generation: former.generation + 1,
            queued_to: lsn,
            recent: former.recent,
            follow_count: former.follow_count,
            descendants: former.descendants,
            message_bytes: former.message_bytes,
            held_limits: former.held_limits,
            overfull_count: former.overfull_count,
            ..FollowedShapes::default()
        };
    }

    /// Drops the recent transactions and the partition trees: they belong to another database, or
    /// another process has written since.
    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
        self.descendants.clear();
    }

    /// Sets the tables below a partitioned table.
    pub(crate) fn set_descendants(&mut self, oid: u32, descendants: &[u32]) {
        if descendants.is_empty() {
            self.descendants.remove(&oid);
        } else {
            self.descendants.insert(oid, descendants.to_vec());
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Starts a transaction.
    pub(crate) fn begin(&mut self, lsn: u64, xid: u32) -> TransactionReceipt {
        self.abandon();
        if !self.resuming.is_empty() {
            self.check_resumed(lsn);
        }
        if lsn >= self.queued_to {
            self.transaction = Some((lsn, xid));
            TransactionReceipt::First
        } else if self.resuming.is_empty() {
            TransactionReceipt::Repeated
        } else {
            self.transaction = Some((lsn, xid));
            TransactionReceipt::Resumed
        }
    }

    /// Drops the transaction that is being applied.
    pub(crate) fn abandon(&mut self) {
        if let Some((lsn, _)) = self.transaction.take() {
            let followed = self.groups.values_mut().flatten().flat_map(TableGroup::followed_shapes);
            for hold in followed.filter_map(|followed| followed.hold.as_mut()) {
                hold.abandon(lsn);
            }
            self.end_empty_holds();
        }
        self.settle();
    }

    /// Ends a transaction that was queued for the store. Then deletes shapes for which too much is
    /// held.
    pub(crate) fn commit(&mut self, transaction: &OpenTransaction, end: u64) {
        self.transaction = None;
        if transaction.receipt == TransactionReceipt::Resumed {
            self.commit_resumed(transaction.lsn);
        } else {
            for oid in &transaction.oids {
                self.recent.push(*oid, transaction.lsn, transaction.xid);
            }
            self.queued_to = self.queued_to.max(end);
        }
        for shape in &transaction.held_shapes {
            self.release(*shape);
            self.ask(*shape);
        }
        self.settle();
        self.delete_overfull();
    }

    /// Follows a shape before its snapshot is taken. From now on, transactions are held for it.
    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        self.awaiting_snapshot.insert(shape.id, self.follow_count);
        self.follow_count += 1;
        let since = self.transaction.map_or(0, |(lsn, _)| lsn.saturating_add(1)).max(self.queued_to);
        self.insert(FollowedShape::pending(shape, since));
    }

    /// Follows a shape with a complete snapshot. `keys` are those of its rows, if its table has no
    /// primary key. `held_from` is the commit from which on the shape is held.
    pub(crate) fn add_complete(
        &mut self,
        shape: Arc<Shape>,
        seen: SnapshotVisibility,
        keys: Option<KeyCounts>,
        held_from: Option<u64>,
    ) {
        self.resuming.extend(held_from.map(|_| shape.id));
        self.insert(FollowedShape::complete(shape, seen, keys, held_from));
    }

    fn insert(&mut self, followed: FollowedShape) {
        let table = &followed.shape.definition().table;
        self.oids.insert(followed.shape.id, table.oid);
        let groups = self.groups.entry(table.oid).or_default();
        let at = groups.iter().position(|group| group.is_of(table)).unwrap_or_else(|| {
            groups.push(TableGroup::new(Arc::clone(table)));
            groups.len() - 1
        });
        groups[at].add(followed);
    }

    /// Sets the transactions that a shape's snapshot sees, and applies the snapshot to the held
    /// transactions. If a transaction is being applied, the snapshot is applied after its end.
    ///
    /// A snapshot may be too early because Postgres writes a commit to its WAL first, and makes it
    /// visible to snapshots later.
    pub(crate) fn snapshot_taken(&mut self, shape: u64, seen: SnapshotVisibility) -> SnapshotTiming {
        let oid = self.oids.get(&shape).copied();
        let timing = self.timing(shape, &seen);
        if timing == SnapshotTiming::InTime {
            self.unsettled.push((shape, seen.clone()));
            if self.transaction.is_none() {
                self.settle();
            }
        }
        if oid.is_some() {
            self.prune(oid, &seen);
        }
        timing
    }

    /// Drops recent transactions that a new snapshot sees: all later snapshots see them, too.
    pub(crate) fn forget_visible(&mut self, snapshot: &Snapshot) {
        self.prune(None, &SnapshotVisibility::new(snapshot, u64::MAX));
    }

    fn prune(&mut self, oid: Option<u32>, seen: &SnapshotVisibility) {
        let oldest = self.awaiting_snapshot.values().copied().min().unwrap_or(u64::MAX);
        self.recent.prune(oid, seen, self.follow_count, oldest);
    }

    fn timing(&mut self, shape: u64, seen: &SnapshotVisibility) -> SnapshotTiming {
        let Some(FollowedShape { snapshot: SnapshotPhase::Pending { since, .. }, .. }) =
            self.followed_shape(shape)
        else {
            return SnapshotTiming::InTime;
        };
        let since = *since;
        let Some(oid) = self.oids.get(&shape) else { return SnapshotTiming::InTime };
        // A change that the stream sends with the oid of a partitioned table may concern any table
        // below it.
        let above = self.descendants.iter().filter(|(_, below)| below.contains(oid)).map(|(above, _)| above);
        let now = self.transaction.filter(|(lsn, _)| *lsn < since);
        let is_early = now.is_some_and(|(lsn, xid)| !seen.sees(lsn, xid))
            || above.chain([oid]).any(|oid| self.recent.is_missed(*oid, since, seen));
        if is_early { SnapshotTiming::TooEarly } else { SnapshotTiming::InTime }
    }

    /// Applies taken snapshots: drops the held transactions that a snapshot sees, and queues the
    /// others up to the first one that waits for a verdict.
    fn settle(&mut self) {
        for (shape, seen) in mem::take(&mut self.unsettled) {
            self.awaiting_snapshot.remove(&shape);
            let Some(followed) = self.followed_shape(shape) else { continue };
            followed.snapshot = SnapshotPhase::Taken(seen.clone());
            let settled = Arc::clone(&followed.shape);
            let is_unfit = followed.hold.as_mut().is_some_and(|hold| {
                hold.drop_seen(&seen);
                hold.has_unfit()
            });
            if let Some(verdicts) = &mut followed.verdicts {
                verdicts.drop_unused();
            }
            if is_unfit {
                self.delete(shape);
                continue;
            }
            self.release(shape);
            self.ask(shape);
            self.effects.push(FollowEffect::Settle(settled));
        }
    }

    /// Deletes shapes without a snapshot for which more than `held_bytes` are held. Then deletes
    /// the shapes with the largest holds, until at most `total_held_bytes` are held for all.
    pub(crate) fn delete_overfull(&mut self) {
        let (limit, _) = self.held_limits;
        let waiting: Vec<_> = self.awaiting_snapshot.keys().copied().collect();
        for shape in waiting {
            if self.followed_shape(shape).is_some_and(|followed| followed.held_bytes() > limit) {
                self.delete_as_overfull(shape);
            }
        }
        self.delete_largest_holds();
    }

    /// Deletes the shapes with the largest holds, until at most `total_held_bytes` are held for all
    /// shapes.
    pub(crate) fn delete_largest_holds(&mut self) {
        let (_, total) = self.held_limits;
        while shape_hold::all_held_bytes() > total {
            let followed = self.groups.values_mut().flatten().flat_map(TableGroup::followed_shapes);
            let holding = followed.filter(|followed| followed.held_bytes() > 0);
            let Some(largest) = holding.max_by_key(|followed| followed.held_bytes()) else { return };
            let shape = largest.shape.id;
            self.delete_beyond_total(shape);
        }
    }

    /// Deletes a shape because too much would be held for all shapes.
    fn delete_beyond_total(&mut self, shape: u64) {
        self.overfull_count += 1;
        self.delete_because(shape, "more changes would be held for all shapes than total_held_bytes");
    }

    /// Deletes a shape for which more than `held_bytes` would be held.
    pub(crate) fn delete_as_overfull(&mut self, shape: u64) {
        self.overfull_count += 1;
        self.delete_because(shape, "more changes would be held for it than held_bytes");
    }

    /// Returns the number of shapes that were deleted because too much would be held.
    pub(crate) fn overfull_count(&self) -> u64 {
        self.overfull_count
    }

    /// Deletes a shape, and logs why.
    pub(crate) fn delete_because(&mut self, shape: u64, reason: &str) {
        if let Some(followed) = self.followed_shape(shape) {
            tracing::warn!(handle = followed.shape.handle(), reason, "shape deleted: held changes");
        }
        self.delete(shape);
    }

    /// Deletes a shape whose log can't represent a transaction, unless its snapshot sees the
    /// transaction. If the snapshot isn't taken, [`settle`](Self::settle) decides later.
    pub(crate) fn mark_unfit(&mut self, shape: u64, transaction: &OpenTransaction) {
        let Some(followed) = self.followed_shape(shape) else { return };
        if followed.skips(transaction) {
            return;
        }
        match (&followed.snapshot, &mut followed.hold) {
            (SnapshotPhase::Pending { .. }, Some(hold)) => {
                hold.update(transaction, |held| held.is_unfit = true)
            }
            (SnapshotPhase::Pending { .. } | SnapshotPhase::Taken(_), _) => self.delete(shape),
        }
    }

    /// Counts the row keys that a transaction adds and removes. Deletes shapes whose clients
    /// couldn't distinguish the rows.
    pub(crate) fn count_keys(&mut self, transaction: &mut OpenTransaction) {
        for (shape, changes) in transaction.take_key_changes() {
            let Some(FollowedShape { snapshot, hold, keys: Some(keys), .. }) = self.followed_shape(shape)
            else {
                continue;
            };
            let applied = match (snapshot, hold) {
                (SnapshotPhase::Pending { .. }, Some(hold)) => {
                    hold.update(transaction, |held| held.key_changes.extend(changes));
                    Ok(())
                }
                (SnapshotPhase::Pending { .. } | SnapshotPhase::Taken(_), _) => keys.apply(&changes),
            };
            if applied == Err(AmbiguousKey) {
                self.delete(shape);
            }
        }
    }

    /// Sets the row keys of a complete snapshot. Deletes the shape if clients can't apply the
    /// changes since the snapshot exactly.
    pub(crate) fn set_key_counts(&mut self, shape: u64, counts: KeyCounts) {
        let Some(FollowedShape { keys: Some(keys), .. }) = self.followed_shape(shape) else { return };
        if keys.complete(counts) == Err(AmbiguousKey) {
            self.delete(shape);
        }
    }

    /// Holds the changes of a shape whose snapshot isn't taken. Returns where the changes go.
    pub(super) fn route(
        &mut self,
        touch: &ShapeTouch,
        text: &Bytes,
        transaction: &OpenTransaction,
    ) -> TouchDestination {
        let total = self.held_limits.1;
        let Some(followed) = self.followed_shape(touch.shape) else { return TouchDestination::Nowhere };
        match (&followed.snapshot, &mut followed.hold) {
            (SnapshotPhase::Pending { .. }, Some(_))
                if shape_hold::all_held_bytes() + touch.message_bytes() > total =>
            {
                // Many shapes may wait, and each copies its messages.
                self.delete_beyond_total(touch.shape);
                TouchDestination::Nowhere
            }
            (SnapshotPhase::Pending { .. }, Some(hold)) => {
                hold.update(transaction, |held| {
                    for MessageRange { from, to, last_op } in touch.ranges.iter().filter(|_| !held.is_unfit) {
                        held.text.extend_from_slice(&text[*from as usize..*to as usize]);
                        held.last_op = *last_op;
                    }
                });
                TouchDestination::Held
            }
            (_, _) if followed.may_be_undecided => TouchDestination::Deferred,
            (_, _) => TouchDestination::Store,
        }
    }

    /// Deletes a shape permanently.
    pub(crate) fn delete(&mut self, shape: u64) {
        self.remove(shape);
        // Performed under the lock, so that no later record in the WAL concerns the shape.
        self.effects.push(FollowEffect::Delete(shape));
    }

    /// Adds a record of the stream.
    pub(crate) fn log(&mut self, record: Record) {
        self.effects.push(FollowEffect::Log(record));
    }

    /// Removes the decisions that aren't performed yet, and returns them in order.
    pub(crate) fn drain_effects(&mut self) -> impl Iterator<Item = FollowEffect> {
        self.effects.drain(..)
    }

    /// Deletes the shapes of a table that can't show rows of this schema.
    pub(crate) fn delete_unfit(&mut self, table: &TableSchema) {
        let described = DescribedTable::of_catalog(table);
        let groups = self.groups.get(&table.oid).into_iter().flatten();
        let unfit: Vec<_> = groups.flat_map(|group| group.unfit_shapes(&described)).collect();
        unfit.into_iter().for_each(|shape| self.delete(shape));
    }

    pub(crate) fn groups(&mut self, oid: u32) -> impl Iterator<Item = &mut TableGroup> {
        self.groups.get_mut(&oid).into_iter().flatten()
    }

    pub(crate) fn has_table(&self, oid: u32) -> bool {
        self.groups.contains_key(&oid)
    }

    pub(crate) fn shapes_of(&self, oid: u32) -> Vec<u64> {
        self.groups.get(&oid).into_iter().flatten().flat_map(TableGroup::shapes).collect()
    }

    /// Returns the followed shapes of several tables. `oids` is sorted. There may be thousands of
    /// oids, and few of them have shapes.
    pub(crate) fn shapes_of_any(&self, oids: &[u32]) -> Vec<u64> {
        let is_among = |oid: &&u32| oids.binary_search(oid).is_ok();
        if self.groups.len() < oids.len() {
            self.groups.keys().filter(is_among).flat_map(|oid| self.shapes_of(*oid)).collect()
        } else {
            oids.iter().flat_map(|oid| self.shapes_of(*oid)).collect()
        }
    }

    fn remove(&mut self, shape: u64) {
        self.awaiting_snapshot.remove(&shape);
        let Some(oid) = self.oids.remove(&shape) else { return };
        let Some(groups) = self.groups.get_mut(&oid) else { return };
        groups.iter_mut().for_each(|group| group.remove(shape));
        groups.retain(|group| !group.is_empty());
        if groups.is_empty() {
            self.groups.remove(&oid);
        }
    }

    pub(super) fn followed_shape(&mut self, shape: u64) -> Option<&mut FollowedShape> {
        let groups = self.groups.get_mut(self.oids.get(&shape)?)?;
        groups.iter_mut().find_map(|group| group.followed_shape(shape))
    }
}

#[cfg(test)]
impl FollowedShapes {
    pub(crate) fn is_empty(&self) -> bool {
        self.oids.is_empty() && self.groups.is_empty() && self.awaiting_snapshot.is_empty()
    }
}
