//! Connection pool for Postgres that opens connections before they are needed.
//!
//! A background task, the *refiller*, opens connections under a rate limit and a budget that
//! processes can share. A checkout gets a connection that is already open. Each connection is
//! replaced before it expires, and random lifetimes spread the expiries.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};
//!
//! let connect = PostgresConnect::new("postgres://app@db.internal/shop")?;
//! let limits = ConnectionLimits::local().per_second(100.0);
//! let reservoir = Reservoir::start(connect, ReservoirConfig::new(16), limits)?;
//! let client = reservoir.checkout().await?;
//! let rows = client.query("SELECT name FROM products", &[]).await?;
//! # drop(rows);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | effect |
//! |---|---|---|
//! | `postgres` | yes | connector for Postgres: tokio-postgres, with TLS by rustls |
//! | `redis` | yes | shared budgets and rates in Redis |
//! | `dynamodb` | no | shared budgets and rates in DynamoDB |
//! | `deadpool` | no | adapter for deadpool |
//! | `bb8` | no | adapter for bb8 |
//! | `aws` | no | tokens for Aurora DSQL and RDS, with credentials from the AWS SDK |
//!
//! # Structure
//!
//! ```text
//!  checkout, check-in            guards, views, handles
//!         │
//!         ▼
//!     driver.rs ── one short lock ──▶ core/ledger.rs ──▶ LedgerEffects, performed after
//!         ▲                           pure, gets `now`   the lock is released:
//!         │ dial succeeded or failed                     hand over, reset, retire, wake
//!     refill.rs: slot ▶ lease ▶ credentials ▶ rate token ▶ dial
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | connection states, refill plan, back-off, leaks | `core/ledger.rs`, `core/ledger_tests.rs` |
//! | order of waiting callers over all views | `core/checkout_queue.rs` |
//! | lock, hand-over, reasons of a shortage | `driver.rs`, `pending_checkout.rs` |
//! | reset between two callers | `reset_task.rs` |
//! | callbacks after a dial and before a checkout | `hooks.rs` |
//! | steps of a dial; release of slot and lease when one fails | `refill.rs`, `pending_dial.rs` |
//! | waiting for the server's close | `retiring_slot.rs`, `postgres/starting_socket.rs` |
//! | tokio-postgres, addresses, TLS modes, channel binding, statement cache | `postgres/` |
//! | passwords and tokens | `credentials/` |
//! | settings | `config.rs` |
//! | adapters for bb8 and deadpool | `adapters/` |
//!
//! # Invariants and their tests
//!
//! Invariant: `ready + dialing + lent + resetting + retiring <= max`. A connection counts until the
//! server has closed its end, or [`close_timeout`](ReservoirConfig::close_timeout) has passed.
//! Invariant: a connection is lent only after its reset, outside of the guard window of its expiry,
//! and if no close was detected.
//! Invariant: callers are served in the order of arrival.
//! Invariant: every slot, lease and connection is released exactly once.
//! Enforced by: one pure ledger, one lock around it, and guards that report to it on drop.
//!
//! - The ledger never exceeds `max`, including connections that are being opened and closed.
//!   `every_connection_is_in_one_state_and_the_total_stays_within_max`
//! - If the server closes each connection within `close_timeout`, it never has more than `max`.
//!   `a_server_that_closes_within_the_timeout_never_has_more_backends_than_max`,
//!   `queries_that_catch_their_cancellation_keep_their_slots_until_they_end`,
//!   `frozen_backends_keep_their_slots_until_they_end_with_tls_and_without`,
//!   `frozen_backends_keep_their_slots_under_bb8_and_deadpool`,
//!   `random_faults_never_lead_to_more_backends_than_max`
//! - An abandoned dial counts until the server has closed it.
//!   `an_abandoned_dial_counts_until_the_server_has_closed_it`,
//!   `backends_that_authenticate_after_a_dial_timed_out_keep_its_slot`
//! - With a shared budget, all processes together never exceed it, as long as the store loses no
//!   writes.
//!   `four_processes_share_a_budget_through_redis_while_one_is_killed`,
//!   `four_processes_share_a_budget_through_dynamodb_while_one_is_killed`
//! - Callers are served in the order of arrival.
//!   `waiting_callers_get_returned_connections_in_order`
//! - A connection is not lent within the guard window of its expiry, or after its close was
//!   detected.
//!   `nothing_within_the_guard_window_is_lent_and_a_steady_reservoir_never_dips`,
//!   `connections_that_the_server_ends_are_replaced`
//! - Session state doesn't pass from one caller to the next; prepared statements stay.
//!   `session_state_of_one_caller_is_reset_for_the_next`
//! - A connection whose hook fails is not lent. It keeps its slot until it is closed.
//!   `a_connection_that_fails_the_after_connect_hook_is_closed_and_not_lent`,
//!   `a_connection_that_fails_the_before_lend_hook_is_replaced_by_another`,
//!   `a_connection_that_fails_its_hook_keeps_its_slot_until_it_is_closed`
//! - A connection caches at most `statement_cache` statements, none that its reset has dropped.
//!   `a_full_cache_closes_the_least_recently_used_statement_on_the_server`,
//!   `a_reset_that_drops_prepared_statements_clears_the_cache`
//! - A dropped checkout leaks no connection; a failed dial releases its slot and lease.
//!   `a_dropped_checkout_leaks_no_connection`,
//!   `a_dial_that_panics_hangs_or_fails_releases_its_slot_and_lease`
//! - Connections are replaced before they expire, and expiries are spread.
//!   `connections_are_replaced_before_they_expire_and_the_count_never_dips`,
//!   `jitter_spreads_the_expiries`
//! - At most half of the ready connections are retired at once.
//!   `no_more_than_half_are_retired_at_once`
//! - A checkout that fails says why.
//!   `a_checkout_that_times_out_says_why`
//! - A view never exceeds its quota.
//!   `a_view_never_exceeds_its_quota`
//! - Dials keep to the rate limit; a full server is retried after a back-off.
//!   `no_more_connections_are_opened_per_second_than_the_rate_allows`,
//!   `a_full_server_is_reported_and_retried_after_a_backoff`
//!
//! # Decisions
//!
//! - A connection is replaced while it is still in use. By default its replacement is dialed one
//!   guard window before its guard window begins. The dial uses a slot beyond the target: by
//!   default `max` is the target plus an eighth. If no slot is free, the connection that expires
//!   soonest is retired before the dial.
//! - Credentials are requested before the rate token, because the rate limit counts a token when it
//!   is taken. Dials that held tokens while they waited for slow credentials would start in a
//!   burst.
//! - Budget and rate are counted per endpoint: two servers on one quota don't share them.
//! - A FIN or RST counts as the server's close. It is detected on the socket below TLS.
//!   Connections that take longer than a second to close are *lingering* in status and metrics.
//! - A local TCP timeout counts as a close only if the host was silent, as after a failover. A host
//!   that acknowledges while its process doesn't read still has the backend (`postgres/socket.rs`).
//! - A busy connection that is closed gets a cancel request after 100 ms, then repeatedly.
//!   `pg_terminate_backend` isn't used: it needs a connection while all slots are in use.
//! - The refiller's timer covers the deadlines of all waiting callers. A timer per caller would
//!   cost more than a checkout.
//! - While the budget's store is unavailable, the quota's policy applies (`Share`: equal parts). If
//!   the budget is exceeded when the store returns, no dial begins until the excess is closed.
//! - While the budget's store is rebuilt, because it is new or lost its data, a process opens no
//!   more connections than it has a share for, whatever the policy. So a lost store doesn't put
//!   more connections on the server than the budget, except those of a process that was replaced
//!   within the last TTL: they count only until the rebuild ends. The first start waits for one
//!   TTL.
//! - TLS is negotiated here: tokio-postgres supports neither `verify-*` nor the retry of `prefer`.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "bb8", feature = "deadpool"))]
mod adapters;
mod config;
mod connect;
mod core;
mod credentials;
mod driver;
mod error;
mod guard;
mod hooks;
pub mod metrics;
mod pending_checkout;
mod pending_dial;
#[cfg(feature = "postgres")]
mod postgres;
mod refill;
mod reservoir;
mod reset_task;
mod retiring_slot;
mod status;

pub use crate::config::{ConnectionLimits, DEFAULT_RATE, ReservoirConfig, ReservoirConfigError, Reset};
pub use crate::connect::{Connect, ConnectionError, ConnectionErrorKind, DialSlot, ReservoirConnection};
pub use crate::credentials::{
    AuthSecret, AuthToken, PasswordCommand, PasswordFile, StaticPassword, TokenCache, TokenError,
    TokenFuture, TokenProvider,
};
#[cfg(feature = "aws")]
pub use crate::credentials::{DsqlToken, RdsToken};
pub use crate::error::{CheckoutError, FillError, Shortage};
pub use crate::guard::ConnectionGuard;
pub use crate::hooks::{HookError, HookFuture, ReservoirHooks};
#[cfg(feature = "postgres")]
pub use crate::postgres::{
    ChannelBinding, PostgresCancelToken, PostgresClient, PostgresConfigError, PostgresConnect,
    PostgresConnectBuilder, PostgresError, PostgresServerError, PostgresStartup, PostgresStartupParams,
    PostgresStream, PostgresTls, SessionCheck, SslMode,
};
pub use crate::reservoir::{Reservoir, ReservoirView};
pub use crate::status::{
    ConnectionAge, ConnectionCounts, DiscardReason, FillProgress, MAX_LISTED, Status, ViewStatus,
};
#[cfg(feature = "postgres")]
pub use tokio_postgres;
