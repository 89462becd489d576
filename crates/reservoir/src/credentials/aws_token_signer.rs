//! Signer of AWS tokens for databases, which the providers of DSQL and RDS tokens share.
//!
//! A token is a presigned URL without its scheme. It is created locally; only the AWS credentials
//! that sign it are requested. It is byte for byte the token that botocore creates:
//! `tests/it/tokens/` compares them.

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

use super::{AuthSecret, AuthToken, TokenError};

/// Default validity, as in AWS's own tools.
pub(super) const DEFAULT_EXPIRES: Duration = Duration::from_secs(15 * 60);
/// Maximum validity that the signature algorithm allows.
pub(super) const MAX_EXPIRES: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Timeout for the credentials. The SDK tries several sources in order; not all have a timeout.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of an SDK error in an error text.
const MAX_CAUSES_CHARS: usize = 1000;

/// Signs tokens for one host.
pub(super) struct AwsTokenSigner {
    /// Name in the signature's scope, such as `dsql`.
    service: &'static str,
    /// Host name, optionally with a port.
    host: String,
    region: String,
    expires: Duration,
    credentials: OnceCell<SharedCredentialsProvider>,
}

impl AwsTokenSigner {
    pub(super) fn new(service: &'static str, host: String, region: String) -> Self {
        AwsTokenSigner { service, host, region, expires: DEFAULT_EXPIRES, credentials: OnceCell::new() }
    }

    /// Sets the validity in whole seconds, from one second to a week.
    pub(super) fn set_expires(&mut self, expires: Duration) {
        let allowed = expires.clamp(Duration::from_secs(1), MAX_EXPIRES);
        self.expires = Duration::from_secs(allowed.as_secs());
    }

    /// Uses these credentials instead of those that the SDK finds.
    pub(super) fn set_credentials(&mut self, provider: impl ProvideCredentials + 'static) {
        self.credentials = OnceCell::new_with(Some(SharedCredentialsProvider::new(provider)));
    }

    /// Returns the token with these query parameters. Sends no request.
    pub(super) fn presign(
        &self,
        params: &[(&str, &str)],
        credentials: &Credentials,
        time: SystemTime,
    ) -> Result<AuthSecret, TokenError> {
        let signed = self.presigned_url(params, credentials, time);
        signed.map(AuthSecret::new).map_err(|error| TokenError(format!("token for {}: {error}", self.host)))
    }

    /// Requests credentials and returns a token with these query parameters.
    pub(super) async fn sign_new(&self, params: &[(&str, &str)]) -> Result<AuthToken, TokenError> {
        let failed = |why: &dyn fmt::Display| TokenError(format!("AWS credentials for {}: {why}", self.host));
        let provider = self.credentials.get_or_init(|| find_credentials(&self.region)).await;
        let asked = tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await;
        let asked = asked.map_err(|_| failed(&format_args!("none within {CREDENTIALS_TIMEOUT:?}")))?;
        let credentials = asked.map_err(|error| failed(&causes(&error)))?;
        #[expect(clippy::disallowed_methods, reason = "a signature is of a date")]
        let now = SystemTime::now();
        let secret = self.presign(params, &credentials, now)?;
        Ok(AuthToken { secret, valid_for: Some(valid_for(self.expires, credentials.expiry(), now)) })
    }

    fn presigned_url(
        &self,
        params: &[(&str, &str)],
        credentials: &Credentials,
        time: SystemTime,
    ) -> Result<String, PresignError> {
        if !is_host(&self.host) {
            return Err(PresignError::Host);
        }
        let query: Vec<_> =
            params.iter().map(|(name, value)| format!("{name}={}", PercentEncoded(value))).collect();
        let query = query.join("&");
        // The signature covers the host name in lower case, as an HTTP client would send it.
        let url = format!("https://{}/?{query}", self.host.to_ascii_lowercase());
        let signature = self.signature(&url, credentials, time)?;
        let mut token = format!("{}/?{query}", self.host);
        for (name, value) in signature {
            write!(token, "&{name}={}", PercentEncoded(&value)).expect("writing to a String never fails");
        }
        Ok(token)
    }

    /// Returns the query parameters that the signature adds, in botocore's order: the signature
    /// last.
    fn signature(
        &self,
        url: &str,
        credentials: &Credentials,
        time: SystemTime,
    ) -> Result<SignatureParams, Box<dyn Error + Send + Sync>> {
        let mut settings = SigningSettings::default();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(self.expires);
        let identity = credentials.clone().into();
        let signing =
            v4::SigningParams::builder().identity(&identity).region(&self.region).name(self.service);
        let signing = signing.time(time).settings(settings).build()?.into();
        let request = SignableRequest::new("GET", url, iter::empty(), SignableBody::Bytes(&[]))?;
        let (instructions, _) = sign(request, &signing)?.into_parts();
        let (_, mut params) = instructions.into_parts();
        params.sort_by_key(|(name, _)| *name == "X-Amz-Signature");
        Ok(params)
    }
}

/// Shows no credentials.
impl fmt::Debug for AwsTokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AwsTokenSigner { service, host, region, expires, credentials: _ } = self;
        let mut shown = f.debug_struct("AwsTokenSigner");
        shown.field("service", service).field("host", host).field("region", region).field("expires", expires);
        shown.finish_non_exhaustive()
    }
}

type SignatureParams = Vec<(&'static str, Cow<'static, str>)>;

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
        let expires = |life| {
            let mut signer = AwsTokenSigner::new("dsql", "host".into(), "region".into());
            signer.set_expires(life);
            signer.expires
        };
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
