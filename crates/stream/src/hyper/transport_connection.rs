//! Connections with a handshake (TLS), which hyper serves until they end or are upgraded.
//!
//! Invariant: the same deadlines and the same drain as for a plain connection in `http1.rs`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::http1;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::ClientAddr;
use crate::connection_upgrade::UpgradeParts;
use crate::h1::response_head;
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::client_deadline::{ClientDeadline, count_error, count_timeout};
use crate::hyper::http1::Http1End;
use crate::hyper::http1_drain::{DrainDecision, Http1Drain};
use crate::hyper::http2::serve_http2;
use crate::hyper::service_adapter::{HandoffSlot, Http1Handoff, ServiceAdapter};
use crate::hyper::transport::{HandshakeFuture, NegotiatedTransport, TransportIo};
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::{LINGER_TIMEOUT, SHUTTING_DOWN_RESPONSE};
use crate::upgraded_io::{ClientSocket, UpgradedIo};

/// Performs the handshake and serves HTTP over it until the connection ends or is upgraded.
pub(crate) async fn serve_transport<S, B>(
    handshake: HandshakeFuture,
    peer: ClientAddr,
    service: S,
    head_deadline: Instant,
    context: &Arc<ServerContext>,
) -> Option<UpgradeParts<B>>
where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let negotiated = tokio::select! {
        biased;
        negotiated = timeout_at(head_deadline, handshake) => negotiated,
        () = context.drain_grace_elapsed() => return None,
    };
    let NegotiatedTransport { io, is_http2 } = match negotiated {
        Ok(Ok(negotiated)) => negotiated,
        Ok(Err(error)) => {
            tracing::debug!(%error, "handshake failed");
            return None;
        }
        Err(_) => {
            context.stats.counters().header_timeouts.increment();
            return None;
        }
    };
    let activity = Arc::new(ConnectionActivity::default());
    let io = TransportIo::new(io, Arc::clone(&activity), &context.config);
    let slot = HandoffSlot::new();
    let service = ServiceAdapter {
        service,
        peer,
        activity: Arc::clone(&activity),
        stats: context.stats.clone(),
        handoff: (!is_http2).then(|| Http1Handoff { slot: Arc::clone(&slot), stream: None }),
    };
    if is_http2 {
        let conn = context.http2.serve_connection(io, service);
        serve_http2(Box::new(conn), &activity, context).await;
        return None;
    }
    let conn = Box::new(context.http1.serve_connection(io, service));
    serve_transport_http1(conn, slot, &activity, head_deadline, context).await
}

async fn serve_transport_http1<S, B>(
    mut conn: Box<http1::Connection<TransportIo, ServiceAdapter<S, B>>>,
    slot: Arc<HandoffSlot<B>>,
    activity: &ConnectionActivity,
    head_deadline: Instant,
    context: &ServerContext,
) -> Option<UpgradeParts<B>>
where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let (mut drain, mut client_deadline) = (Http1Drain::new(context), ClientDeadline::for_first_head());
    let mut deadline = pin!(sleep_until(head_deadline));
    let end = poll_fn(|cx| {
        drain.poll_started(activity, cx);
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            return Poll::Ready(Http1End::Done(done));
        }
        if !slot.is_empty() && !activity.unflushed.get() {
            return Poll::Ready(Http1End::Handoff);
        }
        if let Poll::Ready(wait) = client_deadline.poll(activity, &context.config, deadline.as_mut(), cx) {
            return Poll::Ready(Http1End::TimedOut(wait));
        }
        match drain.poll_decision(activity, cx) {
            Poll::Ready(DrainDecision::RejectHead) => return Poll::Ready(Http1End::DrainExpired),
            Poll::Ready(DrainDecision::AfterResponse | DrainDecision::CloseIdle) => {
                Pin::new(&mut *conn).graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            Poll::Pending => {}
        }
        Poll::Pending
    });
    match end.await {
        Http1End::Done(Ok(())) => {
            // hyper doesn't shut down a connection on which a client asked for an upgrade. Without
            // TLS's end message, the response to that client looks truncated.
            let mut io = conn.into_parts().io.into_transport();
            // Fails if the client has disconnected.
            let _ = timeout(LINGER_TIMEOUT, io.shutdown()).await;
        }
        Http1End::Done(Err(error)) => {
            count_error(&error, context);
        }
        Http1End::TimedOut(wait) => count_timeout(wait, context),
        Http1End::Handoff => {
            let (mut head, body) = slot.take()?.into_parts();
            let upgrade = head.extensions.remove()?;
            let parts = conn.into_parts();
            let socket = ClientSocket::Transport(parts.io.into_transport());
            return Some(UpgradeParts {
                io: UpgradedIo::new(socket, parts.read_buf, context.config.write_timeout),
                head: response_head::encode_upgrade_head(&head, &response_head::date()),
                body,
                upgrade,
            });
        }
        Http1End::DrainExpired => {
            let mut io = conn.into_parts().io.into_transport();
            let responding = async {
                io.write_all(SHUTTING_DOWN_RESPONSE).await?;
                io.shutdown().await
            };
            // Fails if the client has disconnected.
            let _ = timeout(LINGER_TIMEOUT, responding).await;
        }
    }
    None
}
