//! Reply slot: where one caller waits for the result of one request.
//!
//! Invariant: a slot is completed at most once, and only the caller's task takes the result. The
//! worker only wakes the caller.
//! Bounds: at most [`MAX_SPARE_SLOTS`] spare slots for each thread. Slots are reused, because a new
//! one for each request would double its allocations.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use crate::core::pipeline::{Replies, ReplySink};
use crate::error::RequestError;
use crate::sync::{Arc, Mutex};

pub(crate) type RequestResult = Result<Replies, RequestError>;

const MAX_SPARE_SLOTS: usize = 1024;

#[cfg(not(all(test, forebay_loom)))]
thread_local! {
    /// Memory to reuse. Per thread, because a shared pool would need another lock for each request.
    static SPARE_SLOTS: RefCell<Vec<SharedReplySlot>> = const { RefCell::new(Vec::new()) };
}

#[cfg(all(test, forebay_loom))]
loom::thread_local! {
    static SPARE_SLOTS: RefCell<Vec<SharedReplySlot>> = RefCell::new(Vec::new());
}

/// A slot, held by its caller and by the worker.
pub(crate) type SharedReplySlot = Arc<ReplySlot>;

#[derive(Debug)]
pub(crate) struct ReplySlot(Mutex<State>);

#[derive(Debug)]
enum State {
    Waiting(Waker),
    Completed(RequestResult),
    /// The result was taken, or the caller dropped the future.
    Done,
}

impl State {
    fn take_result(&mut self) -> RequestResult {
        match std::mem::replace(self, State::Done) {
            State::Completed(result) => result,
            State::Waiting(_) | State::Done => unreachable!("a completed request is not polled again"),
        }
    }
}

impl ReplySlot {
    pub(crate) fn waiting(waker: Waker) -> SharedReplySlot {
        // Thread-local storage is not accessible while a thread is ending.
        let spare = SPARE_SLOTS.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let mut slot = spare.unwrap_or_else(|| Arc::new(ReplySlot(Mutex::new(State::Done))));
        let exclusive = Arc::get_mut(&mut slot).expect("a spare slot has one owner");
        *exclusive.0.get_mut() = State::Waiting(waker);
        slot
    }

    /// Keeps a slot for reuse, if the worker has released it.
    pub(crate) fn recycle(mut slot: SharedReplySlot) {
        if Arc::get_mut(&mut slot).is_some() {
            let _ending = SPARE_SLOTS.try_with(|spares| {
                let mut spares = spares.borrow_mut();
                if spares.len() < MAX_SPARE_SLOTS {
                    spares.push(slot);
                }
            });
        }
    }

    pub(crate) fn complete(&self, result: RequestResult) {
        let mut state = self.0.lock();
        if let State::Waiting(_) = *state {
            let State::Waiting(waker) = std::mem::replace(&mut *state, State::Completed(result)) else {
                unreachable!("matched above, under the same lock")
            };
            drop(state);
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<RequestResult> {
        let mut state = self.0.lock();
        match &*state {
            State::Waiting(waker) if waker.will_wake(cx.waker()) => return Poll::Pending,
            State::Waiting(_) => {}
            State::Completed(_) | State::Done => return Poll::Ready(state.take_result()),
        }
        drop(state);
        // Cloning and dropping a waker may run arbitrary code, so neither happens under the lock,
        // for which the connection worker would wait.
        let mut waker = cx.waker().clone();
        let mut state = self.0.lock();
        match &mut *state {
            State::Waiting(waiting) => {
                std::mem::swap(waiting, &mut waker);
                Poll::Pending
            }
            State::Completed(_) | State::Done => Poll::Ready(state.take_result()),
        }
    }

    pub(crate) fn abandon(&self) {
        // Drops the previous state after the lock is released, because dropping a waker may run
        // arbitrary code.
        let _previous = std::mem::replace(&mut *self.0.lock(), State::Done);
    }
}

impl ReplySink for SharedReplySlot {
    fn is_abandoned(&self) -> bool {
        matches!(*self.0.lock(), State::Done)
    }
}
