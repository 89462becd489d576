//! Random expressions of each type, built from its operators and functions.

use super::{Grammar, INTEGERS, NUMBERS};

impl Grammar {
    pub(super) fn composed(&mut self, kind: &str, depth: usize) -> String {
        match kind {
            "bool" => format!("({})", self.simple(depth)),
            "int2" | "int4" | "int8" => self.integer(kind, depth),
            "numeric" => self.numeric(depth),
            "float4" | "float8" => self.float(kind, depth),
            "text" | "varchar" | "bpchar" => self.text(kind, depth),
            "uuid" => format!("({})::text::uuid", self.value("uuid", depth)),
            "date" => match self.rng.below(5) {
                0 => format!("({} + {})", self.value("date", depth), self.small()),
                1 => format!("({} - {})", self.value("date", depth), self.small()),
                2 => format!("({})::date", self.value("timestamp", depth)),
                3 => format!("({})[{}]", self.value("date[]", depth), self.rng.below(3)),
                _ => format!("({})::date", self.value("timestamptz", depth)),
            },
            "time" => match self.rng.below(3) {
                0 => format!("({} + {})", self.value("time", depth), self.value("interval", depth)),
                1 => format!("({})::time", self.value("timestamp", depth)),
                _ => format!("({})::time(3)", self.value("interval", depth)),
            },
            "timetz" => match self.rng.below(3) {
                0 => format!("({} - {})", self.value("timetz", depth), self.value("interval", depth)),
                1 => format!("({})::timetz", self.value("timestamptz", depth)),
                _ => format!("timezone(interval '-5 hours', {})", self.value("timetz", depth)),
            },
            "timestamp" => match self.rng.below(5) {
                0 => format!("({} + {})", self.value("timestamp", depth), self.value("interval", depth)),
                1 => format!("({} - {})", self.value("date", depth), self.value("interval", depth)),
                2 => format!("({} + {})", self.value("date", depth), self.value("time", depth)),
                3 => format!("({} AT TIME ZONE 'UTC')", self.value("timestamptz", depth)),
                _ => format!("({})::timestamp({})", self.value("timestamptz", depth), self.rng.below(7)),
            },
            "timestamptz" => match self.rng.below(4) {
                0 => format!("({} - {})", self.value("timestamptz", depth), self.value("interval", depth)),
                1 => format!("timezone('utc', {})", self.value("timestamp", depth)),
                2 => format!("({} + {})", self.value("date", depth), self.value("timetz", depth)),
                _ => format!("({})::timestamptz", self.value("date", depth)),
            },
            "interval" => self.interval(depth),
            "jsonb" => self.json(depth),
            "bytea" if self.rng.percent(50) => {
                format!("({} || {})", self.value("bytea", depth), self.value("bytea", depth))
            }
            "bytea" | "macaddr" => format!("({})::text::{kind}", self.value(kind, depth)),
            "inet" | "cidr" => {
                let from = self.rng.pick(&["inet", "cidr"]);
                format!("({})::{kind}", self.value(from, depth))
            }
            "mood" => format!("({})[{}]", self.value("mood[]", depth), 1 + self.rng.below(2)),
            "int4range" if self.rng.percent(40) => format!("({})[1]", self.value("int4range[]", depth)),
            "int4range" | "int8range" | "numrange" if self.rng.percent(30) => {
                format!("({})::text::{kind}", self.value(kind, depth))
            }
            ranges if ranges.ends_with("multirange") => self.column(ranges),
            range if range.ends_with("range") => self.range(range, depth),
            array => self.array(array, depth),
        }
    }

    fn small(&mut self) -> String {
        self.rng.pick(&["1", "30", "i4", "j4", "365", "-1", "i2"]).to_string()
    }

    fn integer(&mut self, kind: &str, depth: usize) -> String {
        match self.rng.below(9) {
            8 => format!("({})::{kind}", self.integer_of_text(depth)),
            0..=2 => {
                let operator = self.rng.pick(&["+", "-", "*", "/", "%", "&", "|", "#"]);
                format!("({} {operator} {})", self.value(kind, depth), self.value(kind, depth))
            }
            3 => {
                let other = self.rng.pick(INTEGERS);
                let operator = self.rng.pick(&["+", "-", "*", "/"]);
                format!("({} {operator} {})", self.value(kind, depth), self.value(other, depth))
            }
            4 => {
                let prefix = self.rng.pick(&["-", "@", "~", "+"]);
                format!("({prefix} {})", self.value(kind, depth))
            }
            5 => {
                let from = self.rng.pick(NUMBERS);
                format!("({})::{kind}", self.value(from, depth))
            }
            6 => match kind {
                "int4" if self.rng.percent(50) => {
                    format!("({})[{}]", self.value("int4[]", depth), self.rng.below(3))
                }
                "int4" => format!("({})::int", self.value("bool", depth)),
                _ => format!("({})::{kind}", self.value("text", 0)),
            },
            _ => format!("({} - {})::{kind}", self.value("date", depth), self.value("date", 0)),
        }
    }

    fn numeric(&mut self, depth: usize) -> String {
        match self.rng.below(6) {
            0..=2 => {
                let operator = self.rng.pick(&["+", "-", "*", "/", "%"]);
                let other = self.rng.pick(&["numeric", "numeric", "int4", "int8"]);
                format!("({} {operator} {})", self.value("numeric", depth), self.value(other, depth))
            }
            3 => format!("(- {})", self.value("numeric", depth)),
            4 => {
                let from = self.rng.pick(NUMBERS);
                let modifier = self.rng.pick(&["", "(10, 2)", "(5)", "(38,10)", "(3,-2)"]);
                format!("({})::numeric{modifier}", self.value(from, depth))
            }
            _ => format!("(@ {})", self.value("numeric", depth)),
        }
    }

    fn float(&mut self, kind: &str, depth: usize) -> String {
        match self.rng.below(6) {
            0 | 1 => {
                let operator = self.rng.pick(&["+", "-", "*", "/"]);
                format!("({} {operator} {})", self.value(kind, depth), self.value(kind, depth))
            }
            2 => {
                let other = self.rng.pick(NUMBERS);
                let operator = self.rng.pick(&["+", "-", "*", "/"]);
                format!("({} {operator} {})::{kind}", self.value(kind, depth), self.value(other, depth))
            }
            3 => format!(
                "({} ^ {})::{kind}",
                self.value("float8", depth),
                self.rng.pick(&["2", "0.5::float8", "-1", "f8"])
            ),
            4 => {
                let from = self.rng.pick(NUMBERS);
                format!("(|/ {})::{kind}", self.value(from, depth))
            }
            _ => {
                let from = self.rng.pick(NUMBERS);
                format!("({})::{kind}", self.value(from, depth))
            }
        }
    }

    fn text(&mut self, kind: &str, depth: usize) -> String {
        let modifier = match kind {
            "bpchar" => self.rng.pick(&["::char(3)", "::bpchar", "::character(6)"]),
            "varchar" => self.rng.pick(&["::varchar(2)", "::varchar", "::character varying(5)"]),
            _ => "::text",
        };
        match self.rng.below(8) {
            6 | 7 => format!("{}{modifier}", self.text_function(depth)),
            0 => format!("{}({}){modifier}", self.rng.pick(&["lower", "upper"]), self.text_of(depth)),
            1 => format!("({} || {}){modifier}", self.text_of(depth), self.text_of(depth)),
            2 => {
                let from = self.any_kind();
                format!("({} || {}){modifier}", self.value("text", depth), self.scalar_of(from, depth))
            }
            3 => {
                let (first, second) = (self.any_kind(), self.any_kind());
                format!(
                    "concat({}, {}, NULL, 'x'){modifier}",
                    self.value(first, depth),
                    self.value(second, 0)
                )
            }
            4 => {
                let from = self.any_kind();
                format!("({}){modifier}", self.value(from, depth))
            }
            _ => format!("({})[{}]{modifier}", self.value("text[]", depth), 1 + self.rng.below(2)),
        }
    }

    fn scalar_of(&mut self, kind: &str, depth: usize) -> String {
        let kind = kind.trim_end_matches("[]").to_owned();
        self.value(&kind, depth)
    }

    fn interval(&mut self, depth: usize) -> String {
        match self.rng.below(7) {
            0 => format!("({} + {})", self.value("interval", depth), self.value("interval", depth)),
            1 => format!("({} - {})", self.value("timestamp", depth), self.value("timestamp", depth)),
            2 => format!(
                "({} * {})",
                self.value("interval", depth),
                self.rng.pick(&["2", "0.5", "1.1", "-3", "f8", "i4"])
            ),
            3 => format!(
                "({} / {})",
                self.value("interval", depth),
                self.rng.pick(&["2", "0.5", "3", "f8", "7"])
            ),
            4 => format!("(- {})", self.value("interval", depth)),
            5 => {
                let call = self.rng.pick(&["justify_days", "justify_hours", "justify_interval"]);
                format!("{call}({})", self.value("interval", depth))
            }
            _ => format!("({} - {})", self.value("time", depth), self.value("time", depth)),
        }
    }

    fn array(&mut self, array: &str, depth: usize) -> String {
        let element = array.trim_end_matches("[]").to_owned();
        match self.rng.below(8) {
            0 => format!("ARRAY[{}, {}]", self.value(&element, depth), self.value(&element, depth)),
            1 => format!("({} || {})", self.value(array, depth), self.value(array, depth)),
            2 => format!("({} || {})", self.value(array, depth), self.value(&element, depth)),
            3 => format!("array_prepend({}, {})", self.value(&element, depth), self.value(array, depth)),
            4 => {
                let bounds = self.rng.pick(&["1:2", ":", "2:", ":1", "0:1", "1:1][1:2", "i4:3"]);
                format!("({})[{bounds}]", self.value(array, depth))
            }
            5 => format!("array_cat({}, {})", self.value(array, depth), self.value(array, depth)),
            6 => format!("ARRAY[{}, {}]::{array}", self.constant(&element), self.unknown(&element)),
            _ => format!("array_append({}, {})", self.value(array, depth), self.value(&element, depth)),
        }
    }
}
