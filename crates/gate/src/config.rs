//! Runtime settings of a reverse proxy. The caller has validated them.

use std::time::Duration;

use forebay_admission::{ForwardedHeader, Network};
use http::header::HeaderName;

use super::metric_label::MetricLabel;
use super::stream_routes::StreamRoute;
use super::upstream::UpstreamConfig;

/// Settings of a [`ReverseProxy`](crate::ReverseProxy).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The upstream service.
    pub upstream: UpstreamConfig,
    /// Routes whose requests take a permit, each with the share of the total limit that its class
    /// may use, in percent (100 without a class). If empty, every request takes a permit.
    pub stream_routes: Vec<(StreamRoute, u8)>,
    /// Whether the upstream receives the client's `Host` instead of the upstream's own host and
    /// port.
    pub preserve_host: bool,
    /// Whether clients connect over TLS. `X-Forwarded-Proto` is then `https`.
    pub is_tls: bool,
    /// Proxies whose forwarded headers are trusted.
    pub trusted_proxies: Vec<Network>,
    /// Which forwarded header the trusted proxies write.
    pub forwarded_by: ForwardedHeader,
    /// Headers that carry a user id. They are dropped unless a trusted proxy sent them.
    pub user_headers: Vec<HeaderName>,
    /// Header in which the upstream receives the id of the verified user.
    pub forward_user_header: Option<HeaderName>,
    /// Labels of the metric `forebay_gate_outcomes_total` that are read from request headers.
    /// Ignored are later labels of the same name, and labels beyond
    /// [`MAX_METRIC_LABELS`](crate::MAX_METRIC_LABELS).
    pub metric_labels: Vec<MetricLabel>,
    /// Maximum time that the gate waits for the next bytes of a request body.
    pub request_idle_timeout: Duration,
    /// Maximum time without a byte in either direction of an upgraded connection.
    pub upgrade_idle_timeout: Duration,
}

impl Config {
    /// Returns the defaults of `forebay gate`: every request takes a permit, and no proxy is
    /// trusted.
    pub fn new(upstream: UpstreamConfig) -> Config {
        Config {
            upstream,
            stream_routes: Vec::new(),
            preserve_host: true,
            is_tls: false,
            trusted_proxies: Vec::new(),
            forwarded_by: ForwardedHeader::default(),
            user_headers: Vec::new(),
            forward_user_header: None,
            metric_labels: Vec::new(),
            request_idle_timeout: Duration::from_secs(30),
            upgrade_idle_timeout: Duration::from_secs(300),
        }
    }
}
