//! Where one caller waits for one answer.
//!
//! Invariant: a slot is answered at most once, and only its caller's task takes the answer out: waking is all that the
//! worker does to a caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::core::pipeline::{Replies, Sink};
use crate::error::RequestError;

pub(crate) type Answer = Result<Replies, RequestError>;

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
        Arc::new(Slot(Mutex::new(State::Waiting(waker))))
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
            State::Gone => panic!("polled after completion"),
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
