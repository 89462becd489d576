//! A clock that was wrong: what it has dated far ahead counts for no longer than it would have under the right one.
//!
//! Redis has no clock of its own to set, so the tests write what a server with a wrong one has written. That the rule
//! holds for every step is tested with clocks handed in: `core/bucket.rs`, `core/ledger_tests.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{
    Beat, BeatKind, Calling, Draw, Drawn, Holdings, MemberConfig, MemberId, MemoryStore, Pulse, Quota,
    RateConfig, RedisStore, Settled, Settlement, Standing, Store,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;

use crate::support::{PATIENCE, namespace, settled_store, until};

const STEP_MS: u64 = 600_000;
const TTL: Duration = Duration::from_secs(2);

/// Redis's time in ms.
async fn redis_now(client: &RedisClient) -> u64 {
    let (seconds, micros): (String, String) = client.exec(("TIME",)).await.unwrap();
    seconds.parse::<u64>().unwrap() * 1000 + micros.parse::<u64>().unwrap() / 1000
}

async fn client() -> RedisClient {
    RedisClient::connect(Redis::shared().url()).await.unwrap()
}

async fn beat(store: &RedisStore, member: &MemberId, kind: BeatKind) -> Pulse {
    store.beat(Beat { member: member.clone(), ttl: TTL, kind, generation: 1 }).await.unwrap()
}

#[tokio::test]
async fn a_bucket_that_was_drawn_under_a_clock_ahead_gives_tokens_at_its_rate_at_once() {
    let (client, namespace) = (client().await, namespace("clock-rate"));
    let store = settled_store(Redis::shared(), &namespace).await;
    let draw = |per_second, burst| Draw { bucket: "r:dial".into(), per_second, burst, want: 1 };
    let ahead = (redis_now(&client).await + STEP_MS) * 1000;
    // As release 0.1 writes it, and as we do: with the time that the bucket takes to fill.
    for written in [format!("{ahead}"), format!("{ahead}.250000")] {
        client.exec::<()>(("SET", format!("{{{namespace}}}:r:dial"), &written)).await.unwrap();
        let begun = Instant::now();
        let first = store.draw(draw(20.0, 5)).await.unwrap();
        assert!(first.tokens == 0 && first.wait <= Duration::from_millis(51), "{written}: {first:?}");
        let mut given = 0;
        while given < 10 {
            let Drawn { tokens, wait } = store.draw(draw(20.0, 5)).await.unwrap();
            given += tokens;
            tokio::time::sleep(wait).await;
        }
        let most = 20.0 * begun.elapsed().as_secs_f64() + 1.0;
        assert!(f64::from(given) <= most, "{written}: {given} of {most}: it was empty");
    }
}

#[tokio::test]
async fn a_member_with_a_smaller_burst_leaves_a_larger_ones_debt_alone() {
    let store = settled_store(Redis::shared(), &namespace("clock-bursts")).await;
    let draw = async |burst, want| {
        let bucket = Draw { bucket: "r:dial".into(), per_second: 0.001, burst, want };
        store.draw(bucket).await.unwrap().tokens
    };
    assert_eq!((draw(100, 100).await, draw(1, 1).await, draw(100, 1).await), (100, 0, 0));
}

#[tokio::test]
async fn a_rebuilding_that_was_begun_under_a_clock_ahead_lasts_a_ttl_at_most() {
    let (client, namespace, member) = (client().await, namespace("clock-rebuild"), MemberId::new("a", 1));
    let store = settled_store(Redis::shared(), &namespace).await;
    let ahead = redis_now(&client).await + STEP_MS;
    client.exec::<u64>(("HSET", format!("{{{namespace}}}:m"), "!", format!("1:{ahead}"))).await.unwrap();
    let begun = Instant::now();
    let pulse = beat(&store, &member, BeatKind::Join).await;
    assert_eq!(pulse.rebuild_left, TTL);
    until("it ends", PATIENCE, async || beat(&store, &member, BeatKind::Stay).await.rebuild_left.is_zero())
        .await;
    assert!(begun.elapsed() >= TTL, "members have their time to tell");
}

#[tokio::test]
async fn who_died_under_a_clock_ahead_is_dead_a_ttl_after_it_was_set_right() {
    let (client, namespace) = (client().await, namespace("clock-death"));
    let store = settled_store(Redis::shared(), &namespace).await;
    let [witness, dead, old, new] =
        [("w", 1), ("dead", 1), ("same", 1), ("same", 2)].map(|(name, epoch)| MemberId::new(name, epoch));
    for member in [&witness, &dead, &old, &new] {
        beat(&store, member, BeatKind::Join).await;
    }
    beat(&store, &new, BeatKind::TakeOver).await;
    let ahead = (redis_now(&client).await + STEP_MS).to_string();
    for (key, member) in [("m", &dead), ("m", &new), ("x", &old)] {
        let key = format!("{{{namespace}}}:{key}");
        assert_eq!(
            client.exec::<u64>(("HSET", key, member.as_str(), &ahead)).await.unwrap(),
            0,
            "it is there"
        );
    }
    until("only the witness lives", PATIENCE, async || {
        assert!(matches!(beat(&store, &witness, BeatKind::Stay).await.standing, Standing::Alive { .. }));
        let members = store.look(Vec::new()).await.unwrap().members;
        members.iter().all(|life| life.member == witness)
    })
    .await;
    let lives: Vec<String> = client.exec(("HKEYS", format!("{{{namespace}}}:t"))).await.unwrap();
    assert_eq!(lives, [witness.as_str()], "nothing is left of the others");
}

/// Names a wait of ten minutes once, as a store with a wrong clock may.
struct WrongOnce(MemoryStore, AtomicBool);

impl Store for WrongOnce {
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        self.0.beat(beat)
    }

    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        self.0.settle(settlement)
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        self.0.leave(member)
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        if self.1.swap(true, Ordering::SeqCst) {
            return self.0.draw(draw);
        }
        Box::pin(async { Ok(Drawn { tokens: 0, wait: Duration::from_millis(STEP_MS) }) })
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        self.0.look(accounts)
    }

    fn kind(&self) -> &'static str {
        "wrong once"
    }
}

#[tokio::test(start_paused = true)]
async fn however_long_a_store_says_to_wait_it_is_asked_again_soon() {
    let store = WrongOnce(MemoryStore::new(), AtomicBool::new(false));
    let quota = Quota::join(store, MemberConfig::new("a")).await;
    let begun = tokio::time::Instant::now();
    quota.rate("dial", RateConfig::per_second(10.0)).take().await.unwrap().spend();
    assert!(begun.elapsed() <= Duration::from_secs(2), "{:?}", begun.elapsed());
}
