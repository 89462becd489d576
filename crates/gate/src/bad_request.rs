//! Bad requests: those that the gate refuses before it contacts the upstream.
//!
//! Invariant: the only transfer coding that passes is `chunked`. The gate decodes it and writes its
//! own, so gate and upstream never disagree about the end of a body.
//! Out of scope: permits. A refused request takes none. This file is pure.

use http::header::{HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Version};

/// Why a request is refused before the upstream is contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// HTTP/1.1 requires exactly one `Host`.
    Host,
    /// `CONNECT`: the gate is not a forward proxy.
    Connect,
    /// The request-target has no path.
    Target,
    /// The body has a transfer coding other than `chunked`. The gate removes `Transfer-Encoding`,
    /// so the upstream couldn't decode the body.
    Coding,
}

/// Checks the head of a request. Fails if the gate can't forward it.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), BadRequest> {
    if request.method() == Method::CONNECT {
        return Err(BadRequest::Connect);
    }
    let headers = request.headers();
    if request.version() < Version::HTTP_2 {
        let mut hosts = headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            (Some(host), None) if is_authority(host) => {}
            (None, None) if request.version() < Version::HTTP_11 => {}
            (None, None) | (Some(_), _) | (None, Some(_)) => return Err(BadRequest::Host),
        }
    } else if request.uri().authority().is_none() && !headers.contains_key(HOST) {
        return Err(BadRequest::Host);
    }
    if request.uri().path_and_query().is_none() {
        return Err(BadRequest::Target);
    }
    if has_unsupported_coding(headers) {
        return Err(BadRequest::Coding);
    }
    Ok(())
}

/// Returns whether a body has a transfer coding other than a single `chunked`. hyper decodes only
/// `chunked`, and the gate removes `Transfer-Encoding`. So the receiver would get a body that is
/// still encoded, without the name of the coding.
pub(crate) fn has_unsupported_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(one), None) => !one.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// Returns whether a `Host` may be an authority: it has no user information, path or separator.
fn is_authority(host: &HeaderValue) -> bool {
    let bytes = host.as_bytes();
    let odd =
        |byte: &u8| matches!(byte, b'@' | b'/' | b'?' | b'#' | b',' | b'\\') || byte.is_ascii_whitespace();
    !bytes.iter().any(odd)
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use http::header::HeaderName;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value));
        }
        headers
    }

    fn request(version: Version, lines: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri("/").body(()).unwrap();
        *request.headers_mut() = headers(lines);
        request
    }

    #[test]
    fn a_request_needs_exactly_one_host_and_a_method_other_than_connect() {
        let checked = |version, lines: &[_]| check(&request(version, lines));
        assert_eq!(checked(Version::HTTP_11, &[("host", "a")]), Ok(()));
        assert_eq!(checked(Version::HTTP_11, &[]), Err(BadRequest::Host));
        assert_eq!(checked(Version::HTTP_11, &[("host", "a"), ("host", "b")]), Err(BadRequest::Host));
        assert_eq!(checked(Version::HTTP_11, &[("host", "a@b")]), Err(BadRequest::Host));
        assert_eq!(checked(Version::HTTP_11, &[("host", "a, b")]), Err(BadRequest::Host));
        assert_eq!(checked(Version::HTTP_10, &[]), Ok(()));
        assert_eq!(checked(Version::HTTP_2, &[]), Err(BadRequest::Host));
        let mut connect = request(Version::HTTP_11, &[("host", "a")]);
        *connect.method_mut() = Method::CONNECT;
        *connect.uri_mut() = Uri::from_static("a:443");
        assert_eq!(check(&connect), Err(BadRequest::Connect));
    }

    #[test]
    fn chunked_is_the_only_accepted_transfer_coding() {
        let checked =
            |coding| check(&request(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", coding)]));
        assert_eq!(checked("Chunked"), Ok(()));
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity", ""] {
            assert_eq!(checked(coding), Err(BadRequest::Coding), "{coding:?}");
        }
        let twice = headers(&[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")]);
        assert!(has_unsupported_coding(&twice) && !has_unsupported_coding(&HeaderMap::new()));
    }
}
