//! Counting across machines.

mod config;
mod core;
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

pub use config::{BudgetConfig, MemberConfig, Policy, RateConfig, UnknownPolicy};
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
