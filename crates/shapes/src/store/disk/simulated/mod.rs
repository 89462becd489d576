//! Simulated disk: a disk in memory that fails on request, and loses what a real disk may lose.
//!
//! Invariant: a crash keeps everything that was synced, and leaves nothing that was never written.
//! Unsynced changes survive in any combination that a real disk allows. The result depends only on
//! the seeds and the calls.
//! Enforced by: `file_contents.rs` for bytes and `directory_tree.rs` for names. Both keep durable
//! and unsynced changes apart.
//! Out of scope: bytes of other files in sectors that were never written, bit rot, and disks that
//! report a sync too early.

mod directory_tree;
mod file_contents;
mod rng;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::{fmt, mem};

use parking_lot::{Mutex, MutexGuard};

use rustix::io::Errno;

use self::directory_tree::{DirectoryEntry, DirectoryTree};
use self::file_contents::FileContents;
pub(crate) use self::rng::SimulatedRng;
use super::{Disk, DiskFile, read_only_error};

/// Maximum file length, in bytes. It stops a broken test before it uses up the memory.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Handle of a simulated disk. Clones are the same disk.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
    read_only: bool,
}

/// Number of calls and bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskStatistics {
    /// Calls of `sync_data`.
    pub(crate) data_syncs: u64,
    /// Calls of `sync_dir`.
    pub(crate) dir_syncs: u64,
    /// Calls of `sync_everything`.
    pub(crate) full_syncs: u64,
    /// Bytes of all writes, including overwritten ones.
    pub(crate) bytes_written: u64,
}

/// State that all handles of a disk share.
struct DiskState {
    tree: DirectoryTree,
    /// Files by number. A file without a name stays: it may be open, and a crash may restore its
    /// name.
    files: BTreeMap<usize, FileContents>,
    next_file: usize,
    rng: SimulatedRng,
    /// Number of modifying or syncing calls.
    ops: u64,
    /// Number of modifying or syncing calls until the crash, the crashing call included.
    crash_in: Option<u64>,
    crashed: bool,
    /// Bytes by which all files together may grow; `None` if unlimited.
    room_bytes: Option<u64>,
    fails_next_sync: bool,
    /// The directory whose next sync fails.
    failing_dir: Option<String>,
    locked: bool,
    statistics: DiskStatistics,
}

impl SimulatedDisk {
    /// Returns an empty disk. The seed decides how much effect a crashing or failing call has.
    pub(crate) fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk::with_state(DiskState::new(
            DirectoryTree::new(),
            BTreeMap::new(),
            SimulatedRng::new(seed),
        ))
    }

    /// Returns a read-only handle of the same disk.
    pub(crate) fn read_only(&self) -> SimulatedDisk {
        SimulatedDisk { state: self.state.clone(), read_only: true }
    }

    /// Lets the `op`-th modifying or syncing call from now crash. It has its effect completely, in
    /// part or not at all. All calls after it fail. 1 is the next call.
    pub(crate) fn crash_at(&self, op: u64) {
        assert!(op > 0, "1 is the next call");
        self.state().crash_in = Some(op);
    }

    /// Returns the number of modifying or syncing calls up to the crash, failed ones included.
    pub(crate) fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Returns whether the call of `crash_at` was reached.
    pub(crate) fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Returns a disk without faults, as the machine finds it after a power failure now or at the
    /// crash. This disk is unchanged, so it can be called again with another seed.
    pub(crate) fn after_crash(&self, seed: u64) -> SimulatedDisk {
        let (state, mut rng) = (self.state(), SimulatedRng::new(seed));
        let tree = state.tree.after_crash(&mut rng);
        let left = |file: usize| (file, FileContents::synced(state.files[&file].after_crash(&mut rng)));
        let files = tree.files().into_iter().map(left).collect();
        SimulatedDisk::with_state(DiskState::new(tree, files, rng))
    }

    /// Returns a disk without faults, as the next process finds it if this one is killed now or at
    /// the crash. It has all written bytes. Unsynced changes stay unsynced.
    pub(crate) fn after_kill(&self) -> SimulatedDisk {
        let state = self.state();
        SimulatedDisk::with_state(DiskState::new(state.tree.clone(), state.files.clone(), state.rng.clone()))
    }

    /// Limits the growth of all files together to `bytes_left`. A write beyond it writes the bytes
    /// that fit, and fails with ENOSPC. Removing or truncating files frees space.
    pub(crate) fn fill(&self, bytes_left: u64) {
        self.state().room_bytes = Some(bytes_left);
    }

    /// Lets the next `sync_data` fail with EIO. Some of the unsynced bytes are lost, although they
    /// can still be read.
    pub(crate) fn fail_sync(&self) {
        self.state().fails_next_sync = true;
    }

    /// Makes the next sync of `dir` fail. Its names stay visible, and are not durable.
    pub(crate) fn fail_dir_sync(&self, dir: &str) {
        self.state().failing_dir = Some(dir.to_owned());
    }

    /// Returns the number of calls and bytes so far.
    pub(crate) fn statistics(&self) -> DiskStatistics {
        self.state().statistics
    }

    fn with_state(state: DiskState) -> SimulatedDisk {
        SimulatedDisk { state: Arc::new(Mutex::new(state)), read_only: false }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock()
    }

    /// Locks the state for a call that changes nothing. Fails after the crash.
    fn read_state(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.state();
        if state.crashed { Err(crash()) } else { Ok(state) }
    }

    /// Runs a modifying or syncing call. In the crashing call, `crashed` is set before `effect`
    /// runs, and `effect` may stop halfway.
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

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.mutate(|state| match state.tree.find_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => state.create(path),
            found => found,
        })?;
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

    // A crashing sync is done completely or not at all. The crash itself then keeps a part of the
    // unsynced changes.
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.mutate(|state| {
            state.statistics.dir_syncs += 1;
            if state.failing_dir.take_if(|failing| failing == dir).is_some() {
                return Err(Errno::IO.into());
            }
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
            failing_dir: None,
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
        // Gaps and overwritten bytes need no space.
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
        let contents = files.get_mut(&file).expect("the contents of a file are never removed");
        if mem::take(fails_next_sync) {
            contents.fail_sync(rng);
            return Err(Errno::IO.into());
        }
        contents.sync();
        Ok(())
    }

    fn contents(&mut self, file: usize) -> &mut FileContents {
        self.files.get_mut(&file).expect("the contents of a file are never removed")
    }

    /// Frees the space of a file that lost its name or is emptied.
    fn free_file_room(&mut self, file: usize) {
        let len = self.contents(file).now().len();
        self.add_room(len);
    }

    fn add_room(&mut self, bytes: usize) {
        self.room_bytes = self.room_bytes.map(|room| room.saturating_add(bytes as u64));
    }
}

/// Lock of the disk. Unlocks on drop.
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

/// Converts a position in a file. Fails beyond [`MAX_FILE_BYTES`].
fn position(bytes: u64) -> io::Result<usize> {
    let position = (bytes <= MAX_FILE_BYTES).then(|| usize::try_from(bytes).ok());
    position.flatten().ok_or_else(|| ErrorKind::FileTooLarge.into())
}

fn crash() -> io::Error {
    io::Error::other("crashed")
}
