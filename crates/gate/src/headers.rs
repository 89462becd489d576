//! Which headers pass the gate, and which it writes.
//!
//! Invariant: what reaches the upstream under a name by which it may learn who the client is, or through whom it came,
//! was written by the gate or by a proxy that it trusts. Nothing that belongs to one connection passes to another.
//! The same holds for what may change the route that the upstream sees. Bodies are framed by the gate alone.
//! Kept by: the client's `Connection` header is obeyed before the gate writes its own, so it can't remove those; names
//! are compared with `_` read as `-`, since many servers take both for one; of the codings of a body, only `chunked`
//! passes the door.
//! Not here: sockets, bodies, who is trusted (`Gate` knows); this file is pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{Method, Request, Uri, Version};

/// How the gate calls itself in `Via`.
const PSEUDONYM: &str = "forebay";

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What proxies say of a client beside the forwarded headers, and what makes some frameworks take another route than the
/// one that was asked for, and had a permit.
const OF_PROXIES: [&str; 10] = [
    "x-user-id",
    "true-client-ip",
    "cf-connecting-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Why a request is refused before anything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// HTTP/1.1 asks for exactly one `Host`.
    Host,
    /// `CONNECT`: the gate is no forward proxy.
    Connect,
    /// `Upgrade`: WebSocket and the like are not tunnelled.
    Upgrade,
    /// The request-target has no path.
    Target,
    /// The body has a coding beside `chunked`, which the gate would lose.
    Coding,
}

/// Whether the gate takes a request with this head.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), BadRequest> {
    if request.method() == Method::CONNECT {
        return Err(BadRequest::Connect);
    }
    let headers = request.headers();
    if request.version() < Version::HTTP_2 {
        let mut hosts = headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            (Some(host), None) if is_authority(host) => {}
            (None, None) if request.version() < Version::HTTP_11 => {}
            (None, None) | (Some(_), _) | (None, Some(_)) => return Err(BadRequest::Host),
        }
        if wants_upgrade(headers) {
            return Err(BadRequest::Upgrade);
        }
    } else if request.uri().authority().is_none() && !headers.contains_key(HOST) {
        return Err(BadRequest::Host);
    }
    if request.uri().path_and_query().is_none() {
        return Err(BadRequest::Target);
    }
    if has_foreign_coding(headers) {
        return Err(BadRequest::Coding);
    }
    Ok(())
}

/// Whether a body is coded other than just `chunked`: it would arrive decoded in part, and nobody would know of the rest,
/// since `Transfer-Encoding` belongs to one connection.
pub(crate) fn has_foreign_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(one), None) => !one.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// `Transfer-Encoding` is stronger than `Content-Length` (RFC 9112, 6.3), which would be the end of the body for whoever
/// sees it alone.
pub(crate) fn drop_false_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// A `Host` is an authority without user information, or empty.
fn is_authority(host: &HeaderValue) -> bool {
    let bytes = host.as_bytes();
    let odd =
        |byte: &u8| matches!(byte, b'@' | b'/' | b'?' | b'#' | b',' | b'\\') || byte.is_ascii_whitespace();
    !bytes.iter().any(odd)
}

/// `Upgrade: h2c` is an offer that a server may ignore, and clients such as curl go on without; nobody who asks for
/// anything else can.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    let asked = listed(headers, &CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"));
    asked && listed(headers, &UPGRADE).any(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
}

/// What the gate knows of a request's origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    /// The peer's address.
    pub(crate) peer: IpAddr,
    /// How it reached us: `http`, or `https` where the gate itself speaks TLS.
    pub(crate) scheme: &'static str,
    /// Which of its words about the client count.
    pub(crate) trust: Trust,
    /// The names under which a user is told: by trusted proxies to the gate, and by the gate to the upstream.
    pub(crate) user_headers: &'a [HeaderName],
}

/// Which words of a peer about its client count.
///
/// A proxy writes either `X-Forwarded-…` or `Forwarded`, and passes the other on as the client wrote it; so at most one
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The peer is no proxy of ours.
    Nothing,
    /// A proxy of ours that writes `X-Forwarded-For`.
    XForwarded,
    /// A proxy of ours that writes `Forwarded` (RFC 7239).
    Forwarded,
}

/// Rewrites a request's headers for the upstream, and says how many were dropped because the peer isn't trusted.
///
/// `host` is what the upstream shall see as `Host`; `original_host` is what the client asked for.
pub(crate) fn rewrite_request(
    headers: &mut HeaderMap,
    version: Version,
    host: HeaderValue,
    original_host: Option<HeaderValue>,
    origin: Origin<'_>,
) -> u32 {
    strip_hop_by_hop(headers);
    // The server answers `100 Continue` itself, when the body is first asked for.
    headers.remove(EXPECT);
    let dropped = strip_untrusted(headers, origin);
    join_cookies(headers);
    forward(headers, original_host, origin);
    headers.insert(HOST, host);
    add_via(headers, version);
    dropped
}

/// Rewrites a response's headers for the client.
pub(crate) fn rewrite_response(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    add_via(headers, Version::HTTP_11);
}

/// What the client asked for: the request-target's authority is stronger than `Host` (RFC 9112, 3.2.2).
pub(crate) fn requested_host(uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    match uri.authority() {
        Some(authority) => {
            let host = authority.as_str();
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            HeaderValue::from_str(host).ok()
        }
        None => headers.get(HOST).cloned(),
    }
}

/// Removes what belongs to one connection only: the known names, and those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        listed(headers, &CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, HTTP2_SETTINGS] {
        headers.remove(name);
    }
    // Proxy-Authorization, Proxy-Authenticate, Proxy-Connection: said to a proxy or by it, never through it.
    remove_where(headers, |name, _| name.starts_with("proxy-"));
}

fn strip_untrusted(headers: &mut HeaderMap, origin: Origin<'_>) -> u32 {
    remove_where(headers, |name, spelt| {
        let trusted = origin.trust != Trust::Nothing;
        let mut configured = origin.user_headers.iter().map(HeaderName::as_str);
        let (right, believed) = match name {
            name if configured.clone().any(|own| reads_as(own, name)) => {
                (configured.any(|own| own == spelt), trusted)
            }
            "forwarded" => (spelt == name, origin.trust == Trust::Forwarded),
            "x-real-ip" => (spelt == name, origin.trust == Trust::XForwarded),
            name if name.starts_with("x-forwarded-") => (spelt == name, origin.trust == Trust::XForwarded),
            name if OF_PROXIES.contains(&name) => (spelt == name, trusted),
            _ => return false,
        };
        // A proxy that sets a header does not know of its other spelling, and lets the client's pass.
        !right || !believed
    })
}

/// Whether a header is this one, to servers that take `_` for `-`.
fn reads_as(header: &str, name: &str) -> bool {
    header.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }).eq(name.bytes())
}

/// Says how many names are gone. `is_unwanted` sees each with `_` as `-`, and as it is spelt.
fn remove_where(headers: &mut HeaderMap, is_unwanted: impl Fn(&str, &str) -> bool) -> u32 {
    let unwanted: Vec<HeaderName> = headers
        .keys()
        .filter(|name| match name.as_str() {
            name if name.contains('_') => is_unwanted(&name.replace('_', "-"), name),
            name => is_unwanted(name, name),
        })
        .cloned()
        .collect();
    for name in &unwanted {
        headers.remove(name);
    }
    u32::try_from(unwanted.len()).unwrap_or(u32::MAX)
}

/// HTTP/2 may send a cookie in pieces; HTTP/1.1 has one header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn forward(headers: &mut HeaderMap, original_host: Option<HeaderValue>, origin: Origin<'_>) {
    let (peer, scheme) = (origin.peer.to_canonical(), origin.scheme);
    append(headers, X_FORWARDED_FOR, &peer.to_string());
    if headers.contains_key(FORWARDED) {
        let element = match peer {
            IpAddr::V4(ip) => format!("for={ip};proto={scheme}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\";proto={scheme}"),
        };
        append(headers, FORWARDED, &element);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    if let Some(host) = original_host
        && !headers.contains_key(X_FORWARDED_HOST)
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

fn add_via(headers: &mut HeaderMap, version: Version) {
    let version = match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2.0",
        _ => "1.1", // `Version` is open; there is no other that the server speaks
    };
    append(headers, VIA, &format!("{version} {PSEUDONYM}"));
}

/// Adds an element to a list header, in one line with what is there.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let mut line = String::new();
    for value in headers.get_all(&name).iter().filter_map(|value| value.to_str().ok()) {
        let _ = write!(line, "{value}, ");
    }
    line.push_str(element);
    if let Ok(value) = HeaderValue::from_str(&line) {
        headers.insert(name, value);
    }
}

/// The elements of a header that is a list.
fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value));
        }
        headers
    }

    fn rewritten(lines: &[(&'static str, &'static str)], trust: Trust) -> (HeaderMap, u32) {
        let mut headers = headers(lines);
        let user_headers = ["x-authenticated-user", "x_old_style"].map(HeaderName::from_static);
        let origin = Origin { peer: PEER, scheme: "http", trust, user_headers: &user_headers };
        let host = requested_host(&Uri::from_static("/"), &headers);
        let dropped = rewrite_request(
            &mut headers,
            Version::HTTP_11,
            HeaderValue::from_static("app:9000"),
            host,
            origin,
        );
        (headers, dropped)
    }

    fn request(version: Version, lines: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri("/").body(()).unwrap();
        *request.headers_mut() = headers(lines);
        request
    }

    #[test]
    fn what_belongs_to_one_connection_does_not_pass() {
        let (headers, _) = rewritten(
            &[
                ("host", "a"),
                ("connection", "close, X-Private"),
                ("connection", "keep-alive"),
                ("x-private", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers"),
                ("trailer", "expires"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("proxy-authorization", "Basic eA=="),
                ("proxy-connection", "keep-alive"),
                ("expect", "100-continue"),
                ("x-thread-id", "t-1"),
                ("authorization", "Bearer x"),
            ],
            Trust::Nothing,
        );
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "authorization",
                "host",
                "via",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto",
                "x-thread-id"
            ]
        );
    }

    #[test]
    fn the_connection_header_can_not_remove_what_the_gate_writes() {
        let lines = [
            ("host", "a"),
            ("connection", "host, x-forwarded-for, x-forwarded-proto, via, x-forwarded-host"),
        ];
        let (headers, _) = rewritten(&lines, Trust::Nothing);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["host"], "app:9000");
        assert_eq!(headers["x-forwarded-host"], "a");
        assert_eq!(headers["via"], "1.1 forebay");
    }

    #[test]
    fn an_untrusted_peer_can_not_say_who_the_client_is() {
        let (headers, dropped) = rewritten(
            &[
                ("host", "a"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "bank"),
                ("x-forwarded-port", "443"),
                ("x_forwarded_for", "10.0.0.2"),
                ("forwarded", "for=10.0.0.1"),
                ("x-real-ip", "10.0.0.1"),
                ("x-user-id", "admin"),
                ("x_user_id", "admin"),
                ("x-authenticated-user", "admin"),
                ("x_old_style", "admin"),
                ("x-old-style", "admin"),
                ("true-client-ip", "10.0.0.1"),
                ("cf-connecting-ip", "10.0.0.1"),
                ("x-client-ip", "10.0.0.1"),
                ("x-cluster-client-ip", "10.0.0.1"),
            ],
            Trust::Nothing,
        );
        assert_eq!(dropped, 16);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "a");
        let all = format!("{headers:?}");
        assert!(!all.contains("admin") && !all.contains("10.0.0"), "{all}");
    }

    #[test]
    fn a_trusted_peer_is_believed_and_added_to_the_list() {
        let (headers, dropped) = rewritten(
            &[
                ("host", "inner"),
                ("x-forwarded-for", "203.0.113.9"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "example.org"),
                ("forwarded", "for=198.51.100.66"),
                ("x-user-id", "ada"),
                ("x_user_id", "eve"),
                ("via", "2.0 edge"),
            ],
            Trust::XForwarded,
        );
        assert_eq!(dropped, 2, "the header that it doesn't write, and the spelling that it doesn't know");
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("x_user_id"));
        assert_eq!(headers["x-forwarded-for"], "203.0.113.9, 10.0.0.1, 192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "example.org");
        assert_eq!(headers["x-user-id"], "ada");
        assert_eq!(headers["via"], "2.0 edge, 1.1 forebay");
    }

    #[test]
    fn only_the_configured_spelling_of_a_header_is_believed() {
        let lines = [("x_old_style", "ada"), ("x-old-style", "eve"), ("x_authenticated_user", "eve")];
        let (headers, dropped) = rewritten(&lines, Trust::XForwarded);
        assert_eq!((headers["x_old_style"].to_str().unwrap(), dropped), ("ada", 2));
        assert!(!format!("{headers:?}").contains("eve"));
    }

    #[test]
    fn an_untrusted_peer_can_not_change_the_route_behind_the_gate() {
        let lines = [
            ("x-original-url", "/stream"),
            ("x_rewrite_url", "/stream"),
            ("x-http-method-override", "POST"),
            ("x-http-method", "POST"),
            ("x-method-override", "POST"),
        ];
        let (headers, dropped) = rewritten(&lines, Trust::Nothing);
        let all = format!("{headers:?}");
        assert!(dropped == 5 && !all.contains("stream") && !all.contains("POST"), "{all}");
    }

    #[test]
    fn a_proxy_that_writes_forwarded_is_believed_in_that_only() {
        let lines = [("host", "a"), ("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=203.0.113.9")];
        let (headers, dropped) = rewritten(&lines, Trust::Forwarded);
        assert_eq!(dropped, 1);
        assert_eq!(headers["forwarded"], "for=203.0.113.9, for=192.0.2.7;proto=http");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
    }

    #[test]
    fn cookies_in_pieces_become_one_header() {
        let (headers, _) = rewritten(&[("host", "a"), ("cookie", "a=1"), ("cookie", "b=2")], Trust::Nothing);
        assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }

    #[test]
    fn a_request_has_one_host_and_no_upgrade() {
        let ask = |version, lines: &[_]| check(&request(version, lines));
        assert_eq!(ask(Version::HTTP_11, &[("host", "a")]), Ok(()));
        assert_eq!(ask(Version::HTTP_11, &[]), Err(BadRequest::Host));
        assert_eq!(ask(Version::HTTP_11, &[("host", "a"), ("host", "b")]), Err(BadRequest::Host));
        assert_eq!(ask(Version::HTTP_11, &[("host", "a@b")]), Err(BadRequest::Host));
        assert_eq!(ask(Version::HTTP_11, &[("host", "a, b")]), Err(BadRequest::Host));
        assert_eq!(ask(Version::HTTP_10, &[]), Ok(()));
        assert_eq!(ask(Version::HTTP_2, &[]), Err(BadRequest::Host));
        let upgrade = |to| [("host", "a"), ("connection", "keep-alive, Upgrade"), ("upgrade", to)];
        assert_eq!(ask(Version::HTTP_11, &upgrade("websocket")), Err(BadRequest::Upgrade));
        assert_eq!(ask(Version::HTTP_11, &upgrade("h2c")), Ok(()), "an offer that may be ignored");
        assert_eq!(ask(Version::HTTP_11, &[("host", "a"), ("upgrade", "websocket")]), Ok(()), "nobody asked");
        let mut connect = request(Version::HTTP_11, &[("host", "a")]);
        *connect.method_mut() = Method::CONNECT;
        *connect.uri_mut() = Uri::from_static("a:443");
        assert_eq!(check(&connect), Err(BadRequest::Connect));
    }

    #[test]
    fn a_body_is_coded_in_chunks_or_not_at_all() {
        let ask = |coding| check(&request(Version::HTTP_11, &[("host", "a"), ("transfer-encoding", coding)]));
        assert_eq!(ask("Chunked"), Ok(()));
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity", ""] {
            assert_eq!(ask(coding), Err(BadRequest::Coding), "{coding:?}");
        }
        let twice = headers(&[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")]);
        assert!(has_foreign_coding(&twice) && !has_foreign_coding(&HeaderMap::new()));
    }

    #[test]
    fn the_target_s_authority_is_stronger_than_host() {
        let asked = |uri: &'static str| requested_host(&Uri::from_static(uri), &headers(&[("host", "h")]));
        assert_eq!(asked("/x").unwrap(), "h");
        assert_eq!(asked("http://example.org:81/x").unwrap(), "example.org:81");
        assert_eq!(asked("http://user:secret@example.org/x").unwrap(), "example.org");
    }
}
