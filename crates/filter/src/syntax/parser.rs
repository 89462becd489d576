//! Tokens to a tree, by Postgres' grammar of expressions (gram.y: a_expr, b_expr, c_expr).
//!
//! Precedence climbing with the grammar's own table. Operators that end in an operand and don't associate (`=`, LIKE,
//! BETWEEN, IS DISTINCT FROM) may not follow one another; those that end in a closed form (`IS NULL`, `IN (…)`) may.

use super::lexer::{Token, TokenKind, tokens};
use super::{Kind, MAX_DEPTH, Test, Tree};
use crate::MAX_CLAUSE_BYTES;
use crate::error::{FilterError, location};
use crate::expression::EnumType;

/// How deep the parser goes. The canonical text has parentheses around each level, and must be read again.
const MAX_RECURSION: usize = 2 * MAX_DEPTH + 10;

/// A clause with its parameters in place: each may be named many times.
const MAX_INLINED_BYTES: usize = 16 * MAX_CLAUSE_BYTES;

/// How tightly an operator binds, loosest first.
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
    fn tighter(self) -> Self {
        use Binding::*;
        const ORDER: [Binding; 16] = [
            Any, Or, And, Not, Is, Comparison, Like, Other, Sum, Product, Power, Zone, Collate, Sign, Cast,
            Tightest,
        ];
        ORDER[(self as usize + 1).min(ORDER.len() - 1)]
    }
}

/// Reads a clause; parameters become the constants that they stand for. The types of `enums` get
/// their schema where the clause names none.
pub(crate) fn parse(
    text: &str,
    params: &[&str],
    version: u32,
    enums: &[EnumType],
) -> Result<Tree, FilterError> {
    let mut parser = Parser {
        text,
        params,
        enums,
        inlined_bytes: 0,
        tokens: tokens(text, version)?,
        next: 0,
        depth: 0,
        is_restricted: false,
    };
    let tree = parser.expression(Binding::Any)?;
    match parser.peek() {
        TokenKind::End => Ok(tree),
        _ => Err(parser.syntax_error()),
    }
}

pub(super) struct Parser<'t> {
    text: &'t str,
    params: &'t [&'t str],
    enums: &'t [EnumType],
    /// Of parameters, each as often as it is named.
    inlined_bytes: usize,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
    /// In the middle of BETWEEN, where AND means something else (b_expr).
    is_restricted: bool,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> &TokenKind {
        &self.tokens[self.next].kind
    }

    fn peek_at(&self, ahead: usize) -> &TokenKind {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)].kind
    }

    /// The byte at which the next token begins.
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
        matches!(self.tokens[position].kind, TokenKind::Mark(found) if found == mark)
    }

    pub(super) fn mark_follows(&self, mark: &str) -> bool {
        matches!(self.peek_at(1), TokenKind::Mark(found) if *found == mark)
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
            TokenKind::End => "syntax error at end of input".to_owned(),
            _ => format!("syntax error at or near \"{}\"", &self.text[token.start..token.end]),
        };
        FilterError::syntax(self.text, token.start, message)
    }

    pub(super) fn unsupported_here(&self, what: &str) -> FilterError {
        FilterError::unsupported(self.text, self.here(), what)
    }

    pub(super) fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::Unsupported { what, location: location(self.text, at) }
    }

    pub(super) fn invalid(&self, at: usize, sqlstate: &'static str, message: String) -> FilterError {
        FilterError::invalid(self.text, at, sqlstate, message)
    }

    pub(super) fn at_word(&self, word: &str) -> bool {
        self.follows(0, word)
    }

    pub(super) fn follows(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), TokenKind::Word(found) if found == word)
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
        let found = matches!(self.peek(), TokenKind::Mark(found) if *found == mark);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_mark(&mut self, mark: &str) -> Result<(), FilterError> {
        if self.take_mark(mark) { Ok(()) } else { Err(self.syntax_error()) }
    }

    pub(super) fn take_operator(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), TokenKind::Operator(found) if found == operator);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn node(&self, kind: Kind, at: usize) -> Result<Tree, FilterError> {
        let tree = Tree::new(kind, at);
        if tree.height > MAX_DEPTH { Err(FilterError::TooDeep { limit: MAX_DEPTH }) } else { Ok(tree) }
    }

    pub(super) fn schema_of_enum(&self, name: &str) -> Option<String> {
        self.enums.iter().find(|of| of.name == name).map(|of| of.schema.clone())
    }

    /// An expression in which AND, IN and LIKE mean something else (b_expr).
    pub(super) fn restricted(&mut self) -> Result<Tree, FilterError> {
        let restricted = std::mem::replace(&mut self.is_restricted, true);
        let tree = self.expression(Binding::Any);
        self.is_restricted = restricted;
        tree
    }

    /// A whole expression in brackets of some kind.
    pub(super) fn enclosed(&mut self) -> Result<Tree, FilterError> {
        let restricted = std::mem::replace(&mut self.is_restricted, false);
        let tree = self.expression(Binding::Any);
        self.is_restricted = restricted;
        tree
    }

    /// An expression whose operators all bind at least so tightly.
    pub(super) fn expression(&mut self, least: Binding) -> Result<Tree, FilterError> {
        self.deeper()?;
        let mut left = self.prefixed()?;
        // The level at which the last operator ended in an operand, and may not be followed by its like.
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

    fn prefixed(&mut self) -> Result<Tree, FilterError> {
        let at = self.here();
        match self.peek().clone() {
            TokenKind::Word(word) if word == "not" && !self.is_restricted => {
                self.advance();
                let operand = self.expression(Binding::Not)?;
                self.node(Kind::Not(Box::new(operand)), at)
            }
            TokenKind::Operator(sign) if sign == "-" || sign == "+" => {
                self.advance();
                let operand = self.expression(Binding::Sign)?;
                match (sign.as_str(), operand.kind) {
                    ("-", Kind::Number(number)) => self.node(Kind::Number(negate(number)), at),
                    (_, kind) => self.node(Kind::Unary(sign, Box::new(Tree { kind, ..operand })), at),
                }
            }
            TokenKind::Operator(operator) if binding_of(&operator) == Binding::Other => {
                self.advance();
                let operand = self.expression(Binding::Other.tighter())?;
                self.node(Kind::Unary(operator, Box::new(operand)), at)
            }
            _ => self.primary(),
        }
    }

    /// How tightly the operator ahead binds, if there is one.
    fn binding_ahead(&self) -> Option<Binding> {
        let binding = match self.peek() {
            TokenKind::Operator(operator) => binding_of(operator),
            TokenKind::Mark("::") => Binding::Cast,
            TokenKind::Word(word) => match word.as_str() {
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
                "operator" if *self.peek_at(1) == TokenKind::Mark("(") => Binding::Other,
                _ => return None,
            },
            _ => return None,
        };
        let words = !matches!(self.peek(), TokenKind::Operator(_) | TokenKind::Mark(_));
        let allowed_between = !words || (self.at_word("is") && self.is_distinct_ahead());
        if self.is_restricted && !allowed_between { None } else { Some(binding) }
    }

    fn is_distinct_ahead(&self) -> bool {
        self.follows(1, "distinct") || (self.follows(1, "not") && self.follows(2, "distinct"))
    }

    /// One operator after `left`, with what it takes on its right; and the level that it closes.
    fn suffixed(&mut self, left: Tree, binding: Binding) -> Result<(Tree, Option<Binding>), FilterError> {
        let at = self.here();
        match binding {
            Binding::Or | Binding::And => Ok((self.chain(left, binding)?, None)),
            Binding::Is => self.is(left),
            Binding::Like => self.like(left),
            Binding::Cast => {
                self.advance();
                let name = self.type_name()?;
                Ok((self.node(Kind::Cast(Box::new(left), name), at)?, None))
            }
            Binding::Zone => {
                self.advance();
                if self.at_word("local") {
                    return Err(self.unsupported_here("the session's time zone and AT LOCAL"));
                }
                self.advance();
                self.expect_word("zone")?;
                let zone = self.expression(binding.tighter())?;
                Ok((self.node(Kind::Call("timezone".to_owned(), vec![zone, left]), at)?, None))
            }
            Binding::Collate => {
                self.advance();
                let collation = self.dotted_name()?;
                Ok((self.node(Kind::Collate(Box::new(left), collation), at)?, None))
            }
            _ => self.operator(left, binding),
        }
    }

    /// AND and OR of any length are one level.
    fn chain(&mut self, left: Tree, binding: Binding) -> Result<Tree, FilterError> {
        let (word, at) = (if binding == Binding::And { "and" } else { "or" }, self.here());
        let mut operands = Vec::new();
        let mut add = |tree: Tree| match (tree.kind, binding) {
            (Kind::And(inner), Binding::And) | (Kind::Or(inner), Binding::Or) => operands.extend(inner),
            (kind, _) => operands.push(Tree { kind, at: tree.at, height: tree.height }),
        };
        add(left);
        while self.take_word(word) {
            add(self.expression(binding.tighter())?);
        }
        let kind = if binding == Binding::And { Kind::And(operands) } else { Kind::Or(operands) };
        self.node(kind, at)
    }

    fn operator(&mut self, left: Tree, binding: Binding) -> Result<(Tree, Option<Binding>), FilterError> {
        let at = self.here();
        let TokenKind::Operator(operator) = self.peek().clone() else {
            return Err(self.unsupported_here("operators of a schema"));
        };
        self.advance();
        if !self.is_restricted && self.quantifier_ahead() {
            return Ok((self.quantified(operator, left, at)?, None));
        }
        let right = self.expression(binding.tighter())?;
        let closed_to = (binding == Binding::Comparison).then_some(binding);
        Ok((self.node(Kind::Binary(operator, Box::new([left, right])), at)?, closed_to))
    }

    fn quantifier_ahead(&self) -> bool {
        ["any", "some", "all"].iter().any(|word| self.at_word(word))
    }

    fn quantified(&mut self, operator: String, left: Tree, at: usize) -> Result<Tree, FilterError> {
        let all = self.at_word("all");
        self.advance();
        self.expect_mark("(")?;
        if self.at_word("select") || self.at_word("with") || self.at_word("values") {
            return Err(self.unsupported_here("subqueries"));
        }
        let right = self.enclosed()?;
        self.expect_mark(")")?;
        self.node(Kind::Quantified { operator, all, operands: Box::new([left, right]) }, at)
    }

    fn is(&mut self, left: Tree) -> Result<(Tree, Option<Binding>), FilterError> {
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
            let kind = Kind::Distinct { negated, operands: Box::new([left, right]) };
            return Ok((self.node(kind, at)?, Some(Binding::Is)));
        }
        let test = match self.peek() {
            _ if shorthand => Test::Null,
            TokenKind::Word(word) => match word.as_str() {
                "null" => Test::Null,
                "true" => Test::True,
                "false" => Test::False,
                "unknown" => Test::Unknown,
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
        Ok((self.node(Kind::Is { negated, test, operand: Box::new(left) }, at)?, None))
    }

    fn like(&mut self, left: Tree) -> Result<(Tree, Option<Binding>), FilterError> {
        let at = self.here();
        let negated = self.take_word("not");
        let word = match self.peek() {
            TokenKind::Word(word) => word.clone(),
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
                    pattern = self.node(Kind::Call("like_escape".to_owned(), vec![pattern, escape]), at)?;
                }
                let kind = Kind::Binary(operator, Box::new([left, pattern]));
                Ok((self.node(kind, at)?, Some(Binding::Like)))
            }
        }
    }

    fn between(
        &mut self,
        left: Tree,
        negated: bool,
        at: usize,
    ) -> Result<(Tree, Option<Binding>), FilterError> {
        let symmetric = self.take_word("symmetric");
        if !symmetric {
            self.take_word("asymmetric");
        }
        let low = self.restricted()?;
        self.expect_word("and")?;
        let high = self.expression(Binding::Like.tighter())?;
        let kind = Kind::Between { negated, symmetric, operands: Box::new([left, low, high]) };
        Ok((self.node(kind, at)?, Some(Binding::Like)))
    }

    fn in_list(&mut self, left: Tree, negated: bool, at: usize) -> Result<Tree, FilterError> {
        self.expect_mark("(")?;
        if self.at_word("select") || self.at_word("with") || self.at_word("values") {
            return Err(self.unsupported_here("subqueries"));
        }
        let list = self.list_until(")")?;
        if list.is_empty() {
            return Err(self.syntax_error());
        }
        self.expect_mark(")")?;
        self.node(Kind::In { negated, operand: Box::new(left), list }, at)
    }

    /// Expressions between commas, up to the mark, which stays.
    pub(super) fn list_until(&mut self, mark: &str) -> Result<Vec<Tree>, FilterError> {
        let mut list = Vec::new();
        if matches!(self.peek(), TokenKind::Mark(found) if *found == mark) {
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
        match self.inlined_bytes > MAX_INLINED_BYTES {
            true => Err(FilterError::TooLong { bytes: self.inlined_bytes, limit: MAX_INLINED_BYTES }),
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
