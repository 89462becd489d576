//! TLS for clients: one certificate with its key, read again when the files change.
//!
//! Invariant: there is always a pair that fits, and new connections get the newest that did. A pair that can't be used is told once, and the one
//! before stays. Open connections keep what they began with. No key is ever printed.
//! Kept by: `Tls::look` replaces the pair only by one that was read whole and fits together.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use forebay_stream::{Handshake, HandshakeFuture, NegotiatedTransport};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::interval;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// How often the files are looked at. Whoever can't wait sends SIGHUP.
const LOOK: Duration = Duration::from_secs(5);
const MAX_FILE_BYTES: u64 = 1 << 20;
const HTTP2: &[u8] = b"h2";

/// A certificate and its key.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    now: RwLock<Now>,
    hasher: RandomState,
}

struct Now {
    config: Arc<ServerConfig>,
    /// Of what was read last, whether it could be used or not.
    hash: u64,
}

/// Why a pair can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in a file that belongs there.
    #[error("{}: there is no {what} in PEM", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
    },
    /// Both are there and can't be used, or not together.
    #[error("the certificate and the key can't be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// What a look at the files has found.
#[derive(Debug)]
pub(crate) enum Look {
    Same,
    Changed,
    Failed(TlsError),
}

impl Tls {
    /// Reads a certificate, with those that lead to an authority after it, and its key, both in PEM.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let texts = (read(certificate)?, read(key)?);
        let hasher = RandomState::new();
        let config = configure((certificate, &texts.0), (key, &texts.1))?;
        let now = Now { config: Arc::new(config), hash: hasher.hash_one(&texts) };
        Ok(Tls { certificate: certificate.to_owned(), key: key.to_owned(), now: RwLock::new(now), hasher })
    }

    /// Looks at the files until the end.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut ticks = interval(LOOK);
        loop {
            ticks.tick().await;
            self.reload().await;
        }
    }

    /// Looks at the files, and tells what it has found.
    pub(crate) async fn reload(self: &Arc<Self>) {
        let looking = Arc::clone(self);
        match tokio::task::spawn_blocking(move || looking.look()).await {
            Ok(Look::Changed) => info!("the certificate changed: new connections get it"),
            Ok(Look::Failed(error)) => {
                warn!(%error, "the new certificate can't be used; the last good one stays");
            }
            Ok(Look::Same) | Err(_) => {}
        }
    }

    /// One of the files is written before the other: a pair that doesn't fit is looked at again when either has changed.
    fn look(&self) -> Look {
        let texts = read(&self.certificate).and_then(|text| Ok((text, read(&self.key)?)));
        let hash = texts.as_ref().map_or(0, |texts| self.hasher.hash_one(texts));
        {
            let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
            if now.hash == hash {
                return Look::Same;
            }
        }
        let config = texts.and_then(|texts| configure((&self.certificate, &texts.0), (&self.key, &texts.1)));
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        now.hash = hash;
        match config {
            Ok(config) => {
                now.config = Arc::new(config);
                Look::Changed
            }
            Err(error) => Look::Failed(error),
        }
    }
}

impl Handshake for Tls {
    fn handshake(&self, stream: TcpStream) -> HandshakeFuture {
        let config = Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).config);
        Box::pin(async move {
            let stream = TlsAcceptor::from(config).accept(stream).await?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            Ok(NegotiatedTransport { io: Box::new(stream), is_http2 })
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

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

    struct Files(PathBuf, PathBuf);

    impl Files {
        fn new(name: &str) -> Files {
            let dir = std::env::temp_dir().join(format!("forebay-tls-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Files(dir.join("cert.pem"), dir.join("key.pem"))
        }

        fn write(&self, (certificate, key): &(String, String)) {
            std::fs::write(&self.0, certificate).unwrap();
            std::fs::write(&self.1, key).unwrap();
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_new_pair_takes_the_place_of_the_old_one_once_both_files_are_there() {
        let (files, first, second) = (Files::new("new"), pair(), pair());
        files.write(&first);
        let tls = Tls::open(&files.0, &files.1).unwrap();
        let shown = || Arc::as_ptr(&tls.now.read().unwrap().config);
        let before = shown();
        assert!(matches!(tls.look(), Look::Same));
        files.write(&(second.0.clone(), first.1));
        assert!(matches!(tls.look(), Look::Failed(TlsError::Pair(_))), "they don't fit");
        assert!(matches!(tls.look(), Look::Same), "told once");
        assert_eq!(shown(), before);
        files.write(&second);
        assert!(matches!(tls.look(), Look::Changed));
        assert_ne!(shown(), before);
        for rubbish in [(String::new(), second.1.clone()), (second.0.clone(), "rubbish".to_owned())] {
            files.write(&rubbish);
            assert!(matches!(tls.look(), Look::Failed(TlsError::Empty { .. })));
        }
        std::fs::remove_file(&files.1).unwrap();
        assert!(matches!(tls.look(), Look::Failed(TlsError::Unreadable { .. })));
        files.write(&second);
        assert!(matches!(tls.look(), Look::Changed), "and it is found again");
    }

    #[test]
    fn what_can_not_be_used_says_why_and_shows_no_key() {
        let (files, (certificate, key)) = (Files::new("bad"), pair());
        let error = |pair: (&str, &str)| {
            files.write(&(pair.0.to_owned(), pair.1.to_owned()));
            Tls::open(&files.0, &files.1).unwrap_err().to_string()
        };
        assert!(error((&key, &key)).contains("cert.pem: there is no certificate in PEM"));
        assert!(error((&certificate, &certificate)).contains("key.pem: there is no private key in PEM"));
        let other = error((&certificate, &pair().1));
        assert!(other.contains("can't be used") && !other.contains("BEGIN"), "{other}");
        files.write(&(certificate, key));
        assert!(!format!("{:?}", Tls::open(&files.0, &files.1).unwrap()).contains("BEGIN"));
    }
}
