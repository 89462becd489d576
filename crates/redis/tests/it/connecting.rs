//! Connecting: URLs, authentication, TLS, states, closing, hooks.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebay_redis::{
    Config, ConnectionLoss, ExecError, Hooks, Protocol, RedisClient, RedisConnectError, RequestError,
    RequestOutcome, RequestReport, Retry, State, Status,
};
use forebay_sandbox::{Redis, free_port};
use forebay_testkit::Direction;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::support::*;

const SECRET: &str = "hunter2-sesame";

/// Returns the error of a connection that must fail, and checks that its text does not contain the
/// password.
async fn connect_error(config: Config) -> RedisConnectError {
    let error = within("a refusal", RedisClient::connect(config)).await.expect_err("this can't connect");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET), "{shown}");
    error
}

fn short_timeout(url: &str) -> Config {
    with(config(url), |config| config.connect_timeout = Duration::from_millis(300))
}

#[tokio::test]
async fn each_form_of_url_leads_to_the_server() {
    let redis = Redis::builder()
        .password(SECRET)
        .acl_user("ada", &format!("on >{SECRET} ~* &* +@all"))
        .start()
        .unwrap();
    let (port, socket) = (redis.port(), redis.unix_path().display());
    for (url, user, db) in [
        (format!("redis://:{SECRET}@127.0.0.1:{port}"), "default", 0),
        (format!("redis://default:{SECRET}@localhost:{port}/0"), "default", 0),
        (format!("redis://ada:{SECRET}@127.0.0.1:{port}/3"), "ada", 3),
        (format!("redis://127.0.0.1:{port}/3?user=ada&password={SECRET}&protocol=3"), "ada", 3),
        (format!("redis://ada:{SECRET}@127.0.0.1:{port}/?db=5&protocol=2"), "ada", 5),
        (format!("valkey://:{SECRET}@127.0.0.1:{port}/1?protocol=2"), "default", 1),
        (format!("unix://{socket}?user=ada&password={SECRET}&db=2"), "ada", 2),
        (format!("redis+unix://{socket}?password={SECRET}"), "default", 0),
    ] {
        let client = connect(&url).await;
        let who: String = client.exec(("ACL", "WHOAMI")).await.unwrap();
        let info: String = client.exec(("CLIENT", "INFO")).await.unwrap();
        assert_eq!(who, user, "{url}");
        assert!(info.contains(&format!(" db={db} ")), "{url}: {info}");
    }
}

#[tokio::test]
async fn a_user_without_a_password_is_still_that_user() {
    let redis = Redis::builder().acl_user("guest", "on nopass ~* &* +@all").start().unwrap();
    for protocol in [2, 3] {
        let client = connect(format!("redis://guest@{}?protocol={protocol}", redis.addr())).await;
        let who: String = client.exec(("ACL", "WHOAMI")).await.unwrap();
        assert_eq!(who, "guest", "protocol {protocol}");
    }
}

#[tokio::test]
async fn a_wrong_password_or_user_is_an_error_of_authentication() {
    let redis = Redis::builder().password("right").acl_user("ada", "on >right ~* +@all").start().unwrap();
    let addr = redis.addr();
    for url in [
        format!("redis://:{SECRET}@{addr}"),
        format!("redis://ada:{SECRET}@{addr}"),
        format!("redis://unknown:{SECRET}@{addr}"),
        format!("redis://ada:{SECRET}@{addr}?protocol=2"),
        format!("redis://{addr}"),
    ] {
        let error = connect_error(config(&url)).await;
        assert!(matches!(error, RedisConnectError::Auth(_)), "{error:?}");
        assert!(error.to_string().contains("check the user name and the password"), "{error}");
    }
}

#[tokio::test]
async fn a_password_for_a_server_that_wants_none_is_an_error_of_authentication() {
    let redis = start();
    let error = connect_error(config(format!("redis://:{SECRET}@{}?protocol=2", redis.addr()))).await;
    assert!(matches!(error, RedisConnectError::Auth(_)), "{error:?}");
}

#[tokio::test]
async fn errors_that_repeat_arguments_do_not_reveal_the_password() {
    let redis = Redis::builder()
        .config("rename-command", "HELLO \"\"")
        .config("rename-command", "AUTH \"\"")
        .start()
        .unwrap();
    for (protocol, command) in [(3, "HELLO"), (2, "AUTH")] {
        let error =
            connect_error(config(format!("redis://:{SECRET}@{}?protocol={protocol}", redis.addr()))).await;
        let text = error.to_string();
        assert!(text.contains("unknown command") && text.contains(command), "{text}");
    }
}

#[tokio::test]
async fn a_server_without_hello_gets_resp2() {
    let redis = Redis::builder().password(SECRET).config("rename-command", "HELLO \"\"").start().unwrap();
    let client = connect(format!("redis://:{SECRET}@{}/2?client_name=old", redis.addr())).await;
    let fields: Vec<String> = {
        client.exec::<()>(("HSET", "hash", "field", "value")).await.unwrap();
        client.exec(("HGETALL", "hash")).await.unwrap()
    };
    assert_eq!(fields, ["field", "value"], "RESP2 has no maps");
    assert_eq!(connections_named(&client, "old").await, 1);

    let error = connect_error(config(format!("redis://:{SECRET}@{}?protocol=3", redis.addr()))).await;
    assert!(matches!(error, RedisConnectError::Refused { command: "HELLO", .. }), "{error:?}");
}

#[tokio::test]
async fn a_missing_permission_names_the_command() {
    let redis = Redis::builder().acl_user("ada", &format!("on >{SECRET} ~* +get +ping")).start().unwrap();
    let url = format!("redis://ada:{SECRET}@{}", redis.addr());
    let error = connect_error(config(format!("{url}/3"))).await;
    assert!(matches!(error, RedisConnectError::Permission { command: "SELECT", .. }), "{error:?}");
    assert!(error.to_string().contains("ACL"), "{error}");

    let error = connect_error(config(format!("{url}?protocol=2&client_name=me"))).await;
    assert!(matches!(error, RedisConnectError::Permission { command: "CLIENT SETNAME", .. }), "{error:?}");

    // An ACL cannot forbid HELLO and AUTH.
    let client = connect(&url).await;
    client.exec::<()>(("PING",)).await.unwrap();
    let error = client.exec::<()>(("SET", "key", 1)).await.unwrap_err();
    assert_eq!(error.server().map(|error| error.code()), Some("NOPERM"));
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_named() {
    let redis = start();
    for protocol in [2, 3] {
        let error = connect_error(config(format!("{}/99?protocol={protocol}", redis.url()))).await;
        assert!(matches!(error, RedisConnectError::Database { db: 99, .. }), "{error:?}");
        assert!(error.to_string().contains("database 99"), "{error}");
    }
}

#[tokio::test]
async fn a_name_for_the_connection_is_shown_by_the_server_in_either_protocol() {
    let redis = start();
    for protocol in [2, 3] {
        let client = connect(format!("{}?client_name=mine{protocol}&protocol={protocol}", redis.url())).await;
        assert_eq!(connections_named(&client, &format!("mine{protocol}")).await, 1);
    }
    let error = connect_error(config(format!("{}?client_name=two%20words", redis.url()))).await;
    assert!(matches!(error, RedisConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn resp2_gives_the_same_values() {
    let redis = start();
    let client = connect(format!("{}?protocol=2", redis.url())).await;
    client.exec::<()>(("HSET", "hash", "a", 1, "b", 2)).await.unwrap();
    let map: std::collections::BTreeMap<String, i64> = client.exec(("HGETALL", "hash")).await.unwrap();
    assert_eq!(map, [("a".into(), 1), ("b".into(), 2)].into());
    let (missing, number, error) = client
        .pipeline::<(Option<String>, f64, i64)>((
            ("GET", "none"),
            ("INCRBYFLOAT", "f", 1.5),
            ("INCR", "hash"),
        ))
        .await
        .unwrap();
    assert_eq!((missing, number), (Ok(None), Ok(1.5)));
    assert!(error.unwrap_err().to_string().contains("WRONGTYPE"));
    let both = client.transaction::<(i64, i64)>((("INCR", "n"), ("INCR", "n"))).await.unwrap();
    assert_eq!(both, (Ok(1), Ok(2)));
    assert_eq!(config(format!("{}?protocol=2", redis.url())).protocol, Protocol::Resp2);
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use forebay_redis::RedisTls;

    fn trusting(url: &str, pem: &str) -> Config {
        let mut config = short_timeout(url);
        config.connect_timeout = Duration::from_secs(5);
        config.tls = Some(RedisTls::ca_pem(pem.as_bytes()).unwrap());
        config
    }

    #[tokio::test]
    async fn tls_works_with_the_right_authority_by_name_and_by_address() {
        let redis = Redis::builder().tls().password(SECRET).start().unwrap();
        let (port, pem) = (redis.tls_port(), redis.ca_pem());
        for host in ["localhost", "127.0.0.1"] {
            let client = connect(trusting(&format!("rediss://:{SECRET}@{host}:{port}/1"), pem)).await;
            let big = "x".repeat(1 << 20);
            let (_, back) =
                client.pipeline::<((), String)>((("SET", "big", &big), ("GET", "big"))).await.unwrap();
            assert!(back.unwrap() == big, "{host}");
        }
    }

    #[tokio::test]
    async fn an_authority_that_is_not_trusted_is_refused() {
        let redis = Redis::builder().tls().start().unwrap();
        let other = Redis::builder().tls().start().unwrap();
        for config in [trusting(&redis.tls_url(), other.ca_pem()), config(redis.tls_url())] {
            let error = connect_error(config).await;
            // A system without certificates fails before it dials.
            assert!(
                matches!(error, RedisConnectError::Tls { .. } | RedisConnectError::Config(_)),
                "{error:?}"
            );
            assert!(error.to_string().contains("certificate"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_refused() {
        let redis = Redis::builder().tls().start().unwrap();
        let mut config = trusting(&redis.tls_url(), redis.ca_pem());
        config.tls = Some(RedisTls::ca_pem(redis.ca_pem().as_bytes()).unwrap().server_name("redis.example"));
        let error = connect_error(config).await;
        assert!(matches!(error, RedisConnectError::Tls { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn tls_on_one_side_only_is_an_error_that_says_tls() {
        let redis = Redis::builder().tls().start().unwrap();
        let mut to_plain =
            trusting(&format!("rediss://:{SECRET}@127.0.0.1:{}", redis.port()), redis.ca_pem());
        to_plain.connect_timeout = Duration::from_millis(300);
        // A plain Redis waits for the end of a line, which the TLS hello may or may not contain.
        let error = connect_error(to_plain).await;
        assert!(
            matches!(error, RedisConnectError::Tls { .. } | RedisConnectError::Timeout { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("TLS"), "{error}");

        let error = connect_error(config(format!("redis://:{SECRET}@127.0.0.1:{}", redis.tls_port()))).await;
        assert!(matches!(error, RedisConnectError::Handshake { .. }), "{error:?}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }

    #[tokio::test]
    async fn a_lost_tls_connection_is_made_again() {
        let redis = Redis::builder().tls().start().unwrap();
        let (admin, client) =
            (connect(redis.url()).await, connect(trusting(&redis.tls_url(), redis.ca_pem())).await);
        let mut changes = status_from_now(&client).await;
        kill_connection(&admin, client_id(&client).await).await;
        wait_for_reconnect(&mut changes).await;
        let echo: String = client.exec(("ECHO", "again")).await.unwrap();
        assert_eq!(echo, "again");
    }
}

#[tokio::test]
async fn a_host_that_does_not_resolve_is_named() {
    let error = connect_error(config(format!("redis://:{SECRET}@no-such-host.invalid"))).await;
    assert!(
        matches!(error, RedisConnectError::Resolve { .. } | RedisConnectError::Timeout { .. }),
        "{error:?}"
    );
    if let RedisConnectError::Resolve { .. } = error {
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}

#[tokio::test]
async fn a_port_that_refuses_is_named() {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let error = connect_error(config(format!("redis://:{SECRET}@{addr}"))).await;
    assert!(matches!(error, RedisConnectError::Dial { .. }), "{error:?}");
    assert!(error.to_string().contains(&addr.to_string()), "{error}");

    let error = connect_error(config("unix:///nowhere/redis.sock")).await;
    assert!(
        matches!(&error, RedisConnectError::Dial { address, .. } if address == "/nowhere/redis.sock"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_runs_into_the_connect_deadline() {
    let silent = StdListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let error =
        connect_error(short_timeout(&format!("redis://:{SECRET}@{}", silent.local_addr().unwrap()))).await;
    assert!(matches!(error, RedisConnectError::Timeout { step: "the handshake", .. }), "{error:?}");
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_client_opened_before_its_server_rejects_and_then_works() {
    let redis = start();
    redis.kill();
    let client = RedisClient::open(redis.url()).unwrap();
    assert_eq!(client.state(), State::Connecting);
    let mut changes = client.status_changes();
    let status = wait_for_state(&mut changes, State::Failed).await;
    assert!(matches!(status.last_error, Some(ConnectionLoss::Connect(_))), "{status:?}");
    redis.revive().unwrap();
    let status = wait_for_state(&mut changes, State::Open).await;
    assert_eq!(status.generation, 1);
    client.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn requests_queue_while_the_first_connection_is_made() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    proxy.stall(Direction::Both);
    let client = RedisClient::open(url).unwrap();
    let queued: Vec<_> = (1..=3).map(|n| submitted(client.exec::<i64>(("INCRBY", "n", n)))).collect();
    assert_eq!((client.state(), client.stats().open_requests), (State::Connecting, 3));
    proxy.resume();
    let totals = within("the queue", futures_util::future::join_all(queued)).await;
    assert_eq!(totals.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 3, 6]);
}

#[tokio::test]
async fn a_failed_first_attempt_is_not_repeated() {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let hooks = RecordingHooks::default();
    let config = hooks.hooked(config(format!("redis://{addr}")));
    RedisClient::connect(config).await.expect_err("no server listens");
    eventually("the link is closed", Some(State::Closed), async || hooks.states().last().copied()).await;
    assert_eq!(hooks.states(), [State::Connecting, State::Failed, State::Closed]);
}

#[tokio::test]
async fn without_reconnection_a_loss_closes_the_client_and_keeps_the_reason() {
    let redis = start();
    let client = connect(with(config(redis.url()), |config| config.reconnect = None)).await;
    let mut changes = client.status_changes();
    redis.kill();
    let status = wait_for_state(&mut changes, State::Closed).await;
    assert!(status.last_error.is_some(), "{status:?}");
    let error = client.exec::<()>(("PING",)).await.unwrap_err();
    let ExecError::Request(RequestError::Closed { last_error: Some(loss) }) = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(loss, ConnectionLoss::Closed | ConnectionLoss::Io(_)), "{loss:?}");
    assert!(error.to_string().contains(&loss.to_string()), "{error}");
    assert_eq!(error.retry(), Retry::Never);

    redis.revive().unwrap();
    client.reopen().await.unwrap();
    assert_eq!((client.state(), client.status().generation), (State::Open, 2));
    client.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn closing_finishes_requests_in_flight_and_rejects_new_ones() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    let mut changes = status_from_now(&client).await;
    proxy.stall(Direction::ToClient);
    let replies: Vec<_> = (0..100).map(|n| submitted(client.exec::<i64>(("INCRBY", "n", n)))).collect();
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    wait_for_state(&mut changes, State::Closing).await;
    let late = client.exec::<()>(("PING",)).now_or_never().expect("refused at once").unwrap_err();
    assert!(matches!(late, ExecError::Request(RequestError::Closed { last_error: None })), "{late:?}");
    assert!(!closing.is_finished());
    proxy.resume();
    let replies = within("the replies", futures_util::future::join_all(replies)).await;
    assert_eq!(replies.into_iter().map(Result::unwrap).next_back(), Some(4950));
    within("the end", closing).await.unwrap();
    assert_eq!(client.state(), State::Closed);
    let error = client.exec::<()>(("PING",)).await.unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Closed { last_error: None })), "{error:?}");
    client.close().await;
}

#[tokio::test]
async fn closing_gives_up_at_its_deadline() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(with(config(url), |config| config.close_timeout = Duration::from_millis(100))).await;
    proxy.stall(Direction::ToClient);
    // The request's own deadline is later than the close timeout.
    let open = submitted(client.exec::<()>(("PING",)).within(2 * TEST_TIMEOUT));
    let begun = Instant::now();
    within("the end", client.close()).await;
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    let error = within("a result", open).await.unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Closed { .. })), "{error:?}");
}

#[tokio::test]
async fn closing_ends_an_attempt_to_connect() {
    let silent = StdListener::bind("127.0.0.1:0").unwrap();
    let client = RedisClient::open(format!("redis://{}", silent.local_addr().unwrap())).unwrap();
    let queued = submitted(client.exec::<()>(("PING",)));
    within("the end", client.close()).await;
    let error = within("a result", queued).await.unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Closed { last_error: None })), "{error:?}");
}

#[tokio::test]
async fn opening_again_makes_the_next_generation() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = client.status_changes();
    for generation in 1..=3 {
        let status = wait_for_state(&mut changes, State::Open).await;
        assert_eq!((status.generation, status.reconnects), (generation, 0));
        client.exec::<()>(("INCR", "lives")).await.unwrap();
        client.reopen().await.unwrap();
        assert_eq!(client.status().generation, generation, "one that is open stays as it is");
        client.close().await;
        client.reopen().await.unwrap();
    }
    let lives: i64 = client.exec(("GET", "lives")).await.unwrap();
    assert_eq!((lives, client.stats().connections), (3, 4));
}

#[tokio::test]
async fn opening_again_can_fail_and_be_tried_again() {
    let redis = start();
    let client = connect(redis.url()).await;
    client.close().await;
    redis.kill();
    let error = client.reopen().await.unwrap_err();
    assert!(matches!(error, RedisConnectError::Dial { .. }), "{error:?}");
    assert_eq!(client.state(), State::Closed);
    redis.revive().unwrap();
    client.reopen().await.unwrap();
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(client.status().generation, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_closing_and_opening_leaves_a_working_client() {
    let redis = start();
    let client = connect(redis.url()).await;
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    match task % 2 {
                        0 => client.close().await,
                        // Another task may close the client concurrently.
                        _ => drop(client.reopen().await),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        within("no call hangs", task).await.unwrap();
    }
    within("the end", client.close()).await;
    let before = client.status();
    assert_eq!(before.state, State::Closed);
    within("a new link", client.reopen()).await.unwrap();
    assert_eq!(client.status().generation, before.generation + 1);
    client.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opening_again_while_it_closes_never_fails() {
    let redis = start();
    let client = connect(redis.url()).await;
    let closed = Arc::new(AtomicBool::new(false));
    let openers: Vec<_> = (0..3)
        .map(|_| {
            let (client, closed) = (client.clone(), closed.clone());
            tokio::spawn(async move {
                while !closed.load(Ordering::Relaxed) {
                    client.reopen().await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut changes = client.status_changes();
    for generation in 1..=500 {
        let status = wait_for_state(&mut changes, State::Open).await;
        assert_eq!(status.generation, generation);
        within("the end", client.close()).await;
    }
    closed.store(true, Ordering::Relaxed);
    for opener in openers {
        within("the end", opener).await.unwrap();
    }
}

#[tokio::test]
async fn dropping_the_last_clone_closes_the_connection() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let client = connect(format!("{}?client_name=short", redis.url())).await;
    let clone = client.clone();
    drop(client);
    clone.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(connections_named(&admin, "short").await, 1);
    drop(clone);
    eventually("the connection is gone", 0, async || connections_named(&admin, "short").await).await;
}

#[test]
fn a_runtime_that_shuts_down_cancels_its_requests_wherever_they_are_awaited() {
    let redis = start();
    let (home, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (proxy, client) = home.block_on(async {
        let (proxy, url) = proxied(&redis);
        let client = connect(url).await;
        proxy.stall(Direction::Both);
        (proxy, client)
    });
    let waiting = other.spawn({
        let client = client.clone();
        async move { client.exec::<()>(("PING",)).await }
    });
    other.block_on(eventually("it is open", 1, async || client.stats().open_requests));
    home.shutdown_background();
    let error = other.block_on(within("a result", waiting)).unwrap().unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Cancelled)), "{error:?}");
    let error = other.block_on(async { client.exec::<()>(("PING",)).await }).unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Cancelled)), "{error:?}");
    assert_eq!(error.retry(), Retry::Never);
    other.block_on(eventually("it is closed", State::Closed, async || client.state()));
    drop(proxy);
}

#[test]
fn a_client_whose_runtime_is_gone_can_be_opened_on_another() {
    let redis = start();
    let (home, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let client = home.block_on(connect(redis.url()));
    drop(home);
    assert_eq!(client.state(), State::Closed);
    other.block_on(async {
        within("the end", client.close()).await;
        client.reopen().await.unwrap();
        client.exec::<()>(("PING",)).await.unwrap();
    });
    assert_eq!(client.status().generation, 2);
}

#[test]
fn opening_on_a_runtime_that_is_gone_is_an_error_and_not_a_deadlock() {
    let redis = start();
    let home = Runtime::new().unwrap();
    let handle = home.handle().clone();
    let client = home.block_on(connect(redis.url()));
    drop(home);
    let (done, result) = mpsc::sync_channel(1);
    thread::spawn({
        let client = client.clone();
        move || {
            let _inside = handle.enter();
            let _ = done.send(block_on(client.reopen()));
        }
    });
    let error = result.recv_timeout(TEST_TIMEOUT).expect("it returns").unwrap_err();
    assert!(matches!(error, RedisConnectError::Cancelled), "{error:?}");
    assert_eq!(client.state(), State::Closed);
}

#[test]
fn a_handle_works_from_any_thread_any_runtime_and_any_executor() {
    let redis = start();
    let home = Runtime::new().unwrap();
    let client = home.block_on(connect(redis.url()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    block_on(async { client.exec::<()>(("INCR", "n")).await }).unwrap();
                }
            });
            scope.spawn(|| {
                let own = tokio::runtime::Builder::new_current_thread().build().unwrap();
                own.block_on(async {
                    for _ in 0..50 {
                        client.exec::<()>(("INCR", "n")).await.unwrap();
                    }
                });
            });
        }
    });
    let total: i64 = block_on(async { client.exec(("GET", "n")).await }).unwrap();
    assert_eq!(total, 400);
    block_on(client.close());
    assert_eq!(client.state(), State::Closed);
}

#[tokio::test]
async fn a_request_future_can_move_to_another_task() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client: &'static RedisClient = Box::leak(Box::new(connect(url).await));
    proxy.stall(Direction::ToClient);
    let request = submitted(client.exec::<String>(("ECHO", "moved")));
    let moved = tokio::spawn(request);
    tokio::task::yield_now().await;
    proxy.resume();
    assert_eq!(within("the reply", moved).await.unwrap().unwrap(), "moved");
    client.close().await;
}

#[tokio::test]
async fn states_are_reported_in_order_with_their_counters() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = client.status_changes();
    let mut seen = Vec::new();
    let mut next = async || {
        let status: Status = within("a change", changes.next()).await;
        seen.push(status.clone());
        status
    };
    assert_eq!(next().await.state, State::Open);
    redis.kill();
    // At least two attempts fail.
    while next().await.reconnects < 3 {}
    redis.revive().unwrap();
    while next().await.state != State::Open {}
    client.close().await;
    while next().await.state != State::Closed {}

    let mut tries = 0;
    for pair in seen.windows(2) {
        let (from, to) = (&pair[0], &pair[1]);
        let allowed = match from.state {
            State::Open => matches!(to.state, State::Failed | State::Closing),
            State::Failed => to.state == State::Reconnecting,
            State::Reconnecting => matches!(to.state, State::Failed | State::Open),
            State::Closing => to.state == State::Closed,
            _ => false,
        };
        assert!(allowed, "{from:?} -> {to:?}");
        tries += u32::from(to.state == State::Failed);
        let expected = if matches!(to.state, State::Failed | State::Reconnecting) { tries } else { 0 };
        assert_eq!((to.reconnects, to.generation), (expected, 1), "{to:?}");
        assert!(to.last_error.is_some(), "kept after the reconnection: {to:?}");
        assert_eq!(to.retry_at.is_some(), to.state == State::Failed, "{to:?}");
    }
    assert!(
        matches!(seen[1].last_error, Some(ConnectionLoss::Closed | ConnectionLoss::Io(_))),
        "{:?}",
        seen[1]
    );
    assert!(matches!(seen[3].last_error, Some(ConnectionLoss::Connect(_))), "{:?}", seen[3]);
}

#[tokio::test]
async fn a_name_with_a_dead_address_leads_to_the_live_one() {
    // `localhost` may resolve to ::1 first, where the sandbox does not listen.
    let redis = start();
    let client = connect(format!("redis://localhost:{}", redis.port())).await;
    client.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn counters_add_up() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    for _ in 0..10 {
        client.exec::<()>(("PING",)).await.unwrap();
    }
    assert_eq!(client.stats().replies, 10);

    proxy.stall(Direction::ToClient);
    let late = (0..5).map(|_| submitted(client.exec::<()>(("PING",)).within(Duration::from_millis(50))));
    let late: Vec<_> = late.collect();
    for late in late {
        within("the deadline", late).await.unwrap_err();
    }
    assert_eq!(client.stats().deadlines, 5);

    let lost: Vec<_> = (0..3).map(|_| submitted(client.exec::<()>(("PING",)).within(TEST_TIMEOUT))).collect();
    let mut changes = status_from_now(&client).await;
    eventually("they are with the worker", 18, async || client.stats().requests).await;
    proxy.resume();
    proxy.reset();
    for lost in lost {
        // The reset may arrive before or after the delayed replies.
        drop(within("a result", lost).await);
    }
    wait_for_reconnect(&mut changes).await;
    client.exec::<()>(("PING",)).await.unwrap();

    let stats = client.stats();
    assert_eq!(stats.requests, 19);
    assert_eq!(stats.requests, stats.replies + stats.deadlines + stats.failures, "{stats:?}");
    assert_eq!((stats.connections, stats.open_requests), (2, 0));
    assert!(stats.bytes_sent >= 19 * "*1\r\n$4\r\nPING\r\n".len() as u64, "{stats:?}");
    assert!(stats.bytes_received >= 11 * "+PONG\r\n".len() as u64, "{stats:?}");
}

/// Command name, number of commands, outcome, and the thread of the callback.
type ReportedRequest = (String, usize, String, thread::ThreadId);

/// Hooks that record their calls.
#[derive(Clone, Default)]
struct RecordingHooks {
    requests: Arc<Mutex<Vec<ReportedRequest>>>,
    states: Arc<Mutex<Vec<State>>>,
}

impl RecordingHooks {
    fn hooked(&self, config: Config) -> Config {
        with(config, |config| config.hooks = Some(Arc::new(self.clone())))
    }

    fn requests(&self) -> Vec<(String, usize, String)> {
        let all = self.requests.lock().unwrap();
        all.iter()
            .map(|(command, commands, outcome, _)| (command.clone(), *commands, outcome.clone()))
            .collect()
    }

    fn states(&self) -> Vec<State> {
        self.states.lock().unwrap().clone()
    }
}

impl Hooks for RecordingHooks {
    fn request(&self, report: &RequestReport<'_>) {
        let outcome = match report.outcome {
            RequestOutcome::Replied => "replied".to_owned(),
            RequestOutcome::Failed(error) => error.as_str().to_owned(),
            RequestOutcome::Dropped => "dropped".to_owned(),
        };
        let entry = (report.command.to_owned(), report.commands, outcome, thread::current().id());
        self.requests.lock().unwrap().push(entry);
    }

    fn connection(&self, status: &Status) {
        self.states.lock().unwrap().push(status.state);
    }
}

#[tokio::test]
async fn hooks_get_every_request_and_every_state_change() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let hooks = RecordingHooks::default();
    let client = connect(hooks.hooked(fast_reconnect(url))).await;
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    client.exec::<i64>(("INCR", "key")).await.unwrap_err();
    let _both = client.pipeline::<(String, i64)>((("GET", "key"), ("STRLEN", "key"))).await.unwrap();
    let _one = client.transaction::<Vec<String>>([("GET", "key")]).await.unwrap();
    drop(client.exec::<()>(("NEVER", "polled")));
    proxy.stall(Direction::ToClient);
    drop(submitted(client.exec::<()>(("PING",))));
    client.exec::<()>(("ECHO", "slow")).within(Duration::from_millis(20)).await.unwrap_err();
    proxy.resume();
    let mut changes = status_from_now(&client).await;
    proxy.cut();
    wait_for_reconnect(&mut changes).await;
    client.close().await;
    client.exec::<()>(("PING",)).await.unwrap_err();

    let expected = [
        ("SET", 1, "replied"),
        ("INCR", 1, "replied"), // with an error, which belongs to the reply
        ("GET", 2, "replied"),
        ("MULTI", 3, "replied"),
        ("PING", 1, "dropped"),
        ("ECHO", 1, "deadline"),
        ("PING", 1, "closed"),
    ];
    assert_eq!(hooks.requests(), expected.map(|(name, count, end)| (name.to_owned(), count, end.to_owned())));
    eventually("the last change", Some(State::Closed), async || hooks.states().last().copied()).await;
    use State::*;
    assert_eq!(hooks.states(), [Connecting, Open, Failed, Reconnecting, Open, Closing, Closed]);
}

#[test]
fn hooks_report_requests_in_the_task_that_awaits_them() {
    let redis = start();
    let home = Runtime::new().unwrap();
    let hooks = RecordingHooks::default();
    let client = home.block_on(connect(hooks.hooked(config(redis.url()))));
    block_on(async { client.exec::<()>(("PING",)).await }).unwrap();
    assert_eq!(hooks.requests.lock().unwrap()[0].3, thread::current().id());
}

/// Hooks that block their thread, at one request and at the first loss, until the test releases
/// them.
struct BlockingHooks {
    entered: mpsc::SyncSender<&'static str>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl BlockingHooks {
    fn block(&self, what: &'static str) {
        self.entered.send(what).unwrap();
        self.release.lock().unwrap().recv_timeout(TEST_TIMEOUT).unwrap();
    }
}

impl Hooks for BlockingHooks {
    fn request(&self, report: &RequestReport<'_>) {
        if report.command == "BLOCK-HERE" {
            self.block("request");
        }
    }

    fn connection(&self, status: &Status) {
        if status.state == State::Failed {
            self.block("connection");
        }
    }
}

#[test]
fn a_blocking_hook_does_not_stop_other_requests() {
    let redis = start();
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let (entered, entries) = mpsc::sync_channel(2);
    let (free, release) = mpsc::sync_channel(2);
    let hooks = Arc::new(BlockingHooks { entered, release: Mutex::new(release) });
    let admin = home.block_on(connect(redis.url()));
    let client = home.block_on(connect(with(config(redis.url()), |config| config.hooks = Some(hooks))));

    thread::scope(|scope| {
        let blocked = scope.spawn(|| block_on(async { client.exec::<()>(("BLOCK-HERE",)).await }));
        assert_eq!(entries.recv_timeout(TEST_TIMEOUT), Ok("request"));
        home.block_on(within("other requests complete", async {
            for _ in 0..100 {
                client.exec::<()>(("PING",)).await.unwrap();
            }
        }));
        free.send(()).unwrap();
        blocked.join().unwrap().expect_err("no such command");
    });

    home.block_on(async { kill_connection(&admin, client_id(&client).await).await });
    assert_eq!(entries.recv_timeout(TEST_TIMEOUT), Ok("connection"));
    home.block_on(within("the link reconnects", async {
        eventually("it is open", State::Open, async || client.state()).await;
        for _ in 0..100 {
            client.exec::<()>(("PING",)).await.unwrap();
        }
    }));
    free.send(()).unwrap();
}

#[tokio::test]
async fn dropping_a_connect_midway_leaves_no_connection_behind() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut connecting = Box::pin(RedisClient::connect(format!("redis://{}", silent.local_addr().unwrap())));
    let mut socket = tokio::select! {
        result = &mut connecting => panic!("{result:?}"),
        accepted = silent.accept() => accepted.unwrap().0,
    };
    drop(connecting);
    let mut received = Vec::new();
    within("the end of the stream", tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut received))
        .await
        .unwrap();
}
