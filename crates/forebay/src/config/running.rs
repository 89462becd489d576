//! How connections are served, where operators look, and what is logged: the same for every command.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::Secret;
use forebay_stream::HttpServerConfig;

use super::check::{Check, ValueError};
use super::file::{AdminSection, HttpSection, LogSection};
use super::hidden::Hidden;
use crate::logging::{LogConfig, LogFormat, check_filter};
use crate::tls::TlsCertificate;

/// While a request's body is read, its client may be silent for as long as `body` says.
pub(super) fn check_http(
    http: &HttpSection,
    body: Duration,
    check: &Check,
) -> Result<HttpServerConfig, ValueError> {
    let mut serve = HttpServerConfig::default();
    let count = |key, given, default, bounds| check.count_within(key, given, default, bounds);
    serve.max_connections =
        count("http.max_connections", http.max_connections, serve.max_connections, 1..=u32::MAX)?;
    serve.max_headers = count("http.max_headers", http.max_headers, serve.max_headers, 1..=1024)?;
    // Less refuses ordinary browsers; more is for every client to fill.
    let bytes = 8192..=16 * 1024 * 1024;
    serve.max_header_bytes =
        check.count_within("http.max_header_bytes", http.max_header_bytes, serve.max_header_bytes, bytes)?;
    let duration = |key, given, default| check.duration(key, given, default);
    serve.header_read_timeout =
        duration("http.header_timeout_ms", http.header_timeout_ms, serve.header_read_timeout)?;
    serve.write_timeout = duration("http.write_timeout_ms", http.write_timeout_ms, serve.write_timeout)?;
    serve.idle_timeout = duration("http.idle_timeout_ms", http.idle_timeout_ms, serve.idle_timeout)?;
    serve.drain_grace = duration("http.drain_grace_ms", http.drain_grace_ms, serve.drain_grace)?;
    serve.body_read_timeout = body;
    Ok(serve)
}

pub(super) fn check_admin(
    admin: &AdminSection,
    default: SocketAddr,
    check: &Check,
) -> Result<Option<SocketAddr>, ValueError> {
    const KEY: &str = "admin.listen";
    if admin.listen.as_deref() == Some("off") {
        return Ok(None);
    }
    let address = check.address(KEY, admin.listen.as_ref(), default)?;
    if !address.ip().is_loopback() && admin.secret.is_none() && admin.insecure != Some(true) {
        let why = "is beyond this machine, and nobody is asked for a password there: set one in FOREBAY_ADMIN_SECRET, or \
                   choose a loopback address, or say --insecure-admin if the network is yours";
        return Err(check.wrong(KEY, address.to_string(), why));
    }
    Ok(Some(address))
}

/// The certificate that clients see, and its key: both or none.
pub(super) fn check_tls(
    (certificate_key, certificate): (&'static str, Option<&PathBuf>),
    (key_key, key): (&'static str, Option<&PathBuf>),
    check: &Check,
) -> Result<Option<Arc<TlsCertificate>>, ValueError> {
    let shown = |path: &PathBuf| path.display().to_string();
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => match TlsCertificate::open(certificate, key) {
            Ok(tls) => Ok(Some(Arc::new(tls))),
            Err(error) => Err(check.wrong(certificate_key, shown(certificate), error)),
        },
        (Some(path), None) => {
            Err(check.wrong(certificate_key, shown(path), format!("needs its key: name it in {key_key}")))
        }
        (None, Some(path)) => {
            let why = format!("needs its certificate: name it in {certificate_key}");
            Err(check.wrong(key_key, shown(path), why))
        }
    }
}

/// What somebody must show.
pub(super) fn check_secret(
    key: &'static str,
    given: Option<&Hidden>,
    check: &Check,
) -> Result<Option<Secret>, ValueError> {
    let Some(text) = given.map(Hidden::reveal) else { return Ok(None) };
    if text.trim() != text {
        let why = "begins or ends with white space, which clients would have to show as well: leave it out";
        return Err(check.wrong(key, None, why));
    }
    let why = "is empty, and would keep nobody out: choose a long one, or leave the setting out";
    Secret::new(text).map(Some).ok_or_else(|| check.wrong(key, None, why))
}

pub(super) fn check_log(log: &LogSection, check: &Check) -> Result<LogConfig, ValueError> {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let filter = log.filter.clone().unwrap_or_else(|| "info".to_owned());
    check_filter(&filter).map_err(|why| check.wrong("log.filter", filter.clone(), why))?;
    Ok(LogConfig { format: check.choice("log.format", log.format.as_ref(), &formats)?, filter })
}
