//! Shapes by POST: the JSON body has the parameters. Large bodies and long URLs.

use serde_json::{Value, json};

use super::support::{ServeFixture, ServeProcess, SseStream, changes, path, summarize};
use crate::wire::{HttpConnection, HttpResponse, until};

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, owner uuid, note text);
    INSERT INTO items SELECT id, ('00000000-0000-4000-8000-' || lpad(id::text, 12, '0'))::uuid, 'n' || id
    FROM generate_series(1, 2000) id";

/// Sends a POST without a query string.
async fn post(serve: &ServeProcess, body: &Value) -> HttpResponse {
    let lines = ["Content-Type: application/json"];
    serve.request("POST", "/v1/shape", &lines, &body.to_string()).await
}

/// Returns the body with the position of a response.
fn after(body: &Value, response: &HttpResponse) -> Value {
    assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
    let mut next = body.clone();
    for (name, header) in
        [("offset", "electric-offset"), ("handle", "electric-handle"), ("cursor", "electric-cursor")]
    {
        if let Some(value) = response.head.header(header) {
            next[name] = json!(value);
        }
    }
    next
}

/// Reads a shape until it is up to date. Returns its messages, and the body of the next request.
async fn catch_up(serve: &ServeProcess, body: &Value) -> (Vec<Value>, Value) {
    let (mut messages, mut body) = (Vec::new(), body.clone());
    loop {
        let response = post(serve, &body).await;
        body = after(&body, &response);
        messages.extend(response.json().as_array().unwrap().clone());
        if response.head.header("electric-up-to-date").is_some() {
            return (messages, body);
        }
    }
}

fn with(body: &Value, more: &[(&str, Value)]) -> Value {
    let mut body = body.clone();
    more.iter().for_each(|(name, value)| body[*name] = value.clone());
    body
}

fn uuids(count: u32) -> String {
    let ids: Vec<_> = (1..=count).map(|id| format!("00000000-0000-4000-8000-{id:012}")).collect();
    format!("{{{}}}", ids.join(","))
}

#[tokio::test]
async fn a_shape_by_post_is_the_same_shape_as_by_get() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let shape = [("table", "items"), ("where", "id <= $1"), ("params[1]", "2"), ("columns", "id,note")];
    let mut by_get = serve.reader(&shape).await;
    let body = json!({"table": "items", "where": "id <= $1", "params": {"1": 2}, "columns": ["id", "note"],
                      "offset": "-1"});
    let (messages, next) = catch_up(&serve, &body).await;
    assert_eq!(summarize(&messages), ["insert 1", "insert 2"]);
    assert_eq!(next["handle"], by_get.handle);
    // Long-poll.
    let live = with(&next, &[("live", json!(true))]);
    let (response, ()) = tokio::join!(post(&serve, &live), async {
        until("the request waits", async || serve.status().await["admission"]["total_connections"] == 1)
            .await;
        fixture.sql("UPDATE items SET note = 'changed' WHERE id IN (2, 3)");
    });
    assert_eq!(summarize(response.json().as_array().unwrap()), ["update 2"]);
    assert_eq!(summarize(&by_get.live_changes(&serve, 1).await), ["update 2"]);
    for name in ["etag", "surrogate-control"] {
        assert_eq!(response.head.header(name), None, "{}", response.head.text);
    }
    assert_eq!(response.head.header("cache-control"), Some("no-cache"));
    // Server-sent events.
    let live = with(&after(&next, &response), &[("live", json!(true)), ("live_sse", json!(true))]);
    let mut client = HttpConnection::connect(serve.addr).await;
    client.request("POST", "/v1/shape", &[], &live.to_string()).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")), "{}", head.text);
    assert_eq!(head.header("cache-control"), Some("no-cache"));
    let mut events = SseStream::new(client, head);
    fixture.sql("DELETE FROM items WHERE id = 1");
    assert_eq!(summarize(&events.until_up_to_date().await.0), ["delete 1"]);
    // A subset of it.
    let subset =
        with(&body, &[("subset", json!({"where": "note = 'changed'", "order_by": "id", "limit": 9}))]);
    let response = post(&serve, &subset).await;
    let rows = response.json()["data"].clone();
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]["value"]["id"]), (Some(1), &json!("2")));
    assert_eq!(response.head.header("electric-handle"), next["handle"].as_str());
    // Each parameter is in the query string or in the body.
    let twice = serve.request("POST", &path(&[("offset", "-1")]), &[], &body.to_string()).await;
    assert_eq!(twice.head.status, 400);
    assert_eq!(twice.json()["errors"]["offset"], json!(["can't be in the query string and in the body"]));
    // A replaced shape: the waiting request starts over.
    let live = with(&catch_up(&serve, &body).await.1, &[("live", json!(true))]);
    let (response, ()) = tokio::join!(post(&serve, &live), async {
        until("the request waits", async || serve.status().await["admission"]["total_connections"] == 2)
            .await;
        fixture.sql("TRUNCATE items");
    });
    assert_eq!(response.head.status, 409);
    assert_eq!(response.json()[0]["headers"]["control"], "must-refetch");
    assert_eq!(catch_up(&serve, &body).await.0.iter().filter(|row| row.get("key").is_some()).count(), 0);
}

#[tokio::test]
async fn a_live_body_takes_a_permit() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_ADMISSION_TOTAL", "1")]).await;
    let body = json!({"table": "items", "where": "id = 1", "offset": "-1"});
    let (_, next) = catch_up(&serve, &body).await;
    let live = with(&next, &[("live", json!("true"))]);
    let mut first = HttpConnection::connect(serve.addr).await;
    first.request("POST", "/v1/shape", &[], &live.to_string()).await;
    until("the first one waits", async || serve.status().await["admission"]["total_connections"] == 1).await;
    // Also with a head that isn't live, and one in which only the body is.
    for query in ["/v1/shape", "/v1/shape?x=1&secret=a"] {
        let refused = serve.request("POST", query, &[], &live.to_string()).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        assert_eq!(refused.json()["error"], "service_unavailable");
    }
    let by_query = path(&[
        ("table", "items"),
        ("where", "id = 1"),
        ("live", "true"),
        ("offset", next["offset"].as_str().unwrap()),
        ("handle", next["handle"].as_str().unwrap()),
    ]);
    for method in ["GET", "POST"] {
        assert_eq!(serve.request(method, &by_query, &[], "").await.head.status, 503, "{method}");
    }
    assert_eq!(post(&serve, &next).await.head.status, 200, "requests that don't wait need no permit");
    let subset = json!({"subset": {"where": "id = 1"}}).to_string();
    assert_eq!(serve.request("POST", &by_query, &[], &subset).await.head.status, 200, "a subset never waits");
    drop(first);
}

#[tokio::test]
async fn a_clause_with_1800_uuids_survives_a_restart() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let bodies = [
        json!({"table": "items", "where": "owner = ANY($1)", "params": {"1": uuids(1_800)}, "offset": "-1"}),
        long_clause(),
    ];
    let mut positions = Vec::new();
    for (body, rows) in bodies.iter().zip([1_800, 3]) {
        let (messages, next) = catch_up(&serve, body).await;
        assert_eq!(changes(&messages).len(), rows);
        positions.push(next);
    }
    serve.stop().await;
    let serve = fixture.serve().await;
    fixture.sql("UPDATE items SET note = 'later' WHERE id IN (3, 1900)");
    for (body, position) in bodies.iter().zip(&positions) {
        let mut messages = Vec::new();
        let mut position = position.clone();
        while messages.is_empty() {
            let response = post(&serve, &with(&position, &[("live", json!(true))])).await;
            position = after(&position, &response);
            messages = summarize(response.json().as_array().unwrap());
        }
        assert_eq!(messages, ["update 3"]);
        assert_eq!(catch_up(&serve, body).await.1["handle"], position["handle"]);
    }
    let (status, log) = (serve.status().await.to_string(), serve.log());
    assert!(status.len() < 64 << 10, "the status has {} bytes", status.len());
    assert!(!log.contains("00000000-0000-4000-8000") && !log.contains("id = 3"), "the log has values");
}

/// Returns a shape whose clause has just under 1 MiB.
fn long_clause() -> Value {
    let tail = " OR id = 3".repeat(70_000);
    let constant = "x".repeat((1 << 20) - tail.len() - 60);
    let clause = format!("id IN (1, 2) OR note = '{constant}'{tail}");
    assert!(((1 << 20) - 64..=1 << 20).contains(&clause.len()), "{}", clause.len());
    json!({"table": "items", "where": clause, "offset": "-1"})
}

#[tokio::test]
async fn bodies_are_bounded_one_by_one_and_together() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let head = |length: usize| {
        format!("POST /v1/shape HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
    };
    // The declared length is enough to refuse it.
    let mut large = HttpConnection::connect(serve.addr).await;
    large.send(head((8 << 20) + 1)).await;
    assert_eq!(large.response().await.head.status, 413);
    // Space around JSON is part of the body.
    let body = json!({"table": "items", "where": "id = 1", "offset": "-1"}).to_string();
    let padded = format!("{}{body}", " ".repeat((8 << 20) - body.len()));
    let response = serve.request("POST", "/v1/shape", &[], &padded).await;
    assert_eq!(response.head.status, 200, "{}", response.head.text);
    // Eight incomplete bodies of almost 8 MiB.
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut other = HttpConnection::connect(serve.addr).await;
        other.send(head(8 << 20)).await;
        other.send(vec![b' '; (8 << 20) - 1]).await;
        others.push(other);
    }
    let small = || serve.request("POST", "/v1/shape", &[], &body);
    until("all of them have arrived", async || small().await.head.status == 503).await;
    let refused = small().await;
    assert_eq!(refused.json()["code"], "concurrent_request_limit_exceeded");
    assert!(refused.head.header("retry-after").is_some());
    assert_eq!(
        serve.get(&[("table", "items"), ("offset", "-1")]).await.head.status,
        200,
        "a GET has no body"
    );
    others.clear();
    until("the bodies are released", async || small().await.head.status == 200).await;
}

#[tokio::test]
async fn a_url_that_is_too_long_is_refused_with_the_advice_to_use_post() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let shape =
        [("table", "items"), ("where", "owner = ANY($1)"), ("params[1]", &*uuids(1_800)), ("offset", "-1")];
    let mut client = HttpConnection::connect(serve.addr).await;
    client.request("GET", &path(&shape), &[], "").await;
    let response = client.response().await;
    assert_eq!(response.head.status, 431);
    let message = response.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("JSON body of a POST"), "{message}");
    serve.stop().await;
    let serve = fixture.serve_with(&[("FOREBAY_HTTP_MAX_HEADER_BYTES", "400000")]).await;
    let query = |bytes: usize| format!("/v1/shape?table=items&offset=-1&x={}", "x".repeat(bytes));
    for (bytes, status) in [(60_000, 200), (131_072, 414)] {
        let response = serve.request("GET", &query(bytes), &[], "").await;
        assert_eq!(response.head.status, status, "{bytes}: {}", response.head.text);
    }
}
