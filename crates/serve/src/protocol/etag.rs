//! How an answer is told from others, so that a cache can ask whether it still holds.
//!
//! Invariant: two answers of one tag have the same changes. What up-to-date says was seen may be less
//! in the older one.
//! Kept by: what lies between two offsets of a shape never changes, and a handle is never used twice.

use std::fmt;

use forebay_shapes::{Offset, StartOffset};
use http::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};

use super::headers::visible;

/// Returns the tag of an answer. `unchanged_at`, any clock that doesn't go back, keeps a live answer
/// without changes from being confirmed: a request that waits must not be answered from a cache. A
/// catch-up answer without changes holds until there are some.
pub fn of(handle: &str, requested: StartOffset, answered: Offset, unchanged_at: Option<u64>) -> HeaderValue {
    let requested: &dyn fmt::Display = match &requested {
        StartOffset::Beginning => &"-1",
        StartOffset::Now => &"now",
        StartOffset::After(offset) => offset,
    };
    visible(match unchanged_at {
        None => format!("\"{handle}:{requested}:{answered}\""),
        Some(time) => format!("\"{handle}:{requested}:{answered}:{time}\""),
    })
}

/// The same for other bytes that say the same: packed ones. [`is_known`] takes either.
pub fn weak(etag: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(&[&b"W/"[..], etag.as_bytes()].concat()).unwrap_or_else(|_| etag.clone())
}

/// Whether the client has this already: 304. Not for subsets. `*` is nobody's tag.
pub fn is_known(request: &HeaderMap, etag: &HeaderValue) -> bool {
    let lists = request.get_all(IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(|tag| bare(tag.as_bytes()));
    tags.any(|tag| tag == bare(etag.as_bytes()))
}

/// Caches that compress an answer make its tag a weak one, and some lose the quotes.
fn bare(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    tag.strip_prefix(b"\"").and_then(|tag| tag.strip_suffix(b"\"")).unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(since: StartOffset, unchanged_at: Option<u64>) -> HeaderValue {
        of("1-2", since, Offset::new(5, 2), unchanged_at)
    }

    #[test]
    fn a_tag_is_what_was_asked_and_answered() {
        assert_eq!(tag(StartOffset::Beginning, None), "\"1-2:-1:5_2\"");
        assert_eq!(tag(StartOffset::Now, None), "\"1-2:now:5_2\"");
        assert_eq!(tag(StartOffset::After(Offset::new(5, u64::MAX)), None), "\"1-2:5_inf:5_2\"");
        assert_eq!(tag(StartOffset::After(Offset::FIRST), Some(99)), "\"1-2:0_0:5_2:99\"");
    }

    #[test]
    fn a_client_that_has_it_is_known() {
        let etag = tag(StartOffset::Beginning, None);
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            is_known(&headers, &etag)
        };
        for values in [
            &["\"1-2:-1:5_2\""][..],
            &["1-2:-1:5_2"],
            &["W/\"1-2:-1:5_2\""],
            &["\"x\", \"1-2:-1:5_2\" ,\"y\""],
            &["\"x\"", "\"1-2:-1:5_2\""],
        ] {
            assert!(known(values), "{values:?}");
        }
        for values in [&[][..], &[""], &["*"], &["\"1-2:-1:5_4\""], &["\"1-2:-1:5_2:99\""], &["\"\""]] {
            assert!(!known(values), "{values:?}");
        }
    }
}
