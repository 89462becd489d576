//! What can be seen of a member.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::config::Policy;
use crate::store::MemberId;

/// How a member decides at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With the store.
    Normal,
    /// The store is away; units are lent out of the slices until their deadline.
    WithinSlices,
    /// Without the store and past the deadline: by policy.
    Degraded(Policy),
    /// The store has lost its memory, or was away until its members had expired: they push what they hold, and nothing new is
    /// granted.
    Rebuilding,
}

impl Mode {
    /// In logs, metrics and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Normal => "normal",
            Mode::WithinSlices => "within_slices",
            Mode::Degraded(Policy::Closed) => "degraded_closed",
            Mode::Degraded(Policy::Share) => "degraded_share",
            Mode::Degraded(Policy::Open) => "degraded_open",
            Mode::Rebuilding => "rebuilding",
        }
    }

    /// Every mode, for metrics that show all of them.
    pub const ALL: [Mode; 6] = [
        Mode::Normal,
        Mode::WithinSlices,
        Mode::Degraded(Policy::Closed),
        Mode::Degraded(Policy::Share),
        Mode::Degraded(Policy::Open),
        Mode::Rebuilding,
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The whole state of a member, without asking the store.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The kind of store.
    pub store: &'static str,
    /// This incarnation.
    pub member: MemberId,
    /// Members alive, as last told.
    pub members: u32,
    /// How it decides.
    pub mode: Mode,
    /// For how long it has done so.
    pub mode_since_ms: u64,
    /// Why it isn't `normal`, if it isn't.
    pub why: Option<String>,
    /// Each budget.
    pub budgets: Vec<BudgetStatus>,
    /// Each keyed limit.
    pub keyed: Vec<KeyedStatus>,
    /// What it has done so far.
    pub counters: Counters,
}

/// A budget, as its member sees it.
#[derive(Debug, Clone, Serialize)]
pub struct BudgetStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Its use.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A keyed limit, as its member sees it.
#[derive(Debug, Clone, Serialize)]
pub struct KeyedStatus {
    /// Its name.
    pub name: Arc<str>,
    /// What each key may have in the cluster.
    pub limit: u32,
    /// Keys in use here.
    pub keys: usize,
    /// Units lent here, over all keys.
    pub held: u64,
}

/// How much of a budget is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Lent by this member.
    pub used_here: u32,
    /// What this member may lend without asking.
    pub slice: u32,
    /// Lent by all members: ours now, the others' as last told, which is a beat ago at most.
    pub used: u32,
    /// The limit for all.
    pub limit: u32,
    /// Whether somebody in the cluster was refused lately.
    pub pressure: bool,
}

/// What a member has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Beats sent.
    pub beats: u64,
    /// Settlements sent.
    pub settlements: u64,
    /// Accounts in them.
    pub asks: u64,
    /// Calls that failed or timed out.
    pub failures: u64,
    /// Units refused.
    pub refused: u64,
    /// Units granted without the store's word.
    pub granted_by_policy: u64,
    /// New incarnations of this process.
    pub rebirths: u64,
    /// Callers that wait for the store now.
    pub waiting: usize,
}

/// Why a member began a new incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rebirth {
    StoreForgotUs,
    StoreLostWrites,
    NameTaken,
}

impl Rebirth {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Rebirth::StoreForgotUs => "the store has forgotten this member",
            Rebirth::StoreLostWrites => "the store has lost writes",
            Rebirth::NameTaken => "another process has this member's name",
        }
    }
}

/// What is worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    Joined { member: MemberId, members: u32 },
    Reborn { why: Rebirth, member: MemberId },
    StoreIsGone { why: String },
    StoreIsBack,
    StoreLostMemory,
}
