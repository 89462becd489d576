//! The frame around a transaction that has committed.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::{Lsn, PgTime};

/// `B`: a committed transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where its commit begins in the log: the `lsn` of its [`Commit`].
    pub final_lsn: Lsn,
    /// When it committed.
    pub clock: PgTime,
    /// Its id; wraps around, see [`Xid`](crate::Xid).
    pub xid: u32,
}

impl Begin {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Begin {
            final_lsn: reader.lsn("final LSN")?,
            clock: reader.clock("commit time")?,
            xid: reader.u32("xid")?,
        })
    }
}

/// `C`: the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where its commit begins in the log.
    pub lsn: Lsn,
    /// Where its commit ends in the log: what to acknowledge once the transaction is safe, neither less nor more.
    pub end: Lsn,
    /// When it committed.
    pub clock: PgTime,
}

impl Commit {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(Commit {
            lsn: reader.lsn("LSN of the commit")?,
            end: reader.lsn("end LSN")?,
            clock: reader.clock("commit time")?,
        })
    }
}

/// `O`: the transaction came to this server by replication from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Where its commit is in the log of the other server; [`Lsn::NONE`] while it is streamed.
    pub lsn: Lsn,
    /// What this server calls the other.
    pub name: &'a str,
}

impl<'a> Origin<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Origin { lsn: reader.lsn("LSN of the commit")?, name: reader.text("name")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, alone, assert_needs_all, streamed};

    const CLOCK: PgTime = PgTime(0x0002_AC31_2F11_0540);
    const BEGIN: &[u8] = b"B\0\0\0\x16\xB3\x74\xD8\x48\0\x02\xAC\x31\x2F\x11\x05\x40\0\0\x02\xF0";
    const COMMIT: &[u8] =
        b"C\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD8\x78\0\x02\xAC\x31\x2F\x11\x05\x40";
    const ORIGIN: &[u8] = b"O\0\0\0\0\x01\x50\x22\xA0upstream\0";

    #[test]
    fn begin_tells_where_its_commit_is() {
        let begin = Begin { final_lsn: Lsn(0x16_B374_D848), clock: CLOCK, xid: 752 };
        assert_eq!(alone(BEGIN), Ok(Message::Begin(begin)));
        assert_needs_all(BEGIN, alone);
    }

    #[test]
    fn commit_tells_where_it_is_and_where_it_ends() {
        let commit = Commit { lsn: Lsn(0x16_B374_D848), end: Lsn(0x16_B374_D878), clock: CLOCK };
        assert_eq!(alone(COMMIT), Ok(Message::Commit(commit)));
        assert_needs_all(COMMIT, alone);
    }

    #[test]
    fn commit_has_no_flags_yet() {
        let mut flagged = COMMIT.to_vec();
        flagged[1] = 1;
        let error = alone(&flagged).unwrap_err();
        assert_eq!((error.at, error.field), (1, "flags"));
    }

    #[test]
    fn origin_is_the_same_in_a_stream() {
        let origin = Message::Origin(Origin { lsn: Lsn(0x0150_22A0), name: "upstream" });
        assert_eq!((alone(ORIGIN), streamed(ORIGIN)), (Ok(origin), Ok(origin)));
        assert_needs_all(ORIGIN, alone);
    }
}
