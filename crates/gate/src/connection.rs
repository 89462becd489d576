//! One connection to the upstream.
//!
//! Invariant: a connection is driven by the request that holds it, and by nothing else. Dropping that request, while it
//! waits for the response or in the midst of its body, closes the socket there and then: no other task has to notice
//! that the client has left.
//! Kept by: [`Connection`] owns the socket and is owned by the future of the request, then by the response's body
//! (`download.rs`).
//! Not here: who gets a connection (`upstream.rs`).

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, sleep_until};

use super::head_io::{HeadIo, Valve};
use super::upload::{Progress, Upload};

/// What the upstream may send as a head; its bodies have no bound.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 256;

pub(crate) struct Connection {
    sender: http1::SendRequest<Upload>,
    driver: http1::Connection<HeadIo, Upload>,
    valve: Arc<Valve>,
    /// The driver has returned and may not be polled again.
    ended: bool,
    /// The last request's body was handed to the driver whole.
    uploaded: bool,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) async fn start(
        socket: TcpStream,
        permit: OwnedSemaphorePermit,
    ) -> Result<Connection, hyper::Error> {
        let valve = Arc::new(Valve::default());
        let io = HeadIo::new(socket, Arc::clone(&valve));
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS).handshake(io).await?;
        Ok(Connection { sender, driver, valve, ended: false, uploaded: true, permit })
    }

    /// Whether it can take a request now. One that the upstream has closed meanwhile can't.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.valve.open();
        drive(&mut self.driver, &mut self.ended, cx);
        self.valve.reset();
        !self.ended && self.sender.is_ready()
    }

    /// Lets the body come, as far as somebody wants it.
    pub(crate) fn drive_body(&mut self, cx: &mut Context<'_>) {
        self.valve.open();
        drive(&mut self.driver, &mut self.ended, cx);
    }

    /// Whether all of the request is with the kernel, so that nobody else has to write.
    pub(crate) fn is_sent(&self) -> bool {
        !self.ended && self.uploaded && self.valve.is_sent()
    }

    /// The socket, and what was read of the body. Only after a head, and before `drive_body`, is that all of it.
    pub(crate) fn into_parts(self) -> (TcpStream, Bytes, OwnedSemaphorePermit) {
        let parts = self.driver.into_parts();
        let (socket, held) = parts.io.into_parts();
        let unread = if parts.read_buf.is_empty() { held } else { [parts.read_buf, held].concat().into() };
        (socket, unread, self.permit)
    }

    /// Sends a request and waits for the head of the response; `timeout` counts from the last progress of the upload.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Upload>,
        progress: &Progress,
        timeout: Duration,
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.valve.begin_request();
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut timer = pin!(sleep_until(progress.last() + timeout));
        let (driver, ended) = (&mut self.driver, &mut self.ended);
        let answer = poll_fn(|cx| {
            // Once before the driver ran and once after: what it does for the answer wakes nobody else.
            for _ in 0..2 {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(answer.map_err(|error| ExchangeError::new(error, &self.valve)));
                }
                drive(driver, ended, cx);
            }
            // Interim responses without end may use up the task's budget, without which the timer doesn't ring.
            if !has_budget_remaining() && Instant::now() >= progress.last() + timeout {
                return Poll::Ready(Err(ExchangeError::Timeout));
            }
            while timer.as_mut().poll(cx).is_ready() {
                let due = progress.last() + timeout;
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("ended", &self.ended).finish_non_exhaustive()
    }
}

fn drive(driver: &mut http1::Connection<HeadIo, Upload>, ended: &mut bool, cx: &mut Context<'_>) {
    if !*ended {
        // Its error is told to whoever waits for the response or its body.
        *ended = Pin::new(driver).poll(cx).is_ready();
    }
}

/// Why an exchange gave no response.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// Not a byte was sent; here is the request again.
    Unsent(Box<Request<Upload>>),
    /// No head in time.
    Timeout,
    /// The connection broke, or said what is no HTTP.
    Failed {
        error: hyper::Error,
        /// A byte of a response had come.
        answered: bool,
    },
}

impl ExchangeError {
    fn new(mut error: TrySendError<Request<Upload>>, valve: &Valve) -> ExchangeError {
        match error.take_message() {
            Some(request) => ExchangeError::Unsent(Box::new(request)),
            None => ExchangeError::Failed { error: error.into_error(), answered: valve.is_answered() },
        }
    }

    /// Whether the connection ended before the head of a response was whole; part of it may have come.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            ExchangeError::Unsent(_) => true,
            ExchangeError::Timeout => false,
            ExchangeError::Failed { error, .. } => {
                error.is_incomplete_message() || error.is_canceled() || is_reset(error)
            }
        }
    }

    /// Whether the connection ended before a byte of a response came. The upstream may have begun the request all the same.
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
