//! Keys of the rows of a shape whose table has no primary key.
//!
//! The key of such a row is all its values, so rows with the same values are one row for a client.
//! When one of them goes, the client loses all of them. So the shape is deleted when a row leaves
//! it of which there are several: its clients start over.
//!
//! Invariant: as long as a shape is there, no row has left it that had an equal one in it.
//! Enforced by: the keys of all its rows are counted, from the rows of its snapshot on, then every
//! change of its log, in that order. Where they aren't counted, any row that leaves ends the shape:
//! if there are too many, and with `log=changes_only`, whose clients have rows from subsets.
//! Keys are told by 64-bit hashes. Two keys with one hash count as one that is there twice, which
//! may end a shape too early.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::{io, mem};

use crate::definition::LogMode;
use crate::encode::{Operation, key_change, row_key};
use crate::offset::Offset;
use crate::shape::Shape;

/// Bound of the keys of one shape, which take up to 40 MiB.
const MAX_KEYS: usize = 2 << 20;

/// Bound of the keys of all shapes of a store that there is room for, 72/7 bytes each: 165 MiB.
const MAX_KEYS_TOTAL: usize = 16 << 20;

/// Bound of the changes that wait for one snapshot, 16 bytes each: 4 MiB.
const MAX_WAITING: usize = 256 << 10;

/// Bound of the files of one shape that are read to count its keys again, in bytes.
const MAX_READ: u64 = 64 << 20;

/// Bound of the files of all shapes that are read for that when a process begins to write, in
/// bytes.
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
    /// `None`: they aren't counted.
    room: Option<KeyRoom>,
}

/// How many keys there is room for in the sets of all shapes of a store.
#[derive(Debug, Default)]
pub(crate) struct KeyBudget(AtomicUsize);

/// What the sets of one shape take of the budget, until it is dropped.
#[derive(Debug)]
struct KeyRoom {
    budget: Arc<KeyBudget>,
    taken: usize,
}

type Hashes = HashSet<u64, BuildHasherDefault<SameHasher>>;

impl RowKeys {
    /// Takes changes of a shape that are in its log. Returns whether clients can be told: if not,
    /// the shape has to go.
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

impl KeyRoom {
    /// Takes what is missing for sets of this capacity; `false`: there isn't enough for all shapes.
    fn grow(&mut self, capacity: usize) -> bool {
        let more = capacity.saturating_sub(self.taken);
        if more == 0 {
            return true;
        }
        self.taken += more;
        self.budget.0.fetch_add(more, Ordering::Relaxed) + more <= MAX_KEYS_TOTAL
    }
}

impl Drop for KeyRoom {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

impl KeyCounts {
    /// Begins to count the keys of a shape, if that is possible.
    pub(crate) fn begin(shape: &Shape, budget: &Arc<KeyBudget>) -> Self {
        match shape.definition().choice.log {
            LogMode::Full => KeyCounts::new(budget),
            LogMode::ChangesOnly => KeyCounts::unknown(),
        }
    }

    fn new(budget: &Arc<KeyBudget>) -> Self {
        let room = KeyRoom { budget: Arc::clone(budget), taken: 0 };
        KeyCounts { room: Some(room), ..KeyCounts::default() }
    }

    /// They aren't counted: any row that leaves ends the shape.
    pub(crate) fn unknown() -> Self {
        KeyCounts::default()
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
        let Some(room) = &mut self.room else { return };
        if !self.once.insert(key) {
            self.twins.insert(key);
        }
        let has_room = room.grow(self.once.capacity() + self.twins.capacity());
        if !has_room || self.once.len() + self.twins.len() > MAX_KEYS {
            *self = KeyCounts::unknown();
        }
    }

    fn leave(&mut self, key: u64) -> bool {
        if self.room.is_none() || self.twins.contains(&key) {
            return false;
        }
        self.once.remove(&key);
        true
    }

    /// Returns whether nothing left that had an equal one; `false`, too, if they aren't messages of
    /// a shape.
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

    /// Counts the keys of a complete shape by reading its snapshot and its log, if that is possible
    /// and `bytes` are enough, which become less. `None`: a row has left that had an equal one.
    /// Blocks for the disk.
    pub(crate) fn read(shape: &Shape, budget: &Arc<KeyBudget>, bytes: &mut u64) -> Option<Self> {
        let (mut counts, needed) = (KeyCounts::begin(shape, budget), shape.bytes());
        if counts.room.is_none() || needed > MAX_READ || needed > *bytes {
            return Some(KeyCounts::unknown());
        }
        *bytes -= needed;
        match counts.read_all(shape) {
            Ok(true) => Some(counts),
            Ok(false) if counts.room.is_none() => Some(counts),
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
        let mut counts = KeyCounts::new(&Arc::default());
        assert!(counts.take(&[Entered(1), Entered(2), Left(1), Entered(1), Left(7)]));
        assert!(counts.take(&[Entered(2), Left(1)]));
        assert!(!counts.take(&[Left(2)]));
        assert!(
            KeyCounts::unknown().take(&[Entered(1)]) && !KeyCounts::unknown().take(&[Entered(1), Left(1)])
        );
    }

    #[test]
    fn too_many_keys_arent_counted() {
        let mut counts = KeyCounts::new(&Arc::default());
        (0..MAX_KEYS as u64).for_each(|key| counts.enter(key));
        assert!(counts.take(&[Left(5), Entered(5)]));
        counts.enter(u64::MAX);
        assert!(counts.once.is_empty() && !counts.take(&[Left(5)]));
    }

    #[test]
    fn shapes_share_the_room_for_keys_and_give_it_back() {
        let budget = Arc::new(KeyBudget::default());
        let taken = || budget.0.load(Ordering::Relaxed);
        let mut first = KeyCounts::new(&budget);
        assert!(first.take(&[Entered(1), Entered(1), Entered(2)]));
        let capacity = first.once.capacity() + first.twins.capacity();
        assert_eq!(taken(), capacity);
        assert!(first.take(&[Left(2)]));
        assert_eq!(taken(), capacity, "a set doesn't shrink");
        let others = KeyRoom { budget: Arc::clone(&budget), taken: MAX_KEYS_TOTAL - capacity };
        budget.0.fetch_add(others.taken, Ordering::Relaxed);
        let mut second = KeyCounts::new(&budget);
        second.enter(1);
        assert!(second.once.is_empty() && !second.take(&[Left(1)]), "there is no room for it");
        assert!(first.take(&[Entered(2), Left(2)]), "others go on in what they have");
        assert_eq!(taken(), MAX_KEYS_TOTAL);
        drop((first, others));
        assert_eq!(taken(), 0);
    }

    #[test]
    fn what_waits_for_a_snapshot_is_taken_after_its_rows() {
        let rows = || {
            let mut counts = KeyCounts::new(&Arc::default());
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
        let mut counts = KeyCounts::new(&Arc::default());
        counts.take_rows(b"no row,\n");
        assert!(!counts.take(&[Left(1)]));
    }
}
