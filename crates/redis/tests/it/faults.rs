//! Faults of real servers and networks: frozen and killed servers, invalid bytes, cut, stalled and
//! slow connections.
//!
//! After each of them: every request completes once, with its own reply or an error; no request is
//! sent twice; the client reconnects.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_redis::{
    Config, ConnectionLoss, ExecError, ProtocolError, RedisClient, RedisConnectError, RequestError, Retry,
    State,
};
use forebay_sandbox::Redis;
use forebay_testkit::{Direction, Proxy};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::*;

fn is_lost<T>(result: &Result<T, ExecError>) -> bool {
    matches!(result, Err(ExecError::Request(RequestError::Lost(_))))
}

fn is_deadline<T>(result: &Result<T, ExecError>) -> bool {
    matches!(result, Err(ExecError::Request(RequestError::Deadline { .. })))
}

async fn assert_in_sync(client: &RedisClient) {
    let echo: String = client.exec(("ECHO", "still in sync")).await.unwrap();
    assert_eq!(echo, "still in sync");
}

/// Waits until the worker has sent this many bytes in total.
async fn wait_until_sent(client: &RedisClient, bytes: u64) {
    eventually("everything is sent", true, async || client.stats().bytes_sent >= bytes).await;
}

#[tokio::test]
async fn a_frozen_server_fails_1000_gets_at_their_deadline_and_goes_on_when_it_thaws() {
    let redis = start();
    let client = connect(redis.url()).await;
    let keys: Vec<u32> = (0..1000).collect();
    client.pipeline::<Vec<()>>(keys.iter().map(|key| ("SET", key, key)).collect::<Vec<_>>()).await.unwrap();

    redis.freeze();
    let begun = Instant::now();
    let results = join_all(keys.iter().map(|key| client.exec::<u32>(("GET", key)))).await;
    let took = begun.elapsed();
    for result in &results {
        let Err(ExecError::Request(RequestError::Deadline { after })) = result else { panic!("{result:?}") };
        assert_eq!(*after, Duration::from_secs(5));
    }
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(25), "{took:?}");
    assert_eq!(
        (client.state(), client.stats().deadlines),
        (State::Open, 1000),
        "a pause fails requests only"
    );

    redis.thaw();
    let results = join_all(keys.iter().rev().map(|key| client.exec::<u32>(("GET", key)))).await;
    for (key, result) in keys.iter().rev().zip(results) {
        assert_eq!(result.unwrap(), *key);
    }
    assert_eq!((client.stats().connections, client.stats().open_requests), (1, 0));
}

#[tokio::test]
async fn a_killed_server_fails_1000_increments_at_once_and_none_runs_later() {
    let redis = Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start().unwrap();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    redis.freeze();
    let before = client.stats().bytes_sent;
    let open: Vec<_> =
        (0..1000).map(|_| submitted(client.exec::<i64>(("INCR", "n")).within(2 * TEST_TIMEOUT))).collect();
    wait_until_sent(&client, before + 1000 * "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".len() as u64).await;

    redis.kill();
    // They fail because of the loss, long before their deadline.
    for result in within("a result", join_all(open)).await {
        assert!(is_lost(&result), "{result:?}");
        assert_eq!(result.unwrap_err().retry(), Retry::Unknown);
    }

    redis.revive().unwrap();
    wait_for_reconnect(&mut changes).await;
    assert_in_sync(&client).await;
    let count: Option<i64> = client.exec(("GET", "n")).await.unwrap();
    assert_eq!(count, None, "a frozen server ran nothing, and nothing was sent again");
}

#[tokio::test]
async fn increments_that_ran_before_their_connection_was_cut_are_not_sent_again() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (direct, client) = (connect(redis.url()).await, connect(url).await);
    let mut changes = status_from_now(&client).await;
    let count = async || direct.exec::<Option<i64>>(("GET", "n")).await.unwrap();
    proxy.stall(Direction::ToClient);
    let open: Vec<_> =
        (0..1000).map(|_| submitted(client.exec::<i64>(("INCR", "n")).within(2 * TEST_TIMEOUT))).collect();
    eventually("all have run", Some(1000), count).await;
    proxy.cut();
    proxy.resume();
    for result in within("a result", join_all(open)).await {
        assert!(is_lost(&result), "{result:?}");
    }
    wait_for_reconnect(&mut changes).await;
    assert_in_sync(&client).await;
    assert_eq!(direct.exec::<i64>(("GET", "n")).await.unwrap(), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_under_load_has_run_each_increment_at_most_once() {
    let redis = Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start().unwrap();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (client, acknowledged) = (client.clone(), acknowledged.clone());
            tokio::spawn(async move {
                loop {
                    match client.exec::<i64>(("INCR", "n")).await {
                        Ok(_) => acknowledged.fetch_add(1, Ordering::Relaxed),
                        Err(error) => return error.retry() == Retry::Unknown,
                    };
                }
            })
        })
        .collect();
    eventually("it runs", true, async || acknowledged.load(Ordering::Relaxed) > 500).await;
    redis.kill();
    let mut unknown = 0;
    for task in tasks {
        unknown += u64::from(within("a result", task).await.unwrap());
    }
    redis.revive().unwrap();
    wait_for_reconnect(&mut changes).await;
    let count: u64 = client.exec(("GET", "n")).await.unwrap();
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    assert!(acknowledged <= count && count <= acknowledged + unknown, "{acknowledged} {count} {unknown}");
    assert_in_sync(&client).await;
    assert_eq!(
        client.exec::<u64>(("GET", "n")).await.unwrap(),
        count,
        "nothing comes after the reconnection"
    );
}

#[tokio::test]
async fn between_attempts_a_request_is_rejected_at_once_with_the_reason_and_the_next_attempt() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = client.status_changes();
    redis.kill();
    let mut rejected = 0;
    while rejected < 5 {
        let failed = wait_for_state(&mut changes, State::Failed).await;
        // It completes at the first poll, without waiting.
        match client.exec::<()>(("GET", "key")).now_or_never() {
            Some(Err(ExecError::Request(error))) => {
                let RequestError::Rejected { last_error, retry_at } = &error else { panic!("{error:?}") };
                assert!(
                    matches!(
                        last_error,
                        ConnectionLoss::Closed | ConnectionLoss::Io(_) | ConnectionLoss::Connect(_)
                    ),
                    "{last_error:?}"
                );
                assert!(*retry_at >= failed.retry_at && retry_at.is_some(), "{retry_at:?} {failed:?}");
                let text = error.to_string();
                assert!(text.contains(&last_error.to_string()) && text.contains("next attempt in"), "{text}");
                assert_eq!(error.retry(), Retry::Safe);
                rejected += 1;
            }
            // The next attempt has already started.
            None => continue,
            Some(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_client_reconnects_soon_after_the_server_is_back() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    redis.kill();
    // Several quick attempts fail, and the delay before the next stays short.
    for _ in 0..4 {
        let failed = wait_for_state(&mut changes, State::Failed).await;
        let next = failed.retry_at.unwrap().saturating_duration_since(Instant::now());
        assert!(next <= Duration::from_millis(50), "{next:?}");
    }
    let redis = tokio::task::spawn_blocking(move || redis.revive().map(|()| redis)).await.unwrap().unwrap();
    wait_for_state(&mut changes, State::Open).await;
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!((client.status().generation, client.stats().connections), (1, 2));
    drop(redis);
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn dropped_requests_against_a_frozen_server_keep_memory_bounded() {
    let redis = start();
    // No timeout ends the connection, however long the loop below takes.
    let client = connect(with(config(redis.url()), |config| {
        (config.response_timeout, config.stall_timeout, config.tcp_user_timeout) = (None, None, None);
    }))
    .await;
    redis.freeze();
    let before = resident_bytes();
    let mut full = 0;
    for n in 0..200_000 {
        match client.exec::<()>(("GET", n)).now_or_never() {
            None => {}
            Some(Err(ExecError::Request(error @ RequestError::QueueFull { requests, max_requests, .. }))) => {
                assert_eq!((requests, max_requests, error.retry()), (65_536, 65_536, Retry::Safe));
                assert!(error.to_string().contains("65536 of 65536 requests"), "{error}");
                full += 1;
            }
            Some(other) => panic!("{other:?}"),
        }
        if n % 1_000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(full, 200_000 - 65_536);
    assert!(grown < 64 << 20, "{grown} bytes");

    redis.thaw();
    eventually("the queue drains", 0, async || client.stats().open_requests).await;
    assert_in_sync(&client).await;
}

#[tokio::test]
async fn unsent_bytes_are_bounded_too_and_the_error_says_so() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(with(config(url), |config| config.max_unsent_bytes = 1 << 20)).await;
    proxy.stall(Direction::ToServer);
    let value = vec![b'x'; 256 << 10];
    let mut open = Vec::new();
    let error = loop {
        let mut request = Box::pin(client.exec::<()>(("SET", "key", &value)).within(TEST_TIMEOUT));
        match futures_util::poll!(&mut request) {
            Poll::Pending => open.push(request),
            Poll::Ready(result) => break result.unwrap_err(),
        }
        tokio::task::yield_now().await;
        assert!(open.len() < 1000, "the kernel takes much, but not everything");
    };
    let ExecError::Request(RequestError::QueueFull { unsent_bytes, max_unsent_bytes, requests, .. }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((max_unsent_bytes, requests), (1 << 20, open.len()));
    assert!(unsent_bytes >= max_unsent_bytes && unsent_bytes < (1 << 20) + (257 << 10), "{unsent_bytes}");
    proxy.resume();
    for result in join_all(open).await {
        result.unwrap();
    }
    assert_in_sync(&client).await;
}

#[tokio::test]
async fn dropping_a_third_of_100_000_futures_misroutes_no_reply() {
    const SEED: u64 = 0x5eed_0001;
    let redis = start();
    // An expiring deadline removes dropped requests that are still unsent. Without deadlines all
    // requests are sent.
    let client = connect(with(config(redis.url()), |config| config.response_timeout = None)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..100u64 {
        let client = client.clone();
        tasks.spawn(async move {
            let mut rng = XorShift64(SEED + task);
            let mut answered = 0;
            for n in 0..1_000 {
                let value = format!("{task}:{n}:{}", "x".repeat(rng.next_u64() as usize % 200));
                let request = client.exec::<String>(("ECHO", &value));
                if rng.one_in(3) {
                    // Dropped after this many polls: at once, in the queue, in flight, or after
                    // completion.
                    let mut polls = rng.next_u64() % 6;
                    let mut request = std::pin::pin!(request);
                    let outcome = std::future::poll_fn(|cx| match request.as_mut().poll(cx) {
                        Poll::Ready(result) => Poll::Ready(Some(result)),
                        Poll::Pending if polls == 0 => Poll::Ready(None),
                        Poll::Pending => {
                            polls -= 1;
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        }
                    });
                    if let Some(result) = outcome.await {
                        assert_eq!(result.unwrap(), value, "seed {SEED:#x}, task {task}");
                    }
                } else {
                    assert_eq!(request.await.unwrap(), value, "seed {SEED:#x}, task {task}");
                    answered += 1;
                }
            }
            answered
        });
    }
    let answered: u64 = tasks.join_all().await.into_iter().sum();
    assert!((60_000..73_000).contains(&answered), "{answered}");
    eventually("the rest is consumed", 0, async || client.stats().open_requests).await;
    assert_eq!((client.stats().requests, client.stats().replies), (100_000, 100_000));
}

/// Sets and gets two large values in one pipeline.
async fn set_and_get_large_values(client: &RedisClient, name: &str, fill: u8) {
    let (a, b) = (vec![fill; 64 << 20], vec![fill + 1; 64 << 20]);
    let (key_a, key_b) = (format!("{name}-a"), format!("{name}-b"));
    let commands = (("SET", &key_a, &a), ("GET", &key_a), ("SET", &key_b, &b), ("GET", &key_b));
    let request = client.pipeline::<((), Bytes, (), Bytes)>(commands).within(10 * TEST_TIMEOUT);
    let (_, got_a, _, got_b) = request.await.unwrap();
    assert!(got_a.unwrap() == a && got_b.unwrap() == b, "{name} got another value");
}

#[tokio::test]
async fn values_of_64_mib_go_both_ways_in_one_pipeline() {
    let redis = start();
    set_and_get_large_values(&connect(redis.url()).await, "alone", 0).await;
}

#[tokio::test]
async fn values_of_64_mib_go_both_ways_beside_small_ones() {
    let redis = start();
    let client = connect(with(config(redis.url()), |config| config.max_unsent_bytes = 1 << 30)).await;
    let small = async {
        for n in 0..500 {
            let echo: u32 = client.exec(("ECHO", n)).within(10 * TEST_TIMEOUT).await.unwrap();
            assert_eq!(echo, n);
        }
    };
    tokio::join!(
        set_and_get_large_values(&client, "first", 1),
        small,
        set_and_get_large_values(&client, "second", 3)
    );
}

/// Starts a server that passes each connection to `serve`. With `?protocol=2` the client sends no
/// handshake.
async fn mock_server<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    addr
}

#[tokio::test]
async fn a_server_that_waits_for_its_replies_to_be_read_does_not_deadlock() {
    const SIZE: usize = 64 << 10;
    let value = vec![b'x'; SIZE];
    let request = format!("*2\r\n$4\r\nECHO\r\n${SIZE}\r\n").len() + SIZE + 2;
    let reply: Arc<Vec<u8>> = Arc::new([format!("${SIZE}\r\n").as_bytes(), &value, b"\r\n"].concat());
    let addr = mock_server(move |mut socket| {
        let reply = reply.clone();
        async move {
            let mut buffer = vec![0; request];
            while socket.read_exact(&mut buffer).await.is_ok() {
                socket.write_all(&reply).await.unwrap();
            }
        }
    })
    .await;
    let client = connect(format!("redis://{addr}?protocol=2")).await;
    let commands: Vec<_> = (0..1000).map(|_| ("ECHO", &value)).collect();
    let echoes = client.pipeline::<Vec<Bytes>>(commands).within(10 * TEST_TIMEOUT).await.unwrap();
    assert!(echoes.into_iter().all(|echo| echo.unwrap() == value));
}

#[tokio::test]
async fn a_killed_connection_fails_what_is_in_flight_and_is_made_again() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (admin, client) = (connect(redis.url()).await, connect(url).await);
    let mut changes = status_from_now(&client).await;
    let id = client_id(&client).await;
    let sent = client.stats().bytes_sent;
    // The requests are sent, but do not reach the server.
    proxy.stall(Direction::ToServer);
    let requests: Vec<_> = (0..100).map(|n| submitted(client.exec::<u32>(("ECHO", n)))).collect();
    eventually("they have left", true, async || client.stats().bytes_sent > sent + 100 * 20).await;
    kill_connection(&admin, id).await;
    proxy.resume();
    for result in within("a result", join_all(requests)).await {
        assert!(is_lost(&result), "{result:?}");
    }
    let status = wait_for_reconnect(&mut changes).await;
    assert_eq!((status.generation, client.stats().connections), (1, 2));
    assert_in_sync(&client).await;
    assert_ne!(client_id(&client).await, id);
}

#[tokio::test]
async fn a_request_that_expires_before_its_first_byte_is_sent_is_never_sent() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    proxy.stall(Direction::Both);
    let client = RedisClient::open(&url).unwrap();
    let brief = Duration::from_millis(50);
    let expired = submitted(client.exec::<i64>(("INCR", "expired")).within(brief));
    let kept = submitted(client.exec::<i64>(("INCR", "kept")));
    drop(submitted(client.exec::<i64>(("INCR", "dropped"))));
    assert!(is_deadline(&within("the deadline", expired).await), "the deadline covers the queue");
    assert_eq!(client.state(), State::Connecting);
    proxy.resume();
    assert_eq!(within("the reply", kept).await.unwrap(), 1);
    let counts: (Option<i64>, Option<i64>) = client.exec(("MGET", "expired", "dropped")).await.unwrap();
    assert_eq!(counts, (None, None));
}

#[tokio::test]
async fn a_request_that_expires_behind_a_full_socket_is_never_sent() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    proxy.stall(Direction::ToServer);
    let big = vec![b'x'; 32 << 20];
    let stuck = submitted(client.exec::<()>(("SET", "big", &big)).within(2 * TEST_TIMEOUT));
    let expired = submitted(client.exec::<i64>(("INCR", "expired")).within(Duration::from_millis(50)));
    let kept = submitted(client.exec::<i64>(("INCR", "kept")).within(2 * TEST_TIMEOUT));
    assert!(is_deadline(&within("the deadline", expired).await));
    proxy.resume();
    within("the large value", stuck).await.unwrap();
    assert_eq!(within("the reply", kept).await.unwrap(), 1);
    let (length, expired): (usize, Option<i64>) = {
        let both =
            client.pipeline::<(usize, Option<i64>)>((("STRLEN", "big"), ("GET", "expired"))).await.unwrap();
        (both.0.unwrap(), both.1.unwrap())
    };
    assert_eq!((length, expired), (big.len(), None));
}

#[tokio::test]
async fn a_request_that_expires_in_flight_fails_alone_and_its_reply_is_discarded() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    proxy.stall(Direction::ToClient);
    let brief = submitted(client.exec::<String>(("ECHO", "brief")).within(Duration::from_millis(50)));
    let other = submitted(client.exec::<String>(("ECHO", "other")));
    assert!(is_deadline(&within("the deadline", brief).await));
    proxy.resume();
    assert_eq!(within("the reply", other).await.unwrap(), "other");
    assert_eq!((client.state(), client.stats().connections), (State::Open, 1));
}

/// Breaks a connection while replies of requests in flight are delayed.
async fn assert_reconnects_after(fault: impl Fn(&Proxy)) {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    let mut changes = status_from_now(&client).await;
    for connections in 1..=5 {
        proxy.stall(Direction::ToClient);
        let open: Vec<_> = (0..20).map(|n| submitted(client.exec::<u32>(("ECHO", n)))).collect();
        wait_until_sent(&client, client.stats().bytes_sent + 1).await;
        fault(&proxy);
        proxy.resume();
        for (n, result) in within("a result", join_all(open)).await.into_iter().enumerate() {
            assert!(is_lost(&result) || result.as_ref().is_ok_and(|echo| *echo == n as u32), "{result:?}");
        }
        wait_for_reconnect(&mut changes).await;
        assert_in_sync(&client).await;
        assert_eq!(client.stats().connections, connections + 1);
    }
}

#[tokio::test]
async fn a_cut_connection_is_made_again() {
    assert_reconnects_after(Proxy::cut).await;
}

#[tokio::test]
async fn a_reset_connection_is_made_again() {
    assert_reconnects_after(Proxy::reset).await;
}

#[tokio::test]
async fn a_connection_that_the_server_half_closes_is_made_again() {
    assert_reconnects_after(|proxy| proxy.half_close(Direction::ToClient)).await;
}

#[tokio::test]
async fn a_connection_whose_requests_no_longer_arrive_is_made_again() {
    assert_reconnects_after(|proxy| proxy.half_close(Direction::ToServer)).await;
}

#[tokio::test]
async fn a_stall_that_ends_before_the_deadline_is_only_a_delay() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        proxy.stall(direction);
        let open: Vec<_> = (0..100).map(|n| submitted(client.exec::<u32>(("ECHO", n)))).collect();
        wait_until_sent(&client, client.stats().bytes_sent + 1).await;
        assert_eq!(client.stats().open_requests, 100);
        proxy.resume();
        for (n, result) in within("a result", join_all(open)).await.into_iter().enumerate() {
            assert_eq!(result.unwrap(), n as u32);
        }
    }
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn a_reply_truncated_at_any_byte_completes_no_request() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    client.exec::<()>(("RPUSH", "list", "first", "second")).await.unwrap();
    let reply = "*2\r\n$5\r\nfirst\r\n$6\r\nsecond\r\n".len() as u64;
    let mut changes = status_from_now(&client).await;
    for bytes in 1..reply {
        proxy.truncate_after(bytes, Direction::ToClient);
        let (cut, next) = tokio::join!(
            client.exec::<Vec<String>>(("LRANGE", "list", 0, -1)),
            client.exec::<u32>(("ECHO", 7))
        );
        assert!(is_lost(&cut) && is_lost(&next), "{bytes}: {cut:?} {next:?}");
        wait_for_reconnect(&mut changes).await;
        let list: Vec<String> = client.exec(("LRANGE", "list", 0, -1)).await.unwrap();
        assert_eq!(list, ["first", "second"], "{bytes}");
    }
}

#[tokio::test]
async fn a_request_truncated_at_any_byte_does_not_run() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    let mut changes = status_from_now(&client).await;
    for bytes in 1.."*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".len() as u64 {
        proxy.truncate_after(bytes, Direction::ToServer);
        assert!(is_lost(&client.exec::<i64>(("INCR", "n")).await), "{bytes}");
        wait_for_reconnect(&mut changes).await;
    }
    assert_eq!(client.exec::<Option<i64>>(("GET", "n")).await.unwrap(), None);
}

#[tokio::test]
async fn a_slow_network_delays_and_breaks_nothing() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    proxy.delay(Duration::from_millis(30));
    let begun = Instant::now();
    let echoes = join_all((0..100).map(|n| client.exec::<u32>(("ECHO", n)))).await;
    assert!(begun.elapsed() >= Duration::from_millis(60));
    assert!(echoes.into_iter().map(Result::unwrap).eq(0..100));

    proxy.resume();
    proxy.throttle(200_000);
    let value = "x".repeat(20_000);
    let (set, get) = client.pipeline::<((), String)>((("SET", "key", &value), ("GET", "key"))).await.unwrap();
    assert!(set.is_ok() && get.unwrap() == value);
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn a_network_that_refuses_is_tried_until_it_accepts() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(fast_reconnect(url)).await;
    let mut changes = status_from_now(&client).await;
    proxy.refuse();
    proxy.cut();
    let failed = loop {
        let status = wait_for_state(&mut changes, State::Failed).await;
        if status.reconnects >= 20 {
            break status;
        }
    };
    let Some(ConnectionLoss::Connect(error)) = failed.last_error else { panic!("{failed:?}") };
    assert!(matches!(*error, RedisConnectError::Dial { .. }), "{error:?}");
    proxy.accept();
    wait_for_state(&mut changes, State::Open).await;
    assert_in_sync(&client).await;
    assert_eq!(client.status().reconnects, 0);
}

#[tokio::test]
async fn a_reconnection_that_hangs_ends_at_the_connect_deadline() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client =
        connect(with(fast_reconnect(url), |config| config.connect_timeout = Duration::from_secs(1))).await;
    let mut changes = status_from_now(&client).await;
    proxy.stall(Direction::Both);
    proxy.cut();
    wait_for_state(&mut changes, State::Reconnecting).await;
    let queued = submitted(client.exec::<()>(("PING",)));
    let error = within("a result", queued).await.unwrap_err();
    // None of its bytes was sent, so it did not run.
    let ExecError::Request(RequestError::Rejected { last_error: ConnectionLoss::Connect(reason), .. }) =
        &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(error.retry(), Retry::Safe);
    assert!(matches!(**reason, RedisConnectError::Timeout { step: "the handshake", .. }), "{reason:?}");
    proxy.resume();
    wait_for_state(&mut changes, State::Open).await;
    assert_in_sync(&client).await;
}

#[tokio::test]
async fn a_server_that_sends_nothing_while_requests_wait_is_disconnected() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(with_stall_timeout(url)).await;
    assert_stall_ends_connection(&proxy, &client).await;
}

#[tokio::test]
async fn an_unsubscription_without_a_caller_does_not_hide_a_stall() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(with_stall_timeout(url)).await;
    let news = client.subscribe("news").await.unwrap();
    proxy.stall(Direction::ToClient);
    drop(news);
    assert_stall_ends_connection(&proxy, &client).await;
}

const STALL: Duration = Duration::from_secs(2);

fn with_stall_timeout(url: String) -> Config {
    with(fast_reconnect(url), |config| config.stall_timeout = Some(STALL))
}

async fn assert_stall_ends_connection(proxy: &Proxy, client: &RedisClient) {
    let mut changes = status_from_now(client).await;
    proxy.stall(Direction::ToClient);
    let begun = Instant::now();
    assert!(is_deadline(&client.exec::<()>(("PING",)).within(Duration::from_millis(50)).await));
    assert_eq!(client.state(), State::Open);
    let status = wait_for_state(&mut changes, State::Failed).await;
    assert!(matches!(status.last_error, Some(ConnectionLoss::Stalled(_))), "{status:?}");
    assert!(begun.elapsed() >= STALL, "{:?}", begun.elapsed());
    proxy.resume();
    wait_for_state(&mut changes, State::Open).await;
    assert_in_sync(client).await;
}

#[tokio::test]
async fn an_idle_connection_is_left_alone() {
    let redis = start();
    let client = connect(with_stall_timeout(redis.url())).await;
    assert_in_sync(&client).await;
    // Idle for twice the stall timeout.
    tokio::time::sleep(2 * STALL).await;
    assert_in_sync(&client).await;
    assert_eq!(client.stats().connections, 1);
}

/// Starts a server that sends these bytes after the first read, then closes the connection.
async fn canned_server(bytes: Vec<u8>) -> std::net::SocketAddr {
    let bytes = Arc::new(bytes);
    mock_server(move |mut socket| {
        let bytes = bytes.clone();
        async move {
            let _request = socket.read(&mut [0; 1024]).await;
            let _sent = socket.write_all(&bytes).await;
        }
    })
    .await
}

const NOT_REDIS: [&[u8]; 5] = [
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x02\x0a",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\0\0\0\0",
    b"$12x\r\n",
];

#[tokio::test]
async fn bytes_that_are_not_redis_are_refused_by_the_handshake() {
    for bytes in NOT_REDIS {
        let addr = canned_server(bytes.to_vec()).await;
        let error = within("a refusal", RedisClient::connect(format!("redis://{addr}"))).await.unwrap_err();
        assert!(matches!(error, RedisConnectError::Handshake { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&addr.to_string()) && text.contains("TLS"), "{text}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_redis_end_an_open_connection_with_the_reason() {
    for bytes in NOT_REDIS {
        let addr = canned_server(bytes.to_vec()).await;
        let client = connect(format!("redis://{addr}?protocol=2")).await;
        let error = within("a result", client.exec::<()>(("PING",))).await.unwrap_err();
        let ExecError::Request(RequestError::Lost(ConnectionLoss::Protocol(_))) = error else {
            panic!("{error:?}")
        };
    }
}

#[tokio::test]
async fn an_unexpected_reply_ends_the_connection() {
    let addr = canned_server(b"+PONG\r\n+PONG\r\n".to_vec()).await;
    let client = connect(format!("redis://{addr}?protocol=2")).await;
    let mut changes = status_from_now(&client).await;
    client.exec::<()>(("PING",)).await.unwrap();
    let status = wait_for_state(&mut changes, State::Failed).await;
    assert!(
        matches!(status.last_error, Some(ConnectionLoss::Protocol(ProtocolError::UnexpectedReply))),
        "{status:?}"
    );
}

#[tokio::test]
async fn a_reply_over_the_limits_ends_the_connection_before_it_is_read() {
    let redis = start();
    let client =
        connect(with(fast_reconnect(redis.url()), |config| config.limits.max_reply_bytes = 1000)).await;
    let mut changes = status_from_now(&client).await;
    client.exec::<()>(("SETRANGE", "long", 5_000, "x")).await.unwrap();
    let error = client.exec::<()>(("GET", "long")).await.unwrap_err();
    let ExecError::Request(RequestError::Lost(ConnectionLoss::Protocol(ProtocolError::TooLong {
        limit: 1000,
        ..
    }))) = error
    else {
        panic!("{error:?}")
    };
    wait_for_reconnect(&mut changes).await;
    assert_in_sync(&client).await;
}

#[tokio::test]
async fn random_bytes_cause_neither_hangs_nor_panics() {
    const SEED: u64 = 0x5eed_0002;
    let mut rng = XorShift64(SEED);
    for round in 0..200 {
        let types = b"+-:$*_#,(!=%~>|.;\r\n0123456789tf";
        let length = rng.next_u64() as usize % 64;
        let bytes: Vec<u8> = (0..length)
            .map(|_| match rng.one_in(3) {
                true => rng.next_u64() as u8,
                false => types[rng.next_u64() as usize % types.len()],
            })
            .collect();
        let shown = format!("seed {SEED:#x}, round {round}: {}", bytes.escape_ascii());
        let addr = canned_server(bytes).await;
        // Both calls must end, because the server closes the connection.
        let handshake = within(&shown, RedisClient::connect(format!("redis://{addr}"))).await;
        drop(handshake);
        let client =
            connect(with(config(format!("redis://{addr}?protocol=2")), |config| config.reconnect = None))
                .await;
        let mut changes = client.status_changes();
        let _any = within(&shown, client.pipeline::<(i64, Vec<String>)>((("GET", 1), ("GET", 2)))).await;
        wait_for_state(&mut changes, State::Closed).await;
    }
}
