//! The door: who may pass, what needs a permit, and who answers.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_admission::{AdmissionLayer, AdmissionService, StreamBody};
use forebay_stream::Peer;
use http::header::ORIGIN;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer as _;
use tower_service::Service;

use super::body::{Answer, BoxError, ShapeBody};
use super::failures::{Failures, Reason};
use super::metrics;
use super::protocol::cache_policy::{extend_no_store, restrict_to_bearer};
use super::protocol::{
    Access, AccessLevel, InvalidRequest, MAX_QUERY_BYTES, QueryParams, RequestRefusal, Route, ShapeRequest,
    TokenBearer, cors,
};
use super::shape_factory::chance;
use super::shape_handler::ShapeHandler;
use super::tokens::Tokens;
use crate::host::is_local;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What each connection calls; cheap to clone.
#[derive(Clone)]
pub struct ServeService {
    admitted: AdmissionService<Handler>,
    door: Arc<Door>,
}

/// What is needed before admission, and after it.
struct Door {
    access: Arc<RwLock<Access>>,
    tokens: Tokens,
    failures: Failures,
    answers: metrics::Answers,
}

/// What is behind admission.
#[derive(Clone)]
pub(crate) struct Handler {
    answering: Arc<ShapeHandler>,
}

/// What was seen of a request at the door.
#[derive(Debug, Clone)]
struct Sight {
    route: Route,
    asked: Result<Asked, RequestRefusal>,
    pass: AccessLevel,
    /// Who was let in by a token.
    bearer: Option<TokenBearer>,
}

#[derive(Debug, Clone)]
enum Asked {
    /// Of a shape; a POST's body is still to be read, and with it what its query said.
    Shape(Result<Box<ShapeRequest>, InvalidRequest>, Option<Arc<QueryParams>>),
    Other,
}

impl Sight {
    /// Only whoever waits holds something that others could want.
    fn takes_permit(&self) -> bool {
        match &self.asked {
            Ok(Asked::Shape(Ok(request), _)) => request.live,
            Ok(Asked::Shape(Err(_), _) | Asked::Other) | Err(_) => false,
        }
    }
}

impl ServeService {
    pub(crate) fn new(
        layer: AdmissionLayer,
        answering: Arc<ShapeHandler>,
        access: Arc<RwLock<Access>>,
        tokens: Tokens,
    ) -> Self {
        let layer = layer
            .streams(|parts| parts.extensions.get::<Sight>().is_some_and(Sight::takes_permit))
            .peer(|extensions| extensions.get::<Peer>().map(|peer| peer.0));
        let admitted = layer.layer(Handler { answering });
        let (failures, answers) = (Failures::default(), metrics::Answers::default());
        ServeService { admitted, door: Arc::new(Door { access, tokens, failures, answers }) }
    }
}

impl Door {
    fn see<B>(&self, request: &Request<B>) -> Sight {
        let (method, uri) = (request.method(), request.uri());
        let (path, raw) = (uri.path(), uri.query().unwrap_or_default());
        let route = Route::of(path);
        if raw.len() > MAX_QUERY_BYTES {
            return Sight {
                route,
                asked: Err(RequestRefusal::QueryTooLong),
                pass: AccessLevel::Full,
                bearer: None,
            };
        }
        let query = QueryParams::parse(raw);
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        let entered = match access.requires_local_host(route) && !is_local(request) {
            true => Err(RequestRefusal::ForeignHost),
            false => access.authorize(method, path, &query),
        };
        drop(access);
        let pass = entered.as_ref().map_or(AccessLevel::Full, |(_, pass)| *pass);
        let asked = entered.map(|(route, _)| match (route, method) {
            (Route::Shape, &Method::OPTIONS) => Asked::Other,
            (Route::Shape, _) => {
                let request = ShapeRequest::parse(method, &query, &[]).map(Box::new);
                let query = (method == Method::POST).then(|| Arc::new(query));
                Asked::Shape(request, query)
            }
            _ => Asked::Other,
        });
        Sight { route, asked, pass, bearer: None }
    }
}

/// A response that is being made.
pub type Responding<R> = Pin<Box<dyn Future<Output = Result<R, Infallible>> + Send>>;

/// Body of a request: of [`forebay_stream::HttpServer`], axum or hyper.
pub trait RequestBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> RequestBody for B {}

impl<B: RequestBody> Service<Request<B>> for ServeService {
    type Response = Response<StreamBody<ShapeBody>>;
    type Error = Infallible;
    type Future = Marked<Responding<Response<StreamBody<ShapeBody>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.admitted, cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let sight = self.door.see(&request);
        let (route, origins) = (sight.route, origins(request.headers()));
        let answering = match sight.pass {
            AccessLevel::Full => {
                request.extensions_mut().insert(sight);
                self.admitted.call(request)
            }
            AccessLevel::Token => self.call_with_token(request, sight),
        };
        Marked { answering, route, origins, door: Arc::clone(&self.door) }
    }
}

impl ServeService {
    /// Looks at the token before admission does: whoever may not read takes no permit.
    fn call_with_token<B: RequestBody>(
        &mut self,
        mut request: Request<B>,
        mut sight: Sight,
    ) -> Responding<Response<StreamBody<ShapeBody>>> {
        // The one that was made ready is the one to call; a fresh clone takes its place.
        let fresh = self.admitted.clone();
        let (mut admitted, door) = (std::mem::replace(&mut self.admitted, fresh), Arc::clone(&self.door));
        Box::pin(async move {
            match door.tokens.bearer(request.headers()).await {
                Ok(bearer) => sight.bearer = Some(bearer),
                Err(refusal) => sight.asked = Err(refusal),
            }
            request.extensions_mut().insert(sight);
            let Ok(mut response) = admitted.call(request).await;
            restrict_to_bearer(response.headers_mut());
            Ok(response)
        })
    }
}

pin_project! {
    /// Every answer says what pages of other origins may read of it, admission's refusals too.
    pub struct Marked<F> {
        #[pin]
        answering: F,
        route: Route,
        origins: HeaderMap,
        door: Arc<Door>,
    }
}

impl<F, B> Future for Marked<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.answering.poll(cx));
        this.door.answers.count(*this.route, response.status());
        extend_no_store(response.headers_mut());
        cors::write(*this.route, this.origins, response.headers_mut());
        let id = chance();
        this.door.failures.look_at(id, *this.route, &response);
        response.headers_mut().insert(REQUEST_ID, request_id(id));
        Poll::Ready(Ok(response))
    }
}

/// As the log has it: sixteen digits.
fn request_id(id: u64) -> HeaderValue {
    let digit = |at: u32| b"0123456789abcdef"[(id >> (60 - 4 * at) & 0xf) as usize];
    let text: [u8; 16] = std::array::from_fn(|at| digit(at as u32));
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
}

/// Only those headers of a request that [`cors`] asks for; most requests have none.
fn origins(request: &HeaderMap) -> HeaderMap {
    let origins = request.get_all(ORIGIN).iter();
    origins.map(|origin| (ORIGIN, origin.clone())).collect()
}

impl<B: RequestBody> Service<Request<B>> for Handler {
    type Response = Response<ShapeBody>;
    type Error = Infallible;
    type Future = Responding<Response<ShapeBody>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let answering = Arc::clone(&self.answering);
        let sight = request.extensions_mut().remove::<Sight>();
        Box::pin(async move {
            let Some(Sight { route, asked, bearer, .. }) = sight else {
                return Ok(RequestRefusal::NoRoute.response(request.method()).map(ShapeBody::whole));
            };
            let (mut parts, body) = request.into_parts();
            // Whatever is held from here on is held by all who wait.
            drop(std::mem::take(&mut parts.extensions));
            let answer = match asked {
                Err(refusal) => Err(refusal),
                Ok(Asked::Other) => Ok(answering.other(route, &parts)),
                Ok(Asked::Shape(request, query)) => {
                    answering.shape(&parts, request, query, body, bearer).await
                }
            };
            let mut response = answer.unwrap_or_else(|refusal| {
                let mut response = refusal.response(&parts.method).map(Answer::whole);
                response.extensions_mut().insert(Reason(refusal.as_str()));
                response
            });
            if parts.method == Method::HEAD {
                *response.body_mut() = Answer::empty();
            }
            Ok(response.map(ShapeBody))
        })
    }
}

/// A whole answer.
pub(crate) fn whole(response: Response<Bytes>) -> Response<Answer> {
    response.map(Answer::whole)
}

impl fmt::Debug for ServeService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeService").finish_non_exhaustive()
    }
}
