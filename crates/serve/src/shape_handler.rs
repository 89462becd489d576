//! Shape handler: from a parsed request to a response.
//!
//! | request | method |
//! |---|---|
//! | `offset=-1`; `offset=0_k`, after chunk `k` of the snapshot | [`ShapeHandler::snapshot`] |
//! | `offset=0_inf`, after the snapshot; other offsets | [`ShapeHandler::log`] |
//! | `now` | [`ShapeHandler::now`] |
//! | `live` | [`ShapeHandler::long_poll`], [`ShapeHandler::events`] |
//! | a subset | [`ShapeHandler::subset`], in `subset.rs` |
//!
//! Headers and bodies of these responses are built in `request_context.rs`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{AwakeGuard, ConnectionStatus, Manager, ShapeStatus};
use forebay_shapes::{LogPage, Offset, Shape, ShapeGone, Shapes, SnapshotChunk, StartOffset};
use forebay_stream::{DirectWrites, LiveBody};
use http::request::Parts;
use http::{Method, Response};
use tokio::time::{Instant, sleep, timeout};
use tracing::error;

use super::backend::REFRESH_INTERVAL;
use super::body::{BodyContent, MessageSource};
use super::config::Config;
use super::protocol::cache_policy::CacheTimes;
use super::protocol::fixed_responses::{self, Health};
use super::protocol::headers::BodyKind;
use super::protocol::{InvalidRequest, LiveMode, QueryParams, RequestRefusal, ShapeRequest, TokenBearer};
use super::request_body::read_body;
use super::request_context::RequestContext;
use super::response_cache::ResponseCache;
use super::service::{RequestBody, whole};
use super::shape_event_stream::{ShapeEventStream, StreamSource, StreamTimeouts};
use super::shape_factory::{
    BuiltinsCache, ShapeFactory, SnapshotRunner, TableComparer, agrees_with, gone_refusal, selects,
};
use super::token_verifier::while_valid;

/// Handles requests for shapes.
#[derive(Debug)]
pub(crate) struct ShapeHandler {
    pub(crate) shapes: Shapes,
    pub(crate) factory: ShapeFactory,
    pub(crate) comparer: TableComparer,
    pub(crate) snapshots: Arc<SnapshotRunner>,
    pub(crate) builtins: Arc<BuiltinsCache>,
    pub(crate) manager: Manager,
    pub(crate) cache_times: CacheTimes,
    pub(crate) config: Config,
    /// Start of the backend. ETags of live responses without changes contain the time since then.
    pub(crate) started: Instant,
    pub(crate) response_cache: ResponseCache,
}

/// Maximum wait for the manager to wake up. After it, the request is served from the store.
const WAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum wait for a shape that another instance may have created. It spans several
/// [`REFRESH_INTERVAL`]s, because one refresh may be slow.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) type HandlerResult = Result<Response<BodyContent>, RequestRefusal>;

impl ShapeHandler {
    /// Returns the page for people who open the address in a browser.
    pub(crate) fn home_page(&self) -> Response<BodyContent> {
        whole(self.config.home.map_or_else(fixed_responses::root, |page| page()))
    }

    /// Returns whether shapes can be served.
    pub(crate) fn health(&self) -> Health {
        let status = self.manager.status();
        match (status.connection, status.shapes) {
            _ if self.shapes.unusable().is_some() => Health::Starting,
            (ConnectionStatus::Sleeping, _) => Health::Active,
            (ConnectionStatus::WaitingOnLock, _) => Health::Waiting,
            // Before the server confirms the stream, a condition is missing.
            (ConnectionStatus::Up, ShapeStatus::Up) if status.is_ready() => Health::Active,
            _ => Health::Starting,
        }
    }

    /// Handles a request for a shape.
    ///
    /// `posted` has the query parameters of a POST. They are parsed again together with the body,
    /// and `request` is ignored. For other methods, `posted` is `None`.
    pub(crate) async fn shape<B: RequestBody>(
        &self,
        parts: &Parts,
        request: Result<Box<ShapeRequest>, InvalidRequest>,
        posted: Option<Arc<QueryParams>>,
        body: B,
        bearer: Option<TokenBearer>,
    ) -> HandlerResult {
        // The futures of rare paths are boxed, here and below. Otherwise the future of every
        // waiting request would be as large as that of the largest path.
        let mut request = match posted {
            Some(query) => {
                let body = Box::pin(read_body(body, self.config.body_timeout, bearer.as_ref())).await?;
                Box::new(ShapeRequest::parse(&parts.method, &query, &body)?)
            }
            None => request?,
        };
        if let Some(bearer) = &bearer {
            bearer.authorize(&parts.method, &request)?;
        }
        request.bearer = bearer;
        self.check_store()?;
        if parts.method == Method::DELETE {
            return Box::pin(self.delete(&request)).await;
        }
        let awake = while_valid(request.bearer.as_ref(), self.wake()).await?;
        if let Some(subset) = &request.subset {
            return Box::pin(self.subset(&request, subset)).await;
        }
        let context = RequestContext { parts, request: &request, _awake: awake };
        match request.since {
            StartOffset::Beginning => {
                let shape = Box::pin(self.factory.shape(&request)).await?;
                Box::pin(self.snapshot(&context, &shape, 0)).await
            }
            StartOffset::Now => {
                let shape = Box::pin(self.factory.shape(&request)).await?;
                Box::pin(self.now(&context, &shape)).await
            }
            StartOffset::After(offset) => {
                let shape = self.shape_by_handle(&request).await?;
                let is_in_snapshot = offset.is_snapshot() && offset != Offset::SNAPSHOT_END;
                let response = match is_in_snapshot && !request.live.is_live() {
                    true => Box::pin(self.snapshot(&context, &shape, offset.op.saturating_add(1))).await,
                    false => self.log(&context, &shape, offset).await,
                };
                match (response, shape.gone()) {
                    // The shape's files were deleted while they were read.
                    (Err(RequestRefusal::NotReady { .. }), Some(gone)) => {
                        Err(self.refuse_gone(gone, &request).await)
                    }
                    (response, _) => response,
                }
            }
        }
    }

    /// Fails if the store is unusable: this process can't read newer records, so its shapes are
    /// stale.
    fn check_store(&self) -> Result<(), RequestRefusal> {
        match self.shapes.unusable() {
            Some(why) => Err(RequestRefusal::NotReady { message: why.as_str().into() }),
            None => Ok(()),
        }
    }

    /// Wakes the manager, and keeps it awake while the guard lives. The shape may have changed
    /// while the manager slept.
    async fn wake(&self) -> Option<AwakeGuard> {
        match self.manager.keep_awake() {
            Some(awake) => Some(awake),
            // Without the database, the request is served from the store.
            None => Box::pin(timeout(WAKE_TIMEOUT, self.manager.wake())).await.ok()?.ok(),
        }
    }

    /// Returns the shape of the request's handle.
    ///
    /// # Errors
    /// Fails if the shape was removed, or the request selects another shape. The refusal makes the
    /// client start over.
    async fn shape_by_handle(&self, request: &ShapeRequest) -> Result<Arc<Shape>, RequestRefusal> {
        let found = match request.handle.as_deref() {
            Some(handle) => self.find_by_handle(handle).await?,
            None => None,
        };
        match found {
            Some(shape) if selects(request, &shape)? => {
                self.comparer.recheck(&shape);
                Ok(shape)
            }
            _ => Err(self.refetch(request).await),
        }
    }

    /// Returns the shape of a handle. `None`: it was removed.
    ///
    /// Another instance may have just created it; then this waits until the next refresh of the
    /// store has read it.
    async fn find_by_handle(&self, handle: &str) -> Result<Option<Arc<Shape>>, RequestRefusal> {
        let begun = Instant::now();
        loop {
            // Called before `find`: if a refresh between the two calls reads the shape, `find`
            // returns it.
            let may_exist = self.shapes.may_exist_elsewhere(handle);
            match self.shapes.find(handle) {
                None if may_exist && begun.elapsed() < FIND_TIMEOUT => sleep(REFRESH_INTERVAL / 2).await,
                None if may_exist => {
                    let message =
                        "this instance hasn't heard of the shape yet: another one may have just made it";
                    return Err(RequestRefusal::NotReady { message: message.into() });
                }
                found => return Ok(found),
            }
        }
    }

    /// Returns the refusal that makes the client start over. It has the handle of the shape that
    /// the request selects now, if that shape exists or can be created.
    async fn refetch(&self, request: &ShapeRequest) -> RequestRefusal {
        match Box::pin(self.factory.shape(request)).await {
            Ok(shape) => refetch_refusal(shape.handle(), request.handle.as_deref()),
            Err(
                refusal @ (RequestRefusal::Invalid(_)
                | RequestRefusal::BadToken { .. }
                | RequestRefusal::BadGrant { .. }
                | RequestRefusal::NotGranted),
            ) => refusal,
            Err(_) => RequestRefusal::MustRefetch { handle: None },
        }
    }

    /// Returns the refusal for a removed shape.
    async fn refuse_gone(&self, gone: ShapeGone, request: &ShapeRequest) -> RequestRefusal {
        match gone_refusal(&gone) {
            Some(refusal) => refusal,
            None => self.refetch(request).await,
        }
    }

    /// Responds with a chunk of the snapshot, or with the log if there is no such chunk.
    async fn snapshot(&self, context: &RequestContext<'_>, shape: &Arc<Shape>, index: u64) -> HandlerResult {
        let request = context.request;
        let (from, to) = match while_valid(request.bearer.as_ref(), shape.snapshot_chunk(index)).await? {
            Ok(SnapshotChunk::Open { from, .. }) => (from, None),
            Ok(SnapshotChunk::Closed { from, to }) => (from, Some(to)),
            Ok(SnapshotChunk::None) => return self.log(context, shape, Offset::SNAPSHOT_END).await,
            Err(gone) => return Err(self.refuse_gone(gone, request).await),
        };
        let head = context.head(shape, Offset::new(0, index), false, Some(shape.has_rows(from)));
        let (source, coding) = (self.source(context, shape), context.coding());
        self.respond(context, head, || BodyContent::snapshot(source, index, (from, to), coding))
    }

    /// Responds with the end of the log, without messages.
    async fn now(&self, context: &RequestContext<'_>, shape: &Arc<Shape>) -> HandlerResult {
        if let Err(gone) = while_valid(context.request.bearer.as_ref(), shape.wait_until_complete()).await? {
            return Err(self.refuse_gone(gone, context.request).await);
        }
        let seen = self.shapes.seen_of(shape);
        let page = LogPage::empty(shape.log_end());
        self.respond_log(context, shape, page, seen, None)
    }

    /// Responds with the log after an offset; a live request without messages waits for one.
    async fn log(&self, context: &RequestContext<'_>, shape: &Arc<Shape>, offset: Offset) -> HandlerResult {
        let request = context.request;
        let bearer = request.bearer.as_ref();
        while_valid(bearer, self.wait_for_offset(offset, self.config.long_poll / 2)).await??;
        if let Err(gone) = while_valid(bearer, shape.wait_until_complete()).await? {
            return Err(self.refuse_gone(gone, request).await);
        }
        // Only a GET waits.
        let live = if context.parts.method == Method::GET { request.live } else { LiveMode::Off };
        if live == LiveMode::Events {
            return self.events(context, shape, offset).await;
        }
        let seen = self.shapes.seen_of(shape);
        let page = self.page(shape, offset).await?;
        if page.to > page.from || live == LiveMode::Off {
            return self.respond_log(context, shape, page, seen, Some(offset));
        }
        self.long_poll(context, shape, offset, page.last).await
    }

    /// Waits for a message after `offset`, and responds with it. `end` is the end of the log before
    /// the wait.
    async fn long_poll(
        &self,
        context: &RequestContext<'_>,
        shape: &Arc<Shape>,
        offset: Offset,
        end: Offset,
    ) -> HandlerResult {
        let after = offset.max(end);
        let _watching = shape.watch();
        match timeout(context.at_most(self.config.long_poll), shape.wait_for_log_after(after)).await {
            Ok(Ok(())) | Err(_) => {
                self.check_store()?;
                let seen = self.shapes.seen_of(shape);
                let page = self.page(shape, offset).await?;
                self.respond_log(context, shape, page, seen, Some(offset))
            }
            Ok(Err(gone)) => Err(self.refuse_gone(gone, context.request).await),
        }
    }

    /// Responds with an event stream.
    async fn events(
        &self,
        context: &RequestContext<'_>,
        shape: &Arc<Shape>,
        offset: Offset,
    ) -> HandlerResult {
        let (keep_alive, ends_after) = (self.config.sse_keep_alive, self.config.sse_timeout);
        let timeouts = StreamTimeouts { keep_alive, ends_after, until: context.expires_at() };
        let (awake, writes) = (self.manager.keep_awake(), DirectWrites::new());
        let source =
            StreamSource { shape: Arc::clone(shape), shapes: self.shapes.clone(), writes: writes.clone() };
        let events = ShapeEventStream::new(source, offset, timeouts, awake);
        let Some(events) = events else {
            self.check_store()?;
            return Err(self.refuse_gone(ShapeGone::Deleted, context.request).await);
        };
        // `@electric-sql/client` resumes at this offset if the stream breaks before its first
        // up-to-date.
        let mut head = context.head(shape, offset, false, None);
        head.cursor = Some(self.cursor(context.request));
        head.body = BodyKind::Events;
        head.etag = None;
        let mut response = self.respond(context, head, || Ok(BodyContent::Events(Box::new(events))))?;
        response.extensions_mut().insert(LiveBody);
        response.extensions_mut().insert(writes);
        Ok(response)
    }

    /// Waits until the store has reached the offset. An offset beyond its end may come from another
    /// instance that is ahead of this one.
    ///
    /// # Errors
    /// Fails if the store hasn't reached the offset after `max_wait`.
    async fn wait_for_offset(&self, offset: Offset, max_wait: Duration) -> Result<(), RequestRefusal> {
        let reached = timeout(max_wait, self.shapes.wait_until_reached(offset)).await;
        reached.map_err(|_| RequestRefusal::out_of_bounds())
    }

    /// Returns the page of the log after an offset. Reads the disk in a blocking task if necessary.
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

    /// Returns the source of a response body.
    pub(super) fn source(&self, context: &RequestContext<'_>, shape: &Arc<Shape>) -> MessageSource {
        let (shapes, shape) = (self.shapes.clone(), Arc::clone(shape));
        MessageSource { shapes, shape, expires_at: context.expires_at() }
    }

    /// Deletes the shape of the request's handle. Without a handle, deletes the shape that the
    /// request selects.
    async fn delete(&self, request: &ShapeRequest) -> HandlerResult {
        let _awake = self.wake().await;
        let handle = match &request.handle {
            Some(handle) => match self.shapes.find(handle) {
                Some(shape) if !agrees_with(request, &shape)? => {
                    return Err(RequestRefusal::NoShape);
                }
                Some(_) | None => Some(handle.clone()),
            },
            None => {
                let (definition, _) = self.factory.definition(request).await?;
                self.shapes.find_same(&definition).map(|shape| shape.handle().to_owned())
            }
        };
        match handle.is_some_and(|handle| self.shapes.delete(&handle)) {
            true => Ok(whole(fixed_responses::deleted())),
            false if self.shapes.is_writing() => Err(RequestRefusal::NoShape),
            // Only the writing instance can delete it.
            false => Err(self.factory.creation_refusal()),
        }
    }
}

/// Returns the refusal for a client whose shape was removed. `handle` is that of the shape that its
/// request selects now.
fn refetch_refusal(handle: &str, requested_handle: Option<&str>) -> RequestRefusal {
    if requested_handle == Some(handle) {
        // This instance removed the shape when it stopped writing, and then read it again from the
        // store's log, which has no record of the removal yet. A redirect to the same handle would
        // loop.
        let message =
            "this instance stopped writing; the next writer decides whether the shape stays: try again";
        return RequestRefusal::NotReady { message: message.into() };
    }
    RequestRefusal::MustRefetch { handle: Some(handle.to_owned()) }
}

/// Returns the refusal for a file that can't be read. The next attempt may succeed.
pub(super) fn unreadable(why: &io::Error) -> RequestRefusal {
    if why.kind() != io::ErrorKind::NotFound {
        error!(%why, "shape file not read");
    }
    RequestRefusal::NotReady { message: "the shape can't be read right now".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_never_redirected_to_the_handle_it_came_from() {
        assert!(matches!(refetch_refusal("1-1", Some("1-1")), RequestRefusal::NotReady { .. }));
        for requested_handle in [Some("1-0"), None] {
            let RequestRefusal::MustRefetch { handle } = refetch_refusal("1-1", requested_handle) else {
                panic!("no redirect")
            };
            assert_eq!(handle.as_deref(), Some("1-1"));
        }
    }
}
