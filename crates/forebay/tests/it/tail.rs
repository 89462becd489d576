//! `forebay tail` with a running server: rows, changes, restarts, recreated shapes and closed
//! pipes.
//!
//! The tests block their thread while they wait for lines, so each needs another thread for the
//! proxy.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use forebay_testkit::{Direction, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::forebay_process::forebay;
use crate::serve::support::{ServeFixture, ServeProcess};
use crate::wire::DEADLINE;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one'), (2, 'two')";
const QUICK: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

/// A running `forebay tail`; killed when dropped.
struct TailProcess {
    child: Child,
    /// Lines of standard output.
    lines: Receiver<String>,
    /// Lines of standard error.
    notes: Receiver<String>,
}

/// Reads lines on another thread.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = sync_channel(100_000);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns a command that tails a shape of the server at a URL.
fn command(at: &str, args: &[&str]) -> Command {
    let mut command = forebay(&["tail", "--url", at]);
    command.args(args).env_remove("ELECTRIC_SECRET").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn url(serve: &ServeProcess) -> String {
    format!("http://{}", serve.addr)
}

impl TailProcess {
    fn of(serve: &ServeProcess, args: &[&str]) -> TailProcess {
        TailProcess::run(command(&url(serve), args))
    }

    fn run(mut command: Command) -> TailProcess {
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        TailProcess { child, lines: lines(stdout), notes: lines(stderr) }
    }

    /// Waits for the next line of output.
    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("another line")
    }

    /// Waits for the next line of output and parses it as JSON.
    #[track_caller]
    fn json(&self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    /// Waits for a line of standard error that contains `part`.
    #[track_caller]
    fn note(&self, part: &str) -> String {
        let started = Instant::now();
        let mut seen = Vec::new();
        while started.elapsed() < DEADLINE {
            match self.notes.recv_timeout(DEADLINE) {
                Ok(note) if note.contains(part) => return note,
                Ok(note) => seen.push(note),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        panic!("no {part:?} in {seen:?}");
    }

    /// Waits until the process has ended.
    fn end(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < DEADLINE, "forebay tail still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for TailProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_printed_first_and_then_one_line_per_change() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve_with(&QUICK).await;
    let mut tail = TailProcess::of(&serve, &["items"]);
    let mut rows = [tail.line(), tail.line()];
    rows.sort();
    assert_eq!(rows, ["insert 1  id=1  note=one", "insert 2  id=2  note=two"]);
    tail.note("up to date: 2 rows");
    fixture.sql("INSERT INTO items VALUES (3, E'a \\u001b[31mb')");
    assert_eq!(tail.line(), "insert 3  id=3  note=\"a \\u{1b}[31mb\"");
    fixture.sql("UPDATE items SET note = NULL WHERE id = 1");
    assert_eq!(tail.line(), "update 1  id=1  note=null");
    fixture.sql("DELETE FROM items WHERE id = 2");
    assert_eq!(tail.line(), "delete 2  id=2");
    let pid = Pid::from_raw(tail.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(tail.end().success(), "Ctrl-C is a success");
    assert!(tail.notes.recv().is_err(), "a message at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_params_columns_from_and_secret_are_sent_to_the_server() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve_with(&[QUICK[0], ("FOREBAY_SERVE_SECRET", "s3cr3t &=")]).await;
    let args = ["items", "--where", "note = $1 OR id > 5", "--param", "1=two", "--columns", "id"];
    let mut program = command(&url(&serve), &args);
    program.env("FOREBAY_SERVE_SECRET", "s3cr3t &=");
    let tail = TailProcess::run(program);
    assert_eq!(tail.line(), "insert 2  id=2");
    let mut program = command(&url(&serve), &["items", "--from", "now", "--json"]);
    program.env("FOREBAY_SERVE_SECRET", "s3cr3t &=");
    let from_now = TailProcess::run(program);
    from_now.note("up to date: 0 rows");
    fixture.sql("INSERT INTO items VALUES (7, 'seven'), (4, 'four')");
    assert_eq!(tail.line(), "insert 7  id=7");
    let changes: Vec<Value> = std::iter::repeat_with(|| from_now.json())
        .filter(|message| message.get("key").is_some())
        .take(2)
        .collect();
    assert_eq!(changes[0]["value"]["note"], "seven");
    assert_eq!(changes[1]["headers"]["operation"], "insert");
    let output = command(&url(&serve), &["items"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("FOREBAY_SERVE_SECRET"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_or_printed_twice_across_server_restarts() {
    let fixture = ServeFixture::new(ITEMS);
    let mut serve = fixture.serve_with(&QUICK).await;
    let path = Proxy::start(serve.addr);
    let tail = TailProcess::run(command(&format!("http://{}", path.addr()), &["items", "--json"]));
    tail.note("up to date");
    for round in 1..4 {
        fixture
            .sql(&format!("INSERT INTO items SELECT g, 'before' FROM generate_series({round}1, {round}9) g"));
        match round {
            1 => {
                serve.signal(Signal::TERM);
                serve.end().await;
            }
            _ => serve.signal(Signal::KILL),
        }
        tail.note("retrying in");
        fixture.sql(&format!("INSERT INTO items VALUES ({round}0, 'away')"));
        drop(serve);
        serve = fixture.serve_with(&QUICK).await;
        path.fail_over_to(serve.addr);
        tail.note("reconnected");
    }
    fixture.sql("INSERT INTO items VALUES (99, 'last')");
    let mut ids = Vec::new();
    while ids.last() != Some(&99) {
        let message = tail.json();
        assert_ne!(message["headers"]["control"], "must-refetch");
        ids.extend(message["value"]["id"].as_str().map(|id| id.parse::<u32>().unwrap()));
    }
    ids.sort_unstable();
    let all = [1, 2].into_iter().chain(10..40).chain([99]).collect::<Vec<u32>>();
    assert_eq!(ids, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_response_is_requested_again_and_printed_once() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 3000)",
    );
    let serve = fixture.serve_with(&QUICK).await;
    let path = Proxy::start(serve.addr);
    path.truncate_after(20_000, Direction::ToClient);
    let tail = TailProcess::run(command(&format!("http://{}", path.addr()), &["items"]));
    tail.note("lost");
    path.resume();
    tail.note("up to date: 3,000 rows");
    let mut ids: Vec<u32> =
        (0..3000).map(|_| tail.line().rsplit_once('=').unwrap().1.parse().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(1..=3000));
    assert!(tail.lines.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_shape_is_read_again_and_reported() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve_with(&QUICK).await;
    let tail = TailProcess::of(&serve, &["items", "--json"]);
    tail.note("up to date: 2 rows");
    fixture.sql("ALTER TABLE items ADD COLUMN more int; INSERT INTO items VALUES (3, 'three', 4)");
    tail.note("shape replaced");
    tail.note("up to date: 3 rows");
    // Standard error can arrive before output that was printed earlier.
    let count_changes =
        |messages: &[Value]| messages.iter().filter(|message| message.get("key").is_some()).count();
    let mut messages = Vec::<Value>::new();
    while count_changes(&messages) < 5 {
        messages.push(serde_json::from_str(&tail.line()).unwrap());
    }
    let refetch =
        messages.iter().position(|message| message["headers"]["control"] == "must-refetch").unwrap();
    assert_eq!(
        (count_changes(&messages[..refetch]), count_changes(&messages[refetch..])),
        (2, 3),
        "{messages:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_tail_without_an_error_even_if_nothing_changes() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve_with(&QUICK).await;
    let mut child = command(&url(&serve), &["items"]).spawn().unwrap();
    let mut stdout: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    assert!(first.starts_with("insert "), "{first}");
    let mut tail =
        TailProcess { lines: lines(std::io::empty()), notes: lines(child.stderr.take().unwrap()), child };
    tail.note("up to date");
    drop(stdout);
    assert!(tail.end().success());
    assert!(tail.notes.recv().is_err(), "a message at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_is_reported_in_one_line() {
    let fixture = ServeFixture::new(ITEMS);
    let serve = fixture.serve_with(&QUICK).await;
    for (args, parts) in [
        (&["nothing"][..], &["400", "nothing"][..]),
        (&["items", "--where", "id >"], &["400", "where"]),
        (&["items", "--columns", "note"], &["400", "columns"]),
    ] {
        let output = command(&url(&serve), args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        parts.iter().for_each(|part| assert!(stderr.contains(part), "{part:?} is not in {stderr:?}"));
    }
    for args in [&["items", "--param", "x"][..], &["items", "--url", "nowhere"], &["items", "--from", "then"]]
    {
        let output = forebay(&["tail"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_server_that_always_replaces_the_shape_is_asked_less_and_less_often() {
    let body = r#"[{"headers":{"control":"must-refetch"}}]"#;
    assert_asked_less_and_less_often("409 Conflict", "", body);
}

#[test]
fn a_server_that_is_never_ready_and_asks_for_no_delay_is_asked_less_and_less_often() {
    assert_asked_less_and_less_often("503 Service Unavailable", "Retry-After: 0\r\n", "{}");
}

/// Replies the same to every request of a `forebay tail`, and checks the delays between them.
fn assert_asked_less_and_less_often(status: &str, header: &str, body: &str) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", server.local_addr().unwrap());
    let _tail = TailProcess::run(command(&at, &["items"]));
    let mut replied = None;
    for min_delay in [0, 100, 200, 400, 800].map(Duration::from_millis) {
        let (mut socket, _) = server.accept().unwrap();
        let waited = replied.map_or(Duration::ZERO, |replied: Instant| replied.elapsed());
        assert!(waited >= min_delay, "asked again after {waited:?}, not {min_delay:?}");
        let head = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
        assert!(head.take_while(|line| !line.is_empty()).count() > 0);
        replied = Some(Instant::now());
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
    }
}
