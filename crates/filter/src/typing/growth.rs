//! Limits of functions whose result may be many times as long as their arguments.
//!
//! Postgres evaluates the clause too, for snapshots, and holds up to 1 GB for one value. So the
//! clause must bound the result: the factor is a constant, and factors don't multiply.

use forebay_values::SqlValue;

use super::expr::{Binary, Expr};
use super::{TypedExpr, Typer, each};
use crate::error::FilterError;
use crate::eval::function::Function;
use crate::eval::json::JsonOperator;
use crate::eval::text::TextFunction;

/// Maximum count of repeat(), of a value that is no constant.
const MAX_REPEATS: i64 = 1000;
/// Maximum length of lpad() and rpad(), in characters.
const MAX_PADDED: i64 = 1024;
/// Maximum length of the replacement of replace(), in bytes.
const MAX_REPLACEMENT: usize = 1024;

impl Typer<'_> {
    /// Fails if the row may make the result much longer than the clause allows.
    pub(super) fn check_growth(
        &self,
        function: Function,
        arguments: &[TypedExpr],
        at: usize,
    ) -> Result<(), FilterError> {
        let Function::Text(function) = function else { return Ok(()) };
        let folded = arguments.iter().map(|argument| self.fold(argument.expr.clone(), at));
        let folded = match folded.collect::<Result<Vec<_>, _>>() {
            Ok(folded) => folded,
            // The call never has a result. Whether Postgres evaluates it is decided later.
            Err(FilterError::Invalid { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        if folded.iter().all(Expr::is_const) {
            return Ok(()); // It is evaluated once, within the limits of `eval/text.rs`.
        }
        let up_to = |argument: &Expr, most: i64| match argument {
            Expr::Const(Some(SqlValue::Int(value))) => *value <= most,
            other => *other == Expr::NULL,
        };
        let refused = match function {
            TextFunction::Repeat if !up_to(&folded[1], MAX_REPEATS) => {
                format!("repeat with a count other than a constant up to {MAX_REPEATS}")
            }
            TextFunction::Pad(_) if !up_to(&folded[1], MAX_PADDED) => {
                format!("lpad and rpad with a length other than a constant up to {MAX_PADDED}")
            }
            TextFunction::Replace if !is_short(&folded[2]) => {
                format!("replace with a replacement other than a constant up to {MAX_REPLACEMENT} bytes")
            }
            TextFunction::Repeat | TextFunction::Replace if grows(&folded[0]) => {
                "repeat and replace of a text that a function or || makes longer".to_owned()
            }
            _ => return Ok(()),
        };
        Err(self.unsupported(at, format!("{refused} is")))
    }
}

fn is_short(replacement: &Expr) -> bool {
    match replacement {
        Expr::Const(Some(SqlValue::Text(text))) => text.len() <= MAX_REPLACEMENT,
        other => *other == Expr::NULL,
    }
}

/// Returns whether a part may be longer than its operands.
fn grows(expr: &Expr) -> bool {
    let mut found = false;
    each(expr, &mut |part| {
        found |= match part {
            Expr::Binary(Binary::Concat | Binary::ConcatBytes | Binary::Json(JsonOperator::Concat), _) => {
                true
            }
            Expr::Concat { .. } | Expr::Array { .. } => true,
            Expr::ArrayCat(_) | Expr::ArrayPush { .. } => true,
            Expr::Call { function: Function::Text(function), .. } => {
                matches!(function, TextFunction::Repeat | TextFunction::Replace)
            }
            _ => false,
        };
    });
    found
}
