//! Random clauses whose meaning depends on operator precedence.

use super::{COMPARISONS, EQUALITIES, Grammar};

impl Grammar {
    /// Returns a clause of several operators without parentheses.
    pub(crate) fn flat(&mut self) -> String {
        if self.rng.percent(10) {
            return self.chaos();
        }
        let mut clause = self.flat_condition();
        for _ in 0..self.rng.below(4) {
            let (operator, next) =
                (self.rng.pick(&["AND", "OR", "AND NOT", "OR NOT", "or", "and"]), self.flat_condition());
            clause = format!("{clause} {operator} {next}");
        }
        clause
    }

    fn flat_condition(&mut self) -> String {
        let kind = self.rng.pick(&["int", "int", "float", "text", "numeric"]);
        let left = self.run(kind);
        let condition = match self.rng.below(9) {
            0..=2 => format!("{left} {} {}", self.rng.pick(COMPARISONS), self.run(kind)),
            3 => format!("{left} BETWEEN {} AND {}", self.run(kind), self.run(kind)),
            4 => format!("{left} IS DISTINCT FROM {}", self.run(kind)),
            5 => format!("{left} NOT IN ({}, {}) = b", self.run(kind), self.run(kind)),
            6 => format!("{left} {} {} IS NOT TRUE", self.rng.pick(COMPARISONS), self.run(kind)),
            7 => format!("{left} IS NOT NULL = b"),
            _ => format!("b = {left} {} ANY (ARRAY[{}]) = b", self.rng.pick(EQUALITIES), self.run(kind)),
        };
        let suffix = ["", "", "", " IS NULL", " IS NOT UNKNOWN", " ISNULL", " = true"];
        format!("{}{condition}{}", self.rng.pick(&["", "", "NOT ", "NOT NOT "]), self.rng.pick(&suffix))
    }

    /// Returns operands of one type, joined by operators.
    fn run(&mut self, kind: &str) -> String {
        let (operands, operators): (&[&str], &[&str]) = match kind {
            "int" => (
                &[
                    "i4",
                    "j4",
                    "i2",
                    "1",
                    "2",
                    "-3",
                    "- i4",
                    "@ i4",
                    "~ i4",
                    "+ j4",
                    "7",
                    "i8",
                    "'5'::int4",
                    "ai[1]",
                    "- 2::int2",
                    "@ -3",
                ],
                &["+", "-", "*", "/", "%", "&", "|", "#", "+", "-", "*"],
            ),
            "float" => (
                &[
                    "f8", "f4", "2", "0.5", "- f8", "@ f8", "|/ 16.0", "-2", "- 3", "1e1", "-f4", "i4",
                    "|/ f8",
                ],
                &["+", "-", "*", "/", "^", "^"],
            ),
            "numeric" => {
                (&["n", "m", "1.5", "- n", "@ m", "-2.5", "i4", "- 0.1", "10"], &["+", "-", "*", "/", "%"])
            }
            _ => (
                &[
                    "t",
                    "u",
                    "'a'",
                    "i4::text",
                    "t COLLATE \"C\"",
                    "lower(t)",
                    "'1'",
                    "at[1]",
                    "\"V c\"",
                    "bp",
                ],
                &["||", "||", "||"],
            ),
        };
        let mut run = self.rng.pick(operands).to_owned();
        for _ in 0..self.rng.below(4) {
            let blank = if self.rng.percent(80) { " " } else { "" };
            run = format!("{run}{blank}{} {}", self.rng.pick(operators), self.rng.pick(operands));
        }
        run
    }

    /// Returns random tokens, which Postgres may accept or refuse.
    fn chaos(&mut self) -> String {
        const OPERATORS: &[&str] = &[
            "+",
            "-",
            "*",
            "/",
            "%",
            "^",
            "&",
            "|",
            "#",
            "=",
            "<",
            ">",
            "<=",
            "<>",
            "||",
            "~~",
            "AND",
            "OR",
            "AND NOT",
            "IS DISTINCT FROM",
            "LIKE",
            "NOT LIKE",
            "IN (1, 2) =",
            "IS NULL =",
            "IS NOT NULL AND",
            "BETWEEN 1 AND",
            "NOT BETWEEN 0 AND",
            "IS TRUE OR",
            "= ANY (ai) =",
            "::int4 +",
            "::text ||",
            "COLLATE \"C\" ||",
            "[1] +",
            "@>",
            "AT TIME ZONE 'UTC' -",
            "IS NULL IS",
            "ISNULL OR",
            "IS NOT TRUE =",
            "NOTNULL =",
            "- -",
            "OR NOT",
        ];
        const OPERANDS: &[&str] = &[
            "i4", "j4", "i2", "1", "2", "-3", "- i4", "@ i4", "~ i4", "|/ i4", "+ 2", "t", "'a'", "b",
            "NOT b", "true", "i4", "n", "ai", "NULL", "@ i4", "- 2", "'1'", "f8", "ts", "i8",
        ];
        let mut clause = self.rng.pick(OPERANDS).to_owned();
        for _ in 0..1 + self.rng.below(5) {
            let blank = if self.rng.percent(90) { " " } else { "" };
            clause = format!("{clause} {}{blank} {}", self.rng.pick(OPERATORS), self.rng.pick(OPERANDS));
        }
        match self.rng.below(3) {
            0 => format!("({clause}) IS NULL"),
            1 => format!("{clause} = {}", self.rng.pick(OPERANDS)),
            _ => clause,
        }
    }
}
