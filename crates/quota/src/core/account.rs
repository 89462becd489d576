//! One account as its member sees it: the slice that it may lend from, what it has lent, and who waits.
//!
//! Invariant: `slice` is never above what the store has down for this member, as long as the store keeps its writes.
//! Kept by: a slice shrinks before the ask that says so leaves, and grows only when its answer is here; an ask's floor is
//! never below the slice, so whatever becomes of the ask, the store has at least that much.
//! Every unit of `used` is one lease; only `Member::give` takes it back. What is used beyond the slice is debt, lent without
//! the store or before it took us for dead: the floor tells of it, and what comes back of it isn't lent again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{Answer, Ask, Sharing};

/// Somebody who waits for the store's word.
pub(crate) trait Waiter {
    /// Whether nobody listens any more.
    fn gone(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Account<W> {
    pub(crate) slice: u32,
    pub(crate) used: u32,
    /// What the other members had lent out, and all had in their slices, when the store last told.
    pub(crate) others_used: u32,
    total: u32,
    pub(crate) pressure: bool,
    pub(crate) waiters: VecDeque<W>,
    /// The ask that is on its way: what it said.
    asking: Option<Asking>,
    /// In the line of those that have something to ask.
    pub(crate) queued: bool,
    /// To be pushed to a store that doesn't know this incarnation's share yet.
    pub(crate) push: bool,
    /// An ask was lost on its way: the store may have more down than we know.
    unsure: bool,
    /// Worth an ask for its own sake: to refresh what we know, or the store's expiry.
    pub(crate) review: bool,
    /// The store's last no, and until when it is believed.
    no: Option<(Instant, u32)>,
    /// Others have idle units, which they were told to give back: when to ask again, and how often it was done.
    pub(crate) ask_again_at: Option<Instant>,
    tries: u32,
}

#[derive(Debug, Clone, Copy)]
struct Asking {
    floor: u32,
    want: u32,
    used: u32,
}

impl<W> Default for Account<W> {
    fn default() -> Self {
        Account {
            slice: 0,
            used: 0,
            others_used: 0,
            total: 0,
            pressure: false,
            waiters: VecDeque::new(),
            asking: None,
            queued: false,
            push: false,
            unsure: false,
            review: false,
            no: None,
            ask_again_at: None,
            tries: 0,
        }
    }
}

/// What an account's family and its member know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) limit: u32,
    pub(crate) sharing: Sharing,
    pub(crate) members: u32,
}

/// When to ask again for units that lie idle with others: they come back within a round trip of being called for.
const REASKS: [Duration; 4] = [
    Duration::from_millis(3),
    Duration::from_millis(7),
    Duration::from_millis(15),
    Duration::from_millis(25),
];

impl<W: Waiter> Account<W> {
    pub(crate) fn idle(&self) -> u32 {
        self.slice.saturating_sub(self.used)
    }

    /// Nothing in it, nothing on its way: it may be forgotten.
    pub(crate) fn is_blank(&self) -> bool {
        self.used == 0
            && self.slice == 0
            && self.waiters.is_empty()
            && self.asking.is_none()
            && !(self.queued || self.unsure || self.push)
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Whether there is something to tell the store, or to ask of it.
    pub(crate) fn needs_ask(&self, terms: Terms) -> bool {
        (!self.waiters.is_empty() && self.ask_again_at.is_none())
            || self.used > self.slice
            || self.unsure
            || self.push
            || self.review
            || (self.gives_back(terms) && self.idle() > 0)
    }

    /// Whether nothing may lie idle here. Beyond the limit is what was granted before it was lowered, and debt: idle units would be
    /// lent on top of what others have.
    fn gives_back(&self, terms: Terms) -> bool {
        !terms.sharing.in_blocks() || self.pressure || self.slice.max(self.total) > terms.limit
    }

    /// The store's last no, if it still holds.
    pub(crate) fn refused(&self, now: Instant) -> Option<u32> {
        self.no.filter(|(until, _)| now < *until).map(|(_, used)| used)
    }

    /// A unit came back, or the limit changed: another ask may fare better.
    pub(crate) fn forget_no(&mut self) {
        self.no = None;
    }

    /// What to say to the store. From here on, no more than the slice, as it is now, is lent until the answer is here.
    pub(crate) fn ask(&mut self, name: Arc<str>, terms: Terms) -> Ask {
        if !self.push {
            self.slice = self.slice.min(self.used + self.kept(terms));
        }
        let floor = self.slice.max(self.used);
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        let hoped = self.used.saturating_add(waiting).min(terms.limit);
        let want = if self.push { floor } else { floor.max(hoped) };
        self.asking = Some(Asking { floor, want, used: self.used });
        Ask { account: name, limit: terms.limit, floor, want, used: self.used, sharing: terms.sharing }
    }

    /// How many idle units to keep: about a block, so that what one member doesn't need doesn't lie with it for long.
    fn kept(&self, terms: Terms) -> u32 {
        let idle = self.idle();
        if self.gives_back(terms) {
            return 0;
        }
        let block = (terms.limit.saturating_sub(self.total) / (2 * terms.members.max(1))).max(1);
        if idle > block.saturating_mul(2) { block } else { idle }
    }

    /// Somebody was refused: whatever lies idle here goes back with the next ask.
    pub(crate) fn press(&mut self) {
        self.pressure = true;
    }

    /// The store's answer. Returns whether it fell short of what was wanted.
    pub(crate) fn answered(&mut self, answer: Answer) -> bool {
        let Some(Asking { floor, want, used }) = self.asking.take() else { return false };
        // Debt that came back meanwhile: the store has it down, perhaps beyond the limit, and hears of it next.
        let repaid = floor.saturating_sub(self.slice.max(self.used));
        (self.unsure, self.push, self.review) = (repaid > 0, false, false);
        self.ask_again_at = None;
        self.slice = answer.count.saturating_sub(repaid);
        self.others_used = answer.used.saturating_sub(used);
        self.total = answer.total;
        self.pressure = answer.pressure;
        let short = answer.count < want;
        if !short {
            self.tries = 0;
        }
        short
    }

    /// The answer fell short, but not all that is granted is lent: whether to wait for what comes back, and until when.
    pub(crate) fn wait_for_idle_units(&mut self, answer: Answer, limit: u32, now: Instant) -> bool {
        let waits = answer.used < limit && self.tries < REASKS.len() as u32 && !self.waiters.is_empty();
        if waits {
            self.ask_again_at = Some(now + REASKS[self.tries as usize]);
            self.tries += 1;
        } else {
            self.tries = 0;
        }
        waits
    }

    /// A no that holds until then.
    pub(crate) fn remember_no(&mut self, until: Instant, used: u32) {
        self.no = Some((until, used));
    }

    /// The ask was lost, or what it did is unknown.
    pub(crate) fn unanswered(&mut self) {
        self.unsure = self.asking.take().is_some() || self.unsure;
    }

    /// A new incarnation begins: nothing that was said before concerns it.
    pub(crate) fn begin_anew(&mut self, slices_hold: bool) {
        (self.asking, self.unsure, self.queued, self.review) = (None, false, false, false);
        (self.ask_again_at, self.tries) = (None, 0);
        if !slices_hold {
            self.slice = 0;
        }
        self.push = self.slice.max(self.used) > 0;
    }
}
