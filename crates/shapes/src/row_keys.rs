//! Row keys: counts the rows of shapes whose tables have no primary key.
//!
//! The key of such a row is the list of all its values. A client can't distinguish rows with equal
//! values: it has one copy of them, and a delete message removes that copy. So a shape is deleted
//! when one of several equal rows leaves it, and its clients start over.
//!
//! Invariant: no row has left an existing shape while an equal row was in it.
//! Enforced by: the keys of all rows are counted, first those of the snapshot, then every change of
//! the log in order. If the keys aren't counted, the shape is deleted when any row leaves it. Keys
//! aren't counted if there are too many of them. With `log=changes_only` they aren't counted
//! either, because clients load rows with subset queries, which don't go through the store.
//! Keys are compared by 64-bit hashes. Two keys with the same hash count as duplicates, which may
//! delete a shape too early.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::{io, mem};

use crate::definition::LogMode;
use crate::encode::{RowOperation, key_change, row_key};
use crate::offset::Offset;
use crate::shape::Shape;

/// Maximum number of counted keys of one shape. They take up to 40 MiB.
const MAX_KEYS: usize = 2 << 20;

/// Maximum capacity of the key sets of all shapes of a store, in keys. A key takes 9 bytes in a
/// hash table that is at most 7/8 full: 165 MiB.
const MAX_KEYS_TOTAL: usize = 16 << 20;

/// Maximum number of key changes that wait for one snapshot. A change takes 16 bytes: 4 MiB.
const MAX_WAITING: usize = 256 << 10;

/// Maximum size of the files of one shape that are read to count its keys again, in bytes.
const MAX_READ: u64 = 64 << 20;

/// Maximum size of the files of all shapes that are read to count keys when a process begins to
/// write, in bytes.
pub(crate) const MAX_READ_TOTAL: u64 = 256 << 20;

/// Hash state for keys. It is random for each process, so that clients can't choose colliding keys.
pub(crate) static HASH_STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the hash of a key in the form that messages have.
pub(crate) fn hash(key: &[u8]) -> u64 {
    HASH_STATE.hash_one(key)
}

/// Change of a shape's set of rows, by the hash of the row's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyChange {
    Entered(u64),
    Left(u64),
}

/// One of several rows with the same key has left a shape, or the keys are unknown. Clients can't
/// apply the change exactly, so the shape must be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AmbiguousKey;

/// Row keys of a followed shape.
#[derive(Debug)]
pub(crate) enum RowKeys {
    /// The snapshot isn't complete. Key changes of later transactions wait for it.
    Waiting(WaitingKeyChanges),
    Counted(KeyCounts),
}

/// Key changes that wait for a snapshot. At most [`MAX_WAITING`].
#[derive(Debug, Default)]
pub(crate) struct WaitingKeyChanges {
    changes: Vec<KeyChange>,
    /// Whether the bound was exceeded. Then the changes were dropped.
    is_overflowed: bool,
    /// Whether any row has left the shape.
    has_left: bool,
}

/// Keys of the rows of a shape, and which of them occurred more than once.
#[derive(Debug, Default)]
pub(crate) struct KeyCounts {
    /// Keys that are present, once or more often.
    present: KeyHashes,
    /// Keys that are or were present more than once.
    repeated: KeyHashes,
    /// Reserved set capacity; `None`: keys aren't counted.
    reservation: Option<KeyReservation>,
}

/// Total capacity of the key sets of all shapes of a store, in keys.
#[derive(Debug, Default)]
pub(crate) struct KeyBudget(AtomicUsize);

/// Set capacity of one shape, counted in the budget until drop.
#[derive(Debug)]
struct KeyReservation {
    budget: Arc<KeyBudget>,
    taken: usize,
}

type KeyHashes = HashSet<u64, BuildHasherDefault<PassThroughHasher>>;

impl RowKeys {
    /// Applies key changes of a shape that are in its log.
    pub(crate) fn apply(&mut self, changes: &[KeyChange]) -> Result<(), AmbiguousKey> {
        match self {
            RowKeys::Waiting(waiting) => {
                waiting.add(changes);
                Ok(())
            }
            RowKeys::Counted(counts) => counts.apply(changes),
        }
    }

    /// Sets the keys of the complete snapshot, and applies the changes that waited for it.
    pub(crate) fn complete(&mut self, mut counts: KeyCounts) -> Result<(), AmbiguousKey> {
        let waiting = match self {
            RowKeys::Waiting(waiting) => mem::take(waiting),
            RowKeys::Counted(_) => return Ok(()),
        };
        if waiting.is_overflowed {
            counts = KeyCounts::uncounted();
        }
        let applied = counts.apply(&waiting.changes);
        *self = RowKeys::Counted(counts);
        if waiting.is_overflowed && waiting.has_left { Err(AmbiguousKey) } else { applied }
    }
}

impl WaitingKeyChanges {
    fn add(&mut self, changes: &[KeyChange]) {
        self.has_left |= changes.iter().any(|change| matches!(change, KeyChange::Left(_)));
        if self.is_overflowed || self.changes.len() + changes.len() > MAX_WAITING {
            self.changes = Vec::new();
            self.is_overflowed = true;
        } else {
            self.changes.extend_from_slice(changes);
        }
    }
}

impl KeyReservation {
    /// Reserves the capacity that is missing. Returns `false` if the bound of all shapes is
    /// exceeded.
    fn grow(&mut self, capacity: usize) -> bool {
        let more = capacity.saturating_sub(self.taken);
        if more == 0 {
            return true;
        }
        self.taken += more;
        self.budget.0.fetch_add(more, Ordering::Relaxed) + more <= MAX_KEYS_TOTAL
    }
}

impl Drop for KeyReservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

impl KeyCounts {
    /// Starts to count the keys of a shape. Returns an uncounted value with `log=changes_only`.
    pub(crate) fn begin(shape: &Shape, budget: &Arc<KeyBudget>) -> Self {
        match shape.definition().options.log {
            LogMode::Full => KeyCounts::new(budget),
            LogMode::ChangesOnly => KeyCounts::uncounted(),
        }
    }

    fn new(budget: &Arc<KeyBudget>) -> Self {
        let reservation = KeyReservation { budget: Arc::clone(budget), taken: 0 };
        KeyCounts { reservation: Some(reservation), ..KeyCounts::default() }
    }

    /// Returns the uncounted value: the shape is deleted when any row leaves it.
    pub(crate) fn uncounted() -> Self {
        KeyCounts::default()
    }

    /// Counts the rows of whole snapshot messages.
    pub(crate) fn count_rows(&mut self, messages: &[u8]) {
        for line in messages.split_inclusive(|byte| *byte == b'\n') {
            match row_key(line) {
                Some(key) => self.enter(hash(key)),
                None => *self = KeyCounts::uncounted(),
            }
        }
    }

    /// Applies changes. Fails if one of several equal rows left, or if a row left and the keys
    /// aren't counted.
    fn apply(&mut self, changes: &[KeyChange]) -> Result<(), AmbiguousKey> {
        changes.iter().try_for_each(|change| match *change {
            KeyChange::Entered(key) => {
                self.enter(key);
                Ok(())
            }
            KeyChange::Left(key) => self.leave(key),
        })
    }

    fn enter(&mut self, key: u64) {
        let Some(reservation) = &mut self.reservation else { return };
        if !self.present.insert(key) {
            self.repeated.insert(key);
        }
        let has_room = reservation.grow(self.present.capacity() + self.repeated.capacity());
        if !has_room || self.present.len() + self.repeated.len() > MAX_KEYS {
            *self = KeyCounts::uncounted();
        }
    }

    fn leave(&mut self, key: u64) -> Result<(), AmbiguousKey> {
        if self.reservation.is_none() || self.repeated.contains(&key) {
            return Err(AmbiguousKey);
        }
        self.present.remove(&key);
        Ok(())
    }

    /// Applies whole log messages. Fails as [`apply`](Self::apply) does, or if a line isn't a
    /// message of a shape.
    fn apply_messages(&mut self, messages: &[u8]) -> Result<(), AmbiguousKey> {
        messages.split_inclusive(|byte| *byte == b'\n').try_for_each(|line| match key_change(line) {
            Some((key, RowOperation::Insert)) => {
                self.enter(hash(key));
                Ok(())
            }
            Some((key, RowOperation::Delete)) => self.leave(hash(key)),
            // The key contains all values, so an update changes no other column.
            Some((_, RowOperation::Update)) => Ok(()),
            None => Err(AmbiguousKey),
        })
    }

    /// Counts the keys of a complete shape by reading its snapshot and its log. Blocks on disk.
    ///
    /// Subtracts the size of the shape from `bytes`. Returns the uncounted value if `bytes` or
    /// [`MAX_READ`] is too small, or a file can't be read. Returns `None` if one of several equal
    /// rows left.
    pub(crate) fn read(shape: &Shape, budget: &Arc<KeyBudget>, bytes: &mut u64) -> Option<Self> {
        let (mut counts, needed) = (KeyCounts::begin(shape, budget), shape.bytes());
        if counts.reservation.is_none() || needed > MAX_READ || needed > *bytes {
            return Some(KeyCounts::uncounted());
        }
        *bytes -= needed;
        match counts.read_all(shape) {
            Ok(Ok(())) => Some(counts),
            Ok(Err(AmbiguousKey)) if counts.reservation.is_none() => Some(counts),
            Ok(Err(AmbiguousKey)) => None,
            Err(error) => {
                tracing::warn!(handle = shape.handle(), %error, "row count of shape unavailable");
                Some(KeyCounts::uncounted())
            }
        }
    }

    fn read_all(&mut self, shape: &Shape) -> io::Result<Result<(), AmbiguousKey>> {
        let mut from = 0;
        for to in shape.row_chunks() {
            self.count_rows(&shape.read_snapshot(from, to)?.concat());
            from = to;
        }
        let mut page = shape.log_after(Offset::SNAPSHOT_END)?;
        loop {
            let applied = self.apply_messages(&shape.read_log(&page, page.from, page.to)?.concat());
            if applied.is_err() || page.is_end {
                return Ok(applied);
            }
            page = shape.log_after(page.last)?;
        }
    }
}

/// Hasher that returns its only input, which is a hash already.
#[derive(Debug, Default)]
struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the only input is a u64");
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
    fn a_key_may_leave_unless_it_is_present_more_than_once() {
        let mut counts = KeyCounts::new(&Arc::default());
        assert!(counts.apply(&[Entered(1), Entered(2), Left(1), Entered(1), Left(7)]).is_ok());
        assert!(counts.apply(&[Entered(2), Left(1)]).is_ok());
        assert!(counts.apply(&[Left(2)]).is_err());
        assert!(
            KeyCounts::uncounted().apply(&[Entered(1)]).is_ok()
                && KeyCounts::uncounted().apply(&[Entered(1), Left(1)]).is_err()
        );
    }

    #[test]
    fn too_many_keys_arent_counted() {
        let mut counts = KeyCounts::new(&Arc::default());
        (0..MAX_KEYS as u64).for_each(|key| counts.enter(key));
        assert!(counts.apply(&[Left(5), Entered(5)]).is_ok());
        counts.enter(u64::MAX);
        assert!(counts.present.is_empty() && counts.apply(&[Left(5)]).is_err());
    }

    #[test]
    fn shapes_share_the_key_budget_and_return_it() {
        let budget = Arc::new(KeyBudget::default());
        let taken = || budget.0.load(Ordering::Relaxed);
        let mut first = KeyCounts::new(&budget);
        assert!(first.apply(&[Entered(1), Entered(1), Entered(2)]).is_ok());
        let capacity = first.present.capacity() + first.repeated.capacity();
        assert_eq!(taken(), capacity);
        assert!(first.apply(&[Left(2)]).is_ok());
        assert_eq!(taken(), capacity, "a set doesn't shrink");
        let others = KeyReservation { budget: Arc::clone(&budget), taken: MAX_KEYS_TOTAL - capacity };
        budget.0.fetch_add(others.taken, Ordering::Relaxed);
        let mut second = KeyCounts::new(&budget);
        second.enter(1);
        assert!(second.present.is_empty() && second.apply(&[Left(1)]).is_err(), "the budget is exhausted");
        assert!(first.apply(&[Entered(2), Left(2)]).is_ok(), "other shapes keep their capacity");
        assert_eq!(taken(), MAX_KEYS_TOTAL);
        drop((first, others));
        assert_eq!(taken(), 0);
    }

    #[test]
    fn waiting_key_changes_apply_after_the_snapshots_rows() {
        let rows = || {
            let mut counts = KeyCounts::new(&Arc::default());
            [1, 2, 2].into_iter().for_each(|key| counts.enter(key));
            counts
        };
        for (changes, is_exact) in
            [(vec![Left(1)], true), (vec![Entered(1), Left(1)], false), (vec![Left(2)], false)]
        {
            let mut keys = RowKeys::Waiting(WaitingKeyChanges::default());
            assert!(keys.apply(&changes).is_ok());
            assert_eq!(keys.complete(rows()).is_ok(), is_exact, "{changes:?}");
        }
        for (left, is_exact) in [(vec![], true), (vec![Left(7)], false)] {
            let mut keys = RowKeys::Waiting(WaitingKeyChanges::default());
            assert!(
                [&left[..], &vec![Entered(9); MAX_WAITING], &[Entered(8)]]
                    .into_iter()
                    .all(|changes| keys.apply(changes).is_ok())
            );
            assert_eq!(keys.complete(rows()).is_ok(), is_exact);
            assert!(keys.apply(&[Left(1)]).is_err(), "the dropped changes make the counts unknown");
        }
    }

    #[test]
    fn a_line_that_is_not_a_row_ends_the_counting() {
        let mut counts = KeyCounts::new(&Arc::default());
        counts.count_rows(b"no row,\n");
        assert!(counts.apply(&[Left(1)]).is_err());
    }
}
