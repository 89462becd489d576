//! Identification by signed token (JWT) in `Authorization: Bearer`.
//!
//! Invariant: a user is accepted only after the signature is verified, with a configured key and an
//! algorithm that the key allows, and the claims are valid. An invalid token is a [`TokenFault`],
//! never an anonymous client.
//! Enforced by: `Jwt::verify` is the only way from a token to its claims.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};
use tracing::trace;

use super::claims::{Audience, ClaimRules, Subject};
use super::jwks::JwksFile;
use super::keys::{KeyError, KeySet, VerificationKey};
use super::signature;
use super::verified_token::VerifiedToken;

/// Maximum length of a token in bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Keys and rules for tokens.
///
/// ```
/// # fn main() -> Result<(), forebay_admission::KeyError> {
/// use forebay_admission::Jwt;
///
/// let secret = b"a secret of thirty-two bytes, or more";
/// let jwt = Jwt::secret(secret)?.issuer("https://id.example.org").user_claim("uid");
/// # drop(jwt);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Jwt {
    keys: KeySource,
    rules: ClaimRules,
}

#[derive(Clone)]
enum KeySource {
    Fixed(Arc<KeySet>),
    File(Arc<JwksFile>),
}

impl Jwt {
    /// Verifies tokens with a shared secret: HS256, HS384 or HS512. Fails if it has fewer than 32
    /// bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, KeyError> {
        Ok(Self::new(KeySource::Fixed(Arc::new(KeySet::single(VerificationKey::secret(secret)?)))))
    }

    /// Verifies tokens with a public key: RSA of at least 2048 bits (RS256 … PS512), P-256 (ES256),
    /// P-384 (ES384) or Ed25519 (EdDSA).
    pub fn public_key_pem(pem: &[u8]) -> Result<Self, KeyError> {
        Ok(Self::new(KeySource::Fixed(Arc::new(KeySet::single(VerificationKey::pem(pem)?)))))
    }

    /// Verifies tokens with the keys of a JSON Web Key Set file. A changed file is read again
    /// within 5 s. It is also read when a token names an unknown key, at most once per second.
    pub fn jwks_file(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        Ok(Self::new(KeySource::File(Arc::new(JwksFile::open(path.as_ref())?))))
    }

    /// Sets the claim with the user id. Default `sub`.
    pub fn user_claim(mut self, name: &str) -> Self {
        self.rules.user_claim = name.to_owned();
        self
    }

    /// Sets the claim with the client's class. Default: none; every user has the class `user`.
    pub fn class_claim(mut self, name: &str) -> Self {
        self.rules.class_claim = Some(name.to_owned());
        self
    }

    /// Accepts tokens of this issuer (`iss`) only. Repeat it to accept several.
    pub fn issuer(mut self, issuer: &str) -> Self {
        self.rules.issuers.push(issuer.to_owned());
        self
    }

    /// Accepts tokens for this audience (`aud`) only. Repeat it to accept several. Without it, a
    /// token that names an audience is refused (RFC 7519).
    pub fn audience(mut self, audience: &str) -> Self {
        match &mut self.rules.audience {
            Audience::OneOf(accepted) => accepted.push(audience.to_owned()),
            unset @ (Audience::Absent | Audience::Any) => *unset = Audience::OneOf(vec![audience.to_owned()]),
        }
        self
    }

    /// Accepts tokens for any audience.
    pub fn any_audience(mut self) -> Self {
        self.rules.audience = Audience::Any;
        self
    }

    /// Sets the tolerated clock difference to the issuer. Default 30 s.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.rules.leeway = leeway;
        self
    }

    /// Accepts tokens without `exp`. They are refused by default.
    pub fn without_expiry(mut self) -> Self {
        self.rules.requires_exp = false;
        self
    }

    #[cfg(test)]
    pub(super) fn jwks_file_with(
        path: &Path,
        intervals: super::jwks::ReloadIntervals,
    ) -> Result<Self, KeyError> {
        Ok(Self::new(KeySource::File(Arc::new(JwksFile::with_intervals(path, intervals)?))))
    }

    fn new(keys: KeySource) -> Self {
        signature::install();
        let rules = ClaimRules {
            user_claim: "sub".to_owned(),
            class_claim: None,
            issuers: Vec::new(),
            audience: Audience::Absent,
            leeway: Duration::from_secs(30),
            requires_exp: true,
        };
        Jwt { keys, rules }
    }

    pub(super) async fn check(&self, token: &str) -> Result<Subject, TokenFault> {
        self.verify(token).await.map(|(subject, _)| subject)
    }

    /// Verifies a token and returns all its claims.
    pub(super) async fn token(&self, token: &str) -> Result<VerifiedToken, TokenFault> {
        let (subject, claims) = self.verify(token).await?;
        VerifiedToken::new(subject, claims, unix_time())
    }

    async fn verify(&self, token: &str) -> Result<(Subject, Map<String, Value>), TokenFault> {
        // Also fails for `none`, which is not a known algorithm.
        let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515: a token with critical extensions that are not understood must be rejected. No
        // extension is supported.
        if header.crit.is_some() {
            return Err(TokenFault::Malformed);
        }
        let keys = match &self.keys {
            KeySource::Fixed(keys) => keys.clone(),
            KeySource::File(file) => file.keys(header.kid.as_deref()).await,
        };
        let mut fault = TokenFault::NoKey;
        for key in keys.candidates(header.alg, header.kid.as_deref()) {
            match verify_signature(token, key) {
                Ok(claims) => {
                    let subject = self.rules.check(&claims, unix_time())?;
                    trace!("token verified");
                    return Ok((subject, claims));
                }
                Err(worse) => fault = worse,
            }
        }
        Err(fault)
    }
}

/// Returns the claims of a token signed with this key.
fn verify_signature(token: &str, key: &VerificationKey) -> Result<Map<String, Value>, TokenFault> {
    let mut validation = Validation::default();
    validation.algorithms.clone_from(&key.algorithms);
    // `ClaimRules` checks the claims: it is passed the time and is strict about types.
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation.required_spec_claims.clear();
    decode(token, &key.key, &validation).map(|data| data.claims).map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => TokenFault::BadSignature,
        ErrorKind::InvalidAlgorithm => TokenFault::NoKey,
        _ => TokenFault::Malformed,
    })
}

/// Returns the time since 1970 by the system clock, because claims are dates.
fn unix_time() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "a token's expiry is a date")]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFault {
    /// Not a token, an unknown algorithm (such as `none`), or a claim of the wrong type.
    #[error("the token can't be read")]
    Malformed,
    /// No configured key matches the token's key id and algorithm.
    #[error("the token is signed with an unknown key")]
    NoKey,
    /// The signature does not match the key.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// On or after `exp`.
    #[error("the token has expired")]
    Expired,
    /// No `exp`.
    #[error("the token has no expiry")]
    NoExpiry,
    /// Before `nbf`.
    #[error("the token isn't valid yet")]
    NotYetValid,
    /// Another `iss`.
    #[error("the token is of another issuer")]
    WrongIssuer,
    /// Another `aud`.
    #[error("the token is for another audience")]
    WrongAudience,
    /// No usable user claim.
    #[error("the token names no user")]
    NoUser,
}

impl TokenFault {
    /// Returns the name in logs, metrics and response bodies.
    pub fn as_str(self) -> &'static str {
        match self {
            TokenFault::Malformed => "malformed",
            TokenFault::NoKey => "unknown_signer",
            TokenFault::BadSignature => "bad_signature",
            TokenFault::Expired => "expired",
            TokenFault::NoExpiry => "no_expiry",
            TokenFault::NotYetValid => "not_yet_valid",
            TokenFault::WrongIssuer => "wrong_issuer",
            TokenFault::WrongAudience => "wrong_audience",
            TokenFault::NoUser => "no_user",
        }
    }
}
