//! Messages that frame a committed transaction: Begin, Commit, Origin.

use crate::error::DecodeError;
use crate::message_reader::MessageReader;
use crate::{Lsn, PgTime};

/// `B`: starts a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// WAL position of the commit record: the `commit_lsn` of the [`Commit`].
    pub final_lsn: Lsn,
    /// Commit timestamp.
    pub commit_time: PgTime,
    /// Transaction id. It wraps around, see [`Xid`](crate::Xid).
    pub xid: u32,
}

impl Begin {
    pub(super) fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        Ok(Begin {
            final_lsn: reader.lsn("final LSN")?,
            commit_time: reader.clock("commit time")?,
            xid: reader.u32("xid")?,
        })
    }
}

/// `C`: ends the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// WAL position where the commit record starts.
    pub commit_lsn: Lsn,
    /// WAL position where the commit record ends. Acknowledge exactly this position once the
    /// transaction is durable.
    pub end_lsn: Lsn,
    /// Commit timestamp.
    pub commit_time: PgTime,
}

impl Commit {
    pub(super) fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        reader.flags(0, "flags")?;
        Ok(Commit {
            commit_lsn: reader.lsn("LSN of the commit")?,
            end_lsn: reader.lsn("end LSN")?,
            commit_time: reader.clock("commit time")?,
        })
    }
}

/// `O`: the transaction was replicated to this server from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// WAL position of the commit on the origin server; [`Lsn::INVALID`] within a stream segment.
    pub commit_lsn: Lsn,
    /// Name of the origin, as configured on this server.
    pub name: &'a str,
}

impl<'a> Origin<'a> {
    pub(super) fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(Origin { commit_lsn: reader.lsn("LSN of the commit")?, name: reader.text("name")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        PgOutputMessage, assert_rejects_other_lengths, decode_in_stream, decode_outside_stream,
    };

    const CLOCK: PgTime = PgTime(0x0002_AC31_2F11_0540);
    const BEGIN: &[u8] = b"B\0\0\0\x16\xB3\x74\xD8\x48\0\x02\xAC\x31\x2F\x11\x05\x40\0\0\x02\xF0";
    const COMMIT: &[u8] =
        b"C\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD8\x78\0\x02\xAC\x31\x2F\x11\x05\x40";
    const ORIGIN: &[u8] = b"O\0\0\0\0\x01\x50\x22\xA0upstream\0";

    #[test]
    fn begin_has_the_position_of_the_commit() {
        let begin = Begin { final_lsn: Lsn(0x16_B374_D848), commit_time: CLOCK, xid: 752 };
        assert_eq!(decode_outside_stream(BEGIN), Ok(PgOutputMessage::Begin(begin)));
        assert_rejects_other_lengths(BEGIN, decode_outside_stream);
    }

    #[test]
    fn commit_has_its_start_and_end_positions() {
        let commit =
            Commit { commit_lsn: Lsn(0x16_B374_D848), end_lsn: Lsn(0x16_B374_D878), commit_time: CLOCK };
        assert_eq!(decode_outside_stream(COMMIT), Ok(PgOutputMessage::Commit(commit)));
        assert_rejects_other_lengths(COMMIT, decode_outside_stream);
    }

    #[test]
    fn commit_with_flags_is_refused() {
        let mut flagged = COMMIT.to_vec();
        flagged[1] = 1;
        let error = decode_outside_stream(&flagged).unwrap_err();
        assert_eq!((error.at, error.field), (1, "flags"));
    }

    #[test]
    fn origin_is_the_same_in_a_stream() {
        let origin = PgOutputMessage::Origin(Origin { commit_lsn: Lsn(0x0150_22A0), name: "upstream" });
        assert_eq!((decode_outside_stream(ORIGIN), decode_in_stream(ORIGIN)), (Ok(origin), Ok(origin)));
        assert_rejects_other_lengths(ORIGIN, decode_outside_stream);
    }
}
