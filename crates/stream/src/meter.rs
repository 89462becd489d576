//! What an ordinary connection is doing, as seen by those around hyper: its socket, its service and its bodies.
//!
//! Invariant: `phase` changes, or `turns` does, whenever a deadline must be set anew.
//! One connection's parts share it; the numbers are small and moved without order, since the driver looks after each poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Requests from the call of the service to the end of the response's body.
    active: AtomicU32,
    /// Bytes of a next request have come.
    heard: AtomicBool,
    /// Bytes were handed to the socket and not all of them taken.
    pub(crate) unflushed: Flag,
    /// The service waits for more of the request's body.
    awaits_body: AtomicBool,
    /// Goes up with each request and each piece of a request's body.
    turns: AtomicU32,
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
    /// For nothing: the service has the word.
    Busy,
}

/// One request; over when dropped.
#[derive(Debug)]
pub(crate) struct Active(Arc<Meter>);

#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Meter {
    /// A request's head is complete.
    pub(crate) fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.heard.store(false, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }

    /// Bytes came from the client.
    pub(crate) fn hear(&self) {
        if self.active.load(Ordering::Relaxed) == 0 {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// The service asked for more of the body and has to wait, or no longer has to.
    pub(crate) fn await_body(&self, waits: bool) {
        self.awaits_body.store(waits, Ordering::Relaxed);
        if !waits {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The phase, and a number that differs if it is not the same one as before.
    pub(crate) fn phase(&self) -> (Phase, u32) {
        let phase = if self.active.load(Ordering::Relaxed) == 0 {
            if self.heard.load(Ordering::Relaxed) { Phase::Head } else { Phase::Idle }
        } else if self.awaits_body.load(Ordering::Relaxed) {
            Phase::Body
        } else {
            Phase::Busy
        };
        (phase, self.turns.load(Ordering::Relaxed))
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
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_from_idle_to_head_to_busy_and_back() {
        let meter = Arc::new(Meter::default());
        assert_eq!(meter.phase().0, Phase::Idle);
        meter.hear();
        assert_eq!(meter.phase().0, Phase::Head);
        let request = meter.begin();
        meter.hear(); // the body, or what is pipelined
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
        drop(meter.begin());
        assert_ne!(meter.phase(), before);
    }
}
