//! Store conformance: every store returns what the pure ledger returns, call by call, where time
//! plays no part. Also the rate of Redis under its own clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_quota::{
    Allocation, Heartbeat, HeartbeatKind, HeartbeatReply, Holdings, MemberId, Membership, MemoryStore,
    RedisStore, Settlement, SettlementReply, ShareRequest, Store, TokenReply, TokenRequest,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::within;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{TEST_TIMEOUT, namespace, settled_store, until};

/// Longer than any test.
const TTL: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
enum StoreOperation {
    Heartbeat { member: usize, kind: HeartbeatKind, members_before: u32, has_reported: bool },
    Settle { member: usize, requests: Vec<ShareRequest>, stale: bool, lost: bool, rebuild_parts: u32 },
    Leave { member: usize },
    DrawTokens(TokenRequest),
}

fn steps(draw: impl Strategy<Value = TokenRequest>) -> impl Strategy<Value = Vec<StoreOperation>> {
    let kind = prop_oneof![
        2 => Just(HeartbeatKind::Join),
        1 => Just(HeartbeatKind::TakeOver),
        2 => Just(HeartbeatKind::Renew),
    ];
    let allocation =
        prop_oneof![Just(Allocation::Exact), Just(Allocation::Blocks), Just(Allocation::BlocksUntilExpiry)];
    let request = (0_u8..3, allocation, 0_u32..12, 0_u32..6, 0_u32..8, 0_u32..4).prop_map(
        |(account, allocation, limit, floor, more, used)| ShareRequest {
            account: format!("{}:{allocation:?}:{account}", if allocation.in_blocks() { "b" } else { "k" })
                .into(),
            limit,
            floor,
            want: floor + more,
            used,
            allocation,
        },
    );
    let requests = prop::collection::vec(request, 0..5).prop_map(|mut requests| {
        requests.sort_by(|a, b| a.account.cmp(&b.account));
        requests.dedup_by(|a, b| a.account == b.account);
        requests
    });
    let requests = requests.prop_shuffle();
    let step = prop_oneof![
        2 => (0_usize..5, kind, 0_u32..4, any::<bool>()).prop_map(|(member, kind, members_before, has_reported)| {
            StoreOperation::Heartbeat { member, kind, members_before, has_reported }
        }),
        6 => (0_usize..5, requests, prop::bool::weighted(0.1), prop::bool::weighted(0.05), 0_u32..4).prop_map(
            |(member, requests, stale, lost, rebuild_parts)| {
                StoreOperation::Settle { member, requests, stale, lost, rebuild_parts }
            }
        ),
        1 => (0_usize..5).prop_map(|member| StoreOperation::Leave { member }),
    ];
    let step = prop_oneof![9 => step, 2 => draw.prop_map(StoreOperation::DrawTokens)];
    prop::collection::vec(step, 1..60)
}

/// Draws from buckets that get a token every few hours, so that none is added during a test.
fn draw() -> impl Strategy<Value = TokenRequest> {
    (0_u8..2, 1_u32..4, 0_u32..6, 0_u32..5).prop_map(|(bucket, hours, burst, want)| TokenRequest {
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

/// Runs the same random operations on the ledger and on a store. `handles` share one store; the
/// operations alternate between them.
pub(crate) fn check<S: Store>(cases: u32, handles: impl AsyncFn() -> [S; 2]) {
    check_with(draw(), cases, handles);
}

/// Like [`check`], in a new namespace: the store rebuilds during the whole test.
pub(crate) fn check_rebuild<S: Store>(cases: u32, handles: impl AsyncFn() -> [S; 2]) {
    check_against(draw(), cases, handles, || {
        let ledger = MemoryStore::new();
        ledger.lose_everything();
        ledger
    });
}

/// Like [`check`], with other draws.
pub(crate) fn check_with<S: Store>(
    draw: impl Strategy<Value = TokenRequest>,
    cases: u32,
    handles: impl AsyncFn() -> [S; 2],
) {
    check_against(draw, cases, handles, MemoryStore::new);
}

fn check_against<S: Store>(
    draw: impl Strategy<Value = TokenRequest>,
    cases: u32,
    handles: impl AsyncFn() -> [S; 2],
    ledger: impl Fn() -> MemoryStore,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() })
        .run(&steps(draw), |steps| {
            runtime.block_on(async { compare(&handles().await, ledger(), steps).await });
            Ok(())
        })
        .unwrap();
}

async fn compare<S: Store>(handles: &[S; 2], ledger: MemoryStore, steps: Vec<StoreOperation>) {
    let (mut members, mut seen) = (members(), BTreeSet::<Arc<str>>::new());
    for (step, number) in steps.into_iter().zip(1_u64..) {
        let store = &handles[(number % 2) as usize];
        match &step {
            StoreOperation::Heartbeat { member, kind, members_before, has_reported } => {
                let heartbeat = Heartbeat {
                    member: members[*member].clone(),
                    ttl: TTL,
                    kind: *kind,
                    generation: 1,
                    members_before: *members_before,
                    has_reported: *has_reported,
                };
                let (actual, expected) =
                    (store.heartbeat(heartbeat.clone()).await, ledger.heartbeat(heartbeat).await);
                assert_eq!(half_hourly(actual.unwrap()), half_hourly(expected.unwrap()), "{step:?}");
            }
            StoreOperation::Settle { member, requests, stale, lost, rebuild_parts } => {
                let settlement = Settlement {
                    member: members[*member].clone(),
                    sequence: if *stale { number / 2 } else { number },
                    last_acknowledged: if *lost { number } else { 0 },
                    pressure: TTL,
                    rebuild_parts: *rebuild_parts,
                    requests: requests.clone(),
                };
                let actual = store.settle(settlement.clone()).await.unwrap();
                assert_eq!(actual, ledger.settle(settlement).await.unwrap(), "{step:?}");
                seen.extend(requests.iter().map(|request| request.account.clone()));
            }
            StoreOperation::Leave { member } => {
                ledger.leave(members[*member].clone()).await.unwrap();
                store.leave(members[*member].clone()).await.unwrap();
                // An incarnation that has left never comes back.
                members[*member] = MemberId::new(members[*member].name(), 100 + number);
            }
            StoreOperation::DrawTokens(draw) => {
                let (actual, expected) = (store.draw(draw.clone()).await, ledger.draw(draw.clone()).await);
                assert_eq!(hourly(actual.unwrap()), hourly(expected.unwrap()), "{step:?}");
            }
        }
        let known: Vec<_> = seen.iter().cloned().collect();
        let (actual, expected) =
            (store.query_holdings(known.clone()).await, ledger.query_holdings(known).await);
        assert_eq!(timeless(actual.unwrap()), timeless(expected.unwrap()), "after {step:?}");
    }
}

/// Returns the tokens and the wait in hours, rounded to ignore the time that the test takes.
fn hourly(reply: TokenReply) -> (u32, u64) {
    (reply.tokens, (reply.wait.as_secs() + 1800) / 3600)
}

/// Rounds the time that is left of a rebuild, to ignore the time that the test takes. A rebuild
/// lasts an hour, or half an hour once all members have reported.
fn half_hourly(mut reply: HeartbeatReply) -> HeartbeatReply {
    let half_hours = (reply.rebuild_left.as_secs() + 900) / 1800;
    reply.rebuild_left = Duration::from_secs(half_hours * 1800);
    reply
}

/// Removes the expiries and sorts the lists.
fn timeless(mut holdings: Holdings) -> Holdings {
    holdings.members.iter_mut().for_each(|liveness| liveness.expires_in_ms = None);
    holdings.members.sort_by(|a, b| a.member.cmp(&b.member));
    holdings.accounts.sort_by(|a, b| a.account.cmp(&b.account));
    for account in &mut holdings.accounts {
        account.shares.sort_by(|a, b| a.member.cmp(&b.member));
    }
    holdings
}

#[test]
fn redis_replies_as_the_ledger_does() {
    let server = Redis::shared();
    check(150, async || {
        let namespace = namespace("agreement");
        [settled_store(server, &namespace).await, settled_store(server, &namespace).await]
    });
}

#[test]
fn redis_replies_as_the_ledger_does_during_a_rebuild() {
    let client = || async { RedisClient::connect(Redis::shared().url()).await.unwrap() };
    check_rebuild(150, async || {
        let namespace = namespace("agreement-rebuild");
        [RedisStore::new(client().await, &namespace), RedisStore::new(client().await, &namespace)]
    });
}

fn one_of(bucket: &str, per_second: f64, burst: u32) -> TokenRequest {
    TokenRequest { bucket: bucket.into(), per_second, burst, want: 1 }
}

#[tokio::test]
async fn two_members_of_one_bucket_get_one_burst_and_its_rate_together() {
    const RATE: f64 = 50.0;
    let (server, namespace) = (Redis::shared(), namespace("rate"));
    let (one, other) = (settled_store(server, &namespace).await, settled_store(server, &namespace).await);
    const EACH: u32 = 50;
    let started = Instant::now();
    let draw = async |store: &RedisStore| {
        let mut given = 0;
        while given < EACH {
            let reply = store.draw(one_of("r:dials", RATE, 3)).await.unwrap();
            given += reply.tokens;
            tokio::time::sleep(reply.wait).await;
        }
    };
    within("both get their tokens", futures_util::future::join(draw(&one), draw(&other))).await;
    let given = f64::from(2 * EACH);
    // One more, because the two clocks may differ.
    let most = 3.0 + RATE * started.elapsed().as_secs_f64() + 1.0;
    assert!(given <= most, "{given} of {most}");
}

#[tokio::test]
async fn a_draw_after_the_wait_that_redis_returned_gets_a_token() {
    let store = settled_store(Redis::shared(), &namespace("wait")).await;
    // A token every 142.857… ms: slow enough that even a busy machine has to wait.
    let draw = async || store.draw(one_of("r:dials", 7.0, 2)).await.unwrap();
    let mut waits = 0;
    while waits < 10 {
        let reply = draw().await;
        if reply.tokens == 0 {
            waits += 1;
            tokio::time::sleep(reply.wait).await;
            assert_eq!(draw().await.tokens, 1, "after {reply:?}");
        }
    }
}

#[tokio::test]
async fn a_new_redis_namespace_rebuilds_for_one_ttl() {
    let store = {
        let client = forebay_redis::RedisClient::connect(Redis::shared().url()).await.unwrap();
        RedisStore::new(client, &namespace("rebuild"))
    };
    let member = MemberId::new("a", 1);
    let ttl = Duration::from_millis(300);
    let heartbeat = Heartbeat {
        member: member.clone(),
        ttl,
        kind: HeartbeatKind::Join,
        generation: u64::MAX,
        members_before: 0,
        has_reported: false,
    };
    let reply = store.heartbeat(heartbeat.clone()).await.unwrap();
    assert_eq!((reply.membership, reply.generation, reply.members), (Membership::Joined, u64::MAX, 1));
    assert!(reply.rebuild_left > Duration::from_millis(200) && reply.rebuild_left <= ttl);

    let request = ShareRequest {
        account: "k:x".into(),
        limit: 3,
        floor: 1,
        want: 2,
        used: 1,
        allocation: Allocation::Exact,
    };
    let settle = async |sequence| {
        let requests = vec![request.clone()];
        let settlement = Settlement {
            member: member.clone(),
            sequence,
            last_acknowledged: 0,
            pressure: ttl,
            rebuild_parts: 0,
            requests,
        };
        store.settle(settlement).await.unwrap()
    };
    let SettlementReply::Applied(replies) = settle(1).await else { panic!("it is a member") };
    assert_eq!(replies[0].count, 1, "only what it holds is recorded");

    let stay = Heartbeat { kind: HeartbeatKind::Renew, ..heartbeat.clone() };
    until("the rebuild ends", TEST_TIMEOUT, async || {
        store.heartbeat(stay.clone()).await.unwrap().rebuild_left.is_zero()
    })
    .await;
    tokio::time::sleep(ttl).await;
    let other = Heartbeat { member: MemberId::new("a", 2), ..heartbeat.clone() };
    assert_eq!(
        store.heartbeat(other).await.unwrap().members,
        1,
        "a heartbeat advances the time: the first has expired"
    );
    assert_eq!(settle(2).await, SettlementReply::UnknownMember);
    let again = store.heartbeat(heartbeat).await.unwrap();
    assert_eq!((again.generation, again.rebuild_left), (u64::MAX, Duration::ZERO));
    let SettlementReply::Applied(replies) = settle(3).await else { panic!("it joined again") };
    assert_eq!(replies[0].count, 2);
}
