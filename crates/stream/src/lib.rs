//! HTTP server for thousands of live streams that are idle most of the time.
//!
//! A response marked [`LiveBody`] takes over its socket: from then on the connection is one small
//! task that owns the socket and the response body. Ten thousand such streams need about ten
//! megabytes. GET and HEAD requests without a body over plain HTTP/1.1 are parsed and answered
//! here; hyper serves all others.
//!
//! ```
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # use tokio::net::{TcpListener, TcpStream};
//! use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody, Topic, service_fn};
//! use http::{Request, Response};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let news = Topic::new(64); // keeps 64 events for slow clients
//! let topic = news.clone();
//! let service = service_fn(move |_request: Request<Incoming>| {
//!     let mut response = Response::new(topic.subscribe());
//!     response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
//!     response.extensions_mut().insert(LiveBody);
//!     std::future::ready(response)
//! });
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! let server = HttpServer::new(listener, service, HttpServerConfig::default());
//! # let stats = server.stats();
//! # let shutdown = async {
//! #     let mut client = TcpStream::connect(address).await.unwrap();
//! #     client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
//! #     while news.subscribers() == 0 { tokio::task::yield_now().await }
//! news.publish("data: hello\n\n"); // to all open streams
//! #     news.close();
//! #     let mut all = String::new();
//! #     client.read_to_string(&mut all).await.unwrap();
//! #     assert!(all.ends_with("\r\n\r\nd\r\ndata: hello\n\n\r\n0\r\n\r\n"), "{all}");
//! # };
//! let summary = server.run(shutdown).await;
//! # assert_eq!((summary.cut, stats.counts().live_started), (0, 1));
//! # Ok(())
//! # }
//! ```
//!
//! # The paths of a connection
//! ```text
//!  accept ──▶ dispatch ── HTTP/1.1 ──▶ h1: simple requests ── LiveBody ──▶ live: task that owns
//!                │                        │ any other request                the socket
//!                │ HTTP/2, TLS            ▼                                   ▲
//!                └─────────────────▶ hyper ── LiveBody, HTTP/1.1, ────────────┘
//!                                      │      request body read
//!                                      └───── ConnectionUpgrade, HTTP/1.1 ──▶ the response body
//!                                                                             owns the connection
//! ```
//!
//! - **Fast path** (`h1/`): GET and HEAD requests without a body over plain HTTP/1.1. After the
//!   first request of another kind the connection stays with hyper.
//! - **Live path** (`live/`): a response marked [`LiveBody`] over plain HTTP/1.1, if the request's
//!   body has been read and the method isn't HEAD. The connection closes with the stream.
//! - **Upgrade** (`connection_upgrade.rs`): a 101 with a [`ConnectionUpgrade`] over HTTP/1.1, plain
//!   or with a handshake. The response body gets the connection as a stream of bytes.
//! - **hyper** (`hyper/`): everything else. A live response over HTTP/2 or TLS also ends when its
//!   client disconnects, but it needs more memory.
//!
//! The fast path and the live path send no trailers.
//!
//! # Invariants and their tests
//!
//! - A stream's body is dropped as soon as its client disconnects, with all that it owns (a permit,
//!   a subscription).
//!   `a_client_that_closes_half_closes_or_resets_drops_the_body_of_an_idle_stream`,
//!   `a_client_that_leaves_while_a_write_is_blocked_drops_the_body_at_once`,
//!   `a_client_that_resets_a_stream_or_disconnects_drops_the_body`,
//!   `a_stream_with_a_handshake_stays_with_hyper_and_ends_with_its_client`
//! - A body that fails or panics never looks complete: the connection closes without the last
//!   chunk; over HTTP/2 the stream is reset, over HTTP/1.0 the connection.
//!   `a_body_that_fails_or_panics_ends_without_the_last_chunk`,
//!   `a_body_that_fails_resets_its_stream_only`,
//!   `over_http_1_0_a_body_that_fails_or_panics_or_is_cut_ends_with_a_reset`
//! - Every wait for a client has a deadline ([`HttpServerConfig`]).
//!   `half_a_head_and_then_nothing_gets_a_408`,
//!   `a_client_that_accepts_no_bytes_loses_the_stream_and_not_the_connection`,
//!   `a_silent_connection_is_closed`, `a_body_that_stops_arriving_ends_the_connection`,
//!   `a_client_that_does_not_read_its_response_is_closed`,
//!   `a_client_that_accepts_no_bytes_loses_its_upgraded_connection`
//! - The body of an upgrade lives as long as the upgraded connection, and so does what it owns.
//!   `an_upgraded_connection_gets_the_bytes_behind_the_request_and_lives_as_long_as_its_body`,
//!   `an_upgraded_connection_continues_in_a_drain_and_is_cut_at_its_deadline`
//! - Every buffer has a bound.
//!   `a_client_that_never_reads_is_closed_and_nothing_is_buffered_beyond_the_bound`,
//!   `heads_beyond_the_limits_get_a_431`,
//!   `bytes_from_the_client_are_discarded_up_to_a_bound`,
//!   `a_connection_beyond_the_limit_is_refused_and_open_ones_continue`
//! - Data is written as soon as it is available, with other available data, up to a batch.
//!   `a_live_stream_is_a_head_its_chunks_as_they_come_and_the_last_chunk`
//! - A client that falls behind its topic gets a broken stream, never one with a gap.
//!   `every_tail_yields_every_event_in_order_or_ends_with_lagged`,
//!   `a_client_that_falls_behind_its_topic_sees_a_broken_stream`
//! - A stream gets every event of its topic once and in order, whether its task writes it or the
//!   topic does.
//!   `events_arrive_whole_and_in_order_from_topic_and_task`,
//!   `events_written_by_deliveries_and_by_the_task_are_neither_doubled_nor_lost` (loom),
//!   `a_delivery_writes_nothing_after_the_body_has_ended` (loom)
//! - During a drain, the server answers requests in transit, also on connections in the listener's
//!   backlog.
//!   `a_request_in_transit_when_the_drain_begins_is_answered`,
//!   `connections_in_the_backlog_are_answered`,
//!   `a_request_in_transit_after_a_handshake_is_answered_when_the_drain_begins`
//!
//! # Where to look
//! | topic | file |
//! |---|---|
//! | accept, refuse, drain | `server.rs`, `backlog.rs`, `hyper/http1_drain.rs` |
//! | protocol detection, choice of the path | `dispatch.rs`, `protocol.rs` |
//! | a connection's task, and its size | `connection_task.rs` |
//! | fast path: parse, call the service, write | `h1/parser.rs`, `h1/connection.rs`, `h1/response_head.rs` |
//! | chunked framing and writes | `h1/write_batch.rs`, `h1/socket_writer.rs` |
//! | a live stream that owns its socket | `live/stream.rs` |
//! | topics, and events written without waking tasks | `live/topic.rs`, `live/delivery.rs`, `live/direct_writes.rs` |
//! | locks that loom checks, and its tests | `sync.rs`, `live/loom_tests.rs`, `script/loom` |
//! | how a live response takes the socket from hyper | `hyper/service_adapter.rs`, `hyper/http1.rs` |
//! | upgraded connections | `connection_upgrade.rs`, `upgraded_io.rs` |
//! | deadlines of HTTP/2 requests | `hyper/h2_exchange.rs` |
//! | TLS | `hyper/transport.rs`, `hyper/transport_connection.rs` |
//! | limits, counters | `config.rs`, `stats.rs` |
//!
//! # Decisions
//! - The fast path exists for long-polls. With hyper a long-poll took a sixth more CPU, and held
//!   two buffers of 8 KiB while it waited. A request's head is copied out of hyper's buffer to free
//!   that buffer (`hyper/copy_head.rs`).
//! - hyper never gets a live response: the service future that it polls stays pending. The adapter
//!   stores the response. The connection's task takes the socket out of hyper and frees hyper's
//!   state.
//! - An HTTP/2 client with a closed flow-control window doesn't block the socket, so the socket's
//!   write timeout can't detect it. Each exchange has its own deadlines instead, and response bytes
//!   are counted until h2 has written them.
//! - With four or more direct tails, a topic writes an event to their sockets from a few tasks.
//!   Waking the task of each stream costs more. The service passes the permission explicitly
//!   ([`DirectWrites`]), because bodies may be wrapped in others that can't pass a socket on.
//! - A publisher that holds a lock doesn't encode: [`Topic::publish_deferred`] takes an event that
//!   the first tail or delivery task encodes, once for all streams.
//! - During a drain a connection without a request stays open for `drain_grace`, and its next
//!   response has `connection: close`. A head that is incomplete at the end of that time gets a
//!   503. HTTP/2 connections get a GOAWAY at once.
//!
//! Out of scope: TLS itself (see [`Handshake`]), routing, counting and limiting streams.

mod backlog;
mod config;
mod connection_task;
mod connection_upgrade;
mod dispatch;
mod error;
mod h1;
mod hyper;
mod incoming;
mod live;
mod protocol;
mod server;
mod service;
mod service_fn;
mod socket;
mod stall_timer;
mod stats;
mod sync;
mod task_registry;
mod upgraded_io;

use std::net::SocketAddr;

pub use config::HttpServerConfig;
pub use connection_upgrade::ConnectionUpgrade;
pub use h1::spare_headers::spare_headers;
pub use incoming::Incoming;
pub use live::direct_writes::DirectWrites;
pub use live::tail::{LastEvent, Tail, TailLagged};
pub use live::topic::Topic;
pub use server::{DrainSummary, HttpServer};
pub use service_fn::{ServiceFn, ServiceFnFuture, service_fn};
pub use stats::{ServerCounts, ServerStats};
pub use upgraded_io::UpgradedIo;

pub use self::hyper::transport::{Handshake, HandshakeFuture, NegotiatedTransport, Transport};

/// Marks a response whose body is a live stream: insert it into the response's extensions.
///
/// Over plain HTTP/1.1 one small task owns the socket and writes the response. Over HTTP/2 or with
/// a [`Handshake`] hyper writes it.
#[derive(Debug, Clone, Copy)]
pub struct LiveBody;

/// Address of the peer, in every request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddr(pub SocketAddr);
