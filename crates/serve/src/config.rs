//! Settings of a shape backend. The caller validates them.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

/// Settings of a [`ShapeBackend`](crate::ShapeBackend). The defaults are those of `forebay serve`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Maximum number of snapshots that run at once. At most the number of connections for them in
    /// the manager's pool (see [`ManagerConfig::pool_size`]). Default: 16.
    ///
    /// [`ManagerConfig::pool_size`]: forebay_replication::ManagerConfig::pool_size
    pub snapshots: usize,
    /// How long a table stays in the publication after its last shape; `None`: for ever.
    /// Default: 10 minutes.
    pub unpublish_after: Option<Duration>,
    /// How long a live request waits for a change. Default: 20 s.
    pub long_poll: Duration,
    /// Interval of keep-alive comments on a silent event stream. Default: 21 s.
    pub sse_keep_alive: Duration,
    /// Duration after which an event stream ends with its next up-to-date. Default: 60 s.
    pub sse_timeout: Duration,
    /// How long a cache may serve a non-live response without revalidation, in seconds. Default:
    /// 60.
    pub max_age_s: u32,
    /// How much longer a cache may serve the response while it revalidates, in seconds. Default:
    /// 300.
    pub stale_age_s: u32,
    /// Maximum time to receive the whole body of a request. The HTTP server's read timeout bounds
    /// only the pauses between its parts. Default: 2 minutes.
    pub body_timeout: Duration,
    /// Name of the claim with the grants of a token. Needed if
    /// [`Access::tokens`](crate::protocol::Access::tokens) is set.
    pub tokens_claim: Option<String>,
    /// Whether a clause may have conditions that only Postgres can evaluate. Then Postgres
    /// evaluates the clause on changed rows. Default: true.
    pub postgres_clauses: bool,
    /// Maximum number of shapes with such clauses. Default: 1,000.
    pub postgres_clause_shapes: usize,
    /// Maximum number of statements per second that evaluate clauses on changed rows. Default: 100.
    pub postgres_clause_statements_per_s: u32,
    /// Builds the response at `/`; `None`: an empty one.
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
            postgres_clauses: true,
            postgres_clause_shapes: 1_000,
            postgres_clause_statements_per_s: 100,
            home: None,
        }
    }
}
