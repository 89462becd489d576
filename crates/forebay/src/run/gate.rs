//! Server of `forebay gate`: builds it from its settings, runs it, and shuts it down in order.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::directory::StreamDirectory;
use forebay_gate::{GateService, ReverseProxy};
use forebay_stream::{Handshake, HttpServer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::listening_server::ListeningServer;
use super::{ServerEnd, StartError, join_quota, listen, log_mapped_variables};
use crate::admin::{self, StatusReport};
use crate::config::{ConfigError, GateConfig};
use crate::otel::{Telemetry, TracedService};
use crate::report::GateReport;
use crate::secret_guard::SecretGuard;
use crate::settings_reloader::SettingsReloader;
use crate::signals::Signals;
use crate::tls::TlsCertificate;

/// A gate that is listening.
pub struct GateServer {
    listening: ListeningServer<TracedService<GateService>>,
    proxy: ReverseProxy,
    drain_timeout: Duration,
    tls: Option<Arc<TlsCertificate>>,
}

impl GateServer {
    /// Opens the listeners and joins the quota.
    ///
    /// # Errors
    /// Fails if an address can't be bound. An unreachable Redis is no error: the gate starts
    /// without it, logs that, and retries.
    pub async fn start(
        config: GateConfig,
        metrics: PrometheusHandle,
        descriptors: Option<u64>,
    ) -> Result<GateServer, StartError> {
        let listener = listen("--listen", config.listen)?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let admin_listener = config.admin.map(|address| listen("--admin", address)).transpose()?;
        let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (quota, bus) = join_quota(&config.quota, address).await?;

        let admission = config.admission.builder.clone().stage_level(config.log.stages).build(quota.clone());
        let proxy = ReverseProxy::new(config.proxy.clone(), config.identity.identify.clone());
        let service = proxy.service(admission.clone());
        let mut http = config.http.clone();
        http.drain_timeout = closing_timeout(config.drain_timeout);
        let mut telemetry = Telemetry::new(config.otel.as_ref(), config.tls.is_some(), address);
        let mut server = HttpServer::new(listener, telemetry.traced(service), http);
        if let Some(tls) = &config.tls {
            server = server.with_handshake(Arc::clone(tls) as Arc<dyn Handshake>);
        }
        log_start(&config, address, admin_address, descriptors);
        let report = GateReport {
            started: Instant::now(),
            address,
            upstream_url: format!("http://{}", config.proxy.upstream.authority),
            identity: config.identity.methods.clone(),
            admission: admission.clone(),
            quota: quota.clone(),
            proxy: proxy.clone(),
            http: server.stats(),
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
        .label_headers(config.proxy.metric_labels.iter().map(|label| label.header().clone()).collect())
        .tls(config.tls.clone());
        let streams = Arc::new(StreamDirectory::new(admission.clone(), quota.clone(), bus));
        let admin = admin_listener
            .map(|listener| admin::server(listener, report, metrics.clone(), guard, Arc::clone(&streams)));
        let listening =
            ListeningServer { server, admin, streams, admission, quota, reload, metrics, telemetry };
        Ok(GateServer { listening, proxy, drain_timeout: config.drain_timeout, tls: config.tls })
    }

    /// Sets the function that reads the settings again on SIGHUP. Without it, only the certificate
    /// is reloaded.
    pub fn reload_with(
        mut self,
        load: impl Fn() -> Result<GateConfig, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.listening.reload.load(load);
        self
    }

    /// Serves until a signal, then drains: refuses new streams, lets open ones continue until the
    /// deadline, and closes the rest. A second signal ends it at once.
    ///
    /// The quota units are returned only after the last stream is closed, since other instances can
    /// use them at once.
    pub async fn run(self, mut signals: Signals) -> ServerEnd {
        let GateServer { listening, proxy, drain_timeout, tls } = self;
        let drain = proxy.drain();
        let (mut running, mut background) = listening.spawn();
        if let Some(tls) = tls {
            background.spawn(tls.watch());
        }

        let signal = running.next_signal(&mut signals, async || {}).await;
        let (started, streams) = (Instant::now(), drain.streams());
        drain.begin();
        running.admission.close();
        info!(signal, streams, deadline = ?drain_timeout, "gate draining");
        let end = async {
            // While streams are open, new requests are accepted, except those that need a permit.
            let open = drain_timeout - closing_timeout(drain_timeout);
            let _ = timeout_at(started + open, drain.streams_ended()).await;
            // The server closes its listener, cuts the remaining streams at its deadline, and
            // returns.
            running.stop();
            let cut = running.drained().await;
            let took = started.elapsed();
            running.leave().await;
            info!(cut, ?took, "gate stopped");
            ServerEnd::Stopped
        };
        tokio::select! {
            second = signals.next() => {
                warn!(signal = second, streams = drain.streams(), "gate aborted by a second signal");
                ServerEnd::Aborted
            }
            ended = end => ended,
        }
    }
}

impl fmt::Debug for GateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateServer").field("quota", &self.listening.quota).finish_non_exhaustive()
    }
}

/// Returns the last part of the drain timeout, in which the listener is closed and open requests
/// continue.
///
/// The server reads this timeout at its start. So the time for plain requests doesn't depend on how
/// early the streams end.
fn closing_timeout(drain_timeout: Duration) -> Duration {
    drain_timeout / 2
}

/// Logs the addresses, and warns of settings that can't take effect.
fn log_start(config: &GateConfig, address: SocketAddr, admin: Option<SocketAddr>, descriptors: Option<u64>) {
    log_mapped_variables(&config.variable_notices);
    let upstream = config.proxy.upstream.authority.as_str();
    let admin = admin.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    let identity = if config.identity.methods.is_empty() {
        "none".to_owned()
    } else {
        config.identity.methods.join(",")
    };
    if config.proxy.stream_routes.is_empty() {
        info!("no stream routes configured: every request takes a permit");
    }
    if config.identity.methods.is_empty() && config.admission.per_user.is_some() {
        warn!("per-user limit has no effect: no identity method configured; see [identity] in the settings");
    }
    let total = config.admission.total;
    let needed = 2 * u64::from(total) + 64;
    if let Some(limit) = descriptors.filter(|limit| *limit < needed) {
        warn!(
            limit,
            needed, total, "file descriptor limit too low: each stream takes two; raise `ulimit -n`"
        );
    }
    let (clients, upstreams) = (config.http.max_connections, config.proxy.upstream.max_connections);
    for (key, most) in [("http.max_connections", clients), ("gate.upstream_max_connections", upstreams)] {
        if most >= total as usize {
            continue;
        }
        // With a shared quota, this gate may be meant to hold only a part of the total.
        match config.quota.redis.is_some() || config.quota.table.is_some() {
            false => warn!(key, most, total, "stream total unreachable: each stream takes a connection"),
            true => info!(key, most, total, "connection limit below the shared stream total"),
        }
    }
    info!(%address, %admin, upstream, identity, "gate listening");
}
