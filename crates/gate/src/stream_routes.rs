//! Stream routes: which requests take a permit, and in which class.
//!
//! Invariant: a request counts as a stream in every common spelling of a stream route's path.
//! Enforced by: the upstream receives the path unchanged and may read it in several ways. So a path
//! is matched in every common way ([`PathReading`]), and any match counts. A false match costs a
//! permit; a missed match would bypass the limits.
//!
//! Within one reading, the first matching route decides the class. If readings differ, the class
//! with the smallest share wins.
//! This file is pure.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_admission::Class;
use http::Method;

/// Routes whose requests take a permit, each with the share of the total limit that its class may
/// use, in percent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamRoutes(Vec<(StreamRoute, u8)>);

/// A stream route: `METHOD PATH [CLASS]`, such as `POST /api/v1/stream`, `* /feeds/*/live/**` or
/// `POST /reports batch`.
///
/// The method `*` matches every method. `GET` also matches `HEAD`, because many frameworks run the
/// same handler. The segment `*` matches one segment; `**`, at the end only, matches any number of
/// segments, including none. Matching ignores case, as Express and ASP.NET do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRoute {
    text: Arc<str>,
    method: Option<Method>,
    segments: Vec<RouteSegment>,
    /// Whether the route ends in `**`.
    is_prefix: bool,
    class: Option<Class>,
}

/// One segment of a route's path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RouteSegment {
    Any,
    Literal(String),
}

impl StreamRoutes {
    pub(crate) fn new(routes: Vec<(StreamRoute, u8)>) -> StreamRoutes {
        StreamRoutes(routes)
    }

    /// Returns whether no route is configured. Then every request takes a permit.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first matching route. If readings of the path match different routes, returns
    /// the one with the smallest share.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&StreamRoute> {
        let decoded = decode(path);
        let first = |reading: PathReading| {
            let segments = reading.segments(path, &decoded);
            self.0.iter().find(|(route, _)| route.accepts_method(method) && route.matches(&segments))
        };
        let found =
            PathReading::distinct_for(path, &decoded).filter_map(first).min_by_key(|(_, share)| *share);
        found.map(|(route, _)| route)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StreamRoute> {
        self.0.iter().map(|(route, _)| route)
    }
}

impl StreamRoute {
    /// Returns the class of the route's streams, if it has one.
    pub fn class(&self) -> Option<&Class> {
        self.class.as_ref()
    }

    /// Returns the whole route as configured.
    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Returns the path as configured.
    pub fn path(&self) -> &str {
        self.text.split_whitespace().nth(1).unwrap_or_default()
    }

    fn accepts_method(&self, method: &Method) -> bool {
        match &self.method {
            None => true,
            Some(own) => own == method || (own == Method::GET && method == Method::HEAD),
        }
    }

    fn matches(&self, path: &[Cow<'_, str>]) -> bool {
        let enough = if self.is_prefix {
            path.len() >= self.segments.len()
        } else {
            path.len() == self.segments.len()
        };
        enough
            && self.segments.iter().zip(path).all(|(segment, actual)| match segment {
                RouteSegment::Any => true,
                RouteSegment::Literal(literal) => literal.eq_ignore_ascii_case(actual),
            })
    }
}

impl fmt::Display for StreamRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is not a stream route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamRouteError {
    /// There are not two or three words.
    #[error("a route is `METHOD PATH` or `METHOD PATH CLASS`, such as `POST /api/v1/stream`")]
    WordCount,
    /// The first word is not a method.
    #[error("{0:?} is not an HTTP method; write it in capitals, or `*` for any")]
    Method(String),
    /// The path is not absolute.
    #[error("the path {0:?} does not begin with `/`")]
    Path(String),
    /// `**` is not at the end.
    #[error("`**` may only end a path; use `*` for one segment")]
    InnerDoubleStar,
}

impl FromStr for StreamRoute {
    type Err = StreamRouteError;

    fn from_str(text: &str) -> Result<StreamRoute, StreamRouteError> {
        let mut words = text.split_whitespace();
        let (Some(method), Some(path), class, None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(StreamRouteError::WordCount);
        };
        let method = match method {
            "*" => None,
            method if method.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                Some(Method::from_str(method).map_err(|_| StreamRouteError::Method(method.to_owned()))?)
            }
            method => return Err(StreamRouteError::Method(method.to_owned())),
        };
        if !path.starts_with('/') {
            return Err(StreamRouteError::Path(path.to_owned()));
        }
        let decoded = decode(path);
        let mut segments = PathReading::LENIENT.segments(path, &decoded);
        let is_prefix = segments.last().is_some_and(|last| last == "**");
        if is_prefix {
            segments.pop();
        }
        if segments.iter().any(|segment| segment == "**") {
            return Err(StreamRouteError::InnerDoubleStar);
        }
        let segments = segments.into_iter().map(|segment| match &*segment {
            "*" => RouteSegment::Any,
            _ => RouteSegment::Literal(segment.into_owned()),
        });
        Ok(StreamRoute {
            text: text.split_whitespace().collect::<Vec<_>>().join(" ").into(),
            method,
            segments: segments.collect(),
            is_prefix,
            class: class.map(Class::new),
        })
    }
}

/// One way in which servers read a path before they look for a route. Each field is a step that
/// some servers take and others don't.
#[derive(Debug, Clone, Copy)]
struct PathReading {
    /// Decode before splitting, so that an escaped slash also separates segments.
    decode_first: bool,
    split_backslashes: bool,
    /// Remove parameters, which begin with `;`, from each segment.
    cut_parameters: bool,
    skip_empty: bool,
    resolve_dots: bool,
}

impl PathReading {
    const COUNT: u8 = 1 << 5;
    /// The reading with every step.
    const LENIENT: PathReading = PathReading::from_bits(PathReading::COUNT - 1);

    const fn from_bits(bits: u8) -> PathReading {
        PathReading {
            decode_first: bits & 1 != 0,
            split_backslashes: bits & 2 != 0,
            cut_parameters: bits & 4 != 0,
            skip_empty: bits & 8 != 0,
            resolve_dots: bits & 16 != 0,
        }
    }

    /// Returns the readings that may differ for this path. Most paths have one.
    fn distinct_for(path: &str, decoded: &str) -> impl Iterator<Item = PathReading> {
        let has = |part: &str| decoded.contains(part);
        let (escapes, backslashes, parameters) = (path.contains('%'), has("\\"), has(";"));
        // Splitting at a backslash or removing parameters may leave an empty segment, `.` or `..`.
        let empty = backslashes || parameters || has("//") || decoded.ends_with('/');
        let dots = has("/.") || has("\\.");
        let steps = [escapes, backslashes, parameters, empty, dots];
        let without = steps.iter().enumerate().map(|(at, taken)| u8::from(!taken) << at).sum::<u8>();
        (0..PathReading::COUNT).filter(move |bits| bits & without == 0).map(PathReading::from_bits)
    }

    /// Returns the segments in this reading. `decoded` is the path after [`decode`].
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

/// Decodes `%XX` once. Bytes that aren't UTF-8 become U+FFFD, which matches no usual segment.
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

    fn routes(texts: &[&str]) -> StreamRoutes {
        let share = |route: &StreamRoute| {
            route.class().map_or(100, |class| if class.as_str() == "batch" { 50 } else { 80 })
        };
        let parsed = texts.iter().map(|text| text.parse::<StreamRoute>().unwrap());
        StreamRoutes::new(parsed.map(|route| (route.clone(), share(&route))).collect())
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
    fn a_get_route_also_matches_head() {
        assert!(found(&["GET /live"], Method::HEAD, "/live"));
        assert!(!found(&["POST /live"], Method::HEAD, "/live"));
    }

    #[test]
    fn one_star_matches_a_segment_and_two_match_the_rest() {
        assert!(found(&["* /a/*/c"], Method::PUT, "/a/b/c"));
        assert!(!found(&["* /a/*/c"], Method::PUT, "/a/b/b/c"));
        for path in ["/feeds", "/feeds/", "/feeds/a", "/feeds/a/b"] {
            assert!(found(&["GET /feeds/**"], Method::GET, path), "{path}");
        }
        assert!(!found(&["GET /feeds/**"], Method::GET, "/feed"));
        assert!(found(&["* /**"], Method::GET, "/"));
    }

    #[test]
    fn no_spelling_of_a_path_bypasses_the_limits() {
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
    fn no_spelling_of_a_segment_bypasses_a_wildcard() {
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
            // Some servers resolve dots or cut parameters, and keep an escaped slash.
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
        assert!(
            !found(&["GET /feeds/*/live"], Method::GET, "/feeds/a/b/live"),
            "one star matches one segment"
        );
    }

    #[test]
    fn the_reading_with_the_smallest_share_decides_the_class() {
        let routes = routes(&["GET /chat/* chat", "GET /reports/** batch", "GET /**"]);
        let class = |path: &str| routes.find(&Method::GET, path).unwrap().class().map(Class::as_str);
        assert_eq!(class("/chat/a"), Some("chat"));
        assert_eq!(class("/chat/../reports/a"), Some("batch"));
        assert_eq!(class("/reports/../chat/a"), Some("batch"));
        assert_eq!(class("/chat/../x"), None, "neither reading has a class");
        assert_eq!(class("/chat/%2e%2e"), Some("chat"));
    }

    #[test]
    fn the_first_matching_route_decides_the_class() {
        let routes = routes(&["POST /a/b", "POST /a/** batch", "* /a/c chat"]);
        let class = |path: &str| routes.find(&Method::POST, path).unwrap().class().map(Class::as_str);
        assert_eq!(class("/a/b"), None);
        assert_eq!(class("/a/%62"), None, "in any spelling");
        assert_eq!(class("/a/b/"), Some("batch"), "some servers read this as another path");
        assert_eq!(class("/a/c"), Some("batch"));
        assert_eq!(routes.find(&Method::GET, "/a/c").unwrap().to_string(), "* /a/c chat");
    }

    #[test]
    fn an_invalid_route_is_an_error_that_names_the_problem() {
        let parse = |text: &str| text.parse::<StreamRoute>().unwrap_err();
        assert_eq!(parse("/api"), StreamRouteError::WordCount);
        assert_eq!(parse("GET /api a b"), StreamRouteError::WordCount);
        assert_eq!(parse("get /api"), StreamRouteError::Method("get".into()));
        assert_eq!(parse("GET api"), StreamRouteError::Path("api".into()));
        assert_eq!(parse("GET /a/**/b"), StreamRouteError::InnerDoubleStar);
        assert_eq!(" GET   /api ".parse::<StreamRoute>().unwrap().to_string(), "GET /api");
    }

    proptest! {
        #[test]
        fn no_path_panics_the_matcher(path in "\\PC*") {
            routes(&["GET /a/*/**"]).find(&Method::GET, &path);
        }

        #[test]
        fn every_omitted_reading_equals_a_tested_one(path in "(/[ab.;%25cefF\\\\]{0,6}){1,4}") {
            let decoded = decode(&path);
            let known: Vec<_> = PathReading::distinct_for(&path, &decoded).map(|reading| reading.segments(&path, &decoded)).collect();
            for number in 0..PathReading::COUNT {
                let segments = PathReading::from_bits(number).segments(&path, &decoded);
                prop_assert!(known.contains(&segments), "{:?} of {}", segments, path);
            }
        }

        #[test]
        fn percent_encoding_any_letter_still_matches(mask: u16) {
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
