//! Journal of the tables whose definitions change: their contents after each commit, and which of
//! these states a client may have.
//!
//! Each table has one writer (`schema_writers.rs`), which changes rows and definitions in turn.
//! After each commit it reads the whole table. So the states of a table have one order. Each commit
//! inserts a row into `marks`, so the oracle's slot (`history.rs`) lists its position in the WAL.
//!
//! The rows at an up-to-date are judged by its position, by the commits that the snapshot saw, and
//! by the time of arrival:
//! - The rule: the rows contain all commits before the position, and all that the snapshot saw.
//! - The replication stream doesn't contain DDL, nor changes while the table is not fully published
//!   ([`StreamVisibility::Delayed`]). For [`MAX_DETECTION_DELAY`] after the first such commit, a
//!   client may have the rows from before it. It may not get a later change that the stream
//!   contains ([`StreamVisibility::Visible`]) on top of the old rows.
//! - Changes of a type, or of one partition, are not detected with the next row either
//!   ([`StreamVisibility::Hidden`]). For the same time, the rows may be a mixture and are not
//!   judged.
//!
//! After the last commit, every client must reach the rows of its table. A client without progress
//! for [`SCHEMA_SETTLE_TIMEOUT`] fails. In a soak, `ROWS_SETTLE_TIMEOUT` applies instead.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::client_view::{ObservedState, key_of};
use super::history::{OracleRow, OracleSnapshot, RowsDigest};
use super::oracle_client::{HandleTrace, format_rows};

/// Maximum time until the server detects a change of a definition. The server guarantees 5 s; the
/// rest is for a busy machine.
pub(crate) const MAX_DETECTION_DELAY: Duration = Duration::from_secs(10);
/// [`MAX_DETECTION_DELAY`] while the server, Postgres and connections fail.
pub(crate) const MAX_DETECTION_DELAY_WITH_FAULTS: Duration = Duration::from_secs(30);
/// How long a client may make no progress after the last commit.
pub(crate) const SCHEMA_SETTLE_TIMEOUT: Duration = Duration::from_secs(25);

/// How the replication stream shows a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamVisibility {
    /// The stream contains the changed rows.
    Visible,
    /// The stream contains nothing, or shows the change only together with the next row.
    Delayed,
    /// The stream contains nothing, and the next rows don't show the change either.
    Hidden,
}

/// A table after one commit.
#[derive(Debug, Clone)]
pub(crate) struct TableState {
    pub(crate) xid: u64,
    pub(crate) visibility: StreamVisibility,
    /// When the writer had verified that the script was committed.
    pub(crate) done: Instant,
    /// The script, for a failure report.
    pub(crate) sql: String,
    /// `None`: no table has this name.
    pub(crate) contents: Option<TableContents>,
}

/// All rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableContents {
    /// Sorted by name.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<OracleRow>,
}

impl TableContents {
    /// Returns the rows of a shape, by key. `None`: the shape has other columns.
    pub(crate) fn shape(&self, selection: &ShapeSelection<'_>) -> Option<BTreeMap<String, OracleRow>> {
        let index_of = |name: &str| self.columns.iter().position(|own| own == name);
        let indexes: Option<Vec<_>> = selection.columns.iter().map(|name| index_of(name)).collect();
        let (indexes, id) = (indexes?, index_of("id")?);
        if !selection.names_columns && selection.columns != self.columns {
            return None;
        }
        let is_in = |row: &&OracleRow| {
            let id: i64 = row[id].as_deref().unwrap_or_default().parse().expect("ids are numbers");
            selection.id_below.is_none_or(|id_below| id < id_below)
        };
        let key = |row: &OracleRow| key_of(selection.table, &["id"], |_| row[id].as_deref());
        let selected = |row: &OracleRow| indexes.iter().map(|index| row[*index].clone()).collect();
        Some(self.rows.iter().filter(is_in).map(|row| (key(row), selected(row))).collect())
    }
}

/// Rows and columns of a shape of a table whose definition changes.
pub(crate) struct ShapeSelection<'a> {
    pub(crate) table: &'static str,
    pub(crate) columns: &'a [String],
    /// Whether the request names its columns. Otherwise the shape has all.
    pub(crate) names_columns: bool,
    /// The clause `id < id_below`.
    pub(crate) id_below: Option<i64>,
}

/// All states of all tables whose definitions change.
#[derive(Debug)]
pub(crate) struct SchemaJournal {
    /// In commit order, by table.
    pub(crate) states: Mutex<HashMap<&'static str, Vec<TableState>>>,
    /// How long the server may take to detect a change of a definition.
    pub(crate) max_detection_delay: Duration,
}

/// Numbers of up-to-dates, by verdict.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JournalVerdicts {
    /// The rows that the rule requires.
    pub(crate) exact: u64,
    /// The rows from before a [`StreamVisibility::Delayed`] commit that the server may not have
    /// detected yet.
    pub(crate) late: u64,
    /// Not judged: a [`StreamVisibility::Hidden`] commit that the server may not have detected yet.
    pub(crate) unjudged: u64,
}

impl SchemaJournal {
    pub(crate) fn new(max_detection_delay: Duration) -> Self {
        SchemaJournal { states: Mutex::default(), max_detection_delay }
    }

    /// Appends a state.
    pub(crate) fn record(&self, table: &'static str, state: TableState) {
        self.states.lock().entry(table).or_default().push(state);
    }

    /// Returns the last contents of a table. `None`: it doesn't exist.
    pub(crate) fn last(&self, table: &str) -> Option<TableContents> {
        self.states.lock()[table].last()?.contents.clone()
    }

    /// Judges all up-to-dates of a client under one handle.
    ///
    /// # Errors
    /// Describes the first wrong state and the expected one.
    pub(crate) fn judge(
        &self,
        trace: &HandleTrace,
        snapshot: &OracleSnapshot,
        positions: &HashMap<u64, u64>,
        verdicts: &mut JournalVerdicts,
    ) -> Result<(), String> {
        let selection = trace.selection();
        let all = self.states.lock();
        let states = &all[selection.table];
        let position = |state: &TableState| {
            positions.get(&state.xid).copied().unwrap_or_else(|| panic!("no commit of {state:?}"))
        };
        let positions: Vec<_> = states.iter().map(position).collect();
        let is_seen = |(state, position): (&TableState, &u64)| snapshot.sees(state.xid, *position);
        let first = states.iter().zip(&positions).rposition(is_seen).unwrap_or(0);
        let mut digests: HashMap<usize, Option<RowsDigest>> = HashMap::new();
        for observed in &trace.observed_states {
            let at =
                positions.partition_point(|position| *position < observed.seen).saturating_sub(1).max(first);
            let mut has = |index: usize| {
                let digest = digests.entry(index).or_insert_with(|| {
                    let rows = states[index].contents.as_ref()?.shape(&selection)?;
                    let mut digest = RowsDigest::default();
                    rows.values().for_each(|row| digest.add(row));
                    Some(digest)
                });
                *digest == Some(observed.digest)
            };
            let may_be_undetected =
                |index: usize| observed.at < states[index].done + self.max_detection_delay;
            // Postgres prints enum labels from the current catalog, not from the catalog as of the
            // snapshot. So a snapshot may already have labels of the next commit.
            let is_renamed = |index: usize| {
                index == first + 1
                    && states.get(index).is_some_and(|state| state.sql.starts_with("ALTER TYPE"))
            };
            if has(at) || (at == first && is_renamed(at + 1) && has(at + 1)) {
                verdicts.exact += 1;
                continue;
            }
            let hidden = (first + 1..=at).rev().take_while(|index| may_be_undetected(*index));
            if hidden.into_iter().any(|index| states[index].visibility == StreamVisibility::Hidden) {
                verdicts.unjudged += 1;
                continue;
            }
            let delayed = (first + 1..=at).rev().take_while(|index| {
                states[*index].visibility == StreamVisibility::Delayed && may_be_undetected(*index)
            });
            if delayed.into_iter().any(|index| has(index - 1)) {
                verdicts.late += 1;
                continue;
            }
            let found: Vec<_> = (0..states.len()).filter(|index| has(*index)).collect();
            return Err(describe_violation(trace, observed, states, &positions, [first, at], &found));
        }
        Ok(())
    }
}

/// Describes a wrong state, the expected one, and the commits around it.
///
/// `first`: the last commit that the snapshot saw. `at`: the last commit before the position.
/// `found`: the commits after which the table had the client's rows.
fn describe_violation(
    trace: &HandleTrace,
    observed: &ObservedState,
    states: &[TableState],
    positions: &[u64],
    [first, at]: [usize; 2],
    found: &[usize],
) -> String {
    let selection = trace.selection();
    let line = |index: usize| {
        let TableState { visibility, done, sql, .. } = &states[index];
        let ago = observed.at.checked_duration_since(*done);
        format!("  {index} at {}, {visibility:?}, {ago:?} before: {sql}", positions[index])
    };
    let lines: Vec<_> = (at.saturating_sub(8)..(at + 3).min(states.len())).map(line).collect();
    let should = states[at].contents.as_ref().and_then(|contents| contents.shape(&selection));
    let should = should.as_ref().map_or("the shape doesn't exist".to_owned(), format_rows);
    format!(
        "wrong rows of {}: {:?} at {}. Expected is the state after commit {at}, or a permitted one before it. These are the \
         rows after the commits {found:?}, and the snapshot saw commit {first}.\n commits:\n{}\n columns: {:?}\n \
         expected:{should}\n rows at the end:{}\n {:?}\n  {}",
        trace.handle,
        observed.digest,
        observed.seen,
        lines.join("\n"),
        trace.columns,
        trace.rows_text,
        trace.request,
        trace.recent,
    )
}
