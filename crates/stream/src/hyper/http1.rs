//! HTTP/1 connections served by hyper: requests with a body, HTTP/1.0, pipelined requests.
//!
//! Invariant: every connection ends, even if the client stalls.
//! Enforced by: [`ClientDeadline`] bounds each wait for the client; `hyper_socket.rs` bounds each
//! write.
//!
//! A live response or an upgrade ends hyper's part. The socket is taken out of hyper once all bytes
//! of earlier responses are written.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::Response;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::ConnectionUpgrade;
use crate::connection_task::ConnectionHandoff;
use crate::connection_upgrade::UpgradeParts;
use crate::h1::response_head;
use crate::hyper::activity::{ClientWait, ConnectionActivity};
use crate::hyper::client_deadline::{ClientDeadline, ErrorResponse, count_error, count_timeout};
use crate::hyper::http1_drain::{DrainDecision, Http1Drain};
use crate::hyper::hyper_socket::HyperSocket;
use crate::hyper::service_adapter::{HandoffSlot, ServiceAdapter};
use crate::live::stream::LiveStreamParts;
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::{REQUEST_TIMEOUT_RESPONSE, SHUTTING_DOWN_RESPONSE, linger, respond_and_linger};
use crate::upgraded_io::{ClientSocket, UpgradedIo};

/// Connection of hyper for HTTP/1.
type Http1<I, S, B> = http1::Connection<I, ServiceAdapter<S, B>>;

/// Drives the connection until it ends, or until a response can take its socket.
pub(crate) async fn serve_http1<S, B>(
    mut conn: Box<Http1<HyperSocket, S, B>>,
    slot: Arc<HandoffSlot<B>>,
    activity: &ConnectionActivity,
    head_deadline: Instant,
    context: &ServerContext,
) -> Option<ConnectionHandoff<B>>
where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let end = drive_http1(&mut *conn, &slot, activity, head_deadline, context).await;

    // The slot is emptied before hyper's state is dropped, because dropping a response runs the
    // service's code.
    let (response, parts) = (slot.take(), conn.into_parts());
    let (stream, prefix) = parts.io.into_parts();
    drop(parts.service);
    match end {
        Http1End::Handoff => {
            // A body passed to hyper would hold the socket too, but this one was not passed on.
            let (response, stream) = (response?, Arc::into_inner(stream)?);
            Some(hand_over(response, stream, join(parts.read_buf, prefix), context))
        }
        Http1End::TimedOut(wait) => {
            count_timeout(wait, context);
            // In this state no bytes of an earlier response are unwritten.
            if wait == ClientWait::Head {
                respond_and_linger(&stream, REQUEST_TIMEOUT_RESPONSE).await;
            }
            None
        }
        Http1End::DrainExpired => {
            respond_and_linger(&stream, SHUTTING_DOWN_RESPONSE).await;
            None
        }
        Http1End::Done(done) => {
            let has_response = match done {
                Ok(()) => true,
                Err(error) => count_error(&error, context) == ErrorResponse::Sent,
            };
            if has_response {
                linger(&stream).await;
            }
            None
        }
        Http1End::ClosedIdle => None,
    }
}

/// How hyper's part of an HTTP/1 connection ended.
pub(super) enum Http1End {
    Done(hyper::Result<()>),
    /// The drain closed the connection, which had no request.
    ClosedIdle,
    /// A response that takes the connection is in the slot.
    Handoff,
    /// The client missed a deadline.
    TimedOut(ClientWait),
    /// The drain's grace ended in the middle of a head.
    DrainExpired,
}

/// Drives hyper until the connection ends, or until a response that takes it is in the slot.
pub(super) async fn drive_http1<I, S, B>(
    conn: &mut Http1<I, S, B>,
    slot: &HandoffSlot<B>,
    activity: &ConnectionActivity,
    head_deadline: Instant,
    context: &ServerContext,
) -> Http1End
where
    I: Read + Write + Unpin,
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let (mut drain, mut client_deadline) = (Http1Drain::new(context), ClientDeadline::for_first_head());
    let mut deadline = pin!(sleep_until(head_deadline));
    let mut is_idle = false;
    poll_fn(|cx| {
        drain.poll_started(activity, cx);
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            let closed_idle = is_idle && done.is_ok();
            return Poll::Ready(if closed_idle { Http1End::ClosedIdle } else { Http1End::Done(done) });
        }
        if !slot.is_empty() && !activity.unflushed.get() {
            return Poll::Ready(Http1End::Handoff);
        }
        if let Poll::Ready(wait) = client_deadline.poll(activity, &context.config, deadline.as_mut(), cx) {
            return Poll::Ready(Http1End::TimedOut(wait));
        }
        match drain.poll_decision(activity, cx) {
            Poll::Ready(DrainDecision::RejectHead) => return Poll::Ready(Http1End::DrainExpired),
            Poll::Ready(decision @ (DrainDecision::AfterResponse | DrainDecision::CloseIdle)) => {
                is_idle = decision == DrainDecision::CloseIdle;
                Pin::new(&mut *conn).graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            Poll::Pending => {}
        }
        Poll::Pending
    })
    .await
}

/// Returns the parts of a live stream or of an upgrade. `unread` has the bytes behind the request.
fn hand_over<B>(
    response: Response<B>,
    stream: TcpStream,
    unread: Bytes,
    context: &ServerContext,
) -> ConnectionHandoff<B> {
    let (mut head, body) = response.into_parts();
    match head.extensions.remove::<ConnectionUpgrade>() {
        Some(upgrade) => {
            let socket = ClientSocket::Plain(stream);
            ConnectionHandoff::Upgrade(UpgradeParts {
                io: UpgradedIo::new(socket, unread, context.config.write_timeout),
                head: response_head::encode_upgrade_head(&head, &response_head::date()),
                body,
                upgrade,
            })
        }
        None => ConnectionHandoff::Live(LiveStreamParts {
            stream,
            head: response_head::encode_live_head(&head, &response_head::date()),
            body,
            discarded: unread.len(),
            writes: head.extensions.remove(),
        }),
    }
}

fn join(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}
