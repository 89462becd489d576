//! Where a path leads, and who may go there.
//!
//! Invariant: whatever leads to a route is checked as that route is: there is one reading of a path, and everything asks for the route, nothing
//! for the path.
//! Kept by: [`Access::enter`] is the only way to a [`Route`] that a server should take.

use forebay_admission::Secret;
use http::Method;

use super::query::{Query, unescaped};
use super::refusal::Refusal;

/// Where a path leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The shapes.
    Shape,
    /// Whether they can be served.
    Health,
    /// For people who open the address.
    Root,
    /// Nowhere.
    NotFound,
}

impl Route {
    /// Those that lead somewhere.
    pub const ALL: [Route; 3] = [Route::Shape, Route::Health, Route::Root];

    /// Where it is, spelled as clients should.
    pub fn path(self) -> &'static str {
        match self {
            Route::Shape => "/v1/shape",
            Route::Health => "/v1/health",
            Route::Root => "/",
            Route::NotFound => "",
        }
    }

    /// For metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Route::Shape => "shape",
            Route::Health => "health",
            Route::Root => "root",
            Route::NotFound => "none",
        }
    }

    /// A path's segments are decoded, once; empty ones don't count; dots are names like any other. So `/v1//shape/` and `/v1/%73hape`
    /// lead to the shape, `/v1/./shape` and `/v1%2Fshape` nowhere.
    pub fn of(path: &str) -> Route {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        match (segments.next(), segments.next(), segments.next()) {
            (None, ..) if path.starts_with('/') => Route::Root,
            (version, name, None) if spells(version, "v1") && spells(name, "shape") => Route::Shape,
            (version, name, None) if spells(version, "v1") && spells(name, "health") => Route::Health,
            _ => Route::NotFound,
        }
    }

    /// The methods that make sense here, as `allow` lists them. None: there is nothing here.
    pub fn methods(self, deletes: bool) -> &'static str {
        match self {
            Route::Shape if deletes => "GET, HEAD, POST, DELETE, OPTIONS",
            Route::Shape => "GET, HEAD, POST, OPTIONS",
            Route::Health | Route::Root => "GET, HEAD",
            Route::NotFound => "",
        }
    }

    /// Whether what is here is shown only to those who know the secret. A browser's preflight can't know it.
    fn is_guarded(self, method: &Method) -> bool {
        match self {
            Route::Shape => method != Method::OPTIONS,
            Route::Health | Route::Root | Route::NotFound => false,
        }
    }
}

/// How far a client is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// To everything.
    All,
    /// As far as its token says, which is still to be looked at.
    Token,
}

/// What the operator allows.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// What opens everything; `None`: nothing has to be shown, or a token.
    pub secret: Option<Secret>,
    /// Whether those who don't show the secret must show a token.
    pub tokens: bool,
    /// Whether clients may delete shapes.
    pub deletes: bool,
    /// Whether it listens on this machine only, and nobody said that whoever comes is served.
    pub is_local: bool,
}

impl Access {
    /// Whether a request for this route has to name this machine by a name of its own. Where nothing has to be shown, that is all that tells
    /// somebody on this machine from a web page that made a name of its own point here.
    pub fn wants_own_name(&self, route: Route) -> bool {
        self.is_local && self.secret.is_none() && !self.tokens && route == Route::Shape
    }

    /// Finds the route of a request that may go there, and how far. A secret that is shown and wrong is refused, with a token or without.
    ///
    /// # Errors
    /// Why it may not: there is no such route, it is guarded, or the method makes no sense. Who doesn't know the secret doesn't
    /// learn what it guards.
    pub fn enter(&self, method: &Method, path: &str, query: &Query) -> Result<(Route, Pass), Refusal> {
        let route = Route::of(path);
        if route == Route::NotFound {
            return Err(Refusal::NoRoute);
        }
        let pass = match (&self.secret, query.secret()) {
            _ if !route.is_guarded(method) => Pass::All,
            (Some(secret), shown) if secret.is(shown) => Pass::All,
            (Some(_), None) | (None, _) if self.tokens => Pass::Token,
            (Some(_), _) => return Err(Refusal::Unauthorized),
            (None, _) => Pass::All,
        };
        let methods = route.methods(self.deletes);
        match methods.split(", ").any(|allowed| allowed == method.as_str()) {
            true => Ok((route, pass)),
            false => Err(Refusal::Method { allow: methods }),
        }
    }
}

/// Whether a segment is this name, once it is decoded. A plus is a plus in paths.
fn spells(segment: Option<&str>, name: &str) -> bool {
    let Some(segment) = segment else {
        return false;
    };
    let (mut rest, mut name) = (segment.as_bytes(), name.bytes());
    while let [first, tail @ ..] = rest {
        let (byte, tail) = unescaped(tail).filter(|_| *first == b'%').unwrap_or((*first, tail));
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

    fn guarded() -> Access {
        Access { secret: Secret::new("s3cret"), tokens: false, deletes: true, is_local: true }
    }

    fn enter(access: &Access, method: &str, target: &str) -> Result<Route, &'static str> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let entered = access.enter(&method, path, &Query::parse(query));
        entered.map(|(route, _)| route).map_err(|refusal| refusal.as_str())
    }

    #[test]
    fn whoever_shows_no_secret_must_show_a_token_where_those_are_required() {
        let pass = |access: &Access, method: Method, query: &str| {
            let entered = access.enter(&method, "/v1/shape", &Query::parse(query));
            entered.map(|(_, pass)| pass).map_err(|refusal| refusal.as_str())
        };
        let both = Access { tokens: true, ..guarded() };
        let tokens = Access { secret: None, ..both.clone() };
        for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
            assert_eq!(pass(&both, method.clone(), "secret=s3cret"), Ok(Pass::All));
            assert_eq!(pass(&both, method.clone(), ""), Ok(Pass::Token));
            assert_eq!(pass(&both, method.clone(), "secret="), Ok(Pass::Token));
            assert_eq!(pass(&both, method.clone(), "secret=wrong"), Err("unauthorized"));
            assert_eq!(pass(&tokens, method.clone(), ""), Ok(Pass::Token));
            assert_eq!(pass(&tokens, method.clone(), "secret=any"), Ok(Pass::Token), "there is none to know");
            assert_eq!(pass(&Access { deletes: true, ..Access::default() }, method, ""), Ok(Pass::All));
        }
        assert_eq!(pass(&both, Method::OPTIONS, ""), Ok(Pass::All), "a preflight can't show one");
    }

    #[test]
    fn every_path_leads_somewhere_or_nowhere() {
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

    #[test]
    fn no_spelling_gets_past_the_secret() {
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
            "there is none"
        );
    }

    #[test]
    fn only_an_open_address_of_this_machine_asks_for_its_own_name() {
        let open = Access { is_local: true, ..Access::default() };
        assert!(open.wants_own_name(Route::Shape) && !open.wants_own_name(Route::Health));
        assert!(!guarded().wants_own_name(Route::Shape));
        assert!(!Access { tokens: true, ..open.clone() }.wants_own_name(Route::Shape));
        assert!(!Access { is_local: false, ..open }.wants_own_name(Route::Shape));
    }

    #[test]
    fn methods_are_those_of_the_route() {
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
        assert_eq!(enter(&Access { deletes: true, ..open }, "DELETE", "/v1/shape"), Ok(Route::Shape));
    }

    proptest! {
        #[test]
        fn escaping_any_letter_changes_nothing(mask: u16) {
            let escape = |(at, letter): (usize, char)| match mask >> at & 1 {
                1 if letter != '/' => format!("%{:02X}", u32::from(letter)),
                _ => letter.to_string(),
            };
            let path: String = "/v1/shape".chars().enumerate().map(escape).collect();
            prop_assert_eq!(Route::of(&path), Route::Shape, "{}", path);
        }

        #[test]
        fn no_path_upsets_the_router(path in "\\PC*") {
            Route::of(&path);
        }
    }
}
