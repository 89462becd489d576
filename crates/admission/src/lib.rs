//! Admission control for long-lived streams (SSE, token streams, long polls).
//!
//! Each stream needs a permit. A total limit and a per-user limit apply, also across all instances
//! that share a store. Use it as a tower layer ([`AdmissionLayer`]), or directly
//! ([`Admission::admit`]).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Identifier};
//! use forebay_quota::Quota;
//! use http::{Request, Response};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! let admission = Admission::builder().total(10_000).per_user(1).build(Quota::local());
//! let identify = Identifier::new().api_keys(ApiKeys::new().key("s3cr3t", "ada"));
//! async fn hello(_: Request<String>) -> Result<Response<String>, std::io::Error> {
//!     Ok(Response::new(String::from("data: hello\n\n")))
//! }
//! let service = AdmissionLayer::new(admission.clone(), identify).layer(service_fn(hello));
//!
//! let request = || Request::get("/").header("x-api-key", "s3cr3t").body(String::new());
//! let stream = service.clone().oneshot(request()?).await?; // its body holds the permit
//! assert_eq!(service.oneshot(request()?).await?.status(), 429);
//! drop(stream);
//! assert_eq!(admission.statistics().total_connections, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | effect |
//! |---|---|---|
//! | `directory` | no | `directory`: lists and ends the open streams of all instances, through Redis |
//!
//! # Decision
//! ```text
//! request ─▶ layer.rs: remove untrusted headers, identify the client, find the route's class
//!               │
//!               ▼ controller.rs, in this order
//!            closed?                        ─▶ 503 draining
//!            memory or CPU above its bound? ─▶ 503 memory, cpu
//!            share of the class used up?    ─▶ 503 headroom
//!            adaptive limit, if it is on    ─▶ 503 adaptive, after an optional wait
//!            unit of the budget             ─▶ 503 exhausted, after an optional wait
//!            unit of the user's limit       ─▶ 429 user_limit; the budget's unit is released
//!               │
//!               ▼
//!            registry entry + Permit ─▶ StreamBody ─▶ released when the body is dropped or ends
//! ```
//!
//! A *class* of clients may use a share of the total limit. A client's class comes from its token,
//! its API key or a trusted proxy; a route's class comes from [`AdmissionLayer::class`]. If both
//! are set, the smaller share applies.
//!
//! # Invariants and their tests
//!
//! - A stream holds one permit until its response body is dropped, ends or fails.
//!   `the_permit_lives_in_the_body_and_ends_with_it`,
//!   `a_service_that_fails_or_panics_releases_the_permit`,
//!   `dropping_the_layers_future_at_any_point_releases_everything`,
//!   `a_client_that_disconnects_from_an_unread_body_releases_its_permit`
//! - A cancelled request holds nothing.
//!   `many_requests_cancelled_at_random_points_release_everything`,
//!   `a_request_cancelled_before_the_decision_holds_no_unit`
//! - Open streams survive lower limits, memory or CPU pressure, and `close`.
//!   `changing_limits_closes_no_open_stream`,
//!   `memory_pressure_refuses_new_streams_and_keeps_open_ones`,
//!   `a_lower_adaptive_limit_refuses_new_streams_and_keeps_open_ones`,
//!   `closing_rejects_queued_requests_and_keeps_open_streams`
//! - The adaptive limit stays between its floor and the total, and changes only on evidence.
//!   `the_limit_stays_within_its_bounds_whatever_happens`,
//!   `without_evidence_the_limit_does_not_change`
//! - Rejections are problem documents: 503 above the total, 429 above the user's limit.
//!   `the_fourth_stream_of_a_user_is_429_and_the_one_above_the_total_503`,
//!   `every_rejection_is_a_problem_with_its_status_and_thread_id`,
//!   `only_live_requests_need_a_permit`
//! - A user is identified by a verified token, a known API key or a trusted proxy.
//!   `invalid_tokens_are_401_and_take_no_permit`,
//!   `a_wrong_credential_is_refused_even_if_another_is_valid`,
//!   `an_untrusted_peer_cannot_claim_another_address`,
//!   `forged_headers_from_an_untrusted_peer_have_no_effect_and_are_removed`,
//!   `an_unknown_key_is_401_and_not_anonymous`
//! - The key determines the allowed algorithms, never the token.
//!   `a_public_key_is_not_accepted_as_an_hmac_secret`,
//!   `a_key_with_an_algorithm_verifies_no_other_algorithm`,
//!   `an_unsigned_token_is_refused_in_any_spelling_of_none`
//! - Only the configured one of the two forwarding headers is read.
//!   `the_other_header_is_ignored`, `a_proxy_that_writes_forwarded_is_trusted_for_that_header_only`
//! - Once an [`Admission`] is closed and empty, it stays empty.
//!   `a_closed_and_empty_controller_registers_no_stream_that_was_being_admitted`
//! - Users take turns in the wait queue.
//!   `users_take_turns_and_no_request_overtakes`,
//!   `every_item_leaves_exactly_once_and_in_order_within_a_lane`
//! - Logs and status contain hashes of users, never ids or credentials.
//!   `a_stream_is_logged_stage_by_stage`, `credentials_are_never_logged`
//! - A stream that an operator ends releases its permit: at once with a 503 before its response,
//!   and otherwise as soon as its body observes the [`EndSignal`].
//!   `an_ended_request_without_a_response_is_a_503_and_releases_its_permit`,
//!   `a_body_that_waits_for_its_end_signal_releases_its_permit`,
//!   `a_signal_wakes_the_last_task_that_polled_it_and_stays_sent`
//!
//! Out of scope: counting across instances ([`forebay_quota`];
//! [`Quota::local`](forebay_quota::Quota::local) counts in this process). A permit ends
//! with the response body. Servers such as hyper's own drop the body of a 101 at once: then hold a
//! [`Permit`] from [`Admission::admit`] beside the socket. `forebay_stream` keeps that body until
//! the upgraded connection ends.
//!
//! # Where to look
//! | topic | file |
//! |---|---|
//! | the decision, registration, release | `controller.rs` |
//! | | `permit.rs`, `stream_unit.rs` |
//! | | `open_stream_registry.rs` |
//! | identification: tokens, API keys, proxies | `identity/`: `jwt.rs` |
//! | | `api_key.rs` |
//! | | `forwarded.rs` |
//! | health states | `core/health.rs`, reported by `health_monitor.rs` |
//! | wait queue | `core/wait_queue.rs`, `admission_queue.rs` |
//! | load shedding by memory and CPU | `core/pressure.rs`, `resource_usage.rs`, `sampler.rs` |
//! | adaptive limit | `core/adaptive_limit.rs`, `core/start_window.rs`, `adaptive_limiter.rs` |
//! | `Retry-After` | `core/release_rate.rs` |
//! | HTTP responses of rejections | `rejection.rs`, `problem_details.rs` |
//! | ending a stream by its thread id | `end_signal.rs`, `ended_streams.rs` |
//! | streams of all instances: listed, ended (feature `directory`) | `directory/` |
//! | log lines and stage codes, user hashes | `stream_log.rs`, `user_hash.rs` |
//! | status, metrics | `statistics.rs`, `metrics.rs` |
//!
//! # Decisions
//! - The permit is in the response body, so the owner of the body owns the permit. This also holds
//!   if the server moves the body to another task.
//! - The budget's unit is acquired before the user's: a 503 then needs no store call for the user.
//! - Acquired units are checked against the share of their class one at a time. Otherwise two
//!   concurrent requests for the last unit could both be refused.
//! - Headers that only a trusted proxy may set are removed from other requests, so a client cannot
//!   forge them for the inner service either.
//! - ring verifies token signatures, through a `jsonwebtoken` provider in `identity/signature.rs`.
//!   The providers of `jsonwebtoken` depend on aws-lc, or on an RSA crate with an open advisory.
//! - The adaptive limit compares times to the first byte with those without overload (a gradient),
//!   because long-lived streams have no other sign of overload early enough. A square root makes
//!   decreases mild, as most services slow down faster than linearly; a halved capacity is found
//!   in one or two steps. Increases search between the last good and the last bad number of
//!   streams, as BIC does in TCP, and so stay near the best one.
//! - The health state refuses no streams; it informs operators. Only the counts refuse streams.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod adaptive_limiter;
mod admission;
mod admission_queue;
mod client_identity;
mod config;
mod controller;
mod core;
#[cfg(feature = "directory")]
pub mod directory;
mod end_signal;
mod ended_streams;
mod health_monitor;
mod identity;
mod layer;
pub mod metrics;
mod open_stream_registry;
mod permit;
mod problem_details;
mod problem_json;
mod rejection;
mod rejection_log;
mod resource_usage;
mod sampler;
mod secret;
mod statistics;
mod stream_body;
mod stream_log;
mod stream_unit;
mod thread_id;
mod user_hash;

pub use adaptive_limiter::{StartReport, StreamStart};
pub use admission::Admission;
pub use client_identity::{Class, ClientIdentity, InvalidUserId, MAX_ID_BYTES, UserId};
pub use config::{AdaptiveSignals, Builder, MemoryBound};
pub use core::health::State;
pub use core::limit_evidence::DecreaseCause;
pub use core::pressure::ShedCause;
pub use end_signal::EndSignal;
pub use ended_streams::EndedStreams;
pub use health_monitor::HealthStatus;
pub use identity::{
    ApiKeys, ForwardedHeader, Identifier, IdentifyError, Jwt, KeyError, Network, NetworkError, PeerAddr,
    TokenFault, VerifiedToken,
};
pub use layer::{AdmissionLayer, AdmissionService};
pub use permit::Permit;
pub use problem_json::problem;
pub use rejection::{Rejection, RejectionReason};
pub use secret::Secret;
pub use statistics::{
    AdaptiveDecrease, AdaptiveStatus, AdmissionStatistics, MAX_LISTED, MAX_USERS, OpenStream, ProcessUsage,
    Status, StreamLimits, UserStreams,
};
pub use stream_body::StreamBody;
pub use stream_log::StageLevel;
pub use thread_id::{ThreadId, X_THREAD_ID};
