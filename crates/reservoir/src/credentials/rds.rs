//! Tokens for RDS and Aurora PostgreSQL.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;

use super::aws_token_signer::AwsTokenSigner;
use super::{AuthSecret, TokenError, TokenFuture, TokenProvider};

/// Creates tokens for RDS and Aurora PostgreSQL, signed with AWS credentials (feature `aws`).
///
/// A token is for one host, port and user, and valid for 15 minutes. It is needed only to connect:
/// a connection outlives it. The user needs the role `rds_iam`, and the credentials the permission
/// `rds-db:connect`. For replication, the server's parameter `rds.iam_auth_for_replication` must
/// be 1. The server requests the token as plain text: connect with TLS.
///
/// The AWS SDK finds the credentials, as for [`DsqlToken`](super::DsqlToken). They are requested
/// for each token: wrap this in a [`TokenCache`](super::TokenCache).
///
/// ```no_run
/// use forebay_reservoir::{RdsToken, TokenCache};
///
/// let host = "shop.abc123.eu-central-1.rds.amazonaws.com";
/// let tokens = TokenCache::new(RdsToken::new(host, 5432, "eu-central-1", "app"));
/// ```
#[derive(Debug)]
pub struct RdsToken {
    signer: AwsTokenSigner,
    user: String,
}

impl RdsToken {
    /// Creates tokens for this user of the server at this host, port and region.
    ///
    /// `host` is the server's own endpoint: an alias of it has another signature.
    pub fn new(host: &str, port: u16, region: impl Into<String>, user: impl Into<String>) -> Self {
        let signer = AwsTokenSigner::new("rds-db", format!("{host}:{port}"), region.into());
        RdsToken { signer, user: user.into() }
    }

    /// Uses these credentials instead of those that the SDK finds.
    #[must_use]
    pub fn credentials(mut self, provider: impl ProvideCredentials + 'static) -> Self {
        self.signer.set_credentials(provider);
        self
    }

    /// Returns the token that these credentials sign at `time`. Sends no request.
    ///
    /// # Errors
    /// Fails if the host name is invalid.
    pub fn presign(&self, credentials: &Credentials, time: SystemTime) -> Result<AuthSecret, TokenError> {
        self.signer.presign(&self.params(), credentials, time)
    }

    fn params(&self) -> [(&'static str, &str); 2] {
        [("Action", "connect"), ("DBUser", &self.user)]
    }
}

impl TokenProvider for RdsToken {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async { self.signer.sign_new(&self.params()).await })
    }
}
