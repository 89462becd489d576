//! Resource usage of this process: resident memory, CPU time, and the limits of its control group.
//!
//! Invariant: an unreadable value is `None`, never a guess or an error. A system without `/proc` or
//! control groups sheds no load.
//! Enforced by: every parser returns an `Option`.
//! Out of scope: the bounds; see `core/pressure.rs`. Reading may block, so the sampler does it on a
//! blocking thread.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use rustix::time::{ClockId, clock_gettime};

use crate::config::MemoryBound;
use crate::core::pressure::ResourceSample;

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Usage and limits at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ResourceUsage {
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) cpu_time: Option<Duration>,
    pub(crate) cpus: f64,
}

impl ResourceUsage {
    pub(crate) fn read() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = memory_limit(&groups, Path::new(CONTROL_GROUPS));
        ResourceUsage {
            resident_bytes: resident(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            memory_limit_bytes: limit
                .or_else(|| kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")),
            cpu_time: cpu_time(),
            cpus: cpu_quota(&groups, Path::new(CONTROL_GROUPS)).unwrap_or_else(all_cpus),
        }
    }

    /// Converts to a sample. Memory is divided by `bound` in bytes, or by the memory limit.
    pub(crate) fn sample(&self, bound: MemoryBound) -> ResourceSample {
        let base = match bound {
            MemoryBound::Off => None,
            MemoryBound::Bytes(bytes) => Some(bytes),
            MemoryBound::Fraction(_) => self.memory_limit_bytes,
        };
        let memory =
            self.resident_bytes.zip(base).map(|(resident, base)| resident as f64 / base.max(1) as f64);
        ResourceSample { memory, cpu_time: self.cpu_time, cpus: self.cpus }
    }
}

fn cpu_time() -> Option<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

fn all_cpus() -> f64 {
    thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64)
}

/// Returns `VmRSS` of `/proc/self/status` in bytes.
fn resident(status: &str) -> Option<u64> {
    kilobytes(status, "VmRSS:")
}

/// Returns the value of a line such as `VmRSS:      1234 kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the smallest memory limit of the process's control group and its ancestors.
fn memory_limit(groups: &str, root: &Path) -> Option<u64> {
    let unified = ancestors(root, group_path(groups, "")).into_iter();
    let unified = unified.filter_map(|dir| bytes(&read(dir.join("memory.max"))?));
    let v1 = ancestors(&root.join("memory"), group_path(groups, "memory")).into_iter();
    let v1 = v1.filter_map(|dir| bytes(&read(dir.join("memory.limit_in_bytes"))?));
    unified.chain(v1).min()
}

/// Returns the smallest CPU quota of the process's control group and its ancestors, in CPUs.
fn cpu_quota(groups: &str, root: &Path) -> Option<f64> {
    let unified = ancestors(root, group_path(groups, "")).into_iter();
    let unified = unified.filter_map(|dir| {
        let text = read(dir.join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        cpus(quota, period)
    });
    let v1 = ancestors(&root.join("cpu"), group_path(groups, "cpu")).into_iter();
    let v1 = v1
        .filter_map(|dir| cpus(&read(dir.join("cpu.cfs_quota_us"))?, &read(dir.join("cpu.cfs_period_us"))?));
    unified.chain(v1).min_by(f64::total_cmp)
}

/// Returns the path of the control group for a controller. A line is `4:cpu,cpuacct:/path`; the
/// unified hierarchy (v2) has no controller name. Without a line, as in some containers, the path
/// is the root.
fn group_path<'a>(groups: &'a str, controller: &str) -> &'a str {
    let mut lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let found = lines.find(|(names, _)| names.split(',').any(|name| name == controller));
    found.map_or("/", |(_, path)| path)
}

/// Returns the directory of a control group and all its ancestors, up to the root.
fn ancestors(root: &Path, path: &str) -> Vec<PathBuf> {
    Path::new(path.trim_start_matches('/')).ancestors().map(|part| root.join(part)).collect()
}

fn read(file: PathBuf) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// Parses a number of bytes. `max`, and the v1 value near 2⁶³, mean no limit.
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

    /// Temporary directory that is removed on drop.
    struct TempCgroupDir(PathBuf);

    impl TempCgroupDir {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("forebay-groups-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            TempCgroupDir(root)
        }
    }

    impl Drop for TempCgroupDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_usage_of_this_process_is_read() {
        let usage = ResourceUsage::read();
        assert!(usage.resident_bytes > Some(1 << 20), "{usage:?}");
        assert!(usage.cpu_time.is_some() && usage.cpus > 0.0, "{usage:?}");
        assert!(usage.memory_limit_bytes > usage.resident_bytes, "{usage:?}");
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_applies() {
        let files = [
            ("a/b/memory.max", "max\n"),
            ("a/memory.max", "1000\n"),
            ("memory.max", "5000\n"),
            ("a/b/cpu.max", "150000 100000\n"),
            ("a/cpu.max", "max 100000\n"),
        ];
        let dir = TempCgroupDir::new("unified", &files);
        assert_eq!(memory_limit("0::/a/b\n", &dir.0), Some(1000));
        assert_eq!(cpu_quota("0::/a/b\n", &dir.0), Some(1.5));
    }

    #[test]
    fn the_v1_hierarchy_is_read() {
        let files = [
            ("memory/x/memory.limit_in_bytes", "2048\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cpu/x/cpu.cfs_quota_us", "50000\n"),
            ("cpu/x/cpu.cfs_period_us", "100000\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ];
        let dir = TempCgroupDir::new("old", &files);
        let groups = "4:memory:/x\n3:cpu,cpuacct:/x\n1:name=systemd:/y\n";
        assert_eq!(memory_limit(groups, &dir.0), Some(2048));
        assert_eq!(cpu_quota(groups, &dir.0), Some(0.5));
    }

    #[test]
    fn missing_or_invalid_values_are_none() {
        let dir = TempCgroupDir::new("garbled", &[("memory.max", "much"), ("cpu.max", "100000")]);
        assert_eq!(memory_limit("", &dir.0), None);
        assert_eq!(cpu_quota("rubbish\n:::\n", &dir.0), None);
        assert_eq!(resident("VmRSS: many kB"), None);
        assert_eq!(resident("VmHWM:\t 10 kB\nVmRSS:\t 7 kB\n"), Some(7 * 1024));
    }

    #[test]
    fn memory_is_a_fraction_of_the_bounds_base() {
        let usage = ResourceUsage {
            resident_bytes: Some(500),
            memory_limit_bytes: Some(2_000),
            ..ResourceUsage::default()
        };
        assert_eq!(usage.sample(MemoryBound::Off).memory, None);
        assert_eq!(usage.sample(MemoryBound::Bytes(1_000)).memory, Some(0.5));
        assert_eq!(usage.sample(MemoryBound::Fraction(0.9)).memory, Some(0.25));
    }
}
