//! Random clauses that depend on every digit of a function's result.

use super::Grammar;

const ZONES: &[&str] = &[
    "UTC",
    "Etc/GMT+5",
    "etc/gmt-14",
    "EST",
    "jst",
    "EDT",
    "+05",
    "-05:30",
    "5",
    "UTC+3",
    "<+03>-3",
    "<-0130>1:30:15",
    "xyz-8",
];
const FIELDS: &[&str] =
    &["second", "hour", "day", "week", "month", "quarter", "year", "decade", "century", "microseconds"];
const NUMBER_TEXTS: &[&str] = &[
    "1_000",
    "0x1F",
    "0X7fff",
    "-0o17",
    "0b_101",
    "+0x_1_0",
    "1__0",
    "_1",
    "1_",
    "0x",
    "0b12",
    "1_0.5_0",
    "1._5",
    "1_.5",
    "1e1_0",
    "1e_1",
    "0x1.5",
    "0x8000_0000",
    "-0x8000",
    "0xffff_ffff_ffff_ffff_ffff",
    " 1_2 ",
    "- 1_2",
];

impl Grammar {
    /// Returns a condition that half of all results satisfy, each by its text.
    pub(super) fn digest_condition(&mut self, depth: usize) -> String {
        let made = match self.rng.below(4) {
            0 => self.power(depth),
            1 => self.number_of_numbers(depth),
            2 => self.moment_in_zone(depth),
            _ => self.moment_of_fields(depth),
        };
        format!("ascii(right(md5(({made})::text), 1)) % 2 = {}", self.rng.below(2))
    }

    fn power(&mut self, depth: usize) -> String {
        let base = match self.rng.below(3) {
            0 => self.value("numeric", depth),
            1 => format!("({} / {})", self.value("numeric", 0), self.value("numeric", 0)),
            _ => self
                .rng
                .pick(&[
                    "1.000001",
                    "0.99",
                    "-3.0",
                    "2.5",
                    "0.001",
                    "10",
                    "1234.5678901234567890",
                    "35.37226395434090979167",
                    "9.589342761569766286616483",
                    "-0.07",
                    "7.00",
                ])
                .to_owned(),
        };
        let exponent = match self.rng.below(12) {
            0 => self.value("numeric", 0),
            1 => self.rng.pick(&["i2", "j4::numeric", "i2 / 7"]).to_owned(),
            _ => self
                .rng
                .pick(&[
                    "2", "3", "-1", "-2.0", "0", "1", "5", "-7", "10.000", "-17", "64", "100", "-300", "1000",
                ])
                .to_owned(),
        };
        // One of the two is numeric, or both are.
        match self.rng.below(3) {
            0 => format!("{base}::numeric ^ {exponent}"),
            1 => format!("pow({base}::numeric, {exponent})"),
            _ => format!("power({base}::numeric, {exponent}::numeric)"),
        }
    }

    fn number_of_numbers(&mut self, depth: usize) -> String {
        let (left, right) = (self.value("numeric", depth), self.value("numeric", 0));
        match self.rng.below(6) {
            0 => format!("sqrt({left})"),
            1 => format!("sqrt(abs({left}) / 7)"),
            2 => format!("sqrt({left} * {right})"),
            3 => format!("{}({left}, {right})", self.rng.pick(&["gcd", "lcm"])),
            4 => {
                let kind = self.rng.pick(&["numeric", "int2", "int4", "int8"]);
                format!("'{}'::{kind}", self.rng.pick(NUMBER_TEXTS))
            }
            _ => {
                let numbers = ["1_000", "0x1F", "0b11", "1_0.2_5", "0o7_7", "1e1_0", "0xffff_ffff_ff"];
                format!("{left} + {}", self.rng.pick(&numbers))
            }
        }
    }

    fn moment_in_zone(&mut self, depth: usize) -> String {
        let (zone, field) = (self.rng.pick(ZONES), self.rng.pick(FIELDS));
        match self.rng.below(4) {
            0 => {
                let kind = self.rng.pick(&["timestamp", "timestamptz", "timetz"]);
                format!("{} AT TIME ZONE '{zone}'", self.value(kind, depth))
            }
            1 => format!("timezone('{zone}', {})", self.value("timestamp", depth)),
            _ => format!("date_trunc('{field}', {}, '{zone}')", self.value("timestamptz", depth)),
        }
    }

    fn moment_of_fields(&mut self, depth: usize) -> String {
        let kind = self.rng.pick(&["timestamp", "timestamptz"]);
        let (moment, other) = (self.value(kind, depth), self.value(kind, 0));
        let seconds =
            self.rng.pick(&["0", "59.9999996", "60", "60.0000006", "-0.1", "1.5", "12.3456785", "f8"]);
        let hour = self.rng.pick(&["0", "23", "24", "i2", "12"]);
        let minute = self.rng.pick(&["0", "59", "60", "30"]);
        let year = self.rng.pick(&["2024", "-44", "0", "294276", "i4", "-4713"]);
        let (month, day) = (self.rng.pick(&["1", "2", "12", "13"]), self.rng.pick(&["1", "29", "31"]));
        match self.rng.below(5) {
            0 => format!("make_time({hour}, {minute}, {seconds})"),
            1 => {
                let call = self.rng.pick(&["make_timestamp", "make_timestamptz"]);
                format!("{call}({year}, {month}, {day}, {hour}, {minute}, {seconds})")
            }
            2 => {
                let length = self.rng.pick(&[
                    "15 minutes",
                    "1 day",
                    "7 days 0.000001 s",
                    "1 month",
                    "0",
                    "1 us",
                    "90 s",
                ]);
                let origin = self.rng.pick(&["2001-01-01", "0050-01-01 BC", "1999-12-31 23:59:59"]);
                let origin = if self.rng.percent(70) { format!("'{origin}'::{kind}") } else { other };
                format!("date_bin('{length}', {moment}, {origin})")
            }
            _ => format!("age({moment}, {other})"),
        }
    }
}
