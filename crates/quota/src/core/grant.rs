//! The rule of all stores: which share of an account a request gets.
//!
//! Invariant: a share grows only within the limit less what other members hold, and within the
//! requesting member's ceiling.
//! DynamoDB and the ledger call these functions. Redis has the same rule in `redis/settle.lua`.

use crate::store::{Allocation, ShareReply, ShareRequest};

/// Units that one member holds of an account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) count: u32,
    pub(crate) used: u32,
}

/// An account as one requesting member sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountView {
    /// Units that the other members hold.
    pub(crate) others: u32,
    /// Live members, the requesting one included.
    pub(crate) members: u32,
    /// The requesting member may hold no more than this, unless it holds more already.
    pub(crate) ceiling: u32,
    /// After a refusal, a member gets no more than it requests.
    pub(crate) pressure: bool,
}

/// Returns the share that a request gets. This is the rule of all stores.
pub(crate) fn grant(request: &ShareRequest, view: AccountView) -> u32 {
    let most = request.limit.saturating_sub(view.others).min(view.ceiling);
    let granted = request.want.min(most).max(request.floor);
    let grows = granted == request.want && request.want > request.floor;
    if request.allocation.in_blocks() && grows && !view.pressure {
        // Half of an equal part of the rest: all members find some units, and blocks shrink with
        // the rest.
        granted + (most - granted) / (2 * view.members.max(1))
    } else {
        granted
    }
}

/// Returns the most that a member may hold of an account. `rebuild_parts` is `None` if the store
/// doesn't rebuild; see [`Settlement::rebuild_parts`].
pub(crate) fn ceiling(allocation: Allocation, limit: u32, rebuild_parts: Option<u32>) -> u32 {
    match (rebuild_parts, allocation) {
        (None, _) => u32::MAX,
        (Some(0), _) | (Some(_), Allocation::BlocksUntilExpiry) => 0,
        (Some(parts), Allocation::Blocks) => equal_part(limit, parts),
        (Some(_), Allocation::Exact) => limit,
    }
}

/// Returns an equal part of a limit: at least one unit, unless the limit is zero.
pub(crate) fn equal_part(limit: u32, parts: u32) -> u32 {
    (limit / parts.max(1)).max(1).min(limit)
}

/// Returns whether a request gets less because other members hold the rest. Idle units of others
/// can help it.
pub(crate) fn lacks_room(request: &ShareRequest, count: u32, ceiling: u32) -> bool {
    count < request.want.min(ceiling)
}

/// Builds the reply to a request.
pub(crate) fn share_reply(request: &ShareRequest, count: u32, others: Holding, pressure: bool) -> ShareReply {
    let (total, used) = (others.count.saturating_add(count), others.used.saturating_add(request.used));
    match (request.allocation.in_blocks(), count == request.want) {
        (true, _) => ShareReply { count, total, used, pressure },
        (false, true) => ShareReply { count, total: count, used: count, pressure: false },
        (false, false) => ShareReply { count, total, used: total, pressure: false },
    }
}

/// Counts come from other processes: a sum must not wrap.
pub(crate) fn saturating_sum(counts: impl Iterator<Item = u32>) -> u32 {
    counts.fold(0, u32::saturating_add)
}
