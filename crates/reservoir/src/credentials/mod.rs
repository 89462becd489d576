//! Token providers: passwords and tokens, requested for each dial.
//!
//! Invariant: a secret is never shown, neither by `Debug` nor in an error nor in a log.
//! Enforced by: errors about a secret are constant texts ([`SecretError`]).
//! Invariant: every read and every request has a bound.
//! Out of scope: when to request a token, and what to do without one; see `refill.rs`.

#[cfg(feature = "aws")]
mod aws_token_signer;
mod command;
#[cfg(feature = "aws")]
mod dsql;
mod file;
#[cfg(feature = "aws")]
mod rds;
mod static_password;
mod token_cache;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use command::PasswordCommand;
#[cfg(feature = "aws")]
pub use dsql::DsqlToken;
pub use file::PasswordFile;
#[cfg(feature = "aws")]
pub use rds::RdsToken;
pub use static_password::StaticPassword;
pub use token_cache::TokenCache;

/// Maximum length of a secret. Tokens have a few KiB.
const MAX_SECRET_BYTES: usize = 64 * 1024;

/// A password or token text. `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthSecret(String);

impl AuthSecret {
    /// Creates a secret from this text.
    pub fn new(text: impl Into<String>) -> Self {
        AuthSecret(text.into())
    }

    /// Returns the text, to send it to the server.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AuthSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthSecret")
    }
}

/// A secret and its validity.
#[derive(Debug, Clone)]
pub struct AuthToken {
    /// Text that is sent as the password.
    pub secret: AuthSecret,
    /// How long the secret is valid from now; `None` if unknown.
    pub valid_for: Option<Duration>,
}

/// Why a text can't be used as a secret. Each message follows the name of the text's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum SecretError {
    #[error("is empty")]
    Empty,
    #[error("isn't UTF-8")]
    NotUtf8,
    #[error("has a zero byte in it")]
    ZeroByte,
    #[error("is longer than 64 KiB")]
    TooLong,
}

/// Why no token could be provided. The text may be logged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// Future of a token request. It may be dropped at any point.
pub type TokenFuture<'a> = Pin<Box<dyn Future<Output = Result<AuthToken, TokenError>> + Send + 'a>>;

/// Provides passwords or tokens. Called for each dial, so that a rotated password is used at once.
///
/// Wrap a slow or expensive provider in a [`TokenCache`].
pub trait TokenProvider: Send + Sync + 'static {
    /// Returns the token to connect with now.
    fn token(&self) -> TokenFuture<'_>;

    /// Called when the server has refused the token. A provider that caches tokens must drop it.
    fn refused(&self) {}
}

impl<P: TokenProvider + ?Sized> TokenProvider for Arc<P> {
    fn token(&self) -> TokenFuture<'_> {
        (**self).token()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

impl<P: TokenProvider + ?Sized> TokenProvider for Box<P> {
    fn token(&self) -> TokenFuture<'_> {
        (**self).token()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

/// Parses the content of a file or the output of a program; removes one trailing newline.
fn parse_secret(mut bytes: Vec<u8>) -> Result<AuthSecret, SecretError> {
    if bytes.len() > MAX_SECRET_BYTES {
        return Err(SecretError::TooLong);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    // `FromUtf8Error` contains the secret's bytes, so it is dropped.
    check_secret(String::from_utf8(bytes).map_err(|_| SecretError::NotUtf8)?)
}

/// Refuses an empty text, as in a file that is being written, and texts that the Postgres protocol
/// can't transmit.
fn check_secret(text: String) -> Result<AuthSecret, SecretError> {
    if text.is_empty() {
        return Err(SecretError::Empty);
    }
    if text.contains('\0') {
        return Err(SecretError::ZeroByte);
    }
    Ok(AuthSecret(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<String, SecretError> {
        parse_secret(bytes.to_vec()).map(|secret| secret.reveal().to_string())
    }

    #[test]
    fn one_newline_at_the_end_is_not_part_of_a_secret() {
        assert_eq!(parse(b"hunter2"), Ok("hunter2".into()));
        assert_eq!(parse(b"hunter2\n"), Ok("hunter2".into()));
        assert_eq!(parse(b"hunter2\r\n"), Ok("hunter2".into()));
        assert_eq!(parse(b"hunter2\n\n"), Ok("hunter2\n".into()));
        assert_eq!(parse(b" hunter 2\r"), Ok(" hunter 2\r".into()));
    }

    #[test]
    fn invalid_secrets_are_refused_without_showing_them() {
        assert_eq!(parse(b""), Err(SecretError::Empty));
        assert_eq!(parse(b"\n"), Err(SecretError::Empty));
        assert_eq!(parse(b"\r\n"), Err(SecretError::Empty));
        assert_eq!(parse(b"hunter\xff"), Err(SecretError::NotUtf8));
        assert_eq!(parse(b"hunter\0"), Err(SecretError::ZeroByte));
        assert_eq!(parse(&[b'x'; MAX_SECRET_BYTES]).map(|text| text.len()), Ok(MAX_SECRET_BYTES));
        assert_eq!(parse(&[b'x'; MAX_SECRET_BYTES + 1]), Err(SecretError::TooLong));
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = AuthToken { secret: AuthSecret::new("hunter2"), valid_for: None };
        let shown = format!("{token:?} {:#?}", token.secret);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
