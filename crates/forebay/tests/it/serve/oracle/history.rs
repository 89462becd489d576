//! What really happened: every state that the table ever had, as Postgres itself tells it.
//!
//! A trigger notes each row that goes and each that comes in a table of its own; notes are rolled
//! back with what they are about.
//! A second slot tells in which order transactions were committed, and where. Clauses are judged by
//! Postgres, over the notes.
//! A row is known by all its values, so that keys may pass from row to row, or be missing; equal
//! rows count once.
//! Not here: anything that the server under test says.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use super::super::support::Place;
use super::clauses::Wanted;
use super::tables::{self, FAMILIES};
use super::view::key_of;

/// The values of the selected columns, in order.
pub(crate) type Row = Vec<Option<String>>;

/// The rows of a shape, in short: how many, and the sum of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) rows: u64,
    sum: u64,
}

impl Digest {
    pub(crate) fn add(&mut self, row: &Row) {
        self.add_hash(hash_of_row(row.iter().map(hash)));
    }

    pub(crate) fn remove(&mut self, row: &Row) {
        self.remove_hash(hash_of_row(row.iter().map(hash)));
    }

    fn add_hash(&mut self, row: u64) {
        (self.rows, self.sum) = (self.rows + 1, self.sum.wrapping_add(row));
    }

    fn remove_hash(&mut self, row: u64) {
        (self.rows, self.sum) = (self.rows - 1, self.sum.wrapping_sub(row));
    }
}

/// From the hashes of its values: a history hashes each value once, whichever columns are selected later.
fn hash_of_row(values: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.for_each(|value| hasher.write_u64(value));
    hasher.finish()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// All that happened to the tables, by family.
pub(crate) struct Histories {
    families: HashMap<&'static str, History>,
    /// The position of each commit, by transaction.
    pub(crate) positions: HashMap<u64, u64>,
}

/// All that happened to the tables of one family.
pub(crate) struct History {
    family: &'static str,
    /// In the order of the commits.
    commits: Vec<Commit>,
    /// The rows before every so many commits: a short time needn't be replayed from the beginning.
    tables: Vec<Rows>,
}

const EVERY: usize = 256;

/// Rows by all their values, and how often each is there.
type Rows = HashMap<u64, (Noted, u32)>;

struct Commit {
    lsn: u64,
    xid: u64,
    notes: Vec<Note>,
}

struct Note {
    is_new: bool,
    row: Noted,
}

#[derive(Clone)]
struct Noted {
    seq: u64,
    leaf: Arc<str>,
    /// Of its table and all its values.
    id: u64,
    /// The hashes of all columns.
    values: Arc<[u64]>,
}

impl Note {
    /// Returns whether the row is there now and wasn't before, or the other way round.
    fn apply(&self, rows: &mut Rows) -> bool {
        match (rows.entry(self.row.id), self.is_new) {
            (Entry::Vacant(entry), true) => {
                entry.insert((self.row.clone(), 1));
                true
            }
            (Entry::Occupied(mut entry), true) => {
                entry.get_mut().1 += 1;
                false
            }
            (Entry::Occupied(mut entry), false) => {
                entry.get_mut().1 -= 1;
                let is_last = entry.get().1 == 0;
                if is_last {
                    entry.remove();
                }
                is_last
            }
            (Entry::Vacant(_), false) => panic!("a row goes that wasn't there"),
        }
    }
}

fn apply(commits: &[Commit], rows: &mut Rows) {
    for note in commits.iter().flat_map(|commit| &commit.notes) {
        note.apply(rows);
    }
}

/// Which transactions a snapshot has seen, as its end tells.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    pub(crate) xmax: u64,
    pub(crate) running: Vec<u64>,
    /// A crash that came after the snapshot.
    pub(crate) crash: Option<Crash>,
}

impl Sight {
    /// Whether the snapshot saw a transaction whose commit is at `lsn`.
    pub(crate) fn has(&self, xid: u64, lsn: u64) -> bool {
        let is_reused = self.crash.is_some_and(|crash| lsn > crash.lsn && xid >= crash.next_xid);
        xid < self.xmax && !self.running.contains(&xid) && !is_reused
    }

    /// What it may mean, if Postgres crashed: as it is, or as of before one of the crashes.
    pub(crate) fn readings(&self, crashes: &[Crash]) -> Vec<Sight> {
        let before = crashes.iter().filter(|crash| crash.next_xid < self.xmax);
        let before = before.map(|crash| Sight { crash: Some(*crash), ..self.clone() });
        [self.clone()].into_iter().chain(before).collect()
    }
}

/// A crash of Postgres. Transactions that left nothing in the log, as those that were rolled back just before, are
/// forgotten, and their numbers are given again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crash {
    /// Where the log went on.
    pub(crate) lsn: u64,
    /// The first number that was given again.
    pub(crate) next_xid: u64,
}

impl Crash {
    /// The last one, from the checkpoint that ended the recovery.
    pub(crate) fn last(place: &Place) -> Crash {
        let sql = "SELECT checkpoint_lsn - '0/0', split_part(next_xid, ':', 2) FROM pg_control_checkpoint()";
        let row = &rows(place, sql)[0];
        let column = |index: usize| number(row[index].as_deref().unwrap());
        Crash { lsn: column(0), next_xid: column(1) }
    }
}

/// The states that a shape ought to have over some time.
pub(crate) struct States<'a> {
    /// At first, and what happened then.
    table: Rows,
    commits: &'a [Commit],
    /// The notes whose row is in the shape.
    fits: HashSet<u64>,
    leaves: &'static [&'static str],
    selected: Vec<usize>,
    sight: &'a Sight,
    /// The last commit that the snapshot saw.
    sighted: Option<u64>,
    /// At first, which counts as position 0, then after the commit at each position.
    after: Vec<(u64, Digest)>,
}

/// From now on commits are told.
pub(crate) fn begin(place: &Place) {
    let slot = slot(place);
    place.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
}

impl Histories {
    pub(crate) fn read(place: &Place) -> Histories {
        let commits = commits(place);
        assert!(commits.is_sorted_by(|one, next| one.1 < next.1), "commits out of order");
        let family = |family| (family, History::read(place, family, &commits));
        let families = FAMILIES.into_iter().map(family).collect();
        Histories { families, positions: commits.into_iter().collect() }
    }

    pub(crate) fn of(&self, wanted: &Wanted) -> &History {
        &self.families[wanted.table.family]
    }

    pub(crate) fn transactions(&self) -> usize {
        self.positions.len()
    }
}

/// Transactions and their positions, in the order of the commits.
pub(crate) fn commits(place: &Place) -> Vec<(u64, u64)> {
    // A commit message of version 1: `C`, flags, the commit's position.
    let sql = format!(
        "SELECT xid, encode(substr(data, 3, 8), 'hex') FROM pg_logical_slot_peek_binary_changes('{}', NULL,
            NULL, 'proto_version', '1', 'publication_names', 'history') WHERE get_byte(data, 0) = 67",
        slot(place)
    );
    let commit = |row: &Row| {
        let (xid, lsn) = (row[0].as_deref().unwrap(), row[1].as_deref().unwrap());
        (number(xid), u64::from_str_radix(lsn, 16).unwrap())
    };
    rows(place, &sql).iter().map(commit).collect()
}

impl History {
    fn read(place: &Place, family: &'static str, commits: &[(u64, u64)]) -> History {
        let mut notes: HashMap<u64, Vec<Note>> = HashMap::new();
        let columns = tables::columns_of(family).join(", ");
        let sql = format!("SELECT seq, xid, leaf, is_new, {columns} FROM history_{family} ORDER BY seq");
        for row in rows(place, &sql) {
            let [Some(seq), Some(xid), Some(leaf), Some(is_new)] = &row[..4] else {
                panic!("a note without a number: {row:?}")
            };
            let values: Arc<[u64]> = row[4..].iter().map(hash).collect();
            let id = hash(&(leaf, &values));
            let noted = Noted { seq: number(seq), leaf: leaf.as_str().into(), id, values };
            notes.entry(number(xid)).or_default().push(Note { is_new: is_new == "t", row: noted });
        }
        let commit =
            |(xid, lsn): &(u64, u64)| notes.remove(xid).map(|notes| Commit { lsn: *lsn, xid: *xid, notes });
        let commits: Vec<_> = commits.iter().filter_map(commit).collect();
        assert!(notes.is_empty(), "{} transactions have notes, but no commit", notes.len());
        let (mut tables, mut table) = (vec![Rows::new()], Rows::new());
        for commits in commits.chunks(EVERY) {
            apply(commits, &mut table);
            tables.push(table.clone());
        }
        History { family, commits, tables }
    }

    /// Of a shape, from one position to another.
    pub(crate) fn states<'a>(
        &'a self,
        place: &Place,
        wanted: &Wanted,
        sight: &'a Sight,
        positions: RangeInclusive<u64>,
    ) -> States<'a> {
        let before = |position: u64| self.commits.partition_point(|commit| commit.lsn < position);
        let sighted = self.commits.iter().rposition(|commit| sight.has(commit.xid, commit.lsn));
        let from = before(*positions.start());
        let to = before(*positions.end()).max(sighted.map_or(0, |last| last + 1)).max(from);
        let commits = &self.commits[from..to];
        let table = self.table_before(from);
        let notes = commits.iter().flat_map(|commit| &commit.notes).map(|note| &note.row);
        let fits = self.fitting(place, wanted, table.values().map(|(row, _)| row).chain(notes));
        let all = tables::columns_of(self.family).iter().enumerate();
        let selected =
            all.filter(|(_, name)| wanted.columns.contains(name)).map(|(index, _)| index).collect();
        let sighted = sighted.map(|last| self.commits[last].lsn);
        let leaves = wanted.table.leaves;
        let mut states = States { table, commits, fits, leaves, selected, sight, sighted, after: Vec::new() };
        let mut after = Vec::with_capacity(commits.len() + 1);
        states.replay(|_| true, |lsn, digest| after.push((lsn, digest)));
        states.after = after;
        states
    }

    fn table_before(&self, commit: usize) -> Rows {
        let near = commit / EVERY;
        let mut table = self.tables[near].clone();
        apply(&self.commits[near * EVERY..commit], &mut table);
        table
    }

    /// Those of some notes whose row is in the shape, as Postgres says.
    fn fitting<'a>(
        &self,
        place: &Place,
        wanted: &Wanted,
        notes: impl Iterator<Item = &'a Noted>,
    ) -> HashSet<u64> {
        let (literal, all) = (&wanted.literal, Vec::from_iter(notes.map(|note| note.seq.to_string())));
        let (family, all) = (self.family, all.join(","));
        let sql = format!("SELECT seq FROM history_{family} WHERE seq = ANY('{{{all}}}') AND ({literal})");
        rows(place, &sql).iter().filter_map(|row| row[0].as_deref()).map(number).collect()
    }
}

impl States<'_> {
    /// What a client must have that has seen everything before `seen`, and everything that its snapshot saw: that may be ahead of
    /// the stream, and what the stream brings of it later is left out.
    pub(crate) fn at(&self, seen: u64) -> Digest {
        if self.sighted.is_some_and(|sighted| sighted >= seen) {
            let mut last = Digest::default();
            let is_in = |commit: &Commit| commit.lsn < seen || self.sight.has(commit.xid, commit.lsn);
            self.replay(is_in, |_, digest| last = digest);
            return last;
        }
        self.after[self.after.partition_point(|(lsn, _)| *lsn < seen) - 1].1
    }

    /// The rows of a shape at the end, by key: for the report of a failure.
    pub(crate) fn last(&self, place: &Place, wanted: &Wanted) -> BTreeMap<String, Row> {
        let mut table = self.table.clone();
        apply(self.commits, &mut table);
        let seqs: Vec<_> = table.values().filter(|(row, _)| self.hash(row).is_some()).collect();
        let seqs: Vec<_> = seqs.into_iter().map(|(row, _)| row.seq.to_string()).collect();
        let from = format!("history_{} WHERE seq = ANY('{{{}}}')", wanted.table.family, seqs.join(","));
        by_key(place, wanted, &from)
    }

    /// Where the shape was so: for the report of a failure.
    pub(crate) fn find(&self, digest: Digest) -> Vec<u64> {
        self.after.iter().filter(|(_, state)| *state == digest).map(|(lsn, _)| *lsn).collect()
    }

    /// The commits around a position.
    pub(crate) fn around(&self, seen: u64) -> &[(u64, Digest)] {
        let count = self.after.partition_point(|(lsn, _)| *lsn < seen);
        &self.after[count.saturating_sub(2)..(count + 2).min(self.after.len())]
    }

    /// The shape at first, which counts as position 0, and after each of some transactions.
    fn replay(&self, is_in: impl Fn(&Commit) -> bool, mut after: impl FnMut(u64, Digest)) {
        let (mut table, mut digest) = (self.table.clone(), Digest::default());
        table.values().filter_map(|(row, _)| self.hash(row)).for_each(|row| digest.add_hash(row));
        after(0, digest);
        for commit in self.commits.iter().filter(|commit| is_in(commit)) {
            for note in commit.notes.iter() {
                match self.hash(&note.row).filter(|_| note.apply(&mut table)) {
                    Some(row) if note.is_new => digest.add_hash(row),
                    Some(row) => digest.remove_hash(row),
                    None => {}
                }
            }
            after(commit.lsn, digest);
        }
    }

    /// `None`: the row isn't in the shape.
    fn hash(&self, row: &Noted) -> Option<u64> {
        let is_in = self.leaves.contains(&&*row.leaf) && self.fits.contains(&row.seq);
        is_in.then(|| hash_of_row(self.selected.iter().map(|column| row.values[*column])))
    }
}

/// What a shape is now: its rows by key.
pub(crate) fn now(place: &Place, wanted: &Wanted) -> BTreeMap<String, Row> {
    by_key(place, wanted, &format!("{} WHERE {}", wanted.table.name, wanted.literal))
}

fn by_key(place: &Place, wanted: &Wanted, from: &str) -> BTreeMap<String, Row> {
    let table = wanted.table;
    let rows = rows(place, &format!("SELECT {} FROM {from}", wanted.columns.join(", ")));
    let at = |name: &str| wanted.columns.iter().position(|own| *own == name).expect("a key is selected");
    let key = |row: &Row| key_of(table.name, table.key, |name| row[at(name)].as_deref());
    rows.into_iter().map(|row| (key(&row), row)).collect()
}

/// The position of the last commit so far.
pub(crate) fn last_commit(place: &Place) -> u64 {
    commits(place).last().map_or(0, |(_, lsn)| *lsn)
}

pub(crate) fn rows(place: &Place, sql: &str) -> Vec<Row> {
    place.postgres.query(&place.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub(crate) fn number<N: FromStr<Err: Debug>>(text: &str) -> N {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn slot(place: &Place) -> String {
    format!("history_{}", place.database)
}
