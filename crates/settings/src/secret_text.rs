//! Text that may contain a password.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Text from a file, a variable or a flag. Its `Debug` output hides the content.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> SecretText {
        SecretText(text)
    }
}

impl FromStr for SecretText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<SecretText, Infallible> {
        Ok(SecretText(text.to_owned()))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}
