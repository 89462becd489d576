//! Settings that every command has: HTTP, TLS and the admin address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_settings::{OptionalAddress, SettingLayers, ValueError};
use forebay_stream::HttpServerConfig;

use super::sections::{AdminSection, HttpSection};
use crate::tls::TlsCertificate;

/// Returns the settings of the HTTP server. `body` is the time without data from a client whose
/// request body is incomplete.
pub(super) fn http_config(http: &HttpSection, body: Duration) -> HttpServerConfig {
    let mut server = HttpServerConfig::default();
    server.max_connections = http.max_connections as usize;
    server.max_headers = http.max_headers as usize;
    server.max_header_bytes = http.max_header_bytes as usize;
    server.header_read_timeout = http.header_timeout_ms;
    server.write_timeout = http.write_timeout_ms;
    server.idle_timeout = http.idle_timeout_ms;
    server.drain_grace = http.drain_grace_ms;
    server.body_read_timeout = body;
    server
}

/// Checks the admin address. `None`: off.
pub(super) fn check_admin(
    admin: &AdminSection,
    layers: &SettingLayers,
) -> Result<Option<SocketAddr>, ValueError> {
    let OptionalAddress(Some(address)) = admin.listen else { return Ok(None) };
    if !address.ip().is_loopback() && admin.secret.is_none() && !admin.insecure {
        let why = "can be reached from other machines without a password: set one in FOREBAY_ADMIN_SECRET, or \
                   use a loopback address, or use --insecure-admin if you control the network";
        return Err(layers.error("admin.listen", address.to_string(), why));
    }
    Ok(Some(address))
}

/// Checks the certificate and its key. Both or neither must be set.
pub(super) fn check_tls(
    (certificate_key, certificate): (&'static str, Option<&PathBuf>),
    (key_key, key): (&'static str, Option<&PathBuf>),
    layers: &SettingLayers,
) -> Result<Option<Arc<TlsCertificate>>, ValueError> {
    let shown = |path: &PathBuf| path.display().to_string();
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => match TlsCertificate::open(certificate, key) {
            Ok(tls) => Ok(Some(Arc::new(tls))),
            Err(error) => Err(layers.error(certificate_key, shown(certificate), error)),
        },
        (Some(path), None) => {
            Err(layers.error(certificate_key, shown(path), format!("needs its private key: set {key_key}")))
        }
        (None, Some(path)) => {
            let why = format!("needs its certificate: set {certificate_key}");
            Err(layers.error(key_key, shown(path), why))
        }
    }
}
