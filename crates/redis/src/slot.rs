//! Where one caller waits for one answer.
//!
//! Invariant: a slot is answered at most once, and only its caller's task takes the answer out: waking is all that the
//! worker does to a caller.
//!
//! Slots are used again: one for each request would be half of what a request allocates. Bounds: [`MAX_SPARES`] for each
//! thread.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::core::pipeline::{Replies, Sink};
use crate::error::RequestError;

pub(crate) type Answer = Result<Replies, RequestError>;

const MAX_SPARES: usize = 1024;

thread_local! {
    static SPARES: RefCell<Vec<Arc<Slot>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Debug)]
enum State {
    Waiting(Waker),
    Answered(Answer),
    /// The answer was taken, or the caller left.
    Gone,
}

impl Slot {
    pub(crate) fn waiting(waker: Waker) -> Arc<Slot> {
        // A thread that is ending has no spares any more.
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let mut slot = spare.unwrap_or_else(|| Arc::new(Slot(Mutex::new(State::Gone))));
        let alone = Arc::get_mut(&mut slot).expect("a spare slot has one owner");
        *alone.0.get_mut().unwrap_or_else(PoisonError::into_inner) = State::Waiting(waker);
        slot
    }

    /// Keeps a slot for the next request, if the worker has let go of it.
    pub(crate) fn recycle(mut slot: Arc<Slot>) {
        if Arc::get_mut(&mut slot).is_some() {
            let _ending = SPARES.try_with(|spares| {
                let mut spares = spares.borrow_mut();
                if spares.len() < MAX_SPARES {
                    spares.push(slot);
                }
            });
        }
    }

    pub(crate) fn answer(&self, answer: Answer) {
        let mut state = self.lock();
        if let State::Waiting(_) = *state {
            let State::Waiting(waker) = std::mem::replace(&mut *state, State::Answered(answer)) else {
                unreachable!("matched above, under the same lock")
            };
            drop(state);
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.lock();
        match &mut *state {
            State::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            State::Answered(_) => match std::mem::replace(&mut *state, State::Gone) {
                State::Answered(answer) => Poll::Ready(answer),
                State::Waiting(_) | State::Gone => unreachable!("matched above, under the same lock"),
            },
            State::Gone => unreachable!("its request is done, and asks no more"),
        }
    }

    pub(crate) fn abandon(&self) {
        // What was in it is dropped after the lock: a waker's drop may run anything.
        let _left = std::mem::replace(&mut *self.lock(), State::Gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Arc<Slot> {
    fn abandoned(&self) -> bool {
        matches!(*self.lock(), State::Gone)
    }
}
