//! Entity tags: let a cache verify that its copy of a response is still valid.
//!
//! Invariant: two responses with the same tag have the same changes. Only the LSN in `up-to-date`
//! may be lower in the older one.
//! Enforced by: the changes between two offsets of a shape are fixed, and a handle is never used
//! twice.

use std::fmt;

use forebay_shapes::{Offset, StartOffset};
use http::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};

use super::headers::header_value;

/// Returns the tag of a response.
///
/// `requested` is the offset in the request, `answered` the offset at which the response ends.
///
/// `unchanged_at` is the monotonic time of a live response without changes, and `None` for other
/// responses. It makes the tag unique, so that no cache answers the next live request with this
/// response. A catch-up response without changes stays valid until a change arrives.
pub fn etag_of(
    handle: &str,
    requested: StartOffset,
    answered: Offset,
    unchanged_at: Option<u64>,
) -> HeaderValue {
    let requested: &dyn fmt::Display = match &requested {
        StartOffset::Beginning => &"-1",
        StartOffset::Now => &"now",
        StartOffset::After(offset) => offset,
    };
    header_value(match unchanged_at {
        None => format!("\"{handle}:{requested}:{answered}\""),
        Some(time) => format!("\"{handle}:{requested}:{answered}:{time}\""),
    })
}

/// Returns the weak tag, for a compressed body. [`matches_request`] accepts weak and strong tags.
pub fn weaken(etag: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(&[&b"W/"[..], etag.as_bytes()].concat()).unwrap_or_else(|_| etag.clone())
}

/// Returns whether `if-none-match` lists the tag, so that the response is a 304. `*` never matches.
pub fn matches_request(request: &HeaderMap, etag: &HeaderValue) -> bool {
    let lists = request.get_all(IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(|tag| unquoted(tag.as_bytes()));
    tags.any(|tag| tag == unquoted(etag.as_bytes()))
}

/// Returns a tag without quotes and `W/`. Caches that compress a response weaken its tag, and some
/// remove the quotes.
fn unquoted(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    tag.strip_prefix(b"\"").and_then(|tag| tag.strip_suffix(b"\"")).unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(since: StartOffset, unchanged_at: Option<u64>) -> HeaderValue {
        etag_of("1-2", since, Offset::new(5, 2), unchanged_at)
    }

    #[test]
    fn a_tag_contains_the_requested_and_the_returned_offset() {
        assert_eq!(tag(StartOffset::Beginning, None), "\"1-2:-1:5_2\"");
        assert_eq!(tag(StartOffset::Now, None), "\"1-2:now:5_2\"");
        assert_eq!(tag(StartOffset::After(Offset::new(5, u64::MAX)), None), "\"1-2:5_inf:5_2\"");
        assert_eq!(tag(StartOffset::After(Offset::FIRST), Some(99)), "\"1-2:0_0:5_2:99\"");
    }

    #[test]
    fn a_listed_tag_matches() {
        let etag = tag(StartOffset::Beginning, None);
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            matches_request(&headers, &etag)
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
