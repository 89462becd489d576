//! TLS as `sslmode` says, by rustls.
//!
//! Invariant: a mode that verifies never accepts what it can't verify; only `require` and `prefer` without an authority
//! accept anybody, as libpq's do.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// What Postgres calls itself in ALPN.
pub(super) const ALPN: &[u8] = b"postgresql";

/// How much a connection is protected: libpq's `sslmode`, without `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// TLS where the server has it; plain where it hasn't, or where the handshake fails. The default, as in libpq,
    /// unless an authority is given. It protects from nobody who can change what is sent.
    Prefer,
    /// Always TLS. Who answers is verified only if an authority is given; then as by `verify-ca`.
    Require,
    /// Always TLS, with a certificate that the given authority signed, whatever name is in it.
    VerifyCa,
    /// Always TLS, with a certificate that the given authority signed, or one of the system's, for the host's name.
    /// The default where an authority is given.
    VerifyFull,
}

impl SslMode {
    /// As in a connection string.
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

/// Whom to trust and what to show, beside what the connection string says. Files that change are read anew by the next
/// connection. `Debug` doesn't show keys.
#[derive(Debug, Clone, Default)]
pub struct PostgresTls {
    pub(super) authority: Option<Pem>,
    pub(super) certificate: Option<Pem>,
    pub(super) key: Option<Pem>,
    pub(super) server_name: Option<String>,
}

impl PostgresTls {
    /// Nothing but what the connection string says.
    pub fn new() -> Self {
        PostgresTls::default()
    }

    /// Trusts the authorities in this file (PEM), and no others: `sslrootcert`.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authority = Some(Pem::File(path.into()));
        self
    }

    /// Trusts the authorities in this PEM text, and no others.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(Pem::Text(pem.into()));
        self
    }

    /// Shows the server the certificate in this file (PEM, with its chain), with the key in that one: `sslcert` and
    /// `sslkey`.
    #[must_use]
    pub fn client_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some(Pem::File(certificate.into()));
        self.key = Some(Pem::File(key.into()));
        self
    }

    /// Likewise, from PEM texts.
    #[must_use]
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificate = Some(Pem::Text(certificate.into()));
        self.key = Some(Pem::Text(key.into()));
        self
    }

    /// The name to ask for and to expect in the server's certificate, where it isn't the host: behind a tunnel, for one.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.authority, &self.certificate, &self.key].into_iter().filter_map(|pem| match pem {
            Some(Pem::File(path)) => Some(path.as_path()),
            Some(Pem::Text(_) | Pem::System) | None => None,
        })
    }

    /// What is set here wins over what is set there.
    pub(super) fn or(self, other: PostgresTls) -> PostgresTls {
        PostgresTls {
            authority: self.authority.or(other.authority),
            certificate: self.certificate.or(other.certificate),
            key: self.key.or(other.key),
            server_name: self.server_name.or(other.server_name),
        }
    }
}

/// Where PEM comes from.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Pem {
    File(PathBuf),
    Text(Vec<u8>),
    /// What the system trusts: `sslrootcert=system`.
    System,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => path.fmt(f),
            Pem::Text(_) => f.write_str("PEM"),
            Pem::System => f.write_str("system"),
        }
    }
}

/// What a mode and its files come to. Files that have changed are read anew, since certificates live shorter than
/// services.
pub(super) struct Encryption {
    mode: SslMode,
    tls: PostgresTls,
    server_name: Option<ServerName<'static>>,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ClientConfig>,
    stamps: Vec<Stamp>,
}

/// What changes with a file: its inode, its length, when it was written. `None`: it isn't there.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Encryption {
    /// Reads the files. `None`: `sslmode=disable`.
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
        let current = Mutex::new(read_all(mode, &tls)?);
        Ok(Some(Arc::new(Encryption { mode, tls, server_name, current })))
    }

    /// How to encrypt now.
    pub(super) async fn config(self: &Arc<Self>) -> Arc<ClientConfig> {
        if self.tls.files().next().is_some() {
            let this = Arc::clone(self);
            // Files may be far away, and would hold up whoever shares our thread. A panic leaves things as they were.
            let _refreshed = tokio::task::spawn_blocking(move || this.refresh()).await;
        }
        Arc::clone(&self.current().config)
    }

    fn refresh(&self) {
        if stamps(&self.tls) == self.current().stamps {
            return;
        }
        match read_all(self.mode, &self.tls) {
            Ok(new) => {
                tracing::info!("certificate files have changed and were read anew");
                *self.current() = new;
            }
            // One of two files may be written before the other; the next connection looks again.
            Err(error) => {
                tracing::warn!(%error, "certificate files have changed, and the new ones can't be used")
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name to ask for. One that can't be a certificate's is an error only where it would be verified.
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

fn read_all(mode: SslMode, tls: &PostgresTls) -> Result<Current, PostgresConfigError> {
    // First, so that what is written while we read is seen by the next look.
    let stamps = stamps(tls);
    let trust = match (mode, tls.authority.as_ref()) {
        (SslMode::VerifyFull, None | Some(Pem::System)) => Trust::chain(system_roots()?, Vec::new(), true),
        (_, Some(Pem::System)) => {
            let problem = "system needs sslmode=verify-full, since it has a certificate for anybody";
            return Err(PostgresConfigError::new("sslrootcert", problem));
        }
        (SslMode::VerifyCa, None) => {
            let problem = "verify-ca needs the authority in sslrootcert; verify-full can do without";
            return Err(PostgresConfigError::new("sslmode", problem));
        }
        (SslMode::Disable | SslMode::Prefer | SslMode::Require, None) => Trust::Anybody,
        (_, Some(pem @ (Pem::File(_) | Pem::Text(_)))) => {
            let authorities = certificates("sslrootcert", &read("sslrootcert", pem)?)?;
            Trust::chain(roots(&authorities)?, authorities, mode == SslMode::VerifyFull)
        }
    };
    Ok(Current { config: Arc::new(client_config(trust, tls)?), stamps })
}

fn stamps(tls: &PostgresTls) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    tls.files().map(stamp).collect()
}

fn client_config(trust: Trust, tls: &PostgresTls) -> Result<ClientConfig, PostgresConfigError> {
    // Named here, so that it doesn't matter which other providers the program links.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Verifier::new(trust, &provider));
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
    // libpq says so in every handshake since version 17; older servers don't mind.
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

#[derive(Debug)]
enum Trust {
    Anybody,
    Chain {
        roots: RootCertStore,
        /// The given certificates themselves. A server may show one of them, signed by itself, which is no chain; its
        /// dates aren't looked at then, since whoever holds its key is whom the file names.
        given: Vec<CertificateDer<'static>>,
        name_matters: bool,
    },
}

impl Trust {
    fn chain(roots: RootCertStore, given: Vec<CertificateDer<'static>>, name_matters: bool) -> Self {
        Trust::Chain { roots, given, name_matters }
    }
}

/// Verifies as the mode says. That the server holds the key of its certificate is verified in every mode: channel
/// binding rests on it.
#[derive(Debug)]
struct Verifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(trust: Trust, provider: &CryptoProvider) -> Self {
        Verifier { trust, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Trust::Chain { roots, given, name_matters } = &self.trust {
            let parsed = ParsedCertificate::try_from(certificate)?;
            if !given.contains(certificate) {
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
            }
            if *name_matters {
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

fn read(key: &'static str, pem: &Pem) -> Result<Vec<u8>, PostgresConfigError> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| PostgresConfigError::new(key, format!("{}: {error}", path.display())))
    };
    match pem {
        Pem::File(path) => read(path),
        Pem::Text(text) => Ok(text.clone()),
        Pem::System => Err(PostgresConfigError::new(key, "system is only for sslrootcert")),
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
