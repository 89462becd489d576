//! Serve service: the tower service that checks access, takes admission permits and calls the shape
//! handler.
//!
//! ```text
//! request ─▶ ServeService: route, host, secret or token, body ─▶ AdmissionService: permit if live
//!                                                                    │
//! response ◀─ ServeResponseFuture: count, CORS, request id ◀─── AdmittedService ─▶ ShapeHandler
//! ```

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_admission::{AdmissionLayer, AdmissionService, EndSignal, StreamBody, VerifiedToken};
use forebay_stream::ClientAddr;
use http::header::ORIGIN;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer as _;
use tower_service::Service;

use super::access_control::AccessControl;
use super::body::{BodyContent, BoxError, ShapeBody};
use super::failure_log::{FailureLog, RefusalReason};
use super::metrics;
use super::protocol::cache_policy::{extend_no_store, restrict_to_bearer};
use super::protocol::{
    AccessLevel, InvalidRequest, MAX_QUERY_BYTES, QueryParams, RequestRefusal, Route, ShapeRequest,
    TokenBearer, cors, fixed_responses,
};
use super::request_body::{BodyMemory, BodyReader};
use super::shape_factory::random_u64;
use super::shape_handler::ShapeHandler;
use super::shape_label::ShapeLabel;
use super::token_verifier::TokenVerifier;
use crate::host::is_local;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Serves shapes to each connection; cheap to clone.
#[derive(Clone)]
pub struct ServeService {
    admitted: AdmissionService<AdmittedService>,
    context: Arc<ServiceContext>,
    /// Of this connection's last live request.
    label: ShapeLabel,
}

/// State that all clones of a service share.
struct ServiceContext {
    access: AccessControl,
    tokens: TokenVerifier,
    bodies: BodyReader,
    failures: FailureLog,
    responses: metrics::ResponseCounters,
}

/// The service behind admission: calls the shape handler.
#[derive(Clone)]
pub(crate) struct AdmittedService {
    handler: Arc<ShapeHandler>,
}

/// Request extension: a request after the access check.
#[derive(Debug, Clone)]
struct ParsedRequest {
    route: Route,
    target: Result<RequestTarget, RequestRefusal>,
    access_level: AccessLevel,
    /// The bearer of the token, if the route requires one.
    bearer: Option<TokenBearer>,
    /// The bearer's token, for admission, if the request takes a permit.
    token: Option<VerifiedToken>,
    /// Name of the shape in lists of streams, if the request takes a permit.
    label: Option<Arc<str>>,
    /// Signal by which an operator ends the stream, from admission.
    end: Option<EndSignal>,
    /// Memory of the body that the request was parsed from.
    memory: Option<Arc<BodyMemory>>,
}

#[derive(Debug, Clone)]
enum RequestTarget {
    /// A shape.
    Shape(Result<Box<ShapeRequest>, InvalidRequest>),
    /// A shape, by a POST whose body isn't read yet.
    Post(Arc<QueryParams>),
    /// The preflight of a request for a shape.
    Preflight,
    Health,
    Home,
}

impl ParsedRequest {
    fn new(route: Route, target: Result<RequestTarget, RequestRefusal>, access_level: AccessLevel) -> Self {
        ParsedRequest {
            route,
            target,
            access_level,
            bearer: None,
            token: None,
            label: None,
            end: None,
            memory: None,
        }
    }

    /// Returns whether the request needs an admission permit: only live requests do.
    fn takes_permit(&self) -> bool {
        self.live_request().is_some()
    }

    /// Returns the request for a shape, if it is live.
    fn live_request(&self) -> Option<&ShapeRequest> {
        match &self.target {
            Ok(RequestTarget::Shape(Ok(request))) => request.live.is_live().then_some(request),
            Ok(RequestTarget::Shape(Err(_))) | Err(_) => None,
            Ok(
                RequestTarget::Post(_)
                | RequestTarget::Preflight
                | RequestTarget::Health
                | RequestTarget::Home,
            ) => None,
        }
    }
}

impl ServeService {
    pub(crate) fn new(
        layer: AdmissionLayer,
        handler: Arc<ShapeHandler>,
        access: AccessControl,
        tokens: TokenVerifier,
        bodies: BodyReader,
    ) -> Self {
        let layer = layer
            .streams(|parts| parts.extensions.get::<ParsedRequest>().is_some_and(ParsedRequest::takes_permit))
            .verified_token(|extensions| extensions.get_mut::<ParsedRequest>()?.token.take())
            .route(|parts| parts.extensions.get::<ParsedRequest>()?.label.clone())
            .end_signal(|extensions, end| {
                if let Some(parsed) = extensions.get_mut::<ParsedRequest>() {
                    parsed.end = Some(end);
                }
            })
            .peer(|extensions| extensions.get::<ClientAddr>().map(|peer| peer.0));
        let admitted = layer.layer(AdmittedService { handler });
        let (failures, responses) = (FailureLog::default(), metrics::ResponseCounters::default());
        let context = Arc::new(ServiceContext { access, tokens, bodies, failures, responses });
        ServeService { admitted, context, label: ShapeLabel::default() }
    }
}

impl ServiceContext {
    /// Parses a request's head and checks host, secret, path and method. Refusals are
    /// stored in [`ParsedRequest::target`], and sent by [`AdmittedService`].
    fn parse<B>(&self, request: &Request<B>) -> ParsedRequest {
        let (method, uri) = (request.method(), request.uri());
        let (path, raw) = (uri.path(), uri.query().unwrap_or_default());
        let route = Route::of(path);
        if raw.len() > MAX_QUERY_BYTES {
            let target = Err(RequestRefusal::QueryTooLong);
            return ParsedRequest::new(route, target, AccessLevel::Full);
        }
        let query = QueryParams::parse(raw);
        let authorized =
            self.access.with(|access| match access.requires_local_host(route) && !is_local(request) {
                true => Err(RequestRefusal::ForeignHost),
                false => access.authorize(method, path, &query),
            });
        let access_level = authorized.as_ref().map_or(AccessLevel::Full, |(_, level)| *level);
        let target = authorized.and_then(|(route, _)| match (route, method) {
            (Route::Shape, &Method::OPTIONS) => Ok(RequestTarget::Preflight),
            (Route::Shape, &Method::POST) => Ok(RequestTarget::Post(Arc::new(query))),
            (Route::Shape, _) => {
                Ok(RequestTarget::Shape(ShapeRequest::parse(method, &query, &[]).map(Box::new)))
            }
            (Route::Health, _) => Ok(RequestTarget::Health),
            (Route::Root, _) => Ok(RequestTarget::Home),
            (Route::NotFound, _) => Err(RequestRefusal::NoRoute),
        });
        ParsedRequest::new(route, target, access_level)
    }

    /// Verifies the token, if the route requires one, and reads the body of a POST. Refusals are
    /// stored in [`ParsedRequest::target`]. Returns the body of any other request.
    async fn complete<B: RequestBody>(
        &self,
        parsed: &mut ParsedRequest,
        headers: &HeaderMap,
        body: B,
    ) -> Option<B> {
        let mut token = None;
        if parsed.access_level == AccessLevel::Token {
            match self.tokens.bearer(headers).await {
                Ok((bearer, verified)) => (parsed.bearer, token) = (Some(bearer), Some(verified)),
                Err(refusal) => parsed.target = Err(refusal),
            }
        }
        let unread = match &parsed.target {
            Ok(RequestTarget::Post(query)) => {
                let query = Arc::clone(query);
                parsed.target = match self.bodies.read(body, parsed.bearer.as_ref()).await {
                    Ok((body, memory)) => {
                        parsed.memory = Some(Arc::new(memory));
                        let request = ShapeRequest::parse(&Method::POST, &query, &body);
                        Ok(RequestTarget::Shape(request.map(Box::new)))
                    }
                    Err(refusal) => Err(refusal),
                };
                None
            }
            _ => Some(body),
        };
        parsed.token = token.filter(|_| parsed.takes_permit());
        unread
    }
}

/// Future of a response, boxed.
pub type BoxResponseFuture<R> = Pin<Box<dyn Future<Output = Result<R, Infallible>> + Send>>;

/// Body of a request: of [`forebay_stream::HttpServer`], axum or hyper.
pub trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> RequestBody for B {}

impl<B: RequestBody> Service<Request<B>> for ServeService {
    type Response = Response<StreamBody<ShapeBody>>;
    type Error = Infallible;
    type Future = ServeResponseFuture<BoxResponseFuture<Response<StreamBody<ShapeBody>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Option<B>>>::poll_ready(&mut self.admitted, cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut parsed = self.context.parse(&request);
        parsed.label = parsed.live_request().and_then(|request| self.label.of(request));
        let (route, origins) = (parsed.route, origins(request.headers()));
        let is_post = matches!(parsed.target, Ok(RequestTarget::Post(_)));
        let response = match parsed.access_level {
            AccessLevel::Full if !is_post => {
                request.extensions_mut().insert(parsed);
                self.admitted.call(request.map(Some))
            }
            AccessLevel::Full | AccessLevel::Token => self.call_completed(request, parsed),
        };
        ServeResponseFuture { response, route, origins, context: Arc::clone(&self.context) }
    }
}

impl ServeService {
    /// Verifies the token and reads the body before admission: requests without access take no
    /// permit, and a body may make a request live. Admission gets the verified token, and doesn't
    /// verify it again.
    fn call_completed<B: RequestBody>(
        &mut self,
        request: Request<B>,
        mut parsed: ParsedRequest,
    ) -> BoxResponseFuture<Response<StreamBody<ShapeBody>>> {
        // `poll_ready` was called on this instance, so it serves the call; a clone replaces it.
        let fresh = self.admitted.clone();
        let (mut admitted, context) =
            (std::mem::replace(&mut self.admitted, fresh), Arc::clone(&self.context));
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let body = context.complete(&mut parsed, &parts.headers, body).await;
            if body.is_none() {
                parsed.label = parsed.live_request().and_then(|request| ShapeLabel::default().of(request));
            }
            let has_token = parsed.access_level == AccessLevel::Token;
            parts.extensions.insert(parsed);
            let Ok(mut response) = admitted.call(Request::from_parts(parts, body)).await;
            if has_token {
                restrict_to_bearer(response.headers_mut());
            }
            Ok(response)
        })
    }
}

pin_project! {
    /// Future of a response. Adds CORS headers and a request id to every response, and counts it;
    /// admission's refusals included.
    pub struct ServeResponseFuture<F> {
        #[pin]
        response: F,
        route: Route,
        origins: HeaderMap,
        context: Arc<ServiceContext>,
    }
}

impl<F, B> Future for ServeResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.response.poll(cx));
        this.context.responses.count(*this.route, response.status());
        extend_no_store(response.headers_mut());
        cors::write(*this.route, this.origins, response.headers_mut());
        let id = random_u64();
        this.context.failures.record(id, *this.route, &response);
        response.headers_mut().insert(REQUEST_ID, request_id(id));
        Poll::Ready(Ok(response))
    }
}

/// Returns an id as sixteen hexadecimal digits, as the failure log writes it. Every response has
/// one: this takes 10 ns, and `format!` 60 ns and an allocation.
fn request_id(id: u64) -> HeaderValue {
    let digit = |at: u32| b"0123456789abcdef"[(id >> (60 - 4 * at) & 0xf) as usize];
    let text: [u8; 16] = std::array::from_fn(|at| digit(at as u32));
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
}

/// Returns the request headers that [`cors`] needs; most requests have none.
fn origins(request: &HeaderMap) -> HeaderMap {
    let origins = request.get_all(ORIGIN).iter();
    origins.map(|origin| (ORIGIN, origin.clone())).collect()
}

impl<B: RequestBody> Service<Request<Option<B>>> for AdmittedService {
    type Response = Response<ShapeBody>;
    type Error = Infallible;
    type Future = BoxResponseFuture<Response<ShapeBody>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// The body of a POST was read before. Any other body is kept unread until the response.
    fn call(&mut self, mut request: Request<Option<B>>) -> Self::Future {
        let handler = Arc::clone(&self.handler);
        let parsed = request.extensions_mut().remove::<ParsedRequest>();
        Box::pin(async move {
            let Some(ParsedRequest { target, bearer, end, memory, .. }) = parsed else {
                return Ok(RequestRefusal::NoRoute.response(request.method()).map(ShapeBody::whole));
            };
            let (mut parts, _unread) = request.into_parts();
            // Thousands of live requests may wait from here on: free what they don't need.
            drop(std::mem::take(&mut parts.extensions));
            let response = match target {
                Err(refusal) => Err(refusal),
                Ok(RequestTarget::Preflight) => Ok(whole(fixed_responses::preflight(&parts.headers))),
                Ok(RequestTarget::Health) => Ok(whole(handler.health().response())),
                Ok(RequestTarget::Home) => Ok(handler.home_page()),
                Ok(RequestTarget::Post(_)) => Err(RequestRefusal::BodyUnreadable),
                Ok(RequestTarget::Shape(request)) => handler.shape(&parts, request, memory, bearer).await,
            };
            let mut response = response.unwrap_or_else(|refusal| {
                let mut response = refusal.response(&parts.method).map(BodyContent::whole);
                response.extensions_mut().insert(RefusalReason(refusal.as_str()));
                response
            });
            if parts.method == Method::HEAD {
                *response.body_mut() = BodyContent::empty();
            }
            Ok(response.map(|content| ShapeBody::new(content, end)))
        })
    }
}

/// Returns the response with a body that is in memory as a whole.
pub(crate) fn whole(response: Response<Bytes>) -> Response<BodyContent> {
    response.map(BodyContent::whole)
}

impl fmt::Debug for ServeService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeService").finish_non_exhaustive()
    }
}
