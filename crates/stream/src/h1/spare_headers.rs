//! Recycled header maps: allocating a map for each response costs more than filling it.
//!
//! Bounds: one map per thread, with a capacity of at most `MAX_RECYCLED_CAPACITY`.

use std::cell::Cell;

use http::HeaderMap;

/// Larger maps are freed.
const MAX_RECYCLED_CAPACITY: usize = 64;

thread_local! {
    /// Memory to reuse. It belongs to the thread, because services create their responses without
    /// access to the connection.
    static SPARE: Cell<Option<HeaderMap>> = const { Cell::new(None) };
}

/// Returns an empty header map, with the capacity of an earlier response's map if there is one.
pub fn spare_headers() -> HeaderMap {
    SPARE.take().unwrap_or_default()
}

/// Keeps the map of a written response for [`spare_headers`].
pub(crate) fn recycle(mut headers: HeaderMap) {
    if (1..=MAX_RECYCLED_CAPACITY).contains(&headers.capacity()) {
        headers.clear();
        SPARE.set(Some(headers));
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::SERVER;

    use super::*;

    #[test]
    fn capacity_is_reused_and_contents_are_removed() {
        let mut headers = HeaderMap::with_capacity(20);
        headers.insert(SERVER, HeaderValue::from_static("secret"));
        let capacity = headers.capacity();
        recycle(headers);
        let again = spare_headers();
        assert_eq!((again.len(), again.capacity(), again.get(SERVER)), (0, capacity, None));
        assert_eq!(spare_headers().capacity(), 0, "the spare map is in use");
        recycle(HeaderMap::with_capacity(1_000));
        assert_eq!(spare_headers().capacity(), 0, "a large map is not kept");
    }
}
