//! By which name this machine was asked.
//!
//! Invariant: a web page that makes a name of its own point here (DNS rebinding) is not taken for somebody on this machine: its browser says that
//! name, and can't be made to say another. Names below `localhost` are nobody else's (RFC 6761); one without a dot is no stranger's either, and
//! is what nginx says of an `upstream`.

use std::net::IpAddr;

use http::Request;
use http::header::HOST;
use http::uri::Authority;

/// What is said to those who ask by another name.
pub const OWN_NAMES: &str = "This address answers to 127.0.0.1, [::1] and localhost only";

/// Whether a request names this machine by a name that no stranger can have. HTTP/1.0 may name none.
pub fn is_local<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let Some(authority) = request.uri().authority().cloned().or(host) else {
        return !request.headers().contains_key(HOST);
    };
    let host = authority.host();
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return ip.is_loopback();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    !host.contains('.') || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_elsewhere_can_not_ask_through_a_browser() {
        let asked = |host: &str| is_local(&Request::builder().header(HOST, host).body(()).unwrap());
        for host in [
            "127.0.0.1:8081",
            "localhost:8081",
            "LOCALHOST",
            "[::1]:8081",
            "127.1.2.3",
            "app.localhost:3000",
            "backend",
        ] {
            assert!(asked(host), "{host}");
        }
        for host in [
            "rebound.example:8081",
            "127.0.0.1.example",
            "192.0.2.1:8081",
            "localhost.example",
            "192.0.2.1",
            "[2001:db8::1]",
            "rebound.example.",
            "no host at all",
        ] {
            assert!(!asked(host), "{host}");
        }
        assert!(is_local(&Request::new(())), "HTTP/1.0 names no host");
    }
}
