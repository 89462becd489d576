//! Protocol 2: transactions that come in parts while they still run.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::{Lsn, PgTime};

/// `S`: a part of a transaction that still runs begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStart {
    /// The transaction. Changes in the part carry its id or that of a subtransaction of it.
    pub xid: u32,
    /// Whether this is its first part.
    pub first: bool,
}

impl StreamStart {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(StreamStart { xid: reader.u32("xid")?, first: reader.bool("first segment")? })
    }
}

/// `c`: a streamed transaction committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCommit {
    /// The transaction.
    pub xid: u32,
    /// Where its commit begins in the log.
    pub lsn: Lsn,
    /// Where its commit ends in the log: what to acknowledge once the transaction is safe.
    pub end: Lsn,
    /// When it committed.
    pub clock: PgTime,
}

impl StreamCommit {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let xid = reader.u32("xid")?;
        reader.flags(0, "flags")?;
        Ok(StreamCommit {
            xid,
            lsn: reader.lsn("LSN of the commit")?,
            end: reader.lsn("end LSN")?,
            clock: reader.clock("commit time")?,
        })
    }
}

/// `A`: a streamed transaction, or a subtransaction of it, was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    /// The transaction.
    pub xid: u32,
    /// What was rolled back: drop the changes that carry this id. The same as `xid` if that is the whole transaction.
    pub subxid: u32,
    /// Where and when. Only in protocol 4, and only if the stream was started with `streaming 'parallel'`.
    pub abort: Option<Abort>,
}

/// Where and when a transaction was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// Where that is in the log.
    pub lsn: Lsn,
    /// When that was.
    pub clock: PgTime,
}

impl StreamAbort {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (xid, subxid) = (reader.u32("xid")?, reader.u32("xid of the subtransaction")?);
        // Nothing but the message's length tells whether they are there.
        let abort = match reader.rest() {
            [] => None,
            _ => Some(Abort { lsn: reader.lsn("LSN of the abort")?, clock: reader.clock("abort time")? }),
        };
        Ok(StreamAbort { xid, subxid, abort })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;
    use crate::message::{Message, alone, assert_needs_all, streamed};

    const START: &[u8] = b"S\0\0\x02\xF0\x01";
    const COMMIT: &[u8] =
        b"c\0\0\x02\xF0\0\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\0\x02\xAC\x31\x2F\x11\x05\x40";
    const ABORT: &[u8] = b"A\0\0\x02\xF0\0\0\x02\xF2";
    const ABORT_IN_PARALLEL: &[u8] =
        b"A\0\0\x02\xF0\0\0\x02\xF2\0\0\0\0\x01\x50\x22\xA0\0\x02\xAC\x31\x2F\x11\x05\x40";

    #[test]
    fn start_tells_the_transaction_and_whether_it_is_new() {
        assert_eq!(alone(START), Ok(Message::StreamStart(StreamStart { xid: 752, first: true })));
        let again = [&START[..5], b"\0"].concat();
        assert_eq!(alone(&again), Ok(Message::StreamStart(StreamStart { xid: 752, first: false })));
        assert_needs_all(START, alone);
    }

    #[test]
    fn stop_is_one_byte() {
        assert_eq!(streamed(b"E"), Ok(Message::StreamStop));
        assert_needs_all(b"E", streamed);
    }

    #[test]
    fn commit_tells_the_transaction_and_where_it_ends() {
        let commit = StreamCommit {
            xid: 752,
            lsn: Lsn(0x0150_22A0),
            end: Lsn(0x0150_22D0),
            clock: PgTime(0x0002_AC31_2F11_0540),
        };
        assert_eq!(alone(COMMIT), Ok(Message::StreamCommit(commit)));
        assert_needs_all(COMMIT, alone);
        let mut flagged = COMMIT.to_vec();
        flagged[5] = 1;
        assert_eq!(alone(&flagged).unwrap_err().field, "flags");
    }

    #[test]
    fn abort_tells_what_was_rolled_back() {
        let abort = StreamAbort { xid: 752, subxid: 754, abort: None };
        assert_eq!(alone(ABORT), Ok(Message::StreamAbort(abort)));
    }

    #[test]
    fn abort_tells_where_and_when_for_parallel_streams() {
        let at = Abort { lsn: Lsn(0x0150_22A0), clock: PgTime(0x0002_AC31_2F11_0540) };
        let abort = StreamAbort { xid: 752, subxid: 754, abort: Some(at) };
        assert_eq!(alone(ABORT_IN_PARALLEL), Ok(Message::StreamAbort(abort)));
    }

    #[test]
    fn abort_is_of_one_length_or_the_other() {
        for length in 0..ABORT_IN_PARALLEL.len() {
            let decoded = alone(&ABORT_IN_PARALLEL[..length]);
            assert_eq!(decoded.is_ok(), length == ABORT.len(), "{length}: {decoded:?}");
        }
        let error = alone(&[ABORT_IN_PARALLEL, b"\0"].concat()).unwrap_err();
        assert_eq!(error.fault, Fault::Trailing { left: 1 });
    }
}
