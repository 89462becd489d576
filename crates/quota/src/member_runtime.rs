//! Runs a member: holds the core behind one mutex, sends its calls to the store and returns the
//! replies.
//!
//! Invariant: the mutex is never held across an await or while a lease is dropped. Every call that
//! the core began ends with a reply, a timeout, or a report that it was dropped.
//! There is no worker task. Each call reports its own result, and the code that changed the core
//! performs its effects. A settlement is polled by the caller that waits for it (`driven_call.rs`);
//! every other call has its own task. One more task is the timer, another listens for pressure.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::config::MemberConfig;
use crate::core::member::{AccountId, MemberCall, QuotaMember, TakeDecision, TakeVerdict};
use crate::driven_call::{DrivenCall, InFlightCall};
use crate::error::QuotaRefusal;
use crate::lease::UnitGuard;
use crate::status::{BudgetStatus, KeyedStatus, MemberNotice, QuotaMode, Status};
use crate::store::{Settlement, Store, StoreError, StoreFuture};
use crate::take_future::{TakeFuture, TakeSender};

pub(crate) struct MemberRuntime {
    state: Mutex<RuntimeState>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    runtime: Handle,
    /// Wakes the timer task.
    timer: Arc<Notify>,
    /// Notified after each reply or failure of the store.
    reply_received: Notify,
    /// The task that listens for pressure.
    listener: OnceLock<AbortHandle>,
}

struct RuntimeState {
    member: QuotaMember<TakeSender>,
    mode: QuotaMode,
    mode_since: Instant,
    timer_at: Option<Instant>,
    /// Tasks of calls that may still be in flight. The timer task enforces their deadlines: a timer
    /// per call would cost more than the call.
    calls: Vec<CallTask>,
    driven: DrivenCall,
    /// One for each budget, notified when a unit is returned or the slice grows.
    freed: Vec<Arc<Notify>>,
}

struct CallTask {
    deadline: Instant,
    task: AbortHandle,
}

/// Result of an attempt to take a unit.
pub(crate) enum TakeResult {
    Ready(Result<UnitGuard, QuotaRefusal>),
    Pending(TakeFuture),
}

/// What to do after the mutex is released.
#[derive(Default)]
struct RuntimeEffects {
    settlement: Option<Settlement>,
    /// Heartbeats and leaves.
    calls: Vec<MemberCall>,
    verdicts: Vec<(TakeSender, TakeVerdict)>,
    notices: Vec<MemberNotice>,
    change: Option<(QuotaMode, QuotaMode, Option<String>)>,
    reset_timer: bool,
    /// A call that its caller no longer drives.
    reclaimed: Option<InFlightCall>,
}

impl MemberRuntime {
    /// Starts a member. Must be called within a tokio runtime, which then runs the member's tasks.
    pub(crate) fn start(store: Arc<dyn Store>, config: MemberConfig) -> Arc<MemberRuntime> {
        let now = now();
        let member = QuotaMember::new(config.name, config.rules.clamped(), random(), now);
        let state = RuntimeState {
            mode: member.mode(now),
            member,
            mode_since: now,
            timer_at: None,
            calls: Vec::new(),
            driven: DrivenCall::default(),
            freed: Vec::new(),
        };
        let shared = Arc::new(MemberRuntime {
            state: Mutex::new(state),
            store,
            call_timeout: config.call_timeout,
            runtime: Handle::current(),
            timer: Arc::new(Notify::new()),
            reply_received: Notify::new(),
            listener: OnceLock::new(),
        });
        shared.runtime.spawn(run_timer(Arc::downgrade(&shared), shared.timer.clone()));
        let listening =
            shared.runtime.spawn(run_pressure_listener(Arc::downgrade(&shared), shared.store.clone()));
        shared.listener.get_or_init(|| listening.abort_handle());
        shared
    }

    /// Waits until this member has joined, or until the first call has failed.
    pub(crate) async fn wait_until_join_resolved(&self) {
        loop {
            let reply_received = self.reply_received.notified();
            if self.read(|member, _| member.is_join_resolved()) {
                return;
            }
            reply_received.await;
        }
    }

    pub(crate) fn take(self: &Arc<Self>, account_id: &AccountId) -> TakeResult {
        let now = now();
        let mut state = self.lock_state();
        let mut slot = None;
        match state.member.take(account_id, now, || TakeSender::new(slot.insert(Arc::default()))) {
            TakeDecision::Granted => TakeResult::Ready(Ok(UnitGuard::new(self.clone(), account_id.clone()))),
            TakeDecision::Refused(refusal) => TakeResult::Ready(Err(refusal)),
            TakeDecision::Waiting => {
                let mut effects = state.collect_effects(now);
                let driven = state.begin_driving(&mut effects, now + self.call_timeout / 2);
                drop(state);
                let driven =
                    driven.map(|(id, settlement)| (id, self.in_flight(MemberCall::Settle(settlement), now)));
                let slot = slot.expect("a waiting take has created its slot");
                let awaited = TakeFuture::new(self.clone(), slot, driven);
                self.perform(effects, now);
                TakeResult::Pending(awaited)
            }
        }
    }

    pub(crate) fn try_take(self: &Arc<Self>, account_id: &AccountId) -> Result<UnitGuard, QuotaRefusal> {
        self.lock_state().member.try_take(account_id, now())?;
        Ok(UnitGuard::new(self.clone(), account_id.clone()))
    }

    /// Returns a unit. Called by a guard that is dropped.
    pub(crate) fn release(self: &Arc<Self>, account_id: &AccountId) {
        let now = now();
        let mut state = self.lock_state();
        state.member.release(account_id, now);
        if let AccountId::Budget(index) = account_id {
            state.freed[*index].notify_waiters();
        }
        let effects = state.collect_effects(now);
        drop(state);
        self.perform(effects, now);
    }

    /// Changes the core, then performs its effects.
    pub(crate) fn update<T>(
        self: &Arc<Self>,
        update: impl FnOnce(&mut QuotaMember<TakeSender>, Instant) -> T,
    ) -> T {
        let now = now();
        let mut state = self.lock_state();
        let result = update(&mut state.member, now);
        let effects = state.collect_effects(now);
        drop(state);
        self.perform(effects, now);
        result
    }

    /// Performs what has become due, and returns when to call it again.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        let now = now();
        let mut state = self.lock_state();
        let mut effects = state.collect_effects(now);
        state.calls.retain(|call| !call.task.is_finished());
        let late = state.take_expired_calls(now);
        if state.driven.hand_over_at().is_some_and(|at| at <= now) {
            effects.reclaimed = effects.reclaimed.or(state.driven.reclaim());
        }
        let deadlines = state.calls.iter().map(|call| call.deadline);
        let wake_at = deadlines.chain(state.member.wake_at(now)).chain(state.driven.hand_over_at()).min();
        state.timer_at = wake_at;
        drop(state);
        self.perform(effects, now);
        // Each reports to the core when its task is dropped.
        late.iter().for_each(AbortHandle::abort);
        wake_at
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(task)
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&QuotaMember<TakeSender>, Instant) -> T) -> T {
        read(&self.lock_state().member, now())
    }

    /// Registers a budget, or updates its limit.
    pub(crate) fn register_budget(
        self: &Arc<Self>,
        add: impl FnOnce(&mut QuotaMember<TakeSender>) -> usize,
    ) -> (usize, Arc<Notify>) {
        let index = self.update(|member, _| add(member));
        let mut state = self.lock_state();
        while state.freed.len() <= index {
            state.freed.push(Arc::new(Notify::new()));
        }
        (index, state.freed[index].clone())
    }

    pub(crate) fn status(&self) -> Status {
        let (state, now) = (self.lock_state(), now());
        let RuntimeState { member, .. } = &*state;
        // A deadline may have changed the mode since the last update.
        let mode = member.mode(now);
        let since = if mode == state.mode { state.mode_since } else { now };
        let budgets = member.budgets().map(|(name, usage)| BudgetStatus { name: name.clone(), usage });
        let keyed = member.keyed_limits().map(|(name, limit, keys, held)| KeyedStatus {
            name: name.clone(),
            limit,
            keys,
            held,
        });
        Status {
            store: self.store.kind(),
            member: member.id().clone(),
            members: member.members(),
            mode,
            mode_since_ms: now.saturating_duration_since(since).as_millis() as u64,
            why: why(member, mode, now),
            budgets: budgets.collect(),
            keyed: keyed.collect(),
            counters: member.counters(),
        }
    }

    /// Leaves the namespace; nothing is granted afterwards.
    pub(crate) async fn leave(self: &Arc<Self>) -> Result<(), StoreError> {
        let member = self.update(|member, _| {
            member.leave();
            member.id().clone()
        });
        self.with_timeout(self.store.leave(member)).await
    }

    /// Awaits a call to the store, up to the call timeout.
    pub(crate) async fn with_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.call_timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Timeout(self.call_timeout)),
        }
    }

    pub(crate) fn with_driven<T>(&self, update: impl FnOnce(&mut DrivenCall) -> T) -> T {
        update(&mut self.lock_state().driven)
    }

    pub(crate) fn enter_runtime<T>(&self, work: impl FnOnce() -> T) -> T {
        let _within = self.runtime.enter();
        work()
    }

    fn perform(self: &Arc<Self>, effects: RuntimeEffects, now: Instant) {
        let RuntimeEffects { settlement, calls, verdicts, notices, change, reset_timer, reclaimed } = effects;
        let calls = calls.into_iter().chain(settlement.map(MemberCall::Settle));
        for call in calls.map(|call| self.in_flight(call, now)).chain(reclaimed) {
            self.spawn_call(call);
        }
        if reset_timer {
            self.timer.notify_one();
        }
        for notice in notices {
            log(&notice);
        }
        if let Some((from, to, why)) = change {
            let why = why.unwrap_or_default();
            match to {
                QuotaMode::Normal => info!(%from, %to, "quota mode changed"),
                QuotaMode::WithinSlices | QuotaMode::Degraded(_) | QuotaMode::Rebuilding => {
                    warn!(%from, %to, why, "quota mode changed");
                }
            }
        }
        for (caller, verdict) in verdicts {
            // If the caller is gone, the unit is dropped here, which returns it.
            caller.send(verdict.map(|account_id| UnitGuard::new(self.clone(), account_id)));
        }
    }

    fn in_flight(self: &Arc<Self>, call: MemberCall, now: Instant) -> InFlightCall {
        match call {
            MemberCall::Heartbeat(heartbeat) => {
                self.guarded_call(QuotaMember::on_heartbeat_reply, |store| store.heartbeat(heartbeat), now)
            }
            MemberCall::Settle(settlement) => {
                self.guarded_call(QuotaMember::on_settlement_reply, |store| store.settle(settlement), now)
            }
            MemberCall::Leave(predecessor) => {
                self.guarded_call(QuotaMember::on_leave_reply, |store| store.leave(predecessor), now)
            }
        }
    }

    fn guarded_call<T: Send + 'static>(
        self: &Arc<Self>,
        tell: CompleteFn<T>,
        call: impl FnOnce(&dyn Store) -> StoreFuture<'_, T> + Send + 'static,
        now: Instant,
    ) -> InFlightCall {
        let deadline = now + self.call_timeout;
        let open = CallGuard { shared: self.clone(), tell: Some(tell), deadline };
        let future = Box::pin(async move {
            let reply = call(&*open.shared.clone().store).await;
            open.close(reply);
        });
        InFlightCall { deadline, future }
    }

    pub(crate) fn spawn_call(self: &Arc<Self>, call: InFlightCall) {
        let InFlightCall { deadline, future } = call;
        let task = self.runtime.spawn(future).abort_handle();
        let mut state = self.lock_state();
        state.calls.retain(|call| !call.task.is_finished());
        state.calls.push(CallTask { deadline, task });
        let too_late = state.timer_at.is_none_or(|at| at > deadline);
        drop(state);
        if too_late {
            self.timer.notify_one();
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, RuntimeState> {
        // Callers must be able to return their units even after a panic in the core.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemberRuntime {
    fn drop(&mut self) {
        self.timer.notify_one();
        self.listener.get().inspect(|listener| listener.abort());
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.member.has_left() {
            // No handle and no lease is left. If this call is lost, the member expires after its
            // TTL.
            let (store, member) = (self.store.clone(), state.member.id().clone());
            self.runtime.spawn(async move { store.leave(member).await });
        }
    }
}

impl RuntimeState {
    /// Assigns the settlement, if there is one, to the caller that waits for it.
    fn begin_driving(
        &mut self,
        effects: &mut RuntimeEffects,
        hand_over_at: Instant,
    ) -> Option<(u64, Settlement)> {
        if effects.settlement.is_none() || self.member.has_more_to_settle() {
            return None;
        }
        let id = self.driven.begin(hand_over_at)?;
        effects.reset_timer |= self.timer_at.is_none_or(|at| at > hand_over_at);
        Some(id).zip(effects.settlement.take())
    }

    fn take_expired_calls(&mut self, now: Instant) -> Vec<AbortHandle> {
        let is_late = |call: &mut CallTask| call.deadline <= now;
        self.calls.extract_if(.., is_late).map(|call| call.task).collect()
    }

    /// Collects the effects that the core wants performed.
    fn collect_effects(&mut self, now: Instant) -> RuntimeEffects {
        let mut effects = RuntimeEffects::default();
        while let Some(call) = self.member.poll(now) {
            match call {
                MemberCall::Settle(settlement) => effects.settlement = Some(settlement), // at most one is in flight
                MemberCall::Heartbeat(_) | MemberCall::Leave(_) => effects.calls.push(call),
            }
        }
        effects.verdicts = self.member.take_verdicts();
        effects.notices = self.member.take_notices();
        if self.member.has_more_to_settle() {
            effects.reclaimed = self.driven.reclaim();
        }
        if !effects.verdicts.is_empty() {
            self.freed.iter().for_each(|freed| freed.notify_waiters());
        }
        let wake_at = self.member.wake_at(now);
        effects.reset_timer = wake_at.is_some_and(|at| self.timer_at.is_none_or(|set| at < set));
        let mode = self.member.mode(now);
        if mode != self.mode {
            effects.change = Some((self.mode, mode, why(&self.member, mode, now)));
            (self.mode, self.mode_since) = (mode, now);
        }
        effects
    }
}

fn why(member: &QuotaMember<TakeSender>, mode: QuotaMode, now: Instant) -> Option<String> {
    match mode {
        QuotaMode::Normal => None,
        QuotaMode::Rebuilding => {
            let left = member.rebuild_left(now);
            Some(format!("members tell the store what they hold; nothing new is granted for {left:?}"))
        }
        QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
            Some(member.outage().unwrap_or("the store was not heard in time").to_string())
        }
    }
}

/// Reports the result of a call to the core.
type CompleteFn<T> = fn(&mut QuotaMember<TakeSender>, Result<T, String>, Instant);

/// Reports to the core when a call ends, even if its task is dropped before its first poll.
struct CallGuard<T> {
    shared: Arc<MemberRuntime>,
    tell: Option<CompleteFn<T>>,
    deadline: Instant,
}

impl<T> CallGuard<T> {
    fn close(mut self, reply: Result<T, StoreError>) {
        self.end(reply.map_err(|error| error.to_string()));
    }

    fn end(&mut self, reply: Result<T, String>) {
        if let Some(tell) = self.tell.take() {
            self.shared.update(|member, now| tell(member, reply, now));
            self.shared.reply_received.notify_waiters();
        }
    }
}

impl<T> Drop for CallGuard<T> {
    fn drop(&mut self) {
        let why = match now() >= self.deadline {
            true => StoreError::Timeout(self.shared.call_timeout).to_string(),
            false => "the call was dropped before its answer came; has its runtime ended?".into(),
        };
        self.end(Err(why));
    }
}

/// Timer task: performs what becomes due without a call or a caller.
async fn run_timer(shared: Weak<MemberRuntime>, timer: Arc<Notify>) {
    let timekeeper = TimerGuard(shared);
    loop {
        let Some(strong) = timekeeper.0.upgrade() else { return };
        let wake_at = strong.tick();
        drop(strong);
        match wake_at {
            // Woken or expired: in both cases it checks again.
            Some(at) => drop(tokio::time::timeout_at(at.into(), timer.notified()).await),
            None => timer.notified().await,
        }
    }
}

/// Reclaims the driven call when the runtime drops the timer task.
struct TimerGuard(Weak<MemberRuntime>);

impl Drop for TimerGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade()
            && let Some(call) = shared.with_driven(DrivenCall::disable)
        {
            shared.spawn_call(call);
        }
    }
}

/// Pressure task: returns idle units when another member is refused.
async fn run_pressure_listener(shared: Weak<MemberRuntime>, store: Arc<dyn Store>) {
    loop {
        store.wait_for_pressure().await;
        let Some(strong) = shared.upgrade() else { return };
        strong.update(|member, _| member.on_pressure());
    }
}

fn log(notice: &MemberNotice) {
    match notice {
        MemberNotice::Joined { member, members } => debug!(%member, members, "quota member joined"),
        MemberNotice::Rejoined { why, member } => {
            warn!(%member, why = why.as_str(), "quota member rejoined: all held units are pushed");
        }
        MemberNotice::StoreUnavailable { why } => warn!(why, "quota store unavailable"),
        MemberNotice::StoreAvailable => info!("quota store available"),
        MemberNotice::StoreLostData => warn!("quota store lost its data: rebuild started"),
    }
}

/// Uses tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Random number from std's hasher keys. Epochs must differ; they need not be secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}
