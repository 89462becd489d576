//! CPU time and memory of this process, and CPU affinity. Linux only.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time, user and system, of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> io::Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm has no second number"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Pins all threads of some processes to one CPU. Undone on drop.
pub(crate) struct CpuPin {
    pids: Vec<u32>,
    before: CpuSet,
}

impl CpuPin {
    /// Pins this process and `others` to the last CPU that this process may use.
    pub(crate) fn to_one_cpu(others: &[u32]) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| before.is_set(cpu));
        let mut one = CpuSet::new();
        one.set(last.ok_or_else(|| io::Error::other("this process may use no CPU"))?);

        let pids = [&[std::process::id()], others].concat();
        let pinned = Self { pids, before };
        pinned.allow(&one)?;
        Ok(pinned)
    }

    fn allow(&self, cpus: &CpuSet) -> io::Result<()> {
        for pid in &self.pids {
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                let thread =
                    thread?.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
                sched_setaffinity(Some(thread.expect("/proc names threads by their ids")), cpus)?;
            }
        }
        Ok(())
    }
}

impl Drop for CpuPin {
    fn drop(&mut self) {
        // Fails for a process that has ended.
        let _ = self.allow(&self.before);
    }
}
