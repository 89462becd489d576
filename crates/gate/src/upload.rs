//! Request body on its way from the client to the upstream.
//!
//! Invariant: no bytes are buffered here. A request fails if its client sends no body bytes for
//! `idle_timeout`.
//! Enforced by: frames pass as they arrive. The timer runs only while the gate waits for the
//! client, so a slow upstream never counts against the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::Incoming;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::upstream_error::UploadFault;

/// A request body that the connection to the upstream reads.
#[derive(Debug)]
pub(crate) struct Upload {
    /// `None` if the request has no body.
    incoming: Option<Incoming>,
    idle_timeout: Duration,
    /// Set while the gate waits for the client.
    timer: Option<Pin<Box<Sleep>>>,
    progress: Arc<UploadProgress>,
}

/// Why an upload failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the client sent no body bytes for {0:?}")]
    Stalled(Duration),
    #[error("the client's request body failed before its end")]
    Broken(#[source] hyper::Error),
}

impl Upload {
    pub(crate) fn new(incoming: Incoming, idle_timeout: Duration) -> Upload {
        let incoming = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        let progress = Arc::new(UploadProgress::new(incoming.is_none()));
        Upload { incoming, idle_timeout, timer: None, progress }
    }

    /// Returns an empty upload, for a request without a body that is sent again.
    pub(crate) fn empty() -> Upload {
        Upload {
            incoming: None,
            idle_timeout: Duration::ZERO,
            timer: None,
            progress: Arc::new(UploadProgress::new(true)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.incoming.is_none()
    }

    /// Returns the upload's progress, for the task that waits for the response.
    pub(crate) fn progress(&self) -> Arc<UploadProgress> {
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
                self.progress.record(ended || frame.is_none());
                return Poll::Ready(match frame {
                    // Trailers are dropped: the gate removes `Trailer`, which announces them.
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Some(Ok(Frame::data(data))),
                        Err(_trailers) => continue,
                    },
                    Some(Err(error)) => {
                        self.progress.fail(UploadFault::Broken);
                        Some(Err(UploadError::Broken(error)))
                    }
                    None => None,
                });
            }
            let idle_timeout = self.idle_timeout;
            let timer =
                self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + idle_timeout)));
            ready!(timer.as_mut().poll(cx));
            self.progress.fail(UploadFault::Stalled(idle_timeout));
            return Poll::Ready(Some(Err(UploadError::Stalled(idle_timeout))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Progress of an upload: when it last advanced, and whether it is complete.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    started_at: Instant,
    /// Time from `started_at` to the last progress, in milliseconds.
    last_ms: AtomicU64,
    /// Whether hyper has taken the whole body.
    done: AtomicBool,
    /// Why the upload failed, if it did.
    fault: OnceLock<UploadFault>,
}

impl UploadProgress {
    pub(crate) fn new(done: bool) -> UploadProgress {
        UploadProgress {
            started_at: Instant::now(),
            last_ms: AtomicU64::new(0),
            done: AtomicBool::new(done),
            fault: OnceLock::new(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns why the upload failed, if it did.
    pub(crate) fn fault(&self) -> Option<UploadFault> {
        self.fault.get().copied()
    }

    fn fail(&self, fault: UploadFault) {
        self.fault.get_or_init(|| fault);
    }

    pub(crate) fn record(&self, done: bool) {
        self.done.store(done, Ordering::Relaxed);
        let elapsed_ms = u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    pub(crate) fn last_at(&self) -> Instant {
        self.started_at + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }
}
