//! Connections with a handshake (TLS), which hyper serves from beginning to end.
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
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::client_deadline::{ClientDeadline, count_error, count_timeout};
use crate::hyper::http1::Http1End;
use crate::hyper::http1_drain::{DrainDecision, Http1Drain};
use crate::hyper::http2::serve_http2;
use crate::hyper::service_adapter::ServiceAdapter;
use crate::hyper::transport::{HandshakeFuture, NegotiatedTransport, TransportIo};
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::{LINGER_TIMEOUT, SHUTTING_DOWN_RESPONSE};

/// Performs the handshake and serves HTTP over it until the connection ends.
pub(crate) async fn serve_transport<S, B>(
    handshake: HandshakeFuture,
    peer: ClientAddr,
    service: S,
    head_deadline: Instant,
    context: &Arc<ServerContext>,
) where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let negotiated = tokio::select! {
        biased;
        negotiated = timeout_at(head_deadline, handshake) => negotiated,
        () = context.drain_grace_elapsed() => return,
    };
    let NegotiatedTransport { io, is_http2 } = match negotiated {
        Ok(Ok(negotiated)) => negotiated,
        Ok(Err(error)) => return tracing::debug!(%error, "handshake failed"),
        Err(_) => return context.stats.counters().header_timeouts.increment(),
    };
    let activity = Arc::new(ConnectionActivity::default());
    let io = TransportIo::new(io, Arc::clone(&activity), context.config.write_timeout);
    let service = ServiceAdapter {
        service,
        peer,
        activity: Arc::clone(&activity),
        stats: context.stats.clone(),
        handoff: None,
    };
    if is_http2 {
        let conn = context.http2.serve_connection(io, service);
        serve_http2(Box::new(conn), &activity, context).await;
        return;
    }
    let conn = Box::new(context.http1.serve_connection(io, service));
    serve_transport_http1(conn, &activity, head_deadline, context).await;
}

async fn serve_transport_http1<S, B>(
    mut conn: Box<http1::Connection<TransportIo, ServiceAdapter<S, B>>>,
    activity: &ConnectionActivity,
    head_deadline: Instant,
    context: &ServerContext,
) where
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
        Http1End::Done(Ok(())) | Http1End::LiveResponse => {}
        Http1End::Done(Err(error)) => {
            count_error(&error, context);
        }
        Http1End::TimedOut(wait) => count_timeout(wait, context),
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
}
