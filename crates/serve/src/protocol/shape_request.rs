//! Request for a shape: the parsed parameters.
//!
//! Invariant: a parsed request satisfies every rule that needs no database. Otherwise it is refused
//! with all its problems, not only the first.
//! Out of scope: whether the table and columns exist, the where clause, and whether the client is
//! authorized.

use forebay_replication::TableName;
use forebay_shapes::filter::{FilterError, MAX_CLAUSE_BYTES};
use forebay_shapes::{LogMode, ReplicaMode, StartOffset};
use http::Method;

use super::grants::TokenBearer;
use super::invalid_request::InvalidRequest;
use super::names::{self, NameError};
use super::params;
use super::post_body::PostBody;
use super::query_params::{MAX_QUERY_CLAUSE_BYTES, ParamText, QueryParams};
use super::subset::{self, Subset, SubsetFields};

const BLANK: &str = "can't be blank";
const INVALID: &str = "is invalid";

/// A request to read or delete a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeRequest {
    /// The table. `None` for a deletion by handle, and once the definition is dropped.
    pub table: Option<TableName>,
    /// Where the response begins.
    pub since: StartOffset,
    /// Handle that the client sent. To read, always set with [`StartOffset::After`], and `None`
    /// with other offsets. To delete, set if the client sent one.
    pub handle: Option<String>,
    /// Whether and how to wait for changes. Always [`LiveMode::Off`] for a subset.
    pub live: LiveMode,
    /// Last cursor that the client received.
    pub cursor: Option<u64>,
    /// Selected columns. `None`: the queryable columns, or all if those are `None`, too.
    pub columns: Option<Vec<String>>,
    /// Where clause. The filter parses it.
    pub clause: Option<String>,
    /// Values of `$1`, `$2` … in the clause.
    pub params: Vec<String>,
    /// Which columns of a row a change contains.
    pub replica: ReplicaMode,
    /// Whether the log begins with the existing rows.
    pub log: LogMode,
    /// The only columns that `columns` and the subset may use. `None`: all. The parser checks
    /// `columns` and the subset's order; the subset query checks its where clause.
    pub queryable_columns: Option<Vec<String>>,
    /// One-time query for part of the rows.
    pub subset: Option<Subset>,
    /// The client's token, if it restricts what the client may read. The service sets it after
    /// authentication; it is never parsed from the request.
    pub bearer: Option<TokenBearer>,
}

/// Whether and how a request waits for changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LiveMode {
    /// It doesn't wait: the response has the existing rows or changes.
    #[default]
    Off,
    /// It waits for the next change.
    LongPoll,
    /// It receives all changes as server-sent events.
    Events,
}

impl LiveMode {
    /// Returns whether the request waits for changes.
    pub fn is_live(self) -> bool {
        match self {
            LiveMode::Off => false,
            LiveMode::LongPoll | LiveMode::Events => true,
        }
    }
}

impl ShapeRequest {
    /// Returns the handle if it has the form of one: two numbers with a `-` between them.
    pub fn valid_handle(&self) -> Option<&str> {
        let has_digits = |text: &str| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = |text: &str| has_digits(text) && text.parse::<u64>().is_ok();
        let is_handle =
            |text: &&str| text.split_once('-').is_some_and(|(hash, time)| is_number(hash) && is_number(time));
        self.handle.as_deref().filter(is_handle)
    }

    /// Parses a GET, a HEAD, a POST with its body, or a DELETE. The caller has already checked the
    /// secret.
    ///
    /// # Errors
    /// Returns all problems of the request.
    pub fn parse(method: &Method, query: &QueryParams, body: &[u8]) -> Result<Self, InvalidRequest> {
        let mut invalid = InvalidRequest::default();
        let mut posted = match *method {
            Method::POST if !body.is_empty() => {
                let posted = PostBody::parse(body, query, &mut invalid);
                posted.map_err(|problem| invalid.add("body", problem)).ok()
            }
            _ => None,
        };
        let (params, fields) = match &mut posted {
            None => (query, None),
            Some(PostBody::Subset(fields)) => (query, Some(std::mem::take(fields))),
            Some(PostBody::Shape(params, fields)) => (&*params, fields.take()),
        };
        let mut parser = RequestParser { query: params, head: query, invalid };
        let request = match *method {
            Method::DELETE => parser.deletion(),
            _ => parser.request(fields),
        };
        if parser.invalid.is_empty() { Ok(request) } else { Err(parser.invalid) }
    }

    /// Frees the definition of the shape. The request can't select a shape any more.
    pub(crate) fn drop_definition(&mut self) {
        (self.table, self.clause) = (None, None);
        (self.columns, self.queryable_columns) = (None, None);
        self.params = Vec::new();
    }

    /// Returns whether the request defines more of the shape than its table.
    pub fn defines_more_than_table(&self) -> bool {
        let is_default = self.replica == ReplicaMode::Default && self.log == LogMode::Full;
        let names_none = self.columns.is_none() && self.queryable_columns.is_none();
        !(is_default && names_none && self.clause.is_none() && self.params.is_empty())
    }
}

/// Parameters of a request, and the problems found so far.
struct RequestParser<'a> {
    /// Parameters of the query string, and of the body if it has those of a shape.
    query: &'a QueryParams,
    /// Parameters of the query string alone.
    head: &'a QueryParams,
    invalid: InvalidRequest,
}

impl<'a> RequestParser<'a> {
    /// Parses a request. `posted` has the fields of a subset in the body, if there are any.
    fn request(&mut self, posted: Option<SubsetFields>) -> ShapeRequest {
        let since = self.since();
        let handle = match since {
            Some(StartOffset::After(_)) => self.required("handle", "can't be blank when offset != -1"),
            Some(StartOffset::Beginning | StartOffset::Now) | None => None,
        };
        let live = self.live_mode(since);
        let definition = self.definition();
        let subset = self.subset(&definition, posted);
        ShapeRequest {
            // A missing or wrong offset is already a problem, so this default is never used.
            since: since.unwrap_or(StartOffset::Beginning),
            handle: handle.map(str::to_owned),
            live: if subset.is_some() { LiveMode::Off } else { live },
            cursor: self.non_blank("cursor").and_then(|cursor| cursor.as_ref().ok()?.parse().ok()),
            subset,
            ..definition
        }
    }

    /// Parses a deletion: by definition, by handle, or by both.
    fn deletion(&mut self) -> ShapeRequest {
        if self.non_blank("table").is_some() {
            return ShapeRequest { handle: self.text("handle").map(str::to_owned), ..self.definition() };
        }
        let handle = self.required("handle", "can't be blank when shape definition is missing");
        ShapeRequest { handle: handle.map(str::to_owned), ..empty_request() }
    }

    /// Parses the parameters that define a shape. The other fields have their defaults.
    fn definition(&mut self) -> ShapeRequest {
        let table =
            self.required("table", BLANK).and_then(|text| self.checked("table", names::table_name(text)));
        let columns = self.columns("columns");
        let queryable_columns = self.columns("queryable_columns");
        if let (Some(columns), Some(queryable)) = (&columns, &queryable_columns)
            && let Some(problem) = subset::describe_not_queryable(columns.iter(), queryable)
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
            clause: self.clause(),
            params: self.params(),
            replica: self.checked("replica", replica).unwrap_or_default(),
            log: self.checked("log", log).unwrap_or_default(),
            queryable_columns,
            ..empty_request()
        }
    }

    /// Returns the offset, or `None` if it is missing or wrong. Then the checks that depend on it
    /// are skipped.
    fn since(&mut self) -> Option<StartOffset> {
        let text = self.required("offset", BLANK)?;
        self.checked("offset", text.parse())
    }

    fn live_mode(&mut self, since: Option<StartOffset>) -> LiveMode {
        let is_live = self.flag("live");
        let has_events = self.flag("live_sse") || self.flag("experimental_live_sse");
        match since {
            Some(StartOffset::Beginning) if is_live => {
                self.invalid.add("live", "can't be true when offset == -1")
            }
            Some(StartOffset::Now) if is_live => {
                self.invalid.add("live", "can't be true when offset is 'now'")
            }
            Some(StartOffset::Beginning | StartOffset::Now | StartOffset::After(_)) | None => {}
        }
        if has_events && !is_live {
            self.invalid.add("live_sse", "can't be true unless live is also true");
        }
        match (is_live, has_events) {
            (false, _) => LiveMode::Off,
            (true, false) => LiveMode::LongPoll,
            (true, true) => LiveMode::Events,
        }
    }

    /// Parses a list of columns. A blank list is an error: otherwise it would mean all columns.
    fn columns(&mut self, name: &'static str) -> Option<Vec<String>> {
        match self.query.text(name) {
            Some(Ok(text)) if text.trim().is_empty() => self.checked(name, Err(NameError::Empty)),
            Some(_) => self.text(name).and_then(|text| self.checked(name, names::column_list(text))),
            None => None,
        }
    }

    fn params(&mut self) -> Vec<String> {
        if self.non_blank("params").is_some() {
            self.invalid.add("params", INVALID);
        }
        self.checked("params", params::from_query(self.query.params())).unwrap_or_default()
    }

    fn clause(&mut self) -> Option<String> {
        let clause = self.text("where")?;
        let limit = max_clause_bytes(self.head.text("where").is_some());
        self.checked("where", check_clause_length(clause, limit)).map(|()| clause.to_owned())
    }

    /// Parses the subset. Fields in a body make the request a subset, even if there are none.
    fn subset(&mut self, definition: &ShapeRequest, posted: Option<SubsetFields>) -> Option<Subset> {
        let mut fields = subset::fields_of_query(self.query);
        if fields.is_empty() && posted.is_none() {
            return None;
        }
        let posted = posted.unwrap_or_default();
        let is_in_query = self.head.text("subset__where").is_some() && !posted.contains_key("where");
        fields.extend(posted);
        if let Some(Ok(clause)) = fields.get("where")
            && let Err(problem) = check_clause_length(clause, max_clause_bytes(is_in_query))
        {
            self.invalid.add_subset_field("where", problem);
        }
        let queryable = definition.queryable_columns.as_deref();
        Some(Subset::parse(fields, definition.table.as_ref(), queryable, &mut self.invalid))
    }

    /// Returns a value unless it is blank. Forms send all fields, so a blank one counts as absent.
    fn non_blank(&self, name: &str) -> Option<&'a ParamText> {
        self.query.text(name).filter(|text| !text.as_ref().is_ok_and(|text| text.trim().is_empty()))
    }

    /// Returns a value, or `None` if it is absent, blank or not text.
    fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.non_blank(name).and_then(|text| self.checked(name, text.as_deref()))
    }

    fn required(&mut self, name: &'static str, problem: &str) -> Option<&'a str> {
        if self.non_blank(name).is_none() {
            self.invalid.add(name, problem);
        }
        self.text(name)
    }

    /// Returns the value of a result, or adds its error to the problems of the field.
    fn checked<T>(&mut self, name: &'static str, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|problem| self.invalid.add(name, problem)).ok()
    }

    /// Returns true for any value except `false`.
    fn flag(&self, name: &str) -> bool {
        self.query.text(name).is_some_and(|text| text.as_deref() != Ok("false"))
    }
}

/// Returns the maximum length of a clause in the query string, or in a body.
fn max_clause_bytes(is_in_query: bool) -> usize {
    if is_in_query { MAX_QUERY_CLAUSE_BYTES } else { MAX_CLAUSE_BYTES }
}

fn check_clause_length(clause: &str, limit: usize) -> Result<(), String> {
    let bytes = clause.len();
    match (bytes > limit, limit < MAX_CLAUSE_BYTES) {
        (false, _) => Ok(()),
        (true, false) => Err(FilterError::TooLong { bytes, limit }.to_string()),
        (true, true) => {
            let too_long = FilterError::TooLong { bytes, limit };
            Err(format!("{too_long} in a query string: send it in the body of a POST"))
        }
    }
}

/// Returns a request with default values.
pub(super) fn empty_request() -> ShapeRequest {
    ShapeRequest {
        table: None,
        since: StartOffset::Beginning,
        handle: None,
        live: LiveMode::Off,
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
