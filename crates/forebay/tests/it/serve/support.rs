//! A database, a slot and a folder of a test's own; a server of shapes for it; and clients.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay_sandbox::Postgres;
use serde_json::Value;

use crate::forebay_process::{ForebayProcess, forebay};
use crate::wire::{DEADLINE, HttpConnection, HttpHead, HttpResponse, until};

/// A slot is one of ten of its Postgres, and each server of shapes has several connections.
const PLACES: u32 = 6;

/// A database to follow, and where to keep what comes of it. It goes with all that it has: drop its servers first.
pub(crate) struct Place {
    pub(crate) postgres: &'static Postgres,
    pub(crate) database: String,
    pub(crate) slot: String,
    pub(crate) dir: PathBuf,
    _turn: Option<Turn>,
}

impl Place {
    /// On the Postgres that all share.
    pub(crate) fn new(sql: &str) -> Place {
        let turn = Turn::take();
        let postgres = Postgres::shared();
        Place::build(postgres, postgres.create_database("served").unwrap(), Some(turn), sql)
    }

    /// The same on a database that orders texts by the rules of a language, of this version of
    /// Postgres.
    pub(crate) fn in_english(version: u32, sql: &str) -> Place {
        let turn = Turn::take();
        let postgres = Postgres::shared_version(version);
        Place::build(postgres, postgres.create_icu_database("served", "en-US").unwrap(), Some(turn), sql)
    }

    /// On one of the test's own, which it may end: `Box::leak` it, it ends with the process.
    pub(crate) fn on(postgres: &'static Postgres, sql: &str) -> Place {
        Place::build(postgres, postgres.create_database("served").unwrap(), None, sql)
    }

    fn build(postgres: &'static Postgres, database: String, turn: Option<Turn>, sql: &str) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("forebay-served-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir); // of a killed process that had our number
        let place = Place { postgres, slot: format!("slot_{database}"), database, dir, _turn: turn };
        place.sql(sql);
        place
    }

    /// As the superuser; a script of several statements is one transaction.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) {
        self.postgres.execute(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The first value.
    #[track_caller]
    pub(crate) fn ask(&self, sql: &str) -> Option<String> {
        let rows = self.postgres.query(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.into_iter().next()?.into_iter().next()?
    }

    /// Starts a server on free ports, and waits until it is active.
    pub(crate) async fn serve(&self) -> Serve {
        self.serve_with(&[]).await
    }

    /// `settings`: variables such as `("FOREBAY_SERVE_LONG_POLL_MS", "300")`.
    pub(crate) async fn serve_with(&self, settings: &[(&str, &str)]) -> Serve {
        let serve = self.spawn(settings);
        serve.becomes("active").await;
        serve
    }

    /// With flags such as `--config`.
    pub(crate) async fn serve_with_args(&self, args: &[&str]) -> Serve {
        let serve = self.run(args, &[]);
        serve.becomes("active").await;
        serve
    }

    /// Starts a server, and waits only until it listens.
    pub(crate) fn spawn(&self, settings: &[(&str, &str)]) -> Serve {
        self.run(&[], settings)
    }

    fn run(&self, args: &[&str], settings: &[(&str, &str)]) -> Serve {
        let mut command = self.command(args);
        command.envs(settings.iter().copied());
        Serve { process: ForebayProcess::run(command, "server listening") }
    }

    /// What starts a server on free ports.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let own = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let mut command = forebay(&own);
        command.args(["--slot", &self.slot, "--publication", &self.slot]).args(args);
        command.arg("--storage").arg(&self.dir);
        command.env("DATABASE_URL", self.postgres.url(&self.database));
        command.env("FOREBAY_DATABASE_POOL_SIZE", "4");
        // A stream that stays open must not keep a test waiting at its end.
        command.env("FOREBAY_SERVE_DRAIN_TIMEOUT_MS", "1000");
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.dir);
        let slot = &self.slot;
        let busy = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        );
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let begun = Instant::now();
        while self.postgres.execute("postgres", &busy).is_ok()
            && self.postgres.execute("postgres", &drop).is_err()
            && begun.elapsed() < DEADLINE
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database);
        let _busy = self.postgres.execute("postgres", &database);
    }
}

/// A place at the shared Postgres.
struct Turn(());

static TAKEN: Mutex<u32> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Turn {
        let taken = TAKEN.lock().unwrap();
        *FREED.wait_while(taken, |taken| *taken >= PLACES).unwrap() += 1;
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() -= 1;
        FREED.notify_one();
    }
}

/// A running `forebay serve`; killed with -9 when it is dropped. What is not here, [`ForebayProcess`] has: the log, the status, signals.
pub(crate) struct Serve {
    process: ForebayProcess,
}

impl Deref for Serve {
    type Target = ForebayProcess;

    fn deref(&self) -> &ForebayProcess {
        &self.process
    }
}

impl DerefMut for Serve {
    fn deref_mut(&mut self) -> &mut ForebayProcess {
        &mut self.process
    }
}

impl Serve {
    /// Ends the server in good order.
    pub(crate) async fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        self.end().await;
    }

    /// Reads on, and starts over where it is told to, until a shape has these values of a column.
    pub(crate) async fn has_column<'a>(
        &self,
        reader: &mut Reader<'a>,
        shape: &[(&'a str, &'a str)],
        name: &str,
        expected: &[&str],
    ) {
        let begun = Instant::now();
        let mut values = column(self, shape, name).await;
        while values != expected {
            assert!(begun.elapsed() < DEADLINE, "{values:?}, not {expected:?}");
            let answer = self.get(&[reader.params(), vec![("live", "true")]].concat()).await;
            match answer.head.status {
                409 => *reader = self.reader(shape).await,
                _ => drop(reader.take(&answer)),
            }
            values = column(self, shape, name).await;
        }
        // A shape that was replaced meanwhile is found by its next reader.
        *reader = self.reader(shape).await;
    }

    /// Waits until health says so: active, waiting or starting.
    pub(crate) async fn becomes(&self, status: &str) {
        until(&format!("health is {status}"), async || self.health().await == status).await;
    }

    pub(crate) async fn health(&self) -> String {
        let answer = self.ask("GET", "/v1/health", &[], "").await;
        answer.json()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Any request.
    pub(crate) async fn ask(&self, method: &str, path: &str, lines: &[&str], body: &str) -> HttpResponse {
        HttpConnection::fetch(self.addr, method, path, lines, body).await
    }

    /// A GET of a shape.
    pub(crate) async fn get(&self, params: &[(&str, &str)]) -> HttpResponse {
        self.ask("GET", &path(params), &[], "").await
    }

    /// Only the head, and only of a HEAD.
    pub(crate) async fn head(&self, params: &[(&str, &str)]) -> HttpHead {
        let mut client = HttpConnection::connect(self.addr).await;
        client.request("HEAD", &path(params), &[], "").await;
        client.head().await
    }

    /// A GET that isn't waited for.
    pub(crate) async fn begin(&self, params: &[(&str, &str)]) -> HttpConnection {
        HttpConnection::get(self.addr, &path(params), &[]).await
    }

    /// A reader that has everything up to now.
    pub(crate) async fn reader<'a>(&self, params: &[(&'a str, &'a str)]) -> Reader<'a> {
        let mut reader = Reader::new(params);
        reader.catch_up(self).await;
        reader
    }

    /// Server-sent events from where a reader is.
    pub(crate) async fn events(&self, reader: &Reader<'_>) -> Events {
        let mut client =
            self.begin(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat()).await;
        let head = client.head().await;
        Events::over(client, head)
    }
}

/// The path of a shape.
pub(crate) fn path(params: &[(&str, &str)]) -> String {
    let pairs: Vec<_> = params.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    format!("/v1/shape?{}", pairs.join("&"))
}

/// For a URL.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Those that are changes or rows, and not control messages.
pub(crate) fn changes(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| message.get("key").is_some()).collect()
}

/// `operation key` of each change, for comparisons: `insert 1` is of the row with the key 1.
pub(crate) fn short(messages: &[Value]) -> Vec<String> {
    let line = |message: &&Value| {
        let key = message["key"].as_str().unwrap().split_once('/').unwrap_or_default().1.replace('"', "");
        format!("{} {key}", message["headers"]["operation"].as_str().unwrap())
    };
    changes(messages).iter().map(line).collect()
}

/// The rows of a shape as a new client gets them: the values of one column, sorted.
pub(crate) async fn column(serve: &Serve, shape: &[(&str, &str)], column: &str) -> Vec<String> {
    let messages = Reader::new(shape).catch_up(serve).await;
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

/// A client of one shape: it knows where it is.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    shape: Vec<(&'a str, &'a str)>,
    pub(crate) handle: String,
    pub(crate) offset: String,
    pub(crate) cursor: Option<String>,
}

impl<'a> Reader<'a> {
    /// `shape`: what it is of, such as `[("table", "items")]`.
    pub(crate) fn new(shape: &[(&'a str, &'a str)]) -> Self {
        Reader { shape: shape.to_vec(), handle: String::new(), offset: "-1".to_owned(), cursor: None }
    }

    /// What it asks for next.
    pub(crate) fn params(&self) -> Vec<(&str, &str)> {
        let mut params = self.shape.clone();
        params.push(("offset", &self.offset));
        if !self.handle.is_empty() {
            params.push(("handle", &self.handle));
        }
        params.extend(self.cursor.as_ref().map(|cursor| ("cursor", cursor.as_str())));
        params
    }

    /// Takes an answer in: its messages.
    #[track_caller]
    pub(crate) fn take(&mut self, answer: &HttpResponse) -> Vec<Value> {
        let HttpResponse { head, body } = answer;
        assert_eq!(head.status, 200, "{} {}", head.text, String::from_utf8_lossy(body));
        let named =
            |name| head.header(name).unwrap_or_else(|| panic!("no {name} in {}", head.text)).to_owned();
        (self.handle, self.offset) = (named("electric-handle"), named("electric-offset"));
        self.cursor = head.header("electric-cursor").map(str::to_owned);
        answer.json().as_array().unwrap().clone()
    }

    /// Reads on until it is up to date: all messages.
    pub(crate) async fn catch_up(&mut self, serve: &Serve) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let answer = serve.get(&self.params()).await;
            messages.extend(self.take(&answer));
            if answer.head.header("electric-up-to-date").is_some() {
                return messages;
            }
        }
    }

    /// Waits for what comes, once.
    pub(crate) async fn live(&mut self, serve: &Serve) -> Vec<Value> {
        let answer = serve.get(&[self.params(), vec![("live", "true")]].concat()).await;
        self.take(&answer)
    }

    /// Waits until it is told to start over, and returns the handle that it is told.
    pub(crate) async fn starts_over(&mut self, serve: &Serve) -> String {
        let begun = Instant::now();
        loop {
            let answer = serve.get(&[self.params(), vec![("live", "true")]].concat()).await;
            if answer.head.status == 409 {
                let handle = answer.head.header("electric-handle").unwrap_or_default();
                assert_ne!(handle, self.handle);
                return handle.to_owned();
            }
            self.take(&answer);
            assert!(begun.elapsed() < DEADLINE, "{self:?} goes on");
        }
    }

    /// Waits until so many changes have come, and gives all messages since.
    pub(crate) async fn live_changes(&mut self, serve: &Serve, count: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        let begun = Instant::now();
        while changes(&messages).len() < count {
            assert!(begun.elapsed() < DEADLINE, "{count} changes, but only: {messages:?}");
            messages.extend(self.live(serve).await);
        }
        messages
    }
}

/// A stream of server-sent events.
pub(crate) struct Events {
    client: HttpConnection,
    pub(crate) head: HttpHead,
    unread: Vec<u8>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Message(Value),
    KeepAlive,
    End,
}

impl Events {
    pub(crate) fn over(client: HttpConnection, head: HttpHead) -> Events {
        Events { client, head, unread: Vec::new() }
    }

    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(end) = self.unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                return match event.strip_prefix("data: ") {
                    Some(json) => Event::Message(serde_json::from_str(json).unwrap()),
                    None if event == ": keep-alive\n\n" => Event::KeepAlive,
                    None => panic!("no event: {event:?}"),
                };
            }
            match self.client.chunk().await {
                Some(chunk) if !chunk.is_empty() => self.unread.extend(chunk),
                Some(_) | None => {
                    assert!(self.unread.is_empty(), "half an event: {:?}", self.unread);
                    return Event::End;
                }
            }
        }
    }

    /// The messages up to the next up-to-date, and what that says was seen.
    pub(crate) async fn up_to_date(&mut self) -> (Vec<Value>, u64) {
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                Event::Message(message) if message["headers"]["control"] == "up-to-date" => {
                    let seen = message["headers"]["global_last_seen_lsn"].as_str().unwrap().parse().unwrap();
                    return (messages, seen);
                }
                Event::Message(message) => messages.push(message),
                Event::KeepAlive => {}
                Event::End => panic!("the stream ended after {messages:?}"),
            }
        }
    }
}
