//! The client's body on its way to the upstream.
//!
//! Invariant: not a byte is kept here, and a client that owes one and sends none for `idle` ends its request.
//! Kept by: frames are handed on as they come; the timer runs only while the client is waited for, so that a slow
//! upstream is no fault of the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::Incoming;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// A request's body, as the upstream's connection reads it.
#[derive(Debug)]
pub(crate) struct Upload {
    /// None: there is no body.
    incoming: Option<Incoming>,
    idle: Duration,
    /// Set while the client is waited for.
    timer: Option<Pin<Box<Sleep>>>,
    progress: Arc<Progress>,
}

/// Why an upload broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the client sent nothing of its body for {0:?}")]
    Stalled(Duration),
    #[error("the client's body broke off")]
    Broken(#[source] hyper::Error),
}

impl Upload {
    pub(crate) fn new(incoming: Incoming, idle: Duration) -> Upload {
        let incoming = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        let progress = Arc::new(Progress::new(incoming.is_none()));
        Upload { incoming, idle, timer: None, progress }
    }

    /// For a request that has none, to be sent again.
    pub(crate) fn empty() -> Upload {
        Upload { incoming: None, idle: Duration::ZERO, timer: None, progress: Arc::new(Progress::new(true)) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.incoming.is_none()
    }

    /// When a frame was last handed on.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        loop {
            let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
            if let Poll::Ready(frame) = Pin::new(&mut *incoming).poll_frame(cx) {
                let ended = matches!(frame, None | Some(Ok(_))) && incoming.is_end_stream();
                self.timer = None;
                self.progress.made(ended || frame.is_none());
                return Poll::Ready(match frame {
                    // Trailers belong to one connection here: their announcement was removed with `Trailer`.
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Some(Ok(Frame::data(data))),
                        Err(_trailers) => continue,
                    },
                    Some(Err(error)) => Some(Err(UploadError::Broken(error))),
                    None => None,
                });
            }
            let idle = self.idle;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + idle)));
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(Some(Err(UploadError::Stalled(idle))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// When something last moved, for whoever waits for the answer.
#[derive(Debug)]
pub(crate) struct Progress {
    origin: Instant,
    last_ms: AtomicU64,
    /// The whole body was handed on.
    done: AtomicBool,
}

impl Progress {
    fn new(done: bool) -> Progress {
        Progress { origin: Instant::now(), last_ms: AtomicU64::new(0), done: AtomicBool::new(done) }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn made(&self, done: bool) {
        self.done.store(done, Ordering::Relaxed);
        let elapsed_ms = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    pub(crate) fn last(&self) -> Instant {
        self.origin + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }
}
