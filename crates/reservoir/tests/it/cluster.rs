//! Four processes that share one budget and one rate of connections, checked in `pg_stat_activity`.
//!
//! A child is this test binary; an environment variable makes it run a reservoir until its standard
//! input ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_quota::{MemberConfig, Quota, RateConfig, RedisStore};
use forebay_reservoir::{
    ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, metrics,
};
use forebay_sandbox::{Postgres, Redis};
use forebay_testkit::{TEST_TIMEOUT, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;

const CHILD: &str = "FOREBAY_TEST_RESERVOIR";
const BUDGET: i64 = 20;
/// A child that stalls for longer loses its share while it still uses it.
const TTL: Duration = Duration::from_secs(4);
const BEAT: Duration = Duration::from_millis(400);

/// Fast enough that the budget is the limit.
const FAST: f64 = 100.0;

/// Status that a child prints.
#[derive(Debug)]
struct Status {
    mode: String,
    total: u32,
    local_only: String,
}

struct ReservoirProcess {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl ReservoirProcess {
    /// `store` describes the store of the child's quota.
    fn start(server: &Postgres, store: &str, name: &str, per_second: f64) -> Self {
        let postgres = format!("postgres://app@{}/postgres?application_name={name}", server.addr());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["cluster::a_child_keeps_a_reservoir", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{postgres} {store} {name} {per_second}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        ReservoirProcess { child, requests, replies }
    }

    /// Returns the quota's mode, the number of connections, and the gauge of local limits.
    fn status(&mut self) -> Status {
        writeln!(self.requests, "status").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.replies.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some((_, reply)) = line.split_once('@') {
                let [mode, total, local_only] =
                    reply.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
                let total = total.parse().unwrap();
                return Status { mode: mode.into(), total, local_only: local_only.into() };
            }
        }
    }
}

impl Drop for ReservoirProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started as a child by one of the tests below.
#[test]
fn a_child_keeps_a_reservoir() {
    let Ok(requests) = std::env::var(CHILD) else { return };
    let args: Vec<_> = requests.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(keep(args[0], args[1], args[2], args[3].parse().unwrap()));
}

async fn keep(postgres: &str, store: &str, name: &str, per_second: f64) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let (kind, rest) = store.split_once('|').unwrap();
    let (address, namespace) = rest.split_once('|').unwrap();
    let member = MemberConfig::new(name)
        .ttl(TTL)
        .heartbeat_interval(BEAT)
        .call_timeout(TTL)
        .join_timeout(TEST_TIMEOUT);
    let quota = match kind {
        "redis" => Quota::join(RedisStore::open(address, namespace).unwrap(), member).await,
        #[cfg(feature = "dynamodb")]
        "dynamodb" => {
            let store = dynamo::store(address, namespace).await;
            Quota::join(store, member).await
        }
        other => panic!("no such store: {other}"),
    };
    let rate = RateConfig::per_second(per_second);
    let limits = ConnectionLimits::shared(quota.clone()).rate(rate).connections(BUDGET as u32);
    // More than its share of the budget, and lifetimes of a few seconds, so that connections are
    // replaced all the time. On a busy machine, a slow store must still grant as many as expire.
    let life = Duration::from_secs(if kind == "dynamodb" { 15 } else { 2 });
    let config = ReservoirConfig::new(8)
        .base_lifetime(life)
        .lifetime_jitter(life)
        .guard_window(Duration::from_millis(200));
    let reservoir = Reservoir::start(PostgresConnect::new(postgres).unwrap(), config, limits).unwrap();
    let (sender, mut requests) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    loop {
        tokio::select! {
            request = requests.recv() => match request {
                Some(_) => {
                    let total = reservoir.status().counts.total();
                    println!("@{} {total} {}", quota.mode(), local_only(&page.render()));
                }
                None => return,
            },
            client = reservoir.checkout() => {
                if let Ok(client) = client {
                    let _ = client.simple_query("SELECT pg_sleep(0.005)").await;
                }
            }
        }
    }
}

fn local_only(page: &str) -> &str {
    let series = page.lines().find(|line| line.starts_with(&format!("{}{{", metrics::LOCAL_ONLY)));
    series.and_then(|series| series.rsplit(' ').next()).unwrap_or("nothing")
}

/// Counts the connections of the children in `pg_stat_activity`.
struct BackendCounter {
    observer: Reservoir<PostgresClient>,
    most: i64,
}

impl BackendCounter {
    async fn start(server: &Postgres) -> Self {
        let connect = PostgresConnect::new(&server.url("postgres")).unwrap();
        let observer = Reservoir::start(connect, ReservoirConfig::new(1), ConnectionLimits::local()).unwrap();
        BackendCounter { observer, most: 0 }
    }

    async fn count(&self) -> i64 {
        let client = self.observer.checkout_within(TEST_TIMEOUT).await.unwrap();
        let sql =
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND backend_type = 'client backend'";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns the name of the child with the most connections.
    async fn busiest(&self) -> String {
        let client = self.observer.checkout_within(TEST_TIMEOUT).await.unwrap();
        let sql = "SELECT application_name FROM pg_stat_activity WHERE usename = 'app' AND backend_type = 'client backend'
                   GROUP BY 1 ORDER BY count(*) DESC LIMIT 1";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns the number of connections of that child.
    async fn most_of_one(&self) -> i64 {
        let client = self.observer.checkout_within(TEST_TIMEOUT).await.unwrap();
        let sql = "SELECT coalesce(max(count), 0) FROM (SELECT count(*) FROM pg_stat_activity
                   WHERE usename = 'app' AND backend_type = 'client backend' GROUP BY application_name) children";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns the process id and start time in seconds of each open connection.
    async fn starts(&self) -> Vec<(i32, f64)> {
        let client = self.observer.checkout_within(TEST_TIMEOUT).await.unwrap();
        let sql = "SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity
                   WHERE usename = 'app' AND backend_type = 'client backend'";
        client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Counts connections; fails if there are more than the budget.
    async fn backends(&mut self) -> i64 {
        let count = self.count().await;
        self.most = self.most.max(count);
        assert!(count <= BUDGET, "{count} connections of a budget of {BUDGET}");
        count
    }

    /// Checks every 50 ms.
    async fn sample_for(&mut self, span: Duration) {
        let began = Instant::now();
        while began.elapsed() < span {
            self.backends().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Checks every 50 ms until nearly all of the budget is in use.
    async fn until_used(&mut self, children: &mut [ReservoirProcess]) {
        let began = Instant::now();
        // Connections are replaced all the time: the budget counts as used if at most two are
        // missing.
        while self.backends().await < BUDGET - 2 {
            if began.elapsed() > TEST_TIMEOUT {
                let children: Vec<_> = children.iter_mut().map(ReservoirProcess::status).collect();
                panic!("only {} of {BUDGET} are open: {children:?}", self.count().await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn server() -> Postgres {
    let server = Postgres::start().unwrap();
    server.execute("postgres", "CREATE ROLE app LOGIN").unwrap();
    server
}

fn four(server: &Postgres, store: &str, per_second: f64) -> Vec<ReservoirProcess> {
    (0..4).map(|at| ReservoirProcess::start(server, store, &format!("m{at}"), per_second)).collect()
}

async fn one_is_killed_and_started_again(store: &str) {
    let server = server();
    let mut backends = BackendCounter::start(&server).await;
    let mut children = four(&server, store, FAST);
    backends.until_used(&mut children).await;
    backends.sample_for(Duration::from_secs(3)).await;
    let busiest = backends.busiest().await;
    children.swap_remove(busiest[1..].parse().unwrap());
    let killed = Instant::now();
    // The share of the killed process is free after a TTL and a beat, not before.
    backends.sample_for(TTL / 2).await;
    backends.until_used(&mut children).await;
    println!("{store}: the share of a killed process is back after {:?}", killed.elapsed());
    children.push(ReservoirProcess::start(&server, store, &busiest, FAST));
    backends.sample_for(Duration::from_secs(3)).await;
    assert!(backends.most > BUDGET - 3, "only {} were ever open", backends.most);
    assert_eq!(children[3].status().mode, "normal");
}

#[tokio::test]
async fn four_processes_share_a_budget_through_redis_while_one_is_killed() {
    let redis = Redis::start().unwrap();
    one_is_killed_and_started_again(&format!("redis|{}|budget", redis.url())).await;
}

#[tokio::test]
async fn after_flushall_no_more_connections_are_open_than_the_budget() {
    let (server, redis) = (server(), Redis::start().unwrap());
    let mut backends = BackendCounter::start(&server).await;
    let mut children = four(&server, &format!("redis|{}|flush", redis.url()), FAST);
    backends.until_used(&mut children).await;
    let (mut socket, mut reply) = (TcpStream::connect(redis.addr()).unwrap(), [0; 5]);
    socket.write_all(b"FLUSHALL\r\n").unwrap();
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    eventually("the counts are rebuilt", true, async || {
        backends.backends().await;
        children.iter_mut().any(|child| child.status().mode == "rebuilding")
    })
    .await;
    eventually("the counts are complete", true, async || {
        backends.backends().await;
        children.iter_mut().all(|child| child.status().mode == "normal")
    })
    .await;
    backends.sample_for(Duration::from_secs(1)).await;
    backends.until_used(&mut children).await;
}

#[tokio::test]
async fn without_the_store_processes_use_local_limits_until_it_returns() {
    let (server, redis) = (server(), Redis::start().unwrap());
    let mut backends = BackendCounter::start(&server).await;
    let mut children = four(&server, &format!("redis|{}|outage", redis.url()), FAST);
    backends.until_used(&mut children).await;
    eventually("the budget of the cluster holds", true, async || {
        children.iter_mut().all(|child| child.status().local_only == "0")
    })
    .await;
    redis.kill();
    // Within the TTL they use what they hold; after it each has an equal share of the budget, or
    // what it held before.
    eventually("local limits are reported", true, async || {
        children
            .iter_mut()
            .map(ReservoirProcess::status)
            .all(|child| (child.mode.as_str(), child.local_only.as_str()) == ("degraded_share", "1"))
    })
    .await;
    let part = BUDGET / 4;
    eventually("each has its share", true, async || {
        children.iter_mut().all(|child| i64::from(child.status().total) >= part)
    })
    .await;
    eventually("no process has more than its share", true, async || backends.most_of_one().await <= part)
        .await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let most = backends.most_of_one().await;
        assert!(most <= part, "one has {most}, its share is {part}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    redis.revive().unwrap();
    eventually("the shared budget is enforced again", true, async || {
        children
            .iter_mut()
            .map(ReservoirProcess::status)
            .all(|child| (child.mode.as_str(), child.local_only.as_str()) == ("normal", "0"))
    })
    .await;
    // Excess connections are a debt: no process opens another until enough are closed.
    eventually("the debt is paid", true, async || backends.count().await <= BUDGET).await;
    backends.sample_for(Duration::from_secs(3)).await;
    backends.until_used(&mut children).await;
}

/// The children would exceed the rate: twenty connections that live for three seconds are seven per
/// second.
#[tokio::test]
async fn four_processes_share_a_rate_through_redis() {
    const RATE: f64 = 5.0;
    const BURST: f64 = 1.0; // a tenth of a second's worth, and at least one
    const OPENED: usize = 40;
    // The token is spent before the dial, and the server records its time after it: on a busy
    // machine up to this much later.
    const SLACK: f64 = 2.0;
    let (server, redis) = (server(), Redis::start().unwrap());
    let backends = BackendCounter::start(&server).await;
    let _children = four(&server, &format!("redis|{}|rate", redis.url()), RATE);
    let (mut opened, began) = (BTreeMap::new(), Instant::now());
    // Each connection lives for many checks.
    while opened.len() < OPENED {
        assert!(began.elapsed() < 5 * TEST_TIMEOUT, "only {} were opened", opened.len());
        opened.extend(backends.starts().await.into_iter().map(|(pid, at)| ((pid, at.to_bits()), at)));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut starts: Vec<f64> = opened.into_values().collect();
    starts.sort_by(f64::total_cmp);
    for count in [20, OPENED] {
        let least = (count as f64 - BURST) / RATE - SLACK;
        for window in starts.windows(count) {
            let took = window[count - 1] - window[0];
            assert!(took >= least, "{count} within {took} s, and not {least} s: {window:?}");
        }
    }
}

#[cfg(feature = "dynamodb")]
mod dynamo {
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::config::{Credentials, Region};
    use forebay_quota::DynamoStore;
    use forebay_sandbox::DynamoDb;

    pub(super) async fn store(url: &str, namespace: &str) -> DynamoStore {
        let config = DynamoStore::client_config()
            .endpoint_url(url)
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("sandbox", "sandbox", None, None, "sandbox"))
            .build();
        DynamoStore::create_table(Client::from_conf(config), "leases", namespace).await.unwrap()
    }

    #[tokio::test]
    async fn four_processes_share_a_budget_through_dynamodb_while_one_is_killed() {
        let dynamo = DynamoDb::start().unwrap();
        super::one_is_killed_and_started_again(&format!("dynamodb|{}|budget", dynamo.url())).await;
    }
}
