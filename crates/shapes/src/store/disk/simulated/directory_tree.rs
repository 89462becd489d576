//! Names of a simulated disk: the current ones, the durable ones, and the unsynced changes.
//!
//! Invariant: a change of names happens completely or not at all, and only after earlier changes of
//! the same names. If a crash undoes a rename, the old name exists, and the new one refers to its
//! former file.
//! Directories are referred to by number. So a file can be durable in a new directory that has no
//! durable name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::mem;

use super::super::{check_name, check_path};
use super::rng::SimulatedRng;

const ROOT: usize = 0;

/// All directories of a simulated disk. The first one is the storage directory.
#[derive(Clone, Debug)]
pub(super) struct DirectoryTree {
    dirs: Vec<DirectoryEntries>,
    /// Changes that are not durable, in order.
    unsynced: Vec<NameChange>,
}

/// Names of one directory.
#[derive(Clone, Debug, Default)]
struct DirectoryEntries {
    now: BTreeMap<String, DirectoryEntry>,
    durable: BTreeMap<String, DirectoryEntry>,
}

/// File or directory that a name refers to, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryEntry {
    File(usize),
    Dir(usize),
}

/// A name within a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DirectoryName {
    dir: usize,
    name: String,
}

/// An atomic change: each name gets a new entry, or none.
#[derive(Clone, Debug)]
pub(super) struct NameChange(Vec<(DirectoryName, Option<DirectoryEntry>)>);

impl DirectoryTree {
    pub(super) fn new() -> DirectoryTree {
        DirectoryTree { dirs: vec![DirectoryEntries::default()], unsynced: Vec::new() }
    }

    pub(super) fn find(&self, path: &str) -> io::Result<DirectoryEntry> {
        let mut entry = DirectoryEntry::Dir(ROOT);
        for name in check_path(path)?.split('/').filter(|name| !name.is_empty()) {
            let DirectoryEntry::Dir(dir) = entry else { return Err(ErrorKind::NotADirectory.into()) };
            entry = *self.dirs[dir].now.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(entry)
    }

    pub(super) fn find_file(&self, path: &str) -> io::Result<usize> {
        match self.find(path)? {
            DirectoryEntry::File(file) => Ok(file),
            DirectoryEntry::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn find_dir(&self, path: &str) -> io::Result<usize> {
        match self.find(path)? {
            DirectoryEntry::Dir(dir) => Ok(dir),
            DirectoryEntry::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn list(&self, dir: usize) -> Vec<String> {
        self.dirs[dir].now.keys().cloned().collect()
    }

    pub(super) fn add_file(&mut self, path: &str, file: usize) -> io::Result<()> {
        let name = self.directory_name(path)?;
        self.apply(NameChange(vec![(name, Some(DirectoryEntry::File(file)))]));
        Ok(())
    }

    pub(super) fn add_dir(&mut self, path: &str) -> io::Result<()> {
        let name = self.directory_name(path)?;
        self.dirs.push(DirectoryEntries::default());
        self.apply(NameChange(vec![(name, Some(DirectoryEntry::Dir(self.dirs.len() - 1)))]));
        Ok(())
    }

    /// Renames an entry. Returns the entry that had the new name before, unless it is the same one.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<Option<DirectoryEntry>> {
        let (old, new) = (self.directory_name(from)?, self.directory_name(to)?);
        let entry = self.find(from)?;
        let replaced = self.dirs[new.dir].now.get(&new.name).copied();
        let below = |path: &str, dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
        match (entry, replaced) {
            (_, Some(replaced)) if replaced == entry => return Ok(None),
            (DirectoryEntry::Dir(_), _) if below(to, from) => return Err(ErrorKind::InvalidInput.into()),
            (_, Some(_)) if below(from, to) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            (DirectoryEntry::File(_), Some(DirectoryEntry::Dir(_))) => {
                return Err(ErrorKind::IsADirectory.into());
            }
            (DirectoryEntry::Dir(_), Some(DirectoryEntry::File(_))) => {
                return Err(ErrorKind::NotADirectory.into());
            }
            (DirectoryEntry::Dir(_), Some(DirectoryEntry::Dir(dir))) if !self.dirs[dir].now.is_empty() => {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            (DirectoryEntry::File(_), Some(DirectoryEntry::File(_)) | None)
            | (DirectoryEntry::Dir(_), Some(DirectoryEntry::Dir(_)) | None) => {}
        }
        self.apply(NameChange(vec![(old, None), (new, Some(entry))]));
        Ok(replaced)
    }

    pub(super) fn remove_file(&mut self, path: &str) -> io::Result<usize> {
        let (name, file) = (self.directory_name(path)?, self.find_file(path)?);
        self.apply(NameChange(vec![(name, None)]));
        Ok(file)
    }

    /// Applies a change to the current names. It is not durable yet.
    pub(super) fn apply(&mut self, change: NameChange) {
        for (name, entry) in &change.0 {
            assign(&mut self.dirs[name.dir].now, &name.name, *entry);
        }
        self.unsynced.push(change);
    }

    /// Makes all changes in a directory durable, and the earlier changes that they depend on.
    pub(super) fn sync(&mut self, dir: usize) {
        let mut needed = BTreeSet::new();
        let (mut synced, mut unsynced) = (Vec::new(), Vec::new());
        for change in mem::take(&mut self.unsynced).into_iter().rev() {
            let touched = |(name, _): &(DirectoryName, _)| name.dir == dir || needed.contains(name);
            if change.0.iter().any(touched) {
                needed.extend(change.0.iter().map(|(name, _)| name.clone()));
                synced.push(change);
            } else {
                unsynced.push(change);
            }
        }
        unsynced.reverse();
        self.unsynced = unsynced;
        for change in synced.iter().rev() {
            self.make_durable(change);
        }
    }

    pub(super) fn sync_everything(&mut self) {
        for change in mem::take(&mut self.unsynced) {
            self.make_durable(&change);
        }
    }

    /// Returns the tree after a power failure. Each unsynced change survives or not. It never
    /// survives without the earlier changes of the same names.
    pub(super) fn after_crash(&self, rng: &mut SimulatedRng) -> DirectoryTree {
        let odds = rng.odds();
        let mut left = self.clone();
        let mut lost = BTreeSet::new();
        for change in mem::take(&mut left.unsynced) {
            let possible = !change.0.iter().any(|(name, _)| lost.contains(name));
            if possible && rng.survives(odds) {
                left.make_durable(&change);
            } else {
                lost.extend(change.0.into_iter().map(|(name, _)| name));
            }
        }
        for names in &mut left.dirs {
            names.now = names.durable.clone();
        }
        left
    }

    /// Returns the files that have a name.
    pub(super) fn files(&self) -> BTreeSet<usize> {
        let (mut files, mut dirs) = (BTreeSet::new(), vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            for entry in self.dirs[dir].now.values() {
                match *entry {
                    DirectoryEntry::File(file) => drop(files.insert(file)),
                    DirectoryEntry::Dir(below) => dirs.push(below),
                }
            }
        }
        files
    }

    /// Applies a change to the durable names.
    fn make_durable(&mut self, change: &NameChange) {
        for (name, entry) in &change.0 {
            assign(&mut self.dirs[name.dir].durable, &name.name, *entry);
        }
    }

    /// Resolves the directory of a path, which must exist. The name itself may be missing.
    fn directory_name(&self, path: &str) -> io::Result<DirectoryName> {
        let (dir, name) = check_name(path)?.rsplit_once('/').unwrap_or(("", path));
        Ok(DirectoryName { dir: self.find_dir(dir)?, name: name.to_owned() })
    }
}

fn assign(names: &mut BTreeMap<String, DirectoryEntry>, name: &str, entry: Option<DirectoryEntry>) {
    match entry {
        Some(entry) => names.insert(name.to_owned(), entry),
        None => names.remove(name),
    };
}
