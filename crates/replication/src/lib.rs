//! Follows one Postgres database by logical replication, and passes every committed transaction to
//! your program exactly once.
//!
//! A [`Manager`] holds one replication connection. It takes a lock, prepares a publication and a
//! slot, streams changes to your [`Consumer`], and acknowledges only positions that the consumer
//! has made durable. It reconnects automatically.
//!
//! ```
//! use forebay_replication::reservoir::PostgresConnect;
//! use forebay_replication::{Consumer, Manager, ManagerConfig, TableName};
//!
//! async fn follow(store: impl Consumer) -> Result<(), Box<dyn std::error::Error>> {
//!     let connect = PostgresConnect::new("postgres://app@db.internal/shop")?;
//!     let manager = Manager::start(ManagerConfig::new(connect), store)?;
//!     manager.ready().await?;
//!     // From here on, `store` receives every committed change of the table.
//!     manager.add_table(&TableName::new("public", "orders")).await?;
//!     tokio::signal::ctrl_c().await?;
//!     manager.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Picture
//!
//! ```text
//!  manager.rs: handle, cheap to clone
//!      │ events (64)          ▲ status: step, seven conditions, last failure
//!      ▼                      │
//!  worker.rs ── event ──▶ core/machine ── effects ──▶ source/           one replication connection
//!      ▲                  pure, takes now             pools.rs          two pools, two reservoirs
//!      └───────────── results as events ◀──────────── manager_tasks.rs  SQL outside the stream
//!
//!  source/: connect ▶ inspect server ▶ lock ▶ publication, slot, settings
//!           ▶ continue or reset the consumer (core/continuity)
//!           ▶ stream: wire/ frames ▶ messages ▶ Consumer ▶ DurablePosition
//!           ▶ core/progress ▶ status update
//! ```
//!
//! # Features
//!
//! | feature | default | effect |
//! |---|---|---|
//! | `aws` | no | tokens for RDS and Aurora DSQL, with credentials from the AWS SDK |
//!
//! # Invariants and their tests
//!
//! Invariant: at most one replication connection is open, and at most one instance holds the lock.
//! The consumer receives every committed transaction completely, once, in commit order. The server
//! receives only positions that the consumer has made durable.
//! Enforced by: a pure state machine (`core/machine`), an advisory lock taken on the replication
//! connection (`source/lock.rs`), acknowledgements of durable positions only (`core/progress.rs`),
//! and a comparison of the server's and the consumer's positions at each start
//! (`core/continuity.rs`).
//! Out of scope: decoding (`forebay_pgoutput`), dialing and TLS (`forebay_reservoir`), storage
//! (your consumer).
//!
//! - Every committed transaction arrives completely, exactly once, in commit order.
//!   `every_committed_change_arrives_once_seeds_1_to_5`,
//!   `interleaved_transactions_arrive_complete_in_commit_order`,
//!   `every_committed_change_arrives_once_on_18_seeds_6_to_10`
//! - Rolled back changes never arrive.
//!   `rolled_back_changes_never_arrive_not_even_as_an_empty_transaction`
//! - Only durable positions are acknowledged.
//!   `only_durable_positions_are_acknowledged`,
//!   `acknowledgements_never_decrease_and_never_pass_the_received_position`,
//!   `every_committed_change_arrives_once_seeds_11_to_15`
//! - One instance streams. When it ends or is lost, another takes over.
//!   `of_several_instances_one_streams_however_often_it_is_ended`,
//!   `random_histories_keep_one_connection_and_every_state_can_be_left`,
//!   `an_instance_that_waits_takes_over_when_the_other_shuts_down`,
//!   `an_instance_that_waits_takes_over_when_the_other_is_lost_and_that_one_waits_in_turn`
//! - A live holder of the lock is never terminated.
//!   `a_holder_that_runs_queries_or_is_in_another_database_is_never_terminated`,
//!   `a_silent_holder_with_an_active_slot_is_not_terminated`
//! - A changed server history resets the consumer; a promotion that kept the slot doesn't.
//!   `a_recovery_to_a_point_before_the_bookmark_resets_the_consumer`,
//!   `a_promotion_that_kept_the_slot_continues_without_loss_or_repetition`,
//!   `another_cluster_at_the_same_address_resets_the_consumer`, `a_dropped_slot_is_recreated`,
//!   `a_slot_that_lost_its_wal_while_no_manager_ran_is_recreated`,
//!   `a_replaced_publication_resets_the_consumer`
//! - Memory is bounded for any transaction size and any consumer speed.
//!   `one_transaction_of_two_million_rows_takes_less_than_200_megabytes`,
//!   `memory_is_bounded_while_the_consumer_is_slow_or_stuck`
//! - Status updates are sent before the server's timeout, however long the consumer takes.
//!   `a_consumer_stuck_for_longer_than_the_servers_timeout_stays_connected`,
//!   `a_consumer_that_records_a_position_slowly_stays_connected`
//! - The slot of an idle database doesn't retain the WAL of other databases.
//!   `an_idle_database_retains_no_wal_of_other_databases`
//! - At a position of the stream, the consumer has received all earlier commits. An idle database
//!   doesn't delay a wait for a position.
//!   `at_a_position_all_earlier_commits_were_received`,
//!   `a_position_of_an_idle_database_is_reached_at_once`
//! - A recent transaction is read without delay.
//!   `a_recent_transaction_is_read_without_delay`,
//!   `a_backlog_is_read_in_large_parts_and_recent_changes_at_once`
//! - A failure that needs an operator halts the manager at its first start, and five panics in a
//!   minute halt it at any time. A halted manager retries every 30 s. Other failures are retried
//!   after at most 10 s.
//!   `a_wrong_wal_level_is_reported_with_the_statement_that_changes_it`,
//!   `a_halted_manager_retries_every_30_seconds_and_at_once_on_request`,
//!   `a_halted_manager_recovers_within_30_seconds_after_the_cause_was_fixed`,
//!   `a_refusal_that_halts_the_first_start_is_retried_after_a_success`,
//!   `unlisted_sqlstates_are_retried`,
//!   `delays_double_up_to_ten_seconds_and_are_shortened_by_a_fifth_at_most`,
//!   `five_panics_in_a_minute_halt_it_and_four_do_not`
//! - Snapshots never take a connection of the metadata pool.
//!   `snapshots_leave_the_metadata_connections_free_on_a_nearly_full_server`,
//!   `lost_metadata_connections_get_places_of_a_full_server_before_snapshots`,
//!   `a_budget_of_connections_is_split_between_the_pools`
//! - A manually managed publication is never changed.
//!   `a_manual_publication_is_not_changed_even_by_its_owner`,
//!   `a_manual_publication_must_exist_and_have_all_operations`,
//!   `a_manual_publication_must_include_the_table_completely`,
//!   `a_manual_publication_via_the_root_refuses_partitions_with_a_reason`
//!
//! # Where to look
//!
//! | to find | look in |
//! |---|---|
//! | order of steps, timers, retries, sleep | `core/machine`, `core/step.rs` |
//! | shutdown order and deadlines | `core/machine/shutdown.rs` |
//! | whether the consumer continues or is reset | `core/continuity.rs` |
//! | which positions are acknowledged, and when | `core/progress.rs` |
//! | waits for a position of the stream | `source/position.rs` |
//! | which lock holder may be terminated | `core/lock_breaker.rs`; the SQL in `source/lock.rs` |
//! | every error, its recovery and its advice | `error.rs` |
//! | startup, SCRAM | `wire/start.rs`, `wire/auth.rs` |
//! | framing, `SO_RCVLOWAT` | `wire/read_buffer.rs`, `wire/pace.rs` |
//! | publication, slot, output settings | `source/setup.rs` |
//! | tables added, removed, reconciled | `publication/` |
//! | exactly once, over kills, cuts and restarts | `tests/it/exactly_once.rs` |
//!
//! # Decisions
//!
//! - **Lock.** The replication connection holds the advisory lock, so the server releases the lock
//!   when the connection ends. The manager polls the lock once a second: a backend that waited in
//!   `pg_advisory_lock` would hold back vacuum. After a silent network failure, the previous
//!   backend of this instance may still hold the lock. The manager identifies it by process id and
//!   start time, and terminates it.
//! - **Abandoned holders.** A holder counts as abandoned after [`LockTimeouts`]. One SQL statement
//!   checks the holder again and terminates it. A live holder runs a query six times within the
//!   silence timeout.
//! - **Failures.** After a failure the manager drops the replication connection, and keeps the
//!   pools and the consumer. A failure that needs an operator halts the manager only before its
//!   first success: it closes the pools, and retries every 30 s until the cause is fixed. Later the
//!   manager keeps the pools and retries sooner, since the cause may be temporary, such as a
//!   password rotation.
//! - **Reset.** The consumer records each position before the manager acknowledges it. So if the
//!   slot is ahead of the consumer, changes are lost. The consumer is also reset by a new slot,
//!   another publication (by oid), another cluster, or a timeline that branched off before the
//!   bookmark. If the promotion was at or after the bookmark, the stream continues.
//! - **New publication, new slot.** Decoding uses the catalog as of the decoded position, so a slot
//!   can't use a publication that was created after that position. PostgreSQL 18 only warns if the
//!   publication is missing; reconciliation detects it.
//! - **Rights.** Managed databases grant replication by role membership, so the manager doesn't
//!   query the right. If it is missing, the server refuses the connection.
//! - **Blocked setup.** Slot creation waits for open transactions. The log and the condition
//!   `replication_client_ready` name the blocking transaction.
//! - **Backpressure.** Rows are borrowed from the read buffer. Nothing is read while the consumer
//!   is busy; status updates continue.
//! - **Coalescing.** Between transactions, reads are at least 1 ms apart, or 2 ms after a burst. A
//!   single transaction never waits. At thousands per second, all transactions of one read share
//!   one sync and one write per client.
//! - **Stop before release.** The consumer stops writing before the lock is released, so the next
//!   instance reads a complete store. Nothing is saved or dropped without the lock.
//! - **Gaps.** [`TablePublication::membership`] changes when a table is removed from the
//!   publication and added again, even while no manager runs. The manager repeats the notification
//!   until the consumer accepts it.
//! - **Ready.** The manager is ready once the server has confirmed the stream. The backoff is reset
//!   when a change became durable, or after 30 s.
//! - **Not detected.** First: a server whose disk was restored to an earlier state on the same
//!   timeline, once that server has written past the bookmark. Second: two clusters promoted from
//!   one parent to the same timeline number.

mod config;
mod consumer;
mod core;
mod error;
mod manager;
mod manager_tasks;
pub mod metrics;
mod pools;
mod publication;
mod source;
mod sql;
mod status;
mod usage_gate;
mod wire;
mod worker;

pub use forebay_pgoutput as pgoutput;
pub use forebay_reservoir as reservoir;

pub use crate::config::{DatabaseSettings, ManagerConfig, ManagerConfigError, max_snapshots};
pub use crate::consumer::{Consumer, ConsumerError, DurablePosition};
pub use crate::core::continuity::{Bookmark, ResetReason, Timeline};
pub use crate::core::lock_breaker::LockTimeouts;
pub use crate::core::machine::ManagerEvent;
pub use crate::error::{RecoveryAction, ReplicationError, SourceOperation};
pub use crate::manager::{Manager, NotReady};
pub use crate::pools::{PoolError, PoolStatus};
pub use crate::publication::{
    PublicationVersions, PublishError, TableChange, TableName, TablePublication, decodes_with_stale_catalog,
};
pub use crate::source::{DISPLAY_SETTINGS, MessageBatch};
pub use crate::status::{
    ConditionStatus, ConnectionStatus, ManagerPhase, ManagerStatus, ManagerStep, Positions, ReadyCondition,
    ShapeStatus, StopStep,
};
pub use crate::usage_gate::AwakeGuard;
