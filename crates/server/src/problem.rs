//! Refusals, as `application/problem+json` (RFC 9457) with the members that the streaming service's clients know:
//! `error`, a name for programs, and `message`, for people.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

/// A refusal.
pub(crate) fn problem(status: StatusCode, error: &'static str, message: &str) -> Response<Bytes> {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": message,
        "error": error,
        "message": message,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
