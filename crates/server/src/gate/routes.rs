//! Which requests are streams, and of which class.
//!
//! Invariant: a path that the upstream could take for a stream's route counts as one, however it is spelt.
//! Kept by: a path is matched in a plain form (escapes decoded, empty and dot segments resolved, parameters after `;` cut
//! off), while the upstream gets the bytes that the client sent. Reading too much as a stream costs a permit; reading too
//! little would be a way around the limits. The class is that of the first route that matches, in this form, too.
//! Not here: anything but pure matching.

use std::fmt;
use std::str::FromStr;

use forebay_admission::Class;
use http::Method;

/// The routes that take a permit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routes(Vec<Route>);

/// One of them: `METHOD PATH [CLASS]`, such as `POST /api/v1/stream`, `* /feeds/*/live/**` or `POST /reports batch`.
///
/// The method `*` is any; `GET` is `HEAD`, too, for which many frameworks run the same handler. A segment `*` is any one
/// segment; `**`, at the end, any number of them, none included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    text: String,
    method: Option<Method>,
    segments: Vec<Segment>,
    /// It ended in `**`.
    open: bool,
    class: Option<Class>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Any,
    Literal(String),
}

impl Routes {
    pub(crate) fn new(routes: Vec<Route>) -> Routes {
        Routes(routes)
    }

    /// Nothing is named: every request takes a permit.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that matches.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        let segments = plain_segments(path);
        self.0.iter().find(|route| route.takes(method) && route.matches(&segments))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }
}

impl Route {
    /// The class of its streams, if it names one.
    pub(crate) fn class(&self) -> Option<&Class> {
        self.class.as_ref()
    }

    fn takes(&self, method: &Method) -> bool {
        match &self.method {
            None => true,
            Some(own) => own == method || (own == Method::GET && method == Method::HEAD),
        }
    }

    fn matches(&self, path: &[String]) -> bool {
        let enough =
            if self.open { path.len() >= self.segments.len() } else { path.len() == self.segments.len() };
        enough
            && self.segments.iter().zip(path).all(|(segment, given)| match segment {
                Segment::Any => true,
                Segment::Literal(literal) => literal == given,
            })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There are neither two words nor three.
    #[error("a route is `METHOD PATH` or `METHOD PATH CLASS`, such as `POST /api/v1/stream`")]
    Words,
    /// The first word is no method.
    #[error("{0:?} is no HTTP method; write it in capitals, or `*` for any")]
    Method(String),
    /// The path is not absolute.
    #[error("the path {0:?} does not begin with `/`")]
    Path(String),
    /// `**` in the middle.
    #[error("`**` may only end a path; use `*` for one segment")]
    OpenMiddle,
}

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Route, RouteError> {
        let mut words = text.split_whitespace();
        let (Some(method), Some(path), class, None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(RouteError::Words);
        };
        let method = match method {
            "*" => None,
            method if method.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                Some(Method::from_str(method).map_err(|_| RouteError::Method(method.to_owned()))?)
            }
            method => return Err(RouteError::Method(method.to_owned())),
        };
        if !path.starts_with('/') {
            return Err(RouteError::Path(path.to_owned()));
        }
        let mut segments = plain_segments(path);
        let open = segments.last().is_some_and(|last| last == "**");
        if open {
            segments.pop();
        }
        if segments.iter().any(|segment| segment == "**") {
            return Err(RouteError::OpenMiddle);
        }
        let segments = segments
            .into_iter()
            .map(|segment| if segment == "*" { Segment::Any } else { Segment::Literal(segment) });
        Ok(Route {
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            method,
            segments: segments.collect(),
            open,
            class: class.map(Class::new),
        })
    }
}

/// A path's segments as the most lenient server would read them.
fn plain_segments(path: &str) -> Vec<String> {
    let mut segments: Vec<String> = Vec::new();
    // Decoded first: an escaped slash may part segments, too.
    for segment in decode(path).split(['/', '\\']) {
        let segment = segment.split_once(';').map_or(segment, |(segment, _)| segment);
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment.to_owned()),
        }
    }
    segments
}

/// Resolves `%XX`, once. What is no UTF-8 then can match no literal.
fn decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &tail[2..];
            }
            None => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn routes(texts: &[&str]) -> Routes {
        Routes::new(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn found(texts: &[&str], method: Method, path: &str) -> bool {
        routes(texts).find(&method, path).is_some()
    }

    #[test]
    fn a_route_is_a_method_and_a_path() {
        let stream = ["POST /api/v1/stream"];
        assert!(found(&stream, Method::POST, "/api/v1/stream"));
        assert!(!found(&stream, Method::GET, "/api/v1/stream"));
        assert!(!found(&stream, Method::POST, "/api/v1"));
        assert!(!found(&stream, Method::POST, "/api/v1/stream/x"));
        assert!(!found(&stream, Method::POST, "/api/v1/streams"));
    }

    #[test]
    fn a_get_route_is_taken_by_head_too() {
        assert!(found(&["GET /live"], Method::HEAD, "/live"));
        assert!(!found(&["POST /live"], Method::HEAD, "/live"));
    }

    #[test]
    fn stars_stand_for_one_segment_or_for_the_rest() {
        assert!(found(&["* /a/*/c"], Method::PUT, "/a/b/c"));
        assert!(!found(&["* /a/*/c"], Method::PUT, "/a/b/b/c"));
        for path in ["/feeds", "/feeds/", "/feeds/a", "/feeds/a/b"] {
            assert!(found(&["GET /feeds/**"], Method::GET, path), "{path}");
        }
        assert!(!found(&["GET /feeds/**"], Method::GET, "/feed"));
        assert!(found(&["* /**"], Method::GET, "/"));
    }

    #[test]
    fn another_spelling_is_no_way_around_the_limits() {
        for path in [
            "/api/v1/%73tream",
            "/api/v1/%73%54ream/../stream",
            "//api/v1//stream",
            "/api/v1/./stream",
            "/api/x/../v1/stream",
            "/../api/v1/stream",
            "/api/v1/stream/",
            "/api/v1/stream;a=b",
            "/api%2Fv1%2fstream",
            "/api\\v1\\stream",
        ] {
            assert!(found(&["POST /api/v1/stream"], Method::POST, path), "{path}");
        }
        assert!(!found(&["POST /api/v1/stream"], Method::POST, "/api/v1/%2573tream"), "decoded once only");
    }

    #[test]
    fn the_first_route_that_matches_says_the_class() {
        let routes = routes(&["POST /a/b", "POST /a/** batch", "* /a/c chat"]);
        let class = |path: &str| routes.find(&Method::POST, path).unwrap().class().map(Class::as_str);
        assert_eq!(class("/a/b"), None);
        assert_eq!(class("/a/%62/"), None, "however it is spelt");
        assert_eq!(class("/a/c"), Some("batch"));
        assert_eq!(routes.find(&Method::GET, "/a/c").unwrap().to_string(), "* /a/c chat");
    }

    #[test]
    fn what_is_no_route_says_so() {
        let parse = |text: &str| text.parse::<Route>().unwrap_err();
        assert_eq!(parse("/api"), RouteError::Words);
        assert_eq!(parse("GET /api a b"), RouteError::Words);
        assert_eq!(parse("get /api"), RouteError::Method("get".into()));
        assert_eq!(parse("GET api"), RouteError::Path("api".into()));
        assert_eq!(parse("GET /a/**/b"), RouteError::OpenMiddle);
        assert_eq!(" GET   /api ".parse::<Route>().unwrap().to_string(), "GET /api");
    }

    proptest! {
        #[test]
        fn no_path_upsets_the_matcher(path in "\\PC*") {
            routes(&["GET /a/*/**"]).find(&Method::GET, &path);
        }

        #[test]
        fn escaping_any_letter_changes_nothing(mask: u16) {
            let path = "/api/v1/stream";
            let escaped: String = path.chars().enumerate().map(|(at, letter)| match mask >> at & 1 {
                1 => format!("%{:02x}", u32::from(letter)),
                _ => letter.to_string(),
            }).collect();
            let escaped = format!("/{escaped}");
            prop_assert!(found(&["POST /api/v1/stream"], Method::POST, &escaped), "{}", escaped);
        }
    }
}
