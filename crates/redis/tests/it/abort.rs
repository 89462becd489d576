//! Aborting a client: every request, subscription and connection ends at once.

use std::sync::Arc;
use std::time::Duration;

use forebay_redis::{ExecError, RedisClient, RedisConnectError, RequestError, Retry, State};
use forebay_testkit::Direction;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::support::*;

#[track_caller]
fn assert_cancelled<T: std::fmt::Debug>(result: Result<T, ExecError>) {
    let error = result.expect_err("the client was aborted");
    assert!(matches!(error, ExecError::Request(RequestError::Cancelled)), "{error:?}");
    assert_eq!(error.retry(), Retry::Never);
    assert!(error.to_string().contains("aborted"), "{error}");
}

async fn wait_until_closed(client: &RedisClient) {
    wait_for_state(&mut client.status_changes(), State::Closed).await;
}

#[tokio::test]
async fn an_abort_cancels_requests_in_flight_and_queued_ones_are_not_sent() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let (proxy, url) = proxied(&redis);
    let client = connect(format!("{url}?client_name=aborted")).await;
    proxy.stall(Direction::ToClient);
    let in_flight: Vec<_> = (0..10).map(|_| submitted(client.exec::<i64>(("INCR", "sent")))).collect();
    eventually("they ran", "10".to_owned(), async || {
        admin.exec::<Option<String>>(("GET", "sent")).await.unwrap().unwrap_or_default()
    })
    .await;
    // The worker runs on this thread, so it has not taken these.
    let queued: Vec<_> = (0..10).map(|_| submitted(client.exec::<i64>(("INCR", "queued")))).collect();
    client.abort();
    assert_cancelled(client.exec::<()>(("PING",)).await);
    for request in in_flight.into_iter().chain(queued) {
        assert_cancelled(within("a result", request).await);
    }
    wait_until_closed(&client).await;
    assert_cancelled(client.exec::<()>(("PING",)).await);
    assert_cancelled(client.subscribe("news").await);
    drop(proxy);
    eventually("its connection is gone", 0, async || connections_named(&admin, "aborted").await).await;
    assert_eq!(admin.exec::<Option<i64>>(("GET", "queued")).await.unwrap(), None);
    let stats = client.stats();
    assert_eq!((stats.requests, stats.failures, stats.open_requests), (20, 20, 0), "{stats:?}");
}

#[tokio::test]
async fn an_abort_ends_subscriptions_after_the_received_messages() {
    let redis = start();
    for protocol in [3, 2] {
        let client = connect(format!("{}?protocol={protocol}&client_name=sub{protocol}", redis.url())).await;
        let admin = connect(redis.url()).await;
        let mut news = client.subscribe("news").await.unwrap();
        let mut pushes = client.pushes();
        assert_eq!(admin.exec::<i64>(("PUBLISH", "news", "last")).await.unwrap(), 1);
        let first = within("the message", news.next()).await.unwrap().message().unwrap();
        assert_eq!(first.payload, "last");
        client.abort();
        assert!(within("the end", news.next()).await.is_none());
        assert!(within("the end", pushes.next()).await.is_none());
        assert_cancelled(client.subscribe("more").await.map(drop));
        let name = format!("sub{protocol}");
        eventually("no connection is left", 0, async || connections_named(&admin, &name).await).await;
    }
}

#[tokio::test]
async fn an_abort_ends_dedicated_connections_for_good() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let client = connect(format!("{}?client_name=pair", redis.url())).await;
    let mut idle = client.dedicated().await.unwrap();
    let mut blocked = client.dedicated().await.unwrap();
    // Connections that are gone are forgotten.
    for _ in 0..3 {
        drop(client.dedicated().await.unwrap());
    }
    let mut closed = client.dedicated().await.unwrap();
    let id: i64 = closed.exec(("CLIENT", "ID")).await.unwrap();
    kill_connection(&admin, id).await;
    let blocking = tokio::spawn(async move {
        let result = blocked.exec::<(String, String)>(("BLPOP", "jobs", 0)).await;
        (result, blocked)
    });
    eventually("it blocks", true, async || {
        let info: String = admin.exec(("INFO", "clients")).await.unwrap();
        info.contains("blocked_clients:1\r")
    })
    .await;
    client.abort();
    let (result, mut blocked) = within("a result", blocking).await.unwrap();
    assert_cancelled(result);
    for connection in [&mut idle, &mut blocked, &mut closed] {
        for _ in 0..2 {
            assert_cancelled(within("a result", connection.exec::<()>(("PING",))).await);
        }
    }
    let error = client.dedicated().await.unwrap_err();
    assert!(matches!(error, RedisConnectError::Cancelled), "{error:?}");
    eventually("no connection is left", 0, async || connections_named(&admin, "pair").await).await;

    client.reopen().await.unwrap();
    assert_cancelled(idle.exec::<()>(("PING",)).await);
    client.dedicated().await.unwrap().exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn an_abort_ends_attempts_to_connect_and_every_caller_that_waits() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let client = RedisClient::open(&*url).unwrap();
    let queued = submitted(client.exec::<()>(("PING",)));
    let (_socket, _) = within("a dial", silent.accept()).await.unwrap();
    let subscribing = tokio::spawn({
        let client = client.clone();
        async move { client.subscribe("news").await.map(drop) }
    });
    tokio::task::yield_now().await;
    client.abort();
    assert_cancelled(within("a result", queued).await);
    assert_cancelled(within("a result", subscribing).await.unwrap());
    wait_until_closed(&client).await;

    let reopening = tokio::spawn({
        let client = client.clone();
        async move { client.reopen().await }
    });
    let (_socket, _) = within("a dial", silent.accept()).await.unwrap();
    client.abort();
    let error = within("a result", reopening).await.unwrap().unwrap_err();
    assert!(matches!(error, RedisConnectError::Cancelled), "{error:?}");
}

#[tokio::test]
async fn an_abort_between_attempts_replaces_the_reason_of_rejections() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    redis.kill();
    wait_for_state(&mut changes, State::Failed).await;
    client.abort();
    assert_cancelled(client.exec::<()>(("PING",)).await);
    wait_for_state(&mut changes, State::Closed).await;
    assert_cancelled(client.exec::<()>(("PING",)).await);
}

#[tokio::test]
async fn an_abort_ends_a_close_that_waits() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(with(config(url), |config| config.close_timeout = 10 * TEST_TIMEOUT)).await;
    proxy.stall(Direction::ToClient);
    let in_flight = submitted(client.exec::<()>(("PING",)).within(10 * TEST_TIMEOUT));
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    wait_for_state(&mut client.status_changes(), State::Closing).await;
    client.abort();
    assert_cancelled(within("a result", in_flight).await);
    within("the end", closing).await.unwrap();
}

#[tokio::test]
async fn an_aborted_client_can_be_opened_again_at_once() {
    let redis = start();
    let client = connect(redis.url()).await;
    for generation in 2..20 {
        client.abort();
        client.reopen().await.unwrap();
        client.exec::<()>(("PING",)).await.unwrap();
        assert_eq!(client.status().generation, generation);
    }
    client.close().await;
    client.abort();
    assert_cancelled(client.exec::<()>(("PING",)).await);
    client.reopen().await.unwrap();
    client.exec::<()>(("PING",)).await.unwrap();
}

#[tokio::test]
async fn an_abort_under_a_flood_of_messages_is_not_delayed() {
    let redis = start();
    let client = connect(with(config(redis.url()), |config| config.max_queued_messages = 1)).await;
    let mut news = client.subscribe("news").await.unwrap();
    let publisher = connect(redis.url()).await;
    let flood = tokio::spawn({
        let payload = Arc::new("x".repeat(64 << 10));
        async move {
            let batch: Vec<_> = (0..100).map(|_| ("PUBLISH", "news", payload.clone())).collect();
            while publisher.pipeline::<Vec<i64>>(&batch).await.unwrap().pop().unwrap().unwrap() > 0 {}
        }
    });
    within("a message", news.next()).await.unwrap();
    client.abort();
    within("closed", wait_until_closed(&client)).await;
    within("the last publication has no subscriber", flood).await.unwrap();
}

#[test]
fn an_abort_needs_no_runtime_and_does_not_block() {
    let redis = start();
    let home = Runtime::new().unwrap();
    let (proxy, client) = home.block_on(async {
        let (proxy, url) = proxied(&redis);
        let client = connect(url).await;
        proxy.stall(Direction::ToClient);
        (proxy, client)
    });
    let waiting = home.spawn({
        let client = client.clone();
        async move { client.exec::<()>(("PING",)).within(Duration::from_secs(3600)).await }
    });
    home.block_on(eventually("it is open", 1, async || client.stats().open_requests));
    client.abort();
    assert_cancelled(block_on(waiting).unwrap());
    assert_cancelled(block_on(client.exec::<()>(("PING",))));
    drop(proxy);
}
