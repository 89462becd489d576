//! Random faults: members under load, a store that fails at random, and a count of the units that
//! callers really hold.
//!
//! A unit counts from when its caller gets it until its caller drops it, independently of members
//! and store. Checked at every moment:
//! - `Closed`: the limit holds through every fault here;
//! - `Share`: at most one limit per member;
//! - every policy: the limit holds again once the store is available and units lent without it were
//!   returned.
//!
//! In the end one member must be able to take everything, so nothing has leaked.
//! Out of scope: a replica that lost writes (`faults.rs`), and a member that alone can't reach the
//! store for a TTL. What they hold may exceed the limit.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{BudgetConfig, MemberConfig, OutagePolicy, Quota, QuotaMode, RedisStore};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::{Proxy, TestRng, seed};
use futures_util::future::join_all;

use crate::release_0_1::Release01Store;
use crate::rolling_upgrade::AnyRelease;
use crate::support::{settled_store, until};

const LIMIT: u32 = 24;
const KEY_LIMIT: u32 = 4;
pub(crate) const MEMBERS: usize = 3;
const TTL: Duration = Duration::from_secs(2);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn config(index: usize, policy: OutagePolicy, ttl: Duration) -> MemberConfig {
    MemberConfig::new(format!("m{index}"))
        .heartbeat_interval(ttl / 10)
        .ttl(ttl)
        .call_timeout(ttl / 5)
        .join_timeout(TEST_TIMEOUT)
        .policy(policy)
}

/// Returns the duration of a run: `FOREBAY_SECONDS`, by default a minute.
pub(crate) fn span() -> Duration {
    let seconds = std::env::var("FOREBAY_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Units that callers hold, of the budget and of one key.
#[derive(Debug, Default)]
struct HolderCounts {
    lent: [AtomicU32; 2],
    most: [AtomicU32; 2],
    served: AtomicU32,
    over: AtomicBool,
}

/// One unit that a caller holds. It is dropped before its lease.
struct HeldUnit<'a>(&'a AtomicU32);

impl HolderCounts {
    fn count(&self, account: usize, bound: u32) -> HeldUnit<'_> {
        let now = self.lent[account].fetch_add(1, Ordering::SeqCst) + 1;
        self.most[account].fetch_max(now, Ordering::SeqCst);
        self.served.fetch_add(1, Ordering::SeqCst);
        assert!(now <= bound, "{now} units of account {account} are held, of {bound}");
        HeldUnit(&self.lent[account])
    }
}

impl Drop for HeldUnit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the documented bounds of the budget and of a key during faults.
fn bounds(policy: OutagePolicy) -> [u32; 2] {
    match policy {
        OutagePolicy::Closed => [LIMIT, KEY_LIMIT],
        OutagePolicy::Share => [LIMIT, KEY_LIMIT].map(|limit| limit * MEMBERS as u32),
        OutagePolicy::Open => [u32::MAX; 2],
        other => unreachable!("no bounds are documented for {other:?}"),
    }
}

/// Takes, holds and releases units at random until the run is over.
async fn load(quota: Quota, counts: Arc<HolderCounts>, bounds: [u32; 2], mut rng: TestRng) {
    let (budget, users) =
        (quota.budget("streams", BudgetConfig::new(LIMIT)), quota.keyed_limit("user", KEY_LIMIT));
    let (mut streams, mut units) = (Vec::new(), Vec::new());
    while !counts.over.load(Ordering::SeqCst) {
        match rng.below(6) {
            0..=2 => {
                streams.extend(budget.take().await.ok().map(|lease| (counts.count(0, bounds[0]), lease)))
            }
            3 => units.extend(users.take("ann").await.ok().map(|lease| (counts.count(1, bounds[1]), lease))),
            4 if !streams.is_empty() => drop(streams.swap_remove(rng.below(streams.len()))),
            4 | 5 => drop(units.pop()),
            other => unreachable!("{other} of six"),
        }
        // Limits the CPU load, and keeps units held for a while.
        tokio::time::sleep(Duration::from_millis(rng.between(1, 12) as u64)).await;
    }
}

/// Runs the load of all members beside `faults`. All units are released at the end.
async fn under_load(members: &[Quota], bounds: [u32; 2], seed: u64, faults: impl Future<Output = ()>) -> u32 {
    let counts = Arc::new(HolderCounts::default());
    let tasks: Vec<_> = (0..2 * members.len())
        .map(|number| {
            let quota = members[number % members.len()].clone();
            tokio::spawn(load(quota, counts.clone(), bounds, TestRng::of(seed, "load", number)))
        })
        .collect();
    faults.await;
    counts.over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    println!("{:?} were held at most, of {bounds:?}", counts.most);
    counts.served.load(Ordering::SeqCst)
}

/// Runs members under load with faults for `span`; then without faults; then checks that nothing
/// has leaked.
pub(crate) async fn run_with_faults(
    members: &[Quota],
    policy: OutagePolicy,
    span: Duration,
    mut inject_fault: impl AsyncFnMut(&mut TestRng) -> &'static str,
) {
    let seed = seed();
    println!("FOREBAY_SEED={seed}, {policy:?} for {span:?}");
    let mut rng = TestRng::of(seed, "storm", policy as usize);
    let (started, mut injected) = (Instant::now(), Vec::new());
    let faults = async {
        // The members lend units before the first fault.
        tokio::time::sleep(TTL / 4).await;
        while started.elapsed() < span {
            injected.push(inject_fault(&mut rng).await);
            // One pause in four is long enough for a rebuild to end. Without such pauses the closed
            // policy lends nothing, and its bound is not tested.
            let rebuild = if rng.below(4) == 0 { 2 * TTL } else { Duration::ZERO };
            tokio::time::sleep(rebuild + TTL.mul_f64(rng.below(100) as f64 / 200.0)).await;
        }
    };
    let served = under_load(members, bounds(policy), seed, faults).await;
    println!("{served} units were lent through {injected:?}");
    assert!(served > 0);

    let normal = async || members.iter().all(|quota| quota.mode() == QuotaMode::Normal);
    until("all is normal", TEST_TIMEOUT, normal).await;
    // Wait until members have reported the returned units.
    let budgets: Vec<_> =
        members.iter().map(|quota| quota.budget("streams", BudgetConfig::new(LIMIT))).collect();
    let users = members[0].keyed_limit("user", KEY_LIMIT);
    until("nothing is lent", TEST_TIMEOUT, async || {
        let holdings = members[0].query_holdings().await.unwrap_or_default();
        let lent = holdings.accounts.iter().flat_map(|all| &all.shares).map(|share| share.used);
        lent.sum::<u32>() == 0 && users.holders("ann").await.is_ok_and(|shares| shares.is_empty())
    })
    .await;
    let served = under_load(members, [LIMIT, KEY_LIMIT], seed, tokio::time::sleep(TTL / 2)).await;
    assert!(served > 0, "without faults, units are lent");

    until("one member can take everything", TEST_TIMEOUT, async || {
        let (mut streams, mut units) = (Vec::new(), Vec::new());
        while let Ok(lease) = budgets[0].take().await {
            streams.push(lease);
        }
        while let Ok(lease) = users.take("ann").await {
            units.push(lease);
        }
        assert!(streams.len() <= LIMIT as usize || policy == OutagePolicy::Open, "{}", streams.len());
        (streams.len(), units.len()) == (LIMIT as usize, KEY_LIMIT as usize)
    })
    .await;
}

/// A Redis behind a proxy, and the faults that are injected.
struct FaultyRedis {
    server: Redis,
    proxy: Proxy,
    /// The longest delay of the network.
    delay: Duration,
}

impl FaultyRedis {
    fn new(delay: Duration) -> Self {
        let server = Redis::builder().debug_command().config("busy-reply-threshold", "100").start().unwrap();
        FaultyRedis { proxy: Proxy::start(server.addr()), server, delay }
    }

    async fn client(&self) -> RedisClient {
        RedisClient::connect(format!("redis://{}", self.proxy.addr()).as_str()).await.unwrap()
    }

    /// Injects a random fault of the server or of the whole network.
    async fn inject_fault(&self, rng: &mut TestRng) -> &'static str {
        let sleep = |part: f64| tokio::time::sleep(TTL.mul_f64(part));
        match rng.below(6) {
            0 => {
                self.server.freeze();
                sleep(1.3).await;
                self.server.thaw();
                "frozen for longer than the TTL"
            }
            1 => {
                self.server.kill();
                sleep(0.1).await;
                self.server.revive().unwrap();
                "killed without persistence"
            }
            2 => {
                let _script = send_command(self.server.addr(), r#"EVAL "while true do end" 0"#);
                sleep(0.4).await;
                send_command(self.server.addr(), "SCRIPT KILL");
                "busy"
            }
            3 => {
                self.proxy.delay(self.delay);
                sleep(1.0).await;
                self.proxy.resume();
                "slow"
            }
            4 => {
                send_command(self.server.addr(), "CONFIG SET maxmemory 1");
                sleep(0.5).await;
                send_command(self.server.addr(), "CONFIG SET maxmemory 0");
                "out of memory"
            }
            _ => self.short_fault(rng).await,
        }
    }

    /// Injects a fault that is shorter than the TTL.
    async fn short_fault(&self, rng: &mut TestRng) -> &'static str {
        match rng.below(6) {
            0 => {
                self.server.freeze();
                tokio::time::sleep(TTL / 4).await;
                self.server.thaw();
                "frozen"
            }
            1 => {
                send_command(self.server.addr(), "FLUSHALL");
                "flushed"
            }
            2 => {
                send_command(self.server.addr(), "DEBUG SLEEP 0.3");
                "asleep"
            }
            3 => {
                send_command(self.server.addr(), "CLIENT KILL TYPE normal");
                "clients killed"
            }
            4 => {
                // A subscriber loses its connection with every message.
                let buffers = |limit: &str| {
                    let limit = format!(r#"CONFIG SET client-output-buffer-limit "pubsub {limit}""#);
                    send_command(self.server.addr(), &limit);
                };
                buffers("1 1 1");
                tokio::time::sleep(TTL / 4).await;
                buffers("33554432 8388608 60");
                "no buffers for subscribers"
            }
            _ => {
                self.proxy.reset();
                "reset"
            }
        }
    }
}

/// Sends a command without waiting for the reply.
fn send_command(server: SocketAddr, command: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    stream
}

async fn run_redis_faults(policy: OutagePolicy, span: Duration, delay: Duration) {
    let redis = FaultyRedis::new(delay);
    settled_store(&redis.server, "faults").await;
    let mut members = Vec::new();
    for index in 0..MEMBERS {
        let store = RedisStore::new(redis.client().await, "faults");
        members.push(Quota::join(store, config(index, policy, TTL)).await);
    }
    run_with_faults(&members, policy, span, async |rng: &mut TestRng| redis.inject_fault(rng).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_never_lend_more_than_the_limit_by_the_closed_policy() {
    run_redis_faults(OutagePolicy::Closed, 3 * TTL, TTL / 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_lend_no_more_than_each_members_limit_by_the_share_policy() {
    run_redis_faults(OutagePolicy::Share, 3 * TTL, TTL / 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_faults_the_limit_holds_by_the_open_policy() {
    run_redis_faults(OutagePolicy::Open, 3 * TTL, TTL / 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: FOREBAY_SEED and FOREBAY_SECONDS"]
async fn long_random_faults_keep_the_bounds_of_each_policy() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        run_redis_faults(policy, span(), Duration::from_secs(5)).await;
    }
}

/// A rolling upgrade. Faults are shorter than the TTL, because a heartbeat of release 0.1 that
/// comes first after a long outage starts no rebuild.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_both_releases_keep_the_limit_through_short_faults() {
    let redis = FaultyRedis::new(TTL / 2);
    let mut members = Vec::new();
    for index in 0..MEMBERS {
        let store = match index % 2 {
            0 => AnyRelease::old(&redis.server, "faults").await,
            _ => AnyRelease::new(&redis.server, "faults").await,
        };
        members.push(Quota::join(store, config(index, OutagePolicy::Closed, TTL)).await);
    }
    run_with_faults(&members, OutagePolicy::Closed, 2 * TTL, async |rng: &mut TestRng| {
        redis.short_fault(rng).await
    })
    .await;
}

/// A rolling upgrade begins with an empty Redis, with the policy that grants during a rebuild.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_both_releases_keep_the_limit_in_a_new_namespace() {
    let server = Redis::start().unwrap();
    let join = async |index: usize| {
        let client = RedisClient::connect(server.url()).await.unwrap();
        let store = match index % 2 {
            0 => AnyRelease::Old(Release01Store::new(client, "new")),
            _ => AnyRelease::New(RedisStore::new(client, "new")),
        };
        Quota::join(store, config(index, OutagePolicy::Share, 2 * TTL)).await
    };
    // All at once, two of each release.
    let members = join_all((0..4).map(join)).await;
    let served = under_load(&members, [LIMIT, KEY_LIMIT], seed(), async {
        until("the rebuild ends", TEST_TIMEOUT, async || {
            members.iter().all(|quota| quota.mode() == QuotaMode::Normal)
        })
        .await;
        tokio::time::sleep(TTL / 2).await;
    })
    .await;
    assert!(served > LIMIT, "{served} units were lent");
}
