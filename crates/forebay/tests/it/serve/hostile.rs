//! Hostile clients: their requests are refused with a reason, their cost is bounded, and the server
//! releases all their resources.

mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::support::{ServeFixture, ServeProcess, changes, path};
use crate::wire::{HttpConnection, HttpResponse, until, within};

const CREATE_ITEMS: &str =
    "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'one'), (2, 'two')";
/// Longest time for a response. Far more than a busy machine needs without hostile clients.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(30);

/// Resources of an idle server.
struct IdleResources {
    /// Open file descriptors.
    descriptors: usize,
    /// Resident memory, in KiB.
    kib: u64,
}

impl IdleResources {
    /// Sends a first request and then measures, so that one-time costs are included.
    async fn measure(serve: &ServeProcess) -> IdleResources {
        serve.reader(&[("table", "items")]).await;
        wait_until_idle(serve).await;
        IdleResources { descriptors: descriptors(serve), kib: serve.resident_kib() }
    }

    /// Waits until the resources are released again, except `spare_kib` of memory. Then checks that
    /// new shapes are created promptly.
    async fn wait_for_release(&self, serve: &ServeProcess, spare_kib: u64) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        wait_until_idle(serve).await;
        until("descriptors are closed", async || descriptors(serve) <= self.descriptors + 4).await;
        let most = self.kib + spare_kib;
        until(&format!("memory is at most {most} KiB"), async || serve.resident_kib() <= most).await;
        // More shapes at once than the server creates concurrently.
        let mut creating = JoinSet::new();
        for number in 0..8 {
            let clause = format!("note = 'calm {number} {}'", NEXT.fetch_add(1, Ordering::Relaxed));
            let (addr, path) =
                (serve.addr, path(&[("table", "items"), ("where", &clause), ("offset", "-1")]));
            creating.spawn(async move { HttpConnection::fetch(addr, "GET", &path, &[], "").await });
        }
        let started = Instant::now();
        for response in creating.join_all().await {
            assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
        }
        assert!(started.elapsed() < MAX_RESPONSE_TIME, "creating shapes took {:?}", started.elapsed());
    }
}

/// Waits until the server has no connection, no stream and no permit.
async fn wait_until_idle(serve: &ServeProcess) {
    until("all clients are gone", async || {
        let status = serve.status().await;
        let (http, admission) = (&status["http"], &status["admission"]);
        http["open_connections"] == 0 && http["lean_streams"] == 0 && admission["total_connections"] == 0
    })
    .await;
}

/// Returns the number of open file descriptors.
fn descriptors(serve: &ServeProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", serve.pid())).unwrap().count()
}

/// Requests a subset by POST.
async fn post_subset(serve: &ServeProcess, clause: &str) -> HttpResponse {
    let body = json!({"subset": {"where": clause}}).to_string();
    serve.request("POST", "/v1/shape?table=items&offset=-1", &["Content-Type: application/json"], &body).await
}

/// Sends harmless requests until the returned function is called. The function returns the longest
/// response time.
fn measure_other_requests(serve: &ServeProcess) -> impl AsyncFnOnce() -> Duration + use<> {
    let (addr, stop) = (serve.addr, Arc::new(tokio::sync::Notify::new()));
    let stopped = Arc::clone(&stop);
    let requests = tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        loop {
            let started = Instant::now();
            let response =
                HttpConnection::fetch(addr, "GET", "/v1/shape?table=items&offset=-1", &[], "").await;
            assert_eq!(response.head.status, 200, "{}", response.head.text);
            longest = longest.max(started.elapsed());
            tokio::select! {
                () = stopped.notified() => return longest,
                () = sleep(Duration::from_millis(20)) => {}
            }
        }
    });
    async move || {
        stop.notify_one();
        requests.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_clauses_are_refused_while_other_requests_are_served() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let idle = IdleResources::measure(&serve).await;
    let others = measure_other_requests(&serve);
    let nested =
        |open: &str, close: &str, deep: usize| format!("{}id = 1{}", open.repeat(deep), close.repeat(deep));
    // In a URL, which may be as long as a request head.
    for clause in [
        nested("(", ")", 10_000),
        nested("NOT+", "", 6_000),
        nested("-", "", 10_000),
        nested("id=", "", 9_000),
    ] {
        let clause = clause.replace(' ', "+");
        let response =
            serve.request("GET", &format!("/v1/shape?table=items&offset=-1&where={clause}"), &[], "").await;
        assert_eq!(response.head.status, 400, "{}", &clause[..20]);
        assert!(response.json()["errors"]["where"].is_array(), "{}", String::from_utf8_lossy(&response.body));
        assert!(response.body.len() < 1_000, "the response repeats the request");
    }
    let mut client = HttpConnection::connect(serve.addr).await;
    let long = format!("GET /v1/shape?table=items&offset=-1&where={} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    // The server refuses it before it has read all of it.
    let _ = within("sending", client.socket.write_all(long.as_bytes())).await;
    let received = client.rest().await;
    assert!(
        received.is_empty() || received.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&received)
    );

    // Within the maximum length of a clause, and far beyond it.
    for bytes in [60_000, 1_000_000, 2_000_000] {
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
            let response = post_subset(&serve, &clause).await;
            assert_eq!(response.head.status, 400, "{name} of {bytes}: {}", response.head.text);
            // The error repeats an unterminated text, as in Postgres, up to the length of a clause.
            assert!(
                response.body.len() < clause.len().min(1 << 20) + 1_000,
                "{name}: {}",
                response.body.len()
            );
        }
        // Clauses without deep nesting are accepted, up to the maximum length.
        for (name, clause) in [
            ("alternatives", format!("id = 1{}", " OR id = 1".repeat(bytes / 10 - 10))),
            ("members", format!("id IN (1{})", ",1".repeat(bytes / 2 - 10))),
            ("a constant", format!("note = '{}'", "x".repeat(bytes))),
            ("a pattern", format!("note LIKE '{}'", "%x".repeat(bytes.min(60_000) / 2))),
        ] {
            let started = Instant::now();
            let response = post_subset(&serve, &clause).await;
            eprintln!("{name} of {bytes} bytes: {} in {:?}", response.head.status, started.elapsed());
            assert_eq!(
                response.head.status,
                if clause.len() <= 1 << 20 { 200 } else { 400 },
                "{name}: {}",
                String::from_utf8_lossy(&response.body)
            );
            assert!(started.elapsed() < MAX_RESPONSE_TIME, "{name}");
        }
    }
    let longest = others().await;
    assert!(longest < MAX_RESPONSE_TIME, "other requests took {longest:?}");
    eprintln!("other requests took {longest:?}");
    idle.wait_for_release(&serve, 64 * 1024).await;
}

#[tokio::test]
async fn invalid_offsets_and_foreign_handles_return_no_rows() {
    let fixture = ServeFixture::new(&format!(
        "{CREATE_ITEMS}; CREATE TABLE secrets (id int PRIMARY KEY); INSERT INTO secrets VALUES (7)"
    ));
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "400")]).await;
    let idle = IdleResources::measure(&serve).await;
    let (items, secrets) =
        (serve.reader(&[("table", "items")]).await, serve.reader(&[("table", "secrets")]).await);
    let max = u64::MAX;
    for offset in [
        format!("{max}_{max}"),
        format!("{max}_inf"),
        format!("{}_0", i64::MAX),
        format!("{}_5", "9".repeat(10_000)),
    ] {
        for live in ["false", "true"] {
            let params = [("table", "items"), ("handle", &items.handle), ("offset", &offset), ("live", live)];
            let response = serve.get(&params).await;
            assert_eq!(response.head.status, 400, "{offset}: {}", response.head.text);
            assert_eq!(response.json()["errors"]["offset"][0], "out of bounds for this shape", "{offset}");
        }
    }
    for offset in [
        "-2", "", "_", "0_", "_0", "1", "0_0_0", "0x1_0", "1e9_0", " 1_0", "+1_0", "٣_0", "inf_0", "0_-1",
        "\u{0}", "now_0",
    ] {
        let response = serve.get(&[("table", "items"), ("handle", &items.handle), ("offset", offset)]).await;
        assert_eq!(response.head.status, 400, "{offset:?}: {}", response.head.text);
        assert!(response.json()["errors"]["offset"].is_array(), "{offset:?}");
    }
    // An offset after the last chunk of the snapshot continues with the log.
    for op in [max.to_string(), "9".repeat(10_000)] {
        let offset = format!("0_{op}");
        let response = serve.get(&[("table", "items"), ("handle", &items.handle), ("offset", &offset)]).await;
        assert_eq!(response.head.status, 200, "{offset}: {}", response.head.text);
        assert!(changes(response.json().as_array().unwrap()).is_empty());
    }
    let long = "7-".repeat(5_000);
    for handle in
        [&secrets.handle, "0-0", &long, "../../etc/passwd", "\u{0}", "%00", "'; DROP TABLE items; --"]
    {
        for more in [&[][..], &[("live", "true")], &[("live", "true"), ("live_sse", "true")]] {
            let params = [&[("table", "items"), ("handle", handle), ("offset", "0_0")], more].concat();
            let response = serve.get(&params).await;
            let text = String::from_utf8_lossy(&response.body).into_owned();
            assert!([400, 409].contains(&response.head.status), "{handle}: {}", response.head.text);
            assert!(!text.contains("secrets") && !text.contains("\"7\""), "{handle}: {text}");
            if response.head.status == 409 {
                assert_eq!(response.head.header("electric-handle"), Some(&*items.handle), "{handle}");
            }
        }
    }
    idle.wait_for_release(&serve, 16 * 1024).await;
}

#[tokio::test]
async fn a_wrong_secret_gets_the_same_response_for_every_request() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_SECRET", "open sesame")]).await;
    let request =
        async |method: &str, path: &str| HttpConnection::fetch(serve.addr, method, path, &[], "").await;
    let first = request("GET", "/v1/shape").await;
    assert_eq!(
        (first.head.status, first.json()),
        (401, json!({"message": "Unauthorized - Invalid API secret"}))
    );
    let names = |response: &HttpResponse| {
        let same = |name: &&str| !["x-request-id", "date"].contains(name);
        response
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
                let response = request("GET", &format!("{route}{secret}{and}{rest}")).await;
                // A path that isn't the route gets 404; the route gets 401.
                assert!(
                    [401, 404].contains(&response.head.status),
                    "{route}{secret}: {}",
                    response.head.text
                );
                if response.head.status == 401 {
                    assert_eq!(
                        (&response.body, names(&response)),
                        (&first.body, names(&first)),
                        "{route}{secret}{and}{rest}"
                    );
                }
            }
        }
    }
    for method in ["POST", "DELETE"] {
        assert_eq!(request(method, "/v1/%73hape?table=items&offset=-1").await.head.status, 401, "{method}");
    }
    for right in ["secret=open+sesame", "secret=open%20sesame", "api_secret=open%20sesame"] {
        let response = request("GET", &format!("/v1/shape?table=items&offset=-1&{right}")).await;
        assert_eq!(response.head.status, 200, "{right}");
    }
    assert_eq!(serve.status().await["shapes"]["count"], 1, "only accepted requests create shapes");
    assert!(!serve.log().contains("sesame"), "a secret is in the log");
}

/// Returns the number of shapes that one user requests: `FOREBAY_CROWD`, or 1,500.
fn flood_size() -> usize {
    std::env::var("FOREBAY_CROWD").ok().and_then(|count| count.parse().ok()).unwrap_or(1_500)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_new_shapes_is_refused_with_retry_after_and_leaves_few_shapes() {
    const MAX_SHAPES: usize = 100;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_STORAGE_MAX_SHAPES", &MAX_SHAPES.to_string())]).await;
    let idle = IdleResources::measure(&serve).await;
    // The lock keeps all requests waiting until the first is refused, so that all are concurrent.
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let lock = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let lock = tokio::task::spawn_blocking(move || postgres.execute(&database, lock));
    let holder =
        "FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    until("the table is locked", async || fixture.query_value(&format!("SELECT 1 {holder}")).is_some()).await;
    let mut requests = JoinSet::new();
    for number in 0..flood_size() {
        let clause = format!("note = 'greedy {number}'");
        let (addr, path) = (serve.addr, path(&[("table", "items"), ("where", &clause), ("offset", "-1")]));
        requests.spawn(async move { HttpConnection::fetch(addr, "GET", &path, &[], "").await });
    }
    let mut refused = 0;
    while let Some(response) = requests.join_next().await {
        let response = response.unwrap();
        // 409: the shape was evicted while it was created.
        if matches!(response.head.status, 200 | 409) {
            continue;
        }
        assert_eq!(response.head.status, 503, "{}", String::from_utf8_lossy(&response.body));
        assert_eq!(response.json()["code"], "concurrent_request_limit_exceeded", "{}", response.json());
        let seconds: u64 = response.head.header("retry-after").unwrap().parse().unwrap();
        assert!((6..=10).contains(&seconds), "{seconds}");
        assert_eq!(response.head.header("cache-control"), Some("no-store"));
        if refused == 0 {
            fixture.sql(&format!("SELECT pg_terminate_backend(pid) {holder}"));
        }
        refused += 1;
    }
    eprintln!("{refused} of {} requests were refused", flood_size());
    assert!(refused > 0);
    let _ended = lock.await.unwrap();
    until("shapes are evicted", async || {
        serve.status().await["shapes"]["count"].as_u64() <= Some(MAX_SHAPES as u64)
    })
    .await;
    idle.wait_for_release(&serve, 32 * 1024).await;
    let files = std::fs::read_dir(fixture.dir.join("shapes")).map_or(0, Iterator::count);
    assert!(files <= 2 * MAX_SHAPES + 10, "{files} files for {MAX_SHAPES} shapes");
}
