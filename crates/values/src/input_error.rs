//! Why a text is not a value: Postgres' SQLSTATE and message.

use thiserror::Error;

use crate::eval_error::EvalError;
use crate::scalar::{Scalar, ValueType};

/// What [`InputError::Unsupported`] has of texts such as `today`.
pub(crate) const CURRENT_TIME: &str = "dates and times that depend on the current time";

/// Why a text is not a value of its type. [`InputError::describe`] returns Postgres' message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputError {
    /// A text of another form than the type's.
    #[error("invalid input syntax")]
    Syntax,
    /// A number out of the type's range.
    #[error("value out of range")]
    Range,
    /// A numeric that overflows.
    #[error("value overflows numeric format")]
    Overflow,
    /// A date or time with a field out of range.
    #[error("date/time field value out of range")]
    Field,
    /// A date, a timestamp or an interval out of its type's range.
    #[error("date, timestamp or interval out of range")]
    OutOfRange,
    /// An interval with a field out of range.
    #[error("interval field value out of range")]
    IntervalField,
    /// A time zone displacement out of range.
    #[error("time zone displacement out of range")]
    Zone,
    /// An array of wrong syntax, with what is wrong.
    #[error("malformed array literal ({0})")]
    Array(&'static str),
    /// A text that is no JSON.
    #[error("invalid input syntax for type json")]
    Json,
    /// JSON with the character 0, which no text can hold.
    #[error("unsupported Unicode escape sequence")]
    JsonZero,
    /// A range without brackets, or with too many or too few commas.
    #[error("malformed range literal")]
    RangeSyntax,
    /// A multirange without braces, or with something else than ranges and commas in them.
    #[error("malformed multirange literal")]
    MultirangeSyntax,
    /// A range whose lower bound is above its upper bound.
    #[error("range lower bound must be less than or equal to range upper bound")]
    RangeOrder,
    /// An integer range that ends beyond the type.
    #[error("integer out of range")]
    RangeOverflow,
    /// A date range that ends beyond the type.
    #[error("date out of range")]
    RangeDate,
    /// A byte string with this character among its hexadecimal digits.
    #[error("invalid hexadecimal digit")]
    HexDigit(char),
    /// A byte string with an odd number of hexadecimal digits.
    #[error("invalid hexadecimal data: odd number of digits")]
    HexLength,
    /// A byte string with a wrong escape.
    #[error("invalid input syntax for type bytea")]
    Escape,
    /// A network with bits set after its prefix.
    #[error("invalid cidr value")]
    HostBits,
    /// A form that is not parsed, though Postgres may accept it. The text is a plural noun.
    #[error("{0} are not supported")]
    Unsupported(&'static str),
}

impl InputError {
    /// Returns Postgres' SQLSTATE and message. `value`: the text, which the
    /// message then shows.
    pub fn describe(self, kind: ValueType, value: Option<&str>) -> (&'static str, String) {
        let shown = value.map(|value| format!(": \"{value}\"")).unwrap_or_default();
        let clock = |kind| {
            use Scalar::*;
            matches!(kind, ValueType::Scalar(Date | Time | Timetz | Timestamp | Timestamptz | Interval))
        };
        match self {
            InputError::Syntax if clock(kind) => {
                ("22007", format!("invalid input syntax for type {kind}{shown}"))
            }
            InputError::Syntax => ("22P02", format!("invalid input syntax for type {kind}{shown}")),
            InputError::Range => {
                let shown = value.map(|value| format!(" \"{value}\"")).unwrap_or_default();
                ("22003", format!("value{shown} is out of range for type {kind}"))
            }
            InputError::Overflow => ("22003", "value overflows numeric format".to_owned()),
            InputError::Field => ("22008", format!("date/time field value out of range{shown}")),
            InputError::OutOfRange if kind == ValueType::Scalar(Scalar::Interval) => {
                ("22008", "interval out of range".to_owned())
            }
            InputError::OutOfRange => {
                let name = if kind == ValueType::Scalar(Scalar::Date) { "date" } else { "timestamp" };
                ("22008", format!("{name} out of range{shown}"))
            }
            InputError::IntervalField => ("22015", format!("interval field value out of range{shown}")),
            InputError::Zone => ("22009", format!("time zone displacement out of range{shown}")),
            InputError::Json => ("22P02", "invalid input syntax for type json".to_owned()),
            InputError::JsonZero => ("22P05", "unsupported Unicode escape sequence".to_owned()),
            InputError::Array(detail) => ("22P02", format!("malformed array literal{shown} ({detail})")),
            InputError::RangeSyntax => ("22P02", format!("malformed range literal{shown}")),
            InputError::MultirangeSyntax => ("22P02", format!("malformed multirange literal{shown}")),
            InputError::RangeOrder => {
                ("22000", "range lower bound must be less than or equal to range upper bound".to_owned())
            }
            InputError::RangeOverflow => ("22003", "integer out of range".to_owned()),
            InputError::RangeDate => ("22008", "date out of range".to_owned()),
            InputError::HexDigit(_) if value.is_none() => ("22023", "invalid hexadecimal digit".to_owned()),
            InputError::HexDigit(char) => ("22023", format!("invalid hexadecimal digit: \"{char}\"")),
            InputError::HexLength => ("22023", "invalid hexadecimal data: odd number of digits".to_owned()),
            InputError::Escape => ("22P02", "invalid input syntax for type bytea".to_owned()),
            InputError::HostBits => ("22P02", format!("invalid cidr value{shown}")),
            InputError::Unsupported(what) => ("0A000", format!("{what} are not supported")),
        }
    }

    /// Returns the error, without the text: it may be logged.
    pub fn without_text(self, kind: ValueType) -> EvalError {
        let (sqlstate, message) = self.describe(kind, None);
        EvalError::new(sqlstate, message)
    }
}
