//! Tests of parsing: accepted requests, and the problems of refused ones.

use forebay_replication::TableName;
use forebay_shapes::{LogMode, Offset, ReplicaMode, StartOffset};
use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::order_by::{OrderByItem, OrderKey};
use super::query_params::QueryParams;
use super::shape_request::{LiveMode, ShapeRequest, empty_request};
use super::subset::Subset;

fn parse(method: &Method, raw: &str, body: &str) -> Result<ShapeRequest, Value> {
    let request = ShapeRequest::parse(method, &QueryParams::parse(raw), body.as_bytes());
    request.map_err(|invalid| serde_json::to_value(invalid).unwrap())
}

fn get(raw: &str) -> Result<ShapeRequest, Value> {
    parse(&Method::GET, raw, "")
}

fn items() -> ShapeRequest {
    ShapeRequest { table: Some(TableName::new("public", "items")), ..empty_request() }
}

fn after(lsn: u64, op: u64) -> StartOffset {
    StartOffset::After(Offset::new(lsn, op))
}

#[test]
fn every_parameter_of_a_request_is_parsed() {
    let raw = "table=App.Items&offset=26800584_4&handle=1-2&live=true&live_sse=true&cursor=1674440&columns=id,%22Na+me%22\
        &where=id%3E$1+AND+x%3D$2&params%5B1%5D=5&params%5B2%5D=a%2Bb&replica=full&log=changes_only\
        &queryable_columns=id,%22Na+me%22,x&expired_handle=0-1&cache-buster=zz&unknown=%ff";
    let expected = ShapeRequest {
        table: Some(TableName::new("app", "items")),
        since: after(26_800_584, 4),
        handle: Some("1-2".into()),
        live: LiveMode::Events,
        cursor: Some(1_674_440),
        columns: Some(vec!["id".into(), "Na me".into()]),
        clause: Some("id>$1 AND x=$2".into()),
        params: vec!["5".into(), "a+b".into()],
        replica: ReplicaMode::Full,
        log: LogMode::ChangesOnly,
        queryable_columns: Some(vec!["id".into(), "Na me".into(), "x".into()]),
        subset: None,
        bearer: None,
    };
    assert_eq!(get(raw), Ok(expected.clone()));
    assert_eq!(parse(&Method::HEAD, raw, ""), Ok(expected));
    assert_eq!(get("table=items&offset=-1"), Ok(items()));
    let blank = "table=items&offset=-1&handle=&where=+&replica=&log=&params=&cursor=";
    assert_eq!(get(blank), Ok(items()), "blank counts as absent");
}

#[test]
fn a_text_that_cannot_be_a_handle_is_no_valid_handle() {
    let with = |handle: &str| ShapeRequest { handle: Some(handle.to_owned()), ..items() };
    for handle in ["1-2", "18446744073709551615-1790000000000000"] {
        assert_eq!(with(handle).valid_handle(), Some(handle));
    }
    let [long, padded] = [format!("1-{}", "2".repeat(21)), format!("{}1-2", "0".repeat(40))];
    for text in ["", "-", "1", "1-", "-2", "1-2-3", "+1-2", "s3cr3t", "1-2 x", "1-\u{1b}[2J", &long, &padded]
    {
        assert_eq!(with(text).valid_handle(), None, "{text:?}");
    }
}

#[test]
fn a_handle_is_used_only_with_a_log_offset() {
    for (raw, since, handle) in [
        ("offset=-1&handle=h", StartOffset::Beginning, None),
        ("offset=now&handle=h", StartOffset::Now, None),
        ("offset=0_0&handle=h", after(0, 0), Some("h".to_owned())),
        ("offset=5_inf&handle=h", after(5, u64::MAX), Some("h".to_owned())),
    ] {
        let expected = ShapeRequest { since, handle, ..items() };
        assert_eq!(get(&format!("table=items&{raw}")), Ok(expected), "{raw}");
    }
}

#[test]
fn any_value_of_live_except_false_is_true() {
    for (value, live) in [
        ("=true", LiveMode::LongPoll),
        ("=", LiveMode::LongPoll),
        ("", LiveMode::LongPoll),
        ("=0", LiveMode::LongPoll),
        ("=FALSE", LiveMode::LongPoll),
        ("=%ff", LiveMode::LongPoll),
        ("=false", LiveMode::Off),
    ] {
        let request = get(&format!("table=items&offset=0_0&handle=h&live{value}")).unwrap();
        assert_eq!(request.live, live, "{value}");
    }
    for name in ["live_sse", "experimental_live_sse"] {
        for (value, live) in [("true", LiveMode::Events), ("false", LiveMode::LongPoll)] {
            let request = get(&format!("table=items&offset=0_0&handle=h&live=true&{name}={value}")).unwrap();
            assert_eq!(request.live, live, "{name}={value}");
        }
    }
}

#[test]
fn an_invalid_cursor_is_ignored() {
    let cursor = |text: &str| get(&format!("table=items&offset=-1&cursor={text}")).unwrap().cursor;
    assert_eq!(cursor("12"), Some(12));
    for text in ["x", "-1", "1.5", "99999999999999999999999", "%ff"] {
        assert_eq!(cursor(text), None, "{text}");
    }
}

#[test]
fn each_broken_rule_has_its_error_text() {
    let long = format!("table={}&offset=-1", "x".repeat(64));
    for (raw, errors) in [
        ("offset=-1", json!({"table": ["can't be blank"]})),
        ("table=+&offset=-1", json!({"table": ["can't be blank"]})),
        (
            "table=a.b.c&offset=-1",
            json!({"table": ["Invalid relation identifier, too many delimiters: a.b.c"]}),
        ),
        (
            "table=a-b&offset=-1",
            json!({"table": ["Invalid unquoted identifier contains special characters: a-b"]}),
        ),
        (&*long, json!({"table": ["Identifier is too long (max length is 63 bytes)"]})),
        ("table=%ff&offset=-1", json!({"table": ["must be valid UTF-8"]})),
        ("table=a%00&offset=-1", json!({"table": ["can't contain a NUL character"]})),
        ("table=t", json!({"offset": ["can't be blank"]})),
        ("table=t&offset=", json!({"offset": ["can't be blank"]})),
        ("table=t&offset=1", json!({"offset": ["has invalid format"]})),
        ("table=t&offset=-2", json!({"offset": ["has invalid format"]})),
        ("table=t&offset=%ff", json!({"offset": ["must be valid UTF-8"]})),
        ("table=t&offset=0_0", json!({"handle": ["can't be blank when offset != -1"]})),
        ("table=t&offset=0_0&handle=", json!({"handle": ["can't be blank when offset != -1"]})),
        ("table=t&offset=0_0&handle=%ff", json!({"handle": ["must be valid UTF-8"]})),
        ("table=t&offset=-1&live=true", json!({"live": ["can't be true when offset == -1"]})),
        ("table=t&offset=now&live", json!({"live": ["can't be true when offset is 'now'"]})),
        ("table=t&offset=-1&live_sse=true", json!({"live_sse": ["can't be true unless live is also true"]})),
        (
            "table=t&offset=-1&experimental_live_sse",
            json!({"live_sse": ["can't be true unless live is also true"]}),
        ),
        ("table=t&offset=-1&columns=", json!({"columns": ["Invalid zero-length delimited identifier"]})),
        ("table=t&offset=-1&columns=a,", json!({"columns": ["Invalid zero-length delimited identifier"]})),
        (
            "table=t&offset=-1&columns=a+b",
            json!({"columns": ["Invalid unquoted identifier contains special characters: a b"]}),
        ),
        ("table=t&offset=-1&columns=%ff", json!({"columns": ["must be valid UTF-8"]})),
        ("table=t&offset=-1&where=%ff", json!({"where": ["must be valid UTF-8"]})),
        ("table=t&offset=-1&where=a%00", json!({"where": ["can't contain a NUL character"]})),
        ("table=t&offset=-1&params=x", json!({"params": ["is invalid"]})),
        (
            "table=t&offset=-1&params[2]=x",
            json!({"params": ["Parameters must be numbered sequentially, starting from 1"]}),
        ),
        ("table=t&offset=-1&params[a]=x", json!({"params": ["Parameters can only use numbers as keys"]})),
        ("table=t&offset=-1&params[1]=%ff", json!({"params": ["parameter 1 must be valid UTF-8"]})),
        ("table=t&offset=-1&replica=half", json!({"replica": ["is invalid"]})),
        ("table=t&offset=-1&replica=FULL", json!({"replica": ["is invalid"]})),
        ("table=t&offset=-1&log=none", json!({"log": ["is invalid"]})),
        (
            "table=t&offset=-1&queryable_columns=",
            json!({"queryable_columns": ["Invalid zero-length delimited identifier"]}),
        ),
        (
            "table=t&offset=-1&columns=a,b,c&queryable_columns=b",
            json!({"columns": ["The following columns are not queryable: a, c"]}),
        ),
        (
            "table=t&offset=-1&subset__limit=1",
            json!({"subset": {"order_by": ["order_by is required when limit or offset is present"]}}),
        ),
        (
            "table=t&offset=-1&queryable_columns=a&subset__order_by=b",
            json!({"subset": {"order_by": ["The following columns are not queryable: b"]}}),
        ),
    ] {
        assert_eq!(get(raw), Err(errors), "{raw}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let raw = "table=a.b.c&offset=x&live_sse&columns=,&params[2]=1&replica=x&log=x&subset__limit=0&where=%ff";
    let errors = get(raw).unwrap_err();
    let fields: Vec<_> = errors.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        ["columns", "live_sse", "log", "offset", "params", "replica", "subset", "table", "where"]
    );
    assert_eq!(get("").unwrap_err(), json!({"table": ["can't be blank"], "offset": ["can't be blank"]}));
}

fn by_id() -> Option<Vec<OrderByItem>> {
    Some(vec![OrderByItem { key: OrderKey::Column("id".into()), descending: false, nulls: None }])
}

#[test]
fn a_body_with_a_table_has_the_parameters_of_a_shape() {
    let raw = "table=items&where=id+%3D+$1&params[1]=7&columns=id,%22A%22&replica=full&log=changes_only\
               &offset=5_0&handle=1-2&live=true&live_sse=true&cursor=9";
    let body = r#"{"table":"items","where":"id = $1","params":{"1":7},"columns":["id","A"],"replica":"full",
                   "log":"changes_only","offset":"5_0","handle":"1-2","live":true,"live_sse":true,"cursor":9,"x":[]}"#;
    let expected = get(raw).unwrap();
    assert_eq!(parse(&Method::POST, "", body).unwrap(), expected);
    let rest = r#"{"table":"items","where":"id = $1","params":"{\"1\":\"7\"}","columns":"id,\"A\"","replica":"full","log":"changes_only"}"#;
    let head = "offset=5_0&handle=1-2&live=true&live_sse=true&cursor=9&x=1";
    assert_eq!(parse(&Method::POST, head, rest).unwrap(), expected, "each parameter is in one place");
    let off = r#"{"table":"items","offset":-1,"live":false,"where":null,"secret":"s"}"#;
    assert_eq!(parse(&Method::POST, "", off).unwrap(), items());
    let subset = Subset { limit: Some(5), order_by: by_id(), ..Subset::default() };
    for body in [
        r#"{"table":"items","offset":"-1","subset":{"order_by":"id","limit":5}}"#,
        r#"{"table":"items","offset":"-1","subset__order_by":"id","subset__limit":5}"#,
    ] {
        let expected = ShapeRequest { subset: Some(subset.clone()), ..items() };
        assert_eq!(parse(&Method::POST, "", body).unwrap(), expected);
    }
    for (raw, body, errors) in [
        ("", r#"{"table":"items"}"#, json!({"offset": ["can't be blank"]})),
        ("", r#"{"table":{},"offset":"-1"}"#, json!({"table": ["is invalid"]})),
        ("", r#"{"table":" ","offset":"-1"}"#, json!({"table": ["can't be blank"]})),
        (
            "",
            r#"{"table":"t","offset":"-1","columns":[]}"#,
            json!({"columns": ["Invalid zero-length delimited identifier"]}),
        ),
        (
            "",
            r#"{"table":"t","offset":"-1","params":[1]}"#,
            json!({"params": ["params must be a JSON object"]}),
        ),
        (
            "",
            r#"{"table":"t","offset":"-1","live":true}"#,
            json!({"live": ["can't be true when offset == -1"]}),
        ),
        (
            "offset=-1",
            r#"{"table":"t","offset":"now"}"#,
            json!({"offset": ["can't be in the query string and in the body"]}),
        ),
    ] {
        assert_eq!(parse(&Method::POST, raw, body).unwrap_err(), errors, "{body}");
    }
}

#[test]
fn a_longer_clause_may_be_in_a_body_than_in_a_query_string() {
    let clause = |bytes: usize| "x".repeat(bytes);
    let query = "offset=-1&table=items";
    for (bytes, is_allowed) in [(64 << 10, true), ((64 << 10) + 1, false)] {
        assert_eq!(get(&format!("{query}&where={}", clause(bytes))).is_ok(), is_allowed, "{bytes}");
        let of_subset = get(&format!("{query}&subset__where={}", clause(bytes)));
        assert_eq!(of_subset.is_ok(), is_allowed, "{bytes}");
    }
    for (bytes, is_allowed) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let body = json!({"table": "items", "offset": "-1", "where": clause(bytes)}).to_string();
        assert_eq!(parse(&Method::POST, "", &body).is_ok(), is_allowed, "{bytes}");
        let subset = json!({"where": clause(bytes)}).to_string();
        assert_eq!(parse(&Method::POST, query, &subset).is_ok(), is_allowed, "{bytes}");
    }
    let errors = get(&format!("{query}&where={}", clause((64 << 10) + 1))).unwrap_err();
    assert!(errors["where"][0].as_str().unwrap().ends_with(": send it in the body of a POST"), "{errors}");
}

#[test]
fn a_post_with_a_body_requests_a_subset() {
    let subset = Subset { order_by: by_id(), limit: Some(5), clause: Some("x".into()), ..Subset::default() };
    let expected = ShapeRequest { subset: Some(subset), ..items() };
    let raw = "table=items&offset=-1&subset__where=x&subset__limit=9";
    assert_eq!(
        parse(&Method::POST, raw, r#"{"order_by":"id","limit":5}"#),
        Ok(expected),
        "the body overrides the query string"
    );
    let empty = ShapeRequest { subset: Some(Subset::default()), ..items() };
    assert_eq!(parse(&Method::POST, "table=items&offset=-1", "{}"), Ok(empty));
    assert_eq!(
        parse(&Method::POST, "table=items&offset=-1", ""),
        Ok(items()),
        "without a body, only the query string counts"
    );
    assert_eq!(parse(&Method::GET, "table=items&offset=-1", "{}"), Ok(items()), "a GET has no body");
    let errors = parse(&Method::POST, "offset=-1", "[]").unwrap_err();
    assert_eq!(
        errors,
        json!({"body": ["must be a JSON object with each field once"], "table": ["can't be blank"]})
    );
}

#[test]
fn a_subset_is_never_live() {
    let request = get("table=items&offset=0_0&handle=h&live=true&live_sse=true&subset__where=x").unwrap();
    assert!(request.subset.is_some() && !request.live.is_live());
}

#[test]
fn a_shape_is_deleted_by_table_or_by_handle_alone() {
    let delete = |raw: &str| parse(&Method::DELETE, raw, "");
    assert_eq!(delete("table=items"), Ok(items()));
    assert_eq!(delete("handle=1-2"), Ok(ShapeRequest { handle: Some("1-2".into()), ..empty_request() }));
    let both = ShapeRequest { handle: Some("1-2".into()), clause: Some("x".into()), ..items() };
    assert_eq!(delete("table=items&handle=1-2&where=x&offset=5_5&live=true"), Ok(both));
    let problem = json!({"handle": ["can't be blank when shape definition is missing"]});
    assert_eq!(delete("where=x"), Err(problem.clone()));
    assert_eq!(delete("table=&handle="), Err(problem));
    assert_eq!(delete("table=a+b").unwrap_err()["table"].as_array().unwrap().len(), 1);
    assert_eq!(delete("handle=%ff"), Err(json!({"handle": ["must be valid UTF-8"]})));
}

#[test]
fn a_parsed_request_contains_no_secret() {
    let shown = format!("{:?}", get("table=items&offset=-1&secret=s3cret&api_secret=s3cret").unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
}

const NAMES: [&str; 20] = [
    "table",
    "offset",
    "handle",
    "live",
    "live_sse",
    "cursor",
    "columns",
    "where",
    "params",
    "params[1]",
    "params[2]",
    "replica",
    "log",
    "queryable_columns",
    "subset__where",
    "subset__params",
    "subset__order_by",
    "subset__limit",
    "subset__offset",
    "secret",
];
const VALUES: [&str; 17] = [
    "",
    "-1",
    "now",
    "0_0",
    "true",
    "false",
    "items",
    "a.b",
    "%22A%22",
    "a,b",
    "id+desc",
    "1",
    "full",
    "%ff",
    "%00",
    "{\"1\":2}",
    "%",
];

proptest! {
    #[test]
    fn no_query_string_panics_the_parser(raw in "\\PC{0,200}", body in "\\PC{0,100}") {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let _ = parse(&method, &raw, &body);
        }
    }

    #[test]
    fn every_accepted_request_satisfies_the_rules(pairs in proptest::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..12)) {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", NAMES[*name], VALUES[*value])).collect();
        let raw = format!("table=t&offset=-1&{}", pairs.join("&"));
        if let Ok(request) = get(&raw) {
            let is_after = matches!(request.since, StartOffset::After(_));
            prop_assert!(request.table.is_some(), "{}", raw);
            prop_assert_eq!(request.handle.is_some(), is_after, "{}", raw);
            prop_assert!(!request.live.is_live() || is_after, "{}", raw);
            prop_assert!(!request.columns.as_ref().is_some_and(Vec::is_empty), "{}", raw);
            if let Some(subset) = request.subset {
                let limited = subset.limit.is_some() || subset.offset.is_some();
                prop_assert!(!limited || subset.order_by.is_some(), "{}", raw);
                prop_assert!(!request.live.is_live(), "{}", raw);
            }
        }
    }
}
