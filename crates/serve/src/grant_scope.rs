//! Grant scope: restricts a request to its bearer's grant.
//!
//! Invariant: a response to a restricted request contains no row and no column outside the grant.
//! No clause that a client sends reveals one through an error.
//! Enforced by: a client's clause is parsed on its own, against a schema with only the granted
//! columns, so others seem not to exist. It is evaluated only for rows for which the grant's clause
//! is true ([`guarded_clause`]).
//!
//! The key of a table without a primary key is all its columns, and the key is always shown. So a
//! grant of some columns of such a table grants nothing.

use std::borrow::Cow;

use forebay_shapes::TableSchema;
use forebay_shapes::filter::{Filter, FilterError, Schema};

use super::clause_parser::ClauseParser;
use super::protocol::{Grant, RequestRefusal, ShapeRequest};

/// Returns the first grant for the table that has all requested columns. `None`: the request needs
/// no grant and may read everything.
///
/// # Errors
/// [`RequestRefusal::NotGranted`].
pub(super) fn find_grant<'r>(
    request: &'r ShapeRequest,
    table: &TableSchema,
) -> Result<Option<&'r Grant>, RequestRefusal> {
    let Some(bearer) = &request.bearer else { return Ok(None) };
    let is_of_table =
        |grant: &&Grant| (&*grant.table.schema, &*grant.table.name) == (&*table.schema, &*table.name);
    let has_all = |grant: &&Grant| {
        let mut named = request.columns.iter().chain(&request.queryable_columns).flatten();
        grant.columns.is_none() || (!table.key.is_empty() && named.all(|name| is_visible(grant, table, name)))
    };
    let grant = bearer.grants.iter().filter(is_of_table).find(has_all);
    grant.map(Some).ok_or(RequestRefusal::NotGranted)
}

/// Returns the columns for a request that selects none. `None`: all.
pub(super) fn granted_columns(grant: Option<&Grant>, table: &TableSchema) -> Option<Vec<String>> {
    let grant = grant.filter(|grant| grant.columns.is_some())?;
    let names = table.types.columns.iter().map(|column| &column.name);
    Some(names.filter(|name| is_visible(grant, table, name)).cloned().collect())
}

/// Returns the schema for a client's clauses: the table with only the granted columns.
pub(super) fn visible_schema<'t>(grant: Option<&Grant>, table: &'t TableSchema) -> Cow<'t, Schema> {
    let Some(grant) = grant.filter(|grant| grant.columns.is_some()) else {
        return Cow::Borrowed(&table.types);
    };
    let mut schema = table.types.clone();
    schema.columns.retain(|column| is_visible(grant, table, &column.name));
    Cow::Owned(schema)
}

/// Returns the grant's own clause.
///
/// # Errors
/// Fails if the clause doesn't fit the table.
pub(super) fn grant_clause(
    grant: Option<&Grant>,
    table: &TableSchema,
    parser: ClauseParser<'_>,
) -> Result<Option<Filter>, RequestRefusal> {
    let Some(grant) = grant else { return Ok(None) };
    let params: Vec<&str> = grant.params.iter().map(String::as_str).collect();
    let parse = |clause: &String| parser.parse(clause, &params, &table.types);
    grant.clause.as_ref().map(parse).transpose().map_err(|error| RequestRefusal::BadGrant {
        message: format!("The token's grant has a where clause that can't be used: {error}").into(),
    })
}

/// Returns SQL that evaluates `inner` only where `outer` is true.
///
/// With AND alone, Postgres may evaluate either side first, and a division by zero would reveal a
/// row outside the grant. An index can still be used for `outer`.
pub(super) fn guarded_clause(outer: &str, inner: &str) -> String {
    format!("({outer}) AND (CASE WHEN ({outer}) THEN ({inner}) ELSE false END)")
}

/// Returns [`guarded_clause`] in canonical form, for a shape: filters must evaluate it, too. Both
/// clauses were checked.
///
/// # Errors
/// Fails if the result is too long or too deep for a filter.
pub(super) fn guarded_filter(outer: &str, inner: &str, types: &Schema) -> Result<String, FilterError> {
    let filter = ClauseParser::Unchecked.parse(&guarded_clause(outer, inner), &[], types)?;
    Ok(filter.canonical().to_owned())
}

/// Returns whether a column is granted or in the primary key.
fn is_visible(grant: &Grant, table: &TableSchema, name: &str) -> bool {
    let is_granted = grant.columns.iter().flatten().any(|granted| granted == name);
    is_granted
        || table.key.iter().any(|index| table.types.columns.get(*index).is_some_and(|key| key.name == name))
}

#[cfg(test)]
mod tests {
    use forebay_shapes::filter::{Collation, Column, TextRow as Row};
    use proptest::prelude::*;

    use super::*;

    fn types() -> Schema {
        Schema {
            table: Some("orders".to_owned()),
            columns: vec![
                Column::new("id", 23, "int4"),
                Column::new("owner", 23, "int4"),
                Column::new("note", 25, "text"),
            ],
            database_collation: Collation::C,
            server_version: 15,
        }
    }

    fn canonical(clause: &str) -> String {
        Filter::parse(clause, &[], &types()).unwrap().canonical().to_owned()
    }

    fn evaluate(clause: &str, row: [Option<&[u8]>; 3]) -> Option<Option<bool>> {
        Filter::parse(clause, &[], &types()).unwrap().matches(&row as &dyn Row).ok()
    }

    #[test]
    fn a_clause_that_fails_on_a_row_fails_only_where_the_grant_is_true() {
        let clause = guarded_filter(&canonical("owner = 7"), &canonical("note::int4 = 1"), &types()).unwrap();
        let row = |owner: Option<&'static [u8]>, note: &'static [u8]| [Some(&b"1"[..]), owner, Some(note)];
        assert_eq!(evaluate(&clause, row(Some(b"7"), b"1")), Some(Some(true)));
        assert_eq!(evaluate(&clause, row(Some(b"7"), b"x")), None, "a granted row");
        for owner in [Some(&b"8"[..]), None] {
            assert_ne!(evaluate(&clause, row(owner, b"x")).expect("no failure"), Some(true));
            assert_ne!(evaluate(&clause, row(owner, b"1")).expect("no failure"), Some(true));
        }
    }

    #[test]
    fn an_index_can_find_the_granted_rows_for_every_clause_of_a_client() {
        let conditions = |clause: &str| {
            let found = Filter::parse(clause, &[], &types()).unwrap().conditions();
            found.into_iter().map(|alternative| alternative.conditions).collect::<Vec<_>>()
        };
        for grant in ["owner = 7", "owner = 7 AND note = 'x'", "owner IN (7, 8)"] {
            let clause =
                guarded_filter(&canonical(grant), &canonical("id > 1 OR note = 'x'"), &types()).unwrap();
            assert_eq!(conditions(&clause), conditions(grant), "{grant}");
            assert!(!conditions(grant)[0].is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_clause_of_a_client_matches_a_row_outside_the_grant(inner in "[a-z0-9 =<>()'\"\\-/*;$,.:|]{0,24}", owner in 0..9) {
            let Ok(filter) = Filter::parse(&inner, &[], &types()) else { return Ok(()) };
            let clause = guarded_filter(&canonical("owner = 7"), filter.canonical(), &types()).unwrap();
            let owner: String = i32::to_string(&owner);
            let row: [Option<&[u8]>; 3] = [Some(&b"1"[..]), Some(owner.as_bytes()), Some(b"x")];
            if owner != "7" {
                prop_assert_eq!(evaluate(&clause, row), Some(Some(false)), "{}", clause);
            }
        }
    }
}
