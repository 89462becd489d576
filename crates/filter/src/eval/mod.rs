//! Evaluation: computes an expression's value for a row, or Postgres' error.
//!
//! Invariant: evaluation fails if Postgres fails. Operands are evaluated from left to right. A
//! strict operator evaluates all operands first. AND, OR, CASE and COALESCE stop where Postgres
//! stops.
//! Enforced by: `tests/it/agreement.rs`.
//! Out of scope: caches. A column is parsed where it is used, and most clauses use each column
//! once.

mod array;
pub(crate) mod clock_function;
mod enums;
pub(crate) mod function;
pub(crate) mod json;
mod multirange;
pub(crate) mod number;
mod set;
mod subscripts;
pub(crate) mod text;

use std::borrow::Cow;
use std::cmp::Ordering;

use forebay_values::{Array, EvalError, Inet, LetterCase, Range, Scalar, SqlValue, compare_text, like};

use self::function::Arguments;
use super::TextRow;
use super::subquery::SetContents;
use super::syntax::IsTest;
use super::typing::SqlType;
use super::typing::expr::{Binary, Comparison, Expr, Unary};

/// A value, `None` for NULL, or Postgres' error.
pub(crate) type EvalResult<'v> = Result<Option<SqlValue<'v>>, EvalError>;

/// Evaluates an expression without columns.
pub(crate) fn constant(expr: &Expr) -> EvalResult<'_> {
    static NO_ROW: [Option<&[u8]>; 0] = [];
    Scope { row: &NO_ROW, operand: None, lenient: false, sets: None }.value(expr)
}

/// Evaluates an expression.
pub(crate) fn value<'v>(expr: &'v Expr, row: &'v dyn TextRow) -> EvalResult<'v> {
    Scope { row, operand: None, lenient: false, sets: None }.value(expr)
}

/// Evaluates a boolean expression.
pub(crate) fn truth(
    expr: &Expr,
    row: &dyn TextRow,
    sets: Option<&dyn SetContents>,
) -> Result<Option<bool>, EvalError> {
    Scope { row, operand: None, lenient: false, sets }.truth(expr)
}

/// Evaluates a boolean expression. An operand of AND or OR that fails has no effect if another
/// operand decides the result. Fails as undecided if Postgres may have a result.
pub(crate) fn lenient_truth(
    expr: &Expr,
    row: &dyn TextRow,
    sets: Option<&dyn SetContents>,
) -> Result<Option<bool>, EvalError> {
    Scope { row, operand: None, lenient: true, sets }.truth(expr)
}

/// The error for a value that only Postgres can determine.
fn undecided() -> EvalError {
    EvalError::new("0A000", "only Postgres can evaluate a part of the clause")
}

/// Evaluation context: the row, and the operand of the enclosing CASE.
struct Scope<'v, 'o> {
    row: &'v dyn TextRow,
    /// The operand's value of the innermost CASE.
    operand: Option<&'o SqlValue<'v>>,
    /// Whether a failing operand of AND or OR may be ignored.
    lenient: bool,
    /// Contents of the subqueries' sets. `None`: unknown, so a condition on them is undecided.
    sets: Option<&'o dyn SetContents>,
}

impl<'v> Scope<'v, '_> {
    fn value(&self, expr: &'v Expr) -> EvalResult<'v> {
        match expr {
            Expr::Const(value) => Ok(value.as_ref().map(SqlValue::borrowed)),
            Expr::Column { index, kind } => self.column(*index, *kind),
            Expr::Binary(binary, operands) => match self.pair(operands)? {
                (Some(left), Some(right)) => match binary {
                    Binary::Json(operator) => operator.apply(left, right),
                    _ => apply(*binary, left, right).map(Some),
                },
                _ => Ok(None),
            },
            Expr::Unary(unary, operand) => match self.value(operand)? {
                Some(value) => apply_unary(*unary, value).map_err(|error| self.row_error(error)),
                None => Ok(None),
            },
            Expr::And(_)
            | Expr::Or(_)
            | Expr::Not(_)
            | Expr::Is { .. }
            | Expr::Distinct { .. }
            | Expr::InSet { .. }
            | Expr::RowComparison { .. } => Ok(self.truth(expr)?.map(SqlValue::Bool)),
            other => self.uncommon_value(other),
        }
    }

    /// A text of a row that means the current time is no value in a clause: tomorrow it would be
    /// another one. [`Filter::postgres_sql`](crate::Filter::postgres_sql) makes it fail, too.
    fn row_error(&self, error: EvalError) -> EvalError {
        let is_clock = self.lenient && error.depends_on_clock();
        if is_clock { EvalError::new("22007", "a text means the current time") } else { error }
    }

    /// Evaluates a boolean expression. Avoids a `SqlValue` for each intermediate result.
    fn truth(&self, expr: &'v Expr) -> Result<Option<bool>, EvalError> {
        match expr {
            Expr::And(operands) => self.chain(operands, false),
            Expr::Or(operands) => self.chain(operands, true),
            Expr::Not(operand) => Ok(self.truth(operand)?.map(|value| !value)),
            Expr::Is { negated, test, operand } => {
                let holds = match test {
                    IsTest::Null => self.value(operand)?.is_none(),
                    IsTest::True => self.truth(operand)? == Some(true),
                    IsTest::False => self.truth(operand)? == Some(false),
                    IsTest::Unknown => self.truth(operand)?.is_none(),
                };
                Ok(Some(holds != *negated))
            }
            Expr::Distinct { negated, ignore_blanks, operands } => {
                let distinct = match self.pair(operands)? {
                    (Some(left), Some(right)) => left.compare(&right, *ignore_blanks) != Ordering::Equal,
                    (left, right) => left.is_some() != right.is_some(),
                };
                Ok(Some(distinct != *negated))
            }
            Expr::RowComparison { comparison, pairs } => self.row_comparison(*comparison, pairs),
            Expr::InSet { set, operands } => self.in_set(*set, operands),
            Expr::Binary(Binary::Compare { comparison, ignore_blanks }, operands) => {
                self.comparison(*comparison, *ignore_blanks, operands)
            }
            _ => match self.value(expr)? {
                None => Ok(None),
                Some(SqlValue::Bool(value)) => Ok(Some(value)),
                Some(other) => unreachable!("it is a boolean by type: {other:?}"),
            },
        }
    }

    fn comparison(
        &self,
        comparison: Comparison,
        ignore_blanks: bool,
        operands: &'v [Expr; 2],
    ) -> Result<Option<bool>, EvalError> {
        if let [Expr::Column { index, kind: SqlType::Scalar(scalar) }, Expr::Const(Some(constant))] = operands
        {
            let Some(bytes) = self.row.text(*index) else { return Ok(None) };
            if let Some(holds) = compare_bytes(comparison, ignore_blanks, *scalar, bytes, constant) {
                return Ok(Some(holds));
            }
        }
        match self.pair(operands)? {
            (Some(left), Some(right)) => Ok(Some(holds(comparison, &left, &right, ignore_blanks))),
            _ => Ok(None),
        }
    }

    #[inline(never)]
    fn uncommon_value(&self, expr: &'v Expr) -> EvalResult<'v> {
        match expr {
            Expr::Quantified { operator, all, operands } => self.quantified(*operator, *all, operands),
            Expr::Position { labels, operand } => match self.value(operand)? {
                Some(value) => enums::position(labels, value).map(Some),
                None => Ok(None),
            },
            Expr::Label { labels, operand } => {
                Ok(self.value(operand)?.map(|value| enums::label(labels, value)))
            }
            Expr::ArrayCall { function, ignore_blanks, items } => {
                let values = items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>()?;
                array::call(*function, *ignore_blanks, values)
            }
            Expr::Call { function, is_strict, arguments, .. } => {
                // All arguments are evaluated, even after a NULL: one of them may fail.
                let values = arguments.iter().map(|argument| self.value(argument));
                let values = values.collect::<Result<Vec<_>, _>>()?;
                if *is_strict && values.iter().any(Option::is_none) {
                    return Ok(None);
                }
                function.apply(Arguments::new(values))
            }
            Expr::Array { nested, items } => self.array(*nested, items),
            Expr::Index(base, indexes) => self.index(base, indexes),
            Expr::Slice(base, ranges) => self.slice(base, ranges),
            Expr::Coalesce(items) => {
                for item in items {
                    if let Some(value) = self.value(item)? {
                        return Ok(Some(value));
                    }
                }
                Ok(None)
            }
            Expr::Extreme { greatest, ignore_blanks, items } => {
                self.extreme(*greatest, *ignore_blanks, items)
            }
            Expr::Concat { separator, items } => self.concat(separator.as_deref(), items),
            Expr::NullIf { ignore_blanks, operands } => match self.pair(operands)? {
                (Some(left), Some(right)) if left.compare(&right, *ignore_blanks) == Ordering::Equal => {
                    Ok(None)
                }
                (left, _) => Ok(left),
            },
            Expr::Case { operand, arms, otherwise } => self.case(operand.as_deref(), arms, otherwise),
            Expr::CaseOperand => Ok(self.operand.cloned()),
            Expr::Postgres { .. } => Err(undecided()),
            Expr::ArrayCat(operands) => match self.pair(operands)? {
                (Some(left), Some(right)) => {
                    Ok(Some(SqlValue::array(as_array(left).concat(&as_array(right))?)))
                }
                (left, right) => Ok(left.or(right)),
            },
            Expr::ArrayPush { end, operands } => {
                let (array, item) = self.pair(operands)?;
                let array = array.map_or(Array::EMPTY, |array| as_array(array).into_owned());
                Ok(Some(SqlValue::array(array.push(item.map(SqlValue::into_owned), *end)?)))
            }
            other => unreachable!("evaluated elsewhere: {other:?}"),
        }
    }

    fn column(&self, index: usize, kind: SqlType) -> EvalResult<'v> {
        let Some(bytes) = self.row.text(index) else { return Ok(None) };
        let text = std::str::from_utf8(bytes)
            .map_err(|_| EvalError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
        // `false`: a server formats rows so that every version can parse them.
        match kind {
            // The server wrote it: it is not parsed, but searched.
            SqlType::Scalar(Scalar::Jsonb) => return Ok(Some(SqlValue::Json(Cow::Borrowed(text)))),
            SqlType::Scalar(Scalar::Json) => return Ok(Some(SqlValue::text(text))),
            _ => {}
        }
        kind.read(text, false).map(Some).map_err(|error| match self.lenient {
            // Postgres has written the text: it is a value.
            true => undecided(),
            false => error.without_text(kind.value_type()),
        })
    }

    fn pair(
        &self,
        operands: &'v [Expr; 2],
    ) -> Result<(Option<SqlValue<'v>>, Option<SqlValue<'v>>), EvalError> {
        Ok((self.value(&operands[0])?, self.value(&operands[1])?))
    }

    /// Evaluates AND (`ends` is false) or OR (`ends` is true).
    fn chain(&self, operands: &'v [Expr], ends: bool) -> Result<Option<bool>, EvalError> {
        let (mut unknown, mut failure) = (false, None);
        for operand in operands {
            match self.truth(operand) {
                Ok(Some(value)) if value == ends => return Ok(Some(ends)),
                Ok(Some(_)) => {}
                Ok(None) => unknown = true,
                Err(error) if !self.lenient => return Err(error),
                Err(error) if error.is_undecided() => failure = Some(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(if unknown { None } else { Some(!ends) }),
        }
    }

    /// Evaluates GREATEST or LEAST: NULLs are ignored, and the first of equal values is taken.
    fn extreme(&self, greatest: bool, ignore_blanks: bool, items: &'v [Expr]) -> EvalResult<'v> {
        let wanted = if greatest { Ordering::Greater } else { Ordering::Less };
        let mut best: Option<SqlValue<'v>> = None;
        for item in items {
            let Some(value) = self.value(item)? else { continue };
            if best.as_ref().is_none_or(|best| value.compare(best, ignore_blanks) == wanted) {
                best = Some(value);
            }
        }
        Ok(best)
    }

    /// Evaluates concat() or concat_ws(). All arguments are evaluated, even after a NULL separator.
    fn concat(&self, separator: Option<&'v Expr>, items: &'v [(Expr, SqlType)]) -> EvalResult<'v> {
        let separator = separator.map(|separator| self.value(separator)).transpose()?;
        let mut text = String::new();
        let mut is_first = true;
        for (item, kind) in items {
            let Some(value) = self.value(item)? else { continue };
            if let (false, Some(Some(SqlValue::Text(separator)))) = (is_first, &separator) {
                text.push_str(separator);
            }
            text.push_str(&value.into_text(kind.value_type()));
            is_first = false;
        }
        let is_null = separator.is_some_and(|separator| separator.is_none());
        Ok((!is_null).then(|| text.into()))
    }

    /// Evaluates `<`, `<=`, `>` or `>=` of rows: the first pair that differs decides.
    /// Later pairs are not evaluated.
    fn row_comparison(
        &self,
        comparison: Comparison,
        pairs: &'v [(Box<[Expr; 2]>, bool)],
    ) -> Result<Option<bool>, EvalError> {
        let mut order = Ordering::Equal;
        for (operands, ignore_blanks) in pairs {
            let (Some(left), Some(right)) = self.pair(operands)? else { return Ok(None) };
            order = left.compare(&right, *ignore_blanks);
            if order != Ordering::Equal {
                break;
            }
        }
        Ok(Some(satisfies(comparison, order)))
    }

    fn case(
        &self,
        operand: Option<&'v Expr>,
        arms: &'v [(Expr, Expr)],
        otherwise: &'v Expr,
    ) -> EvalResult<'v> {
        let value = match operand {
            Some(operand) => self.value(operand)?,
            None => None,
        };
        let inner = match operand {
            Some(_) => Scope { operand: value.as_ref(), ..*self },
            None => Scope { ..*self },
        };
        for (when, then) in arms {
            if inner.truth(when)? == Some(true) {
                return self.value(then);
            }
        }
        self.value(otherwise)
    }
}

fn as_array(value: SqlValue<'_>) -> Cow<'_, Array> {
    match value {
        SqlValue::Array(array) => array,
        other => unreachable!("it is an array by type: {other:?}"),
    }
}

fn as_range(value: SqlValue<'_>) -> Cow<'_, Range> {
    match value {
        SqlValue::Range(range) => range,
        other => unreachable!("it is a range by type: {other:?}"),
    }
}

fn as_inet<'i>(value: &'i SqlValue<'_>) -> &'i Inet {
    match value {
        SqlValue::Inet(inet) => inet,
        other => unreachable!("it is an address by type: {other:?}"),
    }
}

fn as_text(value: SqlValue<'_>) -> Cow<'_, str> {
    match value {
        SqlValue::Text(text) => text,
        other => unreachable!("it is a text by type: {other:?}"),
    }
}

fn apply_unary(unary: Unary, value: SqlValue<'_>) -> EvalResult<'_> {
    match unary {
        Unary::Negate(scalar) => value.negated(scalar).map(Some),
        Unary::Abs(scalar) => value.absolute(scalar).map(Some),
        Unary::BitNot => match value {
            SqlValue::Int(value) => Ok(Some(SqlValue::Int(!value))),
            other => unreachable!("it is an integer by type: {other:?}"),
        },
        Unary::SquareRoot => value.square_root().map(Some),
        Unary::Range(function) => Ok(function.apply(&as_range(value))),
        Unary::Cast { from, to, modern } => value.cast(from.value_type(), to.value_type(), modern),
        Unary::JsonCast { to, null_is_null } => json::cast(value, to, null_is_null),
        Unary::Fit(fit) => value.fitted(fit).map(Some),
        Unary::Shift(micros) => shift(value, micros).map(Some),
        Unary::MoveZone(west) => Ok(Some(move_zone(value, west))),
    }
}

fn apply<'v>(binary: Binary, left: SqlValue<'v>, right: SqlValue<'v>) -> Result<SqlValue<'v>, EvalError> {
    Ok(match binary {
        Binary::Compare { comparison, ignore_blanks } => {
            SqlValue::Bool(holds(comparison, &left, &right, ignore_blanks))
        }
        Binary::Arithmetic(arithmetic, result) => return left.compute(arithmetic, right, result),
        Binary::Concat => {
            let mut text = as_text(left).into_owned();
            text.push_str(&as_text(right));
            SqlValue::Text(Cow::Owned(text))
        }
        Binary::Like { negated, casing } => {
            let (mut text, mut pattern) = (as_text(left), as_text(right));
            if let Some(casing) = casing {
                pattern = casing.apply(pattern, LetterCase::Lower)?;
                text = casing.apply(text, LetterCase::Lower)?;
            }
            SqlValue::Bool(like::matches(&text, &pattern)? != negated)
        }
        Binary::Json(operator) => unreachable!("it may be NULL, and is evaluated elsewhere: {operator:?}"),
        Binary::Contains { ignore_blanks, swapped } => {
            let (left, right) = (as_array(left), as_array(right));
            let (whole, part) = if swapped { (right, left) } else { (left, right) };
            SqlValue::Bool(whole.contains(&part, ignore_blanks))
        }
        Binary::Range(operator) => SqlValue::Bool(as_range(left).relates(operator, &as_range(right))),
        Binary::RangeArithmetic(arithmetic, element) => {
            let range = as_range(left).combine(arithmetic, &as_range(right), element)?;
            SqlValue::Range(Cow::Owned(range))
        }
        Binary::Multirange(operator) => SqlValue::Bool(multirange::relates(operator, &left, &right)),
        Binary::RangeHas { swapped, .. } => {
            let (range, element) = if swapped { (right, left) } else { (left, right) };
            SqlValue::Bool(as_range(range).has_element(&element))
        }
        Binary::Inet(operator) => SqlValue::Bool(as_inet(&left).relates(operator, as_inet(&right))),
        Binary::ConcatBytes => match (left, right) {
            (SqlValue::Bytes(left), SqlValue::Bytes(right)) => {
                SqlValue::Bytes(Cow::Owned([left.as_ref(), right.as_ref()].concat()))
            }
            other => unreachable!("both are byte strings by type: {other:?}"),
        },
        Binary::StartsWith => SqlValue::Bool(as_text(left).starts_with(&*as_text(right))),
        Binary::Overlaps { ignore_blanks } => {
            SqlValue::Bool(as_array(left).overlaps(&as_array(right), ignore_blanks))
        }
    })
}

/// Compares a column's bytes with a constant without parsing them: short integers, and equality of
/// texts. `None`: the bytes must be parsed.
fn compare_bytes(
    comparison: Comparison,
    ignore_blanks: bool,
    scalar: Scalar,
    bytes: &[u8],
    constant: &SqlValue<'_>,
) -> Option<bool> {
    match constant {
        SqlValue::Text(constant) if comparison.is_equality() && !ignore_blanks => {
            Some((bytes == constant.as_bytes()) == (comparison == Comparison::Equal))
        }
        constant => Some(satisfies(comparison, compare_text(bytes, scalar, constant)?)),
    }
}

fn holds(comparison: Comparison, left: &SqlValue<'_>, right: &SqlValue<'_>, ignore_blanks: bool) -> bool {
    // Equality is cheaper than ordering: most texts differ in length.
    if let (true, false, SqlValue::Text(left), SqlValue::Text(right)) =
        (comparison.is_equality(), ignore_blanks, left, right)
    {
        return (left == right) == (comparison == Comparison::Equal);
    }
    if let (true, SqlValue::Json(left), SqlValue::Json(right)) = (comparison.is_equality(), left, right) {
        let equal = forebay_values::json::equal(left, right).unwrap_or(false);
        return equal == (comparison == Comparison::Equal);
    }
    satisfies(comparison, left.compare(right, ignore_blanks))
}

fn satisfies(comparison: Comparison, order: Ordering) -> bool {
    match comparison {
        Comparison::Equal => order == Ordering::Equal,
        Comparison::NotEqual => order != Ordering::Equal,
        Comparison::Less => order == Ordering::Less,
        Comparison::LessOrEqual => order != Ordering::Greater,
        Comparison::Greater => order == Ordering::Greater,
        Comparison::GreaterOrEqual => order != Ordering::Less,
    }
}

fn shift(value: SqlValue<'_>, micros: i64) -> Result<SqlValue<'_>, EvalError> {
    match value {
        SqlValue::Timestamp(moment) => moment.shifted(micros).map(SqlValue::Timestamp),
        other => unreachable!("it is a timestamp by type: {other:?}"),
    }
}

fn move_zone(value: SqlValue<'_>, west: i32) -> SqlValue<'_> {
    match value {
        SqlValue::Timetz(time) => SqlValue::Timetz(time.in_zone(west)),
        other => unreachable!("it is a time by type: {other:?}"),
    }
}
