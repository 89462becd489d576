//! Subqueries: `IN (SELECT …)`, `= ANY (SELECT …)`, `<> ALL (SELECT …)` and `EXISTS (SELECT …)`.
//!
//! One form of SELECT is parsed: columns of one table, and a condition. Any other form is refused
//! by name.

use super::keywords::can_name_column;
use super::lexer::SqlTokenKind;
use super::parser::Parser;
use super::{SyntaxKind, SyntaxTree};
use crate::error::FilterError;
use crate::subquery::{MAX_SUBQUERIES, MAX_SUBQUERY_DEPTH, TableName};

/// The supported form, for refusals.
const FORM: &str = "SELECT column FROM table WHERE condition";

/// Words after a table or a condition that begin an unsupported clause.
const CLAUSES: &[&str] = &[
    "group",
    "having",
    "window",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
    "union",
    "intersect",
    "except",
];

/// Words after a table that begin a join.
const JOINS: &[&str] = &["join", "cross", "inner", "left", "right", "full", "natural", "tablesample"];

/// `SELECT columns FROM table AS alias WHERE condition`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subselect {
    /// Names. Empty for EXISTS.
    pub(crate) columns: Vec<SyntaxTree>,
    pub(crate) table: TableName,
    pub(crate) alias: Option<String>,
    pub(crate) condition: Option<SyntaxTree>,
    /// Byte position of SELECT in the clause.
    pub(crate) at: usize,
}

impl Parser<'_> {
    /// Returns whether a subquery begins here.
    pub(super) fn subquery_ahead(&self) -> bool {
        ["select", "with", "values"].iter().any(|word| self.at_word(word))
    }

    /// Returns the error for a subquery in a place where none is supported.
    pub(super) fn misplaced_subquery(&self) -> FilterError {
        match self.allows_subqueries() {
            true => self.refused_subquery("subqueries (but in IN, = ANY, <> ALL and EXISTS) are"),
            false => self.unsupported_here("subqueries"),
        }
    }

    /// Parses `SELECT columns …` up to the closing parenthesis, which is consumed.
    pub(super) fn subselect(&mut self) -> Result<Box<Subselect>, FilterError> {
        self.enter_subquery()?;
        let at = self.here();
        self.select_word()?;
        let columns = self.select_list()?;
        self.select_source(columns, at)
    }

    /// Parses `EXISTS (SELECT 1 …)`.
    pub(super) fn exists(&mut self) -> Result<SyntaxTree, FilterError> {
        let at = self.here();
        if !self.allows_subqueries() {
            return Err(self.misplaced_subquery());
        }
        self.advance();
        self.expect_mark("(")?;
        self.enter_subquery()?;
        let begin = self.here();
        self.select_word()?;
        let is_constant = matches!(self.peek(), SqlTokenKind::Integer(_))
            || ["null", "true"].iter().any(|word| self.at_word(word))
            || self.peek() == &SqlTokenKind::Operator("*".to_owned());
        if !is_constant {
            return Err(self.refused_subquery("EXISTS (SELECT …) of anything but 1, NULL, TRUE or * is"));
        }
        self.advance();
        let select = self.select_source(Vec::new(), begin)?;
        self.node(SyntaxKind::Exists(select), at)
    }

    /// Parses `op ANY (SELECT …)` or `op ALL (SELECT …)` from SELECT on.
    pub(super) fn quantified_subquery(
        &mut self,
        operator: &str,
        all: bool,
        left: SyntaxTree,
        at: usize,
    ) -> Result<SyntaxTree, FilterError> {
        let negated = match (operator, all) {
            _ if !self.allows_subqueries() => return Err(self.misplaced_subquery()),
            ("=", false) => false,
            ("<>", true) => true,
            _ => {
                let quantifier = if all { "ALL" } else { "ANY" };
                return Err(self.refused_subquery(&format!("{operator} {quantifier} (SELECT …) is")));
            }
        };
        let select = self.subselect()?;
        self.node(SyntaxKind::InSelect { negated, operand: Box::new(left), select }, at)
    }

    /// Counts a subquery, within the one that is being parsed.
    /// [`select_source`](Self::select_source) leaves it.
    fn enter_subquery(&mut self) -> Result<(), FilterError> {
        if !self.allows_subqueries() {
            return Err(self.misplaced_subquery());
        }
        self.subqueries += 1;
        self.subquery_depth += 1;
        if self.subqueries > MAX_SUBQUERIES {
            return Err(self.refused_subquery(&format!("more than {MAX_SUBQUERIES} subqueries are")));
        }
        if self.subquery_depth > MAX_SUBQUERY_DEPTH {
            let what = format!("subqueries nested more than {MAX_SUBQUERY_DEPTH} levels deep are");
            return Err(self.refused_subquery(&what));
        }
        Ok(())
    }

    fn select_word(&mut self) -> Result<(), FilterError> {
        if !self.take_word("select") {
            return Err(self.refused_subquery("anything but SELECT in a subquery is"));
        }
        match self.at_word("distinct") || self.at_word("all") {
            true => Err(self.refused_subquery("DISTINCT and ALL in subqueries are")),
            false => Ok(()),
        }
    }

    fn select_list(&mut self) -> Result<Vec<SyntaxTree>, FilterError> {
        let mut columns = Vec::new();
        loop {
            let at = self.here();
            let is_name = match self.peek() {
                SqlTokenKind::Quoted(_) => true,
                SqlTokenKind::Word(word) => can_name_column(word),
                _ => false,
            };
            if !is_name {
                return Err(self.refused_subquery("anything but columns in the list of a subquery is"));
            }
            let parts = self.dotted_name()?;
            columns.push(self.node(SyntaxKind::Name(parts), at)?);
            if self.take_mark(",") {
                continue;
            }
            return match self.at_word("from") {
                true => Ok(columns),
                false => Err(self.refused_subquery("anything but columns in the list of a subquery is")),
            };
        }
    }

    /// Parses `FROM table [AS alias] [WHERE condition])`.
    fn select_source(&mut self, columns: Vec<SyntaxTree>, at: usize) -> Result<Box<Subselect>, FilterError> {
        self.expect_word("from")?;
        if !matches!(self.peek(), SqlTokenKind::Word(_) | SqlTokenKind::Quoted(_))
            || self.at_word("only")
            || self.at_word("lateral")
        {
            return Err(self.refused_subquery("anything but a table in FROM of a subquery is"));
        }
        let mut parts = self.dotted_name()?;
        if parts.len() > 2 || matches!(self.peek(), SqlTokenKind::Mark("(")) {
            return Err(self.refused_subquery("anything but a table in FROM of a subquery is"));
        }
        let name = parts.pop().unwrap_or_default();
        let table = TableName { schema: parts.pop().unwrap_or_else(|| "public".to_owned()), name };
        let alias = self.table_alias()?;
        self.refuse_clauses()?;
        let condition = match self.take_word("where") {
            true => Some(self.enclosed()?),
            false => None,
        };
        self.refuse_clauses()?;
        self.expect_mark(")")?;
        self.subquery_depth -= 1;
        Ok(Box::new(Subselect { columns, table, alias, condition, at }))
    }

    fn table_alias(&mut self) -> Result<Option<String>, FilterError> {
        let has_as = self.take_word("as");
        let is_alias = match self.peek() {
            SqlTokenKind::Quoted(_) => true,
            SqlTokenKind::Word(word) => can_name_column(word) && !CLAUSES.contains(&word.as_str()),
            _ => false,
        };
        let alias = if has_as || is_alias { Some(self.attribute_name()?) } else { None };
        match alias.is_some() && matches!(self.peek(), SqlTokenKind::Mark("(")) {
            true => Err(self.refused_subquery("column aliases in FROM of a subquery are")),
            false => Ok(alias),
        }
    }

    fn refuse_clauses(&self) -> Result<(), FilterError> {
        if JOINS.iter().any(|word| self.at_word(word)) || matches!(self.peek(), SqlTokenKind::Mark(",")) {
            return Err(self.refused_subquery("joins in subqueries are"));
        }
        match CLAUSES.iter().find(|word| self.at_word(word)) {
            Some(word) => Err(self.refused_subquery(&format!("{} in subqueries is", word.to_uppercase()))),
            None => Ok(()),
        }
    }

    fn refused_subquery(&self, what: &str) -> FilterError {
        self.unsupported(self.here(), what.to_owned()).or_nearest(Some(FORM))
    }
}
