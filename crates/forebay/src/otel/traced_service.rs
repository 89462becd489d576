//! Tracing middleware: a span for each request, from its arrival to the end of its response body.
//!
//! Invariant: a span ends exactly once: when the body ends or fails, or when the future of the
//! request or the body is dropped. So the span of a stream lasts as long as the stream, also with a
//! [`LiveBody`], which takes over its socket. The inner service gets a `traceparent` of this span.
//! Enforced by: the span is owned by the future of the call, and moves into the [`TracedBody`] with
//! the response.
//! Out of scope: `url.path`, `url.query`, addresses and headers, because they may contain user
//! names or secrets.

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
use forebay_stream::{ConnectionUpgrade, Incoming, LiveBody};
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
/// Seconds from the head of a stream to its end. OpenTelemetry has no attribute for it.
const STREAM_SECONDS: &str = "forebay.stream.seconds";

/// Maximum length of a `tracestate` or `traceparent` that is read; longer ones are ignored. W3C
/// requires that programs pass on a `tracestate` of this length.
const MAX_TRACE_BYTES: usize = 512;

/// A service that can name the route of a request.
pub(crate) trait RouteResolver {
    /// Returns the pattern of the route, from the settings or the protocol; never the client's
    /// path.
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>>;
}

impl RouteResolver for ServeService {
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>> {
        match Route::of(request.uri().path()) {
            Route::NotFound => None,
            route => Some(route.path().into()),
        }
    }
}

impl RouteResolver for GateService {
    fn route(&self, request: &Request<Incoming>) -> Option<Cow<'static, str>> {
        let route = GateService::route(self, request)?;
        Some(route.path().to_owned().into())
    }
}

/// Creates spans.
#[derive(Debug)]
pub(super) struct SpanFactory {
    pub(super) tracer: SdkTracer,
    /// Scheme of client connections: `http` or `https`.
    pub(super) scheme: &'static str,
}

/// Service that creates a span for each request, if telemetry is on.
#[derive(Clone)]
pub(crate) struct TracedService<S> {
    service: S,
    span_factory: Option<Arc<SpanFactory>>,
}

impl<S> TracedService<S> {
    pub(super) fn new(service: S, span_factory: Option<Arc<SpanFactory>>) -> TracedService<S> {
        TracedService { service, span_factory }
    }
}

impl<S, B> Service<Request<Incoming>> for TracedService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + RouteResolver,
{
    type Response = Response<TracedBody<B>>;
    type Error = Infallible;
    type Future = TracedResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let span = self.span_factory.as_deref().and_then(|factory| {
            let route = self.service.route(&request);
            RequestSpan::begin(factory, route, &mut request)
        });
        TracedResponseFuture { response: self.service.call(request), span }
    }
}

pin_project! {
    /// Future of a response, with the span of the request.
    pub(crate) struct TracedResponseFuture<F> {
        #[pin]
        response: F,
        span: Option<Box<RequestSpan>>,
    }
}

impl<F, B> Future for TracedResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<TracedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(response) = ready!(this.response.poll(cx));
        let mut span = this.span.take();
        if let Some(span) = &mut span {
            span.record_response(&response);
        }
        Poll::Ready(Ok(response.map(|body| TracedBody { body, span })))
    }
}

pin_project! {
    /// Response body that owns the span of its request. The span is boxed, so a body without one is
    /// larger by a pointer only.
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
                    span.fail("broken_off");
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

/// Span of a request. It ends on drop.
struct RequestSpan {
    span: Span,
    has_response: bool,
    /// Time of the response head, if the response is a stream.
    stream_start: Option<Instant>,
}

impl RequestSpan {
    /// Starts a span and writes its context into the headers of the request. Returns `None` if the
    /// trace is not sampled.
    fn begin(
        factory: &SpanFactory,
        route: Option<Cow<'static, str>>,
        request: &mut Request<Incoming>,
    ) -> Option<Box<RequestSpan>> {
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract_with_context(&Context::new(), &IncomingHeaders(request.headers()));
        let (method, name) = method(request.method());
        let mut attributes = vec![KeyValue::new(METHOD, method), KeyValue::new(SCHEME, factory.scheme)];
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
            factory.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        let span = factory.tracer.build_with_context(builder, &parent);
        let own = Context::new().with_remote_span_context(span.span_context().clone());
        propagator.inject_context(&own, &mut OutgoingHeaders(request.headers_mut()));
        let is_recording = span.is_recording();
        is_recording.then(|| Box::new(RequestSpan { span, has_response: false, stream_start: None }))
    }

    fn record_response<B>(&mut self, response: &Response<B>) {
        self.has_response = true;
        let status = response.status();
        self.span.set_attribute(KeyValue::new(STATUS, i64::from(status.as_u16())));
        if status.is_server_error() {
            self.fail(status.as_str().to_owned());
        }
        self.stream_start = is_stream(response).then(Instant::now);
    }

    fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        self.span.set_attribute(KeyValue::new(ERROR, why.into()));
        self.span.set_status(Status::error(""));
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if !self.has_response {
            self.span.set_attribute(KeyValue::new(ERROR, "cancelled"));
        }
        if let Some(start) = self.stream_start {
            self.span.set_attribute(KeyValue::new(STREAM_SECONDS, start.elapsed().as_secs_f64()));
        }
        self.span.end();
    }
}

/// Returns whether a response is a stream. Over HTTP/1, a [`LiveBody`] or a [`ConnectionUpgrade`]
/// marks it; over HTTP/2, the content type does.
fn is_stream<B>(response: &Response<B>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let extensions = response.extensions();
    extensions.get::<LiveBody>().is_some()
        || extensions.get::<ConnectionUpgrade>().is_some()
        || kind.starts_with(b"text/event-stream")
}

/// Returns the method for the attribute and for the span name. An unknown method is the client's
/// own text and is not recorded.
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
        _ => None, // non-exhaustive; the server supports no other version
    }
}

/// Headers of the client's request.
struct IncomingHeaders<'a>(&'a HeaderMap);

impl Extractor for IncomingHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let text = self.0.get(key)?.to_str().ok()?;
        (text.len() <= MAX_TRACE_BYTES).then_some(text)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// Headers for the inner service. An empty value removes the header.
struct OutgoingHeaders<'a>(&'a mut HeaderMap);

impl Injector for OutgoingHeaders<'_> {
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
    fn an_unknown_method_is_not_recorded() {
        assert_eq!(method(&Method::GET), ("GET", "GET"));
        assert_eq!(method(&Method::from_bytes(b"S3CR3T").unwrap()), ("_OTHER", "HTTP"));
    }

    #[test]
    fn the_trace_state_of_an_old_trace_is_removed() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", HeaderValue::from_static("a=b"));
        let mut outgoing = OutgoingHeaders(&mut headers);
        outgoing.set("traceparent", "00-1-2-01".to_owned());
        outgoing.set("tracestate", String::new());
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["traceparent"], "00-1-2-01");
    }

    #[test]
    fn a_trace_state_that_is_too_long_is_dropped() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", HeaderValue::try_from(format!("a={}", "b".repeat(510))).unwrap());
        assert!(IncomingHeaders(&headers).get("tracestate").is_some());
        headers.insert("tracestate", HeaderValue::try_from(format!("a={}", "b".repeat(511))).unwrap());
        assert!(IncomingHeaders(&headers).get("tracestate").is_none());
    }

    #[test]
    fn a_recorded_span_takes_at_most_a_kibibyte() {
        let attributes = 8 * size_of::<KeyValue>();
        assert!(size_of::<RequestSpan>() + attributes <= 1024, "{}", size_of::<RequestSpan>());
    }

    #[test]
    fn a_body_without_a_span_is_larger_by_a_pointer() {
        assert_eq!(size_of::<TracedBody<[u64; 4]>>(), size_of::<[u64; 5]>());
    }
}
