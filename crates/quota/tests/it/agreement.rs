//! Every store does what the pure ledger does, call by call, where time plays no part; and Redis keeps a rate by its own clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_quota::{
    Ask, Beat, BeatKind, Draw, Drawn, Holdings, MemberId, MemoryStore, RedisStore, Settled, Settlement,
    Sharing, Standing, Store,
};
use forebay_sandbox::Redis;
use forebay_testkit::within;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{PATIENCE, namespace, settled_store, until};

/// Long enough that no test sees it pass.
const TTL: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
enum Step {
    Beat { member: usize, kind: BeatKind },
    Settle { member: usize, asks: Vec<Ask>, stale: bool, lost: bool },
    Leave { member: usize },
    Draw(Draw),
}

fn steps(draw: impl Strategy<Value = Draw>) -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        2 => Just(BeatKind::Join),
        1 => Just(BeatKind::TakeOver),
        2 => Just(BeatKind::Stay),
    ];
    let sharing = prop_oneof![Just(Sharing::Exact), Just(Sharing::Blocks), Just(Sharing::BlocksUntilExpiry)];
    let ask = (0_u8..3, sharing, 0_u32..12, 0_u32..6, 0_u32..8, 0_u32..4).prop_map(
        |(account, sharing, limit, floor, more, used)| Ask {
            account: format!("{}:{sharing:?}:{account}", if sharing.in_blocks() { "b" } else { "k" }).into(),
            limit,
            floor,
            want: floor + more,
            used,
            sharing,
        },
    );
    let asks = prop::collection::vec(ask, 0..5).prop_map(|mut asks| {
        asks.sort_by(|a, b| a.account.cmp(&b.account));
        asks.dedup_by(|a, b| a.account == b.account);
        asks
    });
    let asks = asks.prop_shuffle();
    let step = prop_oneof![
        2 => (0_usize..5, kind).prop_map(|(member, kind)| Step::Beat { member, kind }),
        6 => (0_usize..5, asks, prop::bool::weighted(0.1), prop::bool::weighted(0.05))
            .prop_map(|(member, asks, stale, lost)| Step::Settle { member, asks, stale, lost }),
        1 => (0_usize..5).prop_map(|member| Step::Leave { member }),
    ];
    let step = prop_oneof![9 => step, 2 => draw.prop_map(Step::Draw)];
    prop::collection::vec(step, 1..60)
}

/// Of buckets that get a token every few hours: no test sees one come.
fn draw() -> impl Strategy<Value = Draw> {
    (0_u8..2, 1_u32..4, 0_u32..6, 0_u32..5).prop_map(|(bucket, hours, burst, want)| Draw {
        bucket: format!("r:{bucket}").into(),
        per_second: 1.0 / f64::from(hours * 3600),
        burst,
        want,
    })
}

/// Five incarnations of three names.
fn members() -> Vec<MemberId> {
    [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a:b", 1)]
        .map(|(name, epoch)| MemberId::new(name, epoch))
        .to_vec()
}

/// Tells the ledger and a store the same stories. `handles` are of one store: each step goes to the next of them, and what
/// one has done, the others know.
pub(crate) fn check<S: Store>(cases: u32, handles: impl AsyncFn() -> [S; 2]) {
    check_with(draw(), cases, handles);
}

/// As [`check`], with other draws.
pub(crate) fn check_with<S: Store>(
    draw: impl Strategy<Value = Draw>,
    cases: u32,
    handles: impl AsyncFn() -> [S; 2],
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() })
        .run(&steps(draw), |steps| {
            runtime.block_on(async { compare(&handles().await, steps).await });
            Ok(())
        })
        .unwrap();
}

async fn compare<S: Store>(handles: &[S; 2], steps: Vec<Step>) {
    let (ledger, mut members, mut seen) = (MemoryStore::new(), members(), BTreeSet::<Arc<str>>::new());
    for (step, number) in steps.into_iter().zip(1_u64..) {
        let store = &handles[(number % 2) as usize];
        match &step {
            Step::Beat { member, kind } => {
                let beat = Beat { member: members[*member].clone(), ttl: TTL, kind: *kind, generation: 1 };
                let (theirs, ours) = (store.beat(beat.clone()).await, ledger.beat(beat).await);
                assert_eq!(theirs.unwrap(), ours.unwrap(), "{step:?}");
            }
            Step::Settle { member, asks, stale, lost } => {
                let settlement = Settlement {
                    member: members[*member].clone(),
                    sequence: if *stale { number / 2 } else { number },
                    landed: if *lost { number } else { 0 },
                    pressure: TTL,
                    asks: asks.clone(),
                };
                let theirs = store.settle(settlement.clone()).await.unwrap();
                assert_eq!(theirs, ledger.settle(settlement).await.unwrap(), "{step:?}");
                seen.extend(asks.iter().map(|ask| ask.account.clone()));
            }
            Step::Leave { member } => {
                ledger.leave(members[*member].clone()).await.unwrap();
                store.leave(members[*member].clone()).await.unwrap();
                // An incarnation that has left never comes back.
                members[*member] = MemberId::new(members[*member].name(), 100 + number);
            }
            Step::Draw(draw) => {
                let (theirs, ours) = (store.draw(draw.clone()).await, ledger.draw(draw.clone()).await);
                assert_eq!(hourly(theirs.unwrap()), hourly(ours.unwrap()), "{step:?}");
            }
        }
        let known: Vec<_> = seen.iter().cloned().collect();
        let (theirs, ours) = (store.look(known.clone()).await, ledger.look(known).await);
        assert_eq!(timeless(theirs.unwrap()), timeless(ours.unwrap()), "after {step:?}");
    }
}

/// Tokens, and for how many hours to wait, but for what passes while the test runs.
fn hourly(drawn: Drawn) -> (u32, u64) {
    (drawn.tokens, (drawn.wait.as_secs() + 1800) / 3600)
}

/// Without expiries, and in one order.
fn timeless(mut holdings: Holdings) -> Holdings {
    holdings.members.iter_mut().for_each(|life| life.expires_in_ms = None);
    holdings.members.sort_by(|a, b| a.member.cmp(&b.member));
    holdings.accounts.sort_by(|a, b| a.account.cmp(&b.account));
    for account in &mut holdings.accounts {
        account.shares.sort_by(|a, b| a.member.cmp(&b.member));
    }
    holdings
}

#[test]
fn redis_answers_as_the_ledger_does() {
    let server = Redis::shared();
    check(150, async || {
        let namespace = namespace("agreement");
        [settled_store(server, &namespace).await, settled_store(server, &namespace).await]
    });
}

fn one_of(bucket: &str, per_second: f64, burst: u32) -> Draw {
    Draw { bucket: bucket.into(), per_second, burst, want: 1 }
}

#[tokio::test]
async fn two_that_draw_from_one_bucket_get_a_burst_and_its_rate_together() {
    const RATE: f64 = 50.0;
    let (server, namespace) = (Redis::shared(), namespace("rate"));
    let (one, other) = (settled_store(server, &namespace).await, settled_store(server, &namespace).await);
    const EACH: u32 = 50;
    let began = Instant::now();
    let draw = async |store: &RedisStore| {
        let mut given = 0;
        while given < EACH {
            let drawn = store.draw(one_of("r:dials", RATE, 3)).await.unwrap();
            given += drawn.tokens;
            tokio::time::sleep(drawn.wait).await;
        }
    };
    within("both get theirs", futures_util::future::join(draw(&one), draw(&other))).await;
    let given = f64::from(2 * EACH);
    // One more, for two clocks that needn't run alike.
    let most = 3.0 + RATE * began.elapsed().as_secs_f64() + 1.0;
    assert!(given <= most, "{given} of {most}");
}

#[tokio::test]
async fn whoever_waits_for_as_long_as_redis_says_gets_a_token() {
    let store = settled_store(Redis::shared(), &namespace("wait")).await;
    // A token every 142.857… ms: no busy machine asks so late that it never has to wait.
    let draw = async || store.draw(one_of("r:dials", 7.0, 2)).await.unwrap();
    let mut waits = 0;
    while waits < 10 {
        let drawn = draw().await;
        if drawn.tokens == 0 {
            waits += 1;
            tokio::time::sleep(drawn.wait).await;
            assert_eq!(draw().await.tokens, 1, "after {drawn:?}");
        }
    }
}

#[tokio::test]
async fn a_store_without_memory_rebuilds_for_one_ttl() {
    let store = {
        let client = forebay_redis::RedisClient::connect(Redis::shared().url()).await.unwrap();
        RedisStore::new(client, &namespace("rebuild"))
    };
    let member = MemberId::new("a", 1);
    let ttl = Duration::from_millis(300);
    let beat = Beat { member: member.clone(), ttl, kind: BeatKind::Join, generation: u64::MAX };
    let pulse = store.beat(beat.clone()).await.unwrap();
    assert_eq!((pulse.standing, pulse.generation, pulse.members), (Standing::Joined, u64::MAX, 1));
    assert!(pulse.rebuild_left > Duration::from_millis(200) && pulse.rebuild_left <= ttl);

    let ask = Ask { account: "k:x".into(), limit: 3, floor: 1, want: 2, used: 1, sharing: Sharing::Exact };
    let settle = async |sequence| {
        let asks = vec![ask.clone()];
        let settlement = Settlement { member: member.clone(), sequence, landed: 0, pressure: ttl, asks };
        store.settle(settlement).await.unwrap()
    };
    let Settled::Landed(answers) = settle(1).await else { panic!("it is a member") };
    assert_eq!(answers[0].count, 1, "what it holds is written down, no more");

    let stay = Beat { kind: BeatKind::Stay, ..beat.clone() };
    until("the rebuilding ends", PATIENCE, async || {
        store.beat(stay.clone()).await.unwrap().rebuild_left.is_zero()
    })
    .await;
    tokio::time::sleep(ttl).await;
    let other = Beat { member: MemberId::new("a", 2), ..beat.clone() };
    assert_eq!(store.beat(other).await.unwrap().members, 1, "time passes with beats: the first has expired");
    assert_eq!(settle(2).await, Settled::Unknown);
    let again = store.beat(beat).await.unwrap();
    assert_eq!((again.generation, again.rebuild_left), (u64::MAX, Duration::ZERO));
    let Settled::Landed(answers) = settle(3).await else { panic!("it joined again") };
    assert_eq!(answers[0].count, 2);
}
