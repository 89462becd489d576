//! Random conditions on ranges, network addresses and arrays.

use super::{ARRAYS, Grammar, RANGES};

fn element(range: &str) -> &'static str {
    match range {
        "int4range" => "int4",
        "int8range" => "int8",
        "numrange" => "numeric",
        "tsrange" => "timestamp",
        "tstzrange" => "timestamptz",
        _ => "date",
    }
}

impl Grammar {
    pub(super) fn range_or_network(&mut self, depth: usize) -> String {
        if self.rng.percent(35) {
            let operator = self.rng.pick(&["<<", "<<=", ">>", ">>=", "&&"]);
            let (left, right) = (self.rng.pick(&["inet", "cidr"]), self.rng.pick(&["inet", "cidr"]));
            return format!("{} {operator} {}", self.value(left, depth), self.partner(right, depth));
        }
        let range = self.rng.pick(RANGES);
        match self.rng.below(8) {
            6 => {
                let operator = self.comparison(range);
                format!("{} {operator} {}", self.range(range, depth), self.partner(range, depth))
            }
            7 => format!("isempty({})", self.range(range, depth)),
            0 => format!("{} @> {}", self.value(range, depth), self.value(element(range), depth)),
            1 => format!("{} <@ {}", self.value(element(range), depth), self.value(range, depth)),
            2 => {
                let call = self.rng.pick(&["isempty", "lower_inc", "upper_inc", "lower_inf", "upper_inf"]);
                format!("{call}({})", self.value(range, depth))
            }
            3 => {
                let (call, kind) = (self.rng.pick(&["lower", "upper"]), element(range));
                let operator = self.comparison(kind);
                format!("{call}({}) {operator} {}", self.value(range, depth), self.partner(kind, depth))
            }
            _ => {
                let operator = self.rng.pick(&["@>", "<@", "&&", "<<", ">>", "&<", "&>", "-|-"]);
                format!("{} {operator} {}", self.value(range, depth), self.partner(range, depth))
            }
        }
    }

    pub(super) fn multirange(&mut self, depth: usize) -> String {
        let range = self.rng.pick(RANGES);
        let ranges = range.replace("range", "multirange");
        let left = self.value(&ranges, depth);
        match self.rng.below(7) {
            0 => format!("{left} @> {}", self.value(element(range), depth)),
            1 => format!("{} <@ {left}", self.value(element(range), depth)),
            2 => format!("{} {} {left}", self.value(range, depth), self.rng.pick(&["@>", "<@", "&&"])),
            3 => format!("{left} {} {}", self.rng.pick(&["@>", "<@", "&&"]), self.value(range, depth)),
            4 => {
                let operator = self.comparison(&ranges);
                format!("{left} {operator} {}", self.partner(&ranges, depth))
            }
            _ => format!("{left} {} {}", self.rng.pick(&["@>", "<@", "&&"]), self.partner(&ranges, depth)),
        }
    }

    /// Returns a range that is made of others, or of bounds.
    pub(super) fn range(&mut self, range: &str, depth: usize) -> String {
        let element = element(range);
        match self.rng.below(6) {
            0 => format!("range_merge({}, {})", self.value(range, depth), self.value(range, depth)),
            1 => format!("{range}({}, {})", self.partner(element, depth), self.partner(element, 0)),
            2 => {
                let flags = self.rng.pick(&["'[]'", "'[)'", "'(]'", "'()'", "'()'", "NULL"]);
                format!("{range}({}, {}, {flags})", self.partner(element, depth), self.partner(element, 0))
            }
            _ => {
                let operator = self.rng.pick(&["+", "-", "*"]);
                format!("({} {operator} {})", self.value(range, depth), self.partner(range, depth))
            }
        }
    }

    pub(super) fn array_function(&mut self, depth: usize) -> String {
        let kind = self.rng.pick(ARRAYS);
        let item = kind.trim_end_matches("[]").to_owned();
        let array = self.value(kind, depth);
        let number = self.rng.below(3);
        match self.rng.below(7) {
            0 => {
                let call = self.rng.pick(&["array_length", "array_upper", "array_lower"]);
                format!("{call}({array}, {number}) = {}", self.rng.below(3))
            }
            1 => format!("cardinality({array}) > {number}"),
            2 if self.rng.percent(50) => {
                let call = self.rng.pick(&["length", "octet_length"]);
                format!("{call}({}) = {number}", self.value("bytea", depth))
            }
            2 => format!("array_dims({array}) = '[1:{number}]'"),
            3 => format!("array_position({array}, {}) = {number}", self.partner(&item, depth)),
            4 => format!("array_position({array}, {}, {number}) > 0", self.partner(&item, 0)),
            5 => format!("array_remove({array}, {}) = {}", self.partner(&item, 0), self.value(kind, 0)),
            _ => {
                let (from, to) = (self.partner(&item, 0), self.partner(&item, 0));
                format!("array_replace({array}, {from}, {to}) = {}", self.value(kind, 0))
            }
        }
    }

    /// Returns a condition on citext columns.
    pub(crate) fn citext(&mut self) -> String {
        let (column, item) = (self.rng.pick(&["ci", "cj", "rows.ci", "CI"]), self.unknown("citext"));
        let other = if self.rng.percent(20) { "cj".to_owned() } else { self.unknown("citext") };
        match self.rng.below(14) {
            10 | 11 => {
                let operator = self.rng.pick(&["=", "<>", "@>", "<@", "&&", "@>", "<@", "&&"]);
                let array = self.unknown("citext[]");
                match self.rng.below(3) {
                    0 => format!("{array} {operator} ac"),
                    _ => format!("AC {operator} {array}"),
                }
            }
            12 => {
                let test = self.rng.pick(&["= ANY", "<> ALL", "= SOME", "<> ANY"]);
                format!("{} {test} (ac)", self.rng.pick(&[item.as_str(), "ci", "NULL"]))
            }
            13 => match self.rng.below(3) {
                0 => format!("cardinality(ac) = {}", self.rng.below(4)),
                1 => format!("array_length(ac, 1) > {}", self.rng.below(3)),
                _ => format!("'A' = ANY (ac::text[]) OR ac::text = {}", self.unknown("citext[]")),
            },
            0 | 1 => format!("{column} {} {other}", self.comparison("text")),
            2 => format!("{column} IN ({item}, {other}, 'B')"),
            3 => {
                let test = self.rng.pick(&["= ANY ('{A,b,NULL}')", "<> ALL ('{É,\"aB\"}')", "= ANY ('{}')"]);
                format!("{column} {test}")
            }
            4 => format!("{column} IS NOT DISTINCT FROM {item}"),
            5 | 6 => {
                let operator = self.rng.pick(&["LIKE", "NOT LIKE", "ILIKE", "!~~*"]);
                format!("{column} {operator} {}", self.pattern())
            }
            7 => format!("{column}::text = {item}"),
            8 => format!("{}({column}) = {item}", self.rng.pick(&["lower", "upper"])),
            _ if self.orders_texts => format!("{column} BETWEEN {item} AND {other}"),
            _ => format!("{column} IS NULL"),
        }
    }
}
