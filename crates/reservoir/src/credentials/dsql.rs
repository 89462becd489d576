//! Tokens for Aurora DSQL.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;

use super::aws_token_signer::AwsTokenSigner;
use super::{AuthSecret, TokenError, TokenFuture, TokenProvider};

/// Creates tokens for an Aurora DSQL cluster, signed with AWS credentials (feature `aws`).
///
/// The AWS SDK finds the credentials: in the environment, in profile files, by web identity, or at
/// the endpoint of the container or instance. A profile that needs SSO is an error. They are
/// requested for each token: wrap this in a [`TokenCache`](super::TokenCache).
///
/// A token is for one role: [`DsqlToken::new`] for any user but `admin` (permission
/// `dsql:DbConnect`), and [`DsqlToken::admin`] for `admin` (`dsql:DbConnectAdmin`). It is needed
/// only to connect; a connection outlives it.
///
/// ```no_run
/// use forebay_reservoir::{TokenCache, DsqlToken};
///
/// let host = "foo0bar1baz2quux3.dsql.us-east-1.on.aws";
/// let tokens = TokenCache::new(DsqlToken::new(host, "us-east-1"));
/// ```
#[derive(Debug)]
pub struct DsqlToken {
    signer: AwsTokenSigner,
    admin: bool,
}

impl DsqlToken {
    /// Creates tokens for the cluster at this host and region, for any user but `admin`.
    pub fn new(host: impl Into<String>, region: impl Into<String>) -> Self {
        DsqlToken { signer: AwsTokenSigner::new("dsql", host.into(), region.into()), admin: false }
    }

    /// Creates tokens for the user `admin`.
    #[must_use]
    pub fn admin(mut self) -> Self {
        self.admin = true;
        self
    }

    /// Sets the validity of a token in whole seconds, from one second to a week. Default: 15
    /// minutes.
    ///
    /// A token is never valid for longer than the credentials that sign it.
    #[must_use]
    pub fn expires(mut self, expires: Duration) -> Self {
        self.signer.set_expires(expires);
        self
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

    fn params(&self) -> [(&'static str, &'static str); 1] {
        [("Action", if self.admin { "DbConnectAdmin" } else { "DbConnect" })]
    }
}

impl TokenProvider for DsqlToken {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async { self.signer.sign_new(&self.params()).await })
    }
}
