//! CPU time and memory of server processes, from `/proc`. Linux only.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the CPU time of the living threads of some processes, in nanoseconds. The time of a
/// thread that runs at the moment may be a few milliseconds old.
pub(crate) fn cpu_ns(pids: &[u32]) -> Result<u64> {
    let mut total = 0;
    for pid in pids {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let path = thread?.path().join("schedstat");
            let text = fs::read_to_string(&path)?;
            let ran = text.split(' ').next().and_then(|ran| ran.parse::<u64>().ok());
            total += ran.with_context(|| format!("{} contains {text:?}", path.display()))?;
        }
    }
    Ok(total)
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
