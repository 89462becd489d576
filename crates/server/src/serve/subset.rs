//! Some rows of a shape as they are right now, beside its log: for clients that follow only what they need.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_postgres::pgoutput::{Lsn, Snapshot};
use forebay_shapes::Offset;
use forebay_shapes::filter::Filter;
use http::Response;

use super::answering::Answering;
use super::body::Answer;
use super::database::{Page, Sink, SnapshotError, SnapshotQuery};
use super::making::{ReadError, chance};
use super::protocol::caching::Caching;
use super::protocol::headers::{AnswerHead, Body};
use super::protocol::{Invalid, Refusal, ShapeRequest, Subset};

/// A subset is held whole, and no larger: whoever wants more asks for it in parts.
const MAX_BYTES: usize = 64 << 20;

impl Answering {
    pub(crate) async fn subset(&self, request: &ShapeRequest) -> Result<Response<Answer>, Refusal> {
        let Some(subset) = &request.subset else { return Err(Refusal::NoShape) };
        let shape = self.making.shape(request).await?;
        let (definition, described) = self.making.definition(request).await?;
        let Some(described) = described else { return Err(Refusal::DatabaseUnreachable) };
        let clause = self.subset_clause(request, subset, &definition.choice.clause)?;
        let selected = definition.selected();
        let names: Vec<_> = selected.iter().map(|index| described.columns[*index].name.clone()).collect();
        let order_by = subset.order_by.as_ref().map(|keys| {
            let keys: Result<Vec<_>, _> = keys.iter().map(|key| key.sql(&names)).collect();
            keys.map(|keys| keys.join(", "))
        });
        let order_by =
            order_by.transpose().map_err(|error| Refusal::from(Invalid::in_subset("order_by", error)))?;
        let Subset { limit, offset, .. } = *subset;
        let page = order_by.as_deref().map(|order_by| Page { order_by, limit, offset });
        let mark = chance() % (1 << 31);
        let mut rows = Rows::new(mark);
        let query = SnapshotQuery {
            table: &described,
            selected: &selected,
            clause: clause.as_deref(),
            page,
            timeout: None,
        };
        self.making.read(&query, &mut rows).await.map_err(refused)?;
        let mut response = Response::new(Answer::whole(rows.finish()));
        let end = shape.log_end();
        let head = AnswerHead {
            handle: shape.handle(),
            offset: if end == Offset::default() { Offset::SNAPSHOT_END } else { end },
            up_to_date: false,
            has_data: None,
            schema: Some(&super::making::schema_header(&shape)),
            cursor: None,
            etag: None,
            body: Body::Subset,
        };
        head.write(response.headers_mut());
        Caching::Own.write(&self.times, response.headers_mut());
        Ok(response)
    }

    /// The shape's clause and the subset's.
    fn subset_clause(
        &self,
        request: &ShapeRequest,
        subset: &Subset,
        of_shape: &Option<String>,
    ) -> Result<Option<String>, Refusal> {
        let Some(clause) = &subset.clause else { return Ok(of_shape.clone()) };
        let types = self.making.types(request)?;
        let params: Vec<&str> = subset.params.iter().map(String::as_str).collect();
        let wrong = |error: &dyn std::fmt::Display| Refusal::from(Invalid::in_subset("where", error));
        let filter = Filter::parse(clause, &params, &types).map_err(|error| wrong(&error))?;
        if let Some(allowed) = &request.queryable_columns {
            let names = filter.columns().iter().map(|index| &types.columns[*index].name);
            if let Some(other) = names.into_iter().find(|name| !allowed.contains(name)) {
                return Err(wrong(&format!("column \"{other}\" isn't one of the queryable columns")));
            }
        }
        let subset = filter.canonical();
        Ok(Some(match of_shape {
            Some(of_shape) => format!("({of_shape}) AND ({subset})"),
            None => subset.to_owned(),
        }))
    }
}

/// The answer in the making.
struct Rows {
    body: BytesMut,
    mark: u64,
    metadata: String,
    is_first: bool,
}

impl Rows {
    fn new(mark: u64) -> Self {
        Rows { body: BytesMut::new(), mark, metadata: String::new(), is_first: true }
    }

    fn finish(mut self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.body.len() + self.metadata.len() + 32);
        whole.put_slice(b"{\"metadata\":");
        whole.put_slice(self.metadata.as_bytes());
        whole.put_slice(b",\"data\":[");
        whole.put_slice(&self.body.split());
        whole.put_slice(b"]}");
        whole.freeze()
    }
}

impl Sink for Rows {
    type Error = io::Error;

    async fn begun(&mut self, snapshot: &Snapshot, lsn: Lsn) -> io::Result<()> {
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

    async fn rows(&mut self, messages: Bytes) -> io::Result<()> {
        if self.body.len() + messages.len() > MAX_BYTES {
            return Err(io::Error::other("the subset is too large: ask for it in parts, with a limit"));
        }
        let mark = format!(",\"snapshot_mark\":{}}}}}", self.mark);
        for message in messages.split(|byte| *byte == b'\n').filter(|message| !message.is_empty()) {
            // Each ends its headers, itself, and with a separator.
            let Some(open) = message.strip_suffix(b"}},") else { continue };
            if !std::mem::take(&mut self.is_first) {
                self.body.put_u8(b',');
            }
            self.body.put_slice(open);
            self.body.put_slice(mark.as_bytes());
        }
        Ok(())
    }
}

fn refused(error: ReadError<io::Error>) -> Refusal {
    match error {
        ReadError::Refused(refusal) => refusal,
        ReadError::Failed(SnapshotError::Refused(refusal)) => Invalid::in_subset("where", refusal).into(),
        ReadError::Failed(SnapshotError::Sink(error)) => Invalid::in_subset("limit", error).into(),
        ReadError::Failed(error) => Refusal::SnapshotFailed { message: error.to_string().into() },
    }
}
