//! The program `forebay` as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wire::{DEADLINE, HttpConnection, HttpResponse, until};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

/// A running `forebay gate` or `forebay serve`; killed when dropped.
#[derive(Debug)]
pub(crate) struct ForebayProcess {
    child: Child,
    /// Client address.
    pub(crate) addr: SocketAddr,
    /// Admin address.
    pub(crate) admin: SocketAddr,
    log: Arc<ProcessLog>,
}

#[derive(Debug, Default)]
struct ProcessLog {
    lines: Mutex<Vec<String>>,
    grew: Condvar,
}

/// Returns a command of the program, without the `FOREBAY_` and `OTEL_` variables of this process.
pub(crate) fn forebay(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars() {
        if name.starts_with("FOREBAY_") || name.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

impl ForebayProcess {
    /// Starts a gate on free ports and waits until it listens.
    pub(crate) fn start_gate(upstream: &str, args: &[&str]) -> ForebayProcess {
        ForebayProcess::start_gate_with(upstream, args, &[])
    }

    /// Starts a gate with environment variables, like [`Self::start_gate`].
    pub(crate) fn start_gate_with(
        upstream: &str,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> ForebayProcess {
        let args_of_tests =
            ["gate", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let mut command = forebay(&args_of_tests);
        command.args(["--upstream", upstream]).args(args).envs(environment.iter().copied());
        ForebayProcess::run(command, "gate listening")
    }

    /// Starts a command that logs `message` when it listens, and waits for that log line.
    pub(crate) fn run(mut command: Command, message: &str) -> ForebayProcess {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(ProcessLog::default());
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lines.lock().push(line);
                lines.grew.notify_all();
            }
        });
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gate = ForebayProcess { child, addr: unknown, admin: unknown, log };
        let listens = gate.wait_for_log(message);
        gate.addr = listens["address"].as_str().unwrap().parse().unwrap();
        gate.admin = listens["admin"].as_str().unwrap().parse().unwrap();
        gate
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the first log line with this message and returns it.
    pub(crate) fn wait_for_log(&self, message: &str) -> Value {
        let started = Instant::now();
        let mut lines = self.log.lines.lock();
        loop {
            let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(event) = events.into_iter().find(|event| event["message"] == message) {
                return event;
            }
            assert!(started.elapsed() < DEADLINE, "no {message:?} in the log:\n{}", lines.join("\n"));
            self.log.grew.wait_for(&mut lines, Duration::from_millis(100));
        }
    }

    /// Returns all log lines.
    pub(crate) fn log(&self) -> String {
        self.log.lines.lock().join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the exit status, or `None` while the process runs.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until the process has ended and returns its exit status.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.has_ended() {
                return status;
            }
            assert!(started.elapsed() < DEADLINE, "still running:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends a GET request to the admin address.
    pub(crate) async fn admin(&self, path: &str) -> HttpResponse {
        HttpConnection::fetch(self.admin, "GET", path, &[], "").await
    }

    pub(crate) async fn status(&self) -> Value {
        self.admin("/v1/status").await.json()
    }

    pub(crate) async fn metrics(&self) -> String {
        String::from_utf8(self.admin("/metrics").await.body).unwrap()
    }

    /// Returns the sum of the metric's lines that contain all `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics().await;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
                && labels.iter().all(|label| line.contains(label))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until the gate has no stream and no permit is taken.
    pub(crate) async fn wait_until_empty(&self) {
        until("the gate is empty", async || {
            let status = self.status().await;
            status["gate"]["streams"] == 0 && status["statistics"]["total_connections"] == 0
        })
        .await;
    }

    /// Returns the anonymous resident memory in KiB, which excludes the program's text.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for ForebayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of forebay\n{}", self.log());
        }
    }
}
