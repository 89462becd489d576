//! The disk that is one: files below the store's directory.
//!
//! Invariant: a read-only disk changes nothing, not even by making its directory or the lock.
//! Kept by: every call that changes something asks for `writable()` first, and files are opened without the right.

use std::any::Any;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use super::{Disk, DiskFile, LOCK_FILE, check_name, check_path, read_only_error};

/// Rows are nobody else's business: as Postgres keeps its own.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// The most parts that Linux takes in one call.
#[cfg(target_os = "linux")]
const MAX_PARTS: usize = 1024;

/// A directory of the filesystem.
#[derive(Debug)]
pub(crate) struct RealDisk {
    dir: PathBuf,
    /// Open for as long as the disk: `syncfs` reports a failed write-back to those who had the filesystem open then.
    root: File,
    read_only: bool,
}

impl RealDisk {
    /// Opens the store's directory, which is made if it isn't there, unless it is only to be read.
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

    fn path(&self, path: &str) -> io::Result<PathBuf> {
        // Joining the empty path would add a slash.
        Ok(if check_path(path)?.is_empty() { self.dir.clone() } else { self.dir.join(path) })
    }

    /// The same, for calls that change something.
    fn writable(&self, path: &str) -> io::Result<PathBuf> {
        if self.read_only { Err(read_only_error()) } else { self.path(path) }
    }

    /// The same, for calls that the store's directory itself must not be given to.
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
        // A directory can be opened to be read, though not to be written.
        if self.read_only && file.metadata()?.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok(Arc::new(RealFile(file)))
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
            // A name that isn't UTF-8 is none of ours, and neither has a path here.
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

    /// There is no call for one filesystem elsewhere, and the one for all of them needn't wait.
    #[cfg(not(target_os = "linux"))]
    fn sync_everything(&self) -> io::Result<()> {
        sync_tree(&self.writable("")?)
    }

    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(self.writable(LOCK_FILE)?)?;
        // Of this opening of the file, not of the process: a second one here is refused, too.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(DirectoryLock(file)))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The right to write.
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing would do, but for a child that was forked and hasn't come to its exec: it has the file open as well.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

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
            // Either it stopped within a part, or it wrote nothing: finishing the part goes on, or says why it can't.
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

/// How many parts were written whole, and how many bytes of the one after them.
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

/// Makes a directory and those that it is in, each durable as a name of the one above.
fn make_all(dir: &Path) -> io::Result<()> {
    let made = match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_all(parent(dir).ok_or(error)?)?;
            DirBuilder::new().mode(DIR_MODE).create(dir)
        }
        made => made,
    };
    match made {
        // A directory that can be written needn't have a parent that can.
        Err(_) if dir.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => parent(dir).map_or(Ok(()), sync_names),
    }
}

/// The directory that a path is in; `store` is in `.`, whose path is empty.
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
    fn a_write_that_stops_short_is_taken_up_where_it_stopped() {
        let parts = [IoSlice::new(b""), IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"de")];
        let expected = [(1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (4, 0)];
        for (written, expected) in expected.into_iter().enumerate() {
            assert_eq!(progress(&parts, written), expected, "{written} bytes");
        }
        assert_eq!(progress(&[], 0), (0, 0));
    }
}
