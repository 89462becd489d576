//! What is served while the database is away, and while another instance has the lock.

use forebay_sandbox::Postgres;
use rustix::process::Signal;
use serde_json::json;

use super::support::{Place, Reader, short};
use crate::wire::until;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEM: [(&str, &str); 1] = [("table", "items")];
/// So that a test doesn't wait for what an operator would.
const QUICK: [(&str, &str); 3] = [
    ("FOREBAY_SERVE_LONG_POLL_MS", "1000"),
    ("FOREBAY_DATABASE_LOCK_CHECK_MS", "1000"),
    ("FOREBAY_DATABASE_LOCK_SILENCE_MS", "10000"),
];

fn postgres() -> &'static Postgres {
    Box::leak(Box::new(Postgres::start().unwrap()))
}

#[tokio::test]
async fn shapes_are_served_while_the_database_is_away() {
    let place = Place::on(postgres(), ITEMS);
    let serve = place.serve_with(&QUICK).await;
    let mut reader = serve.reader(&ITEM).await;
    place.postgres.stop().unwrap();
    let mut again = Reader::new(&ITEM);
    assert_eq!(short(&again.catch_up(&serve).await), ["insert 1"], "what is there is served");
    assert_eq!(again.handle, reader.handle);
    assert_eq!(reader.live(&serve).await.len(), 1);
    let other = [("table", "items"), ("where", "id > 0"), ("offset", "-1")];
    let refused = serve.get(&other).await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    assert_eq!(refused.json()["code"], "database_unreachable", "{}", refused.json());
    assert_eq!(refused.head.header("retry-after"), Some("10"));
    assert_eq!(refused.head.header("cache-control"), Some("no-store"));
    place.postgres.revive().unwrap();
    serve.becomes("active").await;
    place.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 2"], "with the same handle");
    assert_eq!(reader.handle, again.handle);
}

#[tokio::test]
async fn without_a_database_at_its_start_a_server_says_so_and_goes_on_trying() {
    let place = Place::on(postgres(), ITEMS);
    place.postgres.stop().unwrap();
    let serve = place.spawn(&QUICK);
    assert_eq!(serve.health().await, "starting");
    let health = serve.ask("GET", "/v1/health", &[], "").await;
    assert_eq!(health.head.status, 202);
    let ready = serve.admin("/readyz").await;
    assert_eq!(ready.head.status, 503, "{}", String::from_utf8_lossy(&ready.body));
    until("it has tried", async || {
        let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        refused.json()["code"] == "database_unreachable"
    })
    .await;
    place.postgres.revive().unwrap();
    serve.becomes("active").await;
    assert_eq!(short(&Reader::new(&ITEM).catch_up(&serve).await), ["insert 1"]);
}

#[tokio::test]
async fn a_wrong_password_is_told_without_the_password() {
    let server: &'static Postgres =
        Box::leak(Box::new(Postgres::builder().password("right").start().unwrap()));
    let place = Place::on(server, ITEMS);
    let url = server.url_as("postgres", "wr0ng-w0rd", &place.database);
    let serve = place.spawn(&[("FOREBAY_DATABASE_URL", &url)]);
    until("the log says it", async || serve.log().contains("password authentication failed")).await;
    assert_eq!(serve.health().await, "starting");
    let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 503);
    assert!(!serve.log().contains("wr0ng-w0rd"));
}

#[tokio::test]
async fn shapes_survive_a_restart_and_a_kill() {
    let place = Place::new(ITEMS);
    let mut serve = place.serve_with(&QUICK).await;
    let mut reader = serve.reader(&ITEM).await;
    let handle = reader.handle.clone();
    place.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&serve, 1).await;
    for (id, signal) in [(3, Signal::KILL), (4, Signal::TERM)] {
        serve.signal(signal);
        serve.end().await;
        place.sql(&format!("INSERT INTO items VALUES ({id}, 'x')"));
        serve = place.serve_with(&QUICK).await;
        assert_eq!(short(&reader.live_changes(&serve, 1).await), [format!("insert {id}")]);
    }
    assert_eq!(reader.handle, handle);
    let mut all = Reader::new(&ITEM);
    assert_eq!(short(&all.catch_up(&serve).await), ["insert 1", "insert 2", "insert 3", "insert 4"]);
}

#[tokio::test]
async fn an_instance_that_waits_serves_what_is_there_and_takes_over() {
    let place = Place::new(ITEMS);
    let mut first = place.serve_with(&QUICK).await;
    let mut reader = first.reader(&ITEM).await;
    place.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&first, 1).await;
    let second = place.spawn(&QUICK);
    second.becomes("waiting").await;
    assert_eq!(second.ask("GET", "/v1/health", &[], "").await.head.status, 202);
    // Or no deploy that waits for the second before it ends the first would ever go on.
    let ready = second.admin("/readyz").await;
    assert_eq!((ready.head.status, &ready.body[..]), (200, &b"waiting\n"[..]));
    assert_eq!(second.status().await["ready"], json!(true));

    let mut beside = Reader::new(&ITEM);
    assert_eq!(short(&beside.catch_up(&second).await), ["insert 1", "insert 2"]);
    assert_eq!((&beside.handle, &beside.offset), (&reader.handle, &reader.offset));
    place.sql("INSERT INTO items VALUES (3, 'three')");
    assert_eq!(short(&beside.live_changes(&second, 1).await), ["insert 3"]);
    let mut events = second.events(&beside).await;
    place.sql("INSERT INTO items VALUES (4, 'four')");
    assert_eq!(short(&events.up_to_date().await.0), ["insert 4"]);
    let new = second.get(&[("table", "items"), ("where", "id = 1"), ("offset", "-1")]).await;
    assert_eq!((new.head.status, new.head.header("retry-after")), (503, Some("5")), "{}", new.head.text);
    let logged = second.wait_for_log("request failed");
    assert_eq!(logged["request"].as_str(), new.head.header("x-request-id"), "{logged}");
    assert_eq!((&logged["status"], &logged["reason"]), (&json!(503), &json!("not_ready")));
    // A shape that the other makes is waited for.
    let clause = [("table", "items"), ("where", "id > 3")];
    let made = first.reader(&clause).await;
    assert_eq!(second.get(&made.params()).await.head.status, 200);

    first.signal(Signal::KILL);
    first.end().await;
    place.sql("INSERT INTO items VALUES (5, 'five')");
    second.becomes("active").await;
    assert_eq!(short(&reader.live_changes(&second, 3).await), ["insert 3", "insert 4", "insert 5"]);
    assert_eq!(short(&beside.live_changes(&second, 2).await), ["insert 4", "insert 5"]);
    assert_eq!(short(&events.up_to_date().await.0), ["insert 5"], "the stream went on through it");
    assert_eq!(reader.handle, beside.handle);
    let mut made = made;
    assert_eq!(short(&made.live_changes(&second, 1).await), ["insert 5"]);
    let status = second.status().await;
    assert_eq!(status["shapes"]["writes"], json!(true));
}

#[tokio::test]
async fn a_server_that_sleeps_is_active_and_wakes_for_whoever_asks() {
    let place = Place::new(ITEMS);
    let serve =
        place.serve_with(&[&QUICK[..], &[("FOREBAY_DATABASE_IDLE_TIMEOUT_MS", "300")]].concat()).await;
    let mut reader = serve.reader(&ITEM).await;
    let connections = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        place.database
    );
    until("all connections are closed", async || place.ask(&connections).as_deref() == Some("0")).await;
    assert_eq!(serve.health().await, "active");
    place.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 2"]);
    until("it sleeps again", async || place.ask(&connections).as_deref() == Some("0")).await;
    let mut other = Reader::new(&[("table", "items"), ("where", "id = 2")]);
    assert_eq!(short(&other.catch_up(&serve).await), ["insert 2"]);
}

#[tokio::test]
async fn an_instance_that_waits_doesnt_call_a_shape_gone_of_which_it_hasnt_read() {
    let place = Place::new(ITEMS);
    let first = place.serve_with(&QUICK).await;
    let second = place.spawn(&QUICK);
    second.becomes("waiting").await;
    let clauses: Vec<_> = (0..10).map(|id| format!("id > {id}")).collect();
    for clause in &clauses {
        let reader = first.reader(&[("table", "items"), ("where", clause)]).await;
        let answer = second.get(&reader.params()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.head.text);
    }
    let asked = async |handle: &str| {
        second.get(&[("table", "items"), ("offset", "0_0"), ("handle", handle)]).await.head
    };
    let newer = asked("1-99999999999999999").await;
    assert_eq!((newer.status, newer.header("retry-after")), (503, Some("5")), "{}", newer.text);
    // Those before it are all known.
    assert_eq!(asked("1-1").await.status, 409);
    assert_eq!(asked("none").await.status, 409);
}

const DELETING: (&str, &str) = ("FOREBAY_SERVE_ALLOW_DELETE", "true");

#[tokio::test]
async fn what_exists_is_deleted_by_whoever_writes_and_nobody_else_calls_it_missing() {
    let place = Place::on(postgres(), ITEMS);
    let settings = [&QUICK[..], &[DELETING]].concat();
    let first = place.serve_with(&settings).await;
    let reader = first.reader(&ITEM).await;
    let second = place.spawn(&settings);
    second.becomes("waiting").await;
    let by_handle = format!("/v1/shape?handle={}", reader.handle);
    for path in [by_handle.as_str(), "/v1/shape?table=items"] {
        let refused = second.ask("DELETE", path, &[], "").await;
        let retry = refused.head.header("retry-after");
        assert_eq!((refused.head.status, retry), (503, Some("5")), "{path}: {}", refused.head.text);
    }
    place.postgres.stop().unwrap();
    until("the writer has noticed", async || first.health().await == "starting").await;
    let refused = first.ask("DELETE", &by_handle, &[], "").await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    assert!(refused.head.header("retry-after").is_some());
    place.postgres.revive().unwrap();
    until("one of them writes, and deletes it", async || {
        let first = first.ask("DELETE", &by_handle, &[], "").await.head.status;
        let second = second.ask("DELETE", &by_handle, &[], "").await.head.status;
        assert!(![first, second].contains(&404), "{first} {second}");
        [first, second].contains(&202)
    })
    .await;
}

#[tokio::test]
async fn a_server_that_sleeps_wakes_to_delete() {
    let place = Place::new(ITEMS);
    let idle = ("FOREBAY_DATABASE_IDLE_TIMEOUT_MS", "300");
    let serve = place.serve_with(&[&QUICK[..], &[idle, DELETING]].concat()).await;
    let reader = serve.reader(&ITEM).await;
    until("it sleeps", async || serve.status().await["shapes"]["writes"] == json!(false)).await;
    let path = format!("/v1/shape?handle={}", reader.handle);
    assert_eq!(serve.ask("DELETE", &path, &[], "").await.head.status, 202);
    assert_eq!(serve.ask("DELETE", &path, &[], "").await.head.status, 404);
}
