//! Encoder: turns rows into the bytes that clients receive.
//!
//! Invariant: a message is encoded once, into the bytes that go to disk and to every client. Only
//! the merge of a long log parses and encodes again. Values are the texts that Postgres sent, as
//! JSON strings, or null.

mod copy;
mod json;
mod merge;
mod row_encoder;
mod snapshot_end;

pub use self::copy::{CopyError, CopyRows};
pub(crate) use self::merge::{RowOperation, key_change, merge, row_key};
pub(crate) use self::row_encoder::offset_of;
pub use self::row_encoder::{
    ColumnSchema, LAST, LogPosition, MORE, RowEncoder, RowValues, SEPARATOR, ShapeChange, last_commit,
    last_offset,
};
pub(crate) use self::snapshot_end::snapshot_end;
