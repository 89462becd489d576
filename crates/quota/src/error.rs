//! `QuotaRefusal`: the reasons why a unit or a token was not granted.

use std::time::Duration;

/// Why a unit or a token was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaRefusal {
    /// All units are lent.
    #[error("{used} of {limit} units are lent")]
    Full {
        /// Units lent by all members; those of other members as of the store's last reply.
        used: u32,
        /// The limit that was checked.
        limit: u32,
    },
    /// The store may lack the shares of some members, until they have reported what they hold.
    /// Meanwhile it grants this member no more than its [`OutagePolicy`](crate::OutagePolicy)
    /// allows.
    /// This happens in a new namespace, after data loss, and after an outage in which members
    /// expired.
    #[error(
        "the quota store is being rebuilt from its members: no more is granted here for another {left:?}"
    )]
    Rebuilding {
        /// Time until the rebuild ends.
        left: Duration,
    },
    /// The store is unavailable, and the [`OutagePolicy`](crate::OutagePolicy) grants nothing
    /// without it.
    #[error("the quota store is unavailable: {why}")]
    Unavailable {
        /// The last error of the store.
        why: String,
    },
    /// The maximum number of callers already waits for the store.
    #[error("{waiting} callers already wait for the quota store")]
    Busy {
        /// Callers waiting.
        waiting: usize,
    },
}

impl QuotaRefusal {
    pub(crate) fn member_has_left() -> Self {
        QuotaRefusal::Unavailable { why: "this member has left".into() }
    }

    /// Returns the name used in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            QuotaRefusal::Full { .. } => "full",
            QuotaRefusal::Rebuilding { .. } => "rebuilding",
            QuotaRefusal::Unavailable { .. } => "unavailable",
            QuotaRefusal::Busy { .. } => "busy",
        }
    }
}
