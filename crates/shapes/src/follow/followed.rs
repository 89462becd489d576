//! Which shapes are followed, and what each has seen.
//!
//! Invariant: between transactions, a shape of which it is known what its snapshot has seen has nothing held.
//! Kept by: it is known only after [`settle`](Followed::settle), which is between transactions.

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
use crate::store::record::{
    CommitRecord, MAX_TEXT, MessageRange, Record, ShapeTouch, SnapshotVisibility, TransactionPart,
};

/// The shapes that changes are matched with.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// How often all of this began anew.
    generation: u64,
    /// Everything before was given to the store.
    taken: u64,
    /// The transaction that is being taken in, by its commit and its number.
    transaction: Option<(u64, u32)>,
    recent: RecentTransactions,
    /// How many shapes have begun to be followed before their snapshot.
    follows: u64,
    /// The tables below each partitioned table.
    descendants: HashMap<u32, Vec<u32>>,
    /// By their tables' oids; several of one oid while a table changes.
    groups: HashMap<u32, Vec<Group>>,
    /// The table of each shape.
    oids: HashMap<u64, u32>,
    /// Shapes whose snapshot has begun meanwhile.
    unsettled: Vec<(u64, SnapshotVisibility)>,
    /// Those for which transactions are held, each with its number among all that began so.
    unknown: HashMap<u64, u64>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) shape: Arc<Shape>,
    visibility: Visibility,
    /// Of a table without a primary key.
    keys: Option<RowKeys>,
}

/// Which transactions a shape's snapshot has seen.
#[derive(Debug)]
enum Visibility {
    /// It is about to be taken: what comes is held.
    Unknown {
        held: Vec<Held>,
        /// What came before this was nobody's to hold.
        since: u64,
    },
    Known(SnapshotVisibility),
}

/// A transaction of which it isn't known whether a shape's snapshot has seen it.
#[derive(Debug)]
struct Held {
    xid: u32,
    lsn: u64,
    last_op: u64,
    text: Vec<u8>,
    /// It can't be told: unless the snapshot has seen it, the shape goes.
    is_unfit: bool,
    /// Of a table without a primary key.
    key_changes: Vec<KeyChange>,
}

impl Followed {
    /// From now on, nothing is followed, and everything before `lsn` is passed over. Streams that began before have to begin again.
    pub(crate) fn clear(&mut self, lsn: u64) {
        let Followed { generation, recent, follows, descendants, .. } = mem::take(self);
        let generation = generation + 1;
        *self = Followed { generation, taken: lsn, recent, follows, descendants, ..Followed::default() };
    }

    /// What was taken in is of another database, or was by another process.
    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
        self.descendants.clear();
    }

    /// These tables are below a partitioned one.
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

    /// A transaction begins; `false`: the store was given it before.
    pub(super) fn begin(&mut self, lsn: u64, xid: u32, inner: &StoreInner) -> bool {
        self.abandon(inner);
        let is_new = lsn >= self.taken;
        self.transaction = is_new.then_some((lsn, xid));
        is_new
    }

    /// The transaction goes no further.
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

    /// The transaction was given to the store.
    pub(super) fn commit(&mut self, transaction: &Transaction, end: u64, inner: &StoreInner) {
        self.transaction = None;
        for oid in &transaction.oids {
            self.recent.push(*oid, transaction.lsn, transaction.xid);
        }
        self.taken = self.taken.max(end);
        self.settle(inner);
        self.fail_overfull(inner);
    }

    /// A shape is about to take its snapshot: from now on, what concerns it is held for it.
    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        self.unknown.insert(shape.id, self.follows);
        self.follows += 1;
        let since = self.transaction.map_or(self.taken, |(lsn, _)| lsn.saturating_add(1));
        let keys = shape.definition().table.key.is_empty();
        let keys = keys.then(|| RowKeys::Waiting(WaitingChanges::default()));
        self.insert(Member { shape, visibility: Visibility::Unknown { held: Vec::new(), since }, keys });
    }

    /// A shape that has its snapshot. `keys`: of its rows, if its table has no primary key.
    pub(crate) fn add_complete(
        &mut self,
        shape: Arc<Shape>,
        seen: SnapshotVisibility,
        keys: Option<KeyCounts>,
    ) {
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

    /// It is known what a shape's snapshot sees. If a transaction is just being taken in, it is settled after it. `false`: the snapshot was
    /// taken too early, and doesn't see something that came before the shape was followed. Postgres writes a commit to its log, and shows it
    /// only then, or when its standbys have it.
    pub(crate) fn begun(&mut self, shape: u64, seen: SnapshotVisibility, inner: &StoreInner) -> bool {
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

    /// A snapshot has been taken: what it sees, all later ones see.
    pub(crate) fn forget_visible(&mut self, snapshot: &Snapshot) {
        self.prune(None, &SnapshotVisibility::new(snapshot, u64::MAX));
    }

    fn prune(&mut self, oid: Option<u32>, seen: &SnapshotVisibility) {
        let oldest = self.unknown.values().copied().min().unwrap_or(u64::MAX);
        self.recent.prune(oid, seen, self.follows, oldest);
    }

    fn is_early(&mut self, shape: u64, seen: &SnapshotVisibility) -> bool {
        let Some(Member { visibility: Visibility::Unknown { since, .. }, .. }) = self.member(shape) else {
            return false;
        };
        let since = *since;
        let Some(oid) = self.oids.get(&shape) else { return false };
        // What came under a partitioned table may be of any table below it.
        let above = self.descendants.iter().filter(|(_, below)| below.contains(oid)).map(|(above, _)| above);
        let now = self.transaction.filter(|(lsn, _)| *lsn < since);
        now.is_some_and(|(lsn, xid)| !seen.has(lsn, xid))
            || above.chain([oid]).any(|oid| self.recent.is_missed(*oid, since, seen))
    }

    /// Decides on what was held.
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
                // They wait for the snapshot's rows.
                let _nothing_is_decided = held.iter().all(|held| keys.take(&held.key_changes));
            }
            // A record without a message would move the end of the log to an offset without one.
            let told = held.into_iter().filter(|held| !held.text.is_empty());
            told.for_each(|held| inner.enqueue(held.record(shape)));
            settled.settled();
        }
    }

    /// What is held is bounded: a shape whose snapshot doesn't begin is given up.
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

    /// A shape can't be told what a transaction does.
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

    /// Counts the keys of rows that a transaction brings to shapes, or takes. Shapes that can't be
    /// told go.
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

    /// All rows of a shape's snapshot are counted. The shape goes if what came since can't be told.
    pub(crate) fn counted(&mut self, shape: u64, counts: KeyCounts, inner: &StoreInner) {
        let Some(Member { keys: Some(keys), .. }) = self.member(shape) else { return };
        if !keys.complete(counts) {
            self.delete(shape, inner);
        }
    }

    /// Whether what concerns a shape now is for the store; if not, it is held, or goes nowhere.
    pub(super) fn pass_on(&mut self, touch: &ShapeTouch, text: &Bytes, transaction: &Transaction) -> bool {
        match self.member(touch.shape).map(|member| &mut member.visibility) {
            None => false,
            Some(Visibility::Known(_)) => true,
            Some(Visibility::Unknown { held, .. }) => {
                let held = Held::of(transaction, held);
                for MessageRange { from, to, last_op } in touch.ranges.iter().filter(|_| !held.is_unfit) {
                    held.text.extend_from_slice(&text[*from as usize..*to as usize]);
                    held.last_op = *last_op;
                }
                false
            }
        }
    }

    /// The shape goes, for everybody, and for good.
    pub(crate) fn delete(&mut self, shape: u64, inner: &StoreInner) {
        self.remove(shape);
        // Queued under the lock: what comes after it in the store's log doesn't concern the shape.
        inner.delete(shape);
    }

    /// A table is so now: shapes that can't go on with it are deleted.
    pub(crate) fn refit(&mut self, table: &TableSchema, inner: &StoreInner) {
        let described = Described::of(table);
        let groups = self.groups.get(&table.oid).into_iter().flatten();
        let unfit: Vec<_> = groups.flat_map(|group| group.unfit(&described)).collect();
        unfit.into_iter().for_each(|shape| self.delete(shape, inner));
        self.rebase(table, inner);
    }

    /// The catalog says this of a table: its shapes go if they aren't right as of that state, which
    /// becomes the baseline.
    pub(crate) fn rebase(&mut self, table: &TableSchema, inner: &StoreInner) {
        let Some(now) = &table.state else { return };
        let change = match inner.registry().baselines.get(table.oid) {
            Some(before) if before == now => return,
            Some(before) => now.change_since(before),
            None => None,
        };
        if let Some(change) = change {
            let TableSchema { schema, name, oid, .. } = table;
            tracing::info!(schema, name, oid, %change, "shapes of a table deleted");
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

    /// The shapes of all these tables, whose oids are sorted. There may be thousands, of which few
    /// have shapes.
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
    /// Whether its snapshot has seen a transaction, as far as that is known.
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
    /// Of the transaction that is being taken in.
    fn of<'a>(transaction: &Transaction, held: &'a mut Vec<Held>) -> &'a mut Held {
        if held.last().is_none_or(|held| held.lsn != transaction.lsn) {
            let Transaction { lsn, xid, .. } = *transaction;
            let (text, key_changes) = (Vec::new(), Vec::new());
            held.push(Held { xid, lsn, last_op: 0, text, is_unfit: false, key_changes });
        }
        held.last_mut().expect("it was pushed")
    }

    fn bytes(&self) -> usize {
        self.text.len() + self.key_changes.len() * size_of::<KeyChange>()
    }

    /// A transaction of its own, after those that came meanwhile.
    fn record(self, shape: u64) -> Record {
        let to = u32::try_from(self.text.len()).expect("what is held is bounded");
        let ranges = vec![MessageRange { from: 0, to, last_op: self.last_op }];
        let touches = vec![ShapeTouch { shape, ranges }];
        let changes = TransactionPart { lsn: self.lsn, is_first: true, touches, text: self.text.into() };
        Record::Commit(changes, CommitRecord::default())
    }
}

impl SnapshotVisibility {
    pub(crate) fn new(snapshot: &Snapshot, lsn: u64) -> Self {
        SnapshotVisibility { xmin: snapshot.xmin, xmax: snapshot.xmax, xip: snapshot.xip.clone(), lsn }
    }

    /// Whether a transaction is in the snapshot.
    pub(super) fn has(&self, lsn: u64, xid: u32) -> bool {
        // As `Snapshot::sees`, without a copy of the list.
        let full = Xid(xid).widen(self.xmax);
        lsn < self.lsn && (full < self.xmin || full < self.xmax && !self.xip.contains(&full))
    }
}
