//! Test support: a fixture with a database, a slot and a storage directory, the server process, and
//! clients that read shapes.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_sandbox::Postgres;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use crate::forebay_process::{ForebayProcess, forebay};
use crate::wire::{DEADLINE, HttpConnection, HttpHead, HttpResponse, until};

/// Maximum number of concurrent fixtures on the shared Postgres, which has ten replication slots.
/// Each server also opens several connections.
const MAX_SHARED_FIXTURES: u32 = 6;

/// Database, replication slot and storage directory of one test. Dropping it removes all three.
///
/// Drop order: the servers first, then the fixture.
pub(crate) struct ServeFixture {
    pub(crate) postgres: &'static Postgres,
    pub(crate) database: String,
    /// Name of the slot, and of the publication.
    pub(crate) slot: String,
    /// Storage directory of the servers.
    pub(crate) dir: PathBuf,
    _permit: Option<SharedPostgresPermit>,
}

impl ServeFixture {
    /// Creates a fixture on the shared Postgres. `sql`: the script that creates the tables.
    ///
    /// Blocks while [`MAX_SHARED_FIXTURES`] are in use.
    pub(crate) fn new(sql: &str) -> ServeFixture {
        let permit = SharedPostgresPermit::acquire();
        let postgres = Postgres::shared();
        ServeFixture::build(postgres, postgres.create_database("served").unwrap(), Some(permit), sql)
    }

    /// Creates a fixture with the ICU collation `en-US`, on a shared Postgres of this version.
    pub(crate) fn with_icu_collation(version: u32, sql: &str) -> ServeFixture {
        let permit = SharedPostgresPermit::acquire();
        let postgres = Postgres::shared_version(version);
        ServeFixture::build(
            postgres,
            postgres.create_icu_database("served", "en-US").unwrap(),
            Some(permit),
            sql,
        )
    }

    /// Creates a fixture on this Postgres. A test that stops Postgres starts its own, with
    /// `Box::leak`; that server ends with the process.
    pub(crate) fn on_postgres(postgres: &'static Postgres, sql: &str) -> ServeFixture {
        ServeFixture::build(postgres, postgres.create_database("served").unwrap(), None, sql)
    }

    fn build(
        postgres: &'static Postgres,
        database: String,
        permit: Option<SharedPostgresPermit>,
        sql: &str,
    ) -> ServeFixture {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("forebay-served-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir); // left by a killed process with the same pid
        let fixture =
            ServeFixture { postgres, slot: format!("slot_{database}"), database, dir, _permit: permit };
        fixture.sql(sql);
        fixture
    }

    /// Runs a script as the superuser. Several statements are one transaction.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) {
        self.postgres.execute(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Returns the first value of a query. `None`: NULL, or no row.
    #[track_caller]
    pub(crate) fn query_value(&self, sql: &str) -> Option<String> {
        let rows = self.postgres.query(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.into_iter().next()?.into_iter().next()?
    }

    /// Starts a server on free ports and waits until it is active.
    pub(crate) async fn serve(&self) -> ServeProcess {
        self.serve_with(&[]).await
    }

    /// Starts a server with settings, and waits until it is active. Settings are variables such as
    /// `("FOREBAY_SERVE_LONG_POLL_MS", "300")`.
    pub(crate) async fn serve_with(&self, settings: &[(&str, &str)]) -> ServeProcess {
        let serve = self.spawn(settings);
        serve.wait_for_health("active").await;
        serve
    }

    /// Starts a server with flags such as `--config`, and waits until it is active.
    pub(crate) async fn serve_with_args(&self, args: &[&str]) -> ServeProcess {
        let serve = self.run(args, &[]);
        serve.wait_for_health("active").await;
        serve
    }

    /// Starts a server and waits only until it listens.
    pub(crate) fn spawn(&self, settings: &[(&str, &str)]) -> ServeProcess {
        self.run(&[], settings)
    }

    fn run(&self, args: &[&str], settings: &[(&str, &str)]) -> ServeProcess {
        let mut command = self.command(args);
        command.envs(settings.iter().copied());
        ServeProcess { process: ForebayProcess::run(command, "server listening") }
    }

    /// Returns the command that starts a server on free ports.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let own = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let mut command = forebay(&own);
        command.args(["--slot", &self.slot, "--publication", &self.slot]).args(args);
        command.arg("--storage").arg(&self.dir);
        command.env("DATABASE_URL", self.postgres.url(&self.database));
        command.env("FOREBAY_DATABASE_POOL_SIZE", "4");
        // Shutdown waits for open streams; the default would delay the end of a test.
        command.env("FOREBAY_SERVE_DRAIN_TIMEOUT_MS", "1000");
        command
    }
}

impl Drop for ServeFixture {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.dir);
        let slot = &self.slot;
        let disconnect = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        );
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let started = Instant::now();
        while self.postgres.execute("postgres", &disconnect).is_ok()
            && self.postgres.execute("postgres", &drop).is_err()
            && started.elapsed() < DEADLINE
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database);
        let _busy = self.postgres.execute("postgres", &database);
    }
}

/// Permission to create a fixture on the shared Postgres.
struct SharedPostgresPermit(());

static PERMITS_IN_USE: Mutex<u32> = Mutex::new(0);
static PERMIT_RELEASED: Condvar = Condvar::new();

impl SharedPostgresPermit {
    fn acquire() -> SharedPostgresPermit {
        let mut in_use = PERMITS_IN_USE.lock();
        PERMIT_RELEASED.wait_while(&mut in_use, |in_use| *in_use >= MAX_SHARED_FIXTURES);
        *in_use += 1;
        SharedPostgresPermit(())
    }
}

impl Drop for SharedPostgresPermit {
    fn drop(&mut self) {
        *PERMITS_IN_USE.lock() -= 1;
        PERMIT_RELEASED.notify_one();
    }
}

/// A running `forebay serve`. Dropping it kills the process with SIGKILL.
///
/// Derefs to [`ForebayProcess`], which has the log, the status, the metrics and signals.
pub(crate) struct ServeProcess {
    process: ForebayProcess,
}

impl Deref for ServeProcess {
    type Target = ForebayProcess;

    fn deref(&self) -> &ForebayProcess {
        &self.process
    }
}

impl DerefMut for ServeProcess {
    fn deref_mut(&mut self) -> &mut ForebayProcess {
        &mut self.process
    }
}

impl ServeProcess {
    /// Shuts the server down with SIGTERM and waits for its end.
    pub(crate) async fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        self.end().await;
    }

    /// Reads until the shape has exactly these values of a column. Starts over after a 409.
    pub(crate) async fn read_until_column_is<'a>(
        &self,
        reader: &mut ShapeReader<'a>,
        shape: &[(&'a str, &'a str)],
        name: &str,
        expected: &[&str],
    ) {
        let started = Instant::now();
        let mut values = column_values(self, shape, name).await;
        while values != expected {
            assert!(started.elapsed() < DEADLINE, "the column has {values:?}, expected {expected:?}");
            let response = self.get(&[reader.params(), vec![("live", "true")]].concat()).await;
            match response.head.status {
                409 => *reader = self.reader(shape).await,
                _ => drop(reader.accept(&response)),
            }
            values = column_values(self, shape, name).await;
        }
        // The shape may have been replaced meanwhile.
        *reader = self.reader(shape).await;
    }

    /// Waits until `/v1/health` has this status: active, waiting or starting.
    pub(crate) async fn wait_for_health(&self, status: &str) {
        until(&format!("health is {status}"), async || self.health().await == status).await;
    }

    /// Returns the status in `/v1/health`.
    pub(crate) async fn health(&self) -> String {
        let response = self.request("GET", "/v1/health", &[], "").await;
        response.json()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Sends any request. `lines`: headers.
    pub(crate) async fn request(&self, method: &str, path: &str, lines: &[&str], body: &str) -> HttpResponse {
        HttpConnection::fetch(self.addr, method, path, lines, body).await
    }

    /// Sends `GET /v1/shape` and returns the whole response.
    pub(crate) async fn get(&self, params: &[(&str, &str)]) -> HttpResponse {
        self.request("GET", &path(params), &[], "").await
    }

    /// Requests the first chunk of a shape. Fails unless the status is 200.
    pub(crate) async fn first_chunk(&self, shape: &[(&str, &str)]) -> HttpResponse {
        let response = self.get(&[shape, &[("offset", "-1")]].concat()).await;
        let body = String::from_utf8_lossy(&response.body);
        assert_eq!(response.head.status, 200, "{} {body}", response.head.text);
        response
    }

    /// Sends `HEAD /v1/shape`.
    pub(crate) async fn head(&self, params: &[(&str, &str)]) -> HttpHead {
        let mut client = HttpConnection::connect(self.addr).await;
        client.request("HEAD", &path(params), &[], "").await;
        client.head().await
    }

    /// Sends `GET /v1/shape` and returns before the response.
    pub(crate) async fn start_get(&self, params: &[(&str, &str)]) -> HttpConnection {
        HttpConnection::get(self.addr, &path(params), &[]).await
    }

    /// Returns a reader that has caught up with the log.
    pub(crate) async fn reader<'a>(&self, params: &[(&'a str, &'a str)]) -> ShapeReader<'a> {
        let mut reader = ShapeReader::new(params);
        reader.catch_up(self).await;
        reader
    }

    /// Opens an event stream at the offset of a reader.
    pub(crate) async fn events(&self, reader: &ShapeReader<'_>) -> SseStream {
        let mut client =
            self.start_get(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat()).await;
        let head = client.head().await;
        SseStream::new(client, head)
    }
}

/// Returns the path and query of `/v1/shape` with these parameters.
pub(crate) fn path(params: &[(&str, &str)]) -> String {
    let pairs: Vec<_> =
        params.iter().map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
    format!("/v1/shape?{}", pairs.join("&"))
}

/// Percent-encodes a text for a URL.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Returns the messages without control messages: rows of the snapshot, and changes.
pub(crate) fn changes(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| message.get("key").is_some()).collect()
}

/// Returns operation and key of each change, such as `insert 1`.
pub(crate) fn summarize(messages: &[Value]) -> Vec<String> {
    let line = |message: &&Value| {
        let key = message["key"].as_str().unwrap().split_once('/').unwrap_or_default().1.replace('"', "");
        format!("{} {key}", message["headers"]["operation"].as_str().unwrap())
    };
    changes(messages).iter().map(line).collect()
}

/// Reads a shape from the beginning, and returns the values of one column, sorted.
pub(crate) async fn column_values(serve: &ServeProcess, shape: &[(&str, &str)], column: &str) -> Vec<String> {
    let messages = ShapeReader::new(shape).catch_up(serve).await;
    let mut rows = BTreeMap::new();
    for message in changes(&messages) {
        let key = message["key"].as_str().unwrap();
        match message["headers"]["operation"].as_str().unwrap() {
            "delete" => _ = rows.remove(key),
            _ => {
                if let Some(value) = message["value"].get(column) {
                    rows.insert(key, value.as_str().unwrap_or("NULL").to_owned());
                }
            }
        }
    }
    let mut values: Vec<_> = rows.into_values().collect();
    values.sort();
    values
}

/// Position of a client in one shape: handle, offset and cursor of its last response.
#[derive(Debug, Clone)]
pub(crate) struct ShapeReader<'a> {
    shape: Vec<(&'a str, &'a str)>,
    pub(crate) handle: String,
    pub(crate) offset: String,
    pub(crate) cursor: Option<String>,
}

impl<'a> ShapeReader<'a> {
    /// Creates a reader at the beginning. `shape`: parameters such as `[("table", "items")]`.
    pub(crate) fn new(shape: &[(&'a str, &'a str)]) -> Self {
        ShapeReader { shape: shape.to_vec(), handle: String::new(), offset: "-1".to_owned(), cursor: None }
    }

    /// Returns the parameters of the next request.
    pub(crate) fn params(&self) -> Vec<(&str, &str)> {
        let mut params = self.shape.clone();
        params.push(("offset", &self.offset));
        if !self.handle.is_empty() {
            params.push(("handle", &self.handle));
        }
        params.extend(self.cursor.as_ref().map(|cursor| ("cursor", cursor.as_str())));
        params
    }

    /// Stores the position of a response and returns its messages. Panics unless it is a 200.
    #[track_caller]
    pub(crate) fn accept(&mut self, response: &HttpResponse) -> Vec<Value> {
        let HttpResponse { head, body } = response;
        assert_eq!(head.status, 200, "{} {}", head.text, String::from_utf8_lossy(body));
        let named =
            |name| head.header(name).unwrap_or_else(|| panic!("no {name} in {}", head.text)).to_owned();
        (self.handle, self.offset) = (named("electric-handle"), named("electric-offset"));
        self.cursor = head.header("electric-cursor").map(str::to_owned);
        response.json().as_array().unwrap().clone()
    }

    /// Reads until it is up to date, and returns all messages.
    pub(crate) async fn catch_up(&mut self, serve: &ServeProcess) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let response = serve.get(&self.params()).await;
            messages.extend(self.accept(&response));
            if response.head.header("electric-up-to-date").is_some() {
                return messages;
            }
        }
    }

    /// Sends one long-poll and returns its messages.
    pub(crate) async fn long_poll(&mut self, serve: &ServeProcess) -> Vec<Value> {
        let response = serve.get(&[self.params(), vec![("live", "true")]].concat()).await;
        self.accept(&response)
    }

    /// Sends long-polls until the response is a 409, and returns the new handle in it.
    pub(crate) async fn wait_for_refetch(&mut self, serve: &ServeProcess) -> String {
        let started = Instant::now();
        loop {
            let response = serve.get(&[self.params(), vec![("live", "true")]].concat()).await;
            if response.head.status == 409 {
                let handle = response.head.header("electric-handle").unwrap_or_default();
                assert_ne!(handle, self.handle);
                return handle.to_owned();
            }
            self.accept(&response);
            assert!(started.elapsed() < DEADLINE, "no 409 for {self:?}");
        }
    }

    /// Sends long-polls until `count` changes have arrived, and returns all messages.
    pub(crate) async fn live_changes(&mut self, serve: &ServeProcess, count: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        let started = Instant::now();
        while changes(&messages).len() < count {
            assert!(started.elapsed() < DEADLINE, "expected {count} changes: {messages:?}");
            messages.extend(self.long_poll(serve).await);
        }
        messages
    }
}

/// An open stream of server-sent events.
pub(crate) struct SseStream {
    client: HttpConnection,
    pub(crate) head: HttpHead,
    unread: Vec<u8>,
}

/// An event of a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum SseEvent {
    Message(Value),
    KeepAlive,
    End,
}

impl SseStream {
    /// Reads events from a response whose head was read.
    pub(crate) fn new(client: HttpConnection, head: HttpHead) -> SseStream {
        SseStream { client, head, unread: Vec::new() }
    }

    /// Returns the next event.
    pub(crate) async fn next(&mut self) -> SseEvent {
        loop {
            if let Some(end) = self.unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                return match event.strip_prefix("data: ") {
                    Some(json) => SseEvent::Message(serde_json::from_str(json).unwrap()),
                    None if event == ": keep-alive\n\n" => SseEvent::KeepAlive,
                    None => panic!("not an event: {event:?}"),
                };
            }
            match self.client.chunk().await {
                Some(chunk) if !chunk.is_empty() => self.unread.extend(chunk),
                Some(_) | None => {
                    assert!(self.unread.is_empty(), "the stream ended inside an event: {:?}", self.unread);
                    return SseEvent::End;
                }
            }
        }
    }

    /// Reads to the next up-to-date. Returns the messages before it, and its position.
    pub(crate) async fn until_up_to_date(&mut self) -> (Vec<Value>, u64) {
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                SseEvent::Message(message) if message["headers"]["control"] == "up-to-date" => {
                    let seen = message["headers"]["global_last_seen_lsn"].as_str().unwrap().parse().unwrap();
                    return (messages, seen);
                }
                SseEvent::Message(message) => messages.push(message),
                SseEvent::KeepAlive => {}
                SseEvent::End => panic!("the stream ended after {messages:?}"),
            }
        }
    }
}
