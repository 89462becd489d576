//! Many shapes, and many streams of one.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::task::JoinSet;

use super::support::{Place, Reader, Serve, path, short};
use crate::many_streams::MANY_CONNECTIONS_LOCK;
use crate::wire::{HttpConnection, until};

/// How many connections ask at once.
const AT_ONCE: usize = 16;

/// `FOREBAY_CROWD`, or enough for every day.
fn crowd(usual: usize) -> usize {
    std::env::var("FOREBAY_CROWD").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// A clause that only the row of the same number satisfies, of each kind that is indexed.
fn clause(number: usize) -> String {
    match number % 4 {
        0 => format!("owner = 'o{number}'"),
        1 => format!("owner IN ('o{number}', 'p{number}', 'q{number}')"),
        2 => format!("score >= {number} AND score < {}", number + 1),
        _ => format!("name LIKE 'n{number}-%'"),
    }
}

/// Asks for all of them, a few at a time, and gives each answer to `take`.
async fn ask_all(serve: &Serve, paths: Vec<String>, mut take: impl FnMut(usize, crate::wire::HttpResponse)) {
    let mut asking = JoinSet::new();
    let (paths, addr) = (std::sync::Arc::new(paths), serve.addr);
    for lane in 0..AT_ONCE {
        let paths = std::sync::Arc::clone(&paths);
        asking.spawn(async move {
            let mut client = HttpConnection::connect(addr).await;
            let mut answers = Vec::new();
            for number in (lane..paths.len()).step_by(AT_ONCE) {
                client.request("GET", &paths[number], &[], "").await;
                answers.push((number, client.response().await));
            }
            answers
        });
    }
    for answers in asking.join_all().await {
        answers.into_iter().for_each(|(number, answer)| take(number, answer));
    }
}

/// User and system time of a process, in ms.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// So many transactions, each with one row of its own, from a number on; what they cost the server, in ms of CPU.
async fn write(place: &Place, serve: &Serve, from: usize, count: usize) -> u64 {
    let before = cpu_ms(serve.pid());
    place.sql(&format!(
        "DO $$ BEGIN FOR n IN {from}..{} LOOP
            INSERT INTO items VALUES (n, 'o' || n, n, 'n' || n || '-x'); COMMIT;
        END LOOP; END $$",
        from + count - 1
    ));
    let written: u64 = place.ask("SELECT pg_current_wal_insert_lsn() - '0/0'").unwrap().parse().unwrap();
    until("the server has all of it", async || {
        // The last transaction may have been followed by what concerns nobody.
        place.sql("SELECT pg_logical_emit_message(true, 'forebay-test', '')");
        serve.status().await["shapes"]["durable_lsn"].as_u64() >= Some(written)
    })
    .await;
    cpu_ms(serve.pid()) - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_a_thousand_changes_reaches_its_own_shape_of_a_thousand() {
    let count = crowd(1_000);
    let place =
        Place::new("CREATE TABLE items (id int PRIMARY KEY, owner text, score int, name text COLLATE \"C\")");
    let serve = place.serve().await;
    let clauses: Vec<String> = (0..count).map(clause).collect();
    let start = |number: usize| path(&[("table", "items"), ("where", &clauses[number]), ("offset", "-1")]);

    let mut readers: Vec<Reader<'_>> =
        clauses.iter().map(|clause| Reader::new(&[("table", "items"), ("where", clause)])).collect();
    ask_all(&serve, (0..10).map(start).collect(), |_, answer| assert_eq!(answer.head.status, 200)).await;
    let few_ms = write(&place, &serve, count, count).await;
    ask_all(&serve, (0..count).map(start).collect(), |number, answer| drop(readers[number].take(&answer)))
        .await;
    let many_ms = write(&place, &serve, 2 * count, count).await;
    let hits_ms = write(&place, &serve, 0, count).await;
    let paths = readers.iter().map(|reader| path(&reader.params())).collect();
    ask_all(&serve, paths, |number, answer| {
        let messages = readers[number].take(&answer);
        assert_eq!(short(&messages), [format!("insert {number}")], "{}", clauses[number]);
        assert!(answer.head.header("electric-up-to-date").is_some());
    })
    .await;
    eprintln!(
        "{count} changes that concern nobody: {few_ms} ms of CPU with 10 shapes, {many_ms} ms with {count}; \
         one for each of them: {hits_ms} ms"
    );
    // What the counters of the index prove of visits holds for all of the way: trying each shape would take a hundred times as long.
    assert!(many_ms < 10 * few_ms + 1_000, "{few_ms} ms, {many_ms} ms");
    assert_eq!(serve.status().await["shapes"]["count"], count);
}

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

/// So many streams, each open.
async fn gather(serve: &Serve, live: &str, count: usize) -> Vec<HttpConnection> {
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
    // Other tests of this process need some, too.
    let most = limit.maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap().saturating_sub(2_000));
    let count = crowd(10_000).min(most);
    assert!(count >= 4_000, "the limit on descriptors is {limit:?}");
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let total = count.to_string();
    let long = Duration::from_secs(600).as_millis().to_string();
    let settings = [
        ("FOREBAY_ADMISSION_TOTAL", &*total),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", &long),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", &long),
    ];
    let serve = place.serve_with(&settings).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    drop(gather(&serve, &live, 10).await);
    let before_kib = serve.resident_kib();

    let mut streams = gather(&serve, &live, count).await;
    let full_kib = serve.resident_kib();
    let status = serve.status().await;
    assert_eq!(status["http"]["lean_streams"], count);
    assert_eq!(status["admission"]["total_connections"], count);
    let refused = HttpConnection::fetch(serve.addr, "GET", &live, &[], "").await.head;
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some(), "{}", refused.text);
    assert_eq!(serve.health().await, "active", "others are answered");

    place.sql("INSERT INTO items VALUES (1, 'for all')");
    for client in &mut streams {
        assert_eq!(short(&next_changes(client).await), ["insert 1"]);
    }
    drop(streams);
    until("all streams are gone", async || {
        let status = serve.status().await;
        status["http"]["lean_streams"] == 0 && status["admission"]["total_connections"] == 0
    })
    .await;
    let grown_kib = full_kib - before_kib;
    until("memory comes back", async || serve.resident_kib() < before_kib + grown_kib / 2).await;
    let each = grown_kib as f64 / count as f64;
    eprintln!("{count} streams of one shape: {each:.1} KiB each");
    assert!(each < 8.0, "a stream takes {each:.1} KiB");
}
