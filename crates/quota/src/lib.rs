//! Counting across machines: budgets, exact limits per key, and a rate, which hold over all processes that share a store.
//!
//! A count belongs to a member, which is one running process, and a member that stops beating loses it: nothing leaks when a
//! process is killed. What always holds:
//! - While the store keeps its writes, no more than the limit is lent, over all members together. Otherwise the excess is at
//!   most the writes that it lost, what members held that were taken for dead while they lived, and what
//!   [`Policy::Share`] or [`Policy::Open`] allow without the store.
//! - What is lent stays lent: lowering a limit, losing the store or being taken for dead never cuts a holder.
//! - Every unit comes back exactly once, when its lease is dropped, without waiting for anything.
//! - A unit out of this member's slice costs no round trip; nothing is refused before the store was asked.
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
//! let streams = quota.budget("streams", BudgetConfig::new(10_000)); // in all instances together
//! let per_user = quota.keyed("user", 3); // each user, wherever it is served
//! # quota.leave().await;
//! # let quota = Quota::local(); // the namespace above is new, and grants nothing for its first ten seconds
//! # let (streams, per_user) = (quota.budget("streams", BudgetConfig::new(10_000)), quota.keyed("user", 3));
//!
//! let held = (streams.take().await?, per_user.take("ann").await?);
//! assert_eq!(streams.usage().used, 1);
//! drop(held); // gives both back
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! A namespace that is new, or whose store has lost its memory or was away until its members had expired, grants nothing for
//! one TTL: members that live may still have to tell what they hold. [`Quota::status`] says so, and [`Refusal::Rebuilding`] says
//! for how long. What may come on top of a limit, and when, is a table in the README.

mod config;
mod core;
mod driven;
#[cfg(feature = "dynamodb")]
mod dynamo;
mod error;
mod lease;
mod memory;
mod quota;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod shared;
mod status;
mod store;
mod wait;

pub use config::{BudgetConfig, MemberConfig, Policy, RateConfig, UnknownPolicy};
#[cfg(feature = "dynamodb")]
pub use dynamo::DynamoStore;
pub use error::Refusal;
pub use lease::{KeyedLease, Lease};
pub use memory::MemoryStore;
pub use quota::{Budget, Keyed, Quota};
pub use rate::{Rate, Token};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
pub use status::{BudgetStatus, Counters, KeyedStatus, Mode, Status, Usage};
pub use store::{
    Answer, Ask, Beat, BeatKind, Calling, Draw, Drawn, Holdings, Life, MemberId, Pulse, Settled, Settlement,
    Share, Shares, Sharing, Standing, Store, StoreError,
};
