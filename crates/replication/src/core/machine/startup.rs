//! Transitions from connecting to streaming, and back after a failure.

use std::time::{Duration, Instant};

use super::{
    AttemptId, Effect, FailureReport, HALT_RETRY, LIVENESS_CHECK, MAX_PANICS, MEASURE, ManagerEvent,
    ManagerMachine, PANIC_WINDOW, PoolReport, PoolState, RECONCILE, RecoveryAction, SETUP_CHECK,
    STABLE_AFTER, State,
};
use crate::core::conditions::ReadyCondition;
use crate::core::continuity::ResetReason;
use crate::core::step::{ManagerStep, StopStep};
use crate::pools::PoolStatus;

impl ManagerMachine {
    pub(super) fn open_source(&mut self, now: Instant, out: &mut Vec<Effect>) {
        debug_assert!(self.source.is_none(), "there is one replication connection at most");
        out.push(Effect::Entered(ManagerStep::StartReplicationClient));
        self.attempts += 1;
        self.source = Some(self.attempts);
        out.push(Effect::OpenSource { attempt: self.attempts, recreate_slot: self.recreate_slot });
        self.enter(State::Connecting, now, out);
    }

    /// Opens the next connection now. An attempt in progress may have begun before the operator's
    /// change, so it is repeated at once if it fails.
    pub(super) fn on_retry(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.state {
            State::Halted { .. } | State::BackingOff { .. } => self.open_source(now, out),
            State::Connecting
            | State::AcquiringLock { .. }
            | State::Configuring { .. }
            | State::FillingPools
            | State::PreparingConsumer
            | State::WaitingForConfirmation { .. } => self.retry_requested = true,
            State::New
            | State::Streaming { .. }
            | State::FallingAsleep { .. }
            | State::Sleeping
            | State::Stopping { .. }
            | State::Stopped => {}
        }
    }

    pub(super) fn on_connected(&mut self, attempt: AttemptId, now: Instant, out: &mut Vec<Effect>) {
        if self.is_current(attempt, |state| matches!(state, State::Connecting)) {
            self.enter(State::AcquiringLock { check_at: now + self.lock_check }, now, out);
        }
    }

    pub(super) fn on_lock_taken(&mut self, attempt: AttemptId, now: Instant, out: &mut Vec<Effect>) {
        if self.is_current(attempt, |state| matches!(state, State::AcquiringLock { .. })) {
            self.satisfy(ReadyCondition::PgLockAcquired, "this instance holds the lock", now);
            self.enter(State::Configuring { check_at: now + SETUP_CHECK }, now, out);
        }
    }

    pub(super) fn on_configured(&mut self, attempt: AttemptId, now: Instant, out: &mut Vec<Effect>) {
        if self.is_current(attempt, |state| matches!(state, State::Configuring { .. })) {
            self.recreate_slot = false;
            self.satisfy(ReadyCondition::ReplicationClientReady, "connected and configured", now);
            self.start_pools(now, out);
        }
    }

    fn start_pools(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.push(Effect::Entered(ManagerStep::StartConnectionPool));
        if !self.pools_started {
            self.pools_started = true;
            self.measure_at = Some(now + MEASURE);
            self.pools = PoolReport::default();
            out.push(Effect::StartPools);
        }
        self.enter(State::FillingPools, now, out);
        if self.has_filled_admin_pool() {
            self.prepare_consumer(now, out);
        }
    }

    pub(super) fn on_pools(&mut self, report: PoolReport, now: Instant, out: &mut Vec<Effect>) {
        if !self.pools_started {
            return;
        }
        self.pools = report;
        let pools = [
            (ReadyCondition::AdminConnectionPoolReady, &self.pools.admin),
            (ReadyCondition::SnapshotConnectionPoolReady, &self.pools.snapshot),
        ];
        for (condition, PoolState { status, why }) in pools {
            let why = why.as_deref().unwrap_or(status.as_str());
            self.conditions.set(condition, *status == PoolStatus::Ready, why, now);
        }
        if matches!(self.state, State::FillingPools) && self.has_filled_admin_pool() {
            self.prepare_consumer(now, out);
        }
    }

    /// Returns whether the metadata pool was filled once. A repopulating pool suffices: the next
    /// steps need one or two connections, and none for snapshots.
    fn has_filled_admin_pool(&self) -> bool {
        self.pools.admin.status != PoolStatus::Starting
    }

    fn prepare_consumer(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.extend(self.source.map(Effect::PrepareConsumer));
        self.enter(State::PreparingConsumer, now, out);
    }

    pub(super) fn on_consumer_ready(
        &mut self,
        attempt: AttemptId,
        reset: Option<ResetReason>,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if !self.is_current(attempt, |state| matches!(state, State::PreparingConsumer)) {
            return;
        }
        self.satisfy(ReadyCondition::SupervisorProcessesReady, "the consumer has loaded its state", now);
        let why = match reset {
            None => "the consumer continues at its durable position",
            Some(_) => "the consumer was reset",
        };
        self.satisfy(ReadyCondition::IntegrityChecksPassed, why, now);
        self.prepared = Some(attempt);
        out.extend(reset.map(|reason| Effect::Notify(ManagerEvent::Reset(reason))));
        out.push(Effect::Entered(ManagerStep::StartStreaming));
        out.push(Effect::StartStreaming(attempt));
        self.enter(State::WaitingForConfirmation { check_at: now + LIVENESS_CHECK }, now, out);
    }

    pub(super) fn on_consumer_failed(
        &mut self,
        attempt: AttemptId,
        failure: FailureReport,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if self.is_current(attempt, |state| matches!(state, State::PreparingConsumer)) {
            for condition in [ReadyCondition::SupervisorProcessesReady, ReadyCondition::IntegrityChecksPassed]
            {
                self.clear(condition, &failure.text, now);
            }
            self.fail(failure, now, out);
        }
    }

    pub(super) fn on_backend_checked(
        &mut self,
        attempt: AttemptId,
        exists: bool,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if !exists && self.is_current(attempt, |state| matches!(state, State::WaitingForConfirmation { .. }))
        {
            let text =
                "the replication connection looks open, but its backend no longer exists on the server";
            self.fail(FailureReport::retryable("backend_gone", text), now, out);
        }
    }

    pub(super) fn on_confirmed(&mut self, attempt: AttemptId, now: Instant, out: &mut Vec<Effect>) {
        if !self.is_current(attempt, |state| matches!(state, State::WaitingForConfirmation { .. })) {
            return;
        }
        self.satisfy(ReadyCondition::ShapeLogCollectorReady, "the consumer takes changes", now);
        (self.was_ready, self.failure, self.retry_requested) = (true, None, false);
        if let Some(retried_for) = self.backoff.recover(now) {
            out.push(Effect::Recovered { retried_for, tries: self.backoff.tries() });
        }
        // Without waiting for the first interval: the publication may be new, or was changed while
        // no manager ran.
        out.push(Effect::Reconcile);
        self.enter(
            State::Streaming { reconcile_at: now + RECONCILE, stable_at: Some(now + STABLE_AFTER) },
            now,
            out,
        );
        out.push(Effect::Notify(ManagerEvent::Ready));
    }

    pub(super) fn on_durable_advanced(&mut self, attempt: AttemptId) {
        if self.source == Some(attempt)
            && let State::Streaming { stable_at, .. } = &mut self.state
        {
            *stable_at = None;
            self.backoff.reset();
        }
    }

    pub(super) fn on_source_ended(
        &mut self,
        attempt: AttemptId,
        failure: Option<FailureReport>,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if self.source != Some(attempt) {
            return;
        }
        self.source = None;
        match self.state {
            State::Connecting
            | State::AcquiringLock { .. }
            | State::Configuring { .. }
            | State::FillingPools
            | State::PreparingConsumer
            | State::WaitingForConfirmation { .. }
            | State::Streaming { .. } => {
                let ended =
                    || FailureReport::retryable("ended", "the replication connection ended unexpectedly");
                self.fail(failure.unwrap_or_else(ended), now, out);
            }
            State::FallingAsleep { pools, wake, .. } => {
                self.mark_source_lost("the connections are closed", now);
                if !pools {
                    self.sleep(wake, now, out);
                }
            }
            State::Stopping { step, .. } => {
                self.mark_source_lost("shutting down", now);
                if step == StopStep::ClosingReplicationClient {
                    self.stop_next(step, now, out);
                }
            }
            State::New
            | State::BackingOff { .. }
            | State::Sleeping
            | State::Halted { .. }
            | State::Stopped => {}
        }
    }

    /// Abandons the connection, then backs off or halts. Both end with the next attempt.
    pub(super) fn fail(&mut self, failure: FailureReport, now: Instant, out: &mut Vec<Effect>) {
        self.abandon_source(out);
        self.mark_source_lost(&failure.text, now);
        self.recreate_slot |= failure.action == RecoveryAction::RecreateSlot;
        // After the first success the cause may be temporary, so the pools stay open and the
        // backoff is short.
        let needs_operator = failure.action == RecoveryAction::Halt && !self.was_ready;
        let halts = self.is_panic_limit_reached(&failure, now) || needs_operator;
        let (reason, why) = (failure.reason, failure.text.clone());
        (self.failure, self.needs_operator) = (Some(failure), needs_operator);
        let backoff = self.backoff.fail(now);
        let delay = match std::mem::take(&mut self.retry_requested) {
            true => Duration::ZERO,
            false if halts => HALT_RETRY,
            false => backoff,
        };
        let until = now + delay;
        if halts {
            self.close_pools(now, out);
            self.enter(State::Halted { until }, now, out);
            out.push(Effect::Notify(ManagerEvent::Halted { reason, why }));
        } else {
            self.enter(State::BackingOff { until }, now, out);
            out.push(Effect::Notify(ManagerEvent::Restarting { reason }));
        }
    }

    /// A halted manager keeps no connections. New pools dial at once after a retry, without the old
    /// pools' backoff.
    fn close_pools(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.pools_started {
            out.push(Effect::ClosePools);
            self.measure_at = None;
            self.mark_pools_closed(now);
        }
    }

    pub(super) fn mark_pools_closed(&mut self, now: Instant) {
        self.pools_started = false;
        for condition in
            [ReadyCondition::AdminConnectionPoolReady, ReadyCondition::SnapshotConnectionPoolReady]
        {
            self.clear(condition, "the connections are closed", now);
        }
    }

    /// Records a panic and returns whether there were too many.
    fn is_panic_limit_reached(&mut self, failure: &FailureReport, now: Instant) -> bool {
        if failure.panicked {
            self.panics.push_back(now);
        }
        while self.panics.front().is_some_and(|at| now.saturating_duration_since(*at) > PANIC_WINDOW) {
            self.panics.pop_front();
        }
        failure.panicked && self.panics.len() >= MAX_PANICS
    }

    pub(super) fn abandon_source(&mut self, out: &mut Vec<Effect>) {
        out.extend(self.source.take().map(Effect::AbandonSource));
    }

    pub(super) fn mark_source_lost(&mut self, why: &str, now: Instant) {
        let lost = [
            ReadyCondition::PgLockAcquired,
            ReadyCondition::ReplicationClientReady,
            // Each connection compares the server with the consumer again.
            ReadyCondition::IntegrityChecksPassed,
            ReadyCondition::ShapeLogCollectorReady,
        ];
        for condition in lost {
            self.clear(condition, why, now);
        }
    }
}
