//! Answers to what can't be served, and why; one reason for the client, the log and the metrics.
//!
//! Invariant: what a client reads here is about its request, or says no more than that we can't serve it now. A message that the server fills
//! in is for clients, too.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use serde::Serialize;

use super::caching::{CacheTimes, Caching};
use super::headers;
use super::invalid::Invalid;
use crate::host::OWN_NAMES;

const NOT_READY_S: u32 = 5;
/// Clients that were refused together don't come back together.
const OVERLOADED_S: std::ops::RangeInclusive<u32> = 6..=10;
const DATABASE_S: u32 = 10;

/// Why a request isn't served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// 400
    Invalid(Invalid),
    /// 401: the secret is missing or wrong.
    Unauthorized,
    /// 401: a token is missing, and nothing else was shown.
    TokenRequired,
    /// 401: the token doesn't hold.
    BadToken {
        /// Why, in a word.
        code: &'static str,
        /// And in more.
        message: Cow<'static, str>,
    },
    /// 401: the token holds, but what it grants can't be understood.
    BadGrant {
        /// Why.
        message: Cow<'static, str>,
    },
    /// 403: the token grants no such thing. It doesn't say whether there is one.
    NotGranted,
    /// 403: it was asked by a name that isn't this machine's, and has nothing else to tell who asks.
    ForeignHost,
    /// 404: there is nothing at this path.
    NoRoute,
    /// 404: there is no such shape to delete.
    NoShape,
    /// 405
    Method {
        /// Those that make sense.
        allow: &'static str,
    },
    /// 409: the client must begin anew.
    MustRefetch {
        /// With this shape, if there is one.
        handle: Option<String>,
    },
    /// 408: the body took too long.
    BodyTooSlow,
    /// 413
    BodyTooLarge,
    /// 414
    QueryTooLong,
    /// 503: what must be there isn't yet.
    NotReady {
        /// What.
        message: Cow<'static, str>,
    },
    /// 503: too many ask at once.
    Overloaded {
        /// Of what kind, in one word: `initial`, `existing`.
        kind: &'static str,
        /// How many may.
        limit: u64,
        /// When to come back; see [`Refusal::overloaded`].
        retry_after_s: u32,
    },
    /// 503: the rows couldn't be read.
    SnapshotFailed {
        /// Why.
        message: Cow<'static, str>,
    },
    /// 503
    DatabaseUnreachable,
}

impl Refusal {
    /// Beyond the end of the log for longer than a client waits.
    pub fn out_of_bounds() -> Self {
        Refusal::Invalid(Invalid::field("offset", "out of bounds for this shape"))
    }

    /// Too many ask at once; `chance` is any number, and says when to come back.
    pub fn overloaded(kind: &'static str, limit: u64, chance: u64) -> Self {
        let spread = u64::from(OVERLOADED_S.end() - OVERLOADED_S.start() + 1);
        let jitter = u32::try_from(chance % spread).unwrap_or(0);
        Refusal::Overloaded { kind, limit, retry_after_s: OVERLOADED_S.start() + jitter }
    }

    /// For logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Refusal::Invalid(_) => "invalid",
            Refusal::Unauthorized => "unauthorized",
            Refusal::TokenRequired => "token_required",
            Refusal::BadToken { code, .. } => code,
            Refusal::BadGrant { .. } => "bad_grant",
            Refusal::NotGranted => "not_granted",
            Refusal::ForeignHost => "foreign_host",
            Refusal::NoRoute => "not_found",
            Refusal::NoShape => "no_shape",
            Refusal::Method { .. } => "method_not_allowed",
            Refusal::MustRefetch { .. } => "must_refetch",
            Refusal::BodyTooSlow => "body_too_slow",
            Refusal::BodyTooLarge => "body_too_large",
            Refusal::QueryTooLong => "query_too_long",
            Refusal::NotReady { .. } => "not_ready",
            Refusal::Overloaded { .. } => "concurrent_request_limit_exceeded",
            Refusal::SnapshotFailed { .. } => "snapshot_failed",
            Refusal::DatabaseUnreachable => "database_unreachable",
        }
    }

    /// As HTTP has it.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Unauthorized
            | Refusal::TokenRequired
            | Refusal::BadToken { .. }
            | Refusal::BadGrant { .. } => StatusCode::UNAUTHORIZED,
            Refusal::NotGranted | Refusal::ForeignHost => StatusCode::FORBIDDEN,
            Refusal::NoRoute | Refusal::NoShape => StatusCode::NOT_FOUND,
            Refusal::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::MustRefetch { .. } => StatusCode::CONFLICT,
            Refusal::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Refusal::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::QueryTooLong => StatusCode::URI_TOO_LONG,
            Refusal::NotReady { .. }
            | Refusal::Overloaded { .. }
            | Refusal::SnapshotFailed { .. }
            | Refusal::DatabaseUnreachable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The answer, but for what the route says to every origin (see [`cors`](super::cors)).
    pub fn response(&self, method: &Method) -> Response<Bytes> {
        let (content_type, body) = self.body();
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        self.caching().to(method).write(&CacheTimes::default(), headers);
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        match self {
            // RFC 6750: without any token, no error is named.
            Refusal::TokenRequired => {
                drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            Refusal::BadToken { .. } | Refusal::BadGrant { .. } => {
                let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            Refusal::Method { allow } => drop(headers.insert(ALLOW, HeaderValue::from_static(allow))),
            Refusal::MustRefetch { handle: Some(handle) } => {
                headers.insert(headers::HANDLE, headers::visible(handle));
            }
            _ => {}
        }
        response
    }

    fn retry_after_s(&self) -> Option<u32> {
        match self {
            Refusal::NotReady { .. } => Some(NOT_READY_S),
            Refusal::Overloaded { retry_after_s, .. } => Some(*retry_after_s),
            Refusal::SnapshotFailed { .. } | Refusal::DatabaseUnreachable => Some(DATABASE_S),
            Refusal::Invalid(_)
            | Refusal::Unauthorized
            | Refusal::TokenRequired
            | Refusal::BadToken { .. }
            | Refusal::BadGrant { .. }
            | Refusal::NotGranted
            | Refusal::ForeignHost
            | Refusal::NoRoute
            | Refusal::NoShape
            | Refusal::Method { .. }
            | Refusal::MustRefetch { .. }
            | Refusal::BodyTooSlow
            | Refusal::BodyTooLarge
            | Refusal::QueryTooLong => None,
        }
    }

    fn caching(&self) -> Caching {
        match self {
            Refusal::MustRefetch { handle: Some(_) } => Caching::Moved,
            Refusal::MustRefetch { handle: None } => Caching::Gone,
            _ => Caching::Error,
        }
    }

    fn body(&self) -> (HeaderValue, Bytes) {
        let message = match self {
            Refusal::NoRoute => {
                return (
                    HeaderValue::from_static("text/plain; charset=utf-8"),
                    Bytes::from_static(b"Not found"),
                );
            }
            Refusal::MustRefetch { .. } => {
                let body = Bytes::from_static(br#"[{"headers":{"control":"must-refetch"}}]"#);
                return (headers::JSON, body);
            }
            Refusal::Invalid(_) => "Invalid request".into(),
            Refusal::Unauthorized => "Unauthorized - Invalid API secret".into(),
            Refusal::TokenRequired => {
                "Unauthorized - show a token in the header Authorization: Bearer".into()
            }
            Refusal::BadToken { message, .. } | Refusal::BadGrant { message } => message.clone(),
            Refusal::NotGranted => "Forbidden - the token doesn't grant this".into(),
            Refusal::ForeignHost => {
                format!("{OWN_NAMES}, as long as it asks for no secret (serve.secret, or serve.insecure)")
                    .into()
            }
            Refusal::NoShape => "Shape not found".into(),
            Refusal::Method { .. } => "Method not allowed".into(),
            Refusal::BodyTooSlow => "Request body took too long".into(),
            Refusal::BodyTooLarge => "Request body too large".into(),
            Refusal::QueryTooLong => "Query string too long: send the subset in the body of a POST".into(),
            Refusal::NotReady { message } | Refusal::SnapshotFailed { message } => message.clone(),
            Refusal::Overloaded { kind, limit, .. } => {
                format!("Concurrent {kind} request limit exceeded (limit: {limit}), please retry").into()
            }
            Refusal::DatabaseUnreachable => "Database is unreachable".into(),
        };
        let code = match self {
            Refusal::TokenRequired
            | Refusal::BadToken { .. }
            | Refusal::BadGrant { .. }
            | Refusal::NotGranted
            | Refusal::Overloaded { .. }
            | Refusal::DatabaseUnreachable => Some(self.as_str()),
            _ => None,
        };
        let errors = match self {
            Refusal::Invalid(invalid) => Some(invalid),
            _ => None,
        };
        let body = serde_json::to_vec(&Body { code, message, errors }).unwrap_or_default();
        (headers::JSON, body.into())
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Refusal::Invalid(invalid)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<&'a Invalid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(response: &Response<Bytes>, name: &str) -> Option<String> {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn every_refusal_is_as_the_protocol_has_it() {
        let not_ready = Refusal::NotReady { message: "starting".into() };
        let snapshot = Refusal::SnapshotFailed { message: "snapshot failed".into() };
        for (refusal, status, body, retry) in [
            (
                Refusal::out_of_bounds(),
                400,
                r#"{"message":"Invalid request","errors":{"offset":["out of bounds for this shape"]}}"#,
                None,
            ),
            (Refusal::Unauthorized, 401, r#"{"message":"Unauthorized - Invalid API secret"}"#, None),
            (Refusal::NoRoute, 404, "Not found", None),
            (Refusal::NoShape, 404, r#"{"message":"Shape not found"}"#, None),
            (Refusal::Method { allow: "GET" }, 405, r#"{"message":"Method not allowed"}"#, None),
            (Refusal::BodyTooSlow, 408, r#"{"message":"Request body took too long"}"#, None),
            (Refusal::BodyTooLarge, 413, r#"{"message":"Request body too large"}"#, None),
            (
                Refusal::QueryTooLong,
                414,
                r#"{"message":"Query string too long: send the subset in the body of a POST"}"#,
                None,
            ),
            (not_ready, 503, r#"{"message":"starting"}"#, Some("5")),
            (
                Refusal::overloaded("initial", 300, 0),
                503,
                r#"{"code":"concurrent_request_limit_exceeded","message":"Concurrent initial request limit exceeded (limit: 300), please retry"}"#,
                Some("6"),
            ),
            (snapshot, 503, r#"{"message":"snapshot failed"}"#, Some("10")),
            (
                Refusal::DatabaseUnreachable,
                503,
                r#"{"code":"database_unreachable","message":"Database is unreachable"}"#,
                Some("10"),
            ),
        ] {
            let response = refusal.response(&Method::GET);
            assert_eq!(response.status(), status, "{refusal:?}");
            assert_eq!(std::str::from_utf8(response.body()), Ok(body));
            assert_eq!(header(&response, "retry-after").as_deref(), retry, "{refusal:?}");
            assert_eq!(header(&response, "cache-control").as_deref(), Some("no-store"), "{refusal:?}");
            assert_eq!(header(&response, "surrogate-control").as_deref(), Some("no-store"), "{refusal:?}");
            let content_type = if body == "Not found" {
                "text/plain; charset=utf-8"
            } else {
                "application/json; charset=utf-8"
            };
            assert_eq!(header(&response, "content-type").as_deref(), Some(content_type));
        }
    }

    #[test]
    fn whoever_must_refetch_is_told_with_what() {
        let moved = Refusal::MustRefetch { handle: Some("1-2".into()) };
        let gone = Refusal::MustRefetch { handle: None };
        for (refusal, handle, caching) in [
            (moved, Some("1-2"), "public, max-age=60, must-revalidate"),
            (gone, None, "public, max-age=1, must-revalidate"),
        ] {
            let response = refusal.response(&Method::GET);
            assert_eq!(response.status(), 409);
            assert_eq!(&response.body()[..], br#"[{"headers":{"control":"must-refetch"}}]"#);
            assert_eq!(header(&response, "electric-handle").as_deref(), handle);
            assert_eq!(header(&response, "cache-control").as_deref(), Some(caching));
            assert_eq!(header(&response, "surrogate-control"), None);
            assert_eq!(
                header(&refusal.response(&Method::POST), "cache-control").as_deref(),
                Some("no-cache")
            );
        }
    }

    #[test]
    fn a_method_that_makes_no_sense_is_told_which_do() {
        let response = Refusal::Method { allow: "GET, HEAD" }.response(&Method::DELETE);
        assert_eq!(header(&response, "allow").as_deref(), Some("GET, HEAD"));
        assert_eq!(header(&response, "cache-control").as_deref(), Some("no-cache"), "no GET");
    }

    #[test]
    fn the_overloaded_come_back_apart() {
        let after = |chance| {
            header(&Refusal::overloaded("initial", 1, chance).response(&Method::GET), "retry-after").unwrap()
        };
        let times: std::collections::BTreeSet<u32> =
            (0..100).map(|chance| after(chance).parse().unwrap()).collect();
        assert_eq!(times.into_iter().collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
        assert!(!after(u64::MAX).is_empty());
    }
}
