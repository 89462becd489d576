//! Disk interface: all file operations of the store.
//!
//! Invariant: the store accesses files only through a [`Disk`]. So a `SimulatedDisk` observes every
//! write, and can lose each one that was not synced.
//! Enforced by: outside of tests, only `real.rs` uses `std::fs`.
//! Paths are relative to the storage directory. Paths that lead out of it are refused.
//! Out of scope: retries, and the meaning of the bytes.

mod real;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

pub(crate) use self::real::RealDisk;
#[cfg(test)]
pub(crate) use self::simulated::{SimulatedDisk, SimulatedRng};

/// File that the writing process locks. It is never listed.
const LOCK_FILE: &str = "lock";

/// File operations of the store. A path is relative to the storage directory, such as
/// `wal/0000000000000003`. The empty path is that directory itself.
///
/// Only synced changes are sure to survive a power failure. A file's bytes and length are synced by
/// [`DiskFile::sync_data`], its name by [`sync_dir`](Disk::sync_dir) of its directory, and that
/// directory's own name by a sync of its parent. A rename is durable after a sync of either
/// directory.
pub(crate) trait Disk: Send + Sync + fmt::Debug {
    /// Creates a file, or empties an existing one, to read and write. Its directory must exist.
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file to read and write, or only to read if the disk is read-only.
    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file to read and write. Creates it if it is missing, in one step, so that a file
    /// that another thread creates at the same time isn't emptied. Its directory must exist.
    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file or a directory, and replaces a file that has the new name. After a crash it
    /// has one of the two names.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Open handles can still read it.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Creates a directory if it is missing. Its parent must exist.
    fn make_dir(&self, path: &str) -> io::Result<()>;

    /// Returns the names of a directory's entries, sorted, without the lock file.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable. Excludes names in its subdirectories and all bytes
    /// of files.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes all bytes and names durable. On Linux it is one call for the whole filesystem, which
    /// also syncs the files of other programs.
    fn sync_everything(&self) -> io::Result<()>;

    /// Locks the storage directory for writing until the value is dropped. Returns `None` if it is
    /// locked already, by this or another process.
    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>>;
}

/// Returns whether the disk, or the quota of its user, has no space left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// An open file. It stays valid after its name was removed.
pub(crate) trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads up to `buffer.len()` bytes. Returns 0 only if the file has no byte at or after `at`.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes bytes, and grows the file if needed. A gap before `at` is filled with zeros. After an
    /// error some of the bytes may have been written.
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Writes the parts one after the other, in as few calls as possible.
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        let mut at = at;
        for part in parts {
            self.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes the bytes and the length durable. After an error, bytes written since the last success
    /// may be lost, although they can be read and a second call succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
}

/// Returns the path. Fails unless it is empty, or plain names separated by slashes.
fn check_path(path: &str) -> io::Result<&str> {
    let plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    if path.is_empty() || path.split('/').all(plain) {
        return Ok(path);
    }
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!("{path:?} is not a path within the storage directory"),
    ))
}

/// Returns the path. Also fails if it is the storage directory itself.
fn check_name(path: &str) -> io::Result<&str> {
    if path.is_empty() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the storage directory itself can't be changed"));
    }
    check_path(path)
}

/// Returns the error of every modifying call on a read-only disk.
fn read_only_error() -> io::Error {
    io::Error::new(ErrorKind::ReadOnlyFilesystem, "the store is read-only")
}
