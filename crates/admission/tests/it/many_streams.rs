//! Ten thousand streams at once, on real sockets. The clients run in a second process, because one
//! process may not have enough file descriptors for both ends.

#![allow(clippy::print_stdout, reason = "the client process reports on stdout")]

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use forebay_admission::{Admission, State};
use futures_util::{StreamExt, stream};

use crate::support::{RawHttpClient, admission_of, by_header, refusal, serve, wait_until_released};

const TOTAL: usize = 10_000;
/// Three streams for each user, and room for one more.
const USERS: usize = TOTAL / 3;
/// Clients that connect concurrently.
const AT_ONCE: usize = 200;
const ROLE: &str = "ADMISSION_TEST_CLIENTS";

/// Runs the test binary once more as the client process.
#[test]
fn ten_thousand_streams_are_served_and_fully_released() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(server) = env::var_os(ROLE) {
        let server = server.to_str().unwrap().parse().unwrap();
        return runtime.block_on(clients(server));
    }
    runtime.block_on(async {
        let admission = admission_of(TOTAL as u32, 3);
        let server = serve(&admission, by_header()).await;
        // The first round warms up, so that the second measures only the streams.
        let mut figures = Vec::new();
        for round in 1..=2 {
            let before = resident_mib();
            let (full, mut clients) = fill(&admission, server).await;
            clients.send_command("leave");
            clients.wait_for_exit();
            wait_until_released(&admission).await;
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

/// Opens streams up to the limit. Returns the resident memory and the client process.
async fn fill(admission: &Admission, server: SocketAddr) -> (f64, ClientProcess) {
    let mut clients = ClientProcess::start(server);
    assert_eq!(clients.next_line(), format!("{} of {0} served", USERS * 3));
    assert_eq!(admission.statistics().total_connections as usize, USERS * 3);
    clients.send_command("continue"); // the next stream must not open before the check above
    assert_eq!(clients.next_line(), "the fourth of a user: 429");
    assert_eq!(clients.next_line(), "another user: 200");
    let statistics = admission.statistics();
    assert_eq!((statistics.total_connections as usize, statistics.state), (TOTAL, State::Exhausted));
    assert_eq!(clients.next_line(), "one more: 503");
    assert_eq!(admission.open_streams(), TOTAL, "open streams stay open");
    (resident_mib(), clients)
}

/// The client process.
struct ClientProcess {
    process: Child,
    commands: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ClientProcess {
    fn start(server: SocketAddr) -> Self {
        let name = "many_streams::ten_thousand_streams_are_served_and_fully_released";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(ROLE, server.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        ClientProcess { commands: process.stdin.take(), process, lines }
    }

    /// Returns the next line with the prefix `clients: `. Lines of the test harness are skipped.
    fn next_line(&mut self) -> String {
        let line_text = self.lines.find_map(|line| Some(line.unwrap().strip_prefix("clients: ")?.to_owned()));
        line_text.expect("the client process prints a line")
    }

    fn send_command(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
    }

    fn wait_for_exit(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn clients(server: SocketAddr) {
    let open = async |id: String| {
        let (head, mut client) = RawHttpClient::get(server, "/endless", &[("x-user-id", &*id)]).await;
        client.until(b"data: hello\n\n").await;
        assert_eq!(head.status, 200);
        client
    };
    let all = stream::iter(0..USERS * 3).map(|n| open(format!("user-{}", n / 3)));
    let mut streams: Vec<_> = all.buffer_unordered(AT_ONCE).collect().await;
    report(&format!("{} of {} served", streams.len(), USERS * 3));
    wait_for_command();
    let (head, body) = refusal(server, "/endless", &[("x-user-id", "user-7")]).await;
    assert_eq!(body["error"], "too_many_connections");
    report(&format!("the fourth of a user: {}", head.status));
    streams.push(open("another".to_owned()).await);
    report("another user: 200");
    let (head, body) = refusal(server, "/endless", &[("x-user-id", "late")]).await;
    assert_eq!(body["details"]["current"], TOTAL);
    report(&format!("one more: {}", head.status));
    wait_for_command();
}

fn wait_for_command() {
    io::stdin().lines().next().expect("a command").unwrap();
}

/// Prints a line break first, because the test harness may have printed a partial line.
fn report(line_text: &str) {
    println!("\nclients: {line_text}");
}

fn resident_mib() -> f64 {
    // Returns free memory to the system, so that the rest is in use.
    // SAFETY: malloc_trim takes no pointers and may be called at any time.
    unsafe { libc::malloc_trim(0) };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
