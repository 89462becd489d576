//! Building a gate out of its settings, running it, and ending it in order.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::Admission;
use forebay_gate::{Config, GateService, ReverseProxy, Route};
use forebay_quota::Quota;
use forebay_stream::{Handshake, HttpServer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::{StartError, announce_borrowed, join, listen, upkeep};
use crate::admin::{self, Report};
use crate::config::{ConfigError, GateConfig};
use crate::guard::Guard;
use crate::otel::{Telemetry, TracedService};
use crate::reload::Reload;
use crate::report::GateReport;
use crate::signals::Signals;
use crate::tls::Tls;

/// What is given back at the end is told in one call or two; without an answer, it expires by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A gate that listens.
pub struct Gate {
    server: HttpServer<TracedService<GateService>>,
    admin: Option<HttpServer<admin::Admin>>,
    admission: Admission,
    quota: Quota,
    proxy: ReverseProxy,
    drain_timeout: Duration,
    tls: Option<Arc<Tls>>,
    reload: Reload,
    metrics: PrometheusHandle,
    telemetry: Telemetry,
}

impl Gate {
    /// Listens, joins the others, and is ready to run.
    ///
    /// # Errors
    /// When an address can't be had. A Redis that can't be reached is no error: the gate starts without it, says so, and
    /// goes on trying.
    pub async fn start(
        config: GateConfig,
        metrics: PrometheusHandle,
        descriptors: Option<u64>,
    ) -> Result<Gate, StartError> {
        let listener = listen("--listen", config.listen)?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let admin_listener = config.admin.map(|address| listen("--admin", address)).transpose()?;
        let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let quota = join(&config.quota, address).await?;

        let admission = config.admission.builder.clone().build(quota.clone());
        let proxy = ReverseProxy::new(proxy_config(&config), config.identity.identify.clone());
        let service = proxy.service(admission.clone());
        let mut http = config.http.clone();
        http.drain_timeout = closing_time(config.drain_timeout);
        let mut telemetry = Telemetry::new(config.otel.as_ref(), config.tls.is_some(), address);
        let mut server = HttpServer::new(listener, telemetry.traced(service), http);
        if let Some(tls) = &config.tls {
            server = server.with_handshake(Arc::clone(tls) as Arc<dyn Handshake>);
        }
        announce(&config, address, admin_address, descriptors);
        let report = GateReport {
            started: Instant::now(),
            address,
            upstream_url: format!("http://{}", config.upstream.authority),
            identity: config.identity.methods.clone(),
            admission: admission.clone(),
            quota: quota.clone(),
            proxy: proxy.clone(),
            http: server.stats(),
        };
        let report: Arc<dyn Report> = Arc::new(report);
        telemetry.start(Arc::clone(&report), metrics.clone());
        let guard = Guard::new(config.admin_secret.clone());
        let reload =
            Reload::new(&config.explicit_settings, &config.identity, admission.clone(), guard.clone())
                .tls(config.tls.clone());
        let admin = admin_listener.map(|listener| admin::server(listener, report, metrics.clone(), guard));
        let (drain_timeout, tls) = (config.drain_timeout, config.tls);
        Ok(Gate { server, admin, admission, quota, proxy, drain_timeout, tls, reload, metrics, telemetry })
    }

    /// How settings are read again on SIGHUP; without it, only the certificate is.
    pub fn reloading(
        mut self,
        load: impl Fn() -> Result<GateConfig, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.reload.load(load);
        self
    }

    /// Serves until a signal; then refuses new streams, lets open ones go on until the deadline, cuts what is left, and gives
    /// back what this instance held: never before the cut, since others may have it at once. A second signal ends it at
    /// once; then this says which.
    pub async fn run(self, mut signals: Signals) -> Option<&'static str> {
        let Gate {
            server,
            admin,
            admission,
            quota,
            proxy,
            drain_timeout,
            tls,
            mut reload,
            metrics,
            telemetry,
        } = self;
        let drain = proxy.drain();
        let watch = tls.map(|tls| tokio::spawn(tls.watch()));
        let upkeep = tokio::spawn(upkeep(metrics, server.stats()));
        let admin = admin.map(|admin| tokio::spawn(admin.run(std::future::pending())));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));

        let signal = signals.next_reloading(async || reload.reload().await).await;
        let (begun, streams) = (Instant::now(), drain.streams());
        drain.begin();
        admission.close();
        info!(signal, streams, deadline = ?drain_timeout, "the gate drains: new streams are refused");
        let end = async {
            // New requests are still answered while streams are open, if only to say that there are no new streams.
            let open = drain_timeout - closing_time(drain_timeout);
            let _ = timeout_at(begun + open, drain.streams_ended()).await;
            let _ = stop.send(());
            // The server closes: what is left at the deadline it cuts, and returns when that is gone.
            let cut = serving.await.map_or(0, |summary| summary.cut);
            let took = begun.elapsed();
            let _ = tokio::join!(timeout(LEAVE_TIMEOUT, quota.leave()), telemetry.end());
            info!(cut, ?took, "the gate ends");
            None
        };
        let second = tokio::select! {
            second = signals.next() => {
                warn!(signal = second, streams = drain.streams(), "a second signal: the gate ends at once");
                Some(second)
            }
            none = end => none,
        };
        upkeep.abort();
        watch.inspect(tokio::task::JoinHandle::abort);
        admin.inspect(tokio::task::JoinHandle::abort);
        second
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("quota", &self.quota).finish_non_exhaustive()
    }
}

/// The last part of a drain, in which the listener is closed and what is inside goes on. It is as long for requests that
/// are no streams, if those have ended before: the server is told once how long it may take.
fn closing_time(drain_timeout: Duration) -> Duration {
    drain_timeout / 2
}

/// The part of the settings that the reverse proxy needs.
fn proxy_config(config: &GateConfig) -> Config {
    let share = |route: &Route| route.class().map_or(100, |class| config.admission.share(class));
    let mut proxy = Config::new(config.upstream.clone());
    proxy.stream_routes = config.stream_routes.iter().map(|route| (route.clone(), share(route))).collect();
    proxy.preserve_host = config.preserve_host;
    proxy.is_tls = config.tls.is_some();
    proxy.trusted_proxies = config.trusted_proxies.clone();
    proxy.forwarded_by = config.forwarded_by;
    proxy.user_headers = config.identity.user_headers.clone();
    proxy.forward_user_header = config.forward_user_header.clone();
    proxy.request_idle_timeout = config.request_idle_timeout;
    proxy
}

/// One line with where everything is, and a warning for each setting that can't mean what it says.
fn announce(config: &GateConfig, address: SocketAddr, admin: Option<SocketAddr>, descriptors: Option<u64>) {
    announce_borrowed(&config.variable_notices);
    let upstream = config.upstream.authority.as_str();
    let admin = admin.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    let identity = if config.identity.methods.is_empty() {
        "none".to_owned()
    } else {
        config.identity.methods.join(",")
    };
    if config.stream_routes.is_empty() {
        info!("no stream route is named: every request takes a permit while it runs");
    }
    if config.identity.methods.is_empty() && config.admission.per_user.is_some() {
        warn!("a limit per user is set, but there is no way to know a user: see [identity] in the settings");
    }
    let total = config.admission.total;
    let needed = 2 * u64::from(total) + 64;
    if let Some(limit) = descriptors.filter(|limit| *limit < needed) {
        warn!(limit, needed, total, "file descriptors may run out: a stream takes two; raise `ulimit -n`");
    }
    let (clients, upstreams) = (config.http.max_connections, config.upstream.max_connections);
    for (key, most) in [("http.max_connections", clients), ("gate.upstream_max_connections", upstreams)] {
        if most >= total as usize {
            continue;
        }
        // With others, a part of the total may be all that this gate is meant to hold.
        match config.quota.redis {
            None => warn!(key, most, total, "the total can't be reached: every stream takes a connection"),
            Some(_) => info!(key, most, total, "this gate alone can't hold the total"),
        }
    }
    info!(%address, %admin, upstream, identity, "the gate listens");
}
