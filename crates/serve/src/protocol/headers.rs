//! The headers of an answer with data.
//!
//! Invariant: the published client finds what it insists on: the handle and the offset always, a cursor if it waits, a schema if it
//! doesn't.

use http::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, VARY};

/// The cursor of a live answer; the client sends it back.
pub const CURSOR: HeaderName = HeaderName::from_static("electric-cursor");
/// The shape.
pub const HANDLE: HeaderName = HeaderName::from_static("electric-handle");
/// Whether there is more in the body than control messages.
pub const HAS_DATA: HeaderName = HeaderName::from_static("electric-has-data");
/// Where the answer ends.
pub const OFFSET: HeaderName = HeaderName::from_static("electric-offset");
/// The columns' types.
pub const SCHEMA: HeaderName = HeaderName::from_static("electric-schema");
/// On a subset: `true`.
pub const SNAPSHOT: HeaderName = HeaderName::from_static("electric-snapshot");
/// Present and empty: there is no more for now.
pub const UP_TO_DATE: HeaderName = HeaderName::from_static("electric-up-to-date");

/// All of ours, and what else a browser's script may read.
pub(super) const EXPOSED: &str = "electric-cursor, electric-handle, electric-has-data, electric-offset, electric-schema, \
    electric-snapshot, electric-up-to-date, retry-after";

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const TRUE: HeaderValue = HeaderValue::from_static("true");
const FALSE: HeaderValue = HeaderValue::from_static("false");

/// What an answer with data says of itself, but for how long it may be kept.
#[derive(Debug, Clone)]
pub struct AnswerHead {
    /// The shape's.
    pub handle: HeaderValue,
    /// Where the answer ends.
    pub offset: HeaderValue,
    /// Whether there is no more for now.
    pub up_to_date: bool,
    /// Whether there is more in the body than control messages. An answer that isn't whole yet (server-sent events) says nothing.
    pub has_data: Option<bool>,
    /// See [`schema`](super::schema); for what doesn't wait.
    pub schema: Option<HeaderValue>,
    /// See [`cursor`](super::cursor); for what waits.
    pub cursor: Option<u64>,
    /// See [`etag`](super::etag); not for a subset.
    pub etag: Option<HeaderValue>,
    /// What kind of body follows.
    pub body: Body,
}

/// What kind of body follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// A part of the log: an array.
    Log,
    /// The log as it grows: server-sent events.
    Events,
    /// A subset: an object.
    Subset,
}

impl AnswerHead {
    /// Puts it into a response's head.
    pub fn write(self, headers: &mut HeaderMap) {
        headers.insert(HANDLE, self.handle);
        headers.insert(OFFSET, self.offset);
        if self.up_to_date {
            headers.insert(UP_TO_DATE, HeaderValue::from_static(""));
        }
        if let Some(has_data) = self.has_data {
            headers.insert(HAS_DATA, if has_data { TRUE } else { FALSE });
        }
        if let Some(schema) = self.schema {
            headers.insert(SCHEMA, schema);
        }
        if let Some(cursor) = self.cursor {
            headers.insert(CURSOR, cursor.into());
        }
        if let Some(etag) = self.etag {
            headers.insert(ETAG, etag);
        }
        match self.body {
            Body::Log => drop(headers.insert(CONTENT_TYPE, JSON)),
            Body::Events => drop(headers.insert(CONTENT_TYPE, EVENTS)),
            Body::Subset => {
                headers.insert(CONTENT_TYPE, JSON);
                headers.insert(SNAPSHOT, TRUE);
            }
        }
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
}

/// A text of ours in a header. Our handles are ASCII; should one not be, a header with a hole is better than none.
pub(crate) fn visible(text: impl Into<String>) -> HeaderValue {
    let mut text = text.into();
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        text =
            text.bytes().map(|byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' }).collect();
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> AnswerHead {
        AnswerHead {
            handle: HeaderValue::from_static("1-2"),
            offset: HeaderValue::from_static("5_2"),
            up_to_date: false,
            has_data: Some(true),
            schema: None,
            cursor: None,
            etag: None,
            body: Body::Log,
        }
    }

    fn written(head: &AnswerHead) -> Vec<String> {
        let mut headers = HeaderMap::new();
        head.clone().write(&mut headers);
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn an_answer_says_where_it_ends() {
        let schema = HeaderValue::from_static("{}");
        let head =
            AnswerHead { schema: Some(schema), etag: Some(HeaderValue::from_static("\"x\"")), ..head() };
        let expected = [
            "content-type: application/json; charset=utf-8",
            "electric-handle: 1-2",
            "electric-has-data: true",
            "electric-offset: 5_2",
            "electric-schema: {}",
            "etag: \"x\"",
            "vary: accept-encoding",
        ];
        assert_eq!(written(&head), expected);
    }

    #[test]
    fn a_live_answer_has_a_cursor() {
        let head = AnswerHead { cursor: Some(7), up_to_date: true, has_data: Some(false), ..head() };
        let lines = written(&head);
        for line in ["electric-cursor: 7", "electric-up-to-date: ", "electric-has-data: false"] {
            assert!(lines.contains(&line.to_owned()), "{line}");
        }
        let events = written(&AnswerHead { body: Body::Events, has_data: None, ..head });
        assert!(events.contains(&"content-type: text/event-stream".to_owned()));
        assert!(!events.iter().any(|line| line.starts_with("electric-has-data")));
    }

    #[test]
    fn a_subset_says_that_it_is_one() {
        assert!(
            written(&AnswerHead { body: Body::Subset, ..head() })
                .contains(&"electric-snapshot: true".to_owned())
        );
        assert!(!written(&head()).iter().any(|line| line.starts_with("electric-snapshot")));
    }

    #[test]
    fn scripts_may_read_every_header_of_ours() {
        let names =
            [CURSOR, HANDLE, HAS_DATA, OFFSET, SCHEMA, SNAPSHOT, UP_TO_DATE, http::header::RETRY_AFTER];
        assert_eq!(EXPOSED, names.map(|name| name.to_string()).join(", "));
    }

    #[test]
    fn nothing_breaks_out_of_a_header() {
        assert_eq!(visible("1-2"), "1-2");
        assert_eq!(visible("a\r\nb: ü"), "a??b:???");
        assert_eq!(visible(""), "");
    }
}
