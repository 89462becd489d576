//! Activity of a hyper connection, shared by its socket, its service and its bodies.
//!
//! Invariant: [`ConnectionActivity::client_wait`] returns a new value whenever the deadline must be
//! set again.
//!
//! Relaxed atomics suffice, since the connection's task reads them after each poll. Only the end of
//! an HTTP/2 request happens in another task; it wakes the connection's task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Requests, input and unwritten output of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionActivity {
    /// Requests between the call of the service and the end of the response body.
    active: AtomicU32,
    /// Bytes of the next request have arrived.
    head_started: AtomicBool,
    /// Bytes of the next request have arrived while this request is being answered.
    next_head_started: AtomicBool,
    /// Arriving bytes may belong to this request's body. Bytes of a next head that arrive together
    /// with the body's end are not detected; `idle_timeout` applies until more of them arrive.
    body_expected: AtomicBool,
    /// hyper may hold bytes that the socket hasn't accepted.
    pub(crate) unflushed: AtomicFlag,
    /// hyper may hold bytes of a response of the service.
    pub(crate) has_response: AtomicFlag,
    /// Dropping the socket resets the connection.
    pub(crate) reset_on_drop: AtomicFlag,
    /// The server drains: each HTTP/1 response is sent with `connection: close`.
    pub(crate) close_after_response: AtomicFlag,
    /// The service waits for more of the request's body.
    awaiting_body: AtomicBool,
    /// Increases with each request and each part of a request's body.
    generation: AtomicU32,
    /// Waker of an HTTP/2 connection's task.
    driver: Mutex<Option<Waker>>,
}

/// Input that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientWait {
    /// The first byte of the next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// More of a request's body.
    Body,
    /// None: the service is busy, or a response is being written (`hyper_socket.rs`).
    Busy,
}

/// Request in progress; ends when dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<ConnectionActivity>);

/// Relaxed atomic flag.
#[derive(Debug, Default)]
pub(crate) struct AtomicFlag(AtomicBool);

impl ConnectionActivity {
    /// Starts a request, since its head is complete.
    pub(crate) fn begin_request(self: &Arc<Self>, has_body: bool) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.head_started.store(false, Ordering::Relaxed);
        self.next_head_started.store(false, Ordering::Relaxed);
        self.body_expected.store(has_body, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// Records that bytes arrived from the client.
    pub(crate) fn bytes_received(&self) {
        if self.active.load(Ordering::Relaxed) == 0 {
            self.head_started.store(true, Ordering::Relaxed);
        } else if !self.body_expected.load(Ordering::Relaxed) {
            self.next_head_started.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the request's body is complete.
    pub(crate) fn end_body(&self) {
        self.body_expected.store(false, Ordering::Relaxed);
    }

    /// Records whether the service waits for more of the body.
    pub(crate) fn set_awaiting_body(&self, waits: bool) {
        self.awaiting_body.store(waits, Ordering::Relaxed);
        if !waits {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true while a request is being answered.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Returns the current wait and its generation, which differs between two waits.
    pub(crate) fn client_wait(&self) -> (ClientWait, u32) {
        let client_wait = if !self.is_active() {
            match (self.unflushed.get(), self.head_started.load(Ordering::Relaxed)) {
                (true, _) => ClientWait::Busy,
                (false, true) => ClientWait::Head,
                (false, false) => ClientWait::Idle,
            }
        } else if self.awaiting_body.load(Ordering::Relaxed) {
            ClientWait::Body
        } else {
            ClientWait::Busy
        };
        (client_wait, self.generation.load(Ordering::Relaxed))
    }

    /// Sets the task to wake when the last request ends. Call it before `client_wait`.
    pub(crate) fn set_driver(&self, driver: &Waker) {
        let mut current = self.driver.lock();
        match &mut *current {
            Some(waker) => waker.clone_from(driver),
            none => *none = Some(driver.clone()),
        }
    }
}

impl ActiveRequest {
    pub(crate) fn activity(&self) -> &ConnectionActivity {
        &self.0
    }
}

impl AtomicFlag {
    pub(crate) fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.0.next_head_started.swap(false, Ordering::Relaxed) {
            self.0.head_started.store(true, Ordering::Relaxed);
        }
        if self.0.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            let driver = self.0.driver.lock().take();
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
        let activity = Arc::new(ConnectionActivity::default());
        assert_eq!(activity.client_wait().0, ClientWait::Idle);
        activity.bytes_received();
        assert_eq!(activity.client_wait().0, ClientWait::Head);
        let request = activity.begin_request(true);
        activity.bytes_received(); // the body
        let (client_wait, generation) = activity.client_wait();
        assert_eq!(client_wait, ClientWait::Busy);
        activity.set_awaiting_body(true);
        assert_eq!(activity.client_wait(), (ClientWait::Body, generation));
        activity.set_awaiting_body(false);
        assert_eq!(activity.client_wait(), (ClientWait::Busy, generation + 1));
        drop(request);
        assert_eq!(activity.client_wait().0, ClientWait::Idle);
    }

    #[test]
    fn idle_waits_before_and_after_a_request_have_different_generations() {
        let activity = Arc::new(ConnectionActivity::default());
        let before = activity.client_wait();
        drop(activity.begin_request(false));
        assert_ne!(activity.client_wait(), before);
    }

    #[test]
    fn a_response_being_written_is_neither_idle_nor_a_wait_for_a_head() {
        let activity = Arc::new(ConnectionActivity::default());
        let request = activity.begin_request(false);
        activity.unflushed.set(true);
        activity.bytes_received();
        drop(request);
        assert_eq!(activity.client_wait().0, ClientWait::Busy);
        activity.unflushed.set(false);
        assert_eq!(activity.client_wait().0, ClientWait::Head);
    }

    #[test]
    fn bytes_after_a_request_start_the_next_head_unless_they_may_be_its_body() {
        for (has_body, body_ended, after) in [
            (false, false, ClientWait::Head),
            (true, true, ClientWait::Head),
            (true, false, ClientWait::Idle),
        ] {
            let activity = Arc::new(ConnectionActivity::default());
            let request = activity.begin_request(has_body);
            if body_ended {
                activity.end_body();
            }
            activity.bytes_received();
            drop(request);
            assert_eq!(activity.client_wait().0, after, "has a body: {has_body}, ended: {body_ended}");
        }
    }

    #[test]
    fn the_end_of_the_last_request_wakes_the_connections_task() {
        #[derive(Default)]
        struct DriverWakes(AtomicUsize);
        impl Wake for DriverWakes {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (activity, woken) = (Arc::new(ConnectionActivity::default()), Arc::new(DriverWakes::default()));
        let (first, last) = (activity.begin_request(false), activity.begin_request(false));
        activity.set_driver(&Waker::from(Arc::clone(&woken)));
        drop(first);
        assert_eq!((activity.client_wait().0, woken.0.load(Ordering::Relaxed)), (ClientWait::Busy, 0));
        drop(last);
        assert_eq!((activity.client_wait().0, woken.0.load(Ordering::Relaxed)), (ClientWait::Idle, 1));
    }
}
