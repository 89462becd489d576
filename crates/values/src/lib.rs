//! Values.

#![forbid(unsafe_code)]

mod arithmetic;
mod array;
mod bytes;
mod calendar;
mod cast;
mod clock_arithmetic;
mod clock_field;
mod clock_part;
mod clock_text;
mod collation;
mod datetime;
mod eval_error;
mod input;
mod input_error;
mod interval;
mod interval_fields;
pub mod json;
mod letter_case;
pub mod like;
mod network;
mod numeric;
mod output;
mod range;
mod scalar;
mod sql_value;

pub use arithmetic::Arithmetic;
pub use array::{Array, ArrayEnd, Dimension};
pub use cast::TypeModifier;
pub use collation::Collation;
pub use datetime::{Date, Time, Timestamp, Timetz};
pub use eval_error::EvalError;
pub use input_error::InputError;
pub use interval::Interval;
pub use interval_fields::IntervalFields;
pub use letter_case::{Casing, LetterCase};
pub use network::{Inet, InetOperator};
pub use numeric::{Decimal, Numeric};
pub use range::{Range, RangeFunction, RangeOperator};
pub use scalar::{Scalar, ValueType};
pub use sql_value::{SqlValue, compare_text, unpadded};
