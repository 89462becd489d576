//! Address of a running instance, parsed from a URL.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// Address of a running instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    tls: bool,
    /// Path prefix of every request, without a trailing slash.
    prefix: String,
}

/// Why a URL can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; write a URL such as http://127.0.0.1:3000")]
pub struct EndpointError {
    why: &'static str,
}

impl EndpointError {
    /// Returns the reason, without the advice.
    pub(crate) fn why(&self) -> &'static str {
        self.why
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Endpoint, EndpointError> {
        let invalid = |why| EndpointError { why };
        let uri: Uri = url.parse().map_err(|_| invalid("not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(invalid("the URL must start with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("the URL has a user; set the secret in the environment"));
        }
        if uri.query().is_some() {
            return Err(invalid("the URL has a query; use flags instead"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let has_port = authority.as_str().len() > authority.host().len();
        if host.is_empty() || (has_port && authority.port_u16().is_none()) {
            return Err(invalid("the URL's host or port is invalid"));
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Endpoint { host, port, tls, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl Endpoint {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns host and port, as in the `Host` header.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_without_user_and_query_are_accepted() {
        for (url, displayed) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://[::1]:3000/", "http://[::1]:3000"),
            ("https://sync.example", "https://sync.example:443"),
            ("http://proxy.example/shapes/", "http://proxy.example:80/shapes"),
        ] {
            assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), displayed);
        }
        for url in
            ["", "127.0.0.1:3000", "ftp://h", "http://me:s3cr3t@h", "http://h:x", "http://h/?secret=s3cr3t"]
        {
            let error = url.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:3000") && !error.contains("s3cr3t"), "{url}: {error}");
        }
    }
}
