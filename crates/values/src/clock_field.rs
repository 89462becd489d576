//! Fields of dates and times, as extract() and date_trunc() name them.

/// A field of a date, a time or an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockField {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    /// The day of the month, or the days of an interval.
    DayOfMonth,
    Week,
    Month,
    Quarter,
    Year,
    Decade,
    Century,
    Millennium,
    Julian,
    IsoYear,
    /// 0 is Sunday.
    DayOfWeek,
    /// 1 is Monday.
    IsoDayOfWeek,
    DayOfYear,
    Epoch,
    /// Seconds east of Greenwich.
    Timezone,
    TimezoneHour,
    TimezoneMinute,
}

impl ClockField {
    /// Returns the field with this name. Only the first ten characters count.
    pub(crate) fn of(name: &str) -> Option<Self> {
        use ClockField::*;
        let name = name.to_ascii_lowercase();
        Some(match name.get(..10).unwrap_or(&name) {
            "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" => Microsecond,
            "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" => Millisecond,
            "s" | "sec" | "secs" | "second" | "seconds" => Second,
            "m" | "min" | "mins" | "minute" | "minutes" => Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => Hour,
            "d" | "day" | "days" => DayOfMonth,
            "w" | "week" | "weeks" => Week,
            "mon" | "mons" | "month" | "months" => Month,
            "qtr" | "quarter" => Quarter,
            "y" | "yr" | "yrs" | "year" | "years" => Year,
            "dec" | "decs" | "decade" | "decades" => Decade,
            "c" | "cent" | "century" | "centuries" => Century,
            "mil" | "mils" | "millennia" | "millennium" => Millennium,
            "j" | "jd" | "julian" => Julian,
            "isoyear" => IsoYear,
            "dow" => DayOfWeek,
            "isodow" => IsoDayOfWeek,
            "doy" => DayOfYear,
            "epoch" => Epoch,
            "timezone" => Timezone,
            "timezone_h" => TimezoneHour,
            "timezone_m" => TimezoneMinute,
            _ => return None,
        })
    }

    /// Returns whether date_trunc() truncates timestamps to it.
    pub(crate) fn truncates(self) -> bool {
        use ClockField::*;
        !matches!(
            self,
            Julian
                | IsoYear
                | DayOfWeek
                | IsoDayOfWeek
                | DayOfYear
                | Epoch
                | Timezone
                | TimezoneHour
                | TimezoneMinute
        )
    }
}
