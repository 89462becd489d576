//! Keys that tokens are checked with.
//!
//! Invariant: which algorithms a key may be used with follows from the key alone, never from a token. A set has at most
//! [`MAX_KEYS`] keys, and one token is tried against at most [`MAX_TRIES`] of them.
//! Kept by: [`Key`] is made only here, with its algorithms; [`KeySet::candidates`] compares the token's with them.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

const MAX_KEYS: usize = 256;
const MAX_TRIES: usize = 8;
/// RFC 7518: a secret for HS256 has at least the length of the hash.
const MIN_SECRET_BYTES: usize = 32;

/// One key, and what it may be used for.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// Several keys, as a JWKS file has them.
#[derive(Clone, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// How many there are besides that can't check a signature.
    others: usize,
}

/// What can't be a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A short secret can be guessed from one token.
    #[error("the secret has {bytes} bytes; a secret for HS256 needs at least {MIN_SECRET_BYTES} (RFC 7518)")]
    ShortSecret {
        /// How many it has.
        bytes: usize,
    },
    /// Neither an RSA, an EC (P-256, P-384) nor an Ed25519 public key.
    #[error("the PEM text holds no public key that is understood: RSA, P-256, P-384 or Ed25519")]
    Pem,
    /// The file can't be read.
    #[error("{file}: {source}")]
    File {
        /// Which.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than a set of keys ever is.
    #[error("{file}: {bytes} bytes; a set of keys has at most {max}")]
    LargeFile {
        /// Which.
        file: String,
        /// How large.
        bytes: u64,
        /// How large it may be.
        max: u64,
    },
    /// The file holds no JSON Web Key Set.
    #[error("{file}: no JSON Web Key Set: {source}")]
    Jwks {
        /// Which.
        file: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The file holds none that can check a signature.
    #[error("{file}: none of its {found} keys can check a signature")]
    NoKeys {
        /// Which.
        file: String,
        /// How many there are of other kinds.
        found: usize,
    },
    /// More than we look through.
    #[error("{file}: {found} keys; at most {MAX_KEYS} are taken")]
    ManyKeys {
        /// Which.
        file: String,
        /// How many there are.
        found: usize,
    },
}

impl Key {
    pub(super) fn secret(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(KeyError::ShortSecret { bytes: secret.len() });
        }
        let algorithms = vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
        Ok(Key { id: None, algorithms, key: DecodingKey::from_secret(secret) })
    }

    pub(super) fn pem(pem: &[u8]) -> Result<Self, KeyError> {
        let text = String::from_utf8_lossy(pem);
        if text.contains("PRIVATE KEY") {
            return Err(KeyError::Pem); // a private key has no business here
        }
        let rsa = || Some((RSA.to_vec(), DecodingKey::from_rsa_pem(pem).ok()?));
        let ed = || Some((vec![Algorithm::EdDSA], DecodingKey::from_ed_pem(pem).ok()?));
        let ec = || {
            let key = DecodingKey::from_ec_pem(pem).ok()?;
            // An uncompressed point: 1 + 2 × 32 bytes on P-256, 1 + 2 × 48 on P-384.
            let algorithm = match key.try_get_as_bytes().ok()?.len() {
                65 => Algorithm::ES256,
                97 => Algorithm::ES384,
                _ => return None,
            };
            Some((vec![algorithm], key))
        };
        let (algorithms, key) = rsa().or_else(ec).or_else(ed).ok_or(KeyError::Pem)?;
        Ok(Key { id: None, algorithms, key })
    }

    /// Nothing for a key that is meant for something else, or of a kind that we don't know.
    fn jwk(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let signs = !matches!(&common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature)
            && common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA.to_vec(),
            AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
                EllipticCurve::P256 => vec![Algorithm::ES256],
                EllipticCurve::P384 => vec![Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
                vec![Algorithm::EdDSA]
            }
            AlgorithmParameters::OctetKey(_) => vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512],
            _ => return None, // another curve, or a kind that was invented since
        };
        if let Some(named) = common.key_algorithm {
            let named = Algorithm::try_from(named).ok()?;
            algorithms.retain(|algorithm| *algorithm == named);
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let short = matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_))
            && key.try_get_as_bytes().map_or(0, <[u8]>::len) < MIN_SECRET_BYTES;
        let usable = signs && !algorithms.is_empty() && !short;
        usable.then(|| Key { id: common.key_id.clone(), algorithms, key })
    }
}

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

impl KeySet {
    pub(super) fn one(key: Key) -> Self {
        KeySet { keys: vec![key], others: 0 }
    }

    /// Reads a JSON Web Key Set, which may be empty: then no token holds. `file` is for the errors.
    pub(super) fn parse(text: &[u8], file: &str) -> Result<Self, KeyError> {
        let file = || file.to_owned();
        let set: JwkSet =
            serde_json::from_slice(text).map_err(|source| KeyError::Jwks { file: file(), source })?;
        let found = set.keys.len();
        if found > MAX_KEYS {
            return Err(KeyError::ManyKeys { file: file(), found });
        }
        let keys: Vec<_> = set.keys.iter().filter_map(Key::jwk).collect();
        let others = found - keys.len();
        Ok(KeySet { keys, others })
    }

    /// Unless all its keys are of other kinds: who names such a file for the first time has taken the wrong one.
    pub(super) fn fit_to_begin_with(self, file: &str) -> Result<Self, KeyError> {
        match (self.keys.is_empty(), self.others) {
            (true, found @ 1..) => Err(KeyError::NoKeys { file: file.to_owned(), found }),
            (true, 0) | (false, _) => Ok(self),
        }
    }

    /// The keys that may have signed a token with this header. A key without an id may have signed any.
    pub(super) fn candidates(&self, algorithm: Algorithm, id: Option<&str>) -> impl Iterator<Item = &Key> {
        let fits = move |key: &&Key| {
            let named = match (key.id.as_deref(), id) {
                (Some(ours), Some(theirs)) => ours == theirs,
                (None, _) | (_, None) => true,
            };
            named && key.algorithms.contains(&algorithm)
        };
        self.keys.iter().filter(fits).take(MAX_TRIES)
    }

    /// Whether a token that names this key has any hope.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref().is_none_or(|ours| ours == id))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
