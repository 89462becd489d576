//! Texts of dates, times and intervals: random texts are read as by real servers.

use std::collections::BTreeMap;

use forebay_filter::{Collation, Column, Filter, Schema};
use forebay_testkit::TestRng;

use crate::server::{ReferenceServer, SETTINGS};

/// Returns a text's value as text, or the SQLSTATE of the error.
const READ: &str = r"
    CREATE FUNCTION read(value text, kind text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        shown text;
    BEGIN
        EXECUTE format('SELECT ($1::%s)::text', kind) INTO shown USING value;
        RETURN shown;
    EXCEPTION WHEN others THEN
        RETURN SQLSTATE;
    END $$;";

const MOMENTS: &[&str] = &["date", "time", "timetz", "timestamp", "timestamptz"];

/// Texts of many forms, for every type.
#[rustfmt::skip]
const FORMS: &[&str] = &[
    "1999-01-08", "January 8, 1999", "1/8/1999", "18/1/1999", "01/02/03", "1999-Jan-08", "Jan-08-1999", "08-Jan-1999", "99-Jan-08",
    "08-Jan-99", "Jan-08-99", "19990108", "990108", "1999.008", "J2451187", "January 8, 99 BC", "8 Jan 1999", "1999 Jan 8",
    "04:05:06.789", "04:05:06", "04:05", "040506", "0405", "04:05 AM", "04:05 PM", "04:05:06.789-8", "04:05:06-08:00", "04:05-08:00",
    "040506-08", "040506+0730", "040506+07:30:15", "04:05:06 PST", "2003-04-12 04:05:06 America/New_York", "04:05:06.789 PM",
    "1999-01-08 04:05:06", "January 8 04:05:06 1999 PST", "Sat Jan 1 2000", "Sat 2000-01-01", "12:00 2000-01-01", "2000-01-01 12",
    "2000-01-01 1200", "2000-01-01 120000.5", "20000101T120000", "20000101T120000Z", "2000-01-01T12:00:00Z", "2000-01-01t12",
    "2000-01-01T1200+05", "epoch", "infinity", "-infinity", "+infinity", "- infinity", "epoch 12:00", "now", "today", "allballs",
    "2000-01-01 allballs", "2000-01-01 12:00 BC", "2000-01-01 BC 12:00", "0000-01-01", "1 BC", "2000-366", "2000-367", "2001-366",
    "2000 366", "2000 060", "1.2.2000", "2000.1.2", "12.30", "20000101 259999", "20000101 246060", "20000101 126160", "24:00", "24:00:01",
    "23:59:60", "23:59:60.5", "23:59:59.9999999", "12:60", "12::30", "12:", "12:30.5", ":30", "1:2:3:4", "12:30:15.5.5", "12:30:.5",
    "2000-01-01 24:00:00", "294277-01-01", "294276-12-31 23:59:59.9999999", "5874897-12-31", "5874898-01-01", "99999999999-01-01",
    "4714-11-24 BC", "4714-11-23 BC", "2000-13-01", "2000-02-30", "2000-01-32", "32/01/2000", "01/13/2000", "2000-01-01 +16",
    "2000-01-01 12:00+15:59:59", "2000-01-01 12:00+15:60", "2000-01-01 12:00 EST", "2000-07-01 12:00 PDT", "2000-07-01 12:00 EST DST",
    "2000-01-01 12:00 dst", "2000-01-01 12:00 foo", "2000-01-01 12:00 FOO5", "foo", "hello world", "", " ", "2000", "1", "1 2 3",
    "1 2 2000", "2000 1 2", "99 1 2", "1 2 99", "1-2-99", "2000-1-2", "2000/1/2", "2000-1/2", "2000--1-2", "-2000-01-01", "2000-01-",
    "2000-01-01x", "x2000-01-01", "2000-01-01 12:00:00 x", "2000-jan-02x", "2000-5jan", "5jan2000", "5 jan2000", "jan5 2000",
    "2000-jan5", "September 3, 2001", "sept 3 2001", "Sept. 3, 2001", "wednesday 3 Jan 2001", "weds 3 Jan 01", "at 3 jan 2001 on",
    "2001-01-03 at 12:00", "2001-01-03 12:00 am", "2001-01-03 0:00 am", "2001-01-03 13:00 pm", "2001-01-03 12:00 pm pm",
    "2001-01-03 12:00 12:00", "2001-01-03 2001-01-04", "3 3 3 3", "y2001m01d03", "2001-01-03\t12:00", "2001-01-03,12:00",
    "(2001-01-03)", "2001_01_03", "é", "2001-01-03\u{1}", "2001-01-03 12:00:00.123456789", "2001-01-03 12:00:00.0000005",
    "2001-01-03 12:00:00.0000015", "20010103120000", "2001010312", "200101031200", "1e5", "12:00 +05", "12:00+5:5", "12:00-05 am",
    "2001-01-03 12:00 zulu", "2001-01-03 12:00 UTC", "2001-01-03 12:00 utc+5", "2001-01-03 12:00 gmt", "2001-01-03 12:00 CEST",
    "2001-01-03 12:00 MET DST", "jan 3 feb 2001", "3 january", "january 2001", "2001-01-03 j", "t 12:00", "T12:00", "t1200",
    "2001-01-03 t 1200-08", "040506.789-08", "2001-01-03 040506.789+08", "20010103T040506.789", "12:00:00 2001", "1200 2001-01-03",
    "2001-01-03 12:00:00 +0530", "2001-01-03 12:00:00 + 05", "2001-01-03 12:00:00 +1560", "99991231 235959.999999",
    "10000-01-01", "100000101", "1000000101", "12345678901230101", "99999999999990101", "1-1-1", "01-01-01", "70-01-01", "69-01-01",
    "1/1/69", "1/1/70", "1/1/0", "1/1/00", "1/1/000", "1/1/69 BC", "1/1/0 BC", "00-01-01", "2000-00-01", "2000-01-00",
    "1 day", "1 day 2 hours", "1-2", "-1-2", "+1-2", "1-12", "3 4:05:06", "-3 4:05:06", "3 -4:05:06", "@ 1-2", "@ 1 day ago", "ago",
    "1 ago day", "1 day ago ago", "ago 1 day", "P1Y2M3DT4H5M6S", "P0001-02-03T04:05:06", "P00010203T040506", "P1W", "P1.5Y", "P1.5M",
    "P1.5W", "P1.5D", "PT1.5H", "PT1.5M", "PT1.5S", "P-1Y", "P1Y-2M", "PT-1.5S", "P", "PT", "P1", "P1T", "P1-2", "P1-2-3", "P1-2-3T4",
    "P1-2-3T4:5", "P1-2-3T4:5:6", "P1-2-3T4:5:6.7", "PT04", "PT040506", "PT040506.7", "P20010203.5", "P1e2D", "P1E-2D", "PT1e20S",
    "P1YT", "p1y", " P1Y", "P1Y ", "P1S", "PT1D", "P1Y1Y", "P1X", "P.5D", "P-.5D", "P5.D", "P-D", "1.5 years", "1.5 months", "1.5 weeks",
    "1.5 days", "1.5 hours", "1.5 minutes", "1.5 seconds", "1.5 decades", "1.5 centuries", "1.5 millennia", "1.5 ms", "1.5 us",
    "1 microsecond", "1 microsecondzz", "1 milliseconds", "1 usec 2 msec 3 sec", "1.5 sec 2 ms", "1 sec 2 sec", "1 min 2 mins", "1 m",
    "1 mon", "1 qtr", "1 quarter", "1 d 2 h 3 m 4 s", "1d2h3m4s", "1y2mon", "1year", "year 1", "1 year month", "1 year 2", "1 2 year",
    "1 2 3", "1", "-1", "+1", "1.5", "-1.5", ".5", "-.5", "1.", "1:2", "1:2:3", "1:2.3", "100:2:3.5", "-1:2:3", "+1:2:3", "1:60", "1:2:60",
    "1:2:61", "1 1:2:3", "1 day 1:2:3", "1:2:3 1 day", "1:2:3 1", "1.5 days 1:2:3", "1:2:3 1.5 days", "1-2 3 4:05:06",
    "1-2 3 days", "1-2 3 mons", "2147483647 days", "2147483648 days", "-2147483648 days", "2147483647 months", "178956970 years",
    "178956971 years", "178956970 years 7 months", "178956970 years 8 months", "2562047788:00:54.775807", "2562047789:00", "9223372036854775807 us",
    "9223372036854775808 us", "9223372036854775.807 ms", "0.0000005 s", "0.0000015 s", "1.0000005 s", "-0.0000005 s", "0.5 us", "0.6 us",
    "1 fortnight", "infinity", "1 day infinity", "-infinity", "1 timezone", "@ 1 minute", "@", "1 @ day", "1 dec", "1 c", "1 mil",
    "1 century 2 decades", "1 hour 30", "30 1 hour", "1 day 30", "1 hour 2 3", "1 week 2 days", "1 weeks 3", "1 +2:3", "1 -2:3", "1 - 2:3",
    "1:2 am", "1 am", "jan 1", "1 day at 1:2", "$1 day", "1 day!", "1,5 days", "1_000 days", "- 1 day", "+ 1.5 day", "1 day -1 hour",
    "1 day - 1 hour", "1/2 day", "1/2", "1/2/3", "1.2.3", "1.2.3 days", "1-2-3", "1-2-3 days", "-1-2-3", "1-2.5", "-1-2 days", "1:2:3-4",
];

/// Returns a text that is likely to be valid: a date and a time, or numbers with units.
#[rustfmt::skip]
fn likely_text(rng: &mut TestRng) -> String {
    if rng.percent(40) {
        let units = ["years", "mon", "weeks", "days", "d", "hours", "min", "s", "ms", "us", "decade", "c", "mil", ""];
        let numbers = ["1", "-2", "3.5", "-0.25", "+7", ".3", "100", "0.0000015", "2147483647", "1-2", "-1:30", "04:05:06.78", "1234567.891"];
        let count = 1 + rng.below(4);
        let parts: Vec<_> = (0..count).map(|_| format!("{} {}", rng.pick(&numbers), rng.pick(&units))).collect();
        return format!("{}{}{}", rng.pick(&["", "", "@ "]), parts.join(" "), rng.pick(&["", "", " ago"]));
    }
    let (day, month, year) = (rng.below(32), rng.below(13), rng.pick(&["1999", "2000", "24", "69", "00070", "2001", "99", "5", "290000"]));
    let name = rng.pick(&["jan", "February", "mar", "sept", "dec"]);
    let date = match rng.below(9) {
        0 => format!("{year}-{month:02}-{day}"),
        1 => format!("{day}/{month}/{year}"),
        2 => format!("{day}.{month}.{year}"),
        3 => format!("{name} {day}, {year}"),
        4 => format!("{day}-{name}-{year}"),
        5 => format!("{year}-{name}-{day:02}"),
        6 => format!("{year}{month:02}{day:02}"),
        7 => format!("{name} {day} {year}"),
        _ => format!("{year}.{:03}", rng.below(368)),
    };
    let time = rng.pick(&["", "04:05", "0405", "23:59:59.9999995", "040506", "040506.789", "4:5:6", "12:00:00 PM", "12:30 am", "24:00", "24:00:00.1", "13:00 pm"]);
    let zone = rng.pick(&["", "", "z", " UTC", "+02", "-0830", " +05:30:15", " PST", " CEST", "-15:59:59", "+16"]);
    let era = rng.pick(&["", "", "", " BC", " AD"]);
    let blank = rng.pick(&[" ", "T", "  ", ", "]);
    match rng.below(4) {
        0 => format!("{time}{zone}"),
        1 => format!("{date}{era}"),
        _ => format!("{date}{blank}{time}{zone}{era}"),
    }
}

/// Returns a random text of parts of dates, times and intervals.
#[rustfmt::skip]
fn random_text(rng: &mut TestRng) -> String {
    const PARTS: &[&str] = &[
        "1", "2", "05", "12", "13", "31", "32", "99", "000", "060", "366", "1999", "2000", "2024", "20240229", "240229", "0405", "040506", "235960",
        "12:30", "12:30:15", "12:30:15.5", "04:05.5", "24:00", "00:00:60", "12:30:15.9999999", "-5", "+5", "-08", "+0530", "+05:30", "-05:30:15",
        "+1.5", "-1-2", "1-2", "jan", "Feb", "march", "sept", "dec", "mon", "sunday", "am", "pm", "AD", "bc", "t", "T", "z", "utc", "EST", "pdt",
        "dst", "at", "on", "infinity", "epoch", "allballs", "foo", "2000-01-02", "2000/1/2", "1.2.2000", "2-jan-2000", "jan-2-99", "2000.366", "1.5",
        ".5", "1/2/99", "day", "days", "hour", "h", "m", "min", "mons", "month", "year", "y", "week", "decade", "ago", "@", "s", "sec", "ms",
        "microseconds", "P1Y", "P1Y2M", "PT1H", "T1H", "1.5 days", "-1 day", "3 hours", "2 years", "1 mon", "04:05:06", "-0.5", "d", "j", "2451545",
    ];
    let mut text = rng.pick(&["", "", "", "", " ", "P", "@ "]).to_owned();
    for _ in 0..1 + rng.below(5) {
        text.push_str(rng.pick(PARTS));
        text.push_str(rng.pick(&[" ", " ", " ", " ", "", "", "-", "/", ":", ".", ",", "T", "+", "  "]));
    }
    if rng.percent(90) { text.trim_end().to_owned() } else { text }
}

fn schema(version: u32) -> Schema {
    Schema {
        table: None,
        columns: vec![Column::new("t", 25, "text")],
        database_collation: Collation::C,
        server_version: version,
    }
}

#[derive(Default)]
struct TextTally {
    read: usize,
    failed: usize,
    unsure: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl TextTally {
    fn compare(&mut self, version: u32, text: &str, kind: &str, theirs: &str) {
        let row = [Some(text.as_bytes())];
        let clause = format!("t::{kind}::text = $1");
        let filter = Filter::parse(&clause, &[theirs], &schema(version)).expect("it is a clause");
        match filter.matches(&row) {
            Ok(Some(true)) => self.read += 1,
            Err(error) if error.sqlstate() == theirs => self.failed += 1,
            Err(error) if error.sqlstate() == "0A000" => {
                *self.unsure.entry(error.to_string()).or_default() += 1;
            }
            ours => self.wrong.push(format!("{version} {kind} '{text}': {ours:?}, Postgres: {theirs}")),
        }
    }
}

/// Compares all texts as every type.
fn compare(server: &ReferenceServer, texts: &[String], kinds: &[&str], tally: &mut TextTally) {
    let version = server.schema.server_version;
    for texts in texts.chunks(500) {
        for kind in kinds {
            let quoted: Vec<_> =
                texts.iter().map(|text| format!("('{}')", text.replace('\'', "''"))).collect();
            let sql =
                format!("{SETTINGS} SELECT read(v, '{kind}') FROM (VALUES {}) AS v (v)", quoted.join(", "));
            for (text, row) in texts.iter().zip(server.run(&sql)) {
                let theirs = row.into_iter().next().flatten().expect("it is never NULL");
                tally.compare(version, text, kind, &theirs);
            }
        }
    }
}

#[test]
fn texts_of_dates_and_times_are_read_as_by_postgres() {
    let seed = forebay_testkit::seed();
    let count = std::env::var("FOREBAY_TEXTS").map_or(1_500, |count| count.parse().expect("a number"));
    for version in [15, 18] {
        let server = ReferenceServer::start(version, "", &Collation::C, seed, 1);
        server.run(READ);
        let mut rng = TestRng::new(seed + u64::from(version));
        let mut texts: Vec<_> = FORMS.iter().map(|&text| text.to_owned()).collect();
        texts.extend((0..count).flat_map(|_| [random_text(&mut rng), likely_text(&mut rng)]));
        let mut tally = TextTally::default();
        compare(&server, &texts, MOMENTS, &mut tally);
        compare(&server, &texts, &["interval"], &mut tally);
        eprintln!("{version}: {} read, {} failed, unsure {:?}", tally.read, tally.failed, tally.unsure);
        assert!(tally.wrong.is_empty(), "{} wrong:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
        assert!(tally.read > texts.len() / 2, "{} read", tally.read);
        let unsure: usize = tally.unsure.values().sum();
        assert!(unsure < (tally.read + tally.failed) / 4, "{unsure} unsure");
    }
}
