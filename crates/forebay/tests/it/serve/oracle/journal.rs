//! What tables whose definitions change were at each commit, and which of that a client may have.
//!
//! Each such table has one writer (`changing.rs`), which changes rows and definitions in turn and notes all rows after each of
//! its commits: so there is one order of states, and Postgres says what each was. Where a commit lies in the stream, the second
//! slot says (`history.rs`), as each has a row in `marks`.
//!
//! A client's rows at an up-to-date are judged by three times: its position, what its snapshot saw, and the clock.
//! - They are those after all commits before the position, and all that the snapshot saw. That is the rule.
//! - The stream doesn't tell what is done to a definition, nor what is written while the table isn't wholly published
//!   ([`Kind::Quiet`]). Until [`NOTICE`] after the first such commit, the rows may be those before it; but not beyond the next change
//!   of a row that the stream does tell ([`Kind::Loud`]): no shape from before a definition is served a change after it.
//! - What is done to a type, or to one of many partitions, isn't told even with the next row ([`Kind::Vague`]): for as long, a
//!   shape from before it may be a mixture, and isn't judged.
//!
//! And at last, when all is calm, every client is to have what its table has, within [`CALM`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::client::{Life, listed};
use super::history::{Digest, Row, Sight};
use super::view::{Checkpoint, key_of};

/// How long a definition's change may stay unnoticed: five seconds, and as many for a busy machine.
pub(crate) const NOTICE: Duration = Duration::from_secs(10);
/// And while the server is killed, and Postgres and the network are away at times.
pub(crate) const NOTICE_IN_STORM: Duration = Duration::from_secs(30);
/// How long clients may take to have what their tables have at last.
pub(crate) const CALM: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Rows changed, and the stream tells it.
    Loud,
    /// The stream says nothing, or only with the next row.
    Quiet,
    /// The stream never says it.
    Vague,
}

/// A table after a commit.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) xid: u64,
    pub(crate) kind: Kind,
    /// When the commit was known to be done.
    pub(crate) done: Instant,
    /// For whoever reads a failure.
    pub(crate) sql: String,
    /// `None`: there is no table of this name.
    pub(crate) contents: Option<Contents>,
}

/// All rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Sorted by name.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Contents {
    /// The rows of a shape, by key. `None`: it has other columns.
    pub(crate) fn shape(&self, life: &Sought<'_>) -> Option<BTreeMap<String, Row>> {
        let place = |name: &str| self.columns.iter().position(|own| own == name);
        let places: Option<Vec<_>> = life.columns.iter().map(|name| place(name)).collect();
        let (places, id) = (places?, place("id")?);
        if !life.is_chosen && life.columns != self.columns {
            return None;
        }
        let is_in = |row: &&Row| {
            let id: i64 = row[id].as_deref().unwrap_or_default().parse().expect("ids are numbers");
            life.below.is_none_or(|below| id < below)
        };
        let key = |row: &Row| key_of(life.table, &["id"], |_| row[id].as_deref());
        let chosen = |row: &Row| places.iter().map(|place| row[*place].clone()).collect();
        Some(self.rows.iter().filter(is_in).map(|row| (key(row), chosen(row))).collect())
    }
}

/// A shape of such a table.
pub(crate) struct Sought<'a> {
    pub(crate) table: &'static str,
    pub(crate) columns: &'a [String],
    /// Whether it names its columns; otherwise it has all.
    pub(crate) is_chosen: bool,
    /// Only rows with a smaller id.
    pub(crate) below: Option<i64>,
}

/// All states, by table.
#[derive(Debug)]
pub(crate) struct Journal {
    states: Mutex<HashMap<&'static str, Vec<State>>>,
    /// How long a definition's change may stay unnoticed.
    pub(crate) notice: Duration,
}

/// How up-to-dates were judged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Verdicts {
    pub(crate) exact: u64,
    pub(crate) late: u64,
    pub(crate) unjudged: u64,
}

impl Journal {
    pub(crate) fn new(notice: Duration) -> Self {
        Journal { states: Mutex::default(), notice }
    }

    pub(crate) fn states(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<State>>> {
        self.states.lock().unwrap()
    }

    pub(crate) fn note(&self, table: &'static str, state: State) {
        self.states().entry(table).or_default().push(state);
    }

    /// What a table has now.
    pub(crate) fn last(&self, table: &str) -> Option<Contents> {
        self.states()[table].last()?.contents.clone()
    }

    /// Judges all up-to-dates of a client under one handle.
    ///
    /// # Errors
    /// Says what the client had, and what it should have had.
    pub(crate) fn judge(
        &self,
        life: &Life,
        sight: &Sight,
        positions: &HashMap<u64, u64>,
        verdicts: &mut Verdicts,
    ) -> Result<(), String> {
        let sought = life.sought();
        let all = self.states();
        let states = &all[sought.table];
        let position = |state: &State| {
            positions.get(&state.xid).copied().unwrap_or_else(|| panic!("no commit of {state:?}"))
        };
        let positions: Vec<_> = states.iter().map(position).collect();
        let is_seen = |(state, position): (&State, &u64)| sight.has(state.xid, *position);
        let first = states.iter().zip(&positions).rposition(is_seen).unwrap_or(0);
        let mut digests: HashMap<usize, Option<Digest>> = HashMap::new();
        for checkpoint in &life.checkpoints {
            let at = positions
                .partition_point(|position| *position < checkpoint.seen)
                .saturating_sub(1)
                .max(first);
            let mut has = |index: usize| {
                let digest = digests.entry(index).or_insert_with(|| {
                    let rows = states[index].contents.as_ref()?.shape(&sought)?;
                    let mut digest = Digest::default();
                    rows.values().for_each(|row| digest.add(row));
                    Some(digest)
                });
                *digest == Some(checkpoint.digest)
            };
            let is_late = |index: usize| checkpoint.at < states[index].done + self.notice;
            // A snapshot's values are written with the labels that the catalog has then, not with those
            // that the snapshot sees: Postgres doesn't read its catalog by snapshots.
            let is_renamed = |index: usize| {
                index == first + 1
                    && states.get(index).is_some_and(|state| state.sql.starts_with("ALTER TYPE"))
            };
            if has(at) || (at == first && is_renamed(at + 1) && has(at + 1)) {
                verdicts.exact += 1;
                continue;
            }
            let vague = (first + 1..=at).rev().take_while(|index| is_late(*index));
            if vague.into_iter().any(|index| states[index].kind == Kind::Vague) {
                verdicts.unjudged += 1;
                continue;
            }
            let quiet = (first + 1..=at)
                .rev()
                .take_while(|index| states[*index].kind == Kind::Quiet && is_late(*index));
            if quiet.into_iter().any(|index| has(index - 1)) {
                verdicts.late += 1;
                continue;
            }
            let found: Vec<_> = (0..states.len()).filter(|index| has(*index)).collect();
            return Err(wrong(life, checkpoint, states, &positions, [first, at], &found));
        }
        Ok(())
    }
}

/// Says what a client had, what it should have had, and the commits around that. `first`: the last that its snapshot saw; `at`: the
/// last before its position; `found`: those after which the table was what the client has.
fn wrong(
    life: &Life,
    checkpoint: &Checkpoint,
    states: &[State],
    positions: &[u64],
    [first, at]: [usize; 2],
    found: &[usize],
) -> String {
    let sought = life.sought();
    let line = |index: usize| {
        let State { kind, done, sql, .. } = &states[index];
        let ago = checkpoint.at.checked_duration_since(*done);
        format!("  {index} at {}, {kind:?}, {ago:?} before: {sql}", positions[index])
    };
    let lines: Vec<_> = (at.saturating_sub(8)..(at + 3).min(states.len())).map(line).collect();
    let should = states[at].contents.as_ref().and_then(|contents| contents.shape(&sought));
    let should = should.as_ref().map_or("no such shape".to_owned(), listed);
    format!(
        "{} was {:?} at {}, which is no state that it may have. It should be that of commit {at}, or a little before; it is that of \
         {found:?}, and its snapshot saw {first}.\n commits:\n{}\n columns: {:?}\n should have had:{should}\n had when it ended:{}\n \
         {:?}\n  {}",
        life.handle,
        checkpoint.digest,
        checkpoint.seen,
        lines.join("\n"),
        life.columns,
        life.had,
        life.wanted,
        life.recent,
    )
}
