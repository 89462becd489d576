//! Worker of the manager: one task that owns the machine and performs its effects.
//!
//! Invariant: only the machine decides. Slow effects run in their own tasks and report back as
//! events through one bounded queue.
//! Out of scope: SQL; see `manager_tasks.rs` and `source/`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::Instant;

use crate::config::ManagerConfig;
use crate::consumer::Consumer;
use crate::core::conditions::ReadyCondition;
use crate::core::machine::{
    AttemptId, Effect, Event, FailureReport, ManagerEvent, ManagerMachine, RecoveryAction,
};
use crate::core::step::{ManagerStep, StopStep};
use crate::error::ReplicationError;
use crate::manager_tasks::ManagerTasks;
use crate::metrics;
use crate::pools::{PoolError, Pools};
use crate::publication::{NotifyFuture, Publication, TableChange, TableName, TableObserver};
use crate::source::{Gauges, ReplicationSource, SourceCommand, SourceContext, SourceEnd};
use crate::status::ManagerStatus;
use crate::usage_gate::UsageGate;

/// Capacity of the worker's event queue. Senders wait while it is full.
const EVENTS: usize = 64;
/// Capacity of a connection's command queue. A full queue means a stuck connection, which a
/// deadline ends.
const COMMANDS: usize = 8;
/// Capacity of a subscriber's queue. A slow subscriber misses the oldest events.
const SUBSCRIBER_EVENTS: usize = 64;

/// State that the handles, the worker and its tasks share.
pub(crate) struct ManagerContext {
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) subscribers: broadcast::Sender<ManagerEvent>,
    pub(crate) usage: Arc<UsageGate>,
    pub(crate) publication: Publication,
    pub(crate) observer: Box<dyn TableObserver>,
    pools: Mutex<Option<Pools>>,
}

impl ManagerContext {
    /// Returns the pools; fails if they are closed.
    pub(crate) fn pools(&self) -> Result<Pools, PoolError> {
        self.pools.lock().clone().ok_or(PoolError::Closed)
    }
}

/// Notifies the consumer of changed tables, and then the subscribers.
struct ConsumerNotifier<C> {
    consumer: Arc<tokio::sync::Mutex<C>>,
    subscribers: broadcast::Sender<ManagerEvent>,
}

impl<C: Consumer> TableObserver for ConsumerNotifier<C> {
    fn notify<'a>(&'a self, table: &'a TableName, change: TableChange) -> NotifyFuture<'a> {
        Box::pin(async move {
            let result = self.consumer.lock().await.table_changed(table, change).await;
            match &result {
                Ok(()) => _ = self.subscribers.send(ManagerEvent::Table { table: table.clone(), change }),
                Err(error) => {
                    tracing::warn!(%table, ?change, %error, "table change not handled by the consumer")
                }
            }
            result.is_ok()
        })
    }
}

struct ManagerWorker<C> {
    machine: ManagerMachine,
    context: Arc<ManagerContext>,
    source_context: Arc<SourceContext<C>>,
    status: watch::Sender<ManagerStatus>,
    source: Option<RunningSource>,
    /// Task that stops the consumer after the last connection has ended.
    ending: Option<JoinHandle<()>>,
    checkpointing: Option<AbortHandle>,
    step: ManagerStep,
    tasks: ManagerTasks,
}

struct RunningSource {
    attempt: AttemptId,
    commands: mpsc::Sender<SourceCommand>,
    task: AbortHandle,
}

/// Starts the worker's task. It shuts down when `handles_dropped` resolves: the last [`Manager`]
/// handle was dropped.
///
/// [`Manager`]: crate::Manager
pub(crate) fn start<C: Consumer>(
    config: ManagerConfig,
    consumer: C,
    handles_dropped: oneshot::Receiver<()>,
) -> (Arc<ManagerContext>, watch::Receiver<ManagerStatus>, Arc<Gauges>) {
    metrics::describe();
    let now = now();
    let (events, inbox) = mpsc::channel(EVENTS);
    let gauges = Arc::new(Gauges::default());
    let consumer = Arc::new(tokio::sync::Mutex::new(consumer));
    let subscribers = broadcast::channel(SUBSCRIBER_EVENTS).0;
    let context = Arc::new(ManagerContext {
        events: events.clone(),
        observer: Box::new(ConsumerNotifier { consumer: consumer.clone(), subscribers: subscribers.clone() }),
        subscribers,
        usage: Arc::new(UsageGate::new(now)),
        publication: Publication::new(&config),
        pools: Mutex::default(),
    });
    let machine =
        ManagerMachine::new(config.idle_after, config.lock_timeouts.check_interval, fastrand::u64(..), now);
    let (status, status_receiver) = watch::channel(ManagerStatus::of(&machine));
    let source_context = Arc::new(SourceContext { config, consumer, events, gauges: gauges.clone() });
    let worker = ManagerWorker {
        tasks: ManagerTasks::new(&source_context, &context),
        step: machine.step(),
        machine,
        context: context.clone(),
        source_context,
        status,
        source: None,
        ending: None,
        checkpointing: None,
    };
    tokio::spawn(worker.run(inbox, handles_dropped));
    (context, status_receiver, gauges)
}

impl<C: Consumer> ManagerWorker<C> {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>, mut handles_dropped: oneshot::Receiver<()>) {
        let mut effects = Vec::new();
        let mut event = Event::Start;
        let mut has_handles = true;
        loop {
            self.step_machine(event, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
            if self.machine.step() == ManagerStep::Stopped {
                return;
            }
            let wake_at = self.machine.wake_at();
            let timer = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            event = tokio::select! {
                Some(event) = inbox.recv() => event,
                () = timer => Event::Tick,
                _ = &mut handles_dropped, if has_handles => {
                    has_handles = false;
                    Event::Shutdown { drop_slot: false }
                }
            };
        }
    }

    fn step_machine(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let now = now();
        let (last, busy) = self.context.usage.last_use();
        self.machine.set_use(if busy { now } else { last }, busy);
        // If a user was admitted after `last_use`, `close` fails and the machine stays awake. A
        // closed gate admits no user.
        if self.machine.is_sleep_due(now) && !self.context.usage.close() {
            self.machine.set_use(now, true);
        }
        if matches!(event, Event::Tick) {
            self.machine.on(event, now, effects);
        } else {
            // Timers that are due fire before the event.
            self.machine.on(Event::Tick, now, effects);
            self.machine.on(event, now, effects);
        }
        if !matches!(self.machine.step(), ManagerStep::FallingAsleep | ManagerStep::Sleeping) {
            self.context.usage.open();
        }
        let status = ManagerStatus::of(&self.machine);
        for condition in ReadyCondition::ALL {
            let holds = f64::from(u8::from(self.machine.conditions().holds(condition)));
            ::metrics::gauge!(metrics::CONDITION, "condition" => condition.as_str()).set(holds);
        }
        metrics::halted(self.status.borrow().halted, status.halted);
        self.status.send_if_modified(|last| {
            let is_changed = *last != status;
            *last = status;
            is_changed
        });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Entered(step) => self.entered(step),
            Effect::OpenSource { attempt, recreate_slot } => self.open_source(attempt, recreate_slot),
            Effect::CheckLock(attempt) => self.send_command(attempt, SourceCommand::CheckLock),
            Effect::PrepareConsumer(attempt) => self.send_command(attempt, SourceCommand::PrepareConsumer),
            Effect::StartStreaming(attempt) => self.send_command(attempt, SourceCommand::StartStreaming),
            Effect::CloseSource(attempt) => self.send_command(attempt, SourceCommand::Close),
            Effect::AbandonSource(attempt) => {
                if let Some(source) = self.source.take_if(|source| source.attempt == attempt) {
                    source.task.abort();
                }
            }
            Effect::DiagnoseSetup(attempt) => self.tasks.diagnose_setup(attempt),
            Effect::CheckBackend(attempt) => self.tasks.check_backend(attempt),
            Effect::Reconcile => self.tasks.reconcile(),
            Effect::MeasureSlot => self.tasks.measure_slot(),
            Effect::StartPools => self.start_pools(),
            Effect::ClosePools => self.tasks.close_pools(self.context.pools.lock().take()),
            Effect::Stop(step) => self.stop(step),
            Effect::Recovered { retried_for, tries } => {
                metrics::recovered(retried_for);
                tracing::info!(?retried_for, tries, "replication recovered");
            }
            Effect::Notify(event) => self.notify(event),
        }
    }

    fn entered(&mut self, step: ManagerStep) {
        let from = std::mem::replace(&mut self.step, step);
        metrics::entered(from.as_str(), step.as_str());
        if matches!(step, ManagerStep::Sleeping | ManagerStep::Stopped) {
            self.source_context.gauges.backend.store(0, Ordering::Release);
        }
        match (step, self.machine.failure()) {
            (ManagerStep::Halted, Some(FailureReport { reason, text, .. })) => {
                let tries = self.machine.backoff().tries();
                let since = self.machine.step_since();
                let retry_in = self.machine.next_attempt().map(|at| at.saturating_duration_since(since));
                let retry_in = retry_in.unwrap_or_default();
                tracing::error!(%from, to = %step, reason, why = text, tries, ?retry_in, "manager halted");
            }
            (ManagerStep::BackingOff, Some(FailureReport { reason, text, action, .. })) => {
                let (tries, slot_is_dropped) =
                    (self.machine.backoff().tries(), *action == RecoveryAction::RecreateSlot);
                tracing::warn!(%from, to = %step, reason, why = text, tries, slot_is_dropped, "replication failed: retrying");
            }
            _ => tracing::info!(%from, to = %step, "manager step changed"),
        }
    }

    fn open_source(&mut self, attempt: AttemptId, recreate_slot: bool) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (source_context, last) = (self.source_context.clone(), self.ending.take());
        let running = tokio::spawn(async move {
            if let Some(last) = last {
                let _stopped = last.await;
            }
            ReplicationSource::run(attempt, recreate_slot, source_context, inbox).await
        });
        self.source = Some(RunningSource { attempt, commands, task: running.abort_handle() });
        let (events, consumer) = (self.source_context.events.clone(), self.source_context.consumer.clone());
        let gauges = self.source_context.gauges.clone();
        self.ending = Some(tokio::spawn(async move {
            let failure = failure_of(running.await);
            gauges.end_stream();
            ::metrics::gauge!(metrics::LAG_SECONDS).set(0.0);
            // In its own task, so that a panic of the consumer doesn't lose the event.
            let stopping = tokio::spawn(async move { consumer.lock().await.stop().await });
            let failure = failure_of(stopping.await.map(Ok)).or(failure);
            let _no_manager = events.send(Event::SourceEnded(attempt, failure)).await;
        }));
    }

    fn send_command(&self, attempt: AttemptId, command: SourceCommand) {
        if let Some(source) = self.source.as_ref().filter(|source| source.attempt == attempt)
            && source.commands.try_send(command).is_err()
        {
            tracing::debug!(attempt, ?command, "command not delivered: connection ended or stuck");
        }
    }

    fn start_pools(&mut self) {
        match Pools::start(&self.source_context.config) {
            Ok(pools) => {
                *self.context.pools.lock() = Some(pools.clone());
                tokio::spawn(pools.watch(self.source_context.events.clone()));
            }
            Err(error) => {
                let failure = FailureReport {
                    action: RecoveryAction::Halt,
                    reason: "pools",
                    text: error.to_string(),
                    panicked: false,
                };
                self.tasks.send(Event::PoolsFailed(failure));
            }
        }
    }

    fn stop(&mut self, step: StopStep) {
        // A late checkpoint must not continue without the lock.
        self.checkpointing.take().iter().for_each(AbortHandle::abort);
        match step {
            StopStep::ClosingSnapshotPool => self.tasks.close_snapshot_pool(self.context.pools().ok()),
            StopStep::Checkpointing => {
                let (consumer, events) =
                    (self.source_context.consumer.clone(), self.source_context.events.clone());
                let saving = tokio::spawn(async move { consumer.lock().await.checkpoint().await });
                self.checkpointing = Some(saving.abort_handle());
                tokio::spawn(async move {
                    match saving.await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::warn!(%error, "checkpoint failed"),
                        Err(error) if error.is_panic() => {
                            tracing::error!(%error, "checkpoint failed: consumer panicked")
                        }
                        Err(_) => tracing::warn!("checkpoint cancelled: deadline passed"),
                    }
                    let _no_manager = events.send(Event::StopDone(step)).await;
                });
            }
            // `Event::SourceEnded` completes this step.
            StopStep::ClosingReplicationClient => {
                let attempt = self.source.as_ref().map(|source| source.attempt);
                attempt.into_iter().for_each(|attempt| self.send_command(attempt, SourceCommand::Close));
            }
            StopStep::DroppingPublication => self.tasks.drop_publication(),
            StopStep::EndingBackend => self.tasks.end_backend(),
            StopStep::DroppingSlot => self.tasks.drop_slot(),
            StopStep::ClosingAdminPool => self.tasks.close_last_pool(self.context.pools.lock().take()),
        }
    }

    fn notify(&self, event: ManagerEvent) {
        match &event {
            ManagerEvent::Restarting { reason } => metrics::restarted(reason),
            ManagerEvent::Reset(reason) => metrics::reset(reason.as_str()),
            _ => {}
        }
        let _no_subscriber = self.context.subscribers.send(event);
    }
}

/// Returns the failure of a connection's task; `None` if the manager closed or abandoned it.
fn failure_of(ended: Result<Result<(), SourceEnd>, JoinError>) -> Option<FailureReport> {
    match ended {
        Ok(Ok(()) | Err(SourceEnd::Closed)) => None,
        Ok(Err(SourceEnd::Failed(error))) => Some(error.into()),
        Err(error) if error.is_cancelled() => None,
        Err(error) => {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Some(ReplicationError::Panicked { message }.into())
        }
    }
}

impl<C> Drop for ManagerWorker<C> {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.task.abort();
        }
        // A dropped worker must not leave a status in which the manager is ready.
        if self.machine.step() != ManagerStep::Stopped {
            self.machine.mark_dead(now());
            self.status.send_replace(ManagerStatus::of(&self.machine));
        }
    }
}

/// Returns the time of tokio's clock, which tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// A task that is aborted when its owner is dropped.
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
