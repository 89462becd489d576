//! Tokens for Aurora DSQL.
//!
//! A token is a presigned URL of the service `dsql` without its scheme, made here and sent nowhere but to the database: what
//! has to be asked for are only the credentials that sign it. Byte for byte as botocore makes it; `tests/it/tokens/dsql.rs`
//! compares.

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

use super::{Asking, Secret, Token, TokenError, TokenProvider};

/// What AWS's own tools use.
const DEFAULT_EXPIRES: Duration = Duration::from_secs(15 * 60);
/// The signature's own bound.
const MAX_EXPIRES: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// For the credentials. The SDK tries several sources one after the other, each with a timeout of its own, or with none.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(20);
/// What an error shows of the SDK's.
const MAX_CAUSES_CHARS: usize = 1000;

/// Tokens for a cluster of Aurora DSQL, signed with AWS credentials (feature `dsql`).
///
/// The credentials are the process's own, found by the official SDK: in the environment, in the profile files, by a web
/// identity, at the container's endpoint, or at the instance's. (A profile that needs SSO is an error.) They are asked for
/// anew for each token: put this into a [`Cached`](super::Cached).
///
/// A token is for one role: [`DsqlToken::new`] for any user but `admin` (the right `dsql:DbConnect`), and
/// [`DsqlToken::admin`] for that one (`dsql:DbConnectAdmin`). It matters only while connecting; a connection outlives it.
///
/// ```no_run
/// use forebay_reservoir::{Cached, DsqlToken};
///
/// let tokens = Cached::new(DsqlToken::new("foo0bar1baz2quux3.dsql.us-east-1.on.aws", "us-east-1"));
/// ```
pub struct DsqlToken {
    host: String,
    region: String,
    admin: bool,
    expires: Duration,
    credentials: OnceCell<SharedCredentialsProvider>,
}

impl DsqlToken {
    /// For the cluster at this host, in this region, for any user but `admin`.
    pub fn new(host: impl Into<String>, region: impl Into<String>) -> Self {
        DsqlToken {
            host: host.into(),
            region: region.into(),
            admin: false,
            expires: DEFAULT_EXPIRES,
            credentials: OnceCell::new(),
        }
    }

    /// For the user `admin`.
    #[must_use]
    pub fn admin(mut self) -> Self {
        self.admin = true;
        self
    }

    /// How long a token is good, in whole seconds: 15 minutes by default, as AWS's own tools have it; at least a second, and
    /// at most a week. Never longer than the credentials that sign it.
    #[must_use]
    pub fn expires(mut self, expires: Duration) -> Self {
        self.expires = Duration::from_secs(expires.clamp(Duration::from_secs(1), MAX_EXPIRES).as_secs());
        self
    }

    /// Credentials from elsewhere: of another role, for one.
    #[must_use]
    pub fn credentials(mut self, provider: impl ProvideCredentials + 'static) -> Self {
        self.credentials = OnceCell::new_with(Some(SharedCredentialsProvider::new(provider)));
        self
    }

    /// The token that these credentials sign at this time. Nothing is asked for.
    ///
    /// # Errors
    /// If the host isn't one.
    pub fn presign(&self, credentials: &Credentials, time: SystemTime) -> Result<Secret, TokenError> {
        let signed = presign(&self.host, &self.region, self.admin, credentials, self.expires, time);
        signed.map(Secret::new).map_err(|flaw| TokenError(format!("token for {}: {flaw}", self.host)))
    }

    async fn ask(&self) -> Result<Token, TokenError> {
        let failed = |why: &dyn fmt::Display| TokenError(format!("AWS credentials for {}: {why}", self.host));
        let provider = self.credentials.get_or_init(|| find_credentials(&self.region)).await;
        let asked = tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await;
        let asked = asked.map_err(|_| failed(&format_args!("none within {CREDENTIALS_TIMEOUT:?}")))?;
        let credentials = asked.map_err(|error| failed(&causes(&error)))?;
        #[expect(clippy::disallowed_methods, reason = "a signature is of a date")]
        let now = SystemTime::now();
        let secret = self.presign(&credentials, now)?;
        Ok(Token { secret, good_for: Some(good_for(self.expires, credentials.expiry(), now)) })
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
    fn token(&self) -> Asking<'_> {
        Box::pin(self.ask())
    }
}

/// The SDK's own chain of places, reached over rustls on ring.
async fn find_credentials(region: &str) -> SharedCredentialsProvider {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let config = ProviderConfig::without_region()
        .with_behavior_version(Some(BehaviorVersion::latest()))
        .with_http_client(http);
    let chain = DefaultCredentialsChain::builder().region(Region::new(region.to_string())).configure(config);
    SharedCredentialsProvider::new(chain.build().await)
}

/// A token dies with the credentials that signed it.
fn good_for(expires: Duration, credentials_expire: Option<SystemTime>, now: SystemTime) -> Duration {
    let left = credentials_expire.map(|expiry| expiry.duration_since(now).unwrap_or_default());
    left.map_or(expires, |left| left.min(expires))
}

#[derive(Debug, thiserror::Error)]
enum Flaw {
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
) -> Result<String, Flaw> {
    if !is_host(host) {
        return Err(Flaw::Host);
    }
    let action = if admin { "DbConnectAdmin" } else { "DbConnect" };
    // Signed is what an HTTP client would send, and that is the name in lower case.
    let url = format!("https://{}/?Action={action}", host.to_ascii_lowercase());
    let params = signature(&url, region, credentials, expires, time)?;

    let mut token = format!("{host}/?Action={action}");
    for (name, value) in params {
        write!(token, "&{name}={}", PercentEncoded(&value)).expect("a string takes everything");
    }
    Ok(token)
}

type Params = Vec<(&'static str, Cow<'static, str>)>;

/// What the signature adds to the URL, in the order that botocore has: itself at the end.
fn signature(
    url: &str,
    region: &str,
    credentials: &Credentials,
    expires: Duration,
    time: SystemTime,
) -> Result<Params, Box<dyn Error + Send + Sync>> {
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

/// A name, perhaps with a port: nothing that would be a path, a query or a user in a URL.
fn is_host(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "443"));
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.bytes().all(in_names) && port.parse::<u16>().is_ok()
}

/// As the signature's specification has it: all but the unreserved characters.
struct PercentEncoded<'a>(&'a str);

impl fmt::Display for PercentEncoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => f.write_char(byte.into()),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// An error and its causes, in one line of bounded length: the SDK's outermost ones say next to nothing.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in iter::successors(Some(error), |&cause| cause.source()) {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // Some show their cause themselves.
        if !said.last().is_some_and(|last| last.contains(&text)) {
            said.push(text);
        }
    }
    said.join(": ").chars().take(MAX_CAUSES_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_and_perhaps_a_port() {
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
    fn a_token_is_good_no_longer_than_the_credentials_that_sign_it() {
        let (now, minute) = (SystemTime::UNIX_EPOCH + MAX_EXPIRES, Duration::from_secs(60));
        assert_eq!(good_for(15 * minute, None, now), 15 * minute);
        assert_eq!(good_for(15 * minute, Some(now + 60 * minute), now), 15 * minute);
        assert_eq!(good_for(15 * minute, Some(now + 5 * minute), now), 5 * minute);
        assert_eq!(good_for(15 * minute, Some(now - minute), now), Duration::ZERO);
    }

    #[test]
    fn a_life_is_in_whole_seconds_and_within_what_a_signature_allows() {
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
        struct Said {
            text: String,
            source: Option<Box<Said>>,
        }
        let said =
            |text: &str, source: Option<Said>| Said { text: text.into(), source: source.map(Box::new) };
        let error = said("no\n  credentials", Some(said("no profile: no file", Some(said("no file", None)))));
        assert_eq!(causes(&error), "no credentials: no profile: no file");
        assert_eq!(causes(&said(&"x".repeat(5000), None)).len(), MAX_CAUSES_CHARS);
    }
}
