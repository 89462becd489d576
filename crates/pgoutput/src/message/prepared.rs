//! Messages of two-phase commits (protocol 3): Begin Prepare, Prepare, Commit Prepared, Rollback
//! Prepared, Stream Prepare.

use crate::error::DecodeError;
use crate::message_reader::MessageReader;
use crate::{Lsn, PgTime};

/// `b`, `P` and `p`: a prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// WAL position where the prepare record starts.
    pub prepare_lsn: Lsn,
    /// WAL position where the prepare record ends.
    pub end_lsn: Lsn,
    /// Prepare timestamp.
    pub prepare_time: PgTime,
    /// Transaction id.
    pub xid: u32,
    /// Global transaction id given to `PREPARE TRANSACTION`.
    pub gid: &'a str,
}

impl<'a> Prepare<'a> {
    pub(super) fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(Prepare {
            prepare_lsn: reader.lsn("LSN of the prepare")?,
            end_lsn: reader.lsn("end LSN")?,
            prepare_time: reader.clock("prepare time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }

    /// Reads the variant with a flags byte: every message except `b`.
    pub(super) fn read_with_flags(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Self::read(reader)
    }
}

/// `K`: a prepared transaction committed. Its changes were sent earlier, possibly in another
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPrepared<'a> {
    /// WAL position where the commit record starts.
    pub commit_lsn: Lsn,
    /// WAL position where the commit record ends. Acknowledge it once the transaction is durable.
    pub end_lsn: Lsn,
    /// Commit timestamp.
    pub commit_time: PgTime,
    /// Transaction id.
    pub xid: u32,
    /// Global transaction id given to `PREPARE TRANSACTION`.
    pub gid: &'a str,
}

impl<'a> CommitPrepared<'a> {
    pub(super) fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(CommitPrepared {
            commit_lsn: reader.lsn("LSN of the commit")?,
            end_lsn: reader.lsn("end LSN")?,
            commit_time: reader.clock("commit time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }
}

/// `r`: a prepared transaction was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollbackPrepared<'a> {
    /// WAL position where the prepare record ends. A receiver that never reached it has nothing to
    /// roll back.
    pub prepare_end_lsn: Lsn,
    /// WAL position where the rollback record ends. Acknowledge it.
    pub rollback_end_lsn: Lsn,
    /// Prepare timestamp.
    pub prepare_time: PgTime,
    /// Rollback timestamp.
    pub rollback_time: PgTime,
    /// Transaction id.
    pub xid: u32,
    /// Global transaction id given to `PREPARE TRANSACTION`.
    pub gid: &'a str,
}

impl<'a> RollbackPrepared<'a> {
    pub(super) fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(RollbackPrepared {
            prepare_end_lsn: reader.lsn("end LSN of the prepare")?,
            rollback_end_lsn: reader.lsn("end LSN")?,
            prepare_time: reader.clock("prepare time")?,
            rollback_time: reader.clock("rollback time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{PgOutputMessage, assert_rejects_other_lengths, decode_outside_stream};

    const BODY: &[u8] = b"\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\0\x02\xAC\x31\x2F\x11\x05\x40\
        \0\0\x02\xF0order-7\0";
    const ROLLBACK: &[u8] = b"r\0\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\
        \0\x02\xAC\x31\x2F\x11\x05\x40\0\x02\xAC\x31\x2F\x11\x05\x41\0\0\x02\xF0order-7\0";
    const PREPARE: Prepare<'_> = Prepare {
        prepare_lsn: Lsn(0x0150_22A0),
        end_lsn: Lsn(0x0150_22D0),
        prepare_time: PgTime(0x0002_AC31_2F11_0540),
        xid: 752,
        gid: "order-7",
    };

    #[test]
    fn begin_prepare_has_no_flags() {
        let bytes = [b"b", BODY].concat();
        assert_eq!(decode_outside_stream(&bytes), Ok(PgOutputMessage::BeginPrepare(PREPARE)));
        assert_rejects_other_lengths(&bytes, decode_outside_stream);
    }

    #[test]
    fn prepare_has_the_fields_of_begin_prepare() {
        let bytes = [b"P\0", BODY].concat();
        assert_eq!(decode_outside_stream(&bytes), Ok(PgOutputMessage::Prepare(PREPARE)));
        assert_rejects_other_lengths(&bytes, decode_outside_stream);
    }

    #[test]
    fn a_streamed_transaction_may_be_prepared() {
        let bytes = [b"p\0", BODY].concat();
        assert_eq!(decode_outside_stream(&bytes), Ok(PgOutputMessage::StreamPrepare(PREPARE)));
        assert_rejects_other_lengths(&bytes, decode_outside_stream);
    }

    #[test]
    fn commit_prepared_has_its_end_position() {
        let bytes = [b"K\0", BODY].concat();
        let Prepare { prepare_lsn, end_lsn, prepare_time, xid, gid } = PREPARE;
        assert_eq!(
            decode_outside_stream(&bytes),
            Ok(PgOutputMessage::CommitPrepared(CommitPrepared {
                commit_lsn: prepare_lsn,
                end_lsn,
                commit_time: prepare_time,
                xid,
                gid
            }))
        );
        assert_rejects_other_lengths(&bytes, decode_outside_stream);
    }

    #[test]
    fn rollback_prepared_has_prepare_and_rollback_times() {
        let Prepare { prepare_lsn, end_lsn, prepare_time, xid, gid } = PREPARE;
        let later = PgTime(prepare_time.0 + 1);
        let rollback = RollbackPrepared {
            prepare_end_lsn: prepare_lsn,
            rollback_end_lsn: end_lsn,
            prepare_time,
            rollback_time: later,
            xid,
            gid,
        };
        assert_eq!(decode_outside_stream(ROLLBACK), Ok(PgOutputMessage::RollbackPrepared(rollback)));
        assert_rejects_other_lengths(ROLLBACK, decode_outside_stream);
    }

    #[test]
    fn messages_with_flags_are_refused() {
        for tag in *b"PpKr" {
            let error = decode_outside_stream(&[&[tag, 1], BODY].concat()).unwrap_err();
            assert_eq!((error.at, error.field), (1, "flags"));
        }
    }
}
