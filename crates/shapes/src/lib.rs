//! Shapes: filtered views of Postgres tables.
//!
//! Today: [`filter`], the where clauses; [`encode`], from rows to the bytes that clients get; and the offsets of a log.

#![forbid(unsafe_code)]

pub mod encode;
pub mod filter;
mod offset;

pub use crate::offset::{Offset, OffsetError, Since};
