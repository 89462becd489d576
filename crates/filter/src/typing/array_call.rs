//! Typing of array functions.

use super::expr::{ArrayFunction, Expr};
use super::sql_type::{Scalar, SqlType};
use super::{TypedExpr, Typer, common_type};
use crate::error::FilterError;

impl ArrayFunction {
    /// Returns the function of this name, and its numbers of arguments.
    pub(super) fn of(name: &str) -> Option<(Self, std::ops::RangeInclusive<usize>)> {
        Some(match name {
            "array_length" => (ArrayFunction::Length, 2..=2),
            "array_lower" => (ArrayFunction::Lower, 2..=2),
            "array_upper" => (ArrayFunction::Upper, 2..=2),
            "array_dims" => (ArrayFunction::Bounds, 1..=1),
            "cardinality" => (ArrayFunction::Cardinality, 1..=1),
            "array_position" => (ArrayFunction::Find, 2..=3),
            "array_remove" => (ArrayFunction::Remove, 2..=2),
            "array_replace" => (ArrayFunction::Replace, 3..=3),
            _ => return None,
        })
    }
}

impl Typer<'_> {
    /// Types a call of an array function. `None`: Postgres has no such function for these types.
    pub(super) fn array_call(
        &self,
        function: ArrayFunction,
        arguments: Vec<TypedExpr>,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        const INT4: SqlType = SqlType::Scalar(Scalar::Int4);
        let has_elements =
            matches!(function, ArrayFunction::Find | ArrayFunction::Remove | ArrayFunction::Replace);
        let (array, element) = match (arguments[0].kind, has_elements) {
            (SqlType::Array(element), false) => (SqlType::Array(element), element),
            (SqlType::Unknown, false) => {
                let message = "could not determine polymorphic type because input has type unknown";
                return Err(self.invalid(at, "42804", message.to_owned()));
            }
            (first, true) => match self.array_and_elements(first, &arguments, function) {
                Some(element) => (SqlType::Array(element), element),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let item = SqlType::Scalar(element);
        let wanted = match function {
            ArrayFunction::Length | ArrayFunction::Lower | ArrayFunction::Upper => vec![array, INT4],
            ArrayFunction::Bounds | ArrayFunction::Cardinality => vec![array],
            ArrayFunction::Find => vec![array, item, INT4],
            ArrayFunction::Remove => vec![array, item],
            ArrayFunction::Replace => vec![array, item, item],
        };
        let collation = self.merge(&arguments, at)?;
        if has_elements && array.is_collatable() {
            self.check_equality(collation, at)?;
        }
        let mut items = Vec::new();
        for (argument, kind) in arguments.into_iter().zip(wanted) {
            if !argument.kind.casts_implicitly_to(kind) {
                return Ok(None);
            }
            items.push(self.coerce(argument, kind, at)?.expr);
        }
        let result = match function {
            ArrayFunction::Bounds => SqlType::TEXT,
            ArrayFunction::Remove | ArrayFunction::Replace => array,
            _ => INT4,
        };
        let collation = if result.is_collatable() { collation } else { Default::default() };
        let ignore_blanks = element == Scalar::Bpchar;
        Ok(Some(TypedExpr {
            expr: Expr::ArrayCall { function, ignore_blanks, items },
            kind: result,
            collation,
        }))
    }

    /// Returns the common element type of an array and its elements (anycompatible).
    fn array_and_elements(
        &self,
        first: SqlType,
        arguments: &[TypedExpr],
        function: ArrayFunction,
    ) -> Option<Scalar> {
        let mut kinds = match first {
            SqlType::Array(element) => vec![SqlType::Scalar(element)],
            SqlType::Unknown => vec![SqlType::Unknown],
            _ => return None,
        };
        let count = if function == ArrayFunction::Replace { 2 } else { 1 };
        kinds.extend(arguments.iter().skip(1).take(count).map(|argument| argument.kind));
        match common_type::select(&kinds) {
            Ok(SqlType::Scalar(element)) => {
                let is_castable = |kind: &SqlType| kind.casts_implicitly_to(SqlType::Scalar(element));
                kinds.iter().all(is_castable).then_some(element)
            }
            _ => None,
        }
    }
}
