//! TLS with rustls, as `sslmode` requires.
//!
//! Invariant: a verifying mode never accepts a certificate that it can't verify. As in libpq, only
//! `require` and `prefer` without a CA accept any certificate.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::error::PostgresConfigError;

/// ALPN protocol name of Postgres.
pub(super) const ALPN: &[u8] = b"postgresql";

/// libpq's `sslmode`, without `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SslMode {
    /// Never uses TLS.
    Disable,
    /// Uses TLS if the server has it; connects without TLS if not, or if the handshake fails.
    /// Default, as in libpq, if no CA is given. It doesn't protect against an active attacker.
    Prefer,
    /// Requires TLS. The certificate is verified only if a CA is given; then as by `verify-ca`.
    Require,
    /// Requires TLS and a certificate that the given CA signed, for any host name.
    VerifyCa,
    /// Requires TLS and a certificate for the host name, signed by the given CA or one of the
    /// system's. Default if a CA is given.
    VerifyFull,
}

impl SslMode {
    /// Returns the value in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, PostgresConfigError> {
        let all =
            [SslMode::Disable, SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull];
        all.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            PostgresConfigError::new("sslmode", "one of disable, prefer, require, verify-ca and verify-full")
        })
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// CA, client certificate and server name, in addition to the connection string. Changed files are
/// reloaded for the next connection. `Debug` doesn't show keys.
#[derive(Debug, Clone, Default)]
pub struct PostgresTls {
    pub(super) authority: Option<PemSource>,
    pub(super) certificate: Option<PemSource>,
    pub(super) key: Option<PemSource>,
    pub(super) server_name: Option<String>,
}

impl PostgresTls {
    /// Adds nothing to the connection string.
    pub fn new() -> Self {
        PostgresTls::default()
    }

    /// Trusts only the CA certificates in this file (PEM): `sslrootcert`.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authority = Some(PemSource::File(path.into()));
        self
    }

    /// Trusts only the CA certificates in this PEM text.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(PemSource::Text(pem.into()));
        self
    }

    /// Sends the client certificate in this file (PEM, with its chain) and uses its key: `sslcert`
    /// and `sslkey`.
    #[must_use]
    pub fn client_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some(PemSource::File(certificate.into()));
        self.key = Some(PemSource::File(key.into()));
        self
    }

    /// As [`client_files`](Self::client_files), from PEM texts.
    #[must_use]
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificate = Some(PemSource::Text(certificate.into()));
        self.key = Some(PemSource::Text(key.into()));
        self
    }

    /// Sets the name to request and to expect in the server's certificate if it isn't the host, as
    /// behind a tunnel.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.authority, &self.certificate, &self.key].into_iter().filter_map(|pem| match pem {
            Some(PemSource::File(path)) => Some(path.as_path()),
            Some(PemSource::Text(_) | PemSource::System) | None => None,
        })
    }

    /// Returns these settings; missing ones are taken from `other`.
    pub(super) fn or(self, other: PostgresTls) -> PostgresTls {
        PostgresTls {
            authority: self.authority.or(other.authority),
            certificate: self.certificate.or(other.certificate),
            key: self.key.or(other.key),
            server_name: self.server_name.or(other.server_name),
        }
    }
}

/// Source of PEM data.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum PemSource {
    File(PathBuf),
    Text(Vec<u8>),
    /// The system's CA certificates: `sslrootcert=system`.
    System,
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemSource::File(path) => path.fmt(f),
            PemSource::Text(_) => f.write_str("PEM"),
            PemSource::System => f.write_str("system"),
        }
    }
}

/// TLS configuration of a mode and its files. Changed files are reloaded, because certificates
/// expire earlier than services restart.
pub(super) struct TlsContext {
    mode: SslMode,
    tls: PostgresTls,
    server_name: Option<ServerName<'static>>,
    current: Mutex<LoadedTls>,
}

struct LoadedTls {
    config: Arc<ClientConfig>,
    stamps: Vec<FileStamp>,
}

/// Inode, length and modification time of a file; `None` if it doesn't exist.
type FileStamp = Option<(u64, u64, i64, i64)>;

impl TlsContext {
    /// Reads the files. Returns `None` for `sslmode=disable`.
    pub(super) fn prepare(mode: SslMode, tls: PostgresTls) -> Result<Option<Arc<Self>>, PostgresConfigError> {
        if mode == SslMode::Disable {
            return Ok(None);
        }
        let server_name = match &tls.server_name {
            None => None,
            Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| {
                PostgresConfigError::new("server_name", "it must be a name of the DNS or an IP address")
            })?),
        };
        let current = Mutex::new(load(mode, &tls)?);
        Ok(Some(Arc::new(TlsContext { mode, tls, server_name, current })))
    }

    /// Returns the current configuration; reloads changed files.
    pub(super) async fn config(self: &Arc<Self>) -> Arc<ClientConfig> {
        if self.tls.files().next().is_some() {
            let this = Arc::clone(self);
            // Reads may block, so they run on a blocking thread. After a panic the old
            // configuration stays.
            let _refreshed = tokio::task::spawn_blocking(move || this.refresh()).await;
        }
        Arc::clone(&self.current.lock().config)
    }

    fn refresh(&self) {
        if stamps(&self.tls) == self.current.lock().stamps {
            return;
        }
        match load(self.mode, &self.tls) {
            Ok(new) => {
                tracing::info!("TLS files reloaded");
                *self.current.lock() = new;
            }
            // One of two files may be written before the other; the next connection checks again.
            Err(error) => {
                tracing::warn!(%error, "TLS files not reloaded: new files invalid")
            }
        }
    }

    /// Returns the name to request. An invalid certificate name is an error only if it would be
    /// verified.
    pub(super) fn name(&self, host: &str, address: IpAddr) -> Option<ServerName<'static>> {
        if let Some(name) = &self.server_name {
            return Some(name.clone());
        }
        match ServerName::try_from(host.to_owned()) {
            Ok(name) => Some(name),
            Err(_) if self.mode == SslMode::VerifyFull => None,
            Err(_) => Some(address.into()),
        }
    }
}

fn load(mode: SslMode, tls: &PostgresTls) -> Result<LoadedTls, PostgresConfigError> {
    // Before the files are read, so that a write in between is detected by the next check.
    let stamps = stamps(tls);
    let trust = match (mode, tls.authority.as_ref()) {
        (SslMode::VerifyFull, None | Some(PemSource::System)) => {
            CertificateTrust::Chain { roots: system_roots()?, pinned: Vec::new(), verify_name: true }
        }
        (_, Some(PemSource::System)) => {
            let problem =
                "system needs sslmode=verify-full, because its authorities sign certificates for any host";
            return Err(PostgresConfigError::new("sslrootcert", problem));
        }
        (SslMode::VerifyCa, None) => {
            let problem = "verify-ca needs the authority in sslrootcert; verify-full can do without";
            return Err(PostgresConfigError::new("sslmode", problem));
        }
        (SslMode::Disable | SslMode::Prefer | SslMode::Require, None) => CertificateTrust::Any,
        (_, Some(pem @ (PemSource::File(_) | PemSource::Text(_)))) => {
            let authorities = certificates("sslrootcert", &read("sslrootcert", pem)?)?;
            let (roots, verify_name) = (roots(&authorities)?, mode == SslMode::VerifyFull);
            CertificateTrust::Chain { roots, pinned: authorities, verify_name }
        }
    };
    Ok(LoadedTls { config: Arc::new(client_config(trust, tls)?), stamps })
}

fn stamps(tls: &PostgresTls) -> Vec<FileStamp> {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    tls.files().map(stamp).collect()
}

fn client_config(trust: CertificateTrust, tls: &PostgresTls) -> Result<ClientConfig, PostgresConfigError> {
    // Explicit, so that other providers in the program don't matter.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(CertificateVerifier::new(trust, &provider));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports rustls' default protocol versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&tls.certificate, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let chain = certificates("sslcert", &read("sslcert", certificate)?)?;
            let key = PrivateKeyDer::from_pem_slice(&read("sslkey", key)?).map_err(|_| {
                PostgresConfigError::new(
                    "sslkey",
                    "there must be one private key in PEM, without a passphrase",
                )
            })?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                PostgresConfigError::new("sslkey", format!("it can't be used with sslcert: {error}"))
            })?
        }
        (Some(_), None) => return Err(PostgresConfigError::new("sslkey", "sslcert needs it")),
        (None, Some(_)) => return Err(PostgresConfigError::new("sslcert", "sslkey needs it")),
    };
    // libpq sends it in every handshake since version 17; older servers ignore it.
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

#[derive(Debug)]
enum CertificateTrust {
    Any,
    Chain {
        roots: RootCertStore,
        /// The given certificates. A server may present one of them, self-signed, which is no
        /// chain. Its dates aren't checked: the holder of its key is the configured peer.
        pinned: Vec<CertificateDer<'static>>,
        verify_name: bool,
    },
}

/// Verifies as the mode requires. In every mode the server must prove that it has the key of its
/// certificate; channel binding depends on it.
#[derive(Debug)]
struct CertificateVerifier {
    trust: CertificateTrust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl CertificateVerifier {
    fn new(trust: CertificateTrust, provider: &CryptoProvider) -> Self {
        CertificateVerifier { trust, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let CertificateTrust::Chain { roots, pinned, verify_name } = &self.trust {
            let parsed = ParsedCertificate::try_from(certificate)?;
            if !pinned.contains(certificate) {
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
            }
            if *verify_name {
                verify_server_name(&parsed, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn read(key: &'static str, pem: &PemSource) -> Result<Vec<u8>, PostgresConfigError> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| PostgresConfigError::new(key, format!("{}: {error}", path.display())))
    };
    match pem {
        PemSource::File(path) => read(path),
        PemSource::Text(text) => Ok(text.clone()),
        PemSource::System => Err(PostgresConfigError::new(key, "system is only for sslrootcert")),
    }
}

fn system_roots() -> Result<RootCertStore, PostgresConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let problem = "the system trusts no authority: install ca-certificates, or name a file";
        return Err(PostgresConfigError::new("sslrootcert", problem));
    }
    Ok(roots)
}

fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, PostgresConfigError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| {
            PostgresConfigError::new("sslrootcert", format!("a certificate in it can't be used: {error}"))
        })?;
    }
    Ok(roots)
}

fn certificates(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PostgresConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(PostgresConfigError::new(key, "there is no certificate in the PEM")),
        Err(error) => Err(PostgresConfigError::new(key, format!("unreadable PEM: {error}"))),
    }
}
