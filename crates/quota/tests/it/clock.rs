//! A Redis whose clock was ahead: times written then count no longer than under the right clock.
//!
//! Redis's clock can't be set, so the tests write what a server with a wrong clock would have
//! written. `core/bucket.rs` and `core/ledger_tests.rs` test the rule with clocks passed in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{
    Heartbeat, HeartbeatKind, HeartbeatReply, Holdings, MemberConfig, MemberId, Membership, MemoryStore,
    Quota, RateConfig, Settlement, SettlementReply, Store, StoreFuture, TokenReply, TokenRequest,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;

use crate::support::{TEST_TIMEOUT, heartbeat, namespace, redis_now, settled_store, until};

const STEP_MS: u64 = 600_000;
const TTL: Duration = Duration::from_secs(2);

async fn client() -> RedisClient {
    RedisClient::connect(Redis::shared().url()).await.unwrap()
}

#[tokio::test]
async fn a_bucket_written_under_a_clock_ahead_gives_tokens_at_its_rate_at_once() {
    let (client, namespace) = (client().await, namespace("clock-rate"));
    let store = settled_store(Redis::shared(), &namespace).await;
    let draw = |per_second, burst| TokenRequest { bucket: "r:dial".into(), per_second, burst, want: 1 };
    let ahead = (redis_now(&client).await + STEP_MS) * 1000;
    // As release 0.1 writes it, and as this release does, with the bucket's depth.
    for written in [format!("{ahead}"), format!("{ahead}.250000")] {
        client.exec::<()>(("SET", format!("{{{namespace}}}:r:dial"), &written)).await.unwrap();
        let started = Instant::now();
        let first = store.draw(draw(20.0, 5)).await.unwrap();
        assert!(first.tokens == 0 && first.wait <= Duration::from_millis(51), "{written}: {first:?}");
        let mut given = 0;
        while given < 10 {
            let TokenReply { tokens, wait } = store.draw(draw(20.0, 5)).await.unwrap();
            given += tokens;
            tokio::time::sleep(wait).await;
        }
        let most = 20.0 * started.elapsed().as_secs_f64() + 1.0;
        assert!(f64::from(given) <= most, "{written}: {given} of {most}: it was empty");
    }
}

#[tokio::test]
async fn a_draw_with_a_smaller_burst_gives_a_larger_one_no_tokens() {
    let store = settled_store(Redis::shared(), &namespace("clock-bursts")).await;
    let draw = async |burst, want| {
        let bucket = TokenRequest { bucket: "r:dial".into(), per_second: 0.001, burst, want };
        store.draw(bucket).await.unwrap().tokens
    };
    assert_eq!((draw(100, 100).await, draw(1, 1).await, draw(100, 1).await), (100, 0, 0));
}

#[tokio::test]
async fn a_rebuild_started_under_a_clock_ahead_lasts_one_ttl_at_most() {
    let (client, namespace, member) = (client().await, namespace("clock-rebuild"), MemberId::new("a", 1));
    let store = settled_store(Redis::shared(), &namespace).await;
    let ahead = redis_now(&client).await + STEP_MS;
    client.exec::<u64>(("HSET", format!("{{{namespace}}}:m"), "!", format!("1:{ahead}"))).await.unwrap();
    let started = Instant::now();
    let reply = heartbeat(&store, &member, HeartbeatKind::Join, TTL).await;
    assert_eq!(reply.rebuild_left, TTL);
    until("it ends", TEST_TIMEOUT, async || {
        heartbeat(&store, &member, HeartbeatKind::Renew, TTL).await.rebuild_left.is_zero()
    })
    .await;
    assert!(started.elapsed() >= TTL, "members have one TTL to report");
}

#[tokio::test]
async fn a_member_that_died_under_a_clock_ahead_expires_one_ttl_after_the_clock_is_right() {
    let (client, namespace) = (client().await, namespace("clock-death"));
    let store = settled_store(Redis::shared(), &namespace).await;
    let [witness, dead, old, new] =
        [("w", 1), ("dead", 1), ("same", 1), ("same", 2)].map(|(name, epoch)| MemberId::new(name, epoch));
    for member in [&witness, &dead, &old, &new] {
        heartbeat(&store, member, HeartbeatKind::Join, TTL).await;
    }
    heartbeat(&store, &new, HeartbeatKind::TakeOver, TTL).await;
    let ahead = (redis_now(&client).await + STEP_MS).to_string();
    for (key, member) in [("m", &dead), ("m", &new), ("x", &old)] {
        let key = format!("{{{namespace}}}:{key}");
        assert_eq!(
            client.exec::<u64>(("HSET", key, member.as_str(), &ahead)).await.unwrap(),
            0,
            "it is there"
        );
    }
    until("only the witness is alive", TEST_TIMEOUT, async || {
        assert!(matches!(
            heartbeat(&store, &witness, HeartbeatKind::Renew, TTL).await.membership,
            Membership::Alive { .. }
        ));
        let members = store.query_holdings(Vec::new()).await.unwrap().members;
        members.iter().all(|liveness| liveness.member == witness)
    })
    .await;
    // Members that expired after the last heartbeat are no longer listed; the next heartbeat
    // removes them.
    heartbeat(&store, &witness, HeartbeatKind::Renew, TTL).await;
    let ttls: Vec<String> = client.exec(("HKEYS", format!("{{{namespace}}}:t"))).await.unwrap();
    assert_eq!(ttls, [witness.as_str()], "nothing is left of the others");
}

/// Returns a wait of ten minutes once, like a store with a wrong clock.
struct WrongClockStore(MemoryStore, AtomicBool);

impl Store for WrongClockStore {
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        self.0.heartbeat(heartbeat)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        self.0.settle(settlement)
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        self.0.leave(member)
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        if self.1.swap(true, Ordering::SeqCst) {
            return self.0.draw(draw);
        }
        Box::pin(async { Ok(TokenReply { tokens: 0, wait: Duration::from_millis(STEP_MS) }) })
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        self.0.query_holdings(accounts)
    }

    fn kind(&self) -> &'static str {
        "wrong once"
    }
}

#[tokio::test(start_paused = true)]
async fn a_draw_is_repeated_soon_however_long_the_store_says_to_wait() {
    let store = WrongClockStore(MemoryStore::new(), AtomicBool::new(false));
    let quota = Quota::join(store, MemberConfig::new("a")).await;
    let started = tokio::time::Instant::now();
    quota.rate("dial", RateConfig::per_second(10.0)).take().await.unwrap().spend();
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
}
