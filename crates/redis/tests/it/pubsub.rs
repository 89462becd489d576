//! Subscriptions: published messages arrive once and in order, or the subscriber gets a gap.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use forebay_redis::{Event, Gap, PubSubMessage, RedisClient, RespValue, State, Subscription};
use forebay_sandbox::Redis;
use forebay_testkit::Direction;
use futures_util::{FutureExt, StreamExt};

use super::support::*;

async fn next(subscription: &mut Subscription) -> Option<Event> {
    within("an event", subscription.next()).await
}

async fn message(subscription: &mut Subscription) -> PubSubMessage {
    match next(subscription).await {
        Some(Event::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// Returns the payload of the next message as text.
async fn text(subscription: &mut Subscription) -> String {
    String::from_utf8(message(subscription).await.payload.to_vec()).unwrap()
}

/// Publishes a message and returns the number of receivers.
async fn publish(client: &RedisClient, channel: &str, payload: &str) -> i64 {
    client.exec(("PUBLISH", channel, payload)).await.unwrap()
}

async fn subscribers(admin: &RedisClient, channel: &str) -> i64 {
    let (_, count): (String, i64) = admin.exec(("PUBSUB", "NUMSUB", channel)).await.unwrap();
    count
}

/// Waits until the client has received this many push messages, including confirmations.
async fn received(client: &RedisClient, pushes: u64) {
    eventually("the messages are here", true, async || client.stats().pushes >= pushes).await;
}

#[tokio::test]
async fn channels_patterns_and_shard_channels_deliver_their_own_messages() {
    let redis = start();
    let (client, publisher) = (connect(redis.url()).await, connect(redis.url()).await);
    let mut channel = client.subscribe("news.rust").await.unwrap();
    let mut pattern = client.psubscribe("news.*").await.unwrap();
    let mut shard = client.ssubscribe("news.rust").await.unwrap();

    assert_eq!(publish(&publisher, "news.rust", "to both").await, 2);
    assert_eq!(publish(&publisher, "news.go", "to the pattern").await, 1);
    let reached: i64 = publisher.exec(("SPUBLISH", "news.rust", "to the shard")).await.unwrap();
    assert_eq!(reached, 1);

    let expected =
        |channel: &'static str, pattern: Option<&'static str>, payload: &'static str| PubSubMessage {
            channel: Bytes::from(channel),
            pattern: pattern.map(Bytes::from),
            payload: Bytes::from(payload),
        };
    assert_eq!(message(&mut channel).await, expected("news.rust", None, "to both"));
    assert_eq!(message(&mut pattern).await, expected("news.rust", Some("news.*"), "to both"));
    assert_eq!(message(&mut pattern).await, expected("news.go", Some("news.*"), "to the pattern"));
    assert_eq!(message(&mut shard).await, expected("news.rust", None, "to the shard"));
    for subscription in [&mut channel, &mut pattern, &mut shard] {
        assert!(subscription.next().now_or_never().is_none(), "nothing else has come");
    }
}

#[tokio::test]
async fn one_subscription_takes_several_channels() {
    let redis = start();
    let client = connect(redis.url()).await;
    let names: Vec<String> = (0..100).map(|n| format!("channel-{n}")).collect();
    let mut all = client.subscribe(&names).await.unwrap();
    for name in &names {
        assert_eq!(publish(&client, name, name).await, 1);
        let message = message(&mut all).await;
        assert_eq!((&*message.channel, &*message.payload), (name.as_bytes(), name.as_bytes()));
    }
    drop(all);
    for name in &names {
        eventually("unsubscribed", 0, async || subscribers(&client, name).await).await;
    }
}

#[tokio::test]
async fn a_channel_that_is_named_twice_delivers_each_message_once() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut twice = client.subscribe(["news", "news"]).await.unwrap();
    publish(&client, "news", "first").await;
    publish(&client, "news", "second").await;
    assert_eq!(text(&mut twice).await, "first");
    assert_eq!(text(&mut twice).await, "second");
    drop(twice);
    eventually("unsubscribed", 0, async || subscribers(&client, "news").await).await;
}

#[tokio::test]
async fn two_subscriptions_to_one_channel_are_independent() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut first = client.subscribe("news").await.unwrap();
    let mut second = client.subscribe("news").await.unwrap();
    assert_eq!(publish(&client, "news", "to both").await, 1, "one connection, subscribed once");
    assert_eq!(text(&mut first).await, "to both");
    assert_eq!(text(&mut second).await, "to both");

    drop(first);
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(publish(&client, "news", "to the second").await, 1);
    assert_eq!(text(&mut second).await, "to the second");

    drop(second);
    eventually("unsubscribed", 0, async || subscribers(&client, "news").await).await;
    let mut third = client.subscribe("news").await.unwrap();
    publish(&client, "news", "to the third").await;
    assert_eq!(text(&mut third).await, "to the third");
}

#[tokio::test]
async fn a_subscription_replaced_by_another_misses_nothing_that_comes_after() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut news = client.subscribe("news").await.unwrap();
    for n in 0..200 {
        // The server must get the old unsubscription before the new subscription.
        drop(news);
        news = client.subscribe("news").await.unwrap();
        assert_eq!(publish(&client, "news", &n.to_string()).await, 1);
        assert_eq!(text(&mut news).await, n.to_string());
    }
}

#[tokio::test]
async fn requests_go_on_while_messages_flow_in_order() {
    let redis = start();
    let (client, publisher) = (connect(redis.url()).await, connect(redis.url()).await);
    let mut news = client.subscribe("news").await.unwrap();
    let publishing = async {
        for n in 0..1000 {
            let reached: i64 = publisher.exec(("PUBLISH", "news", n)).await.unwrap();
            assert_eq!(reached, 1);
        }
    };
    let asking = async {
        for n in 0..1000 {
            let echo: u32 = client.exec(("ECHO", n)).await.unwrap();
            assert_eq!(echo, n);
        }
    };
    let reading = async {
        for n in 0..1000 {
            assert_eq!(text(&mut news).await, n.to_string());
        }
    };
    tokio::join!(publishing, asking, reading);
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn a_message_may_be_any_bytes_on_any_channel() {
    let redis = start();
    let client = connect(redis.url()).await;
    let every: Vec<u8> = (0..=255).collect();
    let mut odd = client.subscribe(&every).await.unwrap();
    for payload in [every.clone(), vec![], b"\r\n$3\r\n".to_vec(), vec![0; 1 << 20]] {
        client.exec::<()>(("PUBLISH", &every, &payload)).await.unwrap();
        let message = message(&mut odd).await;
        assert!(*message.channel == *every && *message.payload == *payload);
    }
}

#[tokio::test]
async fn a_slow_subscriber_gets_a_gap_with_the_number_of_dropped_messages() {
    let redis = start();
    let client = connect(with(config(redis.url()), |config| config.max_queued_messages = 4)).await;
    let mut news = client.subscribe("news").await.unwrap();
    let mut other = client.subscribe("other").await.unwrap();
    for n in 0..10 {
        publish(&client, "news", &n.to_string()).await;
    }
    publish(&client, "other", "unharmed").await;
    received(&client, 13).await;
    assert_eq!((text(&mut news).await, text(&mut news).await), ("0".into(), "1".into()));
    publish(&client, "news", "10").await;
    received(&client, 14).await;
    assert_eq!((text(&mut news).await, text(&mut news).await), ("2".into(), "3".into()));
    assert_eq!(next(&mut news).await, Some(Event::Gap(Gap::Overflow(6))));
    assert_eq!(text(&mut news).await, "10");
    assert_eq!(text(&mut other).await, "unharmed");
}

#[tokio::test]
async fn an_overflow_before_a_reconnection_is_reported_first() {
    let redis = start();
    let (admin, client) = {
        let client =
            connect(with(fast_reconnect(redis.url()), |config| config.max_queued_messages = 2)).await;
        (connect(redis.url()).await, client)
    };
    let mut news = client.subscribe("news").await.unwrap();
    for n in 0..5 {
        publish(&admin, "news", &n.to_string()).await;
    }
    received(&client, 6).await;
    let mut changes = status_from_now(&client).await;
    kill_connection(&admin, client_id(&client).await).await;
    wait_for_reconnect(&mut changes).await;
    eventually("subscribed again", 1, async || subscribers(&admin, "news").await).await;
    assert_eq!((text(&mut news).await, text(&mut news).await), ("0".into(), "1".into()));
    assert_eq!(next(&mut news).await, Some(Event::Gap(Gap::Overflow(3))));
    assert_eq!(next(&mut news).await, Some(Event::Gap(Gap::Reconnected)));
    publish(&admin, "news", "again").await;
    assert_eq!(text(&mut news).await, "again");
}

#[tokio::test]
async fn after_a_reconnection_there_is_a_gap_and_then_messages_again() {
    let redis = start();
    let (admin, client) = (connect(redis.url()).await, connect(redis.url()).await);
    let mut subscriptions = vec![
        client.subscribe(["news", "more"]).await.unwrap(),
        client.subscribe("news").await.unwrap(),
        client.psubscribe("ne?s").await.unwrap(),
        client.ssubscribe("news").await.unwrap(),
    ];
    let mut changes = status_from_now(&client).await;
    publish(&admin, "news", "before").await;
    admin.exec::<()>(("SPUBLISH", "news", "before")).await.unwrap();
    received(&client, 5 + 3).await;
    kill_connection(&admin, client_id(&client).await).await;
    wait_for_reconnect(&mut changes).await;
    eventually("subscribed again", (1, 1, 1, 1), async || {
        let patterns: i64 = admin.exec(("PUBSUB", "NUMPAT")).await.unwrap();
        let (_, shards): (String, i64) = admin.exec(("PUBSUB", "SHARDNUMSUB", "news")).await.unwrap();
        (subscribers(&admin, "news").await, subscribers(&admin, "more").await, patterns, shards)
    })
    .await;
    publish(&admin, "news", "after").await;
    admin.exec::<()>(("SPUBLISH", "news", "after")).await.unwrap();
    for subscription in &mut subscriptions {
        assert_eq!(text(subscription).await, "before");
        assert_eq!(next(subscription).await, Some(Event::Gap(Gap::Reconnected)));
        assert_eq!(text(subscription).await, "after");
    }
    publish(&admin, "more", "more").await;
    assert_eq!(text(&mut subscriptions[0]).await, "more");
}

#[tokio::test]
async fn more_channels_than_requests_may_be_open_are_all_subscribed_to_again() {
    let redis = start();
    let admin = connect(redis.url()).await;
    let client = connect(with(fast_reconnect(redis.url()), |config| config.max_requests = 8)).await;
    let names: BTreeMap<String, ()> = (0..50).map(|n| (format!("channel-{n}"), ())).collect();
    let mut all = client.subscribe(names.keys().collect::<Vec<_>>()).await.unwrap();
    let mut changes = status_from_now(&client).await;
    kill_connection(&admin, client_id(&client).await).await;
    wait_for_reconnect(&mut changes).await;
    for name in names.keys() {
        eventually("subscribed again", 1, async || subscribers(&admin, name).await).await;
    }
    assert_eq!(next(&mut all).await, Some(Event::Gap(Gap::Reconnected)));
}

#[tokio::test]
async fn a_subscription_continues_after_a_server_restart() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut news = client.subscribe("news").await.unwrap();
    let mut changes = status_from_now(&client).await;
    redis.restart().unwrap();
    wait_for_reconnect(&mut changes).await;
    eventually("subscribed again", 1, async || subscribers(&client, "news").await).await;
    publish(&client, "news", "after").await;
    assert_eq!(next(&mut news).await, Some(Event::Gap(Gap::Reconnected)));
    assert_eq!(text(&mut news).await, "after");
}

const ADA: &str = "on >pw ~* &allowed* +@all";

fn as_ada(redis: &Redis) -> String {
    format!("redis://ada:pw@{}", redis.addr())
}

#[tokio::test]
async fn a_channel_that_the_user_may_not_read_is_refused_and_leaves_nothing_behind() {
    let redis = Redis::builder().acl_user("ada", ADA).start().unwrap();
    let (admin, client) = (connect(redis.url()).await, connect(as_ada(&redis)).await);
    for names in [vec!["forbidden"], vec!["allowed-1", "forbidden"]] {
        let error = client.subscribe(&names).await.unwrap_err();
        assert_eq!(error.server().map(|error| error.code()), Some("NOPERM"), "{error}");
    }
    assert_eq!(client.psubscribe("*").await.unwrap_err().server().map(|error| error.code()), Some("NOPERM"));
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!((subscribers(&admin, "forbidden").await, subscribers(&admin, "allowed-1").await), (0, 0));

    let mut allowed = client.subscribe("allowed-1").await.unwrap();
    assert_eq!(publish(&admin, "allowed-1", "fine").await, 1);
    assert_eq!(text(&mut allowed).await, "fine");
}

#[tokio::test]
async fn a_channel_that_is_refused_after_a_reconnection_ends_its_stream_only() {
    let redis = Redis::builder().acl_user("ada", ADA).start().unwrap();
    let (admin, client) = (connect(redis.url()).await, connect(as_ada(&redis)).await);
    let mut first = client.subscribe("allowed-1").await.unwrap();
    let mut second = client.subscribe("allowed-2").await.unwrap();
    let mut changes = status_from_now(&client).await;
    // Redis closes connections whose subscriptions are no longer permitted.
    admin.exec::<()>(("ACL", "SETUSER", "ada", "resetchannels", "&allowed-2")).await.unwrap();
    wait_for_reconnect(&mut changes).await;
    assert_eq!(next(&mut first).await, Some(Event::Gap(Gap::Reconnected)));
    assert_eq!(next(&mut first).await, None);
    assert_eq!(next(&mut first).await, None, "and stays ended");
    assert_eq!(next(&mut second).await, Some(Event::Gap(Gap::Reconnected)));
    eventually("subscribed again", 1, async || subscribers(&admin, "allowed-2").await).await;
    publish(&admin, "allowed-2", "still subscribed").await;
    assert_eq!(text(&mut second).await, "still subscribed");
}

#[tokio::test]
async fn closing_ends_the_stream_after_the_received_messages() {
    let redis = start();
    for protocol in [2, 3] {
        let client = connect(format!("{}?protocol={protocol}&client_name=closes", redis.url())).await;
        let admin = connect(redis.url()).await;
        let mut news = client.subscribe("news").await.unwrap();
        publish(&admin, "news", "last").await;
        assert_eq!(text(&mut news).await, "last");
        let waiting = tokio::spawn(async move { news.next().await });
        client.close().await;
        assert_eq!(within("the end", waiting).await.unwrap(), None, "protocol {protocol}");
        eventually("all is closed", 0, async || connections_named(&admin, "closes").await).await;

        client.reopen().await.unwrap();
        let mut again = client.subscribe("news").await.unwrap();
        publish(&admin, "news", "again").await;
        assert_eq!(text(&mut again).await, "again", "protocol {protocol}");
    }
}

#[tokio::test]
async fn a_subscription_keeps_its_connection_until_it_is_dropped() {
    let redis = start();
    let admin = connect(redis.url()).await;
    for protocol in [2, 3] {
        let client = connect(format!("{}?protocol={protocol}&client_name=kept", redis.url())).await;
        let mut news = client.subscribe("news").await.unwrap();
        drop(client);
        eventually("one is left", 1, async || connections_named(&admin, "kept").await).await;
        publish(&admin, "news", "still here").await;
        assert_eq!(text(&mut news).await, "still here", "protocol {protocol}");
        drop(news);
        eventually("none is left", 0, async || connections_named(&admin, "kept").await).await;
    }
}

#[tokio::test]
async fn with_resp2_subscriptions_share_a_connection_of_their_own() {
    let redis = start();
    let client = connect(format!("{}?protocol=2&client_name=two", redis.url())).await;
    let mut channel = client.subscribe("news").await.unwrap();
    let mut pattern = client.psubscribe("n*").await.unwrap();
    let mut same = client.subscribe("news").await.unwrap();
    assert_eq!(connections_named(&client, "two").await, 2);
    assert_eq!(publish(&client, "news", "first").await, 2);
    assert_eq!(text(&mut channel).await, "first");
    assert_eq!(text(&mut same).await, "first");
    let message = message(&mut pattern).await;
    assert_eq!((message.pattern.as_deref(), &*message.payload), (Some(&b"n*"[..]), &b"first"[..]));

    drop((channel, same));
    eventually("unsubscribed", 0, async || subscribers(&client, "news").await).await;
    assert_eq!(publish(&client, "news", "second").await, 1);
    assert_eq!(text(&mut pattern).await, "second");

    let list: String = client.exec(("CLIENT", "LIST", "TYPE", "pubsub")).await.unwrap();
    let id: i64 = list.split_whitespace().find_map(|word| word.strip_prefix("id=")).unwrap().parse().unwrap();
    kill_connection(&client, id).await;
    assert_eq!(next(&mut pattern).await, Some(Event::Gap(Gap::Reconnected)));
    eventually("subscribed again", 1, async || client.exec(("PUBSUB", "NUMPAT")).await.unwrap()).await;
    publish(&client, "news", "third").await;
    assert_eq!(text(&mut pattern).await, "third");
    assert_eq!(client.stats().connections, 1, "the other connection was never touched");
}

#[tokio::test]
async fn with_resp2_a_refused_channel_is_an_error_and_other_subscriptions_continue() {
    let redis = Redis::builder().acl_user("ada", ADA).start().unwrap();
    let client = connect(format!("{}?protocol=2", as_ada(&redis))).await;
    let mut allowed = client.subscribe("allowed").await.unwrap();
    let error = client.subscribe("forbidden").await.unwrap_err();
    assert_eq!(error.server().map(|error| error.code()), Some("NOPERM"), "{error}");
    publish(&client, "allowed", "still subscribed").await;
    assert_eq!(text(&mut allowed).await, "still subscribed");
}

#[tokio::test]
async fn with_resp2_a_subscription_asked_for_before_the_first_connection_has_its_own_too() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    proxy.refuse();
    let client = RedisClient::open(fast_reconnect(format!("{url}?protocol=2&db=1"))).unwrap();
    let mut changes = client.status_changes();
    wait_for_state(&mut changes, State::Failed).await;
    proxy.stall(Direction::Both);
    proxy.accept();
    // This attempt hangs; the one before may still have been refused.
    proxy.wait_for_connections(1).await;
    eventually("a try is under way", State::Reconnecting, async || client.state()).await;
    let subscribing = tokio::spawn({
        let client = client.clone();
        async move { client.subscribe("news").await }
    });
    tokio::task::yield_now().await;
    proxy.resume();
    let mut news = within("a subscription", subscribing).await.unwrap().unwrap();
    publish(&client, "news", "first").await;
    assert_eq!(text(&mut news).await, "first");
    let echo: String = client.exec(("ECHO", "still connected")).await.unwrap();
    assert_eq!(echo, "still connected");
}

#[tokio::test]
async fn dropping_a_subscribe_midway_leaves_nothing_behind() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (admin, client) = (connect(redis.url()).await, connect(url).await);
    proxy.stall(Direction::ToClient);
    let mut subscribing = Box::pin(client.subscribe(["news", "more"]));
    assert!(futures_util::poll!(&mut subscribing).is_pending());
    eventually("the server has it", 1, async || subscribers(&admin, "more").await).await;
    drop(subscribing);
    eventually("unsubscribed", 0, async || subscribers(&admin, "more").await).await;
    proxy.resume();
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(subscribers(&admin, "news").await, 0);
    let mut news = client.subscribe("news").await.unwrap();
    publish(&admin, "news", "fresh").await;
    assert_eq!(text(&mut news).await, "fresh");
}

#[tokio::test]
async fn dropping_a_subscribe_before_it_is_sent_leaves_nothing_behind() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut subscribing = Box::pin(client.subscribe("news"));
    assert!(futures_util::poll!(&mut subscribing).is_pending());
    drop(subscribing);
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(subscribers(&client, "news").await, 0);
}

#[tokio::test]
async fn a_subscribe_that_misses_its_deadline_leaves_nothing_behind() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (admin, client) = (
        connect(redis.url()).await,
        connect(with(config(url), |config| config.response_timeout = Some(Duration::from_millis(50)))).await,
    );
    proxy.stall(Direction::ToClient);
    within("the deadline", client.subscribe("news")).await.unwrap_err();
    proxy.resume();
    eventually("unsubscribed", 0, async || subscribers(&admin, "news").await).await;
    let echo: String = client.exec(("ECHO", "in sync")).within(TEST_TIMEOUT).await.unwrap();
    assert_eq!(echo, "in sync");
}

#[tokio::test]
async fn a_subscribe_while_the_connection_is_down_is_rejected() {
    let redis = start();
    let client = connect(redis.url()).await;
    let mut changes = status_from_now(&client).await;
    redis.kill();
    wait_for_state(&mut changes, State::Failed).await;
    client.subscribe("news").await.unwrap_err();
    redis.revive().unwrap();
    wait_for_state(&mut changes, State::Open).await;
    assert_eq!(subscribers(&client, "news").await, 0, "what was rejected isn't tried again");
}

#[tokio::test]
async fn a_subscription_dropped_while_the_queue_is_full_unsubscribes_all_the_same() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let admin = connect(redis.url()).await;
    let client = connect(with(config(url), |config| config.max_requests = 2)).await;
    let news = client.subscribe("news").await.unwrap();
    proxy.stall(Direction::ToClient);
    let first = submitted(client.exec::<()>(("PING",)));
    let second = submitted(client.exec::<()>(("PING",)));
    for _ in 0..100 {
        client.subscribe("more").await.expect_err("there is no room");
    }
    assert_eq!(client.stats().open_requests, 2, "what wasn't subscribed isn't unsubscribed");
    drop(news);
    proxy.resume();
    first.await.unwrap();
    second.await.unwrap();
    eventually("unsubscribed", 0, async || subscribers(&admin, "news").await).await;
}

#[tokio::test]
async fn a_subscription_is_a_stream() {
    let redis = start();
    let client = connect(redis.url()).await;
    let news = client.subscribe("news").await.unwrap();
    for n in 0..3 {
        publish(&client, "news", &n.to_string()).await;
    }
    let events: Vec<Event> = within("three messages", news.take(3).collect()).await;
    let payloads: Vec<Bytes> =
        events.into_iter().filter_map(Event::message).map(|message| message.payload).collect();
    assert_eq!(payloads, ["0", "1", "2"]);
}

#[tokio::test]
async fn push_messages_without_a_subscription_have_their_own_stream() {
    let redis = start();
    let (admin, client) = (connect(redis.url()).await, connect(redis.url()).await);
    let mut pushes = client.pushes();
    client.exec::<()>(("CLIENT", "TRACKING", "ON")).await.unwrap();
    client.exec::<()>(("GET", "watched")).await.unwrap();
    admin.exec::<()>(("SET", "watched", 1)).await.unwrap();
    let push = within("the invalidation", pushes.next()).await.unwrap();
    let (RespValue::Push(parts) | RespValue::Array(parts)) = &push else { panic!("{push:?}") };
    assert_eq!(parts.len(), 2, "{push:?}");
    assert!(format!("{push:?}").contains("watched"), "{push:?}");
    client.close().await;
    assert!(within("the end", pushes.next()).await.is_none());
}
