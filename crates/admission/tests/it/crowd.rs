//! Ten thousand streams at once, on real sockets. The clients are a process of their own: a process may not have enough
//! descriptors for both ends.

#![allow(clippy::print_stdout, reason = "the clients speak by it, and the figures are worth reading")]

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use forebay_admission::{Admission, State};
use futures_util::{StreamExt, stream};

use crate::support::{Client, by_header, empties, house, refusal, serve};

const TOTAL: usize = 10_000;
/// Three for each user, and room for one more.
const USERS: usize = TOTAL / 3;
/// Clients that connect at the same time.
const AT_ONCE: usize = 200;
const ROLE: &str = "ADMISSION_TEST_CROWD";

/// Runs itself once more as the clients.
#[test]
fn ten_thousand_streams_are_served_and_leave_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(server) = env::var_os(ROLE) {
        let server = server.to_str().unwrap().parse().unwrap();
        return runtime.block_on(clients(server));
    }
    runtime.block_on(async {
        let admission = house(TOTAL as u32, 3);
        let server = serve(&admission, by_header()).await;
        // Once to warm up, so that what is measured is the streams and not the first use of everything.
        let mut figures = Vec::new();
        for round in 1..=2 {
            let before = resident_mib();
            let (full, mut crowd) = fill(&admission, server).await;
            crowd.tell("leave");
            crowd.ends();
            empties(&admission).await;
            let after = resident_mib();
            figures.push((before, full, after));
            println!("round {round}: {before:.1} MiB, {full:.1} with {TOTAL} streams, {after:.1} after");
        }
        let (before, full, after) = figures[1];
        assert!(after - before < (full - before) / 20.0, "memory did not return: {figures:?}");
        assert_eq!(admission.statistics().state, State::Healthy);
        assert!(admission.status().streams.is_empty());
    });
}

/// Fills the house; gives the resident memory then, and the crowd in it.
async fn fill(admission: &Admission, server: SocketAddr) -> (f64, Crowd) {
    let mut crowd = Crowd::start(server);
    assert_eq!(crowd.says(), format!("{} of {0} served", USERS * 3));
    assert_eq!(admission.statistics().total_connections as usize, USERS * 3);
    crowd.tell("go on"); // the next would be counted, too, if it came before this was looked at
    assert_eq!(crowd.says(), "the fourth of a user: 429");
    assert_eq!(crowd.says(), "another user: 200");
    let statistics = admission.statistics();
    assert_eq!((statistics.total_connections as usize, statistics.state), (TOTAL, State::Exhausted));
    assert_eq!(crowd.says(), "one more: 503");
    assert_eq!(admission.open(), TOTAL, "open streams go on");
    (resident_mib(), crowd)
}

/// The process with the clients.
struct Crowd {
    process: Child,
    orders: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Crowd {
    fn start(server: SocketAddr) -> Self {
        let name = "crowd::ten_thousand_streams_are_served_and_leave_nothing_behind";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(ROLE, server.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Crowd { orders: process.stdin.take(), process, lines }
    }

    /// Its next word; the test runner in it speaks, too.
    fn says(&mut self) -> String {
        let word = self.lines.find_map(|line| Some(line.unwrap().strip_prefix("crowd: ")?.to_owned()));
        word.expect("the crowd says something")
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    fn ends(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn clients(server: SocketAddr) {
    let open = async |id: String| {
        let (head, mut client) = Client::get(server, "/endless", &[("x-user-id", &*id)]).await;
        client.until(b"data: hello\n\n").await;
        assert_eq!(head.status, 200);
        client
    };
    let all = stream::iter(0..USERS * 3).map(|n| open(format!("user-{}", n / 3)));
    let mut streams: Vec<_> = all.buffer_unordered(AT_ONCE).collect().await;
    say(&format!("{} of {} served", streams.len(), USERS * 3));
    wait_for_order();
    let (head, body) = refusal(server, "/endless", &[("x-user-id", "user-7")]).await;
    assert_eq!(body["error"], "too_many_connections");
    say(&format!("the fourth of a user: {}", head.status));
    streams.push(open("somebody".to_owned()).await);
    say("another user: 200");
    let (head, body) = refusal(server, "/endless", &[("x-user-id", "late")]).await;
    assert_eq!(body["details"]["current"], TOTAL);
    say(&format!("one more: {}", head.status));
    wait_for_order();
}

fn wait_for_order() {
    io::stdin().lines().next().expect("an order").unwrap();
}

/// On a line of its own: the test runner has begun one.
fn say(word: &str) {
    println!("\ncrowd: {word}");
}

fn resident_mib() -> f64 {
    // What is free goes back to the system, so that what is left is held by somebody.
    // SAFETY: malloc_trim takes no pointers, and may be called at any time.
    unsafe { libc::malloc_trim(0) };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
