//! Redis replies with an error: READONLY, MASTERDOWN, LOADING, CLUSTERDOWN, MISCONF, OOM,
//! NOREPLICAS, BUSY.
//!
//! Each of them is an outage: the outage policy decides, no count becomes wrong, and the member
//! recovers with the server. Redis checks all of these before a script's first write, so no script
//! ends halfway.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use forebay_quota::{BudgetConfig, OutagePolicy, Quota, QuotaMode, QuotaRefusal};
use forebay_redis::RedisClient;
use forebay_sandbox::{Redis, free_port};

use crate::support::{TEST_TIMEOUT, settled_store, steady, until};

const LIMIT: u32 = 5;

/// Two members of a server that fails and recovers.
struct FaultyServer {
    server: Redis,
    admin: RedisClient,
    members: [Quota; 2],
}

impl FaultyServer {
    async fn new(server: Redis) -> Self {
        let join = async |name: &str| {
            let config = steady(name).policy(OutagePolicy::Closed);
            Quota::join(settled_store(&server, "faulty").await, config).await
        };
        let members = [join("a").await, join("b").await];
        // This client must stay connected to the failing server, which it repairs.
        let admin = RedisClient::connect(format!("{}?leave_unfit_server=false", server.url())).await.unwrap();
        FaultyServer { admin, server, members }
    }

    /// After `fail`, writes are refused with `code` and nothing is lent. After `mend`, all counts
    /// are as before.
    async fn recovers(
        &self,
        code: &str,
        fail: impl AsyncFnOnce(&RedisClient),
        mend: impl AsyncFnOnce(&RedisClient),
    ) {
        let [a, b] = &self.members;
        let users = [a, b].map(|quota| quota.keyed_limit("user", LIMIT));
        let streams = a.budget("streams", BudgetConfig::new(LIMIT));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(users[0].take("ann").await.unwrap());
        }
        let _stream = streams.take().await.unwrap();

        fail(&self.admin).await;
        until("writes are refused", TEST_TIMEOUT, async || {
            let script = ("EVAL", "redis.call('SET', KEYS[1], 1)", 1, "{faulty}:probe");
            let refused = self.admin.exec::<()>(script).await;
            refused.is_err_and(|error| error.to_string().contains(code))
        })
        .await;
        until("the members notice", TEST_TIMEOUT, async || {
            self.members.iter().all(|quota| quota.mode() != QuotaMode::Normal)
        })
        .await;
        let refusal = users[1].take("ann").await.unwrap_err();
        assert!(matches!(refusal, QuotaRefusal::Unavailable { .. }), "{code}: {refusal:?}");
        drop(held.pop()); // reported to the store after its recovery

        mend(&self.admin).await;
        until("all is normal", TEST_TIMEOUT, async || {
            self.members.iter().all(|quota| quota.mode() == QuotaMode::Normal)
        })
        .await;
        until("the store has recorded all units", TEST_TIMEOUT, async || {
            let shares = users[1].holders("ann").await.unwrap_or_default();
            shares.iter().map(|share| share.count).sum::<u32>() == 2
        })
        .await;
        for _ in 2..LIMIT {
            held.push(users[1].take("ann").await.unwrap());
        }
        for keyed in &users {
            assert_eq!(
                keyed.take("ann").await.unwrap_err(),
                QuotaRefusal::Full { used: LIMIT, limit: LIMIT },
                "{code}"
            );
        }
        drop(held);
        until("all units are returned", TEST_TIMEOUT, async || {
            users[0].holders("ann").await.is_ok_and(|shares| shares.is_empty())
        })
        .await;
    }

    /// Sends a command without waiting for the reply.
    fn send_command(&self, command: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.addr()).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        stream
    }

    async fn info(&self, line: &str) {
        until(line, TEST_TIMEOUT, async || {
            self.admin.exec::<String>(("INFO", "persistence")).await.is_ok_and(|info| info.contains(line))
        })
        .await;
    }
}

async fn set(client: &RedisClient, key: &str, value: &str) {
    client.exec::<()>(("CONFIG", "SET", key, value)).await.unwrap();
}

/// Makes the server a replica of a primary that doesn't exist.
async fn follow_missing_primary(admin: &RedisClient) {
    admin.exec::<()>(("REPLICAOF", "127.0.0.1", u32::from(free_port()))).await.unwrap();
}

async fn become_primary(admin: &RedisClient) {
    let promoted = async || admin.exec::<()>(("REPLICAOF", "NO", "ONE")).await.is_ok();
    until("it is a primary", TEST_TIMEOUT, promoted).await;
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_an_outage_until_it_recovers() {
    let faulty = FaultyServer::new(Redis::start().unwrap()).await;
    faulty.recovers("READONLY", follow_missing_primary, become_primary).await;
    set(&faulty.admin, "replica-serve-stale-data", "no").await;
    faulty.recovers("MASTERDOWN", follow_missing_primary, become_primary).await;
    let needs_replicas = async |admin: &RedisClient| set(admin, "min-replicas-to-write", "1").await;
    let needs_none = async |admin: &RedisClient| set(admin, "min-replicas-to-write", "0").await;
    faulty.recovers("NOREPLICAS", needs_replicas, needs_none).await;
    let small = async |admin: &RedisClient| set(admin, "maxmemory", "1").await;
    let large = async |admin: &RedisClient| set(admin, "maxmemory", "0").await;
    faulty.recovers("OOM", small, large).await;
}

#[tokio::test]
async fn a_server_that_cannot_save_is_an_outage_until_it_recovers() {
    let faulty = FaultyServer::new(Redis::start().unwrap()).await;
    let settings: HashMap<String, String> = faulty.admin.exec(("CONFIG", "GET", "dir")).await.unwrap();
    let in_the_way = Path::new(&settings["dir"]).join("dump.rdb");
    let fail = async |admin: &RedisClient| {
        std::fs::create_dir(&in_the_way).unwrap();
        set(admin, "save", "3600 1000000").await;
        admin.exec::<()>(("BGSAVE",)).await.unwrap();
        faulty.info("rdb_last_bgsave_status:err").await;
    };
    let mend = async |admin: &RedisClient| {
        std::fs::remove_dir(&in_the_way).unwrap();
        admin.exec::<()>(("BGSAVE",)).await.unwrap();
        faulty.info("rdb_last_bgsave_status:ok").await;
    };
    faulty.recovers("MISCONF", fail, mend).await;
}

#[tokio::test]
async fn a_server_that_is_busy_or_loading_is_an_outage_until_it_recovers() {
    let server = Redis::builder()
        .debug_command()
        .config("busy-reply-threshold", "50")
        .config("loading-process-events-interval-bytes", "1024")
        .config("rdbcompression", "no")
        .start()
        .unwrap();
    let faulty = FaultyServer::new(server).await;
    let mut open = None;
    let busy = async |_: &RedisClient| open = Some(faulty.send_command(r#"EVAL "while true do end" 0"#));
    let kill = async |_: &RedisClient| drop(faulty.send_command("SCRIPT KILL"));
    faulty.recovers("BUSY", busy, kill).await;

    let value = "x".repeat(4096);
    for number in 0..2_000 {
        faulty.admin.exec::<()>(("SET", format!("{{faulty}}:ballast-{number}"), &value)).await.unwrap();
    }
    set(&faulty.admin, "key-load-delay", "30000").await; // a minute in all
    let mut loading = None;
    let reload = async |_: &RedisClient| loading = Some(faulty.send_command("DEBUG RELOAD"));
    faulty
        .recovers("LOADING", reload, async |admin: &RedisClient| set(admin, "key-load-delay", "0").await)
        .await;
}

#[tokio::test]
async fn a_cluster_that_is_down_is_an_outage_until_it_recovers() {
    let server = Redis::builder()
        .config("cluster-enabled", "yes")
        .config("cluster-port", &free_port().to_string())
        .start()
        .unwrap();
    let admin = RedisClient::connect(server.url()).await.unwrap();
    admin.exec::<()>(("CLUSTER", "ADDSLOTSRANGE", 0, 16383)).await.unwrap();
    until("the cluster is up", TEST_TIMEOUT, async || {
        admin.exec::<()>(("SET", "{faulty}:probe", 1)).await.is_ok()
    })
    .await;
    let faulty = FaultyServer::new(server).await;
    // A slot without our keys; without it the whole cluster is down.
    let fail = async |admin: &RedisClient| admin.exec::<()>(("CLUSTER", "DELSLOTS", 1)).await.unwrap();
    let mend = async |admin: &RedisClient| admin.exec::<()>(("CLUSTER", "ADDSLOTS", 1)).await.unwrap();
    faulty.recovers("CLUSTERDOWN", fail, mend).await;
}
