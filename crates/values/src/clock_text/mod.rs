//! Texts of dates, times and intervals: parses every form that Postgres accepts (datetime.c) under
//! DateStyle ISO, DMY, IntervalStyle iso_8601 and TimeZone UTC.
//!
//! Invariant: a text is parsed to Postgres' value, or fails with Postgres' SQLSTATE. Texts whose
//! value depends on the clock, on the server's time zone files or on its version are
//! [`InputError::Unsupported`].
//! Enforced by: `texts_of_dates_and_times_are_read_as_by_postgres` in `tests/it/clock_texts.rs`.
//!
//! As in Postgres, a text is split into fields first (`fields.rs`). The meaning of a field depends
//! on the fields before it (`moment.rs`), or after it (`span.rs`).

mod fields;
mod moment;
mod numbers;
mod span;
mod words;
mod zone_name;

pub(super) use moment::{DecodedMoment, MomentFields, MomentText};
pub(super) use span::decode_interval;
pub use zone_name::zone_offset;

use super::input_error::InputError;

/// Length up to which Postgres' buffer surely has room for all fields of a text, in bytes.
const CERTAIN_BYTES: usize = 100;

/// Bits for the parts of a date or an interval that the fields so far have set.
mod mask {
    pub(super) const YEAR: u32 = 1;
    pub(super) const MONTH: u32 = 1 << 1;
    pub(super) const DAY: u32 = 1 << 2;
    pub(super) const HOUR: u32 = 1 << 3;
    pub(super) const MINUTE: u32 = 1 << 4;
    pub(super) const SECOND: u32 = 1 << 5;
    pub(super) const MILLISECOND: u32 = 1 << 6;
    pub(super) const MICROSECOND: u32 = 1 << 7;
    pub(super) const ZONE: u32 = 1 << 8;
    pub(super) const DAYLIGHT: u32 = 1 << 9;
    pub(super) const DAY_OF_YEAR: u32 = 1 << 10;
    pub(super) const WEEKDAY: u32 = 1 << 11;
    pub(super) const HALF_DAY: u32 = 1 << 12;
    pub(super) const ERA: u32 = 1 << 13;
    pub(super) const WEEK: u32 = 1 << 14;
    pub(super) const DECADE: u32 = 1 << 15;
    pub(super) const CENTURY: u32 = 1 << 16;
    pub(super) const MILLENNIUM: u32 = 1 << 17;
    pub(super) const DATE: u32 = YEAR | MONTH | DAY;
    pub(super) const SECONDS: u32 = SECOND | MILLISECOND | MICROSECOND;
    pub(super) const TIME: u32 = HOUR | MINUTE | SECONDS;
}

/// Returns the result for a text that this crate may read differently: only a syntax error is
/// certain, because the other reading ends in one, too.
fn uncertain<T>(result: Result<T, InputError>, what: &'static str) -> Result<T, InputError> {
    match result {
        Err(InputError::Syntax) => Err(InputError::Syntax),
        _ => Err(InputError::Unsupported(what)),
    }
}
