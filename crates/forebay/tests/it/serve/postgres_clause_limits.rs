//! Limits of shapes whose clauses Postgres evaluates, and what happens beyond them.

use forebay_testkit::{Direction, Proxy};

use super::support::{ServeFixture, ShapeReader, changes, summarize};
use crate::wire::until;

const CREATE_WORDS: &str = "CREATE TABLE words (id int PRIMARY KEY, a int, word text, note text)";

#[tokio::test]
async fn a_statement_that_is_too_slow_once_keeps_the_shape() {
    let fixture = ServeFixture::new("CREATE TABLE words (id int PRIMARY KEY, a int, range int4range)");
    let serve = fixture.serve().await;
    // Then the replication connection has read the catalog of ranges.
    let mut native = serve.reader(&[("table", "words"), ("where", "id = 1")]).await;
    fixture.sql("INSERT INTO words VALUES (1, 1, '[1,5)')");
    assert_eq!(summarize(&native.live_changes(&serve, 1).await), ["insert 1"]);
    let mut reader = serve.reader(&[("table", "words"), ("where", "range::text ~ '^.1'")]).await;
    let handle = reader.handle.clone();
    // The first cast to a range of another session waits for it.
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let lock = "LOCK TABLE pg_range IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let lock = tokio::task::spawn_blocking(move || postgres.execute(&database, lock));
    let holder =
        "FROM pg_locks WHERE relation = 'pg_range'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    until("the catalog is locked", async || fixture.query_value(&format!("SELECT 1 {holder}")).is_some())
        .await;
    fixture.sql("UPDATE words SET a = 2");
    let attempts = "forebay_serve_judgement_seconds_count";
    until("a statement was too slow", async || serve.metric(attempts, &[]).await >= 1.0).await;
    fixture.sql(&format!("SELECT pg_terminate_backend(pid) {holder}"));
    let _ended = lock.await.unwrap();
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"]);
    assert_eq!(reader.handle, handle);
    assert_eq!(serve.metric("forebay_serve_clauses_given_up_total", &[]).await, 0.0);
}

#[tokio::test]
async fn a_shape_whose_rows_fail_does_not_keep_others_waiting() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let rate = ("FOREBAY_SERVE_POSTGRES_CLAUSE_STATEMENTS_PER_S", "20");
    let serve = fixture.serve_with(&[rate]).await;
    let failing = [("table", "words"), ("where", "to_char(a, note) ~ '1'")];
    let mut failing = serve.reader(&failing).await;
    let mut other = serve.reader(&[("table", "words"), ("where", "word ~ '^a'")]).await;
    let handle = failing.handle.clone();
    // At this rate, it takes Postgres 20 s to find all rows on which the clause fails.
    fixture.sql("INSERT INTO words SELECT n, n, '', '9EEEE9' FROM generate_series(1, 400) AS n");
    fixture.sql("INSERT INTO words VALUES (1000, 1, 'b', '9')");
    for id in 1001..1006 {
        fixture.sql(&format!("INSERT INTO words VALUES ({id}, 0, 'a{id}', '')"));
        assert_eq!(summarize(&other.live_changes(&serve, 1).await), [format!("insert {id}")]);
    }
    assert_eq!(serve.metric("forebay_shapes_held", &[]).await, 1.0, "the search isn't over");
    assert_eq!(summarize(&failing.live_changes(&serve, 1).await), ["insert 1000"]);
    assert_eq!(failing.handle, handle, "an error of a row doesn't end the shape");
    assert!(!serve.log().contains("9EEEE9"), "no value is in the log");
}

#[tokio::test]
async fn shapes_beyond_the_limit_get_a_503_and_others_do_not() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_POSTGRES_CLAUSE_SHAPES", "2")]).await;
    for clause in ["word ~ '^a'", "word ~ '^b'"] {
        let _first = serve.reader(&[("table", "words"), ("where", clause)]).await;
    }
    let beyond = [("table", "words"), ("offset", "-1"), ("where", "word ~ '^c'")];
    let response = serve.get(&beyond).await;
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.head.status, 503, "{text}");
    assert!(response.head.header("retry-after").is_some() && text.contains("postgres_clause"), "{text}");
    // Existing shapes, and clauses that Forebay evaluates, aren't affected.
    let mut existing = serve.reader(&[("table", "words"), ("where", "word ~ '^a'")]).await;
    let mut native = serve.reader(&[("table", "words"), ("where", "a = 1")]).await;
    fixture.sql("INSERT INTO words VALUES (1, 1, 'a', '')");
    assert_eq!(summarize(&existing.live_changes(&serve, 1).await), ["insert 1"]);
    assert_eq!(summarize(&native.live_changes(&serve, 1).await), ["insert 1"]);
}

#[tokio::test]
async fn a_waiting_instance_shows_no_change_of_a_held_shape_before_the_writer_does() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let proxy = Proxy::start(fixture.postgres.addr());
    let direct = fixture.postgres.url(&fixture.database);
    let pooled =
        direct.replace(&format!(":{}/", fixture.postgres.port()), &format!(":{}/", proxy.addr().port()));
    let long_poll = ("FOREBAY_SERVE_LONG_POLL_MS", "300");
    let writer = fixture.serve_with(&[("FOREBAY_DATABASE_POOLED_URL", &pooled), long_poll]).await;
    let (judged, native) =
        ([("table", "words"), ("where", "word ~ '^a'")], [("table", "words"), ("where", "a = 1")]);
    let mut of_writer = writer.reader(&judged).await;
    let _native = writer.reader(&native).await;
    let waiting = fixture.spawn(&[long_poll]);
    waiting.wait_for_health("waiting").await;
    let (mut held, mut free) = (waiting.reader(&judged).await, waiting.reader(&native).await);
    assert_eq!(held.handle, of_writer.handle);
    // Before its first row, the writer compares the table with the catalog.
    fixture.sql("INSERT INTO words VALUES (0, 1, 'a', '')");
    for (reader, serve) in [(&mut of_writer, &writer), (&mut held, &waiting), (&mut free, &waiting)] {
        assert_eq!(summarize(&reader.live_changes(serve, 1).await), ["insert 0"]);
    }

    proxy.stall(Direction::Both);
    fixture.sql("INSERT INTO words VALUES (1, 1, 'ab', ''), (2, 1, 'b', '')");
    fixture.sql("UPDATE words SET note = 'x' WHERE id > 0");
    let of_native = summarize(&free.live_changes(&waiting, 4).await);
    assert_eq!(of_native, ["insert 1", "insert 2", "update 1", "update 2"], "it doesn't wait");
    until("a hold is open", async || writer.status().await["shapes"]["held"] == 1).await;
    assert!(writer.status().await["shapes"]["held_bytes"].as_u64() > Some(0));
    let offset = held.offset.clone();
    for _ in 0..3 {
        assert!(changes(&held.long_poll(&waiting).await).is_empty(), "no verdict, no change");
    }
    let mut fresh = ShapeReader::new(&judged);
    assert_eq!(summarize(&fresh.catch_up(&waiting).await), ["insert 0"], "nor for a new client");
    proxy.resume();
    let messages = held.live_changes(&waiting, 2).await;
    assert_eq!(summarize(&messages), ["insert 1", "update 1"], "after {offset}");
    assert_eq!(summarize(&of_writer.live_changes(&writer, 2).await), ["insert 1", "update 1"]);
    assert_eq!(summarize(&fresh.live_changes(&waiting, 2).await), ["insert 1", "update 1"]);
    until("no hold is open", async || writer.status().await["shapes"]["held"] == 0).await;
}
