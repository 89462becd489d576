//! Where a running instance is.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// The address of a running instance, out of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    tls: bool,
    /// What stands before every path, without a slash at its end.
    prefix: String,
}

/// A URL that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; write a URL such as http://127.0.0.1:3000")]
pub struct EndpointError {
    why: &'static str,
}

impl EndpointError {
    /// What is wrong, without what to write instead.
    pub(crate) fn why(&self) -> &'static str {
        self.why
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Endpoint, EndpointError> {
        let wrong = |why| EndpointError { why };
        let uri: Uri = url.parse().map_err(|_| wrong("that is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user in it; the secret comes from a variable"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query; say what you want by flags"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let has_port = authority.as_str().len() > authority.host().len();
        if host.is_empty() || (has_port && authority.port_u16().is_none()) {
            return Err(wrong("its host or port can't be read"));
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

    /// As `Host` has it.
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
    fn a_url_is_a_place_to_ask_at() {
        for (url, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://[::1]:3000/", "http://[::1]:3000"),
            ("https://sync.example", "https://sync.example:443"),
            ("http://proxy.example/shapes/", "http://proxy.example:80/shapes"),
        ] {
            assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for url in
            ["", "127.0.0.1:3000", "ftp://h", "http://me:s3cr3t@h", "http://h:x", "http://h/?secret=s3cr3t"]
        {
            let error = url.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:3000") && !error.contains("s3cr3t"), "{url}: {error}");
        }
    }
}
