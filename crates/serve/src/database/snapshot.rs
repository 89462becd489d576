//! Reading the rows that are there.
//!
//! Invariant: the sink hears which transactions the rows are from before it gets the first row; all rows are of one snapshot, of the table
//! as it was described; and a connection that was left in the middle of it is lent to nobody else.
//! Kept by: one REPEATABLE READ transaction, which locks the table before it takes its snapshot and then looks whether its edition is the
//! same, or else describes it again; `Lent` marks the connection unless all of it was read.
//! Not here: waiting for writers that nobody follows; see `writers.rs`.
//!
//! Bounds: memory holds one piece of about 128 KiB (or one row, if that is longer), and what the connection reads ahead, 8 KiB or
//! so; a sink that is slow slows the server down.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::DISPLAY_SETTINGS;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_replication::reservoir::tokio_postgres::{
    self, Client, CopyOutStream, SimpleQueryMessage, SimpleQueryStream,
};
use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_shapes::encode::{CopyRows, RowEncoder};
use futures_core::Stream;

use super::describe::{PARTITIONS, describe, edition_of};
use super::error::{Attempt, SnapshotError, Stage};
use super::quoted;
use super::table::TableDescription;

/// A sink is handed so much at a time, or a little more: rows are never cut.
const PIECE_BYTES: usize = 128 * 1024;

/// Room for the row that fills a piece.
const ROW_BYTES: usize = 16 * 1024;

/// What decides how a clause is read; that a policy that hides rows is an error; and that a table which somebody has locked for long doesn't
/// keep others waiting for their turn.
const READING_SETTINGS: &[(&str, &str)] = &[
    ("lock_timeout", "5s"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("row_security", "off"),
];

/// Those that locking the table and the first SELECT go by.
const FIRST_SETTINGS: &[&str] = &["lock_timeout", "search_path"];

/// Which rows.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotQuery<'a> {
    /// Of this table, as it was described.
    pub table: &'a TableDescription,
    /// The columns that are shown, in the table's order. Others are read only if they are the key's.
    pub selected: &'a [usize],
    /// The rows of which this is true: SQL that names nothing but columns, such as `Filter::canonical`. `None`: all.
    pub clause: Option<&'a str>,
    /// Has Postgres analyse the clause before it runs: what fails then is the clause, and whatever
    /// fails later is a row.
    pub analyses: bool,
    /// None of those: the clause is only read.
    pub is_empty: bool,
    /// Only some of those.
    pub page: Option<SubsetPage<'a>>,
    /// How long the server may take, in place of its own statement_timeout; zero: for ever.
    pub timeout: Option<Duration>,
}

/// Some of the rows, in an order.
#[derive(Debug, Clone, Copy)]
pub struct SubsetPage<'a> {
    /// SQL of the form `"a" DESC, "b"`: it must be safe.
    pub order_by: &'a str,
    /// Not more than these.
    pub limit: Option<u64>,
    /// Not the first of them.
    pub offset: Option<u64>,
}

/// Where the rows go.
pub trait RowSink: Send {
    /// What may go wrong there. It ends the snapshot.
    type Error: Error + Send + 'static;

    /// Before any row: which transactions the rows are from, and how far the log was; what those wrote lies before.
    fn begun(
        &mut self,
        snapshot: &Snapshot,
        lsn: Lsn,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whole messages, each with its separator. The next ones are read when this has returned.
    fn rows(&mut self, messages: Bytes) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// That was all of them. The connection may not be free yet.
    fn ended(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async { Ok(()) }
    }
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Which transactions the rows are from.
    pub snapshot: Snapshot,
    /// How far the log was.
    pub lsn: Lsn,
    /// How many rows.
    pub rows: u64,
    /// How long their messages are.
    pub bytes: u64,
}

/// Reads the rows that are there. Dropping the future stops it: the connection is marked, and the reservoir has the server cancel what it
/// does when the guard is dropped.
///
/// # Errors
/// See [`SnapshotError`].
pub async fn snapshot<S: RowSink>(
    client: &mut ConnectionGuard<PostgresClient>,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
) -> Result<SnapshotSummary, SnapshotError<S::Error>> {
    let mut lent = Lent { client, is_clean: false };
    let mut commit = None;
    let outcome = read(lent.client, query, sink, &mut commit).await;
    let ended = match (&outcome, commit) {
        (Err(error), _) if !error.leaves_the_session() => return outcome,
        // One that has failed is rolled back by it.
        (_, Some(commit)) => first_value(commit).await.map(drop),
        (_, None) => lent.client.batch_execute("ROLLBACK").await,
    };
    match ended {
        Ok(()) => lent.is_clean = true,
        // All rows are there.
        Err(error) => tracing::debug!(%error, "a snapshot's connection was lost at its end"),
    }
    outcome
}

/// A connection that is marked bad unless it was left as it was found.
struct Lent<'a> {
    client: &'a mut ConnectionGuard<PostgresClient>,
    is_clean: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.is_clean {
            self.client.mark_bad();
        }
    }
}

async fn read<S: RowSink>(
    client: &Client,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
    commit: &mut Option<SimpleQueryStream>,
) -> Result<SnapshotSummary, SnapshotError<S::Error>> {
    let name = &query.table.name;
    let (script, statement) = (script(query), Statement::new(query));
    let beginning = Attempt { table: name, clause: None, timeout: query.timeout, stage: Stage::Unanalysed };
    let copying = Attempt {
        clause: query.clause.map(|clause| (statement.before.as_str(), clause)),
        stage: if query.analyses { Stage::Analysed } else { Stage::Unanalysed },
        ..beginning
    };
    let analysis = Analysis::of(query);
    // All are sent at once; if one fails, the server skips those after it.
    let (begun, analysed, prepared) = tokio::join!(
        biased;
        client.simple_query(&script),
        analyse(client, analysis.as_ref()),
        client.prepare(&statement.text),
    );
    let begun = begun.map_err(|error| SnapshotError::database(error, beginning))?;
    let Begun { snapshot, lsn, edition, partitions } = parse(&begun).ok_or(SnapshotError::NoSnapshot)?;
    if edition != query.table.edition {
        // After an error the server answers nothing; and a clause that doesn't fit may have fitted what the table was.
        let same = match (&analysed, &prepared) {
            (Ok(()), Ok(_)) => {
                let described = describe(client, name).await;
                let described = described.map_err(|error| SnapshotError::described(error, beginning))?;
                described.fingerprint() == query.table.fingerprint()
            }
            (Err(_), _) | (_, Err(_)) => false,
        };
        if !same {
            return Err(SnapshotError::Changed { table: name.clone() });
        }
    }
    analysed.map_err(|error| match &analysis {
        Some(Analysis { before, clause }) => {
            let clause = Some((before.as_str(), *clause));
            SnapshotError::database(error, Attempt { clause, stage: Stage::Analysing, ..beginning })
        }
        None => SnapshotError::database(error, beginning),
    })?;
    let prepared = prepared.map_err(|error| SnapshotError::database(error, copying))?;
    sink.begun(&snapshot, lsn).await.map_err(SnapshotError::Sink)?;

    let stream = client.copy_out(&prepared).await.map_err(|error| SnapshotError::database(error, copying))?;
    // It is closed before the transaction ends: a pooler may give the next one to another server.
    drop(prepared);
    *commit = Some(client.simple_query_raw("COMMIT").await.map_err(SnapshotError::Lost)?);
    let partitions_after = match query.table.is_partitioned {
        true => {
            let asking = format!("SELECT {}", partitions_of(query.table.oid));
            Some(client.simple_query_raw(&asking).await.map_err(SnapshotError::Lost)?)
        }
        false => None,
    };
    let (rows, bytes) = copy(stream, query, sink, copying).await?;
    if let Some(after) = partitions_after
        && first_value(after).await.map_err(|error| SnapshotError::database(error, beginning))? != partitions
    {
        return Err(SnapshotError::Changed { table: name.clone() });
    }
    sink.ended().await.map_err(SnapshotError::Sink)?;
    Ok(SnapshotSummary { snapshot, lsn, rows, bytes })
}

/// An expression for the partitions of a table, and their files, as a statement's snapshot sees them.
///
/// COPY reads the partitions and files that are there when it begins. ATTACH, and TRUNCATE of a partition, may have changed
/// them since the snapshot: they don't conflict with the lock on the table. So they are asked for with the snapshot, and again
/// after the transaction, without a lock on any partition.
fn partitions_of(oid: u32) -> String {
    format!("(SELECT {PARTITIONS} FROM pg_class c WHERE c.oid = {oid})")
}

/// Reads an answer to its end. Returns the first value of its first row, if it has one.
async fn first_value(answers: SimpleQueryStream) -> Result<Option<String>, tokio_postgres::Error> {
    let (mut answers, mut value) = (pin!(answers), None);
    while let Some(answer) = poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
        if let SimpleQueryMessage::Row(row) = answer?
            && value.is_none()
        {
            value = row.try_get(0)?.map(str::to_owned);
        }
    }
    Ok(value)
}

/// How many rows and bytes were handed over.
async fn copy<S: RowSink>(
    stream: CopyOutStream,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
    attempt: Attempt<'_>,
) -> Result<(u64, u64), SnapshotError<S::Error>> {
    let columns = query.table.columns();
    let layout =
        RowEncoder::new(&query.table.name.schema, &query.table.name.name, &columns, query.selected, false);
    let mut lines = CopyRows::new(columns.len());
    let mut stream = pin!(stream);
    let (mut rows, mut bytes) = (0, 0);
    let mut piece = Vec::new();
    while let Some(line) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        // The server sends each row in a message of its own.
        let line = line.map_err(|error| SnapshotError::database(error, attempt))?;
        // Most snapshots are small, and are kept as they are: the first piece takes what it needs.
        if piece.capacity() == 0 && bytes > 0 {
            piece.reserve(PIECE_BYTES + ROW_BYTES);
        }
        lines.read(&line, |row| layout.snapshot_row(&mut piece, row))?;
        rows += 1;
        if piece.len() >= PIECE_BYTES {
            bytes += piece.len() as u64;
            sink.rows(Bytes::from(mem::take(&mut piece))).await.map_err(SnapshotError::Sink)?;
        }
    }
    if !piece.is_empty() {
        bytes += piece.len() as u64;
        piece.shrink_to_fit();
        sink.rows(Bytes::from(piece)).await.map_err(SnapshotError::Sink)?;
    }
    Ok((rows, bytes))
}

/// Locks the table before it takes the snapshot, so that the snapshot sees the table as it stays: only the SELECT takes one. It sets what isn't
/// needed before, too: a SET is a statement, and statements cost more than what these do.
fn script(query: &SnapshotQuery<'_>) -> String {
    let mut script = String::from("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    let mut write = |text: fmt::Arguments<'_>| script.write_fmt(text).expect("a String takes every write");
    let settings = || DISPLAY_SETTINGS.iter().chain(READING_SETTINGS);
    for (key, value) in settings().filter(|(key, _)| FIRST_SETTINGS.contains(key)) {
        write(format_args!("; SET LOCAL {key} = '{value}'"));
    }
    if let Some(timeout) = query.timeout {
        // More than the server can count is for ever, too.
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(0);
        write(format_args!("; SET LOCAL statement_timeout = {timeout_ms}"));
    }
    let TableDescription { name, oid, is_partitioned, .. } = query.table;
    let edition = edition_of(*oid, *is_partitioned);
    let partitions = if *is_partitioned { partitions_of(*oid) } else { "NULL".to_owned() };
    write(format_args!(
        "; LOCK TABLE ONLY {name} IN ACCESS SHARE MODE; \
         SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, {edition}, {partitions}, concat(NULL",
    ));
    for (key, value) in settings().filter(|(key, _)| !FIRST_SETTINGS.contains(key)) {
        write(format_args!(", set_config('{key}', '{value}', true)"));
    }
    write(format_args!(")"));
    script
}

/// The answer to the script.
struct Begun<'a> {
    snapshot: Snapshot,
    /// How far the log was.
    lsn: Lsn,
    edition: &'a str,
    /// Of a partitioned table: see [`partitions_of`].
    partitions: Option<String>,
}

fn parse(answers: &[SimpleQueryMessage]) -> Option<Begun<'_>> {
    answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => {
            let (snapshot, lsn) = (row.try_get(0).ok()??, row.try_get(1).ok()??);
            Some(Begun {
                snapshot: snapshot.parse().ok()?,
                lsn: lsn.parse().ok()?,
                edition: row.try_get(2).ok()?.unwrap_or_default(),
                partitions: row.try_get(3).ok()?.map(str::to_owned),
            })
        }
        _ => None,
    })
}

/// What has Postgres read a clause: COPY's own query is analysed only when it runs.
struct Analysis<'a> {
    before: String,
    clause: &'a str,
}

impl<'a> Analysis<'a> {
    fn of(query: &SnapshotQuery<'a>) -> Option<Self> {
        let clause = query.clause.filter(|_| query.analyses)?;
        let only = if query.table.is_partitioned { "" } else { "ONLY " };
        Some(Analysis { before: format!("SELECT 1 FROM {only}{} WHERE ", query.table.name), clause })
    }
}

async fn analyse(client: &Client, analysis: Option<&Analysis<'_>>) -> Result<(), tokio_postgres::Error> {
    let Some(Analysis { before, clause }) = analysis else { return Ok(()) };
    client.prepare(&format!("{before}{clause}")).await.map(drop)
}

/// What reads the rows.
struct Statement {
    text: String,
    /// What stands before the clause.
    before: String,
}

impl Statement {
    fn new(query: &SnapshotQuery<'_>) -> Self {
        let SnapshotQuery { table, selected, .. } = query;
        let key = table.key();
        let is_needed = |index| key.is_empty() || key.contains(&index) || selected.contains(&index);
        // Each has its place in a row, whether it is needed or not.
        let column = |(index, name): (usize, &str)| match is_needed(index) {
            true => quoted(name),
            false => "NULL".to_owned(),
        };
        let columns: Vec<_> =
            table.columns.iter().map(|column| column.name.as_str()).enumerate().map(column).collect();
        // Rows of tables that inherit aren't the table's own in the stream; rows of partitions are.
        let only = if table.is_partitioned { "" } else { "ONLY " };
        let mut text = format!("COPY (SELECT {} FROM {only}{}", columns.join(", "), table.name);
        let (opening, closing) = match (query.is_empty, query.clause) {
            (false, None) => ("", ""),
            (false, Some(_)) => (" WHERE ", ""),
            (true, None) => (" WHERE false", ""),
            (true, Some(_)) => (" WHERE false AND (", ")"),
        };
        text.push_str(opening);
        let before = text.clone();
        text.push_str(query.clause.unwrap_or_default());
        text.push_str(closing);
        if let Some(SubsetPage { order_by, limit, offset }) = query.page {
            write!(text, " ORDER BY {order_by}").expect("a String takes every write");
            let mut bound = |word, count: Option<u64>| {
                count.into_iter().try_for_each(|count| write!(text, " {word} {count}"))
            };
            bound("LIMIT", limit).and_then(|()| bound("OFFSET", offset)).expect("a String takes every write");
        }
        text.push_str(") TO STDOUT");
        Statement { text, before }
    }
}
