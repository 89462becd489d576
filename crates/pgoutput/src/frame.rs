//! What stands in the CopyData messages of a replication stream, around pgoutput's own.
//!
//! Invariant: a frame is read whole or not at all, and its payload is borrowed.
//! Not here: the CopyData message itself (its `d` and its length); whoever reads the socket takes it off.

use crate::error::{DecodeError, Fault};
use crate::reader::Reader;
use crate::{Lsn, PgTime};

/// What a server sends: the content of one CopyData message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// `w`, XLogData.
    Data {
        /// Where the payload stands in the log; [`Lsn::NONE`] if it stands nowhere, as a `Relation` does. Don't derive
        /// what to acknowledge from it: only the end of a commit is safe.
        start: Lsn,
        /// The end of the log on the server by now, says the manual. For logical replication, servers repeat `start`.
        end: Lsn,
        /// The server's clock when it sent this.
        clock: PgTime,
        /// One message of pgoutput, for [`Decoder::decode`](crate::Decoder::decode).
        payload: &'a [u8],
    },
    /// `k`: the server lives.
    Keepalive {
        /// How far the server has read the log for this stream. Between transactions it may be acknowledged as soon as
        /// everything received before it is safe, so that a log without changes for us is not kept forever.
        end: Lsn,
        /// The server's clock when it sent this.
        clock: PgTime,
        /// Whether it wants an answer now, lest it close the connection.
        reply: bool,
    },
}

impl<'a> Frame<'a> {
    /// Reads the content of one CopyData message.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let before = reader;
        match reader.u8("tag")? {
            b'w' => Ok(Frame::Data {
                start: reader.lsn("start")?,
                end: reader.lsn("end")?,
                clock: reader.clock("clock")?,
                payload: reader.rest(),
            }),
            b'k' => {
                let frame = Frame::Keepalive {
                    end: reader.lsn("end")?,
                    clock: reader.clock("clock")?,
                    reply: reader.bool("reply")?,
                };
                reader.end()?;
                Ok(frame)
            }
            _ => Err(before.fault("tag", Fault::Unexpected { expected: "'w', 'k'" })),
        }
    }
}

/// `r`, what we answer: how far we are. The server keeps the log from `flushed` on, and sends from there after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StandbyStatus {
    /// Everything before this place has arrived.
    pub received: Lsn,
    /// Everything before this place is safe with us: the `end` of the last commit that need not be sent again.
    pub flushed: Lsn,
    /// Everything before this place can be seen by our readers.
    pub applied: Lsn,
    /// Our clock.
    pub clock: PgTime,
    /// Whether we want an answer now.
    pub reply: bool,
}

impl StandbyStatus {
    /// Bytes of it on the wire.
    pub const LEN: usize = 34;

    /// The content of one CopyData message.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = b'r';
        bytes[1..9].copy_from_slice(&self.received.0.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.flushed.0.to_be_bytes());
        bytes[17..25].copy_from_slice(&self.applied.0.to_be_bytes());
        bytes[25..33].copy_from_slice(&self.clock.0.to_be_bytes());
        bytes[33] = u8::from(self.reply);
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
    fn data_is_its_places_its_clock_and_the_payload() {
        let start = Lsn(0x16_B374_D848);
        let end = Lsn(0x16_B374_D900);
        let clock = PgTime(0x0002_AC31_2F11_0540);
        assert_eq!(Frame::decode(DATA), Ok(Frame::Data { start, end, clock, payload: b"payload" }));
    }

    #[test]
    fn a_payload_may_be_empty() {
        let Ok(Frame::Data { payload, .. }) = Frame::decode(&DATA[..25]) else { panic!("it is data") };
        assert!(payload.is_empty());
    }

    #[test]
    fn a_keepalive_may_ask_for_an_answer() {
        let end = Lsn(0x0150_22A0);
        assert_eq!(Frame::decode(KEEPALIVE), Ok(Frame::Keepalive { end, clock: PgTime(-2), reply: true }));
        let calm = [&KEEPALIVE[..17], b"\0"].concat();
        assert_eq!(Frame::decode(&calm), Ok(Frame::Keepalive { end, clock: PgTime(-2), reply: false }));
    }

    #[test]
    fn a_frame_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..25 {
            let error = Frame::decode(&DATA[..length]).unwrap_err();
            assert!(matches!(error.fault, Fault::Ended { .. }), "{length}: {error}");
        }
        for length in 0..KEEPALIVE.len() {
            let error = Frame::decode(&KEEPALIVE[..length]).unwrap_err();
            assert!(matches!(error.fault, Fault::Ended { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn a_keepalive_with_more_than_it_should_have_is_refused() {
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
        assert_eq!(error.fault, Fault::Unexpected { expected: "'w', 'k'" });
        assert_eq!((error.tag, error.at), (Some(b'I'), 0));
    }

    #[test]
    fn a_status_is_34_bytes_in_the_order_of_the_manual() {
        let status = StandbyStatus {
            received: Lsn(0x0102_0304_0506_0708),
            flushed: Lsn(0x1112_1314_1516_1718),
            applied: Lsn(0x2122_2324_2526_2728),
            clock: PgTime(-2),
            reply: true,
        };
        let expected = b"r\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18\
            \x21\x22\x23\x24\x25\x26\x27\x28\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\x01";
        assert_eq!(&status.encode(), expected);
        assert_eq!(StandbyStatus { reply: false, ..status }.encode()[33], 0);
    }
}
