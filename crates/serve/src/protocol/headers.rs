//! Headers of a response with data.
//!
//! Invariant: every response has the headers that Electric's client requires. These are the handle
//! and the offset, the cursor on live responses, and the schema on others.

use http::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, VARY};

/// Cursor of a live response. The client sends it back.
pub const CURSOR: HeaderName = HeaderName::from_static("electric-cursor");
/// Handle of the shape.
pub const HANDLE: HeaderName = HeaderName::from_static("electric-handle");
/// Whether the body holds more than control messages.
pub const HAS_DATA: HeaderName = HeaderName::from_static("electric-has-data");
/// Offset at which the response ends.
pub const OFFSET: HeaderName = HeaderName::from_static("electric-offset");
/// Types of the columns.
pub const SCHEMA: HeaderName = HeaderName::from_static("electric-schema");
/// `true` on a subset.
pub const SNAPSHOT: HeaderName = HeaderName::from_static("electric-snapshot");
/// Present and empty if no more changes are available now.
pub const UP_TO_DATE: HeaderName = HeaderName::from_static("electric-up-to-date");

/// Headers that scripts in a browser may read: all headers above, and `retry-after`.
pub(super) const EXPOSED: &str = "electric-cursor, electric-handle, electric-has-data, electric-offset, electric-schema, \
    electric-snapshot, electric-up-to-date, retry-after";

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Whether nginx may buffer a response. With buffering, it holds back the head of a stream until
/// its first event.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const NO: HeaderValue = HeaderValue::from_static("no");
const TRUE: HeaderValue = HeaderValue::from_static("true");
const FALSE: HeaderValue = HeaderValue::from_static("false");

/// Head of a response with data, without its cache policy.
#[derive(Debug, Clone)]
pub struct ShapeResponseHead {
    /// Handle of the shape.
    pub handle: HeaderValue,
    /// Offset at which the response ends.
    pub offset: HeaderValue,
    /// Whether no more changes are available now.
    pub up_to_date: bool,
    /// Whether the body holds more than control messages. `None` for server-sent events, whose body
    /// isn't complete yet.
    pub has_data: Option<bool>,
    /// See [`schema`](super::schema). Only on responses that are not live.
    pub schema: Option<HeaderValue>,
    /// See [`cursor`](super::cursor). Only on live responses.
    pub cursor: Option<u64>,
    /// See [`etag`](super::etag). Not on subsets and server-sent events.
    pub etag: Option<HeaderValue>,
    /// Kind of the body.
    pub body: BodyKind,
}

/// Kind of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyKind {
    /// A page of the log: a JSON array.
    Log,
    /// The log as it grows: server-sent events.
    Events,
    /// A subset: a JSON object.
    Subset,
}

impl ShapeResponseHead {
    /// Writes the headers of the response.
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
            BodyKind::Log => drop(headers.insert(CONTENT_TYPE, JSON)),
            BodyKind::Events => {
                headers.insert(CONTENT_TYPE, EVENTS);
                headers.insert(ACCEL_BUFFERING, NO);
            }
            BodyKind::Subset => {
                headers.insert(CONTENT_TYPE, JSON);
                headers.insert(SNAPSHOT, TRUE);
            }
        }
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
}

/// Returns a header value. Each byte that is not a visible ASCII character becomes `?`. Handles
/// have no such bytes, and a wrong header is better than a missing one.
pub(crate) fn header_value(text: impl Into<String>) -> HeaderValue {
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

    fn head() -> ShapeResponseHead {
        ShapeResponseHead {
            handle: HeaderValue::from_static("1-2"),
            offset: HeaderValue::from_static("5_2"),
            up_to_date: false,
            has_data: Some(true),
            schema: None,
            cursor: None,
            etag: None,
            body: BodyKind::Log,
        }
    }

    fn written(head: &ShapeResponseHead) -> Vec<String> {
        let mut headers = HeaderMap::new();
        head.clone().write(&mut headers);
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_response_has_the_offset_at_which_it_ends() {
        let schema = HeaderValue::from_static("{}");
        let head = ShapeResponseHead {
            schema: Some(schema),
            etag: Some(HeaderValue::from_static("\"x\"")),
            ..head()
        };
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
    fn a_live_response_has_a_cursor() {
        let head = ShapeResponseHead { cursor: Some(7), up_to_date: true, has_data: Some(false), ..head() };
        let lines = written(&head);
        for line in ["electric-cursor: 7", "electric-up-to-date: ", "electric-has-data: false"] {
            assert!(lines.contains(&line.to_owned()), "{line}");
        }
        let events = written(&ShapeResponseHead { body: BodyKind::Events, has_data: None, ..head });
        for line in ["content-type: text/event-stream", "x-accel-buffering: no"] {
            assert!(events.contains(&line.to_owned()), "{line}");
        }
        assert!(!lines.iter().any(|line| line.starts_with("x-accel")), "long-polls may be buffered");
        assert!(!events.iter().any(|line| line.starts_with("electric-has-data")));
    }

    #[test]
    fn a_subset_is_marked_as_a_snapshot() {
        assert!(
            written(&ShapeResponseHead { body: BodyKind::Subset, ..head() })
                .contains(&"electric-snapshot: true".to_owned())
        );
        assert!(!written(&head()).iter().any(|line| line.starts_with("electric-snapshot")));
    }

    #[test]
    fn every_header_of_the_protocol_is_exposed_to_scripts() {
        let names =
            [CURSOR, HANDLE, HAS_DATA, OFFSET, SCHEMA, SNAPSHOT, UP_TO_DATE, http::header::RETRY_AFTER];
        assert_eq!(EXPOSED, names.map(|name| name.to_string()).join(", "));
    }

    #[test]
    fn header_values_contain_only_visible_ascii() {
        assert_eq!(header_value("1-2"), "1-2");
        assert_eq!(header_value("a\r\nb: ü"), "a??b:???");
        assert_eq!(header_value(""), "");
    }
}
