//! Endpoints of the admin address for open streams: lists them, and ends one.
//!
//! Invariant: a request ends a stream only if it has the configured secret as `Authorization:
//! Bearer`, and no `Origin`. Without a configured secret, no request does.
//! Enforced by: [`refuse_end`] is called before [`end`]. Browsers send an `Origin` with each POST,
//! and never send a Bearer header on their own.

use bytes::Bytes;
use forebay_admission::{ThreadId, problem};
use forebay_serve::protocol::decode_hex_pair;
use http::header::{HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;

use crate::secret_guard::{BearerCheck, SecretGuard};
use forebay_admission::directory::{DEFAULT_LIMIT, EndOutcome, MAX_LIMIT, StreamDirectory, is_user_hash};

/// Returns the oldest streams of the cluster. `query` may have a `limit`.
pub(crate) async fn list(directory: &StreamDirectory, query: &str) -> Response<Bytes> {
    let limit = match parameter(query, "limit") {
        None => DEFAULT_LIMIT,
        Some(limit) => match limit.parse() {
            Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => limit,
            Ok(_) | Err(_) => {
                let message = format!("`limit` must be a number from 1 to {MAX_LIMIT}.");
                return problem(StatusCode::BAD_REQUEST, "bad_parameter", &message);
            }
        },
    };
    json(StatusCode::OK, &directory.list(limit).await)
}

/// Returns why a request may not end a stream.
pub(crate) fn refuse_end(headers: &HeaderMap, guard: &SecretGuard) -> Option<Response<Bytes>> {
    if headers.contains_key(ORIGIN) {
        let message = "Requests with an `Origin` end no stream: they come from a web page.";
        return Some(problem(StatusCode::FORBIDDEN, "foreign_origin", message));
    }
    match guard.check_bearer(headers) {
        BearerCheck::Accepted => None,
        BearerCheck::NoSecret => {
            let message = "Ending streams is off: set admin.secret (FOREBAY_ADMIN_SECRET) to turn it on.";
            Some(problem(StatusCode::FORBIDDEN, "ending_is_off", message))
        }
        BearerCheck::Refused => {
            let message = "Show the admin secret as `Authorization: Bearer`.";
            let mut refusal = problem(StatusCode::UNAUTHORIZED, "unauthorized", message);
            let challenge = HeaderValue::from_static("Bearer realm=\"forebay\"");
            refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            Some(refusal)
        }
    }
}

/// Ends the streams that `query` names: `thread_id`, and optionally `user`, a hash.
pub(crate) async fn end(directory: &StreamDirectory, query: &str) -> Response<Bytes> {
    let thread_id = parameter(query, "thread_id").filter(|id| ThreadId::parse(id).is_some());
    let Some(thread_id) = thread_id else {
        let message = "`thread_id` must be the id of a stream, as in /v1/streams.";
        return problem(StatusCode::BAD_REQUEST, "bad_parameter", message);
    };
    let Some(user) = user_hash(query) else {
        let message = "`thread_id` and `user`, a hash of 16 hexadecimal digits, are the only parameters.";
        return problem(StatusCode::BAD_REQUEST, "bad_parameter", message);
    };
    let report = directory.end(&thread_id, user.as_deref()).await;
    match report.outcome() {
        EndOutcome::Ended => json(StatusCode::OK, &report),
        EndOutcome::Ending => json(StatusCode::ACCEPTED, &report),
        EndOutcome::NotFound => {
            problem(StatusCode::NOT_FOUND, "no_such_stream", "No instance has an open stream with this id.")
        }
        EndOutcome::Unknown(why) => {
            let message =
                format!("No instance that answered has a stream with this id, but others may: {why}.");
            problem(StatusCode::SERVICE_UNAVAILABLE, "instances_silent", &message)
        }
    }
}

/// Returns the parameter `user` of a query that ends streams, if it has one. `None` if the query
/// has an invalid, unknown or repeated parameter: it must not end streams of other users.
fn user_hash(query: &str) -> Option<Option<String>> {
    let names: Vec<&str> = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default()).collect();
    let count = |name| names.iter().filter(|found| **found == name).count();
    if count("thread_id") != 1 || count("user") > 1 || names.len() != 1 + count("user") {
        return None;
    }
    if count("user") == 0 {
        return Some(None);
    }
    parameter(query, "user").filter(|user| is_user_hash(user)).map(Some)
}

/// Returns the decoded value of a parameter. `None` if it is missing or isn't UTF-8.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = if *first == b'%' { decode_hex_pair(tail) } else { None };
        let (byte, tail) = escaped.unwrap_or((*first, tail));
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Bytes> {
    let text = serde_json::to_string_pretty(value).expect("a report is text and numbers");
    let mut response = Response::new(Bytes::from(text + "\n"));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    crate::html_page::add_security_headers(headers);
    response
}

#[cfg(test)]
mod tests {
    use forebay_admission::Secret;

    use super::*;

    fn refusal(guard: &SecretGuard, headers: &[(&str, &str)]) -> Option<u16> {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<http::HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        refuse_end(&headers, guard).map(|response| response.status().as_u16())
    }

    #[test]
    fn a_stream_is_ended_only_with_the_secret_as_bearer_and_without_an_origin() {
        let guard = SecretGuard::new(Secret::new("s3cr3t"));
        let bearer = ("authorization", "Bearer s3cr3t");
        assert_eq!(refusal(&guard, &[bearer]), None);
        for origin in ["null", "http://127.0.0.1:3001", "https://example.com", ""] {
            assert_eq!(refusal(&guard, &[bearer, ("origin", origin)]), Some(403), "{origin}");
        }
        assert_eq!(refusal(&guard, &[]), Some(401));
        for wrong in ["Bearer s3cr3", "Basic YW55OnMzY3IzdA==", "s3cr3t"] {
            assert_eq!(refusal(&guard, &[("authorization", wrong)]), Some(401), "{wrong}");
        }
        assert_eq!(refusal(&SecretGuard::new(None), &[bearer]), Some(403), "without a secret, it is off");
    }

    #[test]
    fn a_query_that_is_not_understood_does_not_end_streams_of_all_users() {
        assert_eq!(user_hash("thread_id=a"), Some(None));
        let hash = "0123456789abcdef";
        assert_eq!(user_hash(&format!("thread_id=a&user={hash}")), Some(Some(hash.to_owned())));
        let same = format!("thread_id=a&user={hash}&user={hash}");
        for wrong in
            ["thread_id=a&user", "thread_id=a&user=%ff", "thread_id=a&user=", "thread_id=a&usr=x", &same, ""]
        {
            assert_eq!(user_hash(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let query = "limit=5&thread_id=a%2Fb+%c3%a9%&user=&x";
        assert_eq!(parameter(query, "limit").as_deref(), Some("5"));
        assert_eq!(parameter(query, "thread_id").as_deref(), Some("a/b+é%"));
        assert_eq!(parameter(query, "user").as_deref(), Some(""));
        assert_eq!(parameter(query, "x"), None);
        assert_eq!(parameter("limit=%ff", "limit"), None);
    }
}
