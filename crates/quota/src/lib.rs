//! Cluster-wide counting: budgets, exact limits per key, and rates that hold over all processes
//! that share a store.
//!
//! A store is Redis, DynamoDB, or memory for one process. Each process is a *member* of a
//! namespace. Counts belong to members: a member without heartbeats expires, and its units are free
//! again. So nothing leaks when a process is killed.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "redis")] {
//! # let server = forebay_sandbox::Redis::start()?;
//! # let url = server.url();
//! use forebay_quota::{BudgetConfig, MemberConfig, Quota, RedisStore};
//!
//! let store = RedisStore::open(&url, "chat")?;
//! let quota = Quota::join(store, MemberConfig::new("instance-1")).await;
//! let streams = quota.budget("streams", BudgetConfig::new(10_000)); // limit of all instances
//! let per_user = quota.keyed_limit("user", 3); // limit of each user in all instances
//!
//! let held = (streams.take().await?, per_user.take("ann").await?);
//! assert_eq!(streams.usage().used, 1);
//! drop(held); // returns both units
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | effect |
//! |---|---|---|
//! | `redis` | yes | `RedisStore`, through forebay-redis |
//! | `dynamodb` | no | `DynamoStore`, through the official SDK, on rustls and ring |
//!
//! # Structure
//!
//! ```text
//! caller          Budget · KeyedLimit · Rate                 other members
//!   │ take, drop         │                                        │
//!   ▼                    ▼                                        ▼
//! member_runtime.rs ─ one mutex ─▶ core/member ─ calls ─▶ Store ◀─ calls
//!   polls the settlement in the      pure: slices,       heartbeat · settle · leave ·
//!   waiting caller, else a task;     waiters, deadlines  draw · query_holdings
//!   timer task, pressure task                            memory · Redis · DynamoDB
//! ```
//!
//! - An *account* is a cluster-wide count with a limit. A budget is one account. A keyed limit has
//!   one account for each key.
//! - A *slice* is the part of a budget that a member may lend without a call. Budgets are granted
//!   in blocks: a member gets what it requests plus half of an equal part of the rest. Accounts of
//!   keys are exact.
//! - A *settlement* reports what a member holds (the *floor*) and requests what it wants to hold.
//!   At most one is in flight. It carries all accounts that need one, so a burst of decisions costs
//!   Redis one script.
//! - A slice shrinks before its settlement is sent and grows with the reply. So the
//!   recorded share is never below the lent units, even if a message is lost.
//! - A member lends from its slices until its *slice deadline*: the time at which its last
//!   acknowledged heartbeat was sent, plus the TTL, minus a margin. The store expires the
//!   member only after it.
//! - A refusal raises *pressure*. The store notifies all members, which return idle units. The
//!   refused member retries for up to 50 ms while others have idle units. Under pressure, no extra
//!   block is granted.
//! - A *rebuild* follows data loss, and an outage in which members expired. For up to one TTL, the
//!   members report what they hold. Meanwhile the [`OutagePolicy`] limits what a member may hold;
//!   the store grants it, so reported units count. A new namespace looks like one that lost its
//!   data, so it starts with a rebuild. [`Quota::status`] shows it, [`Quota::ready`] waits for its
//!   end, and [`QuotaRefusal::Rebuilding`] has the time left.
//!
//! # Invariants and their tests
//!
//! - While the store keeps its writes, all members together lend no more than the limit.
//!   `leases_stay_within_the_limits_and_all_units_are_returned`,
//!   `sixteen_processes_race_for_one_user_and_never_more_than_three_win`,
//!   `members_join_and_leave_under_load_and_the_limit_holds`,
//!   `random_faults_never_lend_more_than_the_limit_by_the_closed_policy`
//! - Otherwise the excess is at most the lost writes, the units of members that the store expired
//!   although their processes were running, and what the [`OutagePolicy`] allows.
//!   `leases_stay_within_the_limits_and_all_units_are_returned`,
//!   `after_flushall_at_90_percent_the_limits_hold_and_all_units_are_known_again_soon`,
//!   `random_faults_lend_no_more_than_each_members_limit_by_the_share_policy`,
//!   `after_random_faults_the_limit_holds_by_the_open_policy`
//! - During a rebuild, the excess is at most what members hold that have yet to report. With
//!   `Share`, a member of before gets at most an equal part of a budget. A process that has just
//!   started divides the limit by the members in the store's last reply, so the first one in an
//!   emptied store may get all that isn't reported. With `Closed`, there is no excess.
//!   `leases_stay_within_the_limits_and_all_units_are_returned`,
//!   `during_a_rebuild_a_member_holds_at_most_its_part_of_a_budget`,
//!   `after_flushall_at_90_percent_a_member_lends_its_part_and_the_counts_are_right_again`,
//!   `members_of_both_releases_keep_the_bound_of_a_rebuild`
//! - A new namespace, and a store that lost its data, grant at once unless the policy is `Closed`.
//!   `a_new_namespace_grants_at_once_unless_the_policy_is_closed`,
//!   `a_new_table_grants_at_once_unless_the_policy_is_closed` (DynamoDB),
//!   `after_a_restart_without_persistence_redis_grants_at_once`
//! - A budget that is held until expiry grants nothing new during a rebuild.
//!   `a_budget_held_until_expiry_grants_nothing_new_during_a_rebuild`,
//!   `a_budget_held_until_expiry_grants_nothing_in_a_new_namespace`
//! - A rebuild ends early only if all members have reported that the others knew of.
//!   `leases_stay_within_the_limits_and_all_units_are_returned`,
//!   `a_rebuild_ends_early_only_if_all_members_of_before_have_reported`,
//!   `a_member_that_had_expired_before_a_loss_does_not_replace_a_report`,
//!   `after_a_second_loss_the_rebuild_still_waits_for_all_members_of_before`,
//!   `after_an_outage_a_rebuild_expects_the_members_that_the_store_knew`,
//!   `a_rebuild_that_expects_a_member_of_release_0_1_does_not_end_early`,
//!   `a_rebuild_ends_after_half_a_ttl_once_all_members_have_reported`
//! - Members that expired together never hold more than the limit with `Closed`.
//!   `members_that_all_expired_together_never_hold_more_than_the_limit`,
//!   `when_all_members_expire_together_nothing_is_granted_until_they_have_reported`
//! - A lease is never revoked: not by a lowered limit, a lost store, or an expired member.
//!   `limits_rise_and_fall_and_leases_stay`,
//!   `while_redis_is_gone_the_policy_decides_and_its_return_reconciles`,
//!   `a_member_stopped_beyond_its_ttl_keeps_its_leases_as_debt`
//! - Every unit is returned exactly once, when its lease is dropped, without blocking.
//!   `leases_stay_within_the_limits_and_all_units_are_returned`,
//!   `a_caller_dropped_at_any_point_leaks_nothing`, `callers_dropped_on_many_threads_leak_nothing`
//! - The units of a killed process are free after a TTL and a heartbeat. A new process with the
//!   same name takes them over at once.
//!   `units_of_a_killed_member_are_free_after_a_ttl_and_a_heartbeat`,
//!   `a_member_of_the_same_name_gets_its_predecessors_units_at_once`
//! - A unit from the slice needs no round trip. A budget isn't refused while other members have
//!   idle units and the store is available.
//!   `a_unit_of_the_slice_is_lent_without_a_call_to_the_store`,
//!   `idle_units_of_one_member_reach_another_that_needs_them`
//! - No two pairs of keyed limit and key share an account.
//!   `no_two_limits_and_keys_share_an_account`, `no_two_limits_and_keys_share_a_count_in_redis`
//! - A clock jump adds at most one burst to a rate, and blocks no caller.
//!   `a_clock_jump_adds_one_burst_if_forward_and_blocks_no_caller`,
//!   `a_rebuild_started_under_a_clock_ahead_lasts_one_ttl_at_most`
//! - If the store may have lost data of a member, the member pushes everything under a new
//!   incarnation, and the old one leaves last.
//!   `an_old_incarnation_leaves_only_when_everything_is_pushed`,
//!   `a_lost_write_is_noticed_although_a_later_one_was_applied`
//! - Members of release 0.1 keep these bounds in the same namespace.
//!   `members_of_both_releases_keep_the_limit_through_short_faults`,
//!   `members_of_both_releases_share_budgets_limits_and_the_names_of_keys`,
//!   `members_of_both_releases_keep_the_limit_in_a_new_namespace`,
//!   `in_a_new_namespace_of_both_releases_the_new_member_grants_its_part_at_once`
//!
//! The README lists the events in which a limit may be exceeded, and by how much.
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | the rule that computes a share | `core/grant.rs` |
//! | members of the store, and rebuilds | `core/ledger.rs` |
//! | one account of a member: slice, floor, want | `core/account.rs` |
//! | when a unit is lent, refused or requested; outage policies | `core/member/lending.rs` |
//! | heartbeats, settlements, replies, outages | `core/member/calls.rs` |
//! | new incarnations after data loss | `core/member/rejoin.rs` |
//! | random histories of a cluster; single scenarios | `core/member/*_tests.rs` |
//! | which caller or task polls a call | `driven_call.rs`, `take_future.rs` |
//! | Lua scripts and Redis keys | `redis/` |
//! | liveness without a clock | `dynamo/liveness.rs` |
//! | Redis and DynamoDB reply as the ledger does | `tests/it/store_conformance.rs` |
//! | new namespaces, FLUSHALL and restarts | `tests/it/rebuild.rs` |
//! | killed, stopped and failed-over processes | `tests/it/processes.rs`, `faults.rs` |
//! | random faults | `tests/it/random_faults.rs` |
//! | wrong clocks; a frozen store | `tests/it/clock.rs`, `frozen_store.rs` |
//! | errors of Redis | `tests/it/redis_errors.rs` |
//! | members of release 0.1 | `tests/it/rolling_upgrade.rs` |
//!
//! # Decisions
//!
//! - Each member has one sequence, not one for each key. At most one settlement is in flight, so
//!   the guarantee is the same and the cost is lower.
//! - A settlement carries the highest acknowledged sequence. Otherwise a write after a failover
//!   would hide an earlier lost write, because it raises the store's sequence again.
//! - Lost data is never patched. A new incarnation pushes everything, and only then the old one
//!   leaves. Meanwhile the share counts twice, which is safe.
//! - A new process joins first and replaces its predecessor with its next call. Otherwise a join
//!   that arrives late, from a process that has ended, would replace a live one.
//! - Pressure is published at once, not with the next heartbeat. Otherwise a member would be
//!   refused for two seconds while another has thousands of idle units.
//! - A member that can't report to a rebuilding store within one TTL counts as expired. Its units
//!   may exceed the limit.
//! - A store without its data has no list of members, but each member has the number of members in
//!   its last reply. Heartbeats during a rebuild carry that number. So the store can count how many
//!   have yet to report, and a new process gets the number by which the limit is divided.
//! - A rebuild ends early, after half a TTL, once as many members have reported as the latest reply
//!   before it counted. A member that had joined after that reply isn't in the count; it sends a
//!   heartbeat within a third of its TTL. The store compares numbers, not names. So only the report
//!   of a member counts that was surely counted before: its last reply was within its deadline, and
//!   the store wasn't being rebuilt.
//! - A rebuild that was interrupted, or in which members expired, doesn't end early. Nor does one
//!   that expects a member of release 0.1, which doesn't say that it has reported.
//! - During a rebuild, units are granted by the store and not by the member alone. So members that
//!   start together in a new namespace stay within a limit, whatever their policy.
//! - In Redis, all exact accounts are fields of one hash, so that one HMGET and one HSET serve many
//!   of them. A heartbeat deletes a few accounts that only expired members hold.
//! - In Redis, time advances only with heartbeats: they expire members and end rebuilds. A
//!   settlement of exact accounts needs no clock.
//! - In Redis, no key with a count has an expiry, because a server under `volatile-*` evicts such
//!   keys. An unused namespace keeps a few small keys.
//! - In Redis, a live member can expire because the store was unreachable. A member sends at least
//!   three heartbeats in a TTL. So this is the cause if the expired member's last heartbeat is
//!   within half a TTL of the newest heartbeat of all members. The heartbeat that finds such
//!   members starts a rebuild for the longest of their TTLs. Earlier incarnations of the sender
//!   don't count.
//! - Redis's clock may be wrong for a while. Stored times that a correct clock can't have written
//!   are lowered to the latest valid time: expiries, the end of a rebuild, pressure, and the level
//!   of a bucket.
//! - DynamoDB has no clock. Each handle measures how long a heartbeat counter is unchanged. Time in
//!   which DynamoDB couldn't be read counts for at most half a TTL, so an outage expires no member.
//! - If settlements fail while heartbeats succeed, the member reports one outage until a settlement
//!   is applied.
//!
//! # Errors of Redis
//!
//! Redis returns all of these before a script's first write, so no script ends halfway. Each is an
//! outage: the policy decides, the member sends a heartbeat every 0.5 s, and the first reply ends
//! the outage.
//!
//! | error | cause | heartbeats, settlements |
//! |---|---|---|
//! | READONLY, MASTERDOWN | the server has become a replica | refused |
//! | LOADING | the server loads its data | refused |
//! | CLUSTERDOWN | a slot has no server | refused |
//! | MISCONF, NOREPLICAS | it can't save, or has too few replicas | refused |
//! | OOM | its memory is full | refused, except a heartbeat that expires a member |
//! | BUSY | another script runs | refused |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod call_guard;
mod config;
mod core;
mod driven_call;
#[cfg(feature = "dynamodb")]
mod dynamo;
mod error;
mod lease;
mod member_runtime;
mod memory;
mod quota;
mod random_id;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod runtime_state;
mod status;
mod store;
mod take_future;

pub use config::{BudgetConfig, MemberConfig, OutagePolicy, ParseOutagePolicyError, RateConfig};
#[cfg(feature = "dynamodb")]
pub use dynamo::DynamoStore;
pub use error::QuotaRefusal;
pub use lease::{KeyedLease, Lease};
pub use memory::MemoryStore;
pub use quota::{Budget, KeyedLimit, Quota};
pub use rate::{Rate, RateToken};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
pub use status::{BudgetStatus, KeyedStatus, MemberCounters, QuotaMode, Status, Usage};
pub use store::{
    AccountShares, Allocation, Heartbeat, HeartbeatKind, HeartbeatReply, Holdings, MemberId, MemberLiveness,
    Membership, Settlement, SettlementReply, Share, ShareReply, ShareRequest, Store, StoreError, StoreFuture,
    TokenReply, TokenRequest,
};
