//! The books of a reservoir: where every connection is, who waits, and what is to be done.
//!
//! Invariants: ready + dialing + lent + resetting + retiring never exceeds `max`; a connection is in one place at a time; one
//! that is within the guard window of its end, or closed, is never lent; nobody waits while there is a connection that they
//! may have.
//! Kept by: a connection is an [`Entry`], which is moved and never copied; every call leaves what is to be done in
//! [`Work`], and whoever called does it with the lock open.
//! A connection is `retiring` until the server has closed its end of the socket, or the close timeout is over; a dial that was
//! given up is, too, as long as the server may have a backend for it.
//! Not here: dialing and resetting (`keeper.rs`, `shared.rs`), waiting for the server's close (`retiring.rs`), the order of
//! those who wait (`line.rs`).

use std::collections::VecDeque;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::line::{Ticket, Views};
use super::retirements::{Lingering, Retirement, Retirements};
use crate::connect::ConnectErrorKind;
use crate::status::{Discard, LifeStatus};

/// What the reservoir goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) target: u32,
    pub(crate) low_watermark: u32,
    pub(crate) max: u32,
    pub(crate) lifetime: Lifetime,
    /// Nothing is lent that ends within this.
    pub(crate) guard_window: Duration,
    /// How long before the guard window a connection is replaced.
    pub(crate) lead: Duration,
    pub(crate) max_dials: u32,
    pub(crate) max_waiting: usize,
    pub(crate) resets: bool,
    pub(crate) leak_after: Duration,
    pub(crate) backoff: Backoff,
}

/// How long a connection lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime {
    pub(crate) base: Duration,
    pub(crate) jitter: Duration,
    /// Whether the jitter makes it shorter instead of longer.
    pub(crate) downward: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
    /// Where trying again soon would make it worse.
    pub(crate) first_patient: Duration,
    pub(crate) most_patient: Duration,
}

/// What an entry holds, as far as the books care.
pub(crate) trait Held {
    fn is_closed(&self) -> bool;
}

/// How whoever had a connection leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Anything may have been done to it.
    Used,
    /// As it was lent: there is nothing to reset.
    Clean,
    /// Nobody should have it any more.
    Bad,
}

/// Somebody who waits for a connection.
pub(crate) trait Waiter {
    /// Where it was asked for, if that is worth telling.
    fn asked_at(&self) -> Option<&'static Location<'static>>;
    /// Until when it waits.
    fn deadline(&self) -> Instant;
}

/// A connection, and where it stands in the books. Moved from place to place; boxed, so that moving is cheap.
#[derive(Debug)]
pub(crate) struct Entry<C>(Box<Inner<C>>);

#[derive(Debug)]
struct Inner<C> {
    held: C,
    life: usize,
    expires_at: Instant,
}

impl<C> Entry<C> {
    pub(crate) fn held(&self) -> &C {
        &self.0.held
    }

    pub(crate) fn held_mut(&mut self) -> &mut C {
        &mut self.0.held
    }

    pub(crate) fn into_held(self) -> C {
        self.0.held
    }

    #[cfg(test)]
    pub(crate) fn expires_at(&self) -> Instant {
        self.0.expires_at
    }

    pub(super) fn ends_within(&self, window: Duration, now: Instant) -> bool {
        self.0.expires_at <= now + window
    }
}

/// What is known of a connection wherever it is.
#[derive(Debug, Clone, Copy)]
struct Life {
    born: Instant,
    expires_at: Instant,
    lent: Option<Lent>,
}

#[derive(Debug, Clone, Copy)]
struct Lent {
    since: Instant,
    /// `None`: whoever has it keeps it for long, and may.
    by: Option<&'static Location<'static>>,
    told: bool,
}

/// What came of asking for a connection.
#[derive(Debug)]
pub(crate) enum Checkout<C> {
    Lent(Entry<C>),
    /// There is none, or the view has its share.
    None,
    Closed,
}

/// A connection for somebody who waited, by a view; it is lent already.
pub(crate) type HandOver<C, W> = (W, usize, Entry<C>);

/// What is to be done once the lock is open.
#[derive(Debug)]
pub(crate) struct Work<C, W> {
    pub(crate) hand_over: Vec<HandOver<C, W>>,
    pub(crate) reset: Vec<Entry<C>>,
    pub(crate) retire: Vec<Retire<C>>,
    /// Those whose time is over.
    pub(crate) late: Vec<W>,
    /// Those who will get nothing any more: the reservoir closes.
    pub(crate) dismiss: Vec<W>,
    /// Whether the refiller should look again.
    pub(crate) wake: bool,
}

/// A connection on its way out.
#[derive(Debug)]
pub(crate) struct Retire<C> {
    pub(crate) entry: Entry<C>,
    pub(crate) why: Discard,
    pub(crate) age: Duration,
    /// Ends with [`Ledger::was_closed`].
    pub(crate) retirement: Retirement,
}

/// What the refiller should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) dials: u32,
    /// When to look again though nothing has happened.
    pub(crate) look_at: Instant,
}

/// Between two halves that are retired.
const RETIRE_EVERY: Duration = Duration::from_secs(1);

/// Gauges are fresh after this, whatever happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A connection that was lent for longer than is believable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) held_for: Duration,
    pub(crate) taken_at: &'static Location<'static>,
}

/// Where connections are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Ready to be lent.
    pub ready: u32,
    /// Being opened.
    pub dialing: u32,
    /// In use.
    pub lent: u32,
    /// Being cleaned up after use.
    pub resetting: u32,
    /// Being closed: the server hasn't closed its end yet. Dials that were given up are among them, as long as the server may
    /// have a backend for them.
    pub retiring: u32,
}

impl Counts {
    /// All of them: what counts against the budget.
    pub fn total(&self) -> u32 {
        self.ready + self.dialing + self.lent + self.resetting + self.retiring
    }
}

#[derive(Debug)]
pub(crate) struct Ledger<C, W> {
    rules: Rules,
    ready: VecDeque<Entry<C>>,
    lives: Lives,
    /// Counts what is lent, dialing and resetting.
    counts: Counts,
    retirements: Retirements,
    pub(crate) views: Views<W>,
    closing: bool,
    work: Work<C, W>,
    dice: Dice,
    failures: u32,
    /// After a failure, and after the budget's no.
    dial_again_at: Option<Instant>,
    ask_again_at: Option<Instant>,
    /// When more that have ended may be retired, after half of all were.
    retire_again_at: Option<Instant>,
    /// When the refiller looks again by itself.
    look_at: Instant,
}

impl<C: Held, W: Waiter> Ledger<C, W> {
    pub(crate) fn new(rules: Rules, dice: Dice, now: Instant) -> Self {
        Ledger {
            rules,
            ready: VecDeque::with_capacity(rules.max as usize),
            lives: Lives::default(),
            counts: Counts::default(),
            retirements: Retirements::default(),
            views: Views::new(),
            closing: false,
            work: Work::default(),
            dice,
            failures: 0,
            dial_again_at: None,
            ask_again_at: None,
            retire_again_at: None,
            look_at: now,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { ready: self.ready.len() as u32, retiring: self.retirements.count(), ..self.counts }
    }

    /// Counts the connections that the server hasn't closed for longer than is usual.
    pub(crate) fn lingering(&self, now: Instant) -> Lingering {
        self.retirements.lingering(now)
    }

    /// Whether no dial can begin before a connection that lingers is closed.
    pub(crate) fn is_full_of_lingering(&self, now: Instant) -> bool {
        self.counts().total() >= self.rules.max && self.lingering(now).count > 0
    }

    /// The ages of all that are ready, lent or resetting, the oldest first, at most `most`.
    pub(crate) fn lives(&self, now: Instant, most: usize) -> Vec<LifeStatus> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let life = |life: &Life| {
            let ends_at = life.expires_at.checked_sub(self.rules.guard_window).unwrap_or(life.expires_at);
            LifeStatus {
                age_ms: millis(now.saturating_duration_since(life.born)),
                ends_in_ms: millis(ends_at.saturating_duration_since(now)),
                lent: life.lent.is_some(),
            }
        };
        let mut lives: Vec<_> = self.lives.iter().map(life).collect();
        lives.sort_unstable_by_key(|life| std::cmp::Reverse(life.age_ms));
        lives.truncate(most);
        lives
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Closed, and nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.closing && self.counts().total() == 0
    }

    /// When the refiller dials again, while it waits after a failure.
    pub(crate) fn dial_again_at(&self) -> Option<Instant> {
        self.dial_again_at.max(self.ask_again_at)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// One connection for one who waited, if that is all: under load it nearly always is, and costs no allocation this way.
    pub(crate) fn take_one_hand_over(&mut self) -> Option<HandOver<C, W>> {
        if self.work.hand_over.len() > 1 || self.work.is_more_than_hand_over() {
            return None;
        }
        self.work.hand_over.pop()
    }

    pub(crate) fn take_work(&mut self) -> Work<C, W> {
        std::mem::take(&mut self.work)
    }

    /// Lends the connection that has been ready for longest. Those that are stale go on the way.
    pub(crate) fn checkout(
        &mut self,
        view: usize,
        now: Instant,
        by: Option<&'static Location<'static>>,
    ) -> Checkout<C> {
        if self.closing {
            return Checkout::Closed;
        }
        if !self.views.has_room(view) {
            return Checkout::None;
        }
        while let Some(entry) = self.ready.pop_front() {
            if let Some(why) = self.unfit(&entry, now) {
                self.retire(entry, why, now);
                continue;
            }
            self.lend(view, &entry, now, by);
            return Checkout::Lent(entry);
        }
        Checkout::None
    }

    /// Whether somebody else may still stand in line.
    pub(crate) fn may_wait(&self) -> bool {
        self.views.waiting() < self.rules.max_waiting
    }

    pub(crate) fn wait(&mut self, view: usize, waiter: W) -> Ticket {
        // A timer for each would cost more than the rest of a checkout: the refiller's looks after all.
        self.work.wake |= waiter.deadline() < self.look_at;
        self.views.join(view, waiter)
    }

    /// A connection comes back from whoever had it.
    pub(crate) fn give(&mut self, view: usize, entry: Entry<C>, left: Left, now: Instant) {
        self.counts.lent -= 1;
        self.views.give(view);
        self.lives.get(entry.0.life).lent = None;
        let why = if left == Left::Bad { Some(Discard::Bad) } else { self.unfit(&entry, now) };
        match why {
            Some(why) => self.retire(entry, why, now),
            None if self.closing => self.retire(entry, Discard::Closing, now),
            None if self.is_replaced(&entry, now) => self.retire(entry, Discard::Replaced, now),
            None if self.rules.resets && left != Left::Clean => {
                self.counts.resetting += 1;
                self.work.reset.push(entry);
            }
            None => self.make_ready(entry, now),
        }
        // The view has room for another, and somebody in its line may have stood aside for it.
        self.serve(now);
    }

    /// A reset has ended.
    pub(crate) fn was_reset(&mut self, entry: Entry<C>, is_clean: bool, now: Instant) {
        self.counts.resetting -= 1;
        let why = if is_clean { self.unfit(&entry, now) } else { Some(Discard::ResetFailed) };
        match why {
            Some(why) => self.retire(entry, why, now),
            None if self.closing => self.retire(entry, Discard::Closing, now),
            None => self.make_ready(entry, now),
        }
    }

    /// The server has closed a connection that was retired, or the close timeout is over: its place is free.
    pub(crate) fn was_closed(&mut self, retirement: Retirement) {
        self.retirements.end(retirement);
        self.work.wake = true;
    }

    /// A dial has begun; it ends with [`born`](Self::born), [`dial_failed`](Self::dial_failed) or
    /// [`dial_given_up`](Self::dial_given_up). After [`dial_lingers`](Self::dial_lingers) its place is still taken.
    fn begin_dial(&mut self) {
        self.counts.dialing += 1;
    }

    pub(crate) fn born(&mut self, held: C, now: Instant) {
        self.counts.dialing -= 1;
        // During a pause no dial begins: this one was on its way when another failed, and doesn't speak against that.
        if self.dial_again_at.is_none_or(|at| at <= now) {
            (self.failures, self.dial_again_at) = (0, None);
        }
        let Lifetime { base, jitter, downward } = self.rules.lifetime;
        let jitter = self.dice.part_of(jitter);
        let lifetime = if downward { base.saturating_sub(jitter) } else { base + jitter };
        let expires_at = now + lifetime;
        let life = self.lives.add(Life { born: now, expires_at, lent: None });
        let entry = Entry(Box::new(Inner { held, life, expires_at }));
        self.work.wake = true;
        if self.closing {
            return self.retire(entry, Discard::Closing, now);
        }
        self.make_ready(entry, now);
        self.make_way(now);
    }

    /// A dial failed: the next is put off, longer each time.
    pub(crate) fn dial_failed(&mut self, kind: ConnectErrorKind, now: Instant) {
        self.counts.dialing -= 1;
        self.work.wake = true;
        // Dials that were on their way together and failed have failed once; the longest pause counts.
        if self.dial_again_at.is_none_or(|at| at <= now) {
            self.failures = self.failures.saturating_add(1);
        }
        let Backoff { first, most, first_patient, most_patient } = self.rules.backoff;
        let (first, most) =
            if kind.calls_for_patience() { (first_patient, most_patient) } else { (first, most) };
        let doubled = first.saturating_mul(1 << (self.failures - 1).min(16)).min(most);
        // From half of it to all of it, so that instances that failed together don't come again together.
        let at = now + doubled / 2 + self.dice.part_of(doubled / 2);
        self.dial_again_at = self.dial_again_at.max(Some(at));
    }

    /// A dial is about to fail, and the server may have a backend for it: the dial's place is retired instead of freed.
    pub(crate) fn dial_lingers(&mut self, now: Instant) -> Retirement {
        // The caller reports the dial's end next, which takes it out of `dialing`.
        self.retirements.begin(now)
    }

    /// A dial ended before it began, so nothing is known of the server: it was cancelled, or refused a lease.
    pub(crate) fn dial_given_up(&mut self, again_at: Option<Instant>) {
        self.counts.dialing -= 1;
        self.work.wake = true;
        self.ask_again_at = self.ask_again_at.max(again_at);
    }

    /// Retires what is at its end, and says how many dials to begin; they count from here on.
    pub(crate) fn plan(&mut self, now: Instant) -> Plan {
        if self.closing {
            return Plan { dials: 0, look_at: now + LOOK_EVERY };
        }
        self.work.late = self.views.take_late(|waiter| waiter.deadline() <= now);
        self.retire_ended(now);
        for pause in [&mut self.dial_again_at, &mut self.ask_again_at] {
            pause.take_if(|at| *at <= now);
        }
        let leaving = self.lives.leaving(now + self.rules.guard_window + self.rules.lead);
        let Counts { ready, dialing, lent, resetting, retiring } = self.counts();
        // Those that linger may keep their places for minutes: nothing waits for them.
        let closing_soon = retiring - self.lingering(now).count;
        let staying = (ready + lent + resetting).saturating_sub(leaving);
        let wanted = self.rules.target.saturating_sub(staying + dialing);
        let room = self.rules.max.saturating_sub(self.counts().total());
        // As fast as may be when there isn't enough; otherwise the more steadily, the fewer are wanted.
        let hurries = ready < self.rules.low_watermark;
        let at_once =
            if hurries { self.rules.max_dials } else { (wanted / 4).clamp(1, self.rules.max_dials) };
        let dials = match self.dial_again_at() {
            Some(_) => 0,
            None => wanted.min(room).min(at_once.saturating_sub(dialing)),
        };
        if wanted > 0 && room == 0 && dialing + closing_soon == 0 {
            // There is no room to replace before evicting, so one that leaves anyway goes first.
            self.retire_first_leaving(now);
        }
        (0..dials).for_each(|_| self.begin_dial());
        let window = self.rules.guard_window + self.rules.lead;
        let ends = self.lives.iter().flat_map(|life| {
            [life.expires_at.checked_sub(window), life.expires_at.checked_sub(self.rules.guard_window)]
        });
        let leaks = self.lives.iter().filter_map(|life| {
            let lent = life.lent.filter(|lent| lent.by.is_some() && !lent.told)?;
            lent.since.checked_add(self.rules.leak_after)
        });
        let deadlines = self.views.iter().map(Waiter::deadline);
        let looks = ends
            .flatten()
            .filter(|at| *at > now)
            .chain(leaks)
            .chain(self.dial_again_at())
            .chain(self.retire_again_at)
            .chain(deadlines);
        self.look_at = looks.fold(now + LOOK_EVERY, Instant::min);
        Plan { dials, look_at: self.look_at }
    }

    /// Those that were lent for too long, each once.
    pub(crate) fn leaks(&mut self, now: Instant) -> Vec<Leak> {
        let leak_after = self.rules.leak_after;
        let mut leaks = Vec::new();
        for life in self.lives.iter_mut() {
            if let Some(lent) = &mut life.lent
                && let Some(taken_at) = lent.by
                && !lent.told
                && now.saturating_duration_since(lent.since) >= leak_after
            {
                lent.told = true;
                leaks.push(Leak { held_for: now - lent.since, taken_at });
            }
        }
        leaks
    }

    /// The end: nothing is lent any more, what is ready goes, what is lent goes when it comes back.
    pub(crate) fn close(&mut self, now: Instant) {
        if self.closing {
            return;
        }
        self.closing = true;
        self.work.dismiss = self.views.dismiss();
        self.work.wake = true;
        while let Some(entry) = self.ready.pop_front() {
            self.retire(entry, Discard::Closing, now);
        }
    }

    fn lend(&mut self, view: usize, entry: &Entry<C>, now: Instant, by: Option<&'static Location<'static>>) {
        self.counts.lent += 1;
        self.views.lend(view);
        self.lives.get(entry.0.life).lent = Some(Lent { since: now, by, told: false });
    }

    /// Whether it could be lent again, and nobody closes up.
    pub(crate) fn is_fit(&self, entry: &Entry<C>, now: Instant) -> bool {
        !self.closing && self.unfit(entry, now).is_none()
    }

    /// Why it can't be lent, if it can't.
    fn unfit(&self, entry: &Entry<C>, now: Instant) -> Option<Discard> {
        if entry.held().is_closed() {
            Some(Discard::Bad)
        } else {
            entry.ends_within(self.rules.guard_window, now).then_some(Discard::Expired)
        }
    }

    /// Hands it to whoever waits for longest, or keeps it.
    fn make_ready(&mut self, entry: Entry<C>, now: Instant) {
        self.ready.push_back(entry);
        self.serve(now);
    }

    /// As long as there is a connection, and somebody who may have it.
    fn serve(&mut self, now: Instant) {
        while !self.ready.is_empty()
            && let Some(view) = self.views.whose_turn()
        {
            let Some(entry) = self.take_fit(now) else { return };
            let waiter = self.views.pop(view);
            self.lend(view, &entry, now, waiter.asked_at());
            self.work.hand_over.push((waiter, view, entry));
        }
    }

    fn take_fit(&mut self, now: Instant) -> Option<Entry<C>> {
        while let Some(entry) = self.ready.pop_front() {
            match self.unfit(&entry, now) {
                Some(why) => self.retire(entry, why, now),
                None => return Some(entry),
            }
        }
        None
    }

    /// Near its end, and there are enough without it.
    fn is_replaced(&self, entry: &Entry<C>, now: Instant) -> bool {
        let window = self.rules.guard_window + self.rules.lead;
        if !entry.ends_within(window, now) {
            return false;
        }
        // This one is in none of these counts, but it is alive.
        let Counts { ready, lent, resetting, .. } = self.counts();
        ready + lent + resetting + 1 > self.rules.target
    }

    /// A new connection takes the place of one that is near its end.
    fn make_way(&mut self, now: Instant) {
        let Counts { ready, lent, resetting, .. } = self.counts();
        if ready + lent + resetting > self.rules.target {
            self.retire_first_leaving(now);
        }
    }

    fn retire_first_leaving(&mut self, now: Instant) {
        let window = self.rules.guard_window + self.rules.lead;
        let first = self.ready.iter().enumerate().min_by_key(|(_, entry)| entry.0.expires_at);
        if let Some((at, entry)) = first
            && entry.ends_within(window, now)
            && let Some(entry) = self.ready.remove(at)
        {
            self.retire(entry, Discard::Replaced, now);
        }
    }

    /// Those within the guard window are of no use any more; but never more than half of all at once.
    fn retire_ended(&mut self, now: Instant) {
        if self.retire_again_at.is_some_and(|at| now < at) {
            return;
        }
        self.retire_again_at = None;
        let ended = self.ready.iter().filter(|entry| self.unfit(entry, now).is_some()).count();
        let half = self.ready.len().div_ceil(2);
        if ended > half {
            self.retire_again_at = Some(now + RETIRE_EVERY);
        }
        let (mut most, mut at) = (half, 0);
        while at < self.ready.len() && most > 0 {
            match self.unfit(&self.ready[at], now) {
                Some(why) => {
                    if let Some(entry) = self.ready.remove(at) {
                        self.retire(entry, why, now);
                    }
                    most -= 1;
                }
                None => at += 1,
            }
        }
    }

    fn retire(&mut self, entry: Entry<C>, why: Discard, now: Instant) {
        let life = self.lives.remove(entry.0.life);
        self.work.wake = true;
        let age = now.saturating_duration_since(life.born);
        let retirement = self.retirements.begin(now);
        self.work.retire.push(Retire { entry, why, age, retirement });
    }
}

impl<C, W> Default for Work<C, W> {
    fn default() -> Self {
        Work {
            hand_over: Vec::new(),
            reset: Vec::new(),
            retire: Vec::new(),
            late: Vec::new(),
            dismiss: Vec::new(),
            wake: false,
        }
    }
}

impl<C, W> Work<C, W> {
    fn is_empty(&self) -> bool {
        self.hand_over.is_empty() && !self.is_more_than_hand_over()
    }

    fn is_more_than_hand_over(&self) -> bool {
        self.wake
            || !self.reset.is_empty()
            || !self.retire.is_empty()
            || !self.late.is_empty()
            || !self.dismiss.is_empty()
    }
}

/// All connections that are ready, lent or resetting.
#[derive(Debug, Default)]
struct Lives {
    lives: Vec<Option<Life>>,
    free: Vec<usize>,
}

impl Lives {
    fn add(&mut self, life: Life) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.lives[at] = Some(life);
                at
            }
            None => {
                self.lives.push(Some(life));
                self.lives.len() - 1
            }
        }
    }

    fn get(&mut self, at: usize) -> &mut Life {
        self.lives[at].as_mut().expect("an entry that isn't retired has a life")
    }

    fn remove(&mut self, at: usize) -> Life {
        self.free.push(at);
        self.lives[at].take().expect("an entry is retired once")
    }

    fn iter(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Life> {
        self.lives.iter_mut().flatten()
    }

    /// How many end before then.
    fn leaving(&self, before: Instant) -> u32 {
        self.iter().filter(|life| life.expires_at <= before).count() as u32
    }
}
