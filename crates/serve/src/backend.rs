//! Shape backend: a store of shapes that follows one database, and the tasks beside it.
//!
//! The tasks publish tables again after each reconnection, watch the catalog, and read what another
//! instance writes.
//! Out of scope: sockets, signals, settings files; whoever mounts [`ServeService`] has those.

use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use forebay_admission::{Admission, AdmissionLayer, Identify};
use forebay_replication::{Manager, ManagerConfig, ManagerConfigError, ManagerEvent};
use forebay_shapes::Shapes;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{Instant, interval};
use tracing::{error, warn};

use super::catalog_watch::CatalogWatch;
use super::config::Config;
use super::consumer::ShapesConsumer;
use super::metrics;
use super::protocol::Access;
use super::protocol::cache_policy::CacheTimes;
use super::protocol::fixed_responses::Health;
use super::recent::Recent;
use super::schema_monitor::SchemaEpoch;
use super::service::ServeService;
use super::shape_factory::ShapeFactory;
use super::shape_handler::ShapeHandler;
use super::tokens::Tokens;

/// How often an instance that waits looks what the other has written.
pub(super) const REFRESH: Duration = Duration::from_millis(50);

/// Shapes of one database, ready to be served; cheap to clone. Dropping it ends nothing: see
/// [`ShapeBackend::shutdown`].
#[derive(Clone)]
pub struct ShapeBackend {
    answering: Arc<ShapeHandler>,
    tasks: Arc<[AbortHandle]>,
    tokens_claim: Option<Arc<str>>,
}

impl ShapeBackend {
    /// Begins to follow the database into this store. Needs a tokio runtime.
    ///
    /// A database that can't be reached is no error: the manager tries again until it can.
    ///
    /// # Errors
    /// Fails if the manager's settings can't be used.
    pub fn start(
        shapes: Shapes,
        following: ManagerConfig,
        config: Config,
    ) -> Result<ShapeBackend, ManagerConfigError> {
        let watch = CatalogWatch::new(following.outline().publication, config.unpublish_after);
        let described = SchemaEpoch::default();
        let manager = Manager::start(following, ShapesConsumer::new(shapes.clone(), described.clone()))?;
        let making = ShapeFactory::new(shapes.clone(), manager.clone(), described, watch, config.snapshots);
        let times = CacheTimes {
            max_age_s: config.max_age_s,
            stale_age_s: config.stale_age_s,
            events_s: u32::try_from(config.sse_timeout.as_secs()).unwrap_or(u32::MAX),
        };
        let tasks = [
            tokio::spawn(republish(Arc::clone(&making), manager.clone())),
            tokio::spawn(Arc::clone(&making).watch_catalog()),
            tokio::spawn(refresh(shapes.clone())),
        ];
        let answering = ShapeHandler {
            shapes,
            making,
            manager,
            times,
            long_poll: config.long_poll,
            sse_keep_alive: config.sse_keep_alive,
            sse_timeout: config.sse_timeout,
            body_timeout: config.body_timeout,
            started: Instant::now(),
            recent: Recent::default(),
            home: config.home,
        };
        Ok(ShapeBackend {
            answering: Arc::new(answering),
            tasks: tasks.map(|task| task.abort_handle()).into(),
            tokens_claim: config.tokens_claim.map(Into::into),
        })
    }

    /// Returns the service that serves these shapes. Live requests take a permit of `admission`;
    /// `access` may be changed later.
    pub fn service(
        &self,
        admission: Admission,
        identify: Identify,
        access: Arc<RwLock<Access>>,
    ) -> ServeService {
        let tokens = Tokens::new(identify.clone(), self.tokens_claim.as_deref());
        let layer = AdmissionLayer::new(admission, identify);
        ServeService::new(layer, Arc::clone(&self.answering), access, tokens)
    }

    /// Returns the store. After [`Shapes::failed`] has returned, the process must end: nothing more
    /// is written.
    pub fn shapes(&self) -> &Shapes {
        &self.answering.shapes
    }

    /// Returns what follows the database.
    pub fn manager(&self) -> &Manager {
        &self.answering.manager
    }

    /// Returns whether shapes can be served.
    pub fn health(&self) -> Health {
        self.answering.health()
    }

    /// Sets the gauges that are measured only on request.
    pub fn measure(&self) {
        let (running, waiting) = self.answering.making.snapshots();
        metrics::measure(&self.answering.shapes, running, waiting);
    }

    /// Ends the tasks beside the manager: the first step of a shutdown.
    pub fn end_tasks(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Ends the tasks, then the manager, which acknowledges what is durable, then the store's
    /// writer. Call it after the HTTP server has ended.
    pub async fn shutdown(&self) {
        self.end_tasks();
        self.answering.manager.shutdown().await;
        self.end_writing().await;
    }

    /// Does the same, and drops the slot and the publication: what the store holds is of no use
    /// after that.
    pub async fn shutdown_and_drop(&self) {
        self.end_tasks();
        self.answering.manager.shutdown_and_drop().await;
        self.end_writing().await;
    }

    /// Ends the store's writer: the last step of a shutdown.
    pub async fn end_writing(&self) {
        let shapes = self.answering.shapes.clone();
        let _ended = spawn_blocking(move || shapes.end_writing()).await;
    }
}

impl fmt::Debug for ShapeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeBackend").field("shapes", &self.answering.shapes).finish_non_exhaustive()
    }
}

/// Each time that the database is followed anew, the tables of all shapes are published, or their
/// shapes start over.
async fn republish(making: Arc<ShapeFactory>, manager: Manager) {
    let mut events = manager.events();
    let mut is_due = manager.status().is_ready();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Ok(ManagerEvent::Ready) | Err(RecvError::Lagged(_)) => is_due = true,
                Ok(_) => {}
                Err(RecvError::Closed) => return,
            },
            () = making.republish(), if is_due => is_due = false,
        }
    }
}

/// While another instance writes, what it writes is read. An error that lasts is logged once.
async fn refresh(shapes: Shapes) {
    let (mut ticks, mut logged) = (interval(REFRESH), None);
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
        let said = error.to_string();
        if error.unusable().is_some() {
            error!(%error, "storage unusable: requests for shapes are refused");
        } else if logged.as_ref() != Some(&said) {
            warn!(%error, "the store can't be read");
        }
        logged = Some(said);
    }
}
