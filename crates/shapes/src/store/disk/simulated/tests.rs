//! Guarantees of the simulated disk: it keeps synced changes, and over all seeds it loses every
//! other one.

use std::collections::BTreeSet;

use super::*;

const SEEDS: u64 = 300;

fn put(disk: &dyn Disk, path: &str, bytes: &[u8]) {
    let file = disk.create(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
}

/// Returns a file's bytes as text, or `None` if it is missing.
fn get(disk: &dyn Disk, path: &str) -> Option<String> {
    let file = match disk.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        file => file.unwrap(),
    };
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(String::from_utf8(bytes).unwrap())
}

/// Returns the results of `observe` after crashes with many seeds.
fn outcomes<T: Ord>(disk: &SimulatedDisk, observe: impl Fn(&SimulatedDisk) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(|seed| observe(&disk.after_crash(seed))).collect()
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_file_survives_once_its_bytes_its_directory_and_the_parent_are_synced() {
    let disk = SimulatedDisk::new(1);
    disk.make_dir("wal").unwrap();
    put(&disk, "wal/1", b"one");
    let observe = |disk: &SimulatedDisk| get(disk, "wal/1");
    assert_eq!(outcomes(&disk, observe), [None, text("one")].into());
    disk.sync_dir("wal").unwrap();
    assert_eq!(outcomes(&disk, observe), [None, text("one")].into());
    disk.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk, observe), [text("one")].into());
}

#[test]
fn one_sync_of_everything_makes_all_bytes_and_names_durable() {
    let disk = SimulatedDisk::new(1);
    disk.make_dir("wal").unwrap();
    disk.create("wal/1").unwrap().write_all_at(b"one", 0).unwrap();
    disk.create("catalog").unwrap().write_all_at(b"two", 0).unwrap();
    disk.remove("catalog").unwrap();
    disk.sync_everything().unwrap();
    let observe = |disk: &SimulatedDisk| (get(disk, "wal/1"), get(disk, "catalog"));
    assert_eq!(outcomes(&disk, observe), [(text("one"), None)].into());
}

#[test]
fn a_file_with_a_durable_name_can_lose_its_bytes() {
    let disk = SimulatedDisk::new(1);
    disk.create("file").unwrap().write_all_at(b"x", 0).unwrap();
    disk.sync_dir("").unwrap();
    let outcomes = outcomes(&disk, |disk| get(disk, "file"));
    assert_eq!(outcomes, [text(""), text("\0"), text("x")].into());
}

#[test]
fn an_unsynced_rename_leaves_the_old_name_or_the_new_one() {
    let disk = SimulatedDisk::new(1);
    put(&disk, "catalog", b"old");
    put(&disk, "catalog.new", b"new");
    disk.sync_dir("").unwrap();
    disk.rename("catalog.new", "catalog").unwrap();
    let observe = |disk: &SimulatedDisk| (get(disk, "catalog"), get(disk, "catalog.new"));
    assert_eq!(outcomes(&disk, observe), [(text("old"), text("new")), (text("new"), None)].into());
    disk.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk, observe), [(text("new"), None)].into());
}

#[test]
fn a_rename_between_directories_is_durable_once_either_is_synced() {
    for synced in ["from", "to"] {
        let disk = SimulatedDisk::new(1);
        disk.make_dir("from").unwrap();
        disk.make_dir("to").unwrap();
        put(&disk, "from/file", b"x");
        disk.sync_everything().unwrap();
        disk.rename("from/file", "to/file").unwrap();
        let observe = |disk: &SimulatedDisk| (get(disk, "from/file"), get(disk, "to/file"));
        assert_eq!(outcomes(&disk, observe), [(text("x"), None), (None, text("x"))].into());
        disk.sync_dir(synced).unwrap();
        assert_eq!(outcomes(&disk, observe), [(None, text("x"))].into(), "{synced}");
    }
}

#[test]
fn syncing_a_directory_also_syncs_the_changes_that_its_renames_depend_on() {
    let disk = SimulatedDisk::new(1);
    disk.make_dir("from").unwrap();
    disk.make_dir("to").unwrap();
    disk.sync_dir("").unwrap();
    put(&disk, "from/file", b"x");
    put(&disk, "from/other", b"y");
    disk.rename("from/file", "to/file").unwrap();
    disk.sync_dir("to").unwrap();
    assert_eq!(outcomes(&disk, |disk| get(disk, "to/file")), [text("x")].into());
    assert_eq!(outcomes(&disk, |disk| get(disk, "from/other")), [None, text("y")].into());
}

#[test]
fn changes_of_one_name_survive_in_order_and_changes_of_two_names_in_any_order() {
    let disk = SimulatedDisk::new(1);
    put(&disk, "a", b"1");
    disk.remove("a").unwrap();
    put(&disk, "a", b"2");
    put(&disk, "b", b"3");
    let observe = |disk: &SimulatedDisk| (get(disk, "a"), get(disk, "b"));
    let expected = [None, text("1"), text("2")].into_iter().flat_map(|a| [(a.clone(), None), (a, text("3"))]);
    assert_eq!(outcomes(&disk, observe), expected.collect());
}

#[test]
fn an_unsynced_removal_may_be_undone_and_a_synced_one_never() {
    let disk = SimulatedDisk::new(1);
    disk.make_dir("shape").unwrap();
    put(&disk, "shape/log", b"x");
    disk.sync_everything().unwrap();
    disk.remove("shape/log").unwrap();
    let observe = |disk: &SimulatedDisk| get(disk, "shape/log");
    assert_eq!(outcomes(&disk, observe), [None, text("x")].into());
    disk.sync_dir("shape").unwrap();
    assert_eq!(outcomes(&disk, observe), [None].into());
}

#[test]
fn the_crashing_call_and_all_calls_after_it_fail() {
    let disk = SimulatedDisk::new(1);
    let file = disk.create("file").unwrap();
    disk.crash_at(3);
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!((disk.ops(), disk.crashed()), (3, false));
    assert_eq!(disk.rename("file", "other").unwrap_err().to_string(), "crashed");
    assert_eq!((disk.ops(), disk.crashed()), (4, true));
    let failures = [
        file.write_all_at(b"x", 0).is_err(),
        file.read_at(&mut [0], 0).is_err(),
        file.len().is_err(),
        file.sync_data().is_err(),
        file.set_len(0).is_err(),
        disk.create("x").is_err(),
        disk.open("file").is_err(),
        disk.list("").is_err(),
        disk.remove("file").is_err(),
        disk.sync_everything().is_err(),
        disk.try_lock().is_err(),
    ];
    assert_eq!(failures, [true; 11]);
    assert_eq!(disk.ops(), 4);
}

#[test]
fn the_crashing_call_has_its_effect_completely_in_part_or_not_at_all() {
    let (mut written, mut renamed) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..SEEDS {
        let disk = SimulatedDisk::new(seed);
        let file = disk.create("file").unwrap();
        disk.crash_at(1);
        file.write_all_at(b"abc", 0).unwrap_err();
        written.extend(get(&disk.after_kill(), "file"));

        let disk = disk.after_kill();
        disk.crash_at(1);
        disk.rename("file", "other").unwrap_err();
        renamed.insert(disk.after_kill().list("").unwrap());
    }
    assert_eq!(written, ["", "a", "ab", "abc"].map(String::from).into());
    assert_eq!(renamed, [vec!["file".to_owned()], vec!["other".to_owned()]].into());
}

#[test]
fn a_killed_process_leaves_all_its_writes_and_no_lock_and_syncs_nothing() {
    let disk = SimulatedDisk::new(1);
    let _lock = disk.try_lock().unwrap().unwrap();
    disk.create("file").unwrap().write_all_at(b"x", 0).unwrap();
    disk.fill(0);
    disk.fail_sync();
    let next = disk.after_kill();
    assert!(next.try_lock().unwrap().is_some());
    assert!(disk.try_lock().unwrap().is_none());
    assert_eq!(get(&next, "file"), text("x"));
    assert!(outcomes(&next, |disk| get(disk, "file")).contains(&None));
    put(&next, "file", b"new");
    assert_eq!(get(&disk, "file"), text("x"), "the killed process has its own disk");
    assert_eq!(get(&disk.after_crash(1).after_kill(), "file"), get(&disk.after_crash(1), "file"));
}

#[test]
fn a_full_disk_accepts_the_bytes_that_fit_and_has_room_after_a_removal() {
    let full = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    let disk = SimulatedDisk::new(1);
    put(&disk, "other", b"12345");
    let file = disk.create("file").unwrap();
    disk.fill(4);
    file.write_all_at(b"abc", 0).unwrap();
    full(file.write_all_at(b"de", 3));
    assert_eq!(get(&disk, "file"), text("abcd"));
    file.write_all_at(b"ABCD", 0).unwrap();
    full(file.write_all_at(b"xy", 3));
    assert_eq!(get(&disk, "file"), text("ABCx"));
    disk.remove("other").unwrap();
    file.write_all_at(b"efghi", 4).unwrap();
    full(file.write_all_at(b"j", 9));
    file.set_len(8).unwrap();
    file.write_all_at(b"j", 20).unwrap();
    full(file.write_all_at(b"k", 21));
    file.sync_data().unwrap();
}

#[test]
fn fail_sync_fails_one_sync() {
    let disk = SimulatedDisk::new(1);
    let file = disk.create("file").unwrap();
    disk.fail_sync();
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    file.sync_data().unwrap();
}

#[test]
fn syncs_and_bytes_are_counted() {
    let disk = SimulatedDisk::new(1);
    put(&disk, "file", b"abc");
    put(&disk, "file", b"de");
    disk.sync_dir("").unwrap();
    disk.sync_everything().unwrap();
    let expected = DiskStatistics { data_syncs: 2, dir_syncs: 1, full_syncs: 1, bytes_written: 5 };
    assert_eq!(disk.statistics(), expected);
    assert_eq!(disk.ops(), 8);
}

/// Replaces the catalog four times, or until the crash. Returns the last version whose replacement
/// succeeded.
fn replace(disk: &SimulatedDisk, sync_bytes: bool, sync_name: bool) -> usize {
    let version = |number: usize| -> io::Result<()> {
        let file = disk.create("catalog.new")?;
        file.write_all_at(format!("{number:03}").as_bytes(), 0)?;
        if sync_bytes {
            file.sync_data()?;
        }
        disk.rename("catalog.new", "catalog")?;
        if sync_name { disk.sync_dir("") } else { Ok(()) }
    };
    (1..=4).take_while(|number| version(*number).is_ok()).last().unwrap_or(0)
}

/// Returns the crashes, by call and seed, after which the catalog is neither the last successful
/// version nor the next one.
fn losses(sync_bytes: bool, sync_name: bool) -> Vec<(u64, u64)> {
    let whole = SimulatedDisk::new(0);
    assert_eq!(replace(&whole, sync_bytes, sync_name), 4);
    let crashes = (1..=whole.ops()).flat_map(|op| (0..SEEDS).map(move |seed| (op, seed)));
    let lost = crashes.filter(|&(op, seed)| {
        let disk = SimulatedDisk::new(seed);
        disk.crash_at(op);
        let safe = replace(&disk, sync_bytes, sync_name);
        let found = get(&disk.after_crash(seed), "catalog");
        let allowed = [safe, safe + 1].map(|number| (number > 0).then(|| format!("{number:03}")));
        assert!(disk.crashed());
        !allowed.contains(&found)
    });
    lost.collect()
}

#[test]
fn a_replacement_with_both_syncs_survives_every_crash_and_one_without_does_not() {
    assert_eq!(losses(true, true), []);
    assert_ne!(losses(false, true), []);
    assert_ne!(losses(true, false), []);
}

#[test]
fn the_same_seeds_and_calls_have_the_same_result() {
    let left = |seed: u64| {
        let disk = SimulatedDisk::new(seed);
        disk.crash_at(10);
        let safe = replace(&disk, true, true);
        let disk = disk.after_crash(seed);
        (safe, get(&disk, "catalog"), get(&disk, "catalog.new"))
    };
    let all = || (0..SEEDS).map(left).collect::<Vec<_>>();
    assert_eq!(all(), all());
    assert!(all().into_iter().collect::<BTreeSet<_>>().len() > 2);
}
