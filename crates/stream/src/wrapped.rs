//! Wrapped connections (TLS): served by hyper from beginning to end, since the bytes must be encrypted by the wrapper.
//!
//! Invariant: the same deadlines, and the same part in a drain, as a plain connection has in `ordinary.rs`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::http1;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::Peer;
use crate::bounds::{Answers, Streamed};
use crate::farewell::{Farewell, Leave};
use crate::handover::Handover;
use crate::meter::Meter;
use crate::ordinary::{Http1End, LINGER, SHUTTING_DOWN, Waits, count_error, count_late, serve_http2};
use crate::server::Shared;
use crate::wrap::{Wrapped, WrappedIo, Wrapping};

/// Serves what is inside of a wrapped connection, until it ends.
pub(crate) async fn serve_wrapped<S, B>(
    wrapping: Wrapping,
    peer: Peer,
    service: S,
    head_by: Instant,
    shared: &Arc<Shared>,
) where
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let wrapped = tokio::select! {
        biased;
        wrapped = timeout_at(head_by, wrapping) => wrapped,
        () = shared.grace_ended() => return,
    };
    let Wrapped { io, is_http2 } = match wrapped {
        Ok(Ok(wrapped)) => wrapped,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return shared.stats.counters().header_timeouts.up(),
    };
    let meter = Arc::new(Meter::default());
    let io = WrappedIo::new(io, Arc::clone(&meter), shared.config.write_timeout);
    let service =
        Handover { service, peer, meter: Arc::clone(&meter), stats: shared.stats.clone(), h1: None };
    if is_http2 {
        let conn = shared.http2.serve_connection(io, service);
        serve_http2(Box::new(conn), &meter, shared).await;
        return;
    }
    let conn = Box::new(shared.http1.serve_connection(io, service));
    serve_wrapped_http1(conn, &meter, head_by, shared).await;
}

async fn serve_wrapped_http1<S, B>(
    mut conn: Box<http1::Connection<WrappedIo, Handover<S, B>>>,
    meter: &Meter,
    head_by: Instant,
    shared: &Shared,
) where
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let (mut farewell, mut waits) = (Farewell::new(shared), Waits::for_first_head());
    let mut deadline = pin!(sleep_until(head_by));
    let end = poll_fn(|cx| {
        farewell.begin(meter, cx);
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            return Poll::Ready(Http1End::Done(done));
        }
        if let Poll::Ready(phase) = waits.poll(meter, &shared.config, deadline.as_mut(), cx) {
            return Poll::Ready(Http1End::Late(phase));
        }
        match farewell.poll(meter, cx) {
            Poll::Ready(Leave::InHead) => return Poll::Ready(Http1End::ShutDown),
            Poll::Ready(Leave::AfterAnswer | Leave::Idle) => {
                Pin::new(&mut *conn).graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            Poll::Pending => {}
        }
        Poll::Pending
    });
    match end.await {
        Http1End::Done(Ok(())) | Http1End::Taken => {}
        Http1End::Done(Err(error)) => drop(count_error(&error, shared)),
        Http1End::Late(phase) => count_late(phase, shared),
        Http1End::ShutDown => {
            let mut io = conn.into_parts().io.into_transport();
            let telling = async {
                io.write_all(SHUTTING_DOWN).await?;
                io.shutdown().await
            };
            let _ = timeout(LINGER, telling).await; // the client may be gone
        }
    }
}
