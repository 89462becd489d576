//! Verification of token signatures with ring.
//!
//! Invariant: a signature is verified with an algorithm that the key allows. A key of another
//! family is refused before any comparison (algorithm confusion). The algorithm `none` is not
//! supported.
//! Enforced by: [`verifier`] compares the families and lists every algorithm by name.
//! Decision: this module is the provider of `jsonwebtoken`. Of the library's two providers, one is
//! a second C library. The other has twenty dependencies, among them `rsa` with an open advisory
//! (RUSTSEC-2023-0071). ring is already a dependency.
//! Out of scope: signing. No private key is used.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::{hmac, signature};

/// Installs ring as the verifier of this process, unless the program has installed another one.
pub(super) fn install() {
    static RING: CryptoProvider = CryptoProvider {
        signer_factory: no_signer,
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // Fails if a provider is already installed: the program's, or this one.
    let _ = RING.install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], tag: &Vec<u8>) -> std::result::Result<(), Error> {
        let outcome = match self.algorithm {
            Algorithm::HS256 => self.hmac(hmac::HMAC_SHA256, message, tag),
            Algorithm::HS384 => self.hmac(hmac::HMAC_SHA384, message, tag),
            Algorithm::HS512 => self.hmac(hmac::HMAC_SHA512, message, tag),
            Algorithm::RS256 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA256, message, tag),
            Algorithm::RS384 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA384, message, tag),
            Algorithm::RS512 => self.rsa(&signature::RSA_PKCS1_2048_8192_SHA512, message, tag),
            Algorithm::PS256 => self.rsa(&signature::RSA_PSS_2048_8192_SHA256, message, tag),
            Algorithm::PS384 => self.rsa(&signature::RSA_PSS_2048_8192_SHA384, message, tag),
            Algorithm::PS512 => self.rsa(&signature::RSA_PSS_2048_8192_SHA512, message, tag),
            Algorithm::ES256 => self.plain(&signature::ECDSA_P256_SHA256_FIXED, message, tag),
            Algorithm::ES384 => self.plain(&signature::ECDSA_P384_SHA384_FIXED, message, tag),
            Algorithm::EdDSA => self.plain(&signature::ED25519, message, tag),
            // The enum is non-exhaustive; unlisted algorithms are refused.
            _ => None,
        };
        outcome.ok_or_else(Error::new)
    }
}

impl RingVerifier {
    fn bytes(&self) -> Option<&[u8]> {
        self.key.try_get_as_bytes().ok()
    }

    fn hmac(&self, algorithm: hmac::Algorithm, message: &[u8], tag: &[u8]) -> Option<()> {
        hmac::verify(&hmac::Key::new(algorithm, self.bytes()?), message, tag).ok()
    }

    fn plain(
        &self,
        algorithm: &'static dyn signature::VerificationAlgorithm,
        message: &[u8],
        tag: &[u8],
    ) -> Option<()> {
        signature::UnparsedPublicKey::new(algorithm, self.bytes()?).verify(message, tag).ok()
    }

    fn rsa(&self, algorithm: &'static signature::RsaParameters, message: &[u8], tag: &[u8]) -> Option<()> {
        match self.key.kind() {
            DecodingKeyKind::SecretOrDer(der) => {
                signature::UnparsedPublicKey::new(algorithm, der).verify(message, tag).ok()
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                signature::RsaPublicKeyComponents { n, e }.verify(algorithm, message, tag).ok()
            }
        }
    }
}
