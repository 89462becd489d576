//! nginx in front of the server, with the configuration of docs/operations.md: it collapses equal
//! concurrent requests, and passes event streams on. Any number of clients costs the server one
//! request for each chunk and one for each long-poll.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_sandbox::free_port;
use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::operations::file;
use super::support::{ServeFixture, ShapeReader, SseStream, path, summarize};
use crate::wire::{HttpConnection, until};

const PROGRAM: &str = "/usr/sbin/nginx";
const CLIENTS: usize = 200;
const POLLS: usize = 3;

/// An nginx that forwards concurrent equal requests once. Killed when dropped.
struct Nginx {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    /// Starts nginx in front of a server.
    async fn start(server: SocketAddr) -> Nginx {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let folder =
            std::env::temp_dir().join(format!("forebay-nginx-{}-{}", std::process::id(), address.port()));
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("nginx.conf");
        std::fs::write(&config, configuration(&folder.display().to_string(), address, server)).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("-p").arg(&folder).arg("-c").arg(&config).arg("-e").arg(folder.join("error.log"));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process =
            process.unwrap_or_else(|error| panic!("{PROGRAM}: {error}; script/bootstrap installs it"));
        let nginx = Nginx { process, address, folder };
        until("nginx listens", async || TcpStream::connect(address).is_ok()).await;
        nginx
    }

    /// Returns for each path the number of requests to nginx, and to the server.
    fn requests(&self) -> BTreeMap<String, (usize, usize)> {
        let log = std::fs::read_to_string(self.folder.join("access.log")).unwrap();
        let mut requests: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for line in log.lines() {
            let (cached, path) = line.split_once(' ').unwrap();
            let counts = requests.entry(path.to_owned()).or_default();
            counts.0 += 1;
            counts.1 += usize::from(cached != "HIT");
        }
        requests
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.join("error.log")).unwrap_or_default();
            eprintln!("--- log of nginx\n{log}");
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the configuration of docs/operations.md, with the addresses and folders of the test.
/// nginx is one process in the foreground, so that a kill ends it.
fn configuration(folder: &str, address: SocketAddr, server: SocketAddr) -> String {
    let mut paths = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(paths, "{kind}_temp_path {folder}/{kind};").unwrap();
    }
    let mut documented = documented_configuration();
    for (there, here) in [
        ("/var/cache/forebay", format!("{folder}/cache")),
        ("listen 80;", format!("listen {address} backlog=1024;")),
        ("http://127.0.0.1:3000", format!("http://{server}")),
    ] {
        assert_eq!(documented.matches(there).count(), 1, "{there} in\n{documented}");
        documented = documented.replace(there, &here);
    }
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
        events {{ worker_connections 2048; }}
        http {{
            {paths}
            log_format cached '$upstream_cache_status $request_uri';
            access_log {folder}/access.log cached;
            {documented}
        }}"
    )
}

/// Returns the code block of the section "A cache in front".
fn documented_configuration() -> String {
    let text = file("docs/operations.md");
    let section = text.split("\n## A cache in front\n").nth(1).expect("the section exists");
    let section = section.split("\n## ").next().unwrap();
    let lines: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    lines.join("\n")
}

const SHAPE: [(&str, &str); 2] = [("table", "items"), ("where", "id > 0")];

/// Keeps clients in step, because only requests at the same time share a response.
struct ClientGroup {
    /// Number of live requests that were sent.
    waiting: AtomicUsize,
    together: Barrier,
}

impl ClientGroup {
    fn of(clients: usize) -> Arc<ClientGroup> {
        Arc::new(ClientGroup { waiting: AtomicUsize::new(0), together: Barrier::new(clients) })
    }
}

/// Reads the snapshot, catches up, and sends `polls` long-polls. Returns all messages.
async fn follow(nginx: SocketAddr, polls: usize, group: Arc<ClientGroup>) -> Vec<Value> {
    let mut client = HttpConnection::connect(nginx).await;
    let mut reader = ShapeReader::new(&SHAPE);
    let mut messages = Vec::new();
    let mut is_behind = true;
    while is_behind {
        client.request("GET", &path(&reader.params()), &[], "").await;
        let response = client.response().await;
        messages.extend(reader.accept(&response));
        is_behind = response.head.header("electric-up-to-date").is_none();
    }
    for _ in 0..polls {
        let live = [reader.params(), vec![("live", "true")]].concat();
        group.together.wait().await;
        client.request("GET", &path(&live), &[], "").await;
        group.waiting.fetch_add(1, Ordering::Relaxed);
        messages.extend(reader.accept(&client.response().await));
    }
    messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_behind_a_cache_cost_one_request_for_each_chunk_and_poll() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, note text);
        INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(1, 1000) n",
    );
    let serve = fixture.serve_with(&[("FOREBAY_STORAGE_CHUNK_BYTES", "65536")]).await;
    let nginx = Nginx::start(serve.addr).await;
    let requests = async || serve.status().await["http"]["requests"].as_u64().unwrap();
    let before = requests().await;

    let group = ClientGroup::of(CLIENTS);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(follow(nginx.address, POLLS, Arc::clone(&group)));
    }
    for poll in 1..=POLLS {
        until("all clients have sent a long-poll", async || {
            group.waiting.load(Ordering::Relaxed) == poll * CLIENTS
        })
        .await;
        fixture.sql(&format!("INSERT INTO items VALUES ({}, 'new')", 1_000 + poll));
    }
    let expected: Vec<_> = (1..=1_000 + POLLS).map(|id| format!("insert {id}")).collect();
    for messages in clients.join_all().await {
        assert_eq!(summarize(&messages), expected);
    }

    let requested = nginx.requests();
    let (live, others): (Vec<_>, Vec<_>) = requested.keys().partition(|path| path.contains("live=true"));
    assert_eq!(live.len(), POLLS, "{live:?}");
    assert!(others.len() >= 5, "expected several chunks and the log: {others:?}");
    for (path, counts) in &requested {
        assert_eq!(*counts, (CLIENTS, 1), "(requests to nginx, to the server): {path}");
    }
    assert_eq!(requests().await - before, requested.len() as u64);

    // A later client gets the whole shape from the cache.
    let late = follow(nginx.address, 0, ClientGroup::of(1)).await;
    assert!(late.len() > 1_000, "{}", late.len());
    assert_eq!(requests().await - before, requested.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_behind_a_cache_cost_one_request_for_a_poll_without_changes() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let nginx = Nginx::start(serve.addr).await;
    let (group, mut clients) = (ClientGroup::of(CLIENTS), JoinSet::new());
    for _ in 0..CLIENTS {
        clients.spawn(follow(nginx.address, 2, Arc::clone(&group)));
    }
    for messages in clients.join_all().await {
        assert_eq!(summarize(&messages), [""; 0]);
    }
    let requested = nginx.requests();
    let live = requested.iter().filter(|(path, _)| path.contains("live=true"));
    let counts: Vec<_> = live.map(|(_, counts)| *counts).collect();
    assert_eq!(counts, [(CLIENTS, 1); 2], "(requests to nginx, to the server): {requested:?}");
}

const STREAMS: usize = 20;
/// Time in which all streams must be open. With the cache lock, nginx would open two per second.
const OPEN_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_event_streams_behind_a_cache_open_at_once_and_get_each_event_as_it_is_sent() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = fixture.serve_with(&[]).await;
    let nginx = Nginx::start(serve.addr).await;
    let reader = serve.reader(&SHAPE).await;
    let direct = serve.events(&reader).await;
    assert_eq!(direct.head.header("x-accel-buffering"), Some("no"), "{}", direct.head.text);
    drop(direct);

    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        clients.push(HttpConnection::get(nginx.address, &live, &[]).await);
    }
    let mut streams = Vec::new();
    let opening = async {
        for mut client in clients {
            let head = client.head().await;
            assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
            streams.push(SseStream::new(client, head));
        }
    };
    let opened = timeout(OPEN_WITHIN, opening).await;
    assert!(opened.is_ok(), "{} of {STREAMS} streams are open after {OPEN_WITHIN:?}", streams.len());

    // Each row is inserted only after all clients have the one before.
    for id in 1..=3 {
        fixture.sql(&format!("INSERT INTO items VALUES ({id}, 'new')"));
        for stream in &mut streams {
            let (messages, _) = stream.until_up_to_date().await;
            assert_eq!(summarize(&messages), [format!("insert {id}")]);
        }
    }
}
