//! The head of a response that hyper doesn't write: a lean stream's, or a brief exchange's.
//!
//! Invariant: how the body is framed, and whether the connection closes, is said once and as it is, whatever the service's own
//! headers say of that; nothing in it can break a line.
//! Kept by: such headers are left out; names and values are `http`'s types, which hold no line breaks.

use std::cell::Cell;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Response, StatusCode, Version, response};
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

/// How the client knows where a body ends, of a response whose connection may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body. A length is that of the body that there would be.
    Bodiless(Option<u64>),
    Length(u64),
    Chunks,
}

impl Framing {
    /// By the body's own length; the service's word counts where the body has none.
    pub(crate) fn of<B: Body>(method: &Method, response: &Response<B>) -> Framing {
        let said = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let length = response.body().size_hint().exact();
        if has_body(method, response.status()) {
            return length.or_else(said).map_or(Framing::Chunks, Framing::Length);
        }
        let would_have_one = *method == Method::HEAD && has_body(&Method::GET, response.status());
        let length = length.filter(|&length| length > 0);
        Framing::Bodiless(said().or(length).filter(|_| would_have_one))
    }
}

/// The head of a lean stream; `date` is used where the service gave none.
pub(crate) fn encode(parts: &response::Parts, date: &Date) -> Bytes {
    let mut head = Vec::with_capacity(256);
    begin(&mut head, parts, date, is_ours);
    head.extend_from_slice(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    head.into()
}

/// The head of a brief exchange's response.
pub(crate) fn write(
    head: &mut Vec<u8>,
    parts: &response::Parts,
    framing: Framing,
    closes: bool,
    date: &Date,
) {
    let is_ours = |name: &HeaderName| {
        *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING || (closes && *name == CONNECTION)
    };
    begin(head, parts, date, is_ours);
    match framing {
        Framing::Bodiless(None) => {}
        Framing::Bodiless(Some(length)) | Framing::Length(length) => {
            head.extend_from_slice(b"content-length: ");
            push_decimal(head, length);
            head.extend_from_slice(b"\r\n");
        }
        Framing::Chunks => head.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    if closes {
        head.extend_from_slice(b"connection: close\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

/// Whether the service wants the connection closed.
pub(crate) fn says_close(headers: &HeaderMap) -> bool {
    let mut words =
        headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|&b| b == b','));
    words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// The status, the headers but for those that are left out, and the date.
fn begin(head: &mut Vec<u8>, parts: &response::Parts, date: &Date, leaves_out: impl Fn(&HeaderName) -> bool) {
    let mut line = |words: &[&[u8]]| {
        words.iter().for_each(|word| head.extend_from_slice(word));
        head.extend_from_slice(b"\r\n");
    };
    let reason = parts.status.canonical_reason().unwrap_or_default();
    line(&[b"HTTP/1.1 ", parts.status.as_str().as_bytes(), b" ", reason.as_bytes()]);
    let mut has_date = false;
    for (name, value) in &parts.headers {
        has_date |= *name == DATE;
        if !leaves_out(name) {
            line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
        }
    }
    if !has_date {
        line(&[b"date: ", date]);
    }
}

/// As HTTP writes it: always so long.
pub(crate) type Date = [u8; 29];

thread_local! {
    /// The second that was written last, and how.
    static DATE_OF: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [b' '; 29])) };
}

/// Now.
#[expect(clippy::disallowed_methods, reason = "a response shows its date")]
pub(crate) fn date() -> Date {
    let now = std::time::SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (of, date) = DATE_OF.get();
    if of == second {
        return date;
    }
    let mut date = [b' '; 29];
    // Beyond the year 9999 it would be longer, which is never.
    let text = httpdate::fmt_http_date(now);
    date.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    DATE_OF.set((second, date));
    date
}

fn push_decimal(out: &mut Vec<u8>, number: u64) {
    let digits = number.checked_ilog10().unwrap_or(0);
    out.extend((0..=digits).rev().map(|place| b'0' + (number / 10_u64.pow(place) % 10) as u8));
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
        let bytes = encode(&response.into_parts().0, b"Sun, 06 Nov 1994 08:49:37 GMT");
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
