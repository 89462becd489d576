//! End signal: asks the service of an admitted stream to end it.
//!
//! Invariant: a signal that is sent while a task waits for it wakes that task.
//! Enforced by: the state and the waker change under one lock.
//! Out of scope: how the stream ends. Only the service knows whether an early end looks complete to
//! the client, so the service ends the stream.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Signal that an operator ends a stream
/// ([`Admission::end_streams`](crate::Admission::end_streams)). Clones share it.
///
/// The layer inserts it into the extensions of an admitted request. Until the service has
/// responded, the layer itself waits for it, and then drops the service's future and responds with
/// a 503. The response body must wait for it afterwards: a body that doesn't is not ended.
#[derive(Clone, Default)]
pub struct EndSignal(Arc<Mutex<SignalState>>);

enum SignalState {
    /// Not sent. The last task that polled the signal is woken when it is.
    Waiting(Option<Waker>),
    Sent,
}

impl Default for SignalState {
    fn default() -> Self {
        SignalState::Waiting(None)
    }
}

impl EndSignal {
    /// Makes the signal usable for another stream, if no other clone of it exists. Returns whether
    /// it did.
    pub(crate) fn reset(&mut self) -> bool {
        let state = Arc::get_mut(&mut self.0);
        state.map(|state| *state.get_mut() = SignalState::Waiting(None)).is_some()
    }

    /// Returns the address of the shared state.
    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Resolves when the signal is sent. Only the last task that polled it is woken.
    pub fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.0.lock() {
            SignalState::Sent => Poll::Ready(()),
            SignalState::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Waits until the signal is sent.
    pub async fn sent(&self) {
        poll_fn(|cx| self.poll_sent(cx)).await;
    }

    /// Sends the signal. Returns whether this was the first time.
    pub(crate) fn send(&self) -> bool {
        let before = std::mem::replace(&mut *self.0.lock(), SignalState::Sent);
        match before {
            SignalState::Waiting(waker) => {
                waker.into_iter().for_each(Waker::wake);
                true
            }
            SignalState::Sent => false,
        }
    }
}

impl fmt::Debug for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_sent = matches!(&*self.0.lock(), SignalState::Sent);
        f.debug_struct("EndSignal").field("is_sent", &is_sent).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_signal_wakes_the_last_task_that_polled_it_and_stays_sent() {
        let (signal, first, last) = (EndSignal::default(), Arc::default(), Arc::default());
        for waker in [&first, &last, &last] {
            let waker: Waker = Arc::<CountingWaker>::clone(waker).into();
            assert!(signal.poll_sent(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(signal.send());
        assert!(!signal.clone().send(), "clones share the signal");
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
        assert!(signal.poll_sent(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn a_signal_is_reset_only_when_nobody_else_has_it() {
        let mut signal = EndSignal::default();
        let other = signal.clone();
        assert!(other.send() && !signal.reset());
        drop(other);
        assert!(signal.reset());
        assert!(signal.poll_sent(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}
