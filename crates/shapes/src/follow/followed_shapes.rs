//! Followed shapes: the shapes that are matched with changes, and the transactions held for them.
//!
//! Invariant: between transactions, no changes are held for a shape whose snapshot is taken.
//! Enforced by: only [`settle`](FollowedShapes::settle) applies a taken snapshot, and it runs
//! between transactions.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::{Snapshot, Xid};

use super::decision::{FollowEffect, SnapshotTiming, TouchDestination, TransactionReceipt};
use super::held_transaction::HeldTransaction;
use super::open_transaction::OpenTransaction;
use super::recent_transactions::RecentTransactions;
use super::table_group::{DescribedTable, TableGroup};
use crate::definition::TableSchema;
use crate::row_keys::{AmbiguousKey, KeyCounts, RowKeys, WaitingKeyChanges};
use crate::shape::Shape;
use crate::store::record::{MAX_TEXT, MessageRange, Record, ShapeTouch, SnapshotVisibility};

/// Shapes that are matched with changes.
#[derive(Debug, Default)]
pub(crate) struct FollowedShapes {
    /// Decisions that aren't performed yet.
    effects: Vec<FollowEffect>,
    /// Number of times the set was cleared.
    generation: u64,
    /// Position before which every commit was queued for the store.
    queued_to: u64,
    /// Commit position and id of the transaction that is being applied.
    transaction: Option<(u64, u32)>,
    recent: RecentTransactions,
    /// Number of calls of [`add`](Self::add) so far. Never reset.
    follow_count: u64,
    /// Oids of the tables below each partitioned table.
    descendants: HashMap<u32, Vec<u32>>,
    /// Shapes by table oid. A table has several groups while its schema changes.
    groups: HashMap<u32, Vec<TableGroup>>,
    /// Table oid of each shape.
    oids: HashMap<u64, u32>,
    /// Shapes whose snapshot was taken and isn't applied yet.
    unsettled: Vec<(u64, SnapshotVisibility)>,
    /// Shapes without a snapshot, each with the value of `follow_count` when it was followed.
    /// Transactions are held for them.
    awaiting_snapshot: HashMap<u64, u64>,
}

/// Shape that is matched with changes.
#[derive(Debug)]
pub(crate) struct FollowedShape {
    pub(super) shape: Arc<Shape>,
    snapshot: SnapshotPhase,
    /// Row keys, if the table has no primary key.
    keys: Option<RowKeys>,
}

/// Whether the snapshot of a shape is taken, and which transactions it sees.
#[derive(Debug)]
enum SnapshotPhase {
    /// The snapshot isn't taken yet: transactions are held.
    Pending {
        held: Vec<HeldTransaction>,
        /// Transactions with a commit at or after this LSN are held. The snapshot must see all
        /// earlier ones.
        since: u64,
    },
    /// The snapshot sees these transactions.
    Taken(SnapshotVisibility),
}

impl FollowedShapes {
    /// Removes all shapes. Commits before `lsn` will be skipped. Streams that started earlier must
    /// start over.
    pub(crate) fn clear(&mut self, lsn: u64) {
        debug_assert!(self.effects.is_empty(), "effects are performed before the lock is released");
        let FollowedShapes { generation, recent, follow_count, descendants, .. } = mem::take(self);
        let generation = generation + 1;
        *self = FollowedShapes {
            generation,
            queued_to: lsn,
            recent,
            follow_count,
            descendants,
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
        if lsn < self.queued_to {
            return TransactionReceipt::Repeated;
        }
        self.transaction = Some((lsn, xid));
        TransactionReceipt::First
    }

    /// Drops the transaction that is being applied.
    pub(crate) fn abandon(&mut self) {
        if let Some((lsn, _)) = self.transaction.take() {
            let waiting: Vec<_> = self.awaiting_snapshot.keys().copied().collect();
            for shape in waiting {
                if let Some(FollowedShape { snapshot: SnapshotPhase::Pending { held, .. }, .. }) =
                    self.followed_shape(shape)
                {
                    held.pop_if(|held| held.lsn == lsn);
                }
            }
        }
        self.settle();
    }

    /// Ends a transaction that was queued for the store. Then deletes shapes for which more than
    /// `held_bytes` are held.
    pub(crate) fn commit(&mut self, transaction: &OpenTransaction, end: u64, held_bytes: usize) {
        self.transaction = None;
        for oid in &transaction.oids {
            self.recent.push(*oid, transaction.lsn, transaction.xid);
        }
        self.queued_to = self.queued_to.max(end);
        self.settle();
        self.delete_overfull(held_bytes);
    }

    /// Follows a shape before its snapshot is taken. From now on, transactions are held for it.
    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        self.awaiting_snapshot.insert(shape.id, self.follow_count);
        self.follow_count += 1;
        let since = self.transaction.map_or(self.queued_to, |(lsn, _)| lsn.saturating_add(1));
        let keys = shape.definition().table.key.is_empty();
        let keys = keys.then(|| RowKeys::Waiting(WaitingKeyChanges::default()));
        self.insert(FollowedShape {
            shape,
            snapshot: SnapshotPhase::Pending { held: Vec::new(), since },
            keys,
        });
    }

    /// Follows a shape with a complete snapshot. `keys` are those of its rows, if its table has no
    /// primary key.
    pub(crate) fn add_complete(
        &mut self,
        shape: Arc<Shape>,
        seen: SnapshotVisibility,
        keys: Option<KeyCounts>,
    ) {
        self.insert(FollowedShape {
            shape,
            snapshot: SnapshotPhase::Taken(seen),
            keys: keys.map(RowKeys::Counted),
        });
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

    /// Applies taken snapshots: queues the held transactions that a snapshot doesn't see, and drops
    /// the others.
    fn settle(&mut self) {
        for (shape, seen) in mem::take(&mut self.unsettled) {
            self.awaiting_snapshot.remove(&shape);
            let Some(followed) = self.followed_shape(shape) else { continue };
            let held = mem::replace(&mut followed.snapshot, SnapshotPhase::Taken(seen.clone()));
            let settled = Arc::clone(&followed.shape);
            let SnapshotPhase::Pending { mut held, .. } = held else { continue };
            held.retain(|held| !seen.sees(held.lsn, held.xid));
            if held.iter().any(|held| held.is_unfit) {
                self.delete(shape);
                continue;
            }
            if let Some(keys) = self.followed_shape(shape).and_then(|followed| followed.keys.as_mut()) {
                // The keys of the snapshot aren't set yet, so `apply` only stores the changes.
                // `set_key_counts` checks them.
                let _stored = held.iter().try_for_each(|held| keys.apply(&held.key_changes));
            }
            // A record without messages would move the end of the shape's log to an offset that
            // no message has.
            let messages = held.into_iter().filter(|held| !held.text.is_empty());
            self.effects.extend(messages.map(|held| FollowEffect::Log(held.record(shape))));
            self.effects.push(FollowEffect::Settle(settled));
        }
    }

    /// Deletes shapes without a snapshot for which more than `held_bytes` are held.
    pub(crate) fn delete_overfull(&mut self, held_bytes: usize) {
        if self.awaiting_snapshot.is_empty() {
            return;
        }
        let limit = held_bytes.min(MAX_TEXT);
        let waiting: Vec<_> = self.awaiting_snapshot.keys().copied().collect();
        for shape in waiting {
            if self.followed_shape(shape).is_some_and(|followed| followed.held_bytes() > limit) {
                self.delete(shape);
            }
        }
    }

    /// Deletes a shape whose log can't represent a transaction, unless its snapshot sees the
    /// transaction. If the snapshot isn't taken, [`settle`](Self::settle) decides later.
    pub(crate) fn mark_unfit(&mut self, shape: u64, transaction: &OpenTransaction) {
        let Some(followed) = self.followed_shape(shape) else { return };
        if followed.snapshot_sees(transaction) {
            return;
        }
        match &mut followed.snapshot {
            SnapshotPhase::Pending { held, .. } => {
                HeldTransaction::find_or_add(transaction, held).is_unfit = true
            }
            SnapshotPhase::Taken(_) => self.delete(shape),
        }
    }

    /// Counts the row keys that a transaction adds and removes. Deletes shapes whose clients
    /// couldn't distinguish the rows.
    pub(crate) fn count_keys(&mut self, transaction: &mut OpenTransaction) {
        for (shape, changes) in transaction.take_key_changes() {
            let Some(FollowedShape { snapshot, keys: Some(keys), .. }) = self.followed_shape(shape) else {
                continue;
            };
            let applied = match snapshot {
                SnapshotPhase::Pending { held, .. } => {
                    HeldTransaction::find_or_add(transaction, held).key_changes.extend(changes);
                    Ok(())
                }
                SnapshotPhase::Taken(_) => keys.apply(&changes),
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
        match self.followed_shape(touch.shape).map(|followed| &mut followed.snapshot) {
            None => TouchDestination::Nowhere,
            Some(SnapshotPhase::Taken(_)) => TouchDestination::Store,
            Some(SnapshotPhase::Pending { held, .. }) => {
                let held = HeldTransaction::find_or_add(transaction, held);
                for MessageRange { from, to, last_op } in touch.ranges.iter().filter(|_| !held.is_unfit) {
                    held.text.extend_from_slice(&text[*from as usize..*to as usize]);
                    held.last_op = *last_op;
                }
                TouchDestination::Held
            }
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
        let described = DescribedTable::of(table);
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

    fn followed_shape(&mut self, shape: u64) -> Option<&mut FollowedShape> {
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

impl FollowedShape {
    /// Returns whether the snapshot sees a transaction. `false` while the snapshot isn't taken.
    pub(super) fn snapshot_sees(&self, transaction: &OpenTransaction) -> bool {
        match &self.snapshot {
            SnapshotPhase::Taken(seen) => seen.sees(transaction.lsn, transaction.xid),
            SnapshotPhase::Pending { .. } => false,
        }
    }

    fn held_bytes(&self) -> usize {
        match &self.snapshot {
            SnapshotPhase::Pending { held, .. } => held.iter().map(HeldTransaction::bytes).sum(),
            SnapshotPhase::Taken(_) => 0,
        }
    }
}

impl SnapshotVisibility {
    pub(crate) fn new(snapshot: &Snapshot, lsn: u64) -> Self {
        SnapshotVisibility { xmin: snapshot.xmin, xmax: snapshot.xmax, xip: snapshot.xip.clone(), lsn }
    }

    /// Returns whether the snapshot sees a transaction.
    pub(super) fn sees(&self, lsn: u64, xid: u32) -> bool {
        // The same rule as `Snapshot::sees`, without a copy of the list.
        let full = Xid(xid).widen(self.xmax);
        lsn < self.lsn && (full < self.xmin || full < self.xmax && !self.xip.contains(&full))
    }
}
