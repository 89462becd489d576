//! Evaluation of `operands IN (SELECT …)`, given the contents of the set.

use forebay_values::EvalError;

use super::{Scope, undecided};
use crate::index_key::IndexKey;
use crate::subquery::SetKey;
use crate::typing::SqlType;
use crate::typing::expr::Expr;

impl<'v> Scope<'v, '_> {
    /// Returns whether the set has the operands. For one operand, NULL as in Postgres: without a
    /// match, if the operand or a selected value is NULL, and the set isn't empty. For several,
    /// NULL is returned as false: typing allows them only where both have the same effect.
    pub(super) fn in_set(&self, set: usize, operands: &'v [Expr]) -> Result<Option<bool>, EvalError> {
        let sets = self.sets.ok_or_else(undecided)?;
        let [operand] = operands else {
            let keys =
                operands.iter().map(|operand| self.set_key(operand)).collect::<Result<Option<_>, _>>()?;
            return Ok(Some(keys.is_some_and(|keys| sets.contains(set, &SetKey::Row(keys)))));
        };
        let Some(key) = self.set_key(operand)? else {
            return Ok(if sets.is_empty(set) { Some(false) } else { None });
        };
        match sets.contains(set, &SetKey::Value(key)) {
            true => Ok(Some(true)),
            false => Ok(if sets.has_null(set) { None } else { Some(false) }),
        }
    }

    /// Returns the key of a column's value; `None`: it is NULL.
    fn set_key(&self, operand: &'v Expr) -> Result<Option<IndexKey>, EvalError> {
        let Expr::Column { kind: SqlType::Scalar(scalar), .. } = operand else {
            unreachable!("typing allows only columns")
        };
        match self.value(operand)? {
            None => Ok(None),
            Some(value) => IndexKey::of(&value, *scalar).map(Some).ok_or_else(undecided),
        }
    }
}
