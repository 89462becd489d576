//! Type names in a clause: `double precision`, `varchar(3)[]`.

use forebay_values::IntervalFields;

use super::lexer::SqlTokenKind;
use super::parser::Parser;
use crate::error::FilterError;

/// A type by its name in the catalog: `INTEGER` and `int4` are both `int4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeName {
    /// `None`: `pg_catalog`.
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
    /// The numbers in parentheses after the name.
    pub(crate) modifiers: Vec<i32>,
    pub(crate) is_array: bool,
}

impl TypeName {
    pub(crate) fn plain(name: &str) -> Self {
        TypeName { schema: None, name: name.to_owned(), modifiers: Vec::new(), is_array: false }
    }
}

impl Parser<'_> {
    /// Parses a type name after `::` or in CAST.
    pub(super) fn type_name(&mut self) -> Result<TypeName, FilterError> {
        if self.at_word("setof") {
            return Err(self.unsupported_here("sets"));
        }
        let mut name = self.scalar_type()?;
        loop {
            if self.take_mark("[") {
                if let SqlTokenKind::Integer(_) = self.peek() {
                    self.advance();
                }
                self.expect_mark("]")?;
                name.is_array = true;
            } else if self.take_word("array") {
                if self.take_mark("[") {
                    let SqlTokenKind::Integer(_) = self.peek() else { return Err(self.syntax_error()) };
                    self.advance();
                    self.expect_mark("]")?;
                }
                name.is_array = true;
            } else {
                return Ok(name);
            }
        }
    }

    fn scalar_type(&mut self) -> Result<TypeName, FilterError> {
        let word = match self.peek().clone() {
            SqlTokenKind::Quoted(name) => {
                self.advance();
                return self.named_type(name);
            }
            SqlTokenKind::Word(word) => word,
            _ => return Err(self.syntax_error()),
        };
        if let Some(name) = self.special_type(&word)? {
            return Ok(name);
        }
        if !super::keywords::can_name_function(&word) {
            return Err(self.syntax_error());
        }
        self.advance();
        self.named_type(word)
    }

    /// Parses a type that is a keyword of the grammar. `None`: the word is not such a
    /// keyword.
    pub(super) fn special_type(&mut self, word: &str) -> Result<Option<TypeName>, FilterError> {
        let fixed = match word {
            "int" | "integer" => "int4",
            "smallint" => "int2",
            "bigint" => "int8",
            "real" => "float4",
            "boolean" => "bool",
            "double" if self.follows(1, "precision") => {
                self.advance();
                "float8"
            }
            "dec" | "decimal" | "numeric" => {
                self.advance();
                return self.with_modifiers("numeric").map(Some);
            }
            "float" => {
                self.advance();
                return self.float_type().map(Some);
            }
            "character" | "char" | "varchar" | "nchar" | "national" => {
                return self.character_type().map(Some);
            }
            "time" | "timestamp" => return self.clock_type().map(Some),
            "interval" => {
                self.advance();
                return self.interval_type().map(Some);
            }
            "bit" => return Err(self.unsupported_here("bit strings")),
            _ => return Ok(None),
        };
        self.advance();
        Ok(Some(TypeName::plain(fixed)))
    }

    fn named_type(&mut self, mut name: String) -> Result<TypeName, FilterError> {
        let mut schema = self.schema_of_enum(&name);
        if self.take_mark(".") {
            let qualifier = std::mem::replace(&mut name, self.attribute_name()?);
            schema = (qualifier != "pg_catalog").then_some(qualifier);
        }
        Ok(TypeName { schema, ..self.with_modifiers(&name)? })
    }

    /// Returns the type that one word names.
    pub(super) fn plain_type(&self, name: &str) -> TypeName {
        TypeName { schema: self.schema_of_enum(name), ..TypeName::plain(name) }
    }

    fn with_modifiers(&mut self, name: &str) -> Result<TypeName, FilterError> {
        Ok(TypeName { modifiers: self.modifiers()?, ..TypeName::plain(name) })
    }

    fn modifiers(&mut self) -> Result<Vec<i32>, FilterError> {
        let mut modifiers = Vec::new();
        if !self.take_mark("(") {
            return Ok(modifiers);
        }
        loop {
            let negative = self.take_operator("-");
            let SqlTokenKind::Integer(digits) = self.peek().clone() else { return Err(self.syntax_error()) };
            let Ok(number) = digits.parse::<i32>() else { return Err(self.syntax_error()) };
            self.advance();
            modifiers.push(if negative { -number } else { number });
            if !self.take_mark(",") {
                self.expect_mark(")")?;
                return Ok(modifiers);
            }
        }
    }

    fn float_type(&mut self) -> Result<TypeName, FilterError> {
        let start = self.here();
        match self.modifiers()?[..] {
            [] | [25..=53] => Ok(TypeName::plain("float8")),
            [1..=24] => Ok(TypeName::plain("float4")),
            [bits] if bits < 1 => {
                let message = "precision for type float must be at least 1 bit";
                Err(self.invalid(start, "22023", message.to_owned()))
            }
            [_] => {
                let message = "precision for type float must be less than 54 bits";
                Err(self.invalid(start, "22023", message.to_owned()))
            }
            _ => Err(self.syntax_error()),
        }
    }

    fn character_type(&mut self) -> Result<TypeName, FilterError> {
        let mut varying = self.take_word("varchar");
        if !varying {
            let _ = self.take_word("national");
            if !(self.take_word("character") || self.take_word("char") || self.take_word("nchar")) {
                return Err(self.syntax_error());
            }
            varying = self.take_word("varying");
        }
        let mut name = self.with_modifiers(if varying { "varchar" } else { "bpchar" })?;
        if !varying && name.modifiers.is_empty() {
            name.modifiers.push(1); // `character` alone is character(1); `bpchar` alone isn't.
        }
        Ok(name)
    }

    fn clock_type(&mut self) -> Result<TypeName, FilterError> {
        let base = if self.take_word("time") {
            "time"
        } else {
            self.advance();
            "timestamp"
        };
        let mut name = self.with_modifiers(base)?;
        let zone = self.at_word("with") || self.at_word("without");
        if zone && self.follows(1, "time") && self.follows(2, "zone") {
            if self.at_word("with") {
                name.name.push_str("tz");
            }
            (0..3).for_each(|_| self.advance());
        }
        Ok(name)
    }

    fn interval_type(&mut self) -> Result<TypeName, FilterError> {
        let mut name = TypeName::plain("interval");
        if *self.peek() == SqlTokenKind::Mark("(") {
            name.modifiers = vec![IntervalFields::ALL.modifier(), self.precision()?];
            return Ok(name);
        }
        name.modifiers = self.interval_fields()?;
        Ok(name)
    }

    /// Parses `day to second(3)`, if present. Returns the type modifiers of interval.
    pub(super) fn interval_fields(&mut self) -> Result<Vec<i32>, FilterError> {
        let Some(first) = self.interval_field() else { return Ok(Vec::new()) };
        let mut last = first;
        if self.take_word("to") {
            last = self.interval_field().filter(|last| *last != first).ok_or_else(|| self.syntax_error())?;
        }
        let fields = IntervalFields::range(first, last).ok_or_else(|| self.syntax_error())?;
        let mut modifiers = vec![fields.modifier()];
        if last == "second" && *self.peek() == SqlTokenKind::Mark("(") {
            modifiers.push(self.precision()?);
        }
        Ok(modifiers)
    }

    fn interval_field(&mut self) -> Option<&'static str> {
        IntervalFields::NAMES.iter().map(|(name, _)| *name).find(|name| self.take_word(name))
    }

    fn precision(&mut self) -> Result<i32, FilterError> {
        match self.modifiers()?[..] {
            [digits] if digits >= 0 => Ok(digits),
            _ => Err(self.syntax_error()),
        }
    }
}
