//! Follows one Postgres: a replication connection that survives everything, and every committed transaction exactly once.
//!
//! Invariants: there is one replication connection at most, and one instance that has it; the consumer gets every committed transaction
//! whole, once, in commit order; the server is told only of what the consumer made durable.
//! Kept by: a pure machine that decides (`core/machine.rs`), an advisory lock that lives and dies with the connection (`source/lock.rs`), positions
//! that are acknowledged only after they are durable (`core/progress.rs`), and a comparison of both sides' positions at each start
//! (`core/continuity.rs`).

mod chores;
mod config;
mod consumer;
mod core;
mod error;
mod manager;
pub mod metrics;
mod pools;
mod publication;
mod source;
mod sql;
mod status;
mod uses;
mod wire;
mod worker;

pub use forebay_pgoutput as pgoutput;
pub use forebay_reservoir as reservoir;

pub use crate::config::{ManagerConfig, ManagerConfigError, ManagerOutline};
pub use crate::consumer::{Consumer, ConsumerError, Durable};
pub use crate::core::breaker::LockPatience;
pub use crate::core::continuity::{Bookmark, ResetReason, Timeline};
pub use crate::core::machine::StackEvent;
pub use crate::error::{Doing, Failure, Verdict};
pub use crate::manager::{Manager, NotReady};
pub use crate::pools::{PoolError, PoolStatus};
pub use crate::publication::{
    PublicationVersions, PublishError, Published, TableChange, TableName, decodes_with_stale_catalog,
};
pub use crate::source::{Batch, DISPLAY_SETTINGS};
pub use crate::status::{
    Condition, ConditionStatus, ConnectionStatus, ManagerStatus, Phase, Positions, ShapeStatus, Step,
    StopStep,
};
pub use crate::uses::Awake;
