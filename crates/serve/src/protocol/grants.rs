//! Grants: what a token allows its bearer to read.
//!
//! Invariant: a claim is parsed completely, or it grants nothing. An unknown field, a blank text or
//! a null is an error: a parser that ignored a misspelled `where` would grant all rows.
//! Out of scope: signatures and expiry (`forebay_admission`), and how a grant restricts a request
//! (`grant_scope.rs`).
//!
//! Only `table` is required:
//! ```json
//! [{"table": "public.orders", "where": "user_id = $1", "params": {"1": "7"},
//!   "columns": ["id", "total"]}]
//! ```

use std::fmt;
use std::sync::Arc;

use forebay_replication::TableName;
use http::Method;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::names;
use super::params;
use super::request_refusal::RequestRefusal;
use super::shape_request::ShapeRequest;

/// A client with a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBearer {
    /// The token's grants.
    pub grants: Arc<[Grant]>,
    /// When the token expires. After that, no request waits, and nothing more is read for a
    /// response. `None`: it doesn't expire.
    pub expires_at: Option<Instant>,
}

/// Permission to read a table, or part of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    /// The table.
    pub table: TableName,
    /// Where clause that restricts the rows. `None` grants all rows.
    pub clause: Option<String>,
    /// Values of `$1`, `$2` … in the clause.
    pub params: Vec<String>,
    /// Readable columns besides the primary key. `None` grants all columns.
    pub columns: Option<Vec<String>>,
}

/// Why a claim is not a list of grants. The text doesn't contain the claim's values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The claim is not a list.
    #[error("the token's grants can't be read: they are no list")]
    NotAList,
    /// A member of the list is not a grant.
    #[error("the token's grants can't be read: number {number} {fault}")]
    Grant {
        /// Number of the grant in the list, from 1.
        number: usize,
        /// What is wrong with it.
        fault: GrantFault,
    },
}

/// Why a member of the claim is not a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantFault {
    /// It is not a JSON object.
    #[error("is no object")]
    NotAnObject,
    /// It has a field that grants don't have.
    #[error("has a field besides table, where, params and columns")]
    UnknownField,
    /// It has no table.
    #[error("names no table")]
    NoTable,
    /// The text in `table` is not the name of a table.
    #[error("has no table's name in table")]
    TableName,
    /// A field is not text, or blank text.
    #[error("has something in {field} that is no text, or a blank one")]
    Text {
        /// Name of the field.
        field: &'static str,
    },
    /// It has parameters for a clause, but no clause.
    #[error("has params, but no where")]
    ParamsWithoutClause,
    /// `params` is not an object of numbered values.
    #[error("has params that aren't numbered from 1, or no texts, whole numbers or booleans")]
    Params,
    /// `columns` is not a list of names.
    #[error("has columns that are no list of names")]
    Columns,
}

impl TokenBearer {
    /// Checks that a grant covers the request's table. Deletions are never granted, because other
    /// clients may read the same shape.
    ///
    /// # Errors
    /// [`RequestRefusal::NotGranted`], whether the table exists or not.
    pub fn authorize(&self, method: &Method, request: &ShapeRequest) -> Result<(), RequestRefusal> {
        let is_of_table =
            request.table.as_ref().is_some_and(|table| self.grants.iter().any(|grant| grant.table == *table));
        if is_of_table && method != Method::DELETE { Ok(()) } else { Err(RequestRefusal::NotGranted) }
    }
}

/// Parses the claim.
///
/// # Errors
/// If the claim is not a list of grants.
pub fn parse_grants(claim: &Value) -> Result<Arc<[Grant]>, GrantError> {
    let Value::Array(grants) = claim else { return Err(GrantError::NotAList) };
    let numbered = grants.iter().zip(1..);
    numbered
        .map(|(grant, number)| Grant::read(grant).map_err(|fault| GrantError::Grant { number, fault }))
        .collect()
}

impl Grant {
    fn read(grant: &Value) -> Result<Grant, GrantFault> {
        let Value::Object(fields) = grant else { return Err(GrantFault::NotAnObject) };
        if fields.keys().any(|name| !["table", "where", "params", "columns"].contains(&name.as_str())) {
            return Err(GrantFault::UnknownField);
        }
        let table = text(fields, "table")?.ok_or(GrantFault::NoTable)?;
        let table = names::table_name(table).map_err(|_| GrantFault::TableName)?;
        let clause = text(fields, "where")?.map(str::to_owned);
        let params = fields.get("params").map(read_params).transpose()?.unwrap_or_default();
        if clause.is_none() && !params.is_empty() {
            return Err(GrantFault::ParamsWithoutClause);
        }
        let columns = fields.get("columns").map(read_columns).transpose()?;
        Ok(Grant { table, clause, params, columns })
    }
}

/// Omits the clause and its values, which are users' data.
impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("table", &self.table).finish_non_exhaustive()
    }
}

fn text<'a>(fields: &'a Map<String, Value>, field: &'static str) -> Result<Option<&'a str>, GrantFault> {
    match fields.get(field) {
        None => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() && !text.contains('\0') => Ok(Some(text)),
        Some(_) => Err(GrantFault::Text { field }),
    }
}

fn read_params(params: &Value) -> Result<Vec<String>, GrantFault> {
    // A number with a fraction may have lost digits in the JSON parser.
    let is_exact =
        |value: &Value| value.is_string() || value.is_boolean() || value.is_i64() || value.is_u64();
    match params {
        Value::Object(values) if values.values().all(is_exact) => {
            params::from_json(&params.to_string()).map_err(|_| GrantFault::Params)
        }
        _ => Err(GrantFault::Params),
    }
}

fn read_columns(columns: &Value) -> Result<Vec<String>, GrantFault> {
    let Value::Array(columns) = columns else { return Err(GrantFault::Columns) };
    let name = |column: &Value| names::column_name(column.as_str()?).ok();
    columns.iter().map(|column| name(column).ok_or(GrantFault::Columns)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::query_params::QueryParams;
    use super::*;

    #[test]
    fn a_claim_is_a_list_of_tables_with_rows_and_columns() {
        let claim = json!([
            {"table": "public.orders", "where": "user_id = $1", "params": {"1": "7"}, "columns": ["id", "Total", "\"Note\""]},
            {"table": "Items"},
            {"table": "\"Big\".t", "where": "a = $1 AND b = $2", "params": {"2": true, "1": 7}},
        ]);
        let grants = parse_grants(&claim).unwrap();
        assert_eq!(grants[0].table, TableName::new("public", "orders"));
        assert_eq!(
            (grants[0].clause.as_deref(), &*grants[0].params),
            (Some("user_id = $1"), &["7".to_owned()][..])
        );
        assert_eq!(grants[0].columns.as_ref().unwrap(), &["id", "total", "Note"]);
        assert_eq!(grants[1].table, TableName::new("public", "items"));
        assert_eq!((&grants[1].clause, &grants[1].columns), (&None, &None));
        assert_eq!(grants[2].table, TableName::new("Big", "t"));
        assert_eq!(grants[2].params, ["7", "true"]);
        assert_eq!(parse_grants(&json!([])).unwrap().len(), 0);
    }

    #[test]
    fn a_claim_with_an_unknown_part_grants_nothing() {
        for claim in [
            json!(null),
            json!("all"),
            json!({"table": "t"}),
            json!(["t"]),
            json!([{}]),
            json!([{"table": null}]),
            json!([{"table": ""}]),
            json!([{"table": "a.b.c"}]),
            json!([{"table": "t; DROP TABLE t"}]),
            json!([{"table": "t", "where": null}]),
            json!([{"table": "t", "where": "  "}]),
            json!([{"table": "t", "where": 1}]),
            json!([{"table": "t", "where": "a = 'x\u{0}'"}]),
            json!([{"table": "t", "wher": "a = 1"}]),
            json!([{"table": "t", "Where": "a = 1"}]),
            json!([{"table": "t", "params": {"1": "7"}}]),
            json!([{"table": "t", "where": "a = $1", "params": ["7"]}]),
            json!([{"table": "t", "where": "a = $1", "params": {"2": "7"}}]),
            json!([{"table": "t", "where": "a = $1", "params": {"1": null}}]),
            json!([{"table": "t", "where": "a = $1", "params": {"1": 1.5}}]),
            json!([{"table": "t", "where": "a = $1", "params": {"1": 1e40}}]),
            json!([{"table": "t", "columns": null}]),
            json!([{"table": "t", "columns": "a,b"}]),
            json!([{"table": "t", "columns": ["a,b"]}]),
            json!([{"table": "t", "columns": [1]}]),
            json!([{"table": "t"}, {"table": "u", "where": ""}]),
        ] {
            let error = parse_grants(&claim).unwrap_err().to_string();
            assert!(error.starts_with("the token's grants can't be read: "), "{claim}: {error}");
        }
    }

    #[test]
    fn another_table_is_refused_and_so_is_every_deletion() {
        let bearer =
            TokenBearer { grants: parse_grants(&json!([{"table": "orders"}])).unwrap(), expires_at: None };
        let is_granted = |method: Method, raw: &str| {
            let request = ShapeRequest::parse(&method, &QueryParams::parse(raw), b"").unwrap();
            bearer.authorize(&method, &request).is_ok()
        };
        for table in ["orders", "public.orders", "ORDERS", "%22orders%22", "Public.%22orders%22"] {
            assert!(is_granted(Method::GET, &format!("table={table}&offset=-1")), "{table}");
            assert!(!is_granted(Method::DELETE, &format!("table={table}")), "{table}");
        }
        for table in ["order", "other.orders", "%22Orders%22", "%22public.orders%22", "orders2"] {
            assert!(!is_granted(Method::GET, &format!("table={table}&offset=-1")), "{table}");
        }
        assert!(!is_granted(Method::DELETE, "handle=1-2"));
    }

    #[test]
    fn debug_output_of_grants_has_no_values() {
        let claim = json!([{"table": "t", "where": "a = $1 AND b = 's3cret'", "params": {"1": "s3cret"}}]);
        let text = format!("{:?}", parse_grants(&claim).unwrap());
        assert!(!text.contains("s3cret") && text.contains('t'), "{text}");
    }
}
