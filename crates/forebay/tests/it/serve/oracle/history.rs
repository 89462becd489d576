//! History of the tables with a fixed definition: what a shape contained after each commit.
//!
//! A trigger records each removed and each added row in a history table, in the same transaction.
//! The oracle's own replication slot lists the commits in order, with their positions (LSN).
//! Postgres evaluates the where clauses of shapes on the recorded rows.
//!
//! A row is identified by all its values: in some tables keys move between rows, and one table has
//! no key. Equal rows count once in a shape.
//!
//! Invariant: nothing here is read from the server under test.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use super::super::support::ServeFixture;
use super::client_view::key_of;
use super::oracle_request::OracleRequest;
use super::tables::{self, FAMILIES};

/// The values of the selected columns, in order. `None`: NULL.
pub(crate) type OracleRow = Vec<Option<String>>;

/// Digest of a set of rows: their number and the sum of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RowsDigest {
    pub(crate) rows: u64,
    sum: u64,
}

impl RowsDigest {
    pub(crate) fn add(&mut self, row: &OracleRow) {
        self.add_hash(hash_of_row(row.iter().map(hash)));
    }

    pub(crate) fn remove(&mut self, row: &OracleRow) {
        self.remove_hash(hash_of_row(row.iter().map(hash)));
    }

    fn add_hash(&mut self, row: u64) {
        (self.rows, self.sum) = (self.rows + 1, self.sum.wrapping_add(row));
    }

    fn remove_hash(&mut self, row: u64) {
        (self.rows, self.sum) = (self.rows - 1, self.sum.wrapping_sub(row));
    }
}

/// Hashes a row from the hashes of its values. So each value of the history is hashed only once for
/// all shapes, although they select different columns.
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

/// History of all table families.
pub(crate) struct TableHistories {
    families: HashMap<&'static str, FamilyHistory>,
    /// Position (LSN) of each commit, by transaction id.
    pub(crate) positions: HashMap<u64, u64>,
}

/// History of the tables of one family: a table and its partitions.
pub(crate) struct FamilyHistory {
    family: &'static str,
    /// In commit order.
    commits: Vec<RecordedCommit>,
    /// Entry `n` holds the rows before commit `n * COMMITS_PER_BASE`, so that a replay is short.
    bases: Vec<RowMultiset>,
}

/// Number of commits between two stored copies of the rows.
const COMMITS_PER_BASE: usize = 256;

/// Rows by their `id`, each with the number of equal rows.
type RowMultiset = HashMap<u64, (RecordedRow, u32)>;

/// A commit with the rows that it changed.
struct RecordedCommit {
    lsn: u64,
    xid: u64,
    changes: Vec<RecordedChange>,
}

/// A row that was added or removed.
struct RecordedChange {
    is_new: bool,
    row: RecordedRow,
}

#[derive(Clone)]
struct RecordedRow {
    /// Number of the record in the history table.
    seq: u64,
    /// The table or partition that has the row.
    leaf: Arc<str>,
    /// Hash of `leaf` and all values.
    id: u64,
    /// The hash of each column, in order.
    values: Arc<[u64]>,
}

impl RecordedChange {
    /// Applies the change. Returns whether the row appeared, or its last copy disappeared.
    fn apply(&self, rows: &mut RowMultiset) -> bool {
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
            (Entry::Vacant(_), false) => panic!("the history removes a row that is absent"),
        }
    }
}

fn apply(commits: &[RecordedCommit], rows: &mut RowMultiset) {
    for change in commits.iter().flat_map(|commit| &commit.changes) {
        change.apply(rows);
    }
}

/// Transactions that a snapshot saw, from its snapshot-end message.
#[derive(Debug, Clone, Default)]
pub(crate) struct OracleSnapshot {
    /// The first transaction id that was not assigned yet.
    pub(crate) xmax: u64,
    /// Transactions below `xmax` that were in progress.
    pub(crate) running: Vec<u64>,
    /// A crash of Postgres after the snapshot.
    pub(crate) crash: Option<PostgresCrash>,
}

impl OracleSnapshot {
    /// Returns whether the snapshot saw a transaction whose commit is at `lsn`.
    pub(crate) fn sees(&self, xid: u64, lsn: u64) -> bool {
        let is_reused = self.crash.is_some_and(|crash| lsn > crash.lsn && xid >= crash.next_xid);
        xid < self.xmax && !self.running.contains(&xid) && !is_reused
    }

    /// Returns the possible interpretations, because a snapshot doesn't state when it was taken.
    ///
    /// The first one ignores crashes. Each other one assumes that the snapshot was taken before a
    /// crash, so it did not see the transaction ids that Postgres reused after it.
    pub(crate) fn interpretations(&self, crashes: &[PostgresCrash]) -> Vec<OracleSnapshot> {
        let before = crashes.iter().filter(|crash| crash.next_xid < self.xmax);
        let before = before.map(|crash| OracleSnapshot { crash: Some(*crash), ..self.clone() });
        [self.clone()].into_iter().chain(before).collect()
    }
}

/// A crash of Postgres. It forgets the ids of transactions that left nothing in the WAL, such as
/// recent rollbacks, and assigns these ids again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PostgresCrash {
    /// Position at which the WAL continued after recovery.
    pub(crate) lsn: u64,
    /// The first transaction id after recovery. This and later ids may be reused ones.
    pub(crate) next_xid: u64,
}

impl PostgresCrash {
    /// Returns the last crash, from the checkpoint that ended recovery.
    pub(crate) fn last(fixture: &ServeFixture) -> PostgresCrash {
        let sql = "SELECT checkpoint_lsn - '0/0', split_part(next_xid, ':', 2) FROM pg_control_checkpoint()";
        let row = &query_rows(fixture, sql)[0];
        let column = |index: usize| parse_number(row[index].as_deref().unwrap());
        PostgresCrash { lsn: column(0), next_xid: column(1) }
    }
}

/// The expected states of a shape over a range of positions.
pub(crate) struct ExpectedStates<'a> {
    /// The rows of the table before `commits`.
    table: RowMultiset,
    commits: &'a [RecordedCommit],
    /// `seq` of each record whose row satisfies the shape's where clause.
    matching: HashSet<u64>,
    /// The tables that contain the rows of the shape.
    leaves: &'static [&'static str],
    /// Indexes of the selected columns.
    selected: Vec<usize>,
    snapshot: &'a OracleSnapshot,
    /// Position of the last commit that the snapshot saw.
    last_in_snapshot: Option<u64>,
    /// Position of each commit, and the shape after it. The first entry has position 0, and the
    /// state before all commits.
    digests: Vec<(u64, RowsDigest)>,
}

/// Creates the slot that lists the commits. Earlier commits are not in the history.
pub(crate) fn create_slot(fixture: &ServeFixture) {
    let slot = slot(fixture);
    fixture.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
}

impl TableHistories {
    pub(crate) fn read(fixture: &ServeFixture) -> TableHistories {
        let commits = commits(fixture);
        assert!(commits.is_sorted_by(|one, next| one.1 < next.1), "commits out of order");
        let family = |family| (family, FamilyHistory::read(fixture, family, &commits));
        let families = FAMILIES.into_iter().map(family).collect();
        TableHistories { families, positions: commits.into_iter().collect() }
    }

    /// Returns the history of the requested table.
    pub(crate) fn of(&self, request: &OracleRequest) -> &FamilyHistory {
        &self.families[request.table.family]
    }

    pub(crate) fn transactions(&self) -> usize {
        self.positions.len()
    }
}

/// Returns the transaction id and the position of each commit, in commit order.
pub(crate) fn commits(fixture: &ServeFixture) -> Vec<(u64, u64)> {
    // A pgoutput commit message, version 1: `C`, flags, the position of the commit.
    let sql = format!(
        "SELECT xid, encode(substr(data, 3, 8), 'hex') FROM pg_logical_slot_peek_binary_changes('{}', NULL,
            NULL, 'proto_version', '1', 'publication_names', 'history') WHERE get_byte(data, 0) = 67",
        slot(fixture)
    );
    let commit = |row: &OracleRow| {
        let (xid, lsn) = (row[0].as_deref().unwrap(), row[1].as_deref().unwrap());
        (parse_number(xid), u64::from_str_radix(lsn, 16).unwrap())
    };
    query_rows(fixture, &sql).iter().map(commit).collect()
}

impl FamilyHistory {
    fn read(fixture: &ServeFixture, family: &'static str, commits: &[(u64, u64)]) -> FamilyHistory {
        let mut changes: HashMap<u64, Vec<RecordedChange>> = HashMap::new();
        let columns = tables::columns_of(family).join(", ");
        let sql = format!("SELECT seq, xid, leaf, is_new, {columns} FROM history_{family} ORDER BY seq");
        for row in query_rows(fixture, &sql) {
            let [Some(seq), Some(xid), Some(leaf), Some(is_new)] = &row[..4] else {
                panic!("a record without seq, xid, leaf or is_new: {row:?}")
            };
            let values: Arc<[u64]> = row[4..].iter().map(hash).collect();
            let id = hash(&(leaf, &values));
            let row = RecordedRow { seq: parse_number(seq), leaf: leaf.as_str().into(), id, values };
            changes.entry(parse_number(xid)).or_default().push(RecordedChange { is_new: is_new == "t", row });
        }
        let commit = |(xid, lsn): &(u64, u64)| {
            changes.remove(xid).map(|changes| RecordedCommit { lsn: *lsn, xid: *xid, changes })
        };
        let commits: Vec<_> = commits.iter().filter_map(commit).collect();
        assert!(changes.is_empty(), "{} transactions have records, but no commit", changes.len());
        let (mut bases, mut table) = (vec![RowMultiset::new()], RowMultiset::new());
        for commits in commits.chunks(COMMITS_PER_BASE) {
            apply(commits, &mut table);
            bases.push(table.clone());
        }
        FamilyHistory { family, commits, bases }
    }

    /// Replays the history of a shape over a range of positions.
    pub(crate) fn states<'a>(
        &'a self,
        fixture: &ServeFixture,
        request: &OracleRequest,
        snapshot: &'a OracleSnapshot,
        positions: RangeInclusive<u64>,
    ) -> ExpectedStates<'a> {
        let before = |position: u64| self.commits.partition_point(|commit| commit.lsn < position);
        let last_in_snapshot = self.commits.iter().rposition(|commit| snapshot.sees(commit.xid, commit.lsn));
        let from = before(*positions.start());
        let to = before(*positions.end()).max(last_in_snapshot.map_or(0, |last| last + 1)).max(from);
        let commits = &self.commits[from..to];
        let table = self.table_before(from);
        let changed = commits.iter().flat_map(|commit| &commit.changes).map(|change| &change.row);
        let matching = self.matching(fixture, request, table.values().map(|(row, _)| row).chain(changed));
        let all = tables::columns_of(self.family).iter().enumerate();
        let selected =
            all.filter(|(_, name)| request.columns.contains(name)).map(|(index, _)| index).collect();
        let last_in_snapshot = last_in_snapshot.map(|last| self.commits[last].lsn);
        let leaves = request.table.leaves;
        let mut states = ExpectedStates {
            table,
            commits,
            matching,
            leaves,
            selected,
            snapshot,
            last_in_snapshot,
            digests: Vec::new(),
        };
        let mut digests = Vec::with_capacity(commits.len() + 1);
        states.replay(|_| true, |lsn, digest| digests.push((lsn, digest)));
        states.digests = digests;
        states
    }

    /// Returns the rows of the table before a commit, by its index.
    fn table_before(&self, commit: usize) -> RowMultiset {
        let base = commit / COMMITS_PER_BASE;
        let mut table = self.bases[base].clone();
        apply(&self.commits[base * COMMITS_PER_BASE..commit], &mut table);
        table
    }

    /// Returns the `seq` of each record whose row satisfies the where clause, as Postgres evaluates
    /// it.
    fn matching<'a>(
        &self,
        fixture: &ServeFixture,
        request: &OracleRequest,
        rows: impl Iterator<Item = &'a RecordedRow>,
    ) -> HashSet<u64> {
        let (literal, all) = (&request.literal, Vec::from_iter(rows.map(|row| row.seq.to_string())));
        let (family, all) = (self.family, all.join(","));
        let sql = format!("SELECT seq FROM history_{family} WHERE seq = ANY('{{{all}}}') AND ({literal})");
        query_rows(fixture, &sql).iter().filter_map(|row| row[0].as_deref()).map(parse_number).collect()
    }
}

impl ExpectedStates<'_> {
    /// Returns the expected rows of a client that is up to date at position `seen`: all commits
    /// before `seen`, and all that its snapshot saw.
    ///
    /// The snapshot may be ahead of the stream. Changes that it already contains are not sent
    /// again.
    pub(crate) fn at(&self, seen: u64) -> RowsDigest {
        if self.last_in_snapshot.is_some_and(|last| last >= seen) {
            let mut last = RowsDigest::default();
            let is_in =
                |commit: &RecordedCommit| commit.lsn < seen || self.snapshot.sees(commit.xid, commit.lsn);
            self.replay(is_in, |_, digest| last = digest);
            return last;
        }
        self.digests[self.digests.partition_point(|(lsn, _)| *lsn < seen) - 1].1
    }

    /// Returns the last state of the shape, by key, for a failure report.
    pub(crate) fn last(
        &self,
        fixture: &ServeFixture,
        request: &OracleRequest,
    ) -> BTreeMap<String, OracleRow> {
        let mut table = self.table.clone();
        apply(self.commits, &mut table);
        let seqs: Vec<_> = table.values().filter(|(row, _)| self.hash(row).is_some()).collect();
        let seqs: Vec<_> = seqs.into_iter().map(|(row, _)| row.seq.to_string()).collect();
        let from = format!("history_{} WHERE seq = ANY('{{{}}}')", request.table.family, seqs.join(","));
        by_key(fixture, request, &from)
    }

    /// Returns the positions at which the shape had these rows, for a failure report.
    pub(crate) fn find(&self, digest: RowsDigest) -> Vec<u64> {
        self.digests.iter().filter(|(_, state)| *state == digest).map(|(lsn, _)| *lsn).collect()
    }

    /// Returns the states around a position, for a failure report.
    pub(crate) fn around(&self, seen: u64) -> &[(u64, RowsDigest)] {
        let count = self.digests.partition_point(|(lsn, _)| *lsn < seen);
        &self.digests[count.saturating_sub(2)..(count + 2).min(self.digests.len())]
    }

    /// Calls `after` with the first state, at position 0, and with the state after each commit that
    /// `is_in` selects.
    fn replay(&self, is_in: impl Fn(&RecordedCommit) -> bool, mut after: impl FnMut(u64, RowsDigest)) {
        let (mut table, mut digest) = (self.table.clone(), RowsDigest::default());
        table.values().filter_map(|(row, _)| self.hash(row)).for_each(|row| digest.add_hash(row));
        after(0, digest);
        for commit in self.commits.iter().filter(|commit| is_in(commit)) {
            for change in commit.changes.iter() {
                match self.hash(&change.row).filter(|_| change.apply(&mut table)) {
                    Some(row) if change.is_new => digest.add_hash(row),
                    Some(row) => digest.remove_hash(row),
                    None => {}
                }
            }
            after(commit.lsn, digest);
        }
    }

    /// Returns the hash of the selected columns. `None`: the row isn't in the shape.
    fn hash(&self, row: &RecordedRow) -> Option<u64> {
        let is_in = self.leaves.contains(&&*row.leaf) && self.matching.contains(&row.seq);
        is_in.then(|| hash_of_row(self.selected.iter().map(|column| row.values[*column])))
    }
}

/// Returns the current rows of a shape in Postgres, by key.
pub(crate) fn current_rows(fixture: &ServeFixture, request: &OracleRequest) -> BTreeMap<String, OracleRow> {
    by_key(fixture, request, &format!("{} WHERE {}", request.table.name, request.literal))
}

fn by_key(fixture: &ServeFixture, request: &OracleRequest, from: &str) -> BTreeMap<String, OracleRow> {
    let table = request.table;
    let rows = query_rows(fixture, &format!("SELECT {} FROM {from}", request.columns.join(", ")));
    let at =
        |name: &str| request.columns.iter().position(|own| *own == name).expect("key columns are selected");
    let key = |row: &OracleRow| key_of(table.name, table.key, |name| row[at(name)].as_deref());
    rows.into_iter().map(|row| (key(&row), row)).collect()
}

/// Returns the position of the last commit so far.
pub(crate) fn last_commit(fixture: &ServeFixture) -> u64 {
    commits(fixture).last().map_or(0, |(_, lsn)| *lsn)
}

pub(crate) fn query_rows(fixture: &ServeFixture, sql: &str) -> Vec<OracleRow> {
    fixture.postgres.query(&fixture.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub(crate) fn parse_number<N: FromStr<Err: Debug>>(text: &str) -> N {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn slot(fixture: &ServeFixture) -> String {
    format!("history_{}", fixture.database)
}
