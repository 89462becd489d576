//! The manager's machine: events in, effects out.
//!
//! Invariants: at most one replication connection is wanted at any time, and each has a number of its own, so that news of an
//! earlier one changes nothing; every state has a way out, by a timer, by an effect that will report, or by a caller; what is
//! shut down or asleep opens nothing.
//! Not here: sockets, SQL, tasks, logs. See `manager.rs` for who performs the effects.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::conditions::{Condition, Conditions};
use super::continuity::ResetReason;
use super::step::{Step, StopStep};
use crate::pools::PoolStatus;

/// How long configuring may take before the log says what it waits for; and how often it does.
const SETUP_CHECK: Duration = Duration::from_secs(5);
/// How long the server may take to confirm that it streams, before somebody looks whether it is still there.
const LIVENESS_CHECK: Duration = Duration::from_secs(5);
/// How often the publication is compared with what it should be.
const RECONCILE: Duration = Duration::from_secs(60);
/// How often the server is asked what the slot costs it.
const OBSERVE: Duration = Duration::from_secs(10);
/// While somebody uses the database, it isn't looked more often than this whether that is over.
const LEAVING_CHECK: Duration = Duration::from_millis(100);
/// A stream that has lasted so long is a good one, even if nothing came.
const STEADY: Duration = Duration::from_secs(30);
/// How long the connections may take to close before falling asleep.
const CLOSING: Duration = Duration::from_secs(5);
/// So many panics in so much time are a bug that restarting won't mend.
const PANICS: usize = 5;
const PANIC_WINDOW: Duration = Duration::from_secs(60);

/// What to do about a failure. One table decides: see `error.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Only a person can mend it.
    Fatal,
    /// The slot is of no use: it is dropped and made anew, and the consumer starts over.
    DropSlot,
    /// It may pass.
    Retry,
}

/// A failure as the machine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) verdict: Verdict,
    /// In metrics.
    pub(crate) reason: &'static str,
    /// What happened and what to do, for people.
    pub(crate) text: String,
    pub(crate) panicked: bool,
}

/// One replication connection, told apart from those before it.
pub(crate) type Attempt = u64;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    Start,
    /// Time has passed.
    Tick,
    Connected(Attempt),
    LockBusy(Attempt, String),
    LockTaken(Attempt),
    Configured(Attempt),
    /// The server streams.
    Confirmed(Attempt),
    /// What came was made durable.
    Flowing(Attempt),
    /// What configuring waits for.
    SetupWaits(Attempt, String),
    /// Whether the backend of a stream that isn't confirmed is still there.
    Alive(Attempt, bool),
    /// The connection is closed, for this reason; `None`: because it was told to.
    SourceEnded(Attempt, Option<Trouble>),
    Pools(PoolNews),
    PoolsFailed(Trouble),
    PoolsClosed,
    ConsumerReady(Attempt, Option<ResetReason>),
    ConsumerFailed(Attempt, Trouble),
    /// The publication isn't what the slot was made with.
    PublicationLost(Trouble),
    /// Somebody needs the database.
    Used,
    /// A person says that it is mended.
    Retry,
    Shutdown {
        drop_slot: bool,
    },
    StopDone(StopStep),
}

/// How the pools are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolNews {
    pub(crate) admin: PoolStatus,
    pub(crate) snapshot: PoolStatus,
    /// What keeps them from being ready.
    pub(crate) why: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// For the log: this step was entered.
    Entered(Step),
    OpenSource {
        attempt: Attempt,
        recreate_slot: bool,
    },
    /// Looks whether the lock's holder is abandoned.
    CheckLock(Attempt),
    /// Says what configuring waits for.
    ExplainSetup(Attempt),
    StartPools,
    PrepareConsumer(Attempt),
    StartStreaming(Attempt),
    CheckAlive(Attempt),
    Reconcile,
    Observe,
    /// Ends it at once.
    AbandonSource(Attempt),
    /// Ends it in good order.
    CloseSource(Attempt),
    ClosePools,
    Stop(StopStep),
    Tell(StackEvent),
}

/// What others may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// Changes flow.
    Ready,
    /// The connection side failed and starts again; what the consumer has lives on.
    Restarting {
        /// Why, in metrics' words.
        reason: &'static str,
    },
    /// The consumer starts over.
    Reset(ResetReason),
    /// Nobody needed the database: its connections are closed.
    ScaledDown,
    /// Somebody needs it again.
    WakingUp,
    /// A table that is followed was changed behind our back.
    Table {
        /// Which.
        table: crate::publication::TableName,
        /// How.
        change: crate::publication::TableChange,
    },
    /// It has given up: a person must look.
    Halted {
        /// What happened, and what to do.
        why: String,
    },
    /// It is shut down.
    Stopped,
}

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
    /// `steady_at`: when the tries before it are forgotten, if nothing has come by then.
    Streaming {
        reconcile_at: Instant,
        steady_at: Option<Instant>,
    },
    FallingAsleep {
        deadline: Instant,
        pools: bool,
        wake: bool,
    },
    Sleeping,
    Halted,
    Stopping {
        step: StopStep,
        deadline: Instant,
    },
    Stopped,
}

/// The manager, without its hands.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    step_since: Instant,
    attempts: Attempt,
    /// The replication connection that there is.
    source: Option<Attempt>,
    recreate_slot: bool,
    /// The connection under which the consumer was prepared: under any other, what it has isn't ours to write.
    prepared: Option<Attempt>,
    pools_started: bool,
    pools: PoolNews,
    observe_at: Option<Instant>,
    backoff: Backoff,
    panics: VecDeque<Instant>,
    was_ready: bool,
    drop_slot: bool,
    idle_after: Option<Duration>,
    /// How often somebody looks whether the holder of the lock is still there.
    lock_check: Duration,
    /// The last time that somebody needed the database, and whether somebody does now.
    used: (Instant, bool),
    trouble: Option<Trouble>,
    conditions: Conditions,
}

impl Machine {
    pub(crate) fn new(idle_after: Option<Duration>, lock_check: Duration, seed: u64, now: Instant) -> Self {
        Machine {
            state: State::New,
            step_since: now,
            attempts: 0,
            source: None,
            recreate_slot: false,
            prepared: None,
            pools_started: false,
            pools: PoolNews { admin: PoolStatus::Starting, snapshot: PoolStatus::Starting, why: None },
            observe_at: None,
            backoff: Backoff::new(seed),
            panics: VecDeque::new(),
            was_ready: false,
            drop_slot: false,
            idle_after,
            lock_check,
            used: (now, false),
            trouble: None,
            conditions: Conditions::new(now),
        }
    }

    pub(crate) fn on(&mut self, event: Event, now: Instant, out: &mut Vec<Effect>) {
        match event {
            Event::Start => {
                if matches!(self.state, State::New) {
                    self.open_source(now, out);
                }
            }
            Event::Tick => self.on_time(now, out),
            Event::Connected(attempt) => {
                if self.is_at(attempt, |state| matches!(state, State::Connecting)) {
                    self.enter(State::AcquiringLock { check_at: now + self.lock_check }, now, out);
                }
            }
            Event::LockBusy(attempt, why) => {
                if self.is_at(attempt, |state| matches!(state, State::AcquiringLock { .. })) {
                    self.conditions.set(Condition::PgLockAcquired, false, &why, now);
                }
            }
            Event::LockTaken(attempt) => {
                if self.is_at(attempt, |state| matches!(state, State::AcquiringLock { .. })) {
                    self.hold(Condition::PgLockAcquired, "this instance holds the lock", now);
                    self.enter(State::Configuring { check_at: now + SETUP_CHECK }, now, out);
                }
            }
            Event::Configured(attempt) => {
                if self.is_at(attempt, |state| matches!(state, State::Configuring { .. })) {
                    self.recreate_slot = false;
                    self.hold(Condition::ReplicationClientReady, "connected and set up", now);
                    self.start_pools(now, out);
                }
            }
            Event::SetupWaits(attempt, why) => {
                if self.is_at(attempt, |state| matches!(state, State::Configuring { .. })) {
                    self.conditions.set(Condition::ReplicationClientReady, false, &why, now);
                }
            }
            Event::Confirmed(attempt) => {
                if self.is_at(attempt, |state| matches!(state, State::WaitingForConfirmation { .. })) {
                    self.confirmed(now, out);
                }
            }
            Event::Flowing(attempt) => {
                if self.source == Some(attempt)
                    && let State::Streaming { steady_at, .. } = &mut self.state
                {
                    *steady_at = None;
                    self.backoff.succeed(now);
                }
            }
            Event::Alive(attempt, alive) => {
                if !alive
                    && self.is_at(attempt, |state| matches!(state, State::WaitingForConfirmation { .. }))
                {
                    let text = "the server has no such backend any more, though the connection looks open";
                    self.fail(Trouble::passing("backend_gone", text), now, out);
                }
            }
            Event::SourceEnded(attempt, trouble) => self.on_source_ended(attempt, trouble, now, out),
            Event::Pools(news) => self.on_pools(news, now, out),
            Event::PoolsFailed(trouble) => {
                if matches!(self.state, State::FillingPools) {
                    self.fail(trouble, now, out);
                }
            }
            Event::PoolsClosed => self.on_pools_closed(now, out),
            Event::ConsumerReady(attempt, reset) => {
                if self.is_at(attempt, |state| matches!(state, State::PreparingConsumer)) {
                    self.start_streaming(attempt, reset, now, out);
                }
            }
            Event::ConsumerFailed(attempt, trouble) => {
                if self.is_at(attempt, |state| matches!(state, State::PreparingConsumer)) {
                    for condition in [Condition::SupervisorProcessesReady, Condition::IntegrityChecksPassed] {
                        self.conditions.set(condition, false, &trouble.text, now);
                    }
                    self.fail(trouble, now, out);
                }
            }
            Event::PublicationLost(trouble) => {
                if self.step().phase() == super::step::Phase::Running {
                    self.fail(trouble, now, out);
                }
            }
            Event::Used => self.on_used(now, out),
            Event::Retry => match self.state {
                State::Halted | State::BackingOff { .. } => self.open_source(now, out),
                _ => {}
            },
            Event::Shutdown { drop_slot } => {
                self.drop_slot |= drop_slot;
                if !matches!(self.state, State::Stopping { .. } | State::Stopped) {
                    self.stop(StopStep::ClosingSnapshotPool, now, out);
                }
            }
            Event::StopDone(done) => {
                if matches!(self.state, State::Stopping { step, .. } if step == done) {
                    self.stop_next(done, now, out);
                }
            }
        }
    }

    /// When time alone will change something.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let timer = match self.state {
            State::BackingOff { until } => Some(until),
            State::AcquiringLock { check_at }
            | State::Configuring { check_at }
            | State::WaitingForConfirmation { check_at } => Some(check_at),
            State::Streaming { reconcile_at, steady_at } => {
                self.look_at().into_iter().chain(steady_at).chain([reconcile_at]).min()
            }
            State::FallingAsleep { deadline, .. } | State::Stopping { deadline, .. } => Some(deadline),
            State::New
            | State::Connecting
            | State::FillingPools
            | State::PreparingConsumer
            | State::Sleeping
            | State::Halted
            | State::Stopped => None,
        };
        timer.into_iter().chain(self.observe_at).min()
    }

    /// Whether it would fall asleep now if nobody uses the database.
    pub(crate) fn is_sleep_due(&self, now: Instant) -> bool {
        let is_streaming = matches!(self.state, State::Streaming { .. });
        is_streaming && self.sleep_at().is_some_and(|at| at <= now)
    }

    /// When somebody last needed the database, and whether somebody does now.
    pub(crate) fn set_use(&mut self, last: Instant, busy: bool) {
        self.used = (self.used.0.max(last), busy);
    }

    fn on_time(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.observe_at.is_some_and(|at| at <= now) {
            self.observe_at = Some(now + OBSERVE);
            out.push(Effect::Observe);
        }
        let attempt = self.source;
        match &mut self.state {
            State::BackingOff { until } if *until <= now => self.open_source(now, out),
            State::AcquiringLock { check_at } if *check_at <= now => {
                *check_at = now + self.lock_check;
                out.extend(attempt.map(Effect::CheckLock));
            }
            State::Configuring { check_at } if *check_at <= now => {
                *check_at = now + SETUP_CHECK;
                out.extend(attempt.map(Effect::ExplainSetup));
            }
            State::WaitingForConfirmation { check_at } if *check_at <= now => {
                *check_at = now + LIVENESS_CHECK;
                out.extend(attempt.map(Effect::CheckAlive));
            }
            State::Streaming { reconcile_at, steady_at } => {
                if *reconcile_at <= now {
                    *reconcile_at = now + RECONCILE;
                    out.push(Effect::Reconcile);
                }
                if steady_at.is_some_and(|at| at <= now) {
                    *steady_at = None;
                    self.backoff.succeed(now);
                }
                if self.sleep_at().is_some_and(|at| at <= now) {
                    self.fall_asleep(now, out);
                }
            }
            State::FallingAsleep { deadline, wake, .. } if *deadline <= now => {
                let wake = *wake;
                self.abandon_source(out);
                self.asleep(wake, now, out);
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
            | State::Halted
            | State::Stopping { .. }
            | State::Stopped => {}
        }
    }

    fn on_source_ended(
        &mut self,
        attempt: Attempt,
        trouble: Option<Trouble>,
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
                let ended = || Trouble::passing("ended", "the replication connection ended by itself");
                self.fail(trouble.unwrap_or_else(ended), now, out);
            }
            State::FallingAsleep { pools, wake, .. } => {
                self.lose_source("the connections are closed", now);
                if !pools {
                    self.asleep(wake, now, out);
                }
            }
            State::Stopping { step, .. } => {
                self.lose_source("shutting down", now);
                if step == StopStep::ClosingReplicationClient {
                    self.stop_next(step, now, out);
                }
            }
            State::New | State::BackingOff { .. } | State::Sleeping | State::Halted | State::Stopped => {}
        }
    }

    fn on_pools(&mut self, news: PoolNews, now: Instant, out: &mut Vec<Effect>) {
        if !self.pools_started {
            return;
        }
        self.pools = news;
        let why = self.pools.why.clone();
        let pools = [
            (Condition::AdminConnectionPoolReady, self.pools.admin),
            (Condition::SnapshotConnectionPoolReady, self.pools.snapshot),
        ];
        for (condition, status) in pools {
            let why = match status {
                PoolStatus::Ready => status.as_str(),
                PoolStatus::Starting | PoolStatus::Repopulating => why.as_deref().unwrap_or(status.as_str()),
            };
            self.conditions.set(condition, status == PoolStatus::Ready, why, now);
        }
        if matches!(self.state, State::FillingPools) && self.pools_are_ready() {
            self.prepare_consumer(now, out);
        }
    }

    /// News of pools that were given up on, after new ones were started, comes too late.
    fn on_pools_closed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if let State::FallingAsleep { pools, wake, .. } = &mut self.state {
            *pools = false;
            let wake = *wake;
            if self.source.is_none() {
                self.asleep(wake, now, out);
            }
        }
    }

    fn on_used(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.used.0 = self.used.0.max(now);
        match &mut self.state {
            State::FallingAsleep { wake, .. } => *wake = true,
            State::Sleeping => {
                out.push(Effect::Tell(StackEvent::WakingUp));
                self.open_source(now, out);
            }
            _ => {}
        }
    }

    fn open_source(&mut self, now: Instant, out: &mut Vec<Effect>) {
        debug_assert!(self.source.is_none(), "there is one replication connection at most");
        out.push(Effect::Entered(Step::StartReplicationClient));
        self.attempts += 1;
        self.source = Some(self.attempts);
        out.push(Effect::OpenSource { attempt: self.attempts, recreate_slot: self.recreate_slot });
        self.enter(State::Connecting, now, out);
    }

    fn start_pools(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.push(Effect::Entered(Step::StartConnectionPool));
        if !self.pools_started {
            self.pools_started = true;
            self.observe_at = Some(now + OBSERVE);
            self.pools = PoolNews { admin: PoolStatus::Starting, snapshot: PoolStatus::Starting, why: None };
            out.push(Effect::StartPools);
        }
        self.enter(State::FillingPools, now, out);
        if self.pools_are_ready() {
            self.prepare_consumer(now, out);
        }
    }

    /// After the first time, a pool that is being filled again is no reason to wait: what comes needs a connection or two.
    fn pools_are_ready(&self) -> bool {
        self.pools.admin != PoolStatus::Starting && self.pools.snapshot != PoolStatus::Starting
    }

    fn prepare_consumer(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.extend(self.source.map(Effect::PrepareConsumer));
        self.enter(State::PreparingConsumer, now, out);
    }

    fn start_streaming(
        &mut self,
        attempt: Attempt,
        reset: Option<ResetReason>,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        self.hold(Condition::SupervisorProcessesReady, "the consumer has loaded what it has", now);
        let why = match reset {
            None => "the consumer goes on where it was",
            Some(_) => "the consumer has started over",
        };
        self.hold(Condition::IntegrityChecksPassed, why, now);
        self.prepared = Some(attempt);
        out.extend(reset.map(|reason| Effect::Tell(StackEvent::Reset(reason))));
        out.push(Effect::Entered(Step::StartStreaming));
        out.push(Effect::StartStreaming(attempt));
        self.enter(State::WaitingForConfirmation { check_at: now + LIVENESS_CHECK }, now, out);
    }

    fn confirmed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.hold(Condition::ShapeLogCollectorReady, "the consumer takes changes", now);
        (self.was_ready, self.trouble) = (true, None);
        // At once: the publication may be a new one, or was changed while nobody looked.
        out.push(Effect::Reconcile);
        self.enter(
            State::Streaming { reconcile_at: now + RECONCILE, steady_at: Some(now + STEADY) },
            now,
            out,
        );
        out.push(Effect::Tell(StackEvent::Ready));
    }

    fn fall_asleep(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.extend(self.source.map(Effect::CloseSource));
        out.push(Effect::ClosePools);
        self.observe_at = None;
        self.enter(State::FallingAsleep { deadline: now + CLOSING, pools: true, wake: false }, now, out);
    }

    fn asleep(&mut self, wake: bool, now: Instant, out: &mut Vec<Effect>) {
        self.forget_pools(now);
        self.lose_source("the connections are closed", now);
        self.enter(State::Sleeping, now, out);
        out.push(Effect::Tell(StackEvent::ScaledDown));
        if wake {
            self.on_used(now, out);
        }
    }

    /// The connection side starts again, or gives up.
    fn fail(&mut self, trouble: Trouble, now: Instant, out: &mut Vec<Effect>) {
        self.abandon_source(out);
        self.lose_source(&trouble.text, now);
        self.recreate_slot |= trouble.verdict == Verdict::DropSlot;
        let is_hopeless = self.count_panic(&trouble, now)
            // What worked once will work again when somebody has mended it, and until then the consumer is worth having.
            || (trouble.verdict == Verdict::Fatal && !self.was_ready);
        let reason = trouble.reason;
        let why = trouble.text.clone();
        self.trouble = Some(trouble);
        if is_hopeless {
            self.close_pools(now, out);
            self.enter(State::Halted, now, out);
            out.push(Effect::Tell(StackEvent::Halted { why }));
        } else {
            let until = now + self.backoff.fail(now);
            self.enter(State::BackingOff { until }, now, out);
            out.push(Effect::Tell(StackEvent::Restarting { reason }));
        }
    }

    /// What has given up opens nothing; and when it is mended, nobody wants to wait until the pools dial again.
    fn close_pools(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.pools_started {
            out.push(Effect::ClosePools);
            self.observe_at = None;
            self.forget_pools(now);
        }
    }

    fn forget_pools(&mut self, now: Instant) {
        self.pools_started = false;
        for condition in [Condition::AdminConnectionPoolReady, Condition::SnapshotConnectionPoolReady] {
            self.conditions.set(condition, false, "the connections are closed", now);
        }
    }

    fn count_panic(&mut self, trouble: &Trouble, now: Instant) -> bool {
        if trouble.panicked {
            self.panics.push_back(now);
        }
        while self.panics.front().is_some_and(|at| now.saturating_duration_since(*at) > PANIC_WINDOW) {
            self.panics.pop_front();
        }
        trouble.panicked && self.panics.len() >= PANICS
    }

    fn abandon_source(&mut self, out: &mut Vec<Effect>) {
        out.extend(self.source.take().map(Effect::AbandonSource));
    }

    fn lose_source(&mut self, why: &str, now: Instant) {
        let lost =
            [Condition::PgLockAcquired, Condition::ReplicationClientReady, Condition::ShapeLogCollectorReady];
        for condition in lost {
            self.conditions.set(condition, false, why, now);
        }
    }

    fn stop(&mut self, step: StopStep, now: Instant, out: &mut Vec<Effect>) {
        let is_wanted = match step {
            // The seed's order, while the lock is ours; otherwise both are dropped together, once it is.
            StopStep::DroppingPublication => {
                self.drop_slot && self.conditions.holds(Condition::PgLockAcquired)
            }
            StopStep::DroppingSlot => self.drop_slot,
            StopStep::ClosingReplicationClient => self.source.is_some(),
            // Without the lock, another instance may be writing.
            StopStep::Checkpointing => self.source.is_some() && self.prepared == self.source,
            StopStep::ClosingSnapshotPool | StopStep::EndingBackend | StopStep::ClosingAdminPool => true,
        };
        if !is_wanted {
            return self.stop_next(step, now, out);
        }
        self.observe_at = None;
        self.enter(State::Stopping { step, deadline: now + patience(step) }, now, out);
        out.push(Effect::Stop(step));
    }

    fn stop_next(&mut self, done: StopStep, now: Instant, out: &mut Vec<Effect>) {
        match done.next() {
            Some(step) => self.stop(step, now, out),
            None => {
                self.abandon_source(out);
                self.pools_started = false;
                for condition in Condition::ALL {
                    self.conditions.set(condition, false, "shut down", now);
                }
                self.enter(State::Stopped, now, out);
                out.push(Effect::Tell(StackEvent::Stopped));
            }
        }
    }

    /// Nobody performs effects any more, for whatever reason.
    pub(crate) fn has_died(&mut self, now: Instant) {
        (self.state, self.step_since, self.source) = (State::Stopped, now, None);
        for condition in Condition::ALL {
            self.conditions.set(condition, false, "the manager has ended", now);
        }
    }

    fn enter(&mut self, state: State, now: Instant, out: &mut Vec<Effect>) {
        self.state = state;
        self.step_since = now;
        out.push(Effect::Entered(self.step()));
    }

    fn hold(&mut self, condition: Condition, why: &str, now: Instant) {
        self.conditions.set(condition, true, why, now);
    }

    fn is_at(&self, attempt: Attempt, state: impl FnOnce(&State) -> bool) -> bool {
        self.source == Some(attempt) && state(&self.state)
    }

    fn sleep_at(&self) -> Option<Instant> {
        let (_, busy) = self.used;
        self.idle_after.filter(|_| !busy).map(|after| self.idle_since() + after)
    }

    /// When to look whether somebody still uses the database: nobody says so on leaving.
    fn look_at(&self) -> Option<Instant> {
        let (_, busy) = self.used;
        let least = if busy { LEAVING_CHECK } else { Duration::ZERO };
        self.idle_after.map(|after| self.idle_since() + after.max(least))
    }

    fn idle_since(&self) -> Instant {
        // The time that it takes to get up isn't idle time.
        self.used.0.max(self.step_since)
    }

    pub(crate) fn step(&self) -> Step {
        match self.state {
            State::New => Step::StartReplicationClient,
            State::BackingOff { .. } => Step::BackingOff,
            State::Connecting => Step::ReplicationClientConnecting,
            State::AcquiringLock { .. } => Step::AcquiringLock,
            State::Configuring { .. } => Step::ConfiguringConnection,
            State::FillingPools => Step::ConnectionPoolConnecting,
            State::PreparingConsumer => Step::StartShapes,
            State::WaitingForConfirmation { .. } => Step::WaitingForStreamingConfirmation,
            State::Streaming { .. } => Step::Streaming,
            State::FallingAsleep { .. } => Step::FallingAsleep,
            State::Sleeping => Step::Sleeping,
            State::Halted => Step::Halted,
            State::Stopping { step, .. } => Step::Stopping(step),
            State::Stopped => Step::Stopped,
        }
    }

    pub(crate) fn step_since(&self) -> Instant {
        self.step_since
    }

    pub(crate) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    pub(crate) fn pools(&self) -> &PoolNews {
        &self.pools
    }

    /// What failed last, until all is well again.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    pub(crate) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    #[cfg(test)]
    pub(crate) fn source(&self) -> Option<Attempt> {
        self.source
    }
}

impl Trouble {
    /// Something that may be over the next time.
    pub(crate) fn passing(reason: &'static str, text: impl Into<String>) -> Self {
        Trouble { verdict: Verdict::Retry, reason, text: text.into(), panicked: false }
    }
}

/// How long a step of the way down may take.
fn patience(step: StopStep) -> Duration {
    match step {
        StopStep::ClosingSnapshotPool | StopStep::ClosingReplicationClient | StopStep::EndingBackend => {
            Duration::from_secs(1)
        }
        StopStep::ClosingAdminPool => Duration::from_secs(2),
        StopStep::DroppingPublication | StopStep::DroppingSlot => Duration::from_secs(5),
        StopStep::Checkpointing => Duration::from_secs(10),
    }
}
