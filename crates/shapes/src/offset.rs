//! Where a client is in a log.
//!
//! Invariant: offsets of one log are ordered as its messages are. Those of the snapshot are `0_k`, the log's are the commit's position
//! and the number of the change in its transaction.

use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;

/// A place in a log: everything up to it was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset {
    /// The commit's log position; 0: the snapshot.
    pub lsn: u64,
    /// The change in that transaction, or the chunk of the snapshot; `u64::MAX`: all of them (`inf`).
    pub op: u64,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartOffset {
    /// `-1`: from the beginning.
    Beginning,
    /// `now`: only what is yet to come.
    Now,
    /// After this.
    After(Offset),
}

/// It isn't an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has invalid format")]
pub struct OffsetError;

impl Offset {
    /// The first chunk of the snapshot.
    pub const FIRST: Offset = Offset { lsn: 0, op: 0 };

    /// After all chunks of the snapshot, and before the log.
    pub const SNAPSHOT_END: Offset = Offset { lsn: 0, op: u64::MAX };

    /// A change of a transaction.
    pub const fn new(lsn: u64, op: u64) -> Self {
        Offset { lsn, op }
    }

    /// Whether it is in the snapshot.
    pub fn is_snapshot(self) -> bool {
        self.lsn == 0
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            u64::MAX => write!(f, "{}_inf", self.lsn),
            op => write!(f, "{}_{op}", self.lsn),
        }
    }
}

impl FromStr for Offset {
    type Err = OffsetError;

    fn from_str(text: &str) -> Result<Self, OffsetError> {
        let (lsn, op) = text.split_once('_').ok_or(OffsetError)?;
        let op = if op == "inf" { u64::MAX } else { number(op)? };
        Ok(Offset { lsn: number(lsn)?, op })
    }
}

impl FromStr for StartOffset {
    type Err = OffsetError;

    fn from_str(text: &str) -> Result<Self, OffsetError> {
        match text {
            "-1" => Ok(StartOffset::Beginning),
            "now" => Ok(StartOffset::Now),
            text => text.parse().map(StartOffset::After),
        }
    }
}

/// Digits only: `+1` and the like are no offsets. What is beyond all numbers is beyond every log, too.
fn number(text: &str) -> Result<u64, OffsetError> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(OffsetError);
    }
    text.parse().or_else(|error: std::num::ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => Ok(u64::MAX),
        _ => Err(OffsetError),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_and_written_alike() {
        for text in ["0_0", "0_7", "26800584_4", "26800584_inf"] {
            assert_eq!(text.parse::<Offset>().unwrap().to_string(), text);
        }
        assert_eq!("-1".parse(), Ok(StartOffset::Beginning));
        assert_eq!("now".parse(), Ok(StartOffset::Now));
        assert_eq!("5_2".parse(), Ok(StartOffset::After(Offset::new(5, 2))));
    }

    #[test]
    fn what_is_no_offset_is_refused() {
        for text in
            ["", "_", "1", "1_", "_1", "-2", "1_-1", "+1_0", "1_0_0", "1_INF", "a_b", " 1_0", "now ", "１_0"]
        {
            assert_eq!(text.parse::<StartOffset>(), Err(OffsetError), "{text:?}");
        }
    }

    #[test]
    fn an_absurd_offset_is_beyond_every_log() {
        let absurd: Offset = "99999999999999999999999_5".parse().unwrap();
        assert!(absurd > Offset::new(u64::MAX - 1, 0));
    }

    #[test]
    fn a_log_is_in_order() {
        let log = ["0_0", "0_1", "5_0", "5_2", "5_inf", "6_0"].map(|text| text.parse::<Offset>().unwrap());
        assert!(log.is_sorted());
    }
}
