//! `StoreLedger`: the store's state as a pure value: the live members and their shares.
//!
//! Invariant: while nothing is lost, the shares of live members never grow beyond an account's
//! limit, except by what a member reports to hold already (its floor).
//! Enforced by: [`grant`], the only function that computes a share.
//! Time advances only with heartbeats: a heartbeat removes expired members and ends a rebuild. A
//! settlement needs no clock.
//! Members that expire while no heartbeat reaches the store may be alive and hold units. Their
//! removal starts a rebuild.
//! The clock may jump. Times later than the clock could have written them are lowered to the latest
//! valid time.
//! `MemoryStore` is this ledger. The other stores are tested against it, and DynamoDB applies its
//! rule to each account.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::core::bucket::{self, BucketLevel};
use crate::store::{
    AccountShares, Heartbeat, HeartbeatKind, HeartbeatReply, Holdings, MemberId, MemberLiveness, Membership,
    Settlement, SettlementReply, Share, ShareReply, ShareRequest, TokenReply, TokenRequest,
};

/// Times count from an origin of the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreLedger {
    generation: Option<LedgerGeneration>,
    members: BTreeMap<MemberId, LedgerMember>,
    accounts: HashMap<Arc<str>, LedgerAccount>,
    buckets: HashMap<Arc<str>, BucketLevel>,
    /// How often pressure was raised.
    pub(crate) pressure_count: u64,
}

#[derive(Debug, Clone, Copy)]
struct LedgerGeneration {
    number: u64,
    /// When the rebuild ends. `None` once a heartbeat has ended it.
    rebuild_ends_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct LedgerMember {
    expires: Duration,
    /// The member expires at most this long after now.
    ttl: Duration,
    replaced: bool,
    sequence: u64,
}

#[derive(Debug, Clone, Default)]
struct LedgerAccount {
    shares: BTreeMap<MemberId, Holding>,
    pressed_until: Duration,
}

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
    /// During a rebuild, a member gets no more than it holds.
    pub(crate) rebuilding: bool,
    /// After a refusal, a member gets no more than it requests.
    pub(crate) pressure: bool,
}

/// Returns the share that a request gets. This is the rule of all stores.
pub(crate) fn grant(request: &ShareRequest, view: AccountView) -> u32 {
    let room = request.limit.saturating_sub(view.others);
    if view.rebuilding {
        return request.floor;
    }
    let granted = request.want.min(room).max(request.floor);
    let grows = granted == request.want && request.want > request.floor;
    if request.allocation.in_blocks() && grows && !view.pressure {
        // Half of an equal part of the rest: all members find some units, and blocks shrink with
        // the rest.
        granted + (room - granted) / (2 * view.members.max(1))
    } else {
        granted
    }
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

impl LedgerMember {
    /// Returns when the member last sent a heartbeat.
    fn last_heartbeat(&self) -> Duration {
        self.expires.saturating_sub(self.ttl)
    }
}

impl StoreLedger {
    /// Creates a ledger that needs no rebuild, for stores that exist only as long as their members.
    pub(crate) fn established() -> Self {
        StoreLedger {
            generation: Some(LedgerGeneration { number: 1, rebuild_ends_at: None }),
            ..StoreLedger::default()
        }
    }

    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat, now: Duration) -> HeartbeatReply {
        self.clamp_expiries(now);
        let (last_heartbeat, expired_in_outage) =
            (self.last_heartbeat(), self.expired_in_outage(&heartbeat.member, now));
        // A rebuild lasts at most the longest TTL. A later end was written while the clock was
        // ahead.
        let longest = self.members.values().map(|member| member.ttl).fold(heartbeat.ttl, Duration::max);
        let was_rebuilding = self.generation.is_some_and(|generation| generation.rebuild_ends_at.is_some());
        self.members.retain(|_, member| member.expires > now);
        let first =
            LedgerGeneration { number: heartbeat.generation, rebuild_ends_at: Some(now + heartbeat.ttl) };
        let generation = self.generation.get_or_insert(first);
        let left =
            generation.rebuild_ends_at.map_or(Duration::ZERO, |at| at.saturating_sub(now).min(longest));
        // During a rebuild, members report what they hold. Without heartbeats for half a TTL they
        // couldn't: it starts again.
        let cut_short = was_rebuilding && last_heartbeat.is_none_or(|at| at + heartbeat.ttl / 2 <= now);
        let left = if cut_short { longest } else { left.max(expired_in_outage) };
        generation.rebuild_ends_at = (!left.is_zero()).then_some(now + left);
        let LedgerGeneration { number, rebuild_ends_at } = *generation;
        let membership = self.renew_membership(heartbeat, now);
        HeartbeatReply {
            membership,
            generation: number,
            rebuild_left: rebuild_ends_at.map_or(Duration::ZERO, |rebuild_ends_at| rebuild_ends_at - now),
            members: self.live_members(),
        }
    }

    /// Lowers expiries that were written while the clock was ahead.
    fn clamp_expiries(&mut self, now: Duration) {
        for member in self.members.values_mut() {
            member.expires = member.expires.min(now + member.ttl);
        }
    }

    /// Returns the newest heartbeat of all members that weren't replaced.
    fn last_heartbeat(&self) -> Option<Duration> {
        self.members.values().filter(|member| !member.replaced).map(LedgerMember::last_heartbeat).max()
    }

    /// Returns how long to rebuild because members expire now that could not reach the store: the
    /// longest of their TTLs. Zero if no member expires, or only members that missed heartbeats
    /// while others didn't.
    ///
    /// A member heartbeats at least three times in its TTL. So a member whose last heartbeat is
    /// within half a TTL of the newest one expired because the store was unreachable; it may be
    /// alive and hold units. Earlier incarnations of the sender don't count: the sender reports
    /// what its process holds, or has replaced them.
    fn expired_in_outage(&self, sender: &MemberId, now: Duration) -> Duration {
        let last_heartbeat = self.last_heartbeat().unwrap_or_default();
        let expired_in_outage = self.members.iter().filter(|(id, member)| {
            !member.replaced
                && member.expires <= now
                && id.name() != sender.name()
                && member.last_heartbeat() + member.ttl / 2 >= last_heartbeat
        });
        expired_in_outage.map(|(_, member)| member.ttl).max().unwrap_or_default()
    }

    fn renew_membership(&mut self, heartbeat: &Heartbeat, now: Duration) -> Membership {
        let expires = now + heartbeat.ttl;
        if heartbeat.kind == HeartbeatKind::Join {
            let unknown = LedgerMember { expires, ttl: heartbeat.ttl, replaced: false, sequence: 0 };
            let member = self.members.entry(heartbeat.member.clone()).or_insert(unknown);
            if member.replaced {
                return Membership::Replaced;
            }
            member.expires = expires;
            return Membership::Joined;
        }
        let name_taken = self.other_incarnations(&heartbeat.member).any(|member| !member.replaced);
        let membership = match self.members.get_mut(&heartbeat.member) {
            Some(member) if !member.replaced => {
                member.expires = expires;
                Membership::Alive { sequence: member.sequence }
            }
            Some(_) => Membership::Replaced,
            None if name_taken => Membership::Replaced,
            None => Membership::Unknown,
        };
        if heartbeat.kind == HeartbeatKind::TakeOver && matches!(membership, Membership::Alive { .. }) {
            self.other_incarnations(&heartbeat.member).for_each(|member| member.replaced = true);
        }
        membership
    }

    /// Returns the other incarnations of the same name.
    fn other_incarnations<'a>(&'a mut self, id: &'a MemberId) -> impl Iterator<Item = &'a mut LedgerMember> {
        self.members
            .iter_mut()
            .filter(move |(other, _)| *other != id && other.name() == id.name())
            .map(|(_, member)| member)
    }

    fn live_members(&self) -> u32 {
        let live_members = self.members.values().filter(|member| !member.replaced);
        u32::try_from(live_members.count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn settle(&mut self, settlement: &Settlement, now: Duration) -> SettlementReply {
        let Some(generation) = self.generation else { return SettlementReply::UnknownMember };
        let Some(member) = self.members.get_mut(&settlement.member) else {
            return SettlementReply::UnknownMember;
        };
        if member.replaced {
            return SettlementReply::UnknownMember;
        }
        if settlement.sequence <= member.sequence {
            return SettlementReply::Stale;
        }
        if member.sequence < settlement.last_acknowledged {
            return SettlementReply::LostWrites;
        }
        member.sequence = settlement.sequence;
        let rebuilding = generation.rebuild_ends_at.is_some();
        let replies = settlement
            .requests
            .iter()
            .map(|request| self.apply_request(settlement, request, rebuilding, now));
        SettlementReply::Applied(replies.collect())
    }

    fn apply_request(
        &mut self,
        settlement: &Settlement,
        request: &ShareRequest,
        rebuilding: bool,
        now: Duration,
    ) -> ShareReply {
        let (me, exact) = (&settlement.member, !request.allocation.in_blocks());
        let members = self.live_members();
        let account = self.accounts.entry(request.account.clone()).or_default();
        let counts = |id: &MemberId| {
            id != me
                && self
                    .members
                    .get(id)
                    .is_some_and(|member| !member.replaced || request.allocation.keeps_replaced())
        };
        account.shares.retain(|id, _| counts(id));
        let others = saturating_sum(account.shares.values().map(|held| held.count));
        let others_used = saturating_sum(account.shares.values().map(|held| held.used));
        account.pressed_until = account.pressed_until.min(now + settlement.pressure);
        let pressure = account.pressed_until > now;
        let count = grant(request, AccountView { others, members, rebuilding, pressure });
        if count < request.want && !exact && !rebuilding {
            self.pressure_count += u64::from(!pressure);
            account.pressed_until = now + settlement.pressure;
        }
        let reply = share_reply(
            request,
            count,
            Holding { count: others, used: others_used },
            account.pressed_until > now,
        );
        if count > 0 {
            let used = if exact { count } else { request.used };
            account.shares.insert(me.clone(), Holding { count, used });
        }
        if account.shares.is_empty() && account.pressed_until <= now {
            self.accounts.remove(&request.account);
        }
        reply
    }

    pub(crate) fn leave(&mut self, member: &MemberId) {
        self.members.remove(member);
    }

    pub(crate) fn draw(&mut self, draw: &TokenRequest, now: Duration) -> TokenReply {
        let level = self.buckets.entry(draw.bucket.clone()).or_default();
        let (reply, after) = bucket::draw(*level, now, draw.per_second, draw.burst, draw.want);
        *level = after;
        reply
    }

    pub(crate) fn holdings(&self, accounts: &[Arc<str>], now: Duration) -> Holdings {
        let alive = |id: &MemberId| self.members.get(id);
        let liveness = |(id, member): (&MemberId, &LedgerMember)| MemberLiveness {
            member: id.clone(),
            expires_in_ms: Some(member.expires.saturating_sub(now).as_millis() as u64),
            replaced: member.replaced,
        };
        let shares = |name: &Arc<str>| {
            // In exact accounts, a replaced member's share doesn't count.
            let counts = |id| alive(id).is_some_and(|member| !(member.replaced && name.starts_with("k:")));
            let held = self.accounts.get(name)?.shares.iter().filter(|(id, _)| counts(id));
            let shares: Vec<_> = held
                .map(|(id, held)| Share { member: id.clone(), count: held.count, used: held.used })
                .collect();
            (!shares.is_empty()).then(|| AccountShares { account: name.clone(), shares })
        };
        Holdings {
            members: self.members.iter().map(liveness).collect(),
            accounts: accounts.iter().filter_map(shares).collect(),
        }
    }
}

#[cfg(test)]
impl StoreLedger {
    pub(crate) fn is_alive(&self, id: &MemberId) -> bool {
        self.members.get(id).is_some_and(|member| !member.replaced)
    }

    pub(crate) fn expires(&self, id: &MemberId) -> Option<Duration> {
        self.members.get(id).map(|member| member.expires)
    }

    /// Returns the sequence of the member's last applied settlement.
    pub(crate) fn sequence(&self, id: &MemberId) -> u64 {
        self.members.get(id).map_or(0, |member| member.sequence)
    }

    /// Acts like a replica that missed the last write.
    pub(crate) fn forget_last_settlement(&mut self, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            member.sequence -= 1;
        }
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.generation.is_none_or(|generation| generation.rebuild_ends_at.is_some())
    }

    /// Returns the recorded share of each member, expired ones included.
    pub(crate) fn held(&self, account: &str) -> BTreeMap<MemberId, u32> {
        let shares = self.accounts.get(account).map(|account| &account.shares);
        shares.into_iter().flatten().map(|(id, held)| (id.clone(), held.count)).collect()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
