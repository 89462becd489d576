//! Keys of the rows of a shape whose table has no primary key.
//!
//! The key of such a row is all its values, so rows with the same values are one row for a client. When one of them goes, the
//! client loses all of them. So the shape is deleted when a row leaves it of which there are several: its clients start over.
//!
//! Invariant: as long as a shape is there, no row has left it that had an equal one in it.
//! Enforced by: the keys of all its rows are counted, from the rows of its snapshot on, then every change of its log, in
//! that order. Where they aren't counted, any row that leaves ends the shape.
//! Keys are told by 64-bit hashes. Two keys with one hash count as one that is there twice, which may end a shape too early.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::LazyLock;
use std::{io, mem};

use crate::encode::{Operation, key_change, row_key};
use crate::offset::Offset;
use crate::shape::Shape;

/// Bound of the keys of one shape, which take up to 40 MiB.
const MAX_KEYS: usize = 2 << 20;

/// Bound of the changes that wait for one snapshot, 16 bytes each: 4 MiB.
const MAX_WAITING: usize = 256 << 10;

/// Bound of the files of one shape that are read to count its keys again, in bytes.
const MAX_READ: u64 = 64 << 20;

/// Bound of the files of all shapes that are read for that when a process begins to write, in bytes.
pub(crate) const MAX_READ_TOTAL: u64 = 256 << 20;

/// Hashes keys. Another process hashes otherwise, so that keys can't be chosen to collide.
pub(crate) static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the hash of a key, as it stands in messages.
pub(crate) fn hash(key: &[u8]) -> u64 {
    HASHES.hash_one(key)
}

/// What happens to the rows of a shape, by the hashes of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyChange {
    Entered(u64),
    Left(u64),
}

/// The keys of a shape that is followed.
#[derive(Debug)]
pub(crate) enum RowKeys {
    /// Its snapshot isn't complete. What follows it waits.
    Waiting(WaitingChanges),
    Counted(KeyCounts),
}

#[derive(Debug, Default)]
pub(crate) struct WaitingChanges {
    changes: Vec<KeyChange>,
    /// There were too many, and they went.
    is_overfull: bool,
    /// A row has left.
    has_left: bool,
}

/// How often each key is there.
#[derive(Debug, Default)]
pub(crate) struct KeyCounts {
    once: Hashes,
    /// More than once.
    twins: Hashes,
    is_unknown: bool,
}

type Hashes = HashSet<u64, BuildHasherDefault<SameHasher>>;

impl RowKeys {
    /// Takes changes of a shape that are in its log. Returns whether clients can be told: if not, the shape has to go.
    #[must_use]
    pub(crate) fn take(&mut self, changes: &[KeyChange]) -> bool {
        match self {
            RowKeys::Waiting(waiting) => {
                waiting.take(changes);
                true
            }
            RowKeys::Counted(counts) => counts.take(changes),
        }
    }

    /// The snapshot is complete, with these keys. Returns whether what came since can be told.
    #[must_use]
    pub(crate) fn complete(&mut self, mut counts: KeyCounts) -> bool {
        let waiting = match self {
            RowKeys::Waiting(waiting) => mem::take(waiting),
            RowKeys::Counted(_) => return true,
        };
        if waiting.is_overfull {
            counts = KeyCounts::unknown();
        }
        let is_exact = counts.take(&waiting.changes) && !(waiting.is_overfull && waiting.has_left);
        *self = RowKeys::Counted(counts);
        is_exact
    }
}

impl WaitingChanges {
    fn take(&mut self, changes: &[KeyChange]) {
        self.has_left |= changes.iter().any(|change| matches!(change, KeyChange::Left(_)));
        if self.is_overfull || self.changes.len() + changes.len() > MAX_WAITING {
            self.changes = Vec::new();
            self.is_overfull = true;
        } else {
            self.changes.extend_from_slice(changes);
        }
    }
}

impl KeyCounts {
    /// They aren't counted: any row that leaves ends the shape.
    pub(crate) fn unknown() -> Self {
        KeyCounts { is_unknown: true, ..KeyCounts::default() }
    }

    /// Counts the rows of a snapshot, whole messages.
    pub(crate) fn take_rows(&mut self, messages: &[u8]) {
        for line in messages.split_inclusive(|byte| *byte == b'\n') {
            match row_key(line) {
                Some(key) => self.enter(hash(key)),
                None => *self = KeyCounts::unknown(),
            }
        }
    }

    /// Returns whether nothing left that had an equal one.
    fn take(&mut self, changes: &[KeyChange]) -> bool {
        changes.iter().all(|change| match *change {
            KeyChange::Entered(key) => {
                self.enter(key);
                true
            }
            KeyChange::Left(key) => self.leave(key),
        })
    }

    fn enter(&mut self, key: u64) {
        if self.is_unknown {
            return;
        }
        if !self.once.insert(key) {
            self.twins.insert(key);
        }
        if self.once.len() + self.twins.len() > MAX_KEYS {
            *self = KeyCounts::unknown();
        }
    }

    fn leave(&mut self, key: u64) -> bool {
        if self.is_unknown || self.twins.contains(&key) {
            return false;
        }
        self.once.remove(&key);
        true
    }

    /// Returns whether nothing left that had an equal one; `false`, too, if they aren't messages of a shape.
    fn take_messages(&mut self, messages: &[u8]) -> bool {
        messages.split_inclusive(|byte| *byte == b'\n').all(|line| match key_change(line) {
            Some((key, Operation::Insert)) => {
                self.enter(hash(key));
                true
            }
            Some((key, Operation::Delete)) => self.leave(hash(key)),
            // The key is the row: nothing else can change.
            Some((_, Operation::Update)) => true,
            None => false,
        })
    }

    /// Counts the keys of a complete shape by reading its snapshot and its log, if `budget` bytes are enough for that, which
    /// becomes less. `None`: a row has left that had an equal one. Blocks for the disk.
    pub(crate) fn read(shape: &Shape, budget: &mut u64) -> Option<Self> {
        let bytes = shape.bytes();
        if bytes > MAX_READ || bytes > *budget {
            return Some(KeyCounts::unknown());
        }
        *budget -= bytes;
        let mut counts = KeyCounts::default();
        match counts.read_all(shape) {
            Ok(true) => Some(counts),
            Ok(false) if counts.is_unknown => Some(counts),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(handle = shape.handle(), %error, "rows of a shape not counted");
                Some(KeyCounts::unknown())
            }
        }
    }

    fn read_all(&mut self, shape: &Shape) -> io::Result<bool> {
        let mut from = 0;
        for to in shape.row_chunks() {
            self.take_rows(&shape.read_snapshot(from, to)?.concat());
            from = to;
        }
        let mut page = shape.log_after(Offset::SNAPSHOT_END)?;
        loop {
            if !self.take_messages(&shape.read_log(&page, page.from, page.to)?.concat()) {
                return Ok(false);
            }
            if page.is_end {
                return Ok(true);
            }
            page = shape.log_after(page.last)?;
        }
    }
}

/// Takes a hash for what it is.
#[derive(Debug, Default)]
struct SameHasher(u64);

impl Hasher for SameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("hashes are numbers");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::KeyChange::{Entered, Left};
    use super::*;

    #[test]
    fn a_key_may_leave_unless_it_is_there_more_than_once() {
        let mut counts = KeyCounts::default();
        assert!(counts.take(&[Entered(1), Entered(2), Left(1), Entered(1), Left(7)]));
        assert!(counts.take(&[Entered(2), Left(1)]));
        assert!(!counts.take(&[Left(2)]));
        assert!(
            KeyCounts::unknown().take(&[Entered(1)]) && !KeyCounts::unknown().take(&[Entered(1), Left(1)])
        );
    }

    #[test]
    fn too_many_keys_arent_counted() {
        let mut counts = KeyCounts::default();
        (0..MAX_KEYS as u64).for_each(|key| counts.enter(key));
        assert!(counts.take(&[Left(5), Entered(5)]));
        counts.enter(u64::MAX);
        assert!(counts.once.is_empty() && !counts.take(&[Left(5)]));
    }

    #[test]
    fn what_waits_for_a_snapshot_is_taken_after_its_rows() {
        let rows = || {
            let mut counts = KeyCounts::default();
            [1, 2, 2].into_iter().for_each(|key| counts.enter(key));
            counts
        };
        for (changes, is_exact) in
            [(vec![Left(1)], true), (vec![Entered(1), Left(1)], false), (vec![Left(2)], false)]
        {
            let mut keys = RowKeys::Waiting(WaitingChanges::default());
            assert!(keys.take(&changes));
            assert_eq!(keys.complete(rows()), is_exact, "{changes:?}");
        }
        for (left, is_exact) in [(vec![], true), (vec![Left(7)], false)] {
            let mut keys = RowKeys::Waiting(WaitingChanges::default());
            assert!(
                keys.take(&left) && keys.take(&vec![Entered(9); MAX_WAITING]) && keys.take(&[Entered(8)])
            );
            assert_eq!(keys.complete(rows()), is_exact);
            assert!(!keys.take(&[Left(1)]), "the order is lost, and so are the counts");
        }
    }

    #[test]
    fn what_isnt_a_row_isnt_counted() {
        let mut counts = KeyCounts::default();
        counts.take_rows(b"no row,\n");
        assert!(!counts.take(&[Left(1)]));
    }
}
