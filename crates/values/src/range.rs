//! Range values (rangetypes.c): two bounds, each of which may be infinite, or the empty range.
//!
//! Invariant: ranges of integers and dates are canonical: `[lower,upper)`.

use std::cmp::Ordering;

use super::datetime::Date;
use super::input_error::InputError;
use super::sql_value::SqlValue;
use crate::scalar::{Scalar, ValueType};

/// A range that is not empty has both bounds; `None` is the empty range.
#[derive(Clone, Debug, PartialEq)]
pub struct Range(Option<Box<[RangeBound; 2]>>);

/// A bound of a range.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RangeBound {
    /// `None` is infinite. Such a bound is never inclusive.
    value: Option<SqlValue<'static>>,
    is_inclusive: bool,
    is_lower: bool,
}

/// Operator on two ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeOperator {
    /// `@>`
    Contains,
    /// `<@`
    ContainedBy,
    /// `&&`
    Overlaps,
    /// `<<`
    Before,
    /// `>>`
    After,
    /// `&<`
    NotRightOf,
    /// `&>`
    NotLeftOf,
    /// `-|-`
    Adjacent,
}

/// Function of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeFunction {
    /// lower() and upper().
    Bound {
        /// Of the upper bound, else of the lower.
        upper: bool,
    },
    /// lower_inc() and upper_inc().
    IsInclusive {
        /// Of the upper bound, else of the lower.
        upper: bool,
    },
    /// lower_inf() and upper_inf().
    IsInfinite {
        /// Of the upper bound, else of the lower.
        upper: bool,
    },
    /// isempty().
    IsEmpty,
}

impl RangeOperator {
    /// Returns the operator with this name.
    pub fn of(operator: &str) -> Option<Self> {
        Some(match operator {
            "@>" => RangeOperator::Contains,
            "<@" => RangeOperator::ContainedBy,
            "&&" => RangeOperator::Overlaps,
            "<<" => RangeOperator::Before,
            ">>" => RangeOperator::After,
            "&<" => RangeOperator::NotRightOf,
            "&>" => RangeOperator::NotLeftOf,
            "-|-" => RangeOperator::Adjacent,
            _ => return None,
        })
    }
}

impl RangeFunction {
    /// Returns the function with this name.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "lower" => RangeFunction::Bound { upper: false },
            "upper" => RangeFunction::Bound { upper: true },
            "lower_inc" => RangeFunction::IsInclusive { upper: false },
            "upper_inc" => RangeFunction::IsInclusive { upper: true },
            "lower_inf" => RangeFunction::IsInfinite { upper: false },
            "upper_inf" => RangeFunction::IsInfinite { upper: true },
            "isempty" => RangeFunction::IsEmpty,
            _ => return None,
        })
    }

    /// Returns the function's value; `None` is NULL.
    pub fn apply(self, range: &Range) -> Option<SqlValue<'static>> {
        let bound = |upper: bool| range.0.as_deref().map(|bounds| &bounds[usize::from(upper)]);
        Some(match self {
            RangeFunction::Bound { upper } => return bound(upper)?.value.clone(),
            RangeFunction::IsInclusive { upper } => {
                SqlValue::Bool(bound(upper).is_some_and(|bound| bound.is_inclusive))
            }
            RangeFunction::IsInfinite { upper } => {
                SqlValue::Bool(bound(upper).is_some_and(|bound| bound.value.is_none()))
            }
            RangeFunction::IsEmpty => SqlValue::Bool(range.0.is_none()),
        })
    }
}

impl RangeBound {
    pub(crate) fn new(value: Option<SqlValue<'static>>, is_inclusive: bool, is_lower: bool) -> Self {
        RangeBound { is_inclusive: is_inclusive && value.is_some(), value, is_lower }
    }

    /// Returns the bound where a range ends that begins just after this one, or the reverse.
    pub(crate) fn opposite(&self) -> Self {
        RangeBound::new(self.value.clone(), !self.is_inclusive, !self.is_lower)
    }

    /// Compares two bounds, each a lower or an upper one (range_cmp_bounds).
    pub(crate) fn compare(&self, other: &RangeBound) -> Ordering {
        let outward = |bound: &RangeBound| if bound.is_lower { Ordering::Less } else { Ordering::Greater };
        let order = self.compare_values(other);
        if order != Ordering::Equal || self.value.is_none() {
            return order;
        }
        match (self.is_inclusive, other.is_inclusive) {
            (true, true) => Ordering::Equal,
            (false, false) if self.is_lower == other.is_lower => Ordering::Equal,
            (false, _) => outward(self).reverse(),
            (true, false) => outward(other),
        }
    }

    /// Compares without regard to inclusiveness (range_cmp_bound_values).
    fn compare_values(&self, other: &RangeBound) -> Ordering {
        match (&self.value, &other.value) {
            (Some(left), Some(right)) => left.compare(right, false),
            (None, None) if self.is_lower == other.is_lower => Ordering::Equal,
            (None, _) if self.is_lower => Ordering::Less,
            (None, _) => Ordering::Greater,
            (Some(_), None) if other.is_lower => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
        }
    }

    /// Converts a bound of integers or dates: lower bounds are inclusive, upper bounds are not.
    fn into_canonical(self, element: Scalar) -> Result<Self, InputError> {
        let RangeBound { value, is_inclusive, is_lower } = self;
        let (Some(value), true) = (&value, is_inclusive != is_lower) else {
            return Ok(RangeBound { value, is_inclusive, is_lower });
        };
        let next = match value {
            SqlValue::Int(value) => match value.checked_add(1) {
                Some(next) if element == Scalar::Int8 || next <= i64::from(i32::MAX) => SqlValue::Int(next),
                _ => return Err(InputError::RangeOverflow),
            },
            // Infinite dates have no successor.
            SqlValue::Date(Date(i32::MIN | i32::MAX)) => {
                return Ok(RangeBound { value: Some(value.clone()), is_inclusive, is_lower });
            }
            SqlValue::Date(date) => {
                SqlValue::Date(Date::checked(i64::from(date.0) + 1).ok_or(InputError::RangeDate)?)
            }
            _ => return Ok(RangeBound { value: Some(value.clone()), is_inclusive, is_lower }),
        };
        Ok(RangeBound { value: Some(next), is_inclusive: is_lower, is_lower })
    }
}

impl Range {
    pub(crate) const EMPTY: Range = Range(None);

    /// Parses a range's text, such as `[1,5)` or `empty`, with elements of this type.
    pub(crate) fn parse(text: &str, element: Scalar, modern: bool) -> Result<Self, InputError> {
        let text = super::input::trim(text);
        if text.eq_ignore_ascii_case("empty") {
            return Ok(Range(None));
        }
        let is_inclusive = match text.as_bytes().first() {
            Some(b'[') => true,
            Some(b'(') => false,
            _ => return Err(InputError::RangeSyntax),
        };
        let (lower, rest) = bound_text(&text[1..])?;
        let rest = rest.strip_prefix(',').ok_or(InputError::RangeSyntax)?;
        let (upper, rest) = bound_text(rest)?;
        let includes_upper = match rest {
            "]" => true,
            ")" => false,
            _ => return Err(InputError::RangeSyntax),
        };
        let read = |text: Option<String>| {
            text.map(|text| SqlValue::parse_scalar(&text, element, modern).map(SqlValue::into_owned))
                .transpose()
        };
        let (lower, upper) = (read(lower)?, read(upper)?);
        let lower = RangeBound::new(lower, is_inclusive, true);
        let upper = RangeBound::new(upper, includes_upper, false);
        Range::canonical(lower, upper, element)
    }

    /// Returns the range between two bounds, in canonical form (make_range).
    pub(crate) fn canonical(
        lower: RangeBound,
        upper: RangeBound,
        element: Scalar,
    ) -> Result<Self, InputError> {
        let Range(Some(bounds)) = Range::new(lower, upper)? else { return Ok(Range(None)) };
        let [lower, upper] = *bounds;
        Range::new(lower.into_canonical(element)?, upper.into_canonical(element)?)
    }

    /// Returns the bounds; `None` if the range is empty.
    pub(crate) fn bounds(&self) -> Option<&[RangeBound; 2]> {
        self.0.as_deref()
    }

    fn new(lower: RangeBound, upper: RangeBound) -> Result<Self, InputError> {
        let both = lower.is_inclusive && upper.is_inclusive;
        match lower.compare_values(&upper) {
            Ordering::Greater => Err(InputError::RangeOrder),
            Ordering::Equal if !both => Ok(Range(None)),
            Ordering::Equal | Ordering::Less => Ok(Range(Some(Box::new([lower, upper])))),
        }
    }

    /// Formats a range whose elements have this type.
    pub(crate) fn write(&self, element: Scalar) -> String {
        let Some(bounds) = &self.0 else { return "empty".to_owned() };
        let [lower, upper] = &**bounds;
        let text = |bound: &RangeBound| match &bound.value {
            Some(value) => quoted(&value.borrowed().into_text(ValueType::Scalar(element))),
            None => String::new(),
        };
        let open = if lower.is_inclusive { '[' } else { '(' };
        let close = if upper.is_inclusive { ']' } else { ')' };
        format!("{open}{},{}{close}", text(lower), text(upper))
    }

    /// Orders by lower bound, then by upper bound. The empty range is first.
    pub fn compare(&self, other: &Range) -> Ordering {
        match (&self.0, &other.0) {
            (Some(left), Some(right)) => left[0].compare(&right[0]).then_with(|| left[1].compare(&right[1])),
            (left, right) => left.is_some().cmp(&right.is_some()),
        }
    }

    /// Returns whether the range has every element or none; `None` if it has some.
    pub fn has_all_or_none(&self) -> Option<bool> {
        match self.0.as_deref() {
            None => Some(false),
            Some([RangeBound { value: None, .. }, RangeBound { value: None, .. }]) => Some(true),
            Some(_) => None,
        }
    }

    /// Returns whether the range contains an element of its type: `@>`.
    pub fn has_element(&self, value: &SqlValue<'_>) -> bool {
        let Some(bounds) = &self.0 else { return false };
        let [lower, upper] = &**bounds;
        let is_within = |bound: &RangeBound, inward: Ordering| match &bound.value {
            None => true,
            Some(limit) => match value.compare(limit, false) {
                Ordering::Equal => bound.is_inclusive,
                order => order == inward,
            },
        };
        is_within(lower, Ordering::Greater) && is_within(upper, Ordering::Less)
    }

    /// Applies an operator to two ranges.
    pub fn relates(&self, operator: RangeOperator, other: &Range) -> bool {
        match (operator, &self.0, &other.0) {
            (RangeOperator::ContainedBy, ..) => return other.relates(RangeOperator::Contains, self),
            (RangeOperator::Contains, _, None) => return true,
            _ => {}
        }
        let (Some(left), Some(right)) = (&self.0, &other.0) else { return false };
        let ([lower, upper], [other_lower, other_upper]) = (&**left, &**right);
        match operator {
            RangeOperator::Contains | RangeOperator::ContainedBy => {
                lower.compare(other_lower).is_le() && upper.compare(other_upper).is_ge()
            }
            RangeOperator::Overlaps => {
                lower.compare(other_upper).is_le() && other_lower.compare(upper).is_le()
            }
            RangeOperator::Before => upper.compare(other_lower).is_lt(),
            RangeOperator::After => lower.compare(other_upper).is_gt(),
            RangeOperator::NotRightOf => upper.compare(other_upper).is_le(),
            RangeOperator::NotLeftOf => lower.compare(other_lower).is_ge(),
            RangeOperator::Adjacent => touches(upper, other_lower) || touches(other_upper, lower),
        }
    }
}

/// Returns whether an upper bound ends where a lower bound begins. Canonical bounds of integers and
/// dates meet at one value, too.
fn touches(upper: &RangeBound, lower: &RangeBound) -> bool {
    upper.compare_values(lower) == Ordering::Equal && upper.is_inclusive != lower.is_inclusive
}

/// Reads a bound up to a comma or a closing bracket; `None` is infinite. Returns the rest, too.
fn bound_text(text: &str) -> Result<(Option<String>, &str), InputError> {
    let mut chars = text.char_indices().peekable();
    let (mut out, mut is_quoted, mut is_empty) = (String::new(), false, true);
    loop {
        let Some((at, char)) = chars.next() else { return Err(InputError::RangeSyntax) };
        match char {
            ',' | ')' | ']' if !is_quoted => return Ok(((!is_empty).then_some(out), &text[at..])),
            '\\' => out.push(chars.next().ok_or(InputError::RangeSyntax)?.1),
            '"' if !is_quoted => is_quoted = true,
            '"' if chars.peek().is_some_and(|(_, next)| *next == '"') => {
                chars.next();
                out.push('"');
            }
            '"' => is_quoted = false,
            char => out.push(char),
        }
        is_empty = false;
    }
}

/// Quotes a bound's text if the range could not be parsed without quotes.
fn quoted(text: &str) -> String {
    let is_special =
        |char: char| matches!(char, '"' | '\\' | '(' | ')' | '[' | ']' | ',' | ' ' | '\t'..='\r');
    if !text.is_empty() && !text.contains(is_special) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(text: &str) -> Range {
        Range::parse(text, Scalar::Int4, false).unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    #[test]
    fn ranges_of_integers_are_canonical() {
        for (text, written) in [
            (" [1,5] ", "[1,6)"),
            ("(1,5)", "[2,5)"),
            ("(1,2)", "empty"),
            ("[3,3)", "empty"),
            ("[3,3]", "[3,4)"),
            ("(,5]", "(,6)"),
            ("[,]", "(,)"),
            ("EMPTY", "empty"),
            ("[\"1\", 5)", "[1,5)"),
        ] {
            assert_eq!(ints(text).write(Scalar::Int4), written, "{text}");
        }
        for text in ["", "[1,5", "1,5)", "[1 5)", "[1,5,6)", "[5,1)", "[1,2)x", "[1,2147483647]", "[\"1,2)"] {
            assert!(Range::parse(text, Scalar::Int4, false).is_err(), "{text}");
        }
    }

    #[test]
    fn operators_follow_both_bounds() {
        for (left, operator, right, holds) in [
            ("[1,5)", RangeOperator::Contains, "[2,5)", true),
            ("[1,5)", RangeOperator::Contains, "empty", true),
            ("empty", RangeOperator::Overlaps, "(,)", false),
            ("[1,5)", RangeOperator::Overlaps, "[5,9)", false),
            ("[1,5)", RangeOperator::Adjacent, "[5,9)", true),
            ("[1,5)", RangeOperator::Before, "[5,9)", true),
            ("[1,)", RangeOperator::NotRightOf, "[5,9)", false),
            ("[6,)", RangeOperator::NotLeftOf, "[5,9)", true),
            ("(,3)", RangeOperator::ContainedBy, "(,)", true),
        ] {
            assert_eq!(ints(left).relates(operator, &ints(right)), holds, "{left} {operator:?} {right}");
        }
        assert!(
            ints("[1,5)").has_element(&SqlValue::Int(4)) && !ints("[1,5)").has_element(&SqlValue::Int(5))
        );
        assert_eq!(ints("empty").compare(&ints("(,)")), Ordering::Less);
    }

    #[test]
    fn bounds_with_blanks_are_quoted() {
        let text = "[\"2024-01-01 00:00:00\",\"2024-01-02 00:00:00\")";
        assert_eq!(Range::parse(text, Scalar::Timestamp, false).unwrap().write(Scalar::Timestamp), text);
    }
}
