//! Parser: builds a syntax tree by Postgres' grammar of expressions (gram.y: a_expr, b_expr,
//! c_expr).
//!
//! Precedence climbing with the precedence table of that grammar. Non-associative operators that
//! end in an operand (`=`, LIKE, BETWEEN, IS DISTINCT FROM) may not follow one another. Those that
//! end in a closed form (`IS NULL`, `IN (…)`) may.

use super::lexer::{SqlToken, SqlTokenKind, tokens};
use super::{MAX_DEPTH, SyntaxKind, SyntaxTree};
use crate::MAX_PARAM_BYTES;
use crate::error::FilterError;
use crate::expression::EnumType;

/// Maximum recursion of the parser. It must suffice for canonical text, which has parentheses
/// around each level.
const MAX_RECURSION: usize = 2 * MAX_DEPTH + 10;

/// Precedence of an operator, loosest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    Any,
    Or,
    And,
    Not,
    Is,
    Comparison,
    Like,
    Other,
    Sum,
    Product,
    Power,
    Zone,
    Collate,
    Sign,
    Cast,
    Tightest,
}

impl Binding {
    pub(super) fn tighter(self) -> Self {
        use Binding::*;
        const ORDER: [Binding; 16] = [
            Any, Or, And, Not, Is, Comparison, Like, Other, Sum, Product, Power, Zone, Collate, Sign, Cast,
            Tightest,
        ];
        ORDER[(self as usize + 1).min(ORDER.len() - 1)]
    }
}

/// Whether a clause may have subqueries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subqueries {
    Refused,
    Allowed,
}

/// Parses a clause. Parameters become constants. Types in `enums` get their schema if the clause
/// names none.
pub(crate) fn parse(
    text: &str,
    params: &[&str],
    version: u32,
    enums: &[EnumType],
    subqueries: Subqueries,
) -> Result<SyntaxTree, FilterError> {
    let mut parser = Parser {
        text,
        params,
        enums,
        inlined_bytes: 0,
        tokens: tokens(text, version)?,
        next: 0,
        depth: 0,
        is_restricted: false,
        allows_subqueries: subqueries == Subqueries::Allowed,
        subqueries: 0,
        subquery_depth: 0,
    };
    let tree = parser.expression(Binding::Any)?;
    match parser.peek() {
        SqlTokenKind::End => Ok(tree),
        _ => Err(parser.syntax_error()),
    }
}

pub(super) struct Parser<'t> {
    text: &'t str,
    params: &'t [&'t str],
    enums: &'t [EnumType],
    /// Bytes of parameters so far. A parameter counts once per use.
    inlined_bytes: usize,
    tokens: Vec<SqlToken>,
    next: usize,
    depth: usize,
    /// Between BETWEEN and its AND (b_expr).
    is_restricted: bool,
    allows_subqueries: bool,
    /// Number of subqueries so far.
    pub(super) subqueries: usize,
    /// Number of subqueries around the next token.
    pub(super) subquery_depth: usize,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> &SqlTokenKind {
        &self.tokens[self.next].kind
    }

    fn peek_at(&self, ahead: usize) -> &SqlTokenKind {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)].kind
    }

    /// Returns the byte position of the next token.
    pub(super) fn here(&self) -> usize {
        self.tokens[self.next].start
    }

    pub(super) fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    pub(super) fn position(&self) -> usize {
        self.next
    }

    pub(super) fn rewind(&mut self, position: usize) {
        self.next = position;
    }

    pub(super) fn is_mark(&self, position: usize, mark: &str) -> bool {
        matches!(self.tokens[position].kind, SqlTokenKind::Mark(found) if found == mark)
    }

    pub(super) fn mark_follows(&self, mark: &str) -> bool {
        matches!(self.peek_at(1), SqlTokenKind::Mark(found) if *found == mark)
    }

    pub(super) fn deeper(&mut self) -> Result<(), FilterError> {
        self.depth += 1;
        if self.depth > MAX_RECURSION { Err(FilterError::TooDeep { limit: MAX_DEPTH }) } else { Ok(()) }
    }

    pub(super) fn shallower(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn syntax_error(&self) -> FilterError {
        let token = &self.tokens[self.next];
        let message = match token.kind {
            SqlTokenKind::End => "syntax error at end of input".to_owned(),
            _ => format!("syntax error at or near \"{}\"", &self.text[token.start..token.end]),
        };
        FilterError::syntax(self.text, token.start, message)
    }

    pub(super) fn unsupported_here(&self, what: &str) -> FilterError {
        FilterError::unsupported(self.text, self.here(), what)
    }

    pub(super) fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::unsupported_construct(self.text, at, what)
    }

    pub(super) fn invalid(&self, at: usize, sqlstate: &'static str, message: String) -> FilterError {
        FilterError::invalid(self.text, at, sqlstate, message)
    }

    pub(super) fn at_word(&self, word: &str) -> bool {
        self.follows(0, word)
    }

    pub(super) fn follows(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), SqlTokenKind::Word(found) if found == word)
    }

    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<(), FilterError> {
        if self.take_word(word) { Ok(()) } else { Err(self.syntax_error()) }
    }

    pub(super) fn take_mark(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), SqlTokenKind::Mark(found) if *found == mark);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_mark(&mut self, mark: &str) -> Result<(), FilterError> {
        if self.take_mark(mark) { Ok(()) } else { Err(self.syntax_error()) }
    }

    pub(super) fn take_operator(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), SqlTokenKind::Operator(found) if found == operator);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn node(&self, kind: SyntaxKind, at: usize) -> Result<SyntaxTree, FilterError> {
        let tree = SyntaxTree::new(kind, at);
        if tree.height > 2 * MAX_DEPTH { Err(FilterError::TooDeep { limit: MAX_DEPTH }) } else { Ok(tree) }
    }

    pub(super) fn allows_subqueries(&self) -> bool {
        self.allows_subqueries
    }

    pub(super) fn schema_of_enum(&self, name: &str) -> Option<String> {
        self.enums.iter().find(|of| of.name == name).map(|of| of.schema.clone())
    }

    /// Parses a b_expr: an expression without AND, OR, IN and LIKE.
    pub(super) fn restricted(&mut self) -> Result<SyntaxTree, FilterError> {
        let restricted = std::mem::replace(&mut self.is_restricted, true);
        let tree = self.expression(Binding::Any);
        self.is_restricted = restricted;
        tree
    }

    /// Parses a whole expression in parentheses or brackets.
    pub(super) fn enclosed(&mut self) -> Result<SyntaxTree, FilterError> {
        let restricted = std::mem::replace(&mut self.is_restricted, false);
        let tree = self.expression(Binding::Any);
        self.is_restricted = restricted;
        tree
    }

    /// Parses an expression whose operators have at least this precedence.
    pub(super) fn expression(&mut self, least: Binding) -> Result<SyntaxTree, FilterError> {
        self.deeper()?;
        let mut left = self.prefixed()?;
        // The precedence of the last operator if it is non-associative and ended in an operand.
        let mut closed_to = None;
        while let Some(binding) = self.binding_ahead() {
            if binding < least {
                break;
            }
            if closed_to == Some(binding) {
                return Err(self.syntax_error());
            }
            (left, closed_to) = self.suffixed(left, binding)?;
        }
        self.shallower();
        Ok(left)
    }

    fn prefixed(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        match self.peek().clone() {
            SqlTokenKind::Word(word) if word == "not" && !self.is_restricted => {
                self.advance();
                let operand = self.expression(Binding::Not)?;
                self.node(SyntaxKind::Not(Box::new(operand)), at)
            }
            SqlTokenKind::Operator(sign) if sign == "-" || sign == "+" => {
                self.advance();
                let operand = self.expression(Binding::Sign)?;
                match (sign.as_str(), operand.kind) {
                    ("-", SyntaxKind::Number(number)) => self.node(SyntaxKind::Number(negate(number)), at),
                    (_, kind) => {
                        self.node(SyntaxKind::Unary(sign, Box::new(SyntaxTree { kind, ..operand })), at)
                    }
                }
            }
            SqlTokenKind::Operator(operator) if binding_of(&operator) == Binding::Other => {
                self.advance();
                let operand = self.expression(Binding::Other.tighter())?;
                self.node(SyntaxKind::Unary(operator, Box::new(operand)), at)
            }
            _ => self.primary(),
        }
    }

    /// Returns the precedence of the next operator, if there is one.
    fn binding_ahead(&self) -> Option<Binding> {
        let binding = match self.peek() {
            SqlTokenKind::Operator(operator) => binding_of(operator),
            SqlTokenKind::Mark("::") => Binding::Cast,
            SqlTokenKind::Word(word) => match word.as_str() {
                "or" => Binding::Or,
                "and" => Binding::And,
                "is" | "isnull" | "notnull" => Binding::Is,
                "between" | "in" | "like" | "ilike" | "similar" => Binding::Like,
                "not"
                    if ["between", "in", "like", "ilike", "similar"]
                        .iter()
                        .any(|word| self.follows(1, word)) =>
                {
                    Binding::Like
                }
                "at" if self.follows(1, "time") || self.follows(1, "local") => Binding::Zone,
                "collate" => Binding::Collate,
                "operator" if *self.peek_at(1) == SqlTokenKind::Mark("(") => Binding::Other,
                _ => return None,
            },
            _ => return None,
        };
        let words = !matches!(self.peek(), SqlTokenKind::Operator(_) | SqlTokenKind::Mark(_));
        let allowed_between = !words || (self.at_word("is") && self.is_distinct_ahead());
        if self.is_restricted && !allowed_between { None } else { Some(binding) }
    }

    fn is_distinct_ahead(&self) -> bool {
        self.follows(1, "distinct") || (self.follows(1, "not") && self.follows(2, "distinct"))
    }

    /// Parses one operator after `left`, and its right operand. Also returns its precedence if the
    /// same may not follow.
    fn suffixed(
        &mut self,
        left: SyntaxTree,
        binding: Binding,
    ) -> Result<(SyntaxTree, Option<Binding>), FilterError> {
        let at = self.here();
        match binding {
            Binding::Or | Binding::And => Ok((self.chain(left, binding)?, None)),
            Binding::Is => self.is(left),
            Binding::Like => self.like(left),
            Binding::Cast => {
                self.advance();
                let name = self.type_name()?;
                Ok((self.node(SyntaxKind::Cast(Box::new(left), name), at)?, None))
            }
            Binding::Zone => {
                self.advance();
                if self.at_word("local") {
                    return Err(self.unsupported_here("the session's time zone and AT LOCAL"));
                }
                self.advance();
                self.expect_word("zone")?;
                let zone = self.expression(binding.tighter())?;
                Ok((self.node(SyntaxKind::Call("timezone".to_owned(), vec![zone, left]), at)?, None))
            }
            Binding::Collate => {
                self.advance();
                let collation = self.dotted_name()?;
                Ok((self.node(SyntaxKind::Collate(Box::new(left), collation), at)?, None))
            }
            _ => self.operator(left, binding),
        }
    }

    /// Parses a chain of AND or OR into one node.
    fn chain(&mut self, left: SyntaxTree, binding: Binding) -> Result<SyntaxTree, FilterError> {
        let (word, at) = (if binding == Binding::And { "and" } else { "or" }, self.here());
        let mut operands = Vec::new();
        let mut add = |tree: SyntaxTree| match (tree.kind, binding) {
            (SyntaxKind::And(inner), Binding::And) | (SyntaxKind::Or(inner), Binding::Or) => {
                operands.extend(inner)
            }
            (kind, _) => operands.push(SyntaxTree { kind, at: tree.at, height: tree.height }),
        };
        add(left);
        while self.take_word(word) {
            add(self.expression(binding.tighter())?);
        }
        let kind = if binding == Binding::And { SyntaxKind::And(operands) } else { SyntaxKind::Or(operands) };
        self.node(kind, at)
    }

    fn operator(
        &mut self,
        left: SyntaxTree,
        binding: Binding,
    ) -> Result<(SyntaxTree, Option<Binding>), FilterError> {
        let at = self.here();
        let SqlTokenKind::Operator(operator) = self.peek().clone() else {
            return Err(self.unsupported_here("operators of a schema"));
        };
        self.advance();
        if !self.is_restricted && self.quantifier_ahead() {
            return Ok((self.quantified(operator, left, at)?, None));
        }
        let right = self.expression(binding.tighter())?;
        let closed_to = (binding == Binding::Comparison).then_some(binding);
        Ok((self.node(SyntaxKind::Binary(operator, Box::new([left, right])), at)?, closed_to))
    }

    pub(super) fn quantifier_ahead(&self) -> bool {
        ["any", "some", "all"].iter().any(|word| self.at_word(word))
    }

    pub(super) fn quantified(
        &mut self,
        operator: String,
        left: SyntaxTree,
        at: usize,
    ) -> Result<SyntaxTree, FilterError> {
        let all = self.at_word("all");
        self.advance();
        self.expect_mark("(")?;
        if self.subquery_ahead() {
            return self.quantified_subquery(&operator, all, left, at);
        }
        let right = self.enclosed()?;
        self.expect_mark(")")?;
        self.node(SyntaxKind::Quantified { operator, all, operands: Box::new([left, right]) }, at)
    }

    /// Parses expressions separated by commas up to the mark, which is not consumed.
    pub(super) fn list_until(&mut self, mark: &str) -> Result<Vec<SyntaxTree>, FilterError> {
        let mut list = Vec::new();
        if matches!(self.peek(), SqlTokenKind::Mark(found) if *found == mark) {
            return Ok(list);
        }
        loop {
            list.push(self.enclosed()?);
            if !self.take_mark(",") {
                return Ok(list);
            }
        }
    }

    pub(super) fn parameter(&mut self, number: usize) -> Result<String, FilterError> {
        let value = number.checked_sub(1).and_then(|index| self.params.get(index));
        let value = value.ok_or(FilterError::NoParameter { number })?;
        self.inlined_bytes += value.len();
        match self.inlined_bytes > MAX_PARAM_BYTES {
            true => Err(FilterError::ParamsTooLong { bytes: self.inlined_bytes, limit: MAX_PARAM_BYTES }),
            false => Ok((*value).to_owned()),
        }
    }
}

fn binding_of(operator: &str) -> Binding {
    match operator {
        "<" | ">" | "=" | "<=" | ">=" | "<>" => Binding::Comparison,
        "+" | "-" => Binding::Sum,
        "*" | "/" | "%" => Binding::Product,
        "^" => Binding::Power,
        _ => Binding::Other,
    }
}

fn negate(number: String) -> String {
    match number.strip_prefix('-') {
        Some(positive) => positive.to_owned(),
        None => format!("-{number}"),
    }
}
