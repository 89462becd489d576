//! Key expressions: parts of clauses that an index evaluates once per row, to look up their value.
//!
//! `lower(name) = 'a'` and `lower(name) IN ('b', 'c')` share the key expression `lower(name)`.
//!
//! Invariant: two key expressions are equal exactly if they are written with the same operations
//! and constants, and their values have keys of one form.
//! Enforced by: the comparison of their identities. An identity contains every part.

use std::cmp::Ordering;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use forebay_values::EvalError;

use super::TextRow;
use super::eval;
use super::index_key::{IndexKey, KeyFormId};
use super::typing::{self, expr::Expr};

/// An expression of columns that a clause compares with constants. Cloning it is cheap.
#[derive(Clone)]
pub struct KeyExpression(Arc<KeyExpressionParts>);

struct KeyExpressionParts {
    expr: Expr,
    /// Values are compared without trailing blanks, as bpchar.
    ignore_blanks: bool,
    /// The form of the constants' keys.
    form: KeyFormId,
    identity: Box<str>,
    /// One more than the last column of the expression.
    columns: usize,
}

impl KeyExpression {
    /// Returns the key expression for comparisons with constants whose keys have this form.
    pub(super) fn new(expr: &Expr, ignore_blanks: bool, form: KeyFormId) -> Self {
        let mut columns = 0;
        typing::each(expr, &mut |part| {
            if let Expr::Column { index, .. } = part {
                columns = columns.max(index + 1);
            }
        });
        // The debug text holds every part, and distinguishes 0 from -0 and 1.0 from 1.00.
        let identity = format!("{form:?} {ignore_blanks} {expr:?}").into_boxed_str();
        KeyExpression(Arc::new(KeyExpressionParts {
            expr: expr.clone(),
            ignore_blanks,
            form,
            identity,
            columns,
        }))
    }

    /// Returns the key of the expression's value for a row; `None` if the value is NULL.
    ///
    /// # Errors
    /// Fails if evaluation fails, or if the value's key has another form than the constants': then
    /// the row's keys don't decide the comparison.
    pub fn key(&self, row: &dyn TextRow) -> Result<Option<IndexKey>, EvalError> {
        let KeyExpressionParts { expr, ignore_blanks, form, .. } = &*self.0;
        let Some(value) = eval::value(expr, row)? else { return Ok(None) };
        match IndexKey::of_value(&value, *ignore_blanks) {
            Some(key) if key.form() == *form => Ok(Some(key)),
            _ => Err(EvalError::new("0A000", "the value has no key that constants have")),
        }
    }

    /// Returns the smallest number of columns of a row for which the expression can be evaluated.
    pub(super) fn columns(&self) -> usize {
        self.0.columns
    }
}

impl PartialEq for KeyExpression {
    fn eq(&self, other: &Self) -> bool {
        self.0.identity == other.0.identity
    }
}

impl Eq for KeyExpression {}

impl PartialOrd for KeyExpression {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyExpression {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.identity.cmp(&other.0.identity)
    }
}

impl Debug for KeyExpression {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.identity)
    }
}
