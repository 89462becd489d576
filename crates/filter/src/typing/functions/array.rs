//! Functions of arrays.

use super::{BuiltCall, FunctionRow, built, native};
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    built("array_append", "anycompatiblearray, anycompatible", "anycompatiblearray", BuiltCall::ArrayAppend).accepts_null(),
    built("array_cat", "anycompatiblearray, anycompatiblearray", "anycompatiblearray", BuiltCall::ArrayCat).accepts_null(),
    native("array_ndims", "anyarray", "int4", Function::ArrayDimensions),
    built("array_prepend", "anycompatible, anycompatiblearray", "anycompatiblearray", BuiltCall::ArrayPrepend).accepts_null(),
];
