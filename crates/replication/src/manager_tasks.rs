//! SQL tasks of the manager outside the stream: diagnosis, measurement, reconciliation, cleanup.
//!
//! Invariant: tasks make no decisions. They report to the machine as events, and at most one task
//! of a kind runs at a time.
//! Enforced by: [`run_unless_running`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::{
    Connect as _, ConnectionError, ConnectionGuard, PostgresClient, ReservoirConnection as _, tokio_postgres,
};
use tokio::sync::mpsc;

use crate::config::ManagerConfig;
use crate::core::machine::{AttemptId, Event};
use crate::core::step::StopStep;
use crate::metrics;
use crate::pools::{PoolError, Pools};
use crate::publication::PublishError;
use crate::source::{BackendId, Gauges, REPLY_TIMEOUT, SourceContext};
use crate::sql;
use crate::worker::{AbortOnDrop, ManagerContext};

/// Time limit for closing the pools.
const POOL_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for checking out a pooled connection during shutdown.
const CHECKOUT_TIMEOUT: Duration = Duration::from_millis(50);
/// Time limit for dropping the slot: a little shorter than the machine's deadline.
const DROP_TIMEOUT: Duration = Duration::from_millis(4_500);
/// Delay before an active slot is dropped again.
const DROP_RETRY_DELAY: Duration = Duration::from_millis(100);
/// First version with `pg_log_standby_snapshot()`.
const STANDBY_SNAPSHOT_VERSION: u64 = 160_000;

/// Starts the tasks, and aborts them when dropped.
pub(crate) struct ManagerTasks {
    config: Arc<ManagerConfig>,
    context: Arc<ManagerContext>,
    events: mpsc::Sender<Event>,
    gauges: Arc<Gauges>,
    diagnosis: Option<AbortOnDrop>,
    reconciliation: Option<AbortOnDrop>,
    measurement: Option<AbortOnDrop>,
    /// Tasks of the shutdown. They are aborted with the worker, so nothing is dropped after the
    /// end.
    stopping: Vec<AbortOnDrop>,
}

impl ManagerTasks {
    pub(crate) fn new<C>(source_context: &SourceContext<C>, context: &Arc<ManagerContext>) -> Self {
        ManagerTasks {
            config: Arc::new(source_context.config.clone()),
            context: context.clone(),
            events: source_context.events.clone(),
            gauges: source_context.gauges.clone(),
            diagnosis: None,
            reconciliation: None,
            measurement: None,
            stopping: Vec::new(),
        }
    }

    /// Sends an event from a new task: the worker must not wait for its own queue.
    pub(crate) fn send(&self, event: Event) {
        let events = self.events.clone();
        tokio::spawn(async move { events.send(event).await });
    }

    /// Reports what blocks the setup, and asks an idle server to log a snapshot.
    pub(crate) fn diagnose_setup(&mut self, attempt: AttemptId) {
        let (config, gauges, events) = (self.config.clone(), self.gauges.clone(), self.events.clone());
        run_unless_running(&mut self.diagnosis, async move {
            let Ok(client) = connect_directly(&config).await else { return };
            let why = match blocking_reason(&client, &gauges).await {
                Ok(why) => why,
                Err(error) => {
                    return tracing::debug!(why = sql::error_text(&error), "setup diagnosis failed");
                }
            };
            tracing::warn!(why, "setup blocked");
            let _no_manager = events.send(Event::SetupBlocked(attempt, why)).await;
            client.close().await;
        });
    }

    /// Reports whether the backend of an unconfirmed stream still exists.
    pub(crate) fn check_backend(&mut self, attempt: AttemptId) {
        let (context, gauges, events) = (self.context.clone(), self.gauges.clone(), self.events.clone());
        tokio::spawn(async move {
            let pid = gauges.backend.load(Ordering::Acquire);
            let Ok(client) = admin(&context).await else { return };
            let query = "SELECT FROM pg_stat_activity WHERE pid = $1";
            if let Ok(rows) = client.query_typed(query, &[(&pid, Type::INT4)]).await {
                let _no_manager = events.send(Event::BackendChecked(attempt, !rows.is_empty())).await;
            }
        });
    }

    /// Reconciles the publication with the tracked tables.
    pub(crate) fn reconcile(&mut self) {
        let (context, gauges) = (self.context.clone(), self.gauges.clone());
        run_unless_running(&mut self.reconciliation, async move {
            if let Err(error) = reconcile(&context, &gauges).await {
                tracing::warn!(%error, "reconciliation failed");
            }
        });
    }

    /// Updates the metrics of the stream and the slot.
    pub(crate) fn measure_slot(&mut self) {
        let (context, gauges, slot) = (self.context.clone(), self.gauges.clone(), self.config.slot.clone());
        run_unless_running(&mut self.measurement, async move {
            let positions = gauges.positions();
            ::metrics::gauge!(metrics::RECEIVED).set(positions.received as f64);
            ::metrics::gauge!(metrics::DURABLE).set(positions.durable as f64);
            ::metrics::gauge!(metrics::LAG_SECONDS).set(positions.lag.as_secs_f64());
            ::metrics::gauge!(metrics::TRANSACTIONS).set(gauges.transactions.load(Ordering::Relaxed) as f64);
            let Ok(client) = admin(&context).await else { return };
            let query = "SELECT (pg_current_wal_lsn() - '0/0')::bigint, (pg_current_wal_lsn() - restart_lsn)::bigint, \
                 safe_wal_size FROM pg_replication_slots WHERE slot_name = $1";
            let Ok(rows) = client.query_typed(query, &[(&slot, Type::TEXT)]).await else { return };
            let Some(row) = rows.first() else { return };
            let written = u64::try_from(row.get::<_, i64>(0)).unwrap_or_default();
            let durable = gauges.durable.load(Ordering::Relaxed);
            ::metrics::gauge!(metrics::LAG_BYTES).set(written.saturating_sub(durable) as f64);
            if let Some(retained) = row.get::<_, Option<i64>>(1) {
                gauges.retained.store(u64::try_from(retained).unwrap_or_default(), Ordering::Relaxed);
                ::metrics::gauge!(metrics::RETAINED).set(retained as f64);
            }
            if let Some(safe) = row.get::<_, Option<i64>>(2) {
                ::metrics::gauge!(metrics::SAFE).set(safe as f64);
            }
        });
    }

    pub(crate) fn close_pools(&self, pools: Option<Pools>) {
        let events = self.events.clone();
        tokio::spawn(async move {
            close(pools).await;
            let _no_manager = events.send(Event::PoolsClosed).await;
        });
    }

    pub(crate) fn close_snapshot_pool(&mut self, pools: Option<Pools>) {
        self.stop_step(StopStep::ClosingSnapshotPool, async move {
            if let Some(pools) = pools {
                pools.close_snapshots().await;
            }
        });
    }

    pub(crate) fn close_last_pool(&mut self, pools: Option<Pools>) {
        self.stop_step(StopStep::ClosingAdminPool, async move { close(pools).await });
    }

    /// Drops the publication. The machine requests this only while this instance holds the lock.
    pub(crate) fn drop_publication(&mut self) {
        let (context, config) = (self.context.clone(), self.config.clone());
        self.stop_step(StopStep::DroppingPublication, async move {
            if let Err(error) = ServerCleanup::DropPublication.run(&context, &config).await {
                tracing::warn!(
                    why = error.to_string(),
                    publication = config.publication,
                    "publication not dropped yet"
                );
            }
        });
    }

    /// Terminates the stream's backend if it still exists: it keeps the slot active and the lock
    /// held.
    pub(crate) fn end_backend(&mut self) {
        let (context, config, gauges) = (self.context.clone(), self.config.clone(), self.gauges.clone());
        self.stop_step(StopStep::EndingBackend, async move {
            let Some(BackendId { pid, started_at }) = gauges.last_backend() else { return };
            let cleanup = ServerCleanup::TerminateBackend(BackendId { pid, started_at });
            if let Err(error) = cleanup.run(&context, &config).await {
                tracing::warn!(why = error.to_string(), pid, "replication backend not terminated");
            }
        });
    }

    /// Drops slot and publication while holding the lock: if another instance holds it, that
    /// instance needs them.
    pub(crate) fn drop_slot(&mut self) {
        let (context, config) = (self.context.clone(), self.config.clone());
        self.stop_step(StopStep::DroppingSlot, async move {
            let dropping = ServerCleanup::DropAll.run(&context, &config);
            let (slot, publication) = (&config.slot, &config.publication);
            match tokio::time::timeout(DROP_TIMEOUT, dropping).await {
                Ok(Ok(())) => tracing::info!(slot, "slot dropped"),
                Ok(Err(error)) => {
                    tracing::warn!(
                        slot,
                        publication,
                        why = error.to_string(),
                        "slot not dropped: it retains WAL"
                    )
                }
                Err(_) => {
                    let why = "another instance holds the lock, or the server doesn't reply";
                    tracing::warn!(slot, publication, why, "slot not dropped: it retains WAL");
                }
            }
        });
    }

    /// Runs a shutdown step in a task. The machine continues without it after the step's deadline.
    fn stop_step(&mut self, step: StopStep, work: impl Future<Output = ()> + Send + 'static) {
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            // Longer than the machine's deadline of any step here. Ends a step that the machine has
            // skipped.
            if tokio::time::timeout(Duration::from_secs(10), work).await.is_err() {
                tracing::warn!(step = %crate::core::step::ManagerStep::Stopping(step), "shutdown step timed out");
            }
            let _no_manager = events.send(Event::StopDone(step)).await;
        });
        self.stopping.push(AbortOnDrop(task));
    }
}

/// Reconciles the publication with the tracked tables. Notifies the observer of changed tables, and
/// the machine of a lost publication.
pub(crate) async fn reconcile(context: &ManagerContext, gauges: &Gauges) -> Result<(), PublishError> {
    let pools = context.pools()?;
    let expected = gauges.publication.load(Ordering::Acquire);
    let oid = u32::try_from(expected).unwrap_or_default();
    let reconciling = context.publication.reconcile(&pools, oid, &*context.observer);
    let error =
        tokio::time::timeout(REPLY_TIMEOUT, reconciling).await.map_err(|_| PublishError::Timeout)??;
    // Outdated if setup has created another publication meanwhile.
    if let Some(error) = error.filter(|_| gauges.publication.load(Ordering::Acquire) == expected) {
        let _no_manager = context.events.send(Event::PublicationLost(error.into())).await;
    }
    Ok(())
}

/// Starts a task unless the last one of its kind is still running.
fn run_unless_running(last: &mut Option<AbortOnDrop>, work: impl Future<Output = ()> + Send + 'static) {
    if last.as_ref().is_none_or(|task| task.0.is_finished()) {
        *last = Some(AbortOnDrop(tokio::spawn(work)));
    }
}

async fn close(pools: Option<Pools>) {
    if let Some(pools) = pools {
        pools.close(POOL_CLOSE_TIMEOUT).await;
    }
}

async fn admin(context: &ManagerContext) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
    context.pools()?.admin().await
}

/// Opens a connection directly to the server. Needed if the pools are closed or use a pooler.
async fn connect_directly(config: &ManagerConfig) -> Result<PostgresClient, ConnectionError> {
    let credentials = config.connect.credentials().await?;
    config.connect.connect(credentials).await
}

/// Work on the server during shutdown.
#[derive(Debug, Clone, Copy)]
enum ServerCleanup {
    DropPublication,
    TerminateBackend(BackendId),
    DropAll,
}

/// Why a cleanup failed.
#[derive(Debug, thiserror::Error)]
enum CleanupError {
    #[error(transparent)]
    Connect(#[from] ConnectionError),
    #[error("{}", sql::error_text(.0))]
    Query(#[from] tokio_postgres::Error),
}

impl ServerCleanup {
    /// Runs on a pooled connection. If that fails, runs on a direct one: the pools may be closed or
    /// busy, or their role may lack the right.
    async fn run(self, context: &ManagerContext, config: &ManagerConfig) -> Result<(), CleanupError> {
        if let Ok(Ok(client)) = tokio::time::timeout(CHECKOUT_TIMEOUT, admin(context)).await
            && self.run_on(&client, config).await.is_ok()
        {
            return Ok(());
        }
        let client = connect_directly(config).await?;
        let result = self.run_on(&client, config).await;
        client.close().await;
        result
    }

    async fn run_on(self, client: &PostgresClient, config: &ManagerConfig) -> Result<(), CleanupError> {
        match self {
            ServerCleanup::DropPublication => drop_publication(client, config).await,
            ServerCleanup::DropAll => drop_all(client, config).await,
            ServerCleanup::TerminateBackend(BackendId { pid, started_at }) => {
                let statement = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {pid} \
                     AND (extract(epoch FROM backend_start) * 1000000)::bigint = {started_at}"
                );
                is_empty(client, &statement).await.map(|_| ())
            }
        }
    }
}

/// Drops publication and slot in transactions that hold the lock, since a pooler keeps no lock
/// beyond a transaction.
async fn drop_all(client: &PostgresClient, config: &ManagerConfig) -> Result<(), CleanupError> {
    let slot = sql::literal(&config.slot);
    let own_slot = format!(
        "FROM pg_replication_slots WHERE slot_name ={slot} AND plugin = 'pgoutput' AND database = current_database()"
    );
    loop {
        is_empty(client, "BEGIN").await?;
        let has_lock =
            !is_empty(client, &format!("SELECT 1 WHERE pg_try_advisory_xact_lock(hashtext({slot}))")).await?;
        if has_lock {
            drop_publication(client, config).await?;
            // A slot of that name with another plugin or database is kept.
            is_empty(
                client,
                &format!("SELECT pg_drop_replication_slot(slot_name) {own_slot} AND NOT active"),
            )
            .await?;
        }
        is_empty(client, if has_lock { "COMMIT" } else { "ROLLBACK" }).await?;
        if has_lock && is_empty(client, &format!("SELECT {own_slot}")).await? {
            return Ok(());
        }
        // This instance's own backend may still be ending. If another instance holds the lock, the
        // caller's time limit ends the loop.
        tokio::time::sleep(DROP_RETRY_DELAY).await;
    }
}

async fn drop_publication(client: &PostgresClient, config: &ManagerConfig) -> Result<(), CleanupError> {
    if config.manual_publication {
        return Ok(());
    }
    let statement = format!("DROP PUBLICATION IF EXISTS {}", sql::name(&config.publication));
    is_empty(client, &statement).await.map(|_| ())
}

/// Runs a query and returns whether it has no rows.
async fn is_empty(client: &PostgresClient, query: &str) -> Result<bool, CleanupError> {
    use tokio_postgres::SimpleQueryMessage;
    let messages = client.simple_query(query).await?;
    Ok(!messages.iter().any(|message| matches!(message, SimpleQueryMessage::Row(_))))
}

/// Returns what blocks the creation of the slot.
async fn blocking_reason(client: &PostgresClient, gauges: &Gauges) -> Result<String, tokio_postgres::Error> {
    let pid = gauges.backend.load(Ordering::Acquire);
    let query = "SELECT pid, coalesce(usename, '')::text, coalesce(application_name, ''), \
         coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::bigint \
         FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY xact_start LIMIT 1";
    let rows = client.query_typed(query, &[(&pid, Type::INT4)]).await?;
    if let Some(row) = rows.first() {
        let (blocker, user, application): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
        let open_secs: i64 = row.get(3);
        return Ok(format!(
            "setup waits for a transaction of backend {blocker} (user {user:?}, application {application:?}) that has been open for \
             {open_secs} s: end that transaction, or SELECT pg_terminate_backend({blocker})"
        ));
    }
    // A prepared transaction has no backend: pg_blocking_pids() returns 0 for it.
    let query = "SELECT gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::bigint \
         FROM pg_prepared_xacts WHERE 0 = ANY (pg_blocking_pids($1)) ORDER BY prepared LIMIT 1";
    if let Some(row) = client.query_typed(query, &[(&pid, Type::INT4)]).await?.first() {
        let (gid, owner, database): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let secs: i64 = row.get(3);
        return Ok(format!(
            "setup waits for the transaction {gid:?} (user {owner:?}, database {database:?}) that was prepared {secs} s ago: run COMMIT \
             PREPARED or ROLLBACK PREPARED in that database"
        ));
    }
    if gauges.server_version.load(Ordering::Relaxed) >= STANDBY_SNAPSHOT_VERSION {
        // A slot starts at a record of the running transactions, which an idle server rarely
        // writes.
        match client.simple_query("SELECT pg_log_standby_snapshot()").await {
            Ok(_) => {
                return Ok("setup waits for the server to log its running transactions: pg_log_standby_snapshot() was called".into());
            }
            Err(error) => {
                tracing::debug!(why = sql::error_text(&error), "pg_log_standby_snapshot() failed")
            }
        }
    }
    Ok("setup waits for the server, and no transaction blocks it".into())
}
