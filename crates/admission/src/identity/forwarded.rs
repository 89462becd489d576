//! Client address behind proxies: `X-Forwarded-For` and `Forwarded` (RFC 7239).
//!
//! Invariant: an address is used only if a trusted proxy wrote it. Each proxy appends its peer's
//! address, so the list is read from the right. The first address that is not a trusted proxy is
//! the client's. The client may have forged everything to the left of it.
//! Enforced by: [`client_address`] stops at the first entry that is unreadable or untrusted, and
//! after [`MAX_HOPS`]. Parsing an entry does not depend on anything to its left ([`rsplit_list`]).

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::network::{Network, canonical};

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Maximum number of trusted proxies in a row.
const MAX_HOPS: usize = 32;

/// Header in which trusted proxies report their peer's address.
///
/// Only this header is read. A proxy that writes one of the two headers forwards the other one
/// unchanged, so the client may have forged it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ForwardedHeader {
    /// No header: the peer's address is the client's.
    #[default]
    PeerOnly,
    /// `X-Forwarded-For: client, proxy1, proxy2`.
    XForwardedFor,
    /// `Forwarded: for=client;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

impl ForwardedHeader {
    /// Returns the header to read.
    pub(crate) fn header(self) -> Option<HeaderName> {
        match self {
            ForwardedHeader::PeerOnly => None,
            ForwardedHeader::XForwardedFor => Some(X_FORWARDED_FOR),
            ForwardedHeader::Forwarded => Some(FORWARDED),
        }
    }
}

/// Returns the address of the client.
pub(crate) fn client_address(
    peer: IpAddr,
    by: ForwardedHeader,
    headers: &HeaderMap,
    trusted: &[Network],
) -> IpAddr {
    let trusts = |address| trusted.iter().any(|network| network.contains(address));
    let Some(header) = by.header() else { return canonical(peer) };
    let last_comma: fn(&[u8]) -> Option<usize> = match by {
        ForwardedHeader::Forwarded => |line| last_outside_quotes(line, b','),
        ForwardedHeader::XForwardedFor | ForwardedHeader::PeerOnly => {
            |line| line.iter().rposition(|byte| *byte == b',')
        }
    };
    let mut client = canonical(peer);
    // All lines of the header form one list, in order.
    let lines = headers.get_all(header).into_iter().rev();
    for entry in lines.flat_map(|line| rsplit_list(line.as_bytes(), last_comma)).take(MAX_HOPS) {
        if !trusts(client) {
            break;
        }
        let node = match by {
            ForwardedHeader::Forwarded => forwarded_for(entry),
            ForwardedHeader::XForwardedFor | ForwardedHeader::PeerOnly => Some(entry),
        };
        match node.and_then(node_address) {
            Some(address) => client = canonical(address),
            // `unknown`, an obfuscated name or garbage: the last readable address is the client's.
            None => break,
        }
    }
    client
}

/// Returns the value of `for` in one element of `Forwarded`.
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    let pairs = rsplit_list(element, |rest| last_outside_quotes(rest, b';'));
    let values = pairs.filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let value = value[1..].trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        name.trim_ascii().eq_ignore_ascii_case(b"for").then(|| unquoted.unwrap_or(value))
    });
    values.last() // the leftmost, because the list is read from the right
}

/// Parses `1.2.3.4`, `1.2.3.4:5678`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:5678`.
fn node_address(node: &[u8]) -> Option<IpAddr> {
    let node = std::str::from_utf8(node.trim_ascii()).ok()?;
    if let Some(rest) = node.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let has_valid_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return has_valid_port.then(|| address.parse::<std::net::Ipv6Addr>().ok())?.map(IpAddr::V6);
    }
    node.parse().ok().or_else(|| {
        let (address, port) = node.split_once(':')?;
        is_port(port).then(|| address.parse::<std::net::Ipv4Addr>().ok())?.map(IpAddr::V4)
    })
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Splits a list from the right, as bytes.
///
/// A proxy appends to the line that the client sent. The client's part may have invalid UTF-8 or an
/// unclosed quote; neither may change how appended entries are parsed.
fn rsplit_list(list: &[u8], last_separator: impl Fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let list = rest?;
        let at = last_separator(list);
        rest = at.map(|at| &list[..at]);
        Some(&list[at.map_or(0, |at| at + 1)..])
    })
}

/// Returns the position of the last separator outside a quoted string. From the right, the first
/// quote closes a string; the next unescaped quote opens it.
fn last_outside_quotes(text: &[u8], separator: u8) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in text.iter().enumerate().rev() {
        match byte {
            b'"' if quoted => quoted = is_escaped(text, at),
            b'"' => quoted = true,
            byte if *byte == separator && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_escaped(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn client_of(peer: &str, by: ForwardedHeader, lines: &[impl AsRef<[u8]>]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(by.header().unwrap(), HeaderValue::from_bytes(line.as_ref()).unwrap());
        }
        let trusted = ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|network| network.parse().unwrap());
        client_address(peer.parse().unwrap(), by, &headers, &trusted).to_string()
    }

    fn x_forwarded_for(peer: &str, lines: &[impl AsRef<[u8]>]) -> String {
        client_of(peer, ForwardedHeader::XForwardedFor, lines)
    }

    fn forwarded(lines: &[impl AsRef<[u8]>]) -> String {
        client_of("10.0.0.1", ForwardedHeader::Forwarded, lines)
    }

    #[test]
    fn an_untrusted_peer_is_always_the_client() {
        assert_eq!(x_forwarded_for("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(x_forwarded_for("203.0.113.9", &["10.0.0.2, 10.0.0.3"]), "203.0.113.9");
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.9"]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["1.1.1.1", "198.51.100.1 ,10.9.9.9"]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["2001:db8::7, [2001:db8:ffff::1]:80"]), "2001:db8::7");
    }

    #[test]
    fn an_unreadable_entry_stops_at_the_last_readable_address() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1, unknown, 10.0.0.9"]), "10.0.0.9");
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1, , 10.0.0.9"]), "10.0.0.9");
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1:99999"]), "10.0.0.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &[""]), "10.0.0.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &[""; 0]), "10.0.0.1");
    }

    #[test]
    fn when_all_are_proxies_the_leftmost_is_the_client() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }

    #[test]
    fn a_port_is_ignored() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1:4711"]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["::ffff:198.51.100.1"]), "198.51.100.1");
    }

    #[test]
    fn a_long_list_is_read_up_to_the_maximum_number_of_hops() {
        let line = vec!["10.0.0.2"; 5_000].join(",");
        assert_eq!(x_forwarded_for("10.0.0.1", &[&format!("198.51.100.1,{line}")]), "10.0.0.2");
    }

    #[test]
    fn rfc_7239_with_quoted_strings_is_parsed() {
        assert_eq!(forwarded(&["for=198.51.100.1"]), "198.51.100.1");
        assert_eq!(forwarded(&["For=\"[2001:db8::17]:4711\";proto=https;by=10.0.0.1"]), "2001:db8::17");
        assert_eq!(forwarded(&["for=1.1.1.1, for=198.51.100.1;host=\"a,b;for=2.2.2.2\""]), "198.51.100.1");
        assert_eq!(forwarded(&["for=198.51.100.1, for=_hidden"]), "10.0.0.1");
        assert_eq!(forwarded(&["proto=https"]), "10.0.0.1");
    }

    #[test]
    fn the_other_header_is_ignored() {
        let mut headers = HeaderMap::new();
        headers.append(FORWARDED, HeaderValue::from_static("for=198.51.100.1"));
        let (peer, trusted) = ("10.0.0.1".parse().unwrap(), ["10.0.0.0/8".parse().unwrap()]);
        for by in [ForwardedHeader::XForwardedFor, ForwardedHeader::PeerOnly] {
            assert_eq!(client_address(peer, by, &headers, &trusted), peer);
        }
    }

    /// nginx appends to the line that the client sent.
    #[test]
    fn invalid_utf8_from_the_client_hides_no_appended_entry() {
        let line = |appended: &str| [&b"\xff, "[..], appended.as_bytes()].concat();
        assert_eq!(x_forwarded_for("10.0.0.1", &[line("198.51.100.1")]), "198.51.100.1");
        assert_eq!(forwarded(&[line("for=198.51.100.1;host=\"\u{e9}\"")]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &[line("10.0.0.9")]), "10.0.0.9");
    }

    #[test]
    fn an_unclosed_quote_from_the_client_hides_no_appended_entry() {
        for opened in ["\"", "for=1.1.1.1;host=\"", "\"\\", "\"\\\"", "a=\"b\"c\""] {
            for host in ["", ";host=\"a,b;for=2.2.2.2\"", ";host=\"a\\\"b, for=2.2.2.2\"", ";host=\"a\\\\\""]
            {
                let line = format!("{opened}, for=198.51.100.1{host}");
                assert_eq!(forwarded(&[&line]), "198.51.100.1", "{line}");
            }
        }
    }

    /// Any header value, with many characters that have a meaning in a list.
    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let special = prop::sample::select(b"\",;=\\".as_slice());
        let byte = prop_oneof![3 => b' '..=b'~', 3 => 0x80..=0xff_u8, 2 => special, 1 => Just(b'\t')];
        prop::collection::vec(byte, 0..200)
    }

    proptest! {
        /// For any header value, an untrusted peer is the client.
        #[test]
        fn an_untrusted_peer_cannot_claim_another_address(line in any_value()) {
            prop_assert_eq!(x_forwarded_for("203.0.113.9", &[&line]), "203.0.113.9");
            prop_assert_eq!(client_of("203.0.113.9", ForwardedHeader::Forwarded, &[&line]), "203.0.113.9");
        }

        #[test]
        fn entries_forged_by_the_client_have_no_effect(forged in any_value()) {
            let line = |appended: &str| [&forged, &b", "[..], appended.as_bytes()].concat();
            prop_assert_eq!(x_forwarded_for("10.0.0.1", &[line("198.51.100.1")]), "198.51.100.1");
            let elements = [
                "for=198.51.100.1;proto=https",
                "by=\"[2001:db8:ffff::1]\";for=198.51.100.1",
                "for=198.51.100.1;host=\"a, b;for=2.2.2.2\"",
            ];
            for element in elements {
                prop_assert_eq!(forwarded(&[line(element)]), "198.51.100.1");
            }
        }
    }
}
