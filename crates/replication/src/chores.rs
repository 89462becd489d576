//! What the manager does besides the stream, with SQL: looking, explaining, dropping, ending.
//!
//! Invariant: nothing here decides; what is found goes to the machine as an event, and each chore runs once at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::{
    Connect as _, ConnectionError, ConnectionGuard, PostgresClient, ReservoirConnection as _,
};
use tokio::sync::mpsc;

use crate::config::ManagerConfig;
use crate::core::machine::{Attempt, Event};
use crate::core::step::StopStep;
use crate::metrics;
use crate::pools::Pools;
use crate::publication::PublishError;
use crate::source::{ANSWER, Backend, Gauges, Setting};
use crate::sql;
use crate::worker::{Common, Task};

/// How long the pools may take to close.
const CLOSING: Duration = Duration::from_secs(2);
/// How long a connection of the pools is waited for while shutting down.
const BORROWING: Duration = Duration::from_millis(50);
/// How long dropping may take: a little less than the machine waits for it.
const DROPPING: Duration = Duration::from_millis(4_500);
/// How long until a slot that is in use is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// The first server that can be helped to see that nothing is open.
const STANDBY_SNAPSHOT: u64 = 160_000;

pub(crate) struct Chores {
    config: Arc<ManagerConfig>,
    common: Arc<Common>,
    events: mpsc::Sender<Event>,
    gauges: Arc<Gauges>,
    explaining: Option<Task>,
    reconciling: Option<Task>,
    observing: Option<Task>,
    /// What is still being done on the way down. It ends with the worker: after the end, nothing is dropped any more.
    stopping: Vec<Task>,
}

impl Chores {
    pub(crate) fn new<C>(setting: &Setting<C>, common: &Arc<Common>) -> Self {
        Chores {
            config: Arc::new(setting.config.clone()),
            common: common.clone(),
            events: setting.events.clone(),
            gauges: setting.gauges.clone(),
            explaining: None,
            reconciling: None,
            observing: None,
            stopping: Vec::new(),
        }
    }

    /// Without making the worker wait for itself.
    pub(crate) fn send(&self, event: Event) {
        let events = self.events.clone();
        tokio::spawn(async move { events.send(event).await });
    }

    /// Says what configuring waits for, and helps where it can.
    pub(crate) fn explain_setup(&mut self, attempt: Attempt) {
        let (config, gauges, events) = (self.config.clone(), self.gauges.clone(), self.events.clone());
        run_once(&mut self.explaining, async move {
            let Ok(client) = direct(&config).await else { return };
            let why = match what_it_waits_for(&client, &gauges).await {
                Ok(why) => why,
                Err(error) => {
                    return tracing::debug!(
                        why = sql::words(&error),
                        "nobody could say what the set-up waits for"
                    );
                }
            };
            tracing::warn!(why, "setting up takes long");
            let _no_manager = events.send(Event::SetupWaits(attempt, why)).await;
            client.close().await;
        });
    }

    /// Whether the backend of a stream that isn't confirmed is there.
    pub(crate) fn check_alive(&mut self, attempt: Attempt) {
        let (common, gauges, events) = (self.common.clone(), self.gauges.clone(), self.events.clone());
        tokio::spawn(async move {
            let pid = gauges.backend.load(Ordering::Acquire);
            let Ok(client) = admin(&common).await else { return };
            let asking = "SELECT FROM pg_stat_activity WHERE pid = $1";
            if let Ok(rows) = client.query_typed(asking, &[(&pid, Type::INT4)]).await {
                let _no_manager = events.send(Event::Alive(attempt, !rows.is_empty())).await;
            }
        });
    }

    /// Compares the publication with what it should be.
    pub(crate) fn reconcile(&mut self) {
        let (common, gauges) = (self.common.clone(), self.gauges.clone());
        run_once(&mut self.reconciling, async move {
            if let Err(error) = reconcile(&common, &gauges).await {
                tracing::warn!(%error, "the publication couldn't be checked");
            }
        });
    }

    /// Asks what the slot costs the server.
    pub(crate) fn observe(&mut self) {
        let (common, gauges, slot) = (self.common.clone(), self.gauges.clone(), self.config.slot.clone());
        run_once(&mut self.observing, async move {
            let positions = gauges.positions();
            ::metrics::gauge!(metrics::RECEIVED).set(positions.received as f64);
            ::metrics::gauge!(metrics::DURABLE).set(positions.durable as f64);
            ::metrics::gauge!(metrics::LAG_SECONDS).set(positions.lag.as_secs_f64());
            ::metrics::gauge!(metrics::TRANSACTIONS).set(gauges.transactions.load(Ordering::Relaxed) as f64);
            let Ok(client) = admin(&common).await else { return };
            let asking = "SELECT (pg_current_wal_lsn() - '0/0')::bigint, (pg_current_wal_lsn() - restart_lsn)::bigint, \
                 safe_wal_size FROM pg_replication_slots WHERE slot_name = $1";
            let Ok(rows) = client.query_typed(asking, &[(&slot, Type::TEXT)]).await else { return };
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

    pub(crate) fn close_last_pool(&mut self, pools: Option<Pools>) {
        self.stop_step(StopStep::ClosingAdminPool, async move { close(pools).await });
    }

    /// Asked for only while our own replication connection holds the lock.
    pub(crate) fn drop_publication(&mut self) {
        let (common, config) = (self.common.clone(), self.config.clone());
        self.stop_step(StopStep::DroppingPublication, async move {
            if let Err(why) = Errand::DropPublication.run(&common, &config).await {
                tracing::warn!(why, publication = config.publication, "the publication isn't dropped yet");
            }
        });
    }

    /// Ends the backend of the stream if it hasn't ended by itself: until then the slot is in use and the lock held.
    pub(crate) fn end_backend(&mut self) {
        let (common, config, gauges) = (self.common.clone(), self.config.clone(), self.gauges.clone());
        self.stop_step(StopStep::EndingBackend, async move {
            let Some(Backend { pid, began }) = gauges.last_backend() else { return };
            let errand = Errand::End(Backend { pid, began });
            if let Err(why) = errand.run(&common, &config).await {
                tracing::warn!(why, pid, "the replication connection's backend couldn't be ended");
            }
        });
    }

    /// Drops slot and publication, under the lock: whoever else has it still needs them.
    pub(crate) fn drop_slot(&mut self) {
        let (common, config) = (self.common.clone(), self.config.clone());
        self.stop_step(StopStep::DroppingSlot, async move {
            let dropping = Errand::DropAll.run(&common, &config);
            let (slot, publication) = (&config.slot, &config.publication);
            match tokio::time::timeout(DROPPING, dropping).await {
                Ok(Ok(())) => tracing::info!(slot, "dropped the slot"),
                Ok(Err(why)) => {
                    tracing::warn!(slot, publication, why, "the slot stays on the server, and keeps its log")
                }
                Err(_) => {
                    let why = "another instance holds the lock, or the server doesn't answer";
                    tracing::warn!(slot, publication, why, "the slot stays on the server, and keeps its log");
                }
            }
        });
    }

    /// The machine goes on without it when it takes too long.
    fn stop_step(&mut self, step: StopStep, chore: impl Future<Output = ()> + Send + 'static) {
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            // Longer than any deadline of the machine: a chore that nobody waits for any more ends, too.
            if tokio::time::timeout(Duration::from_secs(10), chore).await.is_err() {
                tracing::warn!(step = %crate::core::step::Step::Stopping(step), "a step of the shutdown took too long");
            }
            let _no_manager = events.send(Event::StopDone(step)).await;
        });
        self.stopping.push(Task(task));
    }
}

/// Compares the publication with what it should be, now. What it finds of tables goes to whoever listens, and a publication that is
/// lost to the machine.
pub(crate) async fn reconcile(common: &Common, gauges: &Gauges) -> Result<(), PublishError> {
    let pools = common.pools()?;
    let known = gauges.publication.load(Ordering::Acquire);
    let oid = u32::try_from(known).unwrap_or_default();
    let looking = common.publication.reconcile(&pools, oid, &*common.news);
    let failure = tokio::time::timeout(ANSWER, looking).await.map_err(|_| PublishError::NoAnswer)??;
    // If set-up has made another one meanwhile, this is old news.
    if let Some(failure) = failure.filter(|_| gauges.publication.load(Ordering::Acquire) == known) {
        let _no_manager = common.events.send(Event::PublicationLost(failure.into())).await;
    }
    Ok(())
}

fn run_once(last: &mut Option<Task>, chore: impl Future<Output = ()> + Send + 'static) {
    if last.as_ref().is_none_or(|task| task.0.is_finished()) {
        *last = Some(Task(tokio::spawn(chore)));
    }
}

async fn close(pools: Option<Pools>) {
    if let Some(pools) = pools {
        pools.close(CLOSING).await;
    }
}

async fn admin(common: &Common) -> Result<ConnectionGuard<PostgresClient>, String> {
    let pools = common.pools().map_err(|error| error.to_string())?;
    pools.admin().await.map_err(|error| error.to_string())
}

/// A connection of its own to the server itself, for when there are no pools, or they lead elsewhere.
async fn direct(config: &ManagerConfig) -> Result<PostgresClient, ConnectionError> {
    let credentials = config.connect.credentials().await?;
    config.connect.connect(credentials).await
}

/// What is done on the server on the way down.
#[derive(Debug, Clone, Copy)]
enum Errand {
    DropPublication,
    End(Backend),
    DropAll,
}

impl Errand {
    /// On a connection of the pools, or else on one of its own: no pool may be there, or free, or let its role do it.
    async fn run(self, common: &Common, config: &ManagerConfig) -> Result<(), String> {
        if let Ok(Ok(client)) = tokio::time::timeout(BORROWING, admin(common)).await
            && self.run_on(&client, config).await.is_ok()
        {
            return Ok(());
        }
        let client = direct(config).await.map_err(|error| error.to_string())?;
        let result = self.run_on(&client, config).await;
        client.close().await;
        result
    }

    async fn run_on(self, client: &PostgresClient, config: &ManagerConfig) -> Result<(), String> {
        match self {
            Errand::DropPublication => drop_publication(client, config).await,
            Errand::DropAll => drop_all(client, config).await,
            Errand::End(Backend { pid, began }) => {
                let statement = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {pid} \
                     AND (extract(epoch FROM backend_start) * 1000000)::bigint = {began}"
                );
                is_empty(client, &statement).await.map(|_| ())
            }
        }
    }
}

/// Drops what is ours, in transactions that hold the lock: a pooler gives nothing else to one client.
async fn drop_all(client: &PostgresClient, config: &ManagerConfig) -> Result<(), String> {
    let slot = sql::literal(&config.slot);
    let mine = format!(
        "FROM pg_replication_slots WHERE slot_name ={slot} AND plugin = 'pgoutput' AND database = current_database()"
    );
    loop {
        is_empty(client, "BEGIN").await?;
        let is_ours =
            !is_empty(client, &format!("SELECT 1 WHERE pg_try_advisory_xact_lock(hashtext({slot}))")).await?;
        if is_ours {
            drop_publication(client, config).await?;
            // One of that name that is somebody else's stays.
            is_empty(client, &format!("SELECT pg_drop_replication_slot(slot_name) {mine} AND NOT active"))
                .await?;
        }
        is_empty(client, if is_ours { "COMMIT" } else { "ROLLBACK" }).await?;
        if is_ours && is_empty(client, &format!("SELECT {mine}")).await? {
            return Ok(());
        }
        // Our own backend may take a moment to let go. Another instance won't, and then all of it stays.
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn drop_publication(client: &PostgresClient, config: &ManagerConfig) -> Result<(), String> {
    if config.manual_publication {
        return Ok(());
    }
    let statement = format!("DROP PUBLICATION IF EXISTS {}", sql::name(&config.publication));
    is_empty(client, &statement).await.map(|_| ())
}

/// Whether a query has no row.
async fn is_empty(client: &PostgresClient, query: &str) -> Result<bool, String> {
    use forebay_reservoir::tokio_postgres::SimpleQueryMessage;
    let answers = client.simple_query(query).await.map_err(|error| sql::words(&error))?;
    Ok(!answers.iter().any(|answer| matches!(answer, SimpleQueryMessage::Row(_))))
}

async fn what_it_waits_for(
    client: &PostgresClient,
    gauges: &Gauges,
) -> Result<String, forebay_reservoir::tokio_postgres::Error> {
    let pid = gauges.backend.load(Ordering::Acquire);
    let asking = "SELECT pid, coalesce(usename, '')::text, coalesce(application_name, ''), \
         coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::bigint \
         FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY xact_start LIMIT 1";
    let rows = client.query_typed(asking, &[(&pid, Type::INT4)]).await?;
    if let Some(row) = rows.first() {
        let (blocker, user, application): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
        let open_secs: i64 = row.get(3);
        return Ok(format!(
            "it waits for a transaction of backend {blocker} (user {user:?}, application {application:?}) that has been open for \
             {open_secs} s: end that transaction, or SELECT pg_terminate_backend({blocker})"
        ));
    }
    // A prepared transaction has no backend: the server tells of it as number 0.
    let asking = "SELECT gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::bigint \
         FROM pg_prepared_xacts WHERE 0 = ANY (pg_blocking_pids($1)) ORDER BY prepared LIMIT 1";
    if let Some(row) = client.query_typed(asking, &[(&pid, Type::INT4)]).await?.first() {
        let (gid, owner, database): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let secs: i64 = row.get(3);
        return Ok(format!(
            "it waits for the transaction {gid:?} (user {owner:?}, database {database:?}) that was prepared {secs} s ago: COMMIT \
             PREPARED or ROLLBACK PREPARED ends it, in that database"
        ));
    }
    if gauges.server_version.load(Ordering::Relaxed) >= STANDBY_SNAPSHOT {
        // A slot begins at a record of what is open, which a quiet server writes only now and then.
        match client.simple_query("SELECT pg_log_standby_snapshot()").await {
            Ok(_) => {
                return Ok("it waits for the server to log which transactions are open: asked it to".into());
            }
            Err(error) => {
                tracing::debug!(why = sql::words(&error), "no right to call pg_log_standby_snapshot()")
            }
        }
    }
    Ok("it waits for the server, and no transaction is in its way".into())
}
