//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-values --example values_readme`

use std::cmp::Ordering;

use forebay_values::{Arithmetic, Array, Scalar, SqlValue, ValueType, json, like};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Texts are parsed as Postgres 16 and newer parse them. NULL is `None`, outside of a value.
    let parse = |text, scalar| SqlValue::parse(text, ValueType::Scalar(scalar), true);

    // The scale of a quotient is that of Postgres.
    let quotient = parse("10", Scalar::Numeric)?.compute(
        Arithmetic::Divide,
        parse("3.00", Scalar::Numeric)?,
        Scalar::Numeric,
    )?;
    assert_eq!(quotient.into_text(ValueType::Scalar(Scalar::Numeric)), "3.3333333333333333");

    // One month after January 31.
    let due = parse("2024-01-31", Scalar::Date)?.compute(
        Arithmetic::Add,
        parse("1 month", Scalar::Interval)?,
        Scalar::Timestamp,
    )?;
    assert_eq!(due.into_text(ValueType::Scalar(Scalar::Timestamp)), "2024-02-29 00:00:00");

    // Values with different texts may be equal.
    let (left, right) = (parse("1 day", Scalar::Interval)?, parse("24:00", Scalar::Interval)?);
    assert_eq!(left.compare(&right, false), Ordering::Equal);

    let tags = Array::parse(r#"{red,NULL,"dark blue"}"#, Scalar::Text, true)?;
    assert_eq!(tags.at(&[3]), Some(&SqlValue::text("dark blue")));
    assert!(like::matches("dark blue", "dark%")?);

    // A jsonb value is the text that Postgres writes. A lookup returns a slice of it.
    let SqlValue::Json(order) = parse(r#"{"total":1.50, "id":7}"#, Scalar::Jsonb)? else {
        unreachable!("jsonb is parsed as a jsonb value")
    };
    assert_eq!(order, r#"{"id": 7, "total": 1.50}"#);
    assert_eq!(json::field(&order, "total")?, Some("1.50"));

    // Errors have the SQLSTATE and the message of Postgres.
    let text = "2023-02-29";
    let error = parse(text, Scalar::Date).expect_err("2023 is no leap year");
    let (sqlstate, message) = error.describe(ValueType::Scalar(Scalar::Date), Some(text));
    assert_eq!(sqlstate, "22008");
    assert_eq!(message, "date/time field value out of range: \"2023-02-29\"");
    Ok(())
}
