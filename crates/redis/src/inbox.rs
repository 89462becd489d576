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

use std::task::Waker;

use crate::core::pipeline::{ExpectedReplies, PipelineRequest};
use crate::error::RequestError;
use crate::reply_slot::SharedReplySlot;
use crate::sync::{Mutex, MutexGuard};

#[derive(Debug)]
pub(crate) struct Inbox(Mutex<InboxContents>);

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

/// Whether the client has asked the worker to close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub(crate) enum CloseRequest {
    #[default]
    None,
    Requested,
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
        Inbox(Mutex::new(InboxContents {
            rejection: Some(rejection),
            bytes: Vec::new(),
            requests: Vec::new(),
            worker_load: WorkerLoad::default(),
            bounds,
            worker_waker: None,
            close_request: CloseRequest::None,
        }))
    }

    /// Submits one request. `encode` writes its bytes into the shared buffer and returns the
    /// expected replies.
    #[inline]
    pub(crate) fn submit(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<ExpectedReplies, RequestError>,
        request: impl FnOnce(ExpectedReplies, usize) -> PipelineRequest<SharedReplySlot>,
    ) -> Result<(), RequestError> {
        let contents = self.0.lock();
        contents.check()?;
        put(contents, encode, request)
    }

    /// Submits a request that must not fail with `QueueFull`, such as an unsubscription. The number
    /// of subscriptions bounds these requests.
    pub(crate) fn submit_unbounded(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> ExpectedReplies,
        request: impl FnOnce(ExpectedReplies, usize) -> PipelineRequest<SharedReplySlot>,
    ) {
        let contents = self.0.lock();
        if contents.rejection.is_none() {
            let _infallible = put(contents, |out| Ok(encode(out)), request);
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
        let mut contents = self.0.lock();
        contents.worker_load = worker_load;
        std::mem::swap(&mut contents.requests, requests);
        std::mem::swap(&mut contents.bytes, bytes);
        let close = std::mem::take(&mut contents.close_request);
        let nothing = requests.is_empty() && close == CloseRequest::None;
        contents.worker_waker = sleeper.filter(|_| nothing).cloned();
        contents.worker_load.requests += requests.len();
        contents.worker_load.unsent_bytes += bytes.len();
        close
    }

    /// Rejects new requests with this error, or accepts requests if it is `None`.
    pub(crate) fn set_rejection(&self, rejection: Option<RequestError>) {
        self.0.lock().rejection = rejection;
    }

    /// Takes the requests that were submitted before the rejection was set.
    pub(crate) fn take_remaining(
        &self,
        requests: &mut Vec<PipelineRequest<SharedReplySlot>>,
        bytes: &mut Vec<u8>,
    ) {
        let mut contents = self.0.lock();
        debug_assert!(
            contents.rejection.is_some(),
            "remaining requests are taken only after the rejection is set"
        );
        requests.append(&mut contents.requests);
        bytes.append(&mut contents.bytes);
    }

    pub(crate) fn request_close(&self) {
        let mut contents = self.0.lock();
        contents.close_request = CloseRequest::Requested;
        let waker = contents.worker_waker.take();
        drop(contents);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Clears the state of the previous link.
    pub(crate) fn reset(&self) {
        let mut contents = self.0.lock();
        debug_assert!(contents.requests.is_empty(), "a closed link has completed every request");
        contents.worker_load = WorkerLoad::default();
        contents.close_request = CloseRequest::None;
        contents.worker_waker = None;
    }

    /// Returns the number of open requests, submitted or taken by the worker.
    pub(crate) fn open_requests(&self) -> usize {
        let contents = self.0.lock();
        contents.requests.len() + contents.worker_load.requests
    }
}

#[inline]
fn put(
    mut contents: MutexGuard<'_, InboxContents>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<ExpectedReplies, RequestError>,
    request: impl FnOnce(ExpectedReplies, usize) -> PipelineRequest<SharedReplySlot>,
) -> Result<(), RequestError> {
    let (expect, bytes) = append(&mut contents.bytes, encode)?;
    contents.requests.push(request(expect, bytes));
    let waker = contents.worker_waker.take();
    drop(contents);
    if let Some(waker) = waker {
        waker.wake();
    }
    Ok(())
}

/// Appends with `encode` to `bytes` and returns how many bytes it wrote. If `encode` fails or
/// panics, the partial command is removed; it would break the framing of all later requests.
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
