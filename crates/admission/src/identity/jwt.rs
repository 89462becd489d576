//! Users by signed token (JWT), from `Authorization: Bearer`.
//!
//! Invariant: a user is believed only after the signature was checked with a key of ours, by an algorithm that this key
//! allows, and the claims hold now. A token that is presented and doesn't is a [`TokenFault`], never an anonymous visitor.
//! Kept by: `Jwt::read` is the only way from a token to a name, and to its claims.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::claims::{Audience, Rules, Subject};
use super::jwks::JwksFile;
use super::keys::{Key, KeyError, KeySet};
use super::signature;
use super::token::Token;

/// The longest token that is looked at, in bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 16 << 10;

/// How tokens are checked.
///
/// ```
/// # fn main() -> Result<(), forebay_admission::KeyError> {
/// use forebay_admission::Jwt;
///
/// let jwt = Jwt::secret(b"a secret of thirty-two bytes, or more")?.issuer("https://id.example.org").user_claim("uid");
/// # drop(jwt);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Jwt {
    keys: Keys,
    rules: Rules,
}

#[derive(Clone)]
enum Keys {
    Fixed(Arc<KeySet>),
    File(Arc<JwksFile>),
}

impl Jwt {
    /// Tokens signed with a shared secret: HS256, HS384 or HS512. At least 32 bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, KeyError> {
        Ok(Self::new(Keys::Fixed(Arc::new(KeySet::one(Key::secret(secret)?)))))
    }

    /// Tokens signed with the private half of this public key: RSA of 2048 bits or more (RS256 … PS512), P-256 (ES256), P-384
    /// (ES384) or Ed25519 (EdDSA).
    pub fn public_key_pem(pem: &[u8]) -> Result<Self, KeyError> {
        Ok(Self::new(Keys::Fixed(Arc::new(KeySet::one(Key::pem(pem)?)))))
    }

    /// Tokens signed with one of the keys in a JSON Web Key Set file. It is read again when it changes (within 5 s), and when
    /// a token names a key that isn't in it (at most once in a second).
    pub fn jwks_file(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        Ok(Self::new(Keys::File(Arc::new(JwksFile::open(path.as_ref())?))))
    }

    /// The claim that names the user. Default `sub`.
    pub fn user_claim(mut self, name: &str) -> Self {
        self.rules.user_claim = name.to_owned();
        self
    }

    /// The claim that names the visitor's class. Default none: everybody is of class `user`.
    pub fn class_claim(mut self, name: &str) -> Self {
        self.rules.class_claim = Some(name.to_owned());
        self
    }

    /// Only tokens of this issuer (`iss`). May be said more than once.
    pub fn issuer(mut self, issuer: &str) -> Self {
        self.rules.issuers.push(issuer.to_owned());
        self
    }

    /// Only tokens for this audience (`aud`). May be said more than once. Without it, a token that names an audience is
    /// refused, as RFC 7519 has it: it is meant for somebody else.
    pub fn audience(mut self, audience: &str) -> Self {
        match &mut self.rules.audience {
            Audience::Us(us) => us.push(audience.to_owned()),
            unset @ (Audience::Unnamed | Audience::Any) => *unset = Audience::Us(vec![audience.to_owned()]),
        }
        self
    }

    /// Tokens for any audience.
    pub fn any_audience(mut self) -> Self {
        self.rules.audience = Audience::Any;
        self
    }

    /// How far the clocks of whoever signs may be from ours. Default 30 s.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.rules.leeway = leeway;
        self
    }

    /// Takes tokens that never expire, too. By default they are refused.
    pub fn without_expiry(mut self) -> Self {
        self.rules.requires_exp = false;
        self
    }

    #[cfg(test)]
    pub(super) fn jwks_file_with(path: &Path, times: super::jwks::Times) -> Result<Self, KeyError> {
        Ok(Self::new(Keys::File(Arc::new(JwksFile::with_times(path, times)?))))
    }

    fn new(keys: Keys) -> Self {
        signature::install();
        let rules = Rules {
            user_claim: "sub".to_owned(),
            class_claim: None,
            issuers: Vec::new(),
            audience: Audience::Unnamed,
            leeway: Duration::from_secs(30),
            requires_exp: true,
        };
        Jwt { keys, rules }
    }

    pub(super) async fn check(&self, token: &str) -> Result<Subject, TokenFault> {
        self.read(token).await.map(|(subject, _)| subject)
    }

    /// With all that the token says besides.
    pub(super) async fn token(&self, token: &str) -> Result<Token, TokenFault> {
        let (subject, claims) = self.read(token).await?;
        Token::new(&subject, claims, now())
    }

    async fn read(&self, token: &str) -> Result<(Subject, Map<String, Value>), TokenFault> {
        // Fails for `none`, too: what is no algorithm can't be read.
        let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515: what must be understood and isn't, must be refused. We understand no extension.
        if header.crit.is_some() {
            return Err(TokenFault::Malformed);
        }
        let keys = match &self.keys {
            Keys::Fixed(keys) => keys.clone(),
            Keys::File(file) => file.keys(header.kid.as_deref()).await,
        };
        let mut fault = TokenFault::NoKey;
        for key in keys.candidates(header.alg, header.kid.as_deref()) {
            match verified(token, key) {
                Ok(claims) => return self.rules.check(&claims, now()).map(|subject| (subject, claims)),
                Err(worse) => fault = worse,
            }
        }
        Err(fault)
    }
}

/// The claims of a token that this key has signed.
fn verified(token: &str, key: &Key) -> Result<Map<String, Value>, TokenFault> {
    let mut validation = Validation::default();
    validation.algorithms.clone_from(&key.algorithms);
    // The claims are checked by our own rules, which are handed the time and are strict about types.
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation.required_spec_claims.clear();
    decode(token, &key.key, &validation).map(|data| data.claims).map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => TokenFault::BadSignature,
        ErrorKind::InvalidAlgorithm => TokenFault::NoKey,
        _ => TokenFault::Malformed,
    })
}

/// The one place that asks for the date: claims are dates.
fn now() -> Duration {
    #[allow(
        clippy::disallowed_methods,
        reason = "a token's expiry is a date, and both sides' calendars decide"
    )]
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFault {
    /// It is no token at all, has an algorithm that nobody should use (`none`), or claims of the wrong type.
    #[error("the token can't be read")]
    Malformed,
    /// No key of ours may have signed it: another key id, or an algorithm that our keys don't allow.
    #[error("the token is signed with an unknown key")]
    NoKey,
    /// The signature isn't that of our key.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// Past its `exp`.
    #[error("the token has expired")]
    Expired,
    /// Without an `exp`.
    #[error("the token has no expiry")]
    NoExpiry,
    /// Before its `nbf`.
    #[error("the token isn't valid yet")]
    NotYetValid,
    /// Of another `iss`.
    #[error("the token is of another issuer")]
    WrongIssuer,
    /// For another `aud`.
    #[error("the token is for another audience")]
    WrongAudience,
    /// Without a user that we can read.
    #[error("the token names no user")]
    NoUser,
}

impl TokenFault {
    /// The name in logs, metrics and answers.
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
