//! Primary expressions (c_expr): constants, names, calls, CASE, ARRAY, parentheses and subscripts.

use super::keywords::{can_name_column, can_name_function};
use super::lexer::SqlTokenKind;
use super::parser::Parser;
use super::{ChoiceFunction, Subscript, SyntaxKind, SyntaxTree};
use crate::error::FilterError;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        match self.peek().clone() {
            SqlTokenKind::Integer(number) | SqlTokenKind::Decimal(number) => {
                self.advance();
                self.node(SyntaxKind::Number(number), at)
            }
            SqlTokenKind::Text(text) => {
                self.advance();
                self.node(SyntaxKind::Text(text), at)
            }
            SqlTokenKind::Parameter(number) => {
                let value = self.parameter(number)?;
                self.advance();
                let value = self.node(SyntaxKind::Text(value), at)?;
                self.subscripts(value)
            }
            SqlTokenKind::Mark("(") => self.parenthesised(),
            SqlTokenKind::Quoted(name) => {
                self.advance();
                self.named(name, at, true, true)
            }
            SqlTokenKind::Word(word) => self.word(&word),
            SqlTokenKind::Operator(_) | SqlTokenKind::Mark(_) | SqlTokenKind::End => Err(self.syntax_error()),
        }
    }

    fn parenthesised(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        self.advance();
        if self.subquery_ahead() {
            return Err(self.misplaced_subquery());
        }
        let inner = self.enclosed()?;
        if self.take_mark(",") {
            let mut items = vec![inner];
            items.extend(self.list_until(")")?);
            if items.len() < 2 {
                return Err(self.syntax_error());
            }
            self.expect_mark(")")?;
            return self.node(SyntaxKind::Row(items), at);
        }
        self.expect_mark(")")?;
        if self.peek() == &SqlTokenKind::Mark(".") {
            return Err(self.unsupported_here("fields of composite values"));
        }
        self.subscripts(inner)
    }

    fn word(&mut self, word: &str) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        match word {
            "true" | "false" => {
                self.advance();
                return self.node(SyntaxKind::Bool(word == "true"), at);
            }
            "null" => {
                self.advance();
                return self.node(SyntaxKind::Null, at);
            }
            "case" => return self.case(),
            "cast" => return self.cast(),
            "array" => return self.array(),
            "exists" if self.call_ahead() => return self.exists(),
            "row" if self.call_ahead() => {
                self.advance();
                self.advance();
                let items = self.list_until(")")?;
                self.expect_mark(")")?;
                return self.node(SyntaxKind::Row(items), at);
            }
            "coalesce" | "greatest" | "least" | "nullif" if self.call_ahead() => return self.choice(word),
            "extract" | "position" | "substring" | "trim" if self.call_ahead() => {
                return self.special_call(word);
            }
            "overlay" | "normalize" | "treat" if self.call_ahead() => {
                return Err(self.unsupported(at, format!("the function {word} is")));
            }
            "current_date" | "current_time" | "current_timestamp" | "localtime" | "localtimestamp" => {
                return Err(self.unsupported_here("functions of the current time"));
            }
            "current_user" | "current_role" | "session_user" | "user" | "current_catalog"
            | "current_schema" => {
                return Err(self.unsupported_here("functions of the session"));
            }
            _ => {}
        }
        if let Some(constant) = self.typed_constant(word)? {
            return Ok(constant);
        }
        let (column, function) = (can_name_column(word), can_name_function(word));
        if !column && !function {
            return Err(self.syntax_error());
        }
        self.advance();
        self.named(word.to_owned(), at, column, function)
    }

    fn call_ahead(&self) -> bool {
        self.mark_follows("(")
    }

    /// Parses `date '2020-01-01'`, `double precision '1'` or `numeric(3, 1) '2'`, if present.
    fn typed_constant(&mut self, word: &str) -> Result<Option<SyntaxTree>, FilterError> {
        let (start, at) = (self.position(), self.here());
        let name = match self.special_type(word) {
            Ok(Some(name)) => Some(name),
            Err(error) if !matches!(error, FilterError::Syntax { .. }) => return Err(error),
            Ok(None) if can_name_function(word) => {
                self.advance();
                Some(self.plain_type(word))
            }
            Ok(None) | Err(_) => None,
        };
        if let (Some(mut name), SqlTokenKind::Text(text)) = (name, self.peek().clone()) {
            let length_ends = self.position() - 1;
            self.advance();
            if word == "interval" && name.modifiers.is_empty() {
                name.modifiers = self.interval_fields()?;
            }
            if matches!(word, "character" | "char" | "nchar" | "national") && !self.is_mark(length_ends, ")")
            {
                name.modifiers.clear(); // Only here, `char` without a length has any length.
            }
            let text = self.node(SyntaxKind::Text(text), at)?;
            return self.node(SyntaxKind::Cast(Box::new(text), name), at).map(Some);
        }
        self.rewind(start);
        Ok(None)
    }

    /// Parses a column, with or without its table, or a call.
    fn named(
        &mut self,
        name: String,
        at: usize,
        column: bool,
        function: bool,
    ) -> Result<SyntaxTree, FilterError> {
        let mut parts = vec![name];
        while self.take_mark(".") {
            if self.peek() == &SqlTokenKind::Operator("*".to_owned()) {
                return Err(self.unsupported_here("whole rows"));
            }
            parts.push(self.attribute_name()?);
        }
        if self.peek() == &SqlTokenKind::Mark("(") {
            if parts.len() == 2 && parts[0] == "pg_catalog" {
                parts.remove(0);
            } else if parts.len() > 1 {
                return Err(self.unsupported(at, format!("the function {} is", parts.join("."))));
            } else if !function {
                return Err(self.syntax_error());
            }
            return self.call(parts.swap_remove(0), at);
        }
        if !column {
            return Err(self.syntax_error());
        }
        let column = self.node(SyntaxKind::Name(parts), at)?;
        self.subscripts(column)
    }

    fn call(&mut self, name: String, at: usize) -> Result<SyntaxTree, FilterError> {
        self.advance();
        for (word, what) in
            [("distinct", "aggregates"), ("all", "aggregates"), ("variadic", "VARIADIC arguments")]
        {
            if self.at_word(word) {
                return Err(self.unsupported_here(what));
            }
        }
        if self.peek() == &SqlTokenKind::Operator("*".to_owned()) {
            return Err(self.unsupported_here("aggregates"));
        }
        let arguments = self.list_until(")")?;
        if matches!(self.peek(), SqlTokenKind::Mark("=>" | ":=")) {
            return Err(self.unsupported_here("arguments by name"));
        }
        self.expect_mark(")")?;
        for (word, what) in [("over", "window functions"), ("filter", "aggregates"), ("within", "aggregates")]
        {
            if self.at_word(word) {
                return Err(self.unsupported_here(what));
            }
        }
        self.node(SyntaxKind::Call(name, arguments), at)
    }

    fn choice(&mut self, word: &str) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        let choice = match word {
            "coalesce" => ChoiceFunction::Coalesce,
            "greatest" => ChoiceFunction::Greatest,
            "nullif" => ChoiceFunction::NullIf,
            _ => ChoiceFunction::Least,
        };
        self.advance();
        self.advance();
        let arguments = self.list_until(")")?;
        if arguments.is_empty() || (choice == ChoiceFunction::NullIf && arguments.len() != 2) {
            return Err(self.syntax_error());
        }
        self.expect_mark(")")?;
        self.node(SyntaxKind::Choice(choice, arguments), at)
    }

    fn cast(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        self.advance();
        self.expect_mark("(")?;
        let operand = self.enclosed()?;
        self.expect_word("as")?;
        let name = self.type_name()?;
        self.expect_mark(")")?;
        self.node(SyntaxKind::Cast(Box::new(operand), name), at)
    }

    fn array(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        self.advance();
        if self.peek() == &SqlTokenKind::Mark("(") {
            return Err(self.misplaced_subquery());
        }
        self.array_items(at)
    }

    /// Parses `[1, 2]` or `[[1], [2]]`, whose inner arrays need no ARRAY.
    fn array_items(&mut self, at: usize) -> Result<SyntaxTree, FilterError> {
        self.expect_mark("[")?;
        let mut items = Vec::new();
        if self.peek() == &SqlTokenKind::Mark("[") {
            self.deeper()?;
            loop {
                let at = self.here();
                items.push(self.array_items(at)?);
                if !self.take_mark(",") {
                    break;
                }
            }
            self.shallower();
        } else {
            items = self.list_until("]")?;
        }
        self.expect_mark("]")?;
        self.node(SyntaxKind::Array(items), at)
    }

    fn case(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        self.advance();
        let operand = if self.at_word("when") { None } else { Some(Box::new(self.enclosed()?)) };
        let mut arms = Vec::new();
        while self.take_word("when") {
            let when = self.enclosed()?;
            self.expect_word("then")?;
            arms.push((when, self.enclosed()?));
        }
        if arms.is_empty() {
            return Err(self.syntax_error());
        }
        let otherwise = if self.take_word("else") { Some(Box::new(self.enclosed()?)) } else { None };
        self.expect_word("end")?;
        self.node(SyntaxKind::Case { operand, arms, otherwise }, at)
    }

    /// Parses all subscripts after `base`: `[1][2:3]`. Columns, parameters and parentheses may have
    /// them.
    fn subscripts(&mut self, base: SyntaxTree) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        if self.peek() != &SqlTokenKind::Mark("[") {
            return Ok(base);
        }
        let mut subscripts = Vec::new();
        while self.take_mark("[") {
            let bound_ahead = !matches!(self.peek(), SqlTokenKind::Mark(":" | "]"));
            let from = if bound_ahead { Some(self.enclosed()?) } else { None };
            subscripts.push(if self.take_mark(":") {
                let bound_ahead = self.peek() != &SqlTokenKind::Mark("]");
                Subscript::Slice(from, if bound_ahead { Some(self.enclosed()?) } else { None })
            } else {
                Subscript::Index(from.ok_or_else(|| self.syntax_error())?)
            });
            self.expect_mark("]")?;
        }
        self.node(SyntaxKind::Subscript(Box::new(base), subscripts), at)
    }

    /// Parses a name after a dot: any word, or a quoted name.
    pub(super) fn attribute_name(&mut self) -> Result<String, FilterError> {
        match self.peek().clone() {
            SqlTokenKind::Word(name) | SqlTokenKind::Quoted(name) => {
                self.advance();
                Ok(name)
            }
            _ => Err(self.syntax_error()),
        }
    }

    pub(super) fn dotted_name(&mut self) -> Result<Vec<String>, FilterError> {
        let mut parts = vec![self.attribute_name()?];
        while self.take_mark(".") {
            parts.push(self.attribute_name()?);
        }
        Ok(parts)
    }
}
