//! The door: who may open a stream, and how many are open.
//!
//! Invariant: every admitted stream holds one unit of the budget and, if it is anybody's, one of the user's limit, from the
//! decision until its [`Permit`] is dropped; whoever is refused, or goes away while it is decided, holds nothing.
//! Kept by: units are tokens that come back when dropped; the budget is taken first and given back if the user's limit refuses.
//! Not here: requests and responses (`layer.rs`), counting across machines (`forebay_quota`).

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_quota::{Budget, BudgetConfig, Keyed, KeyedLease, Lease, Quota, Refusal, Usage};
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
use crate::visitor::{Class, User};

/// How often a queue asks again while nothing comes back here: units of other members come free unheard.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// When to come again if this process has no strength, or the store none: both look again within a few seconds.
const STRAINED_SECONDS: u32 = 5;

pub(crate) struct Door {
    pub(crate) quota: Quota,
    pub(crate) budget: Budget,
    pub(crate) keyed: Keyed,
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
    wait: Duration,
    pub(crate) queue: Queue<Lease>,
    pub(crate) draining: AtomicBool,
    pub(crate) emptied: Notify,
    pub(crate) hasher: Hasher,
    trickle: Trickle,
}

impl Door {
    pub(crate) fn new(config: Builder, quota: Quota) -> Self {
        let budget = quota.budget(&config.name, BudgetConfig::new(config.total));
        let keyed = quota.keyed(&config.name, config.per_user);
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
            wait: config.wait,
            queue: Queue::new(config.max_waiting, config.max_waiting_per_user),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
            hasher: config.salt.as_deref().map_or_else(Hasher::random, Hasher::with_salt),
            trickle: Trickle::default(),
        }
    }

    /// Budget first, then the user's limit, as the seed orders them.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        user: Option<&User>,
        class: usize,
    ) -> Result<Admitted, Rejection> {
        let admitted = self.take(user, class).await?;
        // Closed meanwhile: whoever waits for the house to empty must not find one more in it.
        if self.draining.load(Ordering::SeqCst) {
            return Err(self.rejection(Reason::Draining, user));
        }
        Ok(admitted)
    }

    async fn take(self: &Arc<Self>, user: Option<&User>, class: usize) -> Result<Admitted, Rejection> {
        if self.draining.load(Ordering::Relaxed) {
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
        let usage = self.budget.usage();
        if percent < 100 && crowded(usage, percent, 0) {
            return Err(self.rejection(Reason::Headroom, user));
        }
        let Some(user) = user else { return Ok(Admitted { lease, keyed: None, usage }) };
        match self.keyed.take(user.key()).await {
            // The store may have taken its time: what is counted from here on is counted now.
            Ok(keyed) => Ok(Admitted { lease, keyed: Some(keyed), usage: self.budget.usage() }),
            Err(refusal) => {
                drop(lease);
                Err(self.refusal(refusal, Some(user), Reason::UserLimit))
            }
        }
    }

    /// Gives the admitted a seat and a permit.
    pub(crate) fn seat(
        self: &Arc<Self>,
        thread: ThreadId,
        hash: Option<UserHash>,
        class: usize,
        admitted: Admitted,
    ) -> Permit {
        let Admitted { lease, keyed, usage } = admitted;
        staged!(debug, code::COUNTED, thread, hash, used = usage.used, limit = usage.limit, "counted");
        staged!(debug, code::ADMITTED, thread, hash, "admitted");
        let (seat, open) = self.registry.enter(Entry { thread, user: hash, since: Instant::now() });
        self.meters.active.set(open as f64);
        self.meters.admitted(class);
        self.about.store(i64::from(usage.used), Ordering::Relaxed);
        self.watch.observe(usage.used, usage.limit, &self.meters);
        Permit::new(self.clone(), lease, keyed, seat)
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
        self.refused.fetch_add(1, Ordering::Relaxed);
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

    /// The class's place in the table. One that isn't there is `user`, or `anonymous` for whom nobody knows.
    pub(crate) fn class(&self, class: &Class, user: Option<&User>) -> usize {
        let find = |class: &Class| self.classes.iter().position(|(known, _)| known == class);
        let known = user.is_some_and(|user| !user.is_address());
        let fallback = if known { Class::USER } else { Class::ANONYMOUS };
        find(class).or_else(|| find(&fallback)).expect("the table always has both")
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
                Err(Refusal::Full { .. }) => {}
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
    fn refusal(&self, refusal: Refusal, user: Option<&User>, full: Reason) -> Rejection {
        let mut rejection = match &refusal {
            Refusal::Full { .. } => self.rejection(full, user),
            Refusal::Rebuilding { .. } => self.rejection(Reason::Rebuilding, user),
            Refusal::Busy { .. } => self.rejection(Reason::StoreBusy, user),
            // Whatever else a quota may come to say, it has no unit.
            _ => self.rejection(Reason::StoreDown, user),
        };
        if let Refusal::Full { used, limit } = refusal {
            rejection.count = Some((used, limit));
        }
        if let Refusal::Rebuilding { left } = refusal {
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

/// Whether `more` streams would be beyond this share of the limit. Everybody has at least one.
fn crowded(usage: Usage, percent: u8, more: u32) -> bool {
    usage.used.saturating_add(more) > share(usage.limit, percent).max(1)
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
