//! The worker on in-memory streams with a paused clock: all times are exact.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;
use crate::client::RedisClient;
use crate::config::Config;
use crate::connect::RespVersion;
use crate::error::{ExecError, RedisConnectError, RequestError};

/// Returns a client and the server ends of its dials. `dials` says which dials succeed; further
/// ones do.
fn client_with(
    config: Config,
    buffer: usize,
    dials: impl IntoIterator<Item = bool>,
) -> (RedisClient, mpsc::Receiver<Dialed>) {
    let (sender, receiver) = mpsc::channel(64);
    let dials = Mutex::new(dials.into_iter().collect::<VecDeque<bool>>());
    let dialer: Dialer = Arc::new(move || {
        let works = dials.lock().expect("no test panics while it dials").pop_front().unwrap_or(true);
        let (ours, theirs) = duplex(buffer);
        let dialed = Dialed { at: Instant::now(), server: theirs };
        let reported = sender.try_send(dialed).is_ok();
        Box::pin(async move {
            if works && reported {
                Ok(EstablishedConnection {
                    io: Box::new(ours),
                    received: BytesMut::new(),
                    version: RespVersion::Resp3,
                })
            } else {
                Err(RedisConnectError::Cancelled)
            }
        })
    });
    let client = RedisClient::with_dialer(Arc::new(config), dialer);
    client.start();
    (client, receiver)
}

struct Dialed {
    at: Instant,
    server: DuplexStream,
}

const GET_A: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

async fn expect_bytes(server: &mut DuplexStream, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    server.read_exact(&mut found).await.expect("the client writes");
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(expected));
}

fn get(client: &RedisClient) -> tokio::task::JoinHandle<Result<String, ExecError>> {
    let client = client.clone();
    tokio::spawn(async move { client.exec::<String>(("GET", "a")).await })
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_at_its_deadline_and_its_late_reply_is_discarded() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let mut server = dials.recv().await.expect("it dials").server;
    let begun = Instant::now();
    let error = client.exec::<String>(("GET", "a")).await.expect_err("the server does not reply");
    assert!(
        matches!(error, ExecError::Request(RequestError::Deadline { after }) if after == Duration::from_secs(5))
    );
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5_010), "{took:?}");

    let second = get(&client);
    expect_bytes(&mut server, GET_A).await;
    expect_bytes(&mut server, GET_A).await;
    server.write_all(b"+late\r\n+right\r\n").await.expect("the client reads");
    assert_eq!(second.await.expect("no panic").expect("a reply"), "right");
    assert_eq!(client.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_deadline_of_one_request_is_kept_among_longer_ones() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let _server = dials.recv().await.expect("it dials").server;
    let begun = Instant::now();
    let long = get(&client);
    tokio::task::yield_now().await;
    let short = client.exec::<String>(("GET", "a")).within(Duration::from_millis(20)).await;
    assert!(matches!(short, Err(ExecError::Request(RequestError::Deadline { .. }))));
    assert!(begun.elapsed() < Duration::from_millis(25), "{:?}", begun.elapsed());
    assert!(long.await.expect("no panic").is_err());
    assert!(begun.elapsed() >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_disconnected_after_the_stall_timeout() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let silent = dials.recv().await.expect("it dials");
    assert!(client.exec::<String>(("GET", "a")).await.is_err());
    let again = dials.recv().await.expect("it dials again");
    let waited = again.at - silent.at;
    assert!(waited >= Duration::from_secs(30) && waited < Duration::from_millis(30_100), "{waited:?}");
    assert!(matches!(client.status().last_error, Some(ConnectionLoss::Stalled(_))));
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_the_backoff_until_one_succeeds() {
    let (client, mut dials) = client_with(Config::default(), 1024, std::iter::repeat_n(false, 30));
    let mut last = dials.recv().await.expect("it dials").at;
    let backoff = crate::ReconnectBackoff::default();
    for attempt in 1..=30 {
        let at = dials.recv().await.expect("it dials again").at;
        let (least, most) = (backoff.delay(attempt, 0), backoff.delay(attempt, u64::MAX));
        let waited = at - last;
        assert!(
            waited >= least && waited <= most + Duration::from_millis(2),
            "attempt {attempt} after {waited:?}"
        );
        last = at;
    }
    client.status_changes().wait_for(State::Open).await;
    assert_eq!(client.status().reconnects, 0);
}

#[tokio::test(start_paused = true)]
async fn rejected_requests_get_the_time_of_the_next_attempt() {
    let (client, _dials) = client_with(Config::default(), 1024, [false]);
    let failed = client.status_changes().wait_for(State::Failed).await;
    match client.exec::<String>(("GET", "a")).await {
        Err(ExecError::Request(RequestError::Rejected {
            last_error: ConnectionLoss::Connect(_),
            retry_at,
        })) => {
            assert_eq!(retry_at, failed.retry_at);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_and_replies_larger_than_all_buffers_do_not_deadlock() {
    let (client, mut dials) = client_with(Config::default(), 64, []);
    let server = dials.recv().await.expect("it dials").server;
    // Echoes each byte at once and waits for its reader, like a server with full buffers.
    let echo = tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(server);
        tokio::io::copy(&mut from, &mut to).await
    });
    let value = "x".repeat(100_000);
    let commands: Vec<_> = (0..20).map(|_| ("ECHO", &value)).collect();
    // The echo is the request itself: an array of two strings.
    let echoed = client.pipeline::<Vec<(String, String)>>(&commands).await.expect("no deadlock");
    assert!(echoed.into_iter().all(|result| result.expect("an array").1 == value));
    client.close().await;
    echo.await.expect("no panic").expect("the echo ends with the connection");
}

#[tokio::test(start_paused = true)]
async fn a_reply_may_come_before_its_request_is_fully_written() {
    let (client, mut dials) = client_with(Config::default(), 16, []);
    let mut server = dials.recv().await.expect("it dials").server;
    let request = tokio::spawn({
        let client = client.clone();
        async move { client.exec::<String>(("SET", "a", "x".repeat(1000))).await }
    });
    expect_bytes(&mut server, b"*3").await;
    server.write_all(b"-ERR too long\r\n").await.expect("the client reads");
    let error = request.await.expect("no panic").expect_err("refused");
    assert_eq!(error.server().map(|error| error.text()), Some("ERR too long"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_failed_before_its_first_byte_was_sent_is_never_sent() {
    let (client, mut dials) = client_with(Config::default(), 16, []);
    let mut server = dials.recv().await.expect("it dials").server;
    let blocking = tokio::spawn({
        let client = client.clone();
        async move { client.exec::<String>(("SET", "a", "x".repeat(1000))).within(Duration::from_secs(60)).await }
    });
    expect_bytes(&mut server, b"*3").await;
    assert!(client.exec::<String>(("INCR", "never")).await.is_err(), "its deadline passes in the queue");
    let third = get(&client);
    server.write_all(b"+OK\r\n").await.expect("the client reads");
    assert_eq!(blocking.await.expect("no panic").expect("a reply"), "OK");
    let rest =
        b"\r\n$3\r\nSET\r\n$1\r\na\r\n$1000\r\n".iter().copied().chain(std::iter::repeat_n(b'x', 1000));
    expect_bytes(&mut server, &rest.chain(*b"\r\n").collect::<Vec<_>>()).await;
    expect_bytes(&mut server, GET_A).await;
    server.write_all(b"+third\r\n").await.expect("the client reads");
    assert_eq!(third.await.expect("no panic").expect("a reply"), "third");
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_requests_in_flight_or_fails_them_at_its_deadline() {
    for replies in [true, false] {
        let (client, mut dials) = client_with(Config::default(), 1024, []);
        let mut server = dials.recv().await.expect("it dials").server;
        let request = get(&client);
        expect_bytes(&mut server, GET_A).await;
        let begun = Instant::now();
        let closing = tokio::spawn({
            let client = client.clone();
            async move { client.close().await }
        });
        client.status_changes().wait_for(State::Closing).await;
        assert!(matches!(
            get(&client).await,
            Ok(Err(ExecError::Request(RequestError::Closed { last_error: None })))
        ));
        if replies {
            server.write_all(b"+done\r\n").await.expect("the client reads");
            assert_eq!(request.await.expect("no panic").expect("a reply"), "done");
            assert!(begun.elapsed() < Duration::from_secs(1));
        } else {
            assert!(request.await.expect("no panic").is_err());
            assert!(
                begun.elapsed() >= Duration::from_secs(5) && begun.elapsed() < Duration::from_millis(5_010)
            );
        }
        closing.await.expect("no panic");
        assert_eq!(client.state(), State::Closed);
    }
}

/// Aborts the client while `requests` are open, and lets every task that is ready run once.
async fn abort_now(client: &RedisClient, requests: Vec<tokio::task::JoinHandle<Result<String, ExecError>>>) {
    let begun = Instant::now();
    assert!(!requests.iter().any(tokio::task::JoinHandle::is_finished));
    client.abort();
    tokio::task::yield_now().await;
    assert_eq!(client.state(), State::Closed);
    for request in requests {
        assert!(request.is_finished());
        let result = request.await.expect("no panic");
        assert!(matches!(result, Err(ExecError::Request(RequestError::Cancelled))), "{result:?}");
    }
    assert_eq!((client.stats().open_requests, begun.elapsed()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_abort_waits_only_for_the_workers_next_poll_in_every_state() {
    let begin = async |client: &RedisClient, count: usize| {
        let requests: Vec<_> = (0..count).map(|_| get(client)).collect();
        tokio::task::yield_now().await;
        requests
    };
    // Open: some requests are sent, and the rest doesn't fit into the socket. Replies wait, too.
    let (client, mut dials) = client_with(Config::default(), 64, []);
    let mut server = dials.recv().await.expect("it dials").server;
    let requests = begin(&client, 10).await;
    expect_bytes(&mut server, GET_A).await;
    server.write_all(b"$100\r\nbegun").await.expect("the client reads");
    abort_now(&client, requests).await;
    // Connecting: the dial never ends.
    let endless: Dialer = Arc::new(|| Box::pin(std::future::pending()));
    let client = RedisClient::with_dialer(Arc::new(Config::default()), endless);
    client.start();
    let requests = begin(&client, 3).await;
    assert_eq!(client.state(), State::Connecting);
    abort_now(&client, requests).await;
    // Failed: the next attempt is later. Requests were rejected.
    let (client, _dials) = client_with(Config::default(), 64, [false]);
    client.status_changes().wait_for(State::Failed).await;
    abort_now(&client, Vec::new()).await;
    // Closing: `close` waits for the requests in flight.
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let _server = dials.recv().await.expect("it dials").server;
    let requests = begin(&client, 3).await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    client.status_changes().wait_for(State::Closing).await;
    abort_now(&client, requests).await;
    assert!(closing.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_connects_again_as_the_next_generation() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let _first = dials.recv().await.expect("it dials");
    client.close().await;
    assert_eq!((client.status().state, client.status().generation), (State::Closed, 1));
    client.reopen().await.expect("the dialer works");
    let mut server = dials.recv().await.expect("it dials again").server;
    assert_eq!((client.status().state, client.status().generation), (State::Open, 2));
    let request = get(&client);
    expect_bytes(&mut server, GET_A).await;
    server.write_all(b"+again\r\n").await.expect("the client reads");
    assert_eq!(request.await.expect("no panic").expect("a reply"), "again");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_client_closes_the_connection() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let mut server = dials.recv().await.expect("it dials").server;
    drop(client.clone());
    let request = get(&client);
    expect_bytes(&mut server, GET_A).await;
    server.write_all(b"+still here\r\n").await.expect("the client reads");
    request.await.expect("no panic").expect("dropping a clone does not close the connection");
    drop(client);
    assert_eq!(server.read_buf(&mut BytesMut::new()).await.expect("a clean end"), 0);
}

const READONLY: &[u8] = b"-READONLY You can't write against a read only replica.\r\n";

/// Sends this reply to every request of a connection.
fn reply_to_all(mut server: DuplexStream, reply: &'static [u8]) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut request = vec![0; GET_A.len()];
        while server.read_exact(&mut request).await.is_ok() {
            if server.write_all(reply).await.is_err() {
                return;
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_unfit_server_is_dialed_at_most_12_times_in_the_first_second_then_twice_per_second() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let begun = Instant::now();
    // Calls as often as possible: the handshake and the reply take no time.
    let caller = tokio::spawn({
        let client = client.clone();
        async move {
            loop {
                match client.exec::<String>(("GET", "a")).await {
                    Err(ExecError::Request(RequestError::Rejected {
                        last_error: ConnectionLoss::Unfit(_),
                        ..
                    })) => {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Err(error) => assert_eq!(error.server().map(|error| error.code()), Some("READONLY")),
                    Ok(reply) => panic!("{reply}"),
                }
            }
        }
    });
    let mut at = Vec::new();
    while begun.elapsed() < Duration::from_secs(30) {
        let dialed = dials.recv().await.expect("it dials again");
        at.push(dialed.at - begun);
        reply_to_all(dialed.server, READONLY);
    }
    let within = |from: u64| at.iter().filter(|at| at.as_secs() == from).count();
    // The first dial is not a reconnection.
    assert!(within(0) <= 13, "{at:?}");
    assert!((1..29).all(|second| (1..=2).contains(&within(second))), "{at:?}");
    caller.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unfit_server_is_left_after_its_replies_are_dispatched() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let mut server = dials.recv().await.expect("it dials").server;
    let calls: Vec<_> = (0..4).map(|_| get(&client)).collect();
    for _ in 0..4 {
        expect_bytes(&mut server, GET_A).await;
    }
    let replies = [b"+before\r\n", READONLY, b"+after\r\n"].concat();
    server.write_all(&replies).await.expect("the client reads");
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.expect("no panic"));
    }
    let [Ok(before), Err(refused), Ok(after), Err(open)] = &results[..] else { panic!("{results:?}") };
    assert_eq!((before.as_str(), after.as_str()), ("before", "after"));
    assert_eq!(refused.server().map(|error| error.code()), Some("READONLY"));
    assert_eq!(refused.retry(), crate::Retry::Safe);
    assert!(matches!(
        open,
        ExecError::Request(RequestError::Lost(ConnectionLoss::Unfit(crate::ServerRefusal::ReadOnly)))
    ));

    let mut master = dials.recv().await.expect("it dials again").server;
    client.status_changes().wait_for(State::Open).await;
    let request = get(&client);
    expect_bytes(&mut master, GET_A).await;
    master.write_all(b"+master\r\n").await.expect("the client reads");
    assert_eq!(request.await.expect("no panic").expect("a reply"), "master");
}

#[tokio::test(start_paused = true)]
async fn an_unfit_server_is_kept_if_configured() {
    let config = Config { leave_unfit_server: false, ..Config::default() };
    let (client, mut dials) = client_with(config, 1024, []);
    reply_to_all(dials.recv().await.expect("it dials").server, READONLY);
    for _ in 0..3 {
        let error = get(&client).await.expect("no panic").expect_err("a replica");
        assert_eq!(error.server().map(|error| error.code()), Some("READONLY"));
    }
    assert_eq!((client.state(), client.stats().connections), (State::Open, 1));
}

#[tokio::test(start_paused = true)]
async fn an_echo_probe_follows_an_unknown_command_and_its_reply_is_discarded() {
    let (client, mut dials) = client_with(Config::default(), 1024, []);
    let mut server = dials.recv().await.expect("it dials").server;
    for (count, expected) in [(1, Some("x")), (0, None), (2, None)] {
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.exec::<String>(("MY.CMD",)).await }
        });
        expect_bytes(&mut server, b"*1\r\n$6\r\nMY.CMD\r\n").await;
        let mut echo = [0; b"*2\r\n$4\r\nECHO\r\n$16\r\n0123456789abcdef\r\n".len()];
        server.read_exact(&mut echo).await.expect("the client writes");
        let second = echo;
        server.read_exact(&mut echo).await.expect("the client writes");
        assert!(echo.starts_with(b"*2\r\n$4\r\nECHO\r\n$16\r\n") && echo == second);
        let later = get(&client);
        expect_bytes(&mut server, GET_A).await;
        let echoed = &echo[b"*2\r\n$4\r\nECHO\r\n".len()..];
        let replies = [&b"+x\r\n".repeat(count)[..], echoed, echoed, b"+later\r\n"].concat();
        server.write_all(&replies).await.expect("the client reads");
        let (call, later) = (call.await.expect("no panic"), later.await.expect("no panic"));
        match expected {
            Some(expected) => {
                assert_eq!(call.expect("a reply"), expected);
                assert_eq!(later.expect("a reply"), "later");
            }
            None => {
                for result in [call, later] {
                    let error = result.expect_err("replies cannot be matched to requests");
                    let ExecError::Request(RequestError::Lost(ConnectionLoss::Protocol(reason))) = error
                    else {
                        panic!("{error:?}")
                    };
                    assert_eq!(reason, crate::ProtocolError::OutOfSync);
                }
                server = dials.recv().await.expect("it dials again").server;
                client.status_changes().wait_for(State::Open).await;
            }
        }
    }
}
