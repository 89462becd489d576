//! What callers hold: cloneable, no logic.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use forebay_quota::Quota;
use tracing::info;

use crate::config::Builder;
use crate::core::health::State;
use crate::door::Door;
use crate::identity::Unidentified;
use crate::metrics;
use crate::permit::Permit;
use crate::rejection::Rejection;
use crate::sampler;
use crate::stage::{code, staged};
use crate::statistics::{self, Limits, MAX_LISTED, MAX_USERS, OpenStream, Statistics, Status};
use crate::thread_id::ThreadId;
use crate::visitor::Visitor;

/// Admits streams under a limit for all and one for each user. Cheap to clone.
#[derive(Clone)]
pub struct Admission {
    door: Arc<Door>,
}

impl Admission {
    /// With the seed's defaults: 10,000 in all, 3 for each user.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(config: Builder, quota: Quota) -> Self {
        let (total, per_user) = (config.total, config.per_user);
        let door = Arc::new(Door::new(config, quota));
        info!(stage = code::BUILT, total, per_user, "admission is ready");
        sampler::start(&door);
        Admission { door }
    }

    /// Admits one stream, or says why not. Dropping the future at any point leaves no trace.
    pub async fn admit(&self, visitor: Visitor) -> Result<Permit, Rejection> {
        let door = &self.door;
        let class = door.class(&visitor);
        let Visitor { user, thread, .. } = visitor;
        let thread = thread.unwrap_or_else(ThreadId::random);
        let hash = user.as_ref().map(|user| door.hasher.hash(user));
        staged!(debug, code::ASKED, thread, hash, "a visitor asks for a stream");
        let decision = door.decide(user.as_ref(), class, &thread, hash).await;
        decision.inspect_err(|rejection| door.refuse(rejection, &thread, hash))
    }

    /// The seed's statistics.
    pub fn statistics(&self) -> Statistics {
        let door = &self.door;
        let (usage, thresholds) = (door.budget.usage(), door.watch.thresholds());
        Statistics {
            total_connections: usage.used,
            max_connections: usage.limit,
            utilization_percent: statistics::percent(usage.used, usage.limit),
            state: door.watch.state(),
            degraded_threshold: thresholds.begins(State::Degraded, usage.limit),
            critical_threshold: thresholds.begins(State::Critical, usage.limit),
            redis_enabled: door.quota.store_kind() == "redis",
        }
    }

    /// Everything that there is to know, without asking anybody.
    pub fn status(&self) -> Status {
        self.status_listing(MAX_LISTED)
    }

    /// The same, for somebody who looks often: lists no more streams than that.
    pub fn status_listing(&self, most: usize) -> Status {
        let door = &self.door;
        let listed = if most == 0 { Vec::new() } else { door.registry.oldest(most.min(MAX_LISTED)) };
        let listed = listed.into_iter().map(|entry| OpenStream {
            thread_id: entry.thread,
            user: entry.user,
            since_seconds: entry.since.elapsed().as_secs(),
        });
        Status {
            statistics: self.statistics(),
            health: door.watch.status(),
            limits: self.limits(),
            waiting: door.queue.len(),
            shedding: door.strain(),
            draining: door.is_closed(),
            process: *door.process.lock().unwrap_or_else(PoisonError::into_inner),
            open: door.registry.open(),
            streams: listed.collect(),
            users: door.registry.busiest(MAX_USERS),
            quota: door.quota.status(),
        }
    }

    /// The limits that hold now.
    pub fn limits(&self) -> Limits {
        Limits { total: self.door.budget.limit(), per_user: self.door.keyed.limit() }
    }

    /// Sets other limits. Lowering cuts nobody off: open streams go on, and new ones wait until enough have ended.
    pub fn set_limits(&self, limits: Limits) {
        let door = &self.door;
        door.budget.set_limit(limits.total);
        door.keyed.set_limit(limits.per_user);
        door.total.store(limits.total, Ordering::Relaxed);
        door.watch.recheck(door.budget.usage().used, limits.total, &door.meters);
        info!(stage = code::HEALTH, total = limits.total, per_user = limits.per_user, "the limits were set");
    }

    /// Streams open in this process.
    pub fn open(&self) -> usize {
        self.door.registry.open()
    }

    /// Takes no new streams from now on, and sends home who waits. Open streams go on.
    pub fn close(&self) {
        self.door.close();
    }

    /// Resolves when no stream is open here. After [`close`](Self::close), that is for good.
    pub async fn emptied(&self) {
        loop {
            let mut emptied = pin!(self.door.emptied.notified());
            emptied.as_mut().enable(); // before looking, so that nothing is missed
            if self.open() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Meters and logs one who couldn't be identified.
    pub(crate) fn turned_away(&self, fault: Unidentified, thread: &ThreadId) -> Rejection {
        metrics::bad_credentials(&fault);
        let rejection = Rejection::from(fault);
        self.door.refuse(&rejection, thread, None);
        rejection
    }
}
