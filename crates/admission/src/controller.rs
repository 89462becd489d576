//! Admission controller: decides which streams open, and accounts for the open ones.
//!
//! Invariant 1: an admitted stream holds one unit of the budget, and one of the user's limit if it
//! has a user, until its [`Permit`] is dropped. A rejected or cancelled request holds nothing.
//! Enforced by: units are RAII leases. The budget's lease is acquired first and released if the
//! user's limit refuses.
//! Invariant 2: once the controller is closed and empty, it stays empty.
//! Enforced by: [`AdmissionController::register`] inserts the stream first and checks `draining`
//! afterwards. The closing side sets `draining` first and checks the registry afterwards.
//! Out of scope: HTTP (`layer.rs`); counting across instances (`forebay_quota`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{Budget, BudgetConfig, KeyedLimit, Quota, QuotaRefusal};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::adaptive_limiter::AdaptiveLimiter;
use crate::admission_queue::{AdmissionQueue, WaitError};
use crate::client_identity::{Class, ClientIdentity, UserId};
use crate::config::{Builder, MemoryBound};
use crate::core::pressure::{PressureBounds, ShedCause};
use crate::core::release_rate::{RETRY_AFTER_SECONDS, ReleaseRate};
use crate::health_monitor::HealthMonitor;
use crate::metrics::AdmissionMetrics;
use crate::open_stream_registry::{OpenStreamRegistry, StreamRecord};
use crate::permit::Permit;
use crate::rejection::{Rejection, RejectionReason};
use crate::statistics::ProcessUsage;
use crate::stream_log::{LogRateLimiter, StageLevelCell, code, log_stage};
use crate::stream_unit::{AcquiredUnits, StreamLabels, StreamUnit, UnitRefusal, exceeds_share};
use crate::user_hash::UserHasher;

/// Interval at which the queue retries the budget. Units released by other members send no
/// notification.
const LEASE_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// `Retry-After` when this process or the store is overloaded. Both are sampled again within
/// seconds.
const OVERLOAD_RETRY_AFTER_SECONDS: u32 = 5;

/// Shared state of all clones of an [`Admission`](crate::Admission) and of all permits.
pub(crate) struct AdmissionController {
    pub(crate) quota: Quota,
    pub(crate) budget: Budget,
    pub(crate) keyed: KeyedLimit,
    pub(crate) health: HealthMonitor,
    pub(crate) metrics: AdmissionMetrics,
    pub(crate) registry: OpenStreamRegistry,
    pub(crate) memory: MemoryBound,
    pub(crate) bounds: PressureBounds,
    pub(crate) release_rate: Mutex<ReleaseRate>,
    pub(crate) process: Mutex<ProcessUsage>,
    /// Approximate streams in the cluster: the last known usage minus later local releases. Only
    /// decides when to query the quota again.
    pub(crate) approx_used: AtomicI64,
    pub(crate) released: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) started_at: Instant,
    /// Adaptive limit of this process; `None` if it is off.
    pub(crate) adaptive: Option<Arc<AdaptiveLimiter>>,
    /// Current [`ShedCause`]: its index in `ALL` plus one, or 0 for none.
    shed_cause: AtomicU8,
    /// The total limit, cached from the quota.
    pub(crate) total: AtomicU32,
    /// Classes and their share of the total limit in percent.
    classes: Vec<(Class, u8)>,
    /// Serializes the checks of units against the share of their class.
    share_check: Mutex<()>,
    wait: Duration,
    pub(crate) queue: AdmissionQueue<StreamUnit>,
    draining: AtomicBool,
    pub(crate) emptied: Notify,
    pub(crate) hasher: UserHasher,
    pub(crate) rejection_log_limit: LogRateLimiter,
    pub(crate) stage_level: StageLevelCell,
}

impl AdmissionController {
    pub(crate) fn new(config: Builder, quota: Quota) -> Self {
        let budget = quota.budget(&config.name, BudgetConfig::new(config.total));
        let keyed = quota.keyed_limit(&config.name, config.per_user);
        let metrics = AdmissionMetrics::new(config.classes.iter().map(|(class, _)| class));
        let adaptive = config
            .adaptive
            .map(|(floor, signals)| Arc::new(AdaptiveLimiter::new(floor, config.total, signals)));
        let memory = match config.memory {
            MemoryBound::Off => None,
            MemoryBound::Bytes(_) => Some(1.0),
            MemoryBound::Fraction(fraction) => Some(fraction),
        };
        AdmissionController {
            quota,
            budget,
            keyed,
            health: HealthMonitor::new(config.thresholds, config.total, &metrics),
            metrics,
            registry: OpenStreamRegistry::default(),
            memory: config.memory,
            bounds: PressureBounds { memory, cpu: config.cpu, window: config.cpu_window, hysteresis: 0.05 },
            release_rate: Mutex::default(),
            process: Mutex::default(),
            approx_used: AtomicI64::new(0),
            released: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            started_at: Instant::now(),
            adaptive,
            shed_cause: AtomicU8::new(0),
            total: AtomicU32::new(config.total),
            classes: config.classes,
            share_check: Mutex::default(),
            wait: config.wait,
            queue: AdmissionQueue::new(config.max_waiting, config.max_waiting_per_user),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
            hasher: config.salt.as_deref().map_or_else(UserHasher::random, UserHasher::with_salt),
            rejection_log_limit: LogRateLimiter::default(),
            stage_level: StageLevelCell::new(config.stage_level),
        }
    }

    /// Returns a permit, or the reason for the rejection.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        user: Option<&UserId>,
        class: usize,
        stream: StreamLabels<'_>,
    ) -> Result<Permit, Rejection> {
        let admitted = self.acquire(user, class).await?;
        let permit = self.register(stream, class, admitted);
        permit.ok_or_else(|| self.rejection(RejectionReason::Draining, user))
    }

    /// Rejects all later requests, and the queued ones.
    pub(crate) fn close(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.queue.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Acquires a unit of the budget first, then one of the user's limit.
    async fn acquire(
        self: &Arc<Self>,
        user: Option<&UserId>,
        class: usize,
    ) -> Result<AcquiredUnits, Rejection> {
        if self.is_closed() {
            return Err(self.rejection(RejectionReason::Draining, user));
        }
        if let Some(shed_cause) = self.shed_cause() {
            return Err(self.rejection(shed_cause.into(), user));
        }
        let percent = self.classes[class].1;
        // The share is checked twice. This check saves the store call of a request that would be
        // refused. The check after the call refuses all but one of several concurrent requests for
        // the last unit.
        if percent < 100 && self.exceeds_share_before_call(percent) {
            return Err(self.rejection(RejectionReason::Headroom, user));
        }
        let unit = self.acquire_unit(user).await?;
        let Some(unit) = self.keep_within_share(unit, percent) else {
            return Err(self.rejection(RejectionReason::Headroom, user));
        };
        let Some(user) = user else {
            return Ok(AcquiredUnits { unit, keyed: None, usage: self.budget.usage() });
        };
        match self.keyed.take(user.key()).await {
            // The store call may have taken long, so the usage is read again.
            Ok(keyed) => Ok(AcquiredUnits { unit, keyed: Some(keyed), usage: self.budget.usage() }),
            Err(refusal) => {
                drop(unit);
                Err(self.refusal(refusal, Some(user), RejectionReason::UserLimit))
            }
        }
    }

    /// Returns the unit, or releases it if it exceeds the share of its class.
    ///
    /// Units are checked one at a time, and a refused unit is released before the next check.
    /// Otherwise two concurrent requests for the last unit would refuse each other.
    fn keep_within_share(&self, unit: StreamUnit, percent: u8) -> Option<StreamUnit> {
        if percent >= 100 {
            return Some(unit);
        }
        let _guard = self.share_check.lock();
        if exceeds_share(self.budget.usage(), percent, 0) || self.exceeds_adaptive_share(percent, 0) {
            drop(unit);
            return None;
        }
        Some(unit)
    }

    /// Returns whether one more stream would exceed the share, from local state.
    fn exceeds_share_before_call(&self, percent: u8) -> bool {
        self.exceeds_adaptive_share(percent, 1)
            || self.may_exceed_share(percent) && exceeds_share(self.budget.usage(), percent, 1)
    }

    /// Returns whether `more` streams would exceed this share of the adaptive limit.
    fn exceeds_adaptive_share(&self, percent: u8, more: u32) -> bool {
        self.adaptive.as_ref().is_some_and(|adaptive| adaptive.exceeds_share(percent, more))
    }

    /// Registers the stream and creates its permit. Returns `None` if the controller was closed
    /// meanwhile.
    fn register(
        self: &Arc<Self>,
        stream: StreamLabels<'_>,
        class: usize,
        units: AcquiredUnits,
    ) -> Option<Permit> {
        let AcquiredUnits { unit, keyed, usage } = units;
        let StreamLabels { thread, hash, route } = stream;
        let record = StreamRecord { thread: thread.clone(), user: hash, route, since: Instant::now() };
        let (registration, end, open) = self.registry.insert(record);
        if self.is_closed() {
            drop((unit, keyed));
            // Other tasks may have observed this entry: the metrics, and waiters for an empty
            // registry.
            if let Some((_, open)) = self.registry.remove(&mut Some(registration)) {
                self.metrics.active.set(open as f64);
                if open == 0 {
                    self.emptied.notify_waiters();
                }
            }
            return None;
        }
        log_stage!(
            self.stage_level,
            code::COUNTED,
            thread,
            hash,
            used = usage.used,
            limit = usage.limit,
            "stream counted"
        );
        log_stage!(self.stage_level, code::ADMITTED, thread, hash, "stream admitted");
        self.metrics.active.set(open as f64);
        self.metrics.admitted(class);
        self.approx_used.store(i64::from(usage.used), Ordering::Relaxed);
        self.health.observe(usage.used, usage.limit, &self.metrics);
        Some(Permit::new(self.clone(), unit, keyed, registration, end))
    }

    /// Updates the health state after a permit was released. Returns the approximate usage. Queries
    /// the quota only if the state may fall.
    pub(crate) fn after_release(&self) -> i64 {
        let approx_used = self.approx_used.fetch_sub(1, Ordering::Relaxed) - 1;
        if approx_used < i64::from(self.health.lower_bound()) {
            let usage = self.budget.usage();
            self.approx_used.store(i64::from(usage.used), Ordering::Relaxed);
            self.health.observe(usage.used, usage.limit, &self.metrics);
        }
        approx_used
    }

    /// Returns the index of the class that applies. An unknown class counts as `user`, or as
    /// `anonymous` for clients without authentication.
    pub(crate) fn class_index(&self, client: &ClientIdentity) -> usize {
        let find = |class: &Class| self.classes.iter().position(|(listed, _)| listed == class);
        let fallback = if client.is_authenticated() { Class::USER } else { Class::ANONYMOUS };
        let own =
            find(&client.class).or_else(|| find(&fallback)).expect("the builder always has both classes");
        let percent = |class: usize| self.classes[class].1;
        // A route's class never raises the share of the client's class.
        let route = client.route_class.as_ref().and_then(find);
        route.filter(|route| percent(*route) <= percent(own)).unwrap_or(own)
    }

    pub(crate) fn shed_cause(&self) -> Option<ShedCause> {
        let code = usize::from(self.shed_cause.load(Ordering::Relaxed));
        ShedCause::ALL.get(code.checked_sub(1)?).copied()
    }

    pub(crate) fn set_shed_cause(&self, shed_cause: Option<ShedCause>) {
        let index = ShedCause::ALL.iter().position(|listed| Some(*listed) == shed_cause);
        self.shed_cause.store(index.map_or(0, |index| index as u8 + 1), Ordering::Relaxed);
    }

    /// Returns whether the share may be exceeded, from cached values. Decides only whether the
    /// exact check is made.
    fn may_exceed_share(&self, percent: u8) -> bool {
        let ceiling = i64::from(self.total.load(Ordering::Relaxed)) * i64::from(percent) / 100;
        self.approx_used.load(Ordering::Relaxed) + 1 > ceiling
    }

    async fn acquire_unit(self: &Arc<Self>, user: Option<&UserId>) -> Result<StreamUnit, Rejection> {
        let refused = |refusal| match refusal {
            UnitRefusal::Adaptive => self.rejection(RejectionReason::Adaptive, user),
            UnitRefusal::Quota(refusal) => self.refusal(refusal, user, RejectionReason::Exhausted),
        };
        if self.wait.is_zero() {
            return self.take_unit().await.map_err(refused);
        }
        // New requests do not overtake queued ones.
        if self.queue.len() == 0 {
            match self.take_unit().await {
                Ok(unit) => return Ok(unit),
                Err(UnitRefusal::Adaptive | UnitRefusal::Quota(QuotaRefusal::Full { .. })) => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        self.wait_for_unit(user).await
    }

    /// Takes a slot of the adaptive limit, then a unit of the budget. So this process's own limit
    /// refuses without a store call.
    async fn take_unit(&self) -> Result<StreamUnit, UnitRefusal> {
        let slot = match &self.adaptive {
            Some(adaptive) => Some(adaptive.take().ok_or(UnitRefusal::Adaptive)?),
            None => None,
        };
        let lease = self.budget.take().await.map_err(UnitRefusal::Quota)?;
        Ok(StreamUnit { slot, _lease: lease })
    }

    async fn wait_for_unit(self: &Arc<Self>, user: Option<&UserId>) -> Result<StreamUnit, Rejection> {
        let started = tokio::time::Instant::now();
        let Ok((waiting, needs_server)) = self.queue.join(user.cloned()) else {
            return Err(self.rejection(RejectionReason::WaitFull, user));
        };
        if needs_server {
            tokio::spawn(serve_queue(QueueServer(self.clone())));
        }
        // The request may have joined after `close` emptied the queue; no later call would reject
        // it.
        if self.is_closed() {
            return Err(self.rejection(RejectionReason::Draining, user));
        }
        self.metrics.waiting.set(self.queue.len() as f64);
        let outcome = waiting.wait_until(started + self.wait).await;
        self.metrics.wait_seconds.record(started.elapsed());
        self.metrics.waiting.set(self.queue.len() as f64);
        outcome.map_err(|error| match error {
            WaitError::Deadline => self.rejection(RejectionReason::WaitTimedOut, user),
            WaitError::Closed => self.rejection(RejectionReason::Draining, user),
        })
    }

    /// Converts a refusal of the quota to a rejection; `full` is the reason if all units are taken.
    fn refusal(&self, refusal: QuotaRefusal, user: Option<&UserId>, full: RejectionReason) -> Rejection {
        let mut rejection = match &refusal {
            QuotaRefusal::Full { .. } => self.rejection(full, user),
            QuotaRefusal::Rebuilding { .. } => self.rejection(RejectionReason::Rebuilding, user),
            QuotaRefusal::Busy { .. } => self.rejection(RejectionReason::StoreBusy, user),
            // `Refusal` is non-exhaustive; any other refusal grants no unit either.
            _ => self.rejection(RejectionReason::StoreDown, user),
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

    pub(crate) fn rejection(&self, reason: RejectionReason, user: Option<&UserId>) -> Rejection {
        let release_rate = *self.release_rate.lock();
        let seconds = match reason {
            RejectionReason::Exhausted
            | RejectionReason::Adaptive
            | RejectionReason::Headroom
            | RejectionReason::WaitTimedOut
            | RejectionReason::WaitFull => release_rate.seconds_until_free(self.queue.len()),
            RejectionReason::UserLimit => {
                release_rate.seconds_until_own_release(self.registry.open(), self.keyed.limit())
            }
            RejectionReason::Memory
            | RejectionReason::Cpu
            | RejectionReason::StoreDown
            | RejectionReason::Rebuilding => OVERLOAD_RETRY_AFTER_SECONDS,
            RejectionReason::StoreBusy | RejectionReason::Draining | RejectionReason::Ended => {
                RETRY_AFTER_SECONDS.0
            }
            RejectionReason::Credentials | RejectionReason::BadRequest | RejectionReason::TooLong => {
                return Rejection::new(reason, user.cloned());
            }
        };
        let count = match (&self.adaptive, reason) {
            (Some(adaptive), RejectionReason::Adaptive) => Some((adaptive.open(), adaptive.limit())),
            _ => {
                let usage = self.budget.usage();
                reason.is_server_side().then_some((usage.used, usage.limit))
            }
        };
        Rejection { count, retry_after_seconds: Some(seconds), ..Rejection::new(reason, user.cloned()) }
    }
}

/// Guard of the task that hands units to the queue. At most one exists while the queue is not
/// empty.
struct QueueServer(Arc<AdmissionController>);

impl Drop for QueueServer {
    fn drop(&mut self) {
        // If a runtime shutdown drops the task, the next request to join the queue starts a new
        // one.
        self.0.queue.server_stopped();
    }
}

async fn serve_queue(server: QueueServer) {
    let controller = &server.0;
    while controller.queue.keep_serving() {
        let mut freed = pin!(controller.budget.freed());
        freed.as_mut().enable(); // before acquiring, so that no notification is missed
        match controller.take_unit().await {
            // If the queue is empty by now, dropping the unit releases it.
            Ok(unit) => drop(controller.queue.hand_over(unit)),
            Err(_) => {
                let _ = tokio::time::timeout(LEASE_RETRY_INTERVAL, freed).await;
            }
        }
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
