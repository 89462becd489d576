//! Functions of numbers.

use forebay_values::Scalar;

use super::{FunctionRow, native, refused};
use crate::eval::function::Function;
use crate::eval::number::NumberFunction::*;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    native("abs", "float4", "float4", Function::Number(Abs(Scalar::Float4))),
    native("abs", "float8", "float8", Function::Number(Abs(Scalar::Float8))),
    native("abs", "int2", "int2", Function::Number(Abs(Scalar::Int2))),
    native("abs", "int4", "int4", Function::Number(Abs(Scalar::Int4))),
    native("abs", "int8", "int8", Function::Number(Abs(Scalar::Int8))),
    native("abs", "numeric", "numeric", Function::Number(Abs(Scalar::Numeric))),
    native("ceil", "float8", "float8", Function::Number(Ceil)),
    native("ceil", "numeric", "numeric", Function::Number(Ceil)),
    native("ceiling", "float8", "float8", Function::Number(Ceil)),
    native("ceiling", "numeric", "numeric", Function::Number(Ceil)),
    native("div", "numeric, numeric", "numeric", Function::Number(DivideWhole)),
    native("floor", "float8", "float8", Function::Number(Floor)),
    native("floor", "numeric", "numeric", Function::Number(Floor)),
    native("gcd", "int4, int4", "int4", Function::Number(Gcd(Scalar::Int4))),
    native("gcd", "int8, int8", "int8", Function::Number(Gcd(Scalar::Int8))),
    native("gcd", "numeric, numeric", "numeric", Function::Number(Gcd(Scalar::Numeric))),
    native("lcm", "int4, int4", "int4", Function::Number(Lcm(Scalar::Int4))),
    native("lcm", "int8, int8", "int8", Function::Number(Lcm(Scalar::Int8))),
    native("lcm", "numeric, numeric", "numeric", Function::Number(Lcm(Scalar::Numeric))),
    native("mod", "int2, int2", "int2", Function::Number(Remainder(Scalar::Int2))),
    native("mod", "int4, int4", "int4", Function::Number(Remainder(Scalar::Int4))),
    native("mod", "int8, int8", "int8", Function::Number(Remainder(Scalar::Int8))),
    native("mod", "numeric, numeric", "numeric", Function::Number(Remainder(Scalar::Numeric))),
    native("pow", "float8, float8", "float8", Function::Number(Power)),
    native("pow", "numeric, numeric", "numeric", Function::Number(PowerOfNumeric { modern: false })).until(16),
    native("pow", "numeric, numeric", "numeric", Function::Number(PowerOfNumeric { modern: true })).since(16),
    native("power", "float8, float8", "float8", Function::Number(Power)),
    native("power", "numeric, numeric", "numeric", Function::Number(PowerOfNumeric { modern: false })).until(16),
    native("power", "numeric, numeric", "numeric", Function::Number(PowerOfNumeric { modern: true })).since(16),
    native("round", "float8", "float8", Function::Number(Round)),
    native("round", "numeric", "numeric", Function::Number(Round)),
    native("round", "numeric, int4", "numeric", Function::Number(RoundTo)),
    native("sign", "float8", "float8", Function::Number(Sign)),
    native("sign", "numeric", "numeric", Function::Number(Sign)),
    native("sqrt", "float8", "float8", Function::Number(SquareRoot)),
    native("sqrt", "numeric", "numeric", Function::Number(SquareRoot)),
    native("trunc", "float8", "float8", Function::Number(Truncate)),
    refused("trunc", "macaddr", "macaddr"),
    refused("trunc", "macaddr8", "macaddr8"),
    native("trunc", "numeric", "numeric", Function::Number(Truncate)),
    native("trunc", "numeric, int4", "numeric", Function::Number(TruncateTo)),
];
