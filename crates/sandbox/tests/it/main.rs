//! Every promise of the crate, against real servers.

mod dynamodb;
mod ends;
mod pgbouncer;
mod postgres;
mod redis;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Whether a process runs; one that waits to be reaped doesn't.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// Where a process lives: its server's folder.
fn folder_of(pid: u32) -> PathBuf {
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("the process lives");
    if folder.ends_with("data") { folder.parent().expect("data has a parent").to_owned() } else { folder }
}

/// Waits for what another process does in its own time; the deadline only bounds a failure.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
