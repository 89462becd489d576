//! One-shot channel for the verdict on one unit: `TakeFuture` receives it in the caller's task,
//! `TakeSender` sends it from the core.
//!
//! Invariant: a wait ends with exactly one verdict, and a unit that can't be delivered is returned.
//! A caller that drives the settlement isn't woken by its own verdict: it is being polled already.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::core::account::TakeWaiter;
use crate::driven_call::InFlightCall;
use crate::error::QuotaRefusal;
use crate::lease::UnitGuard;
use crate::member_runtime::MemberRuntime;

/// Future that resolves to the verdict.
pub(crate) struct TakeFuture {
    runtime: Arc<MemberRuntime>,
    slot: Arc<VerdictSlot>,
    /// Id of the call that it drives.
    drives: Option<u64>,
    /// The driven call before its first poll.
    call: Option<InFlightCall>,
}

/// Sends the verdict to a [`TakeFuture`].
pub(crate) struct TakeSender(Arc<VerdictSlot>);

impl TakeSender {
    pub(crate) fn new(slot: &Arc<VerdictSlot>) -> Self {
        TakeSender(slot.clone())
    }

    /// Delivers the verdict. If the future was dropped, the unit is dropped too, which returns it.
    pub(crate) fn send(self, verdict: Result<UnitGuard, QuotaRefusal>) {
        self.0.send(verdict);
    }
}

impl Drop for TakeSender {
    fn drop(&mut self) {
        // Only a core that panicked drops a sender without a verdict.
        let unsent = matches!(*self.0.state.lock(), State::Empty(_));
        if unsent {
            self.0.send(Err(QuotaRefusal::Unavailable {
                why: "this member has lost its state in a panic".into(),
            }));
        }
    }
}

impl TakeWaiter for TakeSender {
    fn is_cancelled(&self) -> bool {
        matches!(*self.0.state.lock(), State::Closed)
    }
}

impl TakeFuture {
    pub(crate) fn new(
        runtime: Arc<MemberRuntime>,
        slot: Arc<VerdictSlot>,
        driven: Option<(u64, InFlightCall)>,
    ) -> Self {
        let (drives, call) = driven.unzip();
        TakeFuture { runtime, slot, drives, call }
    }

    fn drive(&mut self, id: u64, cx: &mut Context<'_>) {
        let stored = || self.runtime.with_driven(|driven| driven.take_for_poll(id));
        let Some(mut call) = self.call.take().or_else(stored) else {
            return self.hand_over(); // the call runs in a task now
        };
        self.slot.mute();
        match self.runtime.enter_runtime(|| call.future.as_mut().poll(cx)) {
            Poll::Ready(()) => self.hand_over(),
            Poll::Pending => {
                if let Some(call) = self.runtime.with_driven(|driven| driven.return_after_poll(call)) {
                    self.drives = None;
                    self.runtime.spawn_call(call);
                }
            }
        }
    }

    /// Stops driving; the rest of the call runs in a task.
    fn hand_over(&mut self) {
        let Some(id) = self.drives.take() else { return };
        let stored = self.runtime.with_driven(|driven| driven.end(id));
        if let Some(call) = self.call.take().or(stored) {
            self.runtime.spawn_call(call);
        }
    }
}

impl Future for TakeFuture {
    type Output = Result<UnitGuard, QuotaRefusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(id) = self.drives {
            self.drive(id, cx);
        }
        self.slot.poll(cx)
    }
}

impl Drop for TakeFuture {
    fn drop(&mut self) {
        self.hand_over();
        self.slot.close();
    }
}

/// Holds the verdict between the sender and the future.
#[derive(Default)]
pub(crate) struct VerdictSlot {
    state: Mutex<State>,
}

enum State {
    /// No verdict yet. Holds the waker, unless the caller is being polled.
    Empty(Option<Waker>),
    Ready(Result<UnitGuard, QuotaRefusal>),
    /// The verdict was taken, or the caller was dropped.
    Closed,
}

impl Default for State {
    fn default() -> Self {
        State::Empty(None)
    }
}

impl VerdictSlot {
    fn send(&self, verdict: Result<UnitGuard, QuotaRefusal>) {
        let mut state = self.state.lock();
        if let State::Empty(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Ready(verdict);
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        } else {
            drop(state); // released first: dropping the unit takes another lock
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<UnitGuard, QuotaRefusal>> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Empty(Some(waker)) => waker.clone_from(cx.waker()),
            State::Empty(waker @ None) => *waker = Some(cx.waker().clone()),
            State::Ready(_) => match std::mem::replace(&mut *state, State::Closed) {
                State::Ready(verdict) => return Poll::Ready(verdict),
                State::Empty(_) | State::Closed => unreachable!("matched above, under the same lock"),
            },
            State::Closed => unreachable!("a completed future is not polled again"),
        }
        Poll::Pending
    }

    /// Removes the waker while the caller is polled.
    fn mute(&self) {
        let _waker = match &mut *self.state.lock() {
            State::Empty(waker) => waker.take(),
            State::Ready(_) | State::Closed => None,
        };
    }

    fn close(&self) {
        // Drops the unit and the waker outside the lock.
        let _previous = std::mem::replace(&mut *self.state.lock(), State::Closed);
    }
}
