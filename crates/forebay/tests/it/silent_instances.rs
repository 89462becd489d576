//! Stream queries with instances that give no answer, and with forged answers.

use std::time::Duration;

use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::forebay_process::ForebayProcess;
use crate::limits::open_stream;
use crate::scripted_upstream::ScriptedUpstream;
use crate::streams::{BEARER, StreamCluster, end, expected, list, listed};
use crate::wire::{HttpConnection, until};

const REQUEST: &str = "00000000-0000-4000-8000-000000000000";
/// TTL of quota members that a test doesn't outlast: a silent instance stays a member.
pub(crate) const LONG_TTL_MS: &str = "60000";

/// Starts two gates, and waits until each answers the other. Their counts may be rebuilt for long.
async fn two_gates(cluster: &StreamCluster) -> [ForebayProcess; 2] {
    let url = cluster.origin.url();
    let gates = ["one", "two"].map(|member| cluster.start_gate(member, &url));
    for gate in &gates {
        until("both gates answer", async || list(gate, "").await["instances"].as_array().unwrap().len() == 2)
            .await;
    }
    gates
}

/// Returns the names of the instances that answered.
fn answered(list: &Value) -> Vec<&str> {
    list["instances"].as_array().unwrap().iter().map(|each| each["instance"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_killed_instance_is_reported_as_silent() {
    let mut cluster = StreamCluster::new(Redis::shared(), "streams-silent", 100).await;
    cluster.set("FOREBAY_QUOTA_TTL_MS", LONG_TTL_MS);
    let [one, two] = two_gates(&cluster).await;
    let _here = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1"]).await.unwrap();
    let _there = open_stream(&two, "/stream/b", &["X-Thread-ID: t-2"]).await.unwrap();
    assert_eq!(listed(&list(&one, "").await).len(), 2);
    two.signal(Signal::KILL);
    // Until it expires, the killed gate is a member: it may be alive behind a lost connection.
    let list = list(&one, "").await;
    assert_eq!(listed(&list), expected([("t-1", "one", "GET /stream/**")]));
    assert_eq!((&list["silent"], answered(&list)), (&json!(["two"]), vec!["one"]));
    let unknown = end(&one, "t-2", &[BEARER]).await;
    let body = unknown.json();
    assert_eq!((unknown.head.status, &body["error"]), (503, &json!("instances_silent")));
    assert!(body["message"].as_str().unwrap().contains("two"), "{body}");
}

#[tokio::test]
async fn the_streams_of_a_killed_instance_vanish_when_it_expires() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-killed", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let _there = open_stream(&two, "/stream/b", &["X-Thread-ID: t-2"]).await.unwrap();
    assert_eq!(listed(&list(&one, "").await).len(), 1);
    two.signal(Signal::KILL);
    until("the killed gate has expired", async || end(&one, "t-2", &[BEARER]).await.head.status == 404).await;
    let list = list(&one, "").await;
    assert_eq!((&list["silent"], &list["open"], &list["why"]), (&json!([]), &json!(0), &json!(null)));
}

#[tokio::test]
async fn a_list_that_waits_for_a_silent_instance_does_not_delay_an_end() {
    let mut cluster = StreamCluster::new(Redis::shared(), "streams-turns", 100).await;
    cluster.set("FOREBAY_QUOTA_TTL_MS", LONG_TTL_MS);
    let [one, two] = two_gates(&cluster).await;
    let mut stream = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1"]).await.unwrap();
    two.signal(Signal::STOP);
    // Four lists run at a time, and each takes a second.
    let mut lists = JoinSet::new();
    for _ in 0..40 {
        lists.spawn(HttpConnection::fetch(one.admin, "GET", "/v1/streams", &[BEARER], ""));
    }
    lists.join_next().await.unwrap().unwrap();
    let ended = end(&one, "t-1", &[BEARER]).await;
    assert_eq!((ended.head.status, &ended.json()["silent"]), (200, &json!(["two"])));
    assert_eq!(stream.chunk().await, None);
    let finished = std::iter::from_fn(|| lists.try_join_next()).count() + 1;
    assert!(finished < 40, "the end waited for all lists");
    two.signal(Signal::CONT);
}

#[tokio::test]
async fn all_instances_end_their_streams_at_the_same_time() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-together", 100).await;
    let upstream = ScriptedUpstream::start().await;
    let gates = ["one", "two"].map(|member| cluster.start_gate(member, &upstream.url()));
    // These streams end only once their clients read. Each instance waits half a second for that,
    // and answers have a second: two waits after each other would be too long.
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    let mut stalled = Vec::new();
    for gate in &gates {
        let client = HttpConnection::get(gate.addr, "/stream/a", &["X-Thread-ID: t-1"]).await;
        let mut request = upstream.accept().await;
        request.head().await;
        request.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        while tokio::time::timeout(Duration::from_secs(2), request.send(&chunk)).await.is_ok() {}
        stalled.push((client, request));
    }
    // Repeated, because a busy machine may answer late.
    until("both gates answer in time", async || {
        let body = end(&gates[0], "t-1", &[BEARER]).await.json();
        body["ending"] == 2 && body["silent"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn forged_queries_change_nothing() {
    let redis = Redis::start().unwrap();
    let cluster = StreamCluster::new(&redis, "streams-garbage", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let mut stream = open_stream(&two, "/stream/a", &["X-Thread-ID: t-1"]).await.unwrap();
    let client = RedisClient::connect(redis.url()).await.unwrap();
    let end = |v: u32, from: &str, thread: &str| {
        let kind = json!({"end": {"thread_id": thread}});
        json!({"v": v, "from": from, "request": REQUEST, "kind": kind}).to_string()
    };
    let of_kind =
        |kind: Value| json!({"v": 1, "from": "other", "request": REQUEST, "kind": kind}).to_string();
    let queries = [
        String::new(),
        "null".to_owned(),
        "\u{0}\u{1}".to_owned(),
        "[".repeat(60_000),
        "x".repeat(1 << 20),
        end(2, "other", "t-1"),
        end(1, "", "t-1"),
        end(1, "other", "t-1").replace(REQUEST, "*"),
        end(1, "other", &"t".repeat(60_000)),
        of_kind(json!({"end": {"thread_id": "t-1", "user": "ada"}})),
        of_kind(json!({"list": {"limit": -1}})),
        of_kind(json!({"list": {"limit": 1e300}})),
        of_kind(json!("end")),
    ];
    for query in &queries {
        let receivers: i64 = client.exec(("PUBLISH", "{streams-garbage}:streams", query)).await.unwrap();
        assert_eq!(receivers, 2, "both gates are subscribed");
    }
    let list = list(&one, "").await;
    assert_eq!(listed(&list), expected([("t-1", "two", "GET /stream/**")]), "{list}");
    assert_eq!((&list["silent"], &list["why"]), (&json!([]), &json!(null)));
    let valid = end(1, "other", "t-1");
    let receivers: i64 = client.exec(("PUBLISH", "{streams-garbage}:streams", valid)).await.unwrap();
    assert_eq!((receivers, stream.chunk().await), (2, None), "a valid query does end the stream");
}

/// Sends a request to an instance, and publishes answers to its query before anyone else answers.
/// Returns the response.
async fn with_answers(
    redis: &RedisClient,
    namespace: &str,
    request: impl Future<Output = Value> + Send + 'static,
    answers: &[String],
) -> Value {
    let channel = format!("{{{namespace}}}:streams");
    let mut queries = redis.subscribe([&channel]).await.unwrap();
    let response = tokio::spawn(request);
    let query = loop {
        if let Some(message) = queries.next().await.unwrap().message() {
            break serde_json::from_slice::<Value>(&message.payload).unwrap();
        }
    };
    let channel = format!("{channel}:{}", query["request"].as_str().unwrap());
    for answer in answers {
        let receivers: i64 = redis.exec(("PUBLISH", &channel, answer)).await.unwrap();
        assert_eq!(receivers, 1, "the query has ended already");
    }
    response.await.unwrap()
}

/// Returns an answer with one stream. `change` makes it invalid.
fn list_answer(instance: &str, change: impl Fn(&mut Value)) -> String {
    let stream = json!({"thread_id": format!("of-{instance}"), "user": null, "route": null, "age_ms": 1});
    let part = json!({"part": 0, "last": true, "open": 1, "streams": [stream]});
    let mut answer = json!({"v": 1, "instance": instance, "kind": {"streams": part}});
    change(&mut answer);
    answer.to_string()
}

#[tokio::test]
async fn forged_answers_are_ignored_while_an_instance_is_silent() {
    let (redis, namespace) = (Redis::start().unwrap(), "streams-forged");
    let mut cluster = StreamCluster::new(&redis, namespace, 100).await;
    cluster.set("FOREBAY_QUOTA_TTL_MS", LONG_TTL_MS);
    let [one, two] = two_gates(&cluster).await;
    let _stream = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1"]).await.unwrap();
    two.signal(Signal::STOP);
    let client = RedisClient::connect(redis.url()).await.unwrap();
    let of_stream = |key: &'static str, value: Value| {
        list_answer("two", move |answer| {
            answer["kind"]["streams"]["streams"][0][key] = value.clone();
        })
    };
    let of_part = |key: &'static str, value: Value| {
        list_answer("two", move |answer| answer["kind"]["streams"][key] = value.clone())
    };
    let ended = |v: u32, instance: &str| {
        let counts = json!({"ended": {"ended": 7, "ending": 0}});
        json!({"v": v, "instance": instance, "kind": counts}).to_string()
    };
    let garbage = ["", "null", "{}", "[1]", "\u{0}\u{1}", "x"].map(str::to_owned);
    let garbage = [&garbage[..], &["[".repeat(60_000), " ".repeat(1 << 20)]].concat();
    let lists = [
        list_answer("two", |answer| answer["v"] = json!(9)),
        list_answer("two", |answer| answer["kind"] = json!({"paused": {}})),
        list_answer("", |_| {}),
        list_answer(&"n".repeat(129), |_| {}),
        list_answer("one", |_| {}),
        of_stream("thread_id", json!("x".repeat(129))),
        of_stream("thread_id", json!("with space")),
        of_stream("user", json!("ada")),
        of_stream("route", json!("r".repeat(1_000))),
        of_stream("age_ms", json!(-1)),
        of_part("part", json!(1)),
        of_part("part", json!("0")),
        of_part("open", json!(-1)),
        ended(1, "two"),
        // Valid, of an instance that is no member yet. It is listed, so all others were read.
        list_answer("three", |_| {}),
    ];
    let admin = one.admin;
    let get = async move { HttpConnection::fetch(admin, "GET", "/v1/streams", &[BEARER], "").await.json() };
    let list = with_answers(&client, namespace, get, &[&garbage[..], &lists].concat()).await;
    assert_eq!((answered(&list), &list["silent"]), (vec!["one", "three"], &json!(["two"])), "{list}");
    assert_eq!(listed(&list), expected([("t-1", "one", "GET /stream/**"), ("of-three", "three", "")]));
    assert_eq!(list["open"], 2);

    let ends = [ended(9, "two"), ended(1, ""), list_answer("two", |_| {}), ended(1, "three")];
    let path = "/v1/streams/end?thread_id=t-1";
    let post = async move { HttpConnection::fetch(admin, "POST", path, &[BEARER], "").await.json() };
    let report = with_answers(&client, namespace, post, &[&garbage[..], &ends].concat()).await;
    let instances = json!([
        {"instance": "one", "ended": 1, "ending": 0}, {"instance": "three", "ended": 7, "ending": 0}
    ]);
    assert_eq!((&report["instances"], &report["silent"]), (&instances, &json!(["two"])), "{report}");
    two.signal(Signal::CONT);
}
