//! Process information from `/proc`, and signals.
//!
//! A server's processes are found by their working directory. Redis, Postgres and their children
//! stay in the server's folder, and no other process uses it.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use libc::c_int;

const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Timeout for SIGKILL and SIGSTOP to take effect, in case a process hangs in the kernel.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// One letter: `R`, `S`, `T` (stopped), `Z` (zombie) and so on.
    pub(crate) state: char,
    /// Start time in clock ticks after boot; with the pid it identifies a process.
    pub(crate) started: u64,
}

/// Returns the process's fields, or `None` if there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the fields after the last bracket, since the program's name may contain brackets.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

/// Sends a signal; errors are ignored, since the process may have ended.
pub(crate) fn signal(pid: u32, signal: c_int) {
    let pid = libc::pid_t::try_from(pid).expect("the kernel's pids fit in a pid_t");
    // SAFETY: `kill` takes no pointers.
    unsafe { libc::kill(pid, signal) };
}

/// Returns the processes whose working directory is in the folder.
pub(crate) fn processes_in(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // Fails for zombies and for processes of other users; neither belong to the folder.
            fs::read_link(entry.path().join("cwd")).ok()?.starts_with(folder).then_some(pid)
        })
        .collect()
}

/// Kills all processes in the folder and waits until they have ended.
pub(crate) fn kill_processes_in(folder: &Path) {
    signal_until_none(|| processes_in(folder), libc::SIGKILL);
}

/// Stops all processes in the folder and waits until none runs.
///
/// Repeats, because a process may fork between being listed and being stopped.
pub(crate) fn stop_processes_in(folder: &Path) {
    let running = |pid: &u32| stat(*pid).is_some_and(|stat| !matches!(stat.state, 'T' | 'Z' | 'X'));
    signal_until_none(|| processes_in(folder).into_iter().filter(running).collect(), libc::SIGSTOP);
}

fn signal_until_none(list: impl Fn() -> Vec<u32>, number: c_int) {
    let started_at = Instant::now();
    loop {
        let pids = list();
        if pids.is_empty() || started_at.elapsed() > SIGNAL_TIMEOUT {
            return;
        }
        for pid in pids {
            signal(pid, number);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_does_not_shift_the_fields() {
        let line = "42 (a) b) T 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(line), Some(Stat { state: 'T', started: 987_654 }));
    }

    #[test]
    fn a_truncated_line_is_rejected() {
        assert_eq!(parse_stat("42 (sleep) S 1 42"), None);
    }
}
