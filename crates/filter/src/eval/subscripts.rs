//! Evaluation of arrays: ANY and ALL, constructors, subscripts and slices.

use std::cmp::Ordering;

use forebay_values::{Array, EvalError, SqlValue};

use super::{EvalResult, Scope, apply, as_array, holds};
use crate::typing::expr::{Binary, Expr};

impl<'v> Scope<'v, '_> {
    pub(super) fn quantified(&self, operator: Binary, all: bool, operands: &'v [Expr; 2]) -> EvalResult<'v> {
        let (left, right) = self.pair(operands)?;
        let Some(array) = right.map(as_array) else { return Ok(None) };
        if array.items().is_empty() {
            return Ok(Some(SqlValue::Bool(all)));
        }
        let Some(left) = left else { return Ok(None) };
        let mut unknown = false;
        for item in array.items() {
            let Some(item) = item else {
                unknown = true;
                continue;
            };
            let holds = match operator {
                Binary::Compare { comparison, ignore_blanks } => {
                    holds(comparison, &left, item, ignore_blanks)
                }
                _ => apply(operator, left.borrowed(), item.borrowed())? == SqlValue::Bool(true),
            };
            if holds != all {
                return Ok(Some(SqlValue::Bool(!all)));
            }
        }
        Ok(if unknown { None } else { Some(SqlValue::Bool(all)) })
    }

    /// Evaluates `= ANY` (`all` is false) or `<> ALL` of a constant array in order, NULLs last.
    pub(super) fn search(&self, ignore_blanks: bool, all: bool, operands: &'v [Expr; 2]) -> EvalResult<'v> {
        let (left, right) = self.pair(operands)?;
        let (Some(left), Some(array)) = (left, right.map(as_array)) else { return Ok(None) };
        let nulls_begin = array.items().partition_point(Option::is_some);
        let found = array.items()[..nulls_begin].binary_search_by(|item| match item {
            Some(item) => left.compare(item, ignore_blanks).reverse(),
            None => Ordering::Greater,
        });
        Ok(match found {
            Ok(_) => Some(SqlValue::Bool(!all)),
            Err(_) if nulls_begin < array.items().len() => None,
            Err(_) => Some(SqlValue::Bool(all)),
        })
    }

    pub(super) fn array(&self, nested: bool, items: &'v [Expr]) -> EvalResult<'v> {
        if !nested {
            let items = items.iter().map(|item| Ok(self.value(item)?.map(SqlValue::into_owned)));
            return Ok(Some(SqlValue::array(Array::list(items.collect::<Result<_, EvalError>>()?))));
        }
        let mut arrays = Vec::new();
        for item in items {
            arrays.push(self.value(item)?.map_or(Array::EMPTY, |array| as_array(array).into_owned()));
        }
        Ok(Some(SqlValue::array(Array::nested(arrays)?)))
    }

    pub(super) fn index(&self, base: &'v Expr, indexes: &'v [Expr]) -> EvalResult<'v> {
        let Some(array) = self.value(base)?.map(as_array) else { return Ok(None) };
        let mut positions = Vec::with_capacity(indexes.len());
        for index in indexes {
            match self.bound(index)? {
                Some(position) => positions.push(position),
                None => return Ok(None),
            }
        }
        Ok(array.at(&positions).cloned())
    }

    pub(super) fn slice(&self, base: &'v Expr, ranges: &'v [(Option<Expr>, Option<Expr>)]) -> EvalResult<'v> {
        let Some(array) = self.value(base)?.map(as_array) else { return Ok(None) };
        let mut bounds = Vec::with_capacity(ranges.len());
        for (from, to) in ranges {
            let mut ends = [None, None];
            for (end, bound) in ends.iter_mut().zip([from, to]) {
                if let Some(bound) = bound {
                    match self.bound(bound)? {
                        Some(position) => *end = Some(position),
                        None => return Ok(None),
                    }
                }
            }
            bounds.push((ends[0], ends[1]));
        }
        Ok(Some(SqlValue::array(array.slice(&bounds))))
    }

    fn bound(&self, expr: &'v Expr) -> Result<Option<i32>, EvalError> {
        match self.value(expr)? {
            None => Ok(None),
            Some(SqlValue::Int(value)) => {
                i32::try_from(value).map(Some).map_err(|_| EvalError::out_of_range("integer"))
            }
            Some(other) => unreachable!("it is an integer by type: {other:?}"),
        }
    }
}
