//! Where a client of a shape is, and what it asks next. Pure: answers in, questions out.

use std::io;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;

use crate::client::ClientError;
use crate::config::SecretText;
use crate::terminal::shown;

/// A server that asks for more has other reasons than load.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Of an answer that nobody expected.
const MOST_WORDS: usize = 500;

/// Where to begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Since {
    /// With all rows.
    #[default]
    Start,
    /// With the next change.
    Now,
}

/// Which shape.
#[derive(Debug, Clone)]
pub struct Shape {
    /// `name` or `schema.name`.
    pub table: String,
    /// Its where clause.
    pub clause: Option<String>,
    /// Its columns, parted by commas.
    pub columns: Option<String>,
    /// The values of `$1` and so on, each by its number.
    pub params: Vec<(u32, String)>,
    /// Where to begin.
    pub since: Since,
    /// What the server wants to be shown.
    pub secret: Option<SecretText>,
}

/// Why it can't go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// The server doesn't want to, and won't later.
    #[error("the server refuses ({status}): {why}")]
    Refused {
        /// Its status.
        status: StatusCode,
        /// What it said, and what to do.
        why: String,
    },
    /// What answers is no server of shapes.
    #[error("what answers there doesn't speak the shape protocol ({what}): check --url")]
    Stranger {
        /// What is missing.
        what: &'static str,
    },
    /// The answer can't be taken.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Standard output can't be written.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// What an answer means.
#[derive(Debug)]
pub(super) enum Said<'a> {
    /// Rows, changes and control messages, as they came.
    Messages { messages: Vec<&'a RawValue>, is_up_to_date: bool },
    /// The shape is another now: all rows come again.
    StartOver,
    /// Not now.
    Later { why: String, after: Option<Duration> },
}

/// A client of one shape.
#[derive(Debug)]
pub(super) struct Reader {
    shape: Shape,
    handle: Option<String>,
    offset: String,
    cursor: Option<String>,
    live: bool,
}

impl Reader {
    pub(super) fn new(shape: Shape) -> Reader {
        let offset = first_offset(shape.since);
        Reader { shape, handle: None, offset, cursor: None, live: false }
    }

    /// What to ask for next.
    pub(super) fn path(&self) -> String {
        let Shape { table, clause, columns, params, secret, .. } = &self.shape;
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

    /// Takes an answer in; the next question follows from it.
    pub(super) fn take<'a>(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<Said<'a>, TailError> {
        match status {
            StatusCode::OK => self.take_messages(headers, body),
            StatusCode::CONFLICT => {
                *self = Reader::new(self.shape.clone());
                // A shape that was rotated may have changed before we hear of it: all of it has to be read.
                self.offset = first_offset(Since::Start);
                Ok(Said::StartOver)
            }
            status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                let after = text(headers, RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
                let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
                Ok(Said::Later { why: format!("the server says {status}: {}", words(body)), after })
            }
            StatusCode::UNAUTHORIZED => {
                let why = format!("{}: say the server's secret in FOREBAY_SERVE_SECRET", words(body));
                Err(TailError::Refused { status, why })
            }
            status => Err(TailError::Refused { status, why: words(body) }),
        }
    }

    fn take_messages<'a>(&mut self, headers: &HeaderMap, body: &'a [u8]) -> Result<Said<'a>, TailError> {
        let stranger = |what| TailError::Stranger { what };
        let handle = text(headers, "electric-handle").ok_or_else(|| stranger("no electric-handle"))?;
        let offset = text(headers, "electric-offset").ok_or_else(|| stranger("no electric-offset"))?;
        let messages = serde_json::from_slice(body).map_err(|_| stranger("no list of messages"))?;
        (self.handle, self.offset) = (Some(handle.to_owned()), offset.to_owned());
        self.cursor = text(headers, "electric-cursor").map(str::to_owned);
        let is_up_to_date = headers.contains_key("electric-up-to-date");
        self.live = is_up_to_date;
        Ok(Said::Messages { messages, is_up_to_date })
    }
}

fn first_offset(since: Since) -> String {
    match since {
        Since::Start => "-1".to_owned(),
        Since::Now => "now".to_owned(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What a refusal says: its `message`, and what is wrong with which field.
fn words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let said = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = said.as_ref().and_then(|said| said["message"].as_str());
    let errors = said.as_ref().and_then(|said| said["errors"].as_object());
    let errors = errors.into_iter().flatten().map(|(field, errors)| {
        let errors = errors.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        format!("{field} {}", errors.collect::<Vec<_>>().join(", "))
    });
    let parts: Vec<_> = message.map(str::to_owned).into_iter().chain(errors).collect();
    let words = if parts.is_empty() { text.trim().to_owned() } else { parts.join("; ") };
    shown(&words.chars().take(MOST_WORDS).collect::<String>())
}

/// For a URL.
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

    fn items() -> Shape {
        Shape {
            table: "my items".into(),
            clause: Some("a = $1 & b".into()),
            columns: None,
            params: vec![(1, "é".into())],
            since: Since::Start,
            secret: Some("s3cr3t".parse().unwrap()),
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn answer(reader: &mut Reader, pairs: &[(&'static str, &'static str)]) {
        let said = reader.take(StatusCode::OK, &headers(pairs), b"[]").unwrap();
        assert!(matches!(said, Said::Messages { .. }));
    }

    #[test]
    fn it_reads_on_from_where_the_last_answer_ended_and_waits_when_it_is_up_to_date() {
        let mut reader = Reader::new(items());
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
        assert!(!reader.path().contains("live"), "behind again, it reads at full speed");
    }

    #[test]
    fn a_shape_that_is_another_now_is_read_from_the_start() {
        let mut reader = Reader::new(Shape { since: Since::Now, ..items() });
        assert!(reader.path().contains("offset=now"));
        answer(
            &mut reader,
            &[("electric-handle", "h-1"), ("electric-offset", "0_0"), ("electric-up-to-date", "")],
        );
        let said = reader.take(StatusCode::CONFLICT, &headers(&[("electric-handle", "h-2")]), b"[]").unwrap();
        assert!(matches!(said, Said::StartOver));
        let path = reader.path();
        assert!(path.contains("offset=-1") && !path.contains("handle") && !path.contains("live"), "{path}");
    }

    #[test]
    fn what_may_be_otherwise_later_is_asked_again_and_the_rest_is_not() {
        let mut reader = Reader::new(items());
        let before = reader.path();
        for (status, wait) in [(503, "5"), (429, "5"), (500, "5"), (502, "5")] {
            let status = StatusCode::from_u16(status).unwrap();
            let said =
                reader.take(status, &headers(&[("retry-after", wait)]), br#"{"message":"busy"}"#).unwrap();
            let Said::Later { why, after } = said else { panic!("{said:?}") };
            assert!(why.contains("busy") && after == Some(Duration::from_secs(5)), "{why} {after:?}");
        }
        let long = reader.take(StatusCode::SERVICE_UNAVAILABLE, &headers(&[("retry-after", "99999")]), b"");
        assert!(matches!(long, Ok(Said::Later { after: Some(LONGEST_WAIT), .. })));
        let body = br#"{"message":"Invalid request","errors":{"table":["is \u001b[31mnot there"]}}"#;
        let refused = reader.take(StatusCode::BAD_REQUEST, &HeaderMap::new(), body).unwrap_err().to_string();
        assert!(refused.ends_with("Invalid request; table is \\u{1b}[31mnot there"), "{refused}");
        let refused =
            reader.take(StatusCode::UNAUTHORIZED, &HeaderMap::new(), b"no").unwrap_err().to_string();
        assert!(refused.contains("FOREBAY_SERVE_SECRET") && !refused.contains("s3cr3t"), "{refused}");
        for (pairs, body) in
            [(&[][..], "[]"), (&[("electric-handle", "h"), ("electric-offset", "0_0")], "<html>")]
        {
            let refused =
                reader.take(StatusCode::OK, &headers(pairs), body.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains("--url"), "{refused}");
        }
        assert_eq!(reader.path(), before, "nothing of it counts");
    }
}
