//! Header rewriting: which headers pass the gate, and which the gate writes.
//!
//! Invariant: the upstream receives identity and forwarding headers only from the gate or from a
//! trusted proxy. The same holds for headers that override the path or the method. Hop-by-hop
//! headers never pass.
//! Enforced by: the client's `Connection` header is applied before the gate writes its own headers,
//! so it can't remove them. Names are compared with `_` read as `-`, because many servers treat
//! both as equal.
//! Out of scope: sockets, bodies, and which peers are trusted (`forwarder.rs`). This file is pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{Uri, Version};

/// Pseudonym of the gate in `Via` (RFC 9110, 7.6.3).
const PSEUDONYM: &str = "forebay";

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers in which proxies describe a client, besides the forwarded headers. Also headers that
/// make some frameworks use another route than the one that admission checked.
const PROXY_HEADERS: [&str; 10] = [
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

/// Removes `Content-Length` if `Transfer-Encoding` overrides it (RFC 9112, 6.3). The gate removes
/// `Transfer-Encoding`, so the client would otherwise end the body at the wrong length.
pub(crate) fn remove_overridden_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Origin of a request: its peer, the scheme, and which of its headers are trusted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientOrigin<'a> {
    /// Address of the peer.
    pub(crate) peer: IpAddr,
    /// Scheme by which the peer reached the gate: `http`, or `https` if the gate terminates TLS.
    pub(crate) scheme: &'static str,
    /// Which forwarding headers of the peer are accepted.
    pub(crate) trust: PeerTrust,
    /// Headers that carry a user id: from trusted proxies to the gate, and from the gate to the
    /// upstream.
    pub(crate) user_headers: &'a [HeaderName],
}

/// Which forwarding headers of a peer are accepted.
///
/// A proxy writes either `X-Forwarded-…` or `Forwarded`. It forwards the other unchanged, as the
/// client sent it. So at most one of them is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerTrust {
    /// The peer is not a trusted proxy.
    Untrusted,
    /// A trusted proxy that writes `X-Forwarded-For`.
    XForwarded,
    /// A trusted proxy that writes `Forwarded` (RFC 7239).
    Forwarded,
}

/// Rewrites the headers of a request for the upstream. Returns how many were dropped because the
/// peer isn't trusted.
///
/// `host` is the `Host` for the upstream. `original_host` is the host that the client requested.
pub(crate) fn rewrite_request(
    headers: &mut HeaderMap,
    version: Version,
    host: HeaderValue,
    original_host: Option<HeaderValue>,
    origin: ClientOrigin<'_>,
) -> u32 {
    strip_hop_by_hop(headers);
    // The server sends `100 Continue` itself, when the body is first read.
    headers.remove(EXPECT);
    let dropped = strip_untrusted(headers, origin);
    join_cookies(headers);
    add_forwarded_headers(headers, original_host, origin);
    headers.insert(HOST, host);
    add_via(headers, version);
    dropped
}

/// Rewrites the headers of a response for the client.
pub(crate) fn rewrite_response(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    add_via(headers, Version::HTTP_11);
}

/// Returns the host that the client requested. The authority of the request-target overrides `Host`
/// (RFC 9112, 3.2.2).
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

/// Removes hop-by-hop headers: the standard ones, and those that `Connection` lists.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        list_elements(headers, &CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, HTTP2_SETTINGS] {
        headers.remove(name);
    }
    // Proxy-Authorization, Proxy-Authenticate and Proxy-Connection are hop-by-hop.
    remove_where(headers, |name, _| name.starts_with("proxy-"));
}

fn strip_untrusted(headers: &mut HeaderMap, origin: ClientOrigin<'_>) -> u32 {
    remove_where(headers, |name, spelling| {
        let trusted = origin.trust != PeerTrust::Untrusted;
        let mut configured = origin.user_headers.iter().map(HeaderName::as_str);
        let (is_configured_spelling, is_trusted) = match name {
            name if configured.clone().any(|own| equals_with_dashes(own, name)) => {
                (configured.any(|own| own == spelling), trusted)
            }
            "forwarded" => (spelling == name, origin.trust == PeerTrust::Forwarded),
            "x-real-ip" => (spelling == name, origin.trust == PeerTrust::XForwarded),
            name if name.starts_with("x-forwarded-") => {
                (spelling == name, origin.trust == PeerTrust::XForwarded)
            }
            name if PROXY_HEADERS.contains(&name) => (spelling == name, trusted),
            _ => return false,
        };
        // A proxy that overwrites `x-user-id` may forward a client's `x_user_id` unchanged.
        !is_configured_spelling || !is_trusted
    })
}

/// Returns whether `header` equals `name` for servers that read `_` as `-`.
fn equals_with_dashes(header: &str, name: &str) -> bool {
    header.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }).eq(name.bytes())
}

/// Removes headers and returns how many. `is_unwanted` receives each name with `_` as `-`, and its
/// original spelling.
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

/// Joins cookies that an HTTP/2 client split into several headers. HTTP/1.1 allows only one
/// `Cookie` header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn add_forwarded_headers(
    headers: &mut HeaderMap,
    original_host: Option<HeaderValue>,
    origin: ClientOrigin<'_>,
) {
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
        _ => "1.1", // `Version` is non-exhaustive; the server speaks no other
    };
    append(headers, VIA, &format!("{version} {PSEUDONYM}"));
}

/// Adds an element to a list header and joins all its lines into one.
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

/// Returns the elements of a list header.
pub(crate) fn list_elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
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

    fn rewritten(lines: &[(&'static str, &'static str)], trust: PeerTrust) -> (HeaderMap, u32) {
        let mut headers = headers(lines);
        let user_headers = ["x-authenticated-user", "x_old_style"].map(HeaderName::from_static);
        let origin = ClientOrigin { peer: PEER, scheme: "http", trust, user_headers: &user_headers };
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

    #[test]
    fn hop_by_hop_headers_are_removed() {
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
            PeerTrust::Untrusted,
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
    fn the_connection_header_cannot_remove_headers_that_the_gate_writes() {
        let lines = [
            ("host", "a"),
            ("connection", "host, x-forwarded-for, x-forwarded-proto, via, x-forwarded-host"),
        ];
        let (headers, _) = rewritten(&lines, PeerTrust::Untrusted);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["host"], "app:9000");
        assert_eq!(headers["x-forwarded-host"], "a");
        assert_eq!(headers["via"], "1.1 forebay");
    }

    #[test]
    fn identity_headers_of_an_untrusted_peer_are_dropped() {
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
            PeerTrust::Untrusted,
        );
        assert_eq!(dropped, 16);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "a");
        let all = format!("{headers:?}");
        assert!(!all.contains("admin") && !all.contains("10.0.0"), "{all}");
    }

    #[test]
    fn forwarded_headers_of_a_trusted_proxy_are_kept_and_extended() {
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
            PeerTrust::XForwarded,
        );
        assert_eq!(dropped, 2, "the header that the proxy doesn't write, and the other spelling");
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("x_user_id"));
        assert_eq!(headers["x-forwarded-for"], "203.0.113.9, 10.0.0.1, 192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "example.org");
        assert_eq!(headers["x-user-id"], "ada");
        assert_eq!(headers["via"], "2.0 edge, 1.1 forebay");
    }

    #[test]
    fn only_the_configured_spelling_of_a_header_is_accepted() {
        let lines = [("x_old_style", "ada"), ("x-old-style", "eve"), ("x_authenticated_user", "eve")];
        let (headers, dropped) = rewritten(&lines, PeerTrust::XForwarded);
        assert_eq!((headers["x_old_style"].to_str().unwrap(), dropped), ("ada", 2));
        assert!(!format!("{headers:?}").contains("eve"));
    }

    #[test]
    fn an_untrusted_peer_cannot_override_the_route() {
        let lines = [
            ("x-original-url", "/stream"),
            ("x_rewrite_url", "/stream"),
            ("x-http-method-override", "POST"),
            ("x-http-method", "POST"),
            ("x-method-override", "POST"),
        ];
        let (headers, dropped) = rewritten(&lines, PeerTrust::Untrusted);
        let all = format!("{headers:?}");
        assert!(dropped == 5 && !all.contains("stream") && !all.contains("POST"), "{all}");
    }

    #[test]
    fn a_proxy_that_writes_forwarded_is_trusted_for_that_header_only() {
        let lines = [("host", "a"), ("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=203.0.113.9")];
        let (headers, dropped) = rewritten(&lines, PeerTrust::Forwarded);
        assert_eq!(dropped, 1);
        assert_eq!(headers["forwarded"], "for=203.0.113.9, for=192.0.2.7;proto=http");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
    }

    #[test]
    fn split_cookies_become_one_header() {
        let (headers, _) =
            rewritten(&[("host", "a"), ("cookie", "a=1"), ("cookie", "b=2")], PeerTrust::Untrusted);
        assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }

    #[test]
    fn the_authority_of_the_target_overrides_host() {
        let host = |uri: &'static str| requested_host(&Uri::from_static(uri), &headers(&[("host", "h")]));
        assert_eq!(host("/x").unwrap(), "h");
        assert_eq!(host("http://example.org:81/x").unwrap(), "example.org:81");
        assert_eq!(host("http://user:secret@example.org/x").unwrap(), "example.org");
    }
}
