//! Commits that wait for a synchronous standby, while thousands of later commits don't wait.
//!
//! Postgres writes a commit to the WAL, and the replication stream sends it at once. Snapshots see
//! it only after the standby has confirmed it. A shape that is created in between doesn't have the
//! commit in its snapshot, and has it in its log only if the server still holds it.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::TestRng;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, timeout};

use super::super::support::{ServeFixture, ServeProcess, ShapeReader};
use crate::wire::DEADLINE;

/// Number of commits that don't wait. A server that held a fixed number of recent commits would
/// have dropped the waiting ones.
const COMMITS: i64 = 5000;

/// Returns the ids of the rows after these messages.
fn ids(messages: &[Value]) -> Vec<i64> {
    let mut ids = BTreeSet::new();
    for message in messages {
        let id = message["value"]["id"].as_str().and_then(|id| id.parse::<i64>().ok());
        match (message["headers"]["operation"].as_str(), id) {
            (Some("insert"), Some(id)) => ids.insert(id),
            (Some("delete"), Some(id)) => ids.remove(&id),
            _ => false,
        };
    }
    ids.into_iter().collect()
}

/// Reads until `rows` contains all `wanted` ids. Starts over after a 409.
async fn read_until(
    reader: &mut ShapeReader<'_>,
    serve: &ServeProcess,
    rows: &mut Vec<Value>,
    wanted: &[i64],
) {
    let started = Instant::now();
    loop {
        let now = ids(rows);
        if wanted.iter().all(|id| now.contains(id)) {
            return;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "rows of {wanted:?} are missing; there are {} rows: {:?}",
            now.len(),
            &now[..now.len().min(20)]
        );
        let is_new = reader.offset == "-1" || reader.offset.starts_with("0_");
        let live = if is_new { Vec::new() } else { vec![("live", "true")] };
        let response = serve.get(&[reader.params(), live].concat()).await;
        match response.head.status {
            200 => rows.extend(reader.accept(&response)),
            503 => sleep(Duration::from_millis(50)).await,
            409 => {
                rows.clear();
                (reader.offset, reader.handle) = ("-1".to_owned(), String::new());
            }
            _ => panic!("{}", response.head.text),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_waits_for_its_standby_is_in_shapes_made_after_thousands_of_others() {
    let seed = forebay_testkit::seed();
    let version = if seed & 1 == 0 { 15 } else { 18 };
    eprintln!("FOREBAY_SEED={seed}, Postgres {version}");
    let mut rng = TestRng::of(seed, "standby", 0);
    let postgres = Postgres::builder().version(version).config("synchronous_commit", "local");
    let postgres: &'static Postgres = Box::leak(Box::new(postgres.start().unwrap()));
    let fixture =
        ServeFixture::on_postgres(postgres, "CREATE TABLE items (id bigint PRIMARY KEY, note text)");
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
    let mut before = serve.reader(&[("table", "items")]).await;

    postgres.set_config("synchronous_standby_names", "away").unwrap();
    postgres.reload().unwrap();
    let hanging: Vec<_> = (0..rng.between(1, 3))
        .map(|number| {
            let database = fixture.database.clone();
            let sql =
                format!("SET synchronous_commit = on; INSERT INTO items VALUES (-{}, 'waits')", number + 1);
            thread::spawn(move || postgres.execute(&database, &sql))
        })
        .collect();
    let (mut rows_before, count) = (Vec::new(), i64::try_from(hanging.len()).unwrap());
    read_until(&mut before, &serve, &mut rows_before, &(-count..0).collect::<Vec<_>>()).await;
    assert_eq!(
        fixture.query_value("SELECT count(*) FROM items").as_deref(),
        Some("0"),
        "the commits are visible although they wait"
    );
    block_in_place(|| {
        fixture.sql(&format!(
        "DO $$ BEGIN FOR n IN 1..{COMMITS} LOOP INSERT INTO items VALUES (n, 'goes on'); COMMIT; END LOOP; END $$"
    ))
    });
    read_until(&mut before, &serve, &mut rows_before, &[COMMITS]).await;

    // Created while the first commits still wait. The server responds without them and sends them
    // later, or it waits.
    let mut after = ShapeReader::new(&[("table", "items"), ("where", "id < 10")]);
    let mut request = serve.start_get(&after.params()).await;
    let early = timeout(Duration::from_secs(1), request.response()).await;
    postgres.set_config("synchronous_standby_names", "").unwrap();
    postgres.reload().unwrap();
    for writer in hanging {
        block_in_place(|| writer.join().unwrap()).unwrap();
    }
    let first = match early {
        Ok(response) => response,
        Err(_) => request.response().await,
    };
    assert!(matches!(first.head.status, 200 | 409 | 503), "{}", first.head.text);
    let mut rows = Vec::new();
    if first.head.status == 200 {
        rows.extend(after.accept(&first));
    }
    fixture.sql("INSERT INTO items VALUES (0, 'last')");
    let should: Vec<_> = fixture
        .postgres
        .query(&fixture.database, "SELECT id FROM items WHERE id < 10 ORDER BY id")
        .unwrap()
        .into_iter()
        .map(|row| row[0].as_deref().unwrap().parse::<i64>().unwrap())
        .collect();
    read_until(&mut after, &serve, &mut rows, &[0]).await;
    assert_eq!(ids(&rows), should, "seed {seed}: the shape that was created while commits waited");
    read_until(&mut before, &serve, &mut rows_before, &[0]).await;
    let all: Vec<_> = ids(&rows_before).into_iter().filter(|id| *id < 10).collect();
    assert_eq!(all, should, "seed {seed}: the shape from before");
}
