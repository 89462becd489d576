//! How long an answer may be kept, and by whom.
//!
//! Invariant: whatever a cache may answer in our place, we would have answered the same way; and of many clients that wait for the same thing,
//! one asks.

use forebay_shapes::StartOffset;
use http::Method;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, VARY};

use super::request::ShapeRequest;

/// As `cache-control`, for those caches that go by it alone.
pub const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Of what kind an answer is, for caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// The beginning of a log.
    Beginning,
    /// What follows in it, and where it is now.
    CatchUp,
    /// What a client waited for.
    LongPoll,
    /// What goes on for a while.
    Events,
    /// Another shape takes the place of the one that was asked for.
    Moved,
    /// The shape is gone, and nothing took its place yet.
    Gone,
    /// An error.
    Error,
    /// Nothing that anybody else would ask for.
    Own,
}

/// How long answers may be kept, where operators have a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTimes {
    /// What follows in a log, in seconds. 60: a reader that is behind soon sees what is new.
    pub max_age_s: u32,
    /// How much longer, while a cache asks again, in seconds. 300.
    pub stale_age_s: u32,
    /// How long server-sent events go on, in seconds. 60. They may be shared for a second less.
    pub events_s: u32,
}

impl Default for CacheTimes {
    fn default() -> Self {
        CacheTimes { max_age_s: 60, stale_age_s: 300, events_s: 60 }
    }
}

impl Caching {
    /// Of an answer with data.
    pub fn of(method: &Method, request: &ShapeRequest) -> Caching {
        if !is_shared(method) || request.subset.is_some() {
            return Caching::Own;
        }
        match (request.since, request.live, request.sse) {
            (StartOffset::Beginning, ..) => Caching::Beginning,
            (StartOffset::Now | StartOffset::After(_), true, true) => Caching::Events,
            (StartOffset::Now | StartOffset::After(_), true, false) => Caching::LongPoll,
            (StartOffset::Now | StartOffset::After(_), false, _) => Caching::CatchUp,
        }
    }

    /// What it becomes as an answer to this method.
    pub(super) fn to(self, method: &Method) -> Caching {
        if is_shared(method) { self } else { Caching::Own }
    }

    /// Puts it into a response's head.
    pub fn write(self, times: &CacheTimes, headers: &mut HeaderMap) {
        let CacheTimes { max_age_s, stale_age_s, events_s } = *times;
        let constant = HeaderValue::from_static;
        let value = match self {
            Caching::Beginning => {
                constant("public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746")
            }
            Caching::CatchUp => {
                numbers(format!("public, max-age={max_age_s}, stale-while-revalidate={stale_age_s}"))
            }
            Caching::LongPoll => constant("public, max-age=5, stale-while-revalidate=5"),
            Caching::Events => numbers(format!("public, max-age={}", events_s.saturating_sub(1).max(1))),
            Caching::Moved => constant("public, max-age=60, must-revalidate"),
            Caching::Gone => constant("public, max-age=1, must-revalidate"),
            Caching::Error => {
                headers.insert(SURROGATE_CONTROL, NO_STORE);
                NO_STORE
            }
            Caching::Own => constant("no-cache"),
        };
        headers.insert(CACHE_CONTROL, value);
    }
}

/// Makes an answer one for whoever showed its token, and for nobody else: the address doesn't tell bearers apart, so a shared cache must not keep
/// it, and a browser's own must not give it to the next who logs in. It is asked for again each time, or it would outlive the token; what is known
/// already is a 304. What is stored nowhere stays so.
pub fn keep_private(headers: &mut HeaderMap) {
    if headers.get(CACHE_CONTROL) != Some(&NO_STORE) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    headers.insert(SURROGATE_CONTROL, NO_STORE);
    headers.append(VARY, HeaderValue::from_static("authorization"));
}

/// What is stored nowhere is so for all caches, whoever wrote the answer: admission knows only of the one header.
pub fn keep_nowhere(headers: &mut HeaderMap) {
    if headers.get(CACHE_CONTROL) == Some(&NO_STORE) {
        headers.insert(SURROGATE_CONTROL, NO_STORE);
    }
}

/// Whether caches keep answers to it.
fn is_shared(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn numbers(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("words and numbers are a header's value")
}

#[cfg(test)]
mod tests {
    use super::super::query::Query;
    use super::*;

    fn written(caching: Caching, times: &CacheTimes) -> (String, bool) {
        let mut headers = HeaderMap::new();
        caching.write(times, &mut headers);
        let surrogate = headers.get(&SURROGATE_CONTROL).is_some_and(|value| value == "no-store");
        (headers[CACHE_CONTROL].to_str().unwrap().to_owned(), surrogate)
    }

    fn of(method: Method, raw: &str) -> String {
        let raw = format!("table=t&handle=h&{raw}");
        let request = ShapeRequest::parse(&method, &Query::parse(&raw), b"").unwrap();
        written(Caching::of(&method, &request), &CacheTimes::default()).0
    }

    #[test]
    fn every_kind_of_answer_is_kept_as_long_as_the_protocol_says() {
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
    fn errors_are_stored_nowhere() {
        let times = CacheTimes::default();
        assert_eq!(written(Caching::Error, &times), ("no-store".to_owned(), true));
        assert_eq!(
            written(Caching::Moved, &times),
            ("public, max-age=60, must-revalidate".to_owned(), false)
        );
        assert_eq!(written(Caching::Gone, &times), ("public, max-age=1, must-revalidate".to_owned(), false));
        for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
            assert_eq!(Caching::Error.to(&method), Caching::Own);
            assert_eq!(Caching::Moved.to(&method), Caching::Own);
        }
        assert_eq!(Caching::Error.to(&Method::HEAD), Caching::Error);
    }

    #[test]
    fn what_a_token_opened_is_for_its_bearer() {
        for (caching, expected) in [
            (Caching::Beginning, "private, no-cache"),
            (Caching::Own, "private, no-cache"),
            (Caching::Error, "no-store"),
        ] {
            let mut headers = HeaderMap::new();
            caching.write(&CacheTimes::default(), &mut headers);
            keep_private(&mut headers);
            assert_eq!(headers[CACHE_CONTROL], expected);
            assert_eq!(
                (&headers[SURROGATE_CONTROL], &headers[VARY]),
                (&NO_STORE, &"authorization".parse().unwrap())
            );
        }
    }

    #[test]
    fn operators_choose_how_long() {
        let times = CacheTimes { max_age_s: 1, stale_age_s: 2, events_s: 0 };
        assert_eq!(written(Caching::CatchUp, &times).0, "public, max-age=1, stale-while-revalidate=2");
        assert_eq!(written(Caching::Events, &times).0, "public, max-age=1");
    }
}
