//! Functions of arrays.

use super::super::expr::ArrayFunction;
use super::{BuiltCall, FunctionRow, built, native};
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    built("array_append", "anycompatiblearray, anycompatible", "anycompatiblearray", BuiltCall::ArrayAppend).accepts_null(),
    built("array_cat", "anycompatiblearray, anycompatiblearray", "anycompatiblearray", BuiltCall::ArrayCat).accepts_null(),
    native("array_ndims", "anyarray", "int4", Function::ArrayDimensions),
    built("array_dims", "anyarray", "text", BuiltCall::Array(ArrayFunction::Bounds)),
    built("array_length", "anyarray, int4", "int4", BuiltCall::Array(ArrayFunction::Length)),
    built("array_lower", "anyarray, int4", "int4", BuiltCall::Array(ArrayFunction::Lower)),
    built("array_position", "anycompatiblearray, anycompatible", "int4", BuiltCall::Array(ArrayFunction::Find)).accepts_null(),
    built("array_position", "anycompatiblearray, anycompatible, int4", "int4", BuiltCall::Array(ArrayFunction::Find)).accepts_null(),
    built("array_prepend", "anycompatible, anycompatiblearray", "anycompatiblearray", BuiltCall::ArrayPrepend).accepts_null(),
    built("array_remove", "anycompatiblearray, anycompatible", "anycompatiblearray", BuiltCall::Array(ArrayFunction::Remove)).accepts_null(),
    built("array_replace", "anycompatiblearray, anycompatible, anycompatible", "anycompatiblearray", BuiltCall::Array(ArrayFunction::Replace)).accepts_null(),
    built("array_upper", "anyarray, int4", "int4", BuiltCall::Array(ArrayFunction::Upper)),
    built("cardinality", "anyarray", "int4", BuiltCall::Array(ArrayFunction::Cardinality)),
];
