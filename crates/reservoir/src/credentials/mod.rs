//! Passwords and tokens, asked for each dial.
//!
//! Invariant: a secret is never shown: not by `Debug`, not in an error, not in a log.
//! Kept by: what is wrong with a secret is said in constant words (`checked`), never by showing it.
//! Invariant: nothing is read without a bound, and no request is waited for without one.
//! Not here: when to ask, and what to do without an answer; that is the refiller's.

mod cached;
mod command;
#[cfg(feature = "dsql")]
mod dsql;
mod env;
mod file;
mod password;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use cached::Cached;
pub use command::PasswordCommand;
#[cfg(feature = "dsql")]
pub use dsql::DsqlToken;
pub use env::PasswordEnv;
pub use file::PasswordFile;
pub use password::Password;

/// What a file or a program may say at most. Tokens have a few KiB.
const MAX_SECRET_BYTES: usize = 64 * 1024;
const TOO_LONG: &str = "is longer than 64 KiB";

/// A password, or whatever is used as one. `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself, for whoever sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A secret, and for how long it is good to connect with.
#[derive(Debug, Clone)]
pub struct Token {
    /// What is sent as the password.
    pub secret: Secret,
    /// How long it is good from now; `None`: until it is changed.
    pub good_for: Option<Duration>,
}

/// Why there is no token. What it says may be logged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// A token that is being asked for. It may be dropped at any point.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Token, TokenError>> + Send + 'a>>;

/// Gives what to connect with. Asked for each dial, so that a rotated password is used at once; put what is dear to ask
/// into a [`Cached`].
pub trait TokenProvider: Send + Sync + 'static {
    /// The token to connect with now.
    fn token(&self) -> Asking<'_>;

    /// The server refused what this gave. A provider that keeps a token for later shouldn't give it again; any other has
    /// nothing to do.
    fn refused(&self) {}
}

impl<P: TokenProvider + ?Sized> TokenProvider for Arc<P> {
    fn token(&self) -> Asking<'_> {
        (**self).token()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

impl<P: TokenProvider + ?Sized> TokenProvider for Box<P> {
    fn token(&self) -> Asking<'_> {
        (**self).token()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

/// The secret in what a file or a program says, which may end with a newline; or what is wrong with it.
fn unwrapped(mut said: Vec<u8>) -> Result<Secret, &'static str> {
    if said.len() > MAX_SECRET_BYTES {
        return Err(TOO_LONG);
    }
    if said.last() == Some(&b'\n') {
        said.pop();
        if said.last() == Some(&b'\r') {
            said.pop();
        }
    }
    // The error would hold the bytes: it goes no further.
    checked(String::from_utf8(said).map_err(|_| "isn't UTF-8")?)
}

/// What nobody means as a password: nothing at all, as in a file that is just being written, and what Postgres's protocol
/// can't carry.
fn checked(text: String) -> Result<Secret, &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.contains('\0') {
        return Err("has a zero byte in it");
    }
    Ok(Secret(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(bytes: &[u8]) -> Result<String, &'static str> {
        unwrapped(bytes.to_vec()).map(|secret| secret.reveal().to_string())
    }

    #[test]
    fn one_newline_at_the_end_is_not_part_of_a_secret() {
        assert_eq!(said(b"hunter2"), Ok("hunter2".into()));
        assert_eq!(said(b"hunter2\n"), Ok("hunter2".into()));
        assert_eq!(said(b"hunter2\r\n"), Ok("hunter2".into()));
        assert_eq!(said(b"hunter2\n\n"), Ok("hunter2\n".into()));
        assert_eq!(said(b" hunter 2\r"), Ok(" hunter 2\r".into()));
    }

    #[test]
    fn what_nobody_means_as_a_secret_is_refused_in_words_that_do_not_show_it() {
        assert_eq!(said(b""), Err("is empty"));
        assert_eq!(said(b"\n"), Err("is empty"));
        assert_eq!(said(b"\r\n"), Err("is empty"));
        assert_eq!(said(b"hunter\xff"), Err("isn't UTF-8"));
        assert_eq!(said(b"hunter\0"), Err("has a zero byte in it"));
        assert_eq!(said(&[b'x'; MAX_SECRET_BYTES]).map(|text| text.len()), Ok(MAX_SECRET_BYTES));
        assert_eq!(said(&[b'x'; MAX_SECRET_BYTES + 1]), Err(TOO_LONG));
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = Token { secret: Secret::new("hunter2"), good_for: None };
        let shown = format!("{token:?} {:#?}", token.secret);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
