//! `StoreLedger`: the store's state as a pure value: the live members and their shares.
//!
//! Invariant: while nothing is lost, the shares of live members never grow beyond an account's
//! limit, except by what a member reports to hold already (its floor).
//! Enforced by: [`grant`], the only function that computes a share (`grant.rs`).
//! During a rebuild, shares of members that have yet to report may be missing. So a member gets no
//! more than its [`ceiling`].
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
use crate::core::grant::{AccountView, Holding, ceiling, grant, lacks_room, saturating_sum, share_reply};
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
    /// `None` once a heartbeat has ended it.
    rebuild: Option<LedgerRebuild>,
}

#[derive(Debug, Clone, Copy)]
struct LedgerRebuild {
    ends_at: Duration,
    /// The rebuild ends at this time if all expected members have reported by then. `ends_at` if
    /// it must not end early.
    may_end_at: Duration,
    /// Members that were alive before, as far as the store knew. Members may know of more.
    expected: u32,
}

/// Members that expire with a heartbeat because no heartbeat could reach the store.
struct OutageExpiry {
    /// The longest of their TTLs; zero if there are none.
    ttl: Duration,
    /// Their number, and that of the members that are still alive.
    members: u32,
}

#[derive(Debug, Clone, Copy)]
struct LedgerMember {
    expires: Duration,
    /// The member expires at most this long after now.
    ttl: Duration,
    replaced: bool,
    sequence: u64,
    /// As in its last heartbeat of this rebuild.
    members_before: u32,
    has_reported: bool,
}

#[derive(Debug, Clone, Default)]
struct LedgerAccount {
    shares: BTreeMap<MemberId, Holding>,
    pressed_until: Duration,
}

impl LedgerMember {
    /// Returns when the member last sent a heartbeat.
    fn last_heartbeat(&self) -> Duration {
        self.expires.saturating_sub(self.ttl)
    }

    fn clear_report(&mut self) {
        (self.members_before, self.has_reported) = (0, false);
    }
}

impl StoreLedger {
    /// Creates a ledger that needs no rebuild, for stores that exist only as long as their members.
    pub(crate) fn established() -> Self {
        StoreLedger {
            generation: Some(LedgerGeneration { number: 1, rebuild: None }),
            ..StoreLedger::default()
        }
    }

    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat, now: Duration) -> HeartbeatReply {
        self.clamp_expiries(now);
        // A rebuild lasts at most the longest TTL.
        let longest = self.members.values().map(|member| member.ttl).fold(heartbeat.ttl, Duration::max);
        let number = self.generation.map_or(heartbeat.generation, |generation| generation.number);
        let rebuild = self.advance_rebuild(heartbeat, longest, now);
        let begins = self.generation.is_none_or(|generation| generation.rebuild.is_none());
        self.members.retain(|_, member| member.expires > now);
        if begins {
            self.members.values_mut().for_each(LedgerMember::clear_report);
        }
        let membership = self.renew_membership(heartbeat, now);
        self.record_report(heartbeat, membership);
        let rebuild_left = rebuild.map_or(Duration::ZERO, |rebuild| self.rebuild_left(rebuild, now));
        let rebuild = rebuild.filter(|_| !rebuild_left.is_zero());
        self.generation = Some(LedgerGeneration { number, rebuild });
        HeartbeatReply {
            membership,
            generation: number,
            rebuild_left,
            members: self.live_members(),
            expected: rebuild.map_or(0, |rebuild| self.expected(rebuild)),
        }
    }

    /// Begins, continues or ends the rebuild, before expired members are removed.
    fn advance_rebuild(
        &self,
        heartbeat: &Heartbeat,
        longest: Duration,
        now: Duration,
    ) -> Option<LedgerRebuild> {
        let outage = self.expired_in_outage(&heartbeat.member, now);
        let begin = |ttl: Duration, expected| LedgerRebuild {
            ends_at: now + ttl,
            may_end_at: now + longest / 2,
            expected,
        };
        let Some(generation) = self.generation else { return Some(begin(heartbeat.ttl, 0)) };
        let Some(rebuild) = generation.rebuild else {
            return (!outage.ttl.is_zero()).then(|| begin(outage.ttl, outage.members));
        };
        let last_heartbeat = self.last_heartbeat();
        // During a rebuild, members report what they hold. Without heartbeats for half a TTL they
        // couldn't: it starts again.
        let cut_short = last_heartbeat.is_some_and(|at| at + heartbeat.ttl / 2 <= now);
        // A later end was written while the clock was ahead.
        let left = rebuild.ends_at.saturating_sub(now).min(longest);
        let left = if cut_short || last_heartbeat.is_none() { longest } else { left.max(outage.ttl) };
        let ends_at = now + left;
        // Members that joined during this rebuild may have expired: it doesn't end early.
        let expired = cut_short || !outage.ttl.is_zero() || rebuild.may_end_at >= rebuild.ends_at;
        let may_end_at = match last_heartbeat {
            _ if expired => ends_at,
            None => now + longest / 2,
            Some(_) => rebuild.may_end_at,
        };
        (!left.is_zero()).then_some(LedgerRebuild { ends_at, may_end_at, expected: rebuild.expected })
    }

    /// Records what a live member reports of the time before the rebuild.
    fn record_report(&mut self, heartbeat: &Heartbeat, membership: Membership) {
        if let Membership::Alive { .. } | Membership::Joined = membership
            && let Some(member) = self.members.get_mut(&heartbeat.member)
        {
            member.members_before = heartbeat.members_before;
            member.has_reported = heartbeat.has_reported && heartbeat.members_before > 0;
        }
    }

    /// Returns the number of members before the rebuild, by all that is known.
    fn expected(&self, rebuild: LedgerRebuild) -> u32 {
        let live_members = self.members.values().filter(|member| !member.replaced);
        live_members.map(|member| member.members_before).fold(rebuild.expected, u32::max)
    }

    fn rebuild_left(&self, rebuild: LedgerRebuild, now: Duration) -> Duration {
        let expected = self.expected(rebuild) as usize;
        let has_reported = |member: &&LedgerMember| !member.replaced && member.has_reported;
        let reported = self.members.values().filter(has_reported).count();
        let all_reported = expected > 0 && reported >= expected;
        let ends_at = if all_reported { rebuild.ends_at.min(rebuild.may_end_at) } else { rebuild.ends_at };
        ends_at.saturating_sub(now)
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

    /// Returns the members that expire now because they could not reach the store. Members that
    /// missed heartbeats while others didn't are no part of it.
    ///
    /// A member heartbeats at least three times in its TTL. So a member whose last heartbeat is
    /// within half a TTL of the newest one expired because the store was unreachable; it may be
    /// alive and hold units. Earlier incarnations of the sender don't count: the sender reports
    /// what its process holds, or has replaced them.
    fn expired_in_outage(&self, sender: &MemberId, now: Duration) -> OutageExpiry {
        let last_heartbeat = self.last_heartbeat().unwrap_or_default();
        let mut expiry = OutageExpiry { ttl: Duration::ZERO, members: 0 };
        for (id, member) in self.members.iter().filter(|(_, member)| !member.replaced) {
            let silenced = member.expires <= now
                && id.name() != sender.name()
                && member.last_heartbeat() + member.ttl / 2 >= last_heartbeat;
            if silenced {
                expiry.ttl = expiry.ttl.max(member.ttl);
            }
            expiry.members += u32::from(silenced || member.expires > now);
        }
        expiry
    }

    fn renew_membership(&mut self, heartbeat: &Heartbeat, now: Duration) -> Membership {
        let expires = now + heartbeat.ttl;
        if heartbeat.kind == HeartbeatKind::Join {
            let unknown = LedgerMember {
                expires,
                ttl: heartbeat.ttl,
                replaced: false,
                sequence: 0,
                members_before: 0,
                has_reported: false,
            };
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
        let rebuild_parts = generation.rebuild.map(|_| settlement.rebuild_parts);
        let replies = settlement
            .requests
            .iter()
            .map(|request| self.apply_request(settlement, request, rebuild_parts, now));
        SettlementReply::Applied(replies.collect())
    }

    fn apply_request(
        &mut self,
        settlement: &Settlement,
        request: &ShareRequest,
        rebuild_parts: Option<u32>,
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
        let ceiling = ceiling(request.allocation, request.limit, rebuild_parts);
        let count = grant(request, AccountView { others, members, ceiling, pressure });
        if !exact && lacks_room(request, count, ceiling) {
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
        self.generation.is_none_or(|generation| generation.rebuild.is_some())
    }

    /// Returns when the rebuild ends if not all members report.
    pub(crate) fn rebuild_ends_at(&self) -> Option<Duration> {
        self.generation?.rebuild.map(|rebuild| rebuild.ends_at)
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
