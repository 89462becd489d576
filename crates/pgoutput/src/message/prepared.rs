//! Protocol 3: transactions that are prepared first and committed later.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::{Lsn, PgTime};

/// `b`, `P` and `p`: a transaction that was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// Where `PREPARE TRANSACTION` begins in the log.
    pub lsn: Lsn,
    /// Where it ends.
    pub end: Lsn,
    /// When it was.
    pub clock: PgTime,
    /// The transaction's id.
    pub xid: u32,
    /// The name that was given to it.
    pub gid: &'a str,
}

impl<'a> Prepare<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Prepare {
            lsn: reader.lsn("LSN of the prepare")?,
            end: reader.lsn("end LSN")?,
            clock: reader.clock("prepare time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }

    /// As all but `b` are.
    pub(super) fn read_flagged(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Self::read(reader)
    }
}

/// `K`: a prepared transaction committed. Its changes came before, maybe in another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPrepared<'a> {
    /// Where `COMMIT PREPARED` begins in the log.
    pub lsn: Lsn,
    /// Where it ends: what to acknowledge once the transaction is safe.
    pub end: Lsn,
    /// When it was.
    pub clock: PgTime,
    /// The transaction's id.
    pub xid: u32,
    /// The name that was given to it.
    pub gid: &'a str,
}

impl<'a> CommitPrepared<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(CommitPrepared {
            lsn: reader.lsn("LSN of the commit")?,
            end: reader.lsn("end LSN")?,
            clock: reader.clock("commit time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }
}

/// `r`: a prepared transaction was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollbackPrepared<'a> {
    /// Where its `PREPARE TRANSACTION` ended in the log. A receiver that never got that far has nothing to roll back.
    pub prepare_end: Lsn,
    /// Where `ROLLBACK PREPARED` ends in the log: what to acknowledge.
    pub end: Lsn,
    /// When it was prepared.
    pub prepare_clock: PgTime,
    /// When it was rolled back.
    pub clock: PgTime,
    /// The transaction's id.
    pub xid: u32,
    /// The name that was given to it.
    pub gid: &'a str,
}

impl<'a> RollbackPrepared<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(RollbackPrepared {
            prepare_end: reader.lsn("end LSN of the prepare")?,
            end: reader.lsn("end LSN")?,
            prepare_clock: reader.clock("prepare time")?,
            clock: reader.clock("rollback time")?,
            xid: reader.u32("xid")?,
            gid: reader.text("gid")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, alone, assert_needs_all};

    const BODY: &[u8] = b"\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\0\x02\xAC\x31\x2F\x11\x05\x40\
        \0\0\x02\xF0order-7\0";
    const ROLLBACK: &[u8] = b"r\0\0\0\0\0\x01\x50\x22\xA0\0\0\0\0\x01\x50\x22\xD0\
        \0\x02\xAC\x31\x2F\x11\x05\x40\0\x02\xAC\x31\x2F\x11\x05\x41\0\0\x02\xF0order-7\0";
    const PREPARE: Prepare<'_> = Prepare {
        lsn: Lsn(0x0150_22A0),
        end: Lsn(0x0150_22D0),
        clock: PgTime(0x0002_AC31_2F11_0540),
        xid: 752,
        gid: "order-7",
    };

    #[test]
    fn a_prepared_transaction_begins_without_flags() {
        let bytes = [b"b", BODY].concat();
        assert_eq!(alone(&bytes), Ok(Message::BeginPrepare(PREPARE)));
        assert_needs_all(&bytes, alone);
    }

    #[test]
    fn prepare_tells_the_same_at_the_end() {
        let bytes = [b"P\0", BODY].concat();
        assert_eq!(alone(&bytes), Ok(Message::Prepare(PREPARE)));
        assert_needs_all(&bytes, alone);
    }

    #[test]
    fn a_streamed_transaction_may_be_prepared_too() {
        let bytes = [b"p\0", BODY].concat();
        assert_eq!(alone(&bytes), Ok(Message::StreamPrepare(PREPARE)));
        assert_needs_all(&bytes, alone);
    }

    #[test]
    fn commit_prepared_tells_where_it_ends() {
        let bytes = [b"K\0", BODY].concat();
        let Prepare { lsn, end, clock, xid, gid } = PREPARE;
        assert_eq!(alone(&bytes), Ok(Message::CommitPrepared(CommitPrepared { lsn, end, clock, xid, gid })));
        assert_needs_all(&bytes, alone);
    }

    #[test]
    fn rollback_prepared_tells_when_it_was_prepared_and_when_rolled_back() {
        let Prepare { lsn, end, clock, xid, gid } = PREPARE;
        let later = PgTime(clock.0 + 1);
        let rollback =
            RollbackPrepared { prepare_end: lsn, end, prepare_clock: clock, clock: later, xid, gid };
        assert_eq!(alone(ROLLBACK), Ok(Message::RollbackPrepared(rollback)));
        assert_needs_all(ROLLBACK, alone);
    }

    #[test]
    fn none_of_them_has_flags_yet() {
        for tag in *b"PpKr" {
            let error = alone(&[&[tag, 1], BODY].concat()).unwrap_err();
            assert_eq!((error.at, error.field), (1, "flags"));
        }
    }
}
