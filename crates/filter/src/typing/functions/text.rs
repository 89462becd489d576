//! Functions of texts.

use super::{BuiltCall, FunctionRow, built, native, refused};
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    built("concat", "variadic any", "text", BuiltCall::Concat).accepts_null().stable(),
    refused("like", "bytea, bytea", "bool"),
    refused("like", "name, text", "bool"),
    built("like", "text, text", "bool", BuiltCall::Like),
    refused("like_escape", "bytea, bytea", "bytea"),
    native("like_escape", "text, text", "text", Function::LikeEscape),
    refused("lower", "anymultirange", "anyelement"),
    refused("lower", "anyrange", "anyelement"),
    built("lower", "text", "text", BuiltCall::Lower),
    refused("notlike", "bytea, bytea", "bool"),
    refused("notlike", "name, text", "bool"),
    built("notlike", "text, text", "bool", BuiltCall::NotLike),
    refused("upper", "anymultirange", "anyelement"),
    refused("upper", "anyrange", "anyelement"),
    built("upper", "text", "text", BuiltCall::Upper),
];
