//! `forebay tail` as a process, with a real server: rows, changes, restarts, shapes that start over, pipes that close.
//!
//! Lines are waited for on the test's own thread, so each test has another one for the proxy.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use forebay_testkit::{Direction, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::gate::forebay;
use crate::serve::support::{Place, Serve};
use crate::wire::DEADLINE;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one'), (2, 'two')";
const QUICK: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

/// A running `forebay tail`.
struct Tail {
    child: Child,
    lines: Receiver<String>,
    notes: Receiver<String>,
}

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

fn command(at: &str, args: &[&str]) -> Command {
    let mut command = forebay(&["tail", "--url", at]);
    command.args(args).env_remove("ELECTRIC_SECRET").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn url(serve: &Serve) -> String {
    format!("http://{}", serve.addr)
}

impl Tail {
    fn of(serve: &Serve, args: &[&str]) -> Tail {
        Tail::run(command(&url(serve), args))
    }

    fn run(mut command: Command) -> Tail {
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Tail { child, lines: lines(stdout), notes: lines(stderr) }
    }

    /// The next line.
    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("another line")
    }

    /// The next line, as JSON.
    #[track_caller]
    fn json(&self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    /// Waits for a note that has this in it.
    #[track_caller]
    fn note(&self, part: &str) -> String {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < DEADLINE {
            match self.notes.recv_timeout(DEADLINE) {
                Ok(note) if note.contains(part) => return note,
                Ok(note) => seen.push(note),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        panic!("no {part:?} in {seen:?}");
    }

    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < DEADLINE, "it still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_first_and_then_each_change_as_a_line() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&QUICK).await;
    let mut tail = Tail::of(&serve, &["items"]);
    let mut rows = [tail.line(), tail.line()];
    rows.sort();
    assert_eq!(rows, ["insert 1  id=1  note=one", "insert 2  id=2  note=two"]);
    tail.note("up to date: 2 rows");
    place.sql("INSERT INTO items VALUES (3, E'a \\u001b[31mb')");
    assert_eq!(tail.line(), "insert 3  id=3  note=\"a \\u{1b}[31mb\"");
    place.sql("UPDATE items SET note = NULL WHERE id = 1");
    assert_eq!(tail.line(), "update 1  id=1  note=null");
    place.sql("DELETE FROM items WHERE id = 2");
    assert_eq!(tail.line(), "delete 2  id=2");
    let pid = Pid::from_raw(tail.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(tail.end().success(), "Ctrl-C is how it ends");
    assert!(tail.notes.recv().is_err(), "quietly");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clause_with_parameters_columns_and_a_beginning_are_passed_on() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[QUICK[0], ("FOREBAY_SERVE_SECRET", "s3cr3t &=")]).await;
    let args = ["items", "--where", "note = $1 OR id > 5", "--param", "1=two", "--columns", "id"];
    let mut program = command(&url(&serve), &args);
    program.env("FOREBAY_SERVE_SECRET", "s3cr3t &=");
    let tail = Tail::run(program);
    assert_eq!(tail.line(), "insert 2  id=2");
    let mut program = command(&url(&serve), &["items", "--from", "now", "--json"]);
    program.env("FOREBAY_SERVE_SECRET", "s3cr3t &=");
    let from_now = Tail::run(program);
    from_now.note("up to date: 0 rows");
    place.sql("INSERT INTO items VALUES (7, 'seven'), (4, 'four')");
    assert_eq!(tail.line(), "insert 7  id=7");
    let changes: Vec<Value> = std::iter::repeat_with(|| from_now.json())
        .filter(|message| message.get("key").is_some())
        .take(2)
        .collect();
    assert_eq!(changes[0]["value"]["note"], "seven");
    assert_eq!(changes[1]["headers"]["operation"], "insert");
    let output = command(&url(&serve), &["items"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("FOREBAY_SERVE_SECRET"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_printed_twice_while_the_server_restarts() {
    let place = Place::new(ITEMS);
    let mut serve = place.serve_with(&QUICK).await;
    let path = Proxy::start(serve.addr);
    let tail = Tail::run(command(&format!("http://{}", path.addr()), &["items", "--json"]));
    tail.note("up to date");
    for round in 1..4 {
        place
            .sql(&format!("INSERT INTO items SELECT g, 'before' FROM generate_series({round}1, {round}9) g"));
        match round {
            1 => {
                serve.signal(Signal::TERM);
                serve.end().await;
            }
            _ => serve.signal(Signal::KILL),
        }
        tail.note("retrying in");
        place.sql(&format!("INSERT INTO items VALUES ({round}0, 'away')"));
        drop(serve);
        serve = place.serve_with(&QUICK).await;
        path.fail_over_to(serve.addr);
        tail.note("reconnected");
    }
    place.sql("INSERT INTO items VALUES (99, 'last')");
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
async fn an_answer_that_breaks_off_is_asked_for_again_and_printed_once() {
    let place = Place::new(
        "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 3000)",
    );
    let serve = place.serve_with(&QUICK).await;
    let path = Proxy::start(serve.addr);
    path.truncate_after(20_000, Direction::ToClient);
    let tail = Tail::run(command(&format!("http://{}", path.addr()), &["items"]));
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
async fn a_shape_that_is_made_anew_is_read_again_and_told() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&QUICK).await;
    let tail = Tail::of(&serve, &["items", "--json"]);
    tail.note("up to date: 2 rows");
    place.sql("ALTER TABLE items ADD COLUMN more int; INSERT INTO items VALUES (3, 'three', 4)");
    tail.note("shape replaced");
    tail.note("up to date: 3 rows");
    // A note may be here before the lines that were printed before it.
    let of = |messages: &[Value]| messages.iter().filter(|message| message.get("key").is_some()).count();
    let mut messages = Vec::<Value>::new();
    while of(&messages) < 5 {
        messages.push(serde_json::from_str(&tail.line()).unwrap());
    }
    let over = messages.iter().position(|message| message["headers"]["control"] == "must-refetch").unwrap();
    assert_eq!((of(&messages[..over]), of(&messages[over..])), (2, 3), "{messages:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_closes_ends_it_quietly_even_when_nothing_changes() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&QUICK).await;
    let mut child = command(&url(&serve), &["items"]).spawn().unwrap();
    let mut stdout: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    assert!(first.starts_with("insert "), "{first}");
    let mut tail = Tail { lines: lines(std::io::empty()), notes: lines(child.stderr.take().unwrap()), child };
    tail.note("up to date");
    drop(stdout);
    assert!(tail.end().success());
    assert!(tail.notes.recv().is_err(), "quietly");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_asked_for_is_said_once() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&QUICK).await;
    for (args, parts) in [
        (&["nothing"][..], &["400", "nothing"][..]),
        (&["items", "--where", "id >"], &["400", "where"]),
        (&["items", "--columns", "note"], &["400", "columns"]),
    ] {
        let output = command(&url(&serve), args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part:?} is not in {said:?}"));
    }
    for args in [&["items", "--param", "x"][..], &["items", "--url", "nowhere"], &["items", "--from", "then"]]
    {
        let output = forebay(&["tail"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
