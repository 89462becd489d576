//! Driven settlements: the caller that waits polls the call, until another caller needs it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_quota::{
    Heartbeat, HeartbeatReply, Holdings, KeyedLimit, MemberConfig, MemberId, MemoryStore, OutagePolicy,
    Quota, QuotaMode, QuotaRefusal, Settlement, SettlementReply, Store, StoreFuture, TokenReply,
    TokenRequest,
};
use forebay_testkit::{TEST_TIMEOUT, eventually};
use futures_util::FutureExt;
use parking_lot::Mutex;

/// The call timeout.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A store in memory with slow settlements.
#[derive(Clone)]
struct SlowStore {
    memory: MemoryStore,
    delay: SettleDelay,
    /// The tasks in which settlements were applied.
    tasks: Arc<Mutex<Vec<Option<tokio::task::Id>>>>,
}

#[derive(Clone)]
enum SettleDelay {
    /// This time before and after the settlement is applied.
    Time(Duration),
    /// This number of polls before and after the settlement is applied.
    Polls(Arc<AtomicU32>),
    Never,
}

impl SlowStore {
    fn new(delay: SettleDelay) -> Self {
        SlowStore { memory: MemoryStore::new(), delay, tasks: Arc::default() }
    }

    async fn wait(&self) {
        match &self.delay {
            SettleDelay::Time(time) => tokio::time::sleep(*time).await,
            SettleDelay::Polls(polls) => {
                for _ in 0..polls.load(Relaxed) {
                    tokio::task::yield_now().await;
                }
            }
            SettleDelay::Never => std::future::pending().await,
        }
    }

    async fn member(&self) -> (Quota, KeyedLimit) {
        self.member_with_timeout(CALL_TIMEOUT).await
    }

    async fn member_with_timeout(&self, timeout: Duration) -> (Quota, KeyedLimit) {
        let config = MemberConfig::new("a").call_timeout(timeout).policy(OutagePolicy::Closed);
        let quota = Quota::join(self.clone(), config).await;
        let users = quota.keyed_limit("user", 2);
        (quota, users)
    }
}

impl Store for SlowStore {
    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        Box::pin(async move {
            self.wait().await;
            let settled = self.memory.settle(settlement).await;
            self.tasks.lock().push(tokio::task::try_id());
            self.wait().await;
            settled
        })
    }

    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        self.memory.heartbeat(heartbeat)
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        self.memory.leave(member)
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        self.memory.draw(draw)
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        self.memory.query_holdings(accounts)
    }

    fn kind(&self) -> &'static str {
        "slow"
    }
}

fn with_5_ms_delay() -> SlowStore {
    SlowStore::new(SettleDelay::Time(Duration::from_millis(5)))
}

/// Polls once, with a waker that does nothing.
fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Asserts, under a paused clock, that everything is returned after 100 ms, in the member and in
/// the store.
async fn assert_nothing_is_left(quota: &Quota, users: &KeyedLimit, keys: &[&str]) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(left(quota, users, keys).await, NOTHING_LEFT);
}

/// Returns this member's keys, units and callers, the shares in the store, and the mode.
async fn left(quota: &Quota, users: &KeyedLimit, keys: &[&str]) -> ([usize; 4], QuotaMode) {
    let mut shares = 0;
    for key in keys {
        shares += users.holders(key).await.unwrap().len();
    }
    let status = quota.status();
    let keyed = &status.keyed[0];
    ([keyed.keys, keyed.held as usize, status.counters.waiting, shares], status.mode)
}

const NOTHING_LEFT: ([usize; 4], QuotaMode) = ([0; 4], QuotaMode::Normal);

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_alone_drives_its_settlement() {
    let store = with_5_ms_delay();
    let (_quota, users) = store.member().await;
    let taking = tokio::spawn(async move { users.take("ann").await.map(|lease| (lease, tokio::task::id())) });
    let (_lease, caller) = taking.await.unwrap().unwrap();
    assert_eq!(*store.tasks.lock(), [Some(caller)]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_polled_blocks_no_other_caller() {
    let (_quota, users) = with_5_ms_delay().member().await;
    for (first, second) in [("ann", "ann"), ("bob", "cat")] {
        let started = tokio::time::Instant::now();
        let mut stalled = pin!(users.take(first));
        assert!(poll(stalled.as_mut()).is_pending());
        let lease = users.take(second).await.unwrap();
        assert_eq!(started.elapsed(), Duration::from_millis(20), "two settlements, one after the other");
        assert!(poll(stalled.as_mut()).is_ready(), "its own settlement was applied meanwhile");
        drop(lease);
    }
}

#[tokio::test(start_paused = true)]
async fn returned_units_are_reported_although_a_driver_is_not_polled() {
    let (_quota, users) = with_5_ms_delay().member().await;
    let lease = users.take("ann").await.unwrap();
    let mut stalled = pin!(users.take("bob"));
    assert!(poll(stalled.as_mut()).is_pending());
    drop(lease);
    tokio::time::sleep(Duration::from_millis(21)).await;
    assert_eq!(users.holders("ann").await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_never_polled_again_causes_no_outage() {
    let (quota, users) = with_5_ms_delay().member().await;
    let mut stalled = Box::pin(users.take("ann"));
    assert!(poll(stalled.as_mut()).is_pending());
    tokio::time::sleep(CALL_TIMEOUT * 3).await;
    assert_eq!((quota.status().mode, quota.status().counters.failures), (QuotaMode::Normal, 0));
    assert_eq!(users.holders("ann").await.unwrap()[0].count, 1, "it was applied");
    drop(stalled);
    assert_nothing_is_left(&quota, &users, &["ann"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_without_a_reply_ends_at_its_deadline_with_and_without_a_driver() {
    for callers in [1, 2] {
        let (quota, users) = SlowStore::new(SettleDelay::Never).member().await;
        let started = tokio::time::Instant::now();
        let waits = (0..callers).map(|caller| {
            let users = users.clone();
            async move { users.take(&format!("user-{caller}")).await.unwrap_err() }
        });
        for refusal in futures_util::future::join_all(waits).await {
            let QuotaRefusal::Unavailable { why } = refusal else { panic!("{refusal:?}") };
            assert_eq!(why, "the store gave no answer within 500ms");
        }
        assert_eq!((started.elapsed(), quota.status().counters.waiting), (CALL_TIMEOUT, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_dropped_at_any_point_leaks_nothing() {
    let polls = Arc::new(AtomicU32::new(0));
    let (quota, users) = SlowStore::new(SettleDelay::Polls(polls.clone())).member().await;
    for delay in 1..4 {
        polls.store(delay, Relaxed);
        for polled in 0..2 * delay {
            let mut dropped = Box::pin(users.take("ann"));
            for _ in 0..polled {
                assert!(poll(dropped.as_mut()).is_pending());
            }
            drop(dropped);
            assert_nothing_is_left(&quota, &users, &["ann"]).await;
            // The same with two more callers that take all units.
            let mut dropped = Box::pin(users.take("ann"));
            for _ in 0..polled {
                assert!(poll(dropped.as_mut()).is_pending());
            }
            let (next, last) = (users.take("ann"), users.take("ann"));
            let both = futures_util::future::join(next, last);
            let ((next, last), ()) = futures_util::future::join(both, async { drop(dropped) }).await;
            drop((next.unwrap(), last.unwrap()));
            assert_nothing_is_left(&quota, &users, &["ann"]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_continues_when_its_driver_gets_another_unit_first() {
    let (quota, users) = with_5_ms_delay().member().await;
    let held = (users.take("ann").await.unwrap(), users.take("bob").await.unwrap());
    let mut waiting = pin!(users.take("ann"));
    assert!(poll(waiting.as_mut()).is_pending());
    drop(held.0); // the unit that it gets
    let Poll::Ready(taken) = poll(waiting.as_mut()) else { panic!("a unit was released for it") };
    drop((taken.unwrap(), held.1));
    assert_nothing_is_left(&quota, &users, &["ann", "bob"]).await;
}

#[test]
fn a_caller_without_a_runtime_is_served() {
    let member_runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_quota, users) = member_runtime.block_on(with_5_ms_delay().member());
    let mut taking = pin!(users.take("ann"));
    let started = std::time::Instant::now();
    while poll(taking.as_mut()).is_pending() {
        assert!(started.elapsed() < Duration::from_secs(20), "it never ends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_driver_is_answered_when_the_members_runtime_ends() {
    for delay in [SettleDelay::Never, SettleDelay::Time(Duration::from_secs(3600))] {
        let member_runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (_quota, users) = member_runtime.block_on(SlowStore::new(delay).member());
        let caller_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut taking = pin!(users.take("ann"));
        assert!(caller_runtime.block_on(async { (&mut taking).now_or_never() }).is_none());
        drop(member_runtime);
        let reply =
            caller_runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), taking).await });
        assert!(matches!(reply, Ok(Err(QuotaRefusal::Unavailable { .. }))), "{reply:?}");
        let again = caller_runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), users.take("bob")).await });
        assert!(matches!(again, Ok(Err(_))), "{again:?}");
    }
}

/// Callers start and are dropped at any point, on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_dropped_on_many_threads_leak_nothing() {
    let polls = Arc::new(AtomicU32::new(2));
    // The clock runs: a slow machine must not cause an outage.
    let (quota, users) = SlowStore::new(SettleDelay::Polls(polls)).member_with_timeout(TEST_TIMEOUT).await;
    let callers: Vec<_> = (0..8_u32)
        .map(|caller| {
            let users = users.clone();
            tokio::spawn(async move {
                for round in 0..500_u32 {
                    let key = ["ann", "bob", "cat"][(caller + round) as usize % 3];
                    let mut taking = Box::pin(users.take(key));
                    for _ in 0..(caller * 7 + round * 3) % 6 {
                        if (&mut taking).now_or_never().is_some() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    if round % 5 == 0 {
                        drop(users.take(key).await);
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let keys = ["ann", "bob", "cat"];
    eventually("nothing is left", NOTHING_LEFT, async || left(&quota, &users, &keys).await).await;
}
