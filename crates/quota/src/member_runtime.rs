//! Runs a member: holds the core behind one mutex, sends its calls to the store and returns the
//! replies.
//!
//! Invariant: the mutex is never held across an await or while a lease is dropped. Every call that
//! the core began ends with a reply, a timeout, or a report that it was dropped.
//! There is no worker task. Each call reports its own result, and the code that changed the core
//! performs its effects. A settlement is polled by the caller that waits for it (`driven_call.rs`);
//! every other call has its own task. One more task is the timer, another listens for pressure.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::call_guard::{CallGuard, CompleteFn};
use crate::config::MemberConfig;
use crate::core::member::{AccountId, MemberCall, QuotaMember, TakeDecision};
use crate::driven_call::{DrivenCall, InFlightCall};
use crate::error::QuotaRefusal;
use crate::lease::UnitGuard;
use crate::random_id::random_id;
use crate::runtime_state::{CallTask, RuntimeEffects, RuntimeState, why};
use crate::status::{BudgetStatus, KeyedStatus, MemberNotice, QuotaMode, Status};
use crate::store::{Store, StoreError, StoreFuture};
use crate::take_future::{TakeFuture, TakeSender};

pub(crate) struct MemberRuntime {
    /// Usable after a panic in the core: callers must be able to return their units.
    state: Mutex<RuntimeState>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    tokio_handle: Handle,
    /// Wakes the timer task.
    timer: Arc<Notify>,
    /// Notified after each reply or failure of the store, and when the member leaves.
    pub(crate) reply_received: Notify,
    /// The task that listens for pressure.
    listener: OnceLock<AbortHandle>,
}

/// Result of an attempt to take a unit.
pub(crate) enum TakeResult {
    Ready(Result<UnitGuard, QuotaRefusal>),
    Pending(TakeFuture),
}

impl MemberRuntime {
    /// Starts a member. Must be called within a tokio runtime, which then runs the member's tasks.
    pub(crate) fn start(store: Arc<dyn Store>, config: MemberConfig) -> Arc<MemberRuntime> {
        let now = now();
        let member = QuotaMember::new(config.name, config.rules.clamped(), random_id(), now);
        let state = RuntimeState::new(member, now);
        let runtime = Arc::new(MemberRuntime {
            state: Mutex::new(state),
            store,
            call_timeout: config.call_timeout,
            tokio_handle: Handle::current(),
            timer: Arc::new(Notify::new()),
            reply_received: Notify::new(),
            listener: OnceLock::new(),
        });
        runtime.tokio_handle.spawn(run_timer(Arc::downgrade(&runtime), runtime.timer.clone()));
        let listener_task = runtime
            .tokio_handle
            .spawn(run_pressure_listener(Arc::downgrade(&runtime), runtime.store.clone()));
        runtime.listener.get_or_init(|| listener_task.abort_handle());
        runtime
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

    /// Waits until the mode is normal. Fails if this member has left.
    pub(crate) async fn wait_until_ready(&self) -> Result<(), QuotaRefusal> {
        loop {
            let reply_received = self.reply_received.notified();
            let state = self.read(|member, now| (member.has_left(), member.mode(now)));
            match state {
                (true, _) => return Err(QuotaRefusal::member_has_left()),
                (false, QuotaMode::Normal) => return Ok(()),
                (false, _) => reply_received.await,
            }
        }
    }

    pub(crate) fn take(self: &Arc<Self>, account_id: &AccountId) -> TakeResult {
        let now = now();
        let mut state = self.state.lock();
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
        self.state.lock().member.try_take(account_id, now())?;
        Ok(UnitGuard::new(self.clone(), account_id.clone()))
    }

    /// Returns a unit. Called by a guard that is dropped.
    pub(crate) fn release(self: &Arc<Self>, account_id: &AccountId) {
        let now = now();
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        let result = update(&mut state.member, now);
        let effects = state.collect_effects(now);
        drop(state);
        self.perform(effects, now);
        result
    }

    /// Performs what has become due, and returns when to call it again.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        let now = now();
        let mut state = self.state.lock();
        let mut effects = state.collect_effects(now);
        state.call_tasks.retain(|call| !call.task.is_finished());
        let expired = state.take_expired_calls(now);
        if state.driven.hand_over_at().is_some_and(|at| at <= now) {
            effects.reclaimed = effects.reclaimed.or(state.driven.reclaim());
        }
        let deadlines = state.call_tasks.iter().map(|call| call.deadline);
        let wake_at = deadlines.chain(state.member.wake_at(now)).chain(state.driven.hand_over_at()).min();
        state.timer_at = wake_at;
        drop(state);
        self.perform(effects, now);
        // Each reports to the core when its task is dropped.
        expired.iter().for_each(AbortHandle::abort);
        wake_at
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.tokio_handle.spawn(task)
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&QuotaMember<TakeSender>, Instant) -> T) -> T {
        read(&self.state.lock().member, now())
    }

    /// Registers a budget, or updates its limit.
    pub(crate) fn register_budget(
        self: &Arc<Self>,
        add: impl FnOnce(&mut QuotaMember<TakeSender>) -> usize,
    ) -> (usize, Arc<Notify>) {
        let index = self.update(|member, _| add(member));
        let mut state = self.state.lock();
        while state.freed.len() <= index {
            state.freed.push(Arc::new(Notify::new()));
        }
        (index, state.freed[index].clone())
    }

    pub(crate) fn status(&self) -> Status {
        let (state, now) = (self.state.lock(), now());
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
        self.reply_received.notify_waiters(); // callers that wait for a state that can't come
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
        update(&mut self.state.lock().driven)
    }

    pub(crate) fn enter_runtime<T>(&self, work: impl FnOnce() -> T) -> T {
        let _within = self.tokio_handle.enter();
        work()
    }

    fn perform(self: &Arc<Self>, effects: RuntimeEffects, now: Instant) {
        let RuntimeEffects { settlement, calls, verdicts, notices, mode_change, reset_timer, reclaimed } =
            effects;
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
        if let Some((from, to, why)) = mode_change {
            let why = why.unwrap_or_default();
            match to {
                QuotaMode::Normal => info!(%from, %to, "quota mode changed"),
                QuotaMode::WithinSlices | QuotaMode::Degraded(_) | QuotaMode::Rebuilding => {
                    warn!(%from, %to, why, "quota mode changed");
                }
            }
        }
        for (caller, verdict) in verdicts {
            // If the caller's future was dropped, the unit is dropped here, which returns it.
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
        complete: CompleteFn<T>,
        call: impl FnOnce(&dyn Store) -> StoreFuture<'_, T> + Send + 'static,
        now: Instant,
    ) -> InFlightCall {
        let deadline = now + self.call_timeout;
        let guard = CallGuard::new(self.clone(), complete, deadline);
        let future = Box::pin(async move {
            let reply = call(&*guard.runtime.clone().store).await;
            guard.finish(reply);
        });
        InFlightCall { deadline, future }
    }

    pub(crate) fn spawn_call(self: &Arc<Self>, call: InFlightCall) {
        let InFlightCall { deadline, future } = call;
        let task = self.tokio_handle.spawn(future).abort_handle();
        let mut state = self.state.lock();
        state.call_tasks.retain(|call| !call.task.is_finished());
        state.call_tasks.push(CallTask { deadline, task });
        let timer_is_later = state.timer_at.is_none_or(|at| at > deadline);
        drop(state);
        if timer_is_later {
            self.timer.notify_one();
        }
    }
}

impl Drop for MemberRuntime {
    fn drop(&mut self) {
        self.timer.notify_one();
        self.listener.get().inspect(|listener| listener.abort());
        let state = self.state.get_mut();
        if !state.member.has_left() {
            // No handle and no lease is left. If this call is lost, the member expires after its
            // TTL.
            let (store, member) = (self.store.clone(), state.member.id().clone());
            self.tokio_handle.spawn(async move { store.leave(member).await });
        }
    }
}

/// Runs the timer task: performs what becomes due without a call or a caller.
async fn run_timer(runtime: Weak<MemberRuntime>, timer: Arc<Notify>) {
    let guard = TimerGuard(runtime);
    loop {
        let Some(strong) = guard.0.upgrade() else { return };
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
        if let Some(runtime) = self.0.upgrade()
            && let Some(call) = runtime.with_driven(DrivenCall::disable)
        {
            runtime.spawn_call(call);
        }
    }
}

/// Runs the pressure task: returns idle units when another member is refused.
async fn run_pressure_listener(runtime: Weak<MemberRuntime>, store: Arc<dyn Store>) {
    loop {
        store.wait_for_pressure().await;
        let Some(strong) = runtime.upgrade() else { return };
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
