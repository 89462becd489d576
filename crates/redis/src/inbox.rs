//! Inbox: the queue through which callers submit requests to the worker.
//!
//! Invariant: a submitted request is taken and completed by the worker. A worker that sleeps while
//! there is work is woken.
//! Enforced by: the worker checks for work and stores its waker under the same lock under which
//! callers submit, so no submission can be missed. Callers wake the worker only if
//! it has stored its waker.
//! Bounds: `max_requests` open requests, including those that the worker has taken, and
//! `max_unsent_bytes`. The request that crosses `max_unsent_bytes` is still accepted. Beyond that
//! the caller gets [`RequestError::QueueFull`] at once. Unsubscriptions may exceed the bounds: each
//! ends a subscription, so they are bounded by the number of subscriptions.
//! No caller's code runs under the lock: requests are encoded before, and values that may run such
//! code when they are dropped are dropped after.

use std::task::Waker;

use crate::core::pipeline::PipelineRequest;
use crate::error::RequestError;
use crate::reply_slot::SharedReplySlot;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

#[derive(Debug)]
pub(crate) struct Inbox {
    contents: Mutex<InboxContents>,
    /// True after [`abort`](Inbox::abort); see [`AbortScope`]. Written only under the lock.
    aborted: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct InboxContents {
    /// Error for new requests; `None` while requests are accepted.
    rejection: Option<RequestError>,
    bytes: Vec<u8>,
    requests: Vec<PipelineRequest<SharedReplySlot>>,
    /// Load of the worker when it last took requests.
    worker_load: WorkerLoad,
    bounds: InboxBounds,
    worker_waker: Option<Waker>,
    close_request: CloseRequest,
}

/// Whether the client has asked the worker to end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub(crate) enum CloseRequest {
    #[default]
    None,
    /// Requests in flight may finish.
    Requested,
    /// Every request fails with `Cancelled`, at once.
    Aborted,
}

/// What an abort ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbortScope {
    /// The link: a later one accepts requests again.
    Link,
    /// The client: later links end at once. For clients that belong to another client.
    Client,
}

/// Requests and bytes that the worker has taken and not completed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorkerLoad {
    pub(crate) requests: usize,
    pub(crate) unsent_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct InboxBounds {
    pub(crate) max_requests: usize,
    pub(crate) max_unsent_bytes: usize,
}

impl Inbox {
    pub(crate) fn new(bounds: InboxBounds, rejection: RequestError) -> Self {
        let contents = InboxContents {
            rejection: Some(rejection),
            bytes: Vec::new(),
            requests: Vec::new(),
            worker_load: WorkerLoad::default(),
            bounds,
            worker_waker: None,
            close_request: CloseRequest::None,
        };
        Inbox { contents: Mutex::new(contents), aborted: AtomicBool::new(false) }
    }

    /// Submits one request with its encoded bytes. Leaves `encoded` with any content.
    #[inline]
    pub(crate) fn submit(
        &self,
        encoded: &mut Vec<u8>,
        request: PipelineRequest<SharedReplySlot>,
    ) -> Result<(), RequestError> {
        let contents = self.contents.lock();
        contents.check()?;
        put(contents, encoded, request);
        Ok(())
    }

    /// Submits a request that must not fail with `QueueFull`, such as an unsubscription. The number
    /// of subscriptions bounds these requests.
    pub(crate) fn submit_unbounded(&self, encoded: &mut Vec<u8>, request: PipelineRequest<SharedReplySlot>) {
        let contents = self.contents.lock();
        if contents.rejection.is_none() {
            put(contents, encoded, request);
        }
    }

    /// Takes all submitted requests and the close request, and records the worker's load. If there
    /// is nothing to take, stores the waker.
    pub(crate) fn take(
        &self,
        worker_load: WorkerLoad,
        requests: &mut Vec<PipelineRequest<SharedReplySlot>>,
        bytes: &mut Vec<u8>,
        sleeper: Option<&Waker>,
    ) -> CloseRequest {
        let mut contents = self.contents.lock();
        contents.worker_load = worker_load;
        std::mem::swap(&mut contents.requests, requests);
        std::mem::swap(&mut contents.bytes, bytes);
        let mut close = std::mem::take(&mut contents.close_request);
        if self.is_aborted() {
            close = CloseRequest::Aborted;
        }
        let nothing = requests.is_empty() && close == CloseRequest::None;
        contents.worker_waker = sleeper.filter(|_| nothing).cloned();
        contents.worker_load.requests += requests.len();
        contents.worker_load.unsent_bytes += bytes.len();
        close
    }

    /// Rejects new requests with this error, or accepts requests if it is `None`. An aborted inbox
    /// keeps rejecting them with `Cancelled`.
    pub(crate) fn set_rejection(&self, rejection: Option<RequestError>) {
        // Dropped after the lock is released, because it may hold an error of the caller's TLS
        // verifier.
        let _previous;
        let mut contents = self.contents.lock();
        if !self.is_aborted() {
            _previous = std::mem::replace(&mut contents.rejection, rejection);
        }
    }

    /// Takes the requests that were submitted before the rejection was set. The worker fails them
    /// and all that it has taken before, so it has no load after this.
    pub(crate) fn take_remaining(
        &self,
        requests: &mut Vec<PipelineRequest<SharedReplySlot>>,
        bytes: &mut Vec<u8>,
    ) {
        let mut contents = self.contents.lock();
        debug_assert!(
            contents.rejection.is_some(),
            "remaining requests are taken only after the rejection is set"
        );
        requests.append(&mut contents.requests);
        bytes.append(&mut contents.bytes);
        contents.worker_load = WorkerLoad::default();
    }

    pub(crate) fn request_close(&self) {
        let mut contents = self.contents.lock();
        contents.close_request = CloseRequest::Requested;
        let waker = contents.worker_waker.take();
        drop(contents);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Rejects new requests with `Cancelled` from now on, and tells the worker to fail the others.
    pub(crate) fn abort(&self) {
        let mut contents = self.contents.lock();
        self.aborted.store(true, Ordering::Release);
        let _previous = contents.rejection.replace(RequestError::Cancelled);
        let waker = contents.worker_waker.take();
        drop(contents);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns true after [`abort`](Self::abort); see [`AbortScope`].
    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Clears the state of the previous link, with or without its abort.
    pub(crate) fn reset(&self, abort: AbortScope) {
        let mut contents = self.contents.lock();
        debug_assert!(contents.requests.is_empty(), "a closed link has completed every request");
        contents.worker_load = WorkerLoad::default();
        contents.close_request = CloseRequest::None;
        contents.worker_waker = None;
        if abort == AbortScope::Link {
            self.aborted.store(false, Ordering::Release);
        }
    }

    /// Returns the number of open requests, submitted or taken by the worker.
    pub(crate) fn open_requests(&self) -> usize {
        let contents = self.contents.lock();
        contents.requests.len() + contents.worker_load.requests
    }
}

#[inline]
fn put(
    mut contents: MutexGuard<'_, InboxContents>,
    encoded: &mut Vec<u8>,
    request: PipelineRequest<SharedReplySlot>,
) {
    debug_assert_eq!(encoded.len(), request.bytes, "a request knows the number of its bytes");
    if contents.bytes.is_empty() && encoded.len() > contents.bytes.capacity() {
        // A large request is neither copied nor does the buffer grow for it.
        std::mem::swap(&mut contents.bytes, encoded);
    } else {
        contents.bytes.extend_from_slice(encoded);
    }
    contents.requests.push(request);
    let waker = contents.worker_waker.take();
    drop(contents);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl InboxContents {
    #[inline]
    fn check(&self) -> Result<(), RequestError> {
        if let Some(reason) = &self.rejection {
            return Err(reason.clone());
        }
        let requests = self.requests.len() + self.worker_load.requests;
        let unsent_bytes = self.bytes.len() + self.worker_load.unsent_bytes;
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
