//! Gates that meet in one Redis.

use std::time::Duration;

use forebay_sandbox::Redis;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gate::Gate;
use crate::limits::{TRUSTED, USERS, open};
use crate::origin::Streams;
use crate::wire::{Client, until};

const BEAT_MS: u64 = 300;
const TTL_MS: u64 = 2_000;
/// So long that a busy machine, too, does in less what must not take a TTL.
const LONG_TTL_MS: u64 = 15_000;

/// Gates of one namespace, each in a namespace of the test's own.
struct Cluster {
    origin: Streams,
    url: String,
    namespace: &'static str,
    ttl_ms: u64,
    total: u32,
}

impl Cluster {
    async fn new(redis: &Redis, namespace: &'static str, total: u32, ttl_ms: u64) -> Cluster {
        Cluster { origin: Streams::start().await, url: redis.url(), namespace, ttl_ms, total }
    }

    /// A gate that admits: the first in a namespace waits for a TTL, in case others are there and were forgotten.
    async fn gate(&self) -> Gate {
        let gate = self.start();
        until("the quota is normal", async || mode(&gate).await == "normal").await;
        gate
    }

    fn start(&self) -> Gate {
        let (total, beat, ttl) = (self.total.to_string(), BEAT_MS.to_string(), self.ttl_ms.to_string());
        let mut settings = vec![
            ("FOREBAY_REDIS_URL", self.url.as_str()),
            ("FOREBAY_REDIS_NAMESPACE", self.namespace),
            ("FOREBAY_QUOTA_BEAT_MS", &beat),
            ("FOREBAY_QUOTA_TTL_MS", &ttl),
            ("FOREBAY_ADMISSION_TOTAL", &total),
        ];
        settings.extend(USERS);
        Gate::start_with(&self.origin.url(), &TRUSTED, &settings)
    }
}

async fn fill(gate: &Gate, count: usize) -> Vec<Client> {
    let mut streams = Vec::new();
    for number in 0..count {
        let user = format!("X-User-ID: {}-{number}", gate.pid());
        streams.push(open(gate, "/", &[&user]).await.unwrap());
    }
    streams
}

async fn mode(gate: &Gate) -> String {
    gate.status().await["admission"]["quota"]["mode"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_user_s_limit_is_exact_across_gates() {
    let cluster = Cluster::new(Redis::shared(), "exact", 1_000, TTL_MS).await;
    let gates = [cluster.gate().await, cluster.gate().await];
    for round in 0..5 {
        let user = format!("X-User-ID: racer-{round}");
        let mut races = JoinSet::new();
        for number in 0..40 {
            let (addr, user) = (gates[number % 2].addr, user.clone());
            races.spawn(async move {
                let mut client = Client::get(addr, "/", &[&user]).await;
                (client.head().await.status, client)
            });
        }
        let results = races.join_all().await;
        let admitted = results.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(admitted, 3, "of 40 at once, in round {round}");
        assert!(results.iter().all(|(status, _)| matches!(status, 200 | 429)));
        drop(results);
    }
    for gate in &gates {
        gate.empty().await;
    }
}

#[tokio::test]
async fn the_total_is_shared_and_a_killed_gate_s_part_comes_back() {
    let cluster = Cluster::new(Redis::shared(), "killed", 20, TTL_MS).await;
    let (full, other) = (cluster.gate().await, cluster.gate().await);
    let _streams = fill(&full, 20).await;
    assert_eq!(open(&other, "/", &["X-User-ID: late"]).await.unwrap_err().head.status, 503);

    full.signal(Signal::KILL);
    let begun = Instant::now();
    until("the dead gate's places are free", async || open(&other, "/", &["X-User-ID: late"]).await.is_ok())
        .await;
    let took = begun.elapsed();
    let _streams = fill(&other, 19).await;
    eprintln!("capacity of a killed gate came back after {took:?} (TTL {TTL_MS} ms, beat {BEAT_MS} ms)");
}

#[tokio::test]
async fn a_gate_that_ends_in_order_gives_everything_back_at_once() {
    let cluster = Cluster::new(Redis::shared(), "ended", 10, LONG_TTL_MS).await;
    let (mut leaving, other) = (cluster.gate().await, cluster.gate().await);
    let streams = fill(&leaving, 10).await;
    assert_eq!(open(&other, "/", &["X-User-ID: late"]).await.unwrap_err().head.status, 503);
    drop(streams);
    leaving.empty().await;
    leaving.signal(Signal::TERM);
    assert!(leaving.end().await.success());
    let begun = Instant::now();
    // A refusal holds for some milliseconds before the store is asked again.
    until("its places are free", async || open(&other, "/", &["X-User-ID: late"]).await.is_ok()).await;
    let _streams = fill(&other, 9).await;
    assert!(begun.elapsed() < Duration::from_millis(LONG_TTL_MS), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn without_redis_streams_go_on_and_its_return_mends_everything() {
    let redis = Redis::start().unwrap();
    let cluster = Cluster::new(&redis, "down", 100, TTL_MS).await;
    let gates = [cluster.gate().await, cluster.gate().await];
    let mut streams = fill(&gates[0], 5).await;
    redis.kill();
    streams.extend(fill(&gates[0], 5).await);
    until("the policy holds", async || mode(&gates[0]).await == "degraded_share").await;
    streams.extend(fill(&gates[0], 3).await);
    assert_eq!(cluster.origin.open(), 13, "nobody was cut");
    assert_eq!(gates[0].admin("/readyz").await.head.status, 200);

    redis.revive().unwrap();
    for gate in &gates {
        until("the mode is normal again", async || mode(gate).await == "normal").await;
    }
    until("the other gate knows of them", async || {
        gates[1].status().await["statistics"]["total_connections"] == 13
    })
    .await;
    drop(streams);
    gates[0].empty().await;
}

#[tokio::test]
async fn a_gate_is_ready_when_it_first_admits_and_stays_so() {
    let redis = Redis::start().unwrap();
    let cluster = Cluster::new(&redis, "ready", 10, 5_000).await;
    let gate = cluster.start();
    let answer = gate.admin("/readyz").await;
    let said = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.head.status, 503, "{said}");
    assert!(said.contains("the quota is rebuilding") && said.contains("one TTL"), "{said}");
    assert_eq!(open(&gate, "/", &["X-User-ID: early"]).await.unwrap_err().head.status, 503);
    assert_eq!(gate.admin("/healthz").await.head.status, 200, "to restart it would help nobody");
    until("it is ready", async || gate.admin("/readyz").await.head.status == 200).await;
    let _stream = open(&gate, "/", &["X-User-ID: ada"]).await.unwrap();
    let second = cluster.start();
    assert_eq!(second.admin("/readyz").await.head.status, 200, "the second in a namespace waits for nobody");

    // All gates lose the store's memory at once: to send nobody to any of them would help nobody, either.
    let client = forebay_redis::RedisClient::connect(redis.url()).await.unwrap();
    client.exec::<()>(("FLUSHALL",)).await.unwrap();
    until("it rebuilds again", async || mode(&gate).await == "rebuilding").await;
    assert_eq!(gate.admin("/readyz").await.head.status, 200);
    assert_eq!(mode(&gate).await, "rebuilding", "and did so when it was asked");
}

#[tokio::test]
async fn a_gate_starts_without_redis_and_says_so() {
    let origin = Streams::start().await;
    let url = format!("redis://:s3cr3t@127.0.0.1:{}", forebay_sandbox::free_port());
    let gate = Gate::start_with(&origin.url(), &["--redis", &url], &[]);
    let warning = gate.wait_for_log("quota degraded: Redis unavailable, retrying");
    assert_eq!(warning["policy"], "share");
    assert_eq!(gate.admin("/readyz").await.head.status, 200, "it serves by its policy");
    open(&gate, "/", &[]).await.unwrap();
    let everywhere = gate.log() + &gate.status().await.to_string() + &gate.metrics().await;
    assert!(!everywhere.contains("s3cr3t"), "a password is told to nobody");
}
