//! The id of one request's journey: `X-Thread-ID`.
//!
//! Invariant: an id is 1 to 128 visible ASCII characters, so it can stand in any header and any log line as it is.
//! Kept by: [`ThreadId::parse`], and ids made here are random UUIDs (version 4).
//! Not here: secrecy. An id names a request in logs; it opens nothing.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries it, both ways.
pub const X_THREAD_ID: HeaderName = HeaderName::from_static("x-thread-id");
const MAX_BYTES: usize = 128;

/// The id of one request, taken from its header or made.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ThreadId(Form);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    /// Written out only where it is shown: a stream costs no allocation for it.
    Made(u128),
    /// A copy: a header's value would keep the whole buffer alive that it was read into, as long as the stream lives.
    Given(Arc<str>),
}

impl ThreadId {
    /// A new one.
    pub fn random() -> Self {
        let (high, low) = (u128::from(roll()), u128::from(roll()));
        let bits = (high << 64 | low) & !(0xf << 76) & !(0b11 << 62);
        ThreadId(Form::Made(bits | 4 << 76 | 0b10 << 62))
    }

    /// Nothing, unless it is 1 to 128 visible ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let sane = (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        sane.then(|| ThreadId(Form::Given(text.into())))
    }

    /// The request's own, if it is sane, or a new one.
    pub fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(X_THREAD_ID).and_then(|value| Self::parse(value.to_str().ok()?));
        given.unwrap_or_else(Self::random)
    }

    /// As a header's value.
    pub fn to_header(&self) -> HeaderValue {
        let value = match &self.0 {
            Form::Given(text) => HeaderValue::from_str(text),
            Form::Made(bits) => HeaderValue::from_bytes(&written(*bits)),
        };
        value.expect("an id is visible ASCII")
    }
}

/// As a UUID is written. By hand, since every request has one.
fn written(bits: u128) -> [u8; 36] {
    let mut text = [b'-'; 36];
    let mut shift = 128;
    for (at, place) in text.iter_mut().enumerate() {
        if !matches!(at, 8 | 13 | 18 | 23) {
            shift -= 4;
            *place = b"0123456789abcdef"[(bits >> shift & 0xf) as usize];
        }
    }
    text
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Given(text) => f.write_str(text),
            Form::Made(bits) => f.write_str(std::str::from_utf8(&written(*bits)).expect("digits are text")),
        }
    }
}

impl fmt::Debug for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadId({self})")
    }
}

impl serde::Serialize for ThreadId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A generator for each thread (splitmix64), begun from the system's randomness.
fn roll() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(std::thread::current().id()));
    }
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_made_id_is_a_uuid_of_version_4_and_never_the_same() {
        let ids: HashSet<_> = (0..10_000).map(|_| ThreadId::random().to_string()).collect();
        assert_eq!(ids.len(), 10_000);
        for id in ids {
            let dashes: Vec<_> = id.match_indices('-').map(|(at, _)| at).collect();
            assert_eq!((id.len(), dashes), (36, vec![8, 13, 18, 23]), "{id}");
            assert_eq!(id.as_bytes()[14], b'4', "{id}");
            assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
        }
    }

    #[test]
    fn threads_do_not_make_the_same_ids() {
        let make = || (0..100).map(|_| ThreadId::random()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(make)).collect();
        let ids: HashSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.len(), 800);
    }

    #[test]
    fn a_sane_id_is_kept_and_another_is_replaced() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(X_THREAD_ID, HeaderValue::from_bytes(value).unwrap());
            ThreadId::of(&headers).to_string()
        };
        assert_eq!(of(b"thread-42"), "thread-42");
        assert_eq!(of(&[b'x'; 128]), "x".repeat(128));
        for bad in [&b""[..], b"two words", &[b'x'; 129], &[b'x'; 60_000], "é".as_bytes(), b"tab\there"] {
            assert_eq!(of(bad).len(), 36, "{bad:?}");
        }
        assert_eq!(ThreadId::of(&HeaderMap::new()).to_string().len(), 36);
    }

    #[test]
    fn the_header_says_what_display_says() {
        for id in [ThreadId::random(), ThreadId::parse("abc").unwrap()] {
            assert_eq!(id.to_header().to_str().unwrap(), id.to_string());
        }
        assert_eq!(ThreadId::parse("line\nbreak"), None);
    }
}
