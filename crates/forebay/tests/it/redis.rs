//! Gates that share limits through one Redis.

use std::cell::RefCell;
use std::time::Duration;

use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

const BEAT_MS: u64 = 300;
const TTL_MS: u64 = 2_000;
/// TTL of tests that check that a step takes less than one TTL. Long enough for a busy machine.
const LONG_TTL_MS: u64 = 15_000;

/// Settings of gates that share a namespace. Each test has its own namespace.
struct GateCluster {
    origin: StreamingUpstream,
    url: String,
    namespace: &'static str,
    ttl_ms: u64,
    total: u32,
}

impl GateCluster {
    async fn new(redis: &Redis, namespace: &'static str, total: u32, ttl_ms: u64) -> GateCluster {
        GateCluster { origin: StreamingUpstream::start().await, url: redis.url(), namespace, ttl_ms, total }
    }

    /// Starts a gate and waits until its counts are complete. The first gate of a namespace
    /// rebuilds for one TTL, because the store may have lost the data of other members.
    async fn gate(&self) -> ForebayProcess {
        let gate = self.start("share");
        until("the quota mode is normal", async || mode(&gate).await == "normal").await;
        gate
    }

    /// Starts a gate and waits only until it listens.
    fn start(&self, policy: &str) -> ForebayProcess {
        let (total, beat, ttl) = (self.total.to_string(), BEAT_MS.to_string(), self.ttl_ms.to_string());
        let mut settings = vec![
            ("FOREBAY_REDIS_URL", self.url.as_str()),
            ("FOREBAY_REDIS_NAMESPACE", self.namespace),
            ("FOREBAY_QUOTA_BEAT_MS", &beat),
            ("FOREBAY_QUOTA_TTL_MS", &ttl),
            ("FOREBAY_QUOTA_POLICY", policy),
            ("FOREBAY_ADMISSION_TOTAL", &total),
        ];
        settings.extend(USERS);
        ForebayProcess::start_gate_with(&self.origin.url(), &TRUSTED, &settings)
    }
}

/// Opens `count` streams of different users.
async fn fill(gate: &ForebayProcess, count: usize) -> Vec<HttpConnection> {
    let mut streams = Vec::new();
    for number in 0..count {
        let user = format!("X-User-ID: {}-{number}", gate.pid());
        streams.push(open_stream(gate, "/", &[&user]).await.unwrap());
    }
    streams
}

/// Returns the quota mode of the gate.
async fn mode(gate: &ForebayProcess) -> String {
    gate.status().await["admission"]["quota"]["mode"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_users_limit_is_exact_across_gates() {
    let cluster = GateCluster::new(Redis::shared(), "exact", 1_000, TTL_MS).await;
    let gates = [cluster.gate().await, cluster.gate().await];
    for round in 0..5 {
        let user = format!("X-User-ID: racer-{round}");
        let mut races = JoinSet::new();
        for number in 0..40 {
            let (addr, user) = (gates[number % 2].addr, user.clone());
            races.spawn(async move {
                let mut client = HttpConnection::get(addr, "/", &[&user]).await;
                (client.head().await.status, client)
            });
        }
        let results = races.join_all().await;
        let admitted = results.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(admitted, 3, "of 40 concurrent requests, in round {round}");
        assert!(results.iter().all(|(status, _)| matches!(status, 200 | 429)));
        drop(results);
    }
    for gate in &gates {
        gate.wait_until_empty().await;
    }
}

#[tokio::test]
async fn the_total_is_shared_and_a_killed_gates_permits_return() {
    let cluster = GateCluster::new(Redis::shared(), "killed", 20, TTL_MS).await;
    let (full, other) = (cluster.gate().await, cluster.gate().await);
    let _streams = fill(&full, 20).await;
    assert_eq!(open_stream(&other, "/", &["X-User-ID: late"]).await.unwrap_err().head.status, 503);

    full.signal(Signal::KILL);
    let started = Instant::now();
    until("the permits of the killed gate are free", async || {
        open_stream(&other, "/", &["X-User-ID: late"]).await.is_ok()
    })
    .await;
    let took = started.elapsed();
    let _streams = fill(&other, 19).await;
    eprintln!(
        "the permits of a killed gate were free after {took:?} (TTL {TTL_MS} ms, heartbeat {BEAT_MS} ms)"
    );
}

#[tokio::test]
async fn a_gate_that_shuts_down_returns_its_permits_at_once() {
    let cluster = GateCluster::new(Redis::shared(), "ended", 10, LONG_TTL_MS).await;
    let (mut leaving, other) = (cluster.gate().await, cluster.gate().await);
    let streams = fill(&leaving, 10).await;
    assert_eq!(open_stream(&other, "/", &["X-User-ID: late"]).await.unwrap_err().head.status, 503);
    drop(streams);
    leaving.wait_until_empty().await;
    leaving.signal(Signal::TERM);
    assert!(leaving.end().await.success());
    let started = Instant::now();
    // After a refusal, the gate refuses for some milliseconds without calling the store.
    until("the permits of the ended gate are free", async || {
        open_stream(&other, "/", &["X-User-ID: late"]).await.is_ok()
    })
    .await;
    let _streams = fill(&other, 9).await;
    assert!(started.elapsed() < Duration::from_millis(LONG_TTL_MS), "{:?}", started.elapsed());
}

#[tokio::test]
async fn streams_continue_without_redis_and_counts_reconcile_when_it_returns() {
    let redis = Redis::start().unwrap();
    let cluster = GateCluster::new(&redis, "down", 100, TTL_MS).await;
    let gates = [cluster.gate().await, cluster.gate().await];
    let mut streams = fill(&gates[0], 5).await;
    redis.kill();
    streams.extend(fill(&gates[0], 5).await);
    until("the outage policy applies", async || mode(&gates[0]).await == "degraded_share").await;
    streams.extend(fill(&gates[0], 3).await);
    assert_eq!(cluster.origin.open(), 13, "no stream was cut");
    assert_eq!(gates[0].admin("/readyz").await.head.status, 200);

    redis.revive().unwrap();
    for gate in &gates {
        until("the mode is normal again", async || mode(gate).await == "normal").await;
    }
    until("the other gate counts the streams", async || {
        gates[1].status().await["statistics"]["total_connections"] == 13
    })
    .await;
    drop(streams);
    gates[0].wait_until_empty().await;
}

#[tokio::test]
async fn the_first_gate_admits_at_once_and_so_it_does_after_redis_lost_its_data() {
    let redis = Redis::start().unwrap();
    let cluster = GateCluster::new(&redis, "first", 10, LONG_TTL_MS).await;
    let gate = cluster.start("share");
    assert_eq!(mode(&gate).await, "rebuilding");
    assert_eq!(gate.admin("/readyz").await.head.status, 200);
    let _streams = fill(&gate, 9).await;
    redis.kill();
    redis.revive().unwrap();
    let last = RefCell::new(None);
    // Within milliseconds after the restart, the gate may still find no connection to Redis.
    until("the gate admits again", async || {
        let stream = open_stream(&gate, "/", &["X-User-ID: last"]).await.ok();
        last.replace(stream);
        last.borrow().is_some()
    })
    .await;
    let rejected = open_stream(&gate, "/", &["X-User-ID: late"]).await.unwrap_err();
    assert_eq!((rejected.head.status, cluster.origin.open()), (503, 10));
    assert_eq!(mode(&gate).await, "rebuilding", "all of this happened during the rebuild");
}

#[tokio::test]
async fn a_closed_gate_is_ready_once_it_admits_and_stays_ready() {
    let redis = Redis::start().unwrap();
    let cluster = GateCluster::new(&redis, "ready", 10, 5_000).await;
    let gate = cluster.start("closed");
    let response = gate.admin("/readyz").await;
    let text = String::from_utf8(response.body).unwrap();
    assert_eq!(response.head.status, 503, "{text}");
    assert!(text.contains("the quota is rebuilding") && text.contains("one TTL"), "{text}");
    assert_eq!(open_stream(&gate, "/", &["X-User-ID: early"]).await.unwrap_err().head.status, 503);
    assert_eq!(gate.admin("/healthz").await.head.status, 200, "a restart would not help");
    until("the gate is ready", async || gate.admin("/readyz").await.head.status == 200).await;
    let _stream = open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap();
    let second = cluster.start("closed");
    assert_eq!(second.admin("/readyz").await.head.status, 200, "the second gate of a namespace doesn't wait");

    // All gates lose the store's data together, so they stay ready: otherwise no gate would get
    // requests.
    let client = forebay_redis::RedisClient::connect(redis.url()).await.unwrap();
    client.exec::<()>(("FLUSHALL",)).await.unwrap();
    until("the gate rebuilds again", async || mode(&gate).await == "rebuilding").await;
    assert_eq!(gate.admin("/readyz").await.head.status, 200);
    assert_eq!(mode(&gate).await, "rebuilding", "the gate was still rebuilding at the probe");
}

#[tokio::test]
async fn a_gate_starts_without_redis_and_logs_a_warning() {
    let origin = StreamingUpstream::start().await;
    let url = format!("redis://:s3cr3t@127.0.0.1:{}", forebay_sandbox::free_port());
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--redis", &url], &[]);
    let warning = gate.wait_for_log("quota degraded: store unavailable, retrying");
    assert_eq!(warning["policy"], "share");
    assert_eq!(gate.admin("/readyz").await.head.status, 200, "the gate serves by its outage policy");
    open_stream(&gate, "/", &[]).await.unwrap();
    let everywhere = gate.log() + &gate.status().await.to_string() + &gate.metrics().await;
    assert!(!everywhere.contains("s3cr3t"), "the password is visible");
}

#[tokio::test]
async fn a_gate_reads_its_password_file_again_when_it_reconnects() {
    let redis = Redis::builder().acl_user("ada", "on >first ~* &* +@all").start().unwrap();
    let admin = RedisClient::connect(redis.url()).await.unwrap();
    let file = std::env::temp_dir().join(format!("forebay-redis-password-{}", std::process::id()));
    std::fs::write(&file, "first\n").unwrap();
    let origin = StreamingUpstream::start().await;
    let (url, path) = (format!("redis://ada@{}", redis.addr()), file.display().to_string());
    let settings = [
        ("FOREBAY_REDIS_URL", url.as_str()),
        ("FOREBAY_REDIS_PASSWORD_FILE", &path),
        ("FOREBAY_QUOTA_BEAT_MS", "300"),
        ("FOREBAY_QUOTA_TTL_MS", "2000"),
    ];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &settings);
    until("the quota mode is normal", async || mode(&gate).await == "normal").await;

    admin.exec::<()>(("ACL", "SETUSER", "ada", "resetpass", ">second")).await.unwrap();
    let killed: i64 = admin.exec(("CLIENT", "KILL", "USER", "ada")).await.unwrap();
    assert!(killed >= 1);
    until("the old password is refused", async || mode(&gate).await == "degraded_share").await;
    std::fs::write(&file, "second\n").unwrap();
    until("the gate is connected again", async || mode(&gate).await == "normal").await;
    drop(open_stream(&gate, "/", &[]).await.unwrap());
    std::fs::remove_file(&file).unwrap();
}
