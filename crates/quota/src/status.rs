//! Status of a member: mode, usage and counters.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::config::OutagePolicy;
use crate::store::MemberId;

/// How a member decides now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaMode {
    /// The store decides.
    Normal,
    /// The store is unavailable. Units are lent from the slices until the slice deadline.
    WithinSlices,
    /// The store is unavailable and the slice deadline has passed. The outage policy decides.
    Degraded(OutagePolicy),
    /// The store is available, but may lack the shares of members that have yet to report. The
    /// outage policy decides what it grants.
    Rebuilding,
}

impl QuotaMode {
    /// Returns the name used in logs, metrics and status.
    pub fn as_str(self) -> &'static str {
        match self {
            QuotaMode::Normal => "normal",
            QuotaMode::WithinSlices => "within_slices",
            QuotaMode::Degraded(OutagePolicy::Closed) => "degraded_closed",
            QuotaMode::Degraded(OutagePolicy::Share) => "degraded_share",
            QuotaMode::Degraded(OutagePolicy::Open) => "degraded_open",
            QuotaMode::Rebuilding => "rebuilding",
        }
    }

    /// Every mode, for metrics that show all of them.
    pub const ALL: [QuotaMode; 6] = [
        QuotaMode::Normal,
        QuotaMode::WithinSlices,
        QuotaMode::Degraded(OutagePolicy::Closed),
        QuotaMode::Degraded(OutagePolicy::Share),
        QuotaMode::Degraded(OutagePolicy::Open),
        QuotaMode::Rebuilding,
    ];
}

impl fmt::Display for QuotaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for QuotaMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The state of a member, without a call to the store.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Kind of the store.
    pub store: &'static str,
    /// This incarnation.
    pub member: MemberId,
    /// Live members in the last heartbeat reply.
    pub members: u32,
    /// Current mode.
    pub mode: QuotaMode,
    /// Time since the last change of mode.
    pub mode_since_ms: u64,
    /// Why the mode isn't `normal`.
    pub why: Option<String>,
    /// All budgets.
    pub budgets: Vec<BudgetStatus>,
    /// All keyed limits.
    pub keyed: Vec<KeyedStatus>,
    /// Totals since the start.
    pub counters: MemberCounters,
}

/// A budget, as this member sees it.
#[derive(Debug, Clone, Serialize)]
pub struct BudgetStatus {
    /// Name of the budget.
    pub name: Arc<str>,
    /// Units in use.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A keyed limit, as this member sees it.
#[derive(Debug, Clone, Serialize)]
pub struct KeyedStatus {
    /// Name of the limit.
    pub name: Arc<str>,
    /// Limit of each key in the cluster.
    pub limit: u32,
    /// Keys in use in this member.
    pub keys: usize,
    /// Units that this member has lent, over all keys.
    pub held: u64,
}

/// How much of a budget is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Units lent by this member.
    pub used_here: u32,
    /// Units that this member may lend without a call to the store.
    pub slice: u32,
    /// Units lent by all members. The other members' part is at most one heartbeat old.
    pub used: u32,
    /// Limit of the cluster.
    pub limit: u32,
    /// Whether a member was refused lately.
    pub pressure: bool,
}

/// Totals of a member since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemberCounters {
    /// Heartbeats sent.
    #[serde(rename = "beats")]
    pub heartbeats: u64,
    /// Settlements sent.
    pub settlements: u64,
    /// Share requests in them.
    #[serde(rename = "asks")]
    pub share_requests: u64,
    /// Calls that failed or timed out.
    pub failures: u64,
    /// Units refused.
    pub refused: u64,
    /// Units granted by the outage policy.
    pub granted_by_policy: u64,
    /// New incarnations after the first.
    #[serde(rename = "rebirths")]
    pub rejoins: u64,
    /// Callers that wait for the store now.
    pub waiting: usize,
}

/// Why a member began a new incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RejoinReason {
    UnknownToStore,
    StoreLostWrites,
    NameTaken,
}

impl RejoinReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RejoinReason::UnknownToStore => "the store has forgotten this member",
            RejoinReason::StoreLostWrites => "the store has lost writes",
            RejoinReason::NameTaken => "another process has this member's name",
        }
    }
}

/// A state change that is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberNotice {
    Joined { member: MemberId, members: u32 },
    Rejoined { why: RejoinReason, member: MemberId },
    StoreUnavailable { why: String },
    StoreAvailable,
    StoreLostData,
}
