//! Traces and metrics, as decoded by a collector with the official OpenTelemetry messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_testkit::{Direction, Proxy};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::forebay_process::ForebayProcess;
use crate::limits::open_stream;
use crate::python_app::PythonApp;
use crate::scripted_upstream::ScriptedUpstream;
use crate::serve::support::{ServeFixture, path};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

/// Trace id and span id of the caller.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
/// OTLP numbers of the aggregation temporality, the span kind and the status code.
const CUMULATIVE: u64 = 2;
const SERVER: u64 = 2;
const ERROR: u64 = 2;
/// Log messages.
const DOWN: &str = "telemetry export failing";
const UP: &str = "telemetry export recovered";

/// Part of all secrets; must not be exported.
const SECRET: &str = "s3cr3t";

/// The collector of `tests/app/collector.py`.
struct OtelCollector(PythonApp);

impl OtelCollector {
    fn start() -> OtelCollector {
        OtelCollector(PythonApp::run("collector.py"))
    }

    /// Returns everything that was exported so far.
    async fn received(&self) -> Value {
        HttpConnection::fetch(self.0.addr(), "GET", "/received", &[], "").await.json()
    }

    /// Waits until the trace has `count` spans and returns them.
    async fn spans(&self, trace: &str, count: usize) -> Vec<Value> {
        until(&format!("{count} spans of {trace}"), async || self.spans_now(trace).await.len() >= count)
            .await;
        let found = self.spans_now(trace).await;
        assert_eq!(found.len(), count, "{found:#?}");
        found
    }

    /// Returns the spans of a trace that were exported so far.
    async fn spans_now(&self, trace: &str) -> Vec<Value> {
        let all = self.received().await["spans"].as_array().unwrap().clone();
        all.into_iter().filter(|span| span["trace"] == trace).collect()
    }

    /// Waits until the metric was exported and satisfies `is_so`, and returns it.
    async fn metric(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let now = async || self.received().await["metrics"][name].clone();
        until(&format!("{name} at the collector"), async || {
            let metric = now().await;
            !metric.is_null() && is_so(&metric)
        })
        .await;
        now().await
    }

    /// Fails if an exported text contains one of the words. The service's name is always exported.
    async fn has_none_of(&self, words: &[&str]) {
        let received = self.received().await;
        let texts = received["texts"].as_array().unwrap();
        assert!(texts.contains(&json!("edge")), "{texts:?}");
        for word in words {
            let found = texts.iter().find(|text| text.as_str().unwrap().contains(word));
            assert_eq!(found, None, "{word} was sent: {:#}", received["spans"]);
        }
    }
}

fn settings(endpoint: &str) -> [(&str, &str); 4] {
    [
        ("FOREBAY_OTEL_ENDPOINT", endpoint),
        ("FOREBAY_OTEL_HEADERS", "api-key=s3cr3t%20of%20the%20collector"),
        ("FOREBAY_OTEL_SERVICE_NAME", "edge"),
        ("FOREBAY_OTEL_INTERVAL_MS", "100"),
    ]
}

/// Returns the header line that makes a request part of a trace.
fn traceparent(trace: &str, flags: &str) -> String {
    format!("traceparent: 00-{trace}-{CALLER}-{flags}")
}

/// Returns a different trace id for each number.
fn trace(number: u32) -> String {
    format!("{number:032x}")
}

fn since_1970() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "spans hold the time of day")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn duration_of(span: &Value) -> Duration {
    Duration::from_nanos(span["end_ns"].as_u64().unwrap() - span["start_ns"].as_u64().unwrap())
}

#[tokio::test]
async fn a_span_is_the_child_of_the_callers_and_the_parent_of_the_upstreams() {
    let (collector, origin) = (OtelCollector::start(), ScriptedUpstream::start().await);
    let url = collector.0.url();
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &["--stream-route", "GET /users/*/feed anonymous"],
        &settings(&url),
    );
    let send = async |flags: &str, status: &str| {
        let mut client = HttpConnection::connect(gate.addr).await;
        let (parent, key) = (traceparent(TRACE, flags), format!("Authorization: Bearer {SECRET}-token"));
        let target = format!("/users/alice-{SECRET}/feed?q={SECRET}-query");
        client.request("GET", &target, &[&parent, "tracestate: vendor=1", &key], "").await;
        let mut upstream = origin.accept().await;
        let head = upstream.head().await;
        upstream.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")).await;
        client.response().await;
        assert_eq!(head.header("tracestate"), Some("vendor=1"));
        head.header("traceparent").unwrap().to_owned()
    };
    let unsampled = send("00", "200").await;
    assert!(unsampled.starts_with(&format!("00-{TRACE}-")) && unsampled.ends_with("-00"), "{unsampled}");
    let passed = send("01", "503").await;
    let span = &collector.spans(TRACE, 1).await[0];
    assert_eq!(span["parent"], CALLER);
    assert_eq!(passed, format!("00-{TRACE}-{}-01", span["id"].as_str().unwrap()));
    assert_eq!((&span["name"], &span["kind"]), (&json!("GET /users/*/feed"), &json!(SERVER)));
    assert_eq!(span["status"], ERROR);
    assert_eq!(
        span["attributes"],
        json!({
            "http.request.method": "GET",
            "http.route": "/users/*/feed",
            "http.response.status_code": 503,
            "error.type": "503",
            "url.scheme": "http",
            "network.protocol.version": "1.1",
        })
    );
    assert_eq!((&span["resource"]["service.name"], &span["scope"]), (&json!("edge"), &json!("forebay")));
    collector.has_none_of(&[SECRET, "alice", "token", "?q="]).await;
    assert_eq!(collector.received().await["keys"], json!(["s3cr3t of the collector"]));
    assert!(!gate.log().contains(SECRET), "{}", gate.log());
}

#[tokio::test]
async fn a_trace_starts_at_the_gate_if_the_caller_sends_no_valid_one() {
    let (collector, origin) = (OtelCollector::start(), ScriptedUpstream::start().await);
    let url = collector.0.url();
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &settings(&url));
    let mut client =
        HttpConnection::get(gate.addr, "/orders/amber", &["traceparent: 00-nonsense", "tracestate: a=b"])
            .await;
    let mut upstream = origin.accept().await;
    let head = upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    client.response().await;
    assert_eq!(head.header("tracestate"), None, "tracestate belongs to the invalid traceparent");
    let passed = head.header("traceparent").unwrap();
    let span = &collector.spans(&passed[3..35], 1).await[0];
    assert_eq!((&span["parent"], &span["name"]), (&json!(""), &json!("GET")));
    assert_eq!(span["id"], passed[36..52]);
    assert!(span["attributes"].get("http.route").is_none(), "{span}");
    collector.has_none_of(&["amber", "nonsense"]).await;
}

#[tokio::test]
async fn a_streams_span_lasts_as_long_as_the_stream() {
    let (collector, origin) = (OtelCollector::start(), StreamingUpstream::start().await);
    let url = collector.0.url();
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &settings(&url));
    let before = since_1970();
    let stream = open_stream(&gate, "/live", &[&traceparent(TRACE, "01")]).await.unwrap();
    let opened = Instant::now();
    assert_eq!(gate.status().await["http"]["lean_begun"], 1);

    // Another stream opens and ends meanwhile. Its span is exported before the span of the first.
    drop(open_stream(&gate, "/live", &[&traceparent(&trace(1), "01")]).await.unwrap());
    collector.spans(&trace(1), 1).await;
    assert_eq!(collector.spans_now(TRACE).await, [] as [Value; 0], "the stream is still open");

    let lived = opened.elapsed();
    drop(stream);
    let span = &collector.spans(TRACE, 1).await[0];
    assert!(duration_of(span) >= lived, "{:?}, but the stream was open for {lived:?}", duration_of(span));
    assert!(Duration::from_nanos(span["start_ns"].as_u64().unwrap()) >= before);
    assert!(Duration::from_nanos(span["end_ns"].as_u64().unwrap()) <= since_1970());
    let stream_seconds = span["attributes"]["forebay.stream.seconds"].as_f64().unwrap();
    assert!(
        stream_seconds >= lived.as_secs_f64() && stream_seconds <= duration_of(span).as_secs_f64() + 10.0,
        "{stream_seconds}"
    );
    assert_eq!(span["attributes"]["http.response.status_code"], 200);
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn counters_histograms_and_gauges_keep_their_types() {
    let (collector, origin) = (OtelCollector::start(), ScriptedUpstream::start().await);
    let url = collector.0.url();
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &settings(&url));
    for _ in 0..3 {
        let mut client = HttpConnection::get(gate.addr, "/", &[]).await;
        let mut upstream = origin.accept().await;
        upstream.head().await;
        upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        client.response().await;
    }
    let requests =
        collector.metric("forebay_gate_requests_total", |metric| metric["points"][0]["value"] == 3).await;
    assert_eq!((&requests["kind"], &requests["monotonic"]), (&json!("sum"), &json!(true)));
    assert_eq!(requests["temporality"], CUMULATIVE);
    let point = &requests["points"][0];
    assert_eq!(point["attributes"], json!({"kind": "plain", "status": "2xx"}));
    assert!(point["start_ns"].as_u64().unwrap() < point["time_ns"].as_u64().unwrap());
    assert_eq!(requests["resource"]["service.name"], "edge");
    assert!(requests["resource"]["service.instance.id"].as_str().unwrap().ends_with(&gate.addr.to_string()));

    let seconds =
        collector.metric("forebay_gate_upstream_head_seconds", |metric| metric["points"][0]["count"] == 3);
    let seconds = seconds.await;
    assert_eq!((&seconds["kind"], &seconds["temporality"]), (&json!("histogram"), &json!(CUMULATIVE)));
    let point = &seconds["points"][0];
    let buckets: Vec<u64> =
        point["buckets"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
    assert_eq!((buckets.len(), buckets.iter().sum::<u64>()), (12, 3));
    assert_eq!(point["bounds"].as_array().unwrap().len(), 11);
    assert!(point["sum"].as_f64().unwrap() > 0.0);
    assert_eq!(collector.metric("process_open_fds", |_| true).await["kind"], "gauge");

    let text = gate.metrics().await;
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        collector.metric(name, |_| true).await;
    }
}

#[tokio::test]
async fn metric_labels_from_headers_reach_the_collector() {
    let (collector, origin) = (OtelCollector::start(), ScriptedUpstream::start().await);
    let url = collector.0.url();
    let labels = [("FOREBAY_GATE_METRIC_LABELS", "model=x-model")];
    let environment = [&settings(&url)[..], &labels].concat();
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &environment);
    let mut client = HttpConnection::get(gate.addr, "/", &[r#"X-Model: a "b" \c"#]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    client.response().await;
    let expected = json!({"kind": "any", "outcome": "success", "model": r#"a "b" \c"#});
    let counted = |metric: &Value| {
        let mut points = metric["points"].as_array().unwrap().iter();
        points.any(|point| point["attributes"] == expected && point["value"] == 1)
    };
    collector.metric("forebay_gate_outcomes_total", counted).await;
}

#[tokio::test]
async fn serve_exports_request_spans_without_data_or_secrets() {
    let collector = OtelCollector::start();
    let fixture = ServeFixture::new(
        "CREATE TABLE pearls (id int PRIMARY KEY, name text); INSERT INTO pearls VALUES (1, 's3cr3t-row')",
    );
    let url = collector.0.url();
    let serve =
        fixture.serve_with(&[&settings(&url)[..], &[("FOREBAY_SERVE_SECRET", "s3cr3t-key")]].concat()).await;
    let shape = [("table", "pearls"), ("where", "name = 's3cr3t-row'"), ("secret", "s3cr3t-key")];
    let send = async |more: &[(&str, &str)], trace: &str| {
        let target = path(&[&shape[..], more].concat());
        let mut client = HttpConnection::get(serve.addr, &target, &[&traceparent(trace, "01")]).await;
        let head = client.head().await;
        assert_eq!(head.status, 200, "{}", head.text);
        (client, head)
    };
    let (mut client, head) = send(&[("offset", "-1")], TRACE).await;
    client.take(head.header("content-length").unwrap().parse().unwrap()).await;
    let span = &collector.spans(TRACE, 1).await[0];
    assert_eq!(span["parent"], CALLER);
    assert_eq!(
        (&span["name"], &span["attributes"]["http.route"]),
        (&json!("GET /v1/shape"), &json!("/v1/shape"))
    );
    assert!(span["attributes"].get("forebay.stream.seconds").is_none());

    let (handle, offset) = (head.header("electric-handle").unwrap(), head.header("electric-offset").unwrap());
    let live = [("handle", handle), ("offset", offset), ("live", "true"), ("live_sse", "true")];
    let (events, _) = send(&live, &trace(1)).await;
    let opened = Instant::now();
    assert_eq!(
        HttpConnection::fetch(serve.addr, "GET", "/v1/nowhere", &[&traceparent(&trace(2), "01")], "")
            .await
            .head
            .status,
        404
    );
    collector.spans(&trace(2), 1).await;
    assert_eq!(collector.spans_now(&trace(1)).await, [] as [Value; 0], "the stream is still open");
    let lived = opened.elapsed();
    drop(events);
    let span = &collector.spans(&trace(1), 1).await[0];
    assert!(span["attributes"]["forebay.stream.seconds"].as_f64().unwrap() >= lived.as_secs_f64());
    collector.metric("forebay_serve_answers_total", |metric| metric["kind"] == "sum").await;
    collector.has_none_of(&[SECRET, "pearls", handle, "nowhere"]).await;
    assert!(!serve.log().contains(SECRET));
}

#[tokio::test]
async fn spans_of_an_outage_arrive_when_the_collector_returns() {
    let (collector, origin) = (OtelCollector::start(), StreamingUpstream::start().await);
    let proxy = Proxy::start(collector.0.addr());
    let url = format!("http://{}", proxy.addr());
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &settings(&url));
    collector.metric("forebay_build_info", |_| true).await;
    proxy.refuse();
    proxy.cut();
    for number in 1..=5 {
        drop(open_stream(&gate, "/live", &[&traceparent(&trace(number), "01")]).await.unwrap());
    }
    until("failures are counted", async || {
        let failed = async |signal| gate.metric("forebay_otel_exports_total", &["failed", signal]).await;
        failed("traces").await >= 2.0 && failed("metrics").await >= 5.0
    })
    .await;
    proxy.accept();
    for number in 1..=5 {
        collector.spans(&trace(number), 1).await;
    }
    until("both recoveries are logged", async || gate.log().matches(UP).count() == 2).await;
    assert_eq!(gate.log().matches(DOWN).count(), 2, "once for traces, once for metrics:\n{}", gate.log());
    assert_eq!(gate.metric("forebay_otel_lost_spans_total", &["queue_full"]).await, 0.0);
}

#[tokio::test]
async fn an_unavailable_collector_costs_a_bounded_buffer_and_fails_no_request() {
    let origin = ScriptedUpstream::start().await;
    let (collector, url) = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        (socket, url) // never accepts a connection
    };
    let mut gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &settings(&url));
    let mut client = HttpConnection::connect(gate.addr).await;
    let serving = tokio::spawn(async move {
        let mut upstream = origin.accept().await;
        while upstream.try_head().await.is_some() {
            upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    // More spans than the queue, the next batch and the batch in flight can hold.
    for _ in 0..4_000 {
        client.request("GET", "/", &[], "").await;
        assert_eq!(client.response().await.head.status, 200);
    }
    assert!(gate.metric("forebay_otel_lost_spans_total", &["queue_full"]).await > 0.0);
    drop(client);
    gate.signal(Signal::TERM);
    assert!(gate.end().await.success());
    assert_eq!(gate.wait_for_log("telemetry flush timed out")["level"], "WARN");
    // At least the full queue; at most also the batch in flight and the next one.
    let lost = gate.wait_for_log("spans lost at exit")["lost"].as_u64().unwrap();
    assert!((2_048..=2_048 + 2 * 512).contains(&lost), "{lost}");
    drop((collector, serving));
}

#[tokio::test]
async fn the_last_spans_and_metrics_are_sent_before_exit() {
    let (collector, origin) = (OtelCollector::start(), StreamingUpstream::start().await);
    let proxy = Proxy::start(collector.0.addr());
    let url = format!("http://{}", proxy.addr());
    let slow = [&settings(&url)[..3], &[("FOREBAY_OTEL_INTERVAL_MS", "3600000")]].concat();
    let mut gate = ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &slow);
    drop(open_stream(&gate, "/live", &[&traceparent(TRACE, "01")]).await.unwrap());
    gate.wait_until_empty().await;
    gate.signal(Signal::TERM);
    assert!(gate.end().await.success());
    assert_eq!(collector.spans_now(TRACE).await.len(), 1);
    let ended = collector.received().await["metrics"]["forebay_gate_draining"]["points"][0]["value"].clone();
    assert_eq!(ended, 1.0, "the last metrics are exported");

    // A stalled collector delays the exit by two seconds at most.
    proxy.stall(Direction::Both);
    let mut gate = ForebayProcess::start_gate_with(&origin.url(), &[], &slow);
    gate.signal(Signal::TERM);
    assert!(gate.end().await.success());
    gate.wait_for_log("telemetry flush timed out");
}

#[tokio::test]
async fn the_sample_percentage_applies_to_traces_that_start_here() {
    let (collector, origin) = (OtelCollector::start(), StreamingUpstream::start().await);
    let url = collector.0.url();
    let none = [&settings(&url)[..], &[("FOREBAY_OTEL_SAMPLE_PERCENT", "0")]].concat();
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /live"], &none);
    for _ in 0..20 {
        drop(open_stream(&gate, "/live", &[]).await.unwrap());
    }
    drop(open_stream(&gate, "/live", &[&traceparent(TRACE, "01")]).await.unwrap());
    collector.spans(TRACE, 1).await;
    assert_eq!(collector.received().await["spans"].as_array().unwrap().len(), 1);
}
