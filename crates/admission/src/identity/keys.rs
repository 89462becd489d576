//! Keys that verify tokens.
//!
//! Invariant: a key's algorithms follow from the key alone, never from a token. A set has at most
//! [`MAX_KEYS`] keys, and a token is checked against at most [`MAX_TRIES`] of them.
//! Enforced by: only this module constructs a [`VerificationKey`], with its algorithms;
//! [`KeySet::candidates`] filters by them.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

const MAX_KEYS: usize = 256;
const MAX_TRIES: usize = 8;
/// RFC 7518: a secret for HS256 is at least as long as the hash.
const MIN_SECRET_BYTES: usize = 32;

/// One key and its allowed algorithms.
#[derive(Clone)]
pub(super) struct VerificationKey {
    pub(super) id: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The keys of a JWKS file.
#[derive(Clone, Default)]
pub(super) struct KeySet {
    keys: Vec<VerificationKey>,
    /// Number of keys in the file that cannot verify signatures.
    unusable: usize,
}

/// Error for invalid key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The secret is too short; a short secret can be guessed from one token.
    #[error("the secret has {bytes} bytes; a secret for HS256 needs at least {MIN_SECRET_BYTES} (RFC 7518)")]
    ShortSecret {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The PEM text has no RSA, EC (P-256, P-384) or Ed25519 public key.
    #[error("the PEM text holds no public key that is understood: RSA, P-256, P-384 or Ed25519")]
    Pem,
    /// The file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// Path of the file.
        file: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{file}: {bytes} bytes; a set of keys has at most {max}")]
    LargeFile {
        /// Path of the file.
        file: String,
        /// Its size in bytes.
        bytes: u64,
        /// The maximum size in bytes.
        max: u64,
    },
    /// The file is not a JSON Web Key Set.
    #[error("{file}: no JSON Web Key Set: {source}")]
    Jwks {
        /// Path of the file.
        file: String,
        /// The JSON error.
        source: serde_json::Error,
    },
    /// No key in the file can verify signatures.
    #[error("{file}: none of its {found} keys can check a signature")]
    NoKeys {
        /// Path of the file.
        file: String,
        /// Number of other keys in the file.
        found: usize,
    },
    /// The file has more keys than supported.
    #[error("{file}: {found} keys; at most {MAX_KEYS} are taken")]
    ManyKeys {
        /// Path of the file.
        file: String,
        /// Number of keys in the file.
        found: usize,
    },
}

impl VerificationKey {
    pub(super) fn secret(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(KeyError::ShortSecret { bytes: secret.len() });
        }
        let algorithms = vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
        Ok(VerificationKey { id: None, algorithms, key: DecodingKey::from_secret(secret) })
    }

    pub(super) fn pem(pem: &[u8]) -> Result<Self, KeyError> {
        let text = String::from_utf8_lossy(pem);
        if text.contains("PRIVATE KEY") {
            return Err(KeyError::Pem); // private keys are refused
        }
        let rsa = || Some((RSA.to_vec(), DecodingKey::from_rsa_pem(pem).ok()?));
        let ed = || Some((vec![Algorithm::EdDSA], DecodingKey::from_ed_pem(pem).ok()?));
        let ec = || {
            let key = DecodingKey::from_ec_pem(pem).ok()?;
            // Length of an uncompressed point: 1 + 2 × 32 bytes on P-256, 1 + 2 × 48 on P-384.
            let algorithm = match key.try_get_as_bytes().ok()?.len() {
                65 => Algorithm::ES256,
                97 => Algorithm::ES384,
                _ => return None,
            };
            Some((vec![algorithm], key))
        };
        let (algorithms, key) = rsa().or_else(ec).or_else(ed).ok_or(KeyError::Pem)?;
        Ok(VerificationKey { id: None, algorithms, key })
    }

    /// Returns `None` for a key with another purpose or of an unknown kind.
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
            _ => return None, // another curve, or a future kind
        };
        if let Some(named) = common.key_algorithm {
            let named = Algorithm::try_from(named).ok()?;
            algorithms.retain(|algorithm| *algorithm == named);
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let short = matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_))
            && key.try_get_as_bytes().map_or(0, <[u8]>::len) < MIN_SECRET_BYTES;
        let usable = signs && !algorithms.is_empty() && !short;
        usable.then(|| VerificationKey { id: common.key_id.clone(), algorithms, key })
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
    pub(super) fn single(key: VerificationKey) -> Self {
        KeySet { keys: vec![key], unusable: 0 }
    }

    /// Parses a JSON Web Key Set. It may be empty; then no token is valid. `file` is for error
    /// texts.
    pub(super) fn parse(text: &[u8], file: &str) -> Result<Self, KeyError> {
        let file = || file.to_owned();
        let set: JwkSet =
            serde_json::from_slice(text).map_err(|source| KeyError::Jwks { file: file(), source })?;
        let found = set.keys.len();
        if found > MAX_KEYS {
            return Err(KeyError::ManyKeys { file: file(), found });
        }
        let keys: Vec<_> = set.keys.iter().filter_map(VerificationKey::jwk).collect();
        let unusable = found - keys.len();
        Ok(KeySet { keys, unusable })
    }

    /// Fails if the set has keys and none can verify signatures: the configured file is probably
    /// the wrong one.
    pub(super) fn require_usable_key(self, file: &str) -> Result<Self, KeyError> {
        match (self.keys.is_empty(), self.unusable) {
            (true, found @ 1..) => Err(KeyError::NoKeys { file: file.to_owned(), found }),
            (true, 0) | (false, _) => Ok(self),
        }
    }

    /// Returns the keys that may have signed a token with this algorithm and key id. A key without
    /// an id matches any.
    pub(super) fn candidates(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &VerificationKey> {
        let fits = move |key: &&VerificationKey| {
            let named = match (key.id.as_deref(), id) {
                (Some(ours), Some(theirs)) => ours == theirs,
                (None, _) | (_, None) => true,
            };
            named && key.algorithms.contains(&algorithm)
        };
        self.keys.iter().filter(fits).take(MAX_TRIES)
    }

    /// Returns whether a key may match a token with this key id.
    pub(super) fn may_verify(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref().is_none_or(|ours| ours == id))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
