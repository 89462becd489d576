//! Cache policy: how long caches may store a response.
//!
//! Invariant: a cached response is one that the server would still send. If many clients wait for
//! the same response, a cache forwards one request.

use forebay_shapes::StartOffset;
use http::Method;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, VARY};

use super::shape_request::{LiveMode, ShapeRequest};

/// Like `cache-control`, for caches that read only this header.
pub const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// How caches may store a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachePolicy {
    /// The beginning of a log.
    Beginning,
    /// A later part of a log, or its current end.
    CatchUp,
    /// A live response by long-polling.
    LongPoll,
    /// Server-sent events.
    EventStream,
    /// 409: another shape replaces the requested one.
    Replaced,
    /// 409: the shape is deleted and has no replacement yet.
    Deleted,
    /// Any other error.
    Error,
    /// A response that is not shared: a subset, a fixed response, or a response to another method
    /// than GET and HEAD.
    NoCache,
}

/// Cache durations that operators configure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTimes {
    /// `max-age` of a later part of a log, in seconds. Default 60, so that a client behind the log
    /// soon gets new changes.
    pub max_age_s: u32,
    /// `stale-while-revalidate` of a later part of a log, in seconds. Default 300.
    pub stale_age_s: u32,
    /// Duration of a stream of server-sent events, in seconds. Default 60. Its `max-age` is one
    /// second less, but at least 1.
    pub events_s: u32,
}

impl Default for CacheTimes {
    fn default() -> Self {
        CacheTimes { max_age_s: 60, stale_age_s: 300, events_s: 60 }
    }
}

impl CachePolicy {
    /// Returns the policy of a response with data.
    pub fn for_request(method: &Method, request: &ShapeRequest) -> CachePolicy {
        if !is_cacheable(method) || request.subset.is_some() {
            return CachePolicy::NoCache;
        }
        match (request.since, request.live) {
            (StartOffset::Beginning, _) => CachePolicy::Beginning,
            (StartOffset::Now | StartOffset::After(_), LiveMode::Events) => CachePolicy::EventStream,
            (StartOffset::Now | StartOffset::After(_), LiveMode::LongPoll) => CachePolicy::LongPoll,
            (StartOffset::Now | StartOffset::After(_), LiveMode::Off) => CachePolicy::CatchUp,
        }
    }

    /// Returns this policy, or [`CachePolicy::NoCache`] if caches don't store responses to the
    /// method.
    pub(super) fn for_method(self, method: &Method) -> CachePolicy {
        if is_cacheable(method) { self } else { CachePolicy::NoCache }
    }

    /// Writes the cache headers.
    pub fn write(self, times: &CacheTimes, headers: &mut HeaderMap) {
        let CacheTimes { max_age_s, stale_age_s, events_s } = *times;
        let constant = HeaderValue::from_static;
        let value = match self {
            CachePolicy::Beginning => {
                constant("public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746")
            }
            CachePolicy::CatchUp => {
                parse_value(format!("public, max-age={max_age_s}, stale-while-revalidate={stale_age_s}"))
            }
            CachePolicy::LongPoll => constant("public, max-age=5, stale-while-revalidate=5"),
            CachePolicy::EventStream => {
                parse_value(format!("public, max-age={}", events_s.saturating_sub(1).max(1)))
            }
            CachePolicy::Replaced => constant("public, max-age=60, must-revalidate"),
            CachePolicy::Deleted => constant("public, max-age=1, must-revalidate"),
            CachePolicy::Error => {
                headers.insert(SURROGATE_CONTROL, NO_STORE);
                NO_STORE
            }
            CachePolicy::NoCache => constant("no-cache"),
        };
        headers.insert(CACHE_CONTROL, value);
    }
}

/// Restricts a response to the bearer of its token. `no-store` stays.
///
/// The URL is the same for all bearers, so shared caches must not store the response. A browser's
/// cache must revalidate it each time (304 if unchanged). Otherwise the browser could show it to
/// the next user, or after the token has expired.
pub fn restrict_to_bearer(headers: &mut HeaderMap) {
    if headers.get(CACHE_CONTROL) != Some(&NO_STORE) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    headers.insert(SURROGATE_CONTROL, NO_STORE);
    headers.append(VARY, HeaderValue::from_static("authorization"));
}

/// Extends `no-store` to all caches. Admission's responses set only `cache-control`.
pub fn extend_no_store(headers: &mut HeaderMap) {
    if headers.get(CACHE_CONTROL) == Some(&NO_STORE) {
        headers.insert(SURROGATE_CONTROL, NO_STORE);
    }
}

/// Returns whether caches store responses to this method.
fn is_cacheable(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn parse_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("words and numbers are a valid header value")
}

#[cfg(test)]
mod tests {
    use super::super::query_params::QueryParams;
    use super::*;

    fn written(policy: CachePolicy, times: &CacheTimes) -> (String, bool) {
        let mut headers = HeaderMap::new();
        policy.write(times, &mut headers);
        let surrogate = headers.get(&SURROGATE_CONTROL).is_some_and(|value| value == "no-store");
        (headers[CACHE_CONTROL].to_str().unwrap().to_owned(), surrogate)
    }

    fn of(method: Method, raw: &str) -> String {
        let raw = format!("table=t&handle=h&{raw}");
        let request = ShapeRequest::parse(&method, &QueryParams::parse(&raw), b"").unwrap();
        written(CachePolicy::for_request(&method, &request), &CacheTimes::default()).0
    }

    #[test]
    fn every_response_has_the_cache_headers_of_the_protocol() {
        const BEGINNING: &str = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746";
        const CATCH_UP: &str = "public, max-age=60, stale-while-revalidate=300";
        for (method, raw, expected) in [
            (Method::GET, "offset=-1", BEGINNING),
            (Method::HEAD, "offset=-1", BEGINNING),
            (Method::GET, "offset=0_0", CATCH_UP),
            (Method::GET, "offset=now", CATCH_UP),
            (Method::GET, "offset=0_0&live=true", "public, max-age=5, stale-while-revalidate=5"),
            (Method::GET, "offset=0_0&live=true&live_sse=true", "public, max-age=59"),
            (Method::GET, "offset=-1&subset__where=x", "no-cache"),
            (Method::GET, "offset=0_0&live=true&subset__where=x", "no-cache"),
            (Method::POST, "offset=-1", "no-cache"),
            (Method::POST, "offset=0_0", "no-cache"),
            (Method::DELETE, "offset=0_0", "no-cache"),
        ] {
            assert_eq!(of(method, raw), expected, "{raw}");
        }
    }

    #[test]
    fn caches_do_not_store_errors() {
        let times = CacheTimes::default();
        assert_eq!(written(CachePolicy::Error, &times), ("no-store".to_owned(), true));
        assert_eq!(
            written(CachePolicy::Replaced, &times),
            ("public, max-age=60, must-revalidate".to_owned(), false)
        );
        assert_eq!(
            written(CachePolicy::Deleted, &times),
            ("public, max-age=1, must-revalidate".to_owned(), false)
        );
        for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
            assert_eq!(CachePolicy::Error.for_method(&method), CachePolicy::NoCache);
            assert_eq!(CachePolicy::Replaced.for_method(&method), CachePolicy::NoCache);
        }
        assert_eq!(CachePolicy::Error.for_method(&Method::HEAD), CachePolicy::Error);
    }

    #[test]
    fn responses_to_token_bearers_are_private() {
        for (policy, expected) in [
            (CachePolicy::Beginning, "private, no-cache"),
            (CachePolicy::NoCache, "private, no-cache"),
            (CachePolicy::Error, "no-store"),
        ] {
            let mut headers = HeaderMap::new();
            policy.write(&CacheTimes::default(), &mut headers);
            restrict_to_bearer(&mut headers);
            assert_eq!(headers[CACHE_CONTROL], expected);
            assert_eq!(
                (&headers[SURROGATE_CONTROL], &headers[VARY]),
                (&NO_STORE, &"authorization".parse().unwrap())
            );
        }
    }

    #[test]
    fn cache_durations_are_configurable() {
        let times = CacheTimes { max_age_s: 1, stale_age_s: 2, events_s: 0 };
        assert_eq!(written(CachePolicy::CatchUp, &times).0, "public, max-age=1, stale-while-revalidate=2");
        assert_eq!(written(CachePolicy::EventStream, &times).0, "public, max-age=1");
    }
}
