//! What this process uses and may use: resident memory, CPU time, and the bounds of its control group.
//!
//! Invariant: whatever can't be read is `None`, never a guess and never an error: a system without `/proc` or without control
//! groups only sheds nothing.
//! Kept by: every parser returns an `Option`; reading is bounded by the size of these small files.
//! Not here: what is too much; see `core/pressure.rs`. Reading may block, so the sampler does it on a blocking thread.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use rustix::time::{ClockId, clock_gettime};

use crate::config::MemoryBound;
use crate::core::pressure::Sample;

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// What was read, in plain units.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Reading {
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) cpus: f64,
}

impl Reading {
    pub(crate) fn take() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = memory_limit(&groups, Path::new(CONTROL_GROUPS));
        Reading {
            resident_bytes: resident(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            memory_limit_bytes: limit
                .or_else(|| kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")),
            cpu_time: cpu_time(),
            cpus: cpu_quota(&groups, Path::new(CONTROL_GROUPS)).unwrap_or_else(all_cpus),
        }
    }

    /// As the core wants it: memory as a fraction of what the bound is about.
    pub(crate) fn sample(&self, bound: MemoryBound) -> Sample {
        let base = match bound {
            MemoryBound::Off => None,
            MemoryBound::Bytes(bytes) => Some(bytes),
            MemoryBound::Fraction(_) => self.memory_limit_bytes,
        };
        let memory = self.resident_bytes.zip(base).map(|(held, base)| held as f64 / base.max(1) as f64);
        Sample { memory, cpu_time: self.cpu_time, cpus: self.cpus }
    }
}

fn cpu_time() -> Option<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

fn all_cpus() -> f64 {
    thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64)
}

/// `VmRSS` of `/proc/self/status`.
fn resident(status: &str) -> Option<u64> {
    kilobytes(status, "VmRSS:")
}

/// The value of a line such as `VmRSS:      1234 kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The strictest memory limit of the process's group and of those above it.
fn memory_limit(groups: &str, root: &Path) -> Option<u64> {
    let unified = ancestors(root, group_path(groups, "")).into_iter();
    let unified = unified.filter_map(|folder| bytes(&read(folder.join("memory.max"))?));
    let old = ancestors(&root.join("memory"), group_path(groups, "memory")).into_iter();
    let old = old.filter_map(|folder| bytes(&read(folder.join("memory.limit_in_bytes"))?));
    unified.chain(old).min()
}

/// How many CPUs the group and those above it leave.
fn cpu_quota(groups: &str, root: &Path) -> Option<f64> {
    let unified = ancestors(root, group_path(groups, "")).into_iter();
    let unified = unified.filter_map(|folder| {
        let text = read(folder.join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        cpus(quota, period)
    });
    let old = ancestors(&root.join("cpu"), group_path(groups, "cpu")).into_iter();
    let old = old.filter_map(|folder| {
        cpus(&read(folder.join("cpu.cfs_quota_us"))?, &read(folder.join("cpu.cfs_period_us"))?)
    });
    unified.chain(old).min_by(f64::total_cmp)
}

/// The path of the group in a hierarchy. A line is `4:cpu,cpuacct:/path`; the unified hierarchy has no name in its line.
/// Without a line there is still the root, as inside a container.
fn group_path<'a>(groups: &'a str, controller: &str) -> &'a str {
    let mut lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let found = lines.find(|(names, _)| names.split(',').any(|name| name == controller));
    found.map_or("/", |(_, path)| path)
}

/// The folder of a group and every one above it, down to the root of the hierarchy.
fn ancestors(root: &Path, path: &str) -> Vec<PathBuf> {
    Path::new(path.trim_start_matches('/')).ancestors().map(|part| root.join(part)).collect()
}

fn read(file: PathBuf) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// A number, or `max`. The old hierarchy writes no limit as nearly 2⁶³.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

fn cpus(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes away.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("forebay-groups-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Folder(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn this_process_has_memory_and_has_used_cpu() {
        let reading = Reading::take();
        assert!(reading.resident_bytes > Some(1 << 20), "{reading:?}");
        assert!(reading.cpu_time.is_some() && reading.cpus > 0.0, "{reading:?}");
        assert!(reading.memory_limit_bytes > reading.resident_bytes, "{reading:?}");
    }

    #[test]
    fn the_strictest_group_above_decides() {
        let files = [
            ("a/b/memory.max", "max\n"),
            ("a/memory.max", "1000\n"),
            ("memory.max", "5000\n"),
            ("a/b/cpu.max", "150000 100000\n"),
            ("a/cpu.max", "max 100000\n"),
        ];
        let folder = Folder::new("unified", &files);
        assert_eq!(memory_limit("0::/a/b\n", &folder.0), Some(1000));
        assert_eq!(cpu_quota("0::/a/b\n", &folder.0), Some(1.5));
    }

    #[test]
    fn the_old_hierarchy_is_understood_too() {
        let files = [
            ("memory/x/memory.limit_in_bytes", "2048\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cpu/x/cpu.cfs_quota_us", "50000\n"),
            ("cpu/x/cpu.cfs_period_us", "100000\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ];
        let folder = Folder::new("old", &files);
        let groups = "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/y\n";
        assert_eq!(memory_limit(groups, &folder.0), Some(2048));
        assert_eq!(cpu_quota(groups, &folder.0), Some(0.5));
    }

    #[test]
    fn what_is_missing_or_garbled_is_nothing() {
        let folder = Folder::new("garbled", &[("memory.max", "much"), ("cpu.max", "100000")]);
        assert_eq!(memory_limit("", &folder.0), None);
        assert_eq!(cpu_quota("rubbish\n:::\n", &folder.0), None);
        assert_eq!(resident("VmRSS: many kB"), None);
        assert_eq!(resident("VmHWM:\t 10 kB\nVmRSS:\t 7 kB\n"), Some(7 * 1024));
    }

    #[test]
    fn memory_is_a_fraction_of_what_the_bound_is_about() {
        let reading =
            Reading { resident_bytes: Some(500), memory_limit_bytes: Some(2_000), ..Reading::default() };
        assert_eq!(reading.sample(MemoryBound::Off).memory, None);
        assert_eq!(reading.sample(MemoryBound::Bytes(1_000)).memory, Some(0.5));
        assert_eq!(reading.sample(MemoryBound::Fraction(0.9)).memory, Some(0.25));
    }
}
