//! Functions that a clause calls by name: their evaluation. `typing/functions/` has their types.

use std::borrow::Cow;

use forebay_values::{Array, Casing, EvalError, Interval, LetterCase, Range, Scalar, SqlValue, like};

use super::clock_function::ClockFunction;
use super::json::{self, JsonOperator};
use super::number::NumberFunction;
use super::text::TextFunction;
use super::{EvalResult, as_array, as_text};

/// A function, with what typing determined for the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    ArrayDimensions,
    /// length() and octet_length() of bytea.
    ByteLength,
    /// lower() and upper().
    Case(Casing, LetterCase),
    /// A function that an operator of jsonb calls, too.
    Json(JsonOperator),
    JsonArrayLength,
    /// `as_text`: jsonb_extract_path_text().
    JsonPath {
        as_text: bool,
    },
    JsonTypeof,
    JustifyDays,
    JustifyHours,
    JustifyInterval,
    LikeEscape,
    /// int4range() and others, with bounds of this type.
    Range(Scalar),
    Text(TextFunction),
    /// date_trunc(), extract() and others.
    Clock(ClockFunction),
    Number(NumberFunction),
}

impl Function {
    /// Evaluates the function. The arguments of a strict function are not NULL.
    pub(super) fn apply(self, mut arguments: Arguments<'_>) -> EvalResult<'_> {
        let value = match self {
            Function::ArrayDimensions => {
                let dimensions = arguments.array().dimensions().len();
                return Ok((dimensions > 0).then_some(SqlValue::Int(dimensions as i64)));
            }
            Function::ByteLength => SqlValue::Int(arguments.bytes().len() as i64),
            Function::Case(casing, case) => SqlValue::Text(casing.apply(arguments.text(), case)?),
            Function::Json(operator) => {
                let (left, right) = (arguments.value(), arguments.value());
                return operator.apply(left, right);
            }
            Function::JsonArrayLength => SqlValue::Int(json::array_length(arguments.value())?),
            Function::JsonPath { as_text } => {
                let value = arguments.value();
                let steps = arguments.0.map(|step| step.map(SqlValue::into_owned)).collect();
                return JsonOperator::Path { as_text }.apply(value, SqlValue::array(Array::list(steps)));
            }
            Function::JsonTypeof => SqlValue::text(json::type_name(arguments.value())?),
            Function::JustifyDays => SqlValue::Interval(arguments.interval().justify_days()?),
            Function::JustifyHours => SqlValue::Interval(arguments.interval().justify_hours()?),
            Function::JustifyInterval => SqlValue::Interval(arguments.interval().justify()?),
            Function::Clock(function) => return function.apply(&mut arguments),
            Function::Number(function) => function.apply(&mut arguments)?,
            Function::LikeEscape => {
                let (pattern, escape) = (arguments.text(), arguments.text());
                SqlValue::Text(Cow::Owned(like::with_escape(&pattern, &escape)?))
            }
            Function::Range(element) => {
                let [lower, upper] = [(); 2].map(|()| arguments.nullable().map(SqlValue::into_owned));
                let flags = match arguments.0.next() {
                    None => Cow::Borrowed("[)"),
                    Some(Some(flags)) => as_text(flags),
                    Some(None) => {
                        let message = "range constructor flags argument must not be null";
                        return Err(EvalError::new("22000", message));
                    }
                };
                SqlValue::Range(Cow::Owned(Range::between(lower, upper, &flags, element)?))
            }
            Function::Text(function) => return function.apply(arguments),
        };
        Ok(Some(value))
    }

    /// Returns whether the function never fails on a row.
    pub(crate) fn never_fails(self) -> bool {
        match self {
            Function::ArrayDimensions
            | Function::ByteLength
            | Function::JsonPath { .. }
            | Function::JsonTypeof => true,
            Function::Text(function) => function.never_fails(),
            Function::Json(operator) => !operator.may_fail(),
            _ => false,
        }
    }

    /// Returns whether the collation decides which texts are equal to another.
    pub(crate) fn compares_texts(self) -> bool {
        matches!(self, Function::Text(function) if function.searches())
    }
}

/// Values of a call's arguments, taken one by one. The types were checked.
pub(crate) struct Arguments<'v>(std::vec::IntoIter<Option<SqlValue<'v>>>);

impl<'v> Arguments<'v> {
    pub(super) fn new(values: Vec<Option<SqlValue<'v>>>) -> Self {
        Arguments(values.into_iter())
    }

    /// Takes the next argument, which may be NULL.
    pub(crate) fn nullable(&mut self) -> Option<SqlValue<'v>> {
        self.0.next().expect("the number of arguments was checked")
    }

    /// Takes the next argument of a strict function.
    pub(crate) fn value(&mut self) -> SqlValue<'v> {
        self.nullable().expect("a strict function is not called for NULL")
    }

    pub(crate) fn text(&mut self) -> Cow<'v, str> {
        as_text(self.value())
    }

    /// Takes the next argument, if the call has one.
    pub(crate) fn optional_text(&mut self) -> Option<Cow<'v, str>> {
        (self.0.len() > 0).then(|| self.text())
    }

    pub(crate) fn int(&mut self) -> i64 {
        match self.value() {
            SqlValue::Int(value) => value,
            other => unreachable!("it is an integer by type: {other:?}"),
        }
    }

    /// Takes the next argument, if the call has one.
    pub(crate) fn optional_int(&mut self) -> Option<i64> {
        (self.0.len() > 0).then(|| self.int())
    }

    pub(super) fn bytes(&mut self) -> Cow<'v, [u8]> {
        match self.value() {
            SqlValue::Bytes(bytes) => bytes,
            other => unreachable!("it is a byte string by type: {other:?}"),
        }
    }

    pub(crate) fn array(&mut self) -> Cow<'v, Array> {
        as_array(self.value())
    }

    pub(crate) fn interval(&mut self) -> Interval {
        match self.value() {
            SqlValue::Interval(interval) => interval,
            other => unreachable!("it is an interval by type: {other:?}"),
        }
    }
}
