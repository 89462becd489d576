//! Functions of jsonb.

use super::{FunctionRow, native};
use crate::eval::function::Function;
use crate::eval::json::JsonOperator;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    native("jsonb_array_length", "jsonb", "int4", Function::JsonArrayLength),
    native("jsonb_contained", "jsonb, jsonb", "bool", Function::Json(JsonOperator::Contains { swapped: true })),
    native("jsonb_contains", "jsonb, jsonb", "bool", Function::Json(JsonOperator::Contains { swapped: false })),
    native("jsonb_exists", "jsonb, text", "bool", Function::Json(JsonOperator::Exists)),
    native("jsonb_exists_all", "jsonb, text[]", "bool", Function::Json(JsonOperator::ExistsAll)),
    native("jsonb_exists_any", "jsonb, text[]", "bool", Function::Json(JsonOperator::ExistsAny)),
    native("jsonb_extract_path", "jsonb, variadic text[]", "jsonb", Function::JsonPath { as_text: false }),
    native("jsonb_extract_path_text", "jsonb, variadic text[]", "text", Function::JsonPath { as_text: true }),
    native("jsonb_typeof", "jsonb", "text", Function::JsonTypeof),
];
