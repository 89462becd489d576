//! The door: who may open a stream, and how many are open.
//!
//! Invariant: every admitted stream holds one unit of the budget and, if it is anybody's, one of the user's limit, from the
//! decision until its [`Permit`] is dropped; whoever is refused, or goes away while it is decided, holds nothing.
//! Kept by: units are tokens that come back when dropped; the budget is taken first and given back if the user's limit refuses.
//! And: a house that was closed and seen empty stays empty. Whoever is admitted enters the registry first, looks then whether
//! the house is closed, and backs out if it is ([`Door::seat`]); whoever closes it looks at the registry afterwards.
//! Not here: requests and responses (`layer.rs`), counting across machines (`forebay_quota`).

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_quota::{Budget, BudgetConfig, KeyedLease, KeyedLimit, Lease, Quota, QuotaRefusal, Usage};
use tokio::sync::Notify;

use crate::config::{Builder, MemoryBound};
use crate::core::health::share;
use crate::core::pressure::{Bounds, Strain};
use crate::core::release::{Pace, RETRY_AFTER_SECONDS};
use crate::health::Watch;
use crate::metrics::Meters;
use crate::permit::Permit;
use crate::queue::{InVain, Queue};
use crate::registry::{Entry, Registry};
use crate::rejection::{Reason, Rejection};
use crate::stage::{Hasher, Trickle, UserHash, code, staged};
use crate::statistics::Process;
use crate::thread_id::ThreadId;
use crate::visitor::{Class, User, Visitor};

/// How often a queue asks again while nothing comes back here: units of other members come free unheard.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// When to come again if this process has no strength, or the store none: both look again within a few seconds.
const STRAINED_SECONDS: u32 = 5;

pub(crate) struct Door {
    pub(crate) quota: Quota,
    pub(crate) budget: Budget,
    pub(crate) keyed: KeyedLimit,
    pub(crate) watch: Watch,
    pub(crate) meters: Meters,
    pub(crate) registry: Registry,
    pub(crate) memory: MemoryBound,
    pub(crate) bounds: Bounds,
    pub(crate) pace: Mutex<Pace>,
    pub(crate) process: Mutex<Process>,
    /// Streams in the whole cluster, by the last look and what was given back since: good enough to know when to look again.
    pub(crate) about: AtomicI64,
    pub(crate) released: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) begun: Instant,
    /// The [`Strain`] under which nobody is admitted: its place in `ALL` plus one, or 0.
    strain: AtomicU8,
    /// The total limit, to be looked at without asking the quota.
    pub(crate) total: AtomicU32,
    /// Each class, and its share of the limit in percent.
    classes: Vec<(Class, u8)>,
    /// Held while it is judged whether a unit is within its class's share.
    judging: Mutex<()>,
    wait: Duration,
    pub(crate) queue: Queue<Lease>,
    draining: AtomicBool,
    pub(crate) emptied: Notify,
    pub(crate) hasher: Hasher,
    trickle: Trickle,
}

impl Door {
    pub(crate) fn new(config: Builder, quota: Quota) -> Self {
        let budget = quota.budget(&config.name, BudgetConfig::new(config.total));
        let keyed = quota.keyed_limit(&config.name, config.per_user);
        let meters = Meters::new(config.classes.iter().map(|(class, _)| class));
        let memory = match config.memory {
            MemoryBound::Off => None,
            MemoryBound::Bytes(_) => Some(1.0),
            MemoryBound::Fraction(fraction) => Some(fraction),
        };
        Door {
            quota,
            budget,
            keyed,
            watch: Watch::new(config.thresholds, config.total, &meters),
            meters,
            registry: Registry::default(),
            memory: config.memory,
            bounds: Bounds { memory, cpu: config.cpu, window: config.cpu_window, hysteresis: 0.05 },
            pace: Mutex::default(),
            process: Mutex::default(),
            about: AtomicI64::new(0),
            released: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            begun: Instant::now(),
            strain: AtomicU8::new(0),
            total: AtomicU32::new(config.total),
            classes: config.classes,
            judging: Mutex::default(),
            wait: config.wait,
            queue: Queue::new(config.max_waiting, config.max_waiting_per_user),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
            hasher: config.salt.as_deref().map_or_else(Hasher::random, Hasher::with_salt),
            trickle: Trickle::default(),
        }
    }

    /// A permit, or why there is none.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        user: Option<&User>,
        class: usize,
        thread: &ThreadId,
        hash: Option<UserHash>,
    ) -> Result<Permit, Rejection> {
        let admitted = self.take(user, class).await?;
        let seated = self.seat(thread, hash, class, admitted);
        seated.ok_or_else(|| self.rejection(Reason::Draining, user))
    }

    /// Admits nobody from now on, and sends home who waits.
    pub(crate) fn close(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.queue.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Budget first, then the user's limit, as the seed orders them.
    async fn take(self: &Arc<Self>, user: Option<&User>, class: usize) -> Result<Admitted, Rejection> {
        if self.is_closed() {
            return Err(self.rejection(Reason::Draining, user));
        }
        if let Some(strain) = self.strain() {
            return Err(self.rejection(strain.into(), user));
        }
        let percent = self.classes[class].1;
        // Looked at before, so that a visitor without hope bothers nobody; and after, so that two at once don't both get in.
        if percent < 100 && self.seems_crowded(percent) && crowded(self.budget.usage(), percent, 1) {
            return Err(self.rejection(Reason::Headroom, user));
        }
        let lease = self.lease(user).await?;
        let Some(lease) = self.within_share(lease, percent) else {
            return Err(self.rejection(Reason::Headroom, user));
        };
        let Some(user) = user else {
            return Ok(Admitted { lease, keyed: None, usage: self.budget.usage() });
        };
        match self.keyed.take(user.key()).await {
            // The store may have taken its time: what is counted from here on is counted now.
            Ok(keyed) => Ok(Admitted { lease, keyed: Some(keyed), usage: self.budget.usage() }),
            Err(refusal) => {
                drop(lease);
                Err(self.refusal(refusal, Some(user), Reason::UserLimit))
            }
        }
    }

    /// The unit again, unless it is beyond the share of its class. Units are judged one after the other, and one that is
    /// refused is given back before the next is judged: else two that came at once would be refused for each other's sake.
    fn within_share(&self, lease: Lease, percent: u8) -> Option<Lease> {
        if percent >= 100 {
            return Some(lease);
        }
        let _one_at_a_time = self.judging.lock().unwrap_or_else(PoisonError::into_inner);
        if crowded(self.budget.usage(), percent, 0) {
            drop(lease);
            return None;
        }
        Some(lease)
    }

    /// Gives the admitted a seat and a permit; nothing if the house was closed meanwhile.
    fn seat(
        self: &Arc<Self>,
        thread: &ThreadId,
        hash: Option<UserHash>,
        class: usize,
        admitted: Admitted,
    ) -> Option<Permit> {
        let Admitted { lease, keyed, usage } = admitted;
        let entry = Entry { thread: thread.clone(), user: hash, since: Instant::now() };
        let (seat, open) = self.registry.enter(entry);
        if self.is_closed() {
            drop((lease, keyed));
            // Others may have seen this one in the house: who meters it, and who waits for it to empty.
            if let Some((_, open)) = self.registry.leave(&mut Some(seat)) {
                self.meters.active.set(open as f64);
                if open == 0 {
                    self.emptied.notify_waiters();
                }
            }
            return None;
        }
        staged!(debug, code::COUNTED, thread, hash, used = usage.used, limit = usage.limit, "counted");
        staged!(debug, code::ADMITTED, thread, hash, "admitted");
        self.meters.active.set(open as f64);
        self.meters.admitted(class);
        self.about.store(i64::from(usage.used), Ordering::Relaxed);
        self.watch.observe(usage.used, usage.limit, &self.meters);
        Some(Permit::new(self.clone(), lease, keyed, seat))
    }

    /// After a permit was given back. The state may fall; whether it may, is known without asking the quota.
    pub(crate) fn given_back(&self) -> i64 {
        let about = self.about.fetch_sub(1, Ordering::Relaxed) - 1;
        if about < i64::from(self.watch.lowest()) {
            let usage = self.budget.usage();
            self.about.store(i64::from(usage.used), Ordering::Relaxed);
            self.watch.observe(usage.used, usage.limit, &self.meters);
        }
        about
    }

    /// Meters and logs a refusal.
    pub(crate) fn refuse(&self, rejection: &Rejection, thread: &ThreadId, hash: Option<UserHash>) {
        let reason = rejection.reason;
        // For Retry-After: only these will come again and compete for what comes free.
        if reason.is_ours() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.meters.rejected(reason);
        if reason == Reason::Exhausted
            && let Some((used, limit)) = rejection.count
        {
            self.watch.observe(used, limit, &self.meters);
        }
        let Some(withheld) = self.trickle.allows(self.begun.elapsed()) else { return };
        let (why, stage) =
            (reason.as_str(), if reason.is_ours() { code::EXHAUSTED } else { code::USER_LIMIT });
        let (current, max) = rejection.count.unwrap_or_default();
        match reason {
            Reason::Credentials | Reason::BadRequest | Reason::TooLong => {
                let why = rejection.fault.as_ref().map_or(why, |fault| fault.as_str());
                staged!(warn, code::ASKED, thread, hash, reason = why, withheld, "not identified");
            }
            _ => staged!(warn, stage, thread, hash, reason = why, current, max, withheld, "not admitted"),
        }
    }

    /// The place in the table of the class that counts. One that isn't there is `user`, or `anonymous` for whom nobody knows.
    pub(crate) fn class(&self, visitor: &Visitor) -> usize {
        let find = |class: &Class| self.classes.iter().position(|(known, _)| known == class);
        let fallback = if visitor.is_known() { Class::USER } else { Class::ANONYMOUS };
        let own = find(&visitor.class).or_else(|| find(&fallback)).expect("the table always has both");
        let percent = |class: usize| self.classes[class].1;
        // Whoever asks for a route gets no more by it than he has: what is kept from the anonymous stays kept.
        let within = visitor.within.as_ref().and_then(find);
        within.filter(|within| percent(*within) <= percent(own)).unwrap_or(own)
    }

    pub(crate) fn strain(&self) -> Option<Strain> {
        let place = usize::from(self.strain.load(Ordering::Relaxed));
        Strain::ALL.get(place.checked_sub(1)?).copied()
    }

    pub(crate) fn set_strain(&self, strain: Option<Strain>) {
        let place = Strain::ALL.iter().position(|known| Some(*known) == strain);
        self.strain.store(place.map_or(0, |place| place as u8 + 1), Ordering::Relaxed);
    }

    /// Whether it is worth a look. Near enough: nobody is refused by it.
    fn seems_crowded(&self, percent: u8) -> bool {
        let ceiling = i64::from(self.total.load(Ordering::Relaxed)) * i64::from(percent) / 100;
        self.about.load(Ordering::Relaxed) + 1 > ceiling
    }

    async fn lease(self: &Arc<Self>, user: Option<&User>) -> Result<Lease, Rejection> {
        let refused = |refusal| self.refusal(refusal, user, Reason::Exhausted);
        if self.wait.is_zero() {
            return self.budget.take().await.map_err(refused);
        }
        // Nobody overtakes those who wait.
        if self.queue.len() == 0 {
            match self.budget.take().await {
                Ok(lease) => return Ok(lease),
                Err(QuotaRefusal::Full { .. }) => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        self.wait_for_lease(user).await
    }

    async fn wait_for_lease(self: &Arc<Self>, user: Option<&User>) -> Result<Lease, Rejection> {
        let begun = tokio::time::Instant::now();
        let Ok((waiting, unserved)) = self.queue.join(user.cloned()) else {
            return Err(self.rejection(Reason::WaitFull, user));
        };
        if unserved {
            tokio::spawn(serve(Service(self.clone())));
        }
        // Joined after everybody was sent home: nobody would come to do it again.
        if self.is_closed() {
            return Err(self.rejection(Reason::Draining, user));
        }
        self.meters.waiting.set(self.queue.len() as f64);
        let outcome = waiting.until(begun + self.wait).await;
        self.meters.wait_seconds.record(begun.elapsed());
        self.meters.waiting.set(self.queue.len() as f64);
        outcome.map_err(|in_vain| match in_vain {
            InVain::Deadline => self.rejection(Reason::WaitedInVain, user),
            InVain::Closed => self.rejection(Reason::Draining, user),
        })
    }

    /// What the quota's refusal is to a visitor; `full` is what it is if all are taken.
    fn refusal(&self, refusal: QuotaRefusal, user: Option<&User>, full: Reason) -> Rejection {
        let mut rejection = match &refusal {
            QuotaRefusal::Full { .. } => self.rejection(full, user),
            QuotaRefusal::Rebuilding { .. } => self.rejection(Reason::Rebuilding, user),
            QuotaRefusal::Busy { .. } => self.rejection(Reason::StoreBusy, user),
            // Whatever else a quota may come to say, it has no unit.
            _ => self.rejection(Reason::StoreDown, user),
        };
        if let QuotaRefusal::Full { used, limit } = refusal {
            rejection.count = Some((used, limit));
        }
        if let QuotaRefusal::Rebuilding { left } = refusal {
            let (least, most) = RETRY_AFTER_SECONDS;
            let seconds = u32::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(most);
            rejection.retry_after_seconds = Some(seconds.clamp(least, most));
        }
        rejection
    }

    fn rejection(&self, reason: Reason, user: Option<&User>) -> Rejection {
        let pace = *self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = match reason {
            Reason::Exhausted | Reason::Headroom | Reason::WaitedInVain | Reason::WaitFull => {
                pace.until_any(self.queue.len())
            }
            Reason::UserLimit => pace.until_own(self.registry.open(), self.keyed.limit()),
            Reason::Memory | Reason::Cpu | Reason::StoreDown | Reason::Rebuilding => STRAINED_SECONDS,
            Reason::StoreBusy | Reason::Draining => RETRY_AFTER_SECONDS.0,
            Reason::Credentials | Reason::BadRequest | Reason::TooLong => {
                return Rejection::new(reason, user.cloned());
            }
        };
        let usage = self.budget.usage();
        let count = reason.is_ours().then_some((usage.used, usage.limit));
        Rejection { count, retry_after_seconds: Some(seconds), ..Rejection::new(reason, user.cloned()) }
    }
}

/// One who passed the door, and what he holds.
pub(crate) struct Admitted {
    lease: Lease,
    keyed: Option<KeyedLease>,
    /// As it was when the last unit was taken.
    usage: Usage,
}

/// Whether `more` streams would be beyond this share of the limit. A share is one stream at least, unless it is none.
fn crowded(usage: Usage, percent: u8, more: u32) -> bool {
    let least = u32::from(percent > 0);
    usage.used.saturating_add(more) > share(usage.limit, percent).max(least)
}

/// Whoever hands units to those who wait. There is one while anybody does.
struct Service(Arc<Door>);

impl Drop for Service {
    fn drop(&mut self) {
        // Dropped in its midst, by a runtime that ends: the next to wait begins anew.
        self.0.queue.abandoned();
    }
}

async fn serve(service: Service) {
    let door = &service.0;
    while door.queue.serves_on() {
        let mut freed = pin!(door.budget.freed());
        freed.as_mut().enable(); // before asking, so that nothing is missed
        match door.budget.take().await {
            // Nobody waits any more: the unit goes back as it is dropped.
            Ok(lease) => drop(door.queue.hand(lease)),
            Err(_) => {
                let _ = tokio::time::timeout(ASK_AGAIN, freed).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::admission::Admission;

    fn door(config: Builder) -> Arc<Door> {
        Arc::new(Door::new(config, Quota::local()))
    }

    fn anonymous(door: &Door) -> usize {
        door.class(&Visitor::anonymous())
    }

    #[tokio::test]
    async fn a_house_that_was_closed_and_seen_empty_seats_nobody_who_was_being_admitted() {
        let door = door(Admission::builder());
        let class = anonymous(&door);
        let admitted = door.take(None, class).await.unwrap();
        door.close();
        assert_eq!(door.registry.open(), 0, "the house is seen empty");
        assert!(door.seat(&ThreadId::random(), None, class, admitted).is_none());
        assert_eq!((door.registry.open(), door.budget.usage().used), (0, 0));
    }

    /// Whoever waits for the house to empty sees the one who backs out, and must be told.
    #[tokio::test]
    async fn backing_out_of_a_closed_house_tells_that_it_is_empty() {
        let door = door(Admission::builder());
        let class = anonymous(&door);
        let admitted = door.take(None, class).await.unwrap();
        door.close();
        let mut emptied = pin!(door.emptied.notified());
        emptied.as_mut().enable();
        drop(door.seat(&ThreadId::random(), None, class, admitted));
        tokio::time::timeout(Duration::from_secs(1), emptied).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_the_line_of_a_closed_house_is_sent_home_at_once() {
        let door = door(Admission::builder().wait(Duration::from_secs(3_600)));
        door.close();
        let begun = tokio::time::Instant::now();
        let rejection = door.wait_for_lease(None).await.unwrap_err();
        assert_eq!((rejection.reason, begun.elapsed()), (Reason::Draining, Duration::ZERO));
        assert_eq!(door.queue.len(), 0);
    }

    /// Both took a unit before either was judged. One is being refused; the other is judged when that unit is back.
    #[tokio::test]
    async fn of_two_who_come_at_once_for_the_last_place_of_a_share_one_gets_it() {
        let door = door(Admission::builder().total(4));
        let _open = door.budget.take().await.unwrap();
        let (one, two) = (door.budget.take().await.unwrap(), door.budget.take().await.unwrap());
        let judging = door.judging.lock().unwrap();
        let kept = thread::scope(|scope| {
            let other = scope.spawn(|| door.within_share(two, 50));
            thread::sleep(Duration::from_millis(20)); // long enough to be judged, if nothing kept it from it
            drop(one);
            drop(judging);
            other.join().unwrap()
        });
        assert!(kept.is_some());
        let third = door.budget.take().await.unwrap();
        assert!(door.within_share(third, 50).is_none());
    }

    #[tokio::test]
    async fn only_refusals_that_are_ours_count_as_visitors_who_will_compete() {
        let door = door(Admission::builder());
        for reason in Reason::ALL {
            let before = door.refused.load(Ordering::Relaxed);
            door.refuse(&Rejection::new(reason, None), &ThreadId::random(), None);
            let counted = door.refused.load(Ordering::Relaxed) - before;
            assert_eq!(counted, u64::from(reason.status().is_server_error()), "{reason:?}");
        }
    }

    #[test]
    fn a_share_is_one_stream_at_least_unless_it_is_none() {
        let crowded = |used, percent| {
            let usage = Usage { used_here: used, slice: 10, used, limit: 10, pressure: false };
            super::crowded(usage, percent, 1)
        };
        assert!(!crowded(0, 1) && crowded(1, 1));
        assert!(!crowded(4, 50) && crowded(5, 50));
        assert!(crowded(0, 0));
    }
}
