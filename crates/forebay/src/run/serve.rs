//! Building a server of shapes out of its settings, running it, and ending it in order.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use forebay_admission::Admission;
use forebay_quota::Quota;
use forebay_replication::NotReady;
use forebay_replication::reservoir::ConnectionLimits;
use forebay_serve::protocol::Access;
use forebay_serve::{Config, ServeService, ShapeBackend};
use forebay_shapes::Shapes;
use forebay_stream::{Handshake, HttpServer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use super::{StartError, announce_borrowed, join, listen, upkeep};
use crate::admin::{self, Report};
use crate::config::{ConfigError, ServeConfig};
use crate::guard::Guard;
use crate::otel::{Telemetry, TracedService};
use crate::reload::Reload;
use crate::report::{Listing, ServeReport};
use crate::signals::Signals;

/// What is given back at the end is told in one call or two; without an answer, it expires by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long whoever is to leave nothing behind may take for it after a second signal.
const LAST_CHORES: Duration = Duration::from_secs(1);
/// A body is small: it may take so many times as long as its client may be silent.
const BODY_SILENCES: u32 = 4;

/// A server of shapes that listens.
pub struct Serve {
    server: HttpServer<TracedService<ServeService>>,
    admin: Option<HttpServer<admin::Admin>>,
    admission: Admission,
    quota: Quota,
    backend: ShapeBackend,
    chores: Vec<JoinHandle<()>>,
    reload: Reload,
    metrics: PrometheusHandle,
    telemetry: Telemetry,
    leaves_nothing: bool,
}

impl Serve {
    /// Opens the store, listens, and begins to follow the database.
    ///
    /// # Errors
    /// When the store can't be read or an address can't be had. A database that can't be reached is no error: it says so, and goes on trying.
    pub async fn start(
        config: ServeConfig,
        metrics: PrometheusHandle,
        descriptors: Option<u64>,
    ) -> Result<Serve, StartError> {
        let listener = listen("--listen", config.listen)?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let admin_listener = config.admin.map(|address| listen("--admin", address)).transpose()?;
        let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (store, dir) = (config.store.clone(), config.store.dir.clone());
        let opened = spawn_blocking(move || Shapes::open(store)).await;
        let shapes = opened
            .unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
            .map_err(|source| StartError::Store { dir, source })?;
        let quota = join(&config.quota, address).await?;
        let mut limits =
            ConnectionLimits::shared(quota.clone()).per_second(f64::from(config.connections_per_second));
        if let Some(most) = config.max_connections {
            limits = limits.connections(most);
        }
        let following = config.manager.clone().limits(limits);
        let backend = ShapeBackend::start(shapes, following, backend_config(&config))?;
        let admission = config.admission.builder.clone().build(quota.clone());
        let access = Access {
            secret: config.secret.clone(),
            tokens: config.tokens.is_some(),
            deletes: config.allow_delete,
            is_local: config.listen.ip().is_loopback() && !config.insecure,
        };
        let access = Arc::new(RwLock::new(access));
        let identify = config.identity.identify.clone();
        let service = backend.service(admission.clone(), identify, Arc::clone(&access));
        let mut http = config.http.clone();
        http.drain_timeout = config.drain_timeout;
        let mut telemetry = Telemetry::new(config.otel.as_ref(), config.tls.is_some(), address);
        let mut server = HttpServer::new(listener, telemetry.traced(service), http);
        if let Some(tls) = &config.tls {
            server = server.with_handshake(Arc::clone(tls) as Arc<dyn Handshake>);
        }
        let mut chores = vec![tokio::spawn(end_with_the_store(backend.shapes().clone()))];
        chores.extend(config.tls.clone().map(|tls| tokio::spawn(tls.watch())));
        announce(&config, address, admin_address, descriptors);
        let report = ServeReport {
            started: Instant::now(),
            address,
            backend: backend.clone(),
            admission: admission.clone(),
            quota: quota.clone(),
            http: server.stats(),
            listing: Listing::default(),
        };
        let report: Arc<dyn Report> = Arc::new(report);
        telemetry.start(Arc::clone(&report), metrics.clone());
        let guard = Guard::new(config.admin_secret.clone());
        let reload =
            Reload::new(&config.explicit_settings, &config.identity, admission.clone(), guard.clone())
                .access(access)
                .tls(config.tls.clone());
        let admin = admin_listener.map(|listener| admin::server(listener, report, metrics.clone(), guard));
        let leaves_nothing = config.drops_slot_on_exit;
        Ok(Serve {
            server,
            admin,
            admission,
            quota,
            backend,
            chores,
            reload,
            metrics,
            telemetry,
            leaves_nothing,
        })
    }

    /// How settings are read again on SIGHUP; without it, only the certificate is.
    pub fn reloading(
        mut self,
        load: impl Fn() -> Result<ServeConfig, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.reload.load(load);
        self
    }

    /// Waits until the database is followed.
    ///
    /// # Errors
    /// When that won't be without somebody's help.
    pub async fn ready(&self) -> Result<(), NotReady> {
        self.backend.manager().ready().await.map(drop)
    }

    /// What keeps the database from being followed.
    pub fn trouble(&self) -> Option<String> {
        self.backend.manager().status().trouble
    }

    /// Serves until a signal. Then new streams are refused, and open ones end: their clients come back to another instance, or to this one
    /// after its restart, and go on where they were. Last, what came from the database is made durable and acknowledged. A second signal ends it
    /// at once; then this says which.
    pub async fn run(self, mut signals: Signals) -> Option<&'static str> {
        let Serve {
            server,
            admin,
            admission,
            quota,
            backend,
            chores,
            mut reload,
            metrics,
            telemetry,
            leaves_nothing,
        } = self;
        let upkeep = tokio::spawn(upkeep(metrics, server.stats()));
        let admin = admin.map(|admin| tokio::spawn(admin.run(std::future::pending())));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));

        let signal = signals.next_reloading(async || reload.reload().await).await;
        let begun = Instant::now();
        admission.close();
        info!(signal, "the server ends: open streams are closed, and what is there is made durable");
        let end = async {
            let _ = stop.send(());
            backend.end_tasks();
            chores.iter().for_each(JoinHandle::abort);
            match leaves_nothing {
                true => backend.manager().shutdown_and_drop().await,
                false => backend.manager().shutdown().await,
            }
            let cut = serving.await.map_or(0, |summary| summary.cut);
            let _ = tokio::join!(timeout(LEAVE_TIMEOUT, quota.leave()), telemetry.end());
            backend.end_writing().await;
            info!(cut, took = ?begun.elapsed(), "the server has ended");
            None::<&'static str>
        };
        let mut end = std::pin::pin!(end);
        let second = tokio::select! {
            second = signals.next() => Some(second),
            none = &mut end => none,
        };
        if let Some(signal) = second {
            warn!(signal, "a second signal: the server ends at once");
            if leaves_nothing {
                let _ = timeout(LAST_CHORES, end).await;
            }
        }
        upkeep.abort();
        admin.inspect(tokio::task::JoinHandle::abort);
        second
    }
}

/// The part of the settings that the shape protocol needs.
fn backend_config(config: &ServeConfig) -> Config {
    let mut backend = Config::default();
    backend.snapshots = config.snapshots;
    backend.unpublish_after = config.unpublish_after;
    backend.long_poll = config.long_poll;
    backend.sse_keep_alive = config.sse_keep_alive;
    backend.sse_timeout = config.sse_timeout;
    backend.max_age_s = config.max_age_s;
    backend.stale_age_s = config.stale_age_s;
    backend.body_timeout = BODY_SILENCES * config.http.body_read_timeout;
    backend.tokens_claim = config.tokens.clone();
    backend.home = config.home_page;
    backend
}

/// After a write that failed nobody knows what is on the disk: the next start finds out.
async fn end_with_the_store(shapes: Shapes) {
    let failure = shapes.failed().await;
    error!(%failure, "the process ends");
    std::process::exit(1);
}

fn announce(config: &ServeConfig, address: SocketAddr, admin: Option<SocketAddr>, descriptors: Option<u64>) {
    let admin = admin.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    if config.identity.methods.is_empty() && config.admission.per_user.is_some() {
        info!(
            "no way to know a user is set: only the limit on all streams holds; see [identity] in the settings"
        );
    }
    announce_borrowed(&config.variable_notices);
    let total = config.admission.total;
    let needed = u64::from(total) + 1024;
    if let Some(limit) = descriptors.filter(|limit| *limit < needed) {
        warn!(limit, needed, total, "file descriptors may run out: a stream takes one; raise `ulimit -n`");
    }
    info!(%address, %admin, storage = %config.store.dir.display(), "the server listens");
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve").field("shapes", self.backend.shapes()).finish_non_exhaustive()
    }
}
