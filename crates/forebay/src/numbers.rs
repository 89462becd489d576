//! Formats numbers, sizes and durations for people.

/// Returns a number with a comma between groups of three digits: `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a size in bytes: `1536` as `1.5 KiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Returns a duration in milliseconds as its two largest units: `3661000` as `1h 1m`.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes, seconds % 60) {
        (0, 0, 0, 0) => format!("{ms}ms"),
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}m"),
        (days, hours, ..) => format!("{days}d {hours}h"),
    }
}

/// Returns a time as in RFC 3339, in UTC: `2001-09-09T01:46:40Z`.
pub(crate) fn utc_time(seconds_since_1970: u64) -> String {
    let (days, second) = (seconds_since_1970 / 86_400, seconds_since_1970 % 86_400);
    // Years begin in March, so that a leap day is the last day of its year. An era has 400 years.
    // 719,468 is the number of days from 0000-03-01 to 1970-01-01.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next_year;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 10 << 20].map(size), ["0 B", "1023 B", "1.0 KiB", "10.0 MiB"]);
        let durations = [0, 999, 1000, 61_000, 3_661_000, 90_000_000].map(duration);
        assert_eq!(durations, ["0ms", "999ms", "1s", "1m 1s", "1h 1m", "1d 1h"]);
    }

    #[test]
    fn times_are_written_as_date_tells_them() {
        // date --utc --date @SECONDS +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc_time(seconds), text);
        }
    }
}
