//! Calls with a special syntax: EXTRACT, POSITION, SUBSTRING and TRIM (func_expr_common_subexpr).
//! They become calls of the functions that Postgres calls for them.

use super::lexer::SqlTokenKind;
use super::parser::Parser;
use super::{SyntaxKind, SyntaxTree, TypeName};
use crate::error::FilterError;

impl Parser<'_> {
    /// Parses a special call. The next tokens are the word and a parenthesis.
    pub(super) fn special_call(&mut self, word: &str) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        self.advance();
        self.advance();
        let (name, arguments) = match word {
            "extract" => ("extract", self.extract()?),
            "position" => {
                let needle = self.restricted()?;
                self.expect_word("in")?;
                ("position", vec![self.restricted()?, needle])
            }
            "substring" => ("substring", self.substring()?),
            _ => self.trim()?,
        };
        self.expect_mark(")")?;
        self.node(SyntaxKind::Call(name.to_owned(), arguments), at)
    }

    /// Parses `year FROM x` and `'year' FROM x`.
    fn extract(&mut self) -> Result<Vec<SyntaxTree>, FilterError> {
        let at = self.here();
        let (SqlTokenKind::Word(field) | SqlTokenKind::Quoted(field) | SqlTokenKind::Text(field)) =
            self.peek().clone()
        else {
            return Err(self.syntax_error());
        };
        self.advance();
        self.expect_word("from")?;
        Ok(vec![self.node(SyntaxKind::Text(field), at)?, self.enclosed()?])
    }

    /// Parses `x, 1, 2`, `x FROM 1 FOR 2` and `x FOR 2`.
    fn substring(&mut self) -> Result<Vec<SyntaxTree>, FilterError> {
        let mut arguments = self.list_until(")")?;
        if arguments.len() != 1 {
            return Ok(arguments);
        }
        let at = self.here();
        if self.take_word("from") {
            arguments.push(self.enclosed()?);
            if self.take_word("for") {
                arguments.push(self.enclosed()?);
            }
        } else if self.take_word("for") {
            let length = Box::new(self.enclosed()?);
            arguments.push(self.node(SyntaxKind::Number("1".to_owned()), at)?);
            arguments.push(self.node(SyntaxKind::Cast(length, TypeName::plain("int4")), at)?);
        }
        Ok(arguments)
    }

    /// Parses `x`, `LEADING 'a' FROM x` and `FROM x`.
    fn trim(&mut self) -> Result<(&'static str, Vec<SyntaxTree>), FilterError> {
        let name = match self.peek() {
            SqlTokenKind::Word(word) if word == "leading" => "ltrim",
            SqlTokenKind::Word(word) if word == "trailing" => "rtrim",
            _ => "btrim",
        };
        if name != "btrim" || self.at_word("both") {
            self.advance();
        }
        let mut first = if self.at_word("from") { Vec::new() } else { self.list_until(")")? };
        if self.take_word("from") && first.len() < 2 {
            let mut arguments = self.list_until(")")?;
            arguments.append(&mut first);
            first = arguments;
        }
        if first.is_empty() { Err(self.syntax_error()) } else { Ok((name, first)) }
    }
}
