//! Response heads of the fast path, of live streams and of upgrades.
//!
//! Invariant: the head declares the framing and `connection: close` once and correctly, even if the
//! service's headers differ; no header can break a line.
//! Enforced by: the service's framing headers are omitted; `http`'s types hold no line breaks.

use std::cell::Cell;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Response, StatusCode, Version, response};
use http_body::Body;

/// Returns true if the response may have a chunked body of any length.
pub(crate) fn may_stream(method: &Method, version: Version, status: StatusCode) -> bool {
    version == Version::HTTP_11 && has_body(method, status)
}

/// Returns true if only the connection's end marks the end of the response body.
pub(crate) fn is_close_delimited<B: Body>(method: &Method, version: Version, response: &Response<B>) -> bool {
    let has_length =
        response.headers().contains_key(CONTENT_LENGTH) || response.body().size_hint().exact().is_some();
    version < Version::HTTP_11 && has_body(method, response.status()) && !has_length
}

fn has_body(method: &Method, status: StatusCode) -> bool {
    let has_no_body =
        status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !matches!(*method, Method::HEAD | Method::CONNECT) && !has_no_body
}

/// How the client finds the end of a response body on a connection that stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No body. The length is that of the body a GET would have.
    WithoutBody(Option<u64>),
    Length(u64),
    Chunked,
}

impl Framing {
    /// Returns the framing: by the body's exact size, else by the service's `content-length`.
    pub(crate) fn of<B: Body>(method: &Method, response: &Response<B>) -> Framing {
        let declared = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let length = response.body().size_hint().exact();
        if has_body(method, response.status()) {
            return length.or_else(declared).map_or(Framing::Chunked, Framing::Length);
        }
        let would_have_one = *method == Method::HEAD && has_body(&Method::GET, response.status());
        let length = length.filter(|&length| length > 0);
        Framing::WithoutBody(declared().or(length).filter(|_| would_have_one))
    }
}

/// What happens to the connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    KeepOpen,
    Close,
}

/// Encodes the head of a live stream. `date` is used unless the service set one.
pub(crate) fn encode_live_head(parts: &response::Parts, date: &HttpDate) -> Bytes {
    let mut head = Vec::with_capacity(256);
    write_common(&mut head, parts, date, is_framing_header);
    head.extend_from_slice(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    head.into()
}

/// Encodes the head of an upgrade. Its `upgrade` header is the service's.
pub(crate) fn encode_upgrade_head(parts: &response::Parts, date: &HttpDate) -> Bytes {
    let mut head = Vec::with_capacity(256);
    write_common(&mut head, parts, date, |name| is_framing_header(name) && *name != UPGRADE);
    head.extend_from_slice(b"connection: upgrade\r\n\r\n");
    head.into()
}

/// Writes the head of a response on the fast path.
pub(crate) fn write_head(
    head: &mut Vec<u8>,
    parts: &response::Parts,
    framing: Framing,
    after: AfterResponse,
    date: &HttpDate,
) {
    let closes = after == AfterResponse::Close;
    let is_framing_header = |name: &HeaderName| {
        *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING || (closes && *name == CONNECTION)
    };
    write_common(head, parts, date, is_framing_header);
    match framing {
        Framing::WithoutBody(None) => {}
        Framing::WithoutBody(Some(length)) | Framing::Length(length) => {
            head.extend_from_slice(b"content-length: ");
            head.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => head.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    if closes {
        head.extend_from_slice(b"connection: close\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

/// Returns true if the service asks to close the connection.
pub(crate) fn requests_close(headers: &HeaderMap) -> bool {
    let mut options =
        headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|&b| b == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Writes the status line, the headers that are not omitted, and the date.
fn write_common(
    head: &mut Vec<u8>,
    parts: &response::Parts,
    date: &HttpDate,
    is_omitted: impl Fn(&HeaderName) -> bool,
) {
    let mut line = |parts: &[&[u8]]| {
        parts.iter().for_each(|part| head.extend_from_slice(part));
        head.extend_from_slice(b"\r\n");
    };
    let reason = parts.status.canonical_reason().unwrap_or_default();
    line(&[b"HTTP/1.1 ", parts.status.as_str().as_bytes(), b" ", reason.as_bytes()]);
    let mut has_date = false;
    for (name, value) in &parts.headers {
        has_date |= *name == DATE;
        if !is_omitted(name) {
            line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
        }
    }
    if !has_date {
        line(&[b"date: ", date]);
    }
}

/// IMF-fixdate, which always has 29 bytes.
pub(crate) type HttpDate = [u8; 29];

thread_local! {
    /// Cache: second of the last formatted date, and its text. Per thread, because a shared one
    /// would need a lock for each response.
    static CACHED_DATE: Cell<(u64, HttpDate)> = const { Cell::new((u64::MAX, [b' '; 29])) };
}

/// Returns the current date; formats it at most once per second and thread.
#[expect(clippy::disallowed_methods, reason = "a response shows its date")]
pub(crate) fn date() -> HttpDate {
    let now = std::time::SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (cached_second, date) = CACHED_DATE.get();
    if cached_second == second {
        return date;
    }
    let mut date = [b' '; 29];
    // Longer only beyond the year 9999.
    let text = httpdate::fmt_http_date(now);
    date.iter_mut().zip(text.bytes()).for_each(|(target, byte)| *target = byte);
    CACHED_DATE.set((second, date));
    date
}

fn is_framing_header(name: &HeaderName) -> bool {
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
        let bytes = encode_live_head(&response.into_parts().0, b"Sun, 06 Nov 1994 08:49:37 GMT");
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_live_head_has_the_services_headers_a_date_chunked_framing_and_a_close() {
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
    fn framing_headers_of_the_service_are_omitted() {
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
    fn an_upgrade_head_has_no_framing_and_keeps_the_protocol() {
        let response = Response::builder()
            .status(101)
            .header("upgrade", "websocket")
            .header("connection", "close")
            .header("content-length", "0")
            .header("sec-websocket-accept", "x");
        let head =
            encode_upgrade_head(&response.body(()).unwrap().into_parts().0, b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(
            std::str::from_utf8(&head).unwrap(),
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\
             date: Sun, 06 Nov 1994 08:49:37 GMT\r\nconnection: upgrade\r\n\r\n"
        );
    }

    #[test]
    fn only_http_1_1_responses_with_a_body_can_stream() {
        let may = |method, version, status: u16| {
            may_stream(&method, version, StatusCode::from_u16(status).unwrap())
        };
        assert!(may(Method::GET, Version::HTTP_11, 200) && may(Method::POST, Version::HTTP_11, 503));
        assert!(!may(Method::HEAD, Version::HTTP_11, 200) && !may(Method::CONNECT, Version::HTTP_11, 200));
        assert!(!may(Method::GET, Version::HTTP_10, 200) && !may(Method::GET, Version::HTTP_2, 200));
        assert!([101, 204, 304].iter().all(|&status| !may(Method::GET, Version::HTTP_11, status)));
    }
}
