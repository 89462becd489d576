//! Connections with a handshake (TLS), which hyper serves until they end or are upgraded.
//!
//! Invariant: the same deadlines and the same drain as for a plain connection.
//! Enforced by: `drive_http1` in `http1.rs` drives both.

use std::sync::Arc;

use hyper::server::conn::http1;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::ClientAddr;
use crate::connection_upgrade::UpgradeParts;
use crate::h1::response_head;
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::client_deadline::{count_error, count_timeout};
use crate::hyper::http1::{Http1End, drive_http1};
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
    let io = TransportIo::new(io, Arc::clone(&activity), context.config.write_timeout);
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
    match drive_http1(&mut *conn, &slot, activity, head_deadline, context).await {
        Http1End::Done(Ok(())) | Http1End::ClosedIdle => {
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
