//! Replication source: one replication connection, from opening to its end.
//!
//! Invariants: all events of a connection reach the machine with the connection's number. After
//! setup, the connection acts only on commands. Nothing on the server is changed without the lock.
//! Enforced by: an advisory lock of the same connection, so that lock and connection end together.

mod batch;
mod clock;
mod lock;
mod position;
mod setup;
mod stream;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use forebay_pgoutput::{Lsn, PgTime};
use forebay_reservoir::PostgresError;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

pub use self::batch::MessageBatch;
use self::position::StreamPosition;
pub use self::setup::DISPLAY_SETTINGS;
use self::setup::ServerInfo;
use crate::config::ManagerConfig;
use crate::consumer::Consumer;
use crate::core::continuity::{Bookmark, Continuity, ResetReason, ServerState, continuity};
use crate::core::machine::{AttemptId, Event};
use crate::error::{ReplicationError, SourceOperation};
use crate::wire::{QueryRows, ReplicationConnection};

/// Time limit for a reply of the server. After it, the connection counts as dead, and the next
/// attempt tries the next host.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Command of the manager to its replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceCommand {
    CheckLock,
    PrepareConsumer,
    StartStreaming,
    Close,
}

/// State that outlives a connection, shared with the manager.
pub(crate) struct SourceContext<C> {
    pub(crate) config: ManagerConfig,
    pub(crate) consumer: Arc<Mutex<C>>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) gauges: Arc<Gauges>,
}

/// Identity of a backend. Process ids are reused; the pair is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackendId {
    pub(crate) pid: i32,
    /// Start of the backend, in microseconds by the server's clock.
    pub(crate) started_at: i64,
}

impl Gauges {
    /// Returns the backend of the last connection. It may still exist and hold the lock after the
    /// connection has ended.
    pub(crate) fn last_backend(&self) -> Option<BackendId> {
        *self.last.lock()
    }

    /// Records this connection's backend, and returns the previous one.
    fn replace_backend(&self, backend: BackendId) -> Option<BackendId> {
        self.last.lock().replace(backend)
    }

    fn set_lag_start(&self, since: PgTime) {
        self.set_behind(Some(since));
    }

    /// Sets the lag to zero: all received changes are durable.
    fn clear_lag(&self) {
        self.set_behind(None);
    }

    /// Resets the figures of a stream that has ended. An instance that waits for the lock has no
    /// lag.
    pub(crate) fn end_stream(&self) {
        self.clear_lag();
        self.transactions.store(0, Ordering::Relaxed);
        *self.last_commit.lock() = None;
    }

    /// Records how many transactions the stream has received.
    fn set_transactions(&self, transactions: u64) {
        if self.transactions.swap(transactions, Ordering::Relaxed) != transactions {
            *self.last_commit.lock() = Some(Instant::now());
        }
    }

    /// Returns the time since the last commit was received on the current connection.
    pub(crate) fn last_commit_age(&self) -> Option<Duration> {
        self.last_commit.lock().map(|at| at.elapsed())
    }

    fn set_behind(&self, since: Option<PgTime>) {
        *self.behind_since.lock() = since;
    }

    /// Returns the lag. The difference of both machines' clocks is included.
    pub(crate) fn lag(&self) -> Duration {
        let since = *self.behind_since.lock();
        let micros = since.map_or(0, |since| clock::clock().micros_since(since));
        Duration::from_micros(micros.max(0).unsigned_abs())
    }
}

/// Figures of the connection, for status and metrics.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Process id of the backend; 0: none. It stays set after the connection has ended, since the
    /// backend may still exist and is terminated during shutdown.
    pub(crate) backend: AtomicI32,
    pub(crate) server_version: AtomicU64,
    pub(crate) publication: AtomicU64,
    pub(crate) position: StreamPosition,
    pub(crate) durable: AtomicU64,
    /// Transactions received on the current connection.
    pub(crate) transactions: AtomicU64,
    /// Bytes of WAL that the server retains for the slot.
    pub(crate) retained: AtomicU64,
    last: parking_lot::Mutex<Option<BackendId>>,
    /// Commit time of a received change that isn't durable. Stored instead of the lag, so that the
    /// lag grows without updates.
    behind_since: parking_lot::Mutex<Option<PgTime>>,
    /// When the last commit was received on the current connection.
    last_commit: parking_lot::Mutex<Option<Instant>>,
}

/// Why a connection ended.
pub(crate) enum SourceEnd {
    /// The manager closed the connection, or the manager was dropped.
    Closed,
    Failed(ReplicationError),
}

impl<T: Into<ReplicationError>> From<T> for SourceEnd {
    fn from(error: T) -> Self {
        SourceEnd::Failed(error.into())
    }
}

/// A replication connection that is being set up.
pub(crate) struct ReplicationSource<C> {
    attempt: AttemptId,
    context: Arc<SourceContext<C>>,
    commands: mpsc::Receiver<SourceCommand>,
    connection: ReplicationConnection,
}

impl<C: Consumer> ReplicationSource<C> {
    /// Opens a connection, sets it up, and streams until the manager closes it or it fails.
    pub(crate) async fn run(
        attempt: AttemptId,
        recreate_slot: bool,
        context: Arc<SourceContext<C>>,
        mut commands: mpsc::Receiver<SourceCommand>,
    ) -> Result<(), SourceEnd> {
        let opening = ReplicationConnection::open(&context.config.connect);
        let connection = tokio::select! {
            opened = opening => opened.map_err(|error| connect_error(error, &context.config))?,
            () = close_requested(&mut commands) => return Err(SourceEnd::Closed),
        };
        context.gauges.backend.store(connection.backend_pid(), Ordering::Release);
        let mut source = ReplicationSource { attempt, context, commands, connection };
        match source.set_up_and_wait(recreate_slot).await {
            Ok((server, from)) => {
                let ReplicationSource { context, commands, connection, .. } = source;
                stream::run(attempt, context, commands, connection, &server, from).await
            }
            Err(SourceEnd::Closed) => {
                source.connection.close().await;
                Err(SourceEnd::Closed)
            }
            Err(failed) => Err(failed),
        }
    }

    async fn set_up_and_wait(&mut self, recreate_slot: bool) -> Result<(ServerInfo, Lsn), SourceEnd> {
        self.notify(Event::Connected(self.attempt)).await?;
        let server = self.inspect_server().await?;
        self.context.gauges.server_version.store(server.version.into(), Ordering::Relaxed);
        let previous = self.context.gauges.replace_backend(server.backend);
        self.take_lock(previous).await?;
        self.notify(Event::LockTaken(self.attempt)).await?;
        let state = self.configure(&server, recreate_slot).await?;
        self.context.gauges.publication.store(state.publication.into(), Ordering::Release);
        self.notify(Event::Configured(self.attempt)).await?;
        self.wait_for(SourceCommand::PrepareConsumer).await?;
        let (from, reset) = match self.prepare_consumer(&state).await? {
            Ok(prepared) => prepared,
            Err(error) => {
                self.notify(Event::ConsumerFailed(self.attempt, error.into())).await?;
                return Err(SourceEnd::Closed);
            }
        };
        self.notify(Event::ConsumerReady(self.attempt, reset)).await?;
        self.wait_for(SourceCommand::StartStreaming).await?;
        Ok((server, from))
    }

    /// Prepares the consumer, which may take long, and runs heartbeat queries meanwhile.
    async fn prepare_consumer(
        &mut self,
        state: &ServerState,
    ) -> Result<Result<(Lsn, Option<ResetReason>), ReplicationError>, SourceEnd> {
        let context = self.context.clone();
        let mut preparing = pin!(Self::prepare(&context.consumer, state));
        loop {
            tokio::select! {
                biased;
                prepared = &mut preparing => return Ok(prepared),
                () = tokio::time::sleep(self.heartbeat_interval()) => drop(self.query(SourceOperation::WaitForConsumer, "SELECT 1").await?),
            }
        }
    }

    /// Resets the consumer if the stream can't continue at its bookmark. Returns where the stream
    /// starts.
    async fn prepare(
        consumer: &Mutex<C>,
        state: &ServerState,
    ) -> Result<(Lsn, Option<ResetReason>), ReplicationError> {
        let mut consumer = consumer.lock().await;
        let bookmark = consumer.bookmark().await?;
        match continuity(bookmark.as_ref(), state) {
            Continuity::Continues { from } => {
                if bookmark.is_some_and(|bookmark| bookmark.timeline != state.timeline) {
                    tracing::info!(
                        timeline = state.timeline.timeline_id,
                        "timeline changed by a promotion: stream continues"
                    );
                    consumer.record_timeline(state.timeline).await?;
                }
                Ok((from, None))
            }
            Continuity::Reset { reason, from } => {
                let begin =
                    Bookmark { timeline: state.timeline, publication: state.publication, durable: from };
                match reason {
                    ResetReason::First => tracing::info!(%from, "consumer starts: no bookmark"),
                    _ => tracing::warn!(reason = reason.as_str(), %from, "consumer reset"),
                }
                consumer.reset(reason, begin).await?;
                Ok((from, Some(reason)))
            }
        }
    }

    /// Waits for a command, and runs heartbeat queries meanwhile.
    async fn wait_for(&mut self, wanted: SourceCommand) -> Result<(), SourceEnd> {
        let interval = self.heartbeat_interval();
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) if command == wanted => return Ok(()),
                    Some(SourceCommand::Close) | None => return Err(SourceEnd::Closed),
                    Some(SourceCommand::CheckLock | SourceCommand::PrepareConsumer | SourceCommand::StartStreaming) => {}
                },
                // Not `self.query`, which discards commands other than `Close`.
                () = tokio::time::sleep(interval) => {
                    let reply = tokio::time::timeout(REPLY_TIMEOUT, self.connection.query("SELECT 1")).await;
                    let reply = reply.map_err(|_| ReplicationError::NoReply { operation: SourceOperation::WaitForConsumer, timeout: REPLY_TIMEOUT })?;
                    drop(reply.map_err(|error| ReplicationError::wire(SourceOperation::WaitForConsumer, error))?);
                }
            }
        }
    }

    fn heartbeat_interval(&self) -> Duration {
        self.context.config.lock_timeouts.heartbeat_interval()
    }

    /// Runs a query within the reply timeout.
    async fn query(&mut self, operation: SourceOperation, sql: &str) -> Result<QueryRows, SourceEnd> {
        match tokio::time::timeout(REPLY_TIMEOUT, self.query_without_timeout(operation, sql)).await {
            Ok(result) => result,
            Err(_) => Err(ReplicationError::NoReply { operation, timeout: REPLY_TIMEOUT }.into()),
        }
    }

    /// Runs a query that may have to wait for other transactions.
    async fn query_without_timeout(
        &mut self,
        operation: SourceOperation,
        sql: &str,
    ) -> Result<QueryRows, SourceEnd> {
        tokio::select! {
            rows = self.connection.query(sql) => Ok(rows.map_err(|error| ReplicationError::wire(operation, error))?),
            () = close_requested(&mut self.commands) => Err(SourceEnd::Closed),
        }
    }

    async fn notify(&self, event: Event) -> Result<(), SourceEnd> {
        self.context.events.send(event).await.map_err(|_| SourceEnd::Closed)
    }
}

/// Waits until the manager closes the connection. Discards other commands, which are outdated.
async fn close_requested(commands: &mut mpsc::Receiver<SourceCommand>) {
    while let Some(command) = commands.recv().await {
        if command == SourceCommand::Close {
            return;
        }
    }
}

/// Returns the error of a failed connection. Postgres checks the right to replicate while
/// connecting.
fn connect_error(error: PostgresError, config: &ManagerConfig) -> ReplicationError {
    match error {
        PostgresError::Server { error, .. } if error.code() == "42501" => {
            ReplicationError::NoReplicationRight { user: config.connect.user().to_owned(), error }
        }
        error => ReplicationError::Connect(error),
    }
}
