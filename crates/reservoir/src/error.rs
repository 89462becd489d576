//! Errors of checkouts and of the first fill.

use std::time::Duration;

use crate::connect::ConnectionErrorKind;

/// Why a checkout failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// No connection became free in time.
    #[error("no connection within {waited:?}: {why}")]
    Empty {
        /// Why the reservoir has no free connection.
        why: Shortage,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The view has reached its quota, and no connection was returned in time.
    #[error("no connection within {waited:?}: the view {view:?} has all {quota} that it may have")]
    ViewFull {
        /// Name of the view.
        view: String,
        /// Its quota.
        quota: u32,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The maximum number of callers already waits.
    #[error("{waiting} callers wait for a connection already; raise max_waiting, or have more connections")]
    Busy {
        /// Number of waiting callers.
        waiting: usize,
    },
    /// The reservoir is closed or closing.
    #[error("the reservoir is closed")]
    Closed,
    /// The before-lend hook failed on each connection that became free in time.
    #[error("no connection within {waited:?}: the before-lend hook failed: {why}")]
    Hook {
        /// Error of the hook, the last time that it ran.
        why: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// `try_checkout` can't run a before-lend hook.
    #[error("try_checkout can't wait for the before-lend hook: use checkout_within")]
    HookNeedsWait,
    /// A connection that another pool kept has expired or failed its reset. The pool takes another
    /// one.
    #[error("the connection is at its end")]
    Ended,
}

/// Why a reservoir has no free connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Shortage {
    /// All connections are lent.
    #[error("all {lent} connections are in use; raise target_ready, or hold them for less long")]
    AllLent {
        /// Number of lent connections.
        lent: u32,
    },
    /// No dial can begin until the server closes connections that were already closed here.
    #[error(
        "{lingering} of {max} connections are waiting for the server to close them, the longest for {longest:?}; \
         {lent} are in use"
    )]
    Lingering {
        /// Connections that the server has not closed within a second.
        lingering: u32,
        /// Maximum number of connections.
        max: u32,
        /// Time since the oldest of them was retired.
        longest: Duration,
        /// Number of lent connections.
        lent: u32,
    },
    /// A connection is being opened.
    #[error("the next connection is being opened")]
    Dialing,
    /// The next dial waits for the rate limit.
    #[error("the rate limit for new connections holds the next one back")]
    RateLimited,
    /// The cluster's connection budget is used up, or its store is unavailable.
    #[error("no connection lease: {why}")]
    LeaseDenied {
        /// Reason that the budget gave.
        why: String,
    },
    /// The rate limit could not be checked.
    #[error("no token to open a connection: {why}")]
    RateDenied {
        /// Reason that the rate limit gave.
        why: String,
    },
    /// The reservoir is closed or closing.
    #[error("the reservoir is closed")]
    Closed,
    /// The token provider failed.
    #[error("{why}")]
    Credentials {
        /// Its error.
        why: String,
    },
    /// The last dial failed.
    #[error("{why}")]
    Connect {
        /// Kind of the error.
        kind: ConnectionErrorKind,
        /// Text of the error.
        why: String,
    },
}

impl Shortage {
    /// Returns the value of the metric label and log field.
    pub fn as_str(&self) -> &'static str {
        match self {
            Shortage::AllLent { .. } => "all_lent",
            Shortage::Lingering { .. } => "lingering",
            Shortage::Dialing => "dialing",
            Shortage::RateLimited => "rate_limited",
            Shortage::LeaseDenied { .. } => "lease_denied",
            Shortage::RateDenied { .. } => "rate_denied",
            Shortage::Closed => "closed",
            Shortage::Credentials { .. } => "credentials",
            Shortage::Connect { .. } => "connect",
        }
    }
}

/// Why the first fill failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not one connection within {waited:?}: {why}")]
pub struct FillError {
    /// Why the reservoir has no connection.
    pub why: Shortage,
    /// How long the caller waited.
    pub waited: Duration,
}
