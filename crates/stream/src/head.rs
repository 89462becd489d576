//! The head of a lean response.
//!
//! Invariant: it frames the body as chunks and says that the connection closes, whatever the service's own headers say
//! of that; nothing in it can break a line.
//! Kept by: hop-by-hop headers and the length are left out; names and values are `http`'s types, which hold no line breaks.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Response, StatusCode, Version, response};
use http_body::Body;

/// Whether a response to this request may be a chunked body of any length.
pub(crate) fn may_stream(method: &Method, version: Version, status: StatusCode) -> bool {
    version == Version::HTTP_11 && has_body(method, status)
}

/// Whether nothing but the end of the connection tells the client where the response's body ends.
pub(crate) fn ends_with_the_connection<B: Body>(
    method: &Method,
    version: Version,
    response: &Response<B>,
) -> bool {
    let has_length =
        response.headers().contains_key(CONTENT_LENGTH) || response.body().size_hint().exact().is_some();
    version < Version::HTTP_11 && has_body(method, response.status()) && !has_length
}

fn has_body(method: &Method, status: StatusCode) -> bool {
    let bodiless =
        status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !matches!(*method, Method::HEAD | Method::CONNECT) && !bodiless
}

/// Writes the head; `date` is used where the service gave none.
pub(crate) fn encode(parts: &response::Parts, date: &str) -> Bytes {
    let mut head = Vec::with_capacity(256);
    let mut line = |words: &[&[u8]]| {
        words.iter().for_each(|word| head.extend_from_slice(word));
        head.extend_from_slice(b"\r\n");
    };
    let reason = parts.status.canonical_reason().unwrap_or_default();
    line(&[b"HTTP/1.1 ", parts.status.as_str().as_bytes(), b" ", reason.as_bytes()]);
    for (name, value) in parts.headers.iter().filter(|(name, _)| !is_ours(name)) {
        line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
    }
    if !parts.headers.contains_key(DATE) {
        line(&[b"date: ", date.as_bytes()]);
    }
    line(&[b"transfer-encoding: chunked"]);
    line(&[b"connection: close"]);
    line(&[]);
    head.into()
}

/// Now, as HTTP writes it.
#[expect(clippy::disallowed_methods, reason = "a response shows its date")]
pub(crate) fn date() -> String {
    httpdate::fmt_http_date(std::time::SystemTime::now())
}

fn is_ours(name: &HeaderName) -> bool {
    const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
    const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
    [CONNECTION, CONTENT_LENGTH, KEEP_ALIVE, PROXY_CONNECTION, TRAILER, TRANSFER_ENCODING, UPGRADE]
        .contains(name)
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn head(response: Response<()>) -> String {
        let bytes = encode(&response.into_parts().0, "Sun, 06 Nov 1994 08:49:37 GMT");
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn it_has_the_services_headers_a_date_chunks_and_a_close() {
        let response = Response::builder()
            .header("content-type", "text/event-stream")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2");
        assert_eq!(
            head(response.body(()).unwrap()),
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
             date: Sun, 06 Nov 1994 08:49:37 GMT\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        );
    }

    #[test]
    fn what_the_service_says_of_framing_and_connection_is_left_out() {
        let response = Response::builder()
            .status(299)
            .header("date", "today")
            .header("connection", "keep-alive, x-hop")
            .header("keep-alive", "timeout=5")
            .header("content-length", "12")
            .header("transfer-encoding", "gzip");
        assert_eq!(
            head(response.body(()).unwrap()),
            "HTTP/1.1 299 \r\ndate: today\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        );
    }

    #[test]
    fn only_http_1_1_with_a_body_can_stream() {
        let may = |method, version, status: u16| {
            may_stream(&method, version, StatusCode::from_u16(status).unwrap())
        };
        assert!(may(Method::GET, Version::HTTP_11, 200) && may(Method::POST, Version::HTTP_11, 503));
        assert!(!may(Method::HEAD, Version::HTTP_11, 200) && !may(Method::CONNECT, Version::HTTP_11, 200));
        assert!(!may(Method::GET, Version::HTTP_10, 200) && !may(Method::GET, Version::HTTP_2, 200));
        assert!([101, 204, 304].iter().all(|&status| !may(Method::GET, Version::HTTP_11, status)));
    }
}
