//! Temporary folders, one per server; in memory if enough memory is free.
//!
//! Invariant: a folder is removed with its server or, if its owner was killed, by the next start of
//! any sandbox.
//! Enforced by: the folder's name contains the owner's pid and start time, so [`sweep`] detects an
//! ended owner even if its pid was reused.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use crate::error::StartError;
use crate::proc;

const PREFIX: &str = "forebay-sandbox-";
/// File system in memory. Creating the thousand files of a Postgres takes 0.1 s in it, and up to
/// 1 s on a busy disk.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Minimum free bytes of [`MEMORY_FOLDER`]; with less, the folder is on disk. Containers often have
/// only 64 MiB there.
const MIN_FREE_BYTES: u64 = 4 << 30;

/// Private folder. Dropping it kills all processes whose working directory is in it, and removes
/// it.
#[derive(Debug)]
pub struct TempFolder {
    path: PathBuf,
}

impl TempFolder {
    /// Creates a folder, and removes the folders of owners that have ended.
    ///
    /// The folder is below `TMPDIR` if that is set, else in memory, else in the default temporary
    /// folder.
    ///
    /// # Errors
    /// Fails if it can't be created.
    pub fn create() -> Result<TempFolder, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (memory, base) = (Path::new(MEMORY_FOLDER), env::temp_dir());
        sweep(memory);
        sweep(&base);
        let in_memory = env::var_os("TMPDIR").is_none() && free_bytes(memory) >= MIN_FREE_BYTES;
        let base = if in_memory { memory.to_owned() } else { base };
        // `/proc` shows resolved paths, by which a server's processes are found.
        let base = base.canonicalize().map_err(StartError::with_path(&base))?;

        let started = proc::stat(process::id()).map_or(0, |stat| stat.started);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{}-{started}-{number}", process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(TempFolder { path }),
            Err(source) => Err(StartError::TempFolder { path, source }),
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in the folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, StartError> {
        let path = self.path.join(name);
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(StartError::TempFolder { path, source }),
        }
    }

    /// Kills the processes in the folder and removes it. A second call does nothing.
    pub(crate) fn remove(&self) {
        remove(&self.path);
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        self.remove();
    }
}

fn remove(folder: &Path) {
    proc::kill_processes_in(folder);
    release_shared_memory(folder);
    // Another process may sweep the same folder at the same time; errors are ignored.
    let _ = fs::remove_dir_all(folder);
}

/// Removes the System V segment of a killed Postgres.
///
/// Otherwise only the next start on the same data would free it. A system has at most 4096
/// segments. The lock file, which a killed Postgres also leaves, contains the segment's id.
fn release_shared_memory(folder: &Path) {
    let Ok(lock) = fs::read_to_string(folder.join("data/postmaster.pid")) else { return };
    let id = lock.lines().nth(6).and_then(|line| line.split_ascii_whitespace().nth(1));
    if let Some(id) = id.and_then(|id| id.parse().ok()) {
        // SAFETY: `IPC_RMID` ignores the buffer pointer.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Returns the free bytes of the folder's file system; 0 if the folder doesn't exist.
fn free_bytes(folder: &Path) -> u64 {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return 0 };
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string, and the buffer has the type that the call writes.
    let succeeded = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } == 0;
    if !succeeded {
        return 0;
    }
    // SAFETY: the call succeeded, so it has initialised the buffer.
    let stat = unsafe { stat.assume_init() };
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

/// Removes the folders below `base` whose owner has ended.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().and_then(owner).is_some_and(|(pid, started)| !is_alive(pid, started)) {
            remove(&entry.path());
        }
    }
}

fn is_alive(pid: u32, started: u64) -> bool {
    proc::stat(pid).is_some_and(|stat| stat.started == started && !matches!(stat.state, 'Z' | 'X'))
}

/// Returns the owner's pid and start time, or `None` for a folder of another program.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let _number: u32 = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sandbox_folders_have_an_owner() {
        assert_eq!(owner("forebay-sandbox-12-345-0"), Some((12, 345)));
        for name in
            ["forebay-sandbox-12-345", "forebay-sandbox-12-345-0-1", "forebay-sandbox-x-1-0", "12-345-0"]
        {
            assert_eq!(owner(name), None, "{name}");
        }
    }

    #[test]
    fn a_folder_is_removed_on_drop_and_a_dead_owners_folder_by_the_next_start() {
        let mut ended = process::Command::new("true").spawn().expect("true runs");
        ended.wait().expect("it can be waited for");
        let abandoned = env::temp_dir().join(format!("{PREFIX}{}-1-0", ended.id()));
        fs::create_dir_all(abandoned.join("data")).expect("the temporary folder is writable");

        let folder = TempFolder::create().expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        assert!(!abandoned.exists());

        let other = TempFolder::create().expect("another folder");
        assert!(path.is_dir(), "the folder of a running owner stays");
        drop((folder, other));
        assert!(!path.exists());
    }
}
