//! Words in dates, times and intervals (datetktbl, deltatktbl).

/// A word in a date or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DateWord {
    Infinity,
    NegativeInfinity,
    Epoch,
    /// `now`, `today`, `tomorrow`, `yesterday`.
    Clock,
    /// `allballs`: midnight in UTC.
    Midnight,
    BeforeChrist,
    AnnoDomini,
    BeforeNoon,
    AfterNoon,
    Month(i64),
    Weekday,
    /// `at`, `on`.
    Filler,
    /// `t` before a time.
    Time,
    /// A unit, such as `j` before a Julian day.
    Unit,
    /// `dst` after a zone.
    DaylightSaving,
    /// The abbreviation of a zone: its seconds east of Greenwich, and whether it is summer time.
    Zone {
        east: i64,
        summer: bool,
    },
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// Abbreviations of zones whose offset is the same in every file of the server's `timezonesets`
/// and was always the same: name, hours east of Greenwich, and whether it is summer time.
const ZONES: [(&str, i64, bool); 19] = [
    ("utc", 0, false),
    ("gmt", 0, false),
    ("ut", 0, false),
    ("uct", 0, false),
    ("z", 0, false),
    ("zulu", 0, false),
    ("cet", 1, false),
    ("cest", 2, true),
    ("met", 1, false),
    ("mest", 2, true),
    ("eest", 3, true),
    ("est", -5, false),
    ("edt", -4, true),
    ("cdt", -5, true),
    ("mst", -7, false),
    ("mdt", -6, true),
    ("pst", -8, false),
    ("pdt", -7, true),
    ("jst", 9, false),
];

impl DateWord {
    /// Returns the word's meaning. `None`: it is not a known word. It may be the name of a zone.
    pub(super) fn of(word: &str) -> Option<Self> {
        DateWord::abbreviation(word).or_else(|| DateWord::keyword(word))
    }

    /// Returns the meaning of the abbreviation of a zone.
    pub(super) fn abbreviation(word: &str) -> Option<Self> {
        let row = ZONES.iter().find(|(name, ..)| *name == word)?;
        Some(DateWord::Zone { east: row.1 * 3600, summer: row.2 })
    }

    /// Returns the meaning of a word other than a zone.
    pub(super) fn keyword(word: &str) -> Option<Self> {
        if let Some(month) = month(word) {
            return Some(DateWord::Month(month));
        }
        Some(match word {
            "infinity" | "+infinity" => DateWord::Infinity,
            "-infinity" => DateWord::NegativeInfinity,
            "epoch" => DateWord::Epoch,
            "now" | "today" | "tomorrow" | "yesterday" => DateWord::Clock,
            "allballs" => DateWord::Midnight,
            "bc" => DateWord::BeforeChrist,
            "ad" => DateWord::AnnoDomini,
            "am" => DateWord::BeforeNoon,
            "pm" => DateWord::AfterNoon,
            "at" | "on" => DateWord::Filler,
            "t" => DateWord::Time,
            "d" | "dow" | "doy" | "h" | "isodow" | "isoyear" | "j" | "jd" | "julian" | "m" | "mm" | "s"
            | "y" => DateWord::Unit,
            "dst" => DateWord::DaylightSaving,
            "sun" | "sunday" | "mon" | "monday" | "tue" | "tues" | "tuesday" | "wed" | "weds"
            | "wednesday" | "thu" | "thur" | "thurs" | "thursday" | "fri" | "friday" | "sat" | "saturday" => {
                DateWord::Weekday
            }
            _ => return None,
        })
    }
}

fn month(word: &str) -> Option<i64> {
    let position = match word {
        "sept" => 8,
        word => MONTHS.iter().position(|name| *name == word || name[..3] == *word)?,
    };
    Some(position as i64 + 1)
}

/// A unit of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanUnit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
    Decade,
    Century,
    Millennium,
    /// A unit of dates that intervals refuse.
    Other,
}

/// A word in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanWord {
    Unit(SpanUnit),
    Ago,
}

impl SpanWord {
    /// Returns the word's meaning. Only the first ten characters count.
    pub(super) fn of(word: &str) -> Option<Self> {
        use SpanUnit::*;
        Some(SpanWord::Unit(match word.get(..10).unwrap_or(word) {
            "ago" => return Some(SpanWord::Ago),
            "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" => Microsecond,
            "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" => Millisecond,
            "s" | "sec" | "secs" | "second" | "seconds" => Second,
            "m" | "min" | "mins" | "minute" | "minutes" => Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => Hour,
            "d" | "day" | "days" => Day,
            "w" | "week" | "weeks" => Week,
            "mon" | "mons" | "month" | "months" => Month,
            "y" | "yr" | "yrs" | "year" | "years" => Year,
            "dec" | "decs" | "decade" | "decades" => Decade,
            "c" | "cent" | "century" | "centuries" => Century,
            "mil" | "mils" | "millennia" | "millennium" => Millennium,
            "qtr" | "quarter" | "timezone" | "timezone_h" | "timezone_m" => Other,
            _ => return None,
        }))
    }
}
