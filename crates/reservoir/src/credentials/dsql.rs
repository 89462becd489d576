//! Tokens for Aurora DSQL.
//!
//! A token is a presigned URL of the service `dsql` without its scheme. It is created locally; only
//! the AWS credentials that sign it are requested. It is byte for byte the token that botocore
//! creates: `tests/it/tokens/dsql.rs` compares them.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write};
use std::iter;
use std::time::{Duration, SystemTime};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use tokio::sync::OnceCell;

use super::{AuthSecret, AuthToken, TokenError, TokenFuture, TokenProvider};

/// Default validity, as in AWS's own tools.
const DEFAULT_EXPIRES: Duration = Duration::from_secs(15 * 60);
/// Maximum validity that the signature algorithm allows.
const MAX_EXPIRES: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Timeout for the credentials. The SDK tries several sources in order; not all have a timeout.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of an SDK error in an error text.
const MAX_CAUSES_CHARS: usize = 1000;

/// Creates tokens for an Aurora DSQL cluster, signed with AWS credentials (feature `dsql`).
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
pub struct DsqlToken {
    host: String,
    region: String,
    admin: bool,
    expires: Duration,
    credentials: OnceCell<SharedCredentialsProvider>,
}

impl DsqlToken {
    /// Creates tokens for the cluster at this host and region, for any user but `admin`.
    pub fn new(host: impl Into<String>, region: impl Into<String>) -> Self {
        DsqlToken {
            host: host.into(),
            region: region.into(),
            admin: false,
            expires: DEFAULT_EXPIRES,
            credentials: OnceCell::new(),
        }
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
        self.expires = Duration::from_secs(expires.clamp(Duration::from_secs(1), MAX_EXPIRES).as_secs());
        self
    }

    /// Uses these credentials instead of those that the SDK finds.
    #[must_use]
    pub fn credentials(mut self, provider: impl ProvideCredentials + 'static) -> Self {
        self.credentials = OnceCell::new_with(Some(SharedCredentialsProvider::new(provider)));
        self
    }

    /// Returns the token that these credentials sign at `time`. Sends no request.
    ///
    /// # Errors
    /// Fails if the host name is invalid.
    pub fn presign(&self, credentials: &Credentials, time: SystemTime) -> Result<AuthSecret, TokenError> {
        let signed = presign(&self.host, &self.region, self.admin, credentials, self.expires, time);
        signed.map(AuthSecret::new).map_err(|error| TokenError(format!("token for {}: {error}", self.host)))
    }

    async fn sign_new(&self) -> Result<AuthToken, TokenError> {
        let failed = |why: &dyn fmt::Display| TokenError(format!("AWS credentials for {}: {why}", self.host));
        let provider = self.credentials.get_or_init(|| find_credentials(&self.region)).await;
        let asked = tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await;
        let asked = asked.map_err(|_| failed(&format_args!("none within {CREDENTIALS_TIMEOUT:?}")))?;
        let credentials = asked.map_err(|error| failed(&causes(&error)))?;
        #[expect(clippy::disallowed_methods, reason = "a signature is of a date")]
        let now = SystemTime::now();
        let secret = self.presign(&credentials, now)?;
        Ok(AuthToken { secret, valid_for: Some(valid_for(self.expires, credentials.expiry(), now)) })
    }
}

impl fmt::Debug for DsqlToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DsqlToken { host, region, admin, expires, credentials: _ } = self;
        let mut shown = f.debug_struct("DsqlToken");
        shown.field("host", host).field("region", region).field("admin", admin).field("expires", expires);
        shown.finish_non_exhaustive()
    }
}

impl TokenProvider for DsqlToken {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(self.sign_new())
    }
}

/// Returns the SDK's default chain of credential sources, with an HTTP client on rustls and ring.
async fn find_credentials(region: &str) -> SharedCredentialsProvider {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let config = ProviderConfig::without_region()
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http);
    let chain = DefaultCredentialsChain::builder().region(Region::new(region.to_string())).configure(config);
    SharedCredentialsProvider::new(chain.build().await)
}

/// Returns the validity of a token, which ends with the credentials that signed it.
fn valid_for(expires: Duration, credentials_expire: Option<SystemTime>, now: SystemTime) -> Duration {
    let left = credentials_expire.map(|expiry| expiry.duration_since(now).unwrap_or_default());
    left.map_or(expires, |left| left.min(expires))
}

#[derive(Debug, thiserror::Error)]
enum PresignError {
    #[error("isn't the name of a host")]
    Host,
    #[error("{0}")]
    Signing(#[from] Box<dyn Error + Send + Sync>),
}

fn presign(
    host: &str,
    region: &str,
    admin: bool,
    credentials: &Credentials,
    expires: Duration,
    time: SystemTime,
) -> Result<String, PresignError> {
    if !is_host(host) {
        return Err(PresignError::Host);
    }
    let action = if admin { "DbConnectAdmin" } else { "DbConnect" };
    // The signature covers the host name in lower case, as an HTTP client would send it.
    let url = format!("https://{}/?Action={action}", host.to_ascii_lowercase());
    let params = signature(&url, region, credentials, expires, time)?;

    let mut token = format!("{host}/?Action={action}");
    for (name, value) in params {
        write!(token, "&{name}={}", PercentEncoded(&value)).expect("writing to a String never fails");
    }
    Ok(token)
}

type SignatureParams = Vec<(&'static str, Cow<'static, str>)>;

/// Returns the query parameters that the signature adds, in botocore's order: the signature last.
fn signature(
    url: &str,
    region: &str,
    credentials: &Credentials,
    expires: Duration,
    time: SystemTime,
) -> Result<SignatureParams, Box<dyn Error + Send + Sync>> {
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(expires);
    let identity = credentials.clone().into();
    let signing = v4::SigningParams::builder().identity(&identity).region(region).name("dsql");
    let signing = signing.time(time).settings(settings).build()?.into();
    let request = SignableRequest::new("GET", url, iter::empty(), SignableBody::Bytes(&[]))?;
    let (instructions, _) = sign(request, &signing)?.into_parts();
    let (_, mut params) = instructions.into_parts();
    params.sort_by_key(|(name, _)| *name == "X-Amz-Signature");
    Ok(params)
}

/// Returns whether this is a host name, optionally with a port.
fn is_host(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "443"));
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.bytes().all(in_names) && port.parse::<u16>().is_ok()
}

/// Percent-encodes all but the unreserved characters, as the signature's specification requires.
struct PercentEncoded<'a>(&'a str);

impl fmt::Display for PercentEncoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => f.write_char(byte.into()),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// Returns the error and its sources in one line of bounded length; outer SDK errors are generic.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in iter::successors(Some(error), |&cause| cause.source()) {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // Some errors already include the text of their source.
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ").chars().take(MAX_CAUSES_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_with_an_optional_port() {
        for host in ["a.dsql.us-east-1.on.aws", "A-1.example", "localhost", "db.example:5432"] {
            assert!(is_host(host), "{host}");
        }
        for host in
            ["", ":443", "a/b", "a?b", "user@a", "a b", "a:", "a:b", "a:1:2", "a#b", "https://a", "ä.example"]
        {
            assert!(!is_host(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_valid_no_longer_than_its_credentials() {
        let (now, minute) = (SystemTime::UNIX_EPOCH + MAX_EXPIRES, Duration::from_secs(60));
        assert_eq!(valid_for(15 * minute, None, now), 15 * minute);
        assert_eq!(valid_for(15 * minute, Some(now + 60 * minute), now), 15 * minute);
        assert_eq!(valid_for(15 * minute, Some(now + 5 * minute), now), 5 * minute);
        assert_eq!(valid_for(15 * minute, Some(now - minute), now), Duration::ZERO);
    }

    #[test]
    fn validity_is_in_whole_seconds_within_the_signature_limit() {
        let expires = |life| DsqlToken::new("host", "region").expires(life).expires;
        assert_eq!(expires(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(expires(Duration::from_millis(1999)), Duration::from_secs(1));
        assert_eq!(expires(Duration::from_secs(60)), Duration::from_secs(60));
        assert_eq!(expires(Duration::MAX), MAX_EXPIRES);
    }

    #[test]
    fn an_error_is_one_line_with_its_causes_and_bounded() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct ChainedError {
            text: String,
            source: Option<Box<ChainedError>>,
        }
        let texts = |text: &str, source: Option<ChainedError>| ChainedError {
            text: text.into(),
            source: source.map(Box::new),
        };
        let error =
            texts("no\n  credentials", Some(texts("no profile: no file", Some(texts("no file", None)))));
        assert_eq!(causes(&error), "no credentials: no profile: no file");
        assert_eq!(causes(&texts(&"x".repeat(5000), None)).len(), MAX_CAUSES_CHARS);
    }
}
