//! Typing of array functions that compare elements, or take the number of a dimension.

use forebay_values::Scalar;

use super::expr::{ArrayFunction, Expr};
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;

impl Typer<'_> {
    /// Types a call of an array function whose arguments have its types.
    pub(super) fn array_call(
        &self,
        function: ArrayFunction,
        arguments: Vec<TypedExpr>,
        at: usize,
    ) -> Result<Expr, FilterError> {
        let array = arguments.first().map_or(SqlType::Unknown, |array| array.kind);
        let compares =
            matches!(function, ArrayFunction::Find | ArrayFunction::Remove | ArrayFunction::Replace);
        if compares && array.is_collatable() {
            self.check_equality(self.merge(&arguments, at)?, at)?;
        }
        let ignore_blanks = array == SqlType::Array(Scalar::Bpchar);
        let items = arguments.into_iter().map(|argument| argument.expr).collect();
        Ok(Expr::ArrayCall { function, ignore_blanks, items })
    }
}
