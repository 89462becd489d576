//! Lock order: the locks of this crate, and the order in which a thread may take them.
//!
//! Invariant: a thread takes locks only in ascending [`LockRank`], so no two threads deadlock.
//! Enforced by: in builds with debug assertions, each thread keeps the ranks that it holds, and
//! taking a lock of the same or a lower rank panics. Release builds have no check and no cost.
//!
//! Locks without a rank are taken last: while a thread holds one, it takes no other lock. They are
//! in the write queue, the writer role (`queue`), the store (`staged`), its files, progress and
//! health, and the row encoders. One exception: progress calls its callback under `on_durable`.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Ranked locks, in the order in which a thread may take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockRank {
    /// Role of this process: reader or writer. Held while the role changes and during replay.
    Mode,
    /// Writer turn. Read by everything that writes files outside the writer thread.
    Turn,
    /// Followed shapes. Records are queued under it, in the order of the decisions.
    Followed,
    /// Deletions that aren't in the WAL yet.
    Deletions,
    /// Index of all shapes.
    Registry,
    /// Replaced files of merged logs. Held while messages are written to shapes' files.
    Replaced,
    /// State of one shape. A thread holds at most one.
    Shape,
}

/// Mutex with a rank.
#[derive(Debug)]
pub(crate) struct RankedMutex<T> {
    rank: LockRank,
    mutex: Mutex<T>,
}

/// Reader-writer lock with a rank.
#[derive(Debug)]
pub(crate) struct RankedRwLock<T> {
    rank: LockRank,
    lock: RwLock<T>,
}

/// Guard of a ranked lock.
#[derive(Debug)]
pub(crate) struct RankedGuard<G> {
    // Dropped in this order: the lock is released before its rank.
    guard: G,
    _held: HeldRank,
}

impl<T> RankedMutex<T> {
    pub(crate) const fn new(rank: LockRank, value: T) -> Self {
        RankedMutex { rank, mutex: Mutex::new(value) }
    }

    /// Locks the mutex.
    ///
    /// # Panics
    /// With debug assertions, if this thread holds a lock of the same or a higher rank.
    pub(crate) fn lock(&self) -> RankedGuard<MutexGuard<'_, T>> {
        let _held = HeldRank::take(self.rank);
        RankedGuard { guard: self.mutex.lock(), _held }
    }
}

impl<T> RankedRwLock<T> {
    pub(crate) const fn new(rank: LockRank, value: T) -> Self {
        RankedRwLock { rank, lock: RwLock::new(value) }
    }

    /// Locks for reading, with other readers.
    ///
    /// # Panics
    /// With debug assertions, if this thread holds a lock of the same or a higher rank.
    pub(crate) fn read(&self) -> RankedGuard<RwLockReadGuard<'_, T>> {
        let _held = HeldRank::take(self.rank);
        RankedGuard { guard: self.lock.read(), _held }
    }

    /// Locks for writing.
    ///
    /// # Panics
    /// With debug assertions, if this thread holds a lock of the same or a higher rank.
    pub(crate) fn write(&self) -> RankedGuard<RwLockWriteGuard<'_, T>> {
        let _held = HeldRank::take(self.rank);
        RankedGuard { guard: self.lock.write(), _held }
    }
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A rank that this thread holds until drop. Empty without debug assertions.
#[derive(Debug)]
struct HeldRank {
    #[cfg(debug_assertions)]
    rank: LockRank,
}

#[cfg(not(debug_assertions))]
impl HeldRank {
    fn take(_: LockRank) -> Self {
        HeldRank {}
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::{HeldRank, LockRank};

    thread_local! {
        /// Ranks that this thread holds. For the check only: no code finds a lock through it.
        static HELD: RefCell<Vec<LockRank>> = const { RefCell::new(Vec::new()) };
    }

    impl HeldRank {
        #[track_caller]
        pub(super) fn take(rank: LockRank) -> Self {
            let held = HELD.with_borrow(|held| held.iter().max().copied());
            assert!(held.is_none_or(|held| held < rank), "lock order: {rank:?} is taken under {held:?}");
            HELD.with_borrow_mut(|held| held.push(rank));
            HeldRank { rank }
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            // Fails in a thread that ends, which may still drop a guard.
            let _removed = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let at = held.iter().rposition(|held| *held == self.rank);
                at.map(|at| held.remove(at))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_ascending_order() {
        let registry = RankedRwLock::new(LockRank::Registry, 1);
        let shape = RankedMutex::new(LockRank::Shape, 2);
        for _ in 0..2 {
            let registry = registry.read();
            assert_eq!(*registry + *shape.lock(), 3);
        }
        // In any order of release.
        let (first, second) = (registry.write(), shape.lock());
        drop(first);
        drop(second);
        drop((shape.lock(), ()));
        drop(registry.write());
    }

    #[test]
    #[should_panic(expected = "lock order: Registry is taken under Some(Shape)")]
    fn a_lock_of_a_lower_rank_panics() {
        let registry = RankedRwLock::new(LockRank::Registry, ());
        let shape = RankedMutex::new(LockRank::Shape, ());
        let _shape = shape.lock();
        let _registry = registry.read();
    }

    #[test]
    #[should_panic(expected = "lock order: Shape is taken under Some(Shape)")]
    fn two_locks_of_one_rank_panic() {
        let (one, other) = (RankedMutex::new(LockRank::Shape, ()), RankedMutex::new(LockRank::Shape, ()));
        let _one = one.lock();
        let _other = other.lock();
    }
}
