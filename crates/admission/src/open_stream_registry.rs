//! Registry of the streams that are open in this process.
//!
//! Invariant: an entry is in the registry exactly while its permit exists.
//! Enforced by: only a permit holds a [`Registration`], which is neither `Clone` nor constructible
//! elsewhere.
//! Memory follows the number of open streams: a shard that becomes empty keeps at most
//! [`KEPT_SLOTS`] slots. A free slot keeps its end signal, so that the next stream allocates none.
//! Locks: one of 16 shards at a time, for a few instructions, never across an await. `open` is
//! `SeqCst`: a stream is inserted before `draining` is checked, and `draining` is set before `open`
//! is checked (see `controller.rs`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::end_signal::EndSignal;
use crate::statistics::UserStreams;
use crate::thread_id::ThreadId;
use crate::user_hash::UserHash;

const SHARDS: usize = 16;
/// Slots that an empty shard may keep. Otherwise few long-polls, which end and begin all the time,
/// would allocate and free the shards' memory each time.
const KEPT_SLOTS: usize = 64;

/// What is known of one open stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamRecord {
    pub(crate) thread: ThreadId,
    pub(crate) user: Option<UserHash>,
    pub(crate) route: Option<Arc<str>>,
    pub(crate) since: Instant,
}

/// One open stream.
#[derive(Debug)]
struct OpenStreamEntry {
    record: StreamRecord,
    /// Callers that wait for the removal of the entry. Dropping a sender resolves its receiver.
    removal: Vec<oneshot::Sender<()>>,
}

/// A stream that was asked to end.
#[derive(Debug)]
pub(crate) struct EndedEntry {
    pub(crate) record: StreamRecord,
    pub(crate) end: EndSignal,
    /// Resolves when the entry has been removed.
    pub(crate) removed: oneshot::Receiver<()>,
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
struct ShardSlot {
    /// Signal of the stream that has the slot, or had it last.
    end: EndSignal,
    content: SlotContent,
}

#[derive(Debug)]
enum SlotContent {
    Taken(OpenStreamEntry),
    /// The next free slot of the list.
    Free(Option<u32>),
}

impl OpenStreamRegistry {
    /// Adds a stream. Returns its registration, its end signal and the number of open streams.
    pub(crate) fn insert(&self, record: StreamRecord) -> (Registration, EndSignal, usize) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        let shard = open % SHARDS;
        let (index, end) = self.shards[shard].lock().put(record);
        (Registration { shard: u32::try_from(shard).expect("there are 16"), index }, end, open)
    }

    /// Removes a stream. Returns it and the number of streams that remain open.
    pub(crate) fn remove(&self, registration: &mut Option<Registration>) -> Option<(StreamRecord, usize)> {
        let Registration { shard, index } = registration.take()?;
        let mut emptied = Vec::new(); // freed without the lock
        let OpenStreamEntry { record, removal } =
            self.shards[shard as usize].lock().take(index, &mut emptied)?;
        drop((removal, emptied));
        Some((record, self.open.fetch_sub(1, Ordering::SeqCst) - 1))
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Returns the oldest streams, at most `max`. Copies no more than twice as many at once.
    pub(crate) fn oldest(&self, max: usize) -> Vec<StreamRecord> {
        let mut oldest: Vec<StreamRecord> = Vec::new();
        if max == 0 {
            return oldest;
        }
        // Once `max` streams are known, younger ones than these are skipped.
        let mut limit = None;
        for shard in &self.shards {
            for slot in &shard.lock().slots {
                let SlotContent::Taken(OpenStreamEntry { record, .. }) = &slot.content else { continue };
                if limit.is_some_and(|limit| record.since >= limit) {
                    continue;
                }
                oldest.push(record.clone());
                if oldest.len() == max.saturating_mul(2) {
                    let (_, last, _) = oldest.select_nth_unstable_by_key(max - 1, |record| record.since);
                    limit = Some(last.since);
                    oldest.truncate(max);
                }
            }
        }
        oldest.sort_by_key(|record| record.since);
        oldest.truncate(max);
        oldest
    }

    /// Returns the streams of a thread id and, if `user` is set, of that user.
    ///
    /// The caller sends their signals: a woken task may remove its entry, which needs the shard's
    /// lock.
    pub(crate) fn find(&self, thread: &str, user: Option<&str>) -> Vec<EndedEntry> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for slot in &mut shard.lock().slots {
                let ShardSlot { end, content } = slot;
                let SlotContent::Taken(OpenStreamEntry { record, removal }) = content else { continue };
                let is_users = |wanted: &str| record.user.is_some_and(|hash| hash.to_string() == wanted);
                if !record.thread.is(thread) || !user.is_none_or(is_users) {
                    continue;
                }
                let (sender, removed) = oneshot::channel();
                removal.retain(|waiting| !waiting.is_closed());
                removal.push(sender);
                found.push(EndedEntry { record: record.clone(), end: end.clone(), removed });
            }
        }
        found
    }

    /// Returns the users with the most streams, at most `max`.
    pub(crate) fn busiest(&self, max: usize) -> Vec<UserStreams> {
        let mut counts: HashMap<UserHash, usize> = HashMap::new();
        for shard in 0..SHARDS {
            for slot in &self.shards[shard].lock().slots {
                if let SlotContent::Taken(OpenStreamEntry { record, .. }) = &slot.content
                    && let Some(user) = &record.user
                {
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
    fn put(&mut self, record: StreamRecord) -> (u32, EndSignal) {
        self.taken += 1;
        let taken = SlotContent::Taken(OpenStreamEntry { record, removal: Vec::new() });
        if let Some(index) = self.free
            && let Some(ShardSlot { end, content }) = self.slots.get_mut(index as usize)
        {
            if let SlotContent::Free(next) = content {
                self.free = *next;
            }
            *content = taken;
            if !end.reset() {
                *end = EndSignal::default(); // the last stream's body may still exist
            }
            return (index, end.clone());
        }
        let end = EndSignal::default();
        self.slots.push(ShardSlot { end: end.clone(), content: taken });
        (u32::try_from(self.slots.len() - 1).expect("fewer than 2³² streams are open"), end)
    }

    /// Takes an entry out. `emptied` gets memory to free.
    fn take(&mut self, index: u32, emptied: &mut Vec<ShardSlot>) -> Option<OpenStreamEntry> {
        let slot = self.slots.get_mut(index as usize)?;
        let SlotContent::Taken(entry) = std::mem::replace(&mut slot.content, SlotContent::Free(self.free))
        else {
            return None;
        };
        self.free = Some(index);
        self.taken -= 1;
        if self.taken == 0 && self.slots.capacity() > KEPT_SLOTS {
            (*emptied, self.free) = (std::mem::take(&mut self.slots), None);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::client_identity::ClientIdentity;
    use crate::user_hash::UserHasher;

    fn entry(name: &str) -> StreamRecord {
        let (thread, since) = (ThreadId::parse(name).unwrap(), Instant::now());
        StreamRecord { thread, user: None, route: None, since }
    }

    #[test]
    fn streams_are_listed_oldest_first_until_they_are_removed() {
        let registry = OpenStreamRegistry::default();
        let mut registrations: Vec<_> =
            (0..100).map(|n| Some(registry.insert(entry(&format!("t{n}"))).0)).collect();
        assert_eq!(registry.open(), 100);
        let names: Vec<_> = registry.oldest(3).iter().map(|stream| stream.thread.to_string()).collect();
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
        let _seats = ["ada", "bob", "ada", "", "", "", "eve"].map(|name| {
            let mut entry = entry("t");
            entry.user = hash(name);
            registry.insert(entry).0
        });
        let busiest = registry.busiest(2);
        assert_eq!(busiest.iter().map(|user| user.streams).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(Some(busiest[0].user), hash("ada"));
    }

    #[test]
    fn the_oldest_are_listed_whatever_the_order_of_the_slots() {
        let (registry, start) = (OpenStreamRegistry::default(), Instant::now());
        // 7 and 100 have no common divisor, so every age from 0 to 99 occurs once.
        for age in (0..100).map(|number| number * 7 % 100) {
            let mut entry = entry(&format!("t{age}"));
            entry.since = start + Duration::from_millis(age);
            registry.insert(entry);
        }
        for max in [0, 1, 3, 49, 50, 51, 100, 1_000] {
            let names: Vec<_> = registry.oldest(max).iter().map(|stream| stream.thread.to_string()).collect();
            let expected: Vec<_> = (0..max.min(100)).map(|age| format!("t{age}")).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_stream_is_found_by_its_id_and_user_and_its_removal_is_reported() {
        let (registry, hasher) = (OpenStreamRegistry::default(), UserHasher::with_salt(b"salt"));
        let ada = hasher.hash(ClientIdentity::user("ada").unwrap().as_user().unwrap());
        let mut owned = entry("t");
        owned.user = Some(ada);
        let mut registration = Some(registry.insert(owned).0);
        let _other = registry.insert(entry("t"));
        assert_eq!(registry.find("t", None).len(), 2, "clients may choose equal ids");
        assert!(registry.find("T", None).is_empty() && registry.find("t", Some("")).is_empty());
        let mut found = registry.find("t", Some(&ada.to_string()));
        let mut ended = found.pop().unwrap();
        assert!(found.is_empty());
        assert_eq!(ended.removed.try_recv(), Err(TryRecvError::Empty));
        registry.remove(&mut registration);
        assert_eq!(ended.removed.try_recv(), Err(TryRecvError::Closed));
        assert!(registry.find("t", Some(&ada.to_string())).is_empty());
    }

    #[test]
    fn slots_are_reused_and_an_empty_registry_keeps_little_memory() {
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
            assert!(registry.open() == 0 && kept <= SHARDS * KEPT_SLOTS, "{kept}");
        }
    }

    #[test]
    fn a_slots_signal_is_reused_but_never_one_that_somebody_still_has() {
        let pass = |shard: &mut Shard| {
            let (index, end) = shard.put(entry("t"));
            assert!(shard.take(index, &mut Vec::new()).is_some());
            end
        };
        let mut slots = Shard::default();
        let ended = pass(&mut slots);
        assert!(ended.send());
        let next = pass(&mut slots);
        assert!(next.address() != ended.address() && next.send(), "the next stream isn't ended");
        let state = next.address();
        drop(next);
        let reused = pass(&mut slots);
        assert!(reused.address() == state && reused.send(), "reused, and not sent");
    }
}
