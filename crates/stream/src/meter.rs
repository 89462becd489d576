//! What an ordinary connection is doing, as seen by those around hyper: its socket, its service and its bodies.
//!
//! Invariant: `phase` changes, or `turns` does, whenever a deadline must be set anew.
//! One connection's parts share it; the numbers are small and moved without order, since the driver looks after each poll.
//! The one change that comes without a poll is the end of an HTTP/2 request, in a task of its own: it wakes the driver.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Requests from the call of the service to the end of the response's body.
    active: AtomicU32,
    /// Bytes of a next request have come.
    heard: AtomicBool,
    /// And while this one was still being answered.
    heard_early: AtomicBool,
    /// Bytes that come may be of this request's body. Those that come with its end are not told apart: a next head that
    /// begins there has the idle time until more of it comes.
    body_comes: AtomicBool,
    /// Bytes were handed to the socket and not all of them taken.
    pub(crate) unflushed: Flag,
    /// Dropped, the socket resets the connection.
    pub(crate) resets: Flag,
    /// Each response of this HTTP/1 connection says that it is the last: the server drains.
    pub(crate) closes: Flag,
    /// The service waits for more of the request's body.
    awaits_body: AtomicBool,
    /// Goes up with each request and each piece of a request's body.
    turns: AtomicU32,
    /// The task of an HTTP/2 connection.
    driver: Mutex<Option<Waker>>,
}

/// What the client is waited for, if it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// For a request, or for nothing.
    Idle,
    /// For the rest of a head.
    Head,
    /// For more of a request's body.
    Body,
    /// For nothing: the service has the word, or what it said is still being written, which `io.rs` bounds.
    Busy,
}

/// One request; over when dropped.
#[derive(Debug)]
pub(crate) struct Active(Arc<Meter>);

#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Meter {
    /// A request's head is complete.
    pub(crate) fn begin(self: &Arc<Self>, has_body: bool) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.heard.store(false, Ordering::Relaxed);
        self.heard_early.store(false, Ordering::Relaxed);
        self.body_comes.store(has_body, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }

    /// Bytes came from the client.
    pub(crate) fn hear(&self) {
        if self.active.load(Ordering::Relaxed) == 0 {
            self.heard.store(true, Ordering::Relaxed);
        } else if !self.body_comes.load(Ordering::Relaxed) {
            self.heard_early.store(true, Ordering::Relaxed);
        }
    }

    /// The request's body has come to its end.
    pub(crate) fn end_body(&self) {
        self.body_comes.store(false, Ordering::Relaxed);
    }

    /// The service asked for more of the body and has to wait, or no longer has to.
    pub(crate) fn await_body(&self, waits: bool) {
        self.awaits_body.store(waits, Ordering::Relaxed);
        if !waits {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a request is being answered.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// The phase, and a number that differs if it is not the same one as before.
    pub(crate) fn phase(&self) -> (Phase, u32) {
        let phase = if !self.is_active() {
            match (self.unflushed.get(), self.heard.load(Ordering::Relaxed)) {
                (true, _) => Phase::Busy,
                (false, true) => Phase::Head,
                (false, false) => Phase::Idle,
            }
        } else if self.awaits_body.load(Ordering::Relaxed) {
            Phase::Body
        } else {
            Phase::Busy
        };
        (phase, self.turns.load(Ordering::Relaxed))
    }

    /// Has `driver` woken when the last request ends. To be called before `phase` is looked at.
    pub(crate) fn driven_by(&self, driver: &Waker) {
        let mut kept = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => kept.clone_from(driver),
            none => *none = Some(driver.clone()),
        }
    }
}

impl Active {
    pub(crate) fn meter(&self) -> &Meter {
        &self.0
    }
}

impl Flag {
    pub(crate) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.heard_early.swap(false, Ordering::Relaxed) {
            self.0.heard.store(true, Ordering::Relaxed);
        }
        if self.0.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            let driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
            driver.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_connection_goes_from_idle_to_head_to_busy_and_back() {
        let meter = Arc::new(Meter::default());
        assert_eq!(meter.phase().0, Phase::Idle);
        meter.hear();
        assert_eq!(meter.phase().0, Phase::Head);
        let request = meter.begin(true);
        meter.hear(); // the body
        let (phase, turn) = meter.phase();
        assert_eq!(phase, Phase::Busy);
        meter.await_body(true);
        assert_eq!(meter.phase(), (Phase::Body, turn));
        meter.await_body(false);
        assert_eq!(meter.phase(), (Phase::Busy, turn + 1));
        drop(request);
        assert_eq!(meter.phase().0, Phase::Idle);
    }

    #[test]
    fn two_idle_times_with_a_request_between_them_differ() {
        let meter = Arc::new(Meter::default());
        let before = meter.phase();
        drop(meter.begin(false));
        assert_ne!(meter.phase(), before);
    }

    #[test]
    fn what_is_still_being_written_is_no_idle_time_and_no_time_for_a_head() {
        let meter = Arc::new(Meter::default());
        let request = meter.begin(false);
        meter.unflushed.set(true);
        meter.hear();
        drop(request);
        assert_eq!(meter.phase().0, Phase::Busy);
        meter.unflushed.set(false);
        assert_eq!(meter.phase().0, Phase::Head);
    }

    #[test]
    fn bytes_behind_a_request_are_the_next_head_if_they_cannot_be_its_body() {
        for (has_body, body_ended, after) in
            [(false, false, Phase::Head), (true, true, Phase::Head), (true, false, Phase::Idle)]
        {
            let meter = Arc::new(Meter::default());
            let request = meter.begin(has_body);
            if body_ended {
                meter.end_body();
            }
            meter.hear();
            drop(request);
            assert_eq!(meter.phase().0, after, "has a body: {has_body}, ended: {body_ended}");
        }
    }

    #[test]
    fn the_end_of_the_last_request_wakes_the_driver() {
        #[derive(Default)]
        struct Woken(AtomicUsize);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (meter, woken) = (Arc::new(Meter::default()), Arc::new(Woken::default()));
        let (first, last) = (meter.begin(false), meter.begin(false));
        meter.driven_by(&Waker::from(Arc::clone(&woken)));
        drop(first);
        assert_eq!((meter.phase().0, woken.0.load(Ordering::Relaxed)), (Phase::Busy, 0));
        drop(last);
        assert_eq!((meter.phase().0, woken.0.load(Ordering::Relaxed)), (Phase::Idle, 1));
    }
}
