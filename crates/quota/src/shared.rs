//! What the handles of a member share: its books under one short lock, and the calls on their way.
//!
//! Invariant: the lock is never held across an await or while a lease is dropped; every call that the core began ends with
//! its answer, a timeout, or the news that it was dropped.
//! Each call brings its answer back to the core itself; whoever touched the core starts what it wants done next, so no worker
//! stands between a caller and the store. A caller that waits for a settlement drives it (`driven.rs`), every other call is a
//! task of its own, and one more task sleeps until the next beat.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::config::MemberConfig;
use crate::core::member::{AccountRef, Call, Member, Take, Verdict};
use crate::driven::{Driven, Flight};
use crate::error::Refusal;
use crate::lease::Unit;
use crate::status::{BudgetStatus, KeyedStatus, Mode, Notice, Status};
use crate::store::{Calling, Settlement, Store, StoreError};
use crate::wait::{Awaited, Waiting};

pub(crate) struct Shared {
    books: Mutex<Books>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    runtime: Handle,
    /// Wakes the task that sleeps until the next beat.
    timer: Arc<Notify>,
    /// Rung when the store was heard, or wasn't.
    heard: Notify,
    /// The task that listens for pressure.
    listener: OnceLock<AbortHandle>,
}

struct Books {
    member: Member<Waiting>,
    mode: Mode,
    mode_since: Instant,
    timer_at: Option<Instant>,
    /// Tasks of calls that may still be on their way. A timer for each would cost more than the call: the one timer looks
    /// after all.
    calls: Vec<OnItsWay>,
    driven: Driven,
    /// For each budget, rung when a unit comes back or the slice grows.
    freed: Vec<Arc<Notify>>,
}

struct OnItsWay {
    deadline: Instant,
    task: AbortHandle,
}

/// What came of a try to take a unit.
pub(crate) enum Taken {
    Now(Result<Unit, Refusal>),
    Later(Awaited),
}

/// What to do once the lock is open again.
#[derive(Default)]
struct Todo {
    settlement: Option<Settlement>,
    /// Other calls.
    calls: Vec<Call>,
    verdicts: Vec<(Waiting, Verdict)>,
    notices: Vec<Notice>,
    change: Option<(Mode, Mode, Option<String>)>,
    reset_timer: bool,
    /// A call that its caller doesn't drive any longer.
    reclaimed: Option<Flight>,
}

impl Shared {
    /// Must be called within a tokio runtime, which the member's tasks then live on.
    pub(crate) fn begin(store: Arc<dyn Store>, config: MemberConfig) -> Arc<Shared> {
        let now = now();
        let member = Member::new(config.name, config.rules.made_sensible(), random(), now);
        let books = Books {
            mode: member.mode(now),
            member,
            mode_since: now,
            timer_at: None,
            calls: Vec::new(),
            driven: Driven::default(),
            freed: Vec::new(),
        };
        let shared = Arc::new(Shared {
            books: Mutex::new(books),
            store,
            call_timeout: config.call_timeout,
            runtime: Handle::current(),
            timer: Arc::new(Notify::new()),
            heard: Notify::new(),
            listener: OnceLock::new(),
        });
        shared.runtime.spawn(keep_time(Arc::downgrade(&shared), shared.timer.clone()));
        let listening = shared.runtime.spawn(listen(Arc::downgrade(&shared), shared.store.clone()));
        shared.listener.get_or_init(|| listening.abort_handle());
        shared
    }

    /// Waits until the store has let this member in, or is known to be away.
    pub(crate) async fn settled_in(&self) {
        loop {
            let heard = self.heard.notified();
            if self.look(|member, _| member.is_settled_in()) {
                return;
            }
            heard.await;
        }
    }

    pub(crate) fn take(self: &Arc<Self>, of: &AccountRef) -> Taken {
        let now = now();
        let mut books = self.locked();
        let mut slot = None;
        match books.member.take(of, now, || Waiting::at(slot.insert(Arc::default()))) {
            Take::Granted => Taken::Now(Ok(Unit::new(self.clone(), of.clone()))),
            Take::Refused(refusal) => Taken::Now(Err(refusal)),
            Take::Waiting => {
                let mut todo = books.review(now);
                let driven = books.begin_driving(&mut todo, now + self.call_timeout / 2);
                drop(books);
                let driven = driven.map(|(id, settlement)| (id, self.flight(Call::Settle(settlement), now)));
                let slot = slot.expect("whoever waits has left a waiter");
                let awaited = Awaited::new(self.clone(), slot, driven);
                self.perform(todo, now);
                Taken::Later(awaited)
            }
        }
    }

    pub(crate) fn try_take(self: &Arc<Self>, of: &AccountRef) -> Result<Unit, Refusal> {
        self.locked().member.try_take(of, now())?;
        Ok(Unit::new(self.clone(), of.clone()))
    }

    /// Called by a unit that is dropped.
    pub(crate) fn give(self: &Arc<Self>, of: &AccountRef) {
        let now = now();
        let mut books = self.locked();
        books.member.give(of, now);
        if let AccountRef::Budget(index) = of {
            books.freed[*index].notify_waiters();
        }
        let todo = books.review(now);
        drop(books);
        self.perform(todo, now);
    }

    /// Changes something in the core, then does what it wants done.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Member<Waiting>, Instant) -> T) -> T {
        let now = now();
        let mut books = self.locked();
        let result = change(&mut books.member, now);
        let todo = books.review(now);
        drop(books);
        self.perform(todo, now);
        result
    }

    /// Does what time alone has made due, and says when to come again.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        let now = now();
        let mut books = self.locked();
        let mut todo = books.review(now);
        books.calls.retain(|call| !call.task.is_finished());
        let late = books.take_late_calls(now);
        if books.driven.hand_over_at().is_some_and(|at| at <= now) {
            todo.reclaimed = todo.reclaimed.or(books.driven.reclaim());
        }
        let deadlines = books.calls.iter().map(|call| call.deadline);
        let wake_at = deadlines.chain(books.member.wake_at(now)).chain(books.driven.hand_over_at()).min();
        books.timer_at = wake_at;
        drop(books);
        self.perform(todo, now);
        // Each tells the core as its task is dropped.
        late.iter().for_each(AbortHandle::abort);
        wake_at
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(task)
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Member<Waiting>, Instant) -> T) -> T {
        look(&self.locked().member, now())
    }

    /// Registers a budget, or sets its limit anew.
    pub(crate) fn budget(
        self: &Arc<Self>,
        add: impl FnOnce(&mut Member<Waiting>) -> usize,
    ) -> (usize, Arc<Notify>) {
        let index = self.change(|member, _| add(member));
        let mut books = self.locked();
        while books.freed.len() <= index {
            books.freed.push(Arc::new(Notify::new()));
        }
        (index, books.freed[index].clone())
    }

    pub(crate) fn status(&self) -> Status {
        let (books, now) = (self.locked(), now());
        let Books { member, .. } = &*books;
        // The mode may have changed by itself a moment ago.
        let mode = member.mode(now);
        let since = if mode == books.mode { books.mode_since } else { now };
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

    /// Gives everything back at once; nothing is granted any more.
    pub(crate) async fn leave(self: &Arc<Self>) -> Result<(), StoreError> {
        let member = self.change(|member, _| {
            member.leave();
            member.id().clone()
        });
        self.in_time(self.store.leave(member)).await
    }

    /// A call to the store, with the time that it may take.
    pub(crate) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.call_timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Timeout(self.call_timeout)),
        }
    }

    pub(crate) fn driven<T>(&self, change: impl FnOnce(&mut Driven) -> T) -> T {
        change(&mut self.locked().driven)
    }

    pub(crate) fn on_runtime<T>(&self, work: impl FnOnce() -> T) -> T {
        let _within = self.runtime.enter();
        work()
    }

    fn perform(self: &Arc<Self>, todo: Todo, now: Instant) {
        let Todo { settlement, calls, verdicts, notices, change, reset_timer, reclaimed } = todo;
        let calls = calls.into_iter().chain(settlement.map(Call::Settle));
        for flight in calls.map(|call| self.flight(call, now)).chain(reclaimed) {
            self.spawn_flight(flight);
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
                Mode::Normal => info!(%from, %to, "quota changed its mode"),
                Mode::WithinSlices | Mode::Degraded(_) | Mode::Rebuilding => {
                    warn!(%from, %to, why, "quota changed its mode");
                }
            }
        }
        for (caller, verdict) in verdicts {
            // The unit of a caller that has gone is dropped here, which gives it back.
            caller.tell(verdict.map(|of| Unit::new(self.clone(), of)));
        }
    }

    fn flight(self: &Arc<Self>, call: Call, now: Instant) -> Flight {
        match call {
            Call::Beat(beat) => self.open(Member::on_pulse, |store| store.beat(beat), now),
            Call::Settle(settlement) => self.open(Member::on_settled, |store| store.settle(settlement), now),
            Call::Leave(predecessor) => self.open(Member::on_left, |store| store.leave(predecessor), now),
        }
    }

    fn open<T: Send + 'static>(
        self: &Arc<Self>,
        tell: Tell<T>,
        call: impl FnOnce(&dyn Store) -> Calling<'_, T> + Send + 'static,
        now: Instant,
    ) -> Flight {
        let deadline = now + self.call_timeout;
        let open = Open { shared: self.clone(), tell: Some(tell), deadline };
        let call = Box::pin(async move {
            let answer = call(&*open.shared.clone().store).await;
            open.close(answer);
        });
        Flight { deadline, call }
    }

    pub(crate) fn spawn_flight(self: &Arc<Self>, flight: Flight) {
        let Flight { deadline, call } = flight;
        let task = self.runtime.spawn(call).abort_handle();
        let mut books = self.locked();
        books.calls.retain(|call| !call.task.is_finished());
        books.calls.push(OnItsWay { deadline, task });
        let too_late = books.timer_at.is_none_or(|at| at > deadline);
        drop(books);
        if too_late {
            self.timer.notify_one();
        }
    }

    fn locked(&self) -> MutexGuard<'_, Books> {
        // A panic in the core is a bug of ours, but callers must still be able to give their units back.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.timer.notify_one();
        self.listener.get().inspect(|listener| listener.abort());
        let books = self.books.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !books.member.has_left() {
            // Nobody holds anything any more. If this doesn't arrive, the TTL says the same a little later.
            let (store, member) = (self.store.clone(), books.member.id().clone());
            self.runtime.spawn(async move { store.leave(member).await });
        }
    }
}

impl Books {
    /// Leaves the settlement, if there is one, to the caller who waits for it.
    fn begin_driving(&mut self, todo: &mut Todo, hand_over_at: Instant) -> Option<(u64, Settlement)> {
        if todo.settlement.is_none() || self.member.has_more_to_settle() {
            return None;
        }
        let id = self.driven.begin(hand_over_at)?;
        todo.reset_timer |= self.timer_at.is_none_or(|at| at > hand_over_at);
        Some(id).zip(todo.settlement.take())
    }

    fn take_late_calls(&mut self, now: Instant) -> Vec<AbortHandle> {
        let is_late = |call: &mut OnItsWay| call.deadline <= now;
        self.calls.extract_if(.., is_late).map(|call| call.task).collect()
    }

    /// Collects what the core wants done.
    fn review(&mut self, now: Instant) -> Todo {
        let mut todo = Todo::default();
        while let Some(call) = self.member.poll(now) {
            match call {
                Call::Settle(settlement) => todo.settlement = Some(settlement), // one at a time
                Call::Beat(_) | Call::Leave(_) => todo.calls.push(call),
            }
        }
        todo.verdicts = self.member.take_verdicts();
        todo.notices = self.member.take_notices();
        if self.member.has_more_to_settle() {
            todo.reclaimed = self.driven.reclaim();
        }
        if !todo.verdicts.is_empty() {
            self.freed.iter().for_each(|freed| freed.notify_waiters());
        }
        let wake_at = self.member.wake_at(now);
        todo.reset_timer = wake_at.is_some_and(|at| self.timer_at.is_none_or(|set| at < set));
        let mode = self.member.mode(now);
        if mode != self.mode {
            todo.change = Some((self.mode, mode, why(&self.member, mode, now)));
            (self.mode, self.mode_since) = (mode, now);
        }
        todo
    }
}

fn why(member: &Member<Waiting>, mode: Mode, now: Instant) -> Option<String> {
    match mode {
        Mode::Normal => None,
        Mode::Rebuilding => {
            let left = member.rebuild_left(now);
            Some(format!("members tell the store what they hold; nothing new is granted for {left:?}"))
        }
        Mode::WithinSlices | Mode::Degraded(_) => {
            Some(member.outage().unwrap_or("the store was not heard in time").to_string())
        }
    }
}

/// Tells the core what came of a call.
type Tell<T> = fn(&mut Member<Waiting>, Result<T, String>, Instant);

/// A call that is on its way: whatever becomes of its task, even before it first runs, the core hears of it.
struct Open<T> {
    shared: Arc<Shared>,
    tell: Option<Tell<T>>,
    deadline: Instant,
}

impl<T> Open<T> {
    fn close(mut self, answer: Result<T, StoreError>) {
        self.end(answer.map_err(|error| error.to_string()));
    }

    fn end(&mut self, answer: Result<T, String>) {
        if let Some(tell) = self.tell.take() {
            self.shared.change(|member, now| tell(member, answer, now));
            self.shared.heard.notify_waiters();
        }
    }
}

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        let why = match now() >= self.deadline {
            true => StoreError::Timeout(self.shared.call_timeout).to_string(),
            false => "the call was dropped before its answer came; has its runtime ended?".into(),
        };
        self.end(Err(why));
    }
}

/// Polls the core when time alone has changed something.
async fn keep_time(shared: Weak<Shared>, timer: Arc<Notify>) {
    let timekeeper = Timekeeper(shared);
    loop {
        let Some(strong) = timekeeper.0.upgrade() else { return };
        let wake_at = strong.tick();
        drop(strong);
        match wake_at {
            // Whether it was woken or slept long enough, it looks again.
            Some(at) => drop(tokio::time::timeout_at(at.into(), timer.notified()).await),
            None => timer.notified().await,
        }
    }
}

/// Dropped with the runtime.
struct Timekeeper(Weak<Shared>);

impl Drop for Timekeeper {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade()
            && let Some(flight) = shared.driven(Driven::end_all)
        {
            shared.spawn_flight(flight);
        }
    }
}

/// Gives back what lies idle when somebody else is refused.
async fn listen(shared: Weak<Shared>, store: Arc<dyn Store>) {
    loop {
        store.pressed().await;
        let Some(strong) = shared.upgrade() else { return };
        strong.change(|member, _| member.on_pressed());
    }
}

fn log(notice: &Notice) {
    match notice {
        Notice::Joined { member, members } => debug!(%member, members, "joined the store's members"),
        Notice::Reborn { why, member } => {
            warn!(%member, why = why.as_str(), "began a new incarnation and tells the store all it holds");
        }
        Notice::StoreIsGone { why } => warn!(why, "the quota store is away"),
        Notice::StoreIsBack => info!("the quota store is back"),
        Notice::StoreLostMemory => warn!("the quota store has lost its memory"),
    }
}

/// Follows tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Of std's hasher keys, which the system seeds: epochs must differ, not be secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}
