//! A disk in memory that fails on request, and loses what a real one may lose.
//!
//! Invariant: what a crash leaves is never less than what was synced, and never what was neither synced nor written;
//! within that it is worse than any real disk, and the same for the same seeds and calls.
//! Kept by: `contents.rs` for bytes and `tree.rs` for names, each of which knows what is durable and what isn't yet.
//! Not here: bytes of other files in a sector that was never written, bits that rot, and disks that lie about a sync.

mod directory_tree;
mod file_contents;
mod rng;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, mem};

use rustix::io::Errno;

use self::directory_tree::{DirectoryEntry, DirectoryTree};
use self::file_contents::FileContents;
pub(crate) use self::rng::SimulatedRng;
use super::{Disk, DiskFile, read_only_error};

/// A test that writes further out has gone wrong, and shouldn't take the machine's memory along.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A handle: its clones are the same disk.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
    read_only: bool,
}

/// What was asked of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskStatistics {
    /// Calls of `sync_data`.
    pub(crate) data_syncs: u64,
    /// Calls of `sync_dir`.
    pub(crate) dir_syncs: u64,
    /// Calls of `sync_everything`.
    pub(crate) full_syncs: u64,
    /// By all writes, also those that a later one wrote over.
    pub(crate) bytes_written: u64,
}

struct DiskState {
    tree: DirectoryTree,
    /// By number. A file without a name stays: someone may have it open, and a crash may give it its name back.
    files: BTreeMap<usize, FileContents>,
    next_file: usize,
    rng: SimulatedRng,
    ops: u64,
    /// Calls until the one that crashes, itself included.
    crash_in: Option<u64>,
    crashed: bool,
    room_bytes: Option<u64>,
    fails_next_sync: bool,
    locked: bool,
    statistics: DiskStatistics,
}

impl SimulatedDisk {
    /// An empty disk. The seed decides how much of its effect a call has at which the disk crashes or fails.
    pub(crate) fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk::with_state(DiskState::new(
            DirectoryTree::new(),
            BTreeMap::new(),
            SimulatedRng::new(seed),
        ))
    }

    /// The same disk, for one who may only read.
    pub(crate) fn read_only(&self) -> SimulatedDisk {
        SimulatedDisk { state: self.state.clone(), read_only: true }
    }

    /// The `op`-th call from now that changes or syncs something fails, having had its effect, some of it or none. So
    /// does every call after it, whatever it does. One is the next call.
    pub(crate) fn crash_at(&self, op: u64) {
        assert!(op > 0, "one is the next call");
        self.state().crash_in = Some(op);
    }

    /// How many calls there were that change or sync something, those that failed included, until the crash.
    pub(crate) fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Whether the call of `crash_at` has come.
    pub(crate) fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// What the machine finds if its power fails now, or failed at the crash: another disk, without faults. This one
    /// stays as it is, to be asked again with another seed.
    pub(crate) fn after_crash(&self, seed: u64) -> SimulatedDisk {
        let (state, mut rng) = (self.state(), SimulatedRng::new(seed));
        let tree = state.tree.after_crash(&mut rng);
        let left = |file: usize| (file, FileContents::synced(state.files[&file].after_crash(&mut rng)));
        let files = tree.files().into_iter().map(left).collect();
        SimulatedDisk::with_state(DiskState::new(tree, files, rng))
    }

    /// What the next process finds if this one is killed now, or was at the crash: another disk, without faults, with
    /// all that was written. What wasn't synced still isn't.
    pub(crate) fn after_kill(&self) -> SimulatedDisk {
        let state = self.state();
        SimulatedDisk::with_state(DiskState::new(state.tree.clone(), state.files.clone(), state.rng.clone()))
    }

    /// From now on files can grow by this many bytes in all; then writes fail with ENOSPC, after what still fits.
    /// What is removed or cut makes room again.
    pub(crate) fn fill(&self, bytes_left: u64) {
        self.state().room_bytes = Some(bytes_left);
    }

    /// The next `sync_data` fails with EIO, and some of what it was for is lost, though it can still be read.
    pub(crate) fn fail_sync(&self) {
        self.state().fails_next_sync = true;
    }

    /// What was asked of it so far.
    pub(crate) fn statistics(&self) -> DiskStatistics {
        self.state().statistics
    }

    fn with_state(state: DiskState) -> SimulatedDisk {
        SimulatedDisk { state: Arc::new(Mutex::new(state)), read_only: false }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For calls that change nothing.
    fn read_state(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.state();
        if state.crashed { Err(crash()) } else { Ok(state) }
    }

    /// For calls that do. An effect that finds the state crashed is that of the crashing call, and may stop halfway.
    fn mutate<T>(&self, effect: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        if self.read_only {
            return Err(read_only_error());
        }
        let mut state = self.read_state()?;
        state.ops += 1;
        state.crash_in = state.crash_in.map(|left| left - 1);
        if state.crash_in != Some(0) {
            return effect(&mut state);
        }
        state.crashed = true;
        if state.rng.coin() {
            let _ = effect(&mut state);
        }
        Err(crash())
    }

    fn handle(&self, file: usize) -> Arc<dyn DiskFile> {
        Arc::new(SimulatedFile { disk: self.clone(), file })
    }
}

impl Disk for SimulatedDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.mutate(|state| state.create(path)).map(|file| self.handle(file))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.read_state()?.tree.find_file(path)?;
        Ok(self.handle(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.mutate(|state| {
            if let Some(DirectoryEntry::File(replaced)) = state.tree.rename(from, to)? {
                state.free_file_room(replaced);
            }
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.mutate(|state| {
            let file = state.tree.remove_file(path)?;
            state.free_file_room(file);
            Ok(())
        })
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.mutate(|state| match state.tree.find(path) {
            Ok(DirectoryEntry::Dir(_)) => Ok(()),
            Ok(DirectoryEntry::File(_)) => Err(ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => state.tree.add_dir(path),
            Err(error) => Err(error),
        })
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let state = self.read_state()?;
        Ok(state.tree.list(state.tree.find_dir(dir)?))
    }

    // A sync that crashes is done or isn't: the crash itself leaves some of what it didn't do.
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.mutate(|state| {
            state.statistics.dir_syncs += 1;
            let dir = state.tree.find_dir(dir)?;
            state.tree.sync(dir);
            Ok(())
        })
    }

    fn sync_everything(&self) -> io::Result<()> {
        self.mutate(|state| {
            state.statistics.full_syncs += 1;
            state.files.values_mut().for_each(FileContents::sync);
            state.tree.sync_everything();
            Ok(())
        })
    }

    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        if self.read_only {
            return Err(read_only_error());
        }
        let taken = mem::replace(&mut self.read_state()?.locked, true);
        Ok((!taken).then(|| Box::new(SimulatedLock(self.clone())) as Box<dyn Any + Send>))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let state = self.disk.read_state()?;
        let after = usize::try_from(at).ok().and_then(|at| state.files[&self.file].now().get(at..));
        let read = after.unwrap_or_default();
        let read = &read[..read.len().min(buffer.len())];
        buffer[..read.len()].copy_from_slice(read);
        Ok(read.len())
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.disk.mutate(|state| state.write(self.file, bytes, at))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.mutate(|state| state.sync_data(self.file))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.mutate(|state| {
            let (len, contents) = (position(len)?, state.contents(self.file));
            let cut = contents.now().len().saturating_sub(len);
            contents.set_len(len);
            state.add_room(cut);
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.read_state()?.files[&self.file].now().len() as u64)
    }
}

impl DiskState {
    fn new(tree: DirectoryTree, files: BTreeMap<usize, FileContents>, rng: SimulatedRng) -> DiskState {
        let next_file = files.keys().next_back().map_or(0, |last| last + 1);
        DiskState {
            tree,
            files,
            next_file,
            rng,
            ops: 0,
            crash_in: None,
            crashed: false,
            room_bytes: None,
            fails_next_sync: false,
            locked: false,
            statistics: DiskStatistics::default(),
        }
    }

    fn create(&mut self, path: &str) -> io::Result<usize> {
        match self.tree.find_file(path) {
            Ok(file) => {
                self.free_file_room(file);
                self.contents(file).set_len(0);
                Ok(file)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let file = self.next_file;
                self.tree.add_file(path, file)?;
                self.files.insert(file, FileContents::default());
                self.next_file += 1;
                Ok(file)
            }
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, file: usize, bytes: &[u8], at: u64) -> io::Result<()> {
        position(at.saturating_add(bytes.len() as u64))?;
        let (at, room) =
            (position(at)?, self.room_bytes.map(|room| usize::try_from(room).unwrap_or(usize::MAX)));
        let len = self.contents(file).now().len();
        // A gap takes no room, nor do bytes that were there.
        let new = |count: usize| (at + count).saturating_sub(len.max(at));
        let missing = room.map_or(0, |room| new(bytes.len()).saturating_sub(room));
        let mut count = bytes.len() - missing;
        if self.crashed {
            count = self.rng.between(0, count);
        }
        self.contents(file).write(at, &bytes[..count]);
        self.statistics.bytes_written += count as u64;
        self.room_bytes = self.room_bytes.map(|room| room - new(count) as u64);
        if missing > 0 { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn sync_data(&mut self, file: usize) -> io::Result<()> {
        self.statistics.data_syncs += 1;
        let DiskState { files, rng, fails_next_sync, .. } = self;
        let contents = files.get_mut(&file).expect("an open file is never forgotten");
        if mem::take(fails_next_sync) {
            contents.fail_sync(rng);
            return Err(Errno::IO.into());
        }
        contents.sync();
        Ok(())
    }

    fn contents(&mut self, file: usize) -> &mut FileContents {
        self.files.get_mut(&file).expect("an open file is never forgotten")
    }

    /// For a file that lost its name or is emptied.
    fn free_file_room(&mut self, file: usize) {
        let len = self.contents(file).now().len();
        self.add_room(len);
    }

    fn add_room(&mut self, bytes: usize) {
        self.room_bytes = self.room_bytes.map(|room| room.saturating_add(bytes as u64));
    }
}

/// The right to write.
struct SimulatedLock(SimulatedDisk);

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let (ops, crashed) = (state.ops, state.crashed);
        f.debug_struct("SimulatedDisk").field("ops", &ops).field("crashed", &crashed).finish_non_exhaustive()
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedFile").field("file", &self.file).finish_non_exhaustive()
    }
}

fn position(bytes: u64) -> io::Result<usize> {
    let position = (bytes <= MAX_FILE_BYTES).then(|| usize::try_from(bytes).ok());
    position.flatten().ok_or_else(|| ErrorKind::FileTooLarge.into())
}

fn crash() -> io::Error {
    io::Error::other("crashed")
}
