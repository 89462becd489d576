//! CORS headers: what pages of other origins may read.
//!
//! Invariant: every response of every route has CORS headers, errors included. Otherwise a script
//! couldn't read why its request was refused. No response allows credentials (cookies): clients
//! send a secret as a parameter, or a token in `authorization`.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};

use super::headers::EXPOSED;
use super::route::Route;

/// How long a browser may cache a preflight response, in seconds: one day.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("86400");

/// Writes the CORS headers of a response.
pub fn write(route: Route, request: &HeaderMap, response: &mut HeaderMap) {
    let mut origins = request.get_all(ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (Some(origin), None) => {
            // Without `vary`, a cache would send a page the allowed origin of another page.
            response.append(VARY, HeaderValue::from_static("origin"));
            origin.clone()
        }
        (None, _) | (_, Some(_)) => HeaderValue::from_static("*"),
    };
    let methods = match route {
        Route::Shape => "GET, POST, HEAD, DELETE, OPTIONS",
        Route::Health | Route::Root | Route::NotFound => "GET, HEAD",
    };
    response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    response.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
}

/// Writes the additional headers of a preflight response. A page may send any header, such as
/// `content-type`, `authorization`, or one that a proxy requires.
pub(super) fn write_preflight(request: &HeaderMap, response: &mut HeaderMap) {
    response.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    for names in request.get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        response.append(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(origins: &[&'static str]) -> HeaderMap {
        let (mut request, mut response) = (HeaderMap::new(), HeaderMap::new());
        for origin in origins {
            request.append(ORIGIN, HeaderValue::from_static(origin));
        }
        write(Route::Shape, &request, &mut response);
        response
    }

    #[test]
    fn a_single_origin_is_echoed_with_vary() {
        let headers = response(&["https://a.example"]);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(headers[VARY], "origin");
        for origins in [&[][..], &["https://a.example", "https://b.example"]] {
            let headers = response(origins);
            assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
            assert!(!headers.contains_key(VARY));
        }
    }

    #[test]
    fn vary_keeps_its_other_values() {
        let mut request = HeaderMap::new();
        request.insert(ORIGIN, HeaderValue::from_static("https://a.example"));
        let mut headers = HeaderMap::new();
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        write(Route::Shape, &request, &mut headers);
        assert_eq!(headers.get_all(VARY).iter().collect::<Vec<_>>(), ["accept-encoding", "origin"]);
    }

    #[test]
    fn cors_exposes_the_headers_and_methods_of_the_route() {
        let headers = response(&[]);
        assert_eq!(headers[ACCESS_CONTROL_EXPOSE_HEADERS], EXPOSED);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_METHODS], "GET, POST, HEAD, DELETE, OPTIONS");
        let mut health = HeaderMap::new();
        write(Route::Health, &HeaderMap::new(), &mut health);
        assert_eq!(health[ACCESS_CONTROL_ALLOW_METHODS], "GET, HEAD");
    }
}
