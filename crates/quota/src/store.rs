//! `Store`: the interface to the shared counts. Each call is small and atomic.
//!
//! Invariant: a call is applied as a whole or not at all. A settlement with a lower sequence than
//! one already applied is ignored.
//! Grants follow one rule in all stores, `core::grant::grant`. Redis has it in Lua;
//! `tests/it/store_conformance.rs` checks that the results are equal.
//! Out of scope: timeouts and retries. Callers put a timeout around each call and handle failures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// The future of a call to a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps the counts: in memory, Redis, DynamoDB, or a custom store.
pub trait Store: Send + Sync + 'static {
    /// Joins a member, or renews its TTL.
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply>;
    /// Sets what a member holds, as far as the limits allow.
    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply>;
    /// Removes a member and all that it holds.
    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()>;
    /// Takes tokens from a bucket.
    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply>;
    /// Returns the live members and their shares of these accounts.
    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings>;
    /// Resolves when a member was refused while others may have idle units, which they should
    /// return now.
    /// The default never resolves: members then see the pressure in their next settlement.
    fn wait_for_pressure(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    /// Returns the store's name for logs and status.
    fn kind(&self) -> &'static str;
}

/// One incarnation of a member: its name and a random epoch, written `name:epoch`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(Arc<str>);

/// A colon and the epoch in hexadecimal.
const EPOCH_CHARS: usize = 17;

impl MemberId {
    /// Creates the id of the incarnation `epoch` of the member `name`.
    /// Letters, digits and `-._:+` are kept. Other characters become `_`, because stores keep lists
    /// of members.
    pub fn new(name: &str, epoch: u64) -> Self {
        MemberId(format!("{}:{epoch:016x}", sanitize_name(name)).into())
    }

    /// Parses an id that a store returned.
    pub fn parse(text: &str) -> Option<Self> {
        let colon = text.len().checked_sub(EPOCH_CHARS)?;
        let epoch = text.get(colon..)?.strip_prefix(':')?;
        epoch.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| MemberId(text.into()))
    }

    /// Returns the member's name, which all its incarnations share.
    pub fn name(&self) -> &str {
        &self.0[..self.0.len() - EPOCH_CHARS]
    }

    /// Returns the id as stores write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Replaces the characters that separate list entries in stores.
pub(crate) fn sanitize_name(name: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-._:+".contains(character);
    name.chars().map(|character| if plain(character) { character } else { '_' }).collect()
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

/// A heartbeat of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The sender.
    pub member: MemberId,
    /// Time until the member expires without another heartbeat.
    pub ttl: Duration,
    /// Join, take-over or renewal.
    pub kind: HeartbeatKind,
    /// Random number of the generation that this heartbeat starts if the store has none.
    pub generation: u64,
    /// Live members in the last reply to the sender before the rebuild began. Zero if the sender
    /// was no member then.
    pub members_before: u32,
    /// Whether the store has recorded all that the sender holds, and the members of before the
    /// rebuild had counted the sender.
    pub has_reported: bool,
}

/// The kind of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatKind {
    /// Joins a new incarnation. Others of its name are kept, because the call may arrive late from
    /// a process that has ended.
    Join,
    /// Replaces the other incarnations of its name. Sent by a new process after it has joined.
    TakeOver,
    /// Renews a member that has joined before.
    Renew,
}

/// The reply to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// State of the sender in the store.
    pub membership: Membership,
    /// The store's generation. A change means that the store has lost its data.
    pub generation: u64,
    /// Time until the rebuild ends, in which members report what they hold. Zero if the store
    /// doesn't rebuild.
    pub rebuild_left: Duration,
    /// Live members, this one included.
    pub members: u32,
    /// Members that were alive before the rebuild, as far as the store knows. Zero if the store
    /// doesn't rebuild.
    pub expected: u32,
}

/// State of a heartbeat's sender in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// The member is alive.
    Alive {
        /// Sequence of its last applied settlement; zero if there is none.
        sequence: u64,
    },
    /// The member has joined with this heartbeat.
    Joined,
    /// The member has expired, or the store has lost its data.
    Unknown,
    /// Another process has taken over the member's name.
    Replaced,
}

/// What a member wants to hold of one or more accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The sender.
    pub member: MemberId,
    /// Increases with each settlement of the member.
    pub sequence: u64,
    /// Highest sequence that the store has acknowledged. A store below it has lost writes.
    pub last_acknowledged: u64,
    /// How long pressure lasts once it is raised.
    pub pressure: Duration,
    /// During a rebuild, the member may hold up to the limit divided by this of a budget, and up to
    /// the limit of a key. Zero: no more than it holds.
    pub rebuild_parts: u32,
    /// One request for each account.
    pub requests: Vec<ShareRequest>,
}

/// What a member wants to hold of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareRequest {
    /// Name of the account.
    pub account: Arc<str>,
    /// Limit of the account.
    pub limit: u32,
    /// Units that the member holds already; the store records them even above the limit.
    pub floor: u32,
    /// Units that it wants to hold, the floor included.
    pub want: u32,
    /// Units that it has lent, for statistics.
    pub used: u32,
    /// How the account is shared.
    pub allocation: Allocation,
}

/// How an account is shared among the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    /// Grants exactly what is requested, and frees a replaced member's share at once. For keyed
    /// limits; only the names of these accounts begin with `k:`.
    Exact,
    /// Grants a block on top of the request while units are plenty, and frees a replaced member's
    /// share at once.
    Blocks,
    /// Like `Blocks`, but keeps a replaced member's share until it expires, because its process may
    /// still use the units. During a rebuild, grants nothing new.
    BlocksUntilExpiry,
}

impl Allocation {
    /// Returns whether more than the request may be granted.
    pub fn in_blocks(self) -> bool {
        match self {
            Allocation::Exact => false,
            Allocation::Blocks | Allocation::BlocksUntilExpiry => true,
        }
    }

    /// Returns whether a replaced member's share counts until it expires.
    pub fn keeps_replaced(self) -> bool {
        match self {
            Allocation::Exact | Allocation::Blocks => false,
            Allocation::BlocksUntilExpiry => true,
        }
    }
}

/// The reply to a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettlementReply {
    /// It was applied. One reply for each request, in their order.
    Applied(Vec<ShareReply>),
    /// A later settlement of the member was applied before. Nothing was changed.
    Stale,
    /// The member is not in the store. Nothing was changed.
    UnknownMember,
    /// The store has lost an acknowledged settlement. Nothing was changed.
    LostWrites,
}

/// The state of an account after a request.
/// In an exact account, all units held are used. Its totals cover the other members only if the
/// request was not fully granted; otherwise they are the member's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareReply {
    /// Units that the requesting member holds now.
    pub count: u32,
    /// Units that all members hold.
    pub total: u32,
    /// Units that all members have lent, as last reported.
    pub used: u32,
    /// Whether a member was refused lately. Idle units should then be returned.
    pub pressure: bool,
}

/// A request for tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRequest {
    /// Name of the bucket.
    pub bucket: Arc<str>,
    /// Tokens added per second.
    pub per_second: f64,
    /// Capacity of the bucket.
    pub burst: u32,
    /// Maximum number of tokens to take.
    pub want: u32,
}

/// The reply to a token request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenReply {
    /// Tokens taken.
    pub tokens: u32,
    /// If none was taken: time until one is available.
    pub wait: Duration,
}

/// The live members, and their shares.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Holdings {
    /// All live members.
    pub members: Vec<MemberLiveness>,
    /// The queried accounts that have holders.
    pub accounts: Vec<AccountShares>,
}

/// A member in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberLiveness {
    /// The member.
    pub member: MemberId,
    /// Time until it expires without another heartbeat. `None` in stores without a clock.
    pub expires_in_ms: Option<u64>,
    /// Whether another process has taken over its name.
    pub replaced: bool,
}

/// The shares of an account in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountShares {
    /// Name of the account.
    pub account: Arc<str>,
    /// Share of each live member.
    pub shares: Vec<Share>,
}

/// One member's share of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The holder.
    pub member: MemberId,
    /// Units held.
    pub count: u32,
    /// Units lent, as last reported.
    pub used: u32,
}

/// Why a call to a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No reply in time. The call may have been applied.
    #[error("the store gave no answer within {0:?}")]
    Timeout(Duration),
    /// The store can't be reached, or the connection failed. The call may have been applied.
    #[error("the store can't be reached: {0}")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store returned an error or an unexpected reply.
    #[error("the store answered something unexpected: {0}")]
    Unexpected(String),
}
