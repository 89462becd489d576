//! Random clauses of jsonb.

use super::{EQUALITIES, Grammar, NUMBERS};

const KEYS: &[&str] = &["'a'", "'b'", "'k'", "'c'", "''", "'é'", "'aa'", "t", "'n'"];
const INDEXES: &[&str] = &["0", "1", "-1", "2", "-3", "i2", "i4"];
const PATHS: &[&str] = &[
    "'{a}'",
    "'{a,b}'",
    "'{b,2,c}'",
    "'{b,-1}'",
    "'{0}'",
    "'{1,1,a}'",
    "'{}'",
    "'{a,NULL}'",
    "at",
    "'{\" 0\",+0}'",
];
/// Texts that Postgres writes in another layout.
const LOOSE: &[&str] = &[
    "'{\"b\":1,\"a\":{\"y\":2,\"x\":[ 1 ,2]}}'",
    "'{\"a\":1,\"a\":2}'",
    "' [1,  2.0e0 ,\"\\u0061\"] '",
    "'{\"k\":\"v\"}'",
    "'1E2'",
    "'{\"a\":{\"b\":{\"c\":\"d\"}}}'",
    "'[[1]]'",
    "'{\"a\":[]}'",
    "'\"\\ud83d\\ude00\"'",
];

impl Grammar {
    /// Returns a clause that is mostly about jsonb.
    pub(crate) fn json_clause(&mut self) -> String {
        let mut clause = self.json_condition(2);
        for _ in 0..self.rng.pick(&[0, 0, 0, 1, 2]) {
            let operator = self.rng.pick(&["AND", "OR", "AND NOT"]);
            clause = format!("({clause} {operator} {})", self.json_condition(1));
        }
        clause
    }

    pub(super) fn json_condition(&mut self, depth: usize) -> String {
        let orders = self.orders_texts;
        let comparison = |grammar: &mut Grammar| match orders {
            true => grammar.rng.pick(&["=", "<>", "<", "<=", ">", ">="]),
            false => grammar.rng.pick(EQUALITIES),
        };
        match self.rng.below(13) {
            0..3 => {
                let (left, operator) = (self.value("jsonb", depth), comparison(self));
                format!("{left} {operator} {}", self.json_partner(depth))
            }
            3..6 => {
                let (operator, left) = (self.rng.pick(&["@>", "<@"]), self.value("jsonb", depth));
                format!("{left} {operator} {}", self.json_partner(depth))
            }
            6 => format!("{} ? {}", self.value("jsonb", depth), self.rng.pick(KEYS)),
            7 => {
                let operator = self.rng.pick(&["?|", "?&"]);
                let names = self.rng.pick(&["'{a,b}'", "'{}'", "at", "'{k,NULL}'", "ARRAY['a', t]"]);
                format!("{} {operator} {names}", self.value("jsonb", depth))
            }
            8 => {
                let kind = self.rng.pick(&["int", "numeric", "float8", "bool", "int2", "int8", "float4"]);
                let constant = if kind == "bool" { "true" } else { "1" };
                format!("({})::{kind} = {constant}", self.value("jsonb", depth))
            }
            9 => {
                let (kind, operator) = (self.rng.pick(NUMBERS), self.rng.pick(&["=", "<", ">="]));
                format!("({})::{kind} {operator} 1", self.json_text(depth))
            }
            10 => {
                let texts = self.rng.pick(&["'v'", "'1'", "'d'", "'null'", "u"]);
                format!(
                    "{} {} {texts}",
                    self.json_text(depth),
                    self.rng.pick(&["=", "<>", "IS DISTINCT FROM"])
                )
            }
            11 => {
                let (base, other) = (self.value("jsonb", depth), self.json_partner(0));
                match self.rng.below(6) {
                    0 => format!(
                        "jsonb_typeof({base}) = {}",
                        self.rng.pick(&["'array'", "'null'", "'number'"])
                    ),
                    1 => format!("jsonb_array_length({base}) < 3"),
                    2 => format!("jsonb_extract_path({base}, {}, 'b') = {other}", self.rng.pick(KEYS)),
                    3 => format!(
                        "jsonb_extract_path_text({base}, 'b', t, {}::text) > ''",
                        self.rng.pick(INDEXES)
                    ),
                    4 => format!("jsonb_exists_any({base}, {})", self.rng.pick(&["at", "'{a,b}'"])),
                    _ => format!("jsonb_contains({base}, {other}) = jsonb_contained({other}, {base})"),
                }
            }
            _ => {
                let items: Vec<_> = (0..3).map(|_| self.json_partner(0)).collect();
                match self.rng.below(3) {
                    0 => format!("{} IN ({})", self.value("jsonb", depth), items.join(", ")),
                    1 => {
                        format!("{} = ANY (ARRAY[{}]::jsonb[])", self.value("jsonb", depth), items.join(", "))
                    }
                    _ => format!("{} IS NOT DISTINCT FROM {}", self.value("jsonb", depth), items[0]),
                }
            }
        }
    }

    fn json_partner(&mut self, depth: usize) -> String {
        match self.rng.below(3) {
            0 => self.rng.pick(LOOSE).to_owned(),
            _ => self.partner("jsonb", depth),
        }
    }

    /// Returns a text that is part of a jsonb value.
    fn json_text(&mut self, depth: usize) -> String {
        let base = self.value("jsonb", depth);
        match self.rng.below(4) {
            0 => format!("({base} #>> {})", self.rng.pick(PATHS)),
            1 => format!("({base} ->> {})", self.rng.pick(INDEXES)),
            2 => format!("{base}::text"),
            _ => format!("({base} ->> {})", self.rng.pick(KEYS)),
        }
    }

    pub(super) fn json(&mut self, depth: usize) -> String {
        let base = self.value("jsonb", depth);
        match self.rng.below(11) {
            0..3 => format!("({base} -> {})", self.rng.pick(KEYS)),
            3 | 4 => format!("({base} -> {})", self.rng.pick(INDEXES)),
            5 => format!("({base} #> {})", self.rng.pick(PATHS)),
            6 => format!("({base})[{}][{}]", self.rng.pick(KEYS), self.rng.pick(INDEXES)),
            7 => format!("({base} || {})", self.json_partner(depth)),
            8 => format!("({base} - {})", self.rng.pick(KEYS)),
            9 => match self.rng.below(3) {
                0 => format!("({base} - {}::int)", self.rng.pick(INDEXES)),
                1 => format!("({base} - ARRAY['a', {}, NULL])", self.rng.pick(KEYS)),
                _ => format!("({base} - at)"),
            },
            _ => format!("{}::jsonb", self.json_text(depth)),
        }
    }
}
