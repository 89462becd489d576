//! The contract of requests that don't wait, line by line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Place, Reader, Serve, changes, path, short};
use crate::wire::{HttpConnection, HttpResponse};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text, price numeric(6,2));
    INSERT INTO items VALUES (1, 'one', 1.50), (2, NULL, 2)";

const ITEM: [(&str, &str); 1] = [("table", "items")];
const BEGINNING: [(&str, &str); 2] = [("table", "items"), ("offset", "-1")];

fn text(answer: &HttpResponse) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test]
async fn a_snapshot_is_followed_by_the_log_up_to_its_end() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let answer = serve.get(&BEGINNING).await;
    assert_eq!(answer.head.status, 200, "{}", answer.head.text);
    let header = |name| answer.head.header(name);
    assert_eq!((header("electric-offset"), header("electric-up-to-date")), (Some("0_0"), None));
    assert_eq!(header("electric-has-data"), Some("true"));
    assert_eq!(header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(header("vary"), Some("accept-encoding"));
    assert_eq!(header("access-control-allow-origin"), Some("*"));
    assert_eq!(header("electric-cursor"), None);
    assert!(header("x-request-id").is_some_and(|id| !id.is_empty()));
    let caching = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746";
    assert_eq!(header("cache-control"), Some(caching));
    let schema: Value = serde_json::from_str(header("electric-schema").unwrap()).unwrap();
    let expected = json!({
        "id": {"type": "int4", "pk_index": 0, "not_null": true},
        "note": {"type": "text"},
        "price": {"type": "numeric", "precision": 6, "scale": 2},
    });
    assert_eq!(schema, expected);

    let mut reader = Reader::new(&ITEM);
    let messages = reader.take(&answer);
    let row = |id: &str, note: Value, price: &str| {
        json!({
            "key": format!("\"public\".\"items\"/\"{id}\""),
            "value": {"id": id, "note": note, "price": price},
            "headers": {"operation": "insert", "relation": ["public", "items"]},
        })
    };
    assert_eq!(messages[..2], [row("1", json!("one"), "1.50"), row("2", json!(null), "2.00")]);
    let end = &messages[2]["headers"];
    assert_eq!(end["control"], "snapshot-end");
    assert!(end["xmin"].is_string() && end["xmax"].is_string() && end["xip_list"].is_array(), "{end}");
    assert_eq!(messages.len(), 3);

    let tail = serve.get(&reader.params()).await;
    assert_eq!(tail.head.header("cache-control"), Some("public, max-age=60, stale-while-revalidate=300"));
    assert_eq!(tail.head.header("electric-up-to-date"), Some(""));
    assert_eq!(tail.head.header("electric-has-data"), Some("false"));
    assert_eq!(tail.head.header("electric-offset"), Some("0_inf"));
    let messages = reader.take(&tail);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["headers"]["control"], "up-to-date");
    messages[0]["headers"]["global_last_seen_lsn"].as_str().unwrap().parse::<u64>().unwrap();
}

#[tokio::test]
async fn a_change_says_what_and_where_and_in_which_transaction() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let mut reader = serve.reader(&ITEM).await;
    let mut full = serve.reader(&[("table", "items"), ("replica", "full")]).await;
    assert_ne!(reader.handle, full.handle);
    let xid = place.ask(
        "BEGIN; INSERT INTO items VALUES (3, 'three', 3); UPDATE items SET note = 'uno' WHERE id = 1;
         UPDATE items SET id = 20 WHERE id = 2; UPDATE items SET price = price WHERE id = 3;
         DELETE FROM items WHERE id = 1; SELECT pg_current_xact_id(); COMMIT",
    );
    let messages = reader.live_changes(&serve, 5).await;
    let told = short(&messages);
    assert_eq!(told, ["insert 3", "update 1", "delete 2", "insert 20", "delete 1"]);
    let found = changes(&messages);
    let headers = |at: usize| &found[at]["headers"];
    let ops: Vec<_> = found.iter().map(|change| change["headers"]["op_position"].as_u64().unwrap()).collect();
    assert_eq!(ops, [0, 2, 4, 5, 8]);
    let lsn = headers(0)["lsn"].as_str().unwrap();
    assert!(found.iter().all(|change| change["headers"]["lsn"] == lsn));
    let xid: u32 = xid.unwrap().parse().unwrap();
    assert_eq!(headers(0)["txids"], json!([xid]));
    assert_eq!((headers(3).get("last"), &headers(4)["last"]), (None, &json!(true)));
    assert_eq!(found[1]["value"], json!({"id": "1", "note": "uno"}));
    assert_eq!(headers(2)["key_change_to"], "\"public\".\"items\"/\"20\"");
    assert_eq!(headers(3)["key_change_from"], "\"public\".\"items\"/\"2\"");
    assert_eq!(found[4]["value"], json!({"id": "1"}));
    assert_eq!(reader.offset, format!("{lsn}_8"));

    let messages = full.live_changes(&serve, 5).await;
    let found = changes(&messages);
    assert_eq!(found[1]["value"], json!({"id": "1", "note": "uno", "price": "1.50"}));
    assert_eq!(found[1]["old_value"], json!({"note": "one"}));
    assert_eq!(found[4]["value"], json!({"id": "1", "note": "uno", "price": "1.50"}));
}

#[tokio::test]
async fn a_log_is_cut_at_the_same_places_for_everybody() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    place.sql("INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series(1, 20) i");
    let serve = place.serve_with(&[("FOREBAY_STORAGE_CHUNK_BYTES", "2048")]).await;
    let mut reader = Reader::new(&ITEM);
    let (mut offsets, mut rows) = (Vec::new(), 0);
    loop {
        let answer = serve.get(&reader.params()).await;
        rows += changes(&reader.take(&answer)).len();
        offsets.push(reader.offset.clone());
        if answer.head.header("electric-up-to-date").is_some() {
            break;
        }
        assert!(answer.body.len() < 2048 + 400, "{}", answer.body.len());
    }
    assert_eq!(rows, 20);
    assert!(offsets.len() > 3 && offsets[..3] == ["0_0", "0_1", "0_2"], "{offsets:?}");

    for from in [21, 26, 31] {
        place.sql(&format!(
            "INSERT INTO items SELECT i, repeat('y', 200) FROM generate_series({from}, {from} + 4) i"
        ));
    }
    let mut live = reader.clone();
    let messages = live.live_changes(&serve, 15).await;
    let first_lsn = messages[0]["headers"]["lsn"].as_str().unwrap();
    let mut chunks = Vec::new();
    let mut first = reader.clone();
    while first.offset != live.offset {
        let answer = serve.get(&first.params()).await;
        first.take(&answer);
        chunks.push((first.offset.clone(), answer.head.header("electric-up-to-date").is_some()));
    }
    assert!(chunks.len() > 1 && chunks[..chunks.len() - 1].iter().all(|(_, is_end)| !is_end), "{chunks:?}");
    // Somebody who is elsewhere, with more in the log, is led to the same boundaries.
    place.sql("INSERT INTO items VALUES (40, 'z')");
    live.live_changes(&serve, 1).await;
    let mut second = reader.clone();
    second.offset = format!("{first_lsn}_2");
    second.take(&serve.get(&second.params()).await);
    assert_eq!(second.offset, chunks[0].0);
    let again = serve.get(&reader.params()).await;
    assert_eq!(again.head.header("electric-offset"), Some(&*chunks[0].0));
}

#[tokio::test]
async fn now_is_where_the_log_ends() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let mut reader = serve.reader(&ITEM).await;
    place.sql("INSERT INTO items VALUES (3, 'three', 3)");
    reader.live_changes(&serve, 1).await;
    let now = serve.get(&[("table", "items"), ("offset", "now"), ("handle", "whatever")]).await;
    assert_eq!(now.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(now.head.header("electric-handle"), Some(&*reader.handle));
    assert_eq!(now.head.header("electric-up-to-date"), Some(""));
    assert_eq!(now.head.header("cache-control"), Some("public, max-age=60, stale-while-revalidate=300"));
    assert!(now.head.header("electric-schema").is_some());
    assert_eq!(now.json().as_array().unwrap().len(), 1);
    // A shape that wasn't there begins now, too.
    let other = [("table", "items"), ("where", "id > 2"), ("offset", "now")];
    let mut other_reader = Reader::new(&other[..2]);
    assert_eq!(other_reader.take(&serve.get(&other).await).len(), 1);
    place.sql("UPDATE items SET note = 'drei' WHERE id = 3");
    assert_eq!(short(&other_reader.live_changes(&serve, 1).await), ["update 3"]);
}

#[tokio::test]
async fn heads_tags_and_compression_are_as_http_has_them() {
    let place = Place::new(ITEMS);
    place.sql("INSERT INTO items SELECT i, repeat('wide ', 50), i FROM generate_series(3, 400) i");
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "300")]).await;
    let reader = serve.reader(&ITEM).await;
    let whole = serve.get(&BEGINNING).await;
    let tag = whole.head.header("etag").unwrap().to_owned();
    assert_eq!(tag, format!("\"{}:-1:0_0\"", reader.handle));
    let known = serve.ask("GET", &path(&BEGINNING), &[&format!("If-None-Match: {tag}")], "").await;
    assert_eq!((known.head.status, known.body.len()), (304, 0), "{}", known.head.text);
    for name in ["electric-handle", "electric-offset", "electric-schema", "etag", "cache-control"] {
        assert_eq!(known.head.header(name), whole.head.header(name), "{name}");
    }
    // While nothing changes, an answer without changes holds, but not that of a live request.
    let now = [("table", "items"), ("offset", "now")];
    let live = [reader.params(), vec![("live", "true")]].concat();
    for (params, status) in [(&reader.params()[..], 304), (&now, 304), (&live, 200)] {
        let tag = serve.get(params).await.head.header("etag").unwrap().to_owned();
        let again = serve.ask("GET", &path(params), &[&format!("If-None-Match: {tag}")], "").await;
        assert_eq!(again.head.status, status, "{params:?} {}", again.head.text);
        assert_eq!(again.head.header("electric-up-to-date"), Some(""), "{}", again.head.text);
        if status == 304 {
            assert_eq!((again.head.header("etag"), again.body.len()), (Some(&*tag), 0));
        }
    }

    let head = serve.head(&BEGINNING).await;
    assert_eq!((head.status, head.header("electric-offset")), (200, Some("0_0")));
    assert_eq!(head.header("electric-schema"), whole.head.header("electric-schema"));
    let head = serve.head(&live).await;
    assert_eq!((head.status, head.header("electric-up-to-date")), (200, Some("")));
    assert!(head.header("electric-cursor").is_some());

    let gzip = |params: &[(&str, &str)], accepts: &'static str| {
        let (path, line) = (path(params), format!("Accept-Encoding: {accepts}"));
        let addr = serve.addr;
        async move { HttpConnection::fetch(addr, "GET", &path, &[&line], "").await }
    };
    for accepts in ["gzip", "br;q=1.0, gzip;q=0.5", "*", "deflate, GZIP"] {
        let packed = gzip(&BEGINNING, accepts).await;
        assert_eq!(packed.head.header("content-encoding"), Some("gzip"), "{accepts}");
        assert_eq!(packed.head.header("vary"), Some("accept-encoding"));
        assert!(packed.body.len() < whole.body.len() / 4, "{} bytes", packed.body.len());
        assert_eq!(unzipped(&packed.body), whole.body);
        assert_ne!(packed.head.header("etag"), Some(&*tag), "other bytes, another tag");
    }
    for accepts in ["identity", "gzip;q=0", "*;q=0", "br", "gzip;q=0, *"] {
        let plain = gzip(&BEGINNING, accepts).await;
        assert_eq!(plain.head.header("content-encoding"), None, "{accepts}");
        assert_eq!(plain.body, whole.body);
    }
    let events = [live, vec![("live_sse", "true")]].concat();
    let head = serve.head(&events).await;
    assert_eq!(head.status, 200, "a HEAD of what goes on ends at once: {}", head.text);
    let mut client = HttpConnection::get(serve.addr, &path(&events), &["Accept-Encoding: gzip"]).await;
    assert_eq!(client.head().await.header("content-encoding"), None, "events are never packed");
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    plain
}

#[tokio::test]
async fn every_route_says_what_it_takes() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/v1/health", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/shape/x", 404),
        ("PUT", "/v1/shape", 405),
        ("DELETE", "/v1/shape?table=items", 405),
        ("POST", "/v1/health", 405),
    ] {
        let answer = serve.ask(method, path, &["Origin: https://app.example"], "").await;
        assert_eq!(answer.head.status, status, "{method} {path} {}", answer.head.text);
        assert_eq!(answer.head.header("access-control-allow-origin"), Some("https://app.example"));
        assert!(answer.head.header("x-request-id").is_some());
    }
    let nothing = serve.ask("GET", "/nothing", &[], "").await;
    assert_eq!(text(&nothing), "Not found");
    let health = serve.ask("GET", "/v1/health", &[], "").await;
    assert_eq!(text(&health), r#"{"status":"active"}"#);
    assert_eq!(health.head.header("cache-control"), Some("no-cache, no-store, must-revalidate"));
    let lines = ["Origin: https://app.example", "Access-Control-Request-Headers: authorization"];
    let preflight = serve.ask("OPTIONS", "/v1/shape", &lines, "").await;
    assert_eq!(preflight.head.status, 204);
    assert_eq!(preflight.head.header("access-control-max-age"), Some("86400"));
    assert_eq!(preflight.head.header("access-control-allow-headers"), Some("authorization"));
    let exposed = preflight.head.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("electric-handle") && exposed.contains("retry-after"), "{exposed}");
}

#[tokio::test]
async fn a_secret_guards_every_spelling_of_the_route() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_SECRET", "open sesame")]).await;
    for path in ["/v1/shape", "/v1//shape", "/v1/%73hape", "//v1/shape/", "/%761/shape"] {
        for secret in ["", "&secret=wrong", "&api_secret=open", "&secret="] {
            let answer = serve.ask("GET", &format!("{path}?table=items&offset=-1{secret}"), &[], "").await;
            assert_eq!(answer.head.status, 401, "{path} {secret}");
            assert_eq!(text(&answer), r#"{"message":"Unauthorized - Invalid API secret"}"#);
            assert_eq!(answer.head.header("cache-control"), Some("no-store"));
        }
        for secret in ["secret", "api_secret"] {
            let path = format!("{path}?table=items&offset=-1&{secret}=open%20sesame");
            assert_eq!(serve.ask("GET", &path, &[], "").await.head.status, 200, "{path}");
        }
    }
    assert_eq!(serve.ask("OPTIONS", "/v1/shape", &[], "").await.head.status, 204);
    assert_eq!(serve.ask("GET", "/v1/health", &[], "").await.head.status, 200);
    assert_eq!(serve.ask("DELETE", "/v1/shape?table=items", &[], "").await.head.status, 401);
    assert!(!serve.log().contains("sesame"));
}

#[tokio::test]
async fn a_shape_is_deleted_where_that_is_allowed() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_ALLOW_DELETE", "true")]).await;
    let mut reader = serve.reader(&ITEM).await;
    let deleted = serve.ask("DELETE", "/v1/shape?table=items", &[], "").await;
    assert_eq!((deleted.head.status, deleted.body.len()), (202, 0));
    assert_eq!(deleted.head.header("cache-control"), Some("no-cache"));
    assert_eq!(serve.ask("DELETE", "/v1/shape?table=items", &[], "").await.head.status, 404);
    let moved = serve.get(&reader.params()).await;
    let handle = refetched(&moved);
    assert_ne!(handle, reader.handle);
    reader = serve.reader(&ITEM).await;
    assert_eq!(reader.handle, handle);
    let by_handle = format!("/v1/shape?handle={handle}");
    assert_eq!(serve.ask("DELETE", &by_handle, &[], "").await.head.status, 202);
    assert_eq!(serve.ask("DELETE", &by_handle, &[], "").await.head.status, 404);
    assert_eq!(serve.ask("DELETE", "/v1/shape", &[], "").await.head.status, 400);
}

#[tokio::test]
async fn a_handle_deletes_no_shape_of_another_table_or_definition() {
    let place = Place::new(ITEMS);
    place.sql("CREATE TABLE others (id int PRIMARY KEY)");
    let serve = place.serve_with(&[("FOREBAY_SERVE_ALLOW_DELETE", "true")]).await;
    let delete = async |params: &[(&str, &str)]| {
        let answer = serve.ask("DELETE", &path(params), &[], "").await;
        (
            answer.head.status,
            if answer.body.is_empty() { Value::Null } else { answer.json()["message"].clone() },
        )
    };
    let few = [("table", "items"), ("where", "id < 2")];
    let (all, few_of) = (serve.reader(&ITEM).await, serve.reader(&few).await);
    let missing = (404, json!("Shape not found"));
    for (params, handle) in [
        (&[("table", "others")][..], &all.handle),
        (&[("table", "nowhere")], &all.handle),
        (&[("table", "items"), ("where", "id < 2")], &all.handle),
        (&[("table", "items"), ("columns", "id")], &all.handle),
        (&[("table", "items"), ("replica", "full")], &all.handle),
        (&[("table", "items"), ("where", "id < 3")], &few_of.handle),
    ] {
        assert_eq!(delete(&[params, &[("handle", handle)]].concat()).await, missing, "{params:?}");
    }
    for reader in [&all, &few_of] {
        assert_eq!(serve.get(&reader.params()).await.head.status, 200, "both are there");
    }
    // The table alone says enough about a handle; more of the definition has to fit.
    assert_eq!(delete(&[ITEM[0], ("handle", &few_of.handle)]).await, (202, Value::Null));
    let few_of = serve.reader(&few).await;
    assert_eq!(delete(&[&few[..], &[("handle", &few_of.handle)]].concat()).await, (202, Value::Null));
    assert_eq!(delete(&[ITEM[0], ("handle", &all.handle)]).await, (202, Value::Null));
    assert_eq!(delete(&[ITEM[0], ("handle", &all.handle)]).await, missing);
}

/// The handle that a 409 tells.
#[track_caller]
fn refetched(answer: &HttpResponse) -> String {
    assert_eq!(answer.head.status, 409, "{}", answer.head.text);
    assert_eq!(text(answer), r#"[{"headers":{"control":"must-refetch"}}]"#);
    assert_eq!(answer.head.header("cache-control"), Some("public, max-age=60, must-revalidate"));
    answer.head.header("electric-handle").unwrap().to_owned()
}

#[tokio::test]
async fn a_handle_that_doesn_t_fit_leads_to_one_that_does() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let reader = serve.reader(&ITEM).await;
    let other = serve.reader(&[("table", "items"), ("where", "id = 1")]).await;
    let ask = async |handle: &str, offset: &str| {
        serve.get(&[("table", "items"), ("offset", offset), ("handle", handle)]).await
    };
    assert_eq!(refetched(&ask("1-2", "0_0").await), reader.handle);
    assert_eq!(refetched(&ask("1-2", "0_inf").await), reader.handle);
    assert_eq!(refetched(&ask(&other.handle, "0_0").await), reader.handle);
    let live = [("table", "items"), ("offset", "0_0"), ("handle", "1-2"), ("live", "true")];
    assert_eq!(refetched(&serve.get(&live).await), reader.handle);
    // Where there was none, one is made.
    let new = [("table", "items"), ("where", "id = 2"), ("offset", "0_0"), ("handle", "1-2")];
    let handle = refetched(&serve.get(&new).await);
    assert_eq!(serve.reader(&new[..2]).await.handle, handle);
    // The same shape in other words.
    let same = serve.reader(&[("table", "\"public\".ITEMS"), ("where", "(ID)  =  1")]);
    assert_eq!(same.await.handle, other.handle);
}

async fn invalid(serve: &Serve, params: &[(&str, &str)]) -> Value {
    let answer = serve.get(params).await;
    assert_eq!(answer.head.status, 400, "{params:?}: {} {}", answer.head.text, text(&answer));
    assert_eq!(answer.head.header("cache-control"), Some("no-store"));
    assert_eq!(answer.head.header("surrogate-control"), Some("no-store"));
    let body = answer.json();
    assert_eq!(body["message"], "Invalid request");
    body["errors"].clone()
}

#[tokio::test]
async fn what_is_wrong_is_said_all_at_once() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "200")]).await;
    let errors = invalid(&serve, &[]).await;
    assert_eq!(errors, json!({"table": ["can't be blank"], "offset": ["can't be blank"]}));
    let errors =
        invalid(&serve, &[("table", "items"), ("offset", "x"), ("replica", "half"), ("log", "x")]).await;
    let expected =
        json!({"offset": ["has invalid format"], "replica": ["is invalid"], "log": ["is invalid"]});
    assert_eq!(errors, expected);
    let errors = invalid(&serve, &[("table", "items"), ("offset", "0_0")]).await;
    assert_eq!(errors, json!({"handle": ["can't be blank when offset != -1"]}));
    for (params, field) in [
        (&[("table", "nothing"), ("offset", "-1")][..], "table"),
        (&[("table", "a.b.c"), ("offset", "-1")], "table"),
        (&[("table", "items"), ("offset", "-1"), ("live", "")], "live"),
        (&[("table", "items"), ("offset", "now"), ("live", "true")], "live"),
        (&[("table", "items"), ("offset", "-1"), ("live_sse", "true")], "live_sse"),
        (&[("table", "items"), ("offset", "-1"), ("columns", "note")], "columns"),
        (&[("table", "items"), ("offset", "-1"), ("columns", "id,nothing")], "columns"),
        (&[("table", "items"), ("offset", "-1"), ("where", "nothing = 1")], "where"),
        (&[("table", "items"), ("offset", "-1"), ("where", "id = $1")], "where"),
        (&[("table", "items"), ("offset", "-1"), ("where", "id = $2"), ("params[2]", "1")], "params"),
        (&[("table", "items"), ("offset", "-1"), ("where", "id = $1"), ("params[1]", "x")], "where"),
        (&[("table", "items"), ("offset", "-1"), ("where", "random() < 1")], "where"),
        (
            &[("table", "items"), ("offset", "-1"), ("queryable_columns", "id"), ("columns", "id,note")],
            "columns",
        ),
    ] {
        let errors = invalid(&serve, params).await;
        assert!(errors[field].is_array(), "{params:?}: {errors}");
    }
    let syntax = invalid(&serve, &[("table", "items"), ("offset", "-1"), ("where", "id = = 1")]).await;
    let said = syntax["where"][0].as_str().unwrap();
    assert!(said.contains("syntax error at or near \"=\"") && said.contains("At location 20"), "{said}");
    let reader = serve.reader(&ITEM).await;
    let far = "999999999999999_0";
    let beyond = [("table", "items"), ("offset", far), ("handle", &*reader.handle)];
    let expected = json!({"offset": ["out of bounds for this shape"]});
    assert_eq!(invalid(&serve, &beyond).await, expected);
    assert_eq!(invalid(&serve, &[&beyond[..], &[("live", "true")]].concat()).await, expected);
}

#[tokio::test]
async fn an_open_address_of_this_machine_answers_to_its_own_names_only() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let ask = async |serve: &Serve, path: &str, host: &str| {
        let mut client = HttpConnection::connect(serve.addr).await;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n")).await;
        client.response().await
    };
    const SHAPE: &str = "/v1/shape?table=items&offset=-1";
    let serve = place.serve().await;
    // What a page of somebody else's can do: a name of its own that points here.
    let refused = ask(&serve, SHAPE, "rebound.example:3000").await;
    assert_eq!(refused.head.status, 403, "{}", refused.head.text);
    assert!(refused.json()["message"].as_str().unwrap().contains("serve.secret"));
    assert_eq!(ask(&serve, "/v1/health", "rebound.example:3000").await.head.status, 200);
    for host in ["localhost:3000", "127.0.0.1:3000", "[::1]:3000", "app.localhost:5173"] {
        assert_eq!(ask(&serve, SHAPE, host).await.head.status, 200, "{host}");
    }
    drop(serve);
    // Whoever must show something, or needn't by somebody's word, may call it as he likes.
    let guarded = place.serve_with(&[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let shown = format!("{SHAPE}&secret=s3cret");
    assert_eq!(ask(&guarded, &shown, "app.example").await.head.status, 200);
    drop(guarded);
    let insecure = place.serve_with(&[("FOREBAY_SERVE_INSECURE", "true")]).await;
    assert_eq!(ask(&insecure, SHAPE, "app.example").await.head.status, 200);
}

#[tokio::test]
async fn a_clause_that_postgres_refuses_is_refused_for_changes_alone_too() {
    // It is taken by our own reading of it; here it means something else.
    let place = Place::new(
        "CREATE TABLE items (id int PRIMARY KEY, note varchar);
         CREATE FUNCTION pg_catalog.lower(varchar) RETURNS point LANGUAGE sql IMMUTABLE AS 'SELECT point(1, 1)'",
    );
    let serve = place.serve().await;
    for log in ["full", "changes_only"] {
        let shape = [("table", "items"), ("where", "lower(note) = 'a'"), ("log", log), ("offset", "-1")];
        let refused = serve.get(&shape).await;
        assert_eq!(refused.head.status, 400, "{log}: {} {}", refused.head.text, text(&refused));
        let words = &refused.json()["errors"]["where"][0];
        assert!(words.as_str().unwrap().contains("operator does not exist"), "{log}: {words}");
    }
}

#[tokio::test]
async fn a_snapshot_without_rows_says_so() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    for (shape, has_data) in [
        (&[("table", "items")][..], "true"),
        (&[("table", "items"), ("where", "id > 9")], "false"),
        (&[("table", "items"), ("log", "changes_only")], "false"),
    ] {
        let answer = serve.get(&[shape, &[("offset", "-1")]].concat()).await;
        assert_eq!(answer.head.header("electric-has-data"), Some(has_data), "{shape:?}: {}", text(&answer));
    }
}

#[tokio::test]
async fn an_offset_beyond_the_end_is_waited_for_half_as_long_as_a_change() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "12000")]).await;
    let reader = serve.reader(&ITEM).await;
    let beyond = [("table", "items"), ("offset", "999999999999999_0"), ("handle", &*reader.handle)];
    let asked = [beyond.to_vec(), [&beyond[..], &[("live", "true")]].concat()];
    let begun = Instant::now();
    let (first, second) = tokio::join!(serve.get(&asked[0]), serve.get(&asked[1]));
    let took = begun.elapsed();
    assert_eq!((first.head.status, second.head.status), (400, 400), "{}", first.head.text);
    assert!((Duration::from_secs(6)..Duration::from_secs(12)).contains(&took), "{took:?}");
    // One that is reached meanwhile is answered.
    let soon: u64 = place.ask("SELECT pg_current_wal_insert_lsn() - '0/0'").unwrap().parse().unwrap();
    let soon = format!("{}_0", soon + 1);
    let path = path(&[("table", "items"), ("offset", &soon), ("handle", &reader.handle)]);
    let mut waiting = HttpConnection::get(serve.addr, &path, &[]).await;
    place.sql("INSERT INTO items VALUES (7, 'seven', 7)");
    assert_eq!(waiting.head().await.status, 200);
}
