//! Wall clock, for status updates and lag.

use forebay_pgoutput::PgTime;

/// Returns the current time, as the replication protocol encodes it.
#[expect(clippy::disallowed_methods, reason = "a status update contains the wall clock")]
pub(crate) fn clock() -> PgTime {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    PgTime::from_unix_micros(i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX))
}
