//! Tests that hold for both disks: the simulated disk must behave as the real one.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::{env, fs, process, thread};

use proptest::prelude::*;

use super::*;

/// A temporary directory, removed on drop.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> TemporaryFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("forebay-disk-{}-{number}", process::id()));
        // Left by a killed process with the same process id.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        TemporaryFolder(path)
    }

    fn disk(&self) -> RealDisk {
        RealDisk::open(self.0.join("store"), false).unwrap()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The numbers of ENOSPC and EDQUOT on Linux.
#[test]
fn a_disk_and_a_quota_without_space_are_full() {
    assert!([28, 122].iter().all(|code| is_full(&std::io::Error::from_raw_os_error(*code))));
    assert!(!is_full(&std::io::Error::from_raw_os_error(5)));
}

/// Runs a test on a real and on a simulated disk.
fn on_both(test: impl Fn(&dyn Disk)) {
    let folder = TemporaryFolder::new();
    test(&folder.disk());
    test(&SimulatedDisk::new(1));
}

fn contents(file: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Adds every file by its path, and every directory by its path with a slash.
fn tree(disk: &dyn Disk, dir: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for name in disk.list(dir).unwrap() {
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        match disk.open(&path) {
            Ok(file) => drop(found.insert(path, contents(&*file))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::IsADirectory, "{path}");
                found.insert(format!("{path}/"), Vec::new());
                tree(disk, &path, found);
            }
        }
    }
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

#[test]
fn a_file_that_two_threads_open_or_create_keeps_the_bytes_of_both() {
    on_both(|disk| {
        for round in 0..200 {
            let (path, start) = (format!("file-{round}"), Barrier::new(2));
            thread::scope(|scope| {
                for (at, byte) in [(0, b"a"), (1, b"b")] {
                    let (path, start) = (&path, &start);
                    scope.spawn(move || {
                        start.wait();
                        disk.open_or_create(path).unwrap().write_all_at(byte, at).unwrap();
                    });
                }
            });
            assert_eq!(contents(&*disk.open(&path).unwrap()), b"ab");
        }
    });
}

#[test]
fn bytes_are_read_back_and_gaps_are_zeros() {
    on_both(|disk| {
        let file = disk.create("file").unwrap();
        file.write_all_at(b"end", 5).unwrap();
        file.write_all_at(b"at", 1).unwrap();
        file.write_all_at(b"", 100).unwrap();
        assert_eq!(contents(&*file), b"\0at\0\0end");
        let mut buffer = [9; 4];
        assert_eq!(file.read_at(&mut buffer, 6).unwrap(), 2);
        assert_eq!(buffer, [b'n', b'd', 9, 9]);
        assert_eq!(file.read_at(&mut buffer, 8).unwrap(), 0);
        assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
        file.set_len(3).unwrap();
        file.set_len(4).unwrap();
        file.sync_data().unwrap();
        assert_eq!(contents(&*disk.open("file").unwrap()), b"\0at\0");
    });
}

#[test]
fn any_number_of_parts_is_written_in_order() {
    on_both(|disk| {
        let file = disk.create("file").unwrap();
        let parts: Vec<Vec<u8>> = (0..3_000_usize).map(|n| vec![n as u8; n % 5]).collect();
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_all_vectored_at(&slices, 7).unwrap();
        file.write_all_vectored_at(&[], 0).unwrap();
        file.write_all_vectored_at(&[IoSlice::new(b""), IoSlice::new(b"")], 1 << 20).unwrap();
        assert_eq!(contents(&*file), [vec![0; 7], parts.concat()].concat());
    });
}

#[test]
fn an_open_file_stays_readable_after_its_name_is_removed() {
    on_both(|disk| {
        let old = disk.create("catalog").unwrap();
        old.write_all_at(b"old", 0).unwrap();
        let new = disk.create("catalog.new").unwrap();
        new.write_all_at(b"new", 0).unwrap();
        disk.rename("catalog.new", "catalog").unwrap();
        assert_eq!(disk.list("").unwrap(), ["catalog"]);
        assert_eq!(contents(&*disk.open("catalog").unwrap()), b"new");
        disk.remove("catalog").unwrap();
        assert_eq!(kind(disk.open("catalog")), ErrorKind::NotFound);
        assert_eq!((contents(&*old), contents(&*new)), (b"old".to_vec(), b"new".to_vec()));
    });
}

#[test]
fn directories_are_created_and_listed_in_order() {
    on_both(|disk| {
        disk.make_dir("shapes").unwrap();
        disk.make_dir("shapes").unwrap();
        disk.make_dir("shapes/7").unwrap();
        for name in ["shapes/7/b", "shapes/7/a", "shapes/7/10", "shapes/9"] {
            disk.create(name).unwrap();
        }
        assert_eq!(disk.list("shapes/7").unwrap(), ["10", "a", "b"]);
        assert_eq!(disk.list("shapes").unwrap(), ["7", "9"]);
        disk.sync_dir("shapes").unwrap();
        disk.sync_dir("").unwrap();
        disk.sync_everything().unwrap();
        assert_eq!(kind(disk.list("shapes/8")), ErrorKind::NotFound);
        assert_eq!(kind(disk.create("shapes/8/a")), ErrorKind::NotFound);
    });
}

#[test]
fn the_lock_is_exclusive_and_its_file_is_not_listed() {
    let check = |one: &dyn Disk, other: &dyn Disk| {
        let lock = one.try_lock().unwrap();
        assert!(lock.is_some());
        assert!(one.try_lock().unwrap().is_none() && other.try_lock().unwrap().is_none());
        assert_eq!(other.list("").unwrap(), [""; 0]);
        drop(lock);
        assert!(other.try_lock().unwrap().is_some());
    };
    let folder = TemporaryFolder::new();
    check(&folder.disk(), &folder.disk());
    let simulated = SimulatedDisk::new(1);
    check(&simulated, &simulated.clone());
}

#[test]
fn a_read_only_disk_reads_and_changes_nothing() {
    let check = |disk: &dyn Disk| {
        let file = disk.open("file").unwrap();
        assert_eq!(contents(&*file), b"bytes");
        let refused: [io::Result<()>; 8] = [
            disk.create("file").map(drop),
            disk.create("other").map(drop),
            disk.rename("file", "other"),
            disk.remove("file"),
            disk.make_dir("dir"),
            disk.sync_dir(""),
            disk.sync_everything(),
            disk.try_lock().map(drop),
        ];
        for refused in refused {
            assert_eq!(kind(refused), ErrorKind::ReadOnlyFilesystem);
        }
        assert!(file.write_all_at(b"x", 0).is_err() && file.set_len(0).is_err());
        assert!(file.write_all_vectored_at(&[IoSlice::new(b"x")], 0).is_err());
        assert_eq!(contents(&*file), b"bytes");
    };
    let (folder, simulated) = (TemporaryFolder::new(), SimulatedDisk::new(1));
    for disk in [&folder.disk() as &dyn Disk, &simulated] {
        disk.create("file").unwrap().write_all_at(b"bytes", 0).unwrap();
    }
    check(&RealDisk::open(folder.0.join("store"), true).unwrap());
    check(&simulated.read_only());
    assert_eq!(kind(RealDisk::open(folder.0.join("missing"), true)), ErrorKind::NotFound);
    assert!(!folder.0.join("missing").exists() && !folder.0.join("store/lock").exists());
}

#[test]
fn paths_that_lead_out_of_the_store_are_refused() {
    on_both(|disk| {
        for path in ["..", "a/../b", "/etc", "a//b", "a/", ".", "a\0b"] {
            assert_eq!(kind(disk.create(path)), ErrorKind::InvalidInput, "{path:?}");
            assert_eq!(kind(disk.list(path)), ErrorKind::InvalidInput, "{path:?}");
            assert_eq!(kind(disk.remove(path)), ErrorKind::InvalidInput, "{path:?}");
        }
        disk.create("file").unwrap();
        assert_eq!(kind(disk.remove("")), ErrorKind::InvalidInput);
        assert_eq!(kind(disk.rename("", "a")), ErrorKind::InvalidInput);
        assert_eq!(disk.list("").unwrap(), ["file"]);
    });
}

#[test]
fn the_storage_directory_is_created_with_its_parents_and_only_its_owner_can_access_it() {
    let folder = TemporaryFolder::new();
    let dir = folder.0.join("a/b/c");
    let disk = RealDisk::open(dir.clone(), false).unwrap();
    RealDisk::open(dir.clone(), false).unwrap();
    disk.create("file").unwrap();
    disk.make_dir("dir").unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(dir.join("file")), mode(dir.join("dir")), mode(dir)), (0o600, 0o700, 0o700));
    assert_eq!(kind(RealDisk::open(folder.0.join("a/b/c/file"), true)), ErrorKind::NotADirectory);
}

/// A call of a disk.
#[derive(Clone, Debug)]
enum DiskStep {
    Create(&'static str),
    Open(&'static str),
    Rename(&'static str, &'static str),
    Remove(&'static str),
    MakeDir(&'static str),
    List(&'static str),
    SyncDir(&'static str),
    Write { file: usize, at: u64, byte: u8, len: usize },
    SetLen { file: usize, len: u64 },
    Read { file: usize, at: u64, len: usize },
}

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "d", "e", "d/a", "d/b", "d/e", "d/e/a", "e/a", "e/b"])
}

fn step() -> impl Strategy<Value = DiskStep> {
    let file = || 0..8_usize;
    prop_oneof![
        3 => path().prop_map(DiskStep::Create),
        1 => path().prop_map(DiskStep::Open),
        3 => (path(), path()).prop_map(|(from, to)| DiskStep::Rename(from, to)),
        1 => path().prop_map(DiskStep::Remove),
        3 => path().prop_map(DiskStep::MakeDir),
        1 => path().prop_map(DiskStep::List),
        1 => path().prop_map(DiskStep::SyncDir),
        4 => (file(), 0..1_500_u64, any::<u8>(), 0..1_200_usize)
            .prop_map(|(file, at, byte, len)| DiskStep::Write { file, at, byte, len }),
        1 => (file(), 0..2_000_u64).prop_map(|(file, len)| DiskStep::SetLen { file, len }),
        2 => (file(), 0..2_000_u64, 0..900_usize).prop_map(|(file, at, len)| DiskStep::Read { file, at, len }),
    ]
}

/// A disk and the files opened so far.
struct DiskRun<'a> {
    disk: &'a dyn Disk,
    files: Vec<Arc<dyn DiskFile>>,
}

impl DiskRun<'_> {
    fn step(&mut self, step: &DiskStep) -> Result<String, ErrorKind> {
        self.try_step(step).map_err(|error| error.kind())
    }

    fn try_step(&mut self, step: &DiskStep) -> io::Result<String> {
        let disk = self.disk;
        let done = |()| String::new();
        match *step {
            DiskStep::Create(path) => disk.create(path).map(|file| self.files.push(file)).map(done),
            DiskStep::Open(path) => disk.open(path).map(|file| self.files.push(file)).map(done),
            DiskStep::Rename(from, to) => disk.rename(from, to).map(done),
            DiskStep::Remove(path) => disk.remove(path).map(done),
            DiskStep::MakeDir(path) => disk.make_dir(path).map(done),
            DiskStep::List(path) => disk.list(path).map(|names| names.join(" ")),
            DiskStep::SyncDir(path) => disk.sync_dir(path).map(done),
            DiskStep::Write { file, at, byte, len } => match self.files.get(file) {
                Some(file) => file.write_all_at(&vec![byte; len], at).map(done),
                None => Ok(String::new()),
            },
            DiskStep::SetLen { file, len } => match self.files.get(file) {
                Some(file) => file.set_len(len).map(done),
                None => Ok(String::new()),
            },
            DiskStep::Read { file, at, len } => match self.files.get(file) {
                Some(file) => {
                    let mut buffer = vec![0; len];
                    let read = file.read_at(&mut buffer, at)?;
                    Ok(format!("{:?}", &buffer[..read]))
                }
                None => Ok(String::new()),
            },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_have_the_same_results_on_both_disks(steps in prop::collection::vec(step(), 1..80)) {
        let folder = TemporaryFolder::new();
        let (real, simulated) = (folder.disk(), SimulatedDisk::new(1));
        let mut one = DiskRun { disk: &real, files: Vec::new() };
        let mut other = DiskRun { disk: &simulated, files: Vec::new() };
        for (number, step) in steps.iter().enumerate() {
            prop_assert_eq!(one.step(step), other.step(step), "step {}: {:?}", number, step);
        }
        let shown = |disk: &dyn Disk| {
            let mut found = BTreeMap::new();
            tree(disk, "", &mut found);
            found
        };
        prop_assert_eq!(shown(&real), shown(&simulated));
        prop_assert_eq!(shown(&real), shown(&simulated.after_kill()));
        let open = |run: &DiskRun<'_>| run.files.iter().map(|file| contents(&**file)).collect::<Vec<_>>();
        prop_assert_eq!(open(&one), open(&other));
    }
}
