//! What `/proc` says about processes, and signals to them.
//!
//! A server's processes are found by their working directory: Redis and Postgres both stay in their own folder, as do
//! all children that they fork, and no other process lives there.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use libc::c_int;

const POLL: Duration = Duration::from_millis(2);
/// Signals that can't be caught act within microseconds; this bounds a process that hangs in the kernel.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(5);

/// The fields of `/proc/PID/stat` that we use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// One letter: `R`, `S`, `T` (stopped), `Z` (zombie) and so on.
    pub(crate) state: char,
    /// Clock ticks after boot; with the pid it names one process for ever.
    pub(crate) started: u64,
}

/// Nothing when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The program's name, in brackets, may itself hold brackets and spaces: the fields start after the last bracket.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

/// Sends a signal; a process that is gone already is none of our concern.
pub(crate) fn signal(pid: u32, signal: c_int) {
    let pid = libc::pid_t::try_from(pid).expect("the kernel's pids fit in a pid_t");
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(pid, signal) };
}

/// The processes that live in a folder.
pub(crate) fn residents(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // Fails for a zombie and for what is not ours to see: neither lives in our folder.
            fs::read_link(entry.path().join("cwd")).ok()?.starts_with(folder).then_some(pid)
        })
        .collect()
}

/// Kills whatever lives in a folder, and returns when it is gone.
pub(crate) fn kill_residents(folder: &Path) {
    until_none(|| residents(folder), libc::SIGKILL);
}

/// Stops whatever lives in a folder, and returns when none of it runs.
///
/// In rounds, because a process may fork between being listed and being stopped.
pub(crate) fn stop_residents(folder: &Path) {
    let running = |pid: &u32| stat(*pid).is_some_and(|stat| !matches!(stat.state, 'T' | 'Z' | 'X'));
    until_none(|| residents(folder).into_iter().filter(running).collect(), libc::SIGSTOP);
}

fn until_none(list: impl Fn() -> Vec<u32>, number: c_int) {
    let begun = Instant::now();
    loop {
        let pids = list();
        if pids.is_empty() || begun.elapsed() > SIGNAL_DEADLINE {
            return;
        }
        for pid in pids {
            signal(pid, number);
        }
        thread::sleep(POLL);
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
    fn a_line_that_is_cut_short_says_nothing() {
        assert_eq!(parse_stat("42 (sleep) S 1 42"), None);
    }
}
