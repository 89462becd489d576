//! Conditions: operands that must be booleans, and the choice of who evaluates each.
//!
//! Invariant: a condition that this crate can't evaluate becomes [`Expr::Postgres`] as a whole, or
//! it is refused. It is the smallest one: the operands of AND, OR, NOT and IS TRUE are conditions.

use super::expr::Expr;
use super::{Typer, find_column, fold};
use crate::error::FilterError;
use crate::expression::Expression;
use crate::postgres_rules::PostgresRules;
use crate::syntax::{SyntaxKind, SyntaxTree};

impl Typer<'_> {
    /// Types an operand that must be a boolean. `what` names it in errors.
    pub(super) fn condition(&self, tree: &SyntaxTree, what: &str) -> Result<Expr, FilterError> {
        let typed = self.tree(tree).and_then(|typed| self.boolean(typed, what, tree.at));
        match (typed, self.rules) {
            (typed, PostgresRules::None) => typed,
            (Err(error @ FilterError::Unsupported { .. }), _) => self.postgres(tree, error),
            // A constant part whose value this crate can't compute fails when it is folded.
            (Ok(expr), _) => match fold::fold(expr.clone()) {
                Err(error) if error.is_undecided() => {
                    self.postgres(tree, self.constant_part(&error, tree.at))
                }
                Ok(_) | Err(_) => Ok(expr),
            },
            (Err(error), _) => Err(error),
        }
    }

    /// Leaves a condition to Postgres, if the rules allow it.
    fn postgres(&self, tree: &SyntaxTree, unsupported: FilterError) -> Result<Expr, FilterError> {
        let columns = match self.rules {
            PostgresRules::None => return Err(unsupported),
            PostgresRules::Stored => {
                let mut columns = Vec::new();
                self.named_columns(tree, &mut columns)?;
                columns.sort_unstable();
                columns.dedup();
                columns
            }
            PostgresRules::Checked(check) => {
                let expression = Expression::of_tree(tree, self.text, self.schema, &[])?;
                check(&expression).map_err(|message| FilterError::Disallowed { message })?;
                expression.columns().collect()
            }
        };
        Ok(Expr::Postgres { columns })
    }

    fn named_columns(&self, tree: &SyntaxTree, found: &mut Vec<usize>) -> Result<(), FilterError> {
        if let SyntaxKind::Name(parts) = &tree.kind {
            found.push(find_column(parts, self.schema, self.text, tree.at)?);
        }
        let mut outcome = Ok(());
        tree.kind.each_child(&mut |child| {
            if outcome.is_ok() {
                outcome = self.named_columns(child, found);
            }
        });
        outcome
    }
}
