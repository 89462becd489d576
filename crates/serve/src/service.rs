//! Serve service: the tower service that checks access, takes admission permits and calls the shape
//! handler.
//!
//! ```text
//! request ─▶ ServeService: route, host, secret or token ─▶ AdmissionService: permit if live
//!                                                              │
//! response ◀─ ServeResponseFuture: count, CORS, request id ◀─ AdmittedService ─▶ ShapeHandler
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
use super::shape_factory::random_u64;
use super::shape_handler::ShapeHandler;
use super::token_verifier::TokenVerifier;
use crate::host::is_local;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Serves shapes to each connection; cheap to clone.
#[derive(Clone)]
pub struct ServeService {
    admitted: AdmissionService<AdmittedService>,
    context: Arc<ServiceContext>,
}

/// State that all clones of a service share.
struct ServiceContext {
    access: AccessControl,
    tokens: TokenVerifier,
    failures: FailureLog,
    responses: metrics::ResponseCounters,
}

/// The service behind admission: calls the shape handler.
#[derive(Clone)]
pub(crate) struct AdmittedService {
    handler: Arc<ShapeHandler>,
}

/// Request extension: a request's head after the access check.
#[derive(Debug, Clone)]
struct ParsedRequest {
    route: Route,
    target: Result<RequestTarget, RequestRefusal>,
    access_level: AccessLevel,
    /// The bearer of the token, if the route requires one.
    bearer: Option<TokenBearer>,
    /// The bearer's token, for admission, if the request takes a permit.
    token: Option<VerifiedToken>,
}

#[derive(Debug, Clone)]
enum RequestTarget {
    /// A shape. For a POST, the second value is the query, which is parsed again with the body.
    Shape(Result<Box<ShapeRequest>, InvalidRequest>, Option<Arc<QueryParams>>),
    /// The preflight of a request for a shape.
    Preflight,
    Health,
    Home,
}

impl ParsedRequest {
    /// Returns whether the request needs an admission permit: only live requests do.
    fn takes_permit(&self) -> bool {
        match &self.target {
            Ok(RequestTarget::Shape(Ok(request), _)) => request.live.is_live(),
            Ok(RequestTarget::Shape(Err(_), _)) | Err(_) => false,
            Ok(RequestTarget::Preflight | RequestTarget::Health | RequestTarget::Home) => false,
        }
    }

    /// Returns the table and the handle that the client requests, for lists of streams. A text that
    /// can't be a handle is left out.
    fn shape_name(&self) -> Option<Arc<str>> {
        let Ok(RequestTarget::Shape(Ok(request), _)) = &self.target else { return None };
        let (table, handle) = (request.table.as_ref()?, request.valid_handle().unwrap_or_default());
        Some(format!("{}.{} {handle}", table.schema, table.name).trim_end().into())
    }
}

impl ServeService {
    pub(crate) fn new(
        layer: AdmissionLayer,
        handler: Arc<ShapeHandler>,
        access: AccessControl,
        tokens: TokenVerifier,
    ) -> Self {
        let layer = layer
            .streams(|parts| parts.extensions.get::<ParsedRequest>().is_some_and(ParsedRequest::takes_permit))
            .verified_token(|extensions| extensions.get_mut::<ParsedRequest>()?.token.take())
            .route(|parts| parts.extensions.get::<ParsedRequest>()?.shape_name())
            .peer(|extensions| extensions.get::<ClientAddr>().map(|peer| peer.0));
        let admitted = layer.layer(AdmittedService { handler });
        let (failures, responses) = (FailureLog::default(), metrics::ResponseCounters::default());
        ServeService { admitted, context: Arc::new(ServiceContext { access, tokens, failures, responses }) }
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
            return ParsedRequest {
                route,
                target,
                access_level: AccessLevel::Full,
                bearer: None,
                token: None,
            };
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
            (Route::Shape, _) => {
                let request = ShapeRequest::parse(method, &query, &[]).map(Box::new);
                let query = (method == Method::POST).then(|| Arc::new(query));
                Ok(RequestTarget::Shape(request, query))
            }
            (Route::Health, _) => Ok(RequestTarget::Health),
            (Route::Root, _) => Ok(RequestTarget::Home),
            (Route::NotFound, _) => Err(RequestRefusal::NoRoute),
        });
        ParsedRequest { route, target, access_level, bearer: None, token: None }
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
        Service::<Request<B>>::poll_ready(&mut self.admitted, cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let parsed = self.context.parse(&request);
        let (route, origins) = (parsed.route, origins(request.headers()));
        let response = match parsed.access_level {
            AccessLevel::Full => {
                request.extensions_mut().insert(parsed);
                self.admitted.call(request)
            }
            AccessLevel::Token => self.call_with_token(request, parsed),
        };
        ServeResponseFuture { response, route, origins, context: Arc::clone(&self.context) }
    }
}

impl ServeService {
    /// Verifies the token before admission, so that requests without access take no permit.
    /// Admission gets the verified token, and doesn't verify it again.
    fn call_with_token<B: RequestBody>(
        &mut self,
        mut request: Request<B>,
        mut parsed: ParsedRequest,
    ) -> BoxResponseFuture<Response<StreamBody<ShapeBody>>> {
        // `poll_ready` was called on this instance, so it serves the call; a clone replaces it.
        let fresh = self.admitted.clone();
        let (mut admitted, context) =
            (std::mem::replace(&mut self.admitted, fresh), Arc::clone(&self.context));
        Box::pin(async move {
            match context.tokens.bearer(request.headers()).await {
                Ok((bearer, token)) => {
                    parsed.token = parsed.takes_permit().then_some(token);
                    parsed.bearer = Some(bearer);
                }
                Err(refusal) => parsed.target = Err(refusal),
            }
            request.extensions_mut().insert(parsed);
            let Ok(mut response) = admitted.call(request).await;
            restrict_to_bearer(response.headers_mut());
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

impl<B: RequestBody> Service<Request<B>> for AdmittedService {
    type Response = Response<ShapeBody>;
    type Error = Infallible;
    type Future = BoxResponseFuture<Response<ShapeBody>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let handler = Arc::clone(&self.handler);
        let parsed = request.extensions_mut().remove::<ParsedRequest>();
        Box::pin(async move {
            let Some(ParsedRequest { target, bearer, .. }) = parsed else {
                return Ok(RequestRefusal::NoRoute.response(request.method()).map(ShapeBody::whole));
            };
            let (mut parts, body) = request.into_parts();
            // Thousands of live requests may wait from here on: free what they don't need.
            let end = std::mem::take(&mut parts.extensions).remove::<EndSignal>();
            let response = match target {
                Err(refusal) => Err(refusal),
                Ok(RequestTarget::Preflight) => Ok(whole(fixed_responses::preflight(&parts.headers))),
                Ok(RequestTarget::Health) => Ok(whole(handler.health().response())),
                Ok(RequestTarget::Home) => Ok(handler.home_page()),
                Ok(RequestTarget::Shape(request, query)) => {
                    handler.shape(&parts, request, query, body, bearer).await
                }
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
