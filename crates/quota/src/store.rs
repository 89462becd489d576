//! What a store does: a handful of small calls, each atomic.
//!
//! Invariant: a call lands whole or not at all, and a settlement with a sequence below one that has landed is ignored.
//! A store keeps no policy: what is granted is decided by one rule, `core::ledger::grant`, which the stores share (Redis
//! has it in Lua, held to the same behaviour by `tests/it/agreement.rs`).
//! Not here: deadlines and retries; callers put a timeout around each call and decide what a failure means.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A call on its way to a store.
pub type Calling<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where the counts are kept: memory, Redis, DynamoDB, or yours.
pub trait Store: Send + Sync + 'static {
    /// Tells that a member lives, or lets one in.
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse>;
    /// Sets what a member holds, as far as the limits allow.
    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled>;
    /// Forgets a member and all that it holds.
    fn leave(&self, member: MemberId) -> Calling<'_, ()>;
    /// Takes tokens from a bucket.
    fn draw(&self, draw: Draw) -> Calling<'_, Drawn>;
    /// Who is alive, and who holds how much of these accounts.
    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings>;
    /// Resolves when somebody was refused while others may have idle units: those should go back now. A store that can't
    /// tell never resolves it; its members learn of pressure with their next beat.
    fn pressed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    /// The store's name in logs and status.
    fn kind(&self) -> &'static str;
}

/// One incarnation of a member: its name and a random epoch, written `name:epoch`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(Arc<str>);

/// A colon and the epoch in hexadecimal.
const EPOCH_CHARS: usize = 17;

impl MemberId {
    /// The incarnation `epoch` of the member `name`. Of the name, letters, digits and `-._:+` are kept; others become `_`,
    /// since stores keep lists of members.
    pub fn new(name: &str, epoch: u64) -> Self {
        MemberId(format!("{}:{epoch:016x}", plain_name(name)).into())
    }

    /// What a store wrote down of one.
    pub fn parse(text: &str) -> Option<Self> {
        let colon = text.len().checked_sub(EPOCH_CHARS)?;
        let epoch = text.get(colon..)?.strip_prefix(':')?;
        epoch.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| MemberId(text.into()))
    }

    /// The member's name, which its next incarnation has as well.
    pub fn name(&self) -> &str {
        &self.0[..self.0.len() - EPOCH_CHARS]
    }

    /// As stores write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A member's name without the signs that separate the entries of a list.
pub(crate) fn plain_name(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:+".contains(letter);
    name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect()
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for MemberId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Who.
    pub member: MemberId,
    /// How long the store believes it.
    pub ttl: Duration,
    /// What it is.
    pub kind: BeatKind,
    /// The generation that begins with this beat, should the store have none. Random.
    pub generation: u64,
}

/// What a beat is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeatKind {
    /// A new incarnation. Others of its name stay as they are: this call may come late, from a process that is gone.
    Join,
    /// A new process, which knows that it was let in: other incarnations of its name are replaced.
    TakeOver,
    /// One that the store should know.
    Stay,
}

/// The answer to a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// Whether the store knows the member.
    pub standing: Standing,
    /// The store's generation: another one means that it had lost its memory.
    pub generation: u64,
    /// For how long nothing new is granted, since members still push what they hold.
    pub rebuild_left: Duration,
    /// Members alive, this one included.
    pub members: u32,
}

/// What a store knows of a member that beats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It lives. The sequence of its last settlement that landed.
    Alive {
        /// Zero if none has.
        sequence: u64,
    },
    /// It was let in.
    Joined,
    /// It expired, or the store lost its memory.
    Unknown,
    /// Another process has taken its name.
    Replaced,
}

/// What a member wants to hold, of one or many accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Who.
    pub member: MemberId,
    /// Grows with each settlement of the member.
    pub sequence: u64,
    /// The latest of them of which the member knows that it landed: a store that doesn't know it has lost writes.
    pub landed: u64,
    /// How long pressure stays, once raised.
    pub pressure: Duration,
    /// The accounts; each at most once.
    pub asks: Vec<Ask>,
}

/// What a member wants to hold of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The account's name.
    pub account: Arc<str>,
    /// The account's limit.
    pub limit: u32,
    /// What the member holds whatever the limit says.
    pub floor: u32,
    /// What it would like to hold, the floor included.
    pub want: u32,
    /// What it has lent out: for statistics.
    pub used: u32,
    /// How the account is shared.
    pub sharing: Sharing,
}

/// How an account is shared among the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Exactly what is asked for; a replaced member's share is free at once. For keyed limits: the names of these
    /// accounts, and only theirs, begin with `k:`.
    Exact,
    /// A block on top of what is asked for while there is plenty; a replaced member's share is free at once.
    Blocks,
    /// As `Blocks`, but a replaced member's share stays until it expires: its process may still hold what it stands for.
    BlocksUntilExpiry,
}

impl Sharing {
    /// Whether more than what is asked for may be given.
    pub fn in_blocks(self) -> bool {
        match self {
            Sharing::Exact => false,
            Sharing::Blocks | Sharing::BlocksUntilExpiry => true,
        }
    }

    /// Whether a replaced member's share counts until it expires.
    pub fn keeps_replaced(self) -> bool {
        match self {
            Sharing::Exact | Sharing::Blocks => false,
            Sharing::BlocksUntilExpiry => true,
        }
    }
}

/// What became of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It landed: one answer for each ask, in their order.
    Landed(Vec<Answer>),
    /// A later one of the same member had landed before; nothing was changed.
    Stale,
    /// The store doesn't know the member; nothing was changed.
    Unknown,
    /// The store has lost an earlier one that had landed; nothing was changed.
    LostWrites,
}

/// The state of an account after an ask. Of one that is shared exactly, what is held is what is used, and the others are told
/// of only to somebody who fell short: the totals are else the asking member's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What the asking member holds now.
    pub count: u32,
    /// What all members hold.
    pub total: u32,
    /// What all members have lent out, as they last said.
    pub used: u32,
    /// Whether somebody was refused lately: then idle units should go back.
    pub pressure: bool,
}

/// A wish for tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The bucket's name.
    pub bucket: Arc<str>,
    /// How fast it fills.
    pub per_second: f64,
    /// How much it holds.
    pub burst: u32,
    /// How many tokens at most.
    pub want: u32,
}

/// Tokens, or none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// How many were given.
    pub tokens: u32,
    /// If none was: how long until there is one.
    pub wait: Duration,
}

/// Who holds what.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Holdings {
    /// Everybody alive.
    pub members: Vec<Life>,
    /// Those accounts that were asked for and of which somebody holds something.
    pub accounts: Vec<Shares>,
}

/// A member, as the store sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Life {
    /// Who.
    pub member: MemberId,
    /// How long it is believed if no further beat comes; unknown to stores without a clock.
    pub expires_in_ms: Option<u64>,
    /// Whether another process has taken its name.
    pub replaced: bool,
}

/// An account, as the store sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// The account's name.
    pub account: Arc<str>,
    /// Each living member's share.
    pub shares: Vec<Share>,
}

/// One member's share of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Whose.
    pub member: MemberId,
    /// Units held.
    pub count: u32,
    /// Units lent out of them, as last said.
    pub used: u32,
}

/// Why a call to a store gave nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time; it may have landed.
    #[error("the store gave no answer within {0:?}")]
    Timeout(Duration),
    /// It can't be reached, or the call failed on the way; it may have landed.
    #[error("the store can't be reached: {0}")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It answered something else than expected.
    #[error("the store answered something unexpected: {0}")]
    Unexpected(String),
}
