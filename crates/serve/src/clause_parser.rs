//! Clause parser: parses where clauses of clients and grants, and decides which conditions Postgres
//! may evaluate.
//!
//! Invariant: a condition that Postgres evaluates uses only builtins that read nothing but the row,
//! and columns of built-in types or enums. The condition of a shape has the same value at any time.
//! Enforced by: [`check_condition`] (`database/builtins.rs` has the builtins), and
//! [`Expression::depends_on_clock`].

use forebay_shapes::filter::{Expression, Filter, FilterError, PostgresRules, Schema};

use super::database::{Builtins, DisallowedBuiltin, ElementType, TableDescription};

/// Parses the clauses of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClauseParser<'r> {
    /// Refuses every condition that only Postgres can evaluate.
    Native,
    /// Accepts all of them, unchecked. The result must be compared with an existing shape, or be
    /// parsed again with a check, before it is used.
    Unchecked,
    /// Accepts those that pass [`check_condition`].
    Checked { table: &'r TableDescription, builtins: &'r Builtins },
}

impl ClauseParser<'_> {
    /// Parses a clause. It may use the columns of `types`.
    pub(crate) fn parse(self, clause: &str, params: &[&str], types: &Schema) -> Result<Filter, FilterError> {
        match self {
            ClauseParser::Native => Filter::parse(clause, params, types),
            ClauseParser::Unchecked => Filter::parse_with(clause, params, types, PostgresRules::Stored),
            ClauseParser::Checked { table, builtins } => {
                let check = |expression: &Expression| {
                    check_condition(expression, types, table, builtins).and_then(check_clock)
                };
                let check = |expression: &Expression| check(expression).map_err(|error| error.to_string());
                Filter::parse_with(clause, params, types, PostgresRules::Checked(&check))
            }
        }
    }
}

/// Checks a condition that Postgres evaluates.
///
/// Columns of types that are neither built in nor enums are refused: their operators are in other
/// schemas, and Postgres would resolve to different ones. Enums with casts that call functions are
/// refused, too.
///
/// # Errors
/// Returns the first thing that isn't allowed.
pub(crate) fn check_condition<'e>(
    expression: &'e Expression,
    types: &Schema,
    table: &TableDescription,
    builtins: &Builtins,
) -> Result<&'e Expression, DisallowedBuiltin> {
    for index in expression.columns() {
        let name = &types.columns[index].name;
        let element = table.columns.iter().find(|column| column.name == *name).map(|column| &column.element);
        let is_known = |element: &ElementType| {
            is_plain_enum(element) || (element.is_builtin && builtins.has_type(&element.name))
        };
        if let Some(other) = element.filter(|element| !is_known(element)) {
            return Err(DisallowedBuiltin::Type(other.name.clone()));
        }
    }
    builtins.check(expression)?;
    Ok(expression)
}

/// Returns whether a type is an enum whose casts call no functions of the database.
pub(crate) fn is_plain_enum(element: &ElementType) -> bool {
    element.is_enum && !element.has_casts
}

/// Refuses a condition whose value depends on the current time.
fn check_clock(expression: &Expression) -> Result<(), DisallowedBuiltin> {
    match expression.depends_on_clock() {
        true => Err(DisallowedBuiltin::Clock),
        false => Ok(()),
    }
}
