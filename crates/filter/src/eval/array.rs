//! Evaluation of array functions (arrayfuncs.c, array_userfuncs.c).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;

use forebay_values::{Array, Dimension, EvalError, SqlValue};

use super::EvalResult;
use crate::typing::expr::ArrayFunction;

/// Maximum bytes that array_replace adds: a short clause must not create large values.
const MAX_REPLACEMENT: usize = 16 * 1024 * 1024;

/// Calls a function. A NULL array gives NULL; other arguments may be NULL.
pub(super) fn call<'v>(
    function: ArrayFunction,
    ignore_blanks: bool,
    arguments: Vec<Option<SqlValue<'v>>>,
) -> EvalResult<'v> {
    let mut arguments = arguments.into_iter();
    let Some(array) = arguments.next().flatten().map(super::as_array) else { return Ok(None) };
    let rest: Vec<_> = arguments.collect();
    let is_equal = |item: &Option<SqlValue<'static>>, wanted: &Option<SqlValue<'v>>| match (item, wanted) {
        (Some(item), Some(wanted)) => item.compare(wanted, ignore_blanks) == Ordering::Equal,
        (item, wanted) => item.is_none() && wanted.is_none(),
    };
    let dimension = |measure: fn(&Dimension) -> i64| {
        let Some(Some(SqlValue::Int(number))) = rest.first() else { return None };
        let index = usize::try_from(*number).ok()?.checked_sub(1)?;
        array.dimensions().get(index).map(measure).map(SqlValue::Int)
    };
    Ok(match function {
        ArrayFunction::Length => dimension(|dimension| dimension.length as i64),
        ArrayFunction::Lower => dimension(|dimension| i64::from(dimension.lower)),
        ArrayFunction::Upper => dimension(upper),
        ArrayFunction::Bounds => bounds(&array),
        ArrayFunction::Cardinality => Some(SqlValue::Int(array.items().len() as i64)),
        ArrayFunction::Find => find(&array, &rest, is_equal)?,
        ArrayFunction::Remove => {
            refuse_dimensions(&array, "removing elements from multidimensional arrays is not supported")?;
            let mut array = array.into_owned();
            array.retain(|item| !is_equal(item, &rest[0]));
            Some(SqlValue::array(array))
        }
        ArrayFunction::Replace => {
            let mut array = array.into_owned();
            let new = rest[1].clone().map(SqlValue::into_owned);
            let found: Vec<_> =
                array.items_mut().iter_mut().filter(|item| is_equal(item, &rest[0])).collect();
            let length = match &new {
                Some(SqlValue::Text(text)) => text.len(),
                Some(SqlValue::Bytes(bytes)) => bytes.len(),
                _ => 0,
            };
            if found.len().saturating_mul(length) > MAX_REPLACEMENT {
                return Err(EvalError::new("0A000", "array_replace adds more than 16 MiB"));
            }
            found.into_iter().for_each(|item| item.clone_from(&new));
            Some(SqlValue::array(array))
        }
    })
}

fn upper(dimension: &Dimension) -> i64 {
    i64::from(dimension.lower) + dimension.length as i64 - 1
}

fn bounds(array: &Array) -> Option<SqlValue<'static>> {
    let mut out = String::new();
    for dimension in array.dimensions() {
        write!(out, "[{}:{}]", dimension.lower, upper(dimension)).expect("writing to a String never fails");
    }
    (!out.is_empty()).then_some(SqlValue::Text(Cow::Owned(out)))
}

fn find<'v>(
    array: &Array,
    rest: &[Option<SqlValue<'v>>],
    is_equal: impl Fn(&Option<SqlValue<'static>>, &Option<SqlValue<'v>>) -> bool,
) -> EvalResult<'static> {
    refuse_dimensions(array, "searching for elements in multidimensional arrays is not supported")?;
    let Some(dimension) = array.dimensions().first() else { return Ok(None) };
    let first = i64::from(dimension.lower);
    let start = match rest.get(1) {
        None => first,
        Some(Some(SqlValue::Int(start))) => *start,
        Some(_) => return Err(EvalError::new("22004", "initial position must not be null")),
    };
    let mut items = (first..).zip(array.items()).filter(|(position, _)| *position >= start);
    Ok(items.find(|(_, item)| is_equal(item, &rest[0])).map(|(position, _)| SqlValue::Int(position)))
}

fn refuse_dimensions(array: &Array, message: &'static str) -> Result<(), EvalError> {
    if array.dimensions().len() > 1 { Err(EvalError::new("0A000", message)) } else { Ok(()) }
}
