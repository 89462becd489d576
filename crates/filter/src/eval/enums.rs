//! Evaluation of enums: labels to their positions, and back.

use std::borrow::Cow;

use forebay_values::{Array, EvalError, SqlValue};

/// Returns the position of a label, or an array of positions. Fails if the enum got the label later
/// than the filter was made.
pub(super) fn position<'v>(labels: &[String], value: SqlValue<'v>) -> Result<SqlValue<'v>, EvalError> {
    let of_label = |label: &str| match labels.iter().position(|known| known == label) {
        Some(position) => Ok(SqlValue::Int(position as i64)),
        None => Err(EvalError::new("0A000", "the label of an enum is newer than the clause")),
    };
    match value {
        SqlValue::Array(array) => each(array, |item| match item {
            SqlValue::Text(label) => of_label(label),
            other => unreachable!("it is a label by type: {other:?}"),
        }),
        SqlValue::Text(label) => of_label(&label),
        other => unreachable!("it is a label by type: {other:?}"),
    }
}

/// Returns the label at a position, or an array of labels.
pub(super) fn label<'v>(labels: &[String], value: SqlValue<'v>) -> SqlValue<'v> {
    let at = |position: &SqlValue<'_>| match position {
        SqlValue::Int(position) => SqlValue::Text(Cow::Owned(labels[*position as usize].clone())),
        other => unreachable!("it is a position by type: {other:?}"),
    };
    match value {
        SqlValue::Array(array) => each(array, |item| Ok(at(item))).expect("every position has a label"),
        value => at(&value),
    }
}

fn each(
    array: Cow<'_, Array>,
    change: impl Fn(&SqlValue<'static>) -> Result<SqlValue<'static>, EvalError>,
) -> Result<SqlValue<'static>, EvalError> {
    array.into_owned().try_map(|item| change(&item).map(Some)).map(SqlValue::array)
}
