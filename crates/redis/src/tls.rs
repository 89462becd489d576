//! TLS with rustls: certificates are always verified, against the system's roots or configured
//! ones.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::RedisConfigError;

/// TLS settings of a connection.
#[derive(Debug, Clone)]
pub struct RedisTls {
    /// Shared by all clones. The first connection reads the system's certificates.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
    server_name: Option<String>,
}

impl RedisTls {
    /// Trusts the system's certificates. They are read when the connection is opened.
    pub fn system() -> Self {
        RedisTls { config: Arc::default(), server_name: None }
    }

    /// Trusts only the certificate authorities in this PEM text.
    pub fn ca_pem(pem: &[u8]) -> Result<Self, RedisConfigError> {
        let config = builder().with_root_certificates(parse_roots(pem)?).with_no_client_auth();
        Ok(RedisTls::custom(Arc::new(config)))
    }

    /// Trusts only the authorities in `ca`, and presents this client certificate (PEM, with its
    /// chain) and key.
    pub fn mutual_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, RedisConfigError> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| RedisConfigError(format!("no private key in the client's key PEM: {error}")))?;
        let config =
            builder().with_root_certificates(parse_roots(ca)?).with_client_auth_cert(chain, key).map_err(
                |error| RedisConfigError(format!("the client certificate and key do not match: {error}")),
            )?;
        Ok(RedisTls::custom(Arc::new(config)))
    }

    /// Uses any rustls configuration.
    pub fn custom(config: Arc<ClientConfig>) -> Self {
        RedisTls { config: Arc::new(OnceLock::from(config)), server_name: None }
    }

    /// Sets the name to expect in the server's certificate, if it is not the address's host.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(crate) async fn prepare(
        &self,
        host: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), RedisConfigError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            RedisConfigError("the server name is invalid for TLS; set RedisTls::server_name".into())
        })?;
        if self.config.get().is_none() {
            // Reads and parses files, which would block other tasks on this thread.
            let roots = tokio::task::spawn_blocking(system_roots).await;
            let roots = roots.map_err(|_| {
                RedisConfigError("reading the system's certificates was interrupted".into())
            })??;
            let _set_concurrently =
                self.config.set(Arc::new(builder().with_root_certificates(roots).with_no_client_auth()));
        }
        Ok((self.config.get().expect("it was set above").clone(), name))
    }
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    // Set explicitly, so that other crypto providers in the program do not matter.
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports rustls' default protocol versions")
}

fn system_roots() -> Result<RootCertStore, RedisConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(RedisConfigError(
            "the system has no trusted certificates for TLS; install ca-certificates or use RedisTls::ca_pem"
                .into(),
        ));
    }
    Ok(roots)
}

fn parse_roots(pem: &[u8]) -> Result<RootCertStore, RedisConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots
            .add(certificate)
            .map_err(|error| RedisConfigError(format!("unusable CA certificate: {error}")))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RedisConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(RedisConfigError("no certificate in the PEM text".into())),
        Err(error) => Err(RedisConfigError(format!("unreadable certificate PEM: {error}"))),
    }
}
