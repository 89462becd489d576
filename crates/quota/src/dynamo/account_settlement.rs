//! Applies one request to one account, which was read and will be written as a whole.
//!
//! The rule is `core::grant::grant`. `tests/it/dynamo.rs` checks that the result agrees with the
//! ledger.

use std::collections::BTreeMap;

use super::items::{AccountItem, MemberItem, PressureMark};
use crate::core::grant::{AccountView, Holding, ceiling, grant, lacks_room, saturating_sum, share_reply};
use crate::store::{MemberId, ShareReply, ShareRequest};

/// The members that share an account, at the time of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct MembershipView<'a> {
    pub(super) me: &'a MemberId,
    pub(super) members: &'a BTreeMap<MemberId, MemberItem>,
    /// Members that are alive and weren't replaced.
    pub(super) live_members: u32,
    /// `None` if the store doesn't rebuild.
    pub(super) rebuild_parts: Option<u32>,
}

/// Returns the new account and the reply.
/// `pressed`: whether a member was refused lately. `refusal`: the mark to store if this request is
/// refused.
pub(super) fn settle(
    mut account: AccountItem,
    request: &ShareRequest,
    view: MembershipView<'_>,
    pressed: bool,
    refusal: Option<PressureMark>,
) -> (AccountItem, ShareReply) {
    let exact = !request.allocation.in_blocks();
    let counts = |member: &MemberItem| !member.replaced || request.allocation.keeps_replaced();
    account.shares.retain(|id, _| id != view.me && view.members.get(id).is_some_and(counts));
    let others = saturating_sum(account.shares.values().map(|held| held.count));
    let others_used = saturating_sum(account.shares.values().map(|held| held.used));
    let ceiling = ceiling(request.allocation, request.limit, view.rebuild_parts);
    let account_view = AccountView { others, members: view.live_members, ceiling, pressure: pressed };
    let count = grant(request, account_view);
    let refused = !exact && lacks_room(request, count, ceiling);
    if refused {
        account.pressed = refusal;
    } else if !pressed {
        account.pressed = None;
    }
    let reply =
        share_reply(request, count, Holding { count: others, used: others_used }, account.pressed.is_some());
    if count > 0 {
        let used = if exact { count } else { request.used };
        account.shares.insert(view.me.clone(), Holding { count, used });
    }
    (account, reply)
}
