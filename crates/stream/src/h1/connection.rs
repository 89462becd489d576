//! HTTP/1.1 connection on the fast path: requests without a body, one after another.
//!
//! Most requests are of this kind, and all long-polls. With hyper a long-poll took a sixth more
//! CPU, and held two buffers of 8 KiB while it waited. Any other request goes to hyper with all
//! bytes that were received, and the connection stays with hyper.
//!
//! Invariant: a request is either answered here or passed to hyper whole, never both.
//! Enforced by: `parser.rs`, which accepts only complete, simple requests.
//! Invariant: every connection ends, even if the client stalls.
//! Enforced by: `idle_timeout` (`drain_grace` in a drain) between requests, and `write_timeout` for
//! each response. A disconnect is noticed unless [`READ_SIZE`] bytes of input are buffered.
//!
//! Memory: a waiting request holds no buffer. Bytes that follow it are kept until it has been
//! answered, at most [`READ_SIZE`].

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Version};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::config::HttpServerConfig;
use crate::h1::body_remainder::BodyRemainder;
use crate::h1::parser::parse_request;
use crate::h1::response_head::{self, AfterResponse, Framing};
use crate::h1::socket_writer::{SocketWriter, WRITES_PER_POLL, WriteFailure};
use crate::h1::spare_headers;
use crate::h1::write_batch::WriteBatch;
use crate::incoming::Incoming;
use crate::live::stream::LiveStreamParts;
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::read_available;
use crate::{ClientAddr, LiveBody};

/// Maximum bytes of one read. Longer heads go to hyper.
const READ_SIZE: usize = 8 * 1024;

/// How the fast path of a connection ended.
pub(crate) enum H1Outcome<B> {
    /// The connection is closed or must be dropped.
    Closed,
    /// The last response is written; a lingering close follows.
    Linger(TcpStream),
    /// A live response takes the socket.
    Live(LiveStreamParts<B>),
    /// hyper continues, starting with the bytes of a request that were received.
    Hyper {
        stream: TcpStream,
        received: Bytes,
        /// Time at which that request began, unless it is the connection's first.
        since: Option<Instant>,
    },
}

/// Serves requests until the fast path ends. `received` holds the bytes read so far.
pub(crate) async fn serve<S, B>(
    stream: TcpStream,
    received: &[u8],
    peer: ClientAddr,
    service: &mut S,
    context: &ServerContext,
) -> H1Outcome<B>
where
    S: HttpService<B>,
    B: ResponseBody,
{
    let mut idle_timer = pin!(sleep(context.config.idle_timeout));
    let (mut drain_started, mut is_draining) = (pin!(context.drain_started()), false);
    let mut client = H1Connection { stream, received: received.to_vec() };
    let mut is_first = true;
    loop {
        let mut request = match client.read_request(&context.config) {
            Ok(ReadOutcome::Request(request)) => request,
            Ok(ReadOutcome::Unparsed(received)) => {
                let since = (!is_first).then(Instant::now);
                return H1Outcome::Hyper { stream: client.stream, received, since };
            }
            Ok(ReadOutcome::Eof) | Err(_) => return H1Outcome::Closed,
            Ok(ReadOutcome::WouldBlock) => {
                let (timer, drain) = (idle_timer.as_mut(), drain_started.as_mut());
                match wait_for_input(&client.stream, timer, drain, &mut is_draining, context).await {
                    ClientInput::Readable => continue,
                    ClientInput::Ended => return H1Outcome::Closed,
                }
            }
        };
        is_first = false;
        // Yields to other tasks if the client always has a next request ready.
        tokio::task::coop::consume_budget().await;
        context.stats.counters().requests.increment();
        request.extensions_mut().insert(peer);
        let method = request.method().clone();
        let Some(response) = client.call_service(service, request).await else {
            return H1Outcome::Closed;
        };
        let is_live = response.extensions().get::<LiveBody>().is_some();
        if is_live && response_head::may_stream(&method, Version::HTTP_11, response.status()) {
            let (mut parts, body) = response.into_parts();
            return H1Outcome::Live(LiveStreamParts {
                stream: client.stream,
                head: response_head::encode_live_head(&parts, &response_head::date()),
                body,
                discarded: client.received.len(),
                writes: parts.extensions.remove(),
            });
        }
        // A final response must follow an interim one, and the service has none.
        let is_last = context.is_draining()
            || response_head::requests_close(response.headers())
            || response.status().is_informational();
        let after = if is_last { AfterResponse::Close } else { AfterResponse::KeepOpen };
        match client.write(response, &method, after, context.config.write_timeout).await {
            Ok(()) if is_last => return H1Outcome::Linger(client.stream),
            Ok(()) => {}
            Err(ResponseWriteError::Socket(WriteFailure::TimedOut)) => {
                context.stats.counters().slow_clients.increment();
                return H1Outcome::Closed;
            }
            Err(ResponseWriteError::Socket(WriteFailure::ClientClosed) | ResponseWriteError::Body) => {
                return H1Outcome::Closed;
            }
        }
    }
}

/// Result of a wait for a client's next request.
enum ClientInput {
    Readable,
    /// The idle timeout has passed, or the socket has failed.
    Ended,
}

/// Waits until the client sends bytes or disconnects, at most for the idle timeout.
async fn wait_for_input(
    stream: &TcpStream,
    mut idle_timer: Pin<&mut Sleep>,
    mut drain_started: Pin<&mut impl Future<Output = ()>>,
    is_draining: &mut bool,
    context: &ServerContext,
) -> ClientInput {
    let idle = if *is_draining { context.drain_grace() } else { context.config.idle_timeout };
    let mut due = Instant::now() + idle;
    poll_fn(|cx| {
        if let Poll::Ready(readable) = stream.poll_read_ready(cx) {
            return Poll::Ready(readable.map_or(ClientInput::Ended, |()| ClientInput::Readable));
        }
        if !*is_draining && drain_started.as_mut().poll(cx).is_ready() {
            *is_draining = true;
            due = due.min(Instant::now() + context.drain_grace());
            idle_timer.as_mut().reset(due);
        }
        poll_deadline(idle_timer.as_mut(), due, cx).map(|()| ClientInput::Ended)
    })
    .await
}

/// Resolves at `due`. The timer may be set earlier; it is only moved when it fires, to save resets.
fn poll_deadline(mut timer: Pin<&mut Sleep>, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        ready!(timer.as_mut().poll(cx));
        if timer.deadline() >= due {
            return Poll::Ready(());
        }
        timer.as_mut().reset(due);
    }
}

/// Socket of a connection on the fast path, and its buffered input.
struct H1Connection {
    stream: TcpStream,
    /// Received bytes of requests that are not answered yet.
    received: Vec<u8>,
}

/// Result of an attempt to read a request.
#[expect(clippy::large_enum_variant, reason = "matched at once; a box would cost an allocation")]
enum ReadOutcome {
    Request(Request<Incoming>),
    /// Bytes that are no complete, simple request.
    Unparsed(Bytes),
    /// The client closed the connection.
    Eof,
    WouldBlock,
}

/// Why a response wasn't written completely.
pub(super) enum ResponseWriteError {
    Socket(WriteFailure),
    /// The body failed, or its length differs from the declared one.
    Body,
}

impl H1Connection {
    /// Parses a request from the buffered bytes; if that fails, reads once and parses again.
    fn read_request(&mut self, config: &HttpServerConfig) -> io::Result<ReadOutcome> {
        let buffered = std::mem::take(&mut self.received);
        if let Some(request) = parse_request(&buffered, config) {
            return Ok(ReadOutcome::Request(request));
        }
        let mut room = [MaybeUninit::uninit(); READ_SIZE];
        let Some((before, room_left)) = room.split_at_mut_checked(buffered.len()) else {
            return Ok(ReadOutcome::Unparsed(buffered.into()));
        };
        before.write_copy_of_slice(&buffered);
        let count = match read_available(&self.stream, room_left) {
            Ok(0) if buffered.is_empty() => return Ok(ReadOutcome::Eof),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && buffered.is_empty() => {
                return Ok(ReadOutcome::WouldBlock);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        // SAFETY: the copy and the socket have initialised all of these bytes.
        let text = unsafe { room[..buffered.len() + count].assume_init_ref() };
        let request = parse_request(text, config);
        Ok(request.map_or_else(|| ReadOutcome::Unparsed(Bytes::copy_from_slice(text)), ReadOutcome::Request))
    }

    /// Calls the service; returns `None` if the client disconnects before the response.
    async fn call_service<S, B>(&mut self, service: &mut S, request: Request<Incoming>) -> Option<Response<B>>
    where
        S: HttpService<B>,
    {
        let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
        let mut responding = pin!(service.call(request));
        poll_fn(|cx| {
            if let Poll::Ready(responded) = responding.as_mut().poll(cx) {
                let response: Result<_, Infallible> = responded;
                return Poll::Ready(response.ok());
            }
            self.poll_closed(cx).map(|()| None)
        })
        .await
    }

    /// Resolves when the client has disconnected. Input is buffered; a full buffer stops the check.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.received.len() < READ_SIZE {
            let Ok(()) = ready!(self.stream.poll_read_ready(cx)) else { return Poll::Ready(()) };
            if self.buffer_input().is_err() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    #[cold]
    fn buffer_input(&mut self) -> io::Result<()> {
        let mut room = [0; READ_SIZE];
        match self.stream.try_read(&mut room[self.received.len()..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.received.extend_from_slice(&room[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes a response: the head together with the body's first data.
    async fn write<B: ResponseBody>(
        &mut self,
        response: Response<B>,
        method: &Method,
        after: AfterResponse,
        write_timeout: Duration,
    ) -> Result<(), ResponseWriteError> {
        let framing = Framing::of(method, &response);
        let (parts, body) = response.into_parts();
        let (mut head, mut writer) = (Some(parts), SocketWriter::default());
        let mut remainder = BodyRemainder::of(framing);
        let mut body = pin!(Some(body));
        poll_fn(|cx| {
            for _ in 0..WRITES_PER_POLL {
                ready!(writer.poll_flush(&self.stream, write_timeout, cx))
                    .map_err(ResponseWriteError::Socket)?;
                let mut batch = WriteBatch::take_spare();
                if let Some(parts) = head.take() {
                    batch.push_text(|text| {
                        response_head::write_head(text, &parts, framing, after, &response_head::date())
                    });
                    spare_headers::recycle(parts.headers);
                }
                let filled = remainder.fill_batch(body.as_mut(), &mut batch, cx);
                if remainder == BodyRemainder::None {
                    body.set(None); // dropped before a slow client has read the response
                }
                let (is_empty_batch, written) = (batch.len() == 0, writer.write(&self.stream, &mut batch));
                written.map_err(ResponseWriteError::Socket)?;
                batch.recycle();
                filled?;
                if remainder == BodyRemainder::None && writer.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                if is_empty_batch {
                    ready!(self.poll_closed(cx));
                    return Poll::Ready(Err(ResponseWriteError::Socket(WriteFailure::ClientClosed)));
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}
