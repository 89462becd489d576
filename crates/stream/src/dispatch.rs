//! Dispatch of a new connection: detects the protocol and picks the HTTP/1.1 fast path or hyper.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::ClientAddr;
use crate::connection_task::ConnectionHandoff;
use crate::h1::connection::{self, H1Outcome};
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::http1::serve_http1;
use crate::hyper::http2::{Http2End, serve_http2};
use crate::hyper::hyper_socket::HyperSocket;
use crate::hyper::service_adapter::{HandoffSlot, Http1Handoff, ServiceAdapter};
use crate::hyper::transport_connection::serve_transport;
use crate::protocol::{ClientProtocol, FirstBytes, detect, is_http2_prefix};
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::{REQUEST_TIMEOUT_RESPONSE, SHUTTING_DOWN_RESPONSE, linger, respond_and_linger};

/// Serves a connection until it ends; returns the parts of a response that takes the connection.
pub(crate) async fn serve<S, B>(
    stream: TcpStream,
    peer: ClientAddr,
    service: S,
    context: Arc<ServerContext>,
) -> Option<ConnectionHandoff<B>>
where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let head_deadline = Instant::now() + context.config.header_read_timeout;
    if let Some(handshake) = context.handshake.clone() {
        let handshake = handshake.handshake(stream);
        let upgrade = serve_transport(handshake, peer, service, head_deadline, &context).await;
        return upgrade.map(ConnectionHandoff::Upgrade);
    }
    let (protocol, first) = detect_protocol(&stream, head_deadline, &context).await?;
    let mut service = service;
    let (stream, received, head_deadline) = match protocol {
        ClientProtocol::Http1 => {
            match connection::serve(stream, first.received(), peer, &mut service, &context).await {
                H1Outcome::Closed => return None,
                H1Outcome::Linger(stream) => {
                    linger(&stream).await;
                    return None;
                }
                H1Outcome::Live(parts) => return Some(ConnectionHandoff::Live(parts)),
                H1Outcome::Hyper { stream, received, since } => {
                    let head_deadline =
                        since.map_or(head_deadline, |since| since + context.config.header_read_timeout);
                    (stream, received, head_deadline)
                }
            }
        }
        ClientProtocol::Http2 | ClientProtocol::Undecided => {
            (stream, Bytes::copy_from_slice(first.received()), head_deadline)
        }
    };
    let activity = Arc::new(ConnectionActivity::default());
    let io = HyperSocket::new(stream, received, Arc::clone(&activity), &context.config);
    let stats = context.stats.clone();
    let adapter = |handoff| ServiceAdapter { service, peer, activity: Arc::clone(&activity), stats, handoff };
    match protocol {
        ClientProtocol::Http2 => {
            let service = adapter(None);
            let stream = Arc::clone(io.stream());
            let conn = context.http2.serve_connection(io, service);
            if serve_http2(Box::new(conn), &activity, &context).await == Http2End::Finished {
                // Unread frames would reset the connection and lose the last response.
                linger(&stream).await;
            }
            None
        }
        ClientProtocol::Http1 | ClientProtocol::Undecided => {
            let slot = HandoffSlot::new();
            let (slot_of_service, stream) = (Arc::clone(&slot), Some(Arc::clone(io.stream())));
            let service = adapter(Some(Http1Handoff { slot: slot_of_service, stream }));
            let conn = context.http1.serve_connection(io, service);
            serve_http1(Box::new(conn), slot, &activity, head_deadline, &context).await
        }
    }
}

/// Waits for the bytes that identify the protocol. Until then no buffer is allocated.
async fn detect_protocol(
    stream: &TcpStream,
    head_deadline: Instant,
    context: &ServerContext,
) -> Option<(ClientProtocol, FirstBytes)> {
    let mut first = FirstBytes::default();
    let mut late = pin!(sleep_until(head_deadline));
    let mut drain_grace_elapsed = pin!(context.drain_grace_elapsed());
    let response = loop {
        tokio::select! {
            biased;
            ready = stream.readable() => ready.ok()?,
            () = &mut late => {
                context.stats.counters().header_timeouts.increment();
                break REQUEST_TIMEOUT_RESPONSE;
            }
            () = &mut drain_grace_elapsed => break SHUTTING_DOWN_RESPONSE,
        }
        match first.fill(stream) {
            Ok(0) => return None,
            Ok(_) => match detect(first.received()) {
                ClientProtocol::Undecided => {}
                known => return Some((known, first)),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    };
    let received = first.received();
    if !received.is_empty() && !is_http2_prefix(received) {
        respond_and_linger(stream, response).await;
    }
    None
}
