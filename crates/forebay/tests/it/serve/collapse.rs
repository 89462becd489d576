//! A collapsing cache in front: however many follow a shape, the server is asked once for each chunk and once for each change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_sandbox::free_port;
use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::support::{Place, Reader, path, short};
use crate::wire::{HttpConnection, until};

const PROGRAM: &str = "/usr/sbin/nginx";
const CLIENTS: usize = 200;
const POLLS: usize = 3;

/// A private nginx that asks once for what many want; ended when dropped.
struct Nginx {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    async fn before(server: SocketAddr) -> Nginx {
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

    /// How often each path was asked for, and how often the server was asked for it.
    fn asked(&self) -> BTreeMap<String, (usize, usize)> {
        let log = std::fs::read_to_string(self.folder.join("access.log")).unwrap();
        let mut asked: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for line in log.lines() {
            let (cached, path) = line.split_once(' ').unwrap();
            let counts = asked.entry(path.to_owned()).or_default();
            counts.0 += 1;
            counts.1 += usize::from(cached != "HIT");
        }
        asked
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

/// One process in the foreground, so that killing it is enough. A lock is as long as a long-poll takes, and longer.
fn configuration(folder: &str, address: SocketAddr, server: SocketAddr) -> String {
    let mut paths = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(paths, "{kind}_temp_path {folder}/{kind};").unwrap();
    }
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
        events {{ worker_connections 2048; }}
        http {{
            {paths}
            log_format cached '$upstream_cache_status $request_uri';
            access_log {folder}/access.log cached;
            proxy_cache_path {folder}/cache keys_zone=shapes:10m use_temp_path=off;
            server {{
                listen {address} backlog=1024;
                location / {{
                    proxy_pass http://{server};
                    proxy_http_version 1.1;
                    proxy_set_header Connection '';
                    proxy_read_timeout 60s;
                    proxy_cache shapes;
                    proxy_cache_key $request_uri;
                    proxy_cache_lock on;
                    proxy_cache_lock_timeout 30s;
                    proxy_cache_lock_age 30s;
                }}
            }}
        }}"
    )
}

const SHAPE: [(&str, &str); 2] = [("table", "items"), ("where", "id > 0")];

/// What keeps clients together: an answer is shared by those who ask while it is fresh.
struct Crowd {
    /// How many live requests were sent.
    waiting: AtomicUsize,
    together: Barrier,
}

impl Crowd {
    fn of(clients: usize) -> Arc<Crowd> {
        Arc::new(Crowd { waiting: AtomicUsize::new(0), together: Barrier::new(clients) })
    }
}

/// Reads the snapshot, catches up, and waits for so many changes.
async fn follow(nginx: SocketAddr, polls: usize, crowd: Arc<Crowd>) -> Vec<Value> {
    let mut client = HttpConnection::connect(nginx).await;
    let mut reader = Reader::new(&SHAPE);
    let mut messages = Vec::new();
    let mut is_behind = true;
    while is_behind {
        client.request("GET", &path(&reader.params()), &[], "").await;
        let answer = client.response().await;
        messages.extend(reader.take(&answer));
        is_behind = answer.head.header("electric-up-to-date").is_none();
    }
    for _ in 0..polls {
        let live = [reader.params(), vec![("live", "true")]].concat();
        crowd.together.wait().await;
        client.request("GET", &path(&live), &[], "").await;
        crowd.waiting.fetch_add(1, Ordering::Relaxed);
        messages.extend(reader.take(&client.response().await));
    }
    messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_behind_a_cache_cost_one_request_for_each_chunk_and_poll() {
    let place = Place::new(
        "CREATE TABLE items (id int PRIMARY KEY, note text);
        INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(1, 1000) n",
    );
    let serve = place.serve_with(&[("FOREBAY_STORAGE_CHUNK_BYTES", "65536")]).await;
    let nginx = Nginx::before(serve.addr).await;
    let requests = async || serve.status().await["http"]["requests"].as_u64().unwrap();
    let before = requests().await;

    let crowd = Crowd::of(CLIENTS);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(follow(nginx.address, POLLS, Arc::clone(&crowd)));
    }
    for poll in 1..=POLLS {
        until("all clients wait", async || crowd.waiting.load(Ordering::Relaxed) == poll * CLIENTS).await;
        place.sql(&format!("INSERT INTO items VALUES ({}, 'new')", 1_000 + poll));
    }
    let expected: Vec<_> = (1..=1_000 + POLLS).map(|id| format!("insert {id}")).collect();
    for messages in clients.join_all().await {
        assert_eq!(short(&messages), expected);
    }

    let asked = nginx.asked();
    let (live, others): (Vec<_>, Vec<_>) = asked.keys().partition(|path| path.contains("live=true"));
    assert_eq!(live.len(), POLLS, "{live:?}");
    assert!(others.len() >= 5, "several chunks, and the log: {others:?}");
    for (path, counts) in &asked {
        assert_eq!(*counts, (CLIENTS, 1), "(asked, asked of the server): {path}");
    }
    assert_eq!(requests().await - before, asked.len() as u64);

    // Whoever comes later starts from the cache, and asks for nothing but what is new.
    let late = follow(nginx.address, 0, Crowd::of(1)).await;
    assert!(late.len() > 1_000, "{}", late.len());
    assert_eq!(requests().await - before, asked.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_whose_poll_brings_nothing_cost_one_request_for_it() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let nginx = Nginx::before(serve.addr).await;
    let (crowd, mut clients) = (Crowd::of(CLIENTS), JoinSet::new());
    for _ in 0..CLIENTS {
        clients.spawn(follow(nginx.address, 2, Arc::clone(&crowd)));
    }
    for messages in clients.join_all().await {
        assert_eq!(short(&messages), [""; 0]);
    }
    let asked = nginx.asked();
    let live = asked.iter().filter(|(path, _)| path.contains("live=true"));
    let counts: Vec<_> = live.map(|(_, counts)| *counts).collect();
    assert_eq!(counts, [(CLIENTS, 1); 2], "(asked, asked of the server): {asked:?}");
}
