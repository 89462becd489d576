//! Fixed responses: health, preflight, and others without data.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::cache_policy::{CachePolicy, CacheTimes};
use super::{cors, headers};

/// Whether this instance can serve shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The instance can serve shapes, or it is scaled to zero and wakes for a request.
    Active,
    /// Another instance holds the lock.
    Waiting,
    /// The instance is not ready yet.
    Starting,
}

impl Health {
    /// Returns the status in the response body.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Active => "active",
            Health::Waiting => "waiting",
            Health::Starting => "starting",
        }
    }

    /// Returns the response of the health route. Caches must not store it, because the status can
    /// change at any time.
    pub fn response(self) -> Response<Bytes> {
        let status = match self {
            Health::Active => StatusCode::OK,
            Health::Waiting | Health::Starting => StatusCode::ACCEPTED,
        };
        let mut response =
            response_with(status, Bytes::from(format!("{{\"status\":\"{}\"}}", self.as_str())));
        response.headers_mut().insert(CONTENT_TYPE, headers::JSON);
        let never = HeaderValue::from_static("no-cache, no-store, must-revalidate");
        response.headers_mut().insert(CACHE_CONTROL, never);
        response
    }
}

/// Returns the response to `GET /`.
pub fn root() -> Response<Bytes> {
    response_with(StatusCode::OK, Bytes::new())
}

/// Returns the response to OPTIONS.
pub fn preflight(request: &HeaderMap) -> Response<Bytes> {
    let mut response = response_with(StatusCode::NO_CONTENT, Bytes::new());
    cors::write_preflight(request, response.headers_mut());
    response
}

/// Returns the response to a DELETE of an existing shape.
pub fn deleted() -> Response<Bytes> {
    response_with(StatusCode::ACCEPTED, Bytes::new())
}

/// Returns the response to a client that already has the data, without headers. The caller adds
/// those of the full response.
pub fn not_modified() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn response_with(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    CachePolicy::NoCache.write(&CacheTimes::default(), response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_responses_are_never_stored_by_caches() {
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
    fn a_preflight_allows_every_requested_header() {
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
    fn the_other_fixed_responses_have_no_body() {
        for (response, status) in [(root(), 200), (deleted(), 202), (not_modified(), 304)] {
            assert_eq!(response.status(), status);
            assert!(response.body().is_empty());
        }
        assert_eq!(deleted().headers()[CACHE_CONTROL], "no-cache");
    }
}
