//! The manager's hands: one task that owns the machine and performs its effects.
//!
//! Invariant: the machine alone decides; whatever takes time runs in a task of its own and comes back as an event, under the same
//! queue, which is bounded: senders wait.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::Instant;

use crate::chores::Chores;
use crate::config::ManagerConfig;
use crate::consumer::Consumer;
use crate::core::conditions::Condition;
use crate::core::machine::{Attempt, Effect, Event, Machine, StackEvent, Trouble, Verdict};
use crate::core::step::{Step, StopStep};
use crate::error::Failure;
use crate::metrics;
use crate::pools::{PoolError, Pools};
use crate::publication::{Publication, TableChange, TableName, TableNews, Telling};
use crate::source::{Ended, Gauges, Order, Setting, Source};
use crate::status::ManagerStatus;
use crate::uses::Uses;

/// Events that wait for the worker. Full: whoever sends waits.
const EVENTS: usize = 64;
/// Orders that a connection hasn't read. Full: it is stuck, and a deadline will end it.
const ORDERS: usize = 8;
/// Stack events that a subscriber hasn't read. Full: it misses the oldest.
const STACK_EVENTS: usize = 64;

/// What the handle and the worker share.
pub(crate) struct Common {
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) stack: broadcast::Sender<StackEvent>,
    pub(crate) uses: Arc<Uses>,
    pub(crate) publication: Publication,
    pub(crate) news: Box<dyn TableNews>,
    pools: Mutex<Option<Pools>>,
}

impl Common {
    /// The pools, if they are open.
    pub(crate) fn pools(&self) -> Result<Pools, PoolError> {
        self.slot().clone().ok_or(PoolError::Closed)
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Pools>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the consumer of tables, and then whoever listens.
struct Teller<C> {
    consumer: Arc<tokio::sync::Mutex<C>>,
    stack: broadcast::Sender<StackEvent>,
}

impl<C: Consumer> TableNews for Teller<C> {
    fn tell<'a>(&'a self, table: &'a TableName, change: TableChange) -> Telling<'a> {
        Box::pin(async move {
            let told = self.consumer.lock().await.table_changed(table, change).await;
            match &told {
                Ok(()) => _ = self.stack.send(StackEvent::Table { table: table.clone(), change }),
                Err(error) => {
                    tracing::warn!(%table, ?change, %error, "the consumer didn't take the news of a table")
                }
            }
            told.is_ok()
        })
    }
}

struct Worker<C> {
    machine: Machine,
    common: Arc<Common>,
    setting: Arc<Setting<C>>,
    status: watch::Sender<ManagerStatus>,
    source: Option<RunningSource>,
    /// Ends when the consumer of the last connection has stopped.
    ending: Option<JoinHandle<()>>,
    checkpointing: Option<AbortHandle>,
    step: Step,
    chores: Chores,
}

struct RunningSource {
    attempt: Attempt,
    orders: mpsc::Sender<Order>,
    task: AbortHandle,
}

pub(crate) fn start<C: Consumer>(
    config: ManagerConfig,
    consumer: C,
    gone: oneshot::Receiver<()>,
) -> (Arc<Common>, watch::Receiver<ManagerStatus>, Arc<Gauges>) {
    metrics::describe();
    let now = now();
    let (events, inbox) = mpsc::channel(EVENTS);
    let gauges = Arc::new(Gauges::default());
    let consumer = Arc::new(tokio::sync::Mutex::new(consumer));
    let stack = broadcast::channel(STACK_EVENTS).0;
    let common = Arc::new(Common {
        events: events.clone(),
        news: Box::new(Teller { consumer: consumer.clone(), stack: stack.clone() }),
        stack,
        uses: Arc::new(Uses::new(now)),
        publication: Publication::new(&config),
        pools: Mutex::default(),
    });
    let machine = Machine::new(config.idle_after, config.lock_patience.check_every, seed(), now);
    let (status, watching) = watch::channel(ManagerStatus::of(&machine));
    let setting = Arc::new(Setting { config, consumer, events, gauges: gauges.clone() });
    let worker = Worker {
        chores: Chores::new(&setting, &common),
        step: machine.step(),
        machine,
        common: common.clone(),
        setting,
        status,
        source: None,
        ending: None,
        checkpointing: None,
    };
    tokio::spawn(worker.run(inbox, gone));
    (common, watching, gauges)
}

impl<C: Consumer> Worker<C> {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>, mut gone: oneshot::Receiver<()>) {
        let mut effects = Vec::new();
        let mut event = Event::Start;
        let mut has_owner = true;
        loop {
            self.step_machine(event, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
            if self.machine.step() == Step::Stopped {
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
                _ = &mut gone, if has_owner => {
                    has_owner = false;
                    Event::Shutdown { drop_slot: false }
                }
            };
        }
    }

    fn step_machine(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let now = now();
        let (last, busy) = self.common.uses.last();
        self.machine.set_use(if busy { now } else { last }, busy);
        // Whoever got in since then keeps it open; once it is closed, nobody gets in.
        if self.machine.is_sleep_due(now) && !self.common.uses.close() {
            self.machine.set_use(now, true);
        }
        if matches!(event, Event::Tick) {
            self.machine.on(event, now, effects);
        } else {
            // Whatever else is due comes first: it was due before.
            self.machine.on(Event::Tick, now, effects);
            self.machine.on(event, now, effects);
        }
        if !matches!(self.machine.step(), Step::FallingAsleep | Step::Sleeping) {
            self.common.uses.open();
        }
        let status = ManagerStatus::of(&self.machine);
        for condition in Condition::ALL {
            let holds = f64::from(u8::from(self.machine.conditions().holds(condition)));
            ::metrics::gauge!(metrics::CONDITION, "condition" => condition.as_str()).set(holds);
        }
        self.status.send_if_modified(|last| {
            let is_news = *last != status;
            *last = status;
            is_news
        });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Entered(step) => self.entered(step),
            Effect::OpenSource { attempt, recreate_slot } => self.open_source(attempt, recreate_slot),
            Effect::CheckLock(attempt) => self.order(attempt, Order::CheckLock),
            Effect::PrepareConsumer(attempt) => self.order(attempt, Order::PrepareConsumer),
            Effect::StartStreaming(attempt) => self.order(attempt, Order::StartStreaming),
            Effect::CloseSource(attempt) => self.order(attempt, Order::Close),
            Effect::AbandonSource(attempt) => {
                if let Some(source) = self.source.take_if(|source| source.attempt == attempt) {
                    source.task.abort();
                }
            }
            Effect::ExplainSetup(attempt) => self.chores.explain_setup(attempt),
            Effect::CheckAlive(attempt) => self.chores.check_alive(attempt),
            Effect::Reconcile => self.chores.reconcile(),
            Effect::Observe => self.chores.observe(),
            Effect::StartPools => self.start_pools(),
            Effect::ClosePools => self.chores.close_pools(self.common.slot().take()),
            Effect::Stop(step) => self.stop(step),
            Effect::Tell(event) => self.tell(event),
        }
    }

    fn entered(&mut self, step: Step) {
        let from = std::mem::replace(&mut self.step, step);
        metrics::entered(from.as_str(), step.as_str());
        if matches!(step, Step::Sleeping | Step::Stopped) {
            self.setting.gauges.backend.store(0, Ordering::Release);
        }
        match (step, self.machine.trouble()) {
            (Step::Halted, Some(Trouble { reason, text, .. })) => {
                tracing::error!(%from, to = %step, reason, why = text, "the manager has given up");
            }
            (Step::BackingOff, Some(Trouble { reason, text, verdict, .. })) => {
                let (tries, slot_is_dropped) =
                    (self.machine.backoff().tries(), *verdict == Verdict::DropSlot);
                tracing::warn!(%from, to = %step, reason, why = text, tries, slot_is_dropped, "the manager tries again");
            }
            _ => tracing::info!(%from, to = %step, "the manager changed its step"),
        }
    }

    fn open_source(&mut self, attempt: Attempt, recreate_slot: bool) {
        let (orders, inbox) = mpsc::channel(ORDERS);
        let (setting, last) = (self.setting.clone(), self.ending.take());
        let running = tokio::spawn(async move {
            if let Some(last) = last {
                let _stopped = last.await;
            }
            Source::run(attempt, recreate_slot, setting, inbox).await
        });
        self.source = Some(RunningSource { attempt, orders, task: running.abort_handle() });
        let (events, consumer) = (self.setting.events.clone(), self.setting.consumer.clone());
        let gauges = self.setting.gauges.clone();
        self.ending = Some(tokio::spawn(async move {
            let trouble = trouble_of(running.await);
            // Or whoever stands by for another instance would be late for ever.
            gauges.catch_up();
            ::metrics::gauge!(metrics::LAG_SECONDS).set(0.0);
            // In a task of its own: whatever it does, the manager hears of the end.
            let stopping = tokio::spawn(async move { consumer.lock().await.stop().await });
            let trouble = trouble_of(stopping.await.map(Ok)).or(trouble);
            let _no_manager = events.send(Event::SourceEnded(attempt, trouble)).await;
        }));
    }

    fn order(&self, attempt: Attempt, order: Order) {
        if let Some(source) = self.source.as_ref().filter(|source| source.attempt == attempt)
            && source.orders.try_send(order).is_err()
        {
            tracing::debug!(attempt, ?order, "the connection takes no orders: it has ended, or is stuck");
        }
    }

    fn start_pools(&mut self) {
        match Pools::start(&self.setting.config) {
            Ok(pools) => {
                *self.common.slot() = Some(pools.clone());
                tokio::spawn(pools.watch(self.setting.events.clone()));
            }
            Err(error) => {
                let trouble = Trouble {
                    verdict: Verdict::Fatal,
                    reason: "pools",
                    text: error.to_string(),
                    panicked: false,
                };
                self.chores.send(Event::PoolsFailed(trouble));
            }
        }
    }

    fn stop(&mut self, step: StopStep) {
        // One that took too long must not go on after the lock is gone.
        self.checkpointing.take().iter().for_each(AbortHandle::abort);
        match step {
            StopStep::ClosingSnapshotPool => {
                if let Ok(pools) = self.common.pools() {
                    pools.close_snapshots();
                }
                self.chores.send(Event::StopDone(step));
            }
            StopStep::Checkpointing => {
                let (consumer, events) = (self.setting.consumer.clone(), self.setting.events.clone());
                let saving = tokio::spawn(async move { consumer.lock().await.checkpoint().await });
                self.checkpointing = Some(saving.abort_handle());
                tokio::spawn(async move {
                    match saving.await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::warn!(%error, "the consumer saved no checkpoint"),
                        Err(error) if error.is_panic() => {
                            tracing::error!(%error, "the consumer saved no checkpoint: a bug")
                        }
                        Err(_) => tracing::warn!("the consumer took too long to save a checkpoint"),
                    }
                    let _no_manager = events.send(Event::StopDone(step)).await;
                });
            }
            // Its end is the news.
            StopStep::ClosingReplicationClient => {
                let attempt = self.source.as_ref().map(|source| source.attempt);
                attempt.into_iter().for_each(|attempt| self.order(attempt, Order::Close));
            }
            StopStep::DroppingPublication => self.chores.drop_publication(),
            StopStep::EndingBackend => self.chores.end_backend(),
            StopStep::DroppingSlot => self.chores.drop_slot(),
            StopStep::ClosingAdminPool => self.chores.close_last_pool(self.common.slot().take()),
        }
    }

    fn tell(&self, event: StackEvent) {
        match &event {
            StackEvent::Restarting { reason } => metrics::restarted(reason),
            StackEvent::Reset(reason) => metrics::reset(reason.as_str()),
            _ => {}
        }
        // Nobody need listen.
        let _nobody = self.common.stack.send(event);
    }
}

/// What a connection's end means; `None`: it was told to, or was abandoned.
fn trouble_of(ended: Result<Result<(), Ended>, JoinError>) -> Option<Trouble> {
    match ended {
        Ok(Ok(()) | Err(Ended::Told)) => None,
        Ok(Err(Ended::Failed(failure))) => Some(failure.into()),
        Err(error) if error.is_cancelled() => None,
        Err(error) => {
            let panic = error.into_panic();
            let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
            let what = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Some(Failure::Panicked { what }.into())
        }
    }
}

impl<C> Drop for Worker<C> {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.task.abort();
        }
        // However it ends: its last word must not be that all is well.
        if self.machine.step() != Step::Stopped {
            self.machine.has_died(now());
            self.status.send_replace(ManagerStatus::of(&self.machine));
        }
    }
}

/// Follows tokio's clock, which tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Of std's hasher keys, which the system seeds.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A task that ends with its owner.
pub(crate) struct Task(pub(crate) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
