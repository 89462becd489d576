//! From rows to the bytes that clients get.
//!
//! Invariant: a message is written once, by hand, into the bytes that go to disk and to every client; nothing is parsed or written
//! again, but for what is merged when a log has become long. Values are what Postgres wrote, as JSON strings, or null.

mod copy;
mod json;
mod merge;
mod row_encoder;

pub use self::copy::{CopyError, CopyRows};
pub(crate) use self::merge::{Operation, key_change, merge, row_key};
pub(crate) use self::row_encoder::place_of;
pub use self::row_encoder::{
    ColumnSchema, LAST, LogPosition, MORE, RowEncoder, RowValues, SEPARATOR, ShapeChange, last_commit,
    last_offset,
};
