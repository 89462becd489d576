//! Registry of the streams that are open in this process.
//!
//! Invariant: an entry is in the registry exactly while its permit exists.
//! Enforced by: only a permit holds a [`Registration`], which is neither `Clone` nor constructible
//! elsewhere.
//! Memory follows the number of open streams: a shard that becomes empty frees its memory.
//! Locks: one of 16 shards at a time, for a few instructions, never across an await. `open` is
//! `SeqCst`: a stream is inserted before `draining` is checked, and `draining` is set before `open`
//! is checked (see `controller.rs`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::statistics::UserStreams;
use crate::thread_id::ThreadId;
use crate::user_hash::UserHash;

const SHARDS: usize = 16;

/// One open stream.
#[derive(Debug, Clone)]
pub(crate) struct OpenStreamEntry {
    pub(crate) thread: ThreadId,
    pub(crate) user: Option<UserHash>,
    pub(crate) since: Instant,
}

/// Key of one entry.
#[derive(Debug)]
pub(crate) struct Registration {
    shard: u32,
    index: u32,
}

/// The open streams, in shards.
#[derive(Debug, Default)]
pub(crate) struct OpenStreamRegistry {
    shards: [Mutex<Shard>; SHARDS],
    open: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<ShardSlot>,
    /// Head of the list of free slots.
    free: Option<u32>,
    taken: usize,
}

#[derive(Debug)]
enum ShardSlot {
    Taken(OpenStreamEntry),
    Free(Option<u32>),
}

impl OpenStreamRegistry {
    /// Adds an entry. Returns its registration and the number of open streams.
    pub(crate) fn insert(&self, entry: OpenStreamEntry) -> (Registration, usize) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        let shard = open % SHARDS;
        let index = self.shards[shard].lock().put(entry);
        (Registration { shard: u32::try_from(shard).expect("there are 16"), index }, open)
    }

    /// Removes an entry. Returns it and the number of streams that remain open.
    pub(crate) fn remove(&self, registration: &mut Option<Registration>) -> Option<(OpenStreamEntry, usize)> {
        let Registration { shard, index } = registration.take()?;
        let entry = self.shards[shard as usize].lock().take(index)?;
        Some((entry, self.open.fetch_sub(1, Ordering::SeqCst) - 1))
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Returns the oldest streams, at most `max`.
    pub(crate) fn oldest(&self, max: usize) -> Vec<OpenStreamEntry> {
        let mut all = Vec::new();
        for shard in 0..SHARDS {
            let shard = self.shards[shard].lock();
            all.extend(shard.slots.iter().filter_map(|slot| match slot {
                ShardSlot::Taken(entry) => Some(entry.clone()),
                ShardSlot::Free(_) => None,
            }));
        }
        all.sort_by_key(|entry| entry.since);
        all.truncate(max);
        all
    }

    /// Returns the users with the most streams, at most `max`.
    pub(crate) fn busiest(&self, max: usize) -> Vec<UserStreams> {
        let mut counts: HashMap<UserHash, usize> = HashMap::new();
        for shard in 0..SHARDS {
            for slot in &self.shards[shard].lock().slots {
                if let ShardSlot::Taken(OpenStreamEntry { user: Some(user), .. }) = slot {
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
}

impl Shard {
    fn put(&mut self, entry: OpenStreamEntry) -> u32 {
        self.taken += 1;
        if let Some(index) = self.free
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            if let ShardSlot::Free(next) = slot {
                self.free = *next;
            }
            *slot = ShardSlot::Taken(entry);
            return index;
        }
        self.slots.push(ShardSlot::Taken(entry));
        u32::try_from(self.slots.len() - 1).expect("fewer than 2³² streams are open")
    }

    fn take(&mut self, index: u32) -> Option<OpenStreamEntry> {
        let slot = self.slots.get_mut(index as usize)?;
        let ShardSlot::Taken(entry) = std::mem::replace(slot, ShardSlot::Free(self.free)) else {
            return None;
        };
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
    use crate::client_identity::ClientIdentity;
    use crate::user_hash::UserHasher;

    fn entry(name: &str) -> OpenStreamEntry {
        OpenStreamEntry { thread: ThreadId::parse(name).unwrap(), user: None, since: Instant::now() }
    }

    #[test]
    fn streams_are_listed_oldest_first_until_they_are_removed() {
        let registry = OpenStreamRegistry::default();
        let mut registrations: Vec<_> =
            (0..100).map(|n| Some(registry.insert(entry(&format!("t{n}"))).0)).collect();
        assert_eq!(registry.open(), 100);
        let names: Vec<_> = registry.oldest(3).iter().map(|entry| entry.thread.to_string()).collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
        for registration in &mut registrations[..50] {
            assert!(registry.remove(registration).is_some());
            assert!(registry.remove(registration).is_none(), "a registration is removed once");
        }
        assert_eq!((registry.open(), registry.oldest(1_000).len()), (50, 50));
        assert_eq!(registry.oldest(1)[0].thread.to_string(), "t50");
    }

    #[test]
    fn the_busiest_users_come_first_and_anonymous_streams_are_not_listed() {
        let (registry, hasher) = (OpenStreamRegistry::default(), UserHasher::with_salt(b"salt"));
        let hash =
            |name| ClientIdentity::user(name).ok().and_then(|client| Some(hasher.hash(client.as_user()?)));
        let _seats = ["ada", "bob", "ada", "", "", "", "eve"]
            .map(|name| registry.insert(OpenStreamEntry { user: hash(name), ..entry("t") }).0);
        let busiest = registry.busiest(2);
        assert_eq!(busiest.iter().map(|user| user.streams).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(Some(busiest[0].user), hash("ada"));
    }

    #[test]
    fn slots_are_reused_and_an_empty_registry_uses_no_memory() {
        let registry = OpenStreamRegistry::default();
        for _ in 0..3 {
            let mut registrations: Vec<_> = (0..1_000).map(|_| Some(registry.insert(entry("x")).0)).collect();
            let mut one = registrations.pop().flatten();
            registry.remove(&mut one);
            registrations.push(Some(registry.insert(entry("y")).0));
            let slots: usize = (0..SHARDS).map(|shard| registry.shards[shard].lock().slots.len()).sum();
            assert!(slots <= 1_001, "{slots}");
            registrations.iter_mut().for_each(|registration| drop(registry.remove(registration)));
            let kept: usize = (0..SHARDS).map(|shard| registry.shards[shard].lock().slots.capacity()).sum();
            assert_eq!((registry.open(), kept), (0, 0));
        }
    }
}
