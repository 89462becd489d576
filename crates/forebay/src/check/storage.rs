//! Checks of the storage directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_shapes::StoreSummary;
use rustix::fs::{Access, access, statvfs};

use super::finding::{CheckArea, Finding};

const AREA: CheckArea = CheckArea::Storage;
const MI: u64 = 1 << 20;
/// Free space below which a warning is given. The WAL of the store alone may take 256 MiB.
const LOW_SPACE: u64 = 1024 * MI;
const MIN_SPACE: u64 = 64 * MI;
/// Sync time from which a warning is given: it delays every change.
const SLOW_SYNC: Duration = Duration::from_millis(50);

/// Runs all checks of the directory.
pub(super) fn check(dir: &Path) -> Vec<Finding> {
    let shown = dir.display();
    let mut findings = Vec::new();
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => {
            findings.push(check_write(dir));
            findings.push(check_store(dir));
            findings.extend(check_lock(dir));
        }
        Ok(_) => {
            let advice = "set storage.dir to a directory";
            findings.push(Finding::fail(AREA, "writable", format!("{shown} is not a directory"), advice));
            return findings;
        }
        Err(_) => findings.push(check_creation(dir)),
    }
    let path = nearest_existing(dir);
    findings.push(check_space(&path));
    findings.extend(check_file_system(&path));
    findings
}

/// Returns the directory, or its nearest ancestor that exists.
fn nearest_existing(dir: &Path) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    dir.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn check_creation(dir: &Path) -> Finding {
    let (shown, above) = (dir.display(), nearest_existing(dir));
    match access(&above, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::ok(AREA, "writable", format!("{shown} does not exist yet, and can be created")),
        Err(error) => {
            let what =
                format!("{shown} does not exist, and can't be created in {}: {error}", above.display());
            Finding::fail(AREA, "writable", what, "create it, and make the user that runs Forebay its owner")
        }
    }
}

/// Writes and syncs a file like the writer of the store does, and removes it.
fn check_write(dir: &Path) -> Finding {
    let path = dir.join(format!(".check-{}", std::process::id()));
    let write = || -> io::Result<Duration> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&[0; 4096])?;
        let begun = Instant::now();
        file.sync_data()?;
        Ok(begun.elapsed())
    };
    let wrote = write();
    let _gone = std::fs::remove_file(&path);
    match wrote {
        Ok(took) if took > SLOW_SYNC => {
            let what = format!("{} is writable, but a sync takes {took:.0?}", dir.display());
            Finding::warn(AREA, "writable", what, "every change waits for a sync: use a faster disk")
        }
        Ok(took) => {
            Finding::ok(AREA, "writable", format!("{} is writable; a sync takes {took:.1?}", dir.display()))
        }
        Err(error) => {
            let what = format!("{} is not writable: {error}", dir.display());
            Finding::fail(
                AREA,
                "writable",
                what,
                "make the user that runs Forebay its owner, or set another directory in storage.dir",
            )
        }
    }
}

fn check_store(dir: &Path) -> Finding {
    match StoreSummary::at(dir) {
        Ok(None) => Finding::ok(AREA, "store", "the directory contains no store yet"),
        Ok(Some(summary)) => {
            let what = format!(
                "the directory contains a store that this version can read, with {} shapes",
                summary.shapes
            );
            Finding::ok(AREA, "store", what)
        }
        Err(error) => {
            let advice = "see the error; with an empty directory, shapes are created again";
            Finding::fail(AREA, "store", error.to_string(), advice)
        }
    }
}

/// Finds the holder of the lock in `/proc/locks`. Taking the lock, even briefly, could keep a
/// writer from starting.
fn check_lock(dir: &Path) -> Option<Finding> {
    let meta = File::open(dir.join("lock")).and_then(|lock| lock.metadata()).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let inode = format!(":{}", meta.ino());
    let holder = locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        file.ends_with(&inode).then(|| pid.to_owned())
    });
    Some(match holder {
        None => Finding::ok(AREA, "lock", "no running instance uses the directory"),
        Some(pid) => {
            let what = format!(
                "a running instance uses the directory (process {pid}); another instance would wait for it"
            );
            Finding::ok(AREA, "lock", what)
        }
    })
}

fn check_space(path: &Path) -> Finding {
    match statvfs(path) {
        Ok(stat) => evaluate_space(stat.f_bavail.saturating_mul(stat.f_frsize)),
        Err(error) => {
            let what = format!("can't read the free space of {}: {error}", path.display());
            Finding::warn(AREA, "space", what, "check that it is a local disk")
        }
    }
}

fn evaluate_space(free: u64) -> Finding {
    let what = format!("{} MiB are free", free / MI);
    let advice = "with a full disk, no changes are stored, and the database retains WAL: free space, or set storage.max_bytes";
    match free {
        ..MIN_SPACE => Finding::fail(AREA, "space", what, advice),
        MIN_SPACE..LOW_SPACE => Finding::warn(AREA, "space", what, advice),
        LOW_SPACE.. => Finding::ok(AREA, "space", what),
    }
}

/// Warns about file systems that lose data or may not keep synced data.
#[cfg(target_os = "linux")]
fn check_file_system(path: &Path) -> Option<Finding> {
    const CHECK: &str = "file_system";
    const LOCAL: &str = "use a local disk, or a volume";
    let stat = rustix::fs::statfs(path).ok()?;
    // Magic numbers of the kernel, from statfs(2).
    let (name, why) = match u32::try_from(stat.f_type).unwrap_or_default() {
        0x0102_1994 | 0x8584_58f6 => ("tmpfs", "in memory: shapes start over after a reboot"),
        0x794c_7630 => {
            ("overlayfs", "the writable layer of a container: shapes are deleted with the container")
        }
        0x6969 => ("NFS", "a network file system: locks and syncs may be unreliable"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => {
            ("SMB", "a network file system: locks and syncs may be unreliable")
        }
        0x6573_5546 => ("FUSE", "a file system in user space: locks and syncs may be unreliable"),
        _ => return Some(Finding::ok(AREA, CHECK, "the file system keeps synced data")),
    };
    Some(Finding::warn(AREA, CHECK, format!("the directory is on {name}, {why}"), LOCAL))
}

#[cfg(not(target_os = "linux"))]
fn check_file_system(_: &Path) -> Option<Finding> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    #[test]
    fn low_space_is_a_warning_and_too_little_is_a_failure() {
        for (free_mib, level) in [
            (0, FindingLevel::Fail),
            (63, FindingLevel::Fail),
            (64, FindingLevel::Warn),
            (1023, FindingLevel::Warn),
            (1024, FindingLevel::Ok),
        ] {
            let found = evaluate_space(free_mib * MI);
            assert_eq!((found.check, found.level), ("space", level), "{free_mib} MiB");
            assert!(found.what.contains(&format!("{free_mib} MiB")), "{}", found.what);
        }
    }
}
