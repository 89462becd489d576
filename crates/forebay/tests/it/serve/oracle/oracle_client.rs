//! Oracle client: requests random shapes one after another, follows each, and checks every
//! response.
//!
//! A client reads the snapshot and the log in pages until it is up to date. Then it follows by
//! long-poll or server-sent events, with random pauses and disconnects, and resumes as the
//! published client does. After 2 to 30 up-to-dates it deletes its shape or requests another one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_testkit::TestRng;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::support::path;
use super::PostgresVariant;
use super::client_view::{ClientView, MessageCounts, ObservedState};
use super::history::{OracleRow, OracleSnapshot};
use super::oracle_connection::{OracleConnection, OracleResponseHead};
use super::oracle_request::OracleRequest;
use super::row_writers::RowWriters;
use super::schema_journal::{SchemaJournal, ShapeSelection};
use super::tables::{self, MessageRules, OracleTable};
use crate::wire::DEADLINE;

/// A run ends only after more than this number of up-to-dates of each table.
const MIN_UP_TO_DATES: u64 = 20;
/// How long to wait for enough events before the writers slow down, and slow down again.
const SLOW_DOWN_INTERVAL: Duration = Duration::from_secs(3);
/// Pause before a retry.
const RETRY: Duration = Duration::from_millis(40);
/// Maximum number of pauses in one stream. The server closes a stream whose client doesn't read for
/// 30 s.
const MAX_PAUSES: usize = 3;

/// State that all clients share.
pub(crate) struct OracleContext {
    pub(crate) server: SocketAddr,
    /// Whether connections may break and the server may be unreachable.
    pub(crate) has_faults: bool,
    /// Whether the server compacts logs, which merges updates.
    pub(crate) is_compacting: bool,
    /// Major version of Postgres.
    pub(crate) version: u32,
    /// Whether the database has an ICU collation. Clauses that depend on it may be refused.
    pub(crate) is_icu: bool,
    /// States of the tables whose definitions change.
    pub(crate) journal: Arc<SchemaJournal>,
    pub(crate) records: Mutex<ClientRecords>,
    /// Set after the last commit. A client that reaches the target ends.
    pub(crate) target: watch::Receiver<Option<CatchUpTarget>>,
}

/// The position that clients must pass after the last commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CatchUpTarget {
    /// Position of the last commit.
    pub(crate) position: u64,
    /// Maximum time without progress. There is no limit in total, because a machine may be busy.
    pub(crate) max_stall: Duration,
}

/// Handles and counters of all clients.
#[derive(Default)]
pub(crate) struct ClientRecords {
    /// Handles whose snapshot was complete. They stay valid unless a client deletes the shape.
    complete: HashSet<String>,
    /// Handles that a client deleted.
    deleted: HashSet<String>,
    /// Connections and streams that broke.
    pub(crate) breaks: u64,
    /// Responses (409, 503) after which a client sent the same request again.
    pub(crate) retries: u64,
    /// Responses 409 and 400 after which a client started over.
    pub(crate) refetches: u64,
    /// Streams that ended with messages after their last up-to-date.
    pub(crate) partial_batches: u64,
    /// Shapes that the server doesn't support, and refused with the reason.
    pub(crate) refused_shapes: u64,
    /// Number of up-to-dates, by table.
    up_to_dates: HashMap<&'static str, u64>,
}

impl OracleContext {
    pub(crate) fn new(
        server: SocketAddr,
        has_faults: bool,
        is_compacting: bool,
        variant: PostgresVariant,
        journal: Arc<SchemaJournal>,
        target: watch::Receiver<Option<CatchUpTarget>>,
    ) -> Self {
        let PostgresVariant { version, is_icu } = variant;
        OracleContext {
            server,
            has_faults,
            is_compacting,
            version,
            is_icu,
            journal,
            records: Mutex::default(),
            target,
        }
    }

    /// Waits until enough has happened for a verdict, at most [`DEADLINE`]. Slows the writers down
    /// until clients catch up often enough.
    pub(crate) async fn wait_for_enough_events(&self, writers: &RowWriters) {
        let started = Instant::now();
        let mut slowed_down = started;
        let is_enough = || {
            let records = self.records.lock();
            let is_seen = |table: &&OracleTable| records.up_to_dates.get(table.name) > Some(&MIN_UP_TO_DATES);
            records.partial_batches > 5
                && !records.deleted.is_empty()
                && tables::requested().iter().all(is_seen)
        };
        while !is_enough() && started.elapsed() < DEADLINE {
            sleep(RETRY).await;
            if slowed_down.elapsed() > SLOW_DOWN_INTERVAL {
                writers.slow_down();
                slowed_down = Instant::now();
            }
        }
    }

    /// Returns the number of shapes that clients deleted.
    pub(crate) fn deleted(&self) -> usize {
        self.records.lock().deleted.len()
    }
}

/// Everything that a client observed under one handle.
pub(crate) struct HandleTrace {
    pub(crate) request: OracleRequest,
    pub(crate) handle: String,
    pub(crate) snapshot: OracleSnapshot,
    pub(crate) observed_states: Vec<ObservedState>,
    pub(crate) counts: MessageCounts,
    pub(crate) columns: Vec<String>,
    /// The rows after the last commit, if the client still followed the handle then.
    pub(crate) rows: Option<BTreeMap<String, OracleRow>>,
    /// The rows at the end of the trace, abbreviated, for a failure report.
    pub(crate) rows_text: String,
    /// The last messages, for a failure report.
    pub(crate) recent: String,
}

impl HandleTrace {
    /// Returns columns and rows of the shape. Only for a table whose definition changes.
    pub(crate) fn selection(&self) -> ShapeSelection<'_> {
        selection_of(&self.request, &self.columns)
    }
}

fn selection_of<'a>(request: &OracleRequest, columns: &'a [String]) -> ShapeSelection<'a> {
    ShapeSelection {
        table: request.table.name,
        columns,
        names_columns: request.names_columns,
        id_below: request.id_below,
    }
}

/// A client, with the shape that it follows now.
pub(crate) struct OracleClient<'a> {
    context: &'a OracleContext,
    rng: TestRng,
    /// The only table that the client requests. `None`: any.
    table: Option<&'static OracleTable>,
    /// Whether the client requests tables whose definitions change.
    is_changing: bool,
    request: OracleRequest,
    view: ClientView,
    handle: Option<String>,
    offset: String,
    cursor: Option<String>,
    is_up_to_date: bool,
    /// Number of up-to-dates before the client deletes the shape or requests another one.
    remaining_up_to_dates: usize,
    connection: Option<OracleConnection>,
    /// Whether the client paused before the current request, so that it is behind the log.
    has_paused: bool,
    /// The last response that wasn't 200.
    refusal: String,
    traces: Vec<HandleTrace>,
    /// The highest position that the client reached, at most the target plus 1, and when.
    progress: (u64, Instant),
}

/// Why a request gave no usable response.
enum RequestFailure {
    /// The connection broke.
    Broken(io::Error),
    /// A reused connection ended before the head of the response. The client sends the request
    /// again.
    Stale,
    /// The server refuses the request for now, which is allowed. The client retries.
    RetryLater,
    /// The server removed the shape, which is allowed. The client starts over.
    Refetch,
    /// The server refuses this shape, which is allowed. The client requests another one.
    ShapeRefused,
    /// The server broke a rule.
    Violation(String),
}

impl From<io::Error> for RequestFailure {
    fn from(error: io::Error) -> Self {
        RequestFailure::Broken(error)
    }
}

impl From<String> for RequestFailure {
    fn from(violation: String) -> Self {
        RequestFailure::Violation(violation)
    }
}

impl<'a> OracleClient<'a> {
    /// Creates a client with a random request.
    ///
    /// `is_changing`: whether the client requests tables whose definitions change.
    /// `table`: the only table that the client requests. `None`: any.
    pub(crate) fn new(
        context: &'a OracleContext,
        mut rng: TestRng,
        is_changing: bool,
        table: Option<&'static OracleTable>,
    ) -> Self {
        let request = random_request(&mut rng, context, is_changing, table);
        let view = ClientView::new(&request, context.is_compacting);
        let mut client = OracleClient {
            context,
            rng,
            table,
            is_changing,
            request,
            view,
            handle: None,
            offset: "-1".to_owned(),
            cursor: None,
            is_up_to_date: false,
            remaining_up_to_dates: 0,
            progress: (0, Instant::now()),
            connection: None,
            has_paused: false,
            refusal: "none".to_owned(),
            traces: Vec::new(),
        };
        client.start_trace();
        client
    }

    /// Runs until the client has reached the target.
    ///
    /// # Errors
    /// Describes the first violation.
    pub(crate) async fn run(mut self) -> Result<Vec<HandleTrace>, String> {
        loop {
            if self.has_reached_target() {
                self.finish_trace(true);
                return Ok(self.traces);
            }
            if let Err(late) = self.check_progress() {
                return Err(self.describe(&late));
            }
            match self.step().await {
                Ok(()) => {}
                Err(RequestFailure::Violation(violation)) => {
                    let again = self.read_again().await.unwrap_or_else(|error| vec![error.to_string()]);
                    return Err(format!(
                        "{}\n the same offset, read again:\n  {}",
                        self.describe(&violation),
                        again.join("\n  ")
                    ));
                }
                Err(RequestFailure::Refetch) => {
                    self.context.records.lock().refetches += 1;
                    self.finish_trace(false);
                    self.start_trace();
                    self.view.note("starts over".to_owned());
                    if self.is_changing {
                        sleep(RETRY).await;
                    }
                }
                Err(RequestFailure::ShapeRefused) => {
                    self.context.records.lock().refused_shapes += 1;
                    self.finish_trace(false);
                    self.request = random_request(&mut self.rng, self.context, self.is_changing, self.table);
                    self.start_trace();
                }
                Err(RequestFailure::Broken(error)) => {
                    // The removal of a shape breaks responses that are being sent.
                    if !self.context.has_faults && self.request.table.rules == MessageRules::Strict {
                        return Err(self.describe(&format!("the connection broke: {error}")));
                    }
                    self.context.records.lock().breaks += 1;
                    // After a reconnect, the client reads a page first or follows at once.
                    self.is_up_to_date &= self.rng.percent(50);
                    sleep(RETRY).await;
                }
                Err(RequestFailure::Stale) => {}
                Err(RequestFailure::RetryLater) => {
                    self.context.records.lock().retries += 1;
                    self.view.note("retries later".to_owned());
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Returns whether the client is up to date after the last commit. For tables whose definitions
    /// change, its rows must also equal the final rows.
    fn has_reached_target(&self) -> bool {
        if self.is_changing {
            return self.is_up_to_date
                && self.context.target.borrow().is_some()
                && self.difference_from_final_rows().is_none();
        }
        self.is_up_to_date
            && self.context.target.borrow().is_some_and(|target| self.view.seen > target.position)
    }

    /// Describes how the client's rows differ from the final rows of its table. `None`: equal.
    fn difference_from_final_rows(&self) -> Option<String> {
        let Some(last) = self.context.journal.last(self.request.table.name) else {
            return Some("the table doesn't exist".to_owned());
        };
        let rows = last.shape(&selection_of(&self.request, &self.view.columns));
        if rows.as_ref() == Some(&self.view.rows) {
            return None;
        }
        let (columns, has) = (&self.view.columns, format_rows(&self.view.rows));
        let should = format_rows(&rows.unwrap_or_default());
        Some(format!("rows of {columns:?}:{has}\n  expected, of {:?}:{should}", last.columns))
    }

    /// Fails if the client has made no progress for `max_stall` after the last commit.
    fn check_progress(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let Some(CatchUpTarget { position, max_stall }) = *self.context.target.borrow() else {
            self.progress.1 = now;
            return Ok(());
        };
        // Positions still increase after the last commit, without changes. That isn't progress.
        let seen = self.view.seen.min(position + 1);
        if seen > self.progress.0 {
            self.progress = (seen, now);
        }
        if now - self.progress.1 <= max_stall {
            return Ok(());
        }
        let what = if self.is_changing {
            self.difference_from_final_rows().unwrap_or_default()
        } else {
            String::new()
        };
        Err(format!(
            "no progress: up to date at {}, the last commit is at {position}; {what}",
            self.view.seen
        ))
    }

    /// Drops all rows and the handle. The next request starts at offset -1.
    fn start_trace(&mut self) {
        self.view = ClientView::new(&self.request, self.context.is_compacting);
        (self.handle, self.offset, self.cursor) = (None, "-1".to_owned(), None);
        self.is_up_to_date = false;
        self.remaining_up_to_dates = self.rng.between(2, 30);
    }

    /// Stores the observations under the current handle. `is_last`: the target is reached.
    fn finish_trace(&mut self, is_last: bool) {
        let view =
            std::mem::replace(&mut self.view, ClientView::new(&self.request, self.context.is_compacting));
        let recent = view.recent();
        let rows_text = format_rows(&view.rows);
        self.traces.push(HandleTrace {
            request: self.request.clone(),
            handle: self.handle.take().unwrap_or_default(),
            snapshot: view.snapshot,
            observed_states: view.observed_states,
            columns: view.columns,
            counts: view.counts,
            rows: is_last.then_some(view.rows),
            rows_text,
            recent,
        });
    }

    fn describe(&self, violation: &str) -> String {
        let (handle, offset, request) =
            (self.handle.as_deref().unwrap_or("no handle"), &self.offset, &self.request);
        let (refusal, recent) = (&self.refusal, self.view.recent());
        format!(
            "{violation}\n at offset {offset} of {handle}, {request:?}\n last refusal: {refusal}\n  {recent}"
        )
    }

    /// Reads the log again from the current offset, for a failure report. The result shows whether
    /// the log is wrong, or only the response was.
    async fn read_again(&self) -> io::Result<Vec<String>> {
        let mut connection = OracleConnection::open(self.context.server).await?;
        let query = self.request.query();
        let mut params: Vec<_> = query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        params.push(("offset", &self.offset));
        params.extend(self.handle.iter().map(|handle| ("handle", handle.as_str())));
        connection.send("GET", &path(&params)).await?;
        let head = connection.read_head().await?;
        let body = connection.read_body(&head).await?;
        let lines = String::from_utf8_lossy(&body)
            .lines()
            .take(8)
            .map(|line| line.chars().take(400).collect())
            .collect();
        Ok(lines)
    }

    /// Deletes the shape, or reads on after an optional change to another shape and a pause.
    async fn step(&mut self) -> Result<(), RequestFailure> {
        if self.is_up_to_date && self.remaining_up_to_dates == 0 && self.context.target.borrow().is_none() {
            self.remaining_up_to_dates = self.rng.between(2, 30);
            if self.rng.percent(50) && !self.is_changing {
                return self.delete().await;
            }
            self.finish_trace(false);
            self.request = random_request(&mut self.rng, self.context, self.is_changing, self.table);
            self.start_trace();
        }
        self.has_paused = self.rng.percent(5) && self.context.target.borrow().is_none();
        if self.has_paused {
            // Meanwhile the log grows, and the client has to catch up.
            sleep(Duration::from_millis(self.rng.between(300, 2500) as u64)).await;
        }
        match self.is_up_to_date {
            false => self.read_page(false).await,
            true if self.is_stalled() || self.rng.percent(50) => self.read_page(true).await,
            true => self.follow_events().await,
        }
    }

    /// Returns whether the client has made no progress for a quarter of `max_stall`.
    ///
    /// It then sends only long-polls. Their responses have a new position even if no change matches
    /// the shape; event streams send none in that case.
    fn is_stalled(&self) -> bool {
        let target = *self.context.target.borrow();
        target.is_some_and(|target| self.progress.1.elapsed() > target.max_stall / 4)
    }

    /// Sends a request. Returns the head of a valid response 200, whose body is unread.
    async fn request(
        &mut self,
        live: &[(&str, &str)],
    ) -> Result<(OracleConnection, OracleResponseHead), RequestFailure> {
        if self.offset == "-1" {
            // The connection may have broken inside the response that named the handle.
            self.handle = None;
        }
        let query = self.request.query();
        let mut params: Vec<_> = query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        params.push(("offset", &self.offset));
        params.extend(self.handle.iter().map(|handle| ("handle", handle.as_str())));
        params.extend(self.cursor.iter().map(|cursor| ("cursor", cursor.as_str())));
        params.extend(live);
        self.view.note(format!("requests {} {live:?}", self.offset));
        let path = path(&params);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => OracleConnection::open(self.context.server).await?,
        };
        if self.rng.percent(2) {
            // Disconnects right after the request, and sends it again.
            connection.send("GET", &path).await?;
            connection = OracleConnection::open(self.context.server).await?;
        }
        let head = match connection.send("GET", &path).await {
            Ok(()) => connection.read_head().await,
            Err(error) => Err(error),
        };
        let head = match head {
            Ok(head) => head,
            Err(_) if connection.is_used => return Err(RequestFailure::Stale),
            Err(error) => return Err(error.into()),
        };
        if head.status == 200 {
            self.check_head(&head, !live.is_empty())?;
            return Ok((connection, head));
        }
        let body = connection.read_body(&head).await?;
        self.refusal = format!("{} {}", head.status, String::from_utf8_lossy(&body));
        Err(self.classify_refusal(&head, &body))
    }

    /// Checks the headers of a response 200, and stores handle, columns and cursor.
    fn check_head(&mut self, head: &OracleResponseHead, is_live: bool) -> Result<(), String> {
        let named = |name: &str| head.header(name).ok_or_else(|| format!("no {name} in {}", head.text));
        let handle = named("electric-handle")?;
        named("electric-offset")?;
        if self.handle.get_or_insert_with(|| handle.to_owned()) != handle {
            return Err(format!("a response of another shape: {}", head.text));
        }
        if !is_live && self.view.columns.is_empty() {
            let columns: Option<Map<String, Value>> = serde_json::from_str(named("electric-schema")?).ok();
            self.view.columns =
                columns.into_iter().flat_map(|columns| columns.into_iter().map(|(name, _)| name)).collect();
            self.view.columns.sort_unstable();
        }
        self.cursor = match is_live {
            true => Some(named("electric-cursor")?.to_owned()),
            false => named("electric-schema").map(|_| None)?,
        };
        Ok(())
    }

    /// Checks a response other than 200, and returns what the client does next.
    fn classify_refusal(&self, head: &OracleResponseHead, body: &[u8]) -> RequestFailure {
        let response = || format!("{}{}", head.text, String::from_utf8_lossy(body));
        match (head.status, &self.handle) {
            (409, Some(handle)) => {
                let records = self.context.records.lock();
                let may_be_gone = self.request.table.rules != MessageRules::Strict
                    || !records.complete.contains(handle)
                    || records.deleted.contains(handle);
                let body: Option<Value> = serde_json::from_slice(body).ok();
                if body != Some(json!([{"headers": {"control": "must-refetch"}}])) {
                    return RequestFailure::Violation(format!("409 without must-refetch: {}", response()));
                }
                if head.header("electric-handle") == Some(handle) {
                    return RequestFailure::Violation("409 names the removed handle".to_owned());
                }
                match may_be_gone {
                    true => RequestFailure::Refetch,
                    false => RequestFailure::Violation(format!(
                        "409 for a complete shape that no client deleted: {}",
                        response()
                    )),
                }
            }
            // The server removed the shape while it prepared the first response.
            (409, None) if self.context.has_faults || self.request.table.rules != MessageRules::Strict => {
                RequestFailure::RetryLater
            }
            (400, _) if self.may_be_refused(body) => RequestFailure::ShapeRefused,
            // A table or a column that doesn't exist right now, or a publication that changes.
            (400, _) if self.is_changing => RequestFailure::Refetch,
            (503, _) if self.is_changing => RequestFailure::RetryLater,
            // A new shape needs a database connection. On a busy machine, that can take too long.
            (503, handle) if self.context.has_faults || handle.is_none() => RequestFailure::RetryLater,
            _ => RequestFailure::Violation(format!("unexpected response: {}", response())),
        }
    }

    /// Returns whether the server may refuse this shape, and the body states the reason.
    fn may_be_refused(&self, body: &[u8]) -> bool {
        let body = String::from_utf8_lossy(body).to_lowercase();
        let names = |words: &[&str]| words.iter().any(|word| body.contains(word));
        match self.request.table.rules {
            MessageRules::MovingKeys => names(&["primary key", "deferrable", "replica identity"]),
            MessageRules::PartitionTree | MessageRules::Mixed if names(&["partition"]) => true,
            _ => self.context.is_icu && names(&["collation", "collate"]),
        }
    }

    /// Reads one whole response: a chunk of the log, or a long-poll.
    async fn read_page(&mut self, is_live: bool) -> Result<(), RequestFailure> {
        let live: &[_] = if is_live { &[("live", "true")] } else { &[] };
        let (mut connection, head) = self.request(live).await?;
        let body = connection.read_body(&head).await?;
        if head.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        let messages: Vec<Value> = serde_json::from_slice(&body)
            .map_err(|error| format!("{error} in {}", String::from_utf8_lossy(&body)))?;
        for message in &messages {
            self.view.apply(message)?;
        }
        let is_control = |message: &Value| message["headers"]["control"] == "up-to-date";
        let is_up_to_date = head.header("electric-up-to-date").is_some();
        let up_to_dates = messages.iter().filter(|message| is_control(message)).count();
        if up_to_dates != usize::from(is_up_to_date)
            || messages.last().is_some_and(is_control) != is_up_to_date
        {
            return Err(format!("up-to-date in the head and in the body differ: {}", head.text).into());
        }
        let offset = head.header("electric-offset").unwrap_or_default().to_owned();
        self.check_offset(&offset, is_up_to_date)?;
        self.offset = offset;
        self.is_up_to_date = is_up_to_date;
        if is_up_to_date {
            self.record_up_to_date();
        }
        Ok(())
    }

    /// Checks that the offset of a response follows from the requested one.
    fn check_offset(&self, answered: &str, is_up_to_date: bool) -> Result<(), String> {
        let (requested, answered) = (parse_offset(&self.offset)?, parse_offset(answered)?);
        let fits = match answered.0 {
            0 if !is_up_to_date => {
                requested.0 == 0 && (self.offset == "-1" && answered.1 == 0 || answered.1 == requested.1 + 1)
            }
            _ if is_up_to_date => {
                answered >= requested && answered >= self.view.at && answered.0 <= self.view.seen
            }
            _ => answered > requested && answered == self.view.at,
        };
        if fits { Ok(()) } else { Err(format!("offset {answered:?} in a response to {requested:?}")) }
    }

    /// Counts an up-to-date. The snapshot is complete, so from now on the handle must stay valid.
    fn record_up_to_date(&mut self) {
        self.remaining_up_to_dates = self.remaining_up_to_dates.saturating_sub(1);
        if let Some(handle) = &self.handle {
            let mut records = self.context.records.lock();
            records.complete.insert(handle.clone());
            *records.up_to_dates.entry(self.request.table.name).or_default() += 1;
        }
    }

    /// Follows by server-sent events, as the published client does.
    ///
    /// The offset of the response head becomes the client's offset. Messages are applied together
    /// at the next up-to-date. After an up-to-date, the client resumes at the position in that
    /// message. See [`Self::end_partial_batch`] for a stream that ends before it.
    async fn follow_events(&mut self) -> Result<(), RequestFailure> {
        let mut plan = match self.is_changing {
            true => StreamPlan::without_pauses(&mut self.rng),
            false => StreamPlan::random(&mut self.rng, self.has_paused),
        };
        if plan.is_slow() {
            self.connection = Some(OracleConnection::open_slow(self.context.server).await?);
        }
        let (mut connection, head) = self.request(&[("live", "true"), ("live_sse", "true")]).await?;
        if head.header("content-type") != Some("text/event-stream") {
            return Err(format!("the response isn't an event stream: {}", head.text).into());
        }
        head.header("electric-offset").unwrap_or_default().clone_into(&mut self.offset);
        self.view.note(format!("the stream opens at {}, {plan:?}", self.offset));
        let (mut unread, mut batch) = (Vec::new(), Vec::new());
        let ended = 'stream: loop {
            let chunk = match connection.read_chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Ok(()),
                Err(error) => {
                    self.view.note(format!("the stream breaks: {error}, {} bytes unread", unread.len()));
                    // The shape may have been removed. Then the next response is a 409.
                    self.context.records.lock().breaks += 1;
                    break Ok(());
                }
            };
            unread.extend(chunk);
            while let Some(end) = unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                if event == b": keep-alive\n\n" {
                    continue;
                }
                let message =
                    event.strip_prefix(b"data: ").and_then(|json| serde_json::from_slice(json).ok());
                let message: Value =
                    message.ok_or_else(|| format!("not an event: {}", String::from_utf8_lossy(&event)))?;
                let is_end = message["headers"]["control"] == "up-to-date";
                batch.push(message);
                if is_end {
                    self.apply_batch(&mut batch)?;
                }
                match plan.after_event() {
                    Some(StreamAction::Disconnect) => break 'stream Ok(()),
                    Some(StreamAction::Pause(time)) => sleep(time).await,
                    None => {}
                }
            }
            self.check_progress()?;
            // After the last change of a definition, the server must end the stream.
            let stays = self.is_changing && self.context.target.borrow().is_some();
            let leaves = self.remaining_up_to_dates == 0 || self.rng.percent(2);
            if batch.is_empty() && (self.has_reached_target() || leaves && !stays) {
                return Ok(());
            }
        };
        self.end_partial_batch(&batch, plan.keeps_partial)?;
        ended
    }

    /// Handles messages after the last up-to-date of a stream that ended. They are dropped, as the
    /// published client does, or applied, as the protocol allows.
    fn end_partial_batch(&mut self, batch: &[Value], keeps_partial: bool) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
        self.context.records.lock().partial_batches += 1;
        if !keeps_partial {
            self.view.note(format!("drops {} messages", batch.len()));
            return Ok(());
        }
        for message in batch {
            self.view.apply(message)?;
        }
        self.offset = format!("{}_{}", self.view.at.0, self.view.at.1);
        self.is_up_to_date = false;
        Ok(())
    }

    /// Applies all messages up to an up-to-date.
    fn apply_batch(&mut self, batch: &mut Vec<Value>) -> Result<(), String> {
        for message in batch.drain(..) {
            self.view.apply(&message)?;
        }
        self.offset = format!("{}_0", self.view.seen);
        self.record_up_to_date();
        Ok(())
    }

    /// Deletes the client's shape. From then on, a 409 for the handle is allowed.
    async fn delete(&mut self) -> Result<(), RequestFailure> {
        let Some(handle) = self.handle.clone() else { return Ok(()) };
        self.context.records.lock().deleted.insert(handle.clone());
        let mut connection = OracleConnection::open(self.context.server).await?;
        connection.send("DELETE", &path(&[("table", self.request.table.name), ("handle", &handle)])).await?;
        let head = connection.read_head().await?;
        match head.status {
            // 404: another client deleted the same shape before.
            202 | 404 => Ok(()),
            503 if self.context.has_faults => Err(RequestFailure::RetryLater),
            _ => Err(format!("DELETE failed: {}", head.text).into()),
        }
    }
}

/// Returns a random request.
fn random_request(
    rng: &mut TestRng,
    context: &OracleContext,
    is_changing: bool,
    table: Option<&'static OracleTable>,
) -> OracleRequest {
    if is_changing {
        OracleRequest::of_changing_table(rng)
    } else {
        OracleRequest::random(rng, context.version, table)
    }
}

/// Formats rows by key, with the first characters of each value, for a failure report.
pub(crate) fn format_rows(rows: &BTreeMap<String, OracleRow>) -> String {
    let value = |value: &Option<String>| match value {
        Some(text) => text.chars().take(24).collect(),
        None => "NULL".to_owned(),
    };
    let line = |row: &OracleRow| row.iter().map(value).collect::<Vec<_>>().join(" | ");
    rows.iter().take(150).map(|(key, row)| format!("\n    {key}: {}", line(row))).collect()
}

/// How a client reads an event stream.
#[derive(Debug)]
struct StreamPlan {
    /// Number of events after which the client disconnects.
    disconnect_after: Option<usize>,
    /// Number of events between two pauses, and the length of a pause.
    pauses: Option<(usize, Duration)>,
    /// Whether the client applies messages after the last up-to-date of a stream that ended.
    keeps_partial: bool,
    /// Number of events so far.
    events: usize,
}

enum StreamAction {
    Disconnect,
    Pause(Duration),
}

impl StreamPlan {
    /// Returns a random plan. `is_behind`: the client has much to read, and pauses more often.
    fn random(rng: &mut TestRng, is_behind: bool) -> Self {
        let disconnect_after = rng.percent(40).then(|| rng.between(1, 30));
        let pause = Duration::from_millis(rng.between(50, 900) as u64);
        let pauses = rng.percent(if is_behind { 70 } else { 15 }).then(|| (rng.between(1, 20), pause));
        StreamPlan { disconnect_after, pauses, keeps_partial: rng.percent(20), events: 0 }
    }

    /// Returns a plan without pauses, for tables whose definitions change: there the time of each
    /// up-to-date is judged.
    fn without_pauses(rng: &mut TestRng) -> Self {
        StreamPlan { pauses: None, ..StreamPlan::random(rng, false) }
    }

    fn is_slow(&self) -> bool {
        self.pauses.is_some()
    }

    /// Counts an event, and returns what to do after it.
    fn after_event(&mut self) -> Option<StreamAction> {
        self.events += 1;
        if self.disconnect_after == Some(self.events) {
            return Some(StreamAction::Disconnect);
        }
        let (every, pause) = self.pauses?;
        let is_due = self.events.is_multiple_of(every) && self.events <= MAX_PAUSES * every;
        is_due.then_some(StreamAction::Pause(pause))
    }
}

/// Parses an offset. `-1` is before everything, and `inf` is after all operations of its
/// transaction.
fn parse_offset(offset: &str) -> Result<(u64, u64), String> {
    if offset == "-1" {
        return Ok((0, 0));
    }
    let op = |op: &str| if op == "inf" { Some(u64::MAX) } else { op.parse().ok() };
    let parts = offset.split_once('_').and_then(|(lsn, rest)| Some((lsn.parse().ok()?, op(rest)?)));
    parts.ok_or_else(|| format!("not an offset: {offset}"))
}
