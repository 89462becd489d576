//! Log sequence numbers: positions in the write-ahead log.
//!
//! Invariant: an [`Lsn`] is a byte position in the WAL; later positions are greater. Parsing its
//! text returns the same LSN.

use std::fmt;
use std::str::FromStr;

/// Position in the write-ahead log, in bytes since its start. Displayed as PostgreSQL does:
/// `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `InvalidXLogRecPtr`: PostgreSQL sends this value if there is no position.
    pub const INVALID: Lsn = Lsn(0);

    /// Returns the bytes of WAL from `earlier` to this position; 0 if `earlier` is a later
    /// position.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Lsn(u64::from(parse_half(high)?) << 32 | u64::from(parse_half(low)?)))
    }
}

impl From<u64> for Lsn {
    fn from(bytes: u64) -> Self {
        Lsn(bytes)
    }
}

impl From<Lsn> for u64 {
    fn from(lsn: Lsn) -> Self {
        lsn.0
    }
}

/// Error for a text that is not an LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an LSN: two numbers of 1 to 8 hexadecimal digits, with a slash between them")]
pub struct ParseLsnError;

/// Parses the part before or after the slash.
fn parse_half(digits: &str) -> Result<u32, ParseLsnError> {
    // `from_str_radix` accepts a sign, PostgreSQL does not.
    let is_hexadecimal =
        (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hexadecimal {
        return Err(ParseLsnError);
    }
    u32::from_str_radix(digits, 16).map_err(|_| ParseLsnError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_lsn_is_displayed_as_in_postgres() {
        assert_eq!(Lsn(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(format!("{:?}", Lsn(0x1_0000_000A)), "1/A");
        assert_eq!(Lsn::INVALID.to_string(), "0/0");
        assert_eq!(Lsn(u64::MAX).to_string(), "FFFFFFFF/FFFFFFFF");
    }

    #[test]
    fn leading_zeros_and_lower_case_digits_are_parsed() {
        assert_eq!("0/0000000a".parse(), Ok(Lsn(10)));
        assert_eq!("00000016/b374d848".parse(), Ok(Lsn(0x16_B374_D848)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "1/2/3",
            "+1/2",
            "1/-2",
            " 1/2",
            "1/2 ",
            "0x1/2",
            "123456789/0",
            "0/123456789",
            "g/0",
            "1/é",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }

    #[test]
    fn distance_is_in_bytes_and_never_negative() {
        assert_eq!(Lsn(0x1_0000_0000).bytes_since(Lsn(0xFFFF_FFFF)), 1);
        assert_eq!(Lsn(1).bytes_since(Lsn(2)), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parsing_the_text_of_any_lsn_returns_the_lsn(bytes: u64) {
            prop_assert_eq!(Lsn(bytes).to_string().parse(), Ok(Lsn(bytes)));
            prop_assert_eq!(u64::from(Lsn::from(bytes)), bytes);
        }
    }
}
