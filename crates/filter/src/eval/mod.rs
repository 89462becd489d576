//! Evaluation: an expression and a row to a value, or to Postgres' error.
//!
//! Invariant: operands are evaluated from left to right, all of a strict operator's before any is looked at; AND, OR, CASE
//! and COALESCE stop where Postgres stops. So what fails there fails here.
//! Not here: caches. A column is read where it is used; most clauses use each once.

mod arithmetic;
mod cast;
mod clock;

use std::borrow::Cow;
use std::cmp::Ordering;

use super::Row;
use super::error::EvalError;
use super::syntax::Test;
use super::typing::expr::{Binary, Comparison, Expr, Unary};
use super::typing::{Scalar, Type};
use super::value::array::Array;
use super::value::{Value, input, like, output};

/// A value, or NULL.
pub(crate) type Answer<'v> = Result<Option<Value<'v>>, EvalError>;

/// Of an expression without columns.
pub(crate) fn constant(expr: &Expr) -> Answer<'_> {
    static NO_ROW: [Option<&[u8]>; 0] = [];
    Scope { row: &NO_ROW, operand: None }.value(expr)
}

/// Of a boolean.
pub(crate) fn truth(expr: &Expr, row: &dyn Row) -> Result<Option<bool>, EvalError> {
    Scope { row, operand: None }.truth(expr)
}

/// What names stand for.
struct Scope<'v, 'o> {
    row: &'v dyn Row,
    /// Of the innermost CASE.
    operand: Option<&'o Value<'v>>,
}

impl<'v> Scope<'v, '_> {
    fn value(&self, expr: &'v Expr) -> Answer<'v> {
        match expr {
            Expr::Const(value) => Ok(value.as_ref().map(Value::lend)),
            Expr::Column { index, kind } => self.column(*index, *kind),
            Expr::Binary(binary, operands) => match self.pair(operands)? {
                (Some(left), Some(right)) => apply(*binary, left, right).map(Some),
                _ => Ok(None),
            },
            Expr::Unary(unary, operand) => match self.value(operand)? {
                Some(value) => apply_unary(*unary, value),
                None => Ok(None),
            },
            Expr::And(_) | Expr::Or(_) | Expr::Not(_) | Expr::Is { .. } | Expr::Distinct { .. } => {
                Ok(self.truth(expr)?.map(Value::Bool))
            }
            other => self.seldom(other),
        }
    }

    /// Whether a boolean expression holds, without making values of what is found out on the way.
    fn truth(&self, expr: &'v Expr) -> Result<Option<bool>, EvalError> {
        match expr {
            Expr::And(operands) => self.chain(operands, false),
            Expr::Or(operands) => self.chain(operands, true),
            Expr::Not(operand) => Ok(self.truth(operand)?.map(|value| !value)),
            Expr::Is { negated, test, operand } => {
                let holds = match test {
                    Test::Null => self.value(operand)?.is_none(),
                    Test::True => self.truth(operand)? == Some(true),
                    Test::False => self.truth(operand)? == Some(false),
                    Test::Unknown => self.truth(operand)?.is_none(),
                };
                Ok(Some(holds != *negated))
            }
            Expr::Distinct { negated, blank, operands } => {
                let distinct = match self.pair(operands)? {
                    (Some(left), Some(right)) => left.compare(&right, *blank) != Ordering::Equal,
                    (left, right) => left.is_some() != right.is_some(),
                };
                Ok(Some(distinct != *negated))
            }
            Expr::Binary(Binary::Compare { comparison, blank }, operands) => {
                self.comparison(*comparison, *blank, operands)
            }
            _ => match self.value(expr)? {
                None => Ok(None),
                Some(Value::Bool(value)) => Ok(Some(value)),
                Some(other) => unreachable!("it is a boolean by type: {other:?}"),
            },
        }
    }

    fn comparison(
        &self,
        comparison: Comparison,
        blank: bool,
        operands: &'v [Expr; 2],
    ) -> Result<Option<bool>, EvalError> {
        if let [Expr::Column { index, kind: Type::Scalar(scalar) }, Expr::Const(Some(constant))] = operands {
            let Some(bytes) = self.row.text(*index) else { return Ok(None) };
            if let Some(holds) = at_once(comparison, blank, *scalar, bytes, constant) {
                return Ok(Some(holds));
            }
        }
        match self.pair(operands)? {
            (Some(left), Some(right)) => Ok(Some(holds(comparison, &left, &right, blank))),
            _ => Ok(None),
        }
    }

    #[inline(never)]
    fn seldom(&self, expr: &'v Expr) -> Answer<'v> {
        match expr {
            Expr::Quantified { operator, all, operands } => self.quantified(*operator, *all, operands),
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
            Expr::Extreme { greatest, blank, items } => self.extreme(*greatest, *blank, items),
            Expr::Concat(items) => self.concat(items),
            Expr::Case { operand, arms, otherwise } => self.case(operand.as_deref(), arms, otherwise),
            Expr::CaseOperand => Ok(self.operand.cloned()),
            Expr::ArrayCat(operands) => match self.pair(operands)? {
                (Some(left), Some(right)) => Ok(Some(Value::array(as_array(left).concat(&as_array(right))?))),
                (left, right) => Ok(left.or(right)),
            },
            Expr::ArrayPush { at_end, operands } => {
                let (array, item) = self.pair(operands)?;
                let array = array.map_or(Array::EMPTY, |array| as_array(array).into_owned());
                Ok(Some(Value::array(array.push(item.map(Value::into_owned), *at_end)?)))
            }
            other => unreachable!("evaluated elsewhere: {other:?}"),
        }
    }

    fn column(&self, index: usize, kind: Type) -> Answer<'v> {
        let Some(bytes) = self.row.text(index) else { return Ok(None) };
        let text = std::str::from_utf8(bytes)
            .map_err(|_| EvalError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
        // Rows are written by the server, in forms that every version reads.
        input::read(text, kind, false).map(Some).map_err(|error| error.of_row(kind))
    }

    fn pair(&self, operands: &'v [Expr; 2]) -> Result<(Option<Value<'v>>, Option<Value<'v>>), EvalError> {
        Ok((self.value(&operands[0])?, self.value(&operands[1])?))
    }

    /// AND, which ends at false, or OR, which ends at true.
    fn chain(&self, operands: &'v [Expr], ends: bool) -> Result<Option<bool>, EvalError> {
        let mut unknown = false;
        for operand in operands {
            match self.truth(operand)? {
                Some(value) if value == ends => return Ok(Some(ends)),
                Some(_) => {}
                None => unknown = true,
            }
        }
        Ok(if unknown { None } else { Some(!ends) })
    }

    fn quantified(&self, operator: Binary, all: bool, operands: &'v [Expr; 2]) -> Answer<'v> {
        let (left, right) = self.pair(operands)?;
        let Some(array) = right.map(as_array) else { return Ok(None) };
        if array.items.is_empty() {
            return Ok(Some(Value::Bool(all)));
        }
        let Some(left) = left else { return Ok(None) };
        let mut unknown = false;
        for item in &array.items {
            let Some(item) = item else {
                unknown = true;
                continue;
            };
            let holds = match operator {
                Binary::Compare { comparison, blank } => holds(comparison, &left, item, blank),
                _ => apply(operator, left.lend(), item.lend())? == Value::Bool(true),
            };
            if holds != all {
                return Ok(Some(Value::Bool(!all)));
            }
        }
        Ok(if unknown { None } else { Some(Value::Bool(all)) })
    }

    fn array(&self, nested: bool, items: &'v [Expr]) -> Answer<'v> {
        if !nested {
            let items = items.iter().map(|item| Ok(self.value(item)?.map(Value::into_owned)));
            return Ok(Some(Value::array(Array::list(items.collect::<Result<_, EvalError>>()?))));
        }
        let mut arrays = Vec::new();
        for item in items {
            arrays.push(self.value(item)?.map_or(Array::EMPTY, |array| as_array(array).into_owned()));
        }
        Ok(Some(Value::array(Array::nested(arrays)?)))
    }

    fn index(&self, base: &'v Expr, indexes: &'v [Expr]) -> Answer<'v> {
        let Some(array) = self.value(base)?.map(as_array) else { return Ok(None) };
        let mut places = Vec::with_capacity(indexes.len());
        for index in indexes {
            match self.bound(index)? {
                Some(place) => places.push(place),
                None => return Ok(None),
            }
        }
        Ok(array.at(&places).cloned())
    }

    fn slice(&self, base: &'v Expr, ranges: &'v [(Option<Expr>, Option<Expr>)]) -> Answer<'v> {
        let Some(array) = self.value(base)?.map(as_array) else { return Ok(None) };
        let mut bounds = Vec::with_capacity(ranges.len());
        for (from, to) in ranges {
            let mut ends = [None, None];
            for (end, bound) in ends.iter_mut().zip([from, to]) {
                if let Some(bound) = bound {
                    match self.bound(bound)? {
                        Some(place) => *end = Some(place),
                        None => return Ok(None),
                    }
                }
            }
            bounds.push((ends[0], ends[1]));
        }
        Ok(Some(Value::array(array.slice(&bounds))))
    }

    fn bound(&self, expr: &'v Expr) -> Result<Option<i32>, EvalError> {
        match self.value(expr)? {
            None => Ok(None),
            Some(Value::Int(value)) => {
                i32::try_from(value).map(Some).map_err(|_| EvalError::out_of_range("integer"))
            }
            Some(other) => unreachable!("it is an integer by type: {other:?}"),
        }
    }

    /// GREATEST or LEAST of what isn't NULL; the first of equals.
    fn extreme(&self, greatest: bool, blank: bool, items: &'v [Expr]) -> Answer<'v> {
        let wanted = if greatest { Ordering::Greater } else { Ordering::Less };
        let mut best: Option<Value<'v>> = None;
        for item in items {
            let Some(value) = self.value(item)? else { continue };
            if best.as_ref().is_none_or(|best| value.compare(best, blank) == wanted) {
                best = Some(value);
            }
        }
        Ok(best)
    }

    fn concat(&self, items: &'v [(Expr, Type)]) -> Answer<'v> {
        let mut text = String::new();
        for (item, kind) in items {
            if let Some(value) = self.value(item)? {
                text.push_str(&output::write(value, *kind));
            }
        }
        Ok(Some(Value::Text(Cow::Owned(text))))
    }

    fn case(&self, operand: Option<&'v Expr>, arms: &'v [(Expr, Expr)], otherwise: &'v Expr) -> Answer<'v> {
        let value = match operand {
            Some(operand) => self.value(operand)?,
            None => None,
        };
        let inner = match operand {
            Some(_) => Scope { row: self.row, operand: value.as_ref() },
            None => Scope { row: self.row, operand: self.operand },
        };
        for (when, then) in arms {
            if inner.truth(when)? == Some(true) {
                return self.value(then);
            }
        }
        self.value(otherwise)
    }
}

fn as_array(value: Value<'_>) -> Cow<'_, Array> {
    match value {
        Value::Array(array) => array,
        other => unreachable!("it is an array by type: {other:?}"),
    }
}

fn as_text(value: Value<'_>) -> Cow<'_, str> {
    match value {
        Value::Text(text) => text,
        other => unreachable!("it is a text by type: {other:?}"),
    }
}

fn apply_unary(unary: Unary, value: Value<'_>) -> Answer<'_> {
    match unary {
        Unary::Negate(scalar) => arithmetic::negate(value, scalar).map(Some),
        Unary::Abs(scalar) => arithmetic::absolute(value, scalar).map(Some),
        Unary::BitNot => match value {
            Value::Int(value) => Ok(Some(Value::Int(!value))),
            other => unreachable!("it is an integer by type: {other:?}"),
        },
        Unary::SquareRoot => arithmetic::square_root(value).map(Some),
        Unary::Case(casing, case) => Ok(Some(Value::Text(casing.apply(as_text(value), case)?))),
        Unary::Dimensions => {
            let dimensions = as_array(value).dimensions.len();
            Ok((dimensions > 0).then_some(Value::Int(dimensions as i64)))
        }
        Unary::JustifyHours | Unary::JustifyDays | Unary::JustifyInterval => match value {
            Value::Interval(interval) => {
                let justified = match unary {
                    Unary::JustifyHours => interval.justify_hours(),
                    Unary::JustifyDays => interval.justify_days(),
                    _ => interval.justify(),
                };
                Ok(Some(Value::Interval(justified?)))
            }
            other => unreachable!("it is an interval by type: {other:?}"),
        },
        Unary::Cast { from, to, modern } => cast::cast(value, from, to, modern),
        Unary::Fit(fit) => cast::fit(value, fit).map(Some),
        Unary::Shift(micros) => clock::shift(value, micros).map(Some),
        Unary::MoveZone(west) => Ok(Some(clock::move_zone(value, west))),
    }
}

fn apply<'v>(binary: Binary, left: Value<'v>, right: Value<'v>) -> Result<Value<'v>, EvalError> {
    Ok(match binary {
        Binary::Compare { comparison, blank } => Value::Bool(holds(comparison, &left, &right, blank)),
        Binary::Arithmetic(arithmetic, result) => return arithmetic::apply(arithmetic, result, left, right),
        Binary::Concat => {
            let mut text = as_text(left).into_owned();
            text.push_str(&as_text(right));
            Value::Text(Cow::Owned(text))
        }
        Binary::Like { negated, casing } => {
            let (mut text, mut pattern) = (as_text(left), as_text(right));
            if let Some(casing) = casing {
                use super::value::letters::Case;
                pattern = casing.apply(pattern, Case::Lower)?;
                text = casing.apply(text, Case::Lower)?;
            }
            Value::Bool(like::matches(&text, &pattern)? != negated)
        }
        Binary::LikeEscape => Value::Text(Cow::Owned(like::with_escape(&as_text(left), &as_text(right))?)),
        Binary::Contains { blank, turned } => {
            let (left, right) = (as_array(left), as_array(right));
            let (whole, part) = if turned { (right, left) } else { (left, right) };
            Value::Bool(whole.contains(&part, blank))
        }
        Binary::Overlaps { blank } => Value::Bool(as_array(left).overlaps(&as_array(right), blank)),
    })
}

/// What the bytes alone decide: integers in their usual form, and texts that must be the same.
fn at_once(
    comparison: Comparison,
    blank: bool,
    scalar: Scalar,
    bytes: &[u8],
    constant: &Value<'_>,
) -> Option<bool> {
    match constant {
        Value::Int(constant) if scalar.is_integer() => {
            Some(satisfies(comparison, input::short_integer(bytes)?.cmp(constant)))
        }
        Value::Text(constant) if comparison.is_equality() && !blank => {
            Some((bytes == constant.as_bytes()) == (comparison == Comparison::Equal))
        }
        _ => None,
    }
}

fn holds(comparison: Comparison, left: &Value<'_>, right: &Value<'_>, blank: bool) -> bool {
    // Whether they are the same takes no order: lengths differ for most texts.
    if let (true, false, Value::Text(left), Value::Text(right)) =
        (comparison.is_equality(), blank, left, right)
    {
        return (left == right) == (comparison == Comparison::Equal);
    }
    satisfies(comparison, left.compare(right, blank))
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

/// Whether an integer fits its type.
fn fit_integer(value: i64, scalar: Scalar) -> Result<Value<'static>, EvalError> {
    let fits = match scalar {
        Scalar::Int2 => i16::try_from(value).is_ok(),
        Scalar::Int4 => i32::try_from(value).is_ok(),
        _ => true,
    };
    if fits { Ok(Value::Int(value)) } else { Err(EvalError::out_of_range(scalar.name())) }
}
