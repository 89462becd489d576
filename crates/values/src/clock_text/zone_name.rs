//! Names of time zones without rules: UTC, abbreviations, and POSIX texts such as `<+03>-3`.
//!
//! A POSIX text counts hours west of Greenwich: `+05`, `UTC+5` and `Etc/GMT+5` are all five hours
//! west. Other names need the server's time zone files.

use super::words::DateWord;

/// Maximum hours of an offset. Postgres allows more in some places.
const MAX_HOURS: i64 = 15;

/// Returns the seconds east of Greenwich of a zone that has the same offset at any time and on any
/// server. `None`: another zone, or no zone.
pub fn zone_offset(name: &str) -> Option<i64> {
    // Postgres knows no zone with a longer name.
    if name.len() > 255 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    match DateWord::abbreviation(&name) {
        Some(DateWord::Zone { east, .. }) => return Some(east),
        _ if matches!(&*name, "etc/utc" | "etc/gmt" | "etc/uct" | "etc/zulu") => return Some(0),
        _ => {}
    }
    posix_offset(&name).map(|west| -west)
}

/// Parses a POSIX text without daylight saving time (tzparse). Returns seconds west of Greenwich.
fn posix_offset(name: &str) -> Option<i64> {
    let rest = match name.strip_prefix('<') {
        Some(quoted) => {
            let (quoted, rest) = quoted.split_once('>')?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-');
            quoted.bytes().all(is_plain).then_some(rest)?
        }
        None => {
            let rest = name.strip_prefix("etc/").unwrap_or(name);
            rest.trim_start_matches(|first: char| first.is_ascii_lowercase())
        }
    };
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let mut parts = digits.split(':');
    let mut part = |most: i64| -> Option<i64> {
        let Some(text) = parts.next() else { return Some(0) };
        let is_number = matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_number && *number <= most)
    };
    let offset = (part(MAX_HOURS)? * 60 + part(59)?) * 60 + part(59)?;
    parts.next().is_none().then_some(if rest.starts_with('-') { -offset } else { offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_without_rules_have_an_offset_whose_sign_depends_on_the_form() {
        for (name, hours) in [
            ("UTC", 0.0),
            ("z", 0.0),
            ("Etc/GMT", 0.0),
            ("etc/gmt+5", -5.0),
            ("Etc/GMT-14", 14.0),
            ("EST", -5.0),
            ("JST", 9.0),
            ("EST5", -5.0),
            ("UTC+3", -3.0),
            ("+05", -5.0),
            ("-05:30", 5.5),
            ("5", -5.0),
            ("<+03>-3", 3.0),
            ("<-0130>1:30", -1.5),
        ] {
            assert_eq!(zone_offset(name), Some((hours * 3600.0) as i64), "{name}");
        }
        for name in [
            "",
            "Europe/Berlin",
            "EST5EDT",
            "EST+5EDT,M3.2.0,M11.1.0",
            "MSK",
            "+16",
            "+05:60",
            "+5:0:0:0",
            "+-5",
            "<+03",
            "<+03>",
            "< >5",
            "+0500",
            "UTC +5",
            "é5",
        ] {
            assert_eq!(zone_offset(name), None, "{name}");
        }
    }
}
