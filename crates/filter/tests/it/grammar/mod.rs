//! Random clauses of the supported grammar, mostly well typed.

mod clock;
mod digest;
mod flat;
mod json;
mod operators;
mod special;
mod texts;

use forebay_testkit::TestRng;

use crate::table::{COLUMNS, values};

const NUMBERS: &[&str] = &["int2", "int4", "int8", "numeric", "float4", "float8"];
const INTEGERS: &[&str] = &["int2", "int4", "int8"];
const TEXTS: &[&str] = &["text", "varchar", "bpchar"];
const MOMENTS: &[&str] = &["date", "timestamp", "timestamptz"];
const ARRAYS: &[&str] =
    &["int4[]", "text[]", "numeric[]", "date[]", "mood[]", "bytea[]", "inet[]", "int4range[]"];
const RANGES: &[&str] = &["int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"];
const SCALARS: &[&str] = &[
    "bool",
    "int2",
    "int4",
    "int8",
    "numeric",
    "float4",
    "float8",
    "text",
    "varchar",
    "bpchar",
    "uuid",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "interval",
    "jsonb",
    "bytea",
    "inet",
    "cidr",
    "macaddr",
    "int4range",
    "int8range",
    "numrange",
    "tsrange",
    "tstzrange",
    "daterange",
    "int4multirange",
    "int8multirange",
    "nummultirange",
    "tsmultirange",
    "tstzmultirange",
    "datemultirange",
    "mood",
    "mood",
    "inet",
];
const COMPARISONS: &[&str] = &["=", "<>", "!=", "<", "<=", ">", ">="];
const EQUALITIES: &[&str] = &["=", "<>"];

/// Returns whether the database's collation orders values of the type.
fn is_collated(kind: &str) -> bool {
    let kind = kind.trim_end_matches("[]");
    TEXTS.contains(&kind) || kind == "jsonb"
}

pub(crate) struct Grammar {
    rng: TestRng,
    /// Whether clauses may order texts.
    orders_texts: bool,
    /// Percentage of columns of texts with `COLLATE "C"`.
    explicit_c: usize,
}

impl Grammar {
    pub(crate) fn new(rng: TestRng, orders_texts: bool) -> Self {
        Grammar { rng, orders_texts, explicit_c: 0 }
    }

    /// Returns the grammar for a table with nondeterministic columns.
    pub(crate) fn nondeterministic(rng: TestRng, orders_texts: bool) -> Self {
        Grammar { rng, orders_texts, explicit_c: 70 }
    }

    pub(crate) fn clause(&mut self) -> String {
        let depth = 1 + self.rng.below(3);
        self.condition(depth)
    }

    /// Returns a clause that is mostly about texts.
    pub(crate) fn text_clause(&mut self) -> String {
        match self.rng.below(6) {
            4 => self.text_call(1),
            5 => self.rows(),
            0 => self.like(1),
            1 => {
                let call = self.rng.pick(&["lower", "upper"]);
                let operator = self.rng.pick(EQUALITIES);
                format!("{call}({}) {operator} {}", self.text_of(1), self.text_of(0))
            }
            2 if self.rng.percent(50) => self.citext(),
            2 => {
                let (kind, operator) = (self.rng.pick(TEXTS), self.comparison("text"));
                format!("{} {operator} {}", self.value(kind, 1), self.text_of(1))
            }
            _ => self.condition(1),
        }
    }

    fn comparison(&mut self, kind: &str) -> &'static str {
        if is_collated(kind) && !self.orders_texts {
            self.rng.pick(EQUALITIES)
        } else {
            self.rng.pick(COMPARISONS)
        }
    }

    fn any_kind(&mut self) -> &'static str {
        if self.rng.percent(15) { self.rng.pick(ARRAYS) } else { self.rng.pick(SCALARS) }
    }

    fn condition(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.simple(0);
        }
        match self.rng.below(12) {
            0 | 1 => format!("{} AND {}", self.condition(depth - 1), self.condition(depth - 1)),
            2 => format!("({} OR {})", self.condition(depth - 1), self.condition(depth - 1)),
            3 => format!("NOT ({})", self.condition(depth - 1)),
            4 => {
                let test = self.rng.pick(&[
                    "TRUE",
                    "FALSE",
                    "UNKNOWN",
                    "NULL",
                    "NOT NULL",
                    "NOT TRUE",
                    "NOT UNKNOWN",
                ]);
                format!("({}) IS {test}", self.condition(depth - 1))
            }
            5 => {
                let (a, b) = (self.condition(depth - 1), self.condition(depth - 1));
                format!("CASE WHEN {a} THEN {b} ELSE {} END", self.condition(0))
            }
            _ => self.simple(depth - 1),
        }
    }

    fn simple(&mut self, depth: usize) -> String {
        match self.rng.below(30) {
            28 | 29 => self.digest_condition(depth),
            23 => self.json_condition(depth),
            0..=3 => {
                let kind = self.any_kind();
                let operator = self.comparison(kind);
                format!("{} {operator} {}", self.value(kind, depth), self.partner(kind, depth))
            }
            4 => self.between(depth),
            5 => {
                let kind = self.rng.pick(SCALARS);
                let count = 1 + self.rng.below(4);
                let items: Vec<_> = (0..count).map(|_| self.partner(kind, 0)).collect();
                let not = self.rng.pick(&["", "NOT "]);
                format!("{} {not}IN ({})", self.value(kind, depth), items.join(", "))
            }
            6 => {
                let kind = self.any_kind();
                let not = self.rng.pick(&["", "NOT "]);
                format!("{} IS {not}DISTINCT FROM {}", self.value(kind, depth), self.partner(kind, depth))
            }
            7 => {
                let kind = self.any_kind();
                let test = self.rng.pick(&["IS NULL", "IS NOT NULL", "ISNULL", "NOTNULL"]);
                format!("({}) {test}", self.value(kind, depth))
            }
            8 | 9 => self.like(depth),
            10 => {
                let array = self.rng.pick(ARRAYS);
                let element = array.trim_end_matches("[]");
                let (operator, quantifier) =
                    (self.comparison(element), self.rng.pick(&["ANY", "ALL", "SOME"]));
                format!(
                    "{} {operator} {quantifier} ({})",
                    self.value(element, depth),
                    self.value(array, depth)
                )
            }
            11 | 12 => {
                let array = self.rng.pick(ARRAYS);
                let operator = self.rng.pick(&["@>", "<@", "&&"]);
                format!("{} {operator} {}", self.value(array, depth), self.value(array, depth))
            }
            22 if self.rng.percent(40) => self.citext(),
            24 if self.rng.percent(50) => self.multirange(depth),
            24 | 25 => self.range_or_network(depth),
            20 | 21 => self.array_function(depth),
            13 => {
                self.rng.pick(&["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "true", "b = true"]).to_string()
            }
            14 => self.mixed(depth),
            16 => self.clock_part(depth),
            17 => self.rounded(depth),
            18 => self.clock_text(),
            15 => {
                let test = [
                    "mood = 'sad'",
                    "mood::text = 'happy'",
                    "mood IN ('sad', 'happy')",
                    "mood IS NULL",
                    "js IS NOT NULL",
                    "mood <> 'it''s'",
                    "mood IS DISTINCT FROM 'sad'",
                    "upper(mood::text) = 'SAD'",
                ];
                self.rng.pick(&test).to_string()
            }
            19..=21 => self.text_call(depth),
            22 => self.rows(),
            _ => {
                let array = self.rng.pick(ARRAYS);
                let operator = self.rng.pick(&["=", "<>", "IS NOT NULL AND 1 ="]);
                format!("array_ndims({}) {operator} {}", self.value(array, depth), 1 + self.rng.below(2))
            }
        }
    }

    fn between(&mut self, depth: usize) -> String {
        let kind = loop {
            let kind = self.any_kind();
            if self.orders_texts || !is_collated(kind) {
                break kind;
            }
        };
        let (not, symmetric) = (self.rng.pick(&["", "NOT "]), self.rng.pick(&["", "SYMMETRIC "]));
        let (low, high) = (self.partner(kind, 0), self.partner(kind, 0));
        format!("{} {not}BETWEEN {symmetric}{low} AND {high}", self.value(kind, depth))
    }

    fn like(&mut self, depth: usize) -> String {
        let operator = self.rng.pick(&["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE", "~~", "!~~*"]);
        let (text, pattern) = (self.text_of(depth), self.pattern());
        match self.rng.below(6) {
            0 if !operator.contains('~') => {
                let escape = self.rng.pick(&["#", "", "a", "\\", "é"]);
                format!("{text} {operator} {pattern} ESCAPE '{escape}'")
            }
            1 => format!("like({text}, {pattern})"),
            2 => format!("{text} {operator} ANY (ARRAY[{pattern}, {}])", self.pattern()),
            _ => format!("{text} {operator} {pattern}"),
        }
    }

    fn pattern(&mut self) -> String {
        if self.rng.percent(15) {
            return self.text_of(0);
        }
        let parts = ["%", "_", "a", "b", "A", "é", "É", "\\%", "\\\\", "日", "#", "ab", " ", "\\"];
        let count = self.rng.below(5);
        let pattern: String = (0..count).map(|_| self.rng.pick(&parts)).collect();
        format!("'{pattern}'")
    }

    fn text_of(&mut self, depth: usize) -> String {
        let kind = self.rng.pick(TEXTS);
        self.value(kind, depth)
    }

    /// Returns operands of different types, for which Postgres must find casts.
    fn mixed(&mut self, depth: usize) -> String {
        let kinds =
            self.rng.pick(&[NUMBERS, NUMBERS, TEXTS, MOMENTS, &["time", "timetz"], &["time", "interval"]]);
        let (left, right) = (self.rng.pick(kinds), self.rng.pick(kinds));
        let operator = self.comparison(left);
        format!("{} {operator} {}", self.value(left, depth), self.value(right, depth))
    }

    /// Returns an operand to compare with a value of this type.
    fn partner(&mut self, kind: &str, depth: usize) -> String {
        match self.rng.below(4) {
            0 => self.unknown(kind),
            1 => self.constant(kind),
            _ => self.value(kind, depth),
        }
    }

    fn unknown(&mut self, kind: &str) -> String {
        if self.rng.percent(5) {
            return "NULL".to_owned();
        }
        format!("'{}'", self.rng.pick(values(kind)).replace('\'', "''"))
    }

    fn constant(&mut self, kind: &str) -> String {
        if INTEGERS.contains(&kind) && self.rng.percent(50) {
            return self.rng.pick(&["0", "1", "2", "-1", "3", "42", "100"]).to_string();
        }
        if kind == "numeric" && self.rng.percent(50) {
            return self.rng.pick(&["0.1", "1.50", "-2.5", "1e3", "12345678901234567890"]).to_string();
        }
        if kind == "bool" {
            return self.rng.pick(&["true", "false", "'t'::bool", "NULL::bool"]).to_string();
        }
        let unknown = self.unknown(kind);
        match self.rng.below(3) {
            0 => format!("CAST({unknown} AS {kind})"),
            1 if !kind.ends_with(']') && unknown != "NULL" => format!("{kind} {unknown}"),
            _ => format!("{unknown}::{kind}"),
        }
    }

    fn column(&mut self, kind: &str) -> String {
        let columns: Vec<_> = COLUMNS.iter().filter(|shown| shown.kind == kind).collect();
        if columns.is_empty() {
            return self.constant(kind);
        }
        let name = self.rng.pick(&columns).name;
        if TEXTS.contains(&kind) && self.rng.percent(self.explicit_c) {
            return format!("({name} COLLATE \"C\")");
        }
        match self.rng.below(8) {
            0 => format!("rows.{name}"),
            1 if !name.starts_with('"') => name.to_uppercase(),
            _ => name.to_owned(),
        }
    }

    /// Returns an expression of this type.
    pub(super) fn value(&mut self, kind: &str, depth: usize) -> String {
        if depth == 0 || self.rng.percent(35) {
            return if self.rng.percent(80) { self.column(kind) } else { self.constant(kind) };
        }
        let depth = depth - 1;
        match self.rng.below(11) {
            10 => format!("NULLIF({}, {})", self.value(kind, depth), self.partner(kind, 0)),
            0 => format!("COALESCE({}, {})", self.value(kind, depth), self.value(kind, depth)),
            1 if self.orders_texts || !is_collated(kind) => {
                let call = self.rng.pick(&["GREATEST", "least"]);
                format!("{call}({}, {})", self.value(kind, depth), self.value(kind, depth))
            }
            2 => {
                let (when, then) = (self.simple(0), self.value(kind, depth));
                format!("CASE WHEN {when} THEN {then} ELSE {} END", self.value(kind, 0))
            }
            3 => {
                let other = self.rng.pick(SCALARS);
                let (value, when) = (self.value(other, depth), self.partner(other, 0));
                format!(
                    "CASE {value} WHEN {when} THEN {} ELSE {} END",
                    self.value(kind, 0),
                    self.value(kind, 0)
                )
            }
            _ => self.composed(kind, depth),
        }
    }
}
