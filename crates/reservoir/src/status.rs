//! What a reservoir tells of itself.

use std::time::Duration;

use serde::Serialize;

pub use crate::core::ledger::Counts;

/// Why a connection was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discard {
    /// It was within the guard window of its end.
    Expired,
    /// A younger one took its place before it came to that.
    Replaced,
    /// It was closed, or whoever had it said that it is bad.
    Bad,
    /// What the last one left behind couldn't be cleaned up in time.
    ResetFailed,
    /// The reservoir closes.
    Closing,
}

impl Discard {
    pub(crate) const ALL: [Discard; 5] =
        [Discard::Expired, Discard::Replaced, Discard::Bad, Discard::ResetFailed, Discard::Closing];

    /// In metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Discard::Expired => "expired",
            Discard::Replaced => "replaced",
            Discard::Bad => "bad",
            Discard::ResetFailed => "reset_failed",
            Discard::Closing => "closing",
        }
    }
}

/// Everything that a reservoir knows of itself.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The name of its metrics.
    pub service: String,
    /// Where its connections are.
    pub counts: Counts,
    /// How many it wants to have.
    pub target: u32,
    /// Below how many ready ones it hurries.
    pub low_watermark: u32,
    /// More than this there never are, unless the server takes longer than the close timeout to close some.
    pub max: u32,
    /// Of those that are retiring: connections, and dials that were given up, that the server hasn't closed within a second.
    pub lingering: u32,
    /// How long the server has been waited for to close the oldest of them.
    pub longest_lingering: Option<Duration>,
    /// Callers that wait.
    pub waiting: usize,
    /// What keeps it from being full, if anything does.
    pub trouble: Option<String>,
    /// When it dials again, after a failure.
    pub dials_again_in: Option<Duration>,
    /// Whether it closes.
    pub closing: bool,
    /// Each view's name, quota, and connections in use.
    pub views: Vec<ViewStatus>,
    /// How old its connections are, the oldest first, at most [`MAX_LISTED`].
    pub lives: Vec<LifeStatus>,
}

/// How many connections a [`Status`] lists.
pub const MAX_LISTED: usize = 256;

/// How old a connection is, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LifeStatus {
    /// Since it was opened.
    pub age_ms: u64,
    /// Until it is too old to be lent.
    pub ends_in_ms: u64,
    /// Whether somebody has it.
    pub lent: bool,
}

/// A view, and what it has.
#[derive(Debug, Clone, Serialize)]
pub struct ViewStatus {
    /// Its name.
    pub name: String,
    /// How many it may have at once.
    pub quota: u32,
    /// How many it has.
    pub lent: u32,
}

/// How far the first filling has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    /// Connections that are there.
    pub ready: u32,
    /// As many are waited for.
    pub wanted: u32,
}
