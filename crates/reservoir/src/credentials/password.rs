//! A password that stays.

use super::{Asking, Secret, Token, TokenProvider};

/// The same password each time.
///
/// ```
/// use forebay_reservoir::{Password, TokenProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let password = Password::new("hunter2");
/// assert_eq!(password.token().await?.secret.reveal(), "hunter2");
/// assert!(!format!("{password:?}").contains("hunter2"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Password(Secret);

impl Password {
    /// This one.
    pub fn new(password: impl Into<String>) -> Self {
        Password(Secret::new(password))
    }
}

impl TokenProvider for Password {
    fn token(&self) -> Asking<'_> {
        Box::pin(async { Ok(Token { secret: self.0.clone(), good_for: None }) })
    }
}
