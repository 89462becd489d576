//! Tables of types, operators and functions, as texts: for the tests that compare them with real
//! servers, and for `docs/where.md`.

use forebay_values::Scalar;

use crate::typing::foreign_type::ForeignType;
use crate::typing::{OPERATORS, catalog, functions};

/// A function of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionEntry {
    /// pg_proc.proname.
    pub name: &'static str,
    /// Names of the argument types in pg_type, separated by a comma and a blank.
    pub arguments: &'static str,
    /// Name of the result type in pg_type.
    pub result: &'static str,
    /// Whether a clause may call it. Otherwise only resolution considers it.
    pub is_supported: bool,
    /// pg_proc.proisstrict.
    pub is_strict: bool,
    /// Whether pg_proc.provolatile is `s`. Otherwise it is `i`.
    pub is_stable: bool,
}

/// Returns the functions that the table has for a major version of Postgres.
pub fn functions(version: u32) -> Vec<FunctionEntry> {
    let rows = functions::all().filter(|row| row.exists_in(version));
    let entry = |row: &functions::FunctionRow| FunctionEntry {
        name: row.name,
        arguments: row.arguments,
        result: row.result,
        is_supported: row.is_supported(),
        is_strict: row.is_strict,
        is_stable: row.is_stable,
    };
    rows.map(entry).collect()
}

/// A type that filters don't support, but that overloads of supported functions take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignEntry {
    /// pg_type.typname.
    pub name: &'static str,
    /// pg_type.typcategory.
    pub category: char,
    /// pg_type.typispreferred.
    pub is_preferred: bool,
    /// Names of the supported types that Postgres casts to it implicitly.
    pub sources: Vec<&'static str>,
}

/// Returns the types that are known only for resolution.
pub fn foreign_types() -> Vec<ForeignEntry> {
    let entry = |foreign: &ForeignType| ForeignEntry {
        name: foreign.name,
        category: foreign.category.letter(),
        is_preferred: foreign.is_preferred,
        sources: foreign.sources.iter().map(|scalar| scalar.catalog_name()).collect(),
    };
    ForeignType::all().map(entry).collect()
}

/// A supported scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeEntry {
    /// pg_type.typname.
    pub name: &'static str,
    /// Name in messages: format_type().
    pub title: &'static str,
}

/// Returns the supported scalar types.
pub fn scalar_types() -> Vec<TypeEntry> {
    Scalar::all().map(|scalar| TypeEntry { name: scalar.catalog_name(), title: scalar.name() }).collect()
}

/// An operator on scalar types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorEntry {
    /// pg_operator.oprname.
    pub name: &'static str,
    /// Name of the left operand's type in pg_type; none for a prefix operator.
    pub left: Option<&'static str>,
    /// Name of the right operand's type in pg_type.
    pub right: &'static str,
    /// Name of the result's type in pg_type.
    pub result: &'static str,
}

/// Returns the supported operators on scalar types.
pub fn operators() -> Vec<OperatorEntry> {
    let mut entries = Vec::new();
    for &name in OPERATORS {
        let binary = catalog::binary(name).into_iter().map(|row| OperatorEntry {
            name,
            left: Some(row.left.name()),
            right: row.right.name(),
            result: row.result.catalog_name(),
        });
        entries.extend(binary);
        let prefix = catalog::prefix(name).iter().map(|scalar| OperatorEntry {
            name,
            left: None,
            right: scalar.catalog_name(),
            result: scalar.catalog_name(),
        });
        entries.extend(prefix);
    }
    entries
}
