//! Shapes: filtered views of Postgres tables.
//!
//! A shape is a table, a where clause and a choice of columns. [`Shapes`] keeps a durable log for each: a [`ShapeCreation`] fills it with a snapshot,
//! the [`Follower`] matches every committed transaction against all of them and writes what it means for each, once, in exactly the bytes that
//! clients get; whoever serves clients reads them from a [`Shape`]. A clause is a predicate by itself, too:
//!
//! ```
//! use forebay_shapes::filter::{Collation, Column, Filter, Schema};
//!
//! let columns = vec![Column::new("id", 23, "int4"), Column::new("state", 25, "text")];
//! let schema = Schema { table: None, columns, database_collation: Collation::C, server_version: 18 };
//! let open = Filter::parse("state IN ('open', $1) AND id > 5", &["paid"], &schema)?;
//! assert_eq!(open.matches(&[Some(&b"7"[..]), Some(&b"paid"[..])])?, Some(true));
//! assert_eq!(open.matches(&[Some(&b"7"[..]), None])?, None); // NULL, as in Postgres
//! let refused = Filter::parse("state = (SELECT 'open')", &[], &schema);
//! assert!(refused.unwrap_err().to_string().contains("subqueries"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod baselines;
mod config;
mod creation;
mod definition;
pub mod encode;
mod follow;
mod offset;
mod registry;
mod row_keys;
mod shape;
mod shapes;
#[cfg(test)]
mod simulation;
mod store;

pub use forebay_filter as filter;
pub use forebay_pgoutput as pgoutput;

pub use crate::config::StoreConfig;
pub use crate::creation::ShapeCreation;
pub use crate::definition::{
    CatalogChange, CatalogState, LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema,
};
pub use crate::follow::{FollowError, Follower, PartitionTree};
pub use crate::offset::{Offset, OffsetError, StartOffset};
pub use crate::shape::{
    LogListener, LogPage, Shape, ShapeGone, ShapeStreamGuard, SnapshotChunk, SnapshotFailure,
};
pub use crate::shapes::{CreateError, Shapes, StoreFailure, StorePosition};
pub use crate::store::{OpenError, StoreSummary, StoreUnusable};
