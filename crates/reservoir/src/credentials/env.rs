//! A password in an environment variable.

use std::env;
use std::ffi::OsString;

use super::{Asking, Secret, Token, TokenError, TokenProvider, checked};

/// The password that an environment variable holds, read each time, and taken as it is. A variable that isn't set is an
/// error, and so is an empty one.
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
    /// The variable of this name.
    pub fn new(name: impl Into<String>) -> Self {
        PasswordEnv { name: name.into() }
    }

    fn take(&self, value: Option<OsString>) -> Result<Token, TokenError> {
        let secret =
            secret(value).map_err(|flaw| TokenError(format!("password variable {}: {flaw}", self.name)))?;
        Ok(Token { secret, good_for: None })
    }
}

impl TokenProvider for PasswordEnv {
    fn token(&self) -> Asking<'_> {
        Box::pin(async { self.take(env::var_os(&self.name)) })
    }
}

fn secret(value: Option<OsString>) -> Result<Secret, &'static str> {
    let value = value.ok_or("isn't set")?;
    checked(value.into_string().map_err(|_| "isn't UTF-8")?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn take(name: &str, value: Option<&[u8]>) -> Result<String, String> {
        let value = value.map(|bytes| OsString::from_vec(bytes.to_vec()));
        let taken = PasswordEnv::new(name).take(value);
        taken.map(|token| token.secret.reveal().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_variable_is_taken_as_it_is() {
        assert_eq!(take("DB_PASSWORD", Some(b"hunter2")), Ok("hunter2".into()));
        assert_eq!(take("DB_PASSWORD", Some(b" hunter2\n")), Ok(" hunter2\n".into()));
    }

    #[test]
    fn an_error_names_the_variable_and_the_reason_and_never_the_value() {
        let error = |value| take("DB_PASSWORD", value).unwrap_err();
        assert_eq!(error(None), "password variable DB_PASSWORD: isn't set");
        assert_eq!(error(Some(b"")), "password variable DB_PASSWORD: is empty");
        assert_eq!(error(Some(b"hunter\xff")), "password variable DB_PASSWORD: isn't UTF-8");
    }
}
