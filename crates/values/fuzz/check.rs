//! Properties that hold for any text of a value.
//!
//! Invariant: nothing panics. A value equals what its written text is read as. Comparisons and
//! operators of two values follow their laws: orders are antisymmetric, containment has a converse.
//! The fuzz targets check them on generated input, the tests on the corpora.
//! An input is one text, or two with a line break between them.

#![allow(dead_code, reason = "each target checks one of the properties")]

use std::cmp::Ordering;

use forebay_values::{
    Arithmetic, Casing, InetOperator, LetterCase, Numeric, RangeOperator, Scalar, SqlValue, ValueType,
    compare_text, like,
};

/// Checks texts as arrays of all types.
pub(crate) fn array(input: &[u8]) {
    let types: Vec<ValueType> = Scalar::all().map(ValueType::Array).collect();
    each_pair(input, &types, |kind, left, right| {
        let (SqlValue::Array(left), SqlValue::Array(right)) = (left, right) else { unreachable!("{kind}") };
        assert!(left.contains(left, false) || left.items().contains(&None), "{left:?}");
        assert_eq!(left.overlaps(right, false), right.overlaps(left, false), "{left:?} && {right:?}");
        if let Ok(both) = left.concat(right) {
            assert!(both.items().len() == left.items().len() + right.items().len(), "{left:?} || {right:?}");
        }
        let whole = left.slice(&[(None, None)]);
        assert!(left.dimensions().len() > 1 || whole.items().len() == left.items().len(), "{left:?}");
    });
}

/// Checks texts as bytea.
pub(crate) fn bytea(input: &[u8]) {
    each_pair(input, &[ValueType::Scalar(Scalar::Bytea)], |_, _, _| {});
}

/// Checks texts as dates, times, timestamps and intervals.
pub(crate) fn clock(input: &[u8]) {
    use Scalar::{Date, Interval, Time, Timestamp, Timestamptz, Timetz};
    let types = [Date, Time, Timetz, Timestamp, Timestamptz, Interval].map(ValueType::Scalar);
    each_pair(input, &types, |kind, left, right| {
        for part in ["year", "month", "day", "hour", "microseconds", "epoch", "dow", "week", "isoyear", "doy"]
        {
            let _ = left.clock_part(part, false);
            let _ = left.clock_part(part, true);
        }
        let subtract = |right: &SqlValue<'static>, result| {
            left.clone().compute(Arithmetic::Subtract, right.clone(), result)
        };
        match kind {
            ValueType::Scalar(Date | Time) => {
                let _ = subtract(right, Interval);
            }
            ValueType::Scalar(Timestamp | Timestamptz | Interval) => {
                let _ = subtract(right, Interval);
                for part in ["millennium", "quarter", "week", "hour", "milliseconds"] {
                    let Ok(truncated) = left.clone().truncated_to(part) else { continue };
                    let again = truncated.clone().truncated_to(part);
                    assert_eq!(again.as_ref(), Ok(&truncated), "{part} of {left:?}");
                }
            }
            _ => {}
        }
        if let SqlValue::Interval(interval) = left {
            let _ = (interval.justify(), interval.justify_days(), interval.justify_hours());
        }
    });
}

/// Checks a text and a pattern of LIKE, and the case of letters.
pub(crate) fn like(input: &[u8]) {
    let (text, pattern) = texts(input);
    let (prefix, is_prefix_alone) = like::prefix(pattern);
    if let Ok(matches) = like::matches(text, pattern) {
        assert!(!matches || text.starts_with(&prefix), "{text:?} LIKE {pattern:?}");
        assert!(!is_prefix_alone || matches == text.starts_with(&prefix), "{text:?} LIKE {pattern:?}");
    }
    let escaped = like::with_escape(pattern, "").expect("no escape character");
    assert!(like::matches(pattern, &escaped).is_ok(), "{escaped:?}");
    for casing in [Casing::AsciiAlone, Casing::AsciiSure, Casing::Settled] {
        for case in [LetterCase::Lower, LetterCase::Upper] {
            let Ok(changed) = casing.apply(text.into(), case) else { continue };
            assert_eq!(casing.apply(changed.clone(), case).as_ref(), Ok(&changed), "{text:?} {case:?}");
        }
    }
}

/// Checks texts as addresses.
pub(crate) fn network(input: &[u8]) {
    let types = [Scalar::Inet, Scalar::Cidr, Scalar::Macaddr].map(ValueType::Scalar);
    each_pair(input, &types, |_, left, right| {
        let (SqlValue::Inet(left), SqlValue::Inet(right)) = (left, right) else { return };
        for (operator, converse) in [
            (InetOperator::Within, InetOperator::Contains),
            (InetOperator::WithinOrEqual, InetOperator::ContainsOrEqual),
            (InetOperator::Overlaps, InetOperator::Overlaps),
        ] {
            let holds = left.relates(operator, right);
            assert_eq!(right.relates(converse, left), holds, "{left:?} {operator:?} {right:?}");
            assert!(!holds || left.relates(InetOperator::Overlaps, right), "{left:?} {right:?}");
        }
    });
}

/// Checks texts as numbers.
pub(crate) fn number(input: &[u8]) {
    use Scalar::{Float4, Float8, Int2, Int4, Int8};
    let types = [Int2, Int4, Int8, Float4, Float8, Scalar::Numeric, Scalar::Bool, Scalar::Uuid];
    each_pair(input, &types.map(ValueType::Scalar), |kind, left, right| {
        if let (SqlValue::Numeric(left), SqlValue::Numeric(right)) = (left, right) {
            return numeric(left, right);
        }
        let ValueType::Scalar(scalar @ (Int2 | Int4 | Int8 | Float4 | Float8)) = kind else { return };
        for arithmetic in [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide] {
            let _ = left.clone().compute(arithmetic, right.clone(), scalar);
        }
        for other in [Int2, Int4, Int8, Float4, Float8, Scalar::Numeric] {
            let _ = left.clone().cast(kind, ValueType::Scalar(other), true);
        }
    });
}

fn numeric(left: &Numeric, right: &Numeric) {
    let is = |result: &Numeric, expected: &Numeric| result.compare(expected) == Ordering::Equal;
    if let (Ok(sum), Ok(back)) = (left.add(right), right.add(left)) {
        assert!(is(&sum, &back), "{left} + {right}");
        let difference = sum.subtract(right);
        assert!(
            difference.is_err() || is(&difference.expect("it is a number"), left) || is_special(left, right)
        );
    }
    if let (Ok(product), Ok(back)) = (left.multiply(right), right.multiply(left)) {
        assert!(is(&product, &back), "{left} * {right}");
    }
    let (Ok(quotient), Ok(remainder)) = (left.divide_whole(right), left.remainder(right)) else { return };
    if let Ok(whole) = quotient.multiply(right).and_then(|product| product.add(&remainder)) {
        assert!(is(&whole, left) || is_special(left, right), "{left} = {quotient} * {right} + {remainder}");
    }
    let _ = left.divide(right);
}

/// Returns whether one of the numbers is NaN or infinite.
fn is_special(left: &Numeric, right: &Numeric) -> bool {
    !left.to_f64().is_finite() || !right.to_f64().is_finite()
}

/// Checks texts as ranges.
pub(crate) fn range(input: &[u8]) {
    let ranges = Scalar::all().filter(|scalar| scalar.range_element().is_some());
    let types: Vec<ValueType> = ranges.map(ValueType::Scalar).collect();
    each_pair(input, &types, |kind, left, right| {
        let (SqlValue::Range(left), SqlValue::Range(right)) = (left, right) else { unreachable!("{kind}") };
        assert!(left.relates(RangeOperator::Contains, left), "{left:?}");
        for (operator, converse) in [
            (RangeOperator::Contains, RangeOperator::ContainedBy),
            (RangeOperator::Overlaps, RangeOperator::Overlaps),
            (RangeOperator::Before, RangeOperator::After),
            (RangeOperator::Adjacent, RangeOperator::Adjacent),
        ] {
            let holds = left.relates(operator, right);
            assert_eq!(right.relates(converse, left), holds, "{left:?} {operator:?} {right:?}");
        }
        let is_apart = [RangeOperator::Before, RangeOperator::After, RangeOperator::Adjacent]
            .iter()
            .any(|operator| left.relates(*operator, right));
        assert!(!is_apart || !left.relates(RangeOperator::Overlaps, right), "{left:?} {right:?}");
    });
}

/// Checks a text as a value of every type.
pub(crate) fn any_type(input: &[u8]) {
    let types = Scalar::all().flat_map(|scalar| [ValueType::Scalar(scalar), ValueType::Array(scalar)]);
    each_pair(input, &types.collect::<Vec<_>>(), |_, _, _| {});
}

/// Returns the two texts of an input. Without a line break, both are the whole input.
fn texts(input: &[u8]) -> (&str, &str) {
    let text = std::str::from_utf8(input).unwrap_or_default();
    text.split_once('\n').unwrap_or((text, text))
}

/// Checks both texts as values of each type. Calls `check` for each type that has both values.
fn each_pair(
    input: &[u8],
    types: &[ValueType],
    check: impl Fn(ValueType, &SqlValue<'static>, &SqlValue<'static>),
) {
    let (left, right) = texts(input);
    for kind in types {
        for modern in [false, true] {
            let (left, right) = (value(left, *kind, modern), value(right, *kind, modern));
            let (Some(left), Some(right)) = (left, right) else { continue };
            let order = left.compare(&right, false);
            assert_eq!(right.compare(&left, false), order.reverse(), "{kind}: {left:?}, {right:?}");
            if let ValueType::Scalar(scalar) = kind {
                let written = left.borrowed().into_text(*kind);
                let compared = compare_text(written.as_bytes(), *scalar, &right);
                assert!(compared.is_none_or(|compared| compared == order), "{kind}: {written}, {right:?}");
            }
            check(*kind, &left, &right);
        }
    }
}

/// Reads a text, and reads it again as it is written. `None`: it is no value of the type.
fn value(text: &str, kind: ValueType, modern: bool) -> Option<SqlValue<'static>> {
    let value = SqlValue::parse(text, kind, modern).ok()?.into_owned();
    assert_eq!(value.compare(&value, false), Ordering::Equal, "{kind}: {value:?}");
    let written = value.borrowed().into_text(kind);
    let again = SqlValue::parse(&written, kind, modern);
    let again = again.unwrap_or_else(|error| panic!("{kind} {text:?} is written as {written:?}: {error}"));
    assert_eq!(again.compare(&value, false), Ordering::Equal, "{kind} {text:?} is written as {written:?}");
    assert_eq!(again.borrowed().into_text(kind), written, "{kind} {text:?}");
    Some(value)
}
