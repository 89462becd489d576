//! Signatures of tokens, checked by ring.
//!
//! Invariant: a signature is checked with the algorithm that the key allows; a key of another family is refused before any
//! byte is compared (algorithm confusion), and there is no algorithm `none`.
//! Kept by: [`verifier`] compares the families, and knows every algorithm by name.
//! Why not the library's own: one of its backends is a second C library, the other brings twenty crates, among them `rsa` with
//! an open advisory (RUSTSEC-2023-0071). ring is in the program already.
//! Not here: making signatures. Nothing here holds a private key.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::{hmac, signature};

/// Makes ring what checks tokens in this process, unless the program has chosen something else before.
pub(super) fn install() {
    static RING: CryptoProvider = CryptoProvider {
        signer_factory: no_signer,
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // An error means that there is one already: the program's own choice, or ours from before.
    let _ = RING.install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(ByRing { algorithm: *algorithm, key: key.clone() }))
}

struct ByRing {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for ByRing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for ByRing {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> std::result::Result<(), Error> {
        let outcome = match self.algorithm {
            Algorithm::HS256 => self.hmac(hmac::HMAC_SHA256, message, given),
            Algorithm::HS384 => self.hmac(hmac::HMAC_SHA384, message, given),
            Algorithm::HS512 => self.hmac(hmac::HMAC_SHA512, message, given),
            Algorithm::RS256 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA256, message, given),
            Algorithm::RS384 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA384, message, given),
            Algorithm::RS512 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA512, message, given),
            Algorithm::PS256 => self.rsa(&signature::RSA_PSS_2048_8192_SHA256, message, given),
            Algorithm::PS384 => self.rsa(&signature::RSA_PSS_2048_8192_SHA384, message, given),
            Algorithm::PS512 => self.rsa(&signature::RSA_PSS_2048_8192_SHA512, message, given),
            Algorithm::ES256 => self.plain(&signature::ECDSA_P256_SHA256_FIXED, message, given),
            Algorithm::ES384 => self.plain(&signature::ECDSA_P384_SHA384_FIXED, message, given),
            Algorithm::EdDSA => self.plain(&signature::ED25519, message, given),
            // The enum may grow; what is not named here is not accepted.
            _ => None,
        };
        outcome.ok_or_else(Error::new)
    }
}

impl ByRing {
    fn bytes(&self) -> Option<&[u8]> {
        self.key.try_get_as_bytes().ok()
    }

    fn hmac(&self, algorithm: hmac::Algorithm, message: &[u8], given: &[u8]) -> Option<()> {
        hmac::verify(&hmac::Key::new(algorithm, self.bytes()?), message, given).ok()
    }

    fn plain(
        &self,
        algorithm: &'static dyn signature::VerificationAlgorithm,
        message: &[u8],
        given: &[u8],
    ) -> Option<()> {
        signature::UnparsedPublicKey::new(algorithm, self.bytes()?).verify(message, given).ok()
    }

    fn rsa(&self, algorithm: &'static signature::RsaParameters, message: &[u8], given: &[u8]) -> Option<()> {
        match self.key.kind() {
            DecodingKeyKind::SecretOrDer(der) => {
                signature::UnparsedPublicKey::new(algorithm, der).verify(message, given).ok()
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                signature::RsaPublicKeyComponents { n, e }.verify(algorithm, message, given).ok()
            }
        }
    }
}
