//! Frames of a replication stream: the contents of CopyData messages.
//!
//! Invariant: a frame is decoded completely or not at all. Its payload is borrowed from the input.
//! Out of scope: the CopyData header (`d` and the length). The socket's reader strips it.

use crate::error::{DecodeError, DecodeFault};
use crate::message_reader::MessageReader;
use crate::{Lsn, PgTime};

/// Frame sent by the server: the content of one CopyData message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// `w`, XLogData: WAL data.
    XLogData {
        /// WAL position of the payload, or [`Lsn::INVALID`] if it has none, such as a `Relation`.
        /// Never acknowledge this position; only a commit's end is safe.
        wal_start: Lsn,
        /// Current end of the server's WAL according to the manual. For logical replication,
        /// servers repeat `wal_start`.
        wal_end: Lsn,
        /// Server's clock at transmission.
        clock: PgTime,
        /// One pgoutput message, for [`PgOutputDecoder::decode`](crate::PgOutputDecoder::decode).
        payload: &'a [u8],
    },
    /// `k`, Primary keepalive message.
    Keepalive {
        /// WAL position up to which the server has read for this stream. Between transactions it
        /// may be acknowledged once everything received is durable. That lets the server recycle
        /// WAL without changes for this stream.
        wal_end: Lsn,
        /// Server's clock at transmission.
        clock: PgTime,
        /// Whether the server requests an immediate status update. It closes the connection if none
        /// arrives.
        reply_requested: bool,
    },
}

impl<'a> Frame<'a> {
    /// Decodes the content of one CopyData message.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, DecodeError> {
        let mut reader = MessageReader::new(bytes);
        let before = reader;
        match reader.u8("tag")? {
            b'w' => Ok(Frame::XLogData {
                wal_start: reader.lsn("start")?,
                wal_end: reader.lsn("end")?,
                clock: reader.clock("clock")?,
                payload: reader.rest(),
            }),
            b'k' => {
                let frame = Frame::Keepalive {
                    wal_end: reader.lsn("end")?,
                    clock: reader.clock("clock")?,
                    reply_requested: reader.bool("reply")?,
                };
                reader.end()?;
                Ok(frame)
            }
            _ => Err(before.fault("tag", DecodeFault::Unexpected { expected: "'w', 'k'" })),
        }
    }
}

/// `r`, Standby status update: the positions reported to the server. The server retains WAL from
/// `flushed` on and resumes there after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StandbyStatusUpdate {
    /// Everything before this position has been received.
    pub received: Lsn,
    /// Everything before this position is durable: the `end_lsn` of the last durable commit.
    pub flushed: Lsn,
    /// Everything before this position is visible to readers.
    pub applied: Lsn,
    /// Client's clock.
    pub clock: PgTime,
    /// Whether the client requests an immediate keepalive.
    pub reply_requested: bool,
}

impl StandbyStatusUpdate {
    /// Encoded size in bytes.
    pub const LEN: usize = 34;

    /// Encodes the content of one CopyData message.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = b'r';
        bytes[1..9].copy_from_slice(&self.received.0.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.flushed.0.to_be_bytes());
        bytes[17..25].copy_from_slice(&self.applied.0.to_be_bytes());
        bytes[25..33].copy_from_slice(&self.clock.0.to_be_bytes());
        bytes[33] = u8::from(self.reply_requested);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &[u8] =
        b"w\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\0\x02\xAC\x31\x2F\x11\x05\x40payload";
    const KEEPALIVE: &[u8] = b"k\0\0\0\0\x01\x50\x22\xA0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\x01";

    #[test]
    fn xlogdata_has_two_positions_a_clock_and_a_payload() {
        let wal_start = Lsn(0x16_B374_D848);
        let wal_end = Lsn(0x16_B374_D900);
        let clock = PgTime(0x0002_AC31_2F11_0540);
        assert_eq!(
            Frame::decode(DATA),
            Ok(Frame::XLogData { wal_start, wal_end, clock, payload: b"payload" })
        );
    }

    #[test]
    fn a_payload_may_be_empty() {
        let Ok(Frame::XLogData { payload, .. }) = Frame::decode(&DATA[..25]) else { panic!("it is data") };
        assert!(payload.is_empty());
    }

    #[test]
    fn a_keepalive_may_request_a_reply() {
        let wal_end = Lsn(0x0150_22A0);
        assert_eq!(
            Frame::decode(KEEPALIVE),
            Ok(Frame::Keepalive { wal_end, clock: PgTime(-2), reply_requested: true })
        );
        let quiet = [&KEEPALIVE[..17], b"\0"].concat();
        assert_eq!(
            Frame::decode(&quiet),
            Ok(Frame::Keepalive { wal_end, clock: PgTime(-2), reply_requested: false })
        );
    }

    #[test]
    fn a_frame_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..25 {
            let error = Frame::decode(&DATA[..length]).unwrap_err();
            assert!(matches!(error.fault, DecodeFault::Ended { .. }), "{length}: {error}");
        }
        for length in 0..KEEPALIVE.len() {
            let error = Frame::decode(&KEEPALIVE[..length]).unwrap_err();
            assert!(matches!(error.fault, DecodeFault::Ended { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn a_keepalive_with_trailing_bytes_is_refused() {
        let long = [KEEPALIVE, b"\0"].concat();
        let error = Frame::decode(&long).unwrap_err();
        assert_eq!(error.to_string(), "Primary keepalive, byte 18, end: bytes too many: 1");
        let odd = [&KEEPALIVE[..17], b"\x02"].concat();
        let error = Frame::decode(&odd).unwrap_err();
        assert_eq!((error.at, error.field), (17, "reply"));
    }

    #[test]
    fn an_unknown_frame_is_refused() {
        let error = Frame::decode(b"I\0\0\0\0").unwrap_err();
        assert_eq!(error.fault, DecodeFault::Unexpected { expected: "'w', 'k'" });
        assert_eq!((error.tag, error.at), (Some(b'I'), 0));
    }

    #[test]
    fn a_status_is_34_bytes_in_the_order_of_the_manual() {
        let status = StandbyStatusUpdate {
            received: Lsn(0x0102_0304_0506_0708),
            flushed: Lsn(0x1112_1314_1516_1718),
            applied: Lsn(0x2122_2324_2526_2728),
            clock: PgTime(-2),
            reply_requested: true,
        };
        let expected = b"r\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18\
            \x21\x22\x23\x24\x25\x26\x27\x28\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\x01";
        assert_eq!(&status.encode(), expected);
        assert_eq!(StandbyStatusUpdate { reply_requested: false, ..status }.encode()[33], 0);
    }
}
