//! Host header check: protects a local address against DNS rebinding.
//!
//! Invariant: a web page whose own domain resolves to this machine isn't accepted as a local
//! client.
//! Enforced by: the browser sends the page's domain as the host, and a script can't change that.
//! Names below `localhost` can't be registered (RFC 6761). A name without a dot can't be a public
//! domain either; it is accepted because nginx sends the name of an `upstream` as the host.

use std::net::IpAddr;

use http::Request;
use http::header::HOST;
use http::uri::Authority;

/// Text of the refusal for a request with another host.
pub const OWN_NAMES: &str = "This address answers to 127.0.0.1, [::1] and localhost only";

/// Returns whether a request's host is a loopback address or a name that can't be a public domain.
/// An HTTP/1.0 request without a host is local, too.
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
    fn a_web_page_of_another_domain_is_not_local() {
        let is_local_host = |host: &str| is_local(&Request::builder().header(HOST, host).body(()).unwrap());
        for host in [
            "127.0.0.1:8081",
            "localhost:8081",
            "LOCALHOST",
            "[::1]:8081",
            "127.1.2.3",
            "app.localhost:3000",
            "backend",
        ] {
            assert!(is_local_host(host), "{host}");
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
            assert!(!is_local_host(host), "{host}");
        }
        assert!(is_local(&Request::new(())), "HTTP/1.0 names no host");
    }
}
