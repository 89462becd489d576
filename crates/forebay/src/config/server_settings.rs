//! Checks of settings that every command has: HTTP, TLS, admin address, secrets and log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::Secret;
use forebay_stream::HttpServerConfig;

use super::secret_text::SecretText;
use super::settings_file::{AdminSection, HttpSection, LogSection};
use super::value_reader::{ValueError, ValueReader};
use crate::logging::{LogConfig, LogFormat, check_filter};
use crate::tls::TlsCertificate;

/// Checks `[http]`. `body` is the time without data from a client whose request body is incomplete.
pub(super) fn check_http(
    http: &HttpSection,
    body: Duration,
    reader: &ValueReader,
) -> Result<HttpServerConfig, ValueError> {
    let mut serve = HttpServerConfig::default();
    let count = |key, given, default, bounds| reader.count_within(key, given, default, bounds);
    serve.max_connections =
        count("http.max_connections", http.max_connections, serve.max_connections, 1..=u32::MAX)?;
    serve.max_headers = count("http.max_headers", http.max_headers, serve.max_headers, 1..=1024)?;
    // A smaller limit would refuse ordinary browsers; a larger one would let every client use that
    // much memory.
    let bytes = 8192..=16 * 1024 * 1024;
    serve.max_header_bytes =
        reader.count_within("http.max_header_bytes", http.max_header_bytes, serve.max_header_bytes, bytes)?;
    let duration = |key, given, default| reader.duration(key, given, default);
    serve.header_read_timeout =
        duration("http.header_timeout_ms", http.header_timeout_ms, serve.header_read_timeout)?;
    serve.write_timeout = duration("http.write_timeout_ms", http.write_timeout_ms, serve.write_timeout)?;
    serve.idle_timeout = duration("http.idle_timeout_ms", http.idle_timeout_ms, serve.idle_timeout)?;
    serve.drain_grace = duration("http.drain_grace_ms", http.drain_grace_ms, serve.drain_grace)?;
    serve.body_read_timeout = body;
    Ok(serve)
}

/// Checks the admin address. `None`: off.
pub(super) fn check_admin(
    admin: &AdminSection,
    default: SocketAddr,
    reader: &ValueReader,
) -> Result<Option<SocketAddr>, ValueError> {
    const KEY: &str = "admin.listen";
    if admin.listen.as_deref() == Some("off") {
        return Ok(None);
    }
    let address = reader.address(KEY, admin.listen.as_ref(), default)?;
    if !address.ip().is_loopback() && admin.secret.is_none() && admin.insecure != Some(true) {
        let why = "can be reached from other machines without a password: set one in FOREBAY_ADMIN_SECRET, or \
                   use a loopback address, or use --insecure-admin if you control the network";
        return Err(reader.error(KEY, address.to_string(), why));
    }
    Ok(Some(address))
}

/// Checks the certificate and its key. Both or neither must be set.
pub(super) fn check_tls(
    (certificate_key, certificate): (&'static str, Option<&PathBuf>),
    (key_key, key): (&'static str, Option<&PathBuf>),
    reader: &ValueReader,
) -> Result<Option<Arc<TlsCertificate>>, ValueError> {
    let shown = |path: &PathBuf| path.display().to_string();
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => match TlsCertificate::open(certificate, key) {
            Ok(tls) => Ok(Some(Arc::new(tls))),
            Err(error) => Err(reader.error(certificate_key, shown(certificate), error)),
        },
        (Some(path), None) => {
            Err(reader.error(certificate_key, shown(path), format!("needs its private key: set {key_key}")))
        }
        (None, Some(path)) => {
            let why = format!("needs its certificate: set {certificate_key}");
            Err(reader.error(key_key, shown(path), why))
        }
    }
}

/// Checks a secret.
pub(super) fn check_secret(
    key: &'static str,
    given: Option<&SecretText>,
    reader: &ValueReader,
) -> Result<Option<Secret>, ValueError> {
    let Some(text) = given.map(SecretText::reveal) else { return Ok(None) };
    if text.trim() != text {
        let why = "begins or ends with white space, which clients would have to send, too: remove it";
        return Err(reader.error(key, None, why));
    }
    let why = "is empty: choose a long secret, or remove the setting";
    Secret::new(text).map(Some).ok_or_else(|| reader.error(key, None, why))
}

/// Checks the log format and filter.
pub(super) fn check_log(log: &LogSection, reader: &ValueReader) -> Result<LogConfig, ValueError> {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let filter = log.filter.clone().unwrap_or_else(|| "info".to_owned());
    check_filter(&filter).map_err(|why| reader.error("log.filter", filter.clone(), why))?;
    Ok(LogConfig { format: reader.choice("log.format", log.format.as_ref(), &formats)?, filter })
}
