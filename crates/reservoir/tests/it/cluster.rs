//! Four processes that share one budget of connections, and one rate of opening them, watched through the server's own eyes.
//!
//! A child is this test binary again, told by its environment to keep a reservoir; it does so until its standard input ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_quota::{MemberConfig, Quota, RateConfig, RedisStore};
use forebay_reservoir::{Limits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, metrics};
use forebay_sandbox::{Postgres, Redis};
use forebay_testkit::{PATIENCE, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;

const CHILD: &str = "FOREBAY_TEST_RESERVOIR";
const BUDGET: i64 = 20;
/// A child that stands still for longer loses its share while it still uses it.
const TTL: Duration = Duration::from_secs(4);
const BEAT: Duration = Duration::from_millis(400);

/// So fast that the budget is what holds.
const FAST: f64 = 100.0;

/// What a child says of itself.
#[derive(Debug)]
struct Status {
    mode: String,
    total: u32,
    local_only: String,
}

struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// `store` is what the child makes its quota of.
    fn start(server: &Postgres, store: &str, name: &str, per_second: f64) -> Self {
        let postgres = format!("postgres://app@{}/postgres?application_name={name}", server.addr());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["cluster::a_child_keeps_a_reservoir", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{postgres} {store} {name} {per_second}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Process { child, orders, answers }
    }

    /// The mode in which its quota decides, how many connections it has, and what its metric says of local limits.
    fn status(&mut self) -> Status {
        writeln!(self.orders, "status").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some((_, answer)) = line.split_once('@') {
                let [mode, total, local_only] =
                    answer.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
                let total = total.parse().unwrap();
                return Status { mode: mode.into(), total, local_only: local_only.into() };
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started as a child by one of the tests below.
#[test]
fn a_child_keeps_a_reservoir() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let words: Vec<_> = orders.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(keep(words[0], words[1], words[2], words[3].parse().unwrap()));
}

async fn keep(postgres: &str, store: &str, name: &str, per_second: f64) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let (kind, rest) = store.split_once('|').unwrap();
    let (address, namespace) = rest.split_once('|').unwrap();
    let member =
        MemberConfig::new(name).ttl(TTL).heartbeat_interval(BEAT).call_timeout(TTL).join_timeout(PATIENCE);
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
    let limits = Limits::shared(quota.clone()).rate(rate).connections(BUDGET as u32);
    // More than its part of the budget, and lives of a few seconds, so that connections come and go
    // all the time; but not so
    // short that on a busy machine a slow store grants fewer than end.
    let life = Duration::from_secs(if kind == "dynamodb" { 15 } else { 2 });
    let config = ReservoirConfig::new(8)
        .base_lifetime(life)
        .lifetime_jitter(life)
        .guard_window(Duration::from_millis(200));
    let reservoir = Reservoir::start(PostgresConnect::new(postgres).unwrap(), config, limits).unwrap();
    let (sender, mut orders) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    loop {
        tokio::select! {
            order = orders.recv() => match order {
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

/// The server's own count of the children's connections.
struct Watch {
    observer: Reservoir<PostgresClient>,
    most: i64,
}

impl Watch {
    async fn start(server: &Postgres) -> Self {
        let connect = PostgresConnect::new(&server.url("postgres")).unwrap();
        let observer = Reservoir::start(connect, ReservoirConfig::new(1), Limits::local()).unwrap();
        Watch { observer, most: 0 }
    }

    async fn count(&self) -> i64 {
        let client = self.observer.checkout_within(PATIENCE).await.unwrap();
        let sql =
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND backend_type = 'client backend'";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// The name of the child that has the most.
    async fn busiest(&self) -> String {
        let client = self.observer.checkout_within(PATIENCE).await.unwrap();
        let sql = "SELECT application_name FROM pg_stat_activity WHERE usename = 'app' AND backend_type = 'client backend'
                   GROUP BY 1 ORDER BY count(*) DESC LIMIT 1";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Of the child that has the most.
    async fn most_of_one(&self) -> i64 {
        let client = self.observer.checkout_within(PATIENCE).await.unwrap();
        let sql = "SELECT coalesce(max(count), 0) FROM (SELECT count(*) FROM pg_stat_activity
                   WHERE usename = 'app' AND backend_type = 'client backend' GROUP BY application_name) children";
        client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// When each connection that is open was opened, in seconds, by its process.
    async fn starts(&self) -> Vec<(i32, f64)> {
        let client = self.observer.checkout_within(PATIENCE).await.unwrap();
        let sql = "SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity
                   WHERE usename = 'app' AND backend_type = 'client backend'";
        client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Likewise; and it must never be more than the budget.
    async fn backends(&mut self) -> i64 {
        let count = self.count().await;
        self.most = self.most.max(count);
        assert!(count <= BUDGET, "{count} connections of a budget of {BUDGET}");
        count
    }

    /// Looks every 50 ms.
    async fn look_for(&mut self, span: Duration) {
        let began = Instant::now();
        while began.elapsed() < span {
            self.backends().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Looks every 50 ms until nearly all of the budget is in use.
    async fn until_used(&mut self, children: &mut [Process]) {
        let began = Instant::now();
        // Connections come and go: the budget is used if all but those that are being replaced are open.
        while self.backends().await < BUDGET - 2 {
            if began.elapsed() > PATIENCE {
                let children: Vec<_> = children.iter_mut().map(Process::status).collect();
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

fn four(server: &Postgres, store: &str, per_second: f64) -> Vec<Process> {
    (0..4).map(|at| Process::start(server, store, &format!("m{at}"), per_second)).collect()
}

async fn one_is_killed_and_started_again(store: &str) {
    let server = server();
    let mut watch = Watch::start(&server).await;
    let mut children = four(&server, store, FAST);
    watch.until_used(&mut children).await;
    watch.look_for(Duration::from_secs(3)).await;
    let busiest = watch.busiest().await;
    children.swap_remove(busiest[1..].parse().unwrap());
    let killed = Instant::now();
    // What it had is the others' after a TTL and a beat, and it is gone before that only from the server's books.
    watch.look_for(TTL / 2).await;
    watch.until_used(&mut children).await;
    println!("{store}: the share of a killed process is back after {:?}", killed.elapsed());
    children.push(Process::start(&server, store, &busiest, FAST));
    watch.look_for(Duration::from_secs(3)).await;
    assert!(watch.most > BUDGET - 3, "only {} were ever open", watch.most);
    assert_eq!(children[3].status().mode, "normal");
}

#[tokio::test]
async fn four_processes_share_a_budget_through_redis_while_one_is_killed() {
    let redis = Redis::start().unwrap();
    one_is_killed_and_started_again(&format!("redis|{}|budget", redis.url())).await;
}

#[tokio::test]
async fn without_their_store_they_go_by_local_limits_and_agree_again_when_it_is_back() {
    let (server, redis) = (server(), Redis::start().unwrap());
    let mut watch = Watch::start(&server).await;
    let mut children = four(&server, &format!("redis|{}|outage", redis.url()), FAST);
    watch.until_used(&mut children).await;
    eventually("the budget of the cluster holds", true, async || {
        children.iter_mut().all(|child| child.status().local_only == "0")
    })
    .await;
    redis.kill();
    // Within the TTL they lend what they have; beyond it each has its equal part of the budget, or what it had before.
    eventually("they say so", true, async || {
        children
            .iter_mut()
            .map(Process::status)
            .all(|child| (child.mode.as_str(), child.local_only.as_str()) == ("degraded_share", "1"))
    })
    .await;
    let part = BUDGET / 4;
    eventually("each has its part", true, async || {
        children.iter_mut().all(|child| i64::from(child.status().total) >= part)
    })
    .await;
    eventually("what one had beyond its part has ended", true, async || watch.most_of_one().await <= part)
        .await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let most = watch.most_of_one().await;
        assert!(most <= part, "one has {most}, its part is {part}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    redis.revive().unwrap();
    eventually("they agree again", true, async || {
        children
            .iter_mut()
            .map(Process::status)
            .all(|child| (child.mode.as_str(), child.local_only.as_str()) == ("normal", "0"))
    })
    .await;
    // What is too much is a debt: nobody opens another before enough have ended.
    eventually("the debt is paid", true, async || watch.count().await <= BUDGET).await;
    watch.look_for(Duration::from_secs(3)).await;
    watch.until_used(&mut children).await;
}

/// They would use up more than the rate: twenty connections that live for three seconds are seven a second.
#[tokio::test]
async fn four_processes_share_a_rate_through_redis() {
    const RATE: f64 = 5.0;
    const BURST: f64 = 1.0; // a tenth of a second's worth, and at least one
    const OPENED: usize = 40;
    // A token is spent before the dial, and the server's clock is read after it: on a busy machine, up to this much later.
    const SLACK: f64 = 2.0;
    let (server, redis) = (server(), Redis::start().unwrap());
    let watch = Watch::start(&server).await;
    let _children = four(&server, &format!("redis|{}|rate", redis.url()), RATE);
    let (mut opened, began) = (BTreeMap::new(), Instant::now());
    // Each lives for many looks.
    while opened.len() < OPENED {
        assert!(began.elapsed() < 5 * PATIENCE, "only {} were opened", opened.len());
        opened.extend(watch.starts().await.into_iter().map(|(pid, at)| ((pid, at.to_bits()), at)));
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
