//! What is answered: from a request that is understood to a response.
//!
//! | asked | answered by |
//! |---|---|
//! | `offset=-1`, `0_k` | [`ShapeHandler::snapshot`], then the log |
//! | another offset | [`ShapeHandler::log`] |
//! | `now` | [`ShapeHandler::now`] |
//! | `live` | [`ShapeHandler::long_poll`], [`ShapeHandler::events`] |
//! | a subset | [`ShapeHandler::subset`] |

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::{AwakeGuard, Manager, ManagerPhase, ManagerStep};
use forebay_shapes::{LogPage, Offset, Shape, ShapeGone, Shapes, SnapshotChunk, StartOffset};
use forebay_stream::{LiveBody, spare_headers};
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{Instant, sleep, timeout};
use tracing::error;

use super::backend::REFRESH;
use super::body::{Answer, Source};
use super::events::{Events, Times, seen_with, up_to_date};
use super::protocol::cache_policy::{CachePolicy, CacheTimes};
use super::protocol::fixed_responses::{self, Health};
use super::protocol::headers::{BodyKind, ShapeResponseHead, header_value};
use super::protocol::{
    InvalidRequest, MAX_BODY_BYTES, QueryParams, RequestRefusal, Route, ShapeRequest, TokenBearer, cursor,
    encoding, etag,
};
use super::recent::{self, Recent};
use super::service::{RequestBody, whole};
use super::shape_factory::{ShapeFactory, chance, failed};
use super::tokens::while_valid;

/// Answers.
#[derive(Debug)]
pub(crate) struct ShapeHandler {
    pub(crate) shapes: Shapes,
    pub(crate) making: Arc<ShapeFactory>,
    pub(crate) manager: Manager,
    pub(crate) times: CacheTimes,
    pub(crate) long_poll: Duration,
    pub(crate) sse_keep_alive: Duration,
    pub(crate) sse_timeout: Duration,
    /// How long all of a request's body may take, though its client is never silent for long.
    pub(crate) body_timeout: Duration,
    pub(crate) started: Instant,
    pub(crate) recent: Recent,
    /// For people who open the clients' address.
    pub(crate) home: Option<fn() -> Response<Bytes>>,
}

/// How long waking up may take before what is there is served.
const WAKING: Duration = Duration::from_secs(10);

/// How long a shape that another instance may have made is waited for: several looks, since one may take its time.
const NEWS: Duration = Duration::from_secs(1);

/// An answer has about as many headers, with those of whom it passes. Room for all at once is cheaper than for each.
const HEADERS: usize = 16;

type Answered = Result<Response<Answer>, RequestRefusal>;

impl ShapeHandler {
    /// What isn't about a shape.
    pub(crate) fn other(&self, route: Route, parts: &Parts) -> Response<Answer> {
        if parts.method == Method::OPTIONS {
            return whole(fixed_responses::preflight(&parts.headers));
        }
        whole(match route {
            Route::Health => self.health().response(),
            Route::Root => self.home.map_or_else(fixed_responses::root, |page| page()),
            Route::Shape | Route::NotFound => fixed_responses::root(),
        })
    }

    pub(crate) fn health(&self) -> Health {
        let status = self.manager.status();
        match status.step {
            _ if self.shapes.unusable().is_some() => Health::Starting,
            ManagerStep::Sleeping | ManagerStep::FallingAsleep => Health::Active,
            ManagerStep::AcquiringLock => Health::Waiting,
            _ if status.phase == ManagerPhase::Running && status.is_ready() => Health::Active,
            _ => Health::Starting,
        }
    }

    pub(crate) async fn shape<B: RequestBody>(
        &self,
        parts: &Parts,
        request: Result<Box<ShapeRequest>, InvalidRequest>,
        posted: Option<Arc<QueryParams>>,
        body: B,
        bearer: Option<TokenBearer>,
    ) -> Answered {
        // What is rare is boxed, here and below: a request takes the room of its longest way for as long as it waits.
        let mut request = match posted {
            Some(query) => {
                let body = Box::pin(self.read(body, bearer.as_ref())).await?;
                Box::new(ShapeRequest::parse(&parts.method, &query, &body)?)
            }
            None => request?,
        };
        if let Some(bearer) = &bearer {
            bearer.authorize(&parts.method, &request)?;
        }
        request.bearer = bearer;
        self.usable()?;
        if parts.method == Method::DELETE {
            return Box::pin(self.delete(&request)).await;
        }
        let awake = while_valid(request.bearer.as_ref(), self.wake()).await?;
        if request.subset.is_some() {
            return Box::pin(self.subset(&request)).await;
        }
        let asking = Asking { parts, request: &request, _awake: awake };
        match request.since {
            StartOffset::Beginning => {
                let shape = Box::pin(self.making.shape(&request)).await?;
                Box::pin(self.snapshot(&asking, &shape, 0)).await
            }
            StartOffset::Now => {
                let shape = Box::pin(self.making.shape(&request)).await?;
                Box::pin(self.now(&asking, &shape)).await
            }
            StartOffset::After(offset) => {
                let shape = self.known(&request).await?;
                let is_in_snapshot = offset.is_snapshot() && offset != Offset::SNAPSHOT_END;
                let answered = match is_in_snapshot && !request.live {
                    true => Box::pin(self.snapshot(&asking, &shape, offset.op.saturating_add(1))).await,
                    false => self.log(&asking, &shape, offset).await,
                };
                match (answered, shape.gone()) {
                    // Its files went while they were read.
                    (Err(RequestRefusal::NotReady { .. }), Some(gone)) => {
                        Err(self.gone(gone, &request).await)
                    }
                    (answered, _) => answered,
                }
            }
        }
    }

    /// Fails if the storage directory can't be read on: what is there would stay as it is for ever.
    fn usable(&self) -> Result<(), RequestRefusal> {
        match self.shapes.unusable() {
            Some(why) => Err(RequestRefusal::NotReady { message: why.as_str().into() }),
            None => Ok(()),
        }
    }

    /// All of a request's body.
    async fn read<B: RequestBody>(
        &self,
        body: B,
        bearer: Option<&TokenBearer>,
    ) -> Result<Bytes, RequestRefusal> {
        let reading = timeout(self.body_timeout, Limited::new(body, MAX_BODY_BYTES).collect());
        let body = while_valid(bearer, reading).await?.map_err(|_| RequestRefusal::BodyTooSlow)?;
        Ok(body.map_err(|_| RequestRefusal::BodyTooLarge)?.to_bytes())
    }

    /// What is asked for may have changed while everything slept; and while somebody waits, nothing falls asleep.
    async fn wake(&self) -> Option<AwakeGuard> {
        match self.manager.keep_awake() {
            Some(awake) => Some(awake),
            // Without the database, what is there is served.
            None => Box::pin(timeout(WAKING, self.manager.wake())).await.ok()?.ok(),
        }
    }

    /// The shape that a client knows, if it is the one that it asks for.
    async fn known(&self, request: &ShapeRequest) -> Result<Arc<Shape>, RequestRefusal> {
        let found = match request.handle.as_deref() {
            Some(handle) => self.find(handle).await?,
            None => None,
        };
        match found {
            Some(shape) if self.making.fits(request, &shape)? => {
                self.making.look_again(&shape);
                Ok(shape)
            }
            _ => Err(self.moved(request).await),
        }
    }

    /// `None`: it is gone. Another instance may have made it a moment ago, and this one may read of it only with its next look.
    async fn find(&self, handle: &str) -> Result<Option<Arc<Shape>>, RequestRefusal> {
        let begun = Instant::now();
        loop {
            // First: what comes in between is found.
            let may_come = self.shapes.may_come(handle);
            match self.shapes.find(handle) {
                None if may_come && begun.elapsed() < NEWS => sleep(REFRESH / 2).await,
                None if may_come => {
                    let message =
                        "this instance hasn't heard of the shape yet: another one may have just made it";
                    return Err(RequestRefusal::NotReady { message: message.into() });
                }
                found => return Ok(found),
            }
        }
    }

    /// The client begins anew, with this shape if there can be one.
    async fn moved(&self, request: &ShapeRequest) -> RequestRefusal {
        match Box::pin(self.making.shape(request)).await {
            Ok(shape) => moved_to(shape.handle(), request.handle.as_deref()),
            Err(
                refusal @ (RequestRefusal::Invalid(_)
                | RequestRefusal::BadToken { .. }
                | RequestRefusal::BadGrant { .. }
                | RequestRefusal::NotGranted),
            ) => refusal,
            Err(_) => RequestRefusal::MustRefetch { handle: None },
        }
    }

    async fn gone(&self, gone: ShapeGone, request: &ShapeRequest) -> RequestRefusal {
        match failed(&gone) {
            Some(refusal) => refusal,
            None => self.moved(request).await,
        }
    }

    async fn snapshot(&self, asking: &Asking<'_>, shape: &Arc<Shape>, index: u64) -> Answered {
        let request = asking.request;
        match while_valid(request.bearer.as_ref(), shape.snapshot_chunk(index)).await? {
            Ok(SnapshotChunk::None) => self.log(asking, shape, Offset::SNAPSHOT_END).await,
            Ok(chunk) => {
                let end = Offset::new(0, index);
                let has_data = match chunk {
                    SnapshotChunk::Open { from, .. } | SnapshotChunk::Closed { from, .. } => {
                        shape.has_rows(from)
                    }
                    SnapshotChunk::None => false,
                };
                let head = asking.head(shape, end, false, Some(has_data));
                self.respond(asking, head, || {
                    Answer::snapshot(self.source(shape), index, chunk, asking.gzip())
                })
            }
            Err(gone) => Err(self.gone(gone, request).await),
        }
    }

    /// Where the log ends, without what is in it.
    async fn now(&self, asking: &Asking<'_>, shape: &Arc<Shape>) -> Answered {
        if let Err(gone) = while_valid(asking.request.bearer.as_ref(), shape.complete()).await? {
            return Err(self.gone(gone, asking.request).await);
        }
        let seen = self.shapes.seen();
        let page = LogPage::empty(shape.log_end());
        self.respond_log(asking, shape, page, seen, None)
    }

    async fn log(&self, asking: &Asking<'_>, shape: &Arc<Shape>, offset: Offset) -> Answered {
        let request = asking.request;
        let bearer = request.bearer.as_ref();
        while_valid(bearer, self.within_bounds(offset, self.long_poll / 2)).await??;
        if let Err(gone) = while_valid(bearer, shape.complete()).await? {
            return Err(self.gone(gone, request).await);
        }
        if request.sse && asking.parts.method == Method::GET {
            return self.events(asking, shape, offset).await;
        }
        let seen = self.shapes.seen();
        let page = self.page(shape, offset).await?;
        if page.to > page.from || !request.live || asking.parts.method != Method::GET {
            return self.respond_log(asking, shape, page, seen, Some(offset));
        }
        self.long_poll(asking, shape, offset, page.last).await
    }

    /// Nothing was after `offset` when the log ended at `end`: whatever is there by now is news.
    async fn long_poll(
        &self,
        asking: &Asking<'_>,
        shape: &Arc<Shape>,
        offset: Offset,
        end: Offset,
    ) -> Answered {
        let after = offset.max(end);
        let _watching = shape.watch();
        match timeout(asking.at_most(self.long_poll), shape.log_beyond(after)).await {
            Ok(Ok(())) | Err(_) => {
                self.usable()?;
                let seen = self.shapes.seen();
                let page = self.page(shape, offset).await?;
                self.respond_log(asking, shape, page, seen, Some(offset))
            }
            Ok(Err(gone)) => Err(self.gone(gone, asking.request).await),
        }
    }

    async fn events(&self, asking: &Asking<'_>, shape: &Arc<Shape>, offset: Offset) -> Answered {
        let until = asking.request.bearer.as_ref().and_then(|bearer| bearer.until);
        let times = Times { keep_alive: self.sse_keep_alive, lasts: self.sse_timeout, until };
        let awake = self.manager.keep_awake();
        let events = Events::new(Arc::clone(shape), self.shapes.clone(), offset, times, awake);
        let Some(events) = events else {
            self.usable()?;
            return Err(self.gone(ShapeGone::Deleted, asking.request).await);
        };
        // The published client resumes here if the stream breaks before its first up-to-date.
        let mut head = asking.head(shape, offset, false, None);
        head.cursor = Some(self.cursor(asking.request));
        head.body = BodyKind::Events;
        head.etag = None;
        let mut response = self.respond(asking, head, || Ok(Answer::Events(Box::new(events))))?;
        response.extensions_mut().insert(LiveBody);
        Ok(response)
    }

    /// An offset beyond the end may be there soon: another instance may be ahead of this one.
    async fn within_bounds(&self, offset: Offset, patience: Duration) -> Result<(), RequestRefusal> {
        let reached = timeout(patience, self.shapes.reaches(offset)).await;
        reached.map_err(|_| RequestRefusal::out_of_bounds())
    }

    async fn page(&self, shape: &Arc<Shape>, offset: Offset) -> Result<LogPage, RequestRefusal> {
        if let Some(page) = shape.log_after_at_once(offset) {
            return Ok(page);
        }
        let seeking = Arc::clone(shape);
        let page = tokio::task::spawn_blocking(move || seeking.log_after(offset)).await;
        page.map_err(io::Error::other).flatten().map_err(|error| {
            self.shapes.heal(shape, &error);
            unreadable(&error)
        })
    }

    fn source(&self, shape: &Arc<Shape>) -> Source {
        Source { shapes: self.shapes.clone(), shape: Arc::clone(shape) }
    }

    fn respond_log(
        &self,
        asking: &Asking<'_>,
        shape: &Arc<Shape>,
        page: LogPage,
        seen: u64,
        asked: Option<Offset>,
    ) -> Answered {
        let has_data = page.to > page.from;
        // What was asked for may lie after the last change: up-to-date in server-sent events does.
        let end = asked.filter(|_| page.is_end).map_or(page.last, |asked| page.last.max(asked));
        let is_shared = asking.request.live && has_data && page.to - page.from <= recent::LARGEST;
        if let Some(asked) = asked.filter(|_| is_shared) {
            let seen = page.is_end.then(|| seen_with(page.last, seen));
            let which = recent::Which { asked, last: page.last, up_to_date: seen };
            return self.respond_shared(asking, shape, page, which, end);
        }
        let mut head = asking.head(shape, end, page.is_end, Some(has_data));
        if asking.request.live {
            (head.cursor, head.schema) = (Some(self.cursor(asking.request)), None);
        }
        if !has_data && asking.request.live {
            let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            head.etag = Some(etag::etag_of(shape.handle(), asking.request.since, end, Some(elapsed)));
        }
        let after = page.is_end.then(|| up_to_date(seen_with(page.last, seen)));
        let gzip = asking.gzip();
        self.respond(asking, head, || Answer::log(self.source(shape), page, after, gzip))
    }

    /// What all who waited for the same are told.
    fn respond_shared(
        &self,
        asking: &Asking<'_>,
        shape: &Arc<Shape>,
        page: LogPage,
        which: recent::Which,
        end: Offset,
    ) -> Answered {
        let told = self.recent.tell(shape.handle(), which, || {
            let body = Answer::log_bytes(&self.source(shape), page, which.up_to_date.map(up_to_date))?;
            let etag = etag::etag_of(shape.handle(), StartOffset::After(which.asked), end, None);
            let (handle, offset) = (header_value(shape.handle()), header_value(end.to_string()));
            Ok(recent::Told { which, handle, offset, etag, body })
        });
        let told = told.map_err(|error| unreadable(&error))?;
        let head = ShapeResponseHead {
            handle: told.handle.clone(),
            offset: told.offset.clone(),
            up_to_date: page.is_end,
            has_data: Some(true),
            schema: None,
            cursor: Some(self.cursor(asking.request)),
            etag: Some(told.etag.clone()),
            body: BodyKind::Log,
        };
        self.respond(asking, head, || Ok(Answer::Whole(told.body.clone())))
    }

    fn respond(
        &self,
        asking: &Asking<'_>,
        mut head: ShapeResponseHead,
        body: impl FnOnce() -> io::Result<Answer>,
    ) -> Answered {
        let is_known = |etag: &HeaderValue| etag::matches_request(&asking.parts.headers, etag);
        let mut response = match head.etag.as_ref().is_some_and(is_known) {
            true => whole(fixed_responses::not_modified()),
            false => Response::new(body().map_err(|error| unreadable(&error))?),
        };
        *response.headers_mut() = spare_headers();
        response.headers_mut().reserve(HEADERS);
        if response.body().is_packed() {
            head.etag = head.etag.as_ref().map(etag::weaken);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        head.write(response.headers_mut());
        CachePolicy::for_request(&asking.parts.method, asking.request)
            .write(&self.times, response.headers_mut());
        Ok(response)
    }

    fn cursor(&self, request: &ShapeRequest) -> u64 {
        cursor::next(since_1970(), self.long_poll, request.cursor, chance())
    }

    async fn delete(&self, request: &ShapeRequest) -> Answered {
        let _awake = self.wake().await;
        let handle = match &request.handle {
            Some(handle) => match self.shapes.find(handle) {
                Some(shape) if !self.making.is_named(request, &shape)? => {
                    return Err(RequestRefusal::NoShape);
                }
                Some(_) | None => Some(handle.clone()),
            },
            None => {
                let (definition, _) = self.making.definition(request).await?;
                self.shapes.find_same(&definition).map(|shape| shape.handle().to_owned())
            }
        };
        match handle.is_some_and(|handle| self.shapes.delete(&handle)) {
            true => Ok(whole(fixed_responses::deleted())),
            false if self.shapes.is_writing() => Err(RequestRefusal::NoShape),
            // It may be there, and be deleted by whoever writes.
            false => Err(self.making.makes_none()),
        }
    }
}

/// A request that is being answered.
struct Asking<'a> {
    parts: &'a Parts,
    request: &'a ShapeRequest,
    /// Until it is answered.
    _awake: Option<AwakeGuard>,
}

impl Asking<'_> {
    /// So long, but no longer than the client's token is valid.
    fn at_most(&self, wait: Duration) -> Duration {
        let until = self.request.bearer.as_ref().and_then(|bearer| bearer.until);
        until.map_or(wait, |until| wait.min(until.saturating_duration_since(Instant::now())))
    }

    fn gzip(&self) -> bool {
        encoding::accepts_gzip(&self.parts.headers)
    }

    fn head(
        &self,
        shape: &Shape,
        offset: Offset,
        up_to_date: bool,
        has_data: Option<bool>,
    ) -> ShapeResponseHead {
        let request = self.request;
        let schema = (!request.live).then(|| super::shape_factory::schema_header(shape));
        let etag = Some(etag::etag_of(shape.handle(), request.since, offset, None));
        let (handle, offset) = (header_value(shape.handle()), header_value(offset.to_string()));
        let (cursor, body) = (None, BodyKind::Log);
        ShapeResponseHead { handle, offset, up_to_date, has_data, schema, cursor, etag, body }
    }
}

/// What a client is told whose shape is gone, when this one would be made for it now.
fn moved_to(handle: &str, asked: Option<&str>) -> RequestRefusal {
    if asked == Some(handle) {
        // It went when this instance stopped writing, and came back from the log, where its end isn't yet: to begin anew with it would be to
        // ask for it for ever.
        let message = "the shape is being looked for: whoever writes will say whether it goes on";
        return RequestRefusal::NotReady { message: message.into() };
    }
    RequestRefusal::MustRefetch { handle: Some(handle.to_owned()) }
}

/// A log that can't be read is no client's fault, and may be readable the next time.
fn unreadable(why: &io::Error) -> RequestRefusal {
    if why.kind() != io::ErrorKind::NotFound {
        error!(%why, "a shape's file can't be read");
    }
    RequestRefusal::NotReady { message: "the shape can't be read right now".into() }
}

#[expect(clippy::disallowed_methods, reason = "cursors tell the time to caches")]
fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_from_a_shape_to_itself() {
        assert!(matches!(moved_to("1-1", Some("1-1")), RequestRefusal::NotReady { .. }));
        for asked in [Some("1-0"), None] {
            let RequestRefusal::MustRefetch { handle } = moved_to("1-1", asked) else {
                panic!("not sent on")
            };
            assert_eq!(handle.as_deref(), Some("1-1"));
        }
    }
}
