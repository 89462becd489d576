//! Constructors of ranges.

use forebay_values::Scalar;

use super::{FunctionRow, native};
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    native("daterange", "date, date", "daterange", Function::Range(Scalar::Date)).accepts_null(),
    native("daterange", "date, date, text", "daterange", Function::Range(Scalar::Date)).accepts_null(),
    native("int4range", "int4, int4", "int4range", Function::Range(Scalar::Int4)).accepts_null(),
    native("int4range", "int4, int4, text", "int4range", Function::Range(Scalar::Int4)).accepts_null(),
    native("int8range", "int8, int8", "int8range", Function::Range(Scalar::Int8)).accepts_null(),
    native("int8range", "int8, int8, text", "int8range", Function::Range(Scalar::Int8)).accepts_null(),
    native("numrange", "numeric, numeric", "numrange", Function::Range(Scalar::Numeric)).accepts_null(),
    native("numrange", "numeric, numeric, text", "numrange", Function::Range(Scalar::Numeric)).accepts_null(),
    native("tsrange", "timestamp, timestamp", "tsrange", Function::Range(Scalar::Timestamp)).accepts_null(),
    native("tsrange", "timestamp, timestamp, text", "tsrange", Function::Range(Scalar::Timestamp)).accepts_null(),
    native("tstzrange", "timestamptz, timestamptz", "tstzrange", Function::Range(Scalar::Timestamptz)).accepts_null(),
    native("tstzrange", "timestamptz, timestamptz, text", "tstzrange", Function::Range(Scalar::Timestamptz)).accepts_null(),
];
