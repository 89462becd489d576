//! Looks at the storage directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_shapes::StoreSummary;
use rustix::fs::{Access, access, statvfs};

use super::finding::{Area, Finding};

const AREA: Area = Area::Storage;
const MI: u64 = 1 << 20;
/// The log alone may take 256 MiB.
const LITTLE: u64 = 1024 * MI;
const TOO_LITTLE: u64 = 64 * MI;
/// A disk that takes longer delays every change by it.
const SLOW_SYNC: Duration = Duration::from_millis(50);

pub(super) fn check(dir: &Path) -> Vec<Finding> {
    let shown = dir.display();
    let mut findings = Vec::new();
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => {
            findings.push(writes(dir));
            findings.push(holds(dir));
            findings.extend(locked(dir));
        }
        Ok(_) => {
            let advice = "name a directory in storage.dir";
            findings.push(Finding::fail(AREA, "writable", format!("{shown} is no directory"), advice));
            return findings;
        }
        Err(_) => findings.push(could_be_made(dir)),
    }
    let place = existing(dir);
    findings.push(space(&place));
    findings.extend(file_system(&place));
    findings
}

/// The directory, or the nearest one above it that is there.
fn existing(dir: &Path) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    dir.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn could_be_made(dir: &Path) -> Finding {
    let (shown, above) = (dir.display(), existing(dir));
    match access(&above, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::ok(AREA, "writable", format!("{shown} isn't there yet, and can be made")),
        Err(error) => {
            let what = format!("{shown} isn't there, and can't be made in {}: {error}", above.display());
            Finding::fail(AREA, "writable", what, "make it, and give it to the user that runs Forebay")
        }
    }
}

/// Writes a file and syncs it, as the log does; it is gone afterwards.
fn writes(dir: &Path) -> Finding {
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
            let what = format!("{} can be written, but a sync takes {took:.0?}", dir.display());
            Finding::warn(AREA, "writable", what, "every change waits for one: use a quicker disk")
        }
        Ok(took) => Finding::ok(
            AREA,
            "writable",
            format!("{} can be written; a sync takes {took:.1?}", dir.display()),
        ),
        Err(error) => {
            let what = format!("{} can't be written: {error}", dir.display());
            Finding::fail(
                AREA,
                "writable",
                what,
                "give it to the user that runs Forebay, or name another in storage.dir",
            )
        }
    }
}

fn holds(dir: &Path) -> Finding {
    match StoreSummary::at(dir) {
        Ok(None) => Finding::ok(AREA, "store", "there is no store in it yet"),
        Ok(Some(glance)) => {
            let what = format!("a store that this version reads, with {} shapes", glance.shapes);
            Finding::ok(AREA, "store", what)
        }
        Err(error) => {
            let advice = "see above; shapes are made anew in an empty directory";
            Finding::fail(AREA, "store", error.to_string(), advice)
        }
    }
}

/// Who holds the lock, by what the system lists: taking it, even for a moment, could keep a writer from starting.
fn locked(dir: &Path) -> Option<Finding> {
    let meta = File::open(dir.join("lock")).and_then(|lock| lock.metadata()).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let inode = format!(":{}", meta.ino());
    let held = locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        file.ends_with(&inode).then(|| pid.to_owned())
    });
    Some(match held {
        None => Finding::ok(AREA, "lock", "no instance writes to it"),
        Some(pid) => {
            let what =
                format!("an instance writes to it (process {pid}): another one would wait for its turn");
            Finding::ok(AREA, "lock", what)
        }
    })
}

fn space(place: &Path) -> Finding {
    match statvfs(place) {
        Ok(stat) => room(stat.f_bavail.saturating_mul(stat.f_frsize)),
        Err(error) => {
            let what = format!("can't tell how much is free at {}: {error}", place.display());
            Finding::warn(AREA, "space", what, "see that it is a disk of this machine")
        }
    }
}

fn room(free: u64) -> Finding {
    let what = format!("{} MiB are free", free / MI);
    let advice = "with a full disk nothing new is taken, and the database keeps its log: make room, or bound storage.max_bytes";
    match free {
        ..TOO_LITTLE => Finding::fail(AREA, "space", what, advice),
        TOO_LITTLE..LITTLE => Finding::warn(AREA, "space", what, advice),
        LITTLE.. => Finding::ok(AREA, "space", what),
    }
}

/// One that forgets, or that may not keep what was synced.
#[cfg(target_os = "linux")]
fn file_system(place: &Path) -> Option<Finding> {
    const CHECK: &str = "file_system";
    const LOCAL: &str = "use a disk of this machine, or a volume";
    let stat = rustix::fs::statfs(place).ok()?;
    // The numbers are the kernel's, from statfs(2).
    let (name, why) = match u32::try_from(stat.f_type).unwrap_or_default() {
        0x0102_1994 | 0x8584_58f6 => ("tmpfs", "memory: shapes start over after a restart of the machine"),
        0x794c_7630 => ("overlayfs", "a container's own layer: shapes are gone with the container"),
        0x6969 => ("NFS", "a network's: locks and syncs may not hold what they promise"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => {
            ("SMB", "a network's: locks and syncs may not hold what they promise")
        }
        0x6573_5546 => ("FUSE", "a program's: locks and syncs may not hold what they promise"),
        _ => return Some(Finding::ok(AREA, CHECK, "a file system that keeps what was synced")),
    };
    Some(Finding::warn(AREA, CHECK, format!("it is on {name}, {why}"), LOCAL))
}

#[cfg(not(target_os = "linux"))]
fn file_system(_: &Path) -> Option<Finding> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_told_before_one_that_is() {
        for (free_mib, level) in
            [(0, Level::Fail), (63, Level::Fail), (64, Level::Warn), (1023, Level::Warn), (1024, Level::Ok)]
        {
            let found = room(free_mib * MI);
            assert_eq!((found.check, found.level), ("space", level), "{free_mib} MiB");
            assert!(found.what.contains(&format!("{free_mib} MiB")), "{}", found.what);
        }
    }
}
