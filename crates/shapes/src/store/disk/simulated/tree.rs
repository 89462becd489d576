//! The names: which file or directory each stands for now, and which it is sure to after a crash.
//!
//! Invariant: a naming happens whole or not at all, and not before the earlier ones of the same names: a rename that a
//! crash undoes leaves the old name, and what the new one stood for.
//! Kept by: directories are found by number, so a file in a new directory can be durable there and yet out of reach.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::mem;

use super::super::{check, check_name};
use super::dice::Dice;

const ROOT: usize = 0;

#[derive(Clone, Debug)]
pub(super) struct Tree {
    dirs: Vec<Names>,
    unsynced: Vec<Naming>,
}

#[derive(Clone, Debug, Default)]
struct Names {
    now: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
}

/// What a name stands for, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(usize),
    Dir(usize),
}

/// A name in the directory of a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    dir: usize,
    name: String,
}

/// Names that get another meaning, or none, all at once.
#[derive(Clone, Debug)]
pub(super) struct Naming(Vec<(Place, Option<Entry>)>);

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { dirs: vec![Names::default()], unsynced: Vec::new() }
    }

    pub(super) fn find(&self, path: &str) -> io::Result<Entry> {
        let mut entry = Entry::Dir(ROOT);
        for name in check(path)?.split('/').filter(|name| !name.is_empty()) {
            let Entry::Dir(dir) = entry else { return Err(ErrorKind::NotADirectory.into()) };
            entry = *self.dirs[dir].now.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(entry)
    }

    pub(super) fn find_file(&self, path: &str) -> io::Result<usize> {
        match self.find(path)? {
            Entry::File(file) => Ok(file),
            Entry::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn find_dir(&self, path: &str) -> io::Result<usize> {
        match self.find(path)? {
            Entry::Dir(dir) => Ok(dir),
            Entry::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn list(&self, dir: usize) -> Vec<String> {
        self.dirs[dir].now.keys().cloned().collect()
    }

    pub(super) fn add_file(&mut self, path: &str, file: usize) -> io::Result<()> {
        let place = self.place(path)?;
        self.happen(Naming(vec![(place, Some(Entry::File(file)))]));
        Ok(())
    }

    pub(super) fn add_dir(&mut self, path: &str) -> io::Result<()> {
        let place = self.place(path)?;
        self.dirs.push(Names::default());
        self.happen(Naming(vec![(place, Some(Entry::Dir(self.dirs.len() - 1)))]));
        Ok(())
    }

    /// Returns what had the new name before, if it was something else.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<Option<Entry>> {
        let (old, new) = (self.place(from)?, self.place(to)?);
        let entry = self.find(from)?;
        let replaced = self.dirs[new.dir].now.get(&new.name).copied();
        let below = |path: &str, dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
        match (entry, replaced) {
            (_, Some(replaced)) if replaced == entry => return Ok(None),
            (Entry::Dir(_), _) if below(to, from) => return Err(ErrorKind::InvalidInput.into()),
            (_, Some(_)) if below(from, to) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            (Entry::File(_), Some(Entry::Dir(_))) => return Err(ErrorKind::IsADirectory.into()),
            (Entry::Dir(_), Some(Entry::File(_))) => return Err(ErrorKind::NotADirectory.into()),
            (Entry::Dir(_), Some(Entry::Dir(dir))) if !self.dirs[dir].now.is_empty() => {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            (Entry::File(_), Some(Entry::File(_)) | None) | (Entry::Dir(_), Some(Entry::Dir(_)) | None) => {}
        }
        self.happen(Naming(vec![(old, None), (new, Some(entry))]));
        Ok(replaced)
    }

    pub(super) fn remove_file(&mut self, path: &str) -> io::Result<usize> {
        let (place, file) = (self.place(path)?, self.find_file(path)?);
        self.happen(Naming(vec![(place, None)]));
        Ok(file)
    }

    pub(super) fn happen(&mut self, naming: Naming) {
        for (place, entry) in &naming.0 {
            assign(&mut self.dirs[place.dir].now, &place.name, *entry);
        }
        self.unsynced.push(naming);
    }

    /// Makes the namings in a directory durable, and those before them that they can't do without.
    pub(super) fn sync(&mut self, dir: usize) {
        let mut needed = BTreeSet::new();
        let (mut synced, mut unsynced) = (Vec::new(), Vec::new());
        for naming in mem::take(&mut self.unsynced).into_iter().rev() {
            let touched = |(place, _): &(Place, _)| place.dir == dir || needed.contains(place);
            if naming.0.iter().any(touched) {
                needed.extend(naming.0.iter().map(|(place, _)| place.clone()));
                synced.push(naming);
            } else {
                unsynced.push(naming);
            }
        }
        unsynced.reverse();
        self.unsynced = unsynced;
        for naming in synced.iter().rev() {
            self.endure(naming);
        }
    }

    pub(super) fn sync_everything(&mut self) {
        for naming in mem::take(&mut self.unsynced) {
            self.endure(&naming);
        }
    }

    /// What power loss leaves: each unsynced naming or not, but none without those before it of the same names.
    pub(super) fn after_crash(&self, dice: &mut Dice) -> Tree {
        let odds = dice.odds();
        let mut left = self.clone();
        let mut lost = BTreeSet::new();
        for naming in mem::take(&mut left.unsynced) {
            let possible = !naming.0.iter().any(|(place, _)| lost.contains(place));
            if possible && dice.survives(odds) {
                left.endure(&naming);
            } else {
                lost.extend(naming.0.into_iter().map(|(place, _)| place));
            }
        }
        for names in &mut left.dirs {
            names.now = names.durable.clone();
        }
        left
    }

    /// The files that have a name.
    pub(super) fn files(&self) -> BTreeSet<usize> {
        let (mut files, mut dirs) = (BTreeSet::new(), vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            for entry in self.dirs[dir].now.values() {
                match *entry {
                    Entry::File(file) => drop(files.insert(file)),
                    Entry::Dir(below) => dirs.push(below),
                }
            }
        }
        files
    }

    fn endure(&mut self, naming: &Naming) {
        for (place, entry) in &naming.0 {
            assign(&mut self.dirs[place.dir].durable, &place.name, *entry);
        }
    }

    /// Where a name is or would be. Its directory must exist.
    fn place(&self, path: &str) -> io::Result<Place> {
        let (dir, name) = check_name(path)?.rsplit_once('/').unwrap_or(("", path));
        Ok(Place { dir: self.find_dir(dir)?, name: name.to_owned() })
    }
}

fn assign(names: &mut BTreeMap<String, Entry>, name: &str, entry: Option<Entry>) {
    match entry {
        Some(entry) => names.insert(name.to_owned(), entry),
        None => names.remove(name),
    };
}
