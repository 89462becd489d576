//! Answers that are always the same.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::caching::{CacheTimes, Caching};
use super::{cors, headers};

/// Whether shapes can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// They can, also if everything sleeps and would wake for a request.
    Active,
    /// Another instance has the lock.
    Waiting,
    /// Not yet.
    Starting,
}

impl Health {
    /// As programs have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Active => "active",
            Health::Waiting => "waiting",
            Health::Starting => "starting",
        }
    }

    /// Never kept: what was true a moment ago helps nobody.
    pub fn response(self) -> Response<Bytes> {
        let status = match self {
            Health::Active => StatusCode::OK,
            Health::Waiting | Health::Starting => StatusCode::ACCEPTED,
        };
        let mut response = with(status, Bytes::from(format!("{{\"status\":\"{}\"}}", self.as_str())));
        response.headers_mut().insert(CONTENT_TYPE, headers::JSON);
        let never = HeaderValue::from_static("no-cache, no-store, must-revalidate");
        response.headers_mut().insert(CACHE_CONTROL, never);
        response
    }
}

/// To `GET /`.
pub fn root() -> Response<Bytes> {
    with(StatusCode::OK, Bytes::new())
}

/// To OPTIONS.
pub fn preflight(request: &HeaderMap) -> Response<Bytes> {
    let mut response = with(StatusCode::NO_CONTENT, Bytes::new());
    cors::write_preflight(request, response.headers_mut());
    response
}

/// To a DELETE of a shape that was there.
pub fn deleted() -> Response<Bytes> {
    with(StatusCode::ACCEPTED, Bytes::new())
}

/// To a client that has the answer already. Its head says all that the whole answer's would.
pub fn not_modified() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn with(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    Caching::Own.write(&CacheTimes::default(), response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_told_and_never_kept() {
        for (health, status, body) in [
            (Health::Active, 200, r#"{"status":"active"}"#),
            (Health::Waiting, 202, r#"{"status":"waiting"}"#),
            (Health::Starting, 202, r#"{"status":"starting"}"#),
        ] {
            let response = health.response();
            assert_eq!((response.status().as_u16(), &response.body()[..]), (status, body.as_bytes()));
            assert_eq!(response.headers()[CACHE_CONTROL], "no-cache, no-store, must-revalidate");
            assert_eq!(response.headers()[CONTENT_TYPE], "application/json; charset=utf-8");
        }
    }

    #[test]
    fn a_preflight_allows_what_a_page_wants_to_send() {
        let mut request = HeaderMap::new();
        let names = HeaderValue::from_static("authorization,content-type");
        request.insert("access-control-request-headers", names);
        let response = preflight(&request);
        assert_eq!(response.status(), 204);
        assert_eq!(response.headers()["access-control-max-age"], "86400");
        assert_eq!(response.headers()["access-control-allow-headers"], "authorization,content-type");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        assert!(!preflight(&HeaderMap::new()).headers().contains_key("access-control-allow-headers"));
    }

    #[test]
    fn the_others_are_empty() {
        for (response, status) in [(root(), 200), (deleted(), 202), (not_modified(), 304)] {
            assert_eq!(response.status(), status);
            assert!(response.body().is_empty());
        }
        assert_eq!(deleted().headers()[CACHE_CONTROL], "no-cache");
    }
}
