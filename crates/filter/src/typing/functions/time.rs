//! Functions of dates, times and intervals.

use super::{BuiltCall, FunctionRow, built, native, refused};
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    native("justify_days", "interval", "interval", Function::JustifyDays),
    native("justify_hours", "interval", "interval", Function::JustifyHours),
    native("justify_interval", "interval", "interval", Function::JustifyInterval),
    built("timezone", "interval, timestamp", "timestamptz", BuiltCall::Zone),
    built("timezone", "interval, timestamptz", "timestamp", BuiltCall::Zone),
    built("timezone", "interval, timetz", "timetz", BuiltCall::Zone),
    built("timezone", "text, timestamp", "timestamptz", BuiltCall::Zone),
    built("timezone", "text, timestamptz", "timestamp", BuiltCall::Zone),
    built("timezone", "text, timetz", "timetz", BuiltCall::Zone).stable(),
    refused("timezone", "timestamp", "timestamptz").stable().since(17),
    refused("timezone", "timestamptz", "timestamp").stable().since(17),
    refused("timezone", "timetz", "timetz").stable().since(17),
];
