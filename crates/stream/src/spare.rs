//! Headers' room, to be used again: to get it anew for each response costs more than to fill it.
//!
//! Bounds: one map for each thread, of no more than `LARGEST` headers.

use std::cell::Cell;

use http::HeaderMap;

/// A map with more room is let go.
const LARGEST: usize = 64;

thread_local! {
    static SPARE: Cell<Option<HeaderMap>> = const { Cell::new(None) };
}

/// An empty map for a response's headers, with room that an earlier response of this thread had.
pub fn spare_headers() -> HeaderMap {
    SPARE.take().unwrap_or_default()
}

/// The response is written.
pub(crate) fn keep(mut headers: HeaderMap) {
    if (1..=LARGEST).contains(&headers.capacity()) {
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
    fn room_is_used_again_and_what_was_in_it_is_gone() {
        let mut headers = HeaderMap::with_capacity(20);
        headers.insert(SERVER, HeaderValue::from_static("secret"));
        let room = headers.capacity();
        keep(headers);
        let again = spare_headers();
        assert_eq!((again.len(), again.capacity(), again.get(SERVER)), (0, room, None));
        assert_eq!(spare_headers().capacity(), 0, "it is somebody's now");
        keep(HeaderMap::with_capacity(1_000));
        assert_eq!(spare_headers().capacity(), 0, "nobody needs so much");
    }
}
