//! Random calls of functions of texts, NULLIF and comparisons of rows.

use super::{Grammar, SCALARS};

impl Grammar {
    /// Returns a comparison of a call with a likely result.
    pub(super) fn text_call(&mut self, depth: usize) -> String {
        match self.rng.below(12) {
            9 => {
                let separator = self.rng.pick(&["','", "','", "t", "',a'"]);
                let part = self.rng.pick(&["1", "2", "3", "-1", "-2", "-3", "i4"]);
                format!("split_part(t || ',a,b,', {separator}, {part}) = {}", self.short_text())
            }
            10 => {
                let call = self.rng.pick(&["right", "left"]);
                format!("{call}(t, {}) = {}", self.count(), self.rng.pick(&["t", "''", "u", "'b'"]))
            }
            0 => {
                let digests = ["0cc175b9c0f1b6a831c399e269772661", "d41d8cd98f00b204e9800998ecf8427e"];
                format!("md5({}) = '{}'", self.text_of(depth), self.rng.pick(&digests))
            }
            1 | 2 => {
                let (call, operator) = (self.integer_of_text(depth), self.comparison("int4"));
                let result = self.rng.pick(&["0", "1", "1", "2", "3", "4", "8", "97", "i4"]);
                format!("{call} {operator} {result}")
            }
            3 | 4 => {
                let (text, prefix) = (self.text_of(depth), self.short_text());
                match self.rng.below(2) {
                    0 => format!("{text} ^@ {prefix}"),
                    _ => format!("starts_with({text}, {prefix})"),
                }
            }
            _ => {
                let (call, operator) = (self.text_function(depth), self.comparison("text"));
                let result = match self.rng.below(3) {
                    0 => self.text_of(0),
                    1 => {
                        self.rng.pick(&["'a'", "'b'", "'A'", "''", "'ab'", "'Ab'", "'aa'", "'é'"]).to_owned()
                    }
                    _ => self.short_text(),
                };
                format!("{call} {operator} {result}")
            }
        }
    }

    fn short_text(&mut self) -> String {
        let texts = ["'a'", "'b'", "''", "'é'", "'ab'", "' '", "'日'", "'x'", "NULL", "t", "bp", "\"V c\""];
        self.rng.pick(&texts).to_owned()
    }

    fn count(&mut self) -> String {
        let counts = ["0", "1", "2", "3", "-1", "-2", "5", "i4", "i2", "NULL", "2147483647", "(-2147483648)"];
        self.rng.pick(&counts).to_owned()
    }

    /// Returns a call whose result is an int4.
    pub(super) fn integer_of_text(&mut self, depth: usize) -> String {
        let text = self.text_of(depth);
        let calls =
            ["length", "char_length", "character_length", "octet_length", "bit_length", "ascii", "length"];
        match self.rng.below(3) {
            0 => format!("position({} IN {text})", self.short_text()),
            1 => format!("strpos({text}, {})", self.short_text()),
            _ => format!("{}({text})", self.rng.pick(&calls)),
        }
    }

    /// Returns a call whose result is a text.
    pub(super) fn text_function(&mut self, depth: usize) -> String {
        let text = self.text_of(depth);
        match self.rng.below(16) {
            0 => format!("substring({text} FROM {} FOR {})", self.count(), self.count()),
            1 => {
                let call = self.rng.pick(&["substr", "substring"]);
                match self.rng.below(2) {
                    0 => format!("{call}({text}, {})", self.count()),
                    _ => format!("{call}({text}, {}, {})", self.count(), self.count()),
                }
            }
            2 => format!("left({text}, {})", self.count()),
            3 => format!("right({text}, {})", self.count()),
            4 => format!("{}({text})", self.rng.pick(&["btrim", "ltrim", "rtrim", "trim"])),
            5 => {
                let (call, set) = (self.rng.pick(&["btrim", "ltrim", "rtrim"]), self.short_text());
                format!("{call}({text}, {set})")
            }
            6 => {
                let (side, set) = (self.rng.pick(&["BOTH", "LEADING", "TRAILING"]), self.short_text());
                format!("trim({side} {set} FROM {text})")
            }
            7 => {
                let to = self.rng.pick(&["'a'", "''", "'bb'", "'é'", "NULL"]);
                format!("replace({}, {}, {to})", self.text_of(0), self.short_text())
            }
            8 => format!("split_part({text}, {}, {})", self.short_text(), self.count()),
            9 => {
                let call = self.rng.pick(&["lpad", "rpad"]);
                let length = self.rng.pick(&["0", "1", "3", "5", "-1", "8", "NULL"]);
                match self.rng.below(2) {
                    0 => format!("{call}({text}, {length})"),
                    _ => format!("{call}({text}, {length}, {})", self.short_text()),
                }
            }
            10 => {
                format!("repeat({}, {})", self.text_of(0), self.rng.pick(&["0", "1", "2", "-1", "3", "NULL"]))
            }
            11 => format!("reverse({text})"),
            12 => {
                let codes = ["97", "233", "26085", "0", "-1", "55296", "1114112", "i4", "128512", "ascii(t)"];
                format!("chr({})", self.rng.pick(&codes))
            }
            13 => format!("md5({text})"),
            14 => format!("translate({text}, {}, {})", self.short_text(), self.short_text()),
            _ if self.orders_texts && self.rng.percent(50) => format!("initcap({text})"),
            _ => {
                let kind = self.rng.pick(SCALARS);
                format!("concat_ws({}, {text}, NULL, {})", self.short_text(), self.value(kind, 0))
            }
        }
    }

    /// Returns a comparison of rows.
    pub(super) fn rows(&mut self) -> String {
        let count = 2 + self.rng.below(2);
        let kinds: Vec<_> = (0..count).map(|_| self.any_kind()).collect();
        let operators: &[&str] = match self.orders_texts {
            true => &["=", "<>", "<", "<=", ">", ">="],
            false => &["=", "<>"],
        };
        let left = self.row_of(&kinds, 1);
        match self.rng.below(6) {
            0 => format!("{left} IS {}NULL", self.rng.pick(&["", "NOT "])),
            1 => {
                let not = self.rng.pick(&["", "NOT "]);
                format!("{left} IS {not}DISTINCT FROM {}", self.row_of(&kinds, 0))
            }
            2 => {
                let not = self.rng.pick(&["", "NOT "]);
                format!("{left} {not}IN ({}, {})", self.row_of(&kinds, 0), self.row_of(&kinds, 0))
            }
            _ => format!("{left} {} {}", self.rng.pick(operators), self.row_of(&kinds, 0)),
        }
    }

    fn row_of(&mut self, kinds: &[&'static str], depth: usize) -> String {
        let items: Vec<_> = kinds.iter().map(|kind| self.partner(kind, depth)).collect();
        format!("{}({})", self.rng.pick(&["", "ROW"]), items.join(", "))
    }
}
