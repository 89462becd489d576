//! Postgres' logical replication messages (the plugin `pgoutput`, protocol versions 1 to 4), decoded without copying.
//!
//! ```
//! use forebay_pgoutput::{Decoder, Message};
//!
//! let mut decoder = Decoder::new();
//! let bytes = b"I\0\0\x40\x07N\0\x02t\0\0\0\x011t\0\0\0\x03ann"; // as a server sends it
//! if let Message::Insert(insert) = decoder.decode(bytes)? {
//!     let row: Vec<_> = insert.new.iter().filter_map(|value| value.bytes()).map(str::from_utf8).collect();
//!     println!("table {}: {row:?}", insert.relation); // table 16391: [Ok("1"), Ok("ann")]
//! #   assert_eq!((insert.relation, row), (16391, vec![Ok("1"), Ok("ann")]));
//! }
//! # Ok::<(), forebay_pgoutput::DecodeError>(())
//! ```
//!
//! What always holds:
//! - Bytes are a message or a [`DecodeError`]; no bytes make it panic. One byte more or less is an error.
//! - Nothing is allocated but in [`Relations`], and there no more than a small multiple of what has arrived.
//! - A message is checked whole when it is decoded; walking over its values or columns can't fail afterwards.
//! - Neither an error nor the `Debug` of a message tells what a row holds: both may be logged.
//!
//! Not here: sockets, timers, and the SQL that starts a stream. Pass the content of each CopyData message to
//! [`Frame::decode`], the payload of [`Frame::Data`] to [`Decoder::decode`], and write [`StandbyStatus::encode`] back now and
//! then.
//!
//! # The life of a transaction
//! A server sends a transaction after it has committed, whole, and one after the other in the order of their commits:
//! [`Begin`], then for each table that it changes a [`Relation`] if need be and the changes, and at last [`Commit`]. What was
//! rolled back doesn't come at all.
//!
//! Once everything in a transaction is safe, acknowledge [`Commit::end`] as [`StandbyStatus::flushed`]: neither less nor more.
//! It is the place right after the commit, and `flushed` means that everything *before* a place is safe. After a
//! restart the server sends the transactions whose commit begins at that place or later, so that
//! - [`Commit::lsn`], where this commit begins, would have this transaction sent again;
//! - `end` plus one would lose the next transaction, if its commit begins at `end`. `tests/it/server.rs` shows that it does.
//!
//! A connection may be lost before the server has read an acknowledgement, so be ready for transactions that you have: pass
//! over those whose `end` is not above the last one that is safe. [`Frame::Keepalive`] tells how far the server is; between
//! transactions, with everything safe, acknowledge that too, or a server whose other databases are busy keeps its log
//! forever.
//!
//! # Relations are repeated
//! Changes name a table by its oid only. The [`Relation`] with its columns comes before the table's first change in each
//! connection, and again whenever it may have changed: after `ALTER TABLE`, but also after many things that change
//! nothing. [`Relations`] keeps the last one, and [`Relations::apply`] says whether it differs. Rows have one value per column
//! of the last relation, in its order. Generated columns are missing in both, unless published (Postgres 18).
//!
//! # Old rows, and the replica identity
//! How an update or a delete tells which row it was is for the table to say, with `ALTER TABLE … REPLICA IDENTITY`:
//!
//! | [`ReplicaIdentity`]      | [`Update::old`]                                      | [`Delete::old`]         |
//! |--------------------------|------------------------------------------------------|-------------------------|
//! | `Default` (primary key)  | `None`; [`OldTuple::Key`] if the key changed[^toast] | [`OldTuple::Key`]       |
//! | `Index` (a unique index) | as above, with the index' columns                    | [`OldTuple::Key`]       |
//! | `Full`                   | [`OldTuple::Full`], always                           | [`OldTuple::Full`]      |
//! | `Nothing`                | the server refuses the update                        | and the delete          |
//!
//! A table without primary key has `Default` like any other; the server refuses its updates, too, as long as they are
//! published. In an [`OldTuple::Key`] every column outside of the key is [`Value::Null`], whatever it was: look at
//! [`Column::is_key`].
//!
//! [^toast]: or if a column of the key is stored out of line.
//!
//! # Values that did not change
//! A long value (from about 2 kB) is stored out of line, in the table's TOAST relation. An update that leaves it as it is
//! doesn't write it to the log, so the server can't send it: it is [`Value::Unchanged`] in [`Update::new`]. That is not NULL.
//! The value is the one from before: in [`Update::old`] if that is an [`OldTuple::Full`] (or an [`OldTuple::Key`], and the
//! column belongs to the key), else only in your own copy of the row or in the table.
//!
//! # Streams of transactions that still run
//! A long transaction is kept by the server until it commits. With protocol 2 and `streaming`, it comes in parts instead
//! while it still runs: [`StreamStart`], changes, [`Message::StreamStop`], and so on, with parts of others and whole
//! transactions in between. Within a part, changes carry the id of the (sub)transaction that made them, which is why a
//! [`Decoder`] must see every message of its connection. Keep them, for nothing of it has happened yet:
//! - [`StreamAbort`] takes back what carries its `subxid`; all, if that is the transaction's own.
//! - [`StreamCommit`] makes it happen; acknowledge its `end`. What is kept may be lost with the connection: all is sent again.
//! - A [`Relation`] in a part is so for that transaction alone. Keep [`Relations`] for each, and [`Relations::adopt`] them
//!   at the commit.
//!
//! With protocol 3 and a slot made for it, a transaction that is prepared for two-phase commit comes when it is
//! prepared, between [`Message::BeginPrepare`] and [`Message::Prepare`] (or in parts, up to [`Message::StreamPrepare`]);
//! whether it happened is told later, by [`CommitPrepared`] or [`RollbackPrepared`], with the name that was given to it.
//! Protocol 4 adds only where and when to [`StreamAbort`].
//!
//! # Joining a copy and the stream
//! Rows that were copied by a query have the changes of some streamed transactions in them already. Which, its [`Snapshot`]
//! tells: [`Snapshot::sees`] takes the `xid` of a [`Begin`].

#![forbid(unsafe_code)]

mod clock;
mod decoder;
mod error;
mod frame;
mod lsn;
mod message;
mod reader;
mod relation;
mod relations;
mod snapshot;
mod tuple;
mod xid;

pub use clock::PgTime;
pub use decoder::Decoder;
pub use error::{DecodeError, Fault};
pub use frame::{Frame, StandbyStatus};
pub use lsn::{Lsn, ParseLsnError};
pub use message::{
    Abort, Begin, Commit, CommitPrepared, Delete, Insert, LogicalMessage, Message, Oids, OidsIter, Origin,
    Prepare, RollbackPrepared, StreamAbort, StreamCommit, StreamStart, Truncate, Type, Update,
};
pub use relation::{ColumnRef, ColumnRefs, Columns, Relation, ReplicaIdentity};
pub use relations::{Column, Relations, Table};
pub use snapshot::{ParseSnapshotError, Snapshot};
pub use tuple::{OldTuple, Tuple, Value, Values};
pub use xid::Xid;
