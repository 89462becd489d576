//! What really happened: every state that the table ever had, as Postgres itself tells it.
//!
//! A trigger notes each change of a row in a table of its own; notes are rolled back with what they are about. A second slot tells in
//! which order transactions were committed, and where. Clauses are judged by Postgres, over the notes.
//! Not here: anything that the server under test says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::super::support::Place;
use super::clauses::Wanted;

pub(crate) const COLUMNS: [&str; 8] = ["id", "grp", "version", "amount", "label", "flag", "tags", "body"];

pub(crate) const SCHEMA: &str = "
    CREATE TABLE items (id int PRIMARY KEY, grp int NOT NULL, version bigint NOT NULL, amount int, label text,
        flag boolean, tags text[], body text);
    ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE history (seq bigserial PRIMARY KEY, xid bigint NOT NULL, old_id int,
        id int, grp int, version bigint, amount int, label text, flag boolean, tags text[], body text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO history (xid, old_id) VALUES (pg_current_xact_id()::text::bigint, OLD.id);
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO history (xid, old_id, id, grp, version, amount, label, flag, tags, body)
                SELECT pg_current_xact_id()::text::bigint, OLD.id, NEW.*;
        ELSE
            INSERT INTO history (xid, id, grp, version, amount, label, flag, tags, body)
                SELECT pg_current_xact_id()::text::bigint, NEW.*;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION note();
    CREATE PUBLICATION history FOR TABLE history";

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

/// All that happened.
pub(crate) struct History {
    /// In the order of the commits.
    commits: Vec<Commit>,
    /// The table before every so many commits: whoever looks at a short time needn't begin at the beginning.
    tables: Vec<Table>,
}

const EVERY: usize = 256;

/// Rows by id.
type Table = HashMap<i32, Noted>;

struct Commit {
    lsn: u64,
    xid: u64,
    notes: Vec<Note>,
}

struct Note {
    old_id: Option<i32>,
    /// `None`: deleted.
    new: Option<Noted>,
}

#[derive(Clone, Copy)]
struct Noted {
    seq: u64,
    id: i32,
    /// The hashes of all columns.
    values: [u64; COLUMNS.len()],
}

impl Note {
    /// Returns the row that goes.
    fn apply(&self, table: &mut Table) -> Option<Noted> {
        let gone = self.old_id.and_then(|id| table.remove(&id));
        if let Some(new) = self.new {
            assert!(table.insert(new.id, new).is_none(), "the history has a key twice");
        }
        gone
    }
}

fn apply(commits: &[Commit], table: &mut Table) {
    for note in commits.iter().flat_map(|commit| &commit.notes) {
        note.apply(table);
    }
}

/// Which transactions a snapshot has seen, as its end tells.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    pub(crate) xmax: u64,
    pub(crate) running: Vec<u64>,
}

impl Sight {
    fn has(&self, xid: u64) -> bool {
        xid < self.xmax && !self.running.contains(&xid)
    }
}

/// The states that a shape ought to have over some time.
pub(crate) struct States<'a> {
    /// At first, and what happened then.
    table: Table,
    commits: &'a [Commit],
    /// The notes whose new row is in the shape.
    fits: HashSet<u64>,
    selected: Vec<usize>,
    sight: &'a Sight,
    /// The last commit that the snapshot saw.
    sighted: Option<u64>,
    /// At first, which counts as position 0, then after the commit at each position.
    after: Vec<(u64, Digest)>,
}

impl History {
    /// From now on commits are told.
    pub(crate) fn begin(place: &Place) {
        let slot = slot(place);
        place.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    }

    pub(crate) fn read(place: &Place) -> History {
        let mut notes: HashMap<String, Vec<Note>> = HashMap::new();
        let columns = COLUMNS.join(", ");
        for row in rows(place, &format!("SELECT seq, xid, old_id, {columns} FROM history ORDER BY seq")) {
            let [Some(seq), Some(xid), old_id] = &row[..3] else {
                panic!("a note without a number: {row:?}")
            };
            let values = std::array::from_fn(|column| hash(&row[3 + column]));
            let new = row[3].as_deref().map(|id| Noted { seq: number(seq), id: number(id), values });
            let note = Note { old_id: old_id.as_deref().map(number), new };
            notes.entry(xid.clone()).or_default().push(note);
        }
        // A commit message of version 1: `C`, flags, the commit's position.
        let slot = slot(place);
        let commits = rows(
            place,
            &format!(
                "SELECT xid, encode(substr(data, 3, 8), 'hex') FROM pg_logical_slot_peek_binary_changes('{slot}', NULL,
                    NULL, 'proto_version', '1', 'publication_names', 'history') WHERE get_byte(data, 0) = 67"
            ),
        );
        let commit = |row: Row| {
            let (xid, lsn) = (row[0].clone().unwrap(), row[1].clone().unwrap());
            let notes = notes.remove(&xid).unwrap_or_default();
            Commit { lsn: u64::from_str_radix(&lsn, 16).unwrap(), xid: number(&xid), notes }
        };
        let commits: Vec<_> = commits.into_iter().map(commit).collect();
        assert!(notes.is_empty(), "{} transactions have notes, but no commit", notes.len());
        assert!(commits.is_sorted_by(|one, next| one.lsn < next.lsn), "commits out of order");
        let (mut tables, mut table) = (vec![Table::new()], Table::new());
        for commits in commits.chunks(EVERY) {
            apply(commits, &mut table);
            tables.push(table.clone());
        }
        History { commits, tables }
    }

    pub(crate) fn transactions(&self) -> usize {
        self.commits.len()
    }

    pub(crate) fn end(&self) -> u64 {
        self.commits.last().map_or(0, |commit| commit.lsn)
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
        let sighted = self.commits.iter().rposition(|commit| sight.has(commit.xid));
        let from = before(*positions.start());
        let to = before(*positions.end()).max(sighted.map_or(0, |last| last + 1)).max(from);
        let commits = &self.commits[from..to];
        let table = self.table_before(from);
        let news = commits.iter().flat_map(|commit| &commit.notes).filter_map(|note| note.new.as_ref());
        let fits = fitting(place, wanted, table.values().chain(news));
        let all = COLUMNS.iter().enumerate();
        let selected =
            all.filter(|(_, name)| wanted.columns.contains(name)).map(|(index, _)| index).collect();
        let sighted = sighted.map(|last| self.commits[last].lsn);
        let mut states = States { table, commits, fits, selected, sight, sighted, after: Vec::new() };
        let mut after = Vec::with_capacity(commits.len() + 1);
        states.replay(|_| true, |lsn, digest| after.push((lsn, digest)));
        states.after = after;
        states
    }

    fn table_before(&self, commit: usize) -> Table {
        let near = commit / EVERY;
        let mut table = self.tables[near].clone();
        apply(&self.commits[near * EVERY..commit], &mut table);
        table
    }
}

/// Those of some notes whose row is in the shape, as Postgres says.
fn fitting<'a>(place: &Place, wanted: &Wanted, notes: impl Iterator<Item = &'a Noted>) -> HashSet<u64> {
    let (literal, all) = (&wanted.literal, Vec::from_iter(notes.map(|note| note.seq.to_string())));
    let sql = format!("SELECT seq FROM history WHERE seq = ANY('{{{}}}') AND ({literal})", all.join(","));
    rows(place, &sql).iter().filter_map(|row| row[0].as_deref()).map(number).collect()
}

impl States<'_> {
    /// What a client must have that has seen everything before `seen`, and everything that its snapshot saw: that may be ahead of
    /// the stream, and what the stream brings of it later is left out.
    pub(crate) fn at(&self, seen: u64) -> Digest {
        if self.sighted.is_some_and(|sighted| sighted >= seen) {
            let mut last = Digest::default();
            self.replay(|commit| commit.lsn < seen || self.sight.has(commit.xid), |_, digest| last = digest);
            return last;
        }
        self.after[self.after.partition_point(|(lsn, _)| *lsn < seen) - 1].1
    }

    /// Where the shape was so: for whoever looks for what went wrong.
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
        table.values().filter_map(|row| self.hash(row)).for_each(|row| digest.add_hash(row));
        after(0, digest);
        for commit in self.commits.iter().filter(|commit| is_in(commit)) {
            for note in &commit.notes {
                if let Some(row) = note.apply(&mut table).and_then(|gone| self.hash(&gone)) {
                    digest.remove_hash(row);
                }
                if let Some(row) = note.new.as_ref().and_then(|new| self.hash(new)) {
                    digest.add_hash(row);
                }
            }
            after(commit.lsn, digest);
        }
    }

    /// `None`: the row isn't in the shape.
    fn hash(&self, row: &Noted) -> Option<u64> {
        let is_in = self.fits.contains(&row.seq);
        is_in.then(|| hash_of_row(self.selected.iter().map(|column| row.values[*column])))
    }
}

/// What a shape is now: its rows by key.
pub(crate) fn now(place: &Place, wanted: &Wanted) -> BTreeMap<String, Row> {
    let (columns, literal) = (wanted.columns.join(", "), &wanted.literal);
    let rows = rows(place, &format!("SELECT {columns} FROM items WHERE {literal}"));
    rows.into_iter().map(|row| (row[0].clone().unwrap(), row)).collect()
}

/// The position of the last commit so far.
pub(crate) fn last_commit(place: &Place) -> u64 {
    History::read(place).end()
}

fn rows(place: &Place, sql: &str) -> Vec<Row> {
    place.postgres.query(&place.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn number<N: FromStr<Err: Debug>>(text: &str) -> N {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn slot(place: &Place) -> String {
    format!("history_{}", place.database)
}
