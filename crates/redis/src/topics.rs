//! Where push messages leave: channels, patterns, and everything else.
//!
//! Invariant: a message reaches every feed of its topic, in the order of arrival, or the feed says that there is a gap.
//! Kept by: the worker delivers into bounded queues and never waits; what doesn't fit is counted, and the count stands in
//! the queue where the messages would have stood. A new connection puts a gap into every feed before its first message.
//! Bounds: `max_queued_messages` and [`MAX_QUEUED_BYTES`] for each feed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::core::pipeline::{READ_BYTES, push_kind};
use crate::reply::{Reader, Token};

/// Bytes of messages that one feed holds at most; the message that crosses this is the last one let in.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// How a topic is subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Channel,
    Pattern,
    Shard,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

    /// The command, and the kind of its confirmation.
    pub(crate) fn subscribe(self) -> (&'static str, &'static str) {
        match self {
            Kind::Channel => ("SUBSCRIBE", "subscribe"),
            Kind::Pattern => ("PSUBSCRIBE", "psubscribe"),
            Kind::Shard => ("SSUBSCRIBE", "ssubscribe"),
        }
    }

    pub(crate) fn unsubscribe(self) -> (&'static str, &'static str) {
        match self {
            Kind::Channel => ("UNSUBSCRIBE", "unsubscribe"),
            Kind::Pattern => ("PUNSUBSCRIBE", "punsubscribe"),
            Kind::Shard => ("SUNSUBSCRIBE", "sunsubscribe"),
        }
    }

    /// The kind whose messages begin with `word`.
    fn of_message(word: &[u8]) -> Option<Kind> {
        match word {
            b"message" => Some(Kind::Channel),
            b"pmessage" => Some(Kind::Pattern),
            b"smessage" => Some(Kind::Shard),
            _ => None,
        }
    }
}

pub(crate) type Topic = (Kind, Bytes);

/// Every feed of a client.
#[derive(Debug, Default)]
pub(crate) struct Topics(Mutex<Feeds>);

#[derive(Debug, Default)]
pub(crate) struct Feeds {
    by_topic: HashMap<Topic, Vec<Arc<Feed>>>,
    /// Those that want what belongs to no topic.
    others: Vec<Arc<Feed>>,
}

impl Topics {
    /// Held while a subscription changes and its command is left for the worker, so that both have one order.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Feeds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a push message to whoever wants it. Confirmations are nobody's: the pipeline has counted them.
    pub(crate) fn deliver(&self, push: Bytes) {
        // It may wait for long, and must not keep a whole read alive meanwhile.
        let push = if push.len() < READ_BYTES { Bytes::copy_from_slice(&push) } else { push };
        let Some(word) = push_kind(&push) else { return };
        let feeds = self.lock();
        match Kind::of_message(word) {
            Some(kind) => {
                let Some(name) = second_word(&push) else { return };
                if let Some(wanted) = feeds.by_topic.get(&(kind, name)) {
                    wanted.iter().for_each(|feed| feed.push(push.clone()));
                }
            }
            None if word.ends_with(b"subscribe") => {}
            None => feeds.others.iter().for_each(|feed| feed.push(push.clone())),
        }
    }

    /// A new connection has begun: everybody may have missed something. True if anybody is subscribed.
    pub(crate) fn mark_gap(&self) -> bool {
        let feeds = self.lock();
        feeds.all().for_each(|feed| feed.gap());
        !feeds.by_topic.is_empty()
    }

    /// The link is over, and so are its feeds.
    pub(crate) fn end_all(&self) {
        let feeds = std::mem::take(&mut *self.lock());
        feeds.all().for_each(|feed| feed.end());
    }
}

impl Feeds {
    pub(crate) fn add(&mut self, topics: &[Topic], feed: &Arc<Feed>) {
        for topic in topics {
            self.by_topic.entry(topic.clone()).or_default().push(feed.clone());
        }
    }

    pub(crate) fn add_other(&mut self, feed: &Arc<Feed>) {
        self.others.push(feed.clone());
    }

    /// Takes a feed out and gives the topics that nobody wants any more.
    pub(crate) fn remove(&mut self, topics: &[Topic], feed: &Arc<Feed>) -> Vec<Topic> {
        self.others.retain(|other| !Arc::ptr_eq(other, feed));
        let mut orphans = Vec::new();
        for topic in topics {
            if let Some(feeds) = self.by_topic.get_mut(topic) {
                feeds.retain(|other| !Arc::ptr_eq(other, feed));
                if feeds.is_empty() {
                    self.by_topic.remove(topic);
                    orphans.push(topic.clone());
                }
            }
        }
        orphans
    }

    pub(crate) fn wants(&self, topic: &Topic) -> bool {
        self.by_topic.contains_key(topic)
    }

    pub(crate) fn names(&self) -> Vec<Topic> {
        self.by_topic.keys().cloned().collect()
    }

    /// Ends the feeds of a topic that the server refuses.
    pub(crate) fn refuse(&mut self, topic: &Topic) {
        for feed in self.by_topic.remove(topic).unwrap_or_default() {
            feed.end();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Feed>> {
        self.by_topic.values().flatten().chain(&self.others)
    }
}

fn second_word(push: &Bytes) -> Option<Bytes> {
    let mut reader = Reader::new(push, 0);
    match reader.token().ok()? {
        Token::Push(_) | Token::Array(_) => {}
        _ => return None,
    }
    reader.skip().ok()?;
    match reader.token().ok()? {
        Token::Bulk(name) => Some(Bytes::copy_from_slice(&name)),
        _ => None,
    }
}

/// What waits for one subscriber.
#[derive(Debug)]
pub(crate) struct Feed {
    max_messages: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// Messages that didn't fit since the last item.
    missed: u64,
    waker: Option<Waker>,
    ended: bool,
}

#[derive(Debug)]
pub(crate) enum Item {
    Push(Bytes),
    Missed(u64),
    Reconnected,
}

impl Feed {
    pub(crate) fn new(max_messages: usize) -> Arc<Feed> {
        Arc::new(Feed { max_messages: max_messages.max(1), queue: Mutex::default() })
    }

    fn push(&self, push: Bytes) {
        self.change(|queue| {
            if queue.items.len() >= self.max_messages || queue.bytes >= MAX_QUEUED_BYTES {
                queue.missed += 1;
                return;
            }
            if queue.missed > 0 {
                queue.items.push_back(Item::Missed(std::mem::take(&mut queue.missed)));
            }
            queue.bytes += push.len();
            queue.items.push_back(Item::Push(push));
        });
    }

    fn gap(&self) {
        self.change(|queue| {
            // Gaps in a row are one; so a feed that nobody reads doesn't grow with the reconnections.
            if matches!(queue.items.back(), Some(Item::Reconnected)) {
                return;
            }
            if queue.missed > 0 {
                queue.items.push_back(Item::Missed(std::mem::take(&mut queue.missed)));
            }
            queue.items.push_back(Item::Reconnected);
        });
    }

    pub(crate) fn end(&self) {
        self.change(|queue| queue.ended = true);
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut queue = self.lock();
        if let Some(item) = queue.items.pop_front() {
            if let Item::Push(push) = &item {
                queue.bytes -= push.len();
            }
            return Poll::Ready(Some(item));
        }
        if queue.missed > 0 {
            return Poll::Ready(Some(Item::Missed(std::mem::take(&mut queue.missed))));
        }
        if queue.ended {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        change(&mut queue);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
