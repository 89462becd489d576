//! Subscriptions: streams of published messages.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::args::{ArgWriter, ToArgs};
use crate::client::{ClientShared, RedisClient};
use crate::command::{Cmd, cmd};
use crate::core::link::State;
use crate::core::pipeline::PipelineRequest;
use crate::error::{ExecError, RequestError, Retry};
use crate::reply::{FromReply, ReplyReader, RespValue};
use crate::reply_slot::ReplySlot;
use crate::request_future::{RequestFuture, RequestSpec, SubscribeSpec};
use crate::topic_registry::{FeedItem, SubscriberFeed, SubscriptionKind, TopicKey};

/// Delay before resubscribing while the request queue is full.
const QUEUE_FULL_DELAY: Duration = Duration::from_millis(5);

/// Delay before resubscribing after a refusal that is safe to retry.
const REFUSED_DELAY: Duration = Duration::from_millis(100);

/// An event of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message.
    Message(PubSubMessage),
    /// Messages may be missing here.
    Gap(Gap),
}

impl Event {
    /// Returns the message, if this is one.
    pub fn message(self) -> Option<PubSubMessage> {
        match self {
            Event::Message(message) => Some(message),
            Event::Gap(_) => None,
        }
    }
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PubSubMessage {
    /// The channel.
    pub channel: Bytes,
    /// The matching pattern, for a pattern subscription.
    pub pattern: Option<Bytes>,
    /// The published bytes.
    pub payload: Bytes,
}

/// Why messages may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gap {
    /// The connection was lost and reopened. Messages published in between are lost.
    Reconnected,
    /// The subscriber was too slow: this many messages did not fit into its queue.
    Overflow(u64),
}

/// Stream of messages. Dropping it unsubscribes. It ends when the client is closed, or when the
/// server rejects the subscription after a reconnection.
#[derive(Debug)]
pub struct Subscription {
    client: RedisClient,
    topics: Vec<TopicKey>,
    feed: Arc<SubscriberFeed>,
}

impl RedisClient {
    /// Subscribes to one channel or a list of channels.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// let mut news = client.subscribe("news").await?;
    /// client.exec::<()>(("PUBLISH", "news", "good")).await?;
    /// let event = news.next().await.expect("the client is open");
    /// let message = event.message().expect("no gap");
    /// assert_eq!(message.payload, "good");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn subscribe(&self, channels: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(SubscriptionKind::Channel, channels).await
    }

    /// Subscribes to all channels that match a pattern.
    pub async fn psubscribe(&self, patterns: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(SubscriptionKind::Pattern, patterns).await
    }

    /// Subscribes to shard channels (Redis 7).
    pub async fn ssubscribe(&self, channels: impl ToArgs) -> Result<Subscription, ExecError> {
        self.subscribe_to(SubscriptionKind::Shard, channels).await
    }

    /// Returns a stream of push messages that belong to no subscription: invalidations, and
    /// messages of modules.
    pub fn pushes(&self) -> PushStream {
        let feed = SubscriberFeed::new(self.config().max_queued_messages);
        self.shared().topics.lock().add_push_feed(&feed);
        if self.state() == State::Closed {
            feed.end(); // a closed client ends no further feeds
        }
        PushStream { client: self.clone(), feed }
    }

    async fn subscribe_to(
        &self,
        kind: SubscriptionKind,
        names: impl ToArgs,
    ) -> Result<Subscription, ExecError> {
        let client = self.subscriber().await;
        // A channel that is named twice would deliver every message twice.
        let mut seen = HashSet::new();
        let names = encoded_args(&names).into_iter().filter(|name| seen.insert(name.clone()));
        let topics: Vec<TopicKey> = names.map(|name| (kind, name)).collect();
        if topics.is_empty() {
            let (command, instead) = ("a subscription without names", "at least one name");
            return Err(RequestError::UnsupportedCommand { command, instead }.into());
        }
        // Registered before the request is sent, so that no message after the confirmation is
        // missed. Dropping this future drops the subscription.
        let feed = SubscriberFeed::new(client.config().max_queued_messages);
        let subscription = Subscription { client, topics, feed };
        let shared = subscription.client.shared();
        let mut request = RequestFuture::new(shared, subscribe_spec(kind.subscribe(), &subscription.topics));
        let submitted = request.encode().and_then(|encoded| {
            let mut feeds = shared.topics.lock();
            feeds.add(&subscription.topics, &subscription.feed);
            // The first poll of the request stores the waker of this task, without the lock.
            let submitted = request.send(encoded, Waker::noop());
            if submitted.is_err() {
                // The server does not get the request, so there is nothing to unsubscribe.
                feeds.remove(&subscription.topics, &subscription.feed);
            }
            submitted
        });
        match submitted {
            Ok(()) => request.await?,
            Err(error) => {
                request.finish(Err(error))?;
                drop(request);
            }
        }
        Ok(subscription)
    }
}

/// Returns the request for a command on topics, with the confirmations that it expects.
fn subscribe_spec((command, kind): (&str, &'static str), topics: &[TopicKey]) -> SubscribeSpec<Cmd> {
    let names: Vec<&Bytes> = topics.iter().map(|(_, name)| name).collect();
    SubscribeSpec { command: cmd(command).arg(names), count: topics.len() as u32, kind }
}

/// Returns the encoded arguments one by one.
fn encoded_args(names: &impl ToArgs) -> Vec<Bytes> {
    let mut encoded = Vec::new();
    ArgWriter::new(&mut encoded).command(&(names,));
    let encoded = Bytes::from(encoded);
    Vec::<Bytes>::from_reply(&mut ReplyReader::new(&encoded, 0)).unwrap_or_default()
}

impl Subscription {
    /// Returns the next message or gap, or `None` at the end.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            return Poll::Ready(match std::task::ready!(self.feed.poll(cx)) {
                None => None,
                Some(FeedItem::Reconnected) => Some(Event::Gap(Gap::Reconnected)),
                Some(FeedItem::Dropped(count)) => Some(Event::Gap(Gap::Overflow(count))),
                Some(FeedItem::Push(push)) => match message(&push) {
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
        let unused = feeds.remove(&self.topics, &self.feed);
        for kind in SubscriptionKind::ALL {
            let topics: Vec<TopicKey> = unused.iter().filter(|(of, _)| *of == kind).cloned().collect();
            if !topics.is_empty() {
                let spec = subscribe_spec(kind.unsubscribe(), &topics);
                let mut encoded = Vec::new();
                spec.encode(&mut ArgWriter::new(&mut encoded));
                let (sink, bytes) = (ReplySlot::waiting(Waker::noop().clone()), encoded.len());
                let request = PipelineRequest { sink, expect: spec.expect(), bytes, timeout: None };
                // Submitted under the lock, so that the server sees a later subscription later. If
                // the link is down, there is nothing to unsubscribe.
                shared.inbox.submit_unbounded(&mut encoded, request);
            }
        }
    }
}

fn message(push: &Bytes) -> Option<PubSubMessage> {
    let mut parts = Vec::<Bytes>::from_reply(&mut ReplyReader::new(push, 0)).ok()?.into_iter();
    let word = parts.next()?;
    let pattern = if &*word == b"pmessage" { Some(parts.next()?) } else { None };
    Some(PubSubMessage { pattern, channel: parts.next()?, payload: parts.next()? })
}

/// Subscribes a new connection to all topics of the previous one.
///
/// Sends one request for each topic, so that a rejected topic ends only its own feeds. Sends as
/// many at once as may be open, because there may be thousands.
pub(crate) async fn resubscribe(shared: Arc<ClientShared>) {
    let mut topics = VecDeque::from(shared.topics.lock().topics());
    let (mut requests, mut refused) = (VecDeque::new(), VecDeque::new());
    loop {
        while let Some(topic) = topics.pop_front() {
            let spec = subscribe_spec(topic.0.subscribe(), std::slice::from_ref(&topic));
            let mut request = RequestFuture::new(&shared, spec).without_timeout();
            let submitted = match request.encode() {
                Ok(encoded) => {
                    let feeds = shared.topics.lock();
                    if !feeds.has_feeds(&topic) {
                        continue;
                    }
                    request.send(encoded, Waker::noop())
                }
                Err(error) => Err(error),
            };
            match submitted {
                Ok(()) => requests.push_back((topic, request)),
                Err(error) => {
                    match error {
                        RequestError::QueueFull { .. } => topics.push_front(topic),
                        // The next connection resubscribes again after a loss.
                        _ => topics.clear(),
                    }
                    // Ends the span of the request with its error.
                    let _unsent = request.finish(Err(error));
                    break;
                }
            }
        }
        match requests.pop_front() {
            Some((topic, request)) => {
                match request.await {
                    // For example, the server is busy with a script. The retry may run on the next
                    // connection.
                    Err(ExecError::Reply(error)) if error.retry() == Retry::Safe => refused.push_back(topic),
                    Err(ExecError::Reply(error)) => {
                        tracing::warn!(%error, "resubscription refused");
                        shared.topics.end_topic(&topic);
                    }
                    Ok(()) | Err(ExecError::Request(_)) => {}
                }
            }
            None if topics.is_empty() && refused.is_empty() => return,
            None if topics.is_empty() => {
                tokio::time::sleep(REFUSED_DELAY).await;
                topics.append(&mut refused);
            }
            // The queue is full of other requests; their replies make room.
            None => tokio::time::sleep(QUEUE_FULL_DELAY).await,
        }
    }
}

/// Stream of push messages that belong to no subscription.
#[derive(Debug)]
pub struct PushStream {
    client: RedisClient,
    feed: Arc<SubscriberFeed>,
}

impl PushStream {
    /// Returns the next message with all its parts, or `None` when the client is closed. Skips
    /// gaps.
    pub async fn next(&mut self) -> Option<RespValue> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<RespValue>> {
        loop {
            match std::task::ready!(self.feed.poll(cx)) {
                None => return Poll::Ready(None),
                Some(FeedItem::Push(push)) => {
                    if let Ok(value) = RespValue::from_reply(&mut ReplyReader::new(&push, 0)) {
                        return Poll::Ready(Some(value));
                    }
                }
                Some(FeedItem::Reconnected | FeedItem::Dropped(_)) => {}
            }
        }
    }
}

impl Stream for PushStream {
    type Item = RespValue;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RespValue>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for PushStream {
    fn drop(&mut self) {
        self.client.shared().topics.lock().remove(&[], &self.feed);
    }
}
