//! Subsets: rows of a shape read with a new snapshot, independent of its log.
//!
//! They serve clients that follow only changes and load rows when they need them.
//! Invariant: a subset's clause reveals nothing about rows outside the shape and its grant.
//! Enforced by: a clause that may fail is evaluated only for rows of the shape
//! (`grant_scope::guarded_clause`). A clause that only Postgres can evaluate may use only the
//! functions, operators and types of `database/builtins.rs`.
//! A subset has at most [`MAX_BYTES`]. All subsets that are being read or sent have together at
//! most [`MAX_HELD_BYTES`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_shapes::filter::{EnumType, Expression, Filter, FilterError, Schema};
use forebay_shapes::{Offset, Shape, StartOffset};
use http::Response;

use super::body::BodyContent;
use super::clause_parser::{check_condition, is_plain_enum};
use super::database::{Builtins, RowSink, SnapshotError, SnapshotQuery, SubsetPage, TableDescription};
use super::grant_scope;
use super::protocol::cache_policy::CachePolicy;
use super::protocol::headers::{BodyKind, ShapeResponseHead, header_value};
use super::protocol::{InvalidRequest, OrderByItem, OrderKey, RequestRefusal, ShapeRequest, Subset};
use super::shape_factory::{ReadError, random_u64, schema_header};
use super::shape_handler::{HandlerResult, ShapeHandler};
use super::token_verifier::while_valid;

/// Maximum size of a subset, which is in memory as a whole. Clients read larger ones in parts.
const MAX_BYTES: usize = 64 << 20;
/// Maximum time for a clause that only Postgres can evaluate, or that calls functions.
const CLAUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of all subsets that are being read or sent to clients. Beyond it, requests are
/// refused with 503.
const MAX_HELD_BYTES: usize = 256 << 20;

impl ShapeHandler {
    /// Responds with the rows of a subset.
    pub(crate) async fn subset(&self, request: &ShapeRequest, subset: &Subset) -> HandlerResult {
        let shape = self.factory.shape(request).await?;
        let (definition, description) = self.factory.definition(request).await?;
        let Some(description) = description else { return Err(RequestRefusal::DatabaseUnreachable) };
        let table = &definition.table;
        let types = grant_scope::visible_schema(grant_scope::find_grant(request, table)?, table);
        let clause = self.clause(request, subset, &types, &shape, &description).await?;
        let selected = definition.selected();
        let names: Vec<_> = selected.iter().map(|index| description.columns[*index].name.clone()).collect();
        let order_by = subset.order_by.as_ref().map(|keys| order_by_sql(keys, &types, &names)).transpose()?;
        let Subset { limit, offset, .. } = *subset;
        let page = order_by.as_deref().map(|order_by| SubsetPage { order_by, limit, offset });
        let mark = random_u64() % (1 << 31);
        let mut rows = SubsetRows::new(mark);
        let query = SnapshotQuery {
            table: &description,
            selected: &selected,
            clause: clause.sql.as_deref(),
            analyses: clause.needs_postgres,
            is_empty: false,
            page,
            timeout: clause.may_be_slow.then_some(CLAUSE_TIMEOUT),
        };
        let reading = self.snapshots.read_rows(&query, &mut rows);
        while_valid(request.bearer.as_ref(), reading).await?.map_err(read_refusal)?;
        let mut response = Response::new(BodyContent::Pieces(rows.finish()));
        // The client continues at this offset. A later one than its own would skip changes.
        let offset = match request.since {
            StartOffset::After(offset) => offset,
            StartOffset::Beginning | StartOffset::Now => Offset::FIRST,
        };
        let head = ShapeResponseHead {
            handle: header_value(shape.handle()),
            offset: header_value(offset.to_string()),
            up_to_date: false,
            has_data: None,
            schema: Some(schema_header(&shape)),
            cursor: None,
            etag: None,
            body: BodyKind::Subset,
        };
        head.write(response.headers_mut());
        CachePolicy::NoCache.write(&self.cache_times, response.headers_mut());
        Ok(response)
    }
}

/// Returns the SQL of an order. It may use the columns of `types`, and positions of `selected`.
fn order_by_sql(keys: &[OrderByItem], types: &Schema, selected: &[String]) -> Result<String, InvalidRequest> {
    let is_visible = |name: &str| types.columns.iter().any(|column| column.name == name);
    let hidden = keys.iter().find_map(|item| match &item.key {
        OrderKey::Column(name) => (!is_visible(name)).then_some(name),
        OrderKey::Position(_) => None,
    });
    if let Some(name) = hidden {
        let problem = format!("column \"{name}\" does not exist");
        return Err(InvalidRequest::subset_field("order_by", problem));
    }
    let keys: Result<Vec<_>, _> = keys.iter().map(|item| item.sql(selected)).collect();
    Ok(keys.map_err(|error| InvalidRequest::subset_field("order_by", error))?.join(", "))
}

/// The clause that selects a subset's rows.
#[derive(Debug, Default)]
struct SubsetClause {
    /// The shape's clause and the subset's; `None`: all rows.
    sql: Option<String>,
    /// Whether only Postgres can evaluate it.
    needs_postgres: bool,
    /// Whether it may take long on a row: it calls functions.
    may_be_slow: bool,
}

impl ShapeHandler {
    /// Combines the shape's clause and the subset's. The latter may use the columns of `types`.
    async fn clause(
        &self,
        request: &ShapeRequest,
        subset: &Subset,
        types: &Schema,
        shape: &Shape,
        table: &TableDescription,
    ) -> Result<SubsetClause, RequestRefusal> {
        let of_shape = shape.filter().map(Filter::postgres_sql);
        let Some(text) = &subset.clause else {
            return Ok(SubsetClause {
                sql: of_shape.map(str::to_owned),
                needs_postgres: false,
                may_be_slow: false,
            });
        };
        let params: Vec<&str> = subset.params.iter().map(String::as_str).collect();
        let clause = (Some(&**text), &*subset.params);
        let parse = || Filter::parse(text, &params, types);
        let filter = self.factory.turns.run(clause, request.bearer.as_ref(), parse).await?;
        let (sql, columns, may_fail, needs_postgres, may_be_slow) = match filter {
            Ok(filter) => {
                let sql = filter.canonical().to_owned();
                (sql, filter.columns().to_vec(), filter.may_fail(), false, filter.calls_functions())
            }
            Err(FilterError::Unsupported { .. }) => {
                let loading = self.builtins.get(table.server_version);
                let builtins = while_valid(request.bearer.as_ref(), loading).await??;
                let parse = || postgres_expression(text, &params, types, table, &builtins);
                let expression = self.factory.turns.run(clause, request.bearer.as_ref(), parse).await??;
                (expression.sql().to_owned(), expression.columns().collect(), true, true, true)
            }
            Err(error) => return Err(invalid_clause(&error)),
        };
        if let Some(allowed) = &request.queryable_columns {
            let names = columns.iter().map(|index| &types.columns[*index].name);
            if let Some(other) = names.into_iter().find(|name| !allowed.contains(name)) {
                return Err(invalid_clause(&format!(
                    "column \"{other}\" isn't one of the queryable columns"
                )));
            }
        }
        let sql = match of_shape {
            // Whether the clause fails on a row outside the shape must not be visible either.
            Some(of_shape) if may_fail => grant_scope::guarded_clause(of_shape, &sql),
            // The clause can't fail, and Postgres can use an index for it.
            Some(of_shape) => format!("({of_shape}) AND ({sql})"),
            None => sql,
        };
        Ok(SubsetClause { sql: Some(sql), needs_postgres, may_be_slow })
    }
}

fn invalid_clause(error: &dyn std::fmt::Display) -> RequestRefusal {
    InvalidRequest::subset_field("where", error).into()
}

/// Parses a clause that the filter can't evaluate as Postgres does.
///
/// Postgres evaluates it, so it may use only functions that read nothing but the row; see
/// [`check_condition`].
fn postgres_expression(
    text: &str,
    params: &[&str],
    types: &Schema,
    table: &TableDescription,
    builtins: &Builtins,
) -> Result<Expression, RequestRefusal> {
    let of_column = |name: &str| table.columns.iter().find(|column| column.name == name);
    let elements = types.columns.iter().filter_map(|column| Some(&of_column(&column.name)?.element));
    let mut enums: Vec<EnumType> = Vec::new();
    for element in elements.filter(|element| is_plain_enum(element) && !builtins.has_type(&element.name)) {
        let named = EnumType { schema: element.schema.clone(), name: element.name.clone() };
        if !enums.contains(&named) {
            enums.push(named);
        }
    }
    // An enum whose name exists in two schemas is ambiguous in a clause.
    let all = enums.clone();
    enums.retain(|one| all.iter().filter(|other| other.name == one.name).count() == 1);
    let expression =
        Expression::parse(text, params, types, &enums).map_err(|error| invalid_clause(&error))?;
    check_condition(&expression, types, table, builtins).map_err(|error| invalid_clause(&error))?;
    Ok(expression)
}

/// Collects the rows of a subset's response.
struct SubsetRows {
    pieces: VecDeque<Bytes>,
    /// Size of the rows so far.
    bytes: usize,
    memory: SubsetMemory,
    /// Random number that marks each row of this subset.
    mark: u64,
    metadata: String,
}

impl SubsetRows {
    fn new(mark: u64) -> Self {
        SubsetRows {
            pieces: VecDeque::new(),
            bytes: 0,
            memory: SubsetMemory(0),
            mark,
            metadata: String::new(),
        }
    }

    fn finish(mut self) -> VecDeque<Bytes> {
        self.pieces.push_front(format!("{{\"metadata\":{},\"data\":[", self.metadata).into());
        self.pieces.push_back(Bytes::from_owner(SubsetEnd { _memory: self.memory }));
        self.pieces
    }
}

impl RowSink for SubsetRows {
    type Error = SubsetTooLarge;

    async fn begin(&mut self, snapshot: &Snapshot, lsn: Lsn) -> Result<(), SubsetTooLarge> {
        let text = |number: &u64| number.to_string();
        self.metadata = serde_json::json!({
            "xmin": text(&snapshot.xmin),
            "xmax": text(&snapshot.xmax),
            "xip_list": snapshot.xip.iter().map(text).collect::<Vec<_>>(),
            "database_lsn": text(&lsn.0),
            "snapshot_mark": self.mark,
        })
        .to_string();
        Ok(())
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), SubsetTooLarge> {
        let mark = format!(",\"snapshot_mark\":{}}}}}", self.mark);
        let mut piece = BytesMut::with_capacity(messages.len() + messages.len() / 4);
        for message in messages.split(|byte| *byte == b'\n').filter(|message| !message.is_empty()) {
            // Each message ends with the braces of its headers and of itself, and a separator.
            let Some(open) = message.strip_suffix(b"}},") else { continue };
            if !(self.pieces.is_empty() && piece.is_empty()) {
                piece.put_u8(b',');
            }
            piece.put_slice(open);
            piece.put_slice(mark.as_bytes());
        }
        self.bytes += piece.len();
        if self.bytes > MAX_BYTES {
            return Err(SubsetTooLarge::Alone);
        }
        self.memory.grow(piece.capacity())?;
        self.pieces.extend((!piece.is_empty()).then(|| piece.freeze()));
        Ok(())
    }
}

/// Why a subset doesn't fit into memory.
#[derive(Debug, thiserror::Error)]
enum SubsetTooLarge {
    #[error("the subset is too large: ask for it in parts, with a limit")]
    Alone,
    #[error("too many subsets are being read")]
    WithOthers,
}

/// The last piece of a response. When it is sent or dropped, the subset's memory is released.
struct SubsetEnd {
    _memory: SubsetMemory,
}

impl AsRef<[u8]> for SubsetEnd {
    fn as_ref(&self) -> &[u8] {
        b"]}"
    }
}

/// The bytes that one subset holds, counted until it is dropped.
struct SubsetMemory(usize);

/// Bytes of all subsets.
static ALL_HELD: AtomicUsize = AtomicUsize::new(0);

impl SubsetMemory {
    /// Counts more bytes. Fails if all subsets together exceed [`MAX_HELD_BYTES`].
    fn grow(&mut self, bytes: usize) -> Result<(), SubsetTooLarge> {
        self.0 += bytes;
        match ALL_HELD.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_HELD_BYTES {
            true => Ok(()),
            false => Err(SubsetTooLarge::WithOthers),
        }
    }
}

impl Drop for SubsetMemory {
    fn drop(&mut self) {
        ALL_HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

fn read_refusal(error: ReadError<SubsetTooLarge>) -> RequestRefusal {
    match error {
        ReadError::Refused(refusal) => refusal,
        ReadError::Failed(SnapshotError::Refused(refusal)) => {
            InvalidRequest::subset_field("where", refusal).into()
        }
        ReadError::Failed(SnapshotError::Sink(error @ SubsetTooLarge::Alone)) => {
            InvalidRequest::subset_field("limit", error).into()
        }
        ReadError::Failed(SnapshotError::Sink(SubsetTooLarge::WithOthers)) => {
            RequestRefusal::overloaded("subset", (MAX_HELD_BYTES / MAX_BYTES) as u64, random_u64())
        }
        ReadError::Failed(error @ SnapshotError::TimedOut { .. }) => {
            InvalidRequest::subset_field("where", format!("{error}: ask for less, or by what an index finds"))
                .into()
        }
        // The server's message may contain a row's values.
        ReadError::Failed(SnapshotError::Database(error)) => {
            let code = error.code().map_or("", |code| code.code());
            RequestRefusal::SnapshotFailed { message: format!("the subset couldn't be read ({code})").into() }
        }
        ReadError::Failed(error) => RequestRefusal::SnapshotFailed { message: error.to_string().into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Bytes {
        format!("{{\"value\":\"{}\",\"headers\":{{\"operation\":\"insert\"}}}},\n", "x".repeat(bytes)).into()
    }

    fn rows() -> SubsetRows {
        SubsetRows { metadata: "{}".to_owned(), ..SubsetRows::new(7) }
    }

    #[tokio::test]
    async fn a_response_is_one_json_object_whatever_pieces_the_rows_come_in() {
        let mut rows = rows();
        for messages in [[message(1), message(2)].concat(), Vec::new(), message(3).into()] {
            rows.rows(messages.into()).await.unwrap();
        }
        let answer: Vec<u8> = rows.finish().iter().flatten().copied().collect();
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        let headers = serde_json::json!({"operation": "insert", "snapshot_mark": 7});
        let expected: Vec<_> =
            ["x", "xx", "xxx"].map(|value| serde_json::json!({"value": value, "headers": headers})).into();
        assert_eq!(answer, serde_json::json!({"metadata": {}, "data": expected}));
        assert_eq!(response_without_rows(), "{\"metadata\":{},\"data\":[]}");
    }

    fn response_without_rows() -> String {
        String::from_utf8(rows().finish().iter().flatten().copied().collect()).unwrap()
    }

    #[tokio::test]
    async fn all_subsets_together_are_bounded_until_their_last_pieces_are_sent() {
        let mut others = rows();
        assert!(others.memory.grow(MAX_HELD_BYTES - (64 << 10)).is_ok(), "there is room");
        let mut answer = others.finish();
        let refused = |outcome| matches!(outcome, Err(SubsetTooLarge::WithOthers));
        assert!(refused(rows().rows(message(128 << 10)).await));
        assert!(refused(rows().rows(message(128 << 10)).await), "a refused subset holds nothing");
        answer.pop_front();
        assert!(refused(rows().rows(message(128 << 10)).await), "the last piece isn't sent");
        drop(answer);
        assert!(rows().rows(message(128 << 10)).await.is_ok());
    }

    #[tokio::test]
    async fn a_subset_beyond_its_own_limit_is_too_large_alone() {
        let mut rows = SubsetRows { bytes: MAX_BYTES - 1024, ..rows() };
        assert!(rows.rows(message(512)).await.is_ok());
        assert!(matches!(rows.rows(message(512)).await, Err(SubsetTooLarge::Alone)));
    }
}
