//! Temporary folders, one per server, in memory where there is plenty.
//!
//! Invariant: a folder is removed with its server, or, where its owner was killed, by the next start of any sandbox.
//! Kept by: the name holds the owner's pid and start time, so that the sweep can tell whether the owner lives and
//! takes no stranger with a reused pid for it.

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
/// A Postgres is a thousand files: a tenth of a second here, and up to a second on a disk that is in use.
const MEMORY: &str = "/dev/shm";
/// Of memory that is free there, below which a folder is on the disk after all. A container often has 64 MiB.
const PLENTY_BYTES: u64 = 4 << 30;

/// A private folder, removed on drop together with every process that still lives in it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a new one, and sweeps those whose owner is gone. It is where `TMPDIR` says, else in memory, else where all
    /// temporary folders are.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn create() -> Result<Folder, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (memory, base) = (Path::new(MEMORY), env::temp_dir());
        sweep(memory);
        sweep(&base);
        let in_memory = env::var_os("TMPDIR").is_none() && free_bytes(memory) >= PLENTY_BYTES;
        let base = if in_memory { memory.to_owned() } else { base };
        // `/proc` shows resolved paths, and a server's processes are found by them.
        let base = base.canonicalize().map_err(StartError::at(&base))?;

        let started = proc::stat(process::id()).map_or(0, |stat| stat.started);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{}-{started}-{number}", process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Folder { path }),
            Err(source) => Err(StartError::Folder { path, source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, StartError> {
        let path = self.path.join(name);
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(StartError::Folder { path, source }),
        }
    }

    /// Ends what lives in it and removes it; does nothing the second time.
    pub(crate) fn remove(&self) {
        remove(&self.path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove();
    }
}

fn remove(folder: &Path) {
    proc::kill_residents(folder);
    release_shared_memory(folder);
    // Another process may sweep the same folder right now; whoever loses the race has nothing left to do.
    let _ = fs::remove_dir_all(folder);
}

/// A killed Postgres leaves a System V segment that only its next start on the same data would free, and the system
/// has room for 4096 of them. Its id is in the lock file that a killed Postgres leaves, too.
fn release_shared_memory(folder: &Path) {
    let Ok(lock) = fs::read_to_string(folder.join("data/postmaster.pid")) else { return };
    let id = lock.lines().nth(6).and_then(|line| line.split_ascii_whitespace().nth(1));
    if let Some(id) = id.and_then(|id| id.parse().ok()) {
        // SAFETY: IPC_RMID ignores the buffer pointer.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// What we may write there; nothing where there is no such folder.
fn free_bytes(folder: &Path) -> u64 {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return 0 };
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string, and the buffer is of the type that the call writes.
    let told = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } == 0;
    if !told {
        return 0;
    }
    // SAFETY: the call succeeded, and so has written it.
    let stat = unsafe { stat.assume_init() };
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().and_then(owner).is_some_and(|(pid, started)| !lives(pid, started)) {
            remove(&entry.path());
        }
    }
}

fn lives(pid: u32, started: u64) -> bool {
    proc::stat(pid).is_some_and(|stat| stat.started == started && !matches!(stat.state, 'Z' | 'X'))
}

/// The owner's pid and start time; nothing for a folder that is not one of ours.
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
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("forebay-sandbox-12-345-0"), Some((12, 345)));
        for name in
            ["forebay-sandbox-12-345", "forebay-sandbox-12-345-0-1", "forebay-sandbox-x-1-0", "12-345-0"]
        {
            assert_eq!(owner(name), None, "{name}");
        }
    }

    #[test]
    fn a_folder_goes_with_its_value_and_a_dead_owners_folder_with_the_next_start() {
        let mut ended = process::Command::new("true").spawn().expect("true runs");
        ended.wait().expect("it can be waited for");
        let dead = env::temp_dir().join(format!("{PREFIX}{}-1-0", ended.id()));
        fs::create_dir_all(dead.join("data")).expect("the temporary folder is writable");

        let folder = Folder::create().expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        assert!(!dead.exists());

        let other = Folder::create().expect("another folder");
        assert!(path.is_dir(), "a living owner's folder stays");
        drop((folder, other));
        assert!(!path.exists());
    }
}
