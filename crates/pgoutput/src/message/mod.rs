//! The pgoutput messages.
//!
//! Each message type has one `read` function, in the same file. Names follow the PostgreSQL manual,
//! chapter "Logical Replication Message Formats".

mod change;
mod data_type;
mod logical_message;
mod prepared;
mod stream;
mod transaction;

pub use change::{Delete, Insert, RelationOids, RelationOidsIter, Truncate, Update};
pub use data_type::Type;
pub use logical_message::LogicalMessage;
pub use prepared::{CommitPrepared, Prepare, RollbackPrepared};
pub use stream::{AbortPoint, StreamAbort, StreamCommit, StreamStart};
pub use transaction::{Begin, Commit, Origin};

use crate::error::{DecodeError, DecodeFault};
use crate::message_reader::MessageReader;
use crate::relation::Relation;

/// One pgoutput message, borrowed from its bytes.
///
/// Its `Debug` output may be logged: it contains the lengths of values, not the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PgOutputMessage<'a> {
    /// Starts a committed transaction.
    Begin(Begin),
    /// Ends the transaction.
    Commit(Commit),
    /// The transaction was replicated to this server from another one.
    Origin(Origin<'a>),
    /// Describes a table: the columns of the rows in later changes.
    Relation(Relation<'a>),
    /// Names a type that is not built in; the next relation uses it.
    Type(Type<'a>),
    /// A row was inserted.
    Insert(Insert<'a>),
    /// A row was updated.
    Update(Update<'a>),
    /// A row was deleted.
    Delete(Delete<'a>),
    /// Tables were truncated.
    Truncate(Truncate<'a>),
    /// A logical decoding message, written by `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
    /// Protocol 2: starts a segment of an in-progress transaction. Messages in it carry an xid.
    StreamStart(StreamStart),
    /// Protocol 2: ends the segment. Other segments or whole transactions may precede the next
    /// segment.
    StreamStop,
    /// Protocol 2: a streamed transaction committed.
    StreamCommit(StreamCommit),
    /// Protocol 2: a streamed transaction, or one of its subtransactions, was rolled back.
    StreamAbort(StreamAbort),
    /// Protocol 3: starts a prepared transaction.
    BeginPrepare(Prepare<'a>),
    /// Protocol 3: ends the changes of the prepared transaction.
    Prepare(Prepare<'a>),
    /// Protocol 3: a prepared transaction committed.
    CommitPrepared(CommitPrepared<'a>),
    /// Protocol 3: a prepared transaction was rolled back.
    RollbackPrepared(RollbackPrepared<'a>),
    /// Protocol 3: a streamed transaction was prepared.
    StreamPrepare(Prepare<'a>),
}

impl<'a> PgOutputMessage<'a> {
    /// Reads one message. `streaming`: it is between `StreamStart` and `StreamStop`.
    pub(crate) fn read(reader: &mut MessageReader<'a>, streaming: bool) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("tag")? {
            b'I' => Insert::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Insert),
            b'U' => Update::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Update),
            b'D' => Delete::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Delete),
            b'T' => Truncate::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Truncate),
            b'R' => Relation::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Relation),
            b'Y' => Type::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Type),
            b'M' => LogicalMessage::read(xid(reader, streaming)?, reader).map(PgOutputMessage::Logical),
            // Origin messages have no xid, even within a segment.
            b'O' => Origin::read(reader).map(PgOutputMessage::Origin),
            b'E' if streaming => Ok(PgOutputMessage::StreamStop),
            b'E' => Err(before.fault("tag", DecodeFault::NotStreaming)),
            b'B' | b'C' | b'S' | b'c' | b'A' | b'b' | b'P' | b'K' | b'r' | b'p' if streaming => {
                Err(before.fault("tag", DecodeFault::Streaming))
            }
            b'B' => Begin::read(reader).map(PgOutputMessage::Begin),
            b'C' => Commit::read(reader).map(PgOutputMessage::Commit),
            b'S' => StreamStart::read(reader).map(PgOutputMessage::StreamStart),
            b'c' => StreamCommit::read(reader).map(PgOutputMessage::StreamCommit),
            b'A' => StreamAbort::read(reader).map(PgOutputMessage::StreamAbort),
            b'b' => Prepare::read(reader).map(PgOutputMessage::BeginPrepare),
            b'P' => Prepare::read_with_flags(reader).map(PgOutputMessage::Prepare),
            b'K' => CommitPrepared::read(reader).map(PgOutputMessage::CommitPrepared),
            b'r' => RollbackPrepared::read(reader).map(PgOutputMessage::RollbackPrepared),
            b'p' => Prepare::read_with_flags(reader).map(PgOutputMessage::StreamPrepare),
            _ => {
                Err(before
                    .fault("tag", DecodeFault::Unexpected { expected: "the protocol's, versions 1 to 4" }))
            }
        }
    }
}

/// Reads the xid that precedes the body of a message within a stream segment.
#[inline]
fn xid(reader: &mut MessageReader<'_>, streaming: bool) -> Result<Option<u32>, DecodeError> {
    if streaming { reader.u32("xid").map(Some) } else { Ok(None) }
}

/// Decodes one message outside a stream segment.
#[cfg(test)]
fn decode_outside_stream(bytes: &[u8]) -> Result<PgOutputMessage<'_>, DecodeError> {
    crate::PgOutputDecoder::new().decode(bytes)
}

/// Decodes one message between `StreamStart` and `StreamStop`.
#[cfg(test)]
fn decode_in_stream(bytes: &[u8]) -> Result<PgOutputMessage<'_>, DecodeError> {
    let mut decoder = crate::PgOutputDecoder::new();
    decoder.decode(b"S\0\0\x02\xF0\x01")?;
    decoder.decode(bytes)
}

/// Asserts that every proper prefix of the message, and the message plus one byte, is refused.
#[cfg(test)]
#[track_caller]
fn assert_rejects_other_lengths(bytes: &[u8], decode: fn(&[u8]) -> Result<PgOutputMessage<'_>, DecodeError>) {
    decode(bytes).unwrap();
    for length in 0..bytes.len() {
        let error = decode(&bytes[..length]).unwrap_err();
        assert!(
            matches!(error.fault, DecodeFault::Ended { .. } | DecodeFault::Unterminated),
            "{length}: {error}"
        );
        assert!(error.at <= length, "{error}");
    }
    let error = decode(&[bytes, b"\0"].concat()).unwrap_err();
    assert_eq!((error.at, error.fault), (bytes.len(), DecodeFault::Trailing { left: 1 }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tag_is_refused_in_a_stream_and_outside() {
        let defined = b"IUDTRYMOEBCScAbPKrp";
        for tag in (0..=u8::MAX).filter(|tag| !defined.contains(tag)) {
            for error in [
                decode_outside_stream(&[tag, 0, 0]).unwrap_err(),
                decode_in_stream(&[tag, 0, 0]).unwrap_err(),
            ] {
                assert_eq!((error.tag, error.at, error.field), (Some(tag), 0, "tag"));
                assert!(matches!(error.fault, DecodeFault::Unexpected { .. }), "{error}");
            }
        }
    }

    #[test]
    fn an_empty_message_is_refused() {
        let error = decode_outside_stream(b"").unwrap_err();
        assert_eq!((error.tag, error.fault), (None, DecodeFault::Ended { needed: 1, left: 0 }));
    }

    #[test]
    fn transaction_framing_messages_are_refused_within_a_stream() {
        for tag in *b"BCScAbPKrp" {
            let error = decode_in_stream(&[tag]).unwrap_err();
            assert_eq!((error.tag, error.fault), (Some(tag), DecodeFault::Streaming));
        }
        assert_eq!(decode_outside_stream(b"E").unwrap_err().fault, DecodeFault::NotStreaming);
    }

    #[test]
    fn a_message_is_small_enough_to_be_returned_by_value() {
        assert!(size_of::<PgOutputMessage<'_>>() <= 80, "{}", size_of::<PgOutputMessage<'_>>());
    }
}
