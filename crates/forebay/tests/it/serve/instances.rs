//! Serving while the database is down, and while another instance has the lock.

use forebay_sandbox::Postgres;
use rustix::process::Signal;
use serde_json::json;

use super::support::{ServeFixture, ShapeReader, summarize};
use crate::wire::until;

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
/// Short intervals, for fast tests.
const SHORT_INTERVALS: [(&str, &str); 3] = [
    ("FOREBAY_SERVE_LONG_POLL_MS", "1000"),
    ("FOREBAY_DATABASE_LOCK_CHECK_MS", "1000"),
    ("FOREBAY_DATABASE_LOCK_SILENCE_MS", "10000"),
];

fn postgres() -> &'static Postgres {
    Box::leak(Box::new(Postgres::start().unwrap()))
}

#[tokio::test]
async fn shapes_are_served_while_the_database_is_down() {
    let fixture = ServeFixture::on_postgres(postgres(), CREATE_ITEMS);
    let serve = fixture.serve_with(&SHORT_INTERVALS).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    fixture.postgres.stop().unwrap();
    let mut again = ShapeReader::new(&ITEMS_SHAPE);
    assert_eq!(summarize(&again.catch_up(&serve).await), ["insert 1"], "the stored shape is served");
    assert_eq!(again.handle, reader.handle);
    assert_eq!(reader.long_poll(&serve).await.len(), 1);
    let other = [("table", "items"), ("where", "id > 0"), ("offset", "-1")];
    let refused = serve.get(&other).await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    assert_eq!(refused.json()["code"], "database_unreachable", "{}", refused.json());
    assert_eq!(refused.head.header("retry-after"), Some("10"));
    assert_eq!(refused.head.header("cache-control"), Some("no-store"));
    fixture.postgres.revive().unwrap();
    serve.wait_for_health("active").await;
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 2"], "with the same handle");
    assert_eq!(reader.handle, again.handle);
}

#[tokio::test]
async fn a_server_without_a_database_at_startup_reports_it_and_retries() {
    let fixture = ServeFixture::on_postgres(postgres(), CREATE_ITEMS);
    fixture.postgres.stop().unwrap();
    let serve = fixture.spawn(&SHORT_INTERVALS);
    assert_eq!(serve.health().await, "starting");
    let health = serve.request("GET", "/v1/health", &[], "").await;
    assert_eq!(health.head.status, 202);
    let ready = serve.admin("/readyz").await;
    assert_eq!(ready.head.status, 503, "{}", String::from_utf8_lossy(&ready.body));
    until("the server has tried to connect", async || {
        let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        refused.json()["code"] == "database_unreachable"
    })
    .await;
    fixture.postgres.revive().unwrap();
    serve.wait_for_health("active").await;
    assert_eq!(summarize(&ShapeReader::new(&ITEMS_SHAPE).catch_up(&serve).await), ["insert 1"]);
}

#[tokio::test]
async fn a_wrong_password_is_logged_without_the_password() {
    let server: &'static Postgres =
        Box::leak(Box::new(Postgres::builder().password("right").start().unwrap()));
    let fixture = ServeFixture::on_postgres(server, CREATE_ITEMS);
    let url = server.url_as("postgres", "wr0ng-w0rd", &fixture.database);
    let serve = fixture.spawn(&[("FOREBAY_DATABASE_URL", &url)]);
    until("the error is logged", async || serve.log().contains("password authentication failed")).await;
    assert_eq!(serve.health().await, "starting");
    let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 503);
    assert!(!serve.log().contains("wr0ng-w0rd"));
}

#[tokio::test]
async fn a_budget_below_the_pool_size_leaves_a_connection_for_snapshots() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    // A pool of 8 would have 2 connections for metadata, which is the whole budget.
    let settings = [("FOREBAY_DATABASE_POOL_SIZE", "8"), ("FOREBAY_DATABASE_MAX_CONNECTIONS", "2")];
    let serve = fixture.serve_with(&settings).await;
    serve.reader(&ITEMS_SHAPE).await;
    let status = serve.status().await;
    let quota = |view: usize| status["reservoir"]["views"][view]["quota"].clone();
    assert_eq!((quota(0), quota(1)), (1.into(), 1.into()), "{status:#}");
}

#[tokio::test]
async fn shapes_survive_a_restart_and_a_kill() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let mut serve = fixture.serve_with(&SHORT_INTERVALS).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let handle = reader.handle.clone();
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&serve, 1).await;
    for (id, signal) in [(3, Signal::KILL), (4, Signal::TERM)] {
        serve.signal(signal);
        serve.end().await;
        fixture.sql(&format!("INSERT INTO items VALUES ({id}, 'x')"));
        serve = fixture.serve_with(&SHORT_INTERVALS).await;
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), [format!("insert {id}")]);
    }
    assert_eq!(reader.handle, handle);
    let mut all = ShapeReader::new(&ITEMS_SHAPE);
    assert_eq!(summarize(&all.catch_up(&serve).await), ["insert 1", "insert 2", "insert 3", "insert 4"]);
}

#[tokio::test]
async fn a_waiting_instance_serves_existing_shapes_and_takes_over() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let mut first = fixture.serve_with(&SHORT_INTERVALS).await;
    let mut reader = first.reader(&ITEMS_SHAPE).await;
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&first, 1).await;
    let second = fixture.spawn(&SHORT_INTERVALS);
    second.wait_for_health("waiting").await;
    assert_eq!(second.request("GET", "/v1/health", &[], "").await.head.status, 202);
    // A rolling deploy starts the second instance and waits until it is ready, then ends the first.
    let ready = second.admin("/readyz").await;
    assert_eq!((ready.head.status, &ready.body[..]), (200, &b"waiting\n"[..]));
    assert_eq!(second.status().await["ready"], json!(true));

    let mut second_reader = ShapeReader::new(&ITEMS_SHAPE);
    assert_eq!(summarize(&second_reader.catch_up(&second).await), ["insert 1", "insert 2"]);
    assert_eq!((&second_reader.handle, &second_reader.offset), (&reader.handle, &reader.offset));
    fixture.sql("INSERT INTO items VALUES (3, 'three')");
    assert_eq!(summarize(&second_reader.live_changes(&second, 1).await), ["insert 3"]);
    let mut events = second.events(&second_reader).await;
    fixture.sql("INSERT INTO items VALUES (4, 'four')");
    assert_eq!(summarize(&events.until_up_to_date().await.0), ["insert 4"]);
    let new = second.get(&[("table", "items"), ("where", "id = 1"), ("offset", "-1")]).await;
    assert_eq!((new.head.status, new.head.header("retry-after")), (503, Some("5")), "{}", new.head.text);
    let logged = second.wait_for_log("request failed");
    assert_eq!(logged["request"].as_str(), new.head.header("x-request-id"), "{logged}");
    assert_eq!((&logged["status"], &logged["reason"]), (&json!(503), &json!("not_ready")));
    // A request for a shape that the other instance has just created waits for it.
    let clause = [("table", "items"), ("where", "id > 3")];
    let created = first.reader(&clause).await;
    assert_eq!(second.get(&created.params()).await.head.status, 200);

    first.signal(Signal::KILL);
    first.end().await;
    fixture.sql("INSERT INTO items VALUES (5, 'five')");
    second.wait_for_health("active").await;
    assert_eq!(summarize(&reader.live_changes(&second, 3).await), ["insert 3", "insert 4", "insert 5"]);
    assert_eq!(summarize(&second_reader.live_changes(&second, 2).await), ["insert 4", "insert 5"]);
    assert_eq!(
        summarize(&events.until_up_to_date().await.0),
        ["insert 5"],
        "the stream continues through the takeover"
    );
    assert_eq!(reader.handle, second_reader.handle);
    let mut created = created;
    assert_eq!(summarize(&created.live_changes(&second, 1).await), ["insert 5"]);
    let status = second.status().await;
    assert_eq!(status["shapes"]["writes"], json!(true));
}

#[tokio::test]
async fn an_idle_server_is_active_and_reconnects_at_a_request() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture
        .serve_with(&[&SHORT_INTERVALS[..], &[("FOREBAY_DATABASE_IDLE_TIMEOUT_MS", "300")]].concat())
        .await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let connections = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        fixture.database
    );
    until("all connections are closed", async || fixture.query_value(&connections).as_deref() == Some("0"))
        .await;
    assert_eq!(serve.health().await, "active");
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 2"]);
    until("all connections are closed again", async || {
        fixture.query_value(&connections).as_deref() == Some("0")
    })
    .await;
    let mut other = ShapeReader::new(&[("table", "items"), ("where", "id = 2")]);
    assert_eq!(summarize(&other.catch_up(&serve).await), ["insert 2"]);
}

#[tokio::test]
async fn a_waiting_instance_reports_no_shape_as_gone_that_it_has_not_read_yet() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let first = fixture.serve_with(&SHORT_INTERVALS).await;
    let second = fixture.spawn(&SHORT_INTERVALS);
    second.wait_for_health("waiting").await;
    let clauses: Vec<_> = (0..10).map(|id| format!("id > {id}")).collect();
    for clause in &clauses {
        let reader = first.reader(&[("table", "items"), ("where", clause)]).await;
        let response = second.get(&reader.params()).await;
        assert_eq!(response.head.status, 200, "{}", response.head.text);
    }
    let head_for = async |handle: &str| {
        second.get(&[("table", "items"), ("offset", "0_0"), ("handle", handle)]).await.head
    };
    let newer = head_for("1-99999999999999999").await;
    assert_eq!((newer.status, newer.header("retry-after")), (503, Some("5")), "{}", newer.text);
    // The waiting instance has read all older handles.
    assert_eq!(head_for("1-1").await.status, 409);
    assert_eq!(head_for("none").await.status, 409);
}

const ALLOW_DELETE: (&str, &str) = ("FOREBAY_SERVE_ALLOW_DELETE", "true");

#[tokio::test]
async fn only_the_writing_instance_deletes_a_shape_and_no_instance_calls_it_missing() {
    let fixture = ServeFixture::on_postgres(postgres(), CREATE_ITEMS);
    let settings = [&SHORT_INTERVALS[..], &[ALLOW_DELETE]].concat();
    let first = fixture.serve_with(&settings).await;
    let reader = first.reader(&ITEMS_SHAPE).await;
    let second = fixture.spawn(&settings);
    second.wait_for_health("waiting").await;
    let by_handle = format!("/v1/shape?handle={}", reader.handle);
    for path in [by_handle.as_str(), "/v1/shape?table=items"] {
        let refused = second.request("DELETE", path, &[], "").await;
        let retry = refused.head.header("retry-after");
        assert_eq!((refused.head.status, retry), (503, Some("5")), "{path}: {}", refused.head.text);
    }
    fixture.postgres.stop().unwrap();
    until("the writer has lost its connection", async || first.health().await == "starting").await;
    let refused = first.request("DELETE", &by_handle, &[], "").await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    assert!(refused.head.header("retry-after").is_some());
    fixture.postgres.revive().unwrap();
    until("the writing instance deletes the shape", async || {
        let first = first.request("DELETE", &by_handle, &[], "").await.head.status;
        let second = second.request("DELETE", &by_handle, &[], "").await.head.status;
        assert!(![first, second].contains(&404), "{first} {second}");
        [first, second].contains(&202)
    })
    .await;
}

#[tokio::test]
async fn an_idle_server_reconnects_to_delete_a_shape() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let idle = ("FOREBAY_DATABASE_IDLE_TIMEOUT_MS", "300");
    let serve = fixture.serve_with(&[&SHORT_INTERVALS[..], &[idle, ALLOW_DELETE]].concat()).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    until("the server is idle", async || serve.status().await["shapes"]["writes"] == json!(false)).await;
    let path = format!("/v1/shape?handle={}", reader.handle);
    assert_eq!(serve.request("DELETE", &path, &[], "").await.head.status, 202);
    assert_eq!(serve.request("DELETE", &path, &[], "").await.head.status, 404);
}
