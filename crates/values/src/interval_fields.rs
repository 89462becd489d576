//! Fields of an interval type: `interval day to second`.

use super::calendar::MICROS_PER_SECOND;
use super::interval::Interval;

/// The fields that an interval type keeps, as Postgres encodes them (INTERVAL_MASK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalFields(i32);

impl IntervalFields {
    /// All fields: the type `interval`.
    pub const ALL: IntervalFields = IntervalFields(0x7fff);
    pub(crate) const MONTH: IntervalFields = IntervalFields(1 << 1);
    pub(crate) const YEAR: IntervalFields = IntervalFields(1 << 2);
    pub(crate) const DAY: IntervalFields = IntervalFields(1 << 3);
    pub(crate) const HOUR: IntervalFields = IntervalFields(1 << 10);
    pub(crate) const MINUTE: IntervalFields = IntervalFields(1 << 11);
    pub(crate) const SECOND: IntervalFields = IntervalFields(1 << 12);

    /// Names of fields in SQL, from the largest to the smallest.
    pub const NAMES: [(&str, IntervalFields); 6] = [
        ("year", IntervalFields::YEAR),
        ("month", IntervalFields::MONTH),
        ("day", IntervalFields::DAY),
        ("hour", IntervalFields::HOUR),
        ("minute", IntervalFields::MINUTE),
        ("second", IntervalFields::SECOND),
    ];

    /// Returns the fields from one to another: `day to second`. `None`: SQL has no such type.
    pub fn range(first: &str, last: &str) -> Option<Self> {
        let at = |name: &str| IntervalFields::NAMES.iter().position(|(field, _)| *field == name);
        let (first, last) = (at(first)?, at(last)?);
        let months_end = first == 0 && last == 1;
        let times = first >= 2 && last > first;
        let all = IntervalFields::NAMES.get(first..=last)?;
        (first == last || months_end || times)
            .then(|| IntervalFields(all.iter().fold(0, |mask, (_, field)| mask | field.0)))
    }

    /// Returns the fields of a type modifier. `None`: no type has it.
    pub fn of_modifier(modifier: i32) -> Option<Self> {
        let fields = IntervalFields(modifier);
        let names = || IntervalFields::NAMES.iter().map(|(name, _)| *name);
        let is_range =
            names().any(|first| names().any(|last| IntervalFields::range(first, last) == Some(fields)));
        (fields == IntervalFields::ALL || is_range).then_some(fields)
    }

    /// Returns the type modifier.
    pub fn modifier(self) -> i32 {
        self.0
    }

    pub(crate) fn is_minute_to_second(self) -> bool {
        self.0 == IntervalFields::MINUTE.0 | IntervalFields::SECOND.0
    }

    /// Returns the smallest field.
    pub(crate) fn last(self) -> Self {
        let within = |(_, field): &(&str, IntervalFields)| (self.0 & field.0 != 0).then_some(*field);
        IntervalFields::NAMES.iter().rev().find_map(within).unwrap_or(IntervalFields::SECOND)
    }

    /// Sets the fields below the last one to zero.
    pub(super) fn truncate(self, interval: Interval) -> Interval {
        let hour = 3600 * MICROS_PER_SECOND;
        let Interval { months, days, micros } = interval;
        match self.last() {
            IntervalFields::YEAR => Interval { months: months / 12 * 12, days: 0, micros: 0 },
            IntervalFields::MONTH => Interval { months, days: 0, micros: 0 },
            IntervalFields::DAY => Interval { months, days, micros: 0 },
            IntervalFields::HOUR => Interval { micros: micros / hour * hour, ..interval },
            IntervalFields::MINUTE => Interval { micros: micros / (hour / 60) * (hour / 60), ..interval },
            _ => interval,
        }
    }
}
