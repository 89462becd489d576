//! Integration tests with real servers.

mod dynamodb;
mod lifetime;
mod pgbouncer;
mod postgres;
mod redis;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Returns true if the process runs and is no zombie.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// Returns the folder of the process's server.
fn folder_of(pid: u32) -> PathBuf {
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("the process runs");
    if folder.ends_with("data") { folder.parent().expect("data has a parent").to_owned() } else { folder }
}

/// Polls until the condition holds; panics after 60 s.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !holds() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
