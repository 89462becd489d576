//! Subscriptions: push messages as streams.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::client::{Client, Shared};
use crate::command::{ArgWriter, Cmd, ToArgs, cmd};
use crate::core::link::State;
use crate::core::pipeline::Request;
use crate::error::{ExecError, RequestError, Retry};
use crate::exec::{Confirmed, Exec, Job};
use crate::reply::{FromReply, Reader, Value};
use crate::slot::Slot;
use crate::topics::{Feed, Item, Kind, Topic};

/// How soon a subscription that found the queue full is tried again.
const CROWDED: Duration = Duration::from_millis(5);

/// How soon a subscription that the server can't take now is tried again.
const REFUSED: Duration = Duration::from_millis(100);

/// What a subscription brings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message.
    Message(Message),
    /// Messages may be missing here.
    Gap(Gap),
}

impl Event {
    /// The message, if it is one.
    pub fn message(self) -> Option<Message> {
        match self {
            Event::Message(message) => Some(message),
            Event::Gap(_) => None,
        }
    }
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub channel: Bytes,
    /// The pattern that it was subscribed to by, for a pattern subscription.
    pub pattern: Option<Bytes>,
    /// What was published.
    pub payload: Bytes,
}

/// Why messages may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gap {
    /// The connection was lost, and made again: what was published meanwhile is lost.
    Reconnected,
    /// The subscriber was too slow: this many messages didn't fit into its queue.
    Overflow(u64),
}

/// A stream of messages; dropping it unsubscribes. It ends when the client is closed, or when the server refuses to
/// subscribe again after a reconnection.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    topics: Vec<Topic>,
    feed: Arc<Feed>,
}

impl Client {
    /// Subscribes to channels: one name, or a list.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::Client::connect(server.url()).await?;
    /// let mut news = client.subscribe("news").await?;
    /// client.exec::<()>(("PUBLISH", "news", "good")).await?;
    /// let message = news.next().await.and_then(|event| event.message()).expect("it was published");
    /// assert_eq!(message.payload, "good");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn subscribe(&self, channels: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(Kind::Channel, channels).await
    }

    /// Subscribes to all channels whose names match a pattern.
    pub async fn psubscribe(&self, patterns: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(Kind::Pattern, patterns).await
    }

    /// Subscribes to shard channels (Redis 7).
    pub async fn ssubscribe(&self, channels: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(Kind::Shard, channels).await
    }

    /// Every push message that belongs to no subscription: invalidations, and what modules send.
    pub fn pushes(&self) -> Pushes {
        let feed = Feed::new(self.config().max_queued_messages);
        self.shared().topics.lock().add_other(&feed);
        if self.state() == State::Closed {
            feed.end(); // nobody else will
        }
        Pushes { client: self.clone(), feed }
    }

    async fn subscribe_to(&self, kind: Kind, names: impl ToArgs) -> Result<Subscription, ExecError> {
        let client = self.subscriber().await;
        // One that is named twice would bring every message twice.
        let mut seen = HashSet::new();
        let names = words(&names).into_iter().filter(|name| seen.insert(name.clone()));
        let topics: Vec<Topic> = names.map(|name| (kind, name)).collect();
        if topics.is_empty() {
            let (command, instead) = ("a subscription to nothing", "at least one name");
            return Err(RequestError::Unsuitable { command, instead }.into());
        }
        // Made before the server knows, so that no message after the confirmation is lost; and if this future is dropped,
        // so is the subscription.
        let feed = Feed::new(client.config().max_queued_messages);
        let subscription = Subscription { client, topics, feed };
        let shared = subscription.client.shared();
        let mut request = Exec::new(shared, confirmed(kind.subscribe(), &subscription.topics));
        let left = std::future::poll_fn(|cx| {
            let mut feeds = shared.topics.lock();
            feeds.add(&subscription.topics, &subscription.feed);
            let submitted = request.submit(cx);
            if submitted.is_err() {
                // The server won't hear of it, so there is nothing to unsubscribe from.
                feeds.remove(&subscription.topics, &subscription.feed);
            }
            Poll::Ready(submitted)
        })
        .await;
        match left {
            Ok(()) => request.await?,
            Err(error) => {
                request.finish(Err(error))?;
                drop(request);
            }
        }
        Ok(subscription)
    }
}

/// A command on topics, and the confirmations it will get.
fn confirmed((command, kind): (&str, &'static str), topics: &[Topic]) -> Confirmed<Cmd> {
    let names: Vec<&Bytes> = topics.iter().map(|(_, name)| name).collect();
    Confirmed { command: cmd(command).arg(names), count: topics.len() as u32, kind }
}

/// The arguments as they will be sent, one by one.
fn words(names: &impl ToArgs) -> Vec<Bytes> {
    let mut encoded = Vec::new();
    ArgWriter::new(&mut encoded).command(&(names,));
    let encoded = Bytes::from(encoded);
    Vec::<Bytes>::from_reply(&mut Reader::new(&encoded, 0)).unwrap_or_default()
}

impl Subscription {
    /// The next message or gap; `None` when there will be no more.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            return Poll::Ready(match std::task::ready!(self.feed.poll(cx)) {
                None => None,
                Some(Item::Reconnected) => Some(Event::Gap(Gap::Reconnected)),
                Some(Item::Missed(count)) => Some(Event::Gap(Gap::Overflow(count))),
                Some(Item::Push(push)) => match message(&push) {
                    Some(message) => Some(Event::Message(message)),
                    None => continue,
                },
            });
        }
    }
}

impl Stream for Subscription {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let shared = self.client.shared();
        let mut feeds = shared.topics.lock();
        let orphans = feeds.remove(&self.topics, &self.feed);
        for kind in Kind::ALL {
            let topics: Vec<Topic> = orphans.iter().filter(|(of, _)| *of == kind).cloned().collect();
            if !topics.is_empty() {
                let job = confirmed(kind.unsubscribe(), &topics);
                let sink = Slot::waiting(Waker::noop().clone());
                // Left under the lock, so that a later subscription comes later for the server, too. If the link is down
                // there is nothing to unsubscribe from.
                shared.inbox.leave_anyway(
                    |out| {
                        job.encode(&mut ArgWriter::new(out));
                        job.expect()
                    },
                    |expect, bytes| Request { sink, expect, bytes, timeout: None },
                );
            }
        }
    }
}

fn message(push: &Bytes) -> Option<Message> {
    let mut parts = Vec::<Bytes>::from_reply(&mut Reader::new(push, 0)).ok()?.into_iter();
    let word = parts.next()?;
    let pattern = if &*word == b"pmessage" { Some(parts.next()?) } else { None };
    Some(Message { pattern, channel: parts.next()?, payload: parts.next()? })
}

/// Subscribes a new connection to everything that the last one was subscribed to: as many requests at once as may be
/// open, since there may be thousands, but each for itself, so that a refused topic ends only its own feeds.
pub(crate) async fn resubscribe(shared: Arc<Shared>) {
    let mut topics = VecDeque::from(shared.topics.lock().names());
    let (mut requests, mut refused) = (VecDeque::new(), VecDeque::new());
    loop {
        std::future::poll_fn(|cx| {
            let feeds = shared.topics.lock();
            while let Some(topic) = topics.pop_front() {
                if !feeds.wants(&topic) {
                    continue;
                }
                let job = confirmed(topic.0.subscribe(), std::slice::from_ref(&topic));
                let mut request = Exec::new(&shared, job).unbounded();
                match request.submit(cx) {
                    Ok(()) => requests.push_back((topic, request)),
                    Err(RequestError::QueueFull { .. }) => {
                        topics.push_front(topic);
                        break;
                    }
                    // A lost connection needs nothing here: the next one comes by again.
                    Err(_) => topics.clear(),
                }
            }
            Poll::Ready(())
        })
        .await;
        match requests.pop_front() {
            Some((topic, request)) => {
                match request.await {
                    // Busy with a script, for instance. A later try may be the next connection's.
                    Err(ExecError::Reply(error)) if error.retry() == Retry::Safe => refused.push_back(topic),
                    Err(ExecError::Reply(error)) => {
                        tracing::warn!(%error, "the server refused to subscribe again");
                        shared.topics.lock().refuse(&topic);
                    }
                    Ok(()) | Err(ExecError::Request(_)) => {}
                }
            }
            None if topics.is_empty() && refused.is_empty() => return,
            None if topics.is_empty() => {
                tokio::time::sleep(REFUSED).await;
                topics.append(&mut refused);
            }
            // Others fill the queue; their answers will make room.
            None => tokio::time::sleep(CROWDED).await,
        }
    }
}

/// Push messages that belong to no subscription.
#[derive(Debug)]
pub struct Pushes {
    client: Client,
    feed: Arc<Feed>,
}

impl Pushes {
    /// The next message with all its parts; `None` when the client is closed. Gaps are passed over.
    pub async fn next(&mut self) -> Option<Value> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Value>> {
        loop {
            match std::task::ready!(self.feed.poll(cx)) {
                None => return Poll::Ready(None),
                Some(Item::Push(push)) => {
                    if let Ok(value) = Value::from_reply(&mut Reader::new(&push, 0)) {
                        return Poll::Ready(Some(value));
                    }
                }
                Some(Item::Reconnected | Item::Missed(_)) => {}
            }
        }
    }
}

impl Stream for Pushes {
    type Item = Value;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Value>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.client.shared().topics.lock().remove(&[], &self.feed);
    }
}
