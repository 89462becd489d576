//! Writes values as text, by the rules of Postgres' output functions under the settings
//! that the crate's page lists.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::array::Array;
use super::sql_value::SqlValue;
use super::{bytes, network};
use crate::scalar::{Scalar, ValueType};

impl<'a> SqlValue<'a> {
    /// Writes a value as the output function of its type. A boolean is `t` or `f`.
    ///
    /// # Panics
    /// Panics if the value is not of the type.
    pub fn into_text(self, kind: ValueType) -> Cow<'a, str> {
        match (self, kind) {
            (SqlValue::Text(text) | SqlValue::Json(text), _) => text,
            (SqlValue::Array(array), ValueType::Array(element)) => Cow::Owned(write_array(&array, element)),
            (value, ValueType::Scalar(scalar)) => Cow::Owned(write_scalar(&value, scalar)),
            (value, _) => unreachable!("a value has its type: {value:?} of {kind:?}"),
        }
    }
}

fn write_scalar(value: &SqlValue<'_>, scalar: Scalar) -> String {
    match value {
        SqlValue::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
        SqlValue::Int(value) => value.to_string(),
        SqlValue::Float4(value) => float(f64::from(*value), &format!("{value:e}"), 6),
        SqlValue::Float8(value) => float(*value, &format!("{value:e}"), 15),
        SqlValue::Numeric(value) => value.to_string(),
        SqlValue::Text(value) | SqlValue::Json(value) => value.to_string(),
        SqlValue::Uuid(value) => uuid(value),
        SqlValue::Date(value) => value.to_string(),
        SqlValue::Time(value) => value.to_string(),
        SqlValue::Timetz(value) => value.to_string(),
        SqlValue::Timestamp(value) => value.write(scalar == Scalar::Timestamptz),
        SqlValue::Interval(value) => value.to_string(),
        SqlValue::Bytes(value) => bytes::write(value),
        SqlValue::Inet(value) => value.write(scalar == Scalar::Cidr),
        SqlValue::Macaddr(value) => network::write_mac(value),
        SqlValue::Range(value) => value.write(scalar.range_element().expect("the type is a range")),
        SqlValue::Multirange(value) => {
            let range = scalar.multirange_range().expect("the type is a multirange");
            value.write(range.range_element().expect("it has ranges"))
        }
        SqlValue::Array(_) => unreachable!("an array is not a scalar"),
    }
}

/// Formats a float as Postgres does: the shortest digits that parse to the same value (ryu,
/// extra_float_digits = 1).
fn float(value: f64, shortest: &str, fixed_below: i32) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let (mantissa, exponent) = shortest.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes a small exponent");
    if value == 0.0 {
        return mantissa.to_owned();
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    if !(-4..fixed_below).contains(&exponent) {
        let (sign_of, size) = (if exponent < 0 { '-' } else { '+' }, exponent.abs());
        return format!("{sign}{mantissa}e{sign_of}{size:02}");
    }
    let digits = mantissa.replace('.', "");
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1));
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}", "0".repeat(whole - digits.len()));
    }
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}

fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (position, byte) in bytes.iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{byte:02x}").expect("writing to a String never fails");
    }
    text
}

fn write_array(array: &Array, element: Scalar) -> String {
    let mut out = String::new();
    if array.dimensions.is_empty() {
        return "{}".to_owned();
    }
    if array.dimensions.iter().any(|dimension| dimension.lower != 1) {
        for dimension in &array.dimensions {
            let upper = i64::from(dimension.lower) + dimension.length as i64 - 1;
            write!(out, "[{}:{upper}]", dimension.lower).expect("writing to a String never fails");
        }
        out.push('=');
    }
    let mut items = array.items.iter().map(|item| match item {
        Some(value) => quoted(&value.borrowed().into_text(ValueType::Scalar(element))),
        None => "NULL".to_owned(),
    });
    nest(
        &mut out,
        &mut items,
        &array.dimensions.iter().map(|dimension| dimension.length).collect::<Vec<_>>(),
    );
    out
}

fn nest(out: &mut String, items: &mut impl Iterator<Item = String>, lengths: &[usize]) {
    let Some((length, inner)) = lengths.split_first() else {
        out.push_str(&items.next().unwrap_or_default());
        return;
    };
    out.push('{');
    for position in 0..*length {
        if position > 0 {
            out.push(',');
        }
        nest(out, items, inner);
    }
    out.push('}');
}

/// Quotes an element if the array's text needs it.
fn quoted(text: &str) -> String {
    let special =
        |c: char| matches!(c, '"' | '\\' | '{' | '}' | ',' | ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c');
    if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.contains(special) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_laid_out_as_postgres_does() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1e15, "1e+15"),
            (123456789012345.0, "123456789012345"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(SqlValue::Float8(value).into_text(ValueType::Scalar(Scalar::Float8)), text);
        }
        assert_eq!(SqlValue::Float4(1e6).into_text(ValueType::Scalar(Scalar::Float4)), "1e+06");
        assert_eq!(SqlValue::Float4(123456.7).into_text(ValueType::Scalar(Scalar::Float4)), "123456.7");
    }
}
