//! Parser of simple request heads.
//!
//! Invariant: hyper would parse every head accepted here in the same way.
//! Out of scope: other methods, bodies, upgrades, `connection: close`, incomplete or pipelined
//! heads, and syntax errors; they are left to hyper.
//!
//! The parsed head owns one allocation of its exact size, because thousands of requests may wait
//! for a long time.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::config::HttpServerConfig;
use crate::incoming::Incoming;

/// Maximum header fields; requests with more go to hyper.
const MAX_HEADERS: usize = 64;

/// Returns the request if `text` is exactly one complete, simple head.
pub(crate) fn parse_request(text: &[u8], config: &HttpServerConfig) -> Option<Request<Incoming>> {
    let mut headers = [MaybeUninit::uninit(); MAX_HEADERS];
    let mut head = httparse::Request::new(&mut []);
    let parsed = head.parse_with_uninit_headers(text, &mut headers);
    let is_whole = parsed == Ok(httparse::Status::Complete(text.len()));
    let is_within_bounds = text.len() <= config.max_header_bytes && head.headers.len() <= config.max_headers;
    if !is_whole || !is_within_bounds || head.version != Some(1) {
        return None;
    }
    let method = match head.method? {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        _ => return None,
    };
    let own = Bytes::copy_from_slice(text);
    let part = |part: &[u8]| {
        let at = part.as_ptr().addr() - text.as_ptr().addr();
        own.slice(at..at + part.len())
    };
    let target = head.path.filter(|path| path.starts_with('/'))?;
    let mut request = Request::new(Incoming::none());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_maybe_shared(part(target.as_bytes())).ok()?;
    let mut headers = HeaderMap::with_capacity(head.headers.len() + EXTRA_HEADERS);
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        if requires_hyper(&name, header.value) {
            return None;
        }
        let value = match header.value.is_empty() {
            true => HeaderValue::from_static(""), // an empty slice may point anywhere
            false => HeaderValue::from_maybe_shared(part(header.value)).ok()?,
        };
        headers.append(name, value);
    }
    *request.headers_mut() = headers;
    Some(request)
}

/// Extra capacity for headers that services add to the request.
const EXTRA_HEADERS: usize = 2;

/// Returns true if the header announces a body, an upgrade, or the connection's end.
fn requires_hyper(name: &HeaderName, value: &[u8]) -> bool {
    const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
    const HYPER_HEADERS: [HeaderName; 7] =
        [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, TE, TRAILER, UPGRADE, HTTP2_SETTINGS];
    match *name == CONNECTION {
        true => !value.eq_ignore_ascii_case(b"keep-alive"),
        false => HYPER_HEADERS.contains(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_head(text: &str) -> Option<Request<Incoming>> {
        parse_request(text.as_bytes(), &HttpServerConfig::default())
    }

    #[test]
    fn a_simple_head_is_parsed_completely() {
        let text = "GET /v1/shape?table=a%20b&offset=-1 HTTP/1.1\r\nHost: here\r\nx-empty:\r\n\
                    accept: a\r\nAccept:  b\t\r\nconnection: Keep-Alive\r\n\r\n";
        let request = parsed_head(text).unwrap();
        assert_eq!((request.method(), request.version()), (&Method::GET, http::Version::HTTP_11));
        assert_eq!(request.uri(), "/v1/shape?table=a%20b&offset=-1");
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let expected = [
            ("host", "here"),
            ("x-empty", ""),
            ("accept", "a"),
            ("accept", "b"),
            ("connection", "Keep-Alive"),
        ];
        assert_eq!(headers, expected);
        assert_eq!(parsed_head("HEAD / HTTP/1.1\r\n\r\n").unwrap().method(), Method::HEAD);
    }

    #[test]
    fn other_requests_are_left_to_hyper() {
        for text in [
            "",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\n\r\nG",
            "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\n\r\n",
            "GET http://there.example/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nconnection: keep-alive, upgrade\r\n\r\n",
            "GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
            "GET / HTTP/1.1\r\nexpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nte: trailers\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nx : y\r\n\r\n",
            "GET /\x01 HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nx: a\r\n b\r\n\r\n",
        ] {
            assert!(parsed_head(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn heads_beyond_the_limits_are_left_to_hyper() {
        let config = HttpServerConfig { max_headers: 2, max_header_bytes: 64, ..HttpServerConfig::default() };
        let heads = [("", true), ("a: 1\r\nb: 2\r\n", true), ("a: 1\r\nb: 2\r\nc: 3\r\n", false)];
        let long = format!("a: {}\r\n", "v".repeat(64));
        for (headers, is_within) in heads.into_iter().chain([(long.as_str(), false)]) {
            let text = format!("GET / HTTP/1.1\r\n{headers}\r\n");
            assert_eq!(parse_request(text.as_bytes(), &config).is_some(), is_within, "{text:?}");
        }
        let many: String = (0..=MAX_HEADERS).map(|at| format!("x-{at}: v\r\n")).collect();
        assert!(parsed_head(&format!("GET / HTTP/1.1\r\n{many}\r\n")).is_none());
    }
}
