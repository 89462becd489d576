//! What the handles of a reservoir share: its books under one short lock, and what follows from them.
//!
//! Invariant: the lock is never held across an await, nor while a connection is handed over, reset or closed; whatever becomes
//! of a task (it may panic, be cancelled, or never run because the runtime ends), its connection is counted out once.
//! Kept by: tasks hold [`Resetting`], [`Retiring`](crate::retiring::Retiring) or
//! [`Dialing`](crate::dialing::Dialing), which tell the books when they are
//! dropped.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_quota::Lease;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tracing::{debug, warn};

use crate::config::{OpenLimits, ReservoirConfig};
use crate::connect::{Connection, SlotHolders};
use crate::core::dice::Dice;
use crate::core::ledger::{Checkout, Entry, HandOver, Held, Ledger, Left, Plan, Waiter, Work};
use crate::core::line::Ticket;
use crate::core::retirements::Lingering;
use crate::error::{CheckoutError, Shortage};
use crate::guard::Guard;
use crate::metrics::Meters;
use crate::status::{MAX_LISTED, Status, ViewStatus};

pub(crate) struct Shared<C: Connection> {
    books: Mutex<Books<C>>,
    pub(crate) config: ReservoirConfig,
    pub(crate) limits: OpenLimits,
    pub(crate) meters: Meters,
    pub(crate) runtime: Handle,
    /// Wakes the refiller.
    pub(crate) refiller: Notify,
    /// Rung when a connection was opened or closed, or couldn't be opened.
    pub(crate) changed: Notify,
}

pub(crate) struct Books<C: Connection> {
    pub(crate) ledger: Ledger<Owned<C>, Waiting<C>>,
    views: Vec<String>,
    /// How many dials wait for a token, and what the last one failed of.
    pub(crate) waiting_for_rate: u32,
    pub(crate) trouble: Option<Shortage>,
}

/// A connection, and the unit of the budget that it takes for as long as it is open.
pub(crate) struct Owned<C> {
    pub(crate) connection: C,
    pub(crate) lease: Option<Lease>,
    /// What the dial gave up on its way here, such as a host that took too long; it goes with the connection's place.
    pub(crate) given_up: Option<SlotHolders>,
}

impl<C: Connection> Held for Owned<C> {
    fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }
}

/// A caller that waits.
pub(crate) struct Waiting<C: Connection> {
    /// `None`: the time is over.
    caller: oneshot::Sender<Option<Guard<C>>>,
    asked_at: Option<&'static Location<'static>>,
    deadline: Instant,
}

impl<C: Connection> Waiter for Waiting<C> {
    fn asked_at(&self) -> Option<&'static Location<'static>> {
        self.asked_at
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// What a try to check out came to.
pub(crate) enum Tried<C: Connection> {
    Lent(Guard<C>),
    Wait(InLine<C>),
}

impl<C: Connection> Shared<C> {
    pub(crate) fn new(config: ReservoirConfig, limits: OpenLimits) -> Arc<Self> {
        let ledger = Ledger::new(config.rules(), Dice::from_system(), now());
        let books = Books { ledger, views: Vec::new(), waiting_for_rate: 0, trouble: None };
        Arc::new(Shared {
            books: Mutex::new(books),
            meters: Meters::new(&config.service),
            config,
            limits,
            runtime: Handle::current(),
            refiller: Notify::new(),
            changed: Notify::new(),
        })
    }

    pub(crate) fn add_view(&self, name: &str, quota: u32) -> usize {
        let mut books = self.locked();
        books.views.push(name.into());
        books.ledger.views.add(quota)
    }

    /// Lends what is ready, or says why not.
    pub(crate) fn try_checkout(
        self: &Arc<Self>,
        view: usize,
        by: Option<&'static Location<'static>>,
    ) -> Result<Option<Guard<C>>, CheckoutError> {
        let now = now();
        let mut books = self.locked();
        let checkout = books.ledger.checkout(view, now, by);
        self.open(books);
        match checkout {
            Checkout::Lent(entry) => {
                self.meters.checkouts.increment(1);
                Ok(Some(Guard::new(self.clone(), view, entry)))
            }
            Checkout::None => {
                self.meters.empty.increment(1);
                Ok(None)
            }
            Checkout::Closed => Err(CheckoutError::Closed),
        }
    }

    /// Lends what is ready, or gives a place in line.
    pub(crate) fn checkout_or_wait(
        self: &Arc<Self>,
        view: usize,
        patience: Duration,
        by: Option<&'static Location<'static>>,
    ) -> Result<Tried<C>, CheckoutError> {
        let now = now();
        let mut books = self.locked();
        match books.ledger.checkout(view, now, by) {
            Checkout::Lent(entry) => {
                self.open(books);
                self.meters.checkouts.increment(1);
                Ok(Tried::Lent(Guard::new(self.clone(), view, entry)))
            }
            Checkout::Closed => Err(CheckoutError::Closed),
            Checkout::None if !books.ledger.may_wait() => {
                let waiting = books.ledger.views.waiting();
                self.open(books);
                Err(CheckoutError::Busy { waiting })
            }
            Checkout::None => {
                let (caller, verdict) = oneshot::channel();
                let waiting = Waiting { caller, asked_at: by, deadline: now + patience.min(FOREVER) };
                let ticket = Some(books.ledger.wait(view, waiting));
                self.open(books);
                self.meters.empty.increment(1);
                Ok(Tried::Wait(InLine { shared: self.clone(), view, ticket, verdict, since: now }))
            }
        }
    }

    /// Called by a guard that is dropped.
    pub(crate) fn give(self: &Arc<Self>, view: usize, entry: Entry<Owned<C>>, left: Left) {
        let now = now();
        let mut books = self.locked();
        books.ledger.give(view, entry, left, now);
        self.open(books);
    }

    pub(crate) fn is_fit(&self, entry: &Entry<Owned<C>>) -> bool {
        let now = now();
        self.look(|ledger| ledger.is_fit(entry, now))
    }

    /// What the refiller should do now.
    pub(crate) fn plan(self: &Arc<Self>) -> Plan {
        let now = now();
        let mut books = self.locked();
        let (plan, leaks) = (books.ledger.plan(now), books.ledger.leaks(now));
        let (counts, waiting) = (books.ledger.counts(), books.ledger.views.waiting());
        let lingering = books.ledger.lingering(now);
        self.open(books);
        for leak in leaks {
            self.meters.leaks.increment(1);
            let (service, held_for, taken_at) = (&self.config.service, leak.held_for, leak.taken_at);
            warn!(service, ?held_for, %taken_at, "a connection is held for longer than is believable");
        }
        self.meters.levels(counts, waiting);
        self.meters.lingering(lingering);
        plan
    }

    pub(crate) fn close(self: &Arc<Self>) {
        let now = now();
        let mut books = self.locked();
        books.ledger.close(now);
        self.open(books);
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Ledger<Owned<C>, Waiting<C>>) -> T) -> T {
        look(&self.locked().ledger)
    }

    /// What keeps the reservoir from being full.
    pub(crate) fn shortage(&self) -> Shortage {
        let (books, now) = (self.locked(), now());
        let (counts, backs_off) = (books.ledger.counts(), books.ledger.dial_again_at().is_some());
        match &books.trouble {
            _ if books.ledger.is_closing() => Shortage::Closed,
            Some(trouble) if backs_off || counts.dialing > 0 => trouble.clone(),
            _ if counts.dialing == 0 && books.ledger.is_full_of_lingering(now) => {
                let Lingering { count, longest } = books.ledger.lingering(now);
                let (max, lent) = (books.ledger.rules().max, counts.lent + counts.resetting);
                Shortage::Lingering { lingering: count, max, longest: longest.unwrap_or_default(), lent }
            }
            _ if books.waiting_for_rate > 0 => Shortage::RateLimited,
            _ if counts.dialing > 0 || counts.lent + counts.resetting == 0 => Shortage::Dialing,
            _ => Shortage::AllLent { lent: counts.lent + counts.resetting },
        }
    }

    pub(crate) fn view_full(&self, view: usize) -> Option<(String, u32)> {
        let books = self.locked();
        let views = &books.ledger.views;
        (!views.has_room(view)).then(|| (books.views[view].clone(), views.quota(view)))
    }

    pub(crate) fn status(&self) -> Status {
        let trouble = {
            let books = self.locked();
            books.trouble.as_ref().map(ToString::to_string)
        };
        let (books, now) = (self.locked(), now());
        let Books { ledger, views, .. } = &*books;
        let (rules, at) = (ledger.rules(), ledger.dial_again_at());
        let lingering = ledger.lingering(now);
        let views = views.iter().enumerate().map(|(view, name)| ViewStatus {
            name: name.clone(),
            quota: ledger.views.quota(view).min(rules.max),
            lent: ledger.views.lent(view),
        });
        Status {
            service: self.config.service.clone(),
            counts: ledger.counts(),
            target: rules.target,
            low_watermark: rules.low_watermark,
            max: rules.max,
            lingering: lingering.count,
            longest_lingering: lingering.longest,
            waiting: ledger.views.waiting(),
            trouble,
            dials_again_in: at.map(|at| at.saturating_duration_since(now)),
            closing: ledger.is_closing(),
            views: views.collect(),
            lives: ledger.lives(now, MAX_LISTED),
        }
    }

    /// Opens the lock, and does what is to be done.
    pub(crate) fn open(self: &Arc<Self>, mut books: MutexGuard<'_, Books<C>>) {
        if !books.ledger.has_work() {
            return;
        }
        if let Some(hand_over) = books.ledger.take_one_hand_over() {
            drop(books);
            return self.hand_over(hand_over);
        }
        let Work { hand_over, reset, retire, late, dismiss, wake } = books.ledger.take_work();
        drop(books);
        hand_over.into_iter().for_each(|hand_over| self.hand_over(hand_over));
        for entry in reset {
            self.start_reset(entry);
        }
        for retire in retire {
            self.start_retiring(retire);
        }
        late.into_iter().for_each(|waiting| drop(waiting.caller.send(None)));
        drop(dismiss);
        if wake {
            self.refiller.notify_one();
            self.changed.notify_waiters();
        }
    }

    fn hand_over(self: &Arc<Self>, (waiting, view, entry): HandOver<Owned<C>, Waiting<C>>) {
        self.meters.checkouts.increment(1);
        // Whoever has gone drops it here, and it goes to the next.
        drop(waiting.caller.send(Some(Guard::new(self.clone(), view, entry))));
    }

    fn start_reset(self: &Arc<Self>, entry: Entry<Owned<C>>) {
        let mut resetting = Resetting { shared: self.clone(), entry: Some(entry) };
        self.runtime.spawn(async move {
            let clean = resetting.run().await;
            resetting.end(clean);
        });
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, Books<C>> {
        // A panic in the books is a bug of ours, but connections must still find their way back.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in line. Dropping it gives it up.
pub(crate) struct InLine<C: Connection> {
    shared: Arc<Shared<C>>,
    view: usize,
    /// `None`: it was called.
    ticket: Option<Ticket>,
    verdict: oneshot::Receiver<Option<Guard<C>>>,
    since: Instant,
}

impl<C: Connection> InLine<C> {
    /// Waits until it is its turn, or its time is over.
    pub(crate) async fn turn(mut self) -> Result<Guard<C>, CheckoutError> {
        let turn = (&mut self.verdict).await;
        self.ticket = None;
        let waited = now().saturating_duration_since(self.since);
        self.shared.meters.wait_seconds.record(waited.as_secs_f64());
        match turn {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(self.went_without(waited)),
            Err(_) => Err(CheckoutError::Closed),
        }
    }

    fn went_without(&self, waited: Duration) -> CheckoutError {
        if let Some((view, quota)) = self.shared.view_full(self.view) {
            self.shared.meters.shortage("view_full");
            return CheckoutError::ViewFull { view, quota, waited };
        }
        let why = self.shared.shortage();
        self.shared.meters.shortage(why.as_str());
        CheckoutError::Empty { why, waited }
    }
}

impl<C: Connection> Drop for InLine<C> {
    fn drop(&mut self) {
        // If it has been called and not heard it, there is nobody to take out, and the guard goes back as the receiver is
        // dropped.
        if let Some(ticket) = self.ticket {
            let waiting = self.shared.locked().ledger.views.leave(self.view, ticket);
            drop(waiting);
        }
    }
}

/// Whether what the last caller left behind could be cleaned up in time.
pub(crate) async fn reset<C: Connection>(config: &ReservoirConfig, connection: &mut C) -> bool {
    let Some(script) = config.reset.script() else { return true };
    match tokio::time::timeout(config.reset_timeout, connection.reset(script)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            warn!(service = config.service, %error, "a connection couldn't be reset, and is closed");
            false
        }
        Err(_) => {
            debug!(service = config.service, within = ?config.reset_timeout, "a reset took too long");
            false
        }
    }
}

/// A connection that is being reset.
struct Resetting<C: Connection> {
    shared: Arc<Shared<C>>,
    entry: Option<Entry<Owned<C>>>,
}

impl<C: Connection> Resetting<C> {
    async fn run(&mut self) -> bool {
        let Some(entry) = &mut self.entry else { return false };
        reset(&self.shared.config, &mut entry.held_mut().connection).await
    }

    fn end(&mut self, is_clean: bool) {
        if let Some(entry) = self.entry.take() {
            let now = now();
            let mut books = self.shared.locked();
            books.ledger.was_reset(entry, is_clean, now);
            self.shared.open(books);
        }
    }
}

impl<C: Connection> Drop for Resetting<C> {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Longer than anybody waits or lives, and short enough to be added to any instant.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Follows tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
