//! Shapes: filtered views of Postgres tables.
//!
//! A shape is a table, a where clause and a choice of columns. [`Shapes`] keeps a durable log for each: a [`Creation`] fills it with a snapshot,
//! the [`Follower`] matches every committed transaction against all of them and writes what it means for each, once, in exactly the bytes that
//! clients get; whoever serves clients reads them from a [`Shape`].

#![forbid(unsafe_code)]

mod config;
mod creation;
mod definition;
pub mod encode;
pub mod filter;
mod follow;
pub mod matching;
mod offset;
mod registry;
mod shape;
mod shapes;
#[cfg(test)]
mod simulation;
mod store;

pub use crate::config::StoreConfig;
pub use crate::creation::Creation;
pub use crate::definition::{Choice, Definition, LogMode, Replica, Table};
pub use crate::follow::{FollowError, Follower};
pub use crate::offset::{Offset, OffsetError, Since};
pub use crate::shape::{Failure, Gone, Listener, LogPage, Shape, SnapshotChunk};
pub use crate::shapes::{CreateError, Position, Shapes, StoreFailure};
pub use crate::store::OpenError;
