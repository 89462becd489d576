//! Which requests are streams, and of which class.
//!
//! Invariant: a path that the upstream could take for a stream's route counts as one, however it is spelt.
//! Kept by: the upstream gets the bytes that the client sent, and nobody knows how it reads them; so a path is matched in
//! every way in which servers read one ([`Reading`]), and any match counts. Reading too much as a stream costs a permit;
//! reading too little would be a way around the limits. Of one reading the first route that matches says the class; where
//! readings differ, the class with the smallest share holds.
//! Not here: anything but pure matching.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use forebay_admission::Class;
use http::Method;

/// The routes that take a permit, each with the share of its class in percent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routes(Vec<(Route, u8)>);

/// One of them: `METHOD PATH [CLASS]`, such as `POST /api/v1/stream`, `* /feeds/*/live/**` or `POST /reports batch`.
///
/// The method `*` is any; `GET` is `HEAD`, too, for which many frameworks run the same handler. A segment `*` is any one
/// segment; `**`, at the end, any number of them, none included. Upper and lower case are one, as they are to Express and
/// ASP.NET.
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
    pub(crate) fn new(routes: Vec<(Route, u8)>) -> Routes {
        Routes(routes)
    }

    /// Nothing is named: every request takes a permit.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that matches; where the path can be read in several ways, of those first ones the one with the smallest
    /// share.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        let decoded = decode(path);
        let first = |reading: Reading| {
            let segments = reading.segments(path, &decoded);
            self.0.iter().find(|(route, _)| route.takes(method) && route.matches(&segments))
        };
        let found = Reading::all_of(path, &decoded).filter_map(first).min_by_key(|(_, share)| *share);
        found.map(|(route, _)| route)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter().map(|(route, _)| route)
    }
}

impl Route {
    /// The class of its streams, if it names one.
    pub fn class(&self) -> Option<&Class> {
        self.class.as_ref()
    }

    /// Its path, as it was written.
    pub fn path(&self) -> &str {
        self.text.split_whitespace().nth(1).unwrap_or_default()
    }

    fn takes(&self, method: &Method) -> bool {
        match &self.method {
            None => true,
            Some(own) => own == method || (own == Method::GET && method == Method::HEAD),
        }
    }

    fn matches(&self, path: &[Cow<'_, str>]) -> bool {
        let enough =
            if self.open { path.len() >= self.segments.len() } else { path.len() == self.segments.len() };
        enough
            && self.segments.iter().zip(path).all(|(segment, given)| match segment {
                Segment::Any => true,
                Segment::Literal(literal) => literal.eq_ignore_ascii_case(given),
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
        let decoded = decode(path);
        let mut segments = Reading::LENIENT.segments(path, &decoded);
        let open = segments.last().is_some_and(|last| last == "**");
        if open {
            segments.pop();
        }
        if segments.iter().any(|segment| segment == "**") {
            return Err(RouteError::OpenMiddle);
        }
        let segments = segments.into_iter().map(|segment| match &*segment {
            "*" => Segment::Any,
            _ => Segment::Literal(segment.into_owned()),
        });
        Ok(Route {
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            method,
            segments: segments.collect(),
            open,
            class: class.map(Class::new),
        })
    }
}

/// How a server may read a path, before it looks for a route: which of these steps it takes. Each is common, and no two
/// depend on each other.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// An escaped slash parts segments, too.
    decode_first: bool,
    split_backslashes: bool,
    /// Those that begin with `;`, in each segment.
    cut_parameters: bool,
    skip_empty: bool,
    resolve_dots: bool,
}

impl Reading {
    const WAYS: u8 = 1 << 5;
    /// Takes every step.
    const LENIENT: Reading = Reading::number(Reading::WAYS - 1);

    const fn number(bits: u8) -> Reading {
        Reading {
            decode_first: bits & 1 != 0,
            split_backslashes: bits & 2 != 0,
            cut_parameters: bits & 4 != 0,
            skip_empty: bits & 8 != 0,
            resolve_dots: bits & 16 != 0,
        }
    }

    /// The ways to read this path that may differ; for most paths, one.
    fn all_of(path: &str, decoded: &str) -> impl Iterator<Item = Reading> {
        let has = |part: &str| decoded.contains(part);
        let (escapes, backslashes, parameters) = (path.contains('%'), has("\\"), has(";"));
        // Both may leave a segment empty, or leave only dots of it.
        let empty = backslashes || parameters || has("//") || decoded.ends_with('/');
        let dots = has("/.") || has("\\.");
        let steps = [escapes, backslashes, parameters, empty, dots];
        let without = steps.iter().enumerate().map(|(at, taken)| u8::from(!taken) << at).sum::<u8>();
        (0..Reading::WAYS).filter(move |bits| bits & without == 0).map(Reading::number)
    }

    /// `decoded` is the path after [`decode`].
    fn segments<'a>(self, path: &'a str, decoded: &'a str) -> Vec<Cow<'a, str>> {
        let text = if self.decode_first { decoded } else { path };
        let separators = if self.split_backslashes { &['/', '\\'][..] } else { &['/'] };
        let mut segments = Vec::new();
        for segment in text.strip_prefix('/').unwrap_or(text).split(separators) {
            let mut segment = if self.decode_first { segment.into() } else { decode(segment) };
            if self.cut_parameters {
                segment = cut_parameters(segment);
            }
            match &*segment {
                "" if self.skip_empty => {}
                "." if self.resolve_dots => {}
                ".." if self.resolve_dots => drop(segments.pop()),
                _ => segments.push(segment),
            }
        }
        segments
    }
}

fn cut_parameters(segment: Cow<'_, str>) -> Cow<'_, str> {
    match (segment.find(';'), segment) {
        (None, segment) => segment,
        (Some(end), Cow::Borrowed(segment)) => segment[..end].into(),
        (Some(end), Cow::Owned(segment)) => segment[..end].to_owned().into(),
    }
}

/// Resolves `%XX`, once. What is no UTF-8 then can match no literal.
fn decode(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
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
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn routes(texts: &[&str]) -> Routes {
        let share = |route: &Route| {
            route.class().map_or(100, |class| if class.as_str() == "batch" { 50 } else { 80 })
        };
        let parsed = texts.iter().map(|text| text.parse::<Route>().unwrap());
        Routes::new(parsed.map(|route| (route.clone(), share(&route))).collect())
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
            "/API/v1/Stream",
        ] {
            assert!(found(&["POST /api/v1/stream"], Method::POST, path), "{path}");
        }
        assert!(!found(&["POST /api/v1/stream"], Method::POST, "/api/v1/%2573tream"), "decoded once only");
    }

    #[test]
    fn no_spelling_of_a_segment_leads_around_a_star() {
        for path in [
            "/feeds/x/live",
            "/feeds/./live",
            "/feeds/../live",
            "/feeds/%2e%2E/live",
            "/feeds/;x/live",
            "/feeds//live",
            "/feeds/a\\b/live",
            "/feeds/a%5Cb/live",
            "/feeds/a%2Fb/live",
            "/feeds/a;b/live",
            "/FEEDS/a/Live",
            // Servers that resolve dots, or cut parameters, and leave an escaped slash alone.
            "/feeds/a%2Fb/./live",
            "/x/../feeds/a%2fb/live/",
            "/feeds/a%2Fb/live;x",
            "//feeds/a%2Fb/live",
        ] {
            assert!(found(&["GET /feeds/*/live"], Method::GET, path), "{path}");
        }
        for path in
            ["/open/x/../../y", "/open/%2e%2e/y", "/open/..", "/open/..;/y", "/open/..\\y", "/open%2f..%2fy"]
        {
            assert!(found(&["GET /open/**"], Method::GET, path), "{path}");
        }
        assert!(!found(&["GET /feeds/*/live"], Method::GET, "/feeds/a/b/live"), "two segments are not one");
    }

    #[test]
    fn of_several_readings_the_smallest_share_holds() {
        let routes = routes(&["GET /chat/* chat", "GET /reports/** batch", "GET /**"]);
        let class = |path: &str| routes.find(&Method::GET, path).unwrap().class().map(Class::as_str);
        assert_eq!(class("/chat/a"), Some("chat"));
        assert_eq!(class("/chat/../reports/a"), Some("batch"));
        assert_eq!(class("/reports/../chat/a"), Some("batch"));
        assert_eq!(class("/chat/../x"), None, "neither reading is of a class");
        assert_eq!(class("/chat/%2e%2e"), Some("chat"));
    }

    #[test]
    fn the_first_route_that_matches_says_the_class() {
        let routes = routes(&["POST /a/b", "POST /a/** batch", "* /a/c chat"]);
        let class = |path: &str| routes.find(&Method::POST, path).unwrap().class().map(Class::as_str);
        assert_eq!(class("/a/b"), None);
        assert_eq!(class("/a/%62"), None, "however it is spelt");
        assert_eq!(class("/a/b/"), Some("batch"), "to some servers that is another path");
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
        fn a_reading_that_is_left_out_is_like_another(path in "(/[ab.;%25cefF\\\\]{0,6}){1,4}") {
            let decoded = decode(&path);
            let known: Vec<_> = Reading::all_of(&path, &decoded).map(|way| way.segments(&path, &decoded)).collect();
            for number in 0..Reading::WAYS {
                let segments = Reading::number(number).segments(&path, &decoded);
                prop_assert!(known.contains(&segments), "{:?} of {}", segments, path);
            }
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
