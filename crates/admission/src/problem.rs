//! The answer to whom we refuse: a status, headers, and a body that a program and a person can read.
//!
//! Invariant: the body is `application/problem+json` (RFC 9457) with the seed's members `error`, `message` and `details` in it;
//! how full the whole house is, the anonymous never read; a user reads his own id and nobody else's.
//! Kept by: [`answer`] is the only function that makes one, out of a [`Rejection`] alone.
//! The limits are told in the fields `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, with the unit
//! `concurrent-requests`.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response};
use serde::Serialize;

use crate::identity::Unidentified;
use crate::rejection::{Reason, Rejection};
use crate::thread_id::{ThreadId, X_THREAD_ID};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The body, in the order in which it is written.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    error: &'static str,
    message: String,
    details: Details<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Details<'a> {
    House {
        current: u32,
        max: u32,
        user_id: &'a str,
    },
    User {
        user_id: &'a str,
        current: u32,
        limit: u32,
    },
    Fault {
        reason: &'a str,
    },
    /// To the anonymous.
    Nothing {},
}

/// The whole answer.
pub(crate) fn answer(rejection: &Rejection, thread: &ThreadId) -> Response<Bytes> {
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

/// What to answer a wrong credential with (RFC 9110 wants a challenge in every 401): the way that it came by, and no other,
/// which may not even be open.
fn challenge(fault: &Unidentified) -> Option<HeaderValue> {
    let bearer = || HeaderValue::from_static("Bearer error=\"invalid_token\"");
    match fault {
        Unidentified::Token(_) => Some(bearer()),
        Unidentified::ApiKey { header } if *header == AUTHORIZATION => Some(bearer()),
        // No scheme is registered for keys in a header of their own.
        Unidentified::ApiKey { header } => {
            let challenge = format!("ApiKey header=\"{header}\"");
            Some(HeaderValue::try_from(challenge).expect("a header's name is ASCII"))
        }
        Unidentified::Ambiguous { .. }
        | Unidentified::Unreadable { .. }
        | Unidentified::TooLong { .. }
        | Unidentified::Id(_) => None,
    }
}

fn problem(rejection: &Rejection) -> Problem<'_> {
    Problem {
        r#type: kind(rejection.reason),
        title: title(rejection.reason),
        status: rejection.status().as_u16(),
        detail: detail(rejection),
        error: error(rejection.reason),
        message: message(rejection),
        details: details(rejection),
    }
}

/// The types are those that the draft registers; what is not about limits has none of its own.
fn kind(reason: Reason) -> &'static str {
    match reason {
        Reason::UserLimit => "https://iana.org/assignments/http-problem-types#quota-exceeded",
        reason if reason.is_ours() => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        _ => "about:blank",
    }
}

fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::UserLimit => "Too many concurrent connections",
        Reason::Credentials => "Unauthorized",
        Reason::BadRequest => "Bad Request",
        Reason::TooLong => "Request Header Fields Too Large",
        _ => "Server at capacity",
    }
}

/// The seed's names for its two cases, and names in their manner for ours.
fn error(reason: Reason) -> &'static str {
    match reason {
        Reason::UserLimit => "too_many_connections",
        Reason::Credentials => "invalid_credentials",
        Reason::BadRequest => "bad_request",
        Reason::TooLong => "header_too_large",
        _ => "service_unavailable",
    }
}

fn message(rejection: &Rejection) -> String {
    match (rejection.reason, rejection.count) {
        (Reason::UserLimit, Some((_, limit))) => {
            format!("Too many concurrent connections. Maximum {limit} allowed.")
        }
        (Reason::UserLimit, None) => "Too many concurrent connections.".to_owned(),
        (Reason::Credentials, _) => "The credentials are not valid.".to_owned(),
        (Reason::BadRequest | Reason::TooLong, _) => "The request can't be understood.".to_owned(),
        _ => "Server at capacity. Please try again later.".to_owned(),
    }
}

/// What happened, in one sentence. Numbers of the house only to those who are known.
fn detail(rejection: &Rejection) -> String {
    if let Some(fault) = &rejection.fault {
        return sentence(&fault.to_string());
    }
    let text = match rejection.reason {
        Reason::UserLimit => {
            "This user has as many streams open as one may have; close one, or wait for one to end."
        }
        Reason::Exhausted => "All streams are in use; open streams go on.",
        Reason::Headroom => "What is left is kept for other classes.",
        Reason::WaitedInVain => "No stream came free in the time that was waited.",
        Reason::WaitFull => "All streams are in use, and too many wait already.",
        Reason::Memory => "This server is short of memory and takes no new streams for now.",
        Reason::Cpu => "This server is short of CPU and takes no new streams for now.",
        Reason::Rebuilding => "The counts are being rebuilt; nothing new is admitted until then.",
        Reason::StoreDown => "The counts can't be reached, and nothing is admitted without them.",
        Reason::StoreBusy => "Too many wait for the counts.",
        Reason::Draining => "This server is about to stop; another one will take the next try.",
        Reason::Credentials | Reason::BadRequest | Reason::TooLong => "The request can't be understood.",
    };
    text.to_owned()
}

/// Our errors are lower case and without a full stop; this is prose.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

fn details(rejection: &Rejection) -> Details<'_> {
    if let Some(fault) = &rejection.fault {
        return Details::Fault { reason: fault.as_str() };
    }
    let user = rejection.user.as_ref().map(|user| user.id());
    match (rejection.reason, user, rejection.count) {
        (Reason::UserLimit, Some(user_id), Some((current, limit))) => {
            Details::User { user_id, current, limit }
        }
        (_, Some(user_id), Some((current, max))) if rejection.tells_counts() => {
            Details::House { current, max, user_id }
        }
        _ => Details::Nothing {},
    }
}

fn rate_limits(rejection: &Rejection, headers: &mut HeaderMap) {
    let policy = match rejection.reason {
        Reason::UserLimit => "user",
        reason if reason.is_ours() => "total",
        _ => return,
    };
    let seconds = rejection.retry_after_seconds.map(|seconds| format!(";t={seconds}")).unwrap_or_default();
    put(headers, RATE_LIMIT, format!("\"{policy}\";r=0{seconds}"));
    // Without a number of their own, the anonymous learn only that nothing remains.
    let own = rejection.reason == Reason::UserLimit || rejection.tells_counts();
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
    use crate::identity::TokenFault;
    use crate::visitor::{User, Visitor};

    fn user(id: &str) -> Option<User> {
        Visitor::user(id).unwrap().user
    }

    fn refused(
        reason: Reason,
        user: Option<User>,
        count: Option<(u32, u32)>,
        retry: Option<u32>,
    ) -> Rejection {
        Rejection { count, retry_after_seconds: retry, ..Rejection::new(reason, user) }
    }

    fn body(rejection: &Rejection) -> Value {
        serde_json::from_slice(answer(rejection, &ThreadId::random()).body()).unwrap()
    }

    fn header(rejection: &Rejection, name: &str) -> Option<String> {
        let answer = answer(rejection, &ThreadId::random());
        answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_503_has_the_seeds_members_inside_a_problem() {
        let full = refused(Reason::Exhausted, user("user-123"), Some((10_000, 10_000)), Some(7));
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
    fn the_429_has_the_seeds_members_inside_a_problem() {
        let greedy = refused(Reason::UserLimit, user("user-123"), Some((3, 3)), Some(12));
        let found = body(&greedy);
        assert_eq!(found["status"], 429);
        assert_eq!(found["error"], "too_many_connections");
        assert_eq!(found["message"], "Too many concurrent connections. Maximum 3 allowed.");
        assert_eq!(found["details"], json!({"user_id": "user-123", "current": 3, "limit": 3}));
        assert_eq!(header(&greedy, "ratelimit").as_deref(), Some("\"user\";r=0;t=12"));
        assert_eq!(header(&greedy, "retry-after").as_deref(), Some("12"));
        let policy = "\"user\";q=3;qu=\"concurrent-requests\"";
        assert_eq!(header(&greedy, "ratelimit-policy").as_deref(), Some(policy));
    }

    #[test]
    fn the_anonymous_read_no_global_counts() {
        let address = Visitor::address("203.0.113.9".parse().unwrap()).user;
        for nobody in [None, address] {
            let full = refused(Reason::Headroom, nobody, Some((9_000, 10_000)), Some(3));
            let text = body(&full).to_string();
            assert_eq!(body(&full)["details"], json!({}));
            assert!(!text.contains("9000") && !text.contains("10000"), "{text}");
            assert_eq!(header(&full, "ratelimit").as_deref(), Some("\"total\";r=0;t=3"));
            assert_eq!(header(&full, "ratelimit-policy"), None);
        }
    }

    #[test]
    fn an_address_reads_its_own_counts() {
        let address = Visitor::address("203.0.113.9".parse().unwrap()).user;
        let found = body(&refused(Reason::UserLimit, address, Some((3, 3)), None));
        assert_eq!(found["details"], json!({"user_id": "203.0.113.9", "current": 3, "limit": 3}));
    }

    #[test]
    fn a_bad_token_is_told_why_and_challenged() {
        let bad = Rejection::from(Unidentified::Token(TokenFault::Expired));
        let found = body(&bad);
        assert_eq!((found["status"].as_u64(), &found["error"]), (Some(401), &json!("invalid_credentials")));
        assert_eq!(found["detail"], "The token has expired.");
        assert_eq!(found["details"], json!({"reason": "expired"}));
        assert_eq!(header(&bad, "www-authenticate").as_deref(), Some("Bearer error=\"invalid_token\""));
        assert_eq!(header(&bad, "retry-after"), None);
        assert_eq!(header(&bad, "ratelimit"), None);
    }

    #[test]
    fn a_wrong_key_is_challenged_by_the_way_that_it_came() {
        let wrong = |header| Rejection::from(Unidentified::ApiKey { header });
        let challenge = |header| self::header(&wrong(header), "www-authenticate");
        let own = HeaderName::from_static("x-api-key");
        assert_eq!(challenge(own).as_deref(), Some("ApiKey header=\"x-api-key\""));
        assert_eq!(challenge(AUTHORIZATION).as_deref(), Some("Bearer error=\"invalid_token\""));
        let ambiguous = Rejection::from(Unidentified::Ambiguous { header: AUTHORIZATION });
        assert_eq!(header(&ambiguous, "www-authenticate"), None, "which is no 401");
    }

    #[test]
    fn an_id_can_break_neither_the_body_nor_a_header() {
        let id = "\"},{\u{202e}<script>é\\";
        let found = body(&refused(Reason::Exhausted, user(id), Some((1, 1)), None));
        assert_eq!(found["details"]["user_id"], id);
    }

    #[test]
    fn every_refusal_is_a_problem_that_names_its_status_and_the_thread() {
        let thread = ThreadId::parse("thread-7").unwrap();
        for reason in Reason::ALL {
            let answer = answer(&refused(reason, None, None, None), &thread);
            let found: Value = serde_json::from_slice(answer.body()).unwrap();
            assert_eq!(found["status"], answer.status().as_u16(), "{reason:?}");
            assert!(answer.status().is_client_error() || answer.status().is_server_error());
            for member in ["type", "title", "detail", "error", "message"] {
                assert!(found[member].as_str().is_some_and(|text| !text.is_empty()), "{reason:?} {member}");
            }
            assert!(found["details"].is_object());
            assert_eq!(answer.headers()[X_THREAD_ID], "thread-7");
        }
    }
}
