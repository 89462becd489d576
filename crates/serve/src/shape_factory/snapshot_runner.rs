//! Snapshot runner: fills a new shape with the rows of its table, and reads rows for subsets.
//!
//! Invariant: every change of a row is in the snapshot or in the log, and never in both.
//! Enforced by: this order. First, the runner waits until the transactions that wrote before the
//! table was published have ended. Second, the store begins to hold the stream's changes for the
//! shape (`follow`). Third, the snapshot is taken. If it doesn't see a commit that the stream has
//! already delivered, it is taken again. The store drops the held changes that the snapshot sees.
//! At most `max_snapshots` snapshots run at once. At most [`MAX_QUEUED`] shapes and subsets wait
//! for a snapshot or have one running; further requests are refused with 503.
//! Order of acquisition: a queue permit, a snapshot permit, an `AwakeGuard`, a connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_replication::{AwakeGuard, Manager, NotReady, PoolError};
use forebay_shapes::filter::Filter;
use forebay_shapes::{LogMode, ShapeCreation, ShapeGone, Shapes, SnapshotFailure, TableSchema};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::random_u64;
use super::refusals::{manager_refusal, pool_refusal};
use super::snapshot_sink::{SnapshotSink, SnapshotSinkError, seal};
use super::table_publisher::{RemovalOutcome, TablePublisher};
use crate::database::{
    self, RowSink, SnapshotError, SnapshotQuery, SnapshotSummary, TableDescription, WritersError,
};
use crate::metrics::{self, SnapshotOutcome};
use crate::protocol::RequestRefusal;

/// Maximum number of shapes and subsets that wait for a snapshot permit or hold one.
const MAX_QUEUED: usize = 1000;

/// Maximum wait for transactions from before the table was published, and for a commit of the
/// stream to become visible.
const WRITERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for the snapshot of a shape whose clause only Postgres can evaluate: a clause must
/// not hold a snapshot's connection for ever.
const POSTGRES_CLAUSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Pause before the next attempt when a commit that the stream has delivered isn't visible to
/// queries yet.
pub(crate) const VISIBILITY_RETRY: Duration = Duration::from_millis(5);

/// Takes snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotRunner {
    manager: Manager,
    shapes: Shapes,
    publisher: Arc<TablePublisher>,
    without_writers: Mutex<TablesWithoutEarlierWriters>,
    /// Number of snapshots that may run at once.
    max_snapshots: usize,
    snapshot_permits: Semaphore,
    queue_permits: Arc<Semaphore>,
}

impl SnapshotRunner {
    pub(crate) fn new(
        manager: Manager,
        shapes: Shapes,
        publisher: Arc<TablePublisher>,
        max_snapshots: usize,
    ) -> Self {
        let max_snapshots = max_snapshots.max(1);
        SnapshotRunner {
            manager,
            shapes,
            publisher,
            without_writers: Mutex::default(),
            max_snapshots,
            snapshot_permits: Semaphore::new(max_snapshots),
            queue_permits: Arc::new(Semaphore::new(MAX_QUEUED)),
        }
    }

    /// Returns a permit to wait for a snapshot.
    ///
    /// # Errors
    /// Fails if [`MAX_QUEUED`] shapes and subsets have one.
    pub(super) fn enqueue(&self) -> Result<OwnedSemaphorePermit, RequestRefusal> {
        let permit = Arc::clone(&self.queue_permits).try_acquire_owned();
        permit.map_err(|_| RequestRefusal::overloaded("snapshot", MAX_QUEUED as u64, random_u64()))
    }

    /// Returns the number of running snapshots, and of those that wait for a permit.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let running = self.max_snapshots.saturating_sub(self.snapshot_permits.available_permits());
        let all = MAX_QUEUED.saturating_sub(self.queue_permits.available_permits());
        (running, all.saturating_sub(running))
    }

    /// Takes the snapshot of a new shape, and logs and counts the outcome.
    pub(super) async fn run(&self, creation: ShapeCreation, table: &TableDescription) -> SnapshotOutcome {
        let begun = Instant::now();
        let shape = Arc::clone(creation.shape());
        let written = self.write(creation, table).await;
        let outcome = match (&written, shape.gone()) {
            (Ok(_), _) => SnapshotOutcome::Complete,
            (Err(_), Some(ShapeGone::Deleted)) => SnapshotOutcome::Gone,
            (Err(_), _) => SnapshotOutcome::Failed,
        };
        metrics::snapshot_ended(outcome, begun.elapsed());
        match written {
            Ok(rows) => {
                info!(handle = shape.handle(), table = %table.name, rows, took = ?begun.elapsed(), "shape created");
            }
            // Deletion doesn't indicate a problem with the table.
            Err(_) if matches!(outcome, SnapshotOutcome::Gone) => {
                debug!(handle = shape.handle(), table = %table.name, "shape deleted during its creation");
            }
            Err(why) => warn!(handle = shape.handle(), table = %table.name, %why, "shape not created"),
        }
        outcome
    }

    /// Reads rows with a new snapshot, independent of all logs.
    pub(crate) async fn read_rows<S: RowSink>(
        &self,
        query: &SnapshotQuery<'_>,
        sink: &mut S,
    ) -> Result<(), ReadError<S::Error>> {
        let _queue_permit = self.enqueue().map_err(ReadError::Refused)?;
        let _snapshot_permit = self.snapshot_permits.acquire().await;
        let _awake =
            self.manager.wake().await.map_err(|error| ReadError::Refused(manager_refusal(&error)))?;
        let client = self.manager.snapshot().await;
        let mut client = client.map_err(|error| ReadError::Refused(pool_refusal(&error)))?;
        database::snapshot(&mut client, query, sink).await.map_err(ReadError::Failed)?;
        client.return_without_reset();
        Ok(())
    }

    /// Returns the number of rows. A failure that concerns the table or the database is also stored
    /// in the shape, for its clients.
    async fn write(
        &self,
        creation: ShapeCreation,
        table: &TableDescription,
    ) -> Result<u64, SnapshotJobError> {
        let snapshot_permit = self.snapshot_permits.acquire().await;
        if let Some(gone) = creation.shape().gone() {
            return Err(SnapshotJobError::Gone(gone));
        }
        let (_awake, client) = match self.prepare(&creation).await {
            Ok(prepared) => prepared,
            Err(error) => return Err(error.fail(creation)),
        };
        let (outcome, creation) = read_snapshot(client, creation, table).await;
        // `complete` waits until the stream has delivered the rest of its current transaction,
        // which may take long. The wait needs neither connection nor permit.
        drop(snapshot_permit);
        let creation = creation.ok_or(SnapshotJobError::NoWriter)?;
        let rows = match outcome {
            Ok(summary) => summary.rows,
            Err(error) => return Err(SnapshotJobError::Read(error).fail(creation)),
        };
        let (sealed, creation) = seal(creation).await.map_err(SnapshotJobError::SealTask)?;
        match sealed {
            Ok(()) => creation.complete().await.map(|()| rows).map_err(SnapshotJobError::Gone),
            Err(error) => Err(SnapshotJobError::Seal(error).fail(creation)),
        }
    }

    /// Waits until the snapshot may be taken, and makes the store hold the stream's changes for the
    /// shape. Returns the connection for the snapshot.
    async fn prepare(
        &self,
        creation: &ShapeCreation,
    ) -> Result<(AwakeGuard, ConnectionGuard<PostgresClient>), SnapshotJobError> {
        let awake = self.manager.wake().await.map_err(SnapshotJobError::Manager)?;
        let table = &creation.shape().definition().table;
        self.wait_for_writers(table).await?;
        let client = self.manager.snapshot().await.map_err(SnapshotJobError::Pool)?;
        creation.follow();
        match self.publisher.wait_for_removal(table).await {
            RemovalOutcome::Kept => Ok((awake, client)),
            RemovalOutcome::Removed => Err(SnapshotJobError::TableRemoved),
        }
    }

    /// Waits until transactions that may have written to the table before its publication have
    /// ended. The stream doesn't have their changes.
    ///
    /// After a restart, or if another program published the table, the time of publication is
    /// unknown. So this waits for all transactions that hold a writer's lock now.
    async fn wait_for_writers(&self, table: &TableSchema) -> Result<(), SnapshotJobError> {
        let turn = self.shapes.turn().unwrap_or_default();
        if self.without_writers.lock().contains(turn, table) {
            return Ok(());
        }
        let client = self.manager.admin().await.map_err(SnapshotJobError::Pool)?;
        let waited = database::wait_for_writers(&client, table.oid, Instant::now() + WRITERS_TIMEOUT).await;
        waited.map_err(SnapshotJobError::Writers)?;
        self.without_writers.lock().insert(turn, table);
        Ok(())
    }
}

/// Reads the rows of a new shape into the store. Returns the creation unless a write panicked.
async fn read_snapshot(
    mut client: ConnectionGuard<PostgresClient>,
    creation: ShapeCreation,
    table: &TableDescription,
) -> (Result<SnapshotSummary, SnapshotError<SnapshotSinkError>>, Option<ShapeCreation>) {
    let shape = Arc::clone(creation.shape());
    let definition = shape.definition();
    let needs_postgres = creation.shape().filter().is_some_and(Filter::needs_postgres);
    let query = SnapshotQuery {
        table,
        selected: &definition.selected(),
        clause: shape.filter().map(Filter::postgres_sql),
        analyses: needs_postgres,
        // A changes-only shape needs the snapshot's visibility and the validation of its clause,
        // but no rows.
        is_empty: definition.options.log == LogMode::ChangesOnly,
        page: None,
        timeout: needs_postgres.then_some(POSTGRES_CLAUSE_TIMEOUT),
    };
    let mut sink = SnapshotSink::new(creation);
    let until = Instant::now() + WRITERS_TIMEOUT;
    let outcome = loop {
        match database::snapshot(&mut client, &query, &mut sink).await {
            Err(SnapshotError::Sink(SnapshotSinkError::Early)) if Instant::now() <= until => {
                // A new transaction has a newer snapshot. If the connection is lost, the next
                // attempt returns the error.
                let _ended = client.batch_execute("ROLLBACK").await;
                sleep(VISIBILITY_RETRY).await;
            }
            outcome => break outcome,
        }
    };
    match &outcome {
        Ok(_) => client.return_without_reset(),
        Err(_) => drop(client),
    }
    (outcome, sink.into_creation())
}

/// Why a new shape has no snapshot. Clients receive the text.
#[derive(Debug, thiserror::Error)]
enum SnapshotJobError {
    #[error("{0}")]
    Gone(ShapeGone),
    #[error("{0}")]
    Manager(NotReady),
    #[error("{0}")]
    Writers(WritersError),
    #[error("{0}")]
    Pool(PoolError),
    #[error("its table was just removed from the publication: try again")]
    TableRemoved,
    #[error("{0}")]
    Read(SnapshotError<SnapshotSinkError>),
    #[error("{0}")]
    Seal(io::Error),
    /// The task that syncs the snapshot panicked.
    #[error("{0}")]
    SealTask(JoinError),
    /// A write panicked.
    #[error("its snapshot was given up")]
    NoWriter,
}

impl SnapshotJobError {
    /// Stores the failure in the shape, for its clients.
    fn fail(self, creation: ShapeCreation) -> Self {
        let is_refusal = matches!(self, SnapshotJobError::Read(SnapshotError::Refused(_)));
        creation.fail(SnapshotFailure { is_refusal, message: self.to_string().into() });
        self
    }
}

/// Why rows can't be read.
#[derive(Debug)]
pub(crate) enum ReadError<E: std::error::Error + 'static> {
    /// There is no permit or no connection.
    Refused(RequestRefusal),
    Failed(SnapshotError<E>),
}

/// Tables whose earlier writers have ended, during one period in which this process writes.
///
/// Earlier writers are transactions from before the table was published, and from before this
/// process last began to write: the process that wrote before may have received a commit that isn't
/// visible yet.
#[derive(Debug, Default)]
struct TablesWithoutEarlierWriters {
    /// Number of times that this process has begun to write; see [`Shapes::turn`].
    turn: u64,
    /// By oid: the catalog rows that publish the table; see [`CatalogState::publication`].
    ///
    /// [`CatalogState::publication`]: forebay_shapes::CatalogState::publication
    tables: HashMap<u32, String>,
}

impl TablesWithoutEarlierWriters {
    fn contains(&self, turn: u64, table: &TableSchema) -> bool {
        let publication = table.state.as_ref().map(|state| &state.publication);
        self.turn == turn && publication.is_some() && self.tables.get(&table.oid) == publication
    }

    fn insert(&mut self, turn: u64, table: &TableSchema) {
        if self.turn < turn {
            *self = TablesWithoutEarlierWriters { turn, tables: HashMap::new() };
        }
        if let Some(state) = table.state.as_ref().filter(|_| self.turn == turn) {
            self.tables.insert(table.oid, state.publication.clone());
        }
    }
}
