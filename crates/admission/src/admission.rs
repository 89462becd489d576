//! Public handle of an admission controller: cheap to clone, without logic.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_quota::Quota;
use tracing::info;

use crate::client_identity::ClientIdentity;
use crate::config::Builder;
use crate::controller::AdmissionController;
use crate::core::health::State;
use crate::ended_streams::EndedStreams;
use crate::identity::IdentifyError;
use crate::metrics;
use crate::permit::Permit;
use crate::rejection::{Rejection, RejectionReason};
use crate::sampler;
use crate::statistics::{self, AdmissionStatistics, MAX_LISTED, MAX_USERS, OpenStream, Status, StreamLimits};
use crate::stream_log::{StageLevel, code, log_stage, log_stream};
use crate::stream_unit::StreamLabels;
use crate::thread_id::ThreadId;

/// Admits streams under a total limit and a per-user limit. Cheap to clone.
#[derive(Clone)]
pub struct Admission {
    controller: Arc<AdmissionController>,
}

impl Admission {
    /// Returns a builder with the defaults: 10,000 streams in total, 3 per user.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(config: Builder, quota: Quota) -> Self {
        let (total, per_user) = (config.total, config.per_user);
        let controller = Arc::new(AdmissionController::new(config, quota));
        info!(stage = code::BUILT, total, per_user, "admission started");
        sampler::start(&controller);
        Admission { controller }
    }

    /// Admits one stream, or returns the reason for the rejection.
    ///
    /// Cancel safe: dropping the future at any point releases everything it acquired.
    pub async fn admit(&self, client: ClientIdentity) -> Result<Permit, Rejection> {
        let controller = &self.controller;
        let class = controller.class_index(&client);
        let ClientIdentity { user, thread, route, .. } = client;
        let thread = thread.unwrap_or_else(ThreadId::random);
        let hash = user.as_ref().map(|user| controller.hasher.hash(user));
        log_stage!(controller.stage_level, code::REQUESTED, thread, hash, "stream requested");
        let stream = StreamLabels { thread: &thread, hash, route };
        let decision = controller.admit(user.as_ref(), class, stream).await;
        decision.inspect_err(|rejection| controller.record_rejection(rejection, &thread, hash))
    }

    /// Returns the counts and the health state.
    pub fn statistics(&self) -> AdmissionStatistics {
        let controller = &self.controller;
        let (usage, thresholds) = (controller.budget.usage(), controller.health.thresholds());
        AdmissionStatistics {
            total_connections: usage.used,
            max_connections: usage.limit,
            utilization_percent: statistics::percent(usage.used, usage.limit),
            state: controller.health.state(),
            degraded_threshold: thresholds.threshold(State::Degraded, usage.limit),
            critical_threshold: thresholds.threshold(State::Critical, usage.limit),
            redis_enabled: controller.quota.store_kind() == "redis",
        }
    }

    /// Returns the whole status from local state, without querying the store.
    pub fn status(&self) -> Status {
        self.status_listing(MAX_LISTED)
    }

    /// Returns the status with at most `max` streams listed. A small `max` is cheaper.
    pub fn status_listing(&self, max: usize) -> Status {
        let controller = &self.controller;
        Status {
            statistics: self.statistics(),
            health: controller.health.status(),
            limits: self.limits(),
            adaptive: controller.adaptive.as_ref().map(|adaptive| adaptive.status()),
            waiting: controller.queue.len(),
            shedding: controller.shed_cause(),
            draining: controller.is_closed(),
            process: *controller.process.lock(),
            open: controller.registry.open(),
            streams: self.oldest_streams(max.min(MAX_LISTED)),
            users: controller.registry.busiest(MAX_USERS),
            quota: controller.quota.status(),
        }
    }

    /// Returns the oldest streams that are open in this process, at most `max`.
    pub fn oldest_streams(&self, max: usize) -> Vec<OpenStream> {
        self.controller.registry.oldest(max).into_iter().map(OpenStream::from).collect()
    }

    /// Asks the streams of a thread id to end: all of this process or, with `user`, those of the
    /// user with this hash. Clients may choose thread ids, so one id can have several streams.
    ///
    /// Before the response's head, the client gets a 503. Later, the response body ends the stream,
    /// if it waits for its [`EndSignal`](crate::EndSignal).
    pub fn end_streams(&self, thread_id: &str, user: Option<&str>) -> EndedStreams {
        let controller = &self.controller;
        let ended = controller.registry.find(thread_id, user);
        for stream in ended.iter().filter(|stream| stream.end.send()) {
            controller.metrics.ended.increment(1);
            let (record, instance) = (&stream.record, controller.quota.member());
            log_stream!(
                info,
                code::ENDED,
                record.thread,
                record.user,
                instance = instance.name(),
                route = record.route.as_deref(),
                "stream ended by an operator"
            );
        }
        EndedStreams::new(ended.into_iter().map(|stream| stream.removed).collect())
    }

    /// Returns the current limits.
    pub fn limits(&self) -> StreamLimits {
        StreamLimits { total: self.controller.budget.limit(), per_user: self.controller.keyed.limit() }
    }

    /// Changes the limits. Open streams stay open; if there are more than the new limit, new ones
    /// are refused until enough have ended.
    pub fn set_limits(&self, limits: StreamLimits) {
        let controller = &self.controller;
        controller.budget.set_limit(limits.total);
        controller.keyed.set_limit(limits.per_user);
        controller.total.store(limits.total, Ordering::Relaxed);
        if let Some(adaptive) = &controller.adaptive {
            adaptive.set_total(limits.total);
        }
        controller.health.recheck(controller.budget.usage().used, limits.total, &controller.metrics);
        info!(
            stage = code::HEALTH,
            total = limits.total,
            per_user = limits.per_user,
            "admission limits changed"
        );
    }

    /// Changes the level of the log lines about the stages of a stream, from the next line on.
    pub fn set_stage_level(&self, level: StageLevel) {
        self.controller.stage_level.set(level);
    }

    /// Returns the number of streams open in this process.
    pub fn open_streams(&self) -> usize {
        self.controller.registry.open()
    }

    /// Refuses new streams from now on, including queued ones. Open streams stay open.
    pub fn close(&self) {
        self.controller.close();
    }

    /// Waits until no stream is open in this process. After [`close`](Self::close), it stays empty.
    pub async fn wait_until_empty(&self) {
        loop {
            let mut emptied = pin!(self.controller.emptied.notified());
            emptied.as_mut().enable(); // before the check, so that no notification is missed
            if self.open_streams() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Counts a stream that an operator ended before its response, and returns its rejection.
    pub(crate) fn reject_ended(&self) -> Rejection {
        self.controller.metrics.rejected(RejectionReason::Ended);
        self.controller.rejection(RejectionReason::Ended, None)
    }

    /// Counts and logs a request that could not be identified, and returns its rejection.
    pub(crate) fn reject_unidentified(&self, fault: IdentifyError, thread: &ThreadId) -> Rejection {
        metrics::bad_credentials(&fault);
        let rejection = Rejection::from(fault);
        self.controller.record_rejection(&rejection, thread, None);
        rejection
    }
}
