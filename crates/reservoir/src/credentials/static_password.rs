//! Token provider for a password that doesn't change.

use super::{AuthSecret, AuthToken, TokenFuture, TokenProvider};

/// Provides the same password for every dial.
///
/// ```
/// use forebay_reservoir::{StaticPassword, TokenProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let password = StaticPassword::new("hunter2");
/// assert_eq!(password.token().await?.secret.reveal(), "hunter2");
/// assert!(!format!("{password:?}").contains("hunter2"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StaticPassword(AuthSecret);

impl StaticPassword {
    /// Creates a provider of this password.
    pub fn new(password: impl Into<String>) -> Self {
        StaticPassword(AuthSecret::new(password))
    }
}

impl TokenProvider for StaticPassword {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async { Ok(AuthToken { secret: self.0.clone(), valid_for: None }) })
    }
}
