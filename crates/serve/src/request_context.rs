//! Request context: one request for a shape, and the responses built for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::AwakeGuard;
use forebay_shapes::{LogPage, Offset, Shape, StartOffset};
use forebay_stream::spare_headers;
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{HeaderValue, Response};
use tokio::time::Instant;

use super::body::BodyContent;
use super::protocol::cache_policy::CachePolicy;
use super::protocol::encoding::{self, ContentCoding};
use super::protocol::headers::{BodyKind, ShapeResponseHead, header_value};
use super::protocol::{ShapeRequest, cursor, etag, fixed_responses};
use super::response_cache::{self, CachedResponse, ResponseKey};
use super::service::whole;
use super::shape_event_stream::{seen_with, up_to_date};
use super::shape_factory::{random_u64, schema_header};
use super::shape_handler::{HandlerResult, ShapeHandler, unreadable};

/// Expected number of response headers, including those that layers add. One allocation for all is
/// cheaper than growth.
const EXPECTED_HEADERS: usize = 16;

/// A request for a shape that is being handled.
pub(super) struct RequestContext<'a> {
    pub(super) parts: &'a Parts,
    pub(super) request: &'a ShapeRequest,
    /// Keeps the manager awake until the response is built.
    pub(super) _awake: Option<AwakeGuard>,
}

impl RequestContext<'_> {
    /// Returns the wait, limited to the remaining validity of the client's token.
    pub(super) fn at_most(&self, wait: Duration) -> Duration {
        let left = |expires_at: Instant| expires_at.saturating_duration_since(Instant::now());
        self.expires_at().map_or(wait, |expires_at| wait.min(left(expires_at)))
    }

    /// Returns when the client's token expires. `None`: there is no token, or it doesn't expire.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        self.request.bearer.as_ref().and_then(|bearer| bearer.expires_at)
    }

    pub(super) fn coding(&self) -> ContentCoding {
        encoding::negotiate(&self.parts.headers)
    }

    /// Returns the headers of a response that ends at `offset`.
    pub(super) fn head(
        &self,
        shape: &Shape,
        offset: Offset,
        up_to_date: bool,
        has_data: Option<bool>,
    ) -> ShapeResponseHead {
        let request = self.request;
        let schema = (!request.live.is_live()).then(|| schema_header(shape));
        let etag = Some(etag::etag_of(shape.handle(), request.since, offset, None));
        let (handle, offset) = (header_value(shape.handle()), header_value(offset.to_string()));
        let (cursor, body) = (None, BodyKind::Log);
        ShapeResponseHead { handle, offset, up_to_date, has_data, schema, cursor, etag, body }
    }
}

impl ShapeHandler {
    /// Responds with a page of the log.
    pub(super) fn respond_log(
        &self,
        context: &RequestContext<'_>,
        shape: &Arc<Shape>,
        page: LogPage,
        seen: u64,
        requested_offset: Option<Offset>,
    ) -> HandlerResult {
        let has_data = page.to > page.from;
        // The requested offset may lie after the last change: clients of event streams resume at
        // the position of an up-to-date event.
        let end = requested_offset.filter(|_| page.is_end).map_or(page.last, |offset| page.last.max(offset));
        let is_live = context.request.live.is_live();
        let is_shared = is_live && has_data && page.to - page.from <= response_cache::MAX_RESPONSE_BYTES;
        if let Some(requested_offset) = requested_offset.filter(|_| is_shared) {
            let seen = page.is_end.then(|| seen_with(page.last, seen));
            let key = ResponseKey { requested_offset, last: page.last, up_to_date: seen };
            return self.respond_cached(context, shape, page, key, end);
        }
        let mut head = context.head(shape, end, page.is_end, Some(has_data));
        if is_live {
            (head.cursor, head.schema) = (Some(self.cursor(context.request)), None);
        }
        if !has_data && is_live {
            let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            head.etag = Some(etag::etag_of(shape.handle(), context.request.since, end, Some(elapsed)));
        }
        let after = page.is_end.then(|| up_to_date(seen_with(page.last, seen)));
        let (source, coding) = (self.source(context, shape), context.coding());
        self.respond(context, head, || BodyContent::log(source, page, after, coding))
    }

    /// Responds with the bytes that all clients with the same key receive.
    fn respond_cached(
        &self,
        context: &RequestContext<'_>,
        shape: &Arc<Shape>,
        page: LogPage,
        key: ResponseKey,
        end: Offset,
    ) -> HandlerResult {
        let cached = self.response_cache.get_or_build(shape.handle(), key, || {
            let body =
                BodyContent::log_bytes(&self.source(context, shape), page, key.up_to_date.map(up_to_date))?;
            let etag = etag::etag_of(shape.handle(), StartOffset::After(key.requested_offset), end, None);
            let (handle, offset) = (header_value(shape.handle()), header_value(end.to_string()));
            Ok(CachedResponse { key, handle, offset, etag, body })
        });
        let cached = cached.map_err(|error| unreadable(&error))?;
        let head = ShapeResponseHead {
            handle: cached.handle.clone(),
            offset: cached.offset.clone(),
            up_to_date: page.is_end,
            has_data: Some(true),
            schema: None,
            cursor: Some(self.cursor(context.request)),
            etag: Some(cached.etag.clone()),
            body: BodyKind::Log,
        };
        self.respond(context, head, || Ok(BodyContent::Whole(cached.body.clone())))
    }

    /// Responds with 304 if the client has the ETag, else with the body.
    pub(super) fn respond(
        &self,
        context: &RequestContext<'_>,
        mut head: ShapeResponseHead,
        body: impl FnOnce() -> io::Result<BodyContent>,
    ) -> HandlerResult {
        let is_known = |etag: &HeaderValue| etag::matches_request(&context.parts.headers, etag);
        let mut response = match head.etag.as_ref().is_some_and(is_known) {
            true => whole(fixed_responses::not_modified()),
            false => Response::new(body().map_err(|error| unreadable(&error))?),
        };
        *response.headers_mut() = spare_headers();
        response.headers_mut().reserve(EXPECTED_HEADERS);
        if response.body().is_gzip() {
            head.etag = head.etag.as_ref().map(etag::weaken);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        head.write(response.headers_mut());
        CachePolicy::for_request(&context.parts.method, context.request)
            .write(&self.cache_times, response.headers_mut());
        Ok(response)
    }

    /// Returns the cursor of a live response.
    pub(super) fn cursor(&self, request: &ShapeRequest) -> u64 {
        cursor::next(since_1970(), self.config.long_poll, request.cursor, random_u64())
    }
}

#[expect(clippy::disallowed_methods, reason = "a cursor contains the time, so that caches expire it")]
fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
