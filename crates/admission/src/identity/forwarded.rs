//! Whose request this is when proxies stand between: `X-Forwarded-For` and RFC 7239's `Forwarded`.
//!
//! Invariant: an address is believed only if a trusted proxy wrote it. Each proxy appends the peer that it saw, so the list is
//! read from the right, and reading stops at the first address that isn't a trusted proxy: that is the client. What stands
//! further left, the client may have written itself.
//! Kept by: [`client`], which never looks past an entry that it can't read or doesn't trust, nor past [`MAX_HOPS`].

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::network::{Network, plain};

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Proxies in a row that are believed. More is a loop or a lie.
const MAX_HOPS: usize = 32;

/// In which header the trusted proxies leave the address of their peer.
///
/// One of them, never both: a proxy that writes one passes the other on as the client wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ForwardedBy {
    /// Only the peer itself counts; no header is read.
    #[default]
    Nobody,
    /// `X-Forwarded-For: client, proxy1, proxy2`.
    XForwardedFor,
    /// `Forwarded: for=client;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

impl ForwardedBy {
    /// The header that is read.
    pub(crate) fn header(self) -> Option<HeaderName> {
        match self {
            ForwardedBy::Nobody => None,
            ForwardedBy::XForwardedFor => Some(X_FORWARDED_FOR),
            ForwardedBy::Forwarded => Some(FORWARDED),
        }
    }
}

/// The address of the client.
pub(crate) fn client(peer: IpAddr, by: ForwardedBy, headers: &HeaderMap, trusted: &[Network]) -> IpAddr {
    let trusts = |address| trusted.iter().any(|network| network.contains(address));
    let Some(header) = by.header() else { return plain(peer) };
    let mut client = plain(peer);
    // All lines of the header are one list, the last line at its end.
    let lines: Vec<&str> = headers.get_all(header).iter().map(|line| line.to_str().unwrap_or("?")).collect();
    let split = |line| match by {
        ForwardedBy::Forwarded => split_outside_quotes(line, ','),
        ForwardedBy::XForwardedFor | ForwardedBy::Nobody => line.split(',').collect(),
    };
    for entry in lines.iter().rev().flat_map(|line: &&str| split(line).into_iter().rev()).take(MAX_HOPS) {
        if !trusts(client) {
            break;
        }
        let node = match by {
            ForwardedBy::Forwarded => forwarded_for(entry),
            ForwardedBy::XForwardedFor | ForwardedBy::Nobody => Some(entry),
        };
        match node.and_then(node_address) {
            Some(address) => client = plain(address),
            // `unknown`, an obfuscated name, or rubbish: the last proxy that we know stands for its client.
            None => break,
        }
    }
    client
}

/// The value of `for` in one element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<&str> {
    split_outside_quotes(element, ';').into_iter().find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = value.trim();
        let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        name.trim().eq_ignore_ascii_case("for").then(|| unquoted.unwrap_or(value))
    })
}

/// `1.2.3.4`, `1.2.3.4:5678`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:5678`.
fn node_address(node: &str) -> Option<IpAddr> {
    let node = node.trim();
    if let Some(rest) = node.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return fine.then(|| address.parse::<std::net::Ipv6Addr>().ok())?.map(IpAddr::V6);
    }
    node.parse().ok().or_else(|| {
        let (address, port) = node.split_once(':')?;
        is_port(port).then(|| address.parse::<std::net::Ipv4Addr>().ok())?.map(IpAddr::V4)
    })
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// A quoted string may hold the separator. A quote that is never closed quotes nothing: a client that opens one must not hide
/// what the next proxy appended.
fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut begin, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            letter if letter == separator && !quoted => {
                parts.push(&text[begin..at]);
                begin = at + separator.len_utf8();
            }
            _ => {}
        }
    }
    if quoted {
        return text.split(separator).collect();
    }
    parts.push(&text[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn find(peer: &str, by: ForwardedBy, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(by.header().unwrap(), HeaderValue::from_str(line).unwrap());
        }
        let trusted = ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|network| network.parse().unwrap());
        client(peer.parse().unwrap(), by, &headers, &trusted).to_string()
    }

    fn x_forwarded_for(peer: &str, lines: &[&str]) -> String {
        find(peer, ForwardedBy::XForwardedFor, lines)
    }

    fn forwarded(lines: &[&str]) -> String {
        find("10.0.0.1", ForwardedBy::Forwarded, lines)
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_writes() {
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
    fn what_cannot_be_read_stops_the_walk_at_the_last_proxy_known() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1, unknown, 10.0.0.9"]), "10.0.0.9");
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1, , 10.0.0.9"]), "10.0.0.9");
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1:99999"]), "10.0.0.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &[""]), "10.0.0.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn when_all_are_proxies_the_leftmost_is_the_client() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }

    #[test]
    fn a_port_belongs_to_no_client() {
        assert_eq!(x_forwarded_for("10.0.0.1", &["198.51.100.1:4711"]), "198.51.100.1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(x_forwarded_for("10.0.0.1", &["::ffff:198.51.100.1"]), "198.51.100.1");
    }

    #[test]
    fn an_endless_list_is_read_only_so_far() {
        let line = vec!["10.0.0.2"; 5_000].join(",");
        assert_eq!(x_forwarded_for("10.0.0.1", &[&format!("198.51.100.1,{line}")]), "10.0.0.2");
    }

    #[test]
    fn rfc_7239_is_understood_with_its_quotes() {
        assert_eq!(forwarded(&["for=198.51.100.1"]), "198.51.100.1");
        assert_eq!(forwarded(&["For=\"[2001:db8::17]:4711\";proto=https;by=10.0.0.1"]), "2001:db8::17");
        assert_eq!(forwarded(&["for=1.1.1.1, for=198.51.100.1;host=\"a,b;for=2.2.2.2\""]), "198.51.100.1");
        assert_eq!(forwarded(&["for=198.51.100.1, for=_hidden"]), "10.0.0.1");
        assert_eq!(forwarded(&["proto=https"]), "10.0.0.1");
    }

    #[test]
    fn the_other_header_is_not_looked_at() {
        let mut headers = HeaderMap::new();
        headers.append(FORWARDED, HeaderValue::from_static("for=198.51.100.1"));
        let (peer, trusted) = ("10.0.0.1".parse().unwrap(), ["10.0.0.0/8".parse().unwrap()]);
        for by in [ForwardedBy::XForwardedFor, ForwardedBy::Nobody] {
            assert_eq!(client(peer, by, &headers, &trusted), peer);
        }
    }

    proptest! {
        /// Whatever is written, the client is never one whom nobody trusted vouched for.
        #[test]
        fn an_untrusted_peer_is_never_somebody_else(line in "[ -~]{0,200}") {
            prop_assert_eq!(x_forwarded_for("203.0.113.9", &[&line]), "203.0.113.9");
            prop_assert_eq!(find("203.0.113.9", ForwardedBy::Forwarded, &[&line]), "203.0.113.9");
        }

        #[test]
        fn what_the_client_wrote_itself_changes_nothing(forged in "[ -~]{0,200}") {
            let line = format!("{forged}, 198.51.100.1");
            prop_assert_eq!(x_forwarded_for("10.0.0.1", &[&line]), "198.51.100.1");
            for element in ["for=198.51.100.1;proto=https", "by=\"[2001:db8:ffff::1]\";for=198.51.100.1"] {
                prop_assert_eq!(forwarded(&[&format!("{forged}, {element}")]), "198.51.100.1");
            }
        }
    }
}
