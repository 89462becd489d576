//! Why there is no unit, or no token.

use std::time::Duration;

/// Why a unit was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Everything is lent.
    #[error("{used} of {limit} are taken")]
    Full {
        /// How many are lent, as far as this member knows.
        used: u32,
        /// Of how many.
        limit: u32,
    },
    /// The store has lost its memory, or was away until its members had expired; they tell it what they hold, and nothing
    /// new is granted meanwhile.
    #[error(
        "the store doesn't know who holds what and is being told anew: nothing is granted for another {left:?}"
    )]
    Rebuilding {
        /// For how long.
        left: Duration,
    },
    /// The store can't be asked, and the policy grants nothing without it.
    #[error("the store can't be asked: {why}")]
    Unavailable {
        /// What it said, or didn't.
        why: String,
    },
    /// Too many callers wait for the store's answer already.
    #[error("{waiting} callers wait for the store already")]
    Busy {
        /// How many.
        waiting: usize,
    },
}

impl Refusal {
    /// In logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Refusal::Full { .. } => "full",
            Refusal::Rebuilding { .. } => "rebuilding",
            Refusal::Unavailable { .. } => "unavailable",
            Refusal::Busy { .. } => "busy",
        }
    }
}
