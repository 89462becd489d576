//! What a request asks for.
//!
//! Invariant: a request that comes out of here keeps every rule that can be checked without a database; one that doesn't is refused with
//! all that is wrong with it, not only the first.
//! Not here: whether there are such a table and columns, what the where clause says, and whether the client may ask.

use forebay_replication::TableName;
use forebay_shapes::{LogMode, ReplicaMode, StartOffset};
use http::Method;

use super::grants::Bearer;
use super::invalid::Invalid;
use super::names::{self, NameError};
use super::params;
use super::query::{Query, Text};
use super::subset::{self, Subset};

const BLANK: &str = "can't be blank";
const INVALID: &str = "is invalid";

/// A request for a shape, or to delete one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeRequest {
    /// Of which table. There is one, but for a deletion by handle alone.
    pub table: Option<TableName>,
    /// From where on.
    pub since: StartOffset,
    /// The shape that the client knows. There is one for [`StartOffset::After`]; where the log is asked for from elsewhere, it says nothing, and
    /// isn't here.
    pub handle: Option<String>,
    /// Whether to wait for changes. A subset never waits.
    pub live: bool,
    /// Whether to go on for a while, as server-sent events.
    pub sse: bool,
    /// The last cursor that the client got.
    pub cursor: Option<u64>,
    /// Which columns; `None`: all, or the queryable ones.
    pub columns: Option<Vec<String>>,
    /// Which rows; the filter reads it.
    pub clause: Option<String>,
    /// What `$1`, `$2` … stand for in it.
    pub params: Vec<String>,
    /// How much of a row a change shows.
    pub replica: ReplicaMode,
    /// Whether the log begins with what is there already.
    pub log: LogMode,
    /// The only columns that `columns` and the subset may name. Of the subset's clause, that is still to be checked.
    pub queryable_columns: Option<Vec<String>>,
    /// Only this part, once.
    pub subset: Option<Subset>,
    /// Who asks, if what he may read depends on it. No text of a request says that: whoever let the client in does.
    pub bearer: Option<Bearer>,
}

impl ShapeRequest {
    /// Reads a GET, a HEAD, a POST with its body, or a DELETE. Secrets are to be checked before.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(method: &Method, query: &Query, body: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields { query, invalid: Invalid::default() };
        let request = match *method {
            Method::DELETE => fields.deletion(),
            Method::POST => fields.request(body),
            _ => fields.request(&[]),
        };
        if fields.invalid.is_empty() { Ok(request) } else { Err(fields.invalid) }
    }

    /// Whether it says more of a shape's definition than the table.
    pub fn has_choice(&self) -> bool {
        let is_default = self.replica == ReplicaMode::Default && self.log == LogMode::Full;
        let names_none = self.columns.is_none() && self.queryable_columns.is_none();
        !(is_default && names_none && self.clause.is_none() && self.params.is_empty())
    }
}

/// What was sent, and what is wrong with it.
struct Fields<'a> {
    query: &'a Query,
    invalid: Invalid,
}

impl<'a> Fields<'a> {
    fn request(&mut self, body: &[u8]) -> ShapeRequest {
        let since = self.since();
        let handle = match since {
            Some(StartOffset::After(_)) => self.required("handle", "can't be blank when offset != -1"),
            Some(StartOffset::Beginning | StartOffset::Now) | None => None,
        };
        let (live, sse) = self.live(since);
        let definition = self.definition();
        let subset = self.subset(&definition, body);
        let live = live && subset.is_none();
        ShapeRequest {
            // Where it is wrong, nobody gets to see what stands here.
            since: since.unwrap_or(StartOffset::Beginning),
            handle: handle.map(str::to_owned),
            live,
            sse: sse && live,
            cursor: self.given("cursor").and_then(|cursor| cursor.as_ref().ok()?.parse().ok()),
            subset,
            ..definition
        }
    }

    /// By what defines a shape, by its handle, or by both. A handle alone needs no more.
    fn deletion(&mut self) -> ShapeRequest {
        if self.given("table").is_some() {
            return ShapeRequest { handle: self.text("handle").map(str::to_owned), ..self.definition() };
        }
        let handle = self.required("handle", "can't be blank when shape definition is missing");
        ShapeRequest { handle: handle.map(str::to_owned), ..nothing() }
    }

    fn definition(&mut self) -> ShapeRequest {
        let table =
            self.required("table", BLANK).and_then(|text| self.checked("table", names::table_name(text)));
        let columns = self.columns("columns");
        let queryable_columns = self.columns("queryable_columns");
        if let (Some(columns), Some(queryable)) = (&columns, &queryable_columns)
            && let Some(problem) = subset::not_queryable(columns.iter(), queryable)
        {
            self.invalid.add("columns", problem);
        }
        let replica = match self.text("replica") {
            None | Some("default") => Ok(ReplicaMode::Default),
            Some("full") => Ok(ReplicaMode::Full),
            Some(_) => Err(INVALID),
        };
        let log = match self.text("log") {
            None | Some("full") => Ok(LogMode::Full),
            Some("changes_only") => Ok(LogMode::ChangesOnly),
            Some(_) => Err(INVALID),
        };
        ShapeRequest {
            table,
            columns,
            clause: self.text("where").map(str::to_owned),
            params: self.params(),
            replica: self.checked("replica", replica).unwrap_or_default(),
            log: self.checked("log", log).unwrap_or_default(),
            queryable_columns,
            ..nothing()
        }
    }

    /// `None`: it is wrong, and what depends on it can't be checked.
    fn since(&mut self) -> Option<StartOffset> {
        let text = self.required("offset", BLANK)?;
        self.checked("offset", text.parse())
    }

    fn live(&mut self, since: Option<StartOffset>) -> (bool, bool) {
        let live = self.flag("live");
        let sse = self.flag("live_sse") || self.flag("experimental_live_sse");
        match since {
            Some(StartOffset::Beginning) if live => {
                self.invalid.add("live", "can't be true when offset == -1")
            }
            Some(StartOffset::Now) if live => self.invalid.add("live", "can't be true when offset is 'now'"),
            Some(StartOffset::Beginning | StartOffset::Now | StartOffset::After(_)) | None => {}
        }
        if sse && !live {
            self.invalid.add("live_sse", "can't be true unless live is also true");
        }
        (live, sse)
    }

    /// A list that is blank would otherwise be one of everything.
    fn columns(&mut self, name: &'static str) -> Option<Vec<String>> {
        match self.query.text(name) {
            Some(Ok(text)) if text.trim().is_empty() => self.checked(name, Err(NameError::Empty)),
            Some(_) => self.text(name).and_then(|text| self.checked(name, names::column_list(text))),
            None => None,
        }
    }

    fn params(&mut self) -> Vec<String> {
        if self.given("params").is_some() {
            self.invalid.add("params", INVALID);
        }
        self.checked("params", params::of_query(self.query.params())).unwrap_or_default()
    }

    /// A body makes it one, even if it says nothing more.
    fn subset(&mut self, definition: &ShapeRequest, body: &[u8]) -> Option<Subset> {
        let mut fields = subset::of_query(self.query);
        if !body.is_empty() {
            fields.extend(self.checked("body", subset::of_body(body)).unwrap_or_default());
        } else if fields.is_empty() {
            return None;
        }
        let queryable = definition.queryable_columns.as_deref();
        Some(Subset::check(fields, definition.table.as_ref(), queryable, &mut self.invalid))
    }

    /// What is blank is as good as absent: forms send every field.
    fn given(&self, name: &str) -> Option<&'a Text> {
        self.query.text(name).filter(|text| !text.as_ref().is_ok_and(|text| text.trim().is_empty()))
    }

    fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.given(name).and_then(|text| self.checked(name, text.as_deref()))
    }

    fn required(&mut self, name: &'static str, problem: &str) -> Option<&'a str> {
        if self.given(name).is_none() {
            self.invalid.add(name, problem);
        }
        self.text(name)
    }

    fn checked<T>(&mut self, name: &'static str, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|problem| self.invalid.add(name, problem)).ok()
    }

    /// Whatever it says, but for `false`.
    fn flag(&self, name: &str) -> bool {
        self.query.text(name).is_some_and(|text| text.as_deref() != Ok("false"))
    }
}

/// What the rest of a request is like where nothing was said.
pub(super) fn nothing() -> ShapeRequest {
    ShapeRequest {
        table: None,
        since: StartOffset::Beginning,
        handle: None,
        live: false,
        sse: false,
        cursor: None,
        columns: None,
        clause: None,
        params: Vec::new(),
        replica: ReplicaMode::Default,
        log: LogMode::Full,
        queryable_columns: None,
        subset: None,
        bearer: None,
    }
}
