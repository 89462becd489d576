//! Real disk: files below the storage directory.
//!
//! Invariant: a read-only disk changes nothing. It creates neither its directory nor the lock file.
//! Enforced by: every modifying call uses `writable()` first, and files are opened without write
//! access.

use std::any::Any;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use super::{Disk, DiskFile, LOCK_FILE, check_name, check_path, read_only_error};

/// Only the owner can read rows, as in the data directory of Postgres.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Maximum number of parts of one `pwritev` on Linux (`IOV_MAX`).
#[cfg(target_os = "linux")]
const MAX_PARTS: usize = 1024;

/// A directory of the filesystem.
#[derive(Debug)]
pub(crate) struct RealDisk {
    dir: PathBuf,
    /// Open as long as the disk: `syncfs` reports a failed write-back only to file descriptors that
    /// were open at that time.
    root: File,
    read_only: bool,
}

impl RealDisk {
    /// Opens the storage directory. Creates it if it is missing, unless `read_only`.
    pub(crate) fn open(dir: PathBuf, read_only: bool) -> io::Result<RealDisk> {
        if !read_only {
            make_all(&dir)?;
        }
        let root = File::open(&dir)?;
        if !root.metadata()?.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(RealDisk { dir, root, read_only })
    }

    /// Returns the path in the filesystem.
    fn path(&self, path: &str) -> io::Result<PathBuf> {
        // Joining the empty path would add a slash.
        Ok(if check_path(path)?.is_empty() { self.dir.clone() } else { self.dir.join(path) })
    }

    /// Returns the path for a modifying call. Fails if the disk is read-only.
    fn writable(&self, path: &str) -> io::Result<PathBuf> {
        if self.read_only { Err(read_only_error()) } else { self.path(path) }
    }

    /// As [`writable`](Self::writable). Also fails if the path is the storage directory itself.
    fn writable_name(&self, path: &str) -> io::Result<PathBuf> {
        check_name(path)?;
        self.writable(path)
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        Ok(Arc::new(RealFile(options.open(self.writable_name(path)?)?)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(!self.read_only).open(self.path(path)?)?;
        // A directory can be opened to read, but not to write.
        if self.read_only && file.metadata()?.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        Ok(Arc::new(RealFile(options.open(self.writable_name(path)?)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.writable_name(from)?, self.writable_name(to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.writable_name(path)?)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        let path = self.writable(path)?;
        match DirBuilder::new().mode(DIR_MODE).create(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(dir)?)? {
            // The store creates no names that aren't UTF-8, and a path here can't express them.
            if let Ok(name) = entry?.file_name().into_string()
                && !(dir.is_empty() && name == LOCK_FILE)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_names(&self.writable(dir)?)
    }

    #[cfg(target_os = "linux")]
    fn sync_everything(&self) -> io::Result<()> {
        self.writable("")?;
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    /// Other systems have no call that syncs one filesystem. POSIX allows `sync`, which syncs all
    /// of them, to return before the bytes are durable.
    #[cfg(not(target_os = "linux"))]
    fn sync_everything(&self) -> io::Result<()> {
        sync_tree(&self.writable("")?)
    }

    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(self.writable(LOCK_FILE)?)?;
        // The lock belongs to this open file, not to the process. So a second lock in this process
        // is refused, too.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(DirectoryLock(file)))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lock of the storage directory. Unlocks on drop.
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing isn't enough: a forked child that has not called exec yet has the file open as
        // well.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// An open file of the filesystem.
#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match self.0.read_at(buffer, at) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    #[cfg(target_os = "linux")]
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        let (mut rest, mut at) = (parts, at);
        while !rest.is_empty() {
            let written = match rustix::io::pwritev(&self.0, &rest[..rest.len().min(MAX_PARTS)], at) {
                Err(rustix::io::Errno::INTR) => continue,
                written => written?,
            };
            let (whole, begun) = progress(rest, written);
            (rest, at) = (&rest[whole..], at + written as u64);
            // The call stopped within a part, or wrote nothing. Finish the part, which continues or
            // returns the error.
            if let [part, later @ ..] = rest
                && (begun > 0 || whole == 0)
            {
                self.0.write_all_at(&part[begun..], at)?;
                (rest, at) = (later, at + (part.len() - begun) as u64);
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Returns the number of parts that were written completely, and the number of bytes that were
/// written of the next part.
#[cfg(target_os = "linux")]
fn progress(parts: &[IoSlice<'_>], written: usize) -> (usize, usize) {
    let mut left = written;
    for (whole, part) in parts.iter().enumerate() {
        if part.len() > left {
            return (whole, left);
        }
        left -= part.len();
    }
    (parts.len(), 0)
}

/// Creates a directory and its parents. The name of each one is durable in its parent.
fn make_all(dir: &Path) -> io::Result<()> {
    let made = match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_all(parent(dir).ok_or(error)?)?;
            DirBuilder::new().mode(DIR_MODE).create(dir)
        }
        made => made,
    };
    match made {
        // A writable directory may have a parent that isn't writable.
        Err(_) if dir.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => parent(dir).map_or(Ok(()), sync_names),
    }
}

/// Returns the parent of a path. The parent of `store` is `.`, for which `Path::parent` returns the
/// empty path.
fn parent(path: &Path) -> Option<&Path> {
    path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

fn sync_names(dir: &Path) -> io::Result<()> {
    let dir = File::open(dir)?;
    if !dir.metadata()?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    dir.sync_all()
}

#[cfg(not(target_os = "linux"))]
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?
        } else {
            File::open(entry.path())?.sync_all()?
        }
    }
    sync_names(dir)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_partial_write_is_continued_where_it_stopped() {
        let parts = [IoSlice::new(b""), IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"de")];
        let expected = [(1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (4, 0)];
        for (written, expected) in expected.into_iter().enumerate() {
            assert_eq!(progress(&parts, written), expected, "{written} bytes");
        }
        assert_eq!(progress(&[], 0), (0, 0));
    }
}
