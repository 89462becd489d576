//! Calendar: converts Julian day numbers and dates of the proleptic Gregorian calendar (datetime.c:
//! date2j, j2date).

pub(crate) const MICROS_PER_SECOND: i64 = 1_000_000;
pub(crate) const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// Julian day of 2000-01-01, the epoch of Postgres.
pub(crate) const EPOCH: i64 = 2_451_545;

/// A day by year, month and day. Year 0 is the year before year 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Day {
    pub year: i64,
    pub month: i64,
    pub day: i64,
}

impl Day {
    /// Returns the days since 2000-01-01.
    pub(crate) fn number(self) -> i64 {
        let Day { mut year, mut month, day } = self;
        if month > 2 {
            month += 1;
            year += 4800;
        } else {
            month += 13;
            year += 4799;
        }
        let century = year.div_euclid(100);
        year * 365 - 32_167 + year.div_euclid(4) - century + century.div_euclid(4) + 7834 * month / 256 + day
            - EPOCH
    }

    pub(crate) fn of_number(number: i64) -> Self {
        let mut julian = number + EPOCH + 32_044;
        let quad = julian.div_euclid(146_097);
        let extra = julian.rem_euclid(146_097) * 4 + 3;
        julian += 60 + quad * 3 + extra / 146_097;
        let quad = julian.div_euclid(1461);
        let within = julian.rem_euclid(1461);
        let mut year = within * 4 / 1461;
        let within = if year != 0 { (within + 305) % 365 } else { (within + 306) % 366 } + 123;
        year += quad * 4;
        let quad = within * 2141 / 65_536;
        Day { year: year - 4800, month: (quad + 10) % 12 + 1, day: within - 7834 * quad / 256 }
    }

    pub(crate) fn is_real(self) -> bool {
        (1..=12).contains(&self.month) && (1..=days_in(self.year, self.month)).contains(&self.day)
    }

    pub(crate) fn days_of_month(self) -> i64 {
        days_in(self.year, self.month)
    }

    /// Returns the same day this many months later, or the last day of that month.
    pub(crate) fn plus_months(self, months: i64) -> Self {
        let count = self.year * 12 + self.month - 1 + months;
        let (year, month) = (count.div_euclid(12), count.rem_euclid(12) + 1);
        Day { year, month, day: self.day.min(days_in(year, month)) }
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_one_real_day_and_back() {
        for number in (-2_451_545..2_145_031_949).step_by(9973).chain(-1000..1000) {
            let day = Day::of_number(number);
            assert!(day.is_real(), "{day:?}");
            assert_eq!(day.number(), number);
        }
        assert_eq!(Day { year: 2000, month: 1, day: 1 }.number(), 0);
        assert_eq!(Day { year: 1970, month: 1, day: 1 }.number(), -10_957);
    }

    #[test]
    fn months_end_where_they_end() {
        let day = Day { year: 2023, month: 12, day: 31 };
        assert_eq!(day.plus_months(2), Day { year: 2024, month: 2, day: 29 });
        assert_eq!(day.plus_months(-10), Day { year: 2023, month: 2, day: 28 });
        assert_eq!(day.plus_months(-12), Day { year: 2022, month: 12, day: 31 });
    }
}
