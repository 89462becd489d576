//! Functions of dates, times and intervals.

use super::{BuiltCall, FunctionRow, built, native, refused};
use crate::eval::clock_function::ClockFunction::*;
use crate::eval::function::Function;

#[rustfmt::skip]
pub(super) const ROWS: &[FunctionRow] = &[
    native("date_part", "text, date", "float8", Function::Clock(PartAsFloat)),
    native("date_part", "text, interval", "float8", Function::Clock(PartAsFloat)),
    native("date_part", "text, time", "float8", Function::Clock(PartAsFloat)),
    native("date_part", "text, timestamp", "float8", Function::Clock(PartAsFloat)),
    native("date_part", "text, timestamptz", "float8", Function::Clock(PartAsFloat)).stable(),
    native("date_part", "text, timetz", "float8", Function::Clock(PartAsFloat)),
    native("date_trunc", "text, interval", "interval", Function::Clock(Truncate)),
    native("date_trunc", "text, timestamp", "timestamp", Function::Clock(Truncate)),
    native("date_trunc", "text, timestamptz", "timestamptz", Function::Clock(Truncate)).stable(),
    refused("date_trunc", "text, timestamptz, text", "timestamptz").stable().until(16),
    refused("date_trunc", "text, timestamptz, text", "timestamptz").since(16),
    native("extract", "text, date", "numeric", Function::Clock(Part)),
    native("extract", "text, interval", "numeric", Function::Clock(Part)),
    native("extract", "text, time", "numeric", Function::Clock(Part)),
    native("extract", "text, timestamp", "numeric", Function::Clock(Part)),
    native("extract", "text, timestamptz", "numeric", Function::Clock(Part)).stable(),
    native("extract", "text, timetz", "numeric", Function::Clock(Part)),
    native("isfinite", "date", "bool", Function::Clock(IsFinite)),
    native("isfinite", "interval", "bool", Function::Clock(IsFinite)),
    native("isfinite", "timestamp", "bool", Function::Clock(IsFinite)),
    native("isfinite", "timestamptz", "bool", Function::Clock(IsFinite)),
    native("make_date", "int4, int4, int4", "date", Function::Clock(MakeDate)),
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
