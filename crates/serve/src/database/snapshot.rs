//! Snapshot: reads the current rows of a table with COPY.
//!
//! Invariant: the sink receives the snapshot's visibility before the first row. All rows are of one
//! snapshot, of the table as described. A connection that was abandoned halfway is never reused.
//! Enforced by: one REPEATABLE READ transaction, which locks the table before it takes its
//! snapshot. Then it compares the edition, and if that differs, describes the table again.
//! [`SessionGuard`] marks the connection bad unless everything was read.
//! Out of scope: transactions that wrote before the table was published; see `writers.rs`.
//! At most one piece of about 128 KiB (or one row, if longer) is in memory, and about 8 KiB that
//! the connection reads ahead. A slow sink slows the server down.

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
use super::quote_identifier;
use super::snapshot_error::{ClauseStage, SnapshotError, StatementContext};
use super::table_description::TableDescription;

/// Minimum bytes of a piece for the sink, except the last. Rows are never split.
const PIECE_BYTES: usize = 128 * 1024;

/// Extra capacity for the row that fills a piece.
const ROW_BYTES: usize = 16 * 1024;

/// Settings for reading, in addition to [`DISPLAY_SETTINGS`]: all that a user, a role or a database
/// may have set otherwise, and that change how a clause is parsed, what it means or which rows a
/// scan returns, or how long it takes. Hidden rows are an error. The wait for a locked table is
/// limited, because other snapshots wait for a permit meanwhile.
const READING_SETTINGS: &[(&str, &str)] = &[
    ("lock_timeout", "5s"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("row_security", "off"),
    // Off, an unquoted NULL in an array's text is the text "NULL".
    ("array_nulls", "on"),
    ("backslash_quote", "safe_encoding"),
    ("timezone_abbreviations", "Default"),
    ("xmlbinary", "base64"),
    ("xmloption", "content"),
    // Otherwise, a scan of a GIN index returns only a random part of the rows.
    ("gin_fuzzy_search_limit", "0"),
    // The compilation of a long clause takes long, and can't be cancelled.
    ("jit", "off"),
];

/// Returns all settings of a session that reads rows or evaluates a clause.
pub(super) fn reading_settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    DISPLAY_SETTINGS.iter().chain(READING_SETTINGS).copied()
}

/// Settings that the lock and the first SELECT depend on.
const FIRST_SETTINGS: &[&str] = &["lock_timeout", "search_path"];

/// Selects the rows of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotQuery<'a> {
    /// The table, as described.
    pub table: &'a TableDescription,
    /// The columns of the messages, in the table's order. Other columns are read only if they are
    /// in the key.
    pub selected: &'a [usize],
    /// Condition of the rows: SQL without parameters, such as the result of `Filter::canonical`.
    /// `None`: all rows.
    pub clause: Option<&'a str>,
    /// Whether Postgres analyses the clause in a separate statement first. Then an error of the
    /// analysis is caused by the clause, and any later error by a row.
    pub analyses: bool,
    /// Whether no rows are read, and the clause is only validated.
    pub is_empty: bool,
    /// Order and limit of the rows.
    pub page: Option<SubsetPage<'a>>,
    /// The statement_timeout, in place of the server's own; zero: none.
    pub timeout: Option<Duration>,
}

/// Order and limit of a snapshot's rows.
#[derive(Debug, Clone, Copy)]
pub struct SubsetPage<'a> {
    /// SQL of the form `"a" DESC, "b"`. It is inserted unchecked.
    pub order_by: &'a str,
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Number of rows to skip.
    pub offset: Option<u64>,
}

/// Receives the rows of a snapshot.
pub trait RowSink: Send {
    /// The error of the sink. It ends the snapshot.
    type Error: Error + Send + 'static;

    /// Receives the snapshot's visibility before any row, and a WAL position after the commits of
    /// all visible transactions.
    fn begin(
        &mut self,
        snapshot: &Snapshot,
        lsn: Lsn,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Receives whole messages, each with its separator. The next ones are read after this returns.
    fn rows(&mut self, messages: Bytes) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Called after the last row. The connection may not be free yet.
    fn end(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async { Ok(()) }
    }
}

/// Summary of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// The transactions that it sees.
    pub snapshot: Snapshot,
    /// The WAL position when it was taken.
    pub lsn: Lsn,
    /// Number of rows.
    pub rows: u64,
    /// Total bytes of their messages.
    pub bytes: u64,
}

/// Reads the current rows of a table.
///
/// Dropping the future stops it: the connection is marked bad, and when its guard is dropped, the
/// reservoir sends a cancel request to the server.
///
/// # Errors
/// See [`SnapshotError`].
pub async fn snapshot<S: RowSink>(
    client: &mut ConnectionGuard<PostgresClient>,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
) -> Result<SnapshotSummary, SnapshotError<S::Error>> {
    let mut session = SessionGuard { client, is_clean: false };
    let mut commit = None;
    let outcome = read_rows(session.client, query, sink, &mut commit).await;
    let ended = match (&outcome, commit) {
        (Err(error), _) if !error.leaves_session_usable() => return outcome,
        // COMMIT rolls a failed transaction back.
        (_, Some(commit)) => first_value(commit).await.map(drop),
        (_, None) => session.client.batch_execute("ROLLBACK").await,
    };
    match ended {
        Ok(()) => session.is_clean = true,
        // All rows were read.
        Err(error) => tracing::debug!(%error, "connection lost after a snapshot"),
    }
    outcome
}

/// Marks a connection bad on drop, unless its session is clean.
struct SessionGuard<'a> {
    client: &'a mut ConnectionGuard<PostgresClient>,
    is_clean: bool,
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        if !self.is_clean {
            self.client.mark_bad();
        }
    }
}

async fn read_rows<S: RowSink>(
    client: &Client,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
    commit: &mut Option<SimpleQueryStream>,
) -> Result<SnapshotSummary, SnapshotError<S::Error>> {
    let name = &query.table.name;
    let (script, statement) = (script(query), CopyStatement::new(query));
    let beginning = StatementContext {
        table: name,
        clause: None,
        timeout: query.timeout,
        stage: ClauseStage::Unanalysed,
    };
    let copying = StatementContext {
        clause: query.clause.map(|clause| (statement.before.as_str(), clause)),
        stage: if query.analyses { ClauseStage::Analysed } else { ClauseStage::Unanalysed },
        ..beginning
    };
    let analysis = ClauseAnalysis::new(query);
    // All are sent at once. If one fails, the transaction is aborted, and the rest fail, too.
    let (started, analysed, prepared) = tokio::join!(
        biased;
        client.simple_query(&script),
        analyse(client, analysis.as_ref()),
        client.prepare(&statement.text),
    );
    let started = started.map_err(|error| SnapshotError::database(error, beginning))?;
    let SnapshotStart { snapshot, lsn, edition, partitions } =
        parse(&started).ok_or(SnapshotError::NoSnapshot)?;
    if edition != query.table.edition {
        // After an error the transaction accepts no query. A clause that doesn't fit the table now
        // may have fit the described one.
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
        Some(ClauseAnalysis { before, clause }) => {
            let clause = Some((before.as_str(), *clause));
            SnapshotError::database(
                error,
                StatementContext { clause, stage: ClauseStage::Analysing, ..beginning },
            )
        }
        None => SnapshotError::database(error, beginning),
    })?;
    let prepared = prepared.map_err(|error| SnapshotError::database(error, copying))?;
    sink.begin(&snapshot, lsn).await.map_err(SnapshotError::Sink)?;

    let stream = client.copy_out(&prepared).await.map_err(|error| SnapshotError::database(error, copying))?;
    // Closed before the transaction ends: a pooler may send the next transaction to another server.
    drop(prepared);
    *commit = Some(client.simple_query_raw("COMMIT").await.map_err(SnapshotError::Lost)?);
    let partitions_after = match query.table.is_partitioned {
        true => {
            let sql = format!("SELECT {}", partitions_of(query.table.oid));
            Some(client.simple_query_raw(&sql).await.map_err(SnapshotError::Lost)?)
        }
        false => None,
    };
    let (rows, bytes) = copy(stream, query, sink, copying).await?;
    if let Some(after) = partitions_after
        && first_value(after).await.map_err(|error| SnapshotError::database(error, beginning))? != partitions
    {
        return Err(SnapshotError::Changed { table: name.clone() });
    }
    sink.end().await.map_err(SnapshotError::Sink)?;
    Ok(SnapshotSummary { snapshot, lsn, rows, bytes })
}

/// Returns an expression for the partitions of a table and their files, as a statement's snapshot
/// sees them.
///
/// COPY reads the partitions and files that exist when it begins. ATTACH, and TRUNCATE of a
/// partition, may have changed them since the snapshot, because they don't conflict with the lock
/// on the table. So they are read with the snapshot and again after the transaction, without a lock
/// on any partition.
fn partitions_of(oid: u32) -> String {
    format!("(SELECT {PARTITIONS} FROM pg_class c WHERE c.oid = {oid})")
}

/// Reads a reply to its end. Returns the first value of its first row, if it has one.
async fn first_value(replies: SimpleQueryStream) -> Result<Option<String>, tokio_postgres::Error> {
    let (mut replies, mut value) = (pin!(replies), None);
    while let Some(reply) = poll_fn(|cx| replies.as_mut().poll_next(cx)).await {
        if let SimpleQueryMessage::Row(row) = reply?
            && value.is_none()
        {
            value = row.try_get(0)?.map(str::to_owned);
        }
    }
    Ok(value)
}

/// Passes the rows to the sink. Returns the number of rows and bytes.
async fn copy<S: RowSink>(
    stream: CopyOutStream,
    query: &SnapshotQuery<'_>,
    sink: &mut S,
    statement: StatementContext<'_>,
) -> Result<(u64, u64), SnapshotError<S::Error>> {
    let columns = query.table.encoder_columns();
    let layout =
        RowEncoder::new(&query.table.name.schema, &query.table.name.name, &columns, query.selected, false);
    let mut lines = CopyRows::new(columns.len());
    let mut stream = pin!(stream);
    let (mut rows, mut bytes) = (0, 0);
    let mut piece = Vec::new();
    while let Some(line) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        // The server sends each row in a message of its own.
        let line = line.map_err(|error| SnapshotError::database(error, statement))?;
        // Most snapshots are small and stay in memory: the first piece isn't over-allocated.
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

/// Returns the script that begins the transaction, locks the table and takes the snapshot.
///
/// Only the SELECT takes a snapshot, so it sees the table as the lock preserves it. Settings that
/// aren't needed earlier are set in the SELECT: a separate SET statement costs more. Those that
/// have their value already aren't set: some read a file.
fn script(query: &SnapshotQuery<'_>) -> String {
    let mut script = String::from("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    let mut write = |text: fmt::Arguments<'_>| script.write_fmt(text).expect("a String accepts every write");
    for (key, value) in reading_settings().filter(|(key, _)| FIRST_SETTINGS.contains(key)) {
        write(format_args!("; SET LOCAL {key} = '{value}'"));
    }
    if let Some(timeout) = query.timeout {
        // A timeout beyond the server's range means none, too.
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(0);
        write(format_args!("; SET LOCAL statement_timeout = {timeout_ms}"));
    }
    let TableDescription { name, oid, is_partitioned, .. } = query.table;
    let edition = edition_of(query.table);
    let partitions = if *is_partitioned { partitions_of(*oid) } else { "NULL".to_owned() };
    write(format_args!(
        "; LOCK TABLE ONLY {name} IN ACCESS SHARE MODE; \
         SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, {edition}, {partitions}, concat(NULL",
    ));
    for (key, value) in reading_settings().filter(|(key, _)| !FIRST_SETTINGS.contains(key)) {
        write(format_args!(
            ", CASE WHEN current_setting('{key}') <> '{value}' THEN set_config('{key}', '{value}', true) END"
        ));
    }
    write(format_args!(")"));
    script
}

/// The reply to the script.
struct SnapshotStart<'a> {
    snapshot: Snapshot,
    /// The WAL position.
    lsn: Lsn,
    edition: &'a str,
    /// The partitions of a partitioned table; see [`partitions_of`].
    partitions: Option<String>,
}

fn parse(replies: &[SimpleQueryMessage]) -> Option<SnapshotStart<'_>> {
    replies.iter().find_map(|reply| match reply {
        SimpleQueryMessage::Row(row) => {
            let (snapshot, lsn) = (row.try_get(0).ok()??, row.try_get(1).ok()??);
            Some(SnapshotStart {
                snapshot: snapshot.parse().ok()?,
                lsn: lsn.parse().ok()?,
                edition: row.try_get(2).ok()?.unwrap_or_default(),
                partitions: row.try_get(3).ok()?.map(str::to_owned),
            })
        }
        _ => None,
    })
}

/// A statement that has Postgres analyse a clause. COPY's own query is analysed only when it runs.
struct ClauseAnalysis<'a> {
    /// Text before the clause.
    before: String,
    clause: &'a str,
}

impl<'a> ClauseAnalysis<'a> {
    /// Returns `None` if the query has no clause to analyse.
    fn new(query: &SnapshotQuery<'a>) -> Option<Self> {
        let clause = query.clause.filter(|_| query.analyses)?;
        let only = if query.table.is_partitioned { "" } else { "ONLY " };
        Some(ClauseAnalysis { before: format!("SELECT 1 FROM {only}{} WHERE ", query.table.name), clause })
    }
}

async fn analyse(
    client: &Client,
    analysis: Option<&ClauseAnalysis<'_>>,
) -> Result<(), tokio_postgres::Error> {
    let Some(ClauseAnalysis { before, clause }) = analysis else { return Ok(()) };
    client.prepare(&format!("{before}{clause}")).await.map(drop)
}

/// The COPY statement that reads the rows.
struct CopyStatement {
    text: String,
    /// Text before the clause.
    before: String,
}

impl CopyStatement {
    fn new(query: &SnapshotQuery<'_>) -> Self {
        let SnapshotQuery { table, selected, .. } = query;
        let key = table.key();
        let is_needed = |index| key.is_empty() || key.contains(&index) || selected.contains(&index);
        // A column that isn't needed is read as NULL, so that every column keeps its index.
        let column = |(index, name): (usize, &str)| match is_needed(index) {
            true => quote_identifier(name),
            false => "NULL".to_owned(),
        };
        let columns: Vec<_> =
            table.columns.iter().map(|column| column.name.as_str()).enumerate().map(column).collect();
        // The stream has rows of partitions under the table, but not rows of inheriting tables.
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
            write!(text, " ORDER BY {order_by}").expect("a String accepts every write");
            let mut bound = |word, count: Option<u64>| {
                count.into_iter().try_for_each(|count| write!(text, " {word} {count}"))
            };
            bound("LIMIT", limit)
                .and_then(|()| bound("OFFSET", offset))
                .expect("a String accepts every write");
        }
        text.push_str(") TO STDOUT");
        CopyStatement { text, before }
    }
}
