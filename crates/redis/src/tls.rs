//! TLS by rustls: always verified, against the system's certificates or those that are given.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::ConfigError;

/// How a connection is encrypted and whom it trusts.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Shared by all clones; the system's certificates are read once, by the first connection.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
    server_name: Option<String>,
}

impl Tls {
    /// Trusts what the system trusts. The certificates are read when the connection is made.
    pub fn system() -> Self {
        Tls { config: Arc::default(), server_name: None }
    }

    /// Trusts the certificate authorities in this PEM text, and no others.
    pub fn ca_pem(pem: &[u8]) -> Result<Self, ConfigError> {
        let config = builder().with_root_certificates(roots(pem)?).with_no_client_auth();
        Ok(Tls::custom(Arc::new(config)))
    }

    /// Likewise, and shows the server this certificate (PEM, with its chain) and key.
    pub fn mutual_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| ConfigError(format!("no private key in the client's key PEM: {error}")))?;
        let config = builder()
            .with_root_certificates(roots(ca)?)
            .with_client_auth_cert(chain, key)
            .map_err(|error| ConfigError(format!("the client certificate and key don't fit: {error}")))?;
        Ok(Tls::custom(Arc::new(config)))
    }

    /// Anything else that rustls can do.
    pub fn custom(config: Arc<ClientConfig>) -> Self {
        Tls { config: Arc::new(OnceLock::from(config)), server_name: None }
    }

    /// The name to expect in the server's certificate, where it isn't the address's host.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(crate) async fn prepare(
        &self,
        host: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), ConfigError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            ConfigError("the server's name can't be used for TLS; set Tls::server_name".into())
        })?;
        if self.config.get().is_none() {
            // Files are read and parsed, which would hold up whoever shares our thread.
            let roots = tokio::task::spawn_blocking(system_roots).await;
            let roots = roots
                .map_err(|_| ConfigError("reading the system's certificates was interrupted".into()))??;
            let _somebody_was_quicker =
                self.config.set(Arc::new(builder().with_root_certificates(roots).with_no_client_auth()));
        }
        Ok((self.config.get().expect("it was set above").clone(), name))
    }
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    // Named here, so that it doesn't matter which other providers the program links.
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports rustls' default protocol versions")
}

fn system_roots() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(ConfigError(
            "the system has no trusted certificates for TLS; install ca-certificates or use Tls::ca_pem"
                .into(),
        ));
    }
    Ok(roots)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| ConfigError(format!("unusable CA certificate: {error}")))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(ConfigError("no certificate in the PEM text".into())),
        Err(error) => Err(ConfigError(format!("unreadable certificate PEM: {error}"))),
    }
}
