//! One connection to the upstream, and the response that comes over it.
//!
//! Invariant: a connection is driven by the request that holds it, and by nothing else. Dropping that request, while it
//! waits for the response or in the midst of its body, closes the socket there and then: no other task has to notice
//! that the client has left. A connection whose response has ended, with nothing left to send, goes back to its pool.
//! Kept by: [`Connection`] owns the socket and is owned by the future of the request, then by [`Download`].
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
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use super::upload::{Progress, Upload};
use super::upstream::Pool;

/// What the upstream may send as a head; its bodies have no bound.
const MAX_HEAD_BYTES: usize = 64 * 1024;

pub(crate) struct Connection {
    sender: http1::SendRequest<Upload>,
    driver: http1::Connection<TokioIo<TcpStream>, Upload>,
    /// The driver has returned and may not be polled again.
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) async fn start(
        socket: TcpStream,
        permit: OwnedSemaphorePermit,
    ) -> Result<Connection, hyper::Error> {
        let mut builder = http1::Builder::new();
        let (sender, driver) = builder.max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(socket)).await?;
        Ok(Connection { sender, driver, ended: false, _permit: permit })
    }

    /// Whether it can take a request now. One that the upstream has closed meanwhile can't.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        !self.ended && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of the response; `timeout` counts from the last progress of the upload.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Upload>,
        progress: &Progress,
        timeout: Duration,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut timer = pin!(sleep_until(progress.last() + timeout));
        let (driver, ended) = (&mut self.driver, &mut self.ended);
        poll_fn(|cx| {
            // Once before the driver ran and once after: what it does for the answer wakes nobody else.
            for _ in 0..2 {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(answer.map_err(ExchangeError::from));
                }
                drive(driver, ended, cx);
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
        .await
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, &mut self.ended, cx);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("ended", &self.ended).finish_non_exhaustive()
    }
}

fn drive(driver: &mut http1::Connection<TokioIo<TcpStream>, Upload>, ended: &mut bool, cx: &mut Context<'_>) {
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
    Failed(hyper::Error),
}

impl ExchangeError {
    /// The connection ended without a byte of a response.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            ExchangeError::Unsent(_) => true,
            ExchangeError::Timeout => false,
            ExchangeError::Failed(error) => {
                error.is_incomplete_message() || error.is_canceled() || is_reset(error)
            }
        }
    }
}

impl From<TrySendError<Request<Upload>>> for ExchangeError {
    fn from(mut error: TrySendError<Request<Upload>>) -> ExchangeError {
        match error.take_message() {
            Some(request) => ExchangeError::Unsent(Box::new(request)),
            None => ExchangeError::Failed(error.into_error()),
        }
    }
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe))
}

/// A response's body, with the connection that it comes over.
#[derive(Debug)]
pub(crate) struct Download {
    incoming: Incoming,
    /// None once it went back, or broke.
    connection: Option<Box<Connection>>,
    pool: Arc<Pool>,
}

impl Download {
    /// Gives the connection back at once where there is no body.
    pub(crate) fn new(incoming: Incoming, connection: Box<Connection>, pool: Arc<Pool>) -> Download {
        Download { incoming, connection: Some(connection), pool }
    }

    /// For a response whose body is empty from the start.
    pub(crate) async fn settle_if_ended(&mut self) {
        if self.incoming.is_end_stream() {
            poll_fn(|cx| {
                self.settle(cx);
                Poll::Ready(())
            })
            .await;
        }
    }

    /// The response is complete: the connection goes back if it can take another request, and ends if not.
    fn settle(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_ready(cx)
        {
            self.pool.put_back(connection);
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut driven = false;
        loop {
            match Pin::new(&mut this.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers belong to one connection here, as `Trailer` does.
                    let Ok(data) = frame.into_data() else { continue };
                    if this.incoming.is_end_stream() {
                        this.settle(cx);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(Some(Err(error))) => {
                    this.connection = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {
                    this.settle(cx);
                    return Poll::Ready(None);
                }
                Poll::Pending if driven => return Poll::Pending,
                Poll::Pending => {
                    driven = true;
                    if let Some(connection) = &mut this.connection {
                        connection.drive(cx);
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
