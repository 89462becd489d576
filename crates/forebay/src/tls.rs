//! TLS for clients: one certificate with its key, reloaded when the files change.
//!
//! Invariant: there is always a valid pair of certificate and key. New connections get the newest
//! valid pair; open connections keep theirs. An invalid pair is logged once. No key is ever
//! printed.
//! Enforced by: `TlsCertificate::check_files` replaces the pair only with one that was read
//! completely and is valid.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_stream::{Handshake, HandshakeFuture, NegotiatedTransport};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::interval;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// Interval between checks of the files. SIGHUP checks them at once.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// ALPN name of HTTP/2.
const HTTP2: &[u8] = b"h2";

/// Certificate chain with its private key, loaded from two files.
pub struct TlsCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<CurrentPair>,
    hasher: RandomState,
}

/// TLS configuration for new connections.
struct CurrentPair {
    config: Arc<ServerConfig>,
    /// Hash of the files as they were read last, valid or not.
    hash: u64,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file doesn't contain the expected PEM item.
    #[error("{}: there is no {what} in PEM", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
        /// The expected item.
        what: &'static str,
    },
    /// The certificate or the key is invalid, or they don't belong together.
    #[error("the certificate and the key can't be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// Result of a check of the files.
#[derive(Debug)]
pub(crate) enum CertificateCheck {
    Unchanged,
    Changed,
    Failed(TlsError),
}

impl TlsCertificate {
    /// Reads a certificate chain and its private key, both in PEM.
    ///
    /// # Errors
    /// Fails if a file can't be read, or the pair is invalid.
    pub fn open(certificate: &Path, key: &Path) -> Result<TlsCertificate, TlsError> {
        let texts = (read(certificate)?, read(key)?);
        let hasher = RandomState::new();
        let config = configure((certificate, &texts.0), (key, &texts.1))?;
        let current = CurrentPair { config: Arc::new(config), hash: hasher.hash_one(&texts) };
        Ok(TlsCertificate {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: RwLock::new(current),
            hasher,
        })
    }

    /// Checks the files repeatedly. Never returns.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut ticks = interval(CHECK_INTERVAL);
        loop {
            ticks.tick().await;
            self.reload().await;
        }
    }

    /// Checks the files, and logs a change or an error.
    pub(crate) async fn reload(self: &Arc<Self>) {
        let this = Arc::clone(self);
        match tokio::task::spawn_blocking(move || this.check_files()).await {
            Ok(CertificateCheck::Changed) => info!("certificate reloaded"),
            Ok(CertificateCheck::Failed(error)) => {
                warn!(%error, "certificate not reloaded: previous one kept");
            }
            Ok(CertificateCheck::Unchanged) | Err(_) => {}
        }
    }

    /// Reads the files and replaces the pair if it changed and is valid.
    ///
    /// One file is written before the other, so the pair may not match for a while. It is checked
    /// again when either file has changed.
    fn check_files(&self) -> CertificateCheck {
        let texts = read(&self.certificate).and_then(|text| Ok((text, read(&self.key)?)));
        let hash = texts.as_ref().map_or(0, |texts| self.hasher.hash_one(texts));
        {
            let current = self.current.read();
            if current.hash == hash {
                return CertificateCheck::Unchanged;
            }
        }
        let config = texts.and_then(|texts| configure((&self.certificate, &texts.0), (&self.key, &texts.1)));
        let mut current = self.current.write();
        current.hash = hash;
        match config {
            Ok(config) => {
                current.config = Arc::new(config);
                CertificateCheck::Changed
            }
            Err(error) => CertificateCheck::Failed(error),
        }
    }
}

impl Handshake for TlsCertificate {
    fn handshake(&self, stream: TcpStream) -> HandshakeFuture {
        let config = Arc::clone(&self.current.read().config);
        Box::pin(async move {
            let stream = TlsAcceptor::from(config).accept(stream).await?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            Ok(NegotiatedTransport { io: Box::new(stream), is_http2 })
        })
    }
}

impl fmt::Debug for TlsCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsCertificate")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Builds the TLS configuration of a pair.
fn configure(
    (certificate, chain): (&Path, &[u8]),
    (key_path, key): (&Path, &[u8]),
) -> Result<ServerConfig, TlsError> {
    let empty = |path: &Path, what| TlsError::Empty { path: path.to_owned(), what };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| empty(certificate, "certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| empty(key_path, "private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut text));
    read.map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Certificate file and key file in a temporary directory.
    struct CertificateFiles(PathBuf, PathBuf);

    impl CertificateFiles {
        fn new(name: &str) -> CertificateFiles {
            let dir = std::env::temp_dir().join(format!("forebay-tls-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            CertificateFiles(dir.join("cert.pem"), dir.join("key.pem"))
        }

        fn write(&self, (certificate, key): &(String, String)) {
            std::fs::write(&self.0, certificate).unwrap();
            std::fs::write(&self.1, key).unwrap();
        }
    }

    impl Drop for CertificateFiles {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    fn generate_pair() -> (String, String) {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (generated.cert.pem(), generated.signing_key.serialize_pem())
    }

    #[test]
    fn a_new_pair_replaces_the_old_one_once_both_files_are_written() {
        let (files, first, second) = (CertificateFiles::new("new"), generate_pair(), generate_pair());
        files.write(&first);
        let tls = TlsCertificate::open(&files.0, &files.1).unwrap();
        let current_config = || Arc::as_ptr(&tls.current.read().config);
        let before = current_config();
        assert!(matches!(tls.check_files(), CertificateCheck::Unchanged));
        files.write(&(second.0.clone(), first.1));
        assert!(
            matches!(tls.check_files(), CertificateCheck::Failed(TlsError::Pair(_))),
            "the pair doesn't match"
        );
        assert!(matches!(tls.check_files(), CertificateCheck::Unchanged), "reported once");
        assert_eq!(current_config(), before);
        files.write(&second);
        assert!(matches!(tls.check_files(), CertificateCheck::Changed));
        assert_ne!(current_config(), before);
        for invalid in [(String::new(), second.1.clone()), (second.0.clone(), "invalid".to_owned())] {
            files.write(&invalid);
            assert!(matches!(tls.check_files(), CertificateCheck::Failed(TlsError::Empty { .. })));
        }
        std::fs::remove_file(&files.1).unwrap();
        assert!(matches!(tls.check_files(), CertificateCheck::Failed(TlsError::Unreadable { .. })));
        files.write(&second);
        assert!(matches!(tls.check_files(), CertificateCheck::Changed), "a valid pair is loaded again");
    }

    #[test]
    fn the_error_of_an_invalid_pair_gives_the_reason_and_no_key() {
        let (files, (certificate, key)) = (CertificateFiles::new("bad"), generate_pair());
        let error = |pair: (&str, &str)| {
            files.write(&(pair.0.to_owned(), pair.1.to_owned()));
            TlsCertificate::open(&files.0, &files.1).unwrap_err().to_string()
        };
        assert!(error((&key, &key)).contains("cert.pem: there is no certificate in PEM"));
        assert!(error((&certificate, &certificate)).contains("key.pem: there is no private key in PEM"));
        let other = error((&certificate, &generate_pair().1));
        assert!(other.contains("can't be used") && !other.contains("BEGIN"), "{other}");
        files.write(&(certificate, key));
        assert!(!format!("{:?}", TlsCertificate::open(&files.0, &files.1).unwrap()).contains("BEGIN"));
    }
}
