//! Evaluation of arrays: ANY and ALL, constructors, subscripts and slices.

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
        if let (true, Binary::Compare { ignore_blanks, .. }) = (array.is_set(), operator) {
            // `= ANY` or `<> ALL`.
            let found = array.has(&left, ignore_blanks);
            return Ok((found || !array.has_null()).then_some(SqlValue::Bool(found != all)));
        }
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
