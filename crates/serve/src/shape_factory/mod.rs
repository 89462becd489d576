//! Shape factory: finds the shape that a request selects, or creates it.
//!
//! Invariant: every change of a row is in a shape's snapshot or in its log, and never in both.
//! Enforced by: the order in `snapshot_writer.rs`. First the table is added to the publication.
//! Second, transactions that wrote to it earlier end. Third, the store begins to hold changes for
//! the shape. Only then is the snapshot taken.
//! At most `max_snapshots` snapshots run at once. At most [`MAX_WAITING`] shapes and subsets wait
//! for a snapshot or have one running; further requests are refused with 503.
//! Order of acquisition: a queue permit, a snapshot permit, an `AwakeGuard`, a connection.
//! Lock order: no two of the mutexes here are held together, and none is held across an await,
//! except `builtins`, which is a tokio mutex.
//!
//! | topic | file |
//! |---|---|
//! | what a request selects: columns, clause, log mode | `definition.rs` |
//! | descriptions of tables: cached, shared, compared with the catalog | `table_cache.rs` |
//! | adding tables to the publication; shapes that may miss changes | `table_publishing.rs` |
//! | earlier writers, the snapshot, its rows on disk | `snapshot_writer.rs` |
//! | the refusal for each error | `refusals.rs` |

mod definition;
mod refusals;
mod snapshot_writer;
mod table_cache;
mod table_publishing;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_replication::{Manager, ManagerStep, PoolError, TableName};
use forebay_shapes::{CreateError, Shape, ShapeDefinition, Shapes};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::definition::{is_of_table, shape_definition, shape_options};
pub(crate) use self::definition::{schema_header, table_schema};
pub(crate) use self::refusals::gone_refusal;
use self::refusals::{manager_refusal, not_writing_refusal, pool_refusal};
use self::snapshot_writer::SettledTables;
use self::table_cache::{CachedTable, PendingLookup};
use super::catalog_watch::CatalogWatch;
use super::database::{self, Builtins, SnapshotError, SnapshotQuery};
use super::protocol::{InvalidRequest, RequestRefusal, ShapeRequest};
use super::schema_monitor::SchemaEpoch;
use super::token_verifier::while_valid;

/// Maximum number of shapes and subsets that wait for a snapshot permit or hold one.
const MAX_WAITING: usize = 1000;

/// Pause before the next attempt when a commit that the stream has delivered isn't visible to
/// queries yet.
pub(crate) const VISIBILITY_RETRY: Duration = Duration::from_millis(5);

/// Finds and creates shapes.
#[derive(Debug)]
pub(crate) struct ShapeFactory {
    pub(crate) shapes: Shapes,
    pub(crate) manager: Manager,
    /// The last description of each requested table.
    tables: Mutex<HashMap<TableName, CachedTable>>,
    /// Lookups in flight. Requests for the same table share one.
    lookups: Mutex<HashMap<TableName, Weak<PendingLookup>>>,
    pub(crate) schema_epoch: SchemaEpoch,
    pub(crate) watch: Arc<CatalogWatch>,
    /// Functions, operators and types that clauses may use, with Postgres' major version.
    builtins: tokio::sync::Mutex<Option<(u32, Arc<Builtins>)>>,
    /// Tables whose earlier writers have ended. These are transactions from before the table was
    /// published, and from before this process last began to write: the process that wrote before
    /// may have received a commit that isn't visible yet.
    settled: Mutex<SettledTables>,
    /// Number of snapshots that may run at once.
    max_snapshots: usize,
    snapshot_permits: Arc<Semaphore>,
    queue_permits: Arc<Semaphore>,
}

impl ShapeFactory {
    pub(crate) fn new(
        shapes: Shapes,
        manager: Manager,
        schema_epoch: SchemaEpoch,
        watch: Arc<CatalogWatch>,
        max_snapshots: usize,
    ) -> Arc<Self> {
        let factory = Arc::new(ShapeFactory {
            shapes,
            manager,
            watch,
            tables: Mutex::default(),
            lookups: Mutex::default(),
            schema_epoch,
            builtins: tokio::sync::Mutex::default(),
            settled: Mutex::default(),
            max_snapshots: max_snapshots.max(1),
            snapshot_permits: Arc::new(Semaphore::new(max_snapshots.max(1))),
            queue_permits: Arc::new(Semaphore::new(MAX_WAITING)),
        });
        factory.schema_epoch.set_factory(&factory);
        factory
    }

    /// Returns the definition of the requested shape, and the description of its table. The
    /// description is `None` if the database can't be queried.
    pub(crate) async fn definition(
        &self,
        request: &ShapeRequest,
    ) -> Result<(ShapeDefinition, Option<Arc<database::TableDescription>>), RequestRefusal> {
        let Some(name) = &request.table else {
            return Err(InvalidRequest::field("table", "can't be blank").into());
        };
        let cached = while_valid(request.bearer.as_ref(), self.table(name)).await??;
        let definition = shape_definition(request, &cached)?;
        Ok((definition, cached.description))
    }

    /// Returns the requested shape. If there is none, starts to create it, and returns without
    /// waiting for its snapshot.
    pub(crate) async fn shape(
        self: &Arc<Self>,
        request: &ShapeRequest,
    ) -> Result<Arc<Shape>, RequestRefusal> {
        let (definition, description) = self.definition(request).await?;
        if let Some(shape) = self.shapes.find_same(&definition) {
            return Ok(shape);
        }
        let Some(description) = description else { return Err(self.creation_refusal()) };
        let Ok(queue_permit) = Arc::clone(&self.queue_permits).try_acquire_owned() else {
            return Err(RequestRefusal::overloaded("snapshot", MAX_WAITING as u64, random_u64()));
        };
        let (shape, creation) =
            self.shapes.find_or_create(definition, unix_micros()).map_err(|error| match error {
                CreateError::Clause(error) => RequestRefusal::from(InvalidRequest::field("where", error)),
                _ => self.creation_refusal(),
            })?;
        if let Some(creation) = creation {
            let factory = Arc::clone(self);
            tokio::spawn(async move {
                factory.write_snapshot(creation, &description).await;
                drop(queue_permit);
            });
        }
        Ok(shape)
    }

    /// Returns the number of running snapshots, and of those that wait for a permit.
    pub(crate) fn snapshot_counts(&self) -> (usize, usize) {
        let running = self.max_snapshots.saturating_sub(self.snapshot_permits.available_permits());
        let all = MAX_WAITING.saturating_sub(self.queue_permits.available_permits());
        (running, all.saturating_sub(running))
    }

    /// Returns why this process creates and deletes no shapes while it doesn't write to the store.
    pub(crate) fn creation_refusal(&self) -> RequestRefusal {
        match self.manager.status().step {
            ManagerStep::BackingOff
            | ManagerStep::StartReplicationClient
            | ManagerStep::ReplicationClientConnecting => RequestRefusal::DatabaseUnreachable,
            _ => not_writing_refusal(),
        }
    }

    /// Returns an admin connection, or else a snapshot connection.
    ///
    /// For callers that the stream waits for: tasks that change the publication hold admin
    /// connections, and may themselves wait for the stream.
    pub(crate) async fn connection(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        match self.manager.admin().await {
            Ok(client) => Ok(client),
            Err(_) => self.manager.snapshot().await,
        }
    }

    /// Returns whether the request selects this shape.
    pub(crate) fn selects(&self, request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
        let is_same = is_of_table(request, shape);
        Ok(is_same && shape_options(request, &shape.definition().table)? == shape.definition().choice)
    }

    /// Returns whether a request with a shape's handle agrees with that shape: its table, if the
    /// request has one, and the rest of its definition, if the request has any part of it.
    pub(crate) fn agrees_with(&self, request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
        match request.defines_more_than_table() {
            true => self.selects(request, shape),
            false => Ok(is_of_table(request, shape)),
        }
    }

    /// Reads rows with a new snapshot, independent of all logs.
    pub(crate) async fn read_rows<S: database::RowSink>(
        &self,
        query: &SnapshotQuery<'_>,
        sink: &mut S,
    ) -> Result<(), ReadError<S::Error>> {
        let Ok(_queue_permit) = self.queue_permits.try_acquire() else {
            let refusal = RequestRefusal::overloaded("snapshot", MAX_WAITING as u64, random_u64());
            return Err(ReadError::Refused(refusal));
        };
        let _snapshot_permit = self.snapshot_permits.acquire().await;
        let _awake =
            self.manager.wake().await.map_err(|error| ReadError::Refused(manager_refusal(&error)))?;
        let client = self.manager.snapshot().await;
        let mut client = client.map_err(|error| ReadError::Refused(pool_refusal(&error)))?;
        database::snapshot(&mut client, query, sink).await.map_err(ReadError::Failed)?;
        client.return_without_reset();
        Ok(())
    }
}

/// Why rows can't be read.
#[derive(Debug)]
pub(crate) enum ReadError<E: std::error::Error + 'static> {
    /// There is no permit or no connection.
    Refused(RequestRefusal),
    Failed(SnapshotError<E>),
}

/// Returns the microseconds since 1970, for handles only. Handles stay unique even if the clock
/// stands still.
#[expect(clippy::disallowed_methods, reason = "a handle contains the time at which its shape was created")]
fn unix_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a random number; not for secrets.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}
