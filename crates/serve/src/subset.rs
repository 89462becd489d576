//! Some rows of a shape as they are right now, beside its log: for clients that follow only what they need.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_shapes::filter::{EnumType, Expression, Filter, FilterError, Schema};
use forebay_shapes::{Offset, ShapeDefinition, StartOffset};
use http::Response;

use super::body::Answer;
use super::database::{
    Builtins, ElementType, NotAllowed, RowSink, SnapshotError, SnapshotQuery, SubsetPage, TableDescription,
};
use super::granted;
use super::protocol::cache_policy::CachePolicy;
use super::protocol::headers::{BodyKind, ShapeResponseHead, header_value};
use super::protocol::{InvalidRequest, OrderKey, RequestRefusal, ShapeRequest, Subset};
use super::shape_factory::{ReadError, chance};
use super::shape_handler::ShapeHandler;
use super::tokens::while_valid;

/// A subset is held whole, and no larger: whoever wants more asks for it in parts.
const MAX_BYTES: usize = 64 << 20;
/// How long Postgres may take for rows of a clause that our own filter doesn't know.
const FOREIGN_CLAUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// All that are being read, or written to clients who may be slow. Beyond it, whoever asks comes back later.
const MAX_HELD_BYTES: usize = 256 << 20;

impl ShapeHandler {
    pub(crate) async fn subset(&self, request: &ShapeRequest) -> Result<Response<Answer>, RequestRefusal> {
        let Some(subset) = &request.subset else { return Err(RequestRefusal::NoShape) };
        let shape = self.making.shape(request).await?;
        let (definition, described) = self.making.definition(request).await?;
        let Some(described) = described else { return Err(RequestRefusal::DatabaseUnreachable) };
        let table = &definition.table;
        let types = granted::visible(granted::find(request, table)?, table);
        let clause = self.clause(request, subset, &types, &definition, &described).await?;
        let selected = definition.selected();
        let names: Vec<_> = selected.iter().map(|index| described.columns[*index].name.clone()).collect();
        let order_by = subset.order_by.as_ref().map(|keys| {
            for key in keys {
                if let OrderKey::Column(name) = &key.key
                    && !types.columns.iter().any(|column| column.name == *name)
                {
                    return Err(format!("column \"{name}\" does not exist"));
                }
            }
            let keys: Result<Vec<_>, _> = keys.iter().map(|key| key.sql(&names)).collect();
            keys.map(|keys| keys.join(", ")).map_err(|error| error.to_string())
        });
        let order_by = order_by
            .transpose()
            .map_err(|error| RequestRefusal::from(InvalidRequest::subset_field("order_by", error)))?;
        let Subset { limit, offset, .. } = *subset;
        let page = order_by.as_deref().map(|order_by| SubsetPage { order_by, limit, offset });
        let mark = chance() % (1 << 31);
        let mut rows = Rows::new(mark);
        let query = SnapshotQuery {
            table: &described,
            selected: &selected,
            clause: clause.sql.as_deref(),
            analyses: clause.is_foreign,
            is_empty: false,
            page,
            timeout: clause.is_foreign.then_some(FOREIGN_CLAUSE_TIMEOUT),
        };
        let reading = self.making.read(&query, &mut rows);
        while_valid(request.bearer.as_ref(), reading).await?.map_err(refused)?;
        let mut response = Response::new(Answer::Pieces(rows.finish()));
        // The client goes on from here: beyond what it has, it would miss something.
        let offset = match request.since {
            StartOffset::After(offset) => offset,
            StartOffset::Beginning | StartOffset::Now => Offset::FIRST,
        };
        let head = ShapeResponseHead {
            handle: header_value(shape.handle()),
            offset: header_value(offset.to_string()),
            up_to_date: false,
            has_data: None,
            schema: Some(super::shape_factory::schema_header(&shape)),
            cursor: None,
            etag: None,
            body: BodyKind::Subset,
        };
        head.write(response.headers_mut());
        CachePolicy::NoCache.write(&self.times, response.headers_mut());
        Ok(response)
    }
}

/// Which rows are read.
#[derive(Debug, Default)]
struct Clause {
    /// The shape's clause and the subset's; `None`: all rows.
    sql: Option<String>,
    /// Whether only Postgres can judge it.
    is_foreign: bool,
}

impl ShapeHandler {
    /// The shape's clause and the subset's, which may name the columns of `types`.
    async fn clause(
        &self,
        request: &ShapeRequest,
        subset: &Subset,
        types: &Schema,
        definition: &ShapeDefinition,
        table: &TableDescription,
    ) -> Result<Clause, RequestRefusal> {
        let of_shape = &definition.choice.clause;
        let Some(text) = &subset.clause else {
            return Ok(Clause { sql: of_shape.clone(), is_foreign: false });
        };
        let params: Vec<&str> = subset.params.iter().map(String::as_str).collect();
        let (sql, columns, may_fail, is_foreign) = match Filter::parse(text, &params, types) {
            Ok(filter) => {
                (filter.canonical().to_owned(), filter.columns().to_vec(), filter.may_fail(), false)
            }
            Err(FilterError::Unsupported { .. }) => {
                let asking = self.making.builtins(table.server_version);
                let builtins = while_valid(request.bearer.as_ref(), asking).await??;
                let expression = foreign(text, &params, types, table, &builtins)?;
                (expression.sql().to_owned(), expression.columns().collect(), true, true)
            }
            Err(error) => return Err(wrong(&error)),
        };
        if let Some(allowed) = &request.queryable_columns {
            let names = columns.iter().map(|index| &types.columns[*index].name);
            if let Some(other) = names.into_iter().find(|name| !allowed.contains(name)) {
                return Err(wrong(&format!("column \"{other}\" isn't one of the queryable columns")));
            }
        }
        let sql = match of_shape {
            // Of rows outside the shape it must not even tell whether it fails on them.
            Some(of_shape) if may_fail => granted::within(of_shape, &sql),
            // It can't fail; and as it is, Postgres finds its rows by an index.
            Some(of_shape) => format!("({of_shape}) AND ({sql})"),
            None => sql,
        };
        Ok(Clause { sql: Some(sql), is_foreign })
    }
}

fn wrong(error: &dyn std::fmt::Display) -> RequestRefusal {
    InvalidRequest::subset_field("where", error).into()
}

/// A clause that our own filter can't judge as Postgres does. Postgres judges it, so it may use
/// whatever reads nothing but the row ([`Builtins`]). Columns whose type is neither Postgres' own
/// nor an enum are left out: their operators are in other schemas, and Postgres would take others
/// for them. So are enums with casts that call functions.
fn foreign(
    text: &str,
    params: &[&str],
    types: &Schema,
    table: &TableDescription,
    builtins: &Builtins,
) -> Result<Expression, RequestRefusal> {
    let of_column = |name: &str| table.columns.iter().find(|column| column.name == name);
    let elements = types.columns.iter().filter_map(|column| Some(&of_column(&column.name)?.element));
    let mut enums: Vec<EnumType> = Vec::new();
    let is_plain_enum = |element: &ElementType| element.is_enum && !element.has_casts;
    for element in elements.filter(|element| is_plain_enum(element) && !builtins.has_type(&element.name)) {
        let named = EnumType { schema: element.schema.clone(), name: element.name.clone() };
        if !enums.contains(&named) {
            enums.push(named);
        }
    }
    let all = enums.clone();
    enums.retain(|one| all.iter().filter(|other| other.name == one.name).count() == 1);
    let expression = Expression::parse(text, params, types, &enums).map_err(|error| wrong(&error))?;
    for index in expression.columns() {
        let element = of_column(&types.columns[index].name).map(|column| &column.element);
        let is_known = |element: &ElementType| {
            is_plain_enum(element) || (element.is_builtin && builtins.has_type(&element.name))
        };
        if let Some(other) = element.filter(|element| !is_known(element)) {
            return Err(wrong(&NotAllowed::Type(other.name.clone())));
        }
    }
    builtins.check(&expression).map_err(|error| wrong(&error))?;
    Ok(expression)
}

/// The answer in the making.
struct Rows {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    held: Held,
    mark: u64,
    metadata: String,
}

impl Rows {
    fn new(mark: u64) -> Self {
        Rows { pieces: VecDeque::new(), bytes: 0, held: Held(0), mark, metadata: String::new() }
    }

    fn finish(mut self) -> VecDeque<Bytes> {
        self.pieces.push_front(format!("{{\"metadata\":{},\"data\":[", self.metadata).into());
        self.pieces.push_back(Bytes::from_owner(End { _held: self.held }));
        self.pieces
    }
}

impl RowSink for Rows {
    type Error = TooLarge;

    async fn begun(&mut self, snapshot: &Snapshot, lsn: Lsn) -> Result<(), TooLarge> {
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

    async fn rows(&mut self, messages: Bytes) -> Result<(), TooLarge> {
        let mark = format!(",\"snapshot_mark\":{}}}}}", self.mark);
        let mut piece = BytesMut::with_capacity(messages.len() + messages.len() / 4);
        for message in messages.split(|byte| *byte == b'\n').filter(|message| !message.is_empty()) {
            // Each ends its headers, itself, and with a separator.
            let Some(open) = message.strip_suffix(b"}},") else { continue };
            if !(self.pieces.is_empty() && piece.is_empty()) {
                piece.put_u8(b',');
            }
            piece.put_slice(open);
            piece.put_slice(mark.as_bytes());
        }
        self.bytes += piece.len();
        if self.bytes > MAX_BYTES {
            return Err(TooLarge::Alone);
        }
        if !self.held.grow(piece.capacity()) {
            return Err(TooLarge::WithOthers);
        }
        self.pieces.extend((!piece.is_empty()).then(|| piece.freeze()));
        Ok(())
    }
}

/// Why a subset isn't held.
#[derive(Debug, thiserror::Error)]
enum TooLarge {
    #[error("the subset is too large: ask for it in parts, with a limit")]
    Alone,
    #[error("too many subsets are being read")]
    WithOthers,
}

/// The end of an answer: once it is written, or given up, there is room for others.
struct End {
    _held: Held,
}

impl AsRef<[u8]> for End {
    fn as_ref(&self) -> &[u8] {
        b"]}"
    }
}

/// So many bytes of all that are held.
struct Held(usize);

static ALL_HELD: AtomicUsize = AtomicUsize::new(0);

impl Held {
    /// `false`: there is no room for that.
    fn grow(&mut self, bytes: usize) -> bool {
        self.0 += bytes;
        ALL_HELD.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_HELD_BYTES
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        ALL_HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

fn refused(error: ReadError<TooLarge>) -> RequestRefusal {
    match error {
        ReadError::Refused(refusal) => refusal,
        ReadError::Failed(SnapshotError::Refused(refusal)) => {
            InvalidRequest::subset_field("where", refusal).into()
        }
        ReadError::Failed(SnapshotError::Sink(error @ TooLarge::Alone)) => {
            InvalidRequest::subset_field("limit", error).into()
        }
        ReadError::Failed(SnapshotError::Sink(TooLarge::WithOthers)) => {
            RequestRefusal::overloaded("subset", (MAX_HELD_BYTES / MAX_BYTES) as u64, chance())
        }
        ReadError::Failed(error @ SnapshotError::TimedOut { .. }) => {
            InvalidRequest::subset_field("where", format!("{error}: ask for less, or by what an index finds"))
                .into()
        }
        // Its words may hold a row's values.
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

    fn rows() -> Rows {
        Rows { metadata: "{}".to_owned(), ..Rows::new(7) }
    }

    #[tokio::test]
    async fn an_answer_is_made_of_what_came_in_pieces() {
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
        assert_eq!(rows_of_none(), "{\"metadata\":{},\"data\":[]}");
    }

    fn rows_of_none() -> String {
        String::from_utf8(rows().finish().iter().flatten().copied().collect()).unwrap()
    }

    #[tokio::test]
    async fn all_subsets_together_are_held_only_up_to_a_bound_until_their_ends_are_written() {
        let mut others = rows();
        assert!(others.held.grow(MAX_HELD_BYTES - (64 << 10)), "there is room");
        let mut answer = others.finish();
        let refused = |outcome| matches!(outcome, Err(TooLarge::WithOthers));
        assert!(refused(rows().rows(message(128 << 10)).await));
        assert!(refused(rows().rows(message(128 << 10)).await), "who was refused holds nothing");
        answer.pop_front();
        assert!(refused(rows().rows(message(128 << 10)).await), "its end isn't written");
        drop(answer);
        assert!(rows().rows(message(128 << 10)).await.is_ok());
    }

    #[tokio::test]
    async fn a_subset_that_is_too_large_alone_should_be_asked_for_in_parts() {
        let mut rows = Rows { bytes: MAX_BYTES - 1024, ..rows() };
        assert!(rows.rows(message(512)).await.is_ok());
        assert!(matches!(rows.rows(message(512)).await, Err(TooLarge::Alone)));
    }
}
