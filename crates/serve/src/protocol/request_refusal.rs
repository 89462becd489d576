//! Refusals: responses to requests that can't be served. Each has one reason code for the log and
//! the metrics. Some responses contain it as `code`.
//!
//! Invariant: the text describes the client's request, or only states that the server can't serve
//! it now. This also holds for the `message` fields, which other modules write.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use serde::Serialize;

use super::cache_policy::{CachePolicy, CacheTimes};
use super::headers;
use super::invalid_request::InvalidRequest;
use crate::host::OWN_NAMES;

/// `retry-after` while the server is not ready, in seconds.
const NOT_READY_S: u32 = 5;
/// Range of `retry-after` on overload, in seconds. It spreads the retries of clients that were
/// refused at the same time.
const OVERLOADED_S: std::ops::RangeInclusive<u32> = 6..=10;
/// `retry-after` if Postgres failed, in seconds.
const DATABASE_S: u32 = 10;

/// Why a request isn't served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestRefusal {
    /// 400: the request has problems.
    Invalid(InvalidRequest),
    /// 401: the secret is missing or wrong.
    Unauthorized,
    /// 401: the request has neither a token nor a secret.
    TokenRequired,
    /// 401: the token is invalid.
    BadToken {
        /// Reason code.
        code: &'static str,
        /// Text for the client.
        message: Cow<'static, str>,
    },
    /// 401: the token is valid, but its grants can't be parsed.
    BadGrant {
        /// Text for the client.
        message: Cow<'static, str>,
    },
    /// 403: the token doesn't grant this. The response is the same whether the table exists or not.
    NotGranted,
    /// 403: the `Host` is not a name of this machine, and the server requires neither a secret nor
    /// a token.
    ForeignHost,
    /// 404: the path has no route.
    NoRoute,
    /// 404: the shape to delete doesn't exist.
    NoShape,
    /// 405: the route doesn't support the method.
    Method {
        /// Methods that the route supports.
        allow: &'static str,
    },
    /// 409: the client must fetch the shape again.
    MustRefetch {
        /// Handle of the replacement, if there is one.
        handle: Option<String>,
    },
    /// 400: the body broke off, or its encoding is wrong.
    BodyUnreadable,
    /// 408: the body arrived too slowly.
    BodyTooSlow,
    /// 413: the body exceeds [`MAX_BODY_BYTES`](super::MAX_BODY_BYTES).
    BodyTooLarge,
    /// 414: the query string exceeds [`MAX_QUERY_BYTES`](super::MAX_QUERY_BYTES).
    QueryTooLong,
    /// 503: the server is not ready yet.
    NotReady {
        /// Text for the client.
        message: Cow<'static, str>,
    },
    /// 503: too many concurrent requests.
    Overloaded {
        /// Kind of request, in one word: `initial`, `existing`.
        kind: &'static str,
        /// Maximum number of concurrent requests.
        limit: u64,
        /// Value of `retry-after`, in seconds. See [`RequestRefusal::overloaded`].
        retry_after_s: u32,
    },
    /// 503: the snapshot couldn't be read.
    SnapshotFailed {
        /// Text for the client.
        message: Cow<'static, str>,
    },
    /// 503: Postgres is unreachable.
    DatabaseUnreachable,
}

impl RequestRefusal {
    /// Returns the refusal of an offset that is beyond the end of the log, even after a wait.
    pub fn out_of_bounds() -> Self {
        RequestRefusal::Invalid(InvalidRequest::field("offset", "out of bounds for this shape"))
    }

    /// Returns the refusal of a request above `limit`. `random` is any number; it selects
    /// `retry-after`.
    pub fn overloaded(kind: &'static str, limit: u64, random: u64) -> Self {
        let spread = u64::from(OVERLOADED_S.end() - OVERLOADED_S.start() + 1);
        let jitter = u32::try_from(random % spread).unwrap_or(0);
        RequestRefusal::Overloaded { kind, limit, retry_after_s: OVERLOADED_S.start() + jitter }
    }

    /// Returns the reason code, for logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            RequestRefusal::Invalid(_) => "invalid",
            RequestRefusal::Unauthorized => "unauthorized",
            RequestRefusal::TokenRequired => "token_required",
            RequestRefusal::BadToken { code, .. } => code,
            RequestRefusal::BadGrant { .. } => "bad_grant",
            RequestRefusal::NotGranted => "not_granted",
            RequestRefusal::ForeignHost => "foreign_host",
            RequestRefusal::NoRoute => "not_found",
            RequestRefusal::NoShape => "no_shape",
            RequestRefusal::Method { .. } => "method_not_allowed",
            RequestRefusal::MustRefetch { .. } => "must_refetch",
            RequestRefusal::BodyUnreadable => "body_unreadable",
            RequestRefusal::BodyTooSlow => "body_too_slow",
            RequestRefusal::BodyTooLarge => "body_too_large",
            RequestRefusal::QueryTooLong => "query_too_long",
            RequestRefusal::NotReady { .. } => "not_ready",
            RequestRefusal::Overloaded { .. } => "concurrent_request_limit_exceeded",
            RequestRefusal::SnapshotFailed { .. } => "snapshot_failed",
            RequestRefusal::DatabaseUnreachable => "database_unreachable",
        }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            RequestRefusal::Invalid(_) | RequestRefusal::BodyUnreadable => StatusCode::BAD_REQUEST,
            RequestRefusal::Unauthorized
            | RequestRefusal::TokenRequired
            | RequestRefusal::BadToken { .. }
            | RequestRefusal::BadGrant { .. } => StatusCode::UNAUTHORIZED,
            RequestRefusal::NotGranted | RequestRefusal::ForeignHost => StatusCode::FORBIDDEN,
            RequestRefusal::NoRoute | RequestRefusal::NoShape => StatusCode::NOT_FOUND,
            RequestRefusal::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            RequestRefusal::MustRefetch { .. } => StatusCode::CONFLICT,
            RequestRefusal::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            RequestRefusal::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RequestRefusal::QueryTooLong => StatusCode::URI_TOO_LONG,
            RequestRefusal::NotReady { .. }
            | RequestRefusal::Overloaded { .. }
            | RequestRefusal::SnapshotFailed { .. }
            | RequestRefusal::DatabaseUnreachable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the response, without the CORS headers of its route (see [`cors`](super::cors)).
    pub fn response(&self, method: &Method) -> Response<Bytes> {
        let (content_type, body) = self.body();
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        self.cache_policy().for_method(method).write(&CacheTimes::default(), headers);
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        match self {
            // RFC 6750: without a token, the challenge names no error.
            RequestRefusal::TokenRequired => {
                drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            RequestRefusal::BadToken { .. } | RequestRefusal::BadGrant { .. } => {
                let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            RequestRefusal::Method { allow } => drop(headers.insert(ALLOW, HeaderValue::from_static(allow))),
            RequestRefusal::MustRefetch { handle: Some(handle) } => {
                headers.insert(headers::HANDLE, headers::header_value(handle));
            }
            _ => {}
        }
        response
    }

    fn retry_after_s(&self) -> Option<u32> {
        match self {
            RequestRefusal::NotReady { .. } => Some(NOT_READY_S),
            RequestRefusal::Overloaded { retry_after_s, .. } => Some(*retry_after_s),
            RequestRefusal::SnapshotFailed { .. } | RequestRefusal::DatabaseUnreachable => Some(DATABASE_S),
            RequestRefusal::Invalid(_)
            | RequestRefusal::Unauthorized
            | RequestRefusal::TokenRequired
            | RequestRefusal::BadToken { .. }
            | RequestRefusal::BadGrant { .. }
            | RequestRefusal::NotGranted
            | RequestRefusal::ForeignHost
            | RequestRefusal::NoRoute
            | RequestRefusal::NoShape
            | RequestRefusal::Method { .. }
            | RequestRefusal::MustRefetch { .. }
            | RequestRefusal::BodyUnreadable
            | RequestRefusal::BodyTooSlow
            | RequestRefusal::BodyTooLarge
            | RequestRefusal::QueryTooLong => None,
        }
    }

    fn cache_policy(&self) -> CachePolicy {
        match self {
            RequestRefusal::MustRefetch { handle: Some(_) } => CachePolicy::Replaced,
            RequestRefusal::MustRefetch { handle: None } => CachePolicy::Deleted,
            _ => CachePolicy::Error,
        }
    }

    fn body(&self) -> (HeaderValue, Bytes) {
        let message = match self {
            RequestRefusal::NoRoute => {
                return (
                    HeaderValue::from_static("text/plain; charset=utf-8"),
                    Bytes::from_static(b"Not found"),
                );
            }
            RequestRefusal::MustRefetch { .. } => {
                let body = Bytes::from_static(br#"[{"headers":{"control":"must-refetch"}}]"#);
                return (headers::JSON, body);
            }
            RequestRefusal::Invalid(_) => "Invalid request".into(),
            RequestRefusal::Unauthorized => "Unauthorized - Invalid API secret".into(),
            RequestRefusal::TokenRequired => {
                "Unauthorized - show a token in the header Authorization: Bearer".into()
            }
            RequestRefusal::BadToken { message, .. } | RequestRefusal::BadGrant { message } => {
                message.clone()
            }
            RequestRefusal::NotGranted => "Forbidden - the token doesn't grant this".into(),
            RequestRefusal::ForeignHost => {
                format!("{OWN_NAMES}, as long as it asks for no secret (serve.secret, or serve.insecure)")
                    .into()
            }
            RequestRefusal::NoShape => "Shape not found".into(),
            RequestRefusal::Method { .. } => "Method not allowed".into(),
            RequestRefusal::BodyUnreadable => "Request body couldn't be read".into(),
            RequestRefusal::BodyTooSlow => "Request body took too long".into(),
            RequestRefusal::BodyTooLarge => "Request body too large".into(),
            RequestRefusal::QueryTooLong => {
                "Query string too long: send the parameters in the JSON body of a POST".into()
            }
            RequestRefusal::NotReady { message } | RequestRefusal::SnapshotFailed { message } => {
                message.clone()
            }
            RequestRefusal::Overloaded { kind, limit, .. } => {
                format!("Concurrent {kind} request limit exceeded (limit: {limit}), please retry").into()
            }
            RequestRefusal::DatabaseUnreachable => "Database is unreachable".into(),
        };
        let code = match self {
            RequestRefusal::TokenRequired
            | RequestRefusal::BadToken { .. }
            | RequestRefusal::BadGrant { .. }
            | RequestRefusal::NotGranted
            | RequestRefusal::Overloaded { .. }
            | RequestRefusal::DatabaseUnreachable => Some(self.as_str()),
            _ => None,
        };
        let errors = match self {
            RequestRefusal::Invalid(invalid) => Some(invalid),
            _ => None,
        };
        let body = serde_json::to_vec(&RefusalBody { code, message, errors }).unwrap_or_default();
        (headers::JSON, body.into())
    }
}

impl From<InvalidRequest> for RequestRefusal {
    fn from(invalid: InvalidRequest) -> Self {
        RequestRefusal::Invalid(invalid)
    }
}

/// JSON body of a refusal.
#[derive(Serialize)]
struct RefusalBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<&'a InvalidRequest>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(response: &Response<Bytes>, name: &str) -> Option<String> {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn every_refusal_has_the_status_and_body_of_the_protocol() {
        let not_ready = RequestRefusal::NotReady { message: "starting".into() };
        let snapshot = RequestRefusal::SnapshotFailed { message: "snapshot failed".into() };
        for (refusal, status, body, retry) in [
            (
                RequestRefusal::out_of_bounds(),
                400,
                r#"{"message":"Invalid request","errors":{"offset":["out of bounds for this shape"]}}"#,
                None,
            ),
            (RequestRefusal::Unauthorized, 401, r#"{"message":"Unauthorized - Invalid API secret"}"#, None),
            (RequestRefusal::NoRoute, 404, "Not found", None),
            (RequestRefusal::NoShape, 404, r#"{"message":"Shape not found"}"#, None),
            (RequestRefusal::Method { allow: "GET" }, 405, r#"{"message":"Method not allowed"}"#, None),
            (RequestRefusal::BodyUnreadable, 400, r#"{"message":"Request body couldn't be read"}"#, None),
            (RequestRefusal::BodyTooSlow, 408, r#"{"message":"Request body took too long"}"#, None),
            (RequestRefusal::BodyTooLarge, 413, r#"{"message":"Request body too large"}"#, None),
            (
                RequestRefusal::QueryTooLong,
                414,
                r#"{"message":"Query string too long: send the parameters in the JSON body of a POST"}"#,
                None,
            ),
            (not_ready, 503, r#"{"message":"starting"}"#, Some("5")),
            (
                RequestRefusal::overloaded("initial", 300, 0),
                503,
                r#"{"code":"concurrent_request_limit_exceeded","message":"Concurrent initial request limit exceeded (limit: 300), please retry"}"#,
                Some("6"),
            ),
            (snapshot, 503, r#"{"message":"snapshot failed"}"#, Some("10")),
            (
                RequestRefusal::DatabaseUnreachable,
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
    fn a_409_names_the_handle_of_the_replacement() {
        let moved = RequestRefusal::MustRefetch { handle: Some("1-2".into()) };
        let gone = RequestRefusal::MustRefetch { handle: None };
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
    fn a_405_lists_the_supported_methods() {
        let response = RequestRefusal::Method { allow: "GET, HEAD" }.response(&Method::DELETE);
        assert_eq!(header(&response, "allow").as_deref(), Some("GET, HEAD"));
        assert_eq!(header(&response, "cache-control").as_deref(), Some("no-cache"), "not a GET");
    }

    #[test]
    fn overloaded_clients_get_different_retry_times() {
        let after = |random| {
            header(&RequestRefusal::overloaded("initial", 1, random).response(&Method::GET), "retry-after")
                .unwrap()
        };
        let times: std::collections::BTreeSet<u32> =
            (0..100).map(|random| after(random).parse().unwrap()).collect();
        assert_eq!(times.into_iter().collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
        assert!(!after(u64::MAX).is_empty());
    }
}
