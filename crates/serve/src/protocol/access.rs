//! Access rules: which requests may use a route.
//!
//! Invariant: no request reaches the shape route without the secret or a token, if one is required.
//! Preflights (OPTIONS) need none.
//! Enforced by: [`Access::authorize`] resolves the route first, so no spelling of a path bypasses
//! it. A wrong secret is refused before the method is checked. A token is verified after it.

use forebay_admission::Secret;
use http::Method;

use super::query_params::QueryParams;
use super::request_refusal::RequestRefusal;
use super::route::Route;

/// How much a client may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessLevel {
    /// Everything.
    Full,
    /// What its token grants. The token isn't verified yet.
    Token,
}

/// Whether clients may delete shapes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The shape route doesn't support DELETE.
    #[default]
    Refuse,
    /// Clients with full access may delete shapes.
    Allow,
}

/// Access rules that the operator configures.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Secret that grants full access. `None`: no secret is required.
    pub secret: Option<Secret>,
    /// Whether clients without the secret need a token.
    pub tokens: bool,
    /// Whether clients may delete shapes.
    pub deletes: DeletePolicy,
    /// Whether the server listens on a loopback address and `insecure` isn't set.
    pub is_local: bool,
}

impl Access {
    /// Returns whether a request must use a `Host` name of this machine.
    ///
    /// This prevents DNS rebinding: a web page whose domain resolves to this machine. Without a
    /// secret or token, only `Host` distinguishes such a page from a local client.
    pub fn requires_local_host(&self, route: Route) -> bool {
        self.is_local && self.secret.is_none() && !self.tokens && route == Route::Shape
    }

    /// Returns the route of a request and the access level. A wrong secret is refused, even with a
    /// token.
    ///
    /// # Errors
    /// If the path has no route, the secret is missing or wrong, or the method isn't supported, in
    /// this order.
    pub fn authorize(
        &self,
        method: &Method,
        path: &str,
        query: &QueryParams,
    ) -> Result<(Route, AccessLevel), RequestRefusal> {
        let route = Route::of(path);
        if route == Route::NotFound {
            return Err(RequestRefusal::NoRoute);
        }
        let level = match (&self.secret, query.secret()) {
            _ if !route.is_guarded(method) => AccessLevel::Full,
            (Some(secret), shown) if secret.is(shown) => AccessLevel::Full,
            (Some(_), None) | (None, _) if self.tokens => AccessLevel::Token,
            (Some(_), _) => return Err(RequestRefusal::Unauthorized),
            (None, _) => AccessLevel::Full,
        };
        let methods = route.methods(self.deletes);
        match methods.split(", ").any(|allowed| allowed == method.as_str()) {
            true => Ok((route, level)),
            false => Err(RequestRefusal::Method { allow: methods }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded() -> Access {
        Access { secret: Secret::new("s3cret"), tokens: false, deletes: DeletePolicy::Allow, is_local: true }
    }

    fn enter(access: &Access, method: &str, target: &str) -> Result<Route, &'static str> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let entered = access.authorize(&method, path, &QueryParams::parse(query));
        entered.map(|(route, _)| route).map_err(|refusal| refusal.as_str())
    }

    #[test]
    fn clients_without_the_secret_need_a_token_where_tokens_are_required() {
        let level = |access: &Access, method: Method, query: &str| {
            let entered = access.authorize(&method, "/v1/shape", &QueryParams::parse(query));
            entered.map(|(_, level)| level).map_err(|refusal| refusal.as_str())
        };
        let both = Access { tokens: true, ..guarded() };
        let tokens = Access { secret: None, ..both.clone() };
        for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
            assert_eq!(level(&both, method.clone(), "secret=s3cret"), Ok(AccessLevel::Full));
            assert_eq!(level(&both, method.clone(), ""), Ok(AccessLevel::Token));
            assert_eq!(level(&both, method.clone(), "secret="), Ok(AccessLevel::Token));
            assert_eq!(level(&both, method.clone(), "secret=wrong"), Err("unauthorized"));
            assert_eq!(level(&tokens, method.clone(), ""), Ok(AccessLevel::Token));
            assert_eq!(
                level(&tokens, method.clone(), "secret=any"),
                Ok(AccessLevel::Token),
                "no secret is configured"
            );
            assert_eq!(
                level(&Access { deletes: DeletePolicy::Allow, ..Access::default() }, method, ""),
                Ok(AccessLevel::Full)
            );
        }
        assert_eq!(
            level(&both, Method::OPTIONS, ""),
            Ok(AccessLevel::Full),
            "a preflight can't send a secret"
        );
    }

    #[test]
    fn no_spelling_of_a_path_bypasses_the_secret() {
        for path in ["/v1/shape", "/v1//shape", "/v1/%73hape", "//v1/shape/", "/%76%31/shape"] {
            for method in ["GET", "HEAD", "POST", "DELETE", "PUT", "BREW"] {
                let ask = |query: &str| enter(&guarded(), method, &format!("{path}{query}"));
                assert_eq!(ask(""), Err("unauthorized"), "{method} {path}");
                assert_eq!(ask("?secret=wrong"), Err("unauthorized"), "{method} {path}");
                assert_ne!(ask("?secret=s3cret"), Err("unauthorized"), "{method} {path}");
                assert_ne!(ask("?api_secret=s3cret"), Err("unauthorized"), "{method} {path}");
            }
        }
    }

    #[test]
    fn preflights_and_health_need_no_secret() {
        assert_eq!(enter(&guarded(), "OPTIONS", "/v1/shape"), Ok(Route::Shape));
        assert_eq!(enter(&guarded(), "GET", "/v1/health"), Ok(Route::Health));
        assert_eq!(enter(&guarded(), "GET", "/"), Ok(Route::Root));
        assert_eq!(
            enter(&Access::default(), "GET", "/v1/shape?secret=any"),
            Ok(Route::Shape),
            "no secret is configured"
        );
    }

    #[test]
    fn only_an_open_loopback_address_requires_a_local_host() {
        let open = Access { is_local: true, ..Access::default() };
        assert!(open.requires_local_host(Route::Shape) && !open.requires_local_host(Route::Health));
        assert!(!guarded().requires_local_host(Route::Shape));
        assert!(!Access { tokens: true, ..open.clone() }.requires_local_host(Route::Shape));
        assert!(!Access { is_local: false, ..open }.requires_local_host(Route::Shape));
    }

    #[test]
    fn each_route_has_its_own_methods() {
        let open = Access::default();
        for (method, path, expected) in [
            ("GET", "/v1/shape", Ok(Route::Shape)),
            ("HEAD", "/v1/shape", Ok(Route::Shape)),
            ("POST", "/v1/shape", Ok(Route::Shape)),
            ("OPTIONS", "/v1/shape", Ok(Route::Shape)),
            ("DELETE", "/v1/shape", Err("method_not_allowed")),
            ("PUT", "/v1/shape", Err("method_not_allowed")),
            ("get", "/v1/shape", Err("method_not_allowed")),
            ("HEAD", "/", Ok(Route::Root)),
            ("POST", "/", Err("method_not_allowed")),
            ("HEAD", "/v1/health", Ok(Route::Health)),
            ("DELETE", "/v1/health", Err("method_not_allowed")),
            ("PUT", "/v1/nothing", Err("not_found")),
        ] {
            assert_eq!(enter(&open, method, path), expected, "{method} {path}");
        }
        assert_eq!(
            enter(&Access { deletes: DeletePolicy::Allow, ..open }, "DELETE", "/v1/shape"),
            Ok(Route::Shape)
        );
    }
}
