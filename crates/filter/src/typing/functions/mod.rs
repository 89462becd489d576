//! Function table: rows of pg_proc, and the resolution of a call (parse_func.c: func_get_detail).
//!
//! Invariant: for each name in the table, it has every overload that pg_catalog has, supported or
//! not. A call is refused if Postgres would choose an overload that is not supported.
//! Enforced by: `tests/it/catalog.rs` compares the table with pg_proc of real servers.

mod array;
mod json;
mod number;
mod range;
mod text;
mod time;

use super::catalog::OperandType;
use super::expr::ArrayFunction;
use super::polymorphic;
use super::resolve::{self, Resolution};
use super::sql_type::SqlType;
use crate::eval::function::Function;

/// One row of pg_proc.
#[derive(Debug, PartialEq)]
pub(crate) struct FunctionRow {
    pub(crate) name: &'static str,
    /// Argument types by their names in pg_type. The last may be `variadic`.
    pub(crate) arguments: &'static str,
    /// Result type by its name in pg_type.
    pub(crate) result: &'static str,
    pub(crate) support: Support,
    /// NULL if an argument is NULL (pg_proc.proisstrict).
    pub(crate) is_strict: bool,
    /// Depends on the session's settings (pg_proc.provolatile is `s`). Otherwise immutable.
    pub(crate) is_stable: bool,
    /// First major version of Postgres that has the function; 0 for the oldest supported one.
    since: u32,
    /// First major version of Postgres that has another function of these types.
    until: u32,
}

/// How a function is evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Support {
    /// As the arguments' function in `eval/`.
    Native(Function),
    /// As an expression that `typing/call.rs` builds.
    Built(BuiltCall),
    /// Not at all: only resolution considers it.
    Refused,
}

/// Calls that become other expressions, or that depend on the collation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BuiltCall {
    Lower,
    Upper,
    InitCap,
    Like,
    NotLike,
    Concat,
    /// concat_ws().
    ConcatWithSeparator,
    ArrayCat,
    ArrayAppend,
    ArrayPrepend,
    Zone,
    /// date_trunc() in a time zone.
    TruncateInZone,
    Array(ArrayFunction),
}

impl FunctionRow {
    const fn new(name: &'static str, arguments: &'static str, result: &'static str) -> Self {
        FunctionRow {
            name,
            arguments,
            result,
            support: Support::Refused,
            is_strict: true,
            is_stable: false,
            since: 0,
            until: u32::MAX,
        }
    }

    const fn stable(self) -> Self {
        FunctionRow { is_stable: true, ..self }
    }

    const fn since(self, since: u32) -> Self {
        FunctionRow { since, ..self }
    }

    const fn until(self, until: u32) -> Self {
        FunctionRow { until, ..self }
    }

    /// Also called if an argument is NULL.
    const fn accepts_null(self) -> Self {
        FunctionRow { is_strict: false, ..self }
    }

    pub(crate) fn is_supported(&self) -> bool {
        self.support != Support::Refused
    }

    pub(crate) fn exists_in(&self, version: u32) -> bool {
        (self.since..self.until).contains(&version)
    }

    /// Returns the types of `count` arguments. `None`: the function takes another number.
    fn slots(&self, count: usize) -> Option<Vec<OperandType>> {
        let mut slots = Vec::new();
        for name in self.arguments.split(", ").filter(|name| !name.is_empty()) {
            match name.strip_prefix("variadic ") {
                Some(element) => {
                    let element = OperandType::by_name(element.trim_end_matches("[]"));
                    slots.push(element);
                    slots.resize(count.max(slots.len()), element);
                }
                None => slots.push(OperandType::by_name(name)),
            }
        }
        (slots.len() == count).then_some(slots)
    }
}

/// A row that is evaluated by `function`.
const fn native(
    name: &'static str,
    arguments: &'static str,
    result: &'static str,
    function: Function,
) -> FunctionRow {
    FunctionRow { support: Support::Native(function), ..FunctionRow::new(name, arguments, result) }
}

const fn built(
    name: &'static str,
    arguments: &'static str,
    result: &'static str,
    call: BuiltCall,
) -> FunctionRow {
    FunctionRow { support: Support::Built(call), ..FunctionRow::new(name, arguments, result) }
}

const fn refused(name: &'static str, arguments: &'static str, result: &'static str) -> FunctionRow {
    FunctionRow::new(name, arguments, result)
}

/// Returns all rows. Files are grouped by topic; overloads of one name may be in several.
pub(crate) fn all() -> impl Iterator<Item = &'static FunctionRow> {
    [text::ROWS, array::ROWS, json::ROWS, number::ROWS, range::ROWS, time::ROWS].into_iter().flatten()
}

/// Result of a call's resolution.
pub(crate) enum CallResolution {
    Found(ResolvedCall),
    /// No function of the table has the name.
    UnknownName,
    /// Postgres has no such function for these types.
    None,
    Ambiguous,
    /// All arguments that decide a polymorphic type are untyped constants.
    Undetermined,
}

/// The chosen row, and its types for this call.
pub(crate) struct ResolvedCall {
    pub(crate) row: &'static FunctionRow,
    /// Types that the arguments are cast to. An argument of type `any` keeps its own.
    pub(crate) arguments: Vec<SqlType>,
    pub(crate) result: SqlType,
}

/// Finds the function that Postgres calls for arguments of these types.
pub(crate) fn resolve(name: &str, given: &[SqlType], version: u32) -> CallResolution {
    let rows = || all().filter(|row| row.name == name && row.exists_in(version));
    if rows().next().is_none() {
        return CallResolution::UnknownName;
    }
    let candidates: Vec<_> =
        rows().filter_map(|row| row.slots(given.len()).map(|slots| (slots, row))).collect();
    let exact = candidates.iter().position(|(slots, _)| resolve::is_exact(slots, given));
    let (slots, row) = match exact {
        Some(position) => candidates[position].clone(),
        None => match resolve::choose(candidates, given) {
            Resolution::Found(found) => found,
            Resolution::None => return CallResolution::None,
            Resolution::Ambiguous => return CallResolution::Ambiguous,
        },
    };
    let types = polymorphic::solve(&slots, given).unwrap_or_default();
    let result = OperandType::by_name(row.result);
    if row.is_supported() && types.is_undetermined() {
        return CallResolution::Undetermined;
    }
    let Some(result) = types.actual(result, SqlType::Unknown) else {
        return CallResolution::Found(ResolvedCall { row, arguments: Vec::new(), result: SqlType::Unknown });
    };
    let arguments = slots.iter().zip(given).filter_map(|(slot, given)| types.actual(*slot, *given)).collect();
    CallResolution::Found(ResolvedCall { row, arguments, result })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_values::Scalar;

    fn found(name: &str, given: &[SqlType]) -> Option<(&'static str, SqlType)> {
        match resolve(name, given, 18) {
            CallResolution::Found(call) => Some((call.row.arguments, call.result)),
            _ => None,
        }
    }

    #[test]
    fn every_type_of_the_table_is_known() {
        for row in all() {
            assert!(row.slots(row.arguments.split(", ").count()).is_some(), "{row:?}");
            OperandType::by_name(row.result);
        }
    }

    #[test]
    fn overloads_are_those_that_postgres_takes() {
        const UNKNOWN: SqlType = SqlType::Unknown;
        let of = SqlType::Scalar;
        let int = of(Scalar::Int4);
        assert_eq!(found("lower", &[UNKNOWN]), Some(("text", SqlType::TEXT)));
        assert_eq!(found("lower", &[of(Scalar::Bpchar)]), Some(("text", SqlType::TEXT)));
        assert_eq!(found("lower", &[int]), None);
        assert_eq!(found("array_ndims", &[SqlType::Array(Scalar::Date)]), Some(("anyarray", int)));
        assert_eq!(
            found("array_append", &[SqlType::Array(Scalar::Int4), of(Scalar::Numeric)]),
            Some(("anycompatiblearray, anycompatible", SqlType::Array(Scalar::Numeric)))
        );
        assert_eq!(found("array_append", &[SqlType::Array(Scalar::Int4), of(Scalar::Bool)]), None);
        assert_eq!(
            found("timezone", &[UNKNOWN, of(Scalar::Date)]),
            Some(("text, timestamptz", of(Scalar::Timestamp)))
        );
        assert_eq!(found("concat", &[int, UNKNOWN, int]), Some(("variadic any", SqlType::TEXT)));
        assert_eq!(found("concat", &[]), None);
        assert!(matches!(resolve("array_ndims", &[UNKNOWN], 18), CallResolution::Undetermined));
        assert!(matches!(resolve("no_such", &[UNKNOWN], 18), CallResolution::UnknownName));
    }
}
