//! Status of a reservoir.

use std::time::Duration;

use serde::Serialize;

pub use crate::core::connection_counts::ConnectionCounts;

/// Why a connection was retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiscardReason {
    /// It expires within the guard window.
    Expired,
    /// A new connection replaced it before it expired.
    Replaced,
    /// It was closed, or the caller marked it bad.
    Bad,
    /// Its reset failed or timed out.
    ResetFailed,
    /// Its before-lend hook failed or timed out.
    HookFailed,
    /// The reservoir closes.
    Closing,
}

impl DiscardReason {
    pub(crate) const ALL: [DiscardReason; 6] = [
        DiscardReason::Expired,
        DiscardReason::Replaced,
        DiscardReason::Bad,
        DiscardReason::ResetFailed,
        DiscardReason::HookFailed,
        DiscardReason::Closing,
    ];

    /// Returns the value of the metric label and log field.
    pub fn as_str(self) -> &'static str {
        match self {
            DiscardReason::Expired => "expired",
            DiscardReason::Replaced => "replaced",
            DiscardReason::Bad => "bad",
            DiscardReason::ResetFailed => "reset_failed",
            DiscardReason::HookFailed => "hook_failed",
            DiscardReason::Closing => "closing",
        }
    }
}

/// State of a reservoir at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Label of its metrics and logs.
    pub service: String,
    /// Number of connections in each state.
    pub counts: ConnectionCounts,
    /// Number of connections that the refiller keeps.
    pub target: u32,
    /// Number of ready connections below which dials run at full concurrency.
    pub low_watermark: u32,
    /// Maximum number of connections. The server may have more if it takes longer than the close
    /// timeout to close some.
    pub max: u32,
    /// Retiring connections and abandoned dials that the server has not closed within a second.
    pub lingering: u32,
    /// Time since the oldest of them was retired.
    pub longest_lingering: Option<Duration>,
    /// Number of waiting callers.
    pub waiting: usize,
    /// Why the last dial failed; `None` after a success.
    #[serde(rename = "trouble")]
    pub last_failure: Option<String>,
    /// Time until the next dial, while dials are delayed after a failure.
    #[serde(rename = "dials_again_in")]
    pub next_dial_in: Option<Duration>,
    /// Whether the reservoir is closing.
    pub closing: bool,
    /// Name, quota and lent connections of each view.
    pub views: Vec<ViewStatus>,
    /// Ages of the connections, oldest first, at most [`MAX_LISTED`].
    #[serde(rename = "lives")]
    pub connections: Vec<ConnectionAge>,
}

/// Maximum number of connections that a [`Status`] lists.
pub const MAX_LISTED: usize = 256;

/// Age and remaining life of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ConnectionAge {
    /// Time since it was opened, in milliseconds.
    pub age_ms: u64,
    /// Time until its guard window begins, in milliseconds.
    pub ends_in_ms: u64,
    /// Whether a caller holds it.
    pub lent: bool,
}

/// State of a view.
#[derive(Debug, Clone, Serialize)]
pub struct ViewStatus {
    /// Name of the view.
    pub name: String,
    /// Maximum number of connections that it may hold.
    pub quota: u32,
    /// Number of connections that it holds.
    pub lent: u32,
}

/// Progress of the first fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillProgress {
    /// Open connections.
    pub ready: u32,
    /// Number of connections that the fill waits for.
    pub wanted: u32,
}
