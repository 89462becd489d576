//! Random clauses with functions of dates, times and numbers, compared with likely results.

use super::{COMPARISONS, Grammar};

const FIELDS: &[&str] = &[
    "microseconds",
    "milliseconds",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
    "decade",
    "century",
    "millennium",
    "isoyear",
    "dow",
    "isodow",
    "doy",
    "epoch",
];

impl Grammar {
    /// Returns a comparison of a part of a date or a time.
    pub(super) fn clock_part(&mut self, depth: usize) -> String {
        let field = self.rng.pick(FIELDS);
        let kind = self.rng.pick(&["date", "timestamp", "timestamptz", "time", "timetz", "interval"]);
        let (value, operator) = (self.value(kind, depth), self.rng.pick(COMPARISONS));
        let number = self.rng.pick(&[
            "0",
            "1",
            "2",
            "4",
            "5",
            "20",
            "21",
            "59.999999",
            "500000",
            "2000",
            "-44",
            "-1",
            "366",
        ]);
        let truncated = self.rng.pick(&["timestamp", "timestamptz", "interval"]);
        match self.rng.below(6) {
            0 => format!("extract({field} FROM {value}) {operator} {number}"),
            1 => format!("date_part('{field}', {value}) {operator} {number}"),
            2 => format!("date_part('{field}', {value})::numeric = extract({field} FROM {value})"),
            3 => format!(
                "date_trunc('{field}', {})::text = '{}'",
                self.value(truncated, depth),
                self.rng.pick(&[
                    "2000-01-01 00:00:00",
                    "2024-01-01 00:00:00+00",
                    "P1Y",
                    "PT0S",
                    "2023-01-30 00:00:00"
                ])
            ),
            4 => format!(
                "date_trunc('{field}', {}) {operator} {}",
                self.value(truncated, depth),
                self.value(truncated, depth)
            ),
            _ => {
                let (year, month) = (
                    self.rng.pick(&["2024", "1999", "-44", "0", "i4", "2000"]),
                    self.rng.pick(&["1", "2", "12", "i2", "13"]),
                );
                format!(
                    "make_date({year}, {month}, {}) {operator} {} AND isfinite({}) IS NOT UNKNOWN",
                    self.rng.pick(&["1", "29", "31", "32"]),
                    self.value("date", depth),
                    self.value(truncated, depth)
                )
            }
        }
    }

    /// Returns a comparison of a number's rounded value.
    pub(super) fn rounded(&mut self, depth: usize) -> String {
        let kind = self.rng.pick(&["numeric", "numeric", "float8", "int4", "int8", "int2"]);
        let (value, operator) = (self.value(kind, depth), self.rng.pick(COMPARISONS));
        let number = self.rng.pick(&["0", "1", "-1", "3", "2", "-3", "0.1", "3.14", "10", "42"]);
        let digits = self.rng.pick(&["0", "1", "2", "-1", "4", "-20", "3000", "j4"]);
        let integer = self.rng.pick(&["int2", "int4", "int8"]);
        let (left, right) = (self.value(integer, depth), self.value(integer, depth));
        match self.rng.below(8) {
            0..=2 => {
                let call = self.rng.pick(&["round", "floor", "ceil", "ceiling", "trunc", "sign", "abs"]);
                format!("{call}({value}) {operator} {number}")
            }
            3 => {
                let call = self.rng.pick(&["round", "trunc"]);
                let shown = self.rng.pick(&["0", "3.1", "3.14", "0.10", "-2.5", "12350", "3.1416"]);
                format!("{call}({}, {digits})::text = '{shown}'", self.value("numeric", depth))
            }
            4 => format!("mod({left}, {right}) {operator} {number}"),
            5 => {
                let (left, right) = (self.value("numeric", depth), self.value("numeric", depth));
                format!("div({left}, {right}) {operator} {number} OR mod({left}, {right}) = {number}")
            }
            6 => {
                let call = self.rng.pick(&["gcd", "lcm"]);
                format!("{call}({left}, {right}) {operator} {number}")
            }
            _ => format!(
                "{}({}) {operator} {number}",
                self.rng.pick(&["sqrt", "abs", "round", "trunc"]),
                self.value("float8", depth)
            ),
        }
    }

    /// Returns a comparison of a text column, read as a date, a time or an interval.
    pub(super) fn clock_text(&mut self) -> String {
        let interval = self.rng.pick(&[
            "interval '1' day",
            "interval '1-2' year to month",
            "interval(3) '1.23456 s'",
            "interval '1:2' minute to second",
            "'3 4:05:06'::interval day to second(0)",
            "interval '1.5 months ago'",
            "'P0001-02-03T04:05:06'::interval",
            "iv::interval hour to minute",
            "iv::interval(0)",
            "t::interval day",
        ]);
        let kind = self.rng.pick(&["date", "time", "timetz", "timestamp", "timestamptz", "interval"]);
        match self.rng.below(3) {
            0 => format!("{interval} {} {}", self.rng.pick(COMPARISONS), self.value("interval", 0)),
            1 => format!(
                "{interval}::text = '{}'",
                self.rng.pick(&["P1D", "P1Y2M", "PT1M2S", "PT0S", "P3DT4H5M6S"])
            ),
            _ => format!(
                "({}::text || '{}')::{kind} = {}",
                self.value(kind, 0),
                self.rng.pick(&["", "", " ", " x", " UTC"]),
                self.value(kind, 0)
            ),
        }
    }
}
