//! The time of day, for the server's log and for lag.

use forebay_pgoutput::PgTime;

#[expect(clippy::disallowed_methods, reason = "the protocol asks for the time of day")]
pub(crate) fn clock() -> PgTime {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    PgTime::from_unix_micros(i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX))
}
