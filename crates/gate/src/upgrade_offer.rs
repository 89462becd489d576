//! Offer of a client to upgrade its connection to another protocol, such as WebSocket.
//!
//! Invariant: no offer leads to another version of HTTP on the same connection. Requests inside
//! such a connection would reach the upstream without a permit.
//! Enforced by: only the protocols in [`UpgradeOffer`] are forwarded and accepted.
//! Out of scope: sockets. This file is pure.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Version, response};

use super::headers::list_elements;

/// Protocols that a client offers, without those that carry HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpgradeOffer(HeaderValue);

impl UpgradeOffer {
    /// Returns the offer of a request. `None` if the request is an ordinary one: HTTP/1.0 and
    /// HTTP/2 have no `Upgrade`.
    pub(crate) fn of(version: Version, headers: &HeaderMap) -> Option<UpgradeOffer> {
        let mut options = list_elements(headers, &CONNECTION);
        if version != Version::HTTP_11 || !options.any(|name| name.eq_ignore_ascii_case("upgrade")) {
            return None;
        }
        let protocols: Vec<&str> =
            list_elements(headers, &UPGRADE).filter(|protocol| !carries_http(protocol)).collect();
        let value = HeaderValue::from_str(&protocols.join(", ")).ok()?;
        (!protocols.is_empty()).then_some(UpgradeOffer(value))
    }

    /// Adds the offer to the headers for the upstream.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.0.clone());
    }

    /// Returns the protocol of a 101, if it is the only one and the client offered it.
    pub(crate) fn accepted(&self, response: &response::Parts) -> Option<HeaderValue> {
        let mut values = response.headers.get_all(UPGRADE).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        let offered = self.0.to_str().unwrap_or_default();
        let chosen = value.to_str().ok()?.trim();
        let is_offered = offered.split(", ").any(|protocol| protocol.eq_ignore_ascii_case(chosen));
        is_offered.then(|| value.clone())
    }
}

/// Returns whether a protocol is a version of HTTP, or TLS, inside which HTTP may continue.
fn carries_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    ["h2c", "h2", "http", "tls"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn offer(version: Version, connection: &'static str, protocols: &'static str) -> Option<UpgradeOffer> {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static(connection));
        headers.insert(UPGRADE, HeaderValue::from_static(protocols));
        UpgradeOffer::of(version, &headers)
    }

    #[test]
    fn an_offer_needs_http_1_1_and_the_connection_option() {
        assert!(offer(Version::HTTP_11, "keep-alive, Upgrade", "websocket").is_some());
        assert_eq!(offer(Version::HTTP_10, "upgrade", "websocket"), None);
        assert_eq!(offer(Version::HTTP_2, "upgrade", "websocket"), None);
        assert_eq!(offer(Version::HTTP_11, "keep-alive", "websocket"), None);
        assert_eq!(UpgradeOffer::of(Version::HTTP_11, &HeaderMap::new()), None);
    }

    #[test]
    fn protocols_that_carry_http_are_not_offered() {
        for protocol in ["h2c", "H2C", "HTTP/2.0", "http/3", "TLS/1.0", "h2", ""] {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            assert_eq!(UpgradeOffer::of(Version::HTTP_11, &headers), None, "{protocol}");
        }
        let mut headers = HeaderMap::new();
        offer(Version::HTTP_11, "upgrade", "h2c, websocket, foo/1").unwrap().write(&mut headers);
        assert_eq!(
            (&headers["connection"], &headers["upgrade"]),
            (&"upgrade".parse().unwrap(), &"websocket, foo/1".parse().unwrap())
        );
    }

    #[test]
    fn only_an_offered_protocol_is_accepted() {
        let offer = offer(Version::HTTP_11, "upgrade", "websocket, foo/1").unwrap();
        let accepted = |protocols: &[&str]| {
            let mut response = Response::builder().status(101);
            for protocol in protocols {
                response = response.header("upgrade", *protocol);
            }
            offer.accepted(&response.body(()).unwrap().into_parts().0)
        };
        assert_eq!(accepted(&["WebSocket"]).unwrap(), "WebSocket");
        assert_eq!(accepted(&["foo/1"]).unwrap(), "foo/1");
        assert_eq!(accepted(&[]), None);
        assert_eq!(accepted(&["h2c"]), None);
        assert_eq!(accepted(&["websocket", "websocket"]), None);
        assert_eq!(accepted(&["websocket, foo/1"]), None);
    }
}
