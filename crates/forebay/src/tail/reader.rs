//! Position of a client in a shape, and its next request. Pure: takes replies, returns request
//! paths.

use std::io;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;

use crate::client::ClientError;
use crate::config::SecretText;
use crate::terminal::escape_controls;

/// Maximum delay that `Retry-After` can set.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Maximum length of a refusal's text, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Where to start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TailStart {
    /// With all rows.
    #[default]
    Start,
    /// With the next change.
    Now,
}

/// Shape to follow.
#[derive(Debug, Clone)]
pub struct TailShape {
    /// Table: `name` or `schema.name`.
    pub table: String,
    /// Where clause.
    pub clause: Option<String>,
    /// Columns, separated by commas.
    pub columns: Option<String>,
    /// Values of the parameters `$1` and so on, with their numbers.
    pub params: Vec<(u32, String)>,
    /// Where to start.
    pub start: TailStart,
    /// Secret of the server.
    pub secret: Option<SecretText>,
}

/// Why `forebay tail` ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// The server refuses the request permanently.
    #[error("the server refused the request ({status}): {why}")]
    Refused {
        /// Status code.
        status: StatusCode,
        /// Reason, and what to do.
        why: String,
    },
    /// The server doesn't speak the shape protocol.
    #[error("the server doesn't speak the shape protocol ({what}): check --url")]
    NotShapeServer {
        /// The missing part.
        what: &'static str,
    },
    /// The request or its reply failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Standard output can't be written.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// Meaning of a reply.
#[derive(Debug)]
pub(super) enum TailReply<'a> {
    /// Rows, changes and control messages, unchanged.
    Messages { messages: Vec<&'a RawValue>, is_up_to_date: bool },
    /// The server has replaced the shape. All rows are sent again.
    Reset,
    /// A temporary failure.
    RetryLater { why: String, after: Option<Duration> },
}

/// Reads one shape.
#[derive(Debug)]
pub(super) struct TailReader {
    shape: TailShape,
    handle: Option<String>,
    offset: String,
    cursor: Option<String>,
    live: bool,
}

impl TailReader {
    pub(super) fn new(shape: TailShape) -> TailReader {
        let offset = first_offset(shape.start);
        TailReader { shape, handle: None, offset, cursor: None, live: false }
    }

    /// Returns path and query of the next request.
    pub(super) fn path(&self) -> String {
        let TailShape { table, clause, columns, params, secret, .. } = &self.shape;
        let mut path = String::from("/v1/shape?table=");
        encode(table, &mut path);
        let mut add = |name: &str, value: &str| {
            path.push('&');
            encode(name, &mut path);
            path.push('=');
            encode(value, &mut path);
        };
        let optional = [
            ("where", clause.as_deref()),
            ("columns", columns.as_deref()),
            ("handle", self.handle.as_deref()),
            ("cursor", self.cursor.as_deref()),
            ("secret", secret.as_ref().map(SecretText::reveal)),
        ];
        add("offset", &self.offset);
        optional.into_iter().for_each(|(name, value)| value.into_iter().for_each(|value| add(name, value)));
        params.iter().for_each(|(number, value)| add(&format!("params[{number}]"), value));
        if self.live {
            add("live", "true");
        }
        path
    }

    /// Handles a reply, and advances the position.
    pub(super) fn handle_reply<'a>(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<TailReply<'a>, TailError> {
        match status {
            StatusCode::OK => self.handle_messages(headers, body),
            StatusCode::CONFLICT => {
                *self = TailReader::new(self.shape.clone());
                // Changes may have been lost before the reset, so all rows must be read, even after
                // `--from now`.
                self.offset = first_offset(TailStart::Start);
                Ok(TailReply::Reset)
            }
            status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                let after = text(headers, RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
                let after = after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
                Ok(TailReply::RetryLater {
                    why: format!("server replied {status}: {}", refusal_text(body)),
                    after,
                })
            }
            StatusCode::UNAUTHORIZED => {
                let why = format!("{}: set the server's secret in FOREBAY_SERVE_SECRET", refusal_text(body));
                Err(TailError::Refused { status, why })
            }
            status => Err(TailError::Refused { status, why: refusal_text(body) }),
        }
    }

    fn handle_messages<'a>(
        &mut self,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<TailReply<'a>, TailError> {
        let not_shape_server = |what| TailError::NotShapeServer { what };
        let handle =
            text(headers, "electric-handle").ok_or_else(|| not_shape_server("no electric-handle"))?;
        let offset =
            text(headers, "electric-offset").ok_or_else(|| not_shape_server("no electric-offset"))?;
        let messages = serde_json::from_slice(body).map_err(|_| not_shape_server("no list of messages"))?;
        (self.handle, self.offset) = (Some(handle.to_owned()), offset.to_owned());
        self.cursor = text(headers, "electric-cursor").map(str::to_owned);
        let is_up_to_date = headers.contains_key("electric-up-to-date");
        self.live = is_up_to_date;
        Ok(TailReply::Messages { messages, is_up_to_date })
    }
}

fn first_offset(start: TailStart) -> String {
    match start {
        TailStart::Start => "-1".to_owned(),
        TailStart::Now => "now".to_owned(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the text of a refusal: its `message`, and the errors of its fields.
fn refusal_text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let refusal = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = refusal.as_ref().and_then(|refusal| refusal["message"].as_str());
    let errors = refusal.as_ref().and_then(|refusal| refusal["errors"].as_object());
    let errors = errors.into_iter().flatten().map(|(field, errors)| {
        let errors = errors.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        format!("{field} {}", errors.collect::<Vec<_>>().join(", "))
    });
    let parts: Vec<_> = message.map(str::to_owned).into_iter().chain(errors).collect();
    let reason = if parts.is_empty() { text.trim().to_owned() } else { parts.join("; ") };
    escape_controls(&reason.chars().take(MAX_REASON_CHARS).collect::<String>())
}

/// Percent-encodes a text.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> TailShape {
        TailShape {
            table: "my items".into(),
            clause: Some("a = $1 & b".into()),
            columns: None,
            params: vec![(1, "é".into())],
            start: TailStart::Start,
            secret: Some("s3cr3t".parse().unwrap()),
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn answer(reader: &mut TailReader, pairs: &[(&'static str, &'static str)]) {
        let reply = reader.handle_reply(StatusCode::OK, &headers(pairs), b"[]").unwrap();
        assert!(matches!(reply, TailReply::Messages { .. }));
    }

    #[test]
    fn the_next_request_starts_where_the_last_reply_ended_and_waits_once_up_to_date() {
        let mut reader = TailReader::new(items());
        let shape = "/v1/shape?table=my%20items&offset=";
        let rest = "&secret=s3cr3t&params%5B1%5D=%C3%A9";
        let clause = "&where=a%20%3D%20%241%20%26%20b";
        assert_eq!(reader.path(), format!("{shape}-1{clause}{rest}"));
        let first = [("electric-handle", "h-1"), ("electric-offset", "0_0")];
        answer(&mut reader, &first);
        assert_eq!(reader.path(), format!("{shape}0_0{clause}&handle=h-1{rest}"));
        let last = [("electric-handle", "h-1"), ("electric-offset", "7_2"), ("electric-up-to-date", "")];
        answer(&mut reader, &last);
        assert_eq!(reader.path(), format!("{shape}7_2{clause}&handle=h-1{rest}&live=true"));
        let live = [&last[..2], &[("electric-up-to-date", ""), ("electric-cursor", "9")]].concat();
        answer(&mut reader, &live);
        assert_eq!(reader.path(), format!("{shape}7_2{clause}&handle=h-1&cursor=9{rest}&live=true"));
        answer(&mut reader, &first);
        assert!(!reader.path().contains("live"), "once behind, it doesn't wait");
    }

    #[test]
    fn a_replaced_shape_is_read_from_the_start() {
        let mut reader = TailReader::new(TailShape { start: TailStart::Now, ..items() });
        assert!(reader.path().contains("offset=now"));
        answer(
            &mut reader,
            &[("electric-handle", "h-1"), ("electric-offset", "0_0"), ("electric-up-to-date", "")],
        );
        let reply = reader
            .handle_reply(StatusCode::CONFLICT, &headers(&[("electric-handle", "h-2")]), b"[]")
            .unwrap();
        assert!(matches!(reply, TailReply::Reset));
        let path = reader.path();
        assert!(path.contains("offset=-1") && !path.contains("handle") && !path.contains("live"), "{path}");
    }

    #[test]
    fn temporary_failures_are_retried_and_other_errors_are_not() {
        let mut reader = TailReader::new(items());
        let before = reader.path();
        for (status, wait) in [(503, "5"), (429, "5"), (500, "5"), (502, "5")] {
            let status = StatusCode::from_u16(status).unwrap();
            let reply = reader
                .handle_reply(status, &headers(&[("retry-after", wait)]), br#"{"message":"busy"}"#)
                .unwrap();
            let TailReply::RetryLater { why, after } = reply else { panic!("{reply:?}") };
            assert!(why.contains("busy") && after == Some(Duration::from_secs(5)), "{why} {after:?}");
        }
        let long =
            reader.handle_reply(StatusCode::SERVICE_UNAVAILABLE, &headers(&[("retry-after", "99999")]), b"");
        assert!(matches!(long, Ok(TailReply::RetryLater { after: Some(MAX_RETRY_AFTER), .. })));
        let body = br#"{"message":"Invalid request","errors":{"table":["is \u001b[31mnot there"]}}"#;
        let refused =
            reader.handle_reply(StatusCode::BAD_REQUEST, &HeaderMap::new(), body).unwrap_err().to_string();
        assert!(refused.ends_with("Invalid request; table is \\u{1b}[31mnot there"), "{refused}");
        let refused =
            reader.handle_reply(StatusCode::UNAUTHORIZED, &HeaderMap::new(), b"no").unwrap_err().to_string();
        assert!(refused.contains("FOREBAY_SERVE_SECRET") && !refused.contains("s3cr3t"), "{refused}");
        for (pairs, body) in
            [(&[][..], "[]"), (&[("electric-handle", "h"), ("electric-offset", "0_0")], "<html>")]
        {
            let refused = reader
                .handle_reply(StatusCode::OK, &headers(pairs), body.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(refused.contains("--url"), "{refused}");
        }
        assert_eq!(reader.path(), before, "the position is unchanged");
    }
}
