//! Routes of the HTTP API.
//!
//! Invariant: a path has exactly one route. Authentication, CORS and metrics use the route, never
//! the path, so no spelling of a path bypasses them.
//! Enforced by: [`Route::of`] is the only conversion of a path. A request is served only with the
//! route that [`Access::authorize`](super::Access::authorize) returns.

use http::Method;

use super::access::DeletePolicy;
use super::query_params::decode_hex_pair;

/// A route of the HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Shapes.
    Shape,
    /// Health of the instance.
    Health,
    /// Root, for people who open the address in a browser.
    Root,
    /// No route.
    NotFound,
}

impl Route {
    /// All routes that exist.
    pub const ALL: [Route; 3] = [Route::Shape, Route::Health, Route::Root];

    /// Returns the canonical path.
    pub fn path(self) -> &'static str {
        match self {
            Route::Shape => "/v1/shape",
            Route::Health => "/v1/health",
            Route::Root => "/",
            Route::NotFound => "",
        }
    }

    /// Returns the label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Route::Shape => "shape",
            Route::Health => "health",
            Route::Root => "root",
            Route::NotFound => "none",
        }
    }

    /// Returns the route of a path. Segments are decoded once, empty ones are skipped, and dots are
    /// not resolved. So `/v1//shape/` and `/v1/%73hape` are the shape route; `/v1/./shape` and
    /// `/v1%2Fshape` are not.
    pub fn of(path: &str) -> Route {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        match (segments.next(), segments.next(), segments.next()) {
            (None, ..) if path.starts_with('/') => Route::Root,
            (version, name, None) if decodes_to(version, "v1") && decodes_to(name, "shape") => Route::Shape,
            (version, name, None) if decodes_to(version, "v1") && decodes_to(name, "health") => Route::Health,
            _ => Route::NotFound,
        }
    }

    /// Returns the supported methods, as in the header `allow`. Empty for [`Route::NotFound`].
    pub fn methods(self, deletes: DeletePolicy) -> &'static str {
        match (self, deletes) {
            (Route::Shape, DeletePolicy::Allow) => "GET, HEAD, POST, DELETE, OPTIONS",
            (Route::Shape, DeletePolicy::Refuse) => "GET, HEAD, POST, OPTIONS",
            (Route::Health | Route::Root, _) => "GET, HEAD",
            (Route::NotFound, _) => "",
        }
    }

    /// Returns whether the route needs a secret or token. Preflights don't: browsers can't send
    /// one.
    pub(super) fn is_guarded(self, method: &Method) -> bool {
        match self {
            Route::Shape => method != Method::OPTIONS,
            Route::Health | Route::Root | Route::NotFound => false,
        }
    }
}

/// Returns whether a segment decodes to `name`. A plus is not a space in paths.
fn decodes_to(segment: Option<&str>, name: &str) -> bool {
    let Some(segment) = segment else {
        return false;
    };
    let (mut rest, mut name) = (segment.as_bytes(), name.bytes());
    while let [first, tail @ ..] = rest {
        let (byte, tail) = decode_hex_pair(tail).filter(|_| *first == b'%').unwrap_or((*first, tail));
        if name.next() != Some(byte) {
            return false;
        }
        rest = tail;
    }
    name.next().is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_path_has_exactly_one_route() {
        for route in Route::ALL {
            assert_eq!(Route::of(route.path()), route);
        }
        for (path, route) in [
            ("/v1/shape", Route::Shape),
            ("/v1//shape", Route::Shape),
            ("//v1/shape//", Route::Shape),
            ("/v1/%73hape", Route::Shape),
            ("/%76%31/%73%68%61%70%65", Route::Shape),
            ("/v1/health", Route::Health),
            ("/v1/healt%68/", Route::Health),
            ("/", Route::Root),
            ("//", Route::Root),
            ("", Route::NotFound),
            ("*", Route::NotFound),
            ("/v1", Route::NotFound),
            ("/shape", Route::NotFound),
            ("/v1/Shape", Route::NotFound),
            ("/V1/shape", Route::NotFound),
            ("/v1/shape/x", Route::NotFound),
            ("/v1/shapes", Route::NotFound),
            ("/v1/shap", Route::NotFound),
            ("/v1/shape;x", Route::NotFound),
            ("/v1/./shape", Route::NotFound),
            ("/v1/x/../shape", Route::NotFound),
            ("/../v1/shape", Route::NotFound),
            ("/v1%2Fshape", Route::NotFound),
            ("/v1\\\\shape", Route::NotFound),
            ("/v1/%2573hape", Route::NotFound),
            ("/v1/shape%00", Route::NotFound),
            ("/v1/%ff", Route::NotFound),
            ("/v1/shape%", Route::NotFound),
            ("/v1/+shape", Route::NotFound),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    proptest! {
        #[test]
        fn percent_encoding_any_letter_leads_to_the_same_route(mask: u16) {
            let escape = |(at, letter): (usize, char)| match mask >> at & 1 {
                1 if letter != '/' => format!("%{:02X}", u32::from(letter)),
                _ => letter.to_string(),
            };
            let path: String = "/v1/shape".chars().enumerate().map(escape).collect();
            prop_assert_eq!(Route::of(&path), Route::Shape, "{}", path);
        }

        #[test]
        fn no_path_panics_the_router(path in "\\PC*") {
            Route::of(&path);
        }
    }
}
