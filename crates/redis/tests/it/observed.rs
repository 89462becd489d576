//! The features `tracing` and `metrics`: spans and metrics of requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_redis::{Config, RedisClient, cmd, metrics};
use forebay_testkit::Direction;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::support::*;

/// Fields of one span, in their text form.
#[derive(Clone, Debug, Default, PartialEq)]
struct SpanFields(BTreeMap<&'static str, String>);

impl Visit for SpanFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl SpanFields {
    fn get(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }
}

/// Fields of a span, and the name of its parent.
type ClosedSpan = (SpanFields, Option<String>);

/// Keeps every span of the client that has closed.
#[derive(Clone, Default)]
struct ClosedSpans(Arc<Mutex<Vec<ClosedSpan>>>);

impl ClosedSpans {
    fn take(&self) -> Vec<SpanFields> {
        self.0.lock().unwrap().drain(..).map(|(fields, _)| fields).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ClosedSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let mut fields = SpanFields::default();
        attributes.record(&mut fields);
        cx.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, cx: Context<'_, S>) {
        let span = cx.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<SpanFields>().unwrap());
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        let span = cx.span(&id).unwrap();
        if span.metadata().target() == "forebay_redis::request" {
            let fields = span.extensions().get::<SpanFields>().unwrap().clone();
            self.0.lock().unwrap().push((fields, span.parent().map(|parent| parent.name().to_owned())));
        }
    }
}

/// Collects the spans of this thread. The runtime of these tests has no other.
fn collect_spans() -> (ClosedSpans, tracing::subscriber::DefaultGuard) {
    let spans = ClosedSpans::default();
    let registry = tracing_subscriber::registry().with(spans.clone());
    (spans, tracing::subscriber::set_default(registry))
}

#[tokio::test]
async fn each_request_has_a_span_with_the_names_of_opentelemetry() {
    let (spans, _guard) = collect_spans();
    let redis = start();
    let client = connect(format!("{}/3", redis.url())).await;
    {
        let parent = tracing::info_span!("caller");
        let request = {
            let _entered = parent.enter();
            submitted(client.exec::<()>(("SET", "key", "hunter2")))
        };
        request.await.unwrap();
    }
    let closed = spans.0.lock().unwrap().drain(..).collect::<Vec<_>>();
    let [(set, parent)] = &closed[..] else { panic!("{closed:?}") };
    assert_eq!(parent.as_deref(), Some("caller"));
    let port = redis.port().to_string();
    let expected = [
        ("otel.name", "SET"),
        ("otel.kind", "client"),
        ("db.system.name", "redis"),
        ("db.operation.name", "SET"),
        ("db.namespace", "3"),
        ("server.address", "127.0.0.1"),
        ("server.port", &*port),
    ];
    assert_eq!(set.0, expected.map(|(field, value)| (field, value.to_owned())).into());

    let _both = client.pipeline::<(String, i64)>((("GET", "key"), ("STRLEN", "key"))).await.unwrap();
    let _list = client.transaction::<Vec<String>>(vec![("GET", "key"); 3]).await.unwrap();
    let _one = client.transaction::<Vec<String>>([("GET", "key")]).await.unwrap();
    let _news = client.subscribe(["news", "weather"]).await.unwrap();
    let batches = spans.take();
    let shown: Vec<_> = batches
        .iter()
        .map(|span| (span.get("db.operation.name").unwrap(), span.get("db.operation.batch.size")))
        .collect();
    assert_eq!(shown, [("PIPELINE", Some("2")), ("MULTI", Some("3")), ("MULTI", None), ("SUBSCRIBE", None)]);
}

#[tokio::test]
async fn the_span_of_a_request_that_fails_has_the_code_and_no_argument() {
    let (spans, _guard) = collect_spans();
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let client = connect(url).await;
    client.exec::<()>(("SET", "key", "hunter2")).await.unwrap();
    client.exec::<i64>(("LPOP", "key")).await.unwrap_err();
    client.exec::<()>(("NOSUCH", "hunter2")).await.unwrap_err();
    client.exec::<()>(("SET key hunter2",)).await.unwrap_err();
    client.exec::<()>(("SUBSCRIBE", "hunter2")).await.unwrap_err();
    proxy.stall(Direction::ToClient);
    client.exec::<()>(("ECHO", "hunter2")).within(Duration::from_millis(20)).await.unwrap_err();
    drop(submitted(client.exec::<()>(("GET", "hunter2"))));
    drop(client.exec::<()>(("NEVER", "polled")));
    client.abort();
    client.exec::<()>(("PING",)).await.unwrap_err();

    let closed = spans.take();
    let shown: Vec<_> = closed[1..]
        .iter()
        .map(|span| {
            assert_eq!(span.get("otel.status_code"), Some("ERROR"), "{span:?}");
            let names = ["db.operation.name", "db.response.status_code", "error.type"];
            names.map(|name| span.get(name).unwrap_or("-").to_owned())
        })
        .collect();
    let expected = [
        ["LPOP", "WRONGTYPE", "WRONGTYPE"],
        ["NOSUCH", "ERR", "ERR"],
        ["unknown", "ERR", "ERR"],
        ["SUBSCRIBE", "-", "unsuitable"],
        ["ECHO", "-", "deadline"],
        ["GET", "-", "dropped"],
        ["PING", "-", "cancelled"],
    ];
    assert_eq!(shown, expected.map(|names| names.map(str::to_owned)));
    assert!(!format!("{closed:?}").contains("hunter2"), "{closed:?}");
}

#[tokio::test]
async fn a_span_that_is_disabled_changes_nothing() {
    let spans = ClosedSpans::default();
    let filter = tracing_subscriber::filter::LevelFilter::from_level(Level::WARN);
    let registry = tracing_subscriber::registry().with(spans.clone().with_filter(filter));
    let _guard = tracing::subscriber::set_default(registry);
    let redis = start();
    let client = connect(redis.url()).await;
    client.exec::<()>(("PING",)).await.unwrap();
    client.exec::<i64>(("ECHO", "text")).await.unwrap_err();
    assert_eq!(spans.take(), []);
}

/// Connects a client that reports to a recorder of its own.
async fn measured(config: Config) -> (RedisClient, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let guard = ::metrics::set_default_local_recorder(&recorder);
    let client = RedisClient::open(config).unwrap();
    drop(guard);
    eventually("it is open", forebay_redis::State::Open, async || client.state()).await;
    (client, handle)
}

/// Returns the value of one sample, such as `name{label="value"}`.
#[track_caller]
fn sample(handle: &PrometheusHandle, name: &str) -> f64 {
    let text = handle.render();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

fn outcomes(handle: &PrometheusHandle) -> Vec<(&'static str, f64)> {
    let count = |outcome| sample(handle, &format!("{}{{outcome=\"{outcome}\"}}", metrics::REQUESTS));
    metrics::OUTCOMES.map(|outcome| (outcome, count(outcome))).into_iter().filter(|(_, n)| *n > 0.0).collect()
}

#[tokio::test]
async fn metrics_count_requests_by_outcome_their_duration_and_the_open_ones() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (client, handle) = measured(with(config(url), |config| config.max_requests = 3)).await;
    assert_eq!(outcomes(&handle), []);
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    client.exec::<i64>(("INCR", "key")).await.unwrap_err();
    client.exec::<()>(("MONITOR",)).await.unwrap_err();
    let _both = client.pipeline::<(String, i64)>((("GET", "key"), ("STRLEN", "key"))).await.unwrap();
    assert_eq!(outcomes(&handle), [("replied", 3.0), ("unsuitable", 1.0)]);
    let duration = metrics::REQUEST_SECONDS;
    assert_eq!(sample(&handle, &format!("{duration}_count")), 3.0);
    assert_eq!(sample(&handle, metrics::OPEN_REQUESTS), 0.0);

    proxy.stall(Direction::ToClient);
    let dropped = submitted(client.exec::<()>(("PING",)));
    client.exec::<()>(("PING",)).within(Duration::from_millis(20)).await.unwrap_err();
    let waiting = submitted(client.exec::<()>(cmd("PING")).within(10 * TEST_TIMEOUT));
    assert_eq!(sample(&handle, metrics::OPEN_REQUESTS), 2.0);
    client.exec::<()>(("PING",)).await.unwrap_err();
    drop(dropped);
    client.abort();
    within("a result", waiting).await.unwrap_err();
    let expected = [
        ("replied", 3.0),
        ("dropped", 1.0),
        ("queue_full", 1.0),
        ("unsuitable", 1.0),
        ("deadline", 1.0),
        ("cancelled", 1.0),
    ];
    assert_eq!(outcomes(&handle), expected);
    assert_eq!(sample(&handle, metrics::OPEN_REQUESTS), 0.0);
    assert_eq!(sample(&handle, &format!("{duration}_count")), 3.0, "only requests with replies");
}

#[tokio::test]
async fn requests_of_a_client_that_measures_none_are_not_counted() {
    let redis = start();
    let (client, handle) =
        measured(with(config(redis.url()), |config| config.measure_requests = false)).await;
    client.exec::<()>(("PING",)).await.unwrap();
    assert_eq!(outcomes(&handle), []);
    assert_eq!(sample(&handle, metrics::OPEN_REQUESTS), 0.0);
}

#[tokio::test]
async fn metrics_count_reconnections() {
    let redis = start();
    let (proxy, url) = proxied(&redis);
    let (client, handle) = measured(fast_reconnect(url)).await;
    assert_eq!(sample(&handle, metrics::RECONNECTS), 0.0);
    for count in 1..=3 {
        let mut changes = status_from_now(&client).await;
        proxy.cut();
        wait_for_reconnect(&mut changes).await;
        assert_eq!(sample(&handle, metrics::RECONNECTS), f64::from(count));
    }
}

#[tokio::test]
async fn the_span_of_a_resubscription_that_finds_the_queue_full_has_the_error() {
    let (spans, _guard) = collect_spans();
    let redis = start();
    let admin = connect(redis.url()).await;
    let client = connect(with(fast_reconnect(redis.url()), |config| config.max_requests = 1)).await;
    let _news = client.subscribe("news").await.unwrap();
    let _weather = client.subscribe("weather").await.unwrap();
    spans.take();
    let mut changes = status_from_now(&client).await;
    kill_connection(&admin, client_id(&client).await).await;
    wait_for_reconnect(&mut changes).await;
    let mut closed = Vec::new();
    let is_confirmed = |span: &&SpanFields| span.get("otel.status_code").is_none();
    let is_subscribe = |span: &SpanFields| span.get("db.operation.name") == Some("SUBSCRIBE");
    while closed.iter().filter(is_confirmed).count() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        closed.extend(spans.take().into_iter().filter(is_subscribe));
    }
    let errors: Vec<_> = closed.iter().filter_map(|span| span.get("error.type")).collect();
    assert!(errors.contains(&"queue_full"), "{closed:?}");
    assert_eq!(errors.len() + 2, closed.len(), "each span has an outcome: {closed:?}");
}
