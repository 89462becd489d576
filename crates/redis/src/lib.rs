//! Redis client whose connection is owned by one task.
//!
//! The worker task owns the socket. Callers hold a [`RedisClient`], which is cheap to clone and
//! works from any thread and any tokio runtime. Requests of all callers share the connection and
//! are pipelined automatically.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = forebay_sandbox::Redis::start()?;
//! # let url = server.url();
//! use forebay_redis::RedisClient;
//!
//! let client = RedisClient::connect(url).await?; // such as redis://127.0.0.1:6379
//! client.exec::<()>(("SET", "greeting", "hello")).await?;
//! let greeting: Option<String> = client.exec(("GET", "greeting")).await?;
//! assert_eq!(greeting.as_deref(), Some("hello"));
//!
//! let commands = (("INCR", "visits"), ("GET", "none"));
//! let (visits, missing) = client.pipeline::<(i64, Option<String>)>(commands).await?;
//! assert_eq!((visits?, missing?), (1, None));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | effect |
//! |---|---|---|
//! | `tls` | yes | `rediss://`, with rustls on ring and the system's certificates |
//! | `serde` | no | `Serde<T>` decodes maps and arrays into any `Deserialize` type |
//! | `tracing` | no | a span for each request, with OpenTelemetry's names and no arguments |
//! | `metrics` | no | requests by outcome, durations, open requests, reconnections |
//!
//! Spans have the level INFO and the target `forebay_redis::request`. Metrics use the facade of the
//! crate `metrics`; install the recorder before the first client is created. Without these
//! features, [`Config::hooks`] can do the same. State changes are logged in any case.
//!
//! # The path of a request
//!
//! ```text
//!  caller's task                     worker task                          server
//!  request_future.rs ─ submit ─▶ inbox.rs ─ take ─▶ worker.rs ─ write / read ─▶ socket
//!     ▲   encodes, then            one lock          │ owns
//!     │   locks the inbox                            ▼
//!  reply_slot.rs ◀── complete ──────────── core/connection.rs (link + pipeline + framer)
//!     │                                              │ push messages
//!     ▼                                              ▼
//!  reply/ decodes, in the caller's task        topic_registry.rs ─▶ subscription.rs
//! ```
//!
//! # States of the connection
//!
//! ```text
//!  Init ─▶ Connecting ─▶ Open ──────▶ Closing ─▶ Closed
//!               │          │                       ▲
//!               ▼          ▼                       │ close: any other state; cancel: any
//!             Failed ◀─────┘   Failed: waits for the next attempt, rejects requests at once
//!               │  ▲
//!               ▼  │ failed    Connecting, Reconnecting: requests are queued
//!          Reconnecting ─▶ Open
//! ```
//!
//! - Requests in flight when the link is lost fail once, with the reason. One loss starts one
//!   reconnection, even if reading and writing both report it.
//! - The delay before each of the first 8 attempts is 50 ms. Then it doubles from 100 ms to 30 s.
//!   All delays are jittered. Attempts continue until the client is closed.
//! - `READONLY`, `LOADING` and `MASTERDOWN` show that the server is unfit. The client dispatches
//!   the received replies and closes the connection, unless [`Config::leave_unfit_server`] is off.
//!   The attempt counter is kept, so an unfit server is dialed at most 12 times in the first second
//!   and twice in each later second.
//! - Without [`Config::reconnect`], `Failed` leads to `Closed`, which keeps the error. Reopening a
//!   closed client creates a new link with the next generation.
//!
//! # Invariants and their tests
//!
//! Each guarantee with its tests:
//!
//! - Each request completes once, in order, with its own reply or an error. No request is sent
//!   twice.
//!   `every_request_completes_once_in_order_and_none_is_replayed` (random histories, including
//!   refusals and commands without exactly one reply),
//!   `increments_that_ran_before_their_connection_was_cut_are_not_sent_again`,
//!   `dropping_a_third_of_100_000_futures_misroutes_no_reply`,
//!   `each_tasks_requests_run_in_the_order_in_which_it_sent_them`,
//!   `the_reply_to_a_dropped_request_reaches_no_later_caller` (loom),
//!   `a_close_wakes_the_worker_and_every_accepted_request_is_taken_once` (loom),
//!   `an_abort_wakes_the_worker_and_every_accepted_request_is_taken_once` (loom),
//!   `a_server_killed_under_load_has_run_each_increment_at_most_once`
//! - A request that expires or is dropped before its first byte is sent is never sent.
//!   `a_request_that_expires_before_its_first_byte_is_sent_is_never_sent`,
//!   `a_request_that_failed_before_its_first_byte_was_sent_is_never_sent`
//! - Every command of Redis 7 gets exactly one reply.
//!   `every_command_of_redis_7_gets_one_reply_on_the_wire`,
//!   `every_command_of_redis_7_through_the_client_keeps_replies_in_sync`
//! - If any other command does not get exactly one reply, the connection ends and no later request
//!   gets a wrong reply.
//!   `an_unknown_command_without_exactly_one_reply_ends_the_connection_and_misroutes_no_reply`,
//!   `replconf_is_rejected_and_misroutes_no_reply`
//! - With default settings no request waits forever.
//!   `a_frozen_server_fails_1000_gets_at_their_deadline_and_goes_on_when_it_thaws`,
//!   `between_attempts_a_request_is_rejected_at_once_with_the_reason_and_the_next_attempt`
//! - No caller's code runs in the worker, except wakers, or while a lock is held that the worker
//!   takes.
//!   `hooks_report_requests_in_the_task_that_awaits_them`,
//!   `a_panic_while_decoding_affects_only_its_caller`,
//!   `a_blocking_hook_does_not_stop_other_requests`,
//!   `an_argument_that_blocks_stops_no_other_request`,
//!   `an_argument_may_send_a_request_of_the_same_client`,
//!   `a_waker_may_use_the_client`,
//!   `a_provider_that_blocks_does_not_stop_the_worker`
//! - After an abort every request fails with `Cancelled`, and no queued one is sent. The open
//!   requests fail, and the state is `Closed`, at the worker's next poll.
//!   `an_abort_waits_only_for_the_workers_next_poll_in_every_state`,
//!   `an_abort_cancels_requests_in_flight_and_queued_ones_are_not_sent`,
//!   `an_abort_ends_dedicated_connections_for_good`,
//!   `an_abort_ends_attempts_to_connect_and_every_caller_that_waits`
//! - Each attempt to connect uses the current credentials, which no log contains.
//!   `a_reconnection_uses_the_current_password`,
//!   `a_password_file_that_is_rewritten_is_read_at_the_next_attempt`,
//!   `logs_and_debug_output_hold_no_password_of_a_provider`
//! - Spans contain no argument.
//!   `the_span_of_a_request_that_fails_has_the_code_and_no_argument`
//! - Every queue is bounded.
//!   `dropped_requests_against_a_frozen_server_keep_memory_bounded`,
//!   `unsent_bytes_are_bounded_too_and_the_error_says_so`
//! - After a planned failover the client connects to the new master.
//!   `after_a_planned_failover_writes_and_subscriptions_find_the_new_master`,
//!   `readonly_ends_the_connection_also_from_scripts_and_transactions`,
//!   `loading_ends_the_connection_until_the_data_is_loaded`
//! - Dials to an unfit server are bounded.
//!   `an_unfit_server_is_dialed_at_most_12_times_in_the_first_second_then_twice_per_second`
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | states and transitions | `core/link.rs`, one `step` function |
//! | matching replies to requests | `core/pipeline.rs` |
//! | where a reply ends; limits on replies | `core/frame.rs` |
//! | deadlines, losses, closing | `core/connection.rs`, random histories: `connection_tests.rs` |
//! | sockets, timer, batching | `worker.rs` |
//! | submitting requests, waking callers | `inbox.rs`, `reply_slot.rs`, `request_future.rs` |
//! | memory in which requests are encoded | `encode_buffer.rs` |
//! | hooks, spans, metrics | `request_observation.rs`, `request_span.rs`, `metrics.rs` |
//! | locks that loom checks, and its tests | `sync.rs`, `loom_tests.rs`, `script/loom` |
//! | dial, TLS, HELLO, RESP2 | `connect.rs`, `tls.rs`; URLs in `config.rs` |
//! | passwords that change | `credentials.rs` |
//! | commands and their arguments | `command.rs`, `args.rs` |
//! | decoding of replies | `reply/`: `reader.rs`, `decode.rs`, `value.rs`, `results.rs` |
//! | subscriptions, gaps, resubscribing | `topic_registry.rs`, `subscription.rs` |
//! | blocking commands, WATCH | `dedicated_connection.rs` |
//! | rejected commands | `command_guard.rs` |
//! | commands with one reply; probing others | `command_table.rs`, `core/echo_probe.rs` |
//! | refusals: server errors after which the command did not run | `core/refusal.rs`, one table |
//! | all errors, and whether to retry | `error.rs`, one `retry()` for each enum |
//!
//! # Decisions
//!
//! Performance:
//!
//! - Callers encode into a buffer of their thread, and copy it into one shared buffer under a short
//!   lock; the worker swaps the whole buffer. The worker stores its waker under the same lock
//!   before it sleeps, so no request is missed.
//! - With several open requests, the worker yields once before it writes a small batch, so that the
//!   batch can grow. With one open request, or with a kilobyte to send, it writes at once.
//! - With several open requests, replies are dispatched in two halves. The callers of the first
//!   half can send new requests while the second half is dispatched.
//! - Reads are up to 64 KiB, into two alternating buffers. The worker only finds where replies end.
//!   Each request gets a slice of the buffer and decodes it in its own task, directly into the
//!   caller's type.
//! - A deadline that does not pass costs almost nothing. Each connection has one timer. The timer
//!   is set again after it fires, or for an earlier deadline, but not for each request.
//! - A GET into a `String` allocates once, for the string: reply slots and buffers are reused.
//! - A `Bytes` reply below 1 KiB is copied, so that it does not keep a 64 KiB buffer alive.
//!
//! Behavior:
//!
//! - The worker counts a deadline from when it took the request. It takes requests at once unless
//!   its runtime is blocked.
//! - Requests that were queued when an attempt to connect failed are `Rejected`, which is safe to
//!   retry, and not `Lost`.
//! - A request that expires or is dropped before its first byte was sent is removed and never sent.
//! - A connection on which requests with a deadline wait while the server sends nothing for 30 s is
//!   closed (`stall_timeout`). During a shorter pause, only requests whose deadline passes
//!   fail.
//! - Commands that do not get exactly one reply (`SUBSCRIBE`, `MONITOR`, `CLIENT REPLY`) are
//!   rejected before they are sent. So are commands that change or block a shared connection
//!   (`MULTI`, `WATCH`, `SELECT`, `BLPOP`). The error says what to use instead.
//! - With RESP2, subscriptions use a separate connection.
//!
//! # Shutdown
//!
//! [`RedisClient::close`] rejects new requests, waits for requests in flight up to `close_timeout`,
//! fails the remaining ones with `Closed`, closes the socket and ends all streams. Dropping the
//! last client does the same without waiting. [`RedisClient::abort`] waits for nothing: every
//! request fails with `Cancelled`, and dedicated connections end, too. A runtime that shuts down
//! drops the worker, which fails every open request with `Cancelled`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod args;
mod client;
mod command;
mod command_guard;
mod command_table;
mod config;
mod connect;
mod core;
mod credentials;
mod dedicated_connection;
mod encode_buffer;
mod error;
mod hooks;
mod inbox;
#[cfg(all(test, forebay_loom))]
mod loom_tests;
#[cfg(feature = "metrics")]
pub mod metrics;
mod reply;
mod reply_slot;
mod request_future;
mod request_observation;
#[cfg(feature = "tracing")]
mod request_span;
mod scan;
mod script;
mod status;
mod subscription;
mod sync;
#[cfg(feature = "tls")]
mod tls;
mod topic_registry;
mod worker;

pub use args::{ArgWriter, ToArgs};
pub use client::RedisClient;
pub use command::{Cmd, CommandBatch, RedisCommand, cmd};
pub use config::{Address, Config, IntoConfig, Protocol, RedisPassword};
pub use core::backoff::ReconnectBackoff;
pub use core::frame::ReplyLimits;
pub use core::link::State;
pub use credentials::{
    CredentialsError, CredentialsFuture, CredentialsProvider, RedisCredentials, RedisPasswordFile,
};
pub use dedicated_connection::DedicatedConnection;
pub use error::{
    ConnectionLoss, ExecError, PathStep, ProtocolError, RedisConfigError, RedisConnectError,
    RedisServerError, ReplyError, RequestError, Retry, ServerRefusal, TypeMismatch,
};
pub use hooks::{Hooks, RequestOutcome, RequestReport};
#[cfg(feature = "serde")]
pub use reply::Serde;
pub use reply::{
    BigNumber, FromReplies, FromReply, RemainingItems, ReplyReader, ReplyToken, RespDecoder, RespValue,
    VerbatimString, WithAttributes,
};
pub use request_future::RequestFuture;
pub use scan::{ScanCommand, ScanStream};
pub use script::LuaScript;
pub use status::{ClientStats, Status, StatusStream};
pub use subscription::{Event, Gap, PubSubMessage, PushStream, Subscription};
#[cfg(feature = "tls")]
pub use tls::RedisTls;
