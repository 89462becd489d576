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

use super::group::{Described, Group};
use super::recent::RecentTransactions;
use super::transaction::Transaction;
use crate::definition::TableSchema;
use crate::registry::StoreInner;
use crate::row_keys::{KeyChange, KeyCounts, RowKeys, WaitingChanges};
use crate::shape::Shape;
use crate::store::record::{Changes, Commit, MAX_TEXT, Range, Record, Seen, Touch};

/// Shapes that are matched with changes.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Number of times the set was cleared.
    generation: u64,
    /// Position before which every commit was queued for the store.
    taken: u64,
    /// Commit position and id of the transaction that is being applied.
    transaction: Option<(u64, u32)>,
    recent: RecentTransactions,
    /// Number of shapes that were followed before their snapshot, ever.
    follows: u64,
    /// Oids of the tables below each partitioned table.
    descendants: HashMap<u32, Vec<u32>>,
    /// Shapes by table oid. A table has several groups while its schema changes.
    groups: HashMap<u32, Vec<Group>>,
    /// Table oid of each shape.
    oids: HashMap<u64, u32>,
    /// Shapes whose snapshot was taken and isn't applied yet.
    unsettled: Vec<(u64, Seen)>,
    /// Shapes without a snapshot, each with the value of `follow_count` when it was followed.
    /// Transactions are held for them.
    unknown: HashMap<u64, u64>,
}

/// Shape that is matched with changes.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) shape: Arc<Shape>,
    visibility: Visibility,
    /// Row keys, if the table has no primary key.
    keys: Option<RowKeys>,
}

/// Whether the snapshot of a shape is taken, and which transactions it sees.
#[derive(Debug)]
enum Visibility {
    /// The snapshot isn't taken yet: transactions are held.
    Unknown {
        held: Vec<Held>,
        /// Position from which on transactions are held. The snapshot must see all earlier ones.
        since: u64,
    },
    /// The snapshot sees these transactions.
    Known(Seen),
}

/// Transaction that is held until the snapshot of a shape is taken.
#[derive(Debug)]
struct Held {
    xid: u32,
    lsn: u64,
    last_op: u64,
    text: Vec<u8>,
    /// The log can't represent the transaction. Unless the snapshot sees it, the shape is deleted.
    is_unfit: bool,
    /// Changes of row keys, if the table has no primary key.
    key_changes: Vec<KeyChange>,
}

impl Followed {
    /// Removes all shapes. Commits before `lsn` will be skipped. Streams that started earlier must
    /// start over.
    pub(crate) fn clear(&mut self, lsn: u64) {
        let Followed { generation, recent, follows, descendants, .. } = mem::take(self);
        let generation = generation + 1;
        *self = Followed { generation, taken: lsn, recent, follows, descendants, ..Followed::default() };
    }

    /// Drops the recent transactions: they are of another database, or of another process.
    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
        self.descendants.clear();
    }

    /// Sets the tables below a partitioned table.
    pub(super) fn relate(&mut self, oid: u32, descendants: &[u32]) {
        if descendants.is_empty() {
            self.descendants.remove(&oid);
        } else {
            self.descendants.insert(oid, descendants.to_vec());
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Starts a transaction. Returns `false` if it was queued for the store before.
    pub(super) fn begin(&mut self, lsn: u64, xid: u32, inner: &StoreInner) -> bool {
        self.abandon(inner);
        let is_new = lsn >= self.taken;
        self.transaction = is_new.then_some((lsn, xid));
        is_new
    }

    /// Drops the transaction that is being applied.
    pub(super) fn abandon(&mut self, inner: &StoreInner) {
        if let Some((lsn, _)) = self.transaction.take() {
            let unknown: Vec<_> = self.unknown.keys().copied().collect();
            for shape in unknown {
                if let Some(Member { visibility: Visibility::Unknown { held, .. }, .. }) = self.member(shape)
                {
                    held.pop_if(|held| held.lsn == lsn);
                }
            }
        }
        self.settle(inner);
    }

    /// Ends a transaction that was queued for the store.
    pub(super) fn commit(&mut self, transaction: &Transaction, end: u64, inner: &StoreInner) {
        self.transaction = None;
        for oid in &transaction.oids {
            self.recent.push(*oid, transaction.lsn, transaction.xid);
        }
        self.taken = self.taken.max(end);
        self.settle(inner);
        self.fail_overfull(inner);
    }

    /// Follows a shape before its snapshot is taken. From now on, transactions are held for it.
    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        self.unknown.insert(shape.id, self.follows);
        self.follows += 1;
        let since = self.transaction.map_or(self.taken, |(lsn, _)| lsn.saturating_add(1));
        let keys = shape.definition().table.key.is_empty();
        let keys = keys.then(|| RowKeys::Waiting(WaitingChanges::default()));
        self.insert(Member { shape, visibility: Visibility::Unknown { held: Vec::new(), since }, keys });
    }

    /// Follows a shape with a complete snapshot. `keys` are those of its rows, if its table has no
    /// primary key.
    pub(crate) fn add_complete(&mut self, shape: Arc<Shape>, seen: Seen, keys: Option<KeyCounts>) {
        self.insert(Member { shape, visibility: Visibility::Known(seen), keys: keys.map(RowKeys::Counted) });
    }

    fn insert(&mut self, member: Member) {
        let table = &member.shape.definition().table;
        self.oids.insert(member.shape.id, table.oid);
        let groups = self.groups.entry(table.oid).or_default();
        let at = groups.iter().position(|group| group.is_of(table)).unwrap_or_else(|| {
            groups.push(Group::new(Arc::clone(table)));
            groups.len() - 1
        });
        groups[at].add(member);
    }

    /// Sets the transactions that a shape's snapshot sees. Within a transaction, they are applied
    /// after it.
    ///
    /// Returns `false` if the snapshot was taken too early: it doesn't see a transaction from
    /// before the shape was followed. Postgres writes a commit to its log first, and makes it
    /// visible after that, or when its synchronous standbys have it.
    pub(crate) fn begun(&mut self, shape: u64, seen: Seen, inner: &StoreInner) -> bool {
        let oid = self.oids.get(&shape).copied();
        let is_early = self.is_early(shape, &seen);
        if !is_early {
            self.unsettled.push((shape, seen.clone()));
            if self.transaction.is_none() {
                self.settle(inner);
            }
        }
        if oid.is_some() {
            self.prune(oid, &seen);
        }
        !is_early
    }

    /// Drops recent transactions that a new snapshot sees: all later snapshots see them, too.
    pub(crate) fn forget_visible(&mut self, snapshot: &Snapshot) {
        self.prune(None, &Seen::new(snapshot, u64::MAX));
    }

    fn prune(&mut self, oid: Option<u32>, seen: &Seen) {
        let oldest = self.unknown.values().copied().min().unwrap_or(u64::MAX);
        self.recent.prune(oid, seen, self.follows, oldest);
    }

    fn is_early(&mut self, shape: u64, seen: &Seen) -> bool {
        let Some(Member { visibility: Visibility::Unknown { since, .. }, .. }) = self.member(shape) else {
            return false;
        };
        let since = *since;
        let Some(oid) = self.oids.get(&shape) else { return false };
        // A change under a partitioned table may concern any table below it.
        let above = self.descendants.iter().filter(|(_, below)| below.contains(oid)).map(|(above, _)| above);
        let now = self.transaction.filter(|(lsn, _)| *lsn < since);
        now.is_some_and(|(lsn, xid)| !seen.has(lsn, xid))
            || above.chain([oid]).any(|oid| self.recent.is_missed(*oid, since, seen))
    }

    /// Applies taken snapshots: queues the held transactions that a snapshot doesn't see, and drops
    /// the others.
    fn settle(&mut self, inner: &StoreInner) {
        for (shape, seen) in mem::take(&mut self.unsettled) {
            self.unknown.remove(&shape);
            let Some(member) = self.member(shape) else { continue };
            let held = mem::replace(&mut member.visibility, Visibility::Known(seen.clone()));
            let settled = Arc::clone(&member.shape);
            let Visibility::Unknown { mut held, .. } = held else { continue };
            held.retain(|held| !seen.has(held.lsn, held.xid));
            if held.iter().any(|held| held.is_unfit) {
                self.delete(shape, inner);
                continue;
            }
            if let Some(keys) = self.member(shape).and_then(|member| member.keys.as_mut()) {
                // The keys are waiting for the rows of the snapshot, so no change can be inexact
                // yet.
                let _nothing_is_decided = held.iter().all(|held| keys.take(&held.key_changes));
            }
            // A record without messages would set the end of the log to an offset without a
            // message.
            let told = held.into_iter().filter(|held| !held.text.is_empty());
            told.for_each(|held| inner.enqueue(held.record(shape)));
            settled.settled();
        }
    }

    /// Deletes shapes without a snapshot for which more than `held_bytes` are held.
    pub(super) fn fail_overfull(&mut self, inner: &StoreInner) {
        if self.unknown.is_empty() {
            return;
        }
        let limit = inner.config.held_bytes.min(MAX_TEXT);
        let unknown: Vec<_> = self.unknown.keys().copied().collect();
        for shape in unknown {
            if self.member(shape).is_some_and(|member| member.held_bytes() > limit) {
                self.delete(shape, inner);
            }
        }
    }

    /// Deletes a shape whose log can't represent a transaction. If its snapshot isn't taken, the
    /// decision is held.
    pub(super) fn unfit(&mut self, shape: u64, transaction: &Transaction, inner: &StoreInner) {
        let Some(member) = self.member(shape) else { return };
        if member.has_seen(transaction) {
            return;
        }
        match &mut member.visibility {
            Visibility::Unknown { held, .. } => Held::of(transaction, held).is_unfit = true,
            Visibility::Known(_) => self.delete(shape, inner),
        }
    }

    /// Counts the row keys that a transaction adds and removes. Deletes shapes whose clients
    /// couldn't distinguish the rows.
    pub(super) fn count_keys(&mut self, transaction: &mut Transaction, inner: &StoreInner) {
        for (shape, changes) in transaction.take_key_changes() {
            let Some(Member { visibility, keys: Some(keys), .. }) = self.member(shape) else { continue };
            let is_exact = match visibility {
                Visibility::Unknown { held, .. } => {
                    Held::of(transaction, held).key_changes.extend(changes);
                    true
                }
                Visibility::Known(_) => keys.take(&changes),
            };
            if !is_exact {
                self.delete(shape, inner);
            }
        }
    }

    /// Sets the row keys of a complete snapshot. Deletes the shape if changes since then are
    /// inexact.
    pub(crate) fn counted(&mut self, shape: u64, counts: KeyCounts, inner: &StoreInner) {
        let Some(Member { keys: Some(keys), .. }) = self.member(shape) else { return };
        if !keys.complete(counts) {
            self.delete(shape, inner);
        }
    }

    /// Returns whether the changes of a shape go to the store. Otherwise they are held, or the
    /// shape is gone.
    pub(super) fn pass_on(&mut self, touch: &Touch, text: &Bytes, transaction: &Transaction) -> bool {
        match self.member(touch.shape).map(|member| &mut member.visibility) {
            None => false,
            Some(Visibility::Known(_)) => true,
            Some(Visibility::Unknown { held, .. }) => {
                let held = Held::of(transaction, held);
                for Range { from, to, last_op } in touch.ranges.iter().filter(|_| !held.is_unfit) {
                    held.text.extend_from_slice(&text[*from as usize..*to as usize]);
                    held.last_op = *last_op;
                }
                false
            }
        }
    }

    /// Deletes a shape permanently.
    pub(crate) fn delete(&mut self, shape: u64, inner: &StoreInner) {
        self.remove(shape);
        // Queued under the lock, so that no later record in the store's log concerns the shape.
        inner.delete(shape);
    }

    /// Compares the shapes of a table with its schema, and deletes the unfit ones.
    pub(crate) fn refit(&mut self, table: &TableSchema, inner: &StoreInner) {
        let described = Described::of(table);
        let groups = self.groups.get(&table.oid).into_iter().flatten();
        let unfit: Vec<_> = groups.flat_map(|group| group.unfit(&described)).collect();
        unfit.into_iter().for_each(|shape| self.delete(shape, inner));
        self.rebase(table, inner);
    }

    /// Makes a catalog state the baseline of its table. First deletes the table's shapes if they
    /// are incorrect for that state.
    pub(crate) fn rebase(&mut self, table: &TableSchema, inner: &StoreInner) {
        let Some(now) = &table.state else { return };
        let change = match inner.registry().baselines.get(table.oid) {
            Some(before) if before == now => return,
            Some(before) => now.change_since(before),
            None => None,
        };
        if let Some(change) = change {
            let TableSchema { schema, name, oid, .. } = table;
            tracing::info!(schema, name, oid, %change, "table shapes deleted: catalog changed");
            inner.shapes_of(*oid).into_iter().for_each(|shape| self.delete(shape, inner));
        }
        // After the deletions, in memory and in the log: a crash in between must not lose them.
        inner.set_baseline(table);
    }

    pub(super) fn groups(&mut self, oid: u32) -> impl Iterator<Item = &mut Group> {
        self.groups.get_mut(&oid).into_iter().flatten()
    }

    pub(crate) fn has_table(&self, oid: u32) -> bool {
        self.groups.contains_key(&oid)
    }

    pub(super) fn shapes_of(&self, oid: u32) -> Vec<u64> {
        self.groups.get(&oid).into_iter().flatten().flat_map(Group::shapes).collect()
    }

    /// Returns the followed shapes of several tables. `oids` is sorted. There may be thousands of
    /// oids, and few of them have shapes.
    pub(super) fn shapes_of_any(&self, oids: &[u32]) -> Vec<u64> {
        let is_among = |oid: &&u32| oids.binary_search(oid).is_ok();
        if self.groups.len() < oids.len() {
            self.groups.keys().filter(is_among).flat_map(|oid| self.shapes_of(*oid)).collect()
        } else {
            oids.iter().flat_map(|oid| self.shapes_of(*oid)).collect()
        }
    }

    fn remove(&mut self, shape: u64) {
        self.unknown.remove(&shape);
        let Some(oid) = self.oids.remove(&shape) else { return };
        let Some(groups) = self.groups.get_mut(&oid) else { return };
        groups.iter_mut().for_each(|group| group.remove(shape));
        groups.retain(|group| !group.is_empty());
        if groups.is_empty() {
            self.groups.remove(&oid);
        }
    }

    fn member(&mut self, shape: u64) -> Option<&mut Member> {
        let groups = self.groups.get_mut(self.oids.get(&shape)?)?;
        groups.iter_mut().find_map(|group| group.member(shape))
    }
}

#[cfg(test)]
impl Followed {
    pub(crate) fn is_empty(&self) -> bool {
        self.oids.is_empty() && self.groups.is_empty() && self.unknown.is_empty()
    }
}

impl Member {
    /// Returns whether the snapshot sees a transaction. `false` while the snapshot isn't taken.
    pub(super) fn has_seen(&self, transaction: &Transaction) -> bool {
        match &self.visibility {
            Visibility::Known(seen) => seen.has(transaction.lsn, transaction.xid),
            Visibility::Unknown { .. } => false,
        }
    }

    fn held_bytes(&self) -> usize {
        match &self.visibility {
            Visibility::Unknown { held, .. } => held.iter().map(Held::bytes).sum(),
            Visibility::Known(_) => 0,
        }
    }
}

impl Held {
    /// Returns the entry of the transaction that is being applied. Adds it if it is missing.
    fn of<'a>(transaction: &Transaction, held: &'a mut Vec<Held>) -> &'a mut Held {
        if held.last().is_none_or(|held| held.lsn != transaction.lsn) {
            let Transaction { lsn, xid, .. } = *transaction;
            let (text, key_changes) = (Vec::new(), Vec::new());
            held.push(Held { xid, lsn, last_op: 0, text, is_unfit: false, key_changes });
        }
        held.last_mut().expect("an entry was pushed")
    }

    fn bytes(&self) -> usize {
        self.text.len() + self.key_changes.len() * size_of::<KeyChange>()
    }

    /// Returns the record of a separate transaction. It follows all records that were queued
    /// meanwhile.
    fn record(self, shape: u64) -> Record {
        let to = u32::try_from(self.text.len()).expect("held bytes are bounded");
        let ranges = vec![Range { from: 0, to, last_op: self.last_op }];
        let touches = vec![Touch { shape, ranges }];
        let changes = Changes { lsn: self.lsn, is_first: true, touches, text: self.text.into() };
        Record::Commit(changes, Commit::default())
    }
}

impl Seen {
    pub(crate) fn new(snapshot: &Snapshot, lsn: u64) -> Self {
        Seen { xmin: snapshot.xmin, xmax: snapshot.xmax, xip: snapshot.xip.clone(), lsn }
    }

    /// Returns whether the snapshot sees a transaction.
    pub(super) fn has(&self, lsn: u64, xid: u32) -> bool {
        // The same rule as `Snapshot::sees`, without a copy of the list.
        let full = Xid(xid).widen(self.xmax);
        lsn < self.lsn && (full < self.xmin || full < self.xmax && !self.xip.contains(&full))
    }
}
