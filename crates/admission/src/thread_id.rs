//! Thread id: identifies one request in logs and headers (`X-Thread-ID`).
//!
//! Invariant: an id has 1 to 128 visible ASCII characters, so it is safe in any header and log
//! line.
//! Enforced by: [`ThreadId::parse`]; generated ids are random UUIDs (version 4).
//! Out of scope: secrecy. An id is not a credential.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header of the id, in requests and responses.
pub const X_THREAD_ID: HeaderName = HeaderName::from_static("x-thread-id");
const MAX_BYTES: usize = 128;

/// Id of one request, from its header or generated.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ThreadId(ThreadIdRepr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum ThreadIdRepr {
    /// Formatted only when displayed, so a stream needs no allocation for it.
    Random(u128),
    /// A copy: the header value would keep the whole read buffer alive as long as the stream.
    FromHeader(Arc<str>),
}

impl ThreadId {
    /// Generates an id.
    pub fn random() -> Self {
        let (high, low) = (u128::from(next_random()), u128::from(next_random()));
        let bits = (high << 64 | low) & !(0xf << 76) & !(0b11 << 62);
        ThreadId(ThreadIdRepr::Random(bits | 4 << 76 | 0b10 << 62))
    }

    /// Returns `None` unless the text is 1 to 128 visible ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let valid = (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        valid.then(|| ThreadId(ThreadIdRepr::FromHeader(text.into())))
    }

    /// Returns the id in the headers if it is valid, otherwise a generated one.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let from_header = headers.get(X_THREAD_ID).and_then(|value| Self::parse(value.to_str().ok()?));
        from_header.unwrap_or_else(Self::random)
    }

    /// Returns whether this is the id with this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        match &self.0 {
            ThreadIdRepr::FromHeader(own) => **own == *text,
            ThreadIdRepr::Random(bits) => format_uuid(*bits) == text.as_bytes(),
        }
    }

    /// Returns the id as a header value.
    pub fn to_header(&self) -> HeaderValue {
        let value = match &self.0 {
            ThreadIdRepr::FromHeader(text) => HeaderValue::from_str(text),
            ThreadIdRepr::Random(bits) => HeaderValue::from_bytes(&format_uuid(*bits)),
        };
        value.expect("a thread id is visible ASCII")
    }
}

/// Formats a UUID. Hand-written because every request needs one.
fn format_uuid(bits: u128) -> [u8; 36] {
    let mut text = [b'-'; 36];
    let mut shift = 128;
    for (at, digit) in text.iter_mut().enumerate() {
        if !matches!(at, 8 | 13 | 18 | 23) {
            shift -= 4;
            *digit = b"0123456789abcdef"[(bits >> shift & 0xf) as usize];
        }
    }
    text
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ThreadIdRepr::FromHeader(text) => f.write_str(text),
            ThreadIdRepr::Random(bits) => {
                f.write_str(std::str::from_utf8(&format_uuid(*bits)).expect("digits are text"))
            }
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

/// Returns the next value of a thread-local splitmix64 generator, seeded by the system.
///
/// Not of fastrand, whose seeds come from a clock: ids must differ between processes.
fn next_random() -> u64 {
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
    fn a_generated_id_is_a_unique_uuid_of_version_4() {
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
    fn threads_generate_different_ids() {
        let make = || (0..100).map(|_| ThreadId::random()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(make)).collect();
        let ids: HashSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.len(), 800);
    }

    #[test]
    fn a_valid_id_is_kept_and_an_invalid_one_is_replaced() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(X_THREAD_ID, HeaderValue::from_bytes(value).unwrap());
            ThreadId::from_headers(&headers).to_string()
        };
        assert_eq!(of(b"thread-42"), "thread-42");
        assert_eq!(of(&[b'x'; 128]), "x".repeat(128));
        for bad in [&b""[..], b"two words", &[b'x'; 129], &[b'x'; 60_000], "é".as_bytes(), b"tab\there"] {
            assert_eq!(of(bad).len(), 36, "{bad:?}");
        }
        assert_eq!(ThreadId::from_headers(&HeaderMap::new()).to_string().len(), 36);
    }

    #[test]
    fn the_header_value_equals_the_display_text() {
        for id in [ThreadId::random(), ThreadId::parse("abc").unwrap()] {
            assert!(id.is(&id.to_string()) && !id.is("") && !id.is(&ThreadId::random().to_string()));
            assert_eq!(id.to_header().to_str().unwrap(), id.to_string());
        }
        assert_eq!(ThreadId::parse("line\nbreak"), None);
    }
}
