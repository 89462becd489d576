//! What really happened: every state that the table ever had, as Postgres itself tells it.
//!
//! A trigger notes each change of a row in a table of its own; notes are rolled back with what they are about. A second slot tells in
//! which order transactions were committed, and where. Clauses are judged by Postgres, over the notes.
//! Not here: anything that the server under test says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
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
}

struct Commit {
    lsn: u64,
    xid: u64,
    notes: Vec<Note>,
}

struct Note {
    seq: u64,
    old_id: Option<i32>,
    /// `None`: deleted.
    new: Option<Noted>,
}

struct Noted {
    id: i32,
    /// The hashes of all columns.
    values: [u64; COLUMNS.len()],
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

/// The states that a shape ought to have.
pub(crate) struct States<'a> {
    history: &'a History,
    /// The notes whose new row is in the shape.
    fits: HashSet<u64>,
    selected: Vec<usize>,
    sight: &'a Sight,
    /// The last commit that the snapshot saw.
    sighted: Option<u64>,
    /// After the commit at this position, and all before it.
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
            let new = row[3].as_deref().map(|id| Noted {
                id: number(id),
                values: std::array::from_fn(|column| hash(&row[3 + column])),
            });
            let note = Note { seq: number(seq), old_id: old_id.as_deref().map(number), new };
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
        History { commits }
    }

    pub(crate) fn transactions(&self) -> usize {
        self.commits.len()
    }

    pub(crate) fn end(&self) -> u64 {
        self.commits.last().map_or(0, |commit| commit.lsn)
    }

    /// Of a shape whose snapshot saw this.
    pub(crate) fn states<'a>(&'a self, place: &Place, wanted: &Wanted, sight: &'a Sight) -> States<'a> {
        let literal = &wanted.literal;
        let fits = rows(place, &format!("SELECT seq FROM history WHERE id IS NOT NULL AND ({literal})"));
        let fits = fits.iter().filter_map(|row| row[0].as_deref()).map(number).collect();
        let all = COLUMNS.iter().enumerate();
        let selected =
            all.filter(|(_, name)| wanted.columns.contains(name)).map(|(index, _)| index).collect();
        let sighted = self.commits.iter().rev().find(|commit| sight.has(commit.xid)).map(|commit| commit.lsn);
        let mut states = States { history: self, fits, selected, sight, sighted, after: Vec::new() };
        let mut after = Vec::with_capacity(self.commits.len());
        states.replay(|_| true, |lsn, digest| after.push((lsn, digest)));
        states.after = after;
        states
    }
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
        let count = self.after.partition_point(|(lsn, _)| *lsn < seen);
        count.checked_sub(1).map_or_else(Digest::default, |index| self.after[index].1)
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

    /// The shape after each of some transactions.
    fn replay(&self, is_in: impl Fn(&Commit) -> bool, mut after: impl FnMut(u64, Digest)) {
        let (mut now, mut digest) = (HashMap::<i32, u64>::new(), Digest::default());
        for commit in self.history.commits.iter().filter(|commit| is_in(commit)) {
            for Note { seq, old_id, new } in &commit.notes {
                if let Some(row) = old_id.and_then(|id| now.remove(&id)) {
                    digest.remove_hash(row);
                }
                let Some(new) = new.as_ref().filter(|_| self.fits.contains(seq)) else { continue };
                let row = hash_of_row(self.selected.iter().map(|column| new.values[*column]));
                digest.add_hash(row);
                assert!(now.insert(new.id, row).is_none(), "the history has a key twice");
            }
            after(commit.lsn, digest);
        }
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
