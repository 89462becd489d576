//! One account, one ask: what the ledger does with it, on an account that was read and will be written as a whole.
//!
//! The rule itself is `core::ledger::grant`; that the rest agrees with the ledger is tested in `tests/it/dynamo.rs`.

use std::collections::BTreeMap;

use super::items::{Account, Member, Pressed};
use crate::core::ledger::{Held, View, grant, sum, tell};
use crate::store::{Answer, Ask, MemberId};

/// Those among whom an account is shared, at the time of asking.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) me: &'a MemberId,
    pub(super) members: &'a BTreeMap<MemberId, Member>,
    /// How many of them live and weren't replaced.
    pub(super) living: u32,
    pub(super) rebuilding: bool,
}

/// What becomes of the account, and the answer. `pressed`: whether somebody was refused lately; `refusal`: what to leave in
/// the account when somebody is refused now.
pub(super) fn settle(
    mut account: Account,
    ask: &Ask,
    scene: Scene<'_>,
    pressed: bool,
    refusal: Option<Pressed>,
) -> (Account, Answer) {
    let exact = !ask.sharing.in_blocks();
    let counts = |member: &Member| !member.replaced || ask.sharing.keeps_replaced();
    account.shares.retain(|id, _| id != scene.me && scene.members.get(id).is_some_and(counts));
    let others = sum(account.shares.values().map(|held| held.count));
    let others_used = sum(account.shares.values().map(|held| held.used));
    let Scene { living: members, rebuilding, .. } = scene;
    let count = grant(ask, View { others, members, rebuilding, pressure: pressed });
    let refused = count < ask.want && !exact && !rebuilding;
    if refused {
        account.pressed = refusal;
    } else if !pressed {
        account.pressed = None;
    }
    let answer = tell(ask, count, Held { count: others, used: others_used }, account.pressed.is_some());
    if count > 0 {
        let used = if exact { count } else { ask.used };
        account.shares.insert(scene.me.clone(), Held { count, used });
    }
    (account, answer)
}
