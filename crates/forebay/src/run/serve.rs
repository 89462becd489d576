//! Server of `forebay serve`: builds it from its settings, runs it, and shuts it down in order.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::directory::StreamDirectory;
use forebay_replication::reservoir::ConnectionLimits;
use forebay_replication::{Manager, ManagerStatus, ManagerStep, NotReady};
use forebay_serve::protocol::{Access, DeletePolicy};
use forebay_serve::{AccessControl, ServeService, ShapeBackend};
use forebay_shapes::Shapes;
use forebay_stream::{Handshake, HttpServer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use super::listening_server::ListeningServer;
use super::{ServerEnd, StartError, join_quota, listen, log_mapped_variables};
use crate::admin::{self, StatusReport};
use crate::config::{ConfigError, ServeConfig};
use crate::otel::{Telemetry, TracedService};
use crate::report::{ServeReport, ShapeLister};
use crate::secret_guard::SecretGuard;
use crate::settings_reloader::SettingsReloader;
use crate::signals::Signals;

/// Time that cleanup may take after a second signal, if slot and publication are to be dropped.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);

/// A shape server that is listening.
pub struct ShapeServer {
    listening: ListeningServer<TracedService<ServeService>>,
    backend: ShapeBackend,
    /// Background tasks, aborted at shutdown.
    tasks: Vec<JoinHandle<()>>,
    /// Whether to drop slot and publication at shutdown.
    drop_slot: bool,
    exit_when_unfit: bool,
}

impl ShapeServer {
    /// Opens the listeners and the store, and starts to follow the database.
    ///
    /// # Errors
    /// Fails if the store can't be opened or an address can't be bound. An unreachable database is
    /// no error: the manager logs that, and retries.
    pub async fn start(
        config: ServeConfig,
        metrics: PrometheusHandle,
        descriptors: Option<u64>,
    ) -> Result<ShapeServer, StartError> {
        let listener = listen("--listen", config.listen)?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let admin_listener = config.admin.map(|address| listen("--admin", address)).transpose()?;
        let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (store, dir) = (config.store.clone(), config.store.dir.clone());
        let opened = spawn_blocking(move || Shapes::open(store)).await;
        let shapes = opened
            .unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
            .map_err(|source| StartError::Store { dir, source })?;
        let (quota, bus) = join_quota(&config.quota, address).await?;
        let mut limits =
            ConnectionLimits::shared(quota.clone()).per_second(f64::from(config.connections_per_second));
        if let Some(most) = config.max_connections {
            limits = limits.connections(most);
        }
        let manager_config = config.manager.clone().limits(limits);
        let backend = ShapeBackend::start(shapes, manager_config, config.backend.clone())?;
        let admission = config.admission.builder.clone().stage_level(config.log.stages).build(quota.clone());
        let access = Access {
            secret: config.secret.clone(),
            tokens: config.backend.tokens_claim.is_some(),
            deletes: if config.allow_delete { DeletePolicy::Allow } else { DeletePolicy::Refuse },
            is_local: config.listen.ip().is_loopback() && !config.insecure,
        };
        let access = AccessControl::from(access);
        let identify = config.identity.identify.clone();
        let service = backend.service(admission.clone(), identify, access.clone());
        let mut http = config.http.clone();
        http.drain_timeout = config.drain_timeout;
        let mut telemetry = Telemetry::new(config.otel.as_ref(), config.tls.is_some(), address);
        let mut server = HttpServer::new(listener, telemetry.traced(service), http);
        if let Some(tls) = &config.tls {
            server = server.with_handshake(Arc::clone(tls) as Arc<dyn Handshake>);
        }
        let mut tasks = vec![tokio::spawn(exit_when_the_store_fails(backend.shapes().clone()))];
        tasks.extend(config.tls.clone().map(|tls| tokio::spawn(tls.watch())));
        log_start(&config, address, admin_address, descriptors);
        let report = ServeReport {
            started: Instant::now(),
            address,
            backend: backend.clone(),
            admission: admission.clone(),
            quota: quota.clone(),
            http: server.stats(),
            shape_lister: ShapeLister::default(),
        };
        let report: Arc<dyn StatusReport> = Arc::new(report);
        telemetry.start(Arc::clone(&report), metrics.clone());
        let guard = SecretGuard::new(config.admin_secret.clone());
        let reload = SettingsReloader::new(
            &config.explicit_settings,
            &config.identity,
            admission.clone(),
            guard.clone(),
        )
        .access(access)
        .tls(config.tls.clone());
        let streams = Arc::new(StreamDirectory::new(admission.clone(), quota.clone(), bus));
        let admin = admin_listener
            .map(|listener| admin::server(listener, report, metrics.clone(), guard, Arc::clone(&streams)));
        let listening =
            ListeningServer { server, admin, streams, admission, quota, reload, metrics, telemetry };
        Ok(ShapeServer {
            listening,
            backend,
            tasks,
            drop_slot: config.drop_slot_on_shutdown,
            exit_when_unfit: config.exit_when_unfit,
        })
    }

    /// Sets the function that reads the settings again on SIGHUP. Without it, only the certificate
    /// is reloaded.
    pub fn reload_with(
        mut self,
        load: impl Fn() -> Result<ServeConfig, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.listening.reload.load(load);
        self
    }

    /// Waits until the manager follows the database.
    ///
    /// # Errors
    /// Fails if the manager halts, because an operator must act, or stops.
    pub async fn ready(&self) -> Result<(), NotReady> {
        self.backend.manager().ready().await.map(drop)
    }

    /// Returns why the manager doesn't follow the database; `None` if there is no error.
    pub fn trouble(&self) -> Option<String> {
        self.backend.manager().status().trouble
    }

    /// Serves until a signal, then shuts down; a second signal ends it at once. SIGHUP reloads the
    /// settings, and retries a connection to the database that has failed.
    ///
    /// New streams are refused. Received changes are made durable and acknowledged. From then on,
    /// open streams get no changes; they end at their own timeout or are aborted at the drain
    /// timeout. Their clients continue at their offset, at another instance or at this one after
    /// its restart. Last, the quota is returned, and the store is closed.
    pub async fn run(self, mut signals: Signals) -> ServerEnd {
        let ShapeServer { listening, backend, tasks, drop_slot, exit_when_unfit } = self;
        let (mut running, _background) = listening.spawn();

        let retry_database = async || retry(backend.manager()).await;
        let (ended, signal) = tokio::select! {
            signal = running.next_signal(&mut signals, retry_database) => (ServerEnd::Stopped, signal),
            () = unfit(backend.manager()), if exit_when_unfit => (ServerEnd::Unfit, "none"),
        };
        let started = Instant::now();
        running.admission.close();
        info!(signal, "server stopping");
        let end = async {
            running.stop();
            backend.end_tasks();
            tasks.iter().for_each(JoinHandle::abort);
            match drop_slot {
                true => backend.manager().shutdown_and_drop().await,
                false => backend.manager().shutdown().await,
            }
            let cut = running.drained().await;
            running.leave().await;
            backend.end_writing().await;
            info!(cut, took = ?started.elapsed(), "server stopped");
            ended
        };
        let abort = async {
            if ended == ServerEnd::Unfit {
                // This shutdown began without a signal.
                signals.next().await;
            }
            signals.next().await
        };
        let mut end = std::pin::pin!(end);
        tokio::select! {
            ended = &mut end => ended,
            signal = abort => {
                warn!(signal, "server aborted by a second signal");
                if drop_slot {
                    let _ = timeout(CLEANUP_TIMEOUT, end).await;
                }
                ServerEnd::Aborted
            }
        }
    }
}

/// Retries a failed connection to the database at once. The password is read again with it.
async fn retry(manager: &Manager) {
    if manager.status().trouble.is_some() {
        info!("database connection retried");
    }
    // An error means that the manager has ended already.
    let _ended = manager.retry().await;
}

/// Waits until the manager halts, because an operator must act, and logs the reason.
///
/// `Manager::wait_until` would fail at a halt after too many panics, which is retried.
async fn unfit(manager: &Manager) {
    let mut status = manager.watch();
    let unfit = status.wait_for(is_unfit).await.map(|status| status.clone());
    match unfit {
        Ok(ManagerStatus { halted, trouble, .. }) => {
            error!(reason = halted, why = trouble, "process exiting: database unfit");
        }
        Err(_) => std::future::pending().await, // the manager was shut down
    }
}

fn is_unfit(status: &ManagerStatus) -> bool {
    status.step == ManagerStep::Halted && status.halted.is_some()
}

/// Exits the process when a write to the store has failed. The state on disk is then unknown; the
/// next start recovers it.
async fn exit_when_the_store_fails(shapes: Shapes) {
    let failure = shapes.wait_for_failure().await;
    error!(%failure, "process exiting: store write failed");
    std::process::exit(1);
}

/// Logs the addresses, and warns of settings that can't take effect.
fn log_start(config: &ServeConfig, address: SocketAddr, admin: Option<SocketAddr>, descriptors: Option<u64>) {
    let admin = admin.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    if config.identity.methods.is_empty() && config.admission.per_user.is_some() {
        info!(
            "no identity method configured: only the total stream limit applies; see [identity] in the settings"
        );
    }
    log_mapped_variables(&config.variable_notices);
    let total = config.admission.total;
    let needed = u64::from(total) + 1024;
    if let Some(limit) = descriptors.filter(|limit| *limit < needed) {
        warn!(
            limit,
            needed, total, "file descriptor limit too low: each stream takes one; raise `ulimit -n`"
        );
    }
    info!(%address, %admin, storage = %config.store.dir.display(), "server listening");
}

impl fmt::Debug for ShapeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeServer").field("shapes", self.backend.shapes()).finish_non_exhaustive()
    }
}
