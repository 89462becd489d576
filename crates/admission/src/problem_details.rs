//! HTTP response of a rejection: status, headers and an `application/problem+json` body (RFC 9457).
//!
//! Invariant: the body also has the members `error`, `message` and `details`. It shows the
//! cluster's usage only to authenticated clients, and a user id only to that user.
//! Enforced by: only [`problem_response`] builds responses, from a [`Rejection`] only.
//! Limits are sent in `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), in
//! the unit `concurrent-requests`.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response};
use serde::Serialize;

use crate::identity::IdentifyError;
use crate::rejection::{Rejection, RejectionReason};
use crate::thread_id::{ThreadId, X_THREAD_ID};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Response body, in the order of serialization.
#[derive(Serialize)]
struct ProblemDetails<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    error: &'static str,
    message: String,
    details: RejectionDetails<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RejectionDetails<'a> {
    Cluster {
        current: u32,
        max: u32,
        user_id: &'a str,
    },
    UserLimit {
        user_id: &'a str,
        current: u32,
        limit: u32,
    },
    Fault {
        reason: &'a str,
    },
    /// For anonymous clients.
    Empty {},
}

/// Builds the response.
pub(crate) fn problem_response(rejection: &Rejection, thread: &ThreadId) -> Response<Bytes> {
    let body = serde_json::to_vec(&problem(rejection)).expect("a problem is text and numbers");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_THREAD_ID, thread.to_header());
    if let Some(seconds) = rejection.retry_after_seconds {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    rate_limits(rejection, headers);
    if let Some(challenge) = rejection.fault.as_ref().and_then(challenge) {
        headers.insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Returns the challenge for wrong credentials, which RFC 9110 requires in every 401. It names only
/// the scheme that the client used; others may be disabled.
fn challenge(fault: &IdentifyError) -> Option<HeaderValue> {
    let bearer = || HeaderValue::from_static("Bearer error=\"invalid_token\"");
    match fault {
        IdentifyError::Token(_) => Some(bearer()),
        IdentifyError::ApiKey { header } if *header == AUTHORIZATION => Some(bearer()),
        // No authentication scheme is registered for keys outside `Authorization`.
        IdentifyError::ApiKey { header } => {
            let challenge = format!("ApiKey header=\"{header}\"");
            Some(HeaderValue::try_from(challenge).expect("a header's name is ASCII"))
        }
        IdentifyError::Ambiguous { .. }
        | IdentifyError::Unreadable { .. }
        | IdentifyError::TooLong { .. }
        | IdentifyError::Id(_) => None,
    }
}

fn problem(rejection: &Rejection) -> ProblemDetails<'_> {
    ProblemDetails {
        r#type: problem_type(rejection.reason),
        title: title(rejection.reason),
        status: rejection.status().as_u16(),
        detail: detail(rejection),
        error: error(rejection.reason),
        message: message(rejection),
        details: details(rejection),
    }
}

/// Returns the problem type. The draft registers types for limits; other reasons have none.
fn problem_type(reason: RejectionReason) -> &'static str {
    match reason {
        RejectionReason::UserLimit => "https://iana.org/assignments/http-problem-types#quota-exceeded",
        RejectionReason::Ended => "about:blank",
        reason if reason.is_server_side() => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        _ => "about:blank",
    }
}

fn title(reason: RejectionReason) -> &'static str {
    match reason {
        RejectionReason::UserLimit => "Too many concurrent connections",
        RejectionReason::Ended => "Stream ended",
        RejectionReason::Credentials => "Unauthorized",
        RejectionReason::BadRequest => "Bad Request",
        RejectionReason::TooLong => "Request Header Fields Too Large",
        _ => "Server at capacity",
    }
}

/// Returns the member `error`.
fn error(reason: RejectionReason) -> &'static str {
    match reason {
        RejectionReason::UserLimit => "too_many_connections",
        RejectionReason::Ended => "stream_ended",
        RejectionReason::Credentials => "invalid_credentials",
        RejectionReason::BadRequest => "bad_request",
        RejectionReason::TooLong => "header_too_large",
        _ => "service_unavailable",
    }
}

fn message(rejection: &Rejection) -> String {
    match (rejection.reason, rejection.count) {
        (RejectionReason::UserLimit, Some((_, limit))) => {
            format!("Too many concurrent connections. Maximum {limit} allowed.")
        }
        (RejectionReason::UserLimit, None) => "Too many concurrent connections.".to_owned(),
        (RejectionReason::Ended, _) => "The stream was ended.".to_owned(),
        (RejectionReason::Credentials, _) => "The credentials are not valid.".to_owned(),
        (RejectionReason::BadRequest | RejectionReason::TooLong, _) => {
            "The request can't be understood.".to_owned()
        }
        _ => "Server at capacity. Please try again later.".to_owned(),
    }
}

/// Returns one sentence about the reason. It contains no usage of the cluster.
fn detail(rejection: &Rejection) -> String {
    if let Some(fault) = &rejection.fault {
        return sentence(&fault.to_string());
    }
    let text = match rejection.reason {
        RejectionReason::UserLimit => {
            "This user has as many streams open as one may have; close one, or wait for one to end."
        }
        RejectionReason::Exhausted => "All streams are in use; open streams go on.",
        RejectionReason::Adaptive => {
            "This server has as many streams open as it can carry at present; open streams go on."
        }
        RejectionReason::Headroom => "What is left is kept for other classes.",
        RejectionReason::WaitTimedOut => "No stream came free in the time that was waited.",
        RejectionReason::WaitFull => "All streams are in use, and too many wait already.",
        RejectionReason::Memory => "This server is short of memory and takes no new streams for now.",
        RejectionReason::Cpu => "This server is short of CPU and takes no new streams for now.",
        RejectionReason::Rebuilding => "The counts are being rebuilt; this server admits no more until then.",
        RejectionReason::StoreDown => "The counts can't be reached, and nothing is admitted without them.",
        RejectionReason::StoreBusy => "Too many wait for the counts.",
        RejectionReason::Ended => "An operator ended this stream before its response.",
        RejectionReason::Draining => "This server is about to stop; another one will take the next try.",
        RejectionReason::Credentials | RejectionReason::BadRequest | RejectionReason::TooLong => {
            "The request can't be understood."
        }
    };
    text.to_owned()
}

/// Makes a sentence of an error text, which is lower case and without a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

fn details(rejection: &Rejection) -> RejectionDetails<'_> {
    if let Some(fault) = &rejection.fault {
        return RejectionDetails::Fault { reason: fault.as_str() };
    }
    let user = rejection.user.as_ref().map(|user| user.id());
    match (rejection.reason, user, rejection.count) {
        (RejectionReason::UserLimit, Some(user_id), Some((current, limit))) => {
            RejectionDetails::UserLimit { user_id, current, limit }
        }
        (_, Some(user_id), Some((current, max))) if rejection.may_see_counts() => {
            RejectionDetails::Cluster { current, max, user_id }
        }
        _ => RejectionDetails::Empty {},
    }
}

fn rate_limits(rejection: &Rejection, headers: &mut HeaderMap) {
    let policy = match rejection.reason {
        RejectionReason::UserLimit => "user",
        RejectionReason::Adaptive => "instance",
        RejectionReason::Ended => return,
        reason if reason.is_server_side() => "total",
        _ => return,
    };
    let seconds = rejection.retry_after_seconds.map(|seconds| format!(";t={seconds}")).unwrap_or_default();
    put(headers, RATE_LIMIT, format!("\"{policy}\";r=0{seconds}"));
    // Without counts, anonymous clients see only that nothing remains.
    let own = rejection.reason == RejectionReason::UserLimit || rejection.may_see_counts();
    if let Some((_, limit)) = rejection.count.filter(|_| own) {
        put(headers, RATE_LIMIT_POLICY, format!("\"{policy}\";q={limit};qu=\"concurrent-requests\""));
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: String) {
    headers.insert(name, HeaderValue::try_from(value).expect("made of ASCII only"));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client_identity::{ClientIdentity, UserId};
    use crate::identity::TokenFault;

    fn user(id: &str) -> Option<UserId> {
        ClientIdentity::user(id).unwrap().user
    }

    fn refused(
        reason: RejectionReason,
        user: Option<UserId>,
        count: Option<(u32, u32)>,
        retry: Option<u32>,
    ) -> Rejection {
        Rejection { count, retry_after_seconds: retry, ..Rejection::new(reason, user) }
    }

    fn body(rejection: &Rejection) -> Value {
        serde_json::from_slice(problem_response(rejection, &ThreadId::random()).body()).unwrap()
    }

    fn header(rejection: &Rejection, name: &str) -> Option<String> {
        let response = problem_response(rejection, &ThreadId::random());
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_503_body_has_error_message_and_details() {
        let full = refused(RejectionReason::Exhausted, user("user-123"), Some((10_000, 10_000)), Some(7));
        let expected = json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Server at capacity",
            "status": 503,
            "detail": "All streams are in use; open streams go on.",
            "error": "service_unavailable",
            "message": "Server at capacity. Please try again later.",
            "details": {"current": 10_000, "max": 10_000, "user_id": "user-123"},
        });
        assert_eq!(body(&full), expected);
        assert_eq!(header(&full, "retry-after").as_deref(), Some("7"));
        assert_eq!(header(&full, "ratelimit").as_deref(), Some("\"total\";r=0;t=7"));
        let policy = "\"total\";q=10000;qu=\"concurrent-requests\"";
        assert_eq!(header(&full, "ratelimit-policy").as_deref(), Some(policy));
        assert_eq!(header(&full, "content-type").as_deref(), Some("application/problem+json"));
    }

    #[test]
    fn the_429_body_has_error_message_and_details() {
        let over_limit = refused(RejectionReason::UserLimit, user("user-123"), Some((3, 3)), Some(12));
        let found = body(&over_limit);
        assert_eq!(found["status"], 429);
        assert_eq!(found["error"], "too_many_connections");
        assert_eq!(found["message"], "Too many concurrent connections. Maximum 3 allowed.");
        assert_eq!(found["details"], json!({"user_id": "user-123", "current": 3, "limit": 3}));
        assert_eq!(header(&over_limit, "ratelimit").as_deref(), Some("\"user\";r=0;t=12"));
        assert_eq!(header(&over_limit, "retry-after").as_deref(), Some("12"));
        let policy = "\"user\";q=3;qu=\"concurrent-requests\"";
        assert_eq!(header(&over_limit, "ratelimit-policy").as_deref(), Some(policy));
    }

    #[test]
    fn the_adaptive_limit_is_a_503_with_a_policy_of_its_own() {
        let full = refused(RejectionReason::Adaptive, user("user-123"), Some((40, 40)), Some(2));
        assert_eq!(body(&full)["error"], "service_unavailable");
        assert_eq!(body(&full)["details"], json!({"current": 40, "max": 40, "user_id": "user-123"}));
        assert_eq!(header(&full, "ratelimit").as_deref(), Some("\"instance\";r=0;t=2"));
        let policy = "\"instance\";q=40;qu=\"concurrent-requests\"";
        assert_eq!(header(&full, "ratelimit-policy").as_deref(), Some(policy));
    }

    #[test]
    fn anonymous_clients_see_no_cluster_usage() {
        let address = ClientIdentity::address("203.0.113.9".parse().unwrap()).user;
        for user in [None, address] {
            let full = refused(RejectionReason::Headroom, user, Some((9_000, 10_000)), Some(3));
            let text = body(&full).to_string();
            assert_eq!(body(&full)["details"], json!({}));
            assert!(!text.contains("9000") && !text.contains("10000"), "{text}");
            assert_eq!(header(&full, "ratelimit").as_deref(), Some("\"total\";r=0;t=3"));
            assert_eq!(header(&full, "ratelimit-policy"), None);
        }
    }

    #[test]
    fn an_address_sees_its_own_counts() {
        let address = ClientIdentity::address("203.0.113.9".parse().unwrap()).user;
        let found = body(&refused(RejectionReason::UserLimit, address, Some((3, 3)), None));
        assert_eq!(found["details"], json!({"user_id": "203.0.113.9", "current": 3, "limit": 3}));
    }

    #[test]
    fn a_bad_token_is_rejected_with_reason_and_challenge() {
        let bad = Rejection::from(IdentifyError::Token(TokenFault::Expired));
        let found = body(&bad);
        assert_eq!((found["status"].as_u64(), &found["error"]), (Some(401), &json!("invalid_credentials")));
        assert_eq!(found["detail"], "The token has expired.");
        assert_eq!(found["details"], json!({"reason": "expired"}));
        assert_eq!(header(&bad, "www-authenticate").as_deref(), Some("Bearer error=\"invalid_token\""));
        assert_eq!(header(&bad, "retry-after"), None);
        assert_eq!(header(&bad, "ratelimit"), None);
    }

    #[test]
    fn a_wrong_key_is_challenged_with_the_scheme_of_its_header() {
        let wrong = |header| Rejection::from(IdentifyError::ApiKey { header });
        let challenge = |header| self::header(&wrong(header), "www-authenticate");
        let key_header = HeaderName::from_static("x-api-key");
        assert_eq!(challenge(key_header).as_deref(), Some("ApiKey header=\"x-api-key\""));
        assert_eq!(challenge(AUTHORIZATION).as_deref(), Some("Bearer error=\"invalid_token\""));
        let ambiguous = Rejection::from(IdentifyError::Ambiguous { header: AUTHORIZATION });
        assert_eq!(header(&ambiguous, "www-authenticate"), None, "a 400 has no challenge");
    }

    #[test]
    fn an_id_cannot_break_the_body_or_a_header() {
        let id = "\"},{\u{202e}<script>é\\";
        let found = body(&refused(RejectionReason::Exhausted, user(id), Some((1, 1)), None));
        assert_eq!(found["details"]["user_id"], id);
    }

    #[test]
    fn every_rejection_is_a_problem_with_its_status_and_thread_id() {
        let thread = ThreadId::parse("thread-7").unwrap();
        for reason in RejectionReason::ALL {
            let response = problem_response(&refused(reason, None, None, None), &thread);
            let found: Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(found["status"], response.status().as_u16(), "{reason:?}");
            assert!(response.status().is_client_error() || response.status().is_server_error());
            for member in ["type", "title", "detail", "error", "message"] {
                assert!(found[member].as_str().is_some_and(|text| !text.is_empty()), "{reason:?} {member}");
            }
            assert!(found["details"].is_object());
            assert_eq!(response.headers()[X_THREAD_ID], "thread-7");
        }
    }
}
