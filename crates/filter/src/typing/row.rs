//! Typing of rows in comparisons (make_row_comparison_op, make_row_distinct_op).

use super::expr::{Binary, Comparison, Expr};
use super::{TypedExpr, Typer, has_column};
use crate::error::FilterError;
use crate::syntax::{IsTest, SyntaxKind, SyntaxTree};

impl Typer<'_> {
    /// Types an operator on two operands or on two rows.
    pub(super) fn compare(
        &self,
        operator: &str,
        left: &SyntaxTree,
        right: &SyntaxTree,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        match (&left.kind, &right.kind) {
            (SyntaxKind::Row(left), SyntaxKind::Row(right)) => self.rows(operator, left, right, at),
            _ => self.binary(operator, self.tree(left)?, self.tree(right)?, at),
        }
    }

    fn rows(
        &self,
        operator: &str,
        left: &[SyntaxTree],
        right: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        self.check_entries(left, right, at)?;
        if left.is_empty() {
            return Err(self.invalid(at, "0A000", "cannot compare rows of zero length".to_owned()));
        }
        let Some(comparison) = Comparison::of(operator) else {
            return Err(self.unsupported(at, format!("the operator {operator} on rows is")));
        };
        let pairs = left.iter().zip(right).map(|(left, right)| self.compare(operator, left, right, at));
        let pairs = pairs.map(|pair| Ok(pair?.expr)).collect::<Result<Vec<_>, FilterError>>()?;
        Ok(TypedExpr::boolean(match comparison {
            Comparison::Equal => Expr::And(pairs),
            Comparison::NotEqual => Expr::Or(pairs),
            _ => Expr::RowComparison {
                comparison,
                pairs: pairs
                    .into_iter()
                    .map(|pair| match pair {
                        Expr::Binary(Binary::Compare { ignore_blanks, .. }, operands) => {
                            Ok((operands, ignore_blanks))
                        }
                        _ => Err(self.unsupported(at, "ordering of such rows is".to_owned())),
                    })
                    .collect::<Result<_, _>>()?,
            },
        }))
    }

    /// Types IN of a row: the row is compared with one after another.
    pub(super) fn row_in(
        &self,
        negated: bool,
        operand: &[SyntaxTree],
        list: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let operator = if negated { "<>" } else { "=" };
        let one = |item: &SyntaxTree| match &item.kind {
            SyntaxKind::Row(item) => Ok(self.rows(operator, operand, item, at)?.expr),
            _ => Err(self.unsupported(item.at, "rows in IN with other values are".to_owned())),
        };
        let alternatives = list.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(TypedExpr::boolean(if negated { Expr::And(alternatives) } else { Expr::Or(alternatives) }))
    }

    /// Types IS NULL of a row: every entry is NULL. IS NOT NULL: no entry is.
    pub(super) fn row_is_null(
        &self,
        negated: bool,
        items: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let one = |item: &SyntaxTree| Ok(self.is(negated, IsTest::Null, item)?.expr);
        let entries = items.iter().map(one).collect::<Result<Vec<_>, FilterError>>()?;
        // Postgres makes such a row one constant, and then tests it for every row of the table.
        if !entries.iter().any(has_column) {
            return Err(self.unsupported(at, "IS NULL of a row of constants is".to_owned()));
        }
        // Postgres evaluates constant parts of all entries, also after one that decides the test.
        let entries = entries.into_iter().map(|entry| self.fold(entry, at));
        Ok(TypedExpr::boolean(Expr::And(entries.collect::<Result<_, _>>()?)))
    }

    pub(super) fn row_distinct(
        &self,
        negated: bool,
        left: &[SyntaxTree],
        right: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        self.check_entries(left, right, at)?;
        let one = |(left, right): (&SyntaxTree, &SyntaxTree)| {
            Ok(self.distinct(false, self.tree(left)?, self.tree(right)?, at)?.expr)
        };
        let distinct = Expr::Or(left.iter().zip(right).map(one).collect::<Result<_, FilterError>>()?);
        Ok(TypedExpr::boolean(if negated { Expr::Not(Box::new(distinct)) } else { distinct }))
    }

    fn check_entries(&self, left: &[SyntaxTree], right: &[SyntaxTree], at: usize) -> Result<(), FilterError> {
        if left.len() == right.len() {
            return Ok(());
        }
        Err(self.invalid(at, "42601", "unequal number of entries in row expressions".to_owned()))
    }
}
