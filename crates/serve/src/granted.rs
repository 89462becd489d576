//! What a bearer's grants make of a request, once the table is known.
//!
//! Invariant: what comes out of here shows no row and no column beyond a grant, and nothing that a client can write tells it of one, not even by
//! whether something fails.
//! Kept by: a client's clause is read on its own, against a table that has only the columns of the grant, so others might as well not be there;
//! and it is judged only of rows of which the grant's clause is true ([`within`]).
//!
//! The key of a table without a primary key is all its columns, and is always shown: a grant of some columns of it grants nothing.

use std::borrow::Cow;

use forebay_shapes::TableSchema;
use forebay_shapes::filter::{Filter, FilterError, Schema};

use super::protocol::{Grant, RequestRefusal, ShapeRequest};

/// The grant that a request is within: the first of the table's that has all columns that are named. `None`: the client may read everything.
///
/// # Errors
/// [`RequestRefusal::NotGranted`].
pub(super) fn find<'r>(
    request: &'r ShapeRequest,
    table: &TableSchema,
) -> Result<Option<&'r Grant>, RequestRefusal> {
    let Some(bearer) = &request.bearer else { return Ok(None) };
    let is_of_table =
        |grant: &&Grant| (&*grant.table.schema, &*grant.table.name) == (&*table.schema, &*table.name);
    let has_all = |grant: &&Grant| {
        let mut named = request.columns.iter().chain(&request.queryable_columns).flatten();
        grant.columns.is_none() || (!table.key.is_empty() && named.all(|name| shows(grant, table, name)))
    };
    let grant = bearer.grants.iter().filter(is_of_table).find(has_all);
    grant.map(Some).ok_or(RequestRefusal::NotGranted)
}

/// The columns that a client sees that names none; `None`: all.
pub(super) fn columns(grant: Option<&Grant>, table: &TableSchema) -> Option<Vec<String>> {
    let grant = grant.filter(|grant| grant.columns.is_some())?;
    let names = table.types.columns.iter().map(|column| &column.name);
    Some(names.filter(|name| shows(grant, table, name)).cloned().collect())
}

/// The table as a client's clauses may name it.
pub(super) fn visible<'t>(grant: Option<&Grant>, table: &'t TableSchema) -> Cow<'t, Schema> {
    let Some(grant) = grant.filter(|grant| grant.columns.is_some()) else {
        return Cow::Borrowed(&table.types);
    };
    let mut schema = table.types.clone();
    schema.columns.retain(|column| shows(grant, table, &column.name));
    Cow::Owned(schema)
}

/// The grant's own clause, in its one form.
///
/// # Errors
/// If it isn't one for this table.
pub(super) fn clause(grant: Option<&Grant>, table: &TableSchema) -> Result<Option<String>, RequestRefusal> {
    let Some(grant) = grant else { return Ok(None) };
    let params: Vec<&str> = grant.params.iter().map(String::as_str).collect();
    let parse = |clause: &String| Filter::parse(clause, &params, &table.types);
    let filter = grant.clause.as_ref().map(parse).transpose();
    let filter = filter.map_err(|error| RequestRefusal::BadGrant {
        message: format!("The token's grant has a where clause that can't be used: {error}").into(),
    })?;
    Ok(filter.map(|filter| filter.canonical().to_owned()))
}

/// One clause within another, as SQL: `inner` is judged only where `outer` is true. With AND alone
/// Postgres is free to begin with either, and a division by zero, say, would tell of a row that
/// nobody may see. An index can still be used for `outer`.
pub(super) fn within(outer: &str, inner: &str) -> String {
    format!("({outer}) AND (CASE WHEN ({outer}) THEN ({inner}) ELSE false END)")
}

/// The same for a shape, whose clause filters must be able to judge, too: in its one form.
///
/// # Errors
/// If it is too long, or too deep, for a clause.
pub(super) fn filter_within(outer: &str, inner: &str, types: &Schema) -> Result<String, FilterError> {
    Ok(Filter::parse(&within(outer, inner), &[], types)?.canonical().to_owned())
}

fn shows(grant: &Grant, table: &TableSchema, name: &str) -> bool {
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

    fn judge(clause: &str, row: [Option<&[u8]>; 3]) -> Option<Option<bool>> {
        Filter::parse(clause, &[], &types()).unwrap().matches(&row as &dyn Row).ok()
    }

    #[test]
    fn a_clause_that_fails_on_a_row_fails_only_where_the_grant_is_true() {
        let clause = filter_within(&canonical("owner = 7"), &canonical("note::int4 = 1"), &types()).unwrap();
        let row = |owner: Option<&'static [u8]>, note: &'static [u8]| [Some(&b"1"[..]), owner, Some(note)];
        assert_eq!(judge(&clause, row(Some(b"7"), b"1")), Some(Some(true)));
        assert_eq!(judge(&clause, row(Some(b"7"), b"x")), None, "one's own row");
        for owner in [Some(&b"8"[..]), None] {
            assert_ne!(judge(&clause, row(owner, b"x")).expect("no failure"), Some(true));
            assert_ne!(judge(&clause, row(owner, b"1")).expect("no failure"), Some(true));
        }
    }

    #[test]
    fn an_index_finds_the_grant_s_rows_whatever_the_client_asks_for() {
        let conditions = |clause: &str| {
            let found = Filter::parse(clause, &[], &types()).unwrap().conditions();
            found.into_iter().map(|alternative| alternative.conditions).collect::<Vec<_>>()
        };
        for grant in ["owner = 7", "owner = 7 AND note = 'x'", "owner IN (7, 8)"] {
            let clause =
                filter_within(&canonical(grant), &canonical("id > 1 OR note = 'x'"), &types()).unwrap();
            assert_eq!(conditions(&clause), conditions(grant), "{grant}");
            assert!(!conditions(grant)[0].is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_text_of_a_client_gets_out_of_the_grant(inner in "[a-z0-9 =<>()'\"\\-/*;$,.:|]{0,24}", owner in 0..9) {
            let Ok(filter) = Filter::parse(&inner, &[], &types()) else { return Ok(()) };
            let clause = filter_within(&canonical("owner = 7"), filter.canonical(), &types()).unwrap();
            let owner: String = i32::to_string(&owner);
            let row: [Option<&[u8]>; 3] = [Some(&b"1"[..]), Some(owner.as_bytes()), Some(b"x")];
            if owner != "7" {
                prop_assert_eq!(judge(&clause, row), Some(Some(false)), "{}", clause);
            }
        }
    }
}
