//! The program itself, as a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wire::{Answer, Client, DEADLINE, until};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

#[derive(Debug)]
pub(crate) struct Gate {
    child: Child,
    pub(crate) addr: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grew: Condvar,
}

/// A command with nothing of ours in its environment.
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

impl Gate {
    /// Starts one on free ports, and waits until it listens.
    pub(crate) fn start(upstream: &str, args: &[&str]) -> Gate {
        Gate::start_with(upstream, args, &[])
    }

    pub(crate) fn start_with(upstream: &str, args: &[&str], environment: &[(&str, &str)]) -> Gate {
        let own = ["gate", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let mut command = forebay(&own);
        command.args(["--upstream", upstream]).args(args).envs(environment.iter().copied());
        Gate::run(command, "gate listening")
    }

    /// Any command of the program that listens and says so with this message.
    pub(crate) fn run(mut command: Command, message: &str) -> Gate {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Log::default());
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lines.lock().unwrap().push(line);
                lines.grew.notify_all();
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gate = Gate { child, addr: nowhere, admin: nowhere, log };
        let listens = gate.wait_for_log(message);
        gate.addr = listens["address"].as_str().unwrap().parse().unwrap();
        gate.admin = listens["admin"].as_str().unwrap().parse().unwrap();
        gate
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line with this message, now or later.
    pub(crate) fn wait_for_log(&self, message: &str) -> Value {
        let begun = Instant::now();
        let mut lines = self.log.lines.lock().unwrap();
        loop {
            let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(event) = events.into_iter().find(|event| event["message"] == message) {
                return event;
            }
            assert!(begun.elapsed() < DEADLINE, "no {message:?} in the log:\n{}", lines.join("\n"));
            (lines, _) = self.log.grew.wait_timeout(lines, Duration::from_millis(100)).unwrap();
        }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the end that a signal asked for.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.has_ended() {
                return status;
            }
            assert!(begun.elapsed() < DEADLINE, "still running:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn admin(&self, path: &str) -> Answer {
        Client::ask(self.admin, "GET", path, &[], "").await
    }

    pub(crate) async fn status(&self) -> Value {
        self.admin("/v1/status").await.json()
    }

    pub(crate) async fn metrics(&self) -> String {
        String::from_utf8(self.admin("/metrics").await.body).unwrap()
    }

    /// The sum over a metric's lines that have all these labels in them.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics().await;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
                && labels.iter().all(|label| line.contains(label))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until nothing is inside any more: no request, no permit.
    pub(crate) async fn empty(&self) {
        until("the gate is empty", async || {
            let status = self.status().await;
            status["gate"]["streams"] == 0 && status["statistics"]["total_connections"] == 0
        })
        .await;
    }

    /// Resident memory of its own, in KiB; without the program's text, which is read as it is needed.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the gate\n{}", self.log());
        }
    }
}
