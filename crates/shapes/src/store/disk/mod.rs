//! The door to the disk: all that the store does to files.
//!
//! Invariant: no other module of the store opens, names or removes a file, so a test that puts [`SimulatedDisk`] behind
//! the door sees every write, and can lose each that wasn't synced.
//! Kept by: paths are relative to the store's directory, and those that lead out of it are refused.
//! Not here: retries, and what the bytes mean.

mod real;
#[cfg(test)]
#[cfg_attr(not(test), allow(dead_code, reason = "for the tests of those who ask for the feature"))]
mod simulated;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

pub(crate) use self::real::RealDisk;
#[cfg(test)]
#[cfg_attr(not(test), allow(unused_imports, reason = "for the tests of those who ask for the feature"))]
pub(crate) use self::simulated::{SimulatedDisk, SimulatedRng};

/// The file whose lock says who may write. It is never listed.
const LOCK_FILE: &str = "lock";

/// What the store does to files. A path is relative to the store's directory: `wal/0000000000000003`, `catalog`; the
/// empty one is that directory itself.
///
/// After a power failure only what was synced is sure to be there: a file's bytes and length by
/// [`DiskFile::sync_data`], its name by [`sync_dir`](Disk::sync_dir) of the directory that it is in, and that
/// directory's own name by a sync of its parent. Either directory of a rename will do.
pub(crate) trait Disk: Send + Sync + fmt::Debug {
    /// A new file, or one that is emptied, to read and write. Its directory must exist.
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// A file that exists, to read and write; only to read if the disk is read-only.
    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file or a directory another name, in place of the file that had it. After a crash it has one of the two.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Those who have it open go on reading it.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Makes a directory; fine if it is there. Its parent must exist.
    fn make_dir(&self, path: &str) -> io::Result<()>;

    /// The names of a directory's files and directories, sorted, without the lock.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable, not those in its directories, and no file's bytes.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes all bytes and names durable. On Linux it is one call for the whole filesystem, whoever else writes to it.
    fn sync_everything(&self) -> io::Result<()>;

    /// Takes the right to write, which dropping the value gives back. `None`: someone else has it, in this process or
    /// another.
    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>>;
}

/// An open file. It stays what it is though its name goes away.
pub(crate) trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads some bytes, often as many as fit. Zero: there are none at `at` or after it.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes, and makes the file as long as it must be; a gap before `at` is zeros. After an error some of the bytes
    /// may be there.
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Writes the parts one after the other, in as few calls as it takes.
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        let mut at = at;
        for part in parts {
            self.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes the bytes and the length durable. After an error, what was written since the last success may be lost,
    /// though it can be read and a second try succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
}

/// Refuses a path that isn't plain names with slashes between them, or empty.
fn check_path(path: &str) -> io::Result<&str> {
    let plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    if path.is_empty() || path.split('/').all(plain) {
        return Ok(path);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("{path:?} isn't a path within the store")))
}

/// The same, for a path that must not be the store's directory itself.
fn check_name(path: &str) -> io::Result<&str> {
    if path.is_empty() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the store's directory itself stays as it is"));
    }
    check_path(path)
}

/// What every call that would change something says on a read-only disk.
fn read_only_error() -> io::Error {
    io::Error::new(ErrorKind::ReadOnlyFilesystem, "the store was opened to be read only")
}
