//! One HTTP/1.1 connection to the upstream.
//!
//! Invariant: only the request that holds a connection polls it. Dropping that request closes the
//! socket at once, before or during the response. No other task has to detect that the client has
//! left.
//! Enforced by: [`UpstreamConnection`] owns the socket. The request's future owns the connection,
//! then the response's body does (`download.rs`).
//! Out of scope: which request gets a connection; see `upstream.rs`.

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, sleep_until};

use super::download::DetachedSocket;
use super::head_io::{HeadIo, HeadIoControl};
use super::upload::{Upload, UploadProgress};

/// Maximum size of a response head. Response bodies are unbounded.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 256;

/// A connection with its hyper driver and its permit of the pool.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<Upload>,
    driver: http1::Connection<HeadIo, Upload>,
    control: Arc<HeadIoControl>,
    /// Whether the driver has finished. It must not be polled again.
    ended: bool,
    /// Whether the driver has taken the complete body of the last request.
    uploaded: bool,
    permit: OwnedSemaphorePermit,
}

impl UpstreamConnection {
    pub(crate) async fn start(
        socket: TcpStream,
        permit: OwnedSemaphorePermit,
    ) -> Result<UpstreamConnection, hyper::Error> {
        let control = Arc::new(HeadIoControl::default());
        let io = HeadIo::new(socket, Arc::clone(&control));
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS).handshake(io).await?;
        Ok(UpstreamConnection { sender, driver, control, ended: false, uploaded: true, permit })
    }

    /// Returns whether the connection can take a request now. False if the upstream has closed it.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.control.read_all();
        drive(&mut self.driver, &mut self.ended, cx);
        self.control.expect_head();
        !self.ended && self.sender.is_ready()
    }

    /// Lets hyper read the response body. hyper reads only as much as the body's reader requests.
    pub(crate) fn drive_body(&mut self, cx: &mut Context<'_>) {
        self.control.read_all();
        drive(&mut self.driver, &mut self.ended, cx);
    }

    /// Returns whether the kernel has accepted the whole request, so that nothing is left to write.
    pub(crate) fn is_request_sent(&self) -> bool {
        self.uploaded && self.control.is_sent()
    }

    /// Returns whether the driver has finished. After a 101 it has, and the socket stays open.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Detaches the socket from hyper.
    ///
    /// Call it after a response head and before `drive_body`. Later, hyper may have taken some of
    /// the bytes.
    pub(crate) fn into_detached(self) -> DetachedSocket {
        let parts = self.driver.into_parts();
        let (socket, withheld) = parts.io.into_parts();
        let unread =
            if parts.read_buf.is_empty() { withheld } else { [parts.read_buf, withheld].concat().into() };
        DetachedSocket { socket, unread, permit: self.permit }
    }

    /// Sends a request and waits for the response head. `timeout` counts from the upload's last
    /// progress.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Upload>,
        progress: &UploadProgress,
        timeout: Duration,
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.control.begin_request();
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut timer = pin!(sleep_until(progress.last_at() + timeout));
        let (driver, ended) = (&mut self.driver, &mut self.ended);
        let answer = poll_fn(|cx| {
            // Polled again after the driver, which may have completed the response.
            for _ in 0..2 {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(answer.map_err(|error| ExchangeError::new(error, &self.control)));
                }
                drive(driver, ended, cx);
            }
            // Endless interim responses can use up tokio's budget for this task. The timer then
            // never fires.
            if !has_budget_remaining() && Instant::now() >= progress.last_at() + timeout {
                return Poll::Ready(Err(ExchangeError::Timeout));
            }
            while timer.as_mut().poll(cx).is_ready() {
                let due = progress.last_at() + timeout;
                if Instant::now() >= due {
                    return Poll::Ready(Err(ExchangeError::Timeout));
                }
                timer.as_mut().reset(due);
            }
            Poll::Pending
        })
        .await;
        self.uploaded = progress.is_done();
        answer
    }
}

impl fmt::Debug for UpstreamConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConnection").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Polls the driver, unless it has finished.
fn drive(driver: &mut http1::Connection<HeadIo, Upload>, ended: &mut bool, cx: &mut Context<'_>) {
    if !*ended {
        // The driver's error also reaches the waiting response or its body.
        *ended = Pin::new(driver).poll(cx).is_ready();
    }
}

/// Why an exchange gave no response.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// No byte was sent. Holds the request.
    Unsent(Box<Request<Upload>>),
    /// No response head arrived in time.
    Timeout,
    /// The connection failed, or the response is not valid HTTP.
    Failed {
        error: hyper::Error,
        /// Whether any byte of a response had arrived.
        answered: bool,
    },
}

impl ExchangeError {
    fn new(mut error: TrySendError<Request<Upload>>, control: &HeadIoControl) -> ExchangeError {
        match error.take_message() {
            Some(request) => ExchangeError::Unsent(Box::new(request)),
            None => {
                ExchangeError::Failed { error: error.into_error(), answered: control.has_response_bytes() }
            }
        }
    }

    /// Returns whether the connection closed before the response head was complete. Part of the
    /// head may have arrived.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            ExchangeError::Unsent(_) => true,
            ExchangeError::Timeout => false,
            ExchangeError::Failed { error, .. } => {
                error.is_incomplete_message() || error.is_canceled() || is_reset(error)
            }
        }
    }

    /// Returns whether the connection closed before any byte of a response. The upstream may still
    /// have started to process the request.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            ExchangeError::Unsent(_) => true,
            ExchangeError::Timeout => false,
            ExchangeError::Failed { answered, .. } => !answered && self.is_closed(),
        }
    }
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe))
}
