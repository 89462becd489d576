//! A request's head, understood without hyper, if it is one of the usual ones.
//!
//! Invariant: what is understood here, hyper would understand likewise. Whatever else it is (another method, a body, an upgrade, a
//! connection that closes, part of a head, more than one, nonsense) is left to hyper, which has the word for it.
//! The head is in memory of its own, as long as it is: a request may wait for long, and so may ten thousand.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::config::ServeConfig;
use crate::incoming::Incoming;

/// More headers than clients send. With more, it is for hyper.
const HEADERS: usize = 64;

/// The request, if `text` is the head of one and nothing more.
pub(crate) fn understand(text: &[u8], config: &ServeConfig) -> Option<Request<Incoming>> {
    let mut headers = [MaybeUninit::uninit(); HEADERS];
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
    let mut headers = HeaderMap::with_capacity(head.headers.len() + ROOM);
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        if is_for_hyper(&name, header.value) {
            return None;
        }
        let value = match header.value.is_empty() {
            true => HeaderValue::from_static(""), // which is in no place
            false => HeaderValue::from_maybe_shared(part(header.value)).ok()?,
        };
        headers.append(name, value);
    }
    *request.headers_mut() = headers;
    Some(request)
}

/// For those that a service adds on the request's way.
const ROOM: usize = 2;

/// Whether a header says that there is more to the request than its head, or to the connection than requests.
fn is_for_hyper(name: &HeaderName, value: &[u8]) -> bool {
    const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
    const MORE: [HeaderName; 7] =
        [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, TE, TRAILER, UPGRADE, HTTP2_SETTINGS];
    match *name == CONNECTION {
        true => !value.eq_ignore_ascii_case(b"keep-alive"),
        false => MORE.contains(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(text: &str) -> Option<Request<Incoming>> {
        understand(text.as_bytes(), &ServeConfig::default())
    }

    #[test]
    fn a_usual_head_says_what_it_says() {
        let text = "GET /v1/shape?table=a%20b&offset=-1 HTTP/1.1\r\nHost: here\r\nx-empty:\r\n\
                    accept: a\r\nAccept:  b\t\r\nconnection: Keep-Alive\r\n\r\n";
        let request = understood(text).unwrap();
        assert_eq!((request.method(), request.version()), (&Method::GET, http::Version::HTTP_11));
        assert_eq!(request.uri(), "/v1/shape?table=a%20b&offset=-1");
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let said = [
            ("host", "here"),
            ("x-empty", ""),
            ("accept", "a"),
            ("accept", "b"),
            ("connection", "Keep-Alive"),
        ];
        assert_eq!(headers, said);
        assert_eq!(understood("HEAD / HTTP/1.1\r\n\r\n").unwrap().method(), Method::HEAD);
    }

    #[test]
    fn whatever_else_it_is_is_left_to_hyper() {
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
            assert!(understood(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn heads_beyond_the_bounds_are_left_to_hyper() {
        let config = ServeConfig { max_headers: 2, max_header_bytes: 64, ..ServeConfig::default() };
        let heads = [("", true), ("a: 1\r\nb: 2\r\n", true), ("a: 1\r\nb: 2\r\nc: 3\r\n", false)];
        let long = format!("a: {}\r\n", "v".repeat(64));
        for (headers, is_within) in heads.into_iter().chain([(long.as_str(), false)]) {
            let text = format!("GET / HTTP/1.1\r\n{headers}\r\n");
            assert_eq!(understand(text.as_bytes(), &config).is_some(), is_within, "{text:?}");
        }
        let many: String = (0..=HEADERS).map(|at| format!("x-{at}: v\r\n")).collect();
        assert!(understood(&format!("GET / HTTP/1.1\r\n{many}\r\n")).is_none());
    }
}
