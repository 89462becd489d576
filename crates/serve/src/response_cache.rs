//! Response cache: long-polls that wait for the same change share one response.
//!
//! Invariant: a cached response is equivalent to one that would be built now.
//! Enforced by: the key is the shape's handle, and where the response begins and ends. A handle is
//! never used twice. Merging the log between two offsets doesn't change the rows that result.
//! At most [`SLOTS`] responses of [`MAX_RESPONSE_BYTES`] are cached. Two shapes of the same slot
//! evict each other, which costs only time.
//! Lock order: the slot's mutex is not held while a response is built.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use forebay_shapes::Offset;
use http::HeaderValue;
use parking_lot::Mutex;

/// Largest part of a log that is cached, in bytes. Larger ones are read for each client.
pub(crate) const MAX_RESPONSE_BYTES: u64 = 16 * 1024;
const SLOTS: usize = 64;

/// The most recent responses to long-polls.
#[derive(Debug)]
pub(crate) struct ResponseCache {
    slots: [Mutex<Option<Arc<CachedResponse>>>; SLOTS],
    /// Assigns handles to slots.
    hasher: RandomState,
}

/// Identifies a response among those of its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseKey {
    /// The requested offset.
    pub(crate) requested_offset: Offset,
    /// The offset of the last message.
    pub(crate) last: Offset,
    /// The position in the up-to-date message, if the response ends with one.
    pub(crate) up_to_date: Option<u64>,
}

/// A response without the headers that differ between clients.
pub(crate) struct CachedResponse {
    pub(crate) key: ResponseKey,
    pub(crate) handle: HeaderValue,
    pub(crate) offset: HeaderValue,
    pub(crate) etag: HeaderValue,
    pub(crate) body: Bytes,
}

impl ResponseCache {
    /// Returns the cached response, or builds and caches it.
    pub(crate) fn get_or_build<E>(
        &self,
        handle: &str,
        key: ResponseKey,
        build: impl FnOnce() -> Result<CachedResponse, E>,
    ) -> Result<Arc<CachedResponse>, E> {
        let slot = &self.slots[self.hasher.hash_one(handle) as usize % SLOTS];
        let cached = slot.lock().clone();
        let is_same = |cached: &Arc<CachedResponse>| cached.key == key && cached.handle == handle;
        if let Some(cached) = cached.filter(is_same) {
            return Ok(cached);
        }
        let built = Arc::new(build()?);
        *slot.lock() = Some(Arc::clone(&built));
        Ok(built)
    }
}

impl fmt::Debug for CachedResponse {
    /// Omits the rows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedResponse")
            .field("handle", &self.handle)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Default for ResponseCache {
    fn default() -> Self {
        ResponseCache { slots: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn key(requested: u64, last: u64, up_to_date: Option<u64>) -> ResponseKey {
        let (requested_offset, last) = (Offset::new(requested, 0), Offset::new(last, 0));
        ResponseKey { requested_offset, last, up_to_date }
    }

    #[test]
    fn equal_responses_are_built_once_and_others_are_built_again() {
        let (cache, mut built) = (ResponseCache::default(), 0);
        let mut get = |handle: &'static str, key: ResponseKey| {
            let response = cache.get_or_build(handle, key, || {
                built += 1;
                let value = HeaderValue::from_static("x");
                let body = Bytes::from(format!("{handle} {key:?}"));
                let handle = HeaderValue::from_static(handle);
                Ok::<_, Infallible>(CachedResponse { key, handle, offset: value.clone(), etag: value, body })
            });
            assert_eq!(response.unwrap().body, format!("{handle} {key:?}"));
        };
        let first = key(1, 5, Some(9));
        (0..3).for_each(|_| get("1-2", first));
        for other in [key(2, 5, Some(9)), key(1, 6, Some(9)), key(1, 5, Some(10)), key(1, 5, None)] {
            get("1-2", other);
        }
        (0..1_000).for_each(|_| get("1-3", first));
        assert_eq!(built, 1 + 4 + 1);
    }
}
