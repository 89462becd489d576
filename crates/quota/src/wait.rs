//! A wait for the store's word: the core's end of it, and the caller's.
//!
//! Invariant: a wait ends with one verdict, and a unit that reaches nobody is given back.
//! A caller that drives the call which brings its verdict isn't woken by it: it is awake, and would be polled once more for
//! nothing, by another thread if the runtime has one.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::core::account::Waiter;
use crate::driven::Flight;
use crate::error::Refusal;
use crate::lease::Unit;
use crate::shared::Shared;

/// The caller's end.
pub(crate) struct Awaited {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    /// The call that it drives.
    drives: Option<u64>,
    /// That call, until it is first polled.
    flight: Option<Flight>,
}

/// The core's end.
pub(crate) struct Waiting(Arc<Slot>);

impl Waiting {
    pub(crate) fn at(slot: &Arc<Slot>) -> Self {
        Waiting(slot.clone())
    }

    /// The unit of a caller that has gone is dropped, which gives it back.
    pub(crate) fn tell(self, verdict: Result<Unit, Refusal>) {
        self.0.tell(verdict);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Only a core that panicked forgets somebody.
        let untold = matches!(*self.0.lock(), State::Open(_));
        if untold {
            self.0.tell(Err(Refusal::Unavailable { why: "this member has lost its books".into() }));
        }
    }
}

impl Waiter for Waiting {
    fn gone(&self) -> bool {
        matches!(*self.0.lock(), State::Gone)
    }
}

impl Awaited {
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>, driven: Option<(u64, Flight)>) -> Self {
        let (drives, flight) = driven.unzip();
        Awaited { shared, slot, drives, flight }
    }

    fn drive(&mut self, id: u64, cx: &mut Context<'_>) {
        let in_books = || self.shared.driven(|driven| driven.pick_up(id));
        let Some(mut flight) = self.flight.take().or_else(in_books) else {
            return self.hand_over(); // it goes on in a task
        };
        self.slot.mute();
        match self.shared.on_runtime(|| flight.call.as_mut().poll(cx)) {
            Poll::Ready(()) => self.hand_over(),
            Poll::Pending => {
                if let Some(flight) = self.shared.driven(|driven| driven.put_down(flight)) {
                    self.drives = None;
                    self.shared.spawn_flight(flight);
                }
            }
        }
    }

    /// Drives no longer; what is left of the call goes on in a task.
    fn hand_over(&mut self) {
        let Some(id) = self.drives.take() else { return };
        let in_books = self.shared.driven(|driven| driven.end(id));
        if let Some(flight) = self.flight.take().or(in_books) {
            self.shared.spawn_flight(flight);
        }
    }
}

impl Future for Awaited {
    type Output = Result<Unit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(id) = self.drives {
            self.drive(id, cx);
        }
        self.slot.poll(cx)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.hand_over();
        self.slot.close();
    }
}

/// Where the verdict is left.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

enum State {
    /// Whom to wake, unless it is awake.
    Open(Option<Waker>),
    Told(Result<Unit, Refusal>),
    /// The caller has its verdict, or has left.
    Gone,
}

impl Default for State {
    fn default() -> Self {
        State::Open(None)
    }
}

impl Slot {
    fn tell(&self, verdict: Result<Unit, Refusal>) {
        let mut state = self.lock();
        if let State::Open(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Told(verdict);
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        } else {
            drop(state); // before the unit, which is given back
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Unit, Refusal>> {
        let mut state = self.lock();
        match &mut *state {
            State::Open(Some(waker)) => waker.clone_from(cx.waker()),
            State::Open(waker @ None) => *waker = Some(cx.waker().clone()),
            State::Told(_) => match std::mem::replace(&mut *state, State::Gone) {
                State::Told(verdict) => return Poll::Ready(verdict),
                State::Open(_) | State::Gone => unreachable!("matched above, under the same lock"),
            },
            State::Gone => unreachable!("it has its verdict, and asks no more"),
        }
        Poll::Pending
    }

    /// The caller is awake.
    fn mute(&self) {
        let _waker = match &mut *self.lock() {
            State::Open(waker) => waker.take(),
            State::Told(_) | State::Gone => None,
        };
    }

    fn close(&self) {
        // A unit is given back, and a waker dropped, after the lock.
        let _left = std::mem::replace(&mut *self.lock(), State::Gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
