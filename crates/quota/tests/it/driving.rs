//! Who carries a settlement to the store: the caller who waits for it, as long as nobody else needs it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_quota::{
    Beat, Calling, Draw, Drawn, Holdings, Keyed, MemberConfig, MemberId, MemoryStore, Mode, Policy, Pulse,
    Quota, Refusal, Settled, Settlement, Store,
};
use forebay_testkit::{PATIENCE, eventually};
use futures_util::FutureExt;

/// How long the store may take.
const CALL: Duration = Duration::from_millis(500);

/// A store in memory whose settlements take their time.
#[derive(Clone)]
struct Slow {
    memory: MemoryStore,
    way: Way,
    /// The tasks in which settlements landed.
    tasks: Arc<Mutex<Vec<Option<tokio::task::Id>>>>,
}

#[derive(Clone)]
enum Way {
    /// So long there, and so long back.
    Takes(Duration),
    /// So many polls there, and so many back.
    Polls(Arc<AtomicU32>),
    Never,
}

impl Slow {
    fn new(way: Way) -> Self {
        Slow { memory: MemoryStore::new(), way, tasks: Arc::default() }
    }

    async fn go(&self) {
        match &self.way {
            Way::Takes(time) => tokio::time::sleep(*time).await,
            Way::Polls(polls) => {
                for _ in 0..polls.load(Relaxed) {
                    tokio::task::yield_now().await;
                }
            }
            Way::Never => std::future::pending().await,
        }
    }

    async fn member(&self) -> (Quota, Keyed) {
        self.member_that_waits(CALL).await
    }

    async fn member_that_waits(&self, call: Duration) -> (Quota, Keyed) {
        let config = MemberConfig::new("a").call_timeout(call).policy(Policy::Closed);
        let quota = Quota::join(self.clone(), config).await;
        let users = quota.keyed("user", 2);
        (quota, users)
    }
}

impl Store for Slow {
    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        Box::pin(async move {
            self.go().await;
            let settled = self.memory.settle(settlement).await;
            self.tasks.lock().unwrap().push(tokio::task::try_id());
            self.go().await;
            settled
        })
    }

    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        self.memory.beat(beat)
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        self.memory.leave(member)
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        self.memory.draw(draw)
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        self.memory.look(accounts)
    }

    fn kind(&self) -> &'static str {
        "slow"
    }
}

fn takes_5_ms() -> Slow {
    Slow::new(Way::Takes(Duration::from_millis(5)))
}

/// Polls once, for nobody who would be woken.
fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Under a paused clock: everything has come back after 100 ms, here and in the store.
async fn assert_nothing_is_left(quota: &Quota, users: &Keyed, keys: &[&str]) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(left(quota, users, keys).await, NOTHING);
}

/// Keys, units and callers of this member, and how many shares the store knows; and its mode.
async fn left(quota: &Quota, users: &Keyed, keys: &[&str]) -> ([usize; 4], Mode) {
    let mut shares = 0;
    for key in keys {
        shares += users.holders(key).await.unwrap().len();
    }
    let status = quota.status();
    let keyed = &status.keyed[0];
    ([keyed.keys, keyed.held as usize, status.counters.waiting, shares], status.mode)
}

const NOTHING: ([usize; 4], Mode) = ([0; 4], Mode::Normal);

#[tokio::test(start_paused = true)]
async fn whoever_waits_alone_carries_its_settlement_itself() {
    let store = takes_5_ms();
    let (_quota, users) = store.member().await;
    let taking = tokio::spawn(async move { users.take("ann").await.map(|lease| (lease, tokio::task::id())) });
    let (_lease, caller) = taking.await.unwrap().unwrap();
    assert_eq!(*store.tasks.lock().unwrap(), [Some(caller)]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_holds_up_nobody() {
    let (_quota, users) = takes_5_ms().member().await;
    for (first, second) in [("ann", "ann"), ("bob", "cat")] {
        let began = tokio::time::Instant::now();
        let mut stalled = pin!(users.take(first));
        assert!(poll(stalled.as_mut()).is_pending());
        let lease = users.take(second).await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_millis(20), "two settlements, one after the other");
        assert!(poll(stalled.as_mut()).is_ready(), "its own has come meanwhile");
        drop(lease);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_is_told_though_a_caller_is_not_polled() {
    let (_quota, users) = takes_5_ms().member().await;
    let lease = users.take("ann").await.unwrap();
    let mut stalled = pin!(users.take("bob"));
    assert!(poll(stalled.as_mut()).is_pending());
    drop(lease);
    tokio::time::sleep(Duration::from_millis(21)).await;
    assert_eq!(users.holders("ann").await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_never_polled_again_is_no_outage() {
    let (quota, users) = takes_5_ms().member().await;
    let mut stalled = Box::pin(users.take("ann"));
    assert!(poll(stalled.as_mut()).is_pending());
    tokio::time::sleep(CALL * 3).await;
    assert_eq!((quota.status().mode, quota.status().counters.failures), (Mode::Normal, 0));
    assert_eq!(users.holders("ann").await.unwrap()[0].count, 1, "it landed");
    drop(stalled);
    assert_nothing_is_left(&quota, &users, &["ann"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_without_an_answer_ends_at_its_deadline_whoever_carries_it() {
    for callers in [1, 2] {
        let (quota, users) = Slow::new(Way::Never).member().await;
        let began = tokio::time::Instant::now();
        let waits = (0..callers).map(|caller| {
            let users = users.clone();
            async move { users.take(&format!("user-{caller}")).await.unwrap_err() }
        });
        for refusal in futures_util::future::join_all(waits).await {
            let Refusal::Unavailable { why } = refusal else { panic!("{refusal:?}") };
            assert_eq!(why, "the store gave no answer within 500ms");
        }
        assert_eq!((began.elapsed(), quota.status().counters.waiting), (CALL, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_at_any_point_leaves_nothing_behind() {
    let polls = Arc::new(AtomicU32::new(0));
    let (quota, users) = Slow::new(Way::Polls(polls.clone())).member().await;
    for way in 1..4 {
        polls.store(way, Relaxed);
        for polled in 0..2 * way {
            let mut going = Box::pin(users.take("ann"));
            for _ in 0..polled {
                assert!(poll(going.as_mut()).is_pending());
            }
            drop(going);
            assert_nothing_is_left(&quota, &users, &["ann"]).await;
            // The same with somebody else behind it, who takes all that there is.
            let mut going = Box::pin(users.take("ann"));
            for _ in 0..polled {
                assert!(poll(going.as_mut()).is_pending());
            }
            let (next, last) = (users.take("ann"), users.take("ann"));
            let both = futures_util::future::join(next, last);
            let ((next, last), ()) = futures_util::future::join(both, async { drop(going) }).await;
            drop((next.unwrap(), last.unwrap()));
            assert_nothing_is_left(&quota, &users, &["ann"]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_from_elsewhere_leaves_the_settlement_to_go_on_without_its_caller() {
    let (quota, users) = takes_5_ms().member().await;
    let held = (users.take("ann").await.unwrap(), users.take("bob").await.unwrap());
    let mut waiting = pin!(users.take("ann"));
    assert!(poll(waiting.as_mut()).is_pending());
    drop(held.0); // which is the unit that it gets
    let Poll::Ready(taken) = poll(waiting.as_mut()) else { panic!("there is one for it") };
    drop((taken.unwrap(), held.1));
    assert_nothing_is_left(&quota, &users, &["ann", "bob"]).await;
}

#[test]
fn a_caller_without_a_runtime_is_served() {
    let theirs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_quota, users) = theirs.block_on(takes_5_ms().member());
    let mut taking = pin!(users.take("ann"));
    let began = std::time::Instant::now();
    while poll(taking.as_mut()).is_pending() {
        assert!(began.elapsed() < Duration::from_secs(20), "it waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_carries_a_settlement_as_the_members_runtime_ends_is_answered() {
    for way in [Way::Never, Way::Takes(Duration::from_secs(3600))] {
        let theirs =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (_quota, users) = theirs.block_on(Slow::new(way).member());
        let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut taking = pin!(users.take("ann"));
        assert!(ours.block_on(async { (&mut taking).now_or_never() }).is_none());
        drop(theirs);
        let answer = ours.block_on(async { tokio::time::timeout(Duration::from_secs(20), taking).await });
        assert!(matches!(answer, Ok(Err(Refusal::Unavailable { .. }))), "{answer:?}");
        let again =
            ours.block_on(async { tokio::time::timeout(Duration::from_secs(20), users.take("bob")).await });
        assert!(matches!(again, Ok(Err(_))), "{again:?}");
    }
}

/// Callers come and go on several threads at once, as tasks that are dropped wherever they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_come_and_go_on_many_threads_leave_nothing_behind() {
    let polls = Arc::new(AtomicU32::new(2));
    // The clock runs: a caller that the machine keeps waiting is no outage.
    let (quota, users) = Slow::new(Way::Polls(polls)).member_that_waits(PATIENCE).await;
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
    eventually("nothing is left", NOTHING, async || left(&quota, &users, &keys).await).await;
}
