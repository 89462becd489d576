//! Redis answers with an error: READONLY, MASTERDOWN, LOADING, CLUSTERDOWN, MISCONF, OOM, NOREPLICAS, BUSY.
//!
//! To a member each of them is an outage: its policy decides. No count is wrong then or later, and once the server is well the
//! member is back by itself. Redis checks all of these before a script's first write, so no script ends halfway.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use forebay_quota::{BudgetConfig, Mode, Policy, Quota, Refusal};
use forebay_redis::RedisClient;
use forebay_sandbox::{Redis, free_port};

use crate::support::{PATIENCE, settled_store, steady, until};

const LIMIT: u32 = 5;

/// Two members of a server that fails and is mended.
struct Patient {
    server: Redis,
    admin: RedisClient,
    members: [Quota; 2],
}

impl Patient {
    async fn new(server: Redis) -> Self {
        let join = async |name: &str| {
            let config = steady(name).policy(Policy::Closed);
            Quota::join(settled_store(&server, "patient").await, config).await
        };
        let members = [join("a").await, join("b").await];
        // It stays on a server that refuses: it is to mend it.
        let admin = RedisClient::connect(format!("{}?leave_unfit_server=false", server.url())).await.unwrap();
        Patient { admin, server, members }
    }

    /// While `fail` has its way, writes are refused with `code` and nothing is lent; after `mend`, all is as it was.
    async fn recovers(
        &self,
        code: &str,
        fail: impl AsyncFnOnce(&RedisClient),
        mend: impl AsyncFnOnce(&RedisClient),
    ) {
        let [a, b] = &self.members;
        let users = [a, b].map(|quota| quota.keyed("user", LIMIT));
        let streams = a.budget("streams", BudgetConfig::new(LIMIT));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(users[0].take("ann").await.unwrap());
        }
        let _stream = streams.take().await.unwrap();

        fail(&self.admin).await;
        until("writes are refused", PATIENCE, async || {
            let script = ("EVAL", "redis.call('SET', KEYS[1], 1)", 1, "{patient}:probe");
            let refused = self.admin.exec::<()>(script).await;
            refused.is_err_and(|error| error.to_string().contains(code))
        })
        .await;
        until("the members know", PATIENCE, async || {
            self.members.iter().all(|quota| quota.mode() != Mode::Normal)
        })
        .await;
        let refusal = users[1].take("ann").await.unwrap_err();
        assert!(matches!(refusal, Refusal::Unavailable { .. }), "{code}: {refusal:?}");
        drop(held.pop()); // the store hears of it when it is well

        mend(&self.admin).await;
        until("all is normal", PATIENCE, async || {
            self.members.iter().all(|quota| quota.mode() == Mode::Normal)
        })
        .await;
        until("the store knows of everything", PATIENCE, async || {
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
                Refusal::Full { used: LIMIT, limit: LIMIT },
                "{code}"
            );
        }
        drop(held);
        until("all of it comes back", PATIENCE, async || {
            users[0].holders("ann").await.is_ok_and(|shares| shares.is_empty())
        })
        .await;
    }

    /// Says something to the server without waiting for an answer.
    fn order(&self, order: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.addr()).unwrap();
        stream.write_all(format!("{order}\r\n").as_bytes()).unwrap();
        stream
    }

    async fn info(&self, line: &str) {
        until(line, PATIENCE, async || {
            self.admin.exec::<String>(("INFO", "persistence")).await.is_ok_and(|info| info.contains(line))
        })
        .await;
    }
}

async fn set(client: &RedisClient, key: &str, value: &str) {
    client.exec::<()>(("CONFIG", "SET", key, value)).await.unwrap();
}

/// Makes it the replica of a master that isn't there.
async fn follow_nobody(admin: &RedisClient) {
    admin.exec::<()>(("REPLICAOF", "127.0.0.1", u32::from(free_port()))).await.unwrap();
}

async fn be_master(admin: &RedisClient) {
    let promoted = async || admin.exec::<()>(("REPLICAOF", "NO", "ONE")).await.is_ok();
    until("it is a master", PATIENCE, promoted).await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_an_outage_that_ends_with_it() {
    let patient = Patient::new(Redis::start().unwrap()).await;
    patient.recovers("READONLY", follow_nobody, be_master).await;
    set(&patient.admin, "replica-serve-stale-data", "no").await;
    patient.recovers("MASTERDOWN", follow_nobody, be_master).await;
    let needs_replicas = async |admin: &RedisClient| set(admin, "min-replicas-to-write", "1").await;
    let needs_none = async |admin: &RedisClient| set(admin, "min-replicas-to-write", "0").await;
    patient.recovers("NOREPLICAS", needs_replicas, needs_none).await;
    let small = async |admin: &RedisClient| set(admin, "maxmemory", "1").await;
    let large = async |admin: &RedisClient| set(admin, "maxmemory", "0").await;
    patient.recovers("OOM", small, large).await;
}

#[tokio::test]
async fn a_server_that_cannot_save_is_an_outage_that_ends_with_it() {
    let patient = Patient::new(Redis::start().unwrap()).await;
    let settings: HashMap<String, String> = patient.admin.exec(("CONFIG", "GET", "dir")).await.unwrap();
    let in_the_way = Path::new(&settings["dir"]).join("dump.rdb");
    let fail = async |admin: &RedisClient| {
        std::fs::create_dir(&in_the_way).unwrap();
        set(admin, "save", "3600 1000000").await;
        admin.exec::<()>(("BGSAVE",)).await.unwrap();
        patient.info("rdb_last_bgsave_status:err").await;
    };
    let mend = async |admin: &RedisClient| {
        std::fs::remove_dir(&in_the_way).unwrap();
        admin.exec::<()>(("BGSAVE",)).await.unwrap();
        patient.info("rdb_last_bgsave_status:ok").await;
    };
    patient.recovers("MISCONF", fail, mend).await;
}

#[tokio::test]
async fn a_server_that_is_busy_or_loads_is_an_outage_that_ends_with_it() {
    let server = Redis::builder()
        .debug_command()
        .config("busy-reply-threshold", "50")
        .config("loading-process-events-interval-bytes", "1024")
        .config("rdbcompression", "no")
        .start()
        .unwrap();
    let patient = Patient::new(server).await;
    let mut open = None;
    let busy = async |_: &RedisClient| open = Some(patient.order(r#"EVAL "while true do end" 0"#));
    let kill = async |_: &RedisClient| drop(patient.order("SCRIPT KILL"));
    patient.recovers("BUSY", busy, kill).await;

    let value = "x".repeat(4096);
    for number in 0..2_000 {
        patient.admin.exec::<()>(("SET", format!("{{patient}}:ballast-{number}"), &value)).await.unwrap();
    }
    set(&patient.admin, "key-load-delay", "30000").await; // a minute in all
    let mut loading = None;
    let reload = async |_: &RedisClient| loading = Some(patient.order("DEBUG RELOAD"));
    patient
        .recovers("LOADING", reload, async |admin: &RedisClient| set(admin, "key-load-delay", "0").await)
        .await;
}

#[tokio::test]
async fn a_cluster_that_is_down_is_an_outage_that_ends_with_it() {
    let server = Redis::builder()
        .config("cluster-enabled", "yes")
        .config("cluster-port", &free_port().to_string())
        .start()
        .unwrap();
    let admin = RedisClient::connect(server.url()).await.unwrap();
    admin.exec::<()>(("CLUSTER", "ADDSLOTSRANGE", 0, 16383)).await.unwrap();
    until("the cluster is up", PATIENCE, async || {
        admin.exec::<()>(("SET", "{patient}:probe", 1)).await.is_ok()
    })
    .await;
    let patient = Patient::new(server).await;
    // A slot that nothing of ours is in; without it the whole cluster is down.
    let fail = async |admin: &RedisClient| admin.exec::<()>(("CLUSTER", "DELSLOTS", 1)).await.unwrap();
    let mend = async |admin: &RedisClient| admin.exec::<()>(("CLUSTER", "ADDSLOTS", 1)).await.unwrap();
    patient.recovers("CLUSTERDOWN", fail, mend).await;
}
