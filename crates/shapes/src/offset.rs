//! Offsets: positions in the log of a shape.
//!
//! Invariant: the messages of a log are ordered by offset. The snapshot has the offsets `0_k`. A
//! change has the commit position of its transaction and its number in the transaction.

use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;

/// Position in the log of a shape: a client has read everything up to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset {
    /// Commit position (LSN) of the transaction; 0: the snapshot.
    pub lsn: u64,
    /// Number of the change in the transaction, or of the snapshot chunk; `u64::MAX`: all of them
    /// (`inf`).
    pub op: u64,
}

/// Offset of a request: where the response starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartOffset {
    /// `-1`: at the beginning.
    Beginning,
    /// `now`: after the end of the log.
    Now,
    /// After an offset.
    After(Offset),
}

/// The text isn't an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has invalid format")]
pub struct OffsetError;

impl Offset {
    /// Offset of the first chunk of the snapshot.
    pub const FIRST: Offset = Offset { lsn: 0, op: 0 };

    /// Offset after all chunks of the snapshot and before the log.
    pub const SNAPSHOT_END: Offset = Offset { lsn: 0, op: u64::MAX };

    /// Returns the offset of a change.
    pub const fn new(lsn: u64, op: u64) -> Self {
        Offset { lsn, op }
    }

    /// Returns whether the offset is in the snapshot.
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

/// Parses digits only: `+1` isn't an offset. A number above `u64::MAX` becomes `u64::MAX`, which is
/// beyond every log.
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
    fn offsets_round_trip_through_text() {
        for text in ["0_0", "0_7", "26800584_4", "26800584_inf"] {
            assert_eq!(text.parse::<Offset>().unwrap().to_string(), text);
        }
        assert_eq!("-1".parse(), Ok(StartOffset::Beginning));
        assert_eq!("now".parse(), Ok(StartOffset::Now));
        assert_eq!("5_2".parse(), Ok(StartOffset::After(Offset::new(5, 2))));
    }

    #[test]
    fn invalid_offsets_are_refused() {
        for text in
            ["", "_", "1", "1_", "_1", "-2", "1_-1", "+1_0", "1_0_0", "1_INF", "a_b", " 1_0", "now ", "１_0"]
        {
            assert_eq!(text.parse::<StartOffset>(), Err(OffsetError), "{text:?}");
        }
    }

    #[test]
    fn an_overflowing_offset_is_beyond_every_log() {
        let absurd: Offset = "99999999999999999999999_5".parse().unwrap();
        assert!(absurd > Offset::new(u64::MAX - 1, 0));
    }

    #[test]
    fn offsets_sort_in_log_order() {
        let log = ["0_0", "0_1", "5_0", "5_2", "5_inf", "6_0"].map(|text| text.parse::<Offset>().unwrap());
        assert!(log.is_sorted());
    }
}
