//! Password from an environment variable.

use std::env;
use std::ffi::OsString;

use super::{AuthSecret, AuthToken, SecretError, TokenError, TokenFuture, TokenProvider, check_secret};

/// Reads the password from an environment variable for each token. An unset or empty variable is an
/// error.
///
/// ```
/// use forebay_reservoir::{PasswordEnv, TokenProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let error = PasswordEnv::new("NO_SUCH_PASSWORD").token().await.unwrap_err();
/// assert_eq!(error.to_string(), "password variable NO_SUCH_PASSWORD: isn't set");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PasswordEnv {
    name: String,
}

impl PasswordEnv {
    /// Creates a provider that reads this variable.
    pub fn new(name: impl Into<String>) -> Self {
        PasswordEnv { name: name.into() }
    }

    fn token_from(&self, value: Option<OsString>) -> Result<AuthToken, TokenError> {
        let secret =
            secret(value).map_err(|error| TokenError(format!("password variable {}: {error}", self.name)))?;
        Ok(AuthToken { secret, valid_for: None })
    }
}

impl TokenProvider for PasswordEnv {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async { self.token_from(env::var_os(&self.name)) })
    }
}

fn secret(value: Option<OsString>) -> Result<AuthSecret, SecretError> {
    let value = value.ok_or(SecretError::NotSet)?;
    check_secret(value.into_string().map_err(|_| SecretError::NotUtf8)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn token_from(name: &str, value: Option<&[u8]>) -> Result<String, String> {
        let value = value.map(|bytes| OsString::from_vec(bytes.to_vec()));
        let token = PasswordEnv::new(name).token_from(value);
        token.map(|token| token.secret.reveal().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_variable_is_used_unchanged() {
        assert_eq!(token_from("DB_PASSWORD", Some(b"hunter2")), Ok("hunter2".into()));
        assert_eq!(token_from("DB_PASSWORD", Some(b" hunter2\n")), Ok(" hunter2\n".into()));
    }

    #[test]
    fn an_error_names_the_variable_and_the_reason_and_never_the_value() {
        let error = |value| token_from("DB_PASSWORD", value).unwrap_err();
        assert_eq!(error(None), "password variable DB_PASSWORD: isn't set");
        assert_eq!(error(Some(b"")), "password variable DB_PASSWORD: is empty");
        assert_eq!(error(Some(b"hunter\xff")), "password variable DB_PASSWORD: isn't UTF-8");
    }
}
