//! Rude clients: refused clearly, bounded, and gone without a trace.

mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::support::{Place, Serve, changes, path};
use crate::wire::{HttpConnection, HttpResponse, until, within};

const ITEMS: &str =
    "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'one'), (2, 'two')";
/// Far beyond what an answer takes while nobody is rude, on a busy machine.
const PROMPT: Duration = Duration::from_secs(30);

/// What a server holds while nobody asks.
struct Calm {
    descriptors: usize,
    kib: u64,
}

impl Calm {
    /// Once everything has happened that happens only once.
    async fn of(serve: &Serve) -> Calm {
        serve.reader(&[("table", "items")]).await;
        is_empty(serve).await;
        Calm { descriptors: descriptors(serve), kib: serve.resident_kib() }
    }

    /// Waits until nothing is left of what happened since, but for so many KiB of memory.
    async fn returns(&self, serve: &Serve, spare_kib: u64) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        is_empty(serve).await;
        until("descriptors come back", async || descriptors(serve) <= self.descriptors + 4).await;
        let most = self.kib + spare_kib;
        until(&format!("memory comes back to {most} KiB"), async || serve.resident_kib() <= most).await;
        // As many shapes at once as there are turns, and some: all are made.
        let mut making = JoinSet::new();
        for number in 0..8 {
            let clause = format!("note = 'calm {number} {}'", NEXT.fetch_add(1, Ordering::Relaxed));
            let (addr, path) =
                (serve.addr, path(&[("table", "items"), ("where", &clause), ("offset", "-1")]));
            making.spawn(async move { HttpConnection::fetch(addr, "GET", &path, &[], "").await });
        }
        let begun = Instant::now();
        for answer in making.join_all().await {
            assert_eq!(answer.head.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        }
        assert!(begun.elapsed() < PROMPT, "shapes took {:?}", begun.elapsed());
    }
}

/// No connection, no stream, no permit.
async fn is_empty(serve: &Serve) {
    until("everybody is gone", async || {
        let status = serve.status().await;
        let (http, admission) = (&status["http"], &status["admission"]);
        http["open_connections"] == 0 && http["lean_streams"] == 0 && admission["total_connections"] == 0
    })
    .await;
}

fn descriptors(serve: &Serve) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", serve.pid())).unwrap().count()
}

/// The clause of a subset, by POST.
async fn subset(serve: &Serve, clause: &str) -> HttpResponse {
    let body = json!({"subset": {"where": clause}}).to_string();
    serve.ask("POST", "/v1/shape?table=items&offset=-1", &["Content-Type: application/json"], &body).await
}

/// Asks something harmless until told to stop: the longest that it took.
fn bystander(serve: &Serve) -> impl AsyncFnOnce() -> Duration + use<> {
    let (addr, stop) = (serve.addr, Arc::new(tokio::sync::Notify::new()));
    let stopped = Arc::clone(&stop);
    let asking = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let answer = HttpConnection::fetch(addr, "GET", "/v1/shape?table=items&offset=-1", &[], "").await;
            assert_eq!(answer.head.status, 200, "{}", answer.head.text);
            longest = longest.max(begun.elapsed());
            tokio::select! {
                () = stopped.notified() => return longest,
                () = sleep(Duration::from_millis(20)) => {}
            }
        }
    });
    async move || {
        stop.notify_one();
        asking.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clauses_beyond_all_measure_are_refused_while_others_are_served() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let calm = Calm::of(&serve).await;
    let others = bystander(&serve);
    let nested =
        |open: &str, close: &str, deep: usize| format!("{}id = 1{}", open.repeat(deep), close.repeat(deep));
    // As long as a head may be, in a URL.
    for clause in [
        nested("(", ")", 10_000),
        nested("NOT+", "", 6_000),
        nested("-", "", 10_000),
        nested("id=", "", 9_000),
    ] {
        let clause = clause.replace(' ', "+");
        let answer =
            serve.ask("GET", &format!("/v1/shape?table=items&offset=-1&where={clause}"), &[], "").await;
        assert_eq!(answer.head.status, 400, "{}", &clause[..20]);
        assert!(answer.json()["errors"]["where"].is_array(), "{}", String::from_utf8_lossy(&answer.body));
        assert!(answer.body.len() < 1_000, "the answer repeats what was asked");
    }
    let mut client = HttpConnection::connect(serve.addr).await;
    let long = format!("GET /v1/shape?table=items&offset=-1&where={} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    // It is refused before all of it is heard.
    let _ = within("sending", client.socket.write_all(long.as_bytes())).await;
    let said = client.rest().await;
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&said));

    // Within the length that a clause may have, and far beyond it.
    for bytes in [60_000, 1_000_000] {
        for (name, clause) in [
            ("nested", nested("(", ")", bytes / 2 - 10)),
            ("negated", nested("NOT ", "", bytes / 4 - 10)),
            ("signs", nested("- ", "", bytes / 2 - 10)),
            ("subtracted", format!("id = 1{}", "-1".repeat(bytes / 2 - 10))),
            ("cast", format!("id{} = 1", "::int".repeat(bytes / 5 - 10))),
            ("never closed", "(".repeat(bytes)),
            ("a string that never ends", format!("note = '{}", "x".repeat(bytes))),
            ("an array that never ends", "ARRAY[".repeat(bytes / 6)),
        ] {
            let answer = subset(&serve, &clause).await;
            assert_eq!(answer.head.status, 400, "{name} of {bytes}: {}", answer.head.text);
            // Postgres repeats what it can't read the end of, and so do we; but no more than a clause may have.
            assert!(answer.body.len() < clause.len().min(1 << 16) + 1_000, "{name}: {}", answer.body.len());
        }
        // What is flat may be answered.
        for (name, clause) in [
            ("alternatives", format!("id = 1{}", " OR id = 1".repeat(bytes / 10 - 10))),
            ("members", format!("id IN (1{})", ",1".repeat(bytes / 2 - 10))),
            ("a constant", format!("note = '{}'", "x".repeat(bytes))),
            ("a pattern", format!("note LIKE '{}'", "%x".repeat(bytes / 2))),
        ] {
            let begun = Instant::now();
            let answer = subset(&serve, &clause).await;
            eprintln!("{name} of {bytes} bytes: {} in {:?}", answer.head.status, begun.elapsed());
            assert_eq!(
                answer.head.status,
                if bytes < 1 << 16 { 200 } else { 400 },
                "{name}: {}",
                String::from_utf8_lossy(&answer.body)
            );
            assert!(begun.elapsed() < PROMPT, "{name}");
        }
    }
    let answer = subset(&serve, &"x".repeat(2 << 20)).await;
    assert_eq!(answer.head.status, 413);
    let longest = others().await;
    assert!(longest < PROMPT, "others waited for {longest:?}");
    eprintln!("others waited for {longest:?}");
    calm.returns(&serve, 64 * 1024).await;
}

#[tokio::test]
async fn absurd_offsets_and_the_handles_of_others_get_nothing() {
    let place = Place::new(&format!(
        "{ITEMS}; CREATE TABLE secrets (id int PRIMARY KEY); INSERT INTO secrets VALUES (7)"
    ));
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "400")]).await;
    let calm = Calm::of(&serve).await;
    let (items, secrets) =
        (serve.reader(&[("table", "items")]).await, serve.reader(&[("table", "secrets")]).await);
    let most = u64::MAX;
    for offset in [
        format!("{most}_{most}"),
        format!("{most}_inf"),
        format!("{}_0", i64::MAX),
        format!("{}_5", "9".repeat(10_000)),
    ] {
        for live in ["false", "true"] {
            let params = [("table", "items"), ("handle", &items.handle), ("offset", &offset), ("live", live)];
            let answer = serve.get(&params).await;
            assert_eq!(answer.head.status, 400, "{offset}: {}", answer.head.text);
            assert_eq!(answer.json()["errors"]["offset"][0], "out of bounds for this shape", "{offset}");
        }
    }
    for offset in [
        "-2", "", "_", "0_", "_0", "1", "0_0_0", "0x1_0", "1e9_0", " 1_0", "+1_0", "٣_0", "inf_0", "0_-1",
        "\u{0}", "now_0",
    ] {
        let answer = serve.get(&[("table", "items"), ("handle", &items.handle), ("offset", offset)]).await;
        assert_eq!(answer.head.status, 400, "{offset:?}: {}", answer.head.text);
        assert!(answer.json()["errors"]["offset"].is_array(), "{offset:?}");
    }
    // A snapshot's chunk that isn't there is the log.
    for op in [most.to_string(), "9".repeat(10_000)] {
        let offset = format!("0_{op}");
        let answer = serve.get(&[("table", "items"), ("handle", &items.handle), ("offset", &offset)]).await;
        assert_eq!(answer.head.status, 200, "{offset}: {}", answer.head.text);
        assert!(changes(answer.json().as_array().unwrap()).is_empty());
    }
    let long = "7-".repeat(5_000);
    for handle in
        [&secrets.handle, "0-0", &long, "../../etc/passwd", "\u{0}", "%00", "'; DROP TABLE items; --"]
    {
        for more in [&[][..], &[("live", "true")], &[("live", "true"), ("live_sse", "true")]] {
            let params = [&[("table", "items"), ("handle", handle), ("offset", "0_0")], more].concat();
            let answer = serve.get(&params).await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!([400, 409].contains(&answer.head.status), "{handle}: {}", answer.head.text);
            assert!(!text.contains("secrets") && !text.contains("\"7\""), "{handle}: {text}");
            if answer.head.status == 409 {
                assert_eq!(answer.head.header("electric-handle"), Some(&*items.handle), "{handle}");
            }
        }
    }
    calm.returns(&serve, 16 * 1024).await;
}

#[tokio::test]
async fn a_wrong_secret_is_answered_with_the_same_words_whatever_it_asks_for() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_SECRET", "open sesame")]).await;
    let ask = async |method: &str, path: &str| HttpConnection::fetch(serve.addr, method, path, &[], "").await;
    let first = ask("GET", "/v1/shape").await;
    assert_eq!(
        (first.head.status, first.json()),
        (401, json!({"message": "Unauthorized - Invalid API secret"}))
    );
    let names = |answer: &HttpResponse| {
        let same = |name: &&str| !["x-request-id", "date"].contains(name);
        answer
            .head
            .headers
            .iter()
            .map(|(name, _)| name.clone())
            .filter(|name| same(&name.as_str()))
            .collect::<Vec<_>>()
    };
    let long = "x".repeat(20_000);
    let secrets = [
        "",
        "?secret=",
        "?secret=open+sesam",
        "?secret=open+sesame+",
        "?secret=Open+sesame",
        "?api_secret=x",
        "?secret=%00",
        "?secret=%FF",
        "?secret=x&secret=y",
        "?SECRET=open+sesame",
        "?secret[]=open+sesame",
        &format!("?secret={long}"),
    ];
    for route in [
        "/v1/shape",
        "/v1//shape",
        "/v1/%73hape",
        "//v1/shape",
        "/v1/shape/",
        "/%761/shape",
        "/v1/./shape",
        "/v1/x/../shape",
    ] {
        for secret in secrets {
            let and = if secret.is_empty() { '?' } else { '&' };
            for rest in
                ["", "table=items&offset=-1", "table=nothing&offset=-1", "table=items&offset=0_0&live=true"]
            {
                let answer = ask("GET", &format!("{route}{secret}{and}{rest}")).await;
                // What isn't the route is nothing; what is, says no.
                assert!([401, 404].contains(&answer.head.status), "{route}{secret}: {}", answer.head.text);
                if answer.head.status == 401 {
                    assert_eq!(
                        (&answer.body, names(&answer)),
                        (&first.body, names(&first)),
                        "{route}{secret}{and}{rest}"
                    );
                }
            }
        }
    }
    for method in ["POST", "DELETE"] {
        assert_eq!(ask(method, "/v1/%73hape?table=items&offset=-1").await.head.status, 401, "{method}");
    }
    for right in ["secret=open+sesame", "secret=open%20sesame", "api_secret=open%20sesame"] {
        let answer = ask("GET", &format!("/v1/shape?table=items&offset=-1&{right}")).await;
        assert_eq!(answer.head.status, 200, "{right}");
    }
    assert_eq!(serve.status().await["shapes"]["count"], 1, "nobody else made one");
    assert!(!serve.log().contains("sesame"), "a secret is in the log");
}

/// How many shapes one user asks for; `FOREBAY_CROWD`, or enough for every day.
fn flood() -> usize {
    std::env::var("FOREBAY_CROWD").ok().and_then(|count| count.parse().ok()).unwrap_or(1_500)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_wants_a_thousand_shapes_is_told_to_come_back_and_leaves_few() {
    const KEPT: usize = 100;
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_STORAGE_MAX_SHAPES", &KEPT.to_string())]).await;
    let calm = Calm::of(&serve).await;
    // No request gets a row before the first was refused, so that all are there at once.
    let (postgres, database) = (place.postgres, place.database.clone());
    let lock = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let lock = tokio::task::spawn_blocking(move || postgres.execute(&database, lock));
    let holder =
        "FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    until("the table is locked", async || place.ask(&format!("SELECT 1 {holder}")).is_some()).await;
    let mut asking = JoinSet::new();
    for number in 0..flood() {
        let clause = format!("note = 'greedy {number}'");
        let (addr, path) = (serve.addr, path(&[("table", "items"), ("where", &clause), ("offset", "-1")]));
        asking.spawn(async move { HttpConnection::fetch(addr, "GET", &path, &[], "").await });
    }
    let mut refused = 0;
    while let Some(answer) = asking.join_next().await {
        let answer = answer.unwrap();
        // It may have gone for another while it was made: then it begins anew.
        if matches!(answer.head.status, 200 | 409) {
            continue;
        }
        assert_eq!(answer.head.status, 503, "{}", String::from_utf8_lossy(&answer.body));
        assert_eq!(answer.json()["code"], "concurrent_request_limit_exceeded", "{}", answer.json());
        let seconds: u64 = answer.head.header("retry-after").unwrap().parse().unwrap();
        assert!((6..=10).contains(&seconds), "{seconds}");
        assert_eq!(answer.head.header("cache-control"), Some("no-store"));
        if refused == 0 {
            place.sql(&format!("SELECT pg_terminate_backend(pid) {holder}"));
        }
        refused += 1;
    }
    eprintln!("{refused} of {} were refused", flood());
    assert!(refused > 0);
    let _ended = lock.await.unwrap();
    until("few shapes are left", async || {
        serve.status().await["shapes"]["count"].as_u64() <= Some(KEPT as u64)
    })
    .await;
    calm.returns(&serve, 32 * 1024).await;
    let files = std::fs::read_dir(place.dir.join("shapes")).map_or(0, Iterator::count);
    assert!(files <= 2 * KEPT + 10, "{files} files of {KEPT} shapes");
}
