//! Ranges made of others and of bounds: `+`, `-`, `*`, range_merge(), constructors (rangetypes.c).

use crate::eval_error::EvalError;
use crate::input_error::InputError;
use crate::range::{Range, RangeBound, RangeOperator};
use crate::scalar::{Scalar, ValueType};
use crate::sql_value::SqlValue;

/// Operation that makes a range of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeArithmetic {
    /// `+`
    Union,
    /// `-`
    Difference,
    /// `*`
    Intersection,
    /// range_merge()
    Merge,
}

impl RangeArithmetic {
    /// Returns the operation of the operator with this name.
    pub fn of(operator: &str) -> Option<Self> {
        Some(match operator {
            "+" => RangeArithmetic::Union,
            "-" => RangeArithmetic::Difference,
            "*" => RangeArithmetic::Intersection,
            _ => return None,
        })
    }

    /// Returns whether no two ranges make it fail.
    pub fn never_fails(self) -> bool {
        matches!(self, RangeArithmetic::Intersection | RangeArithmetic::Merge)
    }
}

impl Range {
    /// Returns the range between two bounds, of which `None` is infinite. `flags`: the brackets,
    /// such as `[)`.
    ///
    /// # Errors
    /// Fails if the flags are no brackets, if the lower bound is above the upper, or if a bound of
    /// integers or dates has no successor.
    pub fn between(
        lower: Option<SqlValue<'static>>,
        upper: Option<SqlValue<'static>>,
        flags: &str,
        element: Scalar,
    ) -> Result<Self, EvalError> {
        let (includes_lower, includes_upper) = match flags {
            "[]" => (true, true),
            "[)" => (true, false),
            "(]" => (false, true),
            "()" => (false, false),
            _ => return Err(EvalError::new("42601", "invalid range bound flags")),
        };
        let lower = RangeBound::new(lower, includes_lower, true);
        let upper = RangeBound::new(upper, includes_upper, false);
        made(Range::canonical(lower, upper, element), element)
    }

    /// Applies an operation to two ranges whose bounds have this type.
    ///
    /// # Errors
    /// Fails if the result would have a gap.
    pub fn combine(
        &self,
        arithmetic: RangeArithmetic,
        other: &Range,
        element: Scalar,
    ) -> Result<Self, EvalError> {
        let (Some(left), Some(right)) = (self.bounds(), other.bounds()) else {
            return Ok(match arithmetic {
                RangeArithmetic::Union | RangeArithmetic::Merge if self.bounds().is_none() => other.clone(),
                RangeArithmetic::Intersection => Range::EMPTY,
                _ => self.clone(),
            });
        };
        let ([lower, upper], [other_lower, other_upper]) = (left, right);
        let (lower, upper) = match arithmetic {
            RangeArithmetic::Difference => return self.without(left, right, element),
            RangeArithmetic::Intersection if !self.relates(RangeOperator::Overlaps, other) => {
                return Ok(Range::EMPTY);
            }
            RangeArithmetic::Intersection => (
                if lower.compare(other_lower).is_ge() { lower } else { other_lower },
                if upper.compare(other_upper).is_le() { upper } else { other_upper },
            ),
            RangeArithmetic::Union | RangeArithmetic::Merge => {
                let is_contiguous = arithmetic == RangeArithmetic::Merge
                    || self.relates(RangeOperator::Overlaps, other)
                    || self.relates(RangeOperator::Adjacent, other);
                if !is_contiguous {
                    return Err(EvalError::new("22000", "result of range union would not be contiguous"));
                }
                (
                    if lower.compare(other_lower).is_lt() { lower } else { other_lower },
                    if upper.compare(other_upper).is_gt() { upper } else { other_upper },
                )
            }
        };
        made(Range::canonical(lower.clone(), upper.clone(), element), element)
    }

    /// Returns the part of this range that is not in the other (range_minus_internal).
    fn without(
        &self,
        [lower, upper]: &[RangeBound; 2],
        [other_lower, other_upper]: &[RangeBound; 2],
        element: Scalar,
    ) -> Result<Self, EvalError> {
        let (lowers, uppers) = (lower.compare(other_lower), upper.compare(other_upper));
        let (lower_to_upper, upper_to_lower) = (lower.compare(other_upper), upper.compare(other_lower));
        if lowers.is_lt() && uppers.is_gt() {
            return Err(EvalError::new("22000", "result of range difference would not be contiguous"));
        }
        if lower_to_upper.is_gt() || upper_to_lower.is_lt() {
            return Ok(self.clone());
        }
        if lowers.is_ge() && uppers.is_le() {
            return Ok(Range::EMPTY);
        }
        let rest = match lowers.is_le() && uppers.is_le() {
            true => Range::canonical(lower.clone(), other_lower.opposite(), element),
            false => Range::canonical(other_upper.opposite(), upper.clone(), element),
        };
        made(rest, element)
    }
}

fn made(range: Result<Range, InputError>, element: Scalar) -> Result<Range, EvalError> {
    range.map_err(|error| error.without_text(ValueType::Scalar(element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(text: &str) -> Range {
        Range::parse(text, Scalar::Int4, false).unwrap()
    }

    fn shown(range: Result<Range, EvalError>) -> String {
        range.map_or_else(|error| error.sqlstate().to_owned(), |range| range.write(Scalar::Int4))
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        use RangeArithmetic::*;
        for (left, arithmetic, right, result) in [
            ("[1,5)", Union, "[5,9)", "[1,9)"),
            ("[1,5)", Union, "[6,9)", "22000"),
            ("[1,5)", Merge, "[6,9)", "[1,9)"),
            ("empty", Union, "[6,9)", "[6,9)"),
            ("[6,9)", Union, "empty", "[6,9)"),
            ("(,5)", Union, "[3,)", "(,)"),
            ("[1,5)", Intersection, "[3,9)", "[3,5)"),
            ("[1,5)", Intersection, "[5,9)", "empty"),
            ("[1,5)", Difference, "[3,9)", "[1,3)"),
            ("[3,9)", Difference, "[1,5)", "[5,9)"),
            ("[1,9)", Difference, "[3,5)", "22000"),
            ("[3,5)", Difference, "[1,9)", "empty"),
            ("[1,5)", Difference, "empty", "[1,5)"),
            ("(,)", Difference, "[5,)", "(,5)"),
            ("[1,5)", Difference, "[7,9)", "[1,5)"),
        ] {
            let combined = ints(left).combine(arithmetic, &ints(right), Scalar::Int4);
            assert_eq!(shown(combined), result, "{left} {arithmetic:?} {right}");
        }
    }

    #[test]
    fn a_range_is_made_of_bounds_and_brackets() {
        for (lower, upper, flags, result) in [
            (Some(1), Some(5), "[]", "[1,6)"),
            (Some(1), None, "()", "[2,)"),
            (None, Some(5), "(]", "(,6)"),
            (Some(1), Some(1), "[)", "empty"),
            (Some(2), Some(1), "[)", "22000"),
            (Some(1), Some(5), "[", "42601"),
            (Some(1), Some(i64::from(i32::MAX)), "[]", "22003"),
        ] {
            let bound = |value: Option<i64>| value.map(SqlValue::Int);
            let range = Range::between(bound(lower), bound(upper), flags, Scalar::Int4);
            assert_eq!(shown(range), result, "{lower:?} {upper:?} {flags}");
        }
    }
}
