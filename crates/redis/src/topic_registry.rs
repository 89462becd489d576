//! Topic registry: delivers push messages to the feeds of their subscribers.
//!
//! Invariant: a message reaches every feed of its topic in the order of arrival, or the feed
//! reports a gap.
//! Enforced by: the worker delivers into bounded queues and never waits. It drops and counts
//! messages that do not fit, and queues the count in their position. When a new connection starts,
//! the worker adds a gap to every feed before it delivers a message of that connection.
//! Bounds: `max_queued_messages` and [`MAX_QUEUED_BYTES`] for each feed.
//! Wakers are cloned, called and dropped while no lock is held: they are code of the caller's
//! executor and may use the client.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::core::pipeline::{READ_BYTES, push_kind};
use crate::reply::{ReplyReader, ReplyToken};

/// Maximum bytes of queued messages in one feed. The message that crosses it is still accepted.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Kind of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

impl SubscriptionKind {
    pub(crate) const ALL: [SubscriptionKind; 3] =
        [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Shard];

    /// Returns the command, and the kind of the push message that confirms it.
    pub(crate) fn subscribe(self) -> (&'static str, &'static str) {
        match self {
            SubscriptionKind::Channel => ("SUBSCRIBE", "subscribe"),
            SubscriptionKind::Pattern => ("PSUBSCRIBE", "psubscribe"),
            SubscriptionKind::Shard => ("SSUBSCRIBE", "ssubscribe"),
        }
    }

    pub(crate) fn unsubscribe(self) -> (&'static str, &'static str) {
        match self {
            SubscriptionKind::Channel => ("UNSUBSCRIBE", "unsubscribe"),
            SubscriptionKind::Pattern => ("PUNSUBSCRIBE", "punsubscribe"),
            SubscriptionKind::Shard => ("SUNSUBSCRIBE", "sunsubscribe"),
        }
    }

    /// Returns the kind whose messages begin with `kind_name`.
    fn from_message(kind_name: &[u8]) -> Option<SubscriptionKind> {
        match kind_name {
            b"message" => Some(SubscriptionKind::Channel),
            b"pmessage" => Some(SubscriptionKind::Pattern),
            b"smessage" => Some(SubscriptionKind::Shard),
            _ => None,
        }
    }
}

pub(crate) type TopicKey = (SubscriptionKind, Bytes);

/// All feeds of a client.
#[derive(Debug, Default)]
pub(crate) struct TopicRegistry(Mutex<FeedTable>);

/// Feeds by topic, and the feeds of other push messages.
#[derive(Debug, Default)]
pub(crate) struct FeedTable {
    by_topic: HashMap<TopicKey, Vec<Arc<SubscriberFeed>>>,
    /// Feeds of push messages that belong to no topic.
    push_feeds: Vec<Arc<SubscriberFeed>>,
}

impl TopicRegistry {
    /// Locks the feeds. Callers hold the lock while they change a subscription and submit its
    /// command, so that the server gets the commands in the order of the changes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FeedTable> {
        self.0.lock()
    }

    /// Delivers a push message to its feeds. Confirmations are dropped: the pipeline has counted
    /// them.
    pub(crate) fn deliver(&self, push: Bytes) {
        // Copied, because a queued message would otherwise keep the whole read buffer alive.
        let push = if push.len() < READ_BYTES { Bytes::copy_from_slice(&push) } else { push };
        let Some(kind_name) = push_kind(&push) else { return };
        let kind = SubscriptionKind::from_message(kind_name);
        if kind.is_none() && kind_name.ends_with(b"subscribe") {
            return;
        }
        let topic = match kind {
            Some(kind) => match topic_name(&push) {
                Some(name) => Some((kind, name)),
                None => return,
            },
            None => None,
        };
        let mut wakers = WakeBatch::default();
        {
            let feeds = self.lock();
            let subscribers = match &topic {
                Some(topic) => feeds.by_topic.get(topic),
                None => Some(&feeds.push_feeds),
            };
            subscribers.into_iter().flatten().for_each(|feed| wakers.add(feed.push(push.clone())));
        }
        wakers.wake();
    }

    /// Adds a gap to every feed, because a new connection has started. Returns the number of topics
    /// with subscriptions.
    pub(crate) fn push_gap_to_all(&self) -> usize {
        let mut wakers = WakeBatch::default();
        let topics = {
            let feeds = self.lock();
            feeds.all().for_each(|feed| wakers.add(feed.push_gap()));
            feeds.by_topic.len()
        };
        wakers.wake();
        topics
    }

    /// Ends the feeds of a topic that the server rejected.
    pub(crate) fn end_topic(&self, topic: &TopicKey) {
        let feeds = self.lock().by_topic.remove(topic);
        feeds.into_iter().flatten().for_each(|feed| feed.end());
    }

    /// Ends all feeds, because the link has ended.
    pub(crate) fn end_all(&self) {
        let feeds = std::mem::take(&mut *self.lock());
        feeds.all().for_each(|feed| feed.end());
    }
}

/// Tasks to wake after the locks are released.
#[derive(Default)]
struct WakeBatch {
    /// Most messages have one subscriber, so that most batches allocate nothing.
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl WakeBatch {
    fn add(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else {
            self.others.extend(waker);
        }
    }

    fn wake(self) {
        self.first.into_iter().chain(self.others).for_each(Waker::wake);
    }
}

impl FeedTable {
    pub(crate) fn add(&mut self, topics: &[TopicKey], feed: &Arc<SubscriberFeed>) {
        for topic in topics {
            self.by_topic.entry(topic.clone()).or_default().push(feed.clone());
        }
    }

    pub(crate) fn add_push_feed(&mut self, feed: &Arc<SubscriberFeed>) {
        self.push_feeds.push(feed.clone());
    }

    /// Removes a feed. Returns the topics that have no feeds left.
    pub(crate) fn remove(&mut self, topics: &[TopicKey], feed: &Arc<SubscriberFeed>) -> Vec<TopicKey> {
        self.push_feeds.retain(|other| !Arc::ptr_eq(other, feed));
        let mut unused = Vec::new();
        for topic in topics {
            if let Some(feeds) = self.by_topic.get_mut(topic) {
                feeds.retain(|other| !Arc::ptr_eq(other, feed));
                if feeds.is_empty() {
                    self.by_topic.remove(topic);
                    unused.push(topic.clone());
                }
            }
        }
        unused
    }

    pub(crate) fn has_feeds(&self, topic: &TopicKey) -> bool {
        self.by_topic.contains_key(topic)
    }

    pub(crate) fn topics(&self) -> Vec<TopicKey> {
        self.by_topic.keys().cloned().collect()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<SubscriberFeed>> {
        self.by_topic.values().flatten().chain(&self.push_feeds)
    }
}

fn topic_name(push: &Bytes) -> Option<Bytes> {
    let mut reader = ReplyReader::new(push, 0);
    match reader.token().ok()? {
        ReplyToken::Push(_) | ReplyToken::Array(_) => {}
        _ => return None,
    }
    reader.skip().ok()?;
    match reader.token().ok()? {
        ReplyToken::Bulk(name) => Some(Bytes::copy_from_slice(&name)),
        _ => None,
    }
}

/// Queue of one subscriber.
#[derive(Debug)]
pub(crate) struct SubscriberFeed {
    max_messages: usize,
    queue: Mutex<FeedQueue>,
}

#[derive(Debug, Default)]
struct FeedQueue {
    items: VecDeque<FeedItem>,
    bytes: usize,
    /// Messages dropped since the last queued item.
    dropped: u64,
    waker: Option<Waker>,
    ended: bool,
}

#[derive(Debug)]
pub(crate) enum FeedItem {
    Push(Bytes),
    Dropped(u64),
    Reconnected,
}

impl SubscriberFeed {
    pub(crate) fn new(max_messages: usize) -> Arc<SubscriberFeed> {
        Arc::new(SubscriberFeed { max_messages: max_messages.max(1), queue: Mutex::default() })
    }

    /// Queues a message, or counts it as dropped. Returns the waker of the subscriber if it waits.
    #[must_use]
    fn push(&self, push: Bytes) -> Option<Waker> {
        let mut queue = self.queue.lock();
        if queue.items.len() >= self.max_messages || queue.bytes >= MAX_QUEUED_BYTES {
            queue.dropped += 1;
        } else {
            queue.push_dropped();
            queue.bytes += push.len();
            queue.items.push_back(FeedItem::Push(push));
        }
        queue.waker.take()
    }

    #[must_use]
    fn push_gap(&self) -> Option<Waker> {
        let mut queue = self.queue.lock();
        // Merges consecutive gaps, so that an unread feed does not grow with each reconnection.
        if !matches!(queue.items.back(), Some(FeedItem::Reconnected)) {
            queue.push_dropped();
            queue.items.push_back(FeedItem::Reconnected);
        }
        queue.waker.take()
    }

    pub(crate) fn end(&self) {
        let waker = {
            let mut queue = self.queue.lock();
            queue.ended = true;
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        let mut queue = self.queue.lock();
        if let Poll::Ready(item) = queue.next() {
            return Poll::Ready(item);
        }
        if queue.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        drop(queue);
        let mut waker = Some(cx.waker().clone());
        let mut queue = self.queue.lock();
        let next = queue.next();
        if next.is_pending() {
            std::mem::swap(&mut queue.waker, &mut waker);
        }
        next
    }
}

impl FeedQueue {
    /// Queues the number of messages dropped since the last item.
    fn push_dropped(&mut self) {
        if self.dropped > 0 {
            self.items.push_back(FeedItem::Dropped(std::mem::take(&mut self.dropped)));
        }
    }

    /// Returns the next item, or `None` at the end.
    fn next(&mut self) -> Poll<Option<FeedItem>> {
        if let Some(item) = self.items.pop_front() {
            if let FeedItem::Push(push) = &item {
                self.bytes -= push.len();
            }
            return Poll::Ready(Some(item));
        }
        if self.dropped > 0 {
            return Poll::Ready(Some(FeedItem::Dropped(std::mem::take(&mut self.dropped))));
        }
        if self.ended { Poll::Ready(None) } else { Poll::Pending }
    }
}
