//! The store's side of the counting, as a value: who lives, and who holds how much of what.
//!
//! Invariant: while nothing is lost from it, the shares of the living never grow beyond an account's limit, except by what
//! a member says that it holds already (its floor).
//! Kept by: [`grant`], the only place where a share is computed.
//! Time passes with beats only: a beat removes the members that have expired, and ends a rebuilding whose time is over. So
//! whether somebody lives is decided once, for all that follows, and a settlement needs no clock.
//! Members that expire while no beat reaches the store may be alive and hold units: their removal starts a rebuilding.
//! The clock may jump: whatever it has dated further ahead than it can reach is brought back to what it would be now.
//! This is the memory store, the model that the other stores are tested against, and, account by account, the rule that
//! the DynamoDB store applies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::core::bucket::{self, Level};
use crate::store::{
    Answer, Ask, Beat, BeatKind, Draw, Drawn, Holdings, Life, MemberId, Pulse, Settled, Settlement, Share,
    Shares, Standing,
};

/// Times count from an origin of the store's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    generation: Option<Generation>,
    members: BTreeMap<MemberId, Member>,
    accounts: HashMap<Arc<str>, Account>,
    buckets: HashMap<Arc<str>, Level>,
    /// How often pressure was raised.
    pub(crate) pressings: u64,
}

#[derive(Debug, Clone, Copy)]
struct Generation {
    number: u64,
    /// Until when its members push what they hold; `None` once a beat has seen that it is over.
    rebuilt_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    expires: Duration,
    /// Its TTL: it never expires later than this from now.
    life: Duration,
    replaced: bool,
    sequence: u64,
}

#[derive(Debug, Clone, Default)]
struct Account {
    shares: BTreeMap<MemberId, Held>,
    pressed_until: Duration,
}

/// One member's part of an account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) count: u32,
    pub(crate) used: u32,
}

/// What an account looks like to somebody who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// What the other members hold.
    pub(crate) others: u32,
    /// Members alive, the asking one included.
    pub(crate) members: u32,
    /// Whether the store is rebuilding: then nobody gets more than they hold.
    pub(crate) rebuilding: bool,
    /// Whether somebody was refused lately: then nobody gets more than they ask for.
    pub(crate) pressure: bool,
}

/// What somebody who asks gets: the rule.
pub(crate) fn grant(ask: &Ask, view: View) -> u32 {
    let room = ask.limit.saturating_sub(view.others);
    if view.rebuilding {
        return ask.floor;
    }
    let granted = ask.want.min(room).max(ask.floor);
    let grows = granted == ask.want && ask.want > ask.floor;
    if ask.sharing.in_blocks() && grows && !view.pressure {
        // Half of an equal part of the rest: everybody finds something, and the blocks shrink as the rest does.
        granted + (room - granted) / (2 * view.members.max(1))
    } else {
        granted
    }
}

/// What somebody who asked is told.
pub(crate) fn tell(ask: &Ask, count: u32, others: Held, pressure: bool) -> Answer {
    let (total, used) = (others.count.saturating_add(count), others.used.saturating_add(ask.used));
    match (ask.sharing.in_blocks(), count == ask.want) {
        (true, _) => Answer { count, total, used, pressure },
        (false, true) => Answer { count, total: count, used: count, pressure: false },
        (false, false) => Answer { count, total, used: total, pressure: false },
    }
}

/// Counts come from elsewhere: a sum must not wrap.
pub(crate) fn sum(counts: impl Iterator<Item = u32>) -> u32 {
    counts.fold(0, u32::saturating_add)
}

impl Member {
    /// When it was last heard.
    fn last_beat(&self) -> Duration {
        self.expires.saturating_sub(self.life)
    }
}

impl Ledger {
    /// A ledger that was never lost: there is nothing to rebuild. For stores that live and die with their members.
    pub(crate) fn newborn() -> Self {
        Ledger { generation: Some(Generation { number: 1, rebuilt_at: None }), ..Ledger::default() }
    }

    pub(crate) fn beat(&mut self, beat: &Beat, now: Duration) -> Pulse {
        self.bring_back_to(now);
        let (last_beat, silenced) = (self.last_beat(), self.silenced(&beat.member, now));
        // No rebuilding lasts longer than the longest life: an end beyond that was written while the clock was ahead.
        let longest = self.members.values().map(|member| member.life).fold(beat.ttl, Duration::max);
        let was_rebuilding = self.generation.is_some_and(|generation| generation.rebuilt_at.is_some());
        self.members.retain(|_, member| member.expires > now);
        let newborn = Generation { number: beat.generation, rebuilt_at: Some(now + beat.ttl) };
        let generation = self.generation.get_or_insert(newborn);
        let left = generation.rebuilt_at.map_or(Duration::ZERO, |at| at.saturating_sub(now).min(longest));
        // A rebuilding waits for members to report what they hold. Without beats for half a TTL they couldn't: it starts again.
        let cut_short = was_rebuilding && last_beat.is_none_or(|at| at + beat.ttl / 2 <= now);
        let left = if cut_short { longest } else { left.max(silenced) };
        generation.rebuilt_at = (!left.is_zero()).then_some(now + left);
        let Generation { number, rebuilt_at } = *generation;
        let standing = self.stand(beat, now);
        Pulse {
            standing,
            generation: number,
            rebuild_left: rebuilt_at.map_or(Duration::ZERO, |rebuilt_at| rebuilt_at - now),
            members: self.living(),
        }
    }

    /// The clock may have been ahead when these were written.
    fn bring_back_to(&mut self, now: Duration) {
        for member in self.members.values_mut() {
            member.expires = member.expires.min(now + member.life);
        }
    }

    /// When anybody was last heard, of those that haven't left.
    fn last_beat(&self) -> Option<Duration> {
        self.members.values().filter(|member| !member.replaced).map(Member::last_beat).max()
    }

    /// Returns how long a rebuilding must last for the members that expire now because no beat reached the store: the
    /// longest of their TTLs. Zero if no member expires, or only members that missed beats while others didn't.
    ///
    /// A member that beats as it should is never silent for half its life while the store hears others. So one whose last
    /// beat was that close to the last of all has expired in a silence of the store: it may live, and hold what it held. Other
    /// incarnations of the one that beats are no reason: that one tells what its process holds, or has replaced them.
    fn silenced(&self, beating: &MemberId, now: Duration) -> Duration {
        let last_beat = self.last_beat().unwrap_or_default();
        let silenced = self.members.iter().filter(|(id, member)| {
            !member.replaced
                && member.expires <= now
                && id.name() != beating.name()
                && member.last_beat() + member.life / 2 >= last_beat
        });
        silenced.map(|(_, member)| member.life).max().unwrap_or_default()
    }

    fn stand(&mut self, beat: &Beat, now: Duration) -> Standing {
        let expires = now + beat.ttl;
        if beat.kind == BeatKind::Join {
            let unknown = Member { expires, life: beat.ttl, replaced: false, sequence: 0 };
            let member = self.members.entry(beat.member.clone()).or_insert(unknown);
            if member.replaced {
                return Standing::Replaced;
            }
            member.expires = expires;
            return Standing::Joined;
        }
        let name_taken = self.namesakes(&beat.member).any(|member| !member.replaced);
        let standing = match self.members.get_mut(&beat.member) {
            Some(member) if !member.replaced => {
                member.expires = expires;
                Standing::Alive { sequence: member.sequence }
            }
            Some(_) => Standing::Replaced,
            None if name_taken => Standing::Replaced,
            None => Standing::Unknown,
        };
        if beat.kind == BeatKind::TakeOver && matches!(standing, Standing::Alive { .. }) {
            self.namesakes(&beat.member).for_each(|member| member.replaced = true);
        }
        standing
    }

    /// Other incarnations of the same name.
    fn namesakes<'a>(&'a mut self, id: &'a MemberId) -> impl Iterator<Item = &'a mut Member> {
        self.members
            .iter_mut()
            .filter(move |(other, _)| *other != id && other.name() == id.name())
            .map(|(_, member)| member)
    }

    fn living(&self) -> u32 {
        let living = self.members.values().filter(|member| !member.replaced);
        u32::try_from(living.count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn settle(&mut self, settlement: &Settlement, now: Duration) -> Settled {
        let Some(generation) = self.generation else { return Settled::Unknown };
        let Some(member) = self.members.get_mut(&settlement.member) else { return Settled::Unknown };
        if member.replaced {
            return Settled::Unknown;
        }
        if settlement.sequence <= member.sequence {
            return Settled::Stale;
        }
        if member.sequence < settlement.landed {
            return Settled::LostWrites;
        }
        member.sequence = settlement.sequence;
        let rebuilding = generation.rebuilt_at.is_some();
        let answers = settlement.asks.iter().map(|ask| self.answer(settlement, ask, rebuilding, now));
        Settled::Landed(answers.collect())
    }

    fn answer(&mut self, settlement: &Settlement, ask: &Ask, rebuilding: bool, now: Duration) -> Answer {
        let (me, exact) = (&settlement.member, !ask.sharing.in_blocks());
        let members = self.living();
        let account = self.accounts.entry(ask.account.clone()).or_default();
        let counts = |id: &MemberId| {
            id != me
                && self.members.get(id).is_some_and(|member| !member.replaced || ask.sharing.keeps_replaced())
        };
        account.shares.retain(|id, _| counts(id));
        let others = sum(account.shares.values().map(|held| held.count));
        let others_used = sum(account.shares.values().map(|held| held.used));
        account.pressed_until = account.pressed_until.min(now + settlement.pressure);
        let pressure = account.pressed_until > now;
        let count = grant(ask, View { others, members, rebuilding, pressure });
        if count < ask.want && !exact && !rebuilding {
            self.pressings += u64::from(!pressure);
            account.pressed_until = now + settlement.pressure;
        }
        let answer = tell(ask, count, Held { count: others, used: others_used }, account.pressed_until > now);
        if count > 0 {
            let used = if exact { count } else { ask.used };
            account.shares.insert(me.clone(), Held { count, used });
        }
        if account.shares.is_empty() && account.pressed_until <= now {
            self.accounts.remove(&ask.account);
        }
        answer
    }

    pub(crate) fn leave(&mut self, member: &MemberId) {
        self.members.remove(member);
    }

    pub(crate) fn draw(&mut self, draw: &Draw, now: Duration) -> Drawn {
        let level = self.buckets.entry(draw.bucket.clone()).or_default();
        let (drawn, after) = bucket::draw(*level, now, draw.per_second, draw.burst, draw.want);
        *level = after;
        drawn
    }

    pub(crate) fn look(&self, accounts: &[Arc<str>], now: Duration) -> Holdings {
        let alive = |id: &MemberId| self.members.get(id);
        let life = |(id, member): (&MemberId, &Member)| Life {
            member: id.clone(),
            expires_in_ms: Some(member.expires.saturating_sub(now).as_millis() as u64),
            replaced: member.replaced,
        };
        let shares = |name: &Arc<str>| {
            // Of exact accounts, a replaced member's share counts for nothing.
            let counts = |id| alive(id).is_some_and(|member| !(member.replaced && name.starts_with("k:")));
            let held = self.accounts.get(name)?.shares.iter().filter(|(id, _)| counts(id));
            let shares: Vec<_> = held
                .map(|(id, held)| Share { member: id.clone(), count: held.count, used: held.used })
                .collect();
            (!shares.is_empty()).then(|| Shares { account: name.clone(), shares })
        };
        Holdings {
            members: self.members.iter().map(life).collect(),
            accounts: accounts.iter().filter_map(shares).collect(),
        }
    }
}

#[cfg(test)]
impl Ledger {
    pub(crate) fn is_alive(&self, id: &MemberId) -> bool {
        self.members.get(id).is_some_and(|member| !member.replaced)
    }

    pub(crate) fn expires(&self, id: &MemberId) -> Option<Duration> {
        self.members.get(id).map(|member| member.expires)
    }

    /// The last settlement of a member that landed.
    pub(crate) fn sequence(&self, id: &MemberId) -> u64 {
        self.members.get(id).map_or(0, |member| member.sequence)
    }

    /// As a replica does that missed the last write.
    pub(crate) fn forget_last_settlement(&mut self, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            member.sequence -= 1;
        }
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.generation.is_none_or(|generation| generation.rebuilt_at.is_some())
    }

    /// What each member has down of an account, dead ones included.
    pub(crate) fn held(&self, account: &str) -> BTreeMap<MemberId, u32> {
        let shares = self.accounts.get(account).map(|account| &account.shares);
        shares.into_iter().flatten().map(|(id, held)| (id.clone(), held.count)).collect()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
