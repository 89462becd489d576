//! The protocol of requests that don't wait: statuses, headers, bodies, errors.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, path, summarize};
use crate::wire::{HttpConnection, HttpResponse};

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text, price numeric(6,2));
    INSERT INTO items VALUES (1, 'one', 1.50), (2, NULL, 2)";

const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
const FROM_START: [(&str, &str); 2] = [("table", "items"), ("offset", "-1")];

/// Returns the body as text.
fn text(response: &HttpResponse) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

#[tokio::test]
async fn a_snapshot_is_followed_by_the_log_up_to_its_end() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let response = serve.get(&FROM_START).await;
    assert_eq!(response.head.status, 200, "{}", response.head.text);
    let header = |name| response.head.header(name);
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

    let mut reader = ShapeReader::new(&ITEMS_SHAPE);
    let messages = reader.accept(&response);
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
    let messages = reader.accept(&tail);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["headers"]["control"], "up-to-date");
    messages[0]["headers"]["global_last_seen_lsn"].as_str().unwrap().parse::<u64>().unwrap();
}

#[tokio::test]
async fn a_change_has_operation_position_and_transaction() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let mut full = serve.reader(&[("table", "items"), ("replica", "full")]).await;
    assert_ne!(reader.handle, full.handle);
    let xid = fixture.query_value(
        "BEGIN; INSERT INTO items VALUES (3, 'three', 3); UPDATE items SET note = 'uno' WHERE id = 1;
         UPDATE items SET id = 20 WHERE id = 2; UPDATE items SET price = price WHERE id = 3;
         DELETE FROM items WHERE id = 1; SELECT pg_current_xact_id(); COMMIT",
    );
    let messages = reader.live_changes(&serve, 5).await;
    assert_eq!(summarize(&messages), ["insert 3", "update 1", "delete 2", "insert 20", "delete 1"]);
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
async fn chunk_boundaries_are_the_same_for_every_client() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    fixture.sql("INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series(1, 20) i");
    let serve = fixture.serve_with(&[("FOREBAY_STORAGE_CHUNK_BYTES", "2048")]).await;
    let mut reader = ShapeReader::new(&ITEMS_SHAPE);
    let (mut offsets, mut rows) = (Vec::new(), 0);
    loop {
        let response = serve.get(&reader.params()).await;
        rows += changes(&reader.accept(&response)).len();
        offsets.push(reader.offset.clone());
        if response.head.header("electric-up-to-date").is_some() {
            break;
        }
        assert!(response.body.len() < 2048 + 400, "{}", response.body.len());
    }
    assert_eq!(rows, 20);
    assert!(offsets.len() > 3 && offsets[..3] == ["0_0", "0_1", "0_2"], "{offsets:?}");

    for from in [21, 26, 31] {
        fixture.sql(&format!(
            "INSERT INTO items SELECT i, repeat('y', 200) FROM generate_series({from}, {from} + 4) i"
        ));
    }
    let mut live = reader.clone();
    let messages = live.live_changes(&serve, 15).await;
    let first_lsn = messages[0]["headers"]["lsn"].as_str().unwrap();
    let mut chunks = Vec::new();
    let mut first = reader.clone();
    while first.offset != live.offset {
        let response = serve.get(&first.params()).await;
        first.accept(&response);
        chunks.push((first.offset.clone(), response.head.header("electric-up-to-date").is_some()));
    }
    assert!(chunks.len() > 1 && chunks[..chunks.len() - 1].iter().all(|(_, is_end)| !is_end), "{chunks:?}");
    // A client at another offset, with a longer log, gets the same boundaries.
    fixture.sql("INSERT INTO items VALUES (40, 'z')");
    live.live_changes(&serve, 1).await;
    let mut second = reader.clone();
    second.offset = format!("{first_lsn}_2");
    second.accept(&serve.get(&second.params()).await);
    assert_eq!(second.offset, chunks[0].0);
    let again = serve.get(&reader.params()).await;
    assert_eq!(again.head.header("electric-offset"), Some(&*chunks[0].0));
}

#[tokio::test]
async fn offset_now_is_the_end_of_the_log() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("INSERT INTO items VALUES (3, 'three', 3)");
    reader.live_changes(&serve, 1).await;
    let now = serve.get(&[("table", "items"), ("offset", "now"), ("handle", "whatever")]).await;
    assert_eq!(now.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(now.head.header("electric-handle"), Some(&*reader.handle));
    assert_eq!(now.head.header("electric-up-to-date"), Some(""));
    assert_eq!(now.head.header("cache-control"), Some("public, max-age=60, stale-while-revalidate=300"));
    assert!(now.head.header("electric-schema").is_some());
    assert_eq!(now.json().as_array().unwrap().len(), 1);
    // `now` also works for a new shape.
    let other = [("table", "items"), ("where", "id > 2"), ("offset", "now")];
    let mut other_reader = ShapeReader::new(&other[..2]);
    assert_eq!(other_reader.accept(&serve.get(&other).await).len(), 1);
    fixture.sql("UPDATE items SET note = 'drei' WHERE id = 3");
    assert_eq!(summarize(&other_reader.live_changes(&serve, 1).await), ["update 3"]);
}

#[tokio::test]
async fn head_requests_etags_and_compression_follow_http() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    fixture.sql("INSERT INTO items SELECT i, repeat('wide ', 50), i FROM generate_series(3, 400) i");
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "300")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let whole = serve.get(&FROM_START).await;
    let tag = whole.head.header("etag").unwrap().to_owned();
    assert_eq!(tag, format!("\"{}:-1:0_0\"", reader.handle));
    let cached = serve.request("GET", &path(&FROM_START), &[&format!("If-None-Match: {tag}")], "").await;
    assert_eq!((cached.head.status, cached.body.len()), (304, 0), "{}", cached.head.text);
    for name in ["electric-handle", "electric-offset", "electric-schema", "etag", "cache-control"] {
        assert_eq!(cached.head.header(name), whole.head.header(name), "{name}");
    }
    // A response without changes is valid until the next change, except that of a live request.
    let now = [("table", "items"), ("offset", "now")];
    let live = [reader.params(), vec![("live", "true")]].concat();
    for (params, status) in [(&reader.params()[..], 304), (&now, 304), (&live, 200)] {
        let tag = serve.get(params).await.head.header("etag").unwrap().to_owned();
        let again = serve.request("GET", &path(params), &[&format!("If-None-Match: {tag}")], "").await;
        assert_eq!(again.head.status, status, "{params:?} {}", again.head.text);
        assert_eq!(again.head.header("electric-up-to-date"), Some(""), "{}", again.head.text);
        if status == 304 {
            assert_eq!((again.head.header("etag"), again.body.len()), (Some(&*tag), 0));
        }
    }

    let head = serve.head(&FROM_START).await;
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
        let compressed = gzip(&FROM_START, accepts).await;
        assert_eq!(compressed.head.header("content-encoding"), Some("gzip"), "{accepts}");
        assert_eq!(compressed.head.header("vary"), Some("accept-encoding"));
        assert!(compressed.body.len() < whole.body.len() / 4, "{} bytes", compressed.body.len());
        assert_eq!(unzipped(&compressed.body), whole.body);
        assert_ne!(compressed.head.header("etag"), Some(&*tag), "other bytes have another etag");
    }
    for accepts in ["identity", "gzip;q=0", "*;q=0", "br", "gzip;q=0, *"] {
        let plain = gzip(&FROM_START, accepts).await;
        assert_eq!(plain.head.header("content-encoding"), None, "{accepts}");
        assert_eq!(plain.body, whole.body);
    }
    let events = [live, vec![("live_sse", "true")]].concat();
    let head = serve.head(&events).await;
    assert_eq!(head.status, 200, "HEAD of an event stream ends at once: {}", head.text);
    let mut client = HttpConnection::get(serve.addr, &path(&events), &["Accept-Encoding: gzip"]).await;
    assert_eq!(client.head().await.header("content-encoding"), None, "events are never compressed");
}

/// Decompresses gzip.
fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    plain
}

#[tokio::test]
async fn every_route_has_its_methods_and_cors_headers() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/v1/health", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/shape/x", 404),
        ("PUT", "/v1/shape", 405),
        ("DELETE", "/v1/shape?table=items", 405),
        ("POST", "/v1/health", 405),
    ] {
        let response = serve.request(method, path, &["Origin: https://app.example"], "").await;
        assert_eq!(response.head.status, status, "{method} {path} {}", response.head.text);
        assert_eq!(response.head.header("access-control-allow-origin"), Some("https://app.example"));
        assert!(response.head.header("x-request-id").is_some());
    }
    let nothing = serve.request("GET", "/nothing", &[], "").await;
    assert_eq!(text(&nothing), "Not found");
    let health = serve.request("GET", "/v1/health", &[], "").await;
    assert_eq!(text(&health), r#"{"status":"active"}"#);
    assert_eq!(health.head.header("cache-control"), Some("no-cache, no-store, must-revalidate"));
    let lines = ["Origin: https://app.example", "Access-Control-Request-Headers: authorization"];
    let preflight = serve.request("OPTIONS", "/v1/shape", &lines, "").await;
    assert_eq!(preflight.head.status, 204);
    assert_eq!(preflight.head.header("access-control-max-age"), Some("86400"));
    assert_eq!(preflight.head.header("access-control-allow-headers"), Some("authorization"));
    let exposed = preflight.head.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("electric-handle") && exposed.contains("retry-after"), "{exposed}");
}

#[tokio::test]
async fn a_secret_guards_every_spelling_of_the_route() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_SECRET", "open sesame")]).await;
    for path in ["/v1/shape", "/v1//shape", "/v1/%73hape", "//v1/shape/", "/%761/shape"] {
        for secret in ["", "&secret=wrong", "&api_secret=open", "&secret="] {
            let response =
                serve.request("GET", &format!("{path}?table=items&offset=-1{secret}"), &[], "").await;
            assert_eq!(response.head.status, 401, "{path} {secret}");
            assert_eq!(text(&response), r#"{"message":"Unauthorized - Invalid API secret"}"#);
            assert_eq!(response.head.header("cache-control"), Some("no-store"));
        }
        for secret in ["secret", "api_secret"] {
            let path = format!("{path}?table=items&offset=-1&{secret}=open%20sesame");
            assert_eq!(serve.request("GET", &path, &[], "").await.head.status, 200, "{path}");
        }
    }
    assert_eq!(serve.request("OPTIONS", "/v1/shape", &[], "").await.head.status, 204);
    assert_eq!(serve.request("GET", "/v1/health", &[], "").await.head.status, 200);
    assert_eq!(serve.request("DELETE", "/v1/shape?table=items", &[], "").await.head.status, 401);
    assert!(!serve.log().contains("sesame"));
}

#[tokio::test]
async fn a_shape_can_be_deleted_if_that_is_allowed() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_ALLOW_DELETE", "true")]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let deleted = serve.request("DELETE", "/v1/shape?table=items", &[], "").await;
    assert_eq!((deleted.head.status, deleted.body.len()), (202, 0));
    assert_eq!(deleted.head.header("cache-control"), Some("no-cache"));
    assert_eq!(serve.request("DELETE", "/v1/shape?table=items", &[], "").await.head.status, 404);
    let moved = serve.get(&reader.params()).await;
    let handle = refetch_handle(&moved);
    assert_ne!(handle, reader.handle);
    reader = serve.reader(&ITEMS_SHAPE).await;
    assert_eq!(reader.handle, handle);
    let by_handle = format!("/v1/shape?handle={handle}");
    assert_eq!(serve.request("DELETE", &by_handle, &[], "").await.head.status, 202);
    assert_eq!(serve.request("DELETE", &by_handle, &[], "").await.head.status, 404);
    assert_eq!(serve.request("DELETE", "/v1/shape", &[], "").await.head.status, 400);
}

#[tokio::test]
async fn a_handle_deletes_no_shape_of_another_table_or_definition() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    fixture.sql("CREATE TABLE others (id int PRIMARY KEY)");
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_ALLOW_DELETE", "true")]).await;
    let delete = async |params: &[(&str, &str)]| {
        let response = serve.request("DELETE", &path(params), &[], "").await;
        (
            response.head.status,
            if response.body.is_empty() { Value::Null } else { response.json()["message"].clone() },
        )
    };
    let few = [("table", "items"), ("where", "id < 2")];
    let (all, few_of) = (serve.reader(&ITEMS_SHAPE).await, serve.reader(&few).await);
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
        assert_eq!(serve.get(&reader.params()).await.head.status, 200, "both shapes still exist");
    }
    // The table and the handle are enough; further parameters must match the shape.
    assert_eq!(delete(&[ITEMS_SHAPE[0], ("handle", &few_of.handle)]).await, (202, Value::Null));
    let few_of = serve.reader(&few).await;
    assert_eq!(delete(&[&few[..], &[("handle", &few_of.handle)]].concat()).await, (202, Value::Null));
    assert_eq!(delete(&[ITEMS_SHAPE[0], ("handle", &all.handle)]).await, (202, Value::Null));
    assert_eq!(delete(&[ITEMS_SHAPE[0], ("handle", &all.handle)]).await, missing);
}

/// Checks a 409 and returns the new handle in it.
#[track_caller]
fn refetch_handle(response: &HttpResponse) -> String {
    assert_eq!(response.head.status, 409, "{}", response.head.text);
    assert_eq!(text(response), r#"[{"headers":{"control":"must-refetch"}}]"#);
    assert_eq!(response.head.header("cache-control"), Some("public, max-age=60, must-revalidate"));
    response.head.header("electric-handle").unwrap().to_owned()
}

#[tokio::test]
async fn a_wrong_handle_gets_a_409_with_the_right_one() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let other = serve.reader(&[("table", "items"), ("where", "id = 1")]).await;
    let get = async |handle: &str, offset: &str| {
        serve.get(&[("table", "items"), ("offset", offset), ("handle", handle)]).await
    };
    assert_eq!(refetch_handle(&get("1-2", "0_0").await), reader.handle);
    assert_eq!(refetch_handle(&get("1-2", "0_inf").await), reader.handle);
    assert_eq!(refetch_handle(&get(&other.handle, "0_0").await), reader.handle);
    let live = [("table", "items"), ("offset", "0_0"), ("handle", "1-2"), ("live", "true")];
    assert_eq!(refetch_handle(&serve.get(&live).await), reader.handle);
    // If there is no such shape, one is created.
    let new = [("table", "items"), ("where", "id = 2"), ("offset", "0_0"), ("handle", "1-2")];
    let handle = refetch_handle(&serve.get(&new).await);
    assert_eq!(serve.reader(&new[..2]).await.handle, handle);
    // The same shape, spelled differently.
    let same = serve.reader(&[("table", "\"public\".ITEMS"), ("where", "(ID)  =  1")]);
    assert_eq!(same.await.handle, other.handle);
}

/// Checks a 400 and returns its errors.
async fn invalid_request(serve: &ServeProcess, params: &[(&str, &str)]) -> Value {
    let response = serve.get(params).await;
    assert_eq!(response.head.status, 400, "{params:?}: {} {}", response.head.text, text(&response));
    assert_eq!(response.head.header("cache-control"), Some("no-store"));
    assert_eq!(response.head.header("surrogate-control"), Some("no-store"));
    let body = response.json();
    assert_eq!(body["message"], "Invalid request");
    body["errors"].clone()
}

#[tokio::test]
async fn all_errors_of_a_request_are_reported_together() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "200")]).await;
    let errors = invalid_request(&serve, &[]).await;
    assert_eq!(errors, json!({"table": ["can't be blank"], "offset": ["can't be blank"]}));
    let errors =
        invalid_request(&serve, &[("table", "items"), ("offset", "x"), ("replica", "half"), ("log", "x")])
            .await;
    let expected =
        json!({"offset": ["has invalid format"], "replica": ["is invalid"], "log": ["is invalid"]});
    assert_eq!(errors, expected);
    let errors = invalid_request(&serve, &[("table", "items"), ("offset", "0_0")]).await;
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
        let errors = invalid_request(&serve, params).await;
        assert!(errors[field].is_array(), "{params:?}: {errors}");
    }
    let syntax =
        invalid_request(&serve, &[("table", "items"), ("offset", "-1"), ("where", "id = = 1")]).await;
    let reason = syntax["where"][0].as_str().unwrap();
    assert!(
        reason.contains("syntax error at or near \"=\"") && reason.contains("At location 20"),
        "{reason}"
    );
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let far = "999999999999999_0";
    let beyond = [("table", "items"), ("offset", far), ("handle", &*reader.handle)];
    let expected = json!({"offset": ["out of bounds for this shape"]});
    assert_eq!(invalid_request(&serve, &beyond).await, expected);
    assert_eq!(invalid_request(&serve, &[&beyond[..], &[("live", "true")]].concat()).await, expected);
}

#[tokio::test]
async fn a_loopback_server_without_a_secret_refuses_foreign_host_names() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let get_with_host = async |serve: &ServeProcess, path: &str, host: &str| {
        let mut client = HttpConnection::connect(serve.addr).await;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n")).await;
        client.response().await
    };
    const SHAPE: &str = "/v1/shape?table=items&offset=-1";
    let serve = fixture.serve().await;
    // A foreign page can use a DNS name that resolves to this machine.
    let refused = get_with_host(&serve, SHAPE, "rebound.example:3000").await;
    assert_eq!(refused.head.status, 403, "{}", refused.head.text);
    assert!(refused.json()["message"].as_str().unwrap().contains("serve.secret"));
    assert_eq!(get_with_host(&serve, "/v1/health", "rebound.example:3000").await.head.status, 200);
    for host in ["localhost:3000", "127.0.0.1:3000", "[::1]:3000", "app.localhost:5173"] {
        assert_eq!(get_with_host(&serve, SHAPE, host).await.head.status, 200, "{host}");
    }
    drop(serve);
    // With a secret, or with `insecure`, any host name is allowed.
    let guarded = fixture.serve_with(&[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let with_secret = format!("{SHAPE}&secret=s3cret");
    assert_eq!(get_with_host(&guarded, &with_secret, "app.example").await.head.status, 200);
    drop(guarded);
    let insecure = fixture.serve_with(&[("FOREBAY_SERVE_INSECURE", "true")]).await;
    assert_eq!(get_with_host(&insecure, SHAPE, "app.example").await.head.status, 200);
}

#[tokio::test]
async fn a_clause_that_postgres_refuses_is_also_refused_for_changes_only() {
    // The filter accepts the clause, but this function gives it another meaning in Postgres.
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, note varchar);
         CREATE FUNCTION pg_catalog.lower(varchar) RETURNS point LANGUAGE sql IMMUTABLE AS 'SELECT point(1, 1)'",
    );
    let serve = fixture.serve().await;
    for log in ["full", "changes_only"] {
        let shape = [("table", "items"), ("where", "lower(note) = 'a'"), ("log", log), ("offset", "-1")];
        let refused = serve.get(&shape).await;
        assert_eq!(refused.head.status, 400, "{log}: {} {}", refused.head.text, text(&refused));
        let reason = &refused.json()["errors"]["where"][0];
        assert!(reason.as_str().unwrap().contains("operator does not exist"), "{log}: {reason}");
    }
}

#[tokio::test]
async fn has_data_tells_whether_a_snapshot_has_rows() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    for (shape, has_data) in [
        (&[("table", "items")][..], "true"),
        (&[("table", "items"), ("where", "id > 9")], "false"),
        (&[("table", "items"), ("log", "changes_only")], "false"),
    ] {
        let response = serve.get(&[shape, &[("offset", "-1")]].concat()).await;
        assert_eq!(
            response.head.header("electric-has-data"),
            Some(has_data),
            "{shape:?}: {}",
            text(&response)
        );
    }
}

#[tokio::test]
async fn an_offset_beyond_the_end_waits_half_as_long_as_a_long_poll() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "12000")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let beyond = [("table", "items"), ("offset", "999999999999999_0"), ("handle", &*reader.handle)];
    let requests = [beyond.to_vec(), [&beyond[..], &[("live", "true")]].concat()];
    let started = Instant::now();
    let (first, second) = tokio::join!(serve.get(&requests[0]), serve.get(&requests[1]));
    let took = started.elapsed();
    assert_eq!((first.head.status, second.head.status), (400, 400), "{}", first.head.text);
    assert!((Duration::from_secs(6)..Duration::from_secs(12)).contains(&took), "{took:?}");
    // A request whose offset is reached meanwhile is answered.
    let soon: u64 =
        fixture.query_value("SELECT pg_current_wal_insert_lsn() - '0/0'").unwrap().parse().unwrap();
    let soon = format!("{}_0", soon + 1);
    let path = path(&[("table", "items"), ("offset", &soon), ("handle", &reader.handle)]);
    let mut waiting = HttpConnection::get(serve.addr, &path, &[]).await;
    fixture.sql("INSERT INTO items VALUES (7, 'seven', 7)");
    assert_eq!(waiting.head().await.status, 200);
}
