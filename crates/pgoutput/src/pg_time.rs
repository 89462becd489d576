//! Timestamps in PostgreSQL's wire format.
//!
//! Invariant: a [`PgTime`] counts microseconds since 2000-01-01 00:00 UTC. Conversions saturate, so
//! no value from the wire overflows.
//! Out of scope: reading a clock. The caller passes the time.

/// Timestamp as PostgreSQL sends it: microseconds since 2000-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PgTime(pub i64);

/// Microseconds from 1970-01-01 to 2000-01-01.
const UNIX_MICROS_OF_2000: i64 = 946_684_800_000_000;

impl PgTime {
    /// Converts from microseconds since 1970-01-01 00:00 UTC.
    pub const fn from_unix_micros(micros: i64) -> Self {
        PgTime(micros.saturating_sub(UNIX_MICROS_OF_2000))
    }

    /// Converts to microseconds since 1970-01-01 00:00 UTC.
    pub const fn to_unix_micros(self) -> i64 {
        self.0.saturating_add(UNIX_MICROS_OF_2000)
    }

    /// Returns the microseconds from `earlier` to this time; negative if `earlier` is later.
    pub const fn micros_since(self, earlier: PgTime) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_year_2000() {
        assert_eq!(PgTime(0).to_unix_micros(), 946_684_800_000_000);
        assert_eq!(PgTime::from_unix_micros(1_700_000_000_000_001), PgTime(753_315_200_000_001));
        assert_eq!(PgTime::from_unix_micros(PgTime(-7).to_unix_micros()), PgTime(-7));
    }

    #[test]
    fn conversions_at_the_limits_saturate() {
        assert_eq!(PgTime(i64::MAX).to_unix_micros(), i64::MAX);
        assert_eq!(PgTime::from_unix_micros(i64::MIN), PgTime(i64::MIN));
        assert_eq!(PgTime(i64::MAX).micros_since(PgTime(-1)), i64::MAX);
        assert_eq!(PgTime(1).micros_since(PgTime(3)), -2);
    }
}
