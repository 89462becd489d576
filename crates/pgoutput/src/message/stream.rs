//! Messages of streamed in-progress transactions (protocol 2): Stream Start, Stream Stop, Stream
//! Commit, Stream Abort.

use crate::error::DecodeError;
use crate::message_reader::MessageReader;
use crate::{Lsn, PgTime};

/// `S`: starts a segment of an in-progress transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStart {
    /// Transaction id. Changes in the segment carry this id or that of a subtransaction.
    pub xid: u32,
    /// Whether this is the transaction's first segment.
    pub first: bool,
}

impl StreamStart {
    pub(super) fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        Ok(StreamStart { xid: reader.u32("xid")?, first: reader.bool("first segment")? })
    }
}

/// `c`: a streamed transaction committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCommit {
    /// Transaction id.
    pub xid: u32,
    /// WAL position where the commit record starts.
    pub commit_lsn: Lsn,
    /// WAL position where the commit record ends. Acknowledge it once the transaction is durable.
    pub end_lsn: Lsn,
    /// Commit timestamp.
    pub commit_time: PgTime,
}

impl StreamCommit {
    pub(super) fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        let xid = reader.u32("xid")?;
        reader.flags(0, "flags")?;
        Ok(StreamCommit {
            xid,
            commit_lsn: reader.lsn("LSN of the commit")?,
            end_lsn: reader.lsn("end LSN")?,
            commit_time: reader.clock("commit time")?,
        })
    }
}

/// `A`: a streamed transaction, or one of its subtransactions, was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    /// Id of the top-level transaction.
    pub xid: u32,
    /// Id of the (sub)transaction that was rolled back; discard the changes that carry it. Equal to
    /// `xid` if the whole transaction was rolled back.
    pub subxid: u32,
    /// Position and time of the abort. Present only in protocol 4 with `streaming 'parallel'`.
    pub abort: Option<AbortPoint>,
}

/// Position and time of an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortPoint {
    /// WAL position of the abort record.
    pub abort_lsn: Lsn,
    /// Abort timestamp.
    pub abort_time: PgTime,
}

impl StreamAbort {
    pub(super) fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        let (xid, subxid) = (reader.u32("xid")?, reader.u32("xid of the subtransaction")?);
        // The message has no version: only its length determines whether these fields are present.
        let abort = match reader.rest() {
            [] => None,
            _ => Some(AbortPoint {
                abort_lsn: reader.lsn("LSN of the abort")?,
                abort_time: reader.clock("abort time")?,
            }),
        };
        Ok(StreamAbort { xid, subxid, abort })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DecodeFault;
    use crate::message::{
        PgOutputMessage, assert_rejects_other_lengths, decode_in_stream, decode_outside_stream,
    };

    const START: &[u8] = b"S\0\0\x02\xF0\x01";
    const COMMIT: &[u8] =
        b"c\0\0\x02\xF0\0\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\0\x02\xAC\x31\x2F\x11\x05\x40";
    const ABORT: &[u8] = b"A\0\0\x02\xF0\0\0\x02\xF2";
    const ABORT_IN_PARALLEL: &[u8] =
        b"A\0\0\x02\xF0\0\0\x02\xF2\0\0\0\0\x01\x50\x22\xA0\0\x02\xAC\x31\x2F\x11\x05\x40";

    #[test]
    fn stream_start_has_an_xid_and_whether_it_is_the_first_segment() {
        assert_eq!(
            decode_outside_stream(START),
            Ok(PgOutputMessage::StreamStart(StreamStart { xid: 752, first: true }))
        );
        let again = [&START[..5], b"\0"].concat();
        assert_eq!(
            decode_outside_stream(&again),
            Ok(PgOutputMessage::StreamStart(StreamStart { xid: 752, first: false }))
        );
        assert_rejects_other_lengths(START, decode_outside_stream);
    }

    #[test]
    fn stream_stop_is_one_byte() {
        assert_eq!(decode_in_stream(b"E"), Ok(PgOutputMessage::StreamStop));
        assert_rejects_other_lengths(b"E", decode_in_stream);
    }

    #[test]
    fn stream_commit_has_an_xid_and_its_end_position() {
        let commit = StreamCommit {
            xid: 752,
            commit_lsn: Lsn(0x0150_22A0),
            end_lsn: Lsn(0x0150_22D0),
            commit_time: PgTime(0x0002_AC31_2F11_0540),
        };
        assert_eq!(decode_outside_stream(COMMIT), Ok(PgOutputMessage::StreamCommit(commit)));
        assert_rejects_other_lengths(COMMIT, decode_outside_stream);
        let mut flagged = COMMIT.to_vec();
        flagged[5] = 1;
        assert_eq!(decode_outside_stream(&flagged).unwrap_err().field, "flags");
    }

    #[test]
    fn stream_abort_has_the_aborted_xid() {
        let abort = StreamAbort { xid: 752, subxid: 754, abort: None };
        assert_eq!(decode_outside_stream(ABORT), Ok(PgOutputMessage::StreamAbort(abort)));
    }

    #[test]
    fn stream_abort_has_position_and_time_in_parallel_streams() {
        let at = AbortPoint { abort_lsn: Lsn(0x0150_22A0), abort_time: PgTime(0x0002_AC31_2F11_0540) };
        let abort = StreamAbort { xid: 752, subxid: 754, abort: Some(at) };
        assert_eq!(decode_outside_stream(ABORT_IN_PARALLEL), Ok(PgOutputMessage::StreamAbort(abort)));
    }

    #[test]
    fn stream_abort_has_one_of_two_lengths() {
        for length in 0..ABORT_IN_PARALLEL.len() {
            let decoded = decode_outside_stream(&ABORT_IN_PARALLEL[..length]);
            assert_eq!(decoded.is_ok(), length == ABORT.len(), "{length}: {decoded:?}");
        }
        let error = decode_outside_stream(&[ABORT_IN_PARALLEL, b"\0"].concat()).unwrap_err();
        assert_eq!(error.fault, DecodeFault::Trailing { left: 1 });
    }
}
