//! Copy of a request's head out of hyper's read buffer.
//!
//! hyper reads a head into a buffer of 8 KiB and hands out slices of it. A waiting request would
//! keep the whole buffer, and hyper would allocate another one to detect the client's disconnect.

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderValue, Uri};

/// Copies the target and the header values into one allocation; their contents don't change.
pub(crate) fn copy_head(parts: &mut Parts) {
    // Absolute URIs are used by proxies only, and are not copied.
    let path = parts.uri.path_and_query().filter(|_| parts.uri.authority().is_none());
    let path = path.map_or("", |path| path.as_str());
    let values: usize = parts.headers.values().map(HeaderValue::len).sum();
    let mut copy = BytesMut::with_capacity(path.len() + values);
    copy.extend_from_slice(path.as_bytes());
    parts.headers.values().for_each(|value| copy.extend_from_slice(value.as_bytes()));
    let (path, mut copy) = (path.len(), copy.freeze());
    if let Ok(own) = Uri::from_maybe_shared(copy.split_to(path)) {
        parts.uri = own;
    }
    for value in parts.headers.values_mut() {
        replace_value(value, copy.split_to(value.len()));
    }
}

fn replace_value(value: &mut HeaderValue, copy: Bytes) {
    if let Ok(mut own) = HeaderValue::from_maybe_shared(copy) {
        own.set_sensitive(value.is_sensitive());
        *value = own;
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(target: &'static str, headers: &[(&'static str, &'static [u8])]) -> Parts {
        let mut request = Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_copied_head_equals_the_original() {
        let headers: [(_, &[u8]); 5] =
            [("host", b"here"), ("x-empty", b""), ("accept", b"a"), ("accept", b"b\t\xe9"), ("cookie", b"c")];
        for target in ["/", "/v1/shape?table=a%20b&offset=-1", "*", "http://there.example/x?y", "/?"] {
            let (before, mut after) = (parts(target, &headers), parts(target, &headers));
            copy_head(&mut after);
            assert_eq!((&after.uri, &after.headers), (&before.uri, &before.headers), "{target}");
            assert_eq!(after.uri.to_string(), before.uri.to_string());
        }
    }

    #[test]
    fn a_copied_head_holds_no_reference_to_the_buffer() {
        let buffer = Bytes::from(b"/path?query value".to_vec());
        let mut parts = parts("/", &[]);
        parts.uri = Uri::from_maybe_shared(buffer.slice(..11)).unwrap();
        parts.headers.insert("x", HeaderValue::from_maybe_shared(buffer.slice(12..)).unwrap());
        assert!(!buffer.is_unique());
        copy_head(&mut parts);
        assert!(buffer.is_unique());
        assert_eq!((parts.uri.path(), &parts.headers["x"]), ("/path", &HeaderValue::from_static("value")));
    }
}
