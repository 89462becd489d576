//! Many shapes, and many streams of one shape.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::task::JoinSet;

use super::support::{ServeFixture, ServeProcess, ShapeReader, path, summarize};
use crate::many_streams::MANY_CONNECTIONS_LOCK;
use crate::wire::{HttpConnection, until};

/// Concurrent connections of [`request_all`].
const CONNECTIONS: usize = 16;

/// Returns the number of shapes or streams of a test: `FOREBAY_CROWD`, or else `usual`.
fn crowd_size(usual: usize) -> usize {
    std::env::var("FOREBAY_CROWD").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// Returns a clause that only the row `number` satisfies. The four kinds of indexed clauses
/// alternate.
fn clause(number: usize) -> String {
    match number % 4 {
        0 => format!("owner = 'o{number}'"),
        1 => format!("owner IN ('o{number}', 'p{number}', 'q{number}')"),
        2 => format!("score >= {number} AND score < {}", number + 1),
        _ => format!("name LIKE 'n{number}-%'"),
    }
}

/// Requests all paths over [`CONNECTIONS`] connections, and calls `take` with each response.
async fn request_all(
    serve: &ServeProcess,
    paths: Vec<String>,
    mut take: impl FnMut(usize, crate::wire::HttpResponse),
) {
    let mut requests = JoinSet::new();
    let (paths, addr) = (std::sync::Arc::new(paths), serve.addr);
    for lane in 0..CONNECTIONS {
        let paths = std::sync::Arc::clone(&paths);
        requests.spawn(async move {
            let mut client = HttpConnection::connect(addr).await;
            let mut responses = Vec::new();
            for number in (lane..paths.len()).step_by(CONNECTIONS) {
                client.request("GET", &paths[number], &[], "").await;
                responses.push((number, client.response().await));
            }
            responses
        });
    }
    for responses in requests.join_all().await {
        responses.into_iter().for_each(|(number, response)| take(number, response));
    }
}

/// Returns the user and system time of a process, in ms.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// Inserts rows from number `from` on, one transaction each. Returns the CPU time of the server, in
/// ms.
async fn insert_rows(fixture: &ServeFixture, serve: &ServeProcess, from: usize, count: usize) -> u64 {
    let before = cpu_ms(serve.pid());
    fixture.sql(&format!(
        "DO $$ BEGIN FOR n IN {from}..{} LOOP
            INSERT INTO items VALUES (n, 'o' || n, n, 'n' || n || '-x'); COMMIT;
        END LOOP; END $$",
        from + count - 1
    ));
    let written: u64 =
        fixture.query_value("SELECT pg_current_wal_insert_lsn() - '0/0'").unwrap().parse().unwrap();
    until("the server has stored all changes", async || {
        // The position advances only with the stream, so a message must follow the last
        // transaction.
        fixture.sql("SELECT pg_logical_emit_message(true, 'forebay-test', '')");
        serve.status().await["shapes"]["durable_lsn"].as_u64() >= Some(written)
    })
    .await;
    cpu_ms(serve.pid()) - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_a_thousand_changes_reaches_the_one_shape_that_matches_it() {
    let count = crowd_size(1_000);
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, owner text, score int, name text COLLATE \"C\")",
    );
    let serve = fixture.serve().await;
    let clauses: Vec<String> = (0..count).map(clause).collect();
    let start = |number: usize| path(&[("table", "items"), ("where", &clauses[number]), ("offset", "-1")]);

    let mut readers: Vec<ShapeReader<'_>> =
        clauses.iter().map(|clause| ShapeReader::new(&[("table", "items"), ("where", clause)])).collect();
    request_all(&serve, (0..10).map(start).collect(), |_, response| assert_eq!(response.head.status, 200))
        .await;
    let few_ms = insert_rows(&fixture, &serve, count, count).await;
    request_all(&serve, (0..count).map(start).collect(), |number, response| {
        drop(readers[number].accept(&response))
    })
    .await;
    let many_ms = insert_rows(&fixture, &serve, 2 * count, count).await;
    let hits_ms = insert_rows(&fixture, &serve, 0, count).await;
    let paths = readers.iter().map(|reader| path(&reader.params())).collect();
    request_all(&serve, paths, |number, response| {
        let messages = readers[number].accept(&response);
        assert_eq!(summarize(&messages), [format!("insert {number}")], "{}", clauses[number]);
        assert!(response.head.header("electric-up-to-date").is_some());
    })
    .await;
    eprintln!(
        "{count} changes that match no shape: {few_ms} ms of CPU with 10 shapes, {many_ms} ms with {count}; \
         one match for each shape: {hits_ms} ms"
    );
    // Evaluating every shape for every change would take a hundred times as long.
    assert!(many_ms < 10 * few_ms + 1_000, "{few_ms} ms, {many_ms} ms");
    assert_eq!(serve.status().await["shapes"]["count"], count);
}

/// Reads to the next up-to-date, and returns the messages before it.
async fn next_changes(client: &mut HttpConnection) -> Vec<Value> {
    let mut changes = Vec::new();
    loop {
        for event in client.event().await.split_terminator("\n\n") {
            let message: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            if message["headers"]["control"] == "up-to-date" {
                return changes;
            }
            changes.push(message);
        }
    }
}

/// Opens `count` streams.
async fn open_streams(serve: &ServeProcess, live: &str, count: usize) -> Vec<HttpConnection> {
    let mut streams: Vec<HttpConnection> = Vec::with_capacity(count);
    let (mut dialing, mut next) = (JoinSet::new(), 0);
    while streams.len() < count {
        while next < count && dialing.len() < 64 {
            let (addr, live) = (serve.addr, live.to_owned());
            dialing.spawn(async move {
                let mut client = HttpConnection::get(addr, &live, &[]).await;
                assert_eq!(client.head().await.status, 200);
                client
            });
            next += 1;
        }
        streams.push(dialing.join_next().await.unwrap().unwrap());
    }
    streams
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_streams_of_one_shape_get_a_write_and_leave_nothing_behind() {
    let _alone = MANY_CONNECTIONS_LOCK.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    // Other tests of this process need descriptors too.
    let most = limit.maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap().saturating_sub(2_000));
    let count = crowd_size(10_000).min(most);
    assert!(count >= 4_000, "the limit on descriptors is too low: {limit:?}");
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let total = count.to_string();
    let long = Duration::from_secs(600).as_millis().to_string();
    let settings = [
        ("FOREBAY_ADMISSION_TOTAL", &*total),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", &long),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", &long),
    ];
    let serve = fixture.serve_with(&settings).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    drop(open_streams(&serve, &live, 10).await);
    let before_kib = serve.resident_kib();

    let mut streams = open_streams(&serve, &live, count).await;
    let full_kib = serve.resident_kib();
    let status = serve.status().await;
    assert_eq!(status["http"]["lean_streams"], count);
    assert_eq!(status["admission"]["total_connections"], count);
    let refused = HttpConnection::fetch(serve.addr, "GET", &live, &[], "").await.head;
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some(), "{}", refused.text);
    assert_eq!(serve.health().await, "active", "other requests are answered");

    fixture.sql("INSERT INTO items VALUES (1, 'for all')");
    for client in &mut streams {
        assert_eq!(summarize(&next_changes(client).await), ["insert 1"]);
    }
    drop(streams);
    until("all streams are gone", async || {
        let status = serve.status().await;
        status["http"]["lean_streams"] == 0 && status["admission"]["total_connections"] == 0
    })
    .await;
    let grown_kib = full_kib - before_kib;
    until("memory is released", async || serve.resident_kib() < before_kib + grown_kib / 2).await;
    let each = grown_kib as f64 / count as f64;
    eprintln!("{count} streams of one shape: {each:.1} KiB each");
    assert!(each < 8.0, "a stream uses {each:.1} KiB");
}
