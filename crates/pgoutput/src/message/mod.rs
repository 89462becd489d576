//! One message of pgoutput.
//!
//! Invariant: each kind of message is read by one function, which stands beside its type. What they are called here is what
//! the manual calls them (chapter "Logical Replication Message Formats").

mod change;
mod logical;
mod prepared;
mod stream;
mod transaction;
mod type_name;

pub use change::{Delete, Insert, Oids, OidsIter, Truncate, Update};
pub use logical::LogicalMessage;
pub use prepared::{CommitPrepared, Prepare, RollbackPrepared};
pub use stream::{Abort, StreamAbort, StreamCommit, StreamStart};
pub use transaction::{Begin, Commit, Origin};
pub use type_name::Type;

use crate::error::{DecodeError, Fault};
use crate::reader::Reader;
use crate::relation::Relation;

/// One message of pgoutput, borrowed from its bytes.
///
/// Its `Debug` may be logged: it tells what changed, and of values only how long they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction begins.
    Begin(Begin),
    /// The transaction ends; what follows belongs to another.
    Commit(Commit),
    /// The transaction came to this server by replication from another.
    Origin(Origin<'a>),
    /// A table, as the changes after it describe their rows.
    Relation(Relation<'a>),
    /// A type that Postgres doesn't come with, used by the relation after it.
    Type(Type<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A row that changed.
    Update(Update<'a>),
    /// A row that went away.
    Delete(Delete<'a>),
    /// Tables that were emptied.
    Truncate(Truncate<'a>),
    /// What someone wrote with `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
    /// Protocol 2: a part of a transaction that still runs begins; the changes in it carry an xid.
    StreamStart(StreamStart),
    /// Protocol 2: the part ends. Others, or whole transactions, may come before the next part.
    StreamStop,
    /// Protocol 2: a streamed transaction committed.
    StreamCommit(StreamCommit),
    /// Protocol 2: a streamed transaction, or a subtransaction of it, was rolled back.
    StreamAbort(StreamAbort),
    /// Protocol 3: a transaction that was prepared, not yet committed, begins.
    BeginPrepare(Prepare<'a>),
    /// Protocol 3: the prepared transaction's changes end.
    Prepare(Prepare<'a>),
    /// Protocol 3: a prepared transaction committed.
    CommitPrepared(CommitPrepared<'a>),
    /// Protocol 3: a prepared transaction was rolled back.
    RollbackPrepared(RollbackPrepared<'a>),
    /// Protocol 3: a streamed transaction was prepared.
    StreamPrepare(Prepare<'a>),
}

impl<'a> Message<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>, streaming: bool) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("tag")? {
            b'I' => Insert::read(xid(reader, streaming)?, reader).map(Message::Insert),
            b'U' => Update::read(xid(reader, streaming)?, reader).map(Message::Update),
            b'D' => Delete::read(xid(reader, streaming)?, reader).map(Message::Delete),
            b'T' => Truncate::read(xid(reader, streaming)?, reader).map(Message::Truncate),
            b'R' => Relation::read(xid(reader, streaming)?, reader).map(Message::Relation),
            b'Y' => Type::read(xid(reader, streaming)?, reader).map(Message::Type),
            b'M' => LogicalMessage::read(xid(reader, streaming)?, reader).map(Message::Logical),
            b'O' => Origin::read(reader).map(Message::Origin), // has no xid even in a stream
            b'E' if streaming => Ok(Message::StreamStop),
            b'E' => Err(before.fault("tag", Fault::NotStreaming)),
            b'B' | b'C' | b'S' | b'c' | b'A' | b'b' | b'P' | b'K' | b'r' | b'p' if streaming => {
                Err(before.fault("tag", Fault::Streaming))
            }
            b'B' => Begin::read(reader).map(Message::Begin),
            b'C' => Commit::read(reader).map(Message::Commit),
            b'S' => StreamStart::read(reader).map(Message::StreamStart),
            b'c' => StreamCommit::read(reader).map(Message::StreamCommit),
            b'A' => StreamAbort::read(reader).map(Message::StreamAbort),
            b'b' => Prepare::read(reader).map(Message::BeginPrepare),
            b'P' => Prepare::read_flagged(reader).map(Message::Prepare),
            b'K' => CommitPrepared::read(reader).map(Message::CommitPrepared),
            b'r' => RollbackPrepared::read(reader).map(Message::RollbackPrepared),
            b'p' => Prepare::read_flagged(reader).map(Message::StreamPrepare),
            _ => Err(before.fault("tag", Fault::Unexpected { expected: "the protocol's, versions 1 to 4" })),
        }
    }
}

/// The transaction that a message belongs to, where messages of several may be mixed.
#[inline]
fn xid(reader: &mut Reader<'_>, streaming: bool) -> Result<Option<u32>, DecodeError> {
    if streaming { reader.u32("xid").map(Some) } else { Ok(None) }
}

/// One message outside of a stream.
#[cfg(test)]
fn alone(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    crate::Decoder::new().decode(bytes)
}

/// One message between `StreamStart` and `StreamStop`.
#[cfg(test)]
fn streamed(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut decoder = crate::Decoder::new();
    decoder.decode(b"S\0\0\x02\xF0\x01")?;
    decoder.decode(bytes)
}

/// That the message is refused wherever it ends before its end, and with a byte more.
#[cfg(test)]
#[track_caller]
fn assert_needs_all(bytes: &[u8], decode: fn(&[u8]) -> Result<Message<'_>, DecodeError>) {
    decode(bytes).unwrap();
    for length in 0..bytes.len() {
        let error = decode(&bytes[..length]).unwrap_err();
        assert!(matches!(error.fault, Fault::Ended { .. } | Fault::Unterminated), "{length}: {error}");
        assert!(error.at <= length, "{error}");
    }
    let error = decode(&[bytes, b"\0"].concat()).unwrap_err();
    assert_eq!((error.at, error.fault), (bytes.len(), Fault::Trailing { left: 1 }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tag_is_refused_in_a_stream_and_outside() {
        let known = b"IUDTRYMOEBCScAbPKrp";
        for tag in (0..=u8::MAX).filter(|tag| !known.contains(tag)) {
            for error in [alone(&[tag, 0, 0]).unwrap_err(), streamed(&[tag, 0, 0]).unwrap_err()] {
                assert_eq!((error.tag, error.at, error.field), (Some(tag), 0, "tag"));
                assert!(matches!(error.fault, Fault::Unexpected { .. }), "{error}");
            }
        }
    }

    #[test]
    fn an_empty_message_is_refused() {
        let error = alone(b"").unwrap_err();
        assert_eq!((error.tag, error.fault), (None, Fault::Ended { needed: 1, left: 0 }));
    }

    #[test]
    fn what_frames_a_transaction_never_stands_in_a_stream() {
        for tag in *b"BCScAbPKrp" {
            let error = streamed(&[tag]).unwrap_err();
            assert_eq!((error.tag, error.fault), (Some(tag), Fault::Streaming));
        }
        assert_eq!(alone(b"E").unwrap_err().fault, Fault::NotStreaming);
    }

    #[test]
    fn a_message_is_small_enough_to_be_returned_by_value() {
        assert!(size_of::<Message<'_>>() <= 80, "{}", size_of::<Message<'_>>());
    }
}
