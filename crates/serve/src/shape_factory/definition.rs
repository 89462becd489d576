//! Shape definitions: from a request and a table to the shape that the request selects.

use std::sync::Arc;

use forebay_replication::TableName;
use forebay_shapes::filter::{Filter, FilterError};
use forebay_shapes::{CatalogState, Shape, ShapeDefinition, ShapeOptions, TableSchema};
use http::HeaderValue;

use super::table_cache::CachedTable;
use crate::clause_parser::ClauseParser;
use crate::database::{self, ColumnSelectionError};
use crate::grant_scope;
use crate::protocol::{InvalidRequest, RequestRefusal, ShapeRequest, schema};

/// Returns the definition of the shape that a request selects, and whether only Postgres can
/// evaluate a condition of its clause.
///
/// # Errors
/// Fails if a column doesn't exist, the clause can't be parsed, or the grants don't cover it.
pub(super) fn shape_definition(
    request: &ShapeRequest,
    cached: &CachedTable,
    parser: ClauseParser<'_>,
) -> Result<(ShapeDefinition, bool), RequestRefusal> {
    // Grants come first: an error about a column must not reveal whether it exists.
    grant_scope::find_grant(request, &cached.table)?;
    for (field, names) in [("columns", &request.columns), ("queryable_columns", &request.queryable_columns)] {
        if let (Some(names), Some(description)) = (names, &cached.description) {
            description
                .select(names)
                .map_err(|error| RequestRefusal::from(InvalidRequest::field(field, error)))?;
        }
    }
    if let Some(refusal) = generated_column(request, cached) {
        return Err(refusal);
    }
    let (options, needs_postgres) = shape_options(request, &cached.table, parser)?;
    Ok((ShapeDefinition { table: Arc::clone(&cached.table), options }, needs_postgres))
}

/// Returns the refusal of a clause that names a generated column that the stream doesn't have.
fn generated_column(request: &ShapeRequest, cached: &CachedTable) -> Option<RequestRefusal> {
    let (Some(clause), Some(description)) = (&request.clause, &cached.description) else { return None };
    if description.excluded.is_empty() {
        return None;
    }
    let grant = grant_scope::find_grant(request, &cached.table).ok()?;
    // Only for clients that may see all columns.
    if grant_scope::granted_columns(grant, &cached.table).is_some() {
        return None;
    }
    let params: Vec<&str> = request.params.iter().map(String::as_str).collect();
    let FilterError::Invalid { sqlstate: "42703", message, .. } =
        Filter::parse(clause, &params, &cached.table.types).err()?
    else {
        return None;
    };
    let table = &cached.table.name;
    let is_named = |name: &&String| {
        message == format!("column \"{name}\" does not exist")
            || message == format!("column {table}.{name} does not exist")
    };
    let name = description.excluded.iter().find(is_named)?;
    let error = ColumnSelectionError::Generated(name.clone());
    Some(InvalidRequest::field("where", error).into())
}

/// Returns the columns, clause and modes that a request selects, restricted to its grant; and
/// whether only Postgres can evaluate a condition of the clause.
fn shape_options(
    request: &ShapeRequest,
    table: &TableSchema,
    parser: ClauseParser<'_>,
) -> Result<(ShapeOptions, bool), RequestRefusal> {
    let grant = grant_scope::find_grant(request, table)?;
    let wrong = |error| match (&error, parser) {
        (FilterError::Unsupported { .. }, ClauseParser::Native) => {
            let hint = "serve.postgres_clauses is off, with which Postgres evaluates what Forebay can't";
            InvalidRequest::field("where", format!("{error} ({hint})")).into()
        }
        _ => RequestRefusal::from(InvalidRequest::field("where", error)),
    };
    let params: Vec<&str> = request.params.iter().map(String::as_str).collect();
    let types = grant_scope::visible_schema(grant, table);
    let parse = |clause: &str| parser.parse(clause, &params, &types);
    let own = request.clause.as_deref().map(parse).transpose().map_err(wrong)?;
    let granted = grant_scope::grant_clause(grant, table, parser)?;
    let needs_postgres = own.iter().chain(&granted).any(Filter::needs_postgres);
    let clause = match (granted, own) {
        (Some(granted), Some(own)) => {
            let (granted, own) = (granted.canonical(), own.canonical());
            Some(grant_scope::guarded_filter(granted, own, &table.types).map_err(wrong)?)
        }
        (granted, own) => granted.or(own).map(|filter| filter.canonical().to_owned()),
    };
    let all = grant_scope::granted_columns(grant, table);
    let chosen = request.columns.as_ref().or(request.queryable_columns.as_ref()).or(all.as_ref());
    let columns = chosen.map(|names| {
        let of_table = table.types.columns.iter().map(|column| &column.name);
        of_table.filter(|name| names.contains(name)).cloned().collect()
    });
    let options = ShapeOptions { clause, columns, replica: request.replica, log: request.log };
    Ok((options, needs_postgres))
}

/// Returns the parts of a description that shapes depend on, and that their clients receive.
pub(crate) fn table_schema(
    description: &database::TableDescription,
    membership: u32,
    state: Option<CatalogState>,
) -> TableSchema {
    // `"name":{…}` of each column, without the outer braces.
    let note = |index: usize| {
        let header = schema::header(&description.header_columns(&[index]));
        header.to_str().unwrap_or_default().trim_start_matches('{').to_owned()
    };
    let strip = |note: String| note.strip_suffix('}').map(str::to_owned).unwrap_or(note);
    TableSchema {
        oid: description.oid,
        schema: description.name.schema.clone(),
        name: description.name.name.clone(),
        types: description.schema(),
        membership,
        stream_types: description.columns.iter().map(|column| column.stream_type).collect(),
        key: description.key(),
        numbers: description.columns.iter().map(|column| column.number).collect(),
        key_is_deferrable: description.key_is_deferrable,
        lineage: description.lineage.clone(),
        state,
        notes: description.all_columns().into_iter().map(note).map(strip).collect(),
    }
}

/// Returns whether the request selects this shape.
pub(crate) fn selects(request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
    if !is_of_table(request, shape) {
        return Ok(false);
    }
    // The shape's own clause was checked when the shape was created.
    let (options, _) = shape_options(request, &shape.definition().table, ClauseParser::Unchecked)?;
    Ok(options == shape.definition().options)
}

/// Returns whether a request with a shape's handle agrees with that shape: its table, if the
/// request has one, and the rest of its definition, if the request has any part of it.
pub(crate) fn agrees_with(request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
    match request.defines_more_than_table() {
        true => selects(request, shape),
        false => Ok(is_of_table(request, shape)),
    }
}

/// Returns whether a request names the shape's table, or no table.
fn is_of_table(request: &ShapeRequest, shape: &Shape) -> bool {
    let table = &shape.definition().table;
    let is_same = |name: &TableName| (&*name.schema, &*name.name) == (&*table.schema, &*table.name);
    request.table.as_ref().is_none_or(is_same)
}

/// Returns the header that describes a shape's columns to clients.
pub(crate) fn schema_header(shape: &Shape) -> HeaderValue {
    let definition = shape.definition();
    let notes = definition.selected().into_iter().filter_map(|index| definition.table.notes.get(index));
    let columns: Vec<_> = notes.map(String::as_str).collect();
    HeaderValue::try_from(format!("{{{}}}", columns.join(","))).unwrap_or(HeaderValue::from_static("{}"))
}
