//! Shape backend: a store of shapes that follows one database, and its background tasks.
//!
//! The tasks publish tables again after each reconnection, watch the catalog, and refresh the store
//! while another instance writes.
//! Out of scope: sockets, signals and settings files; they belong to the program that mounts
//! [`ServeService`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::{Admission, AdmissionLayer, Identifier};
use forebay_replication::{Manager, ManagerConfig, ManagerConfigError, ManagerEvent};
use forebay_shapes::Shapes;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{AbortHandle, JoinHandle, spawn_blocking};
use tokio::time::{Instant, interval};
use tracing::{error, warn};

use super::access_control::AccessControl;
use super::catalog_scanner::{CatalogScanner, PublicationChanges};
use super::catalog_watch::CatalogWatch;
use super::clause_judge::{self, ClauseJudge};
use super::config::Config;
use super::connection_lender::ConnectionLender;
use super::consumer::ShapesConsumer;
use super::metrics;
use super::protocol::cache_policy::CacheTimes;
use super::protocol::fixed_responses::Health;
use super::response_cache::ResponseCache;
use super::schema_monitor::{SchemaEpoch, SchemaMonitor};
use super::service::ServeService;
use super::shape_factory::{
    BuiltinsCache, ShapeFactory, SnapshotRunner, TableCache, TableComparer, TableDescriber, TablePublisher,
};
use super::shape_handler::ShapeHandler;
use super::token_verifier::TokenVerifier;

/// Interval at which a waiting instance reads what the writing instance has stored.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Shapes of one database, ready to be served; cheap to clone. Dropping it stops nothing: call
/// [`ShapeBackend::shutdown`].
#[derive(Clone)]
pub struct ShapeBackend {
    handler: Arc<ShapeHandler>,
    tasks: Arc<[AbortHandle]>,
}

impl ShapeBackend {
    /// Starts to replicate changes of the database to this store. Needs a tokio runtime.
    ///
    /// An unreachable database is no error: the manager retries until it is reachable.
    ///
    /// # Errors
    /// Fails if the manager's settings can't be used.
    pub fn start(
        shapes: Shapes,
        database: ManagerConfig,
        config: Config,
    ) -> Result<ShapeBackend, ManagerConfigError> {
        let changes = PublicationChanges::new(database.outline().publication);
        let scanner = CatalogScanner::new(shapes.clone(), changes.clone());
        let schema_epoch = SchemaEpoch::default();
        let manager = start_manager(database, &shapes, &schema_epoch, &scanner)?;
        let describer = TableDescriber::new(manager.clone(), scanner.clone());
        let publisher = Arc::new(TablePublisher::new(
            manager.clone(),
            shapes.clone(),
            schema_epoch.clone(),
            describer.clone(),
            changes,
        ));
        let tables = Arc::new(TableCache::new(
            manager.clone(),
            shapes.clone(),
            schema_epoch,
            describer.clone(),
            Arc::clone(&publisher),
        ));
        let comparer = TableComparer::new(shapes.clone(), describer, Arc::clone(&tables));
        let snapshots = Arc::new(SnapshotRunner::new(
            manager.clone(),
            shapes.clone(),
            Arc::clone(&publisher),
            config.snapshots,
        ));
        let watch = Arc::new(CatalogWatch {
            manager: manager.clone(),
            shapes: shapes.clone(),
            scanner,
            tables: Arc::clone(&tables),
            comparer: comparer.clone(),
            publisher,
            unpublish_after: config.unpublish_after,
            compared: Mutex::default(),
        });
        let builtins = Arc::new(BuiltinsCache::new(manager.clone()));
        let factory = ShapeFactory::new(
            shapes.clone(),
            manager.clone(),
            tables,
            Arc::clone(&snapshots),
            Arc::clone(&builtins),
            if config.postgres_clauses { config.postgres_clause_shapes } else { 0 },
        );
        let judge = Arc::new(ClauseJudge::new(
            shapes.clone(),
            manager.clone(),
            config.postgres_clauses,
            config.postgres_clause_statements_per_s,
        ));
        let judges: [_; clause_judge::WORKERS] =
            std::array::from_fn(|_| tokio::spawn(Arc::clone(&judge).run()));
        let tasks = [
            tokio::spawn(republish(Arc::clone(&watch), manager.clone())),
            tokio::spawn(watch.run()),
            tokio::spawn(refresh(shapes.clone())),
        ];
        let handler = ShapeHandler {
            shapes,
            factory,
            comparer,
            snapshots,
            builtins,
            manager,
            cache_times: cache_times(&config),
            started: Instant::now(),
            response_cache: ResponseCache::default(),
            config,
        };
        Ok(ShapeBackend {
            handler: Arc::new(handler),
            tasks: tasks.iter().chain(&judges).map(JoinHandle::abort_handle).collect(),
        })
    }

    /// Returns the service that serves these shapes. Live requests take a permit of `admission`. To
    /// change the access rules later, keep a clone of the [`AccessControl`].
    pub fn service(
        &self,
        admission: Admission,
        identify: Identifier,
        access: impl Into<AccessControl>,
    ) -> ServeService {
        let tokens = TokenVerifier::new(identify.clone(), self.handler.config.tokens_claim.as_deref());
        let layer = AdmissionLayer::new(admission, identify);
        ServeService::new(layer, Arc::clone(&self.handler), access.into(), tokens)
    }

    /// Returns the store. When the future of [`Shapes::wait_for_failure`] completes, the process
    /// must end: nothing more is written.
    pub fn shapes(&self) -> &Shapes {
        &self.handler.shapes
    }

    /// Returns the manager that follows the database.
    pub fn manager(&self) -> &Manager {
        &self.handler.manager
    }

    /// Returns whether shapes can be served.
    pub fn health(&self) -> Health {
        self.handler.health()
    }

    /// Sets the gauges of [`metrics`](crate::metrics). Call it before the metrics are rendered.
    pub fn measure(&self) {
        let (running, waiting) = self.handler.snapshots.counts();
        metrics::measure(&self.handler.shapes, running, waiting);
    }

    /// Ends the background tasks: the first step of a shutdown.
    pub fn end_tasks(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Ends the tasks, then the manager, which acknowledges what is durable, then the store's
    /// writer. Call it after the HTTP server has ended.
    pub async fn shutdown(&self) {
        self.end_tasks();
        self.handler.manager.shutdown().await;
        self.end_writing().await;
    }

    /// Shuts down as [`ShapeBackend::shutdown`] does, and drops the slot and the publication. After
    /// that, replication can't continue from the store's position.
    pub async fn shutdown_and_drop(&self) {
        self.end_tasks();
        self.handler.manager.shutdown_and_drop().await;
        self.end_writing().await;
    }

    /// Ends the store's writer: the last step of a shutdown.
    pub async fn end_writing(&self) {
        let shapes = self.handler.shapes.clone();
        let _ended = spawn_blocking(move || shapes.end_writing()).await;
    }
}

impl fmt::Debug for ShapeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeBackend").field("shapes", &self.handler.shapes).finish_non_exhaustive()
    }
}

/// Starts the manager with its consumer, and lends the consumer connections until the manager ends.
fn start_manager(
    database: ManagerConfig,
    shapes: &Shapes,
    schema_epoch: &SchemaEpoch,
    scanner: &CatalogScanner,
) -> Result<Manager, ManagerConfigError> {
    let (connections, lender) = ConnectionLender::channel();
    let monitor = SchemaMonitor::new(shapes.clone(), schema_epoch.clone(), scanner.clone(), connections);
    let consumer = ShapesConsumer::new(shapes.clone(), schema_epoch.clone(), monitor);
    let manager = Manager::start(database, consumer)?;
    tokio::spawn(lender.run(manager.clone()));
    Ok(manager)
}

fn cache_times(config: &Config) -> CacheTimes {
    CacheTimes {
        max_age_s: config.max_age_s,
        stale_age_s: config.stale_age_s,
        events_s: u32::try_from(config.sse_timeout.as_secs()).unwrap_or(u32::MAX),
    }
}

/// Publishes the tables of all shapes each time that replication starts.
async fn republish(watch: Arc<CatalogWatch>, manager: Manager) {
    let mut events = manager.events();
    let mut is_due = manager.status().is_ready();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Ok(ManagerEvent::Ready) | Err(RecvError::Lagged(_)) => is_due = true,
                Ok(_) => {}
                Err(RecvError::Closed) => return,
            },
            () = watch.republish(), if is_due => is_due = false,
        }
    }
}

/// Reads what another instance writes. A repeated error is logged only the first time.
async fn refresh(shapes: Shapes) {
    let (mut ticks, mut logged) = (interval(REFRESH_INTERVAL), None);
    loop {
        ticks.tick().await;
        if shapes.is_writing() || shapes.unusable().is_some() {
            continue;
        }
        let refreshing = shapes.clone();
        let read = spawn_blocking(move || refreshing.refresh()).await;
        let Err(error) = read.unwrap_or_else(|error| Err(std::io::Error::other(error).into())) else {
            logged = None;
            continue;
        };
        let message = error.to_string();
        if error.unusable().is_some() {
            error!(%error, "storage unusable: requests for shapes are refused");
        } else if logged.as_ref() != Some(&message) {
            warn!(%error, "store not refreshed");
        }
        logged = Some(message);
    }
}
