//! What a caller is told.

use std::time::Duration;

use crate::connect::ConnectErrorKind;

/// Why there was no connection to lend.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckoutError {
    /// None became free in time.
    #[error("no connection within {waited:?}: {why}")]
    Empty {
        /// What keeps the reservoir empty.
        why: Shortage,
        /// How long was waited.
        waited: Duration,
    },
    /// The view has as many as it may have, and none came back in time.
    #[error("no connection within {waited:?}: the view {view:?} has all {quota} that it may have")]
    ViewFull {
        /// The view's name.
        view: String,
        /// How many it may have.
        quota: u32,
        /// How long was waited.
        waited: Duration,
    },
    /// Too many callers wait already.
    #[error("{waiting} callers wait for a connection already; raise max_waiting, or have more connections")]
    Busy {
        /// How many.
        waiting: usize,
    },
    /// The reservoir closes, or is closed.
    #[error("the reservoir is closed")]
    Closed,
    /// A connection that a pool above has kept is at its end. The pool takes another.
    #[error("the connection is at its end")]
    Ended,
}

/// What keeps a reservoir empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortage {
    /// All that there are, are in use.
    #[error("all {lent} connections are in use; raise target_ready, or hold them for less long")]
    AllLent {
        /// How many.
        lent: u32,
    },
    /// There is no room for another before the server has closed some that are closed here.
    #[error(
        "{lingering} of {max} connections are waiting for the server to close them, the longest for {longest:?}; \
         {lent} are in use"
    )]
    Lingering {
        /// How many wait for longer than a second.
        lingering: u32,
        /// How many connections there may be.
        max: u32,
        /// How long the oldest of them has waited.
        longest: Duration,
        /// How many are in use.
        lent: u32,
    },
    /// The next is being opened.
    #[error("the next connection is being opened")]
    Dialing,
    /// The next waits for the limit on how many may be opened per second.
    #[error("the rate limit for new connections holds the next one back")]
    RateLimited,
    /// The cluster has as many connections as its budget allows, or nobody can say.
    #[error("no connection lease: {why}")]
    LeaseDenied {
        /// The budget's word.
        why: String,
    },
    /// Nobody can say whether the limit on how many may be opened per second allows another.
    #[error("no token to open a connection: {why}")]
    RateDenied {
        /// The rate's word.
        why: String,
    },
    /// The reservoir closes, or is closed.
    #[error("the reservoir is closed")]
    Closed,
    /// Nothing to connect with.
    #[error("{why}")]
    Credentials {
        /// What the provider said.
        why: String,
    },
    /// The last try to connect failed.
    #[error("{why}")]
    Connect {
        /// What kind of failure it was.
        kind: ConnectErrorKind,
        /// What was said.
        why: String,
    },
}

impl Shortage {
    /// In metrics and logs.
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

/// Why the first filling failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not one connection within {waited:?}: {why}")]
pub struct FillError {
    /// What keeps the reservoir empty.
    pub why: Shortage,
    /// How long was waited.
    pub waited: Duration,
}
