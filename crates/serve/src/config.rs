//! Runtime settings of the shape protocol, checked by the caller.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

/// Settings of a [`ShapeBackend`](crate::ShapeBackend). The defaults are those of `forebay serve`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Snapshots taken at once: fewer than the manager's pool has connections. 16.
    pub snapshots: usize,
    /// How long a table stays in the publication after its last shape; `None`: for ever. 10
    /// minutes.
    pub unpublish_after: Option<Duration>,
    /// How long a live request waits for a change. 20 s.
    pub long_poll: Duration,
    /// Interval of comments on a silent event stream. 21 s.
    pub sse_keep_alive: Duration,
    /// When an event stream ends. 60 s.
    pub sse_timeout: Duration,
    /// How long a cache may serve a response that is not live without asking, in seconds. 60.
    pub max_age_s: u32,
    /// How much longer it may serve it while it asks, in seconds. 300.
    pub stale_age_s: u32,
    /// How long the whole body of a request may take. 2 minutes.
    pub body_timeout: Duration,
    /// The claim with the grants of a token, if [`Access::tokens`](crate::protocol::Access::tokens)
    /// is set.
    pub tokens_claim: Option<String>,
    /// Makes the response at `/`; `None`: an empty one.
    pub home: Option<fn() -> Response<Bytes>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            snapshots: 16,
            unpublish_after: Some(Duration::from_secs(600)),
            long_poll: Duration::from_secs(20),
            sse_keep_alive: Duration::from_secs(21),
            sse_timeout: Duration::from_secs(60),
            max_age_s: 60,
            stale_age_s: 300,
            body_timeout: Duration::from_secs(120),
            tokens_claim: None,
            home: None,
        }
    }
}
