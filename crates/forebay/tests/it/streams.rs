//! Open streams of all instances: `/v1/streams`, `/v1/streams/end`, `forebay status --streams` and
//! the dashboard.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use serde_json::{Value, json};

use crate::chromium::Chromium;
use crate::forebay_process::{ForebayProcess, forebay};
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::scripted_upstream::ScriptedUpstream;
use crate::serve::support::{ServeFixture, ServeProcess, SseEvent, path};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, HttpResponse, until};

pub(crate) const SECRET: &str = "s3cr3t";
pub(crate) const BEARER: &str = "Authorization: Bearer s3cr3t";

/// Settings of instances that share a namespace. Each test has its own namespace.
pub(crate) struct StreamCluster {
    pub(crate) origin: StreamingUpstream,
    settings: Vec<(&'static str, String)>,
}

impl StreamCluster {
    pub(crate) async fn new(redis: &Redis, namespace: &str, total: u32) -> StreamCluster {
        let settings = [
            ("FOREBAY_REDIS_URL", redis.url()),
            ("FOREBAY_REDIS_NAMESPACE", namespace.to_owned()),
            ("FOREBAY_QUOTA_BEAT_MS", "300".to_owned()),
            ("FOREBAY_QUOTA_TTL_MS", "2000".to_owned()),
            ("FOREBAY_ADMISSION_TOTAL", total.to_string()),
            ("FOREBAY_ADMISSION_USER_HASH_KEY", "the key of hashes".to_owned()),
            ("FOREBAY_ADMIN_SECRET", SECRET.to_owned()),
        ];
        StreamCluster { origin: StreamingUpstream::start().await, settings: settings.into() }
    }

    fn environment<'a>(&'a self, member: &'a str) -> Vec<(&'a str, &'a str)> {
        let settings = self.settings.iter().map(|(name, value)| (*name, value.as_str()));
        settings.chain(USERS).chain([("FOREBAY_QUOTA_MEMBER", member)]).collect()
    }

    /// Changes a setting of the instances that start later.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        self.settings.retain(|(found, _)| *found != name);
        self.settings.push((name, value.to_owned()));
    }

    /// Begins the namespace with complete counts, so that a long TTL delays no start.
    pub(crate) async fn skip_the_rebuild(&self, redis: &Redis, namespace: &str) {
        let client = RedisClient::connect(redis.url()).await.unwrap();
        client.exec::<u64>(("HSET", format!("{{{namespace}}}:m"), "!", "1:0", "?", "0")).await.unwrap();
    }

    /// Starts a gate and waits until its counts are complete.
    pub(crate) async fn gate(&self, member: &str) -> ForebayProcess {
        let gate = self.start_gate(member, &self.origin.url());
        wait_until_normal(&gate).await;
        gate
    }

    /// Starts a gate in front of an upstream.
    pub(crate) fn start_gate(&self, member: &str, upstream: &str) -> ForebayProcess {
        let args = [&["--stream-route", "GET /stream/**"][..], &TRUSTED].concat();
        ForebayProcess::start_gate_with(upstream, &args, &self.environment(member))
    }

    async fn serve(&self, fixture: &ServeFixture, member: &str) -> ServeProcess {
        let environment = [self.environment(member), vec![("FOREBAY_SERVE_TRUSTED_PROXIES", "127.0.0.1")]];
        let serve = fixture.serve_with(&environment.concat()).await;
        wait_until_normal(&serve).await;
        serve
    }
}

pub(crate) async fn wait_until_normal(instance: &ForebayProcess) {
    until("the quota mode is normal", async || {
        let response = HttpConnection::fetch(instance.admin, "GET", "/v1/status", &[BEARER], "").await;
        let status = response.json();
        let quota =
            if status["quota"].is_object() { &status["quota"] } else { &status["admission"]["quota"] };
        quota["mode"] == "normal"
    })
    .await;
}

pub(crate) async fn list(instance: &ForebayProcess, query: &str) -> Value {
    let path = format!("/v1/streams{query}");
    let response = HttpConnection::fetch(instance.admin, "GET", &path, &[BEARER], "").await;
    assert_eq!(response.head.status, 200, "{:?}", String::from_utf8_lossy(&response.body));
    response.json()
}

pub(crate) async fn end(instance: &ForebayProcess, thread_id: &str, lines: &[&str]) -> HttpResponse {
    let path = format!("/v1/streams/end?thread_id={thread_id}");
    HttpConnection::fetch(instance.admin, "POST", &path, lines, "").await
}

/// Returns thread id, instance and route of the listed streams.
pub(crate) fn listed(list: &Value) -> BTreeSet<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let streams = list["streams"].as_array().unwrap().iter();
    streams
        .map(|stream| (text(&stream["thread_id"]), text(&stream["instance"]), text(&stream["route"])))
        .collect()
}

pub(crate) fn expected<const N: usize>(
    streams: [(&str, &str, &str); N],
) -> BTreeSet<(String, String, String)> {
    streams.map(|(id, instance, route)| (id.to_owned(), instance.to_owned(), route.to_owned())).into()
}

#[tokio::test]
async fn every_instance_lists_the_streams_of_all_and_ends_them() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-all", 100).await;
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let serve = cluster.serve(&fixture, "three").await;
    let reader = serve.reader(&[("table", "items")]).await;
    let user = "X-User-ID: ada";
    let first = open_stream(&one, "/stream/a?token=hidden", &["X-Thread-ID: t-1", user]).await.unwrap();
    let mut second = open_stream(&two, "/stream/b", &["X-Thread-ID: t-2", user]).await.unwrap();
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut third = HttpConnection::get(serve.addr, &live, &["X-Thread-ID: t-3"]).await;
    assert_eq!(third.head().await.status, 200);

    let shape = format!("public.items {}", reader.handle);
    let all = expected([
        ("t-1", "one", "GET /stream/**"),
        ("t-2", "two", "GET /stream/**"),
        ("t-3", "three", &shape),
    ]);
    for instance in [&one, &two, &*serve] {
        let list = list(instance, "").await;
        assert_eq!(listed(&list), all);
        assert_eq!(
            (&list["scope"], &list["why"], &list["silent"]),
            (&json!("cluster"), &json!(null), &json!([]))
        );
        assert_eq!((&list["open"], &list["cut_off"]), (&json!(3), &json!(0)));
        let user = |id: &str| {
            let streams = list["streams"].as_array().unwrap();
            &streams.iter().find(|stream| stream["thread_id"] == id).unwrap()["user"]
        };
        assert_eq!((user("t-1"), user("t-3")), (user("t-2"), &Value::Null), "one user has one hash");
        let text = list.to_string();
        assert!(!text.contains("ada") && !text.contains("hidden"), "{text}");
    }

    let response = end(&one, "t-2", &[BEARER]).await;
    let body = response.json();
    assert_eq!((response.head.status, &body["ended"]), (200, &json!(1)), "{body}");
    assert_eq!(body["instances"], json!([{"instance": "two", "ended": 1, "ending": 0}]));
    assert_eq!(second.chunk().await, None, "a relayed stream doesn't end as if it were complete");
    let log = two.wait_for_log("stream ended by an operator");
    assert_eq!(
        (&log["thread_id"], &log["instance"], &log["level"]),
        (&json!("t-2"), &json!("two"), &json!("INFO"))
    );
    assert!(!two.log().contains("ada"));
    let metrics = HttpConnection::fetch(two.admin, "GET", "/metrics", &[BEARER], "").await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains("forebay_admission_ended_total 1\n"), "{metrics}");

    assert_eq!(end(&two, "t-3", &[BEARER]).await.head.status, 200);
    assert_eq!(third.chunk().await, Some(Vec::new()), "an idle shape stream ends cleanly");
    assert_eq!(listed(&list(&two, "").await), expected([("t-1", "one", "GET /stream/**")]));
    let missing = end(&two, "t-2", &[BEARER]).await;
    assert_eq!((missing.head.status, &missing.json()["error"]), (404, &json!("no_such_stream")));
    drop(first);
}

#[tokio::test]
async fn an_ended_streams_permit_is_free_again() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-permit", 1).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let _stream = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1", "X-User-ID: ada"]).await.unwrap();
    let refused = open_stream(&two, "/stream/b", &["X-User-ID: bob"]).await.unwrap_err();
    assert_eq!(refused.head.status, 503);
    assert_eq!(end(&two, "t-1", &[BEARER]).await.head.status, 200);
    until("the permit is free", async || open_stream(&two, "/stream/b", &["X-User-ID: bob"]).await.is_ok())
        .await;
}

#[tokio::test]
async fn with_a_users_hash_only_the_streams_of_this_user_end() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-user", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let thread = "X-Thread-ID: same";
    let mut streams = Vec::new();
    for gate in [&one, &two] {
        for user in ["X-User-ID: ada", "X-User-ID: bob"] {
            streams.push(open_stream(gate, "/stream/a", &[thread, user]).await.unwrap());
        }
    }
    let alone = open_stream(&one, "/stream/a", &["X-Thread-ID: alone", "X-User-ID: bob"]).await.unwrap();
    let hash_of_bob = {
        let list = list(&two, "").await;
        let streams = list["streams"].as_array().unwrap();
        let found = streams.iter().find(|stream| stream["thread_id"] == "alone").unwrap();
        found["user"].as_str().unwrap().to_owned()
    };
    let unknown = end(&one, "same&user=0123456789abcdef", &[BEARER]).await;
    assert_eq!(unknown.head.status, 404, "no user has this hash");
    let ended = end(&one, &format!("same&user={hash_of_bob}"), &[BEARER]).await;
    let body = ended.json();
    assert_eq!((ended.head.status, &body["ended"]), (200, &json!(2)), "{body}");
    let instances = json!([
        {"instance": "one", "ended": 1, "ending": 0}, {"instance": "two", "ended": 1, "ending": 0}
    ]);
    assert_eq!(body["instances"], instances);
    for bobs in [1, 3] {
        assert_eq!(streams[bobs].chunk().await, None, "a stream of the user goes on");
    }
    let list = list(&one, "").await;
    let left: Vec<_> = list["streams"].as_array().unwrap().iter().map(|stream| &stream["user"]).collect();
    assert_eq!((left.len(), &list["silent"]), (3, &json!([])));
    assert_eq!(left.iter().filter(|user| **user == hash_of_bob.as_str()).count(), 1, "another thread id");
    drop((streams, alone));
}

#[tokio::test]
async fn only_requests_with_the_secret_and_without_an_origin_end_a_stream() {
    let origin = StreamingUpstream::start().await;
    let args = ["--stream-route", "GET /stream"];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &args, &[("FOREBAY_ADMIN_SECRET", SECRET)]);
    let _stream = open_stream(&gate, "/stream", &["X-Thread-ID: t-1"]).await.unwrap();
    for (lines, status) in [
        (&[][..], 401),
        (&["Authorization: Bearer wrong"], 401),
        (&["Authorization: Basic YW55OnMzY3IzdA=="], 401),
        (&[BEARER, BEARER], 401),
        (&[BEARER, "Origin: http://127.0.0.1:3001"], 403),
        (&[BEARER, "Origin: null"], 403),
        (&["Origin: https://example.com"], 403),
        (&[BEARER, "Host: rebound.example"], 403),
    ] {
        let mut client = HttpConnection::connect(gate.admin).await;
        let host = if lines.iter().any(|line| line.starts_with("Host")) { "" } else { "Host: localhost\r\n" };
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        client.send(format!("POST /v1/streams/end?thread_id=t-1 HTTP/1.1\r\n{host}{lines}\r\n")).await;
        assert_eq!(client.response().await.head.status, status, "{lines}");
    }
    let get = HttpConnection::fetch(gate.admin, "GET", "/v1/streams/end?thread_id=t-1", &[BEARER], "").await;
    assert_eq!((get.head.status, get.head.header("allow")), (405, Some("POST")));
    assert_eq!(end(&gate, "", &[BEARER]).await.head.status, 400);
    assert_eq!(list(&gate, "").await["open"], 1, "no refused request ended the stream");
    assert_eq!(HttpConnection::fetch(gate.admin, "GET", "/v1/streams", &[], "").await.head.status, 401);
    for bad in ["?limit=0", "?limit=10001", "?limit=x"] {
        let path = format!("/v1/streams{bad}");
        let response = HttpConnection::fetch(gate.admin, "GET", &path, &[BEARER], "").await;
        assert_eq!(response.head.status, 400, "{bad}");
    }
    let response = end(&gate, "t-1", &[BEARER]).await;
    assert_eq!((response.head.status, &response.json()["ended"]), (200, &json!(1)));

    let open = ForebayProcess::start_gate(&origin.url(), &args);
    let _stream = open_stream(&open, "/stream", &["X-Thread-ID: t-1"]).await.unwrap();
    let off = end(&open, "t-1", &[BEARER]).await;
    let body = off.json();
    assert_eq!((off.head.status, &body["error"]), (403, &json!("ending_is_off")));
    assert!(body["message"].as_str().unwrap().contains("admin.secret"), "{body}");
    assert_eq!(list(&open, "").await["streams"][0]["thread_id"], "t-1");
}

#[tokio::test]
async fn a_list_has_at_most_the_requested_number_of_streams_and_the_oldest_first() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-bound", 1_000).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let mut streams = Vec::new();
    for number in 0..20 {
        let gate = if number % 2 == 0 { &one } else { &two };
        let (user, id) = (format!("X-User-ID: user-{number}"), format!("X-Thread-ID: t-{number:02}"));
        streams.push(open_stream(gate, "/stream/x", &[&user, &id]).await.unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await; // ages differ by milliseconds
    }
    let list = list(&two, "?limit=5").await;
    assert_eq!((&list["open"], &list["cut_off"]), (&json!(20), &json!(15)));
    assert_eq!(listed(&list).len(), 5);
    let ages: Vec<_> =
        list["streams"].as_array().unwrap().iter().map(|stream| stream["since"].as_str().unwrap()).collect();
    assert!(ages.is_sorted(), "{ages:?}");
}

#[tokio::test]
async fn instances_send_nothing_until_an_operator_asks() {
    let redis = Redis::start().unwrap();
    let cluster = StreamCluster::new(&redis, "streams-idle", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let client = RedisClient::connect(redis.url()).await.unwrap();
    // Calls by scripts are not in these statistics: pressure is published by a script.
    let calls = async |command: &str| -> u64 {
        let info: String = client.exec(("INFO", "commandstats")).await.unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let before = (calls("publish").await, calls("subscribe").await);
    let heartbeats = calls("evalsha").await;
    for number in 0..10 {
        let user = format!("X-User-ID: user-{number}");
        drop(open_stream(&one, "/stream/x", &[&user]).await.unwrap());
    }
    until("heartbeats were sent", async || calls("evalsha").await > heartbeats + 10).await;
    assert_eq!((calls("publish").await, calls("subscribe").await), before);
    assert_eq!(list(&two, "").await["scope"], "cluster");
    assert_eq!(calls("subscribe").await, before.1 + 1, "the channel of the answers");
    assert_eq!(calls("publish").await, before.0 + 2, "a query and one answer");
}

#[tokio::test]
async fn without_redis_the_list_has_the_own_streams_and_says_so() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--stream-route", "GET /stream"]);
    let _stream = open_stream(&gate, "/stream", &["X-Thread-ID: t-1"]).await.unwrap();
    let own = list(&gate, "").await;
    assert_eq!((&own["scope"], &own["open"]), (&json!("instance"), &json!(1)));
    assert_eq!(own["streams"][0]["thread_id"], "t-1");

    let redis = Redis::start().unwrap();
    let cluster = StreamCluster::new(&redis, "streams-down", 100).await;
    let gate = cluster.gate("one").await;
    let _stream = open_stream(&gate, "/stream/a", &["X-Thread-ID: t-1"]).await.unwrap();
    redis.kill();
    let alone = list(&gate, "").await;
    assert_eq!(listed(&alone), expected([("t-1", "one", "GET /stream/**")]));
    assert_eq!(alone["scope"], "instance");
    assert!(alone["why"].as_str().is_some_and(|why| !why.is_empty()), "{alone}");
    let unknown = end(&gate, "t-2", &[BEARER]).await;
    assert_eq!((unknown.head.status, &unknown.json()["error"]), (503, &json!("instances_silent")));
    assert_eq!(end(&gate, "t-1", &[BEARER]).await.head.status, 200, "own streams can be ended");

    redis.revive().unwrap();
    let other = cluster.gate("two").await;
    until("both gates answer again", async || {
        let list = list(&other, "").await;
        list["instances"].as_array().unwrap().len() == 2 && list["why"].is_null()
    })
    .await;
}

#[tokio::test]
async fn requests_without_a_response_get_a_503_and_a_stalled_client_ends_later() {
    let upstream = ScriptedUpstream::start().await;
    let settings = [("FOREBAY_ADMIN_SECRET", SECRET)];
    let gate =
        ForebayProcess::start_gate_with(&upstream.url(), &["--stream-route", "GET /stream"], &settings);
    let mut client = HttpConnection::get(gate.addr, "/stream", &["X-Thread-ID: t-1"]).await;
    let mut request = upstream.accept().await;
    request.head().await;
    let response = end(&gate, "t-1", &[BEARER]).await;
    assert_eq!((response.head.status, &response.json()["ended"]), (200, &json!(1)));
    let refused = client.response().await;
    assert_eq!((refused.head.status, &refused.json()["error"]), (503, &json!("stream_ended")));
    assert!(request.rest().await.is_empty(), "the gate closed its connection to the upstream");

    // The client reads nothing, and the upstream sends more than all buffers hold.
    let stalled = HttpConnection::get(gate.addr, "/stream", &["X-Thread-ID: t-2"]).await;
    let mut request = upstream.accept().await;
    request.head().await;
    request.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    while tokio::time::timeout(Duration::from_secs(1), request.send(&chunk)).await.is_ok() {}
    let response = end(&gate, "t-2", &[BEARER]).await;
    let body = response.json();
    // On a very slow machine, a pause of a second may be no stall yet.
    let expected = if response.head.status == 202 { (0, 1) } else { (1, 0) };
    assert_eq!((&body["ended"], &body["ending"]), (&json!(expected.0), &json!(expected.1)), "{body}");
    drop(stalled);
    until("the stream has ended", async || list(&gate, "").await["open"] == 0).await;
}

#[tokio::test]
async fn an_idle_shape_stream_ends_cleanly_and_one_within_a_transaction_breaks() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = fixture.serve_with(&[("FOREBAY_ADMIN_SECRET", SECRET)]).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let mut events = serve.events(&reader).await;
    fixture.sql("INSERT INTO items VALUES (0, 'zero')");
    let mut seen = Vec::new();
    while seen.last() != Some(&json!("up-to-date")) || !seen.contains(&json!("insert")) {
        match events.next().await {
            SseEvent::Message(message) => {
                let headers = &message["headers"];
                seen.push(headers.get("control").or(headers.get("operation")).unwrap().clone());
            }
            SseEvent::KeepAlive => {}
            SseEvent::End => panic!("the stream ended early"),
        }
    }
    let id = list(&serve, "").await["streams"][0]["thread_id"].as_str().unwrap().to_owned();
    assert_eq!(end(&serve, &id, &[BEARER]).await.head.status, 200);
    assert_eq!(events.next().await, SseEvent::End);

    // A transaction that is larger than all buffers, and a client that doesn't read.
    fixture.sql("INSERT INTO items SELECT n, repeat('x', 250) FROM generate_series(1, 100000) n");
    until("the transaction is in the log", async || {
        let status = HttpConnection::fetch(serve.admin, "GET", "/v1/status", &[BEARER], "").await.json();
        status["shapes"]["bytes"].as_u64().unwrap() > 25_000_000
    })
    .await;
    let live = path(&[reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut behind = HttpConnection::get(serve.addr, &live, &["X-Thread-ID: behind"]).await;
    assert_eq!(behind.head().await.status, 200);
    let response = end(&serve, "behind", &[BEARER]).await;
    assert!(matches!(response.head.status, 200 | 202), "{}", response.head.text);
    let mut last = Vec::new();
    while let Some(chunk) = behind.chunk().await {
        assert!(!chunk.is_empty(), "the stream ended as if it were complete");
        last = chunk;
    }
    assert!(!String::from_utf8_lossy(&last).contains("up-to-date"));
    until("the permit is released", async || list(&serve, "").await["open"] == 0).await;
}

#[tokio::test]
async fn a_long_poll_that_is_ended_gets_a_503() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = fixture.serve_with(&[("FOREBAY_ADMIN_SECRET", SECRET)]).await;
    let reader = serve.reader(&[("table", "items")]).await;
    let live = path(&[reader.params(), vec![("live", "true")]].concat());
    let mut long_poll = HttpConnection::get(serve.addr, &live, &["X-Thread-ID: poll"]).await;
    until("the long-poll waits", async || list(&serve, "").await["open"] == 1).await;
    assert_eq!(end(&serve, "poll", &[BEARER]).await.head.status, 200);
    let ended = long_poll.response().await;
    assert_eq!((ended.head.status, &ended.json()["error"]), (503, &json!("stream_ended")));
    assert!(ended.head.header("retry-after").is_some());
}

#[tokio::test]
async fn status_prints_the_streams_of_all_instances() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-cli", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let _here = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1", "X-User-ID: ada"]).await.unwrap();
    let _there = open_stream(&two, "/stream/b", &["X-Thread-ID: t-2"]).await.unwrap();
    let url = format!("http://{}", one.admin);
    let status = |args: &[&str]| {
        let mut command = forebay(&["status", "--url", &url, "--streams"]);
        let output = command.args(args).env("FOREBAY_ADMIN_SECRET", SECRET).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = status(&[]);
    assert!(text.starts_with("2 open streams at 2 instances\n"), "{text}");
    for (id, instance) in [("t-1", "one"), ("t-2", "two")] {
        let line =
            text.lines().find(|line| line.ends_with(id)).unwrap_or_else(|| panic!("no {id} in\n{text}"));
        assert!(line.contains(instance) && line.contains("GET /stream/**"), "{line}");
    }
    assert!(!text.contains("ada"), "{text}");
    let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(json["open"], 2);
}

#[tokio::test]
async fn the_dashboard_shows_the_streams_while_their_section_is_open() {
    let cluster = StreamCluster::new(Redis::shared(), "streams-page", 100).await;
    let (one, two) = (cluster.gate("one").await, cluster.gate("two").await);
    let _here = open_stream(&one, "/stream/a", &["X-Thread-ID: t-1", "X-User-ID: ada"]).await.unwrap();
    let there = open_stream(&two, "/stream/b", &["X-Thread-ID: t-2"]).await.unwrap();
    let page = format!("http://any:{SECRET}@{}/", one.admin);
    let browser = Chromium::open(&page, "dashboard-streams");
    browser.wait_until("document.querySelector('#link').dataset.link === 'live'").await;
    let requests = || browser.requested_urls().iter().filter(|url| url.contains("/v1/streams")).count();
    assert_eq!(requests(), 0, "nothing is requested before the section is opened");
    browser.evaluate("document.querySelector('#streams summary').click()");
    browser.wait_until("document.querySelectorAll('#streams-table tbody tr').length === 2").await;
    assert_eq!(browser.text("#streams-sum"), "2 streams at 2 instances");
    let cells = |row: usize| -> Vec<String> {
        let cells = format!(
            "[...document.querySelectorAll('#streams-table tbody tr')[{row}].cells].map((cell) => cell.innerText)"
        );
        serde_json::from_value(browser.evaluate(&cells)).unwrap()
    };
    // The two ages differ by less than the time between the answers of the instances.
    let mut rows = [cells(0), cells(1)];
    rows.sort_by(|row, other| row[2].cmp(&other[2]));
    assert_eq!(rows[0][2..], ["one", "GET /stream/**", "t-1"]);
    assert_eq!(rows[1][1..], ["–", "two", "GET /stream/**", "t-2"]);
    assert_eq!(rows[0][1].len(), 16, "the hash of the user");
    drop(there);
    browser.wait_until("document.querySelectorAll('#streams-table tbody tr').length === 1").await;
    assert_eq!(browser.console_errors(), [""; 0]);
    assert!(requests() >= 2);
}
