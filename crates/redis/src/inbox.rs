//! Where callers leave requests for the worker.
//!
//! Invariant: a request that was left is either taken by the worker or answered by it with a reason; and a worker that
//! sleeps while there is work has its waker called.
//! Kept by: the worker decides to sleep and leaves its waker under the same lock under which callers leave requests, so
//! there is no moment between looking and sleeping. It is woken only when it sleeps.
//! Bounds: `max_requests` open ones, those already with the worker included, and `max_unsent_bytes`, beyond which only the
//! request that crosses it is let in. Full: the caller gets [`RequestError::QueueFull`] at once.
//! Unsubscriptions go beyond them: each ends a subscription, and those are bounded by their holders.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::core::pipeline::{Expect, Request};
use crate::error::RequestError;
use crate::slot::Slot;

#[derive(Debug)]
pub(crate) struct Inbox(Mutex<Contents>);

#[derive(Debug)]
pub(crate) struct Contents {
    /// `Some`: why nothing is let in.
    shut: Option<RequestError>,
    bytes: Vec<u8>,
    requests: Vec<Request<Arc<Slot>>>,
    /// What the worker holds, as of its last visit.
    held: Held,
    bounds: Bounds,
    sleeping: Option<Waker>,
    close_wished: bool,
}

/// How much of the bounds the worker has in its own hands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    pub(crate) requests: usize,
    pub(crate) unsent_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max_requests: usize,
    pub(crate) max_unsent_bytes: usize,
}

impl Inbox {
    pub(crate) fn new(bounds: Bounds, shut: RequestError) -> Self {
        Inbox(Mutex::new(Contents {
            shut: Some(shut),
            bytes: Vec::new(),
            requests: Vec::new(),
            held: Held::default(),
            bounds,
            sleeping: None,
            close_wished: false,
        }))
    }

    /// Leaves one request; `encode` writes its bytes into the shared buffer and says what answers them.
    #[inline]
    pub(crate) fn leave(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<Expect, RequestError>,
        request: impl FnOnce(Expect, usize) -> Request<Arc<Slot>>,
    ) -> Result<(), RequestError> {
        let contents = self.lock();
        contents.check()?;
        put(contents, encode, request)
    }

    /// Leaves a request that can't be told to come back later, such as the end of a subscription. These are bounded by
    /// what they end, so they may go beyond the bounds.
    pub(crate) fn leave_anyway(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Expect,
        request: impl FnOnce(Expect, usize) -> Request<Arc<Slot>>,
    ) {
        let contents = self.lock();
        if contents.shut.is_none() {
            let _never_refused = put(contents, |out| Ok(encode(out)), request);
        }
    }

    /// The worker's visit: it says what it holds and takes everything; true if it is to close. With nothing to take it leaves
    /// `sleeper`'s waker.
    pub(crate) fn take(
        &self,
        held: Held,
        requests: &mut Vec<Request<Arc<Slot>>>,
        bytes: &mut Vec<u8>,
        sleeper: Option<&Waker>,
    ) -> bool {
        let mut contents = self.lock();
        contents.held = held;
        std::mem::swap(&mut contents.requests, requests);
        std::mem::swap(&mut contents.bytes, bytes);
        let close = std::mem::take(&mut contents.close_wished);
        let nothing = requests.is_empty() && !close;
        contents.sleeping = sleeper.filter(|_| nothing).cloned();
        contents.held.requests += requests.len();
        contents.held.unsent_bytes += bytes.len();
        close
    }

    /// Lets requests in, or from now on nothing, because of `shut`.
    pub(crate) fn gate(&self, shut: Option<RequestError>) {
        self.lock().shut = shut;
    }

    /// Takes what was left before the gate was shut.
    pub(crate) fn take_late(&self, requests: &mut Vec<Request<Arc<Slot>>>, bytes: &mut Vec<u8>) {
        let mut contents = self.lock();
        debug_assert!(contents.shut.is_some(), "with the gate open there is no last one");
        requests.append(&mut contents.requests);
        bytes.append(&mut contents.bytes);
    }

    pub(crate) fn wish_close(&self) {
        let mut contents = self.lock();
        contents.close_wished = true;
        let waker = contents.sleeping.take();
        drop(contents);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A new link begins with nothing left over from the one before.
    pub(crate) fn reset(&self) {
        let mut contents = self.lock();
        debug_assert!(contents.requests.is_empty(), "a closed link has answered everybody");
        contents.held = Held::default();
        contents.close_wished = false;
        contents.sleeping = None;
    }

    /// Requests that wait here or with the worker.
    pub(crate) fn open_requests(&self) -> usize {
        let contents = self.lock();
        contents.requests.len() + contents.held.requests
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn put(
    mut contents: MutexGuard<'_, Contents>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<Expect, RequestError>,
    request: impl FnOnce(Expect, usize) -> Request<Arc<Slot>>,
) -> Result<(), RequestError> {
    let (expect, bytes) = append(&mut contents.bytes, encode)?;
    contents.requests.push(request(expect, bytes));
    let waker = contents.sleeping.take();
    drop(contents);
    if let Some(waker) = waker {
        waker.wake();
    }
    Ok(())
}

/// Runs `encode` on the end of `bytes` and says how much it wrote. If it refuses or panics, what it wrote is taken back:
/// half a command would put every later reply out of step.
#[inline]
fn append<T, E>(
    bytes: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
) -> Result<(T, usize), E> {
    struct Undo<'a>(&'a mut Vec<u8>, usize);
    impl Drop for Undo<'_> {
        fn drop(&mut self) {
            self.0.truncate(self.1);
        }
    }
    let before = bytes.len();
    let mut undo = Undo(bytes, before);
    let encoded = encode(undo.0)?;
    undo.1 = undo.0.len();
    Ok((encoded, undo.1 - before))
}

impl Contents {
    #[inline]
    fn check(&self) -> Result<(), RequestError> {
        if let Some(reason) = &self.shut {
            return Err(reason.clone());
        }
        let requests = self.requests.len() + self.held.requests;
        let unsent_bytes = self.bytes.len() + self.held.unsent_bytes;
        if requests >= self.bounds.max_requests || unsent_bytes >= self.bounds.max_unsent_bytes {
            return Err(RequestError::QueueFull {
                requests,
                max_requests: self.bounds.max_requests,
                unsent_bytes,
                max_unsent_bytes: self.bounds.max_unsent_bytes,
            });
        }
        Ok(())
    }
}
