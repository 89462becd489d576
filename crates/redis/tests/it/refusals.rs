//! Refusals: every row of the table in `src/core/refusal.rs`, from a real server that sends the
//! error.
//!
//! Each test checks the connection, the caller's error and `retry()`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_redis::{
    ConnectionLoss, Event, ExecError, Gap, LuaScript, Protocol, RedisClient, RequestError, RespValue, Retry,
    ServerRefusal, State,
};
use forebay_sandbox::Redis;
use forebay_testkit::Direction;
use futures_util::future::join_all;
use tokio::net::{TcpListener, TcpStream};

use super::support::*;

/// Returns the refusal in a server error.
fn refusal(error: &ExecError) -> Option<ServerRefusal> {
    error.server().and_then(|error| error.refusal())
}

/// Sends `words`, which the server refuses. Checks the error, and that the connection stays open.
async fn assert_connection_kept(client: &RedisClient, words: &[&str], expected: ServerRefusal, retry: Retry) {
    let connections = client.stats().connections;
    let error = client.exec::<RespValue>((words,)).await.unwrap_err();
    assert_eq!((refusal(&error), error.retry()), (Some(expected), retry), "{error}");
    assert!(!expected.ends_connection());
    assert_eq!((client.state(), client.stats().connections), (State::Open, connections), "{error}");
}

/// Sends `words`, which the server refuses. Checks the error, and that the client reconnects.
async fn assert_connection_ends(client: &RedisClient, words: &[&str], expected: ServerRefusal) {
    let mut changes = status_from_now(client).await;
    let error = client.exec::<RespValue>((words,)).await.unwrap_err();
    assert_eq!((refusal(&error), error.retry()), (Some(expected), Retry::Safe), "{error}");
    assert!(expected.ends_connection());
    let failed = wait_for_state(&mut changes, State::Failed).await;
    assert!(
        matches!(failed.last_error, Some(ConnectionLoss::Unfit(reason)) if reason == expected),
        "{failed:?}"
    );
    wait_for_state(&mut changes, State::Open).await;
}

/// Sends a command that is unknown to the client and to the server. A refused probe must not end
/// the connection.
async fn assert_unknown_command(client: &RedisClient) {
    let connections = client.stats().connections;
    let error = client.exec::<RespValue>(("NO.SUCH", "key")).await.unwrap_err();
    assert_eq!(error.server().map(|error| error.code()), Some("ERR"), "{error}");
    assert_eq!((client.state(), client.stats().connections), (State::Open, connections), "{error}");
}

async fn become_replica(admin: &RedisClient, of: SocketAddr) {
    admin.exec::<()>(("REPLICAOF", of.ip().to_string(), of.port())).await.unwrap();
}

/// Starts a master that replicates without delay.
fn replicated() -> Redis {
    Redis::builder().config("repl-diskless-sync-delay", "0").start().unwrap()
}

/// An address without a listener.
const UNUSED_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[tokio::test]
async fn readonly_ends_the_connection_also_from_scripts_and_transactions() {
    let redis = start();
    let (client, admin) = (connect(fast_reconnect(redis.url())).await, connect(redis.url()).await);
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    become_replica(&admin, UNUSED_ADDRESS).await;
    assert_connection_ends(&client, &["SET", "key", "other"], ServerRefusal::ReadOnly).await;
    assert_connection_ends(
        &client,
        &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"],
        ServerRefusal::ReadOnly,
    )
    .await;

    let mut changes = status_from_now(&client).await;
    let error = client.transaction::<(RespValue,)>((("INCR", "key"),)).await.unwrap_err();
    assert_eq!(refusal(&error), Some(ServerRefusal::ReadOnly), "{error}");
    wait_for_reconnect(&mut changes).await;
    let mut changes = status_from_now(&client).await;
    // A replica queues a script. Its error is among the results of EXEC, and the other commands
    // have run.
    let script = ("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key");
    let (set, get) = client.transaction::<(RespValue, String)>((script, ("GET", "key"))).await.unwrap();
    let error = ExecError::Reply(set.unwrap_err());
    assert_eq!((refusal(&error), error.retry()), (Some(ServerRefusal::ReadOnly), Retry::Safe), "{error}");
    assert_eq!(get.as_deref(), Ok("value"));
    let failed = wait_for_state(&mut changes, State::Failed).await;
    assert!(matches!(failed.last_error, Some(ConnectionLoss::Unfit(ServerRefusal::ReadOnly))), "{failed:?}");
    wait_for_state(&mut changes, State::Open).await;
    let mut changes = status_from_now(&client).await;
    let (get, set) = client.pipeline::<(String, RespValue)>((("GET", "key"), ("DEL", "key"))).await.unwrap();
    assert_eq!((get.as_deref(), set.unwrap_err().retry()), (Ok("value"), Retry::Safe));
    wait_for_reconnect(&mut changes).await;

    // A dedicated connection reconnects at its next call.
    let mut own = client.dedicated().await.unwrap();
    let first: i64 = own.exec(("CLIENT", "ID")).await.unwrap();
    let error = own.exec::<RespValue>(("DEL", "key")).await.unwrap_err();
    assert_eq!(refusal(&error), Some(ServerRefusal::ReadOnly));
    assert_ne!(own.exec::<i64>(("CLIENT", "ID")).await.unwrap(), first);
}

#[tokio::test]
async fn a_client_that_only_reads_from_a_replica_keeps_its_connection() {
    let (master, replica) = (replicated(), start());
    let writer = connect(master.url()).await;
    let reader = connect(replica.url()).await;
    become_replica(&reader, master.addr()).await;
    writer.exec::<()>(("SET", "key", 1)).await.unwrap();
    eventually("the replica has the key", Some(1), async || reader.exec(("GET", "key")).await.unwrap()).await;
    let read = LuaScript::new("return redis.call('GET', KEYS[1])");
    for _ in 0..100 {
        assert_eq!(reader.exec::<i64>(("GET", "key")).await.unwrap(), 1);
        assert_eq!(read.run::<i64>(&reader, ["key"], [0; 0]).await.unwrap(), 1);
    }
    assert_eq!((reader.state(), reader.stats().connections), (State::Open, 1));
    let writer_to_replica = with(config(replica.url()), |config| config.leave_unfit_server = false);
    let writer_to_replica = connect(writer_to_replica).await;
    let error = writer_to_replica.exec::<()>(("SET", "key", 2)).await.unwrap_err();
    assert_eq!((refusal(&error), error.retry()), (Some(ServerRefusal::ReadOnly), Retry::Safe));
    assert_eq!(
        (writer_to_replica.exec::<i64>(("GET", "key")).await.unwrap(), writer_to_replica.stats().connections),
        (1, 1)
    );
}

/// A name that leads to one server and later to another, like a master's name. Open connections
/// stay at their server.
struct FailoverName {
    addr: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
}

impl FailoverName {
    async fn of(server: SocketAddr) -> FailoverName {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Arc::new(Mutex::new(server));
        let current = server.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = *current.lock().unwrap();
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        FailoverName { addr, server }
    }
}

#[tokio::test]
async fn after_a_planned_failover_writes_and_subscriptions_find_the_new_master() {
    let (old, new) = (replicated(), start());
    let name = FailoverName::of(old.addr()).await;
    let client = connect(format!("redis://{}", name.addr)).await;
    let (on_old, on_new) = (connect(old.url()).await, connect(new.url()).await);
    let mut news = client.subscribe("news").await.unwrap();
    client.exec::<()>(("SET", "key", 1)).await.unwrap();
    become_replica(&on_new, old.addr()).await;
    eventually("the replica has the key", Some(1), async || on_new.exec(("GET", "key")).await.unwrap()).await;

    on_new.exec::<()>(("REPLICAOF", "NO", "ONE")).await.unwrap();
    become_replica(&on_old, new.addr()).await;
    *name.server.lock().unwrap() = new.addr();
    let begun = Instant::now();
    let mut failures = 0;
    while let Err(error) = client.exec::<i64>(("INCR", "key")).await {
        assert_eq!(error.retry(), Retry::Safe, "{error}");
        failures += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(begun.elapsed() < TEST_TIMEOUT, "{failures} failures: {error}");
    }
    assert_eq!(on_new.exec::<i64>(("GET", "key")).await.unwrap(), 2);
    assert_eq!(client.stats().connections, 2, "{failures} failures in {:?}", begun.elapsed());

    assert_eq!(within("the gap", news.next()).await, Some(Event::Gap(Gap::Reconnected)));
    eventually("it is subscribed again", 1, async || {
        on_new.exec::<i64>(("PUBLISH", "news", "from the master")).await.unwrap()
    })
    .await;
    let message = within("a message", news.next()).await.and_then(Event::message).unwrap();
    assert_eq!(message.payload, "from the master");
}

#[tokio::test]
async fn loading_ends_the_connection_until_the_data_is_loaded() {
    let redis = Redis::builder().debug_command().config("key-load-delay", "0").start().unwrap();
    let (client, admin) = (connect(fast_reconnect(redis.url())).await, connect(redis.url()).await);
    let second_admin = connect(redis.url()).await;
    let filler = "x".repeat(2_000);
    let keys: Vec<_> = (0..5_000).map(|key| ("SET", key, &filler)).collect();
    client.pipeline::<Vec<()>>(&keys).await.unwrap();
    for setting in [("key-load-delay", 5_000), ("loading-process-events-interval-bytes", 1_024)] {
        admin.exec::<()>(("CONFIG", "SET", setting.0, setting.1)).await.unwrap();
    }
    let reload = submitted(admin.exec::<()>(("DEBUG", "RELOAD")).within(TEST_TIMEOUT));
    let mut left = 0;
    loop {
        match client.exec::<String>(("GET", 299)).await {
            Ok(value) if left > 0 => break assert_eq!(value, filler),
            Ok(_) => {}
            Err(error) if refusal(&error) == Some(ServerRefusal::Loading) => {
                left += 1;
                // Loading would take 25 s.
                second_admin.exec::<()>(("CONFIG", "SET", "key-load-delay", 0)).await.unwrap();
            }
            // The client is about to reconnect.
            Err(ExecError::Request(RequestError::Rejected {
                last_error: ConnectionLoss::Unfit(reason),
                ..
            })) => {
                assert_eq!(reason, ServerRefusal::Loading);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    reload.await.unwrap();
    assert!(client.stats().connections > 1);
}

#[tokio::test]
async fn masterdown_ends_the_connection() {
    let redis = Redis::builder().config("replica-serve-stale-data", "no").start().unwrap();
    let (client, admin) = (connect(fast_reconnect(redis.url())).await, connect(redis.url()).await);
    become_replica(&admin, UNUSED_ADDRESS).await;
    assert_connection_ends(&client, &["GET", "key"], ServerRefusal::MasterDown).await;
    assert_connection_ends(
        &client,
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "key"],
        ServerRefusal::MasterDown,
    )
    .await;
    assert_unknown_command(&client).await;
}

#[tokio::test]
async fn clusterdown_keeps_the_connection() {
    let redis = Redis::builder().config("cluster-enabled", "yes").start().unwrap();
    let client = connect(redis.url()).await;
    assert_connection_kept(&client, &["GET", "key"], ServerRefusal::ClusterDown, Retry::Safe).await;
    assert_connection_kept(&client, &["SET", "key", "value"], ServerRefusal::ClusterDown, Retry::Safe).await;
}

/// Starts a cluster node. Returns it with a client and its bus port.
async fn cluster_node() -> (Redis, RedisClient, u16) {
    let bus_port = forebay_sandbox::free_port();
    let redis = Redis::builder()
        .config("cluster-enabled", "yes")
        .config("cluster-port", &bus_port.to_string())
        .start()
        .unwrap();
    let client = connect(redis.url()).await;
    (redis, client, bus_port)
}

/// Waits until the node sees both nodes and the owner of every slot.
async fn wait_until_node_sees_cluster(node: &RedisClient) {
    eventually("the node sees the cluster", true, async || {
        let info: String = node.exec(("CLUSTER", "INFO")).await.unwrap();
        let nodes: String = node.exec(("CLUSTER", "NODES")).await.unwrap();
        info.contains("cluster_state:ok")
            && info.contains("cluster_known_nodes:2")
            && nodes
                .lines()
                .all(|line| line.contains(" connected 0-8191") || line.contains(" connected 8192-16383"))
    })
    .await;
}

#[tokio::test]
async fn moved_ask_and_tryagain_keep_the_connection() {
    let (_first_server, first, _) = cluster_node().await;
    let (second_server, second, second_bus_port) = cluster_node().await;
    let nodes = [(&first, 1, 0, 8_191), (&second, 2, 8_192, 16_383)];
    for (node, epoch, from, to) in nodes {
        node.exec::<()>(("CLUSTER", "SET-CONFIG-EPOCH", epoch)).await.unwrap();
        node.exec::<()>(("CLUSTER", "ADDSLOTSRANGE", from, to)).await.unwrap();
    }
    let meet = ("CLUSTER", "MEET", "127.0.0.1", second_server.port(), second_bus_port);
    first.exec::<()>(meet).await.unwrap();
    wait_until_node_sees_cluster(&first).await;
    wait_until_node_sees_cluster(&second).await;

    // The first node owns slot 3300 of `b`; the second node owns slot 15495 of `a`.
    assert_eq!(first.exec::<i64>(("CLUSTER", "KEYSLOT", "b")).await.unwrap(), 3_300);
    assert_connection_kept(&first, &["GET", "a"], ServerRefusal::Moved, Retry::Never).await;
    assert_connection_kept(&second, &["SET", "b", "value"], ServerRefusal::Moved, Retry::Never).await;
    first.exec::<()>(("SET", "b", "value")).await.unwrap();

    // The slot migrates from the first node to the second. A key that the first node lacks may be
    // on the second.
    let [first_id, second_id]: [String; 2] =
        [first.exec(("CLUSTER", "MYID")).await.unwrap(), second.exec(("CLUSTER", "MYID")).await.unwrap()];
    second.exec::<()>(("CLUSTER", "SETSLOT", 3_300, "IMPORTING", first_id)).await.unwrap();
    first.exec::<()>(("CLUSTER", "SETSLOT", 3_300, "MIGRATING", second_id)).await.unwrap();
    assert_connection_kept(&first, &["GET", "{b}other"], ServerRefusal::Ask, Retry::Never).await;
    assert_eq!(first.exec::<String>(("GET", "b")).await.unwrap(), "value");

    // The second node cannot serve a command whose keys may still be on the first node.
    let connections = second.stats().connections;
    let request = (("ASKING",), ("MGET", "{b}one", "{b}two"));
    let (asking, found) = second.pipeline::<((), RespValue)>(request).await.unwrap();
    let error = ExecError::Reply(found.unwrap_err());
    assert_eq!(asking, Ok(()));
    assert_eq!((refusal(&error), error.retry()), (Some(ServerRefusal::TryAgain), Retry::Safe), "{error}");
    assert_eq!((second.state(), second.stats().connections), (State::Open, connections));
    second.exec::<()>(("SET", "a", "value")).await.unwrap();
    assert_eq!((second.state(), second.stats().connections), (State::Open, connections));
}

#[tokio::test]
async fn misconf_keeps_the_connection() {
    let redis =
        Redis::builder().config("enable-protected-configs", "yes").config("save", "3600 1").start().unwrap();
    let client = connect(redis.url()).await;
    let folder = forebay_sandbox::TempFolder::create().unwrap();
    let dumps = folder.path().join("dumps");
    std::fs::create_dir(&dumps).unwrap();
    client.exec::<()>(("CONFIG", "SET", "dir", dumps.to_str().unwrap())).await.unwrap();
    std::fs::remove_dir(&dumps).unwrap(); // the server's working directory is gone
    client.exec::<()>(("BGSAVE",)).await.unwrap();
    eventually("the save fails", true, async || {
        let info: String = client.exec(("INFO", "persistence")).await.unwrap();
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    assert_connection_kept(&client, &["SET", "key", "value"], ServerRefusal::Misconfigured, Retry::Safe)
        .await;
    assert_connection_kept(
        &client,
        &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"],
        ServerRefusal::Misconfigured,
        Retry::Safe,
    )
    .await;
    assert_eq!(client.exec::<Option<i64>>(("GET", "key")).await.unwrap(), None);
}

#[tokio::test]
async fn out_of_memory_and_missing_replicas_keep_the_connection() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("CONFIG", "SET", "min-replicas-to-write", 1)).await.unwrap();
    assert_connection_kept(&client, &["SET", "key", "value"], ServerRefusal::NoReplicas, Retry::Safe).await;
    assert_connection_kept(
        &client,
        &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"],
        ServerRefusal::NoReplicas,
        Retry::Safe,
    )
    .await;
    client.exec::<()>(("CONFIG", "SET", "min-replicas-to-write", 0)).await.unwrap();
    client.exec::<()>(("CONFIG", "SET", "maxmemory", 1, "maxmemory-policy", "noeviction")).await.unwrap();
    assert_connection_kept(&client, &["SET", "key", "value"], ServerRefusal::OutOfMemory, Retry::Safe).await;
    assert_connection_kept(
        &client,
        &["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"],
        ServerRefusal::OutOfMemory,
        Retry::Safe,
    )
    .await;
    assert_eq!(client.exec::<Option<i64>>(("GET", "key")).await.unwrap(), None);
}

#[tokio::test]
async fn busy_keeps_the_connection_and_a_subscription_waits_for_its_end() {
    let redis = Redis::builder().config("busy-reply-threshold", "10").start().unwrap();
    let (proxy, url) = proxied(&redis);
    let (client, admin, subscriber) =
        (connect(redis.url()).await, connect(redis.url()).await, connect(fast_reconnect(url)).await);
    let mut news = subscriber.subscribe("news").await.unwrap();
    let endless = submitted(client.exec::<()>(("EVAL", "while true do end", 0)).within(TEST_TIMEOUT));
    let is_busy = async || matches!(admin.exec::<()>(("GET", "key")).await, Err(error) if refusal(&error) == Some(ServerRefusal::Busy));
    eventually("the script is slow", true, is_busy).await;
    assert_connection_kept(&admin, &["GET", "key"], ServerRefusal::Busy, Retry::Safe).await;
    assert_unknown_command(&admin).await;

    // The server refuses to subscribe the new connection. That must not end the subscription.
    let mut changes = status_from_now(&subscriber).await;
    proxy.cut();
    wait_for_state(&mut changes, State::Failed).await;
    admin.exec::<()>(("SCRIPT", "KILL")).await.unwrap();
    assert!(endless.await.is_err());
    wait_for_state(&mut changes, State::Open).await;
    assert_eq!(within("the gap", news.next()).await, Some(Event::Gap(Gap::Reconnected)));
    eventually("it is subscribed again", 1, async || {
        admin.exec::<i64>(("PUBLISH", "news", "free again")).await.unwrap()
    })
    .await;
    assert!(matches!(within("a message", news.next()).await, Some(Event::Message(_))));
}

#[tokio::test]
async fn unblocked_noauth_and_noscript_say_whether_to_retry() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let mut own = admin.dedicated().await.unwrap();
    let waiting = tokio::spawn(async move { own.exec::<RespValue>(("BLPOP", "list", 0)).await });
    eventually("it blocks", true, async || {
        admin.exec::<String>(("INFO", "clients")).await.unwrap().contains("blocked_clients:1")
    })
    .await;
    become_replica(&admin, UNUSED_ADDRESS).await;
    let error = within("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!((refusal(&error), error.retry()), (Some(ServerRefusal::Unblocked), Retry::Safe), "{error}");
    assert_connection_kept(&admin, &["EVALSHA", &"0".repeat(40), "0"], ServerRefusal::NoScript, Retry::Never)
        .await;

    let redis = Redis::builder().password("secret").start().unwrap();
    let client = connect(with(config(redis.url()), |config| config.protocol = Protocol::Resp2)).await;
    assert_connection_kept(&client, &["GET", "key"], ServerRefusal::NoAuth, Retry::Never).await;
    assert_unknown_command(&client).await;
}

/// Lets each caller request its own number. Returns how many got it; the others must get an error.
async fn count_own_replies(client: &RedisClient, callers: usize, deadline: Duration) -> usize {
    let asked = (0..callers).map(|caller| client.exec::<usize>(("ECHO", caller)).within(deadline));
    let results = within("a result", join_all(asked)).await;
    let own = |(caller, result): (usize, &Result<usize, ExecError>)| match result {
        Ok(number) => {
            assert_eq!(*number, caller, "reply of another request");
            true
        }
        Err(ExecError::Request(_)) => false,
        Err(error) => panic!("reply of another request: {error}"),
    };
    results.iter().enumerate().filter(|&result| own(result)).count()
}

#[tokio::test]
async fn a_full_output_buffer_ends_a_normal_connection_and_misroutes_no_reply() {
    let redis = Redis::builder().config("client-output-buffer-limit", "normal 1mb 1mb 0").start().unwrap();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    let large = "x".repeat(1 << 20);
    client.exec::<()>(("SET", "large", &large)).await.unwrap();
    let mut changes = status_from_now(&client).await;
    proxy.stall(Direction::ToClient);
    let reads = (0..50).map(|_| submitted(client.exec::<String>(("GET", "large")).within(TEST_TIMEOUT)));
    let reads: Vec<_> = reads.collect();
    eventually("the server has closed it", true, async || {
        redis.log().contains("overcoming of output buffer limits")
    })
    .await;
    proxy.resume();
    let mut lost = 0;
    for read in within("a result", join_all(reads)).await {
        match read {
            Ok(value) => assert_eq!(value, large),
            Err(ExecError::Request(RequestError::Lost(_))) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > 0, "the limit was reached");
    wait_for_state(&mut changes, State::Open).await;
    assert_eq!(count_own_replies(&client, 100, TEST_TIMEOUT).await, 100);
}

#[tokio::test]
async fn a_full_output_buffer_ends_a_subscriber_connection_and_reports_a_gap() {
    let redis =
        Redis::builder().config("client-output-buffer-limit", "pubsub 256kb 256kb 0").start().unwrap();
    let (proxy, url) = proxied(&redis);
    let (client, admin) = (connect(fast_reconnect(url)).await, connect(redis.url()).await);
    let mut news = client.subscribe("news").await.unwrap();
    proxy.stall(Direction::ToClient);
    let large = "x".repeat(256 << 10);
    eventually("the server has closed it", 0, async || {
        admin.exec::<i64>(("PUBLISH", "news", &large)).await.unwrap()
    })
    .await;
    proxy.resume();
    loop {
        match within("the gap", news.next()).await.unwrap() {
            Event::Message(message) => assert_eq!(message.payload, large),
            Event::Gap(gap) => break assert_eq!(gap, Gap::Reconnected),
            other => panic!("{other:?}"),
        }
    }
    eventually("it is subscribed again", 1, async || {
        admin.exec::<i64>(("PUBLISH", "news", "small")).await.unwrap()
    })
    .await;
    assert_eq!(within("a message", news.next()).await.and_then(Event::message).unwrap().payload, "small");
    assert_eq!(count_own_replies(&client, 100, TEST_TIMEOUT).await, 100);
}

#[tokio::test]
async fn five_seconds_of_latency_fail_requests_at_their_deadline_and_misroute_no_reply() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    assert_eq!(count_own_replies(&client, 100, TEST_TIMEOUT).await, 100);
    proxy.delay(Duration::from_millis(2_500)); // in each direction
    let (late, in_time) = tokio::join!(
        count_own_replies(&client, 200, Duration::from_secs(1)),
        count_own_replies(&client, 200, TEST_TIMEOUT)
    );
    assert_eq!((late, in_time), (0, 200), "their replies arrive after their deadline and are discarded");
    assert_eq!((client.state(), client.stats().connections), (State::Open, 1));
    proxy.resume();
    assert_eq!(count_own_replies(&client, 200, TEST_TIMEOUT).await, 200);
    assert_eq!(client.stats().deadlines, 200);
}
