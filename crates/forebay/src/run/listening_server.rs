//! Listening server: the parts that `forebay gate` and `forebay serve` have in common, and the
//! tasks that run them.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_admission::Admission;
use forebay_quota::Quota;
use forebay_stream::{DrainSummary, HttpServer, Incoming};
use http::{Request, Response};
use http_body::Body;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tower_service::Service;

use super::upkeep;
use crate::admin::AdminService;
use crate::otel::Telemetry;
use crate::settings_reloader::SettingsReloader;
use crate::signals::Signals;
use forebay_admission::directory::StreamDirectory;

/// Time limit for returning the quota units at shutdown. Units that are not returned expire.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// An HTTP server that is listening and doesn't accept connections yet.
pub(super) struct ListeningServer<S> {
    pub(super) server: HttpServer<S>,
    pub(super) admin: Option<HttpServer<AdminService>>,
    pub(super) streams: Arc<StreamDirectory>,
    pub(super) admission: Admission,
    pub(super) quota: Quota,
    pub(super) reload: SettingsReloader,
    pub(super) metrics: PrometheusHandle,
    pub(super) telemetry: Telemetry,
}

impl<S, B> ListeningServer<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Starts to serve. Also returns the background tasks, which end when the set is dropped: the
    /// admin server, the answers to stream queries of other instances, and the upkeep of metrics
    /// and heap.
    pub(super) fn spawn(self) -> (RunningServer, JoinSet<()>) {
        let ListeningServer { server, admin, streams, admission, quota, reload, metrics, telemetry } = self;
        let mut background = JoinSet::new();
        background.spawn(streams.answer_queries());
        background.spawn(upkeep(metrics, server.stats()));
        if let Some(admin) = admin {
            background.spawn(async {
                let _never = admin.run(std::future::pending()).await;
            });
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
        (RunningServer { serving, stop: Some(stop), admission, quota, reload, telemetry }, background)
    }
}

/// An HTTP server that accepts connections.
pub(super) struct RunningServer {
    serving: JoinHandle<DrainSummary>,
    /// The HTTP server drains when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    pub(super) admission: Admission,
    quota: Quota,
    reload: SettingsReloader,
    telemetry: Telemetry,
}

impl RunningServer {
    /// Waits for a signal that ends the program, and returns its name. SIGHUP reloads the settings,
    /// and then calls `after_reload`.
    pub(super) async fn next_signal(
        &mut self,
        signals: &mut Signals,
        mut after_reload: impl AsyncFnMut(),
    ) -> &'static str {
        let reload = async || {
            self.reload.reload().await;
            after_reload().await;
        };
        signals.next_with_reload(reload).await
    }

    /// Makes the HTTP server drain.
    pub(super) fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits until the HTTP server has drained, and returns the number of aborted connections.
    pub(super) async fn drained(&mut self) -> usize {
        (&mut self.serving).await.map_or(0, |summary| summary.cut)
    }

    /// Returns the quota units and exports the last spans.
    pub(super) async fn leave(self) {
        let _ = tokio::join!(timeout(LEAVE_TIMEOUT, self.quota.leave()), self.telemetry.end());
    }
}
