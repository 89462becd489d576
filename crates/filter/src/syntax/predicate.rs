//! Predicates after an operand: IS, LIKE, BETWEEN and IN (a_expr).

use super::lexer::SqlTokenKind;
use super::parser::{Binding, Parser};
use super::{IsTest, SyntaxKind, SyntaxTree};
use crate::error::FilterError;

impl Parser<'_> {
    /// Parses IS and its shorthands, ISNULL and NOTNULL, after `left`.
    pub(super) fn is(&mut self, left: SyntaxTree) -> Result<(SyntaxTree, Option<Binding>), FilterError> {
        let at = self.here();
        let shorthand = !self.at_word("is");
        let negated = if shorthand { self.at_word("notnull") } else { self.follows(1, "not") };
        self.advance();
        if !shorthand && negated {
            self.advance();
        }
        if !shorthand && self.take_word("distinct") {
            self.expect_word("from")?;
            let right = self.expression(Binding::Is.tighter())?;
            let kind = SyntaxKind::Distinct { negated, operands: Box::new([left, right]) };
            return Ok((self.node(kind, at)?, Some(Binding::Is)));
        }
        let test = match self.peek() {
            _ if shorthand => IsTest::Null,
            SqlTokenKind::Word(word) => match word.as_str() {
                "null" => IsTest::Null,
                "true" => IsTest::True,
                "false" => IsTest::False,
                "unknown" => IsTest::Unknown,
                "document" | "normalized" | "nfc" | "nfd" | "nfkc" | "nfkd" | "json" => {
                    return Err(self.unsupported_here("IS DOCUMENT, IS NORMALIZED and IS JSON"));
                }
                _ => return Err(self.syntax_error()),
            },
            _ => return Err(self.syntax_error()),
        };
        if !shorthand {
            self.advance();
        }
        Ok((self.node(SyntaxKind::Is { negated, test, operand: Box::new(left) }, at)?, None))
    }

    /// Parses [NOT] LIKE, ILIKE, BETWEEN and IN after `left`.
    pub(super) fn like(&mut self, left: SyntaxTree) -> Result<(SyntaxTree, Option<Binding>), FilterError> {
        let at = self.here();
        let negated = self.take_word("not");
        let word = match self.peek() {
            SqlTokenKind::Word(word) => word.clone(),
            _ => return Err(self.syntax_error()),
        };
        if word == "similar" {
            return Err(self.unsupported_here("SIMILAR TO and regular expressions"));
        }
        self.advance();
        match word.as_str() {
            "between" => self.between(left, negated, at),
            "in" => Ok((self.in_list(left, negated, at)?, None)),
            _ => {
                let operator =
                    format!("{}~~{}", if negated { "!" } else { "" }, if word == "ilike" { "*" } else { "" });
                if self.quantifier_ahead() {
                    return Ok((self.quantified(operator, left, at)?, None));
                }
                let mut pattern = self.expression(Binding::Like.tighter())?;
                if self.at_word("escape") {
                    let at = self.here();
                    self.advance();
                    let escape = self.expression(Binding::Like.tighter())?;
                    pattern =
                        self.node(SyntaxKind::Call("like_escape".to_owned(), vec![pattern, escape]), at)?;
                }
                let kind = SyntaxKind::Binary(operator, Box::new([left, pattern]));
                Ok((self.node(kind, at)?, Some(Binding::Like)))
            }
        }
    }

    fn between(
        &mut self,
        left: SyntaxTree,
        negated: bool,
        at: usize,
    ) -> Result<(SyntaxTree, Option<Binding>), FilterError> {
        let symmetric = self.take_word("symmetric");
        if !symmetric {
            self.take_word("asymmetric");
        }
        let low = self.restricted()?;
        self.expect_word("and")?;
        let high = self.expression(Binding::Like.tighter())?;
        let kind = SyntaxKind::Between { negated, symmetric, operands: Box::new([left, low, high]) };
        Ok((self.node(kind, at)?, Some(Binding::Like)))
    }

    fn in_list(&mut self, left: SyntaxTree, negated: bool, at: usize) -> Result<SyntaxTree, FilterError> {
        self.expect_mark("(")?;
        if self.subquery_ahead() {
            let select = self.subselect()?;
            return self.node(SyntaxKind::InSelect { negated, operand: Box::new(left), select }, at);
        }
        let list = self.list_until(")")?;
        if list.is_empty() {
            return Err(self.syntax_error());
        }
        self.expect_mark(")")?;
        self.node(SyntaxKind::In { negated, operand: Box::new(left), list }, at)
    }
}
