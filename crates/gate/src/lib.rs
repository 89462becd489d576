//! Streaming reverse proxy with admission control in front of one upstream, as a tower service for
//! [`forebay_stream::HttpServer`].
//!
//! A *stream* is a request on a configured route, or one that offers an upgrade such as WebSocket.
//! For each stream, the gate takes a permit before the request is sent to the upstream. The permit
//! is returned when the response body or the upgraded connection has ended. Other requests need no
//! permit. If no route is configured, every request counts as a stream.
//!
//! ```
//! use forebay_admission::{Admission, Identifier};
//! use forebay_gate::{Config, ReverseProxy, UpstreamConfig};
//! use forebay_quota::Quota;
//! use forebay_stream::{HttpServer, HttpServerConfig};
//!
//! async fn serve(listener: tokio::net::TcpListener) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut config = Config::new(UpstreamConfig::new("127.0.0.1:8000".parse()?));
//!     config.stream_routes = vec![("POST /api/v1/stream".parse()?, 100)];
//!     let proxy = ReverseProxy::new(config, Identifier::new());
//!     let admission = Admission::builder().total(1_000).build(Quota::local());
//!     let service = proxy.service(admission);
//!     let server = HttpServer::new(listener, service, HttpServerConfig::default());
//!     server.run(std::future::pending()).await; // or until a shutdown signal
//!     Ok(())
//! }
//! ```
//!
//! # Picture
//!
//! ```text
//! client ─▶ HttpServer ─▶ gate_service.rs ─▶ AdmissionLayer ─▶ forwarder.rs ─▶ upstream.rs ─▶ app
//!           HTTP/1.1,     bad_request.rs     X-Thread-ID;      headers.rs      pool of
//!           HTTP/2        stream_routes.rs   permit, if a      drain.rs        HTTP/1.1
//!                                            stream                            connections
//!
//! request body   client ──▶ upload.rs ──▶ upstream_connection.rs ──▶ head_io.rs ──▶ app
//! response body  client ◀── permit ◀── gate_body.rs ◀── download.rs ◀── hyper, or the socket
//! after a 101    client ◀─▶ tunnel.rs, in gate_body.rs with the permit ◀─▶ the socket
//! ```
//!
//! A *live stream* is a stream's response of unknown length to an HTTP/1.1 client. After its head,
//! the gate detaches the upstream's socket from hyper, because hyper's buffers cost 16 KiB per
//! connection. The response body owns the connection and the permit. Dropping the body closes the
//! connection and returns the permit.
//!
//! # Invariants and their tests
//!
//! - No stream reaches the upstream without a permit. Other common spellings of its path are
//!   matched as well. Percent-encoding is decoded once: a path that is encoded twice is another
//!   path.
//!   Enforced by: only `gate_service.rs` calls `forwarder.rs`, through admission's layer.
//!   `streams_beyond_the_total_get_a_503_and_a_freed_permit_is_reused`,
//!   `no_spelling_of_a_path_bypasses_the_limits`, `no_spelling_of_a_segment_bypasses_a_wildcard`,
//!   `other_spellings_of_a_path_do_not_evade_its_routes_limit`
//! - A stream holds its permit until its response body has ended. The limits apply across all
//!   gates that share one quota store.
//!   `after_random_disconnects_no_permit_is_held`, `a_users_limit_is_exact_across_gates`,
//!   `the_total_is_shared_and_a_killed_gates_permits_return`
//! - An upgraded connection passes bytes in both directions, unchanged, and holds its permit until
//!   both sides have ended, one is lost, none has sent for `upgrade_idle_timeout`, or an operator
//!   ends it. The end of one side is passed on as a half-close. No upgrade leads to HTTP inside the
//!   connection, which would bypass the limits.
//!   `an_upgraded_connection_holds_its_permit_until_both_sides_have_ended`,
//!   `a_slow_reader_costs_no_memory_and_gets_every_byte`,
//!   `a_reset_of_one_side_ends_the_other`, `an_idle_connection_is_closed_and_a_used_one_is_not`,
//!   `an_operator_ends_a_websocket_at_both_sides_and_its_permit_is_free`,
//!   `an_operator_ends_a_connection_of_another_instance_although_both_sides_stall`,
//!   `protocols_that_carry_http_are_not_offered`, `a_protocol_that_was_not_offered_is_a_502`
//! - Bodies pass in both directions as they arrive, unchanged.
//!   `each_event_arrives_before_the_next_is_sent`,
//!   `request_and_response_bodies_stream_at_the_same_time`, `many_megabytes_pass_unchanged`
//! - If a client disconnects, the gate cancels its request to the upstream.
//!   `a_client_that_disconnects_before_the_response_cancels_the_request`,
//!   `a_client_that_disconnects_during_a_stream_cancels_it`
//! - If the upstream aborts a response body, the gate aborts the client's response, so that it
//!   never looks complete. Exception: a body with neither length nor chunked coding ends when the
//!   upstream closes the connection.
//!   `when_the_upstream_aborts_a_stream_the_client_sees_no_clean_end`,
//!   `a_body_shorter_than_its_content_length_is_not_a_clean_end`
//! - Open streams continue when all permits are taken, during an outage of Redis, and after SIGTERM
//!   until the drain timeout.
//!   `streams_beyond_the_total_get_a_503_and_a_freed_permit_is_reused`,
//!   `streams_continue_without_redis_and_counts_reconcile_when_it_returns`,
//!   `after_sigterm_open_streams_continue_new_ones_are_refused_and_the_process_ends_with_the_last`,
//!   `at_the_drain_deadline_streams_are_cut_without_a_clean_end`,
//!   `after_sigterm_upgraded_connections_continue_and_the_process_ends_with_the_last`,
//!   `at_the_drain_deadline_upgraded_connections_are_closed`
//! - After SIGTERM, a request that a connected client has already sent gets a complete response.
//!   `every_client_connected_at_sigterm_gets_a_complete_response`
//! - The gate sends a request at most twice. It retries only after a reused connection
//!   failed, and only in two cases: no byte of the request was sent; or the request is idempotent,
//!   has no body, and no byte of a response arrived. No client receives another client's response.
//!   `a_request_is_not_retried_once_a_response_byte_arrived`,
//!   `only_idempotent_requests_on_reused_connections_are_retried_and_only_once`,
//!   `random_load_mixes_up_no_responses_and_leaks_nothing`
//! - Identity headers, forwarded headers and headers that override the path or the method reach the
//!   upstream only if the gate or a trusted proxy wrote them.
//!   `identity_headers_of_an_untrusted_peer_are_dropped`,
//!   `an_untrusted_peer_cannot_override_the_route`,
//!   `a_proxy_that_writes_forwarded_is_trusted_for_that_header_only`,
//!   `the_connection_header_cannot_remove_headers_that_the_gate_writes`
//! - Once the gate drains, no stream begins, and the drain waits for all open streams.
//!   `a_drain_waits_for_open_streams_and_refuses_new_ones`
//! - Each request is counted once by its outcome, when it ends. Labels from headers have a bounded
//!   number of values, whatever clients send.
//!   `every_request_is_counted_once_by_its_outcome`, `no_history_of_values_exceeds_the_bounds`,
//!   `labels_from_headers_are_bounded`
//!
//! Out of scope: limits and identity (`forebay_admission`), the client's connection and its
//! timeouts (`forebay_stream`), TLS to the upstream, WebSocket over HTTP/2 (extended CONNECT).
//! Settings, the admin address and the shutdown order are in `crates/forebay`.
//!
//! # Bounds
//!
//! | quantity | bound | beyond it |
//! |---|---|---|
//! | open connections to the upstream | `max_connections`, 16,384 | the oldest idle one is closed; if none is idle, 503 with `retry-after` |
//! | idle connections | `max_idle`, 256 | the oldest is closed |
//! | idle time of a connection | `idle_timeout`, 4 s | it is not reused; it is closed within another 2 s |
//! | time of a dial, name resolution included | `connect_timeout`, 5 s | 504 |
//! | time to the response head | `response_timeout`, 60 s after the last progress of the upload, or after the request if it has no body | 504 |
//! | pause in a request body | `request_idle_timeout`, 30 s | 408 |
//! | response head | 64 KiB, 256 headers | 502 |
//! | chunk extensions and trailers of a live stream | 64 KiB | the stream is aborted |
//! | idle time of an upgraded connection | `upgrade_idle_timeout`, 5 minutes | both sides are closed |
//! | bytes of an upgraded connection that the receiver hasn't accepted, in each direction | 16 KiB | the sender waits |
//! | labels from request headers (`metric_labels`) | 4; 50 values of at most 128 bytes each | counted as `other` |
//! | combinations of their values, with the kind of request | 500, each with five outcomes | counted as `other` in every label |
//! | buffered bytes of a body, in each direction | the bytes of one read (live stream: at most 16 KiB) | the sender waits |
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | which requests are streams, and of which class | `stream_routes.rs`, pure |
//! | which requests are refused before admission | `bad_request.rs`, pure |
//! | hop-by-hop, forwarded and identity headers | `headers.rs`, pure |
//! | the path of a request | `gate_service.rs`, then `forwarder.rs` |
//! | bodies, and what cancels a request | `upload.rs`; `download.rs`, `chunked.rs` (pure) |
//! | connections to the upstream; when a request is sent again | `upstream.rs`, `idle_connections.rs` (pure), `upstream_connection.rs` |
//! | how a socket is detached from hyper | `head_io.rs` |
//! | upgrades: what may be offered; both directions after a 101 | `upgrade_offer.rs` (pure); `tunnel.rs` |
//! | responses of the gate itself (400, 408, 500 to 504), and their texts | `gate_refusal.rs`, `upstream_error.rs` |
//! | settings; the public handle | `config.rs`; `reverse_proxy.rs` |
//! | drain | `drain.rs`; the shutdown order is in `run/gate.rs` of `crates/forebay` |
//! | metrics | `metrics.rs`, and the methods of [`ReverseProxy`] |
//! | outcomes by labels from headers | `metric_label.rs`, `series_table.rs` (pure), `outcome_counters.rs` |
//! | stages and types of failures | `request_failure.rs`, pure |
//! | tests over real sockets; random clients and upstreams; floods | `tests/it/` of `crates/forebay`: `bodies.rs`, `upstream.rs`, `drain.rs`, `upgraded_connections.rs`, `websocket.rs`; `random_load.rs`; `floods.rs` |
//!
//! # Decisions
//!
//! - **Path readings.** Servers decode and split paths, and resolve `..`, in different ways. A
//!   request is a stream if its path matches a route in any common way. A false match costs a
//!   permit; a missed match would bypass the limits.
//! - **Own connection pool.** The future of a request polls its own connection, so dropping that
//!   future closes the connection. The pool also records whether any byte of a response arrived,
//!   which hyper's errors don't report.
//! - **Upgrades always take a permit.** An upgraded connection is open for long on any path. If it
//!   took a permit on stream routes only, a forgotten route would bypass limits and drain.
//! - **No h2c.** HTTP inside an upgraded connection is invisible to the gate. So an offer of h2c or
//!   TLS is dropped, and the request is forwarded without it, as RFC 9110 allows.
//! - **Readiness.** `/readyz` is 503 while the gate drains. With the quota's policy `closed`, it is
//!   also 503 after the start if the quota is being rebuilt, because its store is new or was lost;
//!   the gate can't admit streams until the rebuild ends. Later rebuilds and outages affect all
//!   gates at once, so they don't change readiness.

mod bad_request;
mod chunked;
mod config;
mod download;
mod drain;
mod forwarder;
mod gate_body;
mod gate_refusal;
mod gate_service;
mod head_io;
mod headers;
mod idle_connections;
mod metric_label;
pub mod metrics;
mod outcome_counters;
mod request_failure;
mod reverse_proxy;
mod series_table;
mod start_clock;
mod stream_routes;
mod tunnel;
mod upgrade_offer;
mod upload;
mod upstream;
mod upstream_connection;
mod upstream_error;

pub use chunked::ChunkError;
pub use config::Config;
pub use download::DownloadError;
pub use drain::Drain;
pub use gate_body::GateBody;
pub use gate_service::{GateFuture, GateService};
pub use metric_label::{MAX_METRIC_LABELS, MetricLabel, MetricLabelError};
pub use reverse_proxy::ReverseProxy;
pub use stream_routes::{StreamRoute, StreamRouteError};
pub use upstream::{UpstreamConfig, UpstreamStats};
