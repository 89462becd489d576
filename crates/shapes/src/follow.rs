//! From the stream of changes to the logs of shapes.
//!
//! Invariant: each committed transaction goes to each shape that it concerns exactly once, whole, in the order of the commits, unless the
//! shape's snapshot has seen it.
//! Kept by: a shape is followed from before its snapshot is taken; what comes before it is known what the snapshot has seen is held. A shape
//! of which a change can't be told (its table is another, its clause fails) is deleted: its clients start over.
//! Order: whatever is decided under the lock of [`Followed`] is queued for the store under it, so that the store's log has it in that order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::{Message, OldTuple, Relation, Snapshot, Tuple, Value};

use crate::definition::Table;
use crate::encode::{Change, Layout, Place};
use crate::filter::EvalError;
use crate::matching::{Candidate, Index};
use crate::shape::Shape;
use crate::shapes::Inner;
use crate::store::record::{Changes, Commit, Note, Record, Seen, Touch};

/// How many transactions are remembered that snapshots may not see yet: far more than Postgres has backends that could be between
/// writing a commit and showing it.
const PASSED: usize = 65_536;

/// A part of a transaction isn't larger, by much.
const PART_BYTES: usize = 1 << 20;

/// The shapes that changes are matched with.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// By their tables' oids; several of one oid while a table changes.
    groups: HashMap<u32, Vec<Group>>,
    /// The table of each shape.
    oids: HashMap<u64, u32>,
    /// Whether a transaction is being taken in.
    in_transaction: bool,
    /// Shapes whose snapshot has begun meanwhile.
    unsettled: Vec<(u64, Seen)>,
    /// Those for which transactions are held.
    unknown: HashSet<u64>,
    /// The last transactions that came, and how many came before them.
    passed: (u64, VecDeque<u32>),
}

/// The shapes of one table, as it was when they were made.
#[derive(Debug)]
struct Group {
    table: Arc<Table>,
    index: Index,
    members: HashMap<u64, Member>,
    /// Of which version of the relation, and where each column of the table is in its rows.
    columns: (u64, Vec<Option<usize>>),
}

#[derive(Debug)]
struct Member {
    shape: Arc<Shape>,
    /// How many transactions had come before it was followed.
    since: u64,
    visibility: Visibility,
}

/// Which transactions a shape's snapshot has seen.
#[derive(Debug)]
enum Visibility {
    /// It is about to be taken: what comes is held.
    Unknown(Vec<Held>),
    Known(Seen),
}

/// A transaction of which it isn't known whether a shape's snapshot has seen it.
#[derive(Debug)]
struct Held {
    xid: u32,
    lsn: u64,
    last_op: u64,
    text: Vec<u8>,
}

/// The stream makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A change, or a commit, outside of a transaction.
    #[error("the stream has a change outside of a transaction")]
    NoTransaction,
    /// A change of a table that wasn't described.
    #[error("the stream has a change of table {oid}, which it hasn't described")]
    NoRelation {
        /// The table's.
        oid: u32,
    },
    /// A kind of message that wasn't asked for.
    #[error("the stream has a message that wasn't asked for")]
    Unexpected,
}

/// Takes the stream in, message by message.
#[derive(Debug)]
pub struct Follower {
    inner: Arc<Inner>,
    relations: HashMap<u32, Described>,
    versions: u64,
    transaction: Option<Transaction>,
    scratch: Scratch,
}

/// A table, as the stream describes it.
#[derive(Debug)]
struct Described {
    version: u64,
    schema: String,
    name: String,
    /// Names, and types with their modifiers.
    columns: Vec<(String, (u32, i32))>,
}

#[derive(Debug)]
struct Transaction {
    lsn: u64,
    xid: u32,
    op: u64,
    text: Vec<u8>,
    touches: Vec<Touch>,
    /// Where a shape is among the touches.
    places: HashMap<u64, usize>,
    /// Shapes that were touched by parts.
    earlier: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Scratch {
    old: Vec<Candidate>,
    new: Vec<Candidate>,
    /// What was written of this change: for which layout (its address), what, and where.
    written: Vec<Written>,
    /// Shapes that can't be told what happened.
    unfit: Vec<u64>,
}

/// For which layout (its address), what, and where in the text; nowhere, if nothing that is shown has changed.
type Written = (usize, Effect, Option<(u32, u32)>);

/// What happened to a row.
#[derive(Debug, Clone, Copy)]
enum RowChange<'a> {
    Insert(Tuple<'a>),
    Update(Tuple<'a>, Tuple<'a>),
    Delete(Tuple<'a>),
    /// It isn't told in full: nobody knows which shapes the old row was in.
    Untold,
}

/// What that is for a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Insert,
    Update,
    Delete,
    /// The same row, in the shape before and after, under another key.
    Rekey,
}

type Values<'a> = Vec<Option<&'a [u8]>>;

impl Follower {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let (relations, transaction, scratch) = (HashMap::new(), None, Scratch::default());
        Follower { inner, relations, versions: 0, transaction, scratch }
    }

    /// Another stream begins: what wasn't committed comes again.
    pub fn restart(&mut self) {
        self.relations.clear();
        self.transaction = None;
        let mut followed = self.inner.followed();
        followed.in_transaction = false;
        followed.settle(&self.inner);
    }

    /// Takes a message. What it means for shapes is on its way to the store when this returns; whoever calls waits for
    /// [`room`](crate::Shapes::room) there now and then.
    ///
    /// # Errors
    /// When the stream makes no sense: it has to begin again.
    pub fn take(&mut self, message: &Message<'_>) -> Result<(), FollowError> {
        match message {
            Message::Begin(begin) => {
                self.inner.followed().in_transaction = true;
                self.transaction = Some(Transaction::new(begin.final_lsn.0, begin.xid));
                Ok(())
            }
            Message::Commit(commit) => self.commit(commit.end.0),
            Message::Relation(relation) => {
                self.describe(relation);
                Ok(())
            }
            Message::Insert(insert) => self.change(insert.relation, RowChange::Insert(insert.new)),
            Message::Update(update) => {
                let change = match update.old {
                    Some(OldTuple::Full(old)) => RowChange::Update(old, update.new),
                    Some(OldTuple::Key(_)) | None => RowChange::Untold,
                };
                self.change(update.relation, change)
            }
            Message::Delete(delete) => {
                let change = match delete.old {
                    OldTuple::Full(old) => RowChange::Delete(old),
                    OldTuple::Key(_) => RowChange::Untold,
                };
                self.change(delete.relation, change)
            }
            Message::Truncate(truncate) => {
                let mut followed = self.inner.followed();
                truncate.relations.iter().for_each(|oid| followed.delete_table(oid, &self.inner));
                Ok(())
            }
            Message::Origin(_) | Message::Type(_) | Message::Logical(_) => Ok(()),
            _ => Err(FollowError::Unexpected),
        }
    }

    fn describe(&mut self, relation: &Relation<'_>) {
        self.versions += 1;
        let columns = relation
            .columns
            .iter()
            .map(|column| (column.name.to_owned(), (column.type_oid, column.type_modifier)));
        let described = Described {
            version: self.versions,
            schema: relation.namespace.to_owned(),
            name: relation.name.to_owned(),
            columns: columns.collect(),
        };
        let mut followed = self.inner.followed();
        let unfit = followed
            .groups
            .get(&relation.oid)
            .into_iter()
            .flatten()
            .flat_map(|group| group.unfit(&described));
        for shape in unfit.collect::<Vec<_>>() {
            followed.delete(shape, &self.inner);
        }
        self.relations.insert(relation.oid, described);
    }

    fn change(&mut self, oid: u32, change: RowChange<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        let described = self.relations.get(&oid).ok_or(FollowError::NoRelation { oid })?;
        let mut followed = self.inner.followed();
        for group in followed.groups.get_mut(&oid).into_iter().flatten() {
            group.change(described, change, transaction, &mut self.scratch);
        }
        transaction.op += 2;
        for shape in self.scratch.unfit.drain(..) {
            followed.delete(shape, &self.inner);
        }
        if transaction.text.len() >= PART_BYTES {
            let changes = transaction.part(&mut followed);
            self.inner.enqueue(Record::Part(changes));
        }
        Ok(())
    }

    fn commit(&mut self, end: u64) -> Result<(), FollowError> {
        let mut transaction = self.transaction.take().ok_or(FollowError::NoTransaction)?;
        let mut followed = self.inner.followed();
        let changes = transaction.part(&mut followed);
        let mut earlier = transaction.earlier;
        for touch in &changes.touches {
            earlier.remove(&touch.shape);
        }
        let earlier = earlier.into_iter().collect();
        self.inner.enqueue(Record::Commit(changes, Commit { end, earlier }));
        followed.in_transaction = false;
        followed.pass(transaction.xid);
        followed.settle(&self.inner);
        followed.fail_overfull(self.inner.config.held_bytes, &self.inner);
        Ok(())
    }
}

impl Transaction {
    fn new(lsn: u64, xid: u32) -> Self {
        let (text, touches, places, earlier) = (Vec::new(), Vec::new(), HashMap::new(), HashSet::new());
        Transaction { lsn, xid, op: 0, text, touches, places, earlier }
    }

    fn touch(&mut self, shape: u64, (from, to): (u32, u32), last_op: u64) {
        let next = self.touches.len();
        let at = *self.places.entry(shape).or_insert(next);
        if at == next {
            self.touches.push(Touch { shape, last_op, ranges: Vec::with_capacity(1) });
        }
        let touch = &mut self.touches[at];
        touch.last_op = last_op;
        match touch.ranges.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            Some(_) | None => touch.ranges.push((from, to)),
        }
    }

    /// What came since the last part, without what is held for shapes that don't know yet whether they have seen it.
    fn part(&mut self, followed: &mut Followed) -> Changes {
        self.places.clear();
        let text = Bytes::from(std::mem::take(&mut self.text));
        let mut touches = std::mem::take(&mut self.touches);
        touches.retain(|touch| match followed.member(touch.shape).map(|member| &mut member.visibility) {
            None => false,
            Some(Visibility::Known(_)) => true,
            Some(Visibility::Unknown(held)) => {
                if held.last().is_none_or(|held| held.lsn != self.lsn) {
                    held.push(Held { xid: self.xid, lsn: self.lsn, last_op: 0, text: Vec::new() });
                }
                let last = held.last_mut().expect("it was pushed");
                last.last_op = touch.last_op;
                let ranges = touch.ranges.iter().map(|(from, to)| &text[*from as usize..*to as usize]);
                ranges.for_each(|range| last.text.extend_from_slice(range));
                false
            }
        });
        self.earlier.extend(touches.iter().map(|touch| touch.shape));
        Changes { lsn: self.lsn, touches, text }
    }
}

impl Followed {
    /// A shape is about to take its snapshot: from now on, what concerns it is held for it.
    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        self.unknown.insert(shape.id);
        self.insert(shape, Visibility::Unknown(Vec::new()));
    }

    /// A shape that has its snapshot.
    pub(crate) fn add_complete(&mut self, shape: Arc<Shape>, seen: Seen) {
        self.insert(shape, Visibility::Known(seen));
    }

    fn insert(&mut self, shape: Arc<Shape>, visibility: Visibility) {
        let table = &shape.definition().table;
        self.oids.insert(shape.id, table.oid);
        let groups = self.groups.entry(table.oid).or_default();
        let at = groups.iter().position(|group| *group.table == **table).unwrap_or_else(|| {
            groups.push(Group::new(Arc::clone(table)));
            groups.len() - 1
        });
        groups[at].index.add(shape.id, shape.filter.as_ref(), &table.types);
        let since = self.passed.0 + self.passed.1.len() as u64;
        groups[at].members.insert(shape.id, Member { shape, since, visibility });
    }

    /// Whether a snapshot was taken too early: it doesn't see a transaction that the stream brought before the shape was followed. Postgres
    /// writes a commit to its log, and shows it only then, or when its standbys have it.
    pub(crate) fn is_early(&mut self, shape: u64, snapshot: &Snapshot) -> bool {
        let Some(since) = self.member(shape).map(|member| member.since) else { return false };
        let is_alone = self.unknown.len() <= 1;
        let (before, passed) = &mut self.passed;
        // What this snapshot sees all later ones see, too. Those that others are about to check may be earlier ones.
        while is_alone && passed.front().is_some_and(|xid| snapshot.sees(*xid)) {
            passed.pop_front();
            *before += 1;
        }
        let count = usize::try_from(since.saturating_sub(*before)).unwrap_or(usize::MAX);
        passed.iter().take(count).any(|xid| !snapshot.sees(*xid))
    }

    fn pass(&mut self, xid: u32) {
        let (before, passed) = &mut self.passed;
        if passed.len() == PASSED {
            passed.pop_front();
            *before += 1;
        }
        passed.push_back(xid);
    }

    /// It is known what a shape's snapshot sees. If a transaction is just being taken in, it is settled after it.
    pub(crate) fn begun(&mut self, shape: u64, seen: Seen, inner: &Inner) {
        self.unsettled.push((shape, seen));
        if !self.in_transaction {
            self.settle(inner);
        }
    }

    /// Decides on what was held.
    fn settle(&mut self, inner: &Inner) {
        for (shape, seen) in std::mem::take(&mut self.unsettled) {
            self.unknown.remove(&shape);
            let Some(member) = self.member(shape) else { continue };
            let known = Visibility::Known(seen.clone());
            let held = std::mem::replace(&mut member.visibility, known);
            let settled = Arc::clone(&member.shape);
            if let Visibility::Unknown(held) = held {
                for held in held.into_iter().filter(|held| !seen.has(held.lsn, held.xid)) {
                    let ranges = vec![(0, u32::try_from(held.text.len()).expect("what is held is bounded"))];
                    let touches = vec![Touch { shape, last_op: held.last_op, ranges }];
                    let changes = Changes { lsn: held.lsn, touches, text: held.text.into() };
                    inner.enqueue(Record::Commit(changes, Commit::default()));
                }
            }
            settled.settled();
        }
    }

    /// What is held is bounded: a shape whose snapshot doesn't begin is given up.
    fn fail_overfull(&mut self, limit: usize, inner: &Inner) {
        let bytes = |held: &Vec<Held>| held.iter().map(|held| held.text.len()).sum::<usize>();
        for shape in self.unknown.clone() {
            let held = self.member(shape).map(|member| &member.visibility);
            if matches!(held, Some(Visibility::Unknown(held)) if bytes(held) > limit) {
                self.delete(shape, inner);
            }
        }
    }

    /// The shape goes, for everybody, and for good.
    pub(crate) fn delete(&mut self, shape: u64, inner: &Inner) {
        self.remove(shape);
        // Queued under the lock: what comes after it in the store's log doesn't concern the shape.
        inner.enqueue(Record::Note(Note::Delete { id: shape }, Bytes::new()));
        inner.forget(shape);
    }

    pub(crate) fn delete_table(&mut self, oid: u32, inner: &Inner) {
        let shapes: Vec<_> = self.shapes_of(oid).collect();
        shapes.into_iter().for_each(|shape| self.delete(shape, inner));
    }

    pub(crate) fn refit(&mut self, table: &Table, inner: &Inner) {
        let columns = table.types.columns.iter().zip(&table.stream_types);
        let described = Described {
            version: 0,
            schema: table.schema.clone(),
            name: table.name.clone(),
            columns: columns.map(|(column, kind)| (column.name.clone(), *kind)).collect(),
        };
        let groups = self.groups.get(&table.oid).into_iter().flatten();
        let unfit: Vec<_> = groups.flat_map(|group| group.unfit(&described)).collect();
        unfit.into_iter().for_each(|shape| self.delete(shape, inner));
    }

    pub(crate) fn shapes_of(&self, oid: u32) -> impl Iterator<Item = u64> {
        self.groups.get(&oid).into_iter().flatten().flat_map(|group| group.members.keys().copied())
    }

    pub(crate) fn remove(&mut self, shape: u64) {
        self.unknown.remove(&shape);
        let Some(oid) = self.oids.remove(&shape) else { return };
        let Some(groups) = self.groups.get_mut(&oid) else { return };
        for group in groups.iter_mut().filter(|group| group.members.contains_key(&shape)) {
            group.index.remove(shape);
            group.members.remove(&shape);
        }
        groups.retain(|group| !group.members.is_empty());
        if groups.is_empty() {
            self.groups.remove(&oid);
        }
    }

    fn member(&mut self, shape: u64) -> Option<&mut Member> {
        let groups = self.groups.get_mut(self.oids.get(&shape)?)?;
        groups.iter_mut().find_map(|group| group.members.get_mut(&shape))
    }
}

impl Group {
    fn new(table: Arc<Table>) -> Self {
        Group { table, index: Index::new(), members: HashMap::new(), columns: (0, Vec::new()) }
    }

    /// The shapes that can't go on with the table as it is now: another name, another type, a column gone, or one more where all
    /// are shown.
    fn unfit(&self, described: &Described) -> Vec<u64> {
        let is_same_table =
            (&*described.schema, &*described.name) == (&*self.table.schema, &*self.table.name);
        let is_same = |index: usize| {
            let column = &self.table.types.columns[index];
            let stream = self.table.stream_types.get(index);
            described.columns.iter().any(|(name, kind)| *name == column.name && Some(kind) == stream)
        };
        let all_same = (0..self.table.types.columns.len()).all(is_same);
        if is_same_table && all_same && described.columns.len() == self.table.types.columns.len() {
            return Vec::new();
        }
        let goes_on = |member: &Member| {
            let definition = member.shape.definition();
            let filtered = member.shape.filter.as_ref().map_or(&[][..], |filter| filter.columns());
            let needed = definition.selected().into_iter().chain(filtered.iter().copied());
            let mut needed = needed.chain(self.table.key.iter().copied());
            // Without a key, all columns are the key.
            definition.choice.columns.is_some() && !self.table.key.is_empty() && needed.all(is_same)
        };
        let members = self.members.iter();
        members.filter(|(_, member)| !is_same_table || !goes_on(member)).map(|(id, _)| *id).collect()
    }

    fn change(
        &mut self,
        described: &Described,
        change: RowChange<'_>,
        transaction: &mut Transaction,
        scratch: &mut Scratch,
    ) {
        if self.columns.0 != described.version {
            let place = |name: &str| described.columns.iter().position(|(other, _)| other == name);
            let columns = self.table.types.columns.iter().map(|column| place(&column.name)).collect();
            self.columns = (described.version, columns);
            // Those that were made of the table as it was, after it was described as it is.
            scratch.unfit.extend(self.unfit(described));
        }
        let (old, new) = match change {
            RowChange::Insert(new) => (None, self.values(new, None)),
            RowChange::Update(old, new) => (self.values(old, None), self.values(new, Some(old))),
            RowChange::Delete(old) => (self.values(old, None), None),
            RowChange::Untold => (None, None),
        };
        let told = match change {
            RowChange::Insert(_) => new.is_some(),
            RowChange::Update(..) => old.is_some() && new.is_some(),
            RowChange::Delete(_) => old.is_some(),
            RowChange::Untold => false,
        };
        if !told {
            return scratch.unfit.extend(self.members.keys());
        }
        for (row, found) in [(&old, &mut scratch.old), (&new, &mut scratch.new)] {
            found.clear();
            if let Some(row) = row {
                self.index.candidates(row, found);
                found.sort_unstable_by_key(|candidate| candidate.shape);
            }
        }
        scratch.written.clear();
        let (mut was, mut is) = (scratch.old.iter().peekable(), scratch.new.iter().peekable());
        while let Some(shape) =
            [was.peek(), is.peek()].into_iter().flatten().map(|candidate| candidate.shape).min()
        {
            let was = was.next_if(|candidate| candidate.shape == shape);
            let is = is.next_if(|candidate| candidate.shape == shape);
            let Some(member) = self.members.get(&shape) else { continue };
            if matches!(&member.visibility, Visibility::Known(seen) if seen.has(transaction.lsn, transaction.xid))
            {
                continue;
            }
            let rows = (old.as_ref(), new.as_ref());
            match effect(&member.shape, (was, is), rows) {
                Ok(None) => {}
                Ok(Some(effect)) => write(&member.shape, effect, rows, transaction, &mut scratch.written),
                Err(_) => scratch.unfit.push(shape),
            }
        }
    }

    /// A row in the order of the table's columns; `None`: some value isn't told.
    fn values<'a>(&self, tuple: Tuple<'a>, before: Option<Tuple<'a>>) -> Option<Values<'a>> {
        let told: Vec<_> = tuple.iter().collect();
        let before = |place: usize| match before?.get(place)? {
            Value::Unchanged => None,
            known => Some(known),
        };
        let value = |place: &Option<usize>| match *place {
            None => Some(None),
            Some(place) => match *told.get(place)? {
                Value::Unchanged => before(place).map(Value::bytes),
                known => Some(known.bytes()),
            },
        };
        self.columns.1.iter().map(value).collect()
    }
}

/// What a change is for a shape, of which one of the rows or both may be.
fn effect(
    shape: &Shape,
    (was, is): (Option<&Candidate>, Option<&Candidate>),
    (old, new): (Option<&Values<'_>>, Option<&Values<'_>>),
) -> Result<Option<Effect>, EvalError> {
    let within =
        |candidate: Option<&Candidate>, row: Option<&Values<'_>>| match (candidate, row, &shape.filter) {
            (Some(candidate), Some(row), Some(filter)) => {
                Ok(candidate.certain || filter.matches(row)? == Some(true))
            }
            (Some(_), Some(_), None) => Ok(true),
            (None, _, _) | (_, None, _) => Ok(false),
        };
    Ok(match (within(was, old)?, within(is, new)?) {
        (false, false) => None,
        (false, true) => Some(Effect::Insert),
        (true, false) => Some(Effect::Delete),
        (true, true) => match (old, new) {
            (Some(old), Some(new)) if !shape.layout.has_same_key(old, new) => Some(Effect::Rekey),
            _ => Some(Effect::Update),
        },
    })
}

/// Writes the message, unless another shape with the same layout has had it written, and gives it to the shape.
fn write(
    shape: &Shape,
    effect: Effect,
    (old, new): (Option<&Values<'_>>, Option<&Values<'_>>),
    transaction: &mut Transaction,
    written: &mut Vec<Written>,
) {
    let address = Arc::as_ptr(&shape.layout).addr();
    let last_op = transaction.op + u64::from(effect == Effect::Rekey);
    let before = written.iter().find(|(layout, what, _)| *layout == address && *what == effect);
    let range = match before {
        Some((.., range)) => *range,
        None => {
            let range = encode(&shape.layout, effect, (old, new), transaction);
            written.push((address, effect, range));
            range
        }
    };
    if let Some(range) = range {
        transaction.touch(shape.id, range, last_op);
    }
}

fn encode(
    layout: &Layout,
    effect: Effect,
    rows: (Option<&Values<'_>>, Option<&Values<'_>>),
    transaction: &mut Transaction,
) -> Option<(u32, u32)> {
    let place = |op: u64| Place { lsn: transaction.lsn, op, xid: transaction.xid };
    let (here, next) = (place(transaction.op), place(transaction.op + 1));
    let text = &mut transaction.text;
    let from = text.len();
    let wrote = match (effect, rows) {
        (Effect::Insert, (_, Some(row))) => layout.change(text, Change::Insert { row, from: None }, here),
        (Effect::Update, (Some(old), Some(new))) => layout.change(text, Change::Update { old, new }, here),
        (Effect::Delete, (Some(row), _)) => layout.change(text, Change::Delete { row, to: None }, here),
        (Effect::Rekey, (Some(old), Some(new))) => {
            layout.change(text, Change::Delete { row: old, to: Some(new) }, here)
                && layout.change(text, Change::Insert { row: new, from: Some(old) }, next)
        }
        _ => false,
    };
    let position = |at: usize| {
        u32::try_from(at).expect("a message has less than 4 GiB: Postgres' rows have less than 1")
    };
    wrote.then(|| (position(from), position(text.len())))
}

impl Seen {
    pub(crate) fn new(snapshot: &Snapshot, lsn: u64) -> Self {
        Seen { xmin: snapshot.xmin, xmax: snapshot.xmax, xip: snapshot.xip.clone(), lsn }
    }

    /// Whether a transaction is in the snapshot.
    fn has(&self, lsn: u64, xid: u32) -> bool {
        let Seen { xmin, xmax, xip, lsn: taken } = self;
        lsn <= *taken && Snapshot { xmin: *xmin, xmax: *xmax, xip: xip.clone() }.sees(xid)
    }
}
