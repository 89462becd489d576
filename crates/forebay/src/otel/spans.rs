//! A span for each request, from the door to the end of its response's body.
//!
//! Invariant: a span that began ends once: when the body ends or fails, or with whatever is dropped before, the request's future or the
//! body; so a stream's span lasts as long as the stream, on the lean path too. What is behind the door sees a `traceparent` that
//! names this span.
//! Kept by: the span is a local of the call's future, and moves into the [`TracedBody`] with the response.
//! Absent on purpose: `url.path`, `url.query`, addresses and headers, which may name users or hold secrets.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use forebay_gate::GateService;
use forebay_serve::ServeService;
use forebay_serve::protocol::Route;
use forebay_stream::{Incoming, LiveBody};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

const METHOD: &str = "http.request.method";
const ROUTE: &str = "http.route";
const STATUS: &str = "http.response.status_code";
const ERROR: &str = "error.type";
const SCHEME: &str = "url.scheme";
const PROTOCOL_VERSION: &str = "network.protocol.version";
/// OpenTelemetry has no name for it: from the head of a stream to its end.
const STREAM_SECONDS: &str = "forebay.stream.seconds";

/// What every program must pass on of a trace's state (W3C); a span keeps it, and spans must stay small.
const MAX_TRACE_BYTES: usize = 512;

/// A service that knows its routes.
pub(crate) trait Routed {
    /// Where a request leads, as the settings or the protocol write it; never as the client did.
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>>;
}

impl Routed for ServeService {
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>> {
        let route = match Route::of(request.uri().path()) {
            Route::Shape => "/v1/shape",
            Route::Health => "/v1/health",
            Route::Root => "/",
            Route::NotFound => return None,
        };
        Some(route.into())
    }
}

impl Routed for GateService {
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>> {
        let route = GateService::route(self, request)?;
        Some(route.path().to_owned().into())
    }
}

/// What spans are made with.
#[derive(Debug)]
pub(super) struct Tracing {
    pub(super) tracer: SdkTracer,
    /// How clients reach us: `http` or `https`.
    pub(super) scheme: &'static str,
}

/// A service whose requests have a span each, if telemetry is on.
#[derive(Clone)]
pub(crate) struct Traced<S> {
    service: S,
    tracing: Option<Arc<Tracing>>,
}

impl<S> Traced<S> {
    pub(super) fn new(service: S, tracing: Option<Arc<Tracing>>) -> Traced<S> {
        Traced { service, tracing }
    }
}

impl<S, B> Service<Request<Incoming>> for Traced<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Routed,
{
    type Response = Response<TracedBody<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let span = self.tracing.as_deref().and_then(|tracing| {
            let route = self.service.route(&request);
            RequestSpan::begin(tracing, route, &mut request)
        });
        Answering { answering: self.service.call(request), span }
    }
}

pin_project! {
    /// A request on its way to its response.
    pub(crate) struct Answering<F> {
        #[pin]
        answering: F,
        span: Option<Box<RequestSpan>>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<TracedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(response) = ready!(this.answering.poll(cx));
        let mut span = this.span.take();
        if let Some(span) = &mut span {
            span.answered(&response);
        }
        Poll::Ready(Ok(response.map(|body| TracedBody { body, span })))
    }
}

pin_project! {
    /// A body that holds its request's span; a pointer, and nothing behind it unless the span is recorded.
    pub(crate) struct TracedBody<B> {
        #[pin]
        body: B,
        span: Option<Box<RequestSpan>>,
    }
}

impl<B: Body<Data = Bytes>> Body for TracedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => {
                if let Some(mut span) = this.span.take() {
                    span.fails("broken_off");
                }
            }
            None => drop(this.span.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The span of a request; it ends when it is dropped.
struct RequestSpan {
    span: Span,
    is_answered: bool,
    /// Since when it streams, if it does.
    streams_since: Option<Instant>,
}

impl RequestSpan {
    /// Marks the request as a part of its trace; nothing is kept of one that isn't sampled.
    fn begin(
        tracing: &Tracing,
        route: Option<Cow<'static, str>>,
        request: &mut Request<Incoming>,
    ) -> Option<Box<RequestSpan>> {
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract_with_context(&Context::new(), &Received(request.headers()));
        let (method, name) = method(request.method());
        let mut attributes = vec![KeyValue::new(METHOD, method), KeyValue::new(SCHEME, tracing.scheme)];
        attributes.extend(version(request.version()).map(|version| KeyValue::new(PROTOCOL_VERSION, version)));
        let name = match route {
            Some(route) => {
                let name = format!("{name} {route}");
                attributes.push(KeyValue::new(ROUTE, route));
                name.into()
            }
            None => Cow::Borrowed(name),
        };
        let builder =
            tracing.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        let span = tracing.tracer.build_with_context(builder, &parent);
        let own = Context::new().with_remote_span_context(span.span_context().clone());
        propagator.inject_context(&own, &mut Passed(request.headers_mut()));
        let is_recording = span.is_recording();
        is_recording.then(|| Box::new(RequestSpan { span, is_answered: false, streams_since: None }))
    }

    fn answered<B>(&mut self, response: &Response<B>) {
        self.is_answered = true;
        let status = response.status();
        self.span.set_attribute(KeyValue::new(STATUS, i64::from(status.as_u16())));
        if status.is_server_error() {
            self.fails(status.as_str().to_owned());
        }
        self.streams_since = is_stream(response).then(Instant::now);
    }

    fn fails(&mut self, why: impl Into<Cow<'static, str>>) {
        self.span.set_attribute(KeyValue::new(ERROR, why.into()));
        self.span.set_status(Status::error(""));
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if !self.is_answered {
            self.span.set_attribute(KeyValue::new(ERROR, "cancelled"));
        }
        if let Some(since) = self.streams_since {
            self.span.set_attribute(KeyValue::new(STREAM_SECONDS, since.elapsed().as_secs_f64()));
        }
        self.span.end();
    }
}

/// `LiveBody` marks what leaves by the lean path; over HTTP/2 a stream is known by its type.
fn is_stream<B>(response: &Response<B>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    response.extensions().get::<LiveBody>().is_some() || kind.starts_with(b"text/event-stream")
}

/// As the attribute has it, and as names do. What nobody knows is the client's own word, and isn't repeated.
fn method(method: &Method) -> (&'static str, &'static str) {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.map_or(("_OTHER", "HTTP"), |known| (known, known))
}

fn version(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None, // `Version` is open; there is no other that the server speaks
    }
}

/// The headers as they came.
struct Received<'a>(&'a HeaderMap);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let text = self.0.get(key)?.to_str().ok()?;
        (text.len() <= MAX_TRACE_BYTES).then_some(text)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// The headers as they go on. What is empty isn't said.
struct Passed<'a>(&'a mut HeaderMap);

impl Injector for Passed<'_> {
    fn set(&mut self, key: &str, value: String) {
        let Ok(name) = HeaderName::try_from(key) else { return };
        match HeaderValue::try_from(value) {
            Ok(value) if !value.is_empty() => {
                self.0.insert(name, value);
            }
            Ok(_) | Err(_) => {
                self.0.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_nobody_knows_is_not_repeated() {
        assert_eq!(method(&Method::GET), ("GET", "GET"));
        assert_eq!(method(&Method::from_bytes(b"S3CR3T").unwrap()), ("_OTHER", "HTTP"));
    }

    #[test]
    fn an_old_trace_state_does_not_outlive_its_trace() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", HeaderValue::from_static("a=b"));
        let mut passed = Passed(&mut headers);
        passed.set("traceparent", "00-1-2-01".to_owned());
        passed.set("tracestate", String::new());
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["traceparent"], "00-1-2-01");
    }

    #[test]
    fn a_trace_s_state_that_is_too_long_to_keep_is_dropped() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", HeaderValue::try_from(format!("a={}", "b".repeat(510))).unwrap());
        assert!(Received(&headers).get("tracestate").is_some());
        headers.insert("tracestate", HeaderValue::try_from(format!("a={}", "b".repeat(511))).unwrap());
        assert!(Received(&headers).get("tracestate").is_none());
    }

    #[test]
    fn a_recorded_span_takes_a_kibibyte_at_most() {
        let attributes = 8 * size_of::<KeyValue>();
        assert!(size_of::<RequestSpan>() + attributes <= 1024, "{}", size_of::<RequestSpan>());
    }

    #[test]
    fn a_body_without_a_span_is_larger_by_a_pointer() {
        assert_eq!(size_of::<TracedBody<[u64; 4]>>(), size_of::<[u64; 5]>());
    }
}
