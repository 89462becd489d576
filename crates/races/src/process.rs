//! CPU time and memory of server processes. Linux only.

use std::{fs, io};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the CPU time of some processes, in nanoseconds. It includes threads that have ended. The
/// time of a thread that runs at the moment may be a few milliseconds old.
pub(crate) fn cpu_ns(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| process_clock_ns(*pid)).sum()
}

/// Reads the CPU-time clock of a process. `rustix` has it only for the own process, and
/// `/proc/PID/stat` counts in units of 10 ms.
fn process_clock_ns(pid: u32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: `clock` is valid for a write.
    let error = unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(pid)?, &raw mut clock) };
    if error != 0 {
        let error = io::Error::from_raw_os_error(error);
        return Err(error).with_context(|| format!("finding the CPU-time clock of process {pid}"));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for a write.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        let error = io::Error::last_os_error();
        return Err(error).with_context(|| format!("reading the CPU-time clock of process {pid}"));
    }
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

/// Returns the resident memory of some processes, in bytes.
pub(crate) fn resident_bytes(pids: &[u32]) -> Result<u64> {
    let mut total = 0;
    for pid in pids {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let kib = rollup.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB"));
        total += kib.and_then(|kib| kib.parse::<u64>().ok()).context("smaps_rollup has no Rss")? * 1024;
    }
    Ok(total)
}

/// Returns the ids of the children of a process.
pub(crate) fn children(parent: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // The process may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let parent_pid =
            fields.and_then(|fields| fields.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
        if parent_pid == Some(parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// Raises this process's limit of open file descriptors to the hard limit.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("raising the descriptor limit")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn cpu_time_includes_threads_that_have_ended() {
        const SPENT_NS: i64 = 20_000_000;
        let this = [std::process::id()];
        let before = cpu_ns(&this).unwrap();
        let spend = || {
            while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < SPENT_NS {}
            rustix::thread::gettid()
        };
        let ended = thread::spawn(spend).join().unwrap();
        // The kernel removes a thread a moment after it was joined.
        let (task, started) = (format!("/proc/self/task/{ended}"), Instant::now());
        while Path::new(&task).exists() {
            assert!(started.elapsed() < Duration::from_secs(10), "the thread still exists");
            thread::yield_now();
        }
        let spent = cpu_ns(&this).unwrap() - before;
        assert!(spent >= SPENT_NS as u64, "{spent} ns");
    }

    #[test]
    fn the_cpu_time_of_a_process_that_does_not_exist_is_an_error() {
        const ABOVE_ALL_PIDS: u32 = 1 << 22; // Linux never has a higher `pid_max`
        let error = cpu_ns(&[ABOVE_ALL_PIDS]).unwrap_err();
        assert!(error.to_string().contains("process 4194304"), "{error}");
    }
}
