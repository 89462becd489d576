//! Stream directory: asks the other instances over Redis, and answers their queries.
//!
//! Invariant: without queries, an instance only holds one subscription. An end never waits for a
//! list. All instances end their streams at the same time. Answers wait for no other answer and end
//! within [`END_WAIT`].
//! Enforced by: ends and lists have turns of their own ([`QueryTurns`]). An instance asks the
//! others while it ends its own streams.
//! Bounds, for lists and for ends: [`MAX_QUERIES`] queries of operators at a time, others wait;
//! [`MAX_ANSWERS`] answers at a time, further queries are ignored.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::Admission;
use forebay_quota::{Quota, QuotaMode, StoreError};
use forebay_redis::{Event, ExecError, RedisClient, Subscription};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, warn};

use super::answer_collector::{AnswerCollector, EndCollector, ExpectedInstances, StreamCollector};
use super::message::{EndCounts, InstanceAnswer, QueryKind, StreamLine, StreamQuery};
use super::report::{ClusterStreams, EndReport, ListScope};
use super::{DEADLINE, MAX_LIMIT};

/// Time to wait until ended streams have released their permits.
const END_WAIT: Duration = Duration::from_millis(500);
/// Lists that run at the same time for operators, and ends.
const MAX_QUERIES: usize = 4;
/// Lists that are sent to other instances at the same time, and ends that they requested.
const MAX_ANSWERS: usize = 8;
/// Delay before the next attempt to subscribe.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(1);

const WITHOUT_REDIS: &str = "only instances that share a Redis can be asked; ask each instance itself";
const ALONE: &str = "without redis.url, these are the streams of this instance";
const REBUILDING: &str = "the quota's counts are being rebuilt, so instances may be missing";

/// Lists and ends streams of all instances.
pub struct StreamDirectory {
    admission: Admission,
    quota: Quota,
    /// `None`: only this instance is asked.
    bus: Option<RedisBus>,
    /// Turns of queries for operators.
    queries: QueryTurns,
    /// Turns of answers to other instances.
    answers: QueryTurns,
}

/// Turns of queries. Lists and ends have their own: a list waits for instances that don't answer,
/// and must not delay an end.
#[derive(Debug)]
struct QueryTurns {
    lists: Arc<Semaphore>,
    ends: Arc<Semaphore>,
}

impl QueryTurns {
    /// Creates turns: at most `each` lists and `each` ends at a time.
    fn new(each: usize) -> QueryTurns {
        QueryTurns { lists: Arc::new(Semaphore::new(each)), ends: Arc::new(Semaphore::new(each)) }
    }

    /// Returns the turns of a kind of query.
    fn of(&self, kind: &QueryKind) -> &Arc<Semaphore> {
        match kind {
            QueryKind::List { .. } => &self.lists,
            QueryKind::End { .. } => &self.ends,
        }
    }
}

/// Redis channels of a namespace, over which instances ask each other.
#[derive(Debug)]
pub struct RedisBus {
    client: RedisClient,
    /// Channel of queries. Those of answers begin with it.
    channel: String,
}

/// Why the other instances can't be asked.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error("{WITHOUT_REDIS}")]
    WithoutRedis,
    #[error("Redis gave no answer within {DEADLINE:?}")]
    Timeout,
    #[error("Redis can't be used: {0}")]
    Redis(#[from] ExecError),
}

impl RedisBus {
    /// Returns the channels of the quota's namespace.
    pub fn new(client: RedisClient, namespace: &str) -> RedisBus {
        // The hash tag is that of the quota's keys, so that one rule of an ACL matches both.
        RedisBus { client, channel: format!("{{{namespace}}}:streams") }
    }

    fn answer_channel(&self, request: &str) -> String {
        format!("{}:{request}", self.channel)
    }

    async fn publish(&self, channel: &str, payload: Vec<u8>) -> Result<(), ExecError> {
        self.client.exec::<i64>(("PUBLISH", channel, payload)).await.map(drop)
    }
}

impl StreamDirectory {
    /// Returns the directory of an instance. Without a bus, it has only the streams of this
    /// instance. Spawn [`answer_queries`](Self::answer_queries), so that others can ask this one.
    pub fn new(admission: Admission, quota: Quota, bus: Option<RedisBus>) -> StreamDirectory {
        let (queries, answers) = (QueryTurns::new(MAX_QUERIES), QueryTurns::new(MAX_ANSWERS));
        StreamDirectory { admission, quota, bus, queries, answers }
    }

    /// Returns the oldest open streams of the cluster, at most `limit`.
    pub async fn list(&self, limit: usize) -> ClusterStreams {
        let limit = limit.min(MAX_LIMIT);
        let kind = QueryKind::List { limit };
        let _turn = self.queries.of(&kind).acquire().await;
        let deadline = Instant::now() + DEADLINE;
        let expected = self.expected_instances(deadline).await;
        let mut collector = StreamCollector::new(expected, limit, since_1970_ms());
        self.list_own(limit).into_iter().for_each(|part| collector.take(part));
        let asked = self.ask(kind, &mut collector, deadline).await;
        match (&self.bus, asked) {
            (Some(_), Ok(())) => collector.finish(ListScope::Cluster, None),
            (None, Ok(())) => collector.finish(ListScope::Instance, Some(ALONE.to_owned())),
            (_, Err(error)) => collector.finish(ListScope::Instance, Some(error.to_string())),
        }
    }

    /// Ends the open streams of a thread id and, if `user` is set, of the user with this hash.
    pub async fn end(&self, thread_id: &str, user: Option<&str>) -> EndReport {
        let kind = QueryKind::End { thread_id: thread_id.to_owned(), user: user.map(str::to_owned) };
        let _turn = self.queries.of(&kind).acquire().await;
        let deadline = Instant::now() + DEADLINE;
        let others = async {
            let mut collector = EndCollector::new(self.expected_instances(deadline).await);
            let asked = self.ask(kind, &mut collector, deadline).await;
            (collector, asked)
        };
        let (own, (mut collector, asked)) = tokio::join!(self.end_own(thread_id, user), others);
        collector.take(own);
        collector.finish(asked.err().map(|error| error.to_string()))
    }

    /// Answers the queries of other instances. Never returns.
    pub async fn answer_queries(self: Arc<Self>) {
        let Some(bus) = &self.bus else { return std::future::pending().await };
        let mut is_logged = false;
        loop {
            match bus.client.subscribe([&bus.channel]).await {
                Ok(queries) => self.answer_from(queries).await,
                // Such as an ACL without the channel. An unreachable Redis is logged by the quota.
                Err(ExecError::Reply(error)) if !is_logged => {
                    is_logged = true;
                    let channel = &bus.channel;
                    warn!(%error, channel, "subscription refused: this instance answers no stream queries");
                }
                Err(_) => {}
            }
            sleep(RESUBSCRIBE_DELAY).await;
        }
    }

    /// Answers queries until the subscription ends.
    async fn answer_from(self: &Arc<Self>, mut queries: Subscription) {
        while let Some(event) = queries.next().await {
            let Event::Message(message) = event else { continue };
            let Some(query) = StreamQuery::decode(&message.payload) else { continue };
            if query.from == self.instance() {
                continue;
            }
            let turns = Arc::clone(self.answers.of(&query.kind));
            let Ok(turn) = turns.try_acquire_owned() else { continue };
            let directory = Arc::clone(self);
            tokio::spawn(async move {
                directory.answer(query).await;
                drop(turn);
            });
        }
    }

    async fn answer(&self, query: StreamQuery) {
        let Some(bus) = &self.bus else { return };
        let answers = match query.kind {
            QueryKind::List { limit } => self.list_own(limit.min(MAX_LIMIT)),
            QueryKind::End { thread_id, user } => vec![self.end_own(&thread_id, user.as_deref()).await],
        };
        let channel = bus.answer_channel(&query.request);
        for answer in answers {
            if let Err(error) = bus.publish(&channel, answer.encode()).await {
                debug!(%error, "stream query not answered");
                return;
            }
        }
    }

    /// Returns the streams of this instance, as answers.
    fn list_own(&self, limit: usize) -> Vec<InstanceAnswer> {
        let open = self.admission.open_streams() as u64;
        let streams: Vec<_> =
            self.admission.oldest_streams(limit).into_iter().map(StreamLine::from).collect();
        InstanceAnswer::streams(&self.instance(), open, streams)
    }

    /// Ends streams of this instance.
    async fn end_own(&self, thread_id: &str, user: Option<&str>) -> InstanceAnswer {
        let streams = self.admission.end_streams(thread_id, user);
        let count = streams.count() as u64;
        let ending = streams.wait(END_WAIT).await as u64;
        InstanceAnswer::ended(&self.instance(), EndCounts { ended: count - ending, ending })
    }

    /// Publishes a query, and collects the answers of other instances until all have arrived, or
    /// until the deadline.
    async fn ask(
        &self,
        kind: QueryKind,
        collector: &mut impl AnswerCollector,
        deadline: Instant,
    ) -> Result<(), QueryError> {
        if collector.is_complete() {
            return Ok(());
        }
        let bus = self.bus.as_ref().ok_or(QueryError::WithoutRedis)?;
        let query = StreamQuery::new(&self.instance(), kind);
        let published = async {
            // First, so that no answer is missed.
            let answers = bus.client.subscribe([bus.answer_channel(&query.request)]).await?;
            bus.publish(&bus.channel, query.encode()).await?;
            Ok::<_, ExecError>(answers)
        };
        let mut answers = timeout_at(deadline, published).await.map_err(|_| QueryError::Timeout)??;
        let collected = async {
            while !collector.is_complete()
                && let Some(event) = answers.next().await
            {
                if let Event::Message(message) = event
                    && let Some(answer) = InstanceAnswer::decode(&message.payload)
                    && answer.instance != query.from
                {
                    collector.take(answer);
                }
            }
        };
        // At the deadline, instances that are missing count as silent.
        let _ = timeout_at(deadline, collected).await;
        Ok(())
    }

    /// Returns the other instances that must answer: the members of the quota.
    async fn expected_instances(&self, deadline: Instant) -> ExpectedInstances {
        let own = self.instance();
        let holdings = timeout_at(deadline, self.quota.query_holdings()).await;
        let holdings = holdings.unwrap_or(Err(StoreError::Timeout(DEADLINE)));
        match holdings {
            Ok(holdings) => {
                let members = holdings.members.into_iter().filter(|liveness| !liveness.replaced);
                let mut names: BTreeSet<String> =
                    members.map(|liveness| liveness.member.name().to_owned()).collect();
                // A store that lost its data has no members until they send a heartbeat.
                let is_certain = names.remove(&own) && self.quota.mode() == QuotaMode::Normal;
                ExpectedInstances::new(names, (!is_certain).then(|| REBUILDING.to_owned()))
            }
            Err(error) => ExpectedInstances::new([], Some(error.to_string())),
        }
    }

    /// Returns the name of this instance.
    fn instance(&self) -> String {
        self.quota.member().name().to_owned()
    }
}

#[expect(clippy::disallowed_methods, reason = "operators are shown since when a stream is open")]
fn since_1970_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
