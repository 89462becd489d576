//! Every stream that is open here.
//!
//! Invariant: an entry is in the registry exactly as long as its permit lives; a seat is given back once. Memory follows the
//! number of open streams: a shard that empties gives its memory back.
//! Kept by: only a permit holds a [`Seat`], which can be neither copied nor made elsewhere.
//! Locks are held for a few instructions, never across an await; sixteen shards keep threads apart. The count of the open is
//! `SeqCst`, because whoever enters looks afterwards whether the house was closed, and whoever closes it looks whether it is empty.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::stage::UserHash;
use crate::statistics::UserStreams;
use crate::thread_id::ThreadId;

const SHARDS: usize = 16;

/// One open stream.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) thread: ThreadId,
    pub(crate) user: Option<UserHash>,
    pub(crate) since: Instant,
}

/// The place of one entry.
#[derive(Debug)]
pub(crate) struct Seat {
    shard: u32,
    index: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    shards: [Mutex<Shard>; SHARDS],
    open: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<Slot>,
    /// The first free slot, if any; free slots are a list.
    free: Option<u32>,
    taken: usize,
}

#[derive(Debug)]
enum Slot {
    Taken(Entry),
    Free(Option<u32>),
}

impl Registry {
    /// Gives the seat, and how many are open with it.
    pub(crate) fn enter(&self, entry: Entry) -> (Seat, usize) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        let shard = open % SHARDS;
        let index = self.lock(shard).put(entry);
        (Seat { shard: u32::try_from(shard).expect("there are 16"), index }, open)
    }

    /// Takes the entry out, and tells how many are open without it.
    pub(crate) fn leave(&self, seat: &mut Option<Seat>) -> Option<(Entry, usize)> {
        let Seat { shard, index } = seat.take()?;
        let entry = self.lock(shard as usize).take(index)?;
        Some((entry, self.open.fetch_sub(1, Ordering::SeqCst) - 1))
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// The oldest streams, at most `max` of them.
    pub(crate) fn oldest(&self, max: usize) -> Vec<Entry> {
        let mut all = Vec::new();
        for shard in 0..SHARDS {
            let shard = self.lock(shard);
            all.extend(shard.slots.iter().filter_map(|slot| match slot {
                Slot::Taken(entry) => Some(entry.clone()),
                Slot::Free(_) => None,
            }));
        }
        all.sort_by_key(|entry| entry.since);
        all.truncate(max);
        all
    }

    /// The users with the most streams, at most `max` of them.
    pub(crate) fn busiest(&self, max: usize) -> Vec<UserStreams> {
        let mut counts: HashMap<UserHash, usize> = HashMap::new();
        for shard in 0..SHARDS {
            for slot in &self.lock(shard).slots {
                if let Slot::Taken(Entry { user: Some(user), .. }) = slot {
                    *counts.entry(*user).or_default() += 1;
                }
            }
        }
        let mut users: Vec<_> =
            counts.into_iter().map(|(user, streams)| UserStreams { user, streams }).collect();
        users.sort_unstable_by_key(|user| (Reverse(user.streams), user.user));
        users.truncate(max);
        users
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn put(&mut self, entry: Entry) -> u32 {
        self.taken += 1;
        if let Some(index) = self.free
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            if let Slot::Free(next) = slot {
                self.free = *next;
            }
            *slot = Slot::Taken(entry);
            return index;
        }
        self.slots.push(Slot::Taken(entry));
        u32::try_from(self.slots.len() - 1).expect("a machine has fewer than 2³² streams")
    }

    fn take(&mut self, index: u32) -> Option<Entry> {
        let slot = self.slots.get_mut(index as usize)?;
        let Slot::Taken(entry) = std::mem::replace(slot, Slot::Free(self.free)) else { return None };
        self.free = Some(index);
        self.taken -= 1;
        if self.taken == 0 {
            (self.slots, self.free) = (Vec::new(), None);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Hasher;
    use crate::visitor::Visitor;

    fn entry(name: &str) -> Entry {
        Entry { thread: ThreadId::parse(name).unwrap(), user: None, since: Instant::now() }
    }

    #[test]
    fn who_enters_is_listed_oldest_first_until_he_leaves() {
        let registry = Registry::default();
        let mut seats: Vec<_> = (0..100).map(|n| Some(registry.enter(entry(&format!("t{n}"))).0)).collect();
        assert_eq!(registry.open(), 100);
        let names: Vec<_> = registry.oldest(3).iter().map(|entry| entry.thread.to_string()).collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
        for seat in &mut seats[..50] {
            assert!(registry.leave(seat).is_some());
            assert!(registry.leave(seat).is_none(), "a seat is given back once");
        }
        assert_eq!((registry.open(), registry.oldest(1_000).len()), (50, 50));
        assert_eq!(registry.oldest(1)[0].thread.to_string(), "t50");
    }

    #[test]
    fn the_busiest_users_come_first_and_the_anonymous_are_nobody() {
        let (registry, hasher) = (Registry::default(), Hasher::with_salt(b"salt"));
        let hash = |name| Visitor::user(name).ok().and_then(|visitor| Some(hasher.hash(visitor.who()?)));
        let _seats = ["ada", "bob", "ada", "", "", "", "eve"]
            .map(|name| registry.enter(Entry { user: hash(name), ..entry("t") }).0);
        let busiest = registry.busiest(2);
        assert_eq!(busiest.iter().map(|user| user.streams).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(Some(busiest[0].user), hash("ada"));
    }

    #[test]
    fn seats_are_used_again_and_an_empty_house_holds_no_memory() {
        let registry = Registry::default();
        for _ in 0..3 {
            let mut seats: Vec<_> = (0..1_000).map(|_| Some(registry.enter(entry("x")).0)).collect();
            let mut one = seats.pop().flatten();
            registry.leave(&mut one);
            seats.push(Some(registry.enter(entry("y")).0));
            let slots: usize = (0..SHARDS).map(|shard| registry.lock(shard).slots.len()).sum();
            assert!(slots <= 1_001, "{slots}");
            seats.iter_mut().for_each(|seat| drop(registry.leave(seat)));
            let kept: usize = (0..SHARDS).map(|shard| registry.lock(shard).slots.capacity()).sum();
            assert_eq!((registry.open(), kept), (0, 0));
        }
    }
}
