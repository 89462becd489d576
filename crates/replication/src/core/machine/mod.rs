//! State machine of the manager: takes events, returns effects.
//!
//! Invariants: at most one replication connection is open. Each has its own number, and events of
//! earlier ones change nothing. Every state can be left by a timer, by an effect that reports back,
//! or by a caller. A stopped or sleeping machine opens nothing.
//! Enforced by: [`ManagerMachine::on`] is the only transition function; `tests.rs` runs random
//! histories against these invariants.
//! Out of scope: sockets, SQL, tasks, logs. `worker.rs` performs the effects.

mod event;
mod shutdown;
mod startup;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(crate) use self::event::{AttemptId, Effect, Event, FailureReport, PoolReport, PoolState};
pub use self::event::{ManagerEvent, RecoveryAction};
use super::backoff::RestartBackoff;
use super::conditions::{Conditions, ReadyCondition};
use super::step::{ManagerPhase, ManagerStep, StopStep};

/// Interval between two diagnoses of a setup that takes long.
const SETUP_CHECK: Duration = Duration::from_secs(5);
/// Interval between two checks of the backend while the server hasn't confirmed the stream.
const LIVENESS_CHECK: Duration = Duration::from_secs(5);
/// Interval between two reconciliations of the publication.
const RECONCILE: Duration = Duration::from_secs(60);
/// Interval between two measurements of the slot.
const MEASURE: Duration = Duration::from_secs(10);
/// Minimum interval between idle checks while the database is in use.
const IDLE_CHECK: Duration = Duration::from_millis(100);
/// A stream that has lasted this long resets the backoff, even without changes.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// Time limit for closing the connections before sleeping.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// This many panics within [`PANIC_WINDOW`] halt the manager.
const MAX_PANICS: usize = 5;
const PANIC_WINDOW: Duration = Duration::from_secs(60);
/// Interval between two attempts of a halted manager: an operator may have fixed the cause.
const HALT_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum State {
    New,
    BackingOff {
        until: Instant,
    },
    Connecting,
    AcquiringLock {
        check_at: Instant,
    },
    Configuring {
        check_at: Instant,
    },
    FillingPools,
    PreparingConsumer,
    WaitingForConfirmation {
        check_at: Instant,
    },
    Streaming {
        reconcile_at: Instant,
        /// When the backoff is reset if the consumer hasn't made anything durable by then.
        stable_at: Option<Instant>,
    },
    FallingAsleep {
        deadline: Instant,
        /// Whether the pools are still open.
        pools: bool,
        /// Whether a caller needed the database meanwhile.
        wake: bool,
    },
    Sleeping,
    Halted {
        until: Instant,
    },
    Stopping {
        step: StopStep,
        deadline: Instant,
    },
    Stopped,
}

/// State of the manager, without I/O.
#[derive(Debug)]
pub(crate) struct ManagerMachine {
    state: State,
    step_since: Instant,
    attempts: AttemptId,
    /// The open replication connection.
    source: Option<AttemptId>,
    recreate_slot: bool,
    /// The connection under which the consumer was prepared. Without it, no checkpoint is written.
    prepared: Option<AttemptId>,
    pools_started: bool,
    pools: PoolReport,
    measure_at: Option<Instant>,
    backoff: RestartBackoff,
    panics: VecDeque<Instant>,
    was_ready: bool,
    /// Whether an operator requested a retry during the current attempt. If that attempt fails, the
    /// next one starts at once.
    retry_requested: bool,
    drop_slot: bool,
    idle_after: Option<Duration>,
    /// Interval between two checks of the lock's holder.
    lock_check: Duration,
    /// When the database was last used, and whether it is in use now.
    used: (Instant, bool),
    failure: Option<FailureReport>,
    /// Whether an operator must act after `failure`. It stays set during the attempts that follow.
    needs_operator: bool,
    conditions: Conditions,
}

impl ManagerMachine {
    pub(crate) fn new(idle_after: Option<Duration>, lock_check: Duration, seed: u64, now: Instant) -> Self {
        ManagerMachine {
            state: State::New,
            step_since: now,
            attempts: 0,
            source: None,
            recreate_slot: false,
            prepared: None,
            pools_started: false,
            pools: PoolReport::default(),
            measure_at: None,
            backoff: RestartBackoff::new(seed),
            panics: VecDeque::new(),
            was_ready: false,
            retry_requested: false,
            drop_slot: false,
            idle_after,
            lock_check,
            used: (now, false),
            failure: None,
            needs_operator: false,
            conditions: Conditions::new(now),
        }
    }

    /// Handles one event and appends the effects to `out`.
    pub(crate) fn on(&mut self, event: Event, now: Instant, out: &mut Vec<Effect>) {
        match event {
            Event::Start => {
                if matches!(self.state, State::New) {
                    self.open_source(now, out);
                }
            }
            Event::Tick => self.on_time(now, out),
            Event::Connected(attempt) => self.on_connected(attempt, now, out),
            Event::LockBusy(attempt, why) => {
                if self.is_current(attempt, |state| matches!(state, State::AcquiringLock { .. })) {
                    self.clear(ReadyCondition::PgLockAcquired, &why, now);
                }
            }
            Event::LockTaken(attempt) => self.on_lock_taken(attempt, now, out),
            Event::Configured(attempt) => self.on_configured(attempt, now, out),
            Event::SetupBlocked(attempt, why) => {
                if self.is_current(attempt, |state| matches!(state, State::Configuring { .. })) {
                    self.clear(ReadyCondition::ReplicationClientReady, &why, now);
                }
            }
            Event::Confirmed(attempt) => self.on_confirmed(attempt, now, out),
            Event::DurableAdvanced(attempt) => self.on_durable_advanced(attempt),
            Event::BackendChecked(attempt, exists) => self.on_backend_checked(attempt, exists, now, out),
            Event::SourceEnded(attempt, failure) => self.on_source_ended(attempt, failure, now, out),
            Event::PoolsChanged(report) => self.on_pools(report, now, out),
            Event::PoolsFailed(failure) => {
                if matches!(self.state, State::FillingPools) {
                    self.fail(failure, now, out);
                }
            }
            Event::PoolsClosed => self.on_pools_closed(now, out),
            Event::ConsumerReady(attempt, reset) => self.on_consumer_ready(attempt, reset, now, out),
            Event::ConsumerFailed(attempt, failure) => self.on_consumer_failed(attempt, failure, now, out),
            Event::PublicationLost(failure) => {
                if self.step().phase() == ManagerPhase::Running {
                    self.fail(failure, now, out);
                }
            }
            Event::UseRequested => self.on_use_requested(now, out),
            Event::Retry => self.on_retry(now, out),
            Event::Shutdown { drop_slot } => self.on_shutdown(drop_slot, now, out),
            Event::StopDone(done) => {
                if matches!(self.state, State::Stopping { step, .. } if step == done) {
                    self.stop_next(done, now, out);
                }
            }
        }
    }

    /// Returns when the next [`Event::Tick`] is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let timer = match self.state {
            State::BackingOff { until } | State::Halted { until } => Some(until),
            State::AcquiringLock { check_at }
            | State::Configuring { check_at }
            | State::WaitingForConfirmation { check_at } => Some(check_at),
            State::Streaming { reconcile_at, stable_at } => {
                self.idle_check_at().into_iter().chain(stable_at).chain([reconcile_at]).min()
            }
            State::FallingAsleep { deadline, .. } | State::Stopping { deadline, .. } => Some(deadline),
            State::New
            | State::Connecting
            | State::FillingPools
            | State::PreparingConsumer
            | State::Sleeping
            | State::Stopped => None,
        };
        timer.into_iter().chain(self.measure_at).min()
    }

    /// Returns whether the machine would start to sleep at `now` if the database is unused.
    pub(crate) fn is_sleep_due(&self, now: Instant) -> bool {
        let is_streaming = matches!(self.state, State::Streaming { .. });
        is_streaming && self.sleep_at().is_some_and(|at| at <= now)
    }

    /// Records when the database was last used, and whether it is in use now.
    pub(crate) fn set_use(&mut self, last: Instant, busy: bool) {
        self.used = (self.used.0.max(last), busy);
    }

    fn on_time(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.measure_at.is_some_and(|at| at <= now) {
            self.measure_at = Some(now + MEASURE);
            out.push(Effect::MeasureSlot);
        }
        let attempt = self.source;
        match &mut self.state {
            State::BackingOff { until } | State::Halted { until } if *until <= now => {
                self.open_source(now, out);
            }
            State::AcquiringLock { check_at } if *check_at <= now => {
                *check_at = now + self.lock_check;
                out.extend(attempt.map(Effect::CheckLock));
            }
            State::Configuring { check_at } if *check_at <= now => {
                *check_at = now + SETUP_CHECK;
                out.extend(attempt.map(Effect::DiagnoseSetup));
            }
            State::WaitingForConfirmation { check_at } if *check_at <= now => {
                *check_at = now + LIVENESS_CHECK;
                out.extend(attempt.map(Effect::CheckBackend));
            }
            State::Streaming { reconcile_at, stable_at } => {
                if *reconcile_at <= now {
                    *reconcile_at = now + RECONCILE;
                    out.push(Effect::Reconcile);
                }
                if stable_at.is_some_and(|at| at <= now) {
                    *stable_at = None;
                    self.backoff.reset();
                }
                if self.sleep_at().is_some_and(|at| at <= now) {
                    self.start_sleep(now, out);
                }
            }
            State::FallingAsleep { deadline, wake, .. } if *deadline <= now => {
                let wake = *wake;
                self.abandon_source(out);
                self.sleep(wake, now, out);
            }
            State::Stopping { step, deadline } if *deadline <= now => {
                let step = *step;
                if step == StopStep::ClosingReplicationClient {
                    self.abandon_source(out);
                }
                self.stop_next(step, now, out);
            }
            State::New
            | State::BackingOff { .. }
            | State::Connecting
            | State::AcquiringLock { .. }
            | State::Configuring { .. }
            | State::FillingPools
            | State::PreparingConsumer
            | State::WaitingForConfirmation { .. }
            | State::FallingAsleep { .. }
            | State::Sleeping
            | State::Halted { .. }
            | State::Stopping { .. }
            | State::Stopped => {}
        }
    }

    fn enter(&mut self, state: State, now: Instant, out: &mut Vec<Effect>) {
        self.state = state;
        self.step_since = now;
        out.push(Effect::Entered(self.step()));
    }

    /// Marks a condition as satisfied.
    fn satisfy(&mut self, condition: ReadyCondition, why: &str, now: Instant) {
        self.conditions.set(condition, true, why, now);
    }

    /// Marks a condition as not satisfied.
    fn clear(&mut self, condition: ReadyCondition, why: &str, now: Instant) {
        self.conditions.set(condition, false, why, now);
    }

    /// Returns whether `attempt` is the open connection and the state matches.
    fn is_current(&self, attempt: AttemptId, state: impl FnOnce(&State) -> bool) -> bool {
        self.source == Some(attempt) && state(&self.state)
    }

    fn sleep_at(&self) -> Option<Instant> {
        let (_, busy) = self.used;
        self.idle_after.filter(|_| !busy).map(|after| self.idle_since() + after)
    }

    /// Returns when to check again whether the database is idle: a dropped guard sends no event.
    fn idle_check_at(&self) -> Option<Instant> {
        let (_, busy) = self.used;
        let least = if busy { IDLE_CHECK } else { Duration::ZERO };
        self.idle_after.map(|after| self.idle_since() + after.max(least))
    }

    fn idle_since(&self) -> Instant {
        // Setup time isn't idle time.
        self.used.0.max(self.step_since)
    }

    pub(crate) fn step(&self) -> ManagerStep {
        match self.state {
            State::New => ManagerStep::StartReplicationClient,
            State::BackingOff { .. } => ManagerStep::BackingOff,
            State::Connecting => ManagerStep::ReplicationClientConnecting,
            State::AcquiringLock { .. } => ManagerStep::AcquiringLock,
            State::Configuring { .. } => ManagerStep::ConfiguringConnection,
            State::FillingPools => ManagerStep::ConnectionPoolConnecting,
            State::PreparingConsumer => ManagerStep::StartShapes,
            State::WaitingForConfirmation { .. } => ManagerStep::WaitingForStreamingConfirmation,
            State::Streaming { .. } => ManagerStep::Streaming,
            State::FallingAsleep { .. } => ManagerStep::FallingAsleep,
            State::Sleeping => ManagerStep::Sleeping,
            State::Halted { .. } => ManagerStep::Halted,
            State::Stopping { step, .. } => ManagerStep::Stopping(step),
            State::Stopped => ManagerStep::Stopped,
        }
    }

    pub(crate) fn step_since(&self) -> Instant {
        self.step_since
    }

    pub(crate) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    pub(crate) fn pools(&self) -> &PoolReport {
        &self.pools
    }

    /// Returns the last failure; `None` once the server has confirmed a stream after it.
    pub(crate) fn failure(&self) -> Option<&FailureReport> {
        self.failure.as_ref()
    }

    /// Returns whether the server has confirmed a stream since the start.
    pub(crate) fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// Returns the reason of a halt if an operator must act; `None` after too many panics. It stays
    /// set during the attempts that follow, until one has another result.
    pub(crate) fn halt_reason(&self) -> Option<&'static str> {
        self.failure.as_ref().filter(|_| self.needs_operator).map(|failure| failure.reason)
    }

    /// Returns when the next attempt starts, if the machine waits for that.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            State::BackingOff { until } | State::Halted { until } => Some(until),
            _ => None,
        }
    }

    pub(crate) fn backoff(&self) -> &RestartBackoff {
        &self.backoff
    }

    #[cfg(test)]
    pub(crate) fn source(&self) -> Option<AttemptId> {
        self.source
    }
}
