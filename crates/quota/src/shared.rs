//! What the handles of a member share: its books under one short lock, and the calls on their way.
//!
//! Invariant: the lock is never held across an await or while a lease is dropped; every call that the core began ends with
//! its answer, a timeout, or the news that it was dropped.
//! Each call is a task of its own that brings its answer back to the core; whoever touched the core starts what it wants
//! done next, so no worker stands between a caller and the store. One more task sleeps until the next beat.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::config::MemberConfig;
use crate::core::account::Waiter;
use crate::core::member::{AccountRef, Call, Member, Take, Verdict};
use crate::error::Refusal;
use crate::lease::Unit;
use crate::status::{BudgetStatus, KeyedStatus, Mode, Notice, Status};
use crate::store::{Calling, Store, StoreError};

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
    /// Calls that may still be on their way. A timer for each would cost more than the call: the one timer looks after all.
    calls: Vec<OnItsWay>,
    /// For each budget, rung when a unit comes back or the slice grows.
    freed: Vec<Arc<Notify>>,
}

struct OnItsWay {
    deadline: Instant,
    task: AbortHandle,
}

/// A caller that waits for the store's word.
pub(crate) struct Waiting(oneshot::Sender<Result<Unit, Refusal>>);

impl Waiter for Waiting {
    fn gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// What came of a try to take a unit.
pub(crate) enum Taken {
    Now(Result<Unit, Refusal>),
    Later(oneshot::Receiver<Result<Unit, Refusal>>),
}

/// What to do once the lock is open again.
#[derive(Default)]
struct Todo {
    calls: Vec<Call>,
    verdicts: Vec<(Waiting, Verdict)>,
    notices: Vec<Notice>,
    change: Option<(Mode, Mode, Option<String>)>,
    reset_timer: bool,
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
        let mut receiver = None;
        let waiter = || {
            let (sender, verdict) = oneshot::channel();
            receiver = Some(verdict);
            Waiting(sender)
        };
        match books.member.take(of, now, waiter) {
            Take::Granted => Taken::Now(Ok(Unit::new(self.clone(), of.clone()))),
            Take::Refused(refusal) => Taken::Now(Err(refusal)),
            Take::Waiting => {
                let todo = books.review(now);
                drop(books);
                self.perform(todo);
                Taken::Later(receiver.expect("whoever waits has left a waiter"))
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
        self.perform(todo);
    }

    /// Changes something in the core, then does what it wants done.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Member<Waiting>, Instant) -> T) -> T {
        let now = now();
        let mut books = self.locked();
        let result = change(&mut books.member, now);
        let todo = books.review(now);
        drop(books);
        self.perform(todo);
        result
    }

    /// Does what time alone has made due, and says when to come again.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        let now = now();
        let mut books = self.locked();
        let todo = books.review(now);
        books.calls.retain(|call| !call.task.is_finished());
        let late = books.take_late_calls(now);
        let deadline = books.calls.iter().map(|call| call.deadline).min();
        let wake_at = books.member.wake_at(now).into_iter().chain(deadline).min();
        books.timer_at = wake_at;
        drop(books);
        self.perform(todo);
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

    fn perform(self: &Arc<Self>, todo: Todo) {
        let Todo { calls, verdicts, notices, change, reset_timer } = todo;
        for call in calls {
            self.start_call(call);
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
        for (Waiting(caller), verdict) in verdicts {
            // A caller that has gone drops its unit here, which gives it back.
            drop(caller.send(verdict.map(|of| Unit::new(self.clone(), of))));
        }
    }

    fn start_call(self: &Arc<Self>, call: Call) {
        match call {
            Call::Beat(beat) => self.start(Member::on_pulse, |store| store.beat(beat)),
            Call::Settle(settlement) => self.start(Member::on_settled, |store| store.settle(settlement)),
            Call::Leave(predecessor) => self.start(Member::on_left, |store| store.leave(predecessor)),
        }
    }

    fn start<T: Send + 'static>(
        self: &Arc<Self>,
        tell: Tell<T>,
        call: impl FnOnce(&dyn Store) -> Calling<'_, T> + Send + 'static,
    ) {
        let deadline = now() + self.call_timeout;
        let open = Open { shared: self.clone(), tell: Some(tell), deadline };
        let task = self.runtime.spawn(async move {
            let answer = call(&*open.shared.clone().store).await;
            open.close(answer);
        });
        let mut books = self.locked();
        books.calls.retain(|call| !call.task.is_finished());
        books.calls.push(OnItsWay { deadline, task: task.abort_handle() });
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
    fn take_late_calls(&mut self, now: Instant) -> Vec<AbortHandle> {
        let is_late = |call: &mut OnItsWay| call.deadline <= now;
        self.calls.extract_if(.., is_late).map(|call| call.task).collect()
    }

    /// Collects what the core wants done.
    fn review(&mut self, now: Instant) -> Todo {
        let mut todo = Todo::default();
        while let Some(call) = self.member.poll(now) {
            todo.calls.push(call);
        }
        todo.verdicts = self.member.take_verdicts();
        todo.notices = self.member.take_notices();
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
            Some(format!("the store had no memory of this namespace; nothing new is granted for {left:?}"))
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
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let wake_at = strong.tick();
        drop(strong);
        match wake_at {
            // Whether it was woken or slept long enough, it looks again.
            Some(at) => drop(tokio::time::timeout_at(at.into(), timer.notified()).await),
            None => timer.notified().await,
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
