//! Decoder for PostgreSQL logical replication messages: plugin `pgoutput`, protocol versions 1 to
//! 4.
//!
//! The crate is pure: bytes in, messages out. It has no sockets, no async runtime and no `unsafe`
//! code. Decoded messages borrow from the input.
//!
//! ```
//! use forebay_pgoutput::{PgOutputDecoder, PgOutputMessage};
//!
//! let mut decoder = PgOutputDecoder::new();
//! let bytes = b"I\0\0\x40\x07N\0\x02t\0\0\0\x011t\0\0\0\x03ann"; // as a server sends it
//! if let PgOutputMessage::Insert(insert) = decoder.decode(bytes)? {
//!     let texts = insert.new.iter().filter_map(|value| value.bytes()).map(str::from_utf8);
//!     let row: Vec<_> = texts.collect();
//!     println!("table {}: {row:?}", insert.relation); // table 16391: [Ok("1"), Ok("ann")]
//! #   assert_eq!((insert.relation, row), (16391, vec![Ok("1"), Ok("ann")]));
//! }
//! # Ok::<(), forebay_pgoutput::DecodeError>(())
//! ```
//!
//! # Data flow
//! ```text
//! socket ─▶ CopyData ─▶ Frame::decode ─┬▶ Keepalive
//!                                      └▶ XLogData ─▶ PgOutputDecoder::decode ─▶ PgOutputMessage
//! socket ◀─ CopyData ◀─ StandbyStatusUpdate::encode         Relation ─▶ RelationCache ◀─┘
//! ```
//! Out of scope: sockets, timers, and the SQL that starts replication; see `forebay-replication`.
//!
//! # Invariants and their tests
//!
//! - Any bytes decode to a message or a [`DecodeError`], never a panic.
//!   `any_bytes_are_a_message_or_an_error_and_never_a_panic`,
//!   `changed_bytes_are_a_message_or_an_error_and_never_a_panic`
//! - An error names the message, the byte offset, the field and the fault.
//!   `malformed_messages_are_refused_with_the_reason`
//! - A truncated message, or one with trailing bytes, is an error.
//!   `a_message_without_its_end_is_an_error_wherever_it_ends`
//! - Decoding allocates no memory.
//!   `decoding_allocates_nothing_wherever_a_message_ends_and_whatever_byte_is_wrong`
//! - [`RelationCache`] and [`Snapshot`] use at most a small multiple of the received bytes.
//!   `a_cached_relation_takes_a_small_multiple_of_its_relation_message`,
//!   `a_snapshot_takes_a_small_multiple_of_its_text`
//! - A message is validated when it is decoded; its iterators cannot fail later.
//!   `any_bytes_are_a_message_or_an_error_and_never_a_panic`
//! - Encoding a decoded message yields the same bytes.
//!   `any_message_encodes_back_to_the_same_bytes`
//! - Errors and `Debug` output contain no row values, so both may be logged.
//!   `debug_output_of_a_tuple_contains_no_value`, `debug_output_of_a_change_contains_no_value`,
//!   `debug_output_contains_no_content`, `debug_output_of_the_reader_contains_no_bytes`
//! - The position to acknowledge is [`Commit::end_lsn`], not `end_lsn + 1`.
//!   `the_end_of_a_commit_is_what_to_acknowledge_and_a_byte_more_loses_the_next`
//!
//! # Life of a transaction
//! A server sends each transaction whole, after its commit, in commit order: [`Begin`], then a
//! [`Relation`] and the changes for each table, then [`Commit`]. Rolled back transactions are not
//! sent.
//!
//! When the whole transaction is durable, acknowledge [`Commit::end_lsn`] as
//! [`StandbyStatusUpdate::flushed`]. `flushed` means: everything *before* this position is durable.
//! After a restart the server sends the transactions whose commit record starts at `flushed` or
//! later. Therefore:
//! - Acknowledging [`Commit::commit_lsn`] makes the server send this transaction again.
//! - Acknowledging `end_lsn` plus one loses the next transaction if its commit record starts at
//!   `end_lsn`. `tests/it/server.rs` demonstrates the loss.
//!
//! A connection may break before the server reads an acknowledgement. The next connection then
//! repeats transactions: skip each one whose `end_lsn` is at or below the last durable `end_lsn`.
//!
//! [`Frame::Keepalive`] carries the server's position. Acknowledge it too, between transactions and
//! when everything received is durable. Otherwise the server retains WAL indefinitely while only
//! its other databases change.
//!
//! # Relation messages repeat
//! Changes name a table by OID only. A [`Relation`] with its columns precedes the table's first
//! change in each connection. The server sends it again after `ALTER TABLE`, and also after
//! invalidations that changed nothing. [`RelationCache`] holds the latest one, and
//! [`RelationCache::apply`] reports whether it differs. Rows have one value per column of the
//! latest relation, in its order. Generated columns are absent from both unless they are published
//! (PostgreSQL 18).
//!
//! # Old rows and the replica identity
//! `ALTER TABLE … REPLICA IDENTITY` selects what an update or a delete carries of the old row:
//!
//! | [`ReplicaIdentity`] | [`Update::old`] | [`Delete::old`] |
//! |---|---|---|
//! | `Default` (primary key) | `None`, or `OldTuple::Key` if it changed[^toast] | `OldTuple::Key` |
//! | `Index` (a unique index) | as above, with the columns of the index | [`OldTuple::Key`] |
//! | `Full` | [`OldTuple::Full`], always | [`OldTuple::Full`] |
//! | `Nothing` | the server rejects the update | the server rejects the delete |
//!
//! A table without a primary key has `Default` too; the server rejects its updates and deletes if
//! the publication includes them. In an [`OldTuple::Key`], every column outside the key is
//! [`TupleValue::Null`]; check [`CachedColumn::is_key`].
//!
//! [^toast]: or if a key column is stored out of line.
//!
//! # Unchanged TOAST values
//! PostgreSQL stores a long value (from about 2 kB) out of line, in the table's TOAST relation. An
//! update that leaves the value alone does not write it to the WAL, so the server cannot send it.
//! The column is then [`TupleValue::Unchanged`] in [`Update::new`], which is not NULL. Take the
//! value from [`Update::old`]: an [`OldTuple::Full`] has it, an [`OldTuple::Key`] has it for key
//! columns. Otherwise read it from the table, or from a copy of the row.
//!
//! # Streaming of in-progress transactions
//! With protocol 2 and `streaming`, the server sends a long transaction in segments while it still
//! runs: [`StreamStart`], changes, [`PgOutputMessage::StreamStop`]. Segments of other transactions
//! and whole transactions may come in between. Within a segment, each change carries the xid of the
//! (sub)transaction that made it. A [`PgOutputDecoder`] must therefore decode every message of its
//! connection. Buffer the changes until the outcome is known:
//! - [`StreamAbort`]: discard the changes that carry its `subxid`; all changes if that equals
//!   `xid`.
//! - [`StreamCommit`]: apply the changes and acknowledge its `end_lsn`. After a lost connection the
//!   server sends everything again, so the buffer need not be durable.
//! - A [`Relation`] within a segment applies to that transaction only. Use one [`RelationCache`]
//!   per transaction and [`RelationCache::adopt`] it at the commit.
//!
//! With protocol 3 and a two-phase slot, the server sends a prepared transaction at `PREPARE
//! TRANSACTION`, between [`PgOutputMessage::BeginPrepare`] and [`PgOutputMessage::Prepare`], or in
//! segments up to [`PgOutputMessage::StreamPrepare`]. [`CommitPrepared`] or [`RollbackPrepared`]
//! with the same `gid` follows later. Protocol 4 adds the abort LSN and time to [`StreamAbort`].
//!
//! # Joining a table copy and the stream
//! A copied table already contains the changes of some streamed transactions. [`Snapshot::sees`]
//! returns whether it contains those of one transaction, by the `xid` of its [`Begin`].
//!
//! # Where to look
//! | topic | file |
//! |---|---|
//! | `XLogData`, keepalive, standby status update | `frame.rs` |
//! | message types, one reader function each | `message/` |
//! | rows and values | `tuple.rs` |
//! | columns, replica identity; the cache of them | `relation.rs`, `relation_cache.rs` |
//! | bounds-checked reads, error positions | `message_reader.rs`, `error.rs` |
//! | snapshots and xid wraparound | `snapshot.rs`, `xid.rs` |
//!
//! # Decisions
//! - Type and message names follow the PostgreSQL manual, chapters "Logical Replication Message
//!   Formats" and "Streaming Replication Protocol".
//! - Texts of [`DecodeFault`] consist of static text and numbers, so an error never contains row
//!   data.
//! - [`PgOutputDecoder`] keeps one bit of state: whether a stream segment is open. The caller keeps
//!   all other state, such as relations and positions.
//! - After a malformed message the caller must close the connection. The meaning of an unreadable
//!   message is unknown, so skipping it could lose a change.
//! - A message is at most 80 bytes and returned by value
//!   (`a_message_is_small_enough_to_be_returned_by_value`).

#![forbid(unsafe_code)]

mod decoder;
mod error;
mod frame;
mod lsn;
mod message;
mod message_reader;
mod pg_time;
mod relation;
mod relation_cache;
mod snapshot;
mod tuple;
mod xid;

pub use decoder::PgOutputDecoder;
pub use error::{DecodeError, DecodeFault};
pub use frame::{Frame, StandbyStatusUpdate};
pub use lsn::{Lsn, ParseLsnError};
pub use message::{
    AbortPoint, Begin, Commit, CommitPrepared, Delete, Insert, LogicalMessage, Origin, PgOutputMessage,
    Prepare, RelationOids, RelationOidsIter, RollbackPrepared, StreamAbort, StreamCommit, StreamStart,
    Truncate, Type, Update,
};
pub use pg_time::PgTime;
pub use relation::{Relation, RelationColumn, RelationColumns, RelationColumnsIter, ReplicaIdentity};
pub use relation_cache::{CachedColumn, CachedRelation, RelationCache};
pub use snapshot::{ParseSnapshotError, Snapshot};
pub use tuple::{OldTuple, Tuple, TupleValue, TupleValues};
pub use xid::Xid;
