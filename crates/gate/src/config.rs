//! Runtime settings of a reverse proxy, checked by the caller.

use std::time::Duration;

use forebay_admission::{ForwardedBy, Network};
use http::header::HeaderName;

use super::routes::Route;
use super::upstream::UpstreamConfig;

/// Settings of a [`ReverseProxy`](crate::ReverseProxy).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The service behind.
    pub upstream: UpstreamConfig,
    /// Requests that take a permit, each with the share of its class in percent (100 without a
    /// class); none: all do.
    pub stream_routes: Vec<(Route, u8)>,
    /// The upstream sees the client's `Host`, not its own.
    pub preserve_host: bool,
    /// Clients connect by TLS: the upstream is told `https`.
    pub is_tls: bool,
    /// Proxies whose forwarded headers are trusted.
    pub trusted_proxies: Vec<Network>,
    /// Which forwarded header they write.
    pub forwarded_by: ForwardedBy,
    /// Headers that name a user; dropped unless they come from a trusted proxy.
    pub user_headers: Vec<HeaderName>,
    /// Header in which the upstream gets the id of the verified user.
    pub forward_user_header: Option<HeaderName>,
    /// How long a client may send nothing of a body that it owes.
    pub request_idle_timeout: Duration,
}

impl Config {
    /// Settings with the defaults of `forebay gate`: every request takes a permit, and no proxy is
    /// trusted.
    pub fn new(upstream: UpstreamConfig) -> Config {
        Config {
            upstream,
            stream_routes: Vec::new(),
            preserve_host: true,
            is_tls: false,
            trusted_proxies: Vec::new(),
            forwarded_by: ForwardedBy::default(),
            user_headers: Vec::new(),
            forward_user_header: None,
            request_idle_timeout: Duration::from_secs(30),
        }
    }
}
