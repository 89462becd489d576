//! Error responses as `application/problem+json` (RFC 9457).
//!
//! The body also has two members that clients of the streaming service expect: `error`, an error
//! code for programs, and `message`, a text for people.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    error: &'static str,
    message: &'a str,
}

/// Builds an error response. `error` is the error code, `message` the text for people.
pub fn problem(status: StatusCode, error: &'static str, message: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or_default();
    let body =
        Problem { r#type: "about:blank", title, status: status.as_u16(), detail: message, error, message };
    let body = serde_json::to_vec(&body).expect("a problem is text and a number");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
