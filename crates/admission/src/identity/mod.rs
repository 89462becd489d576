//! Client identification: several opt-in methods, tried in order.
//!
//! Invariant: every identity is verified here or reported by a trusted proxy. Tokens have a valid
//! signature, and API keys are configured. Identity headers are read only from a trusted proxy. An
//! address is the peer's, or one that a trusted proxy reports. A wrong credential is an
//! [`IdentifyError`], never an anonymous client.
//! Enforced by: [`Identifier::identify`] is the only way from a request to a [`ClientIdentity`],
//! besides a token that [`Identifier::token`] has verified.
//! Order: token, API key, trusted header, address. If tokens and keys share a header, a known key
//! is tried before a token.
//! Out of scope: authorization.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use parking_lot::RwLock;

use crate::client_identity::{Class, ClientIdentity, InvalidUserId};
use crate::metrics;

mod api_key;
mod claims;
mod forwarded;
mod jwks;
mod jwt;
mod keys;
pub(crate) mod network;
mod signature;
#[cfg(test)]
mod tests;
mod verified_token;

pub use api_key::ApiKeys;
pub use forwarded::ForwardedHeader;
pub use jwt::{Jwt, TokenFault};
pub use keys::KeyError;
pub use network::{Network, NetworkError};
pub use verified_token::VerifiedToken;

/// Address of the connection's peer. The server that accepts connections inserts it into the
/// request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Identification of requests. Without any method, every client is anonymous.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_admission::{ApiKeys, ForwardedHeader, Identifier, Jwt};
///
/// let identify = Identifier::new()
///     .jwt(Jwt::secret(b"a secret of thirty-two bytes, or more")?)
///     .api_keys(ApiKeys::new().key("s3cr3t", "ada"))
///     .trusted_proxies(["10.0.0.0/8".parse()?])
///     .trusted_header() // X-User-ID, from these proxies only
///     .address(ForwardedHeader::XForwardedFor); // for all other clients
/// # drop(identify);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Identifier {
    /// Shared by clones. A builder method creates an independent copy.
    methods: Arc<RwLock<Arc<IdentityMethods>>>,
}

#[derive(Clone, Default)]
struct IdentityMethods {
    jwt: Option<Jwt>,
    api_keys: Option<ApiKeys>,
    header: Option<HeaderName>,
    class_header: Option<HeaderName>,
    address: Option<ForwardedHeader>,
    proxies: Vec<Network>,
}

impl Identifier {
    /// Creates an identification without methods: every client is anonymous.
    pub fn new() -> Self {
        Self::default()
    }

    /// Identifies users by a signed token in `Authorization: Bearer`.
    pub fn jwt(self, jwt: Jwt) -> Self {
        self.with_methods(|methods| methods.jwt = Some(jwt))
    }

    /// Identifies users by API key.
    pub fn api_keys(self, keys: ApiKeys) -> Self {
        self.with_methods(|methods| methods.api_keys = Some(keys))
    }

    /// Sets the peers whose identity headers are accepted. Default: none.
    pub fn trusted_proxies(self, networks: impl IntoIterator<Item = Network>) -> Self {
        self.with_methods(|methods| methods.proxies = networks.into_iter().collect())
    }

    /// Identifies users by the header `X-User-ID` from a trusted proxy.
    pub fn trusted_header(self) -> Self {
        self.trusted_header_named(HeaderName::from_static("x-user-id"))
    }

    /// Identifies users by this header from a trusted proxy.
    pub fn trusted_header_named(self, name: HeaderName) -> Self {
        self.with_methods(|methods| methods.header = Some(name))
    }

    /// Reads the class of a user that a trusted proxy reports from this header.
    pub fn trusted_class_header(self, name: HeaderName) -> Self {
        self.with_methods(|methods| methods.class_header = Some(name))
    }

    /// Identifies all other clients by address: the peer's, or the one reported by a trusted proxy.
    pub fn address(self, by: ForwardedHeader) -> Self {
        self.with_methods(|methods| methods.address = Some(by))
    }

    /// Identifies the client that sent these headers. `peer` is the other end of the connection.
    pub async fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<ClientIdentity, IdentifyError> {
        let methods = self.methods();
        if let Some(client) = methods.by_token(headers).await? {
            return Ok(client);
        }
        if let Some(client) = methods.by_api_key(headers)? {
            return Ok(client);
        }
        if methods.trusts(peer)
            && let Some(client) = methods.by_header(headers)?
        {
            return Ok(client);
        }
        let client = methods.by_address(headers, peer);
        // The class `anonymous` leaves room for authenticated clients. If no method can
        // authenticate, there are none.
        Ok(if methods.are_anonymous_only() { client.class(Class::USER) } else { client })
    }

    /// Returns the verified token in these headers, with its claims. `None`: there is no token, or
    /// tokens are not configured.
    ///
    /// There is no leeway for `exp`, because access granted by the token must end then. Invalid
    /// tokens are counted in the metrics.
    pub async fn token(&self, headers: &HeaderMap) -> Result<Option<VerifiedToken>, IdentifyError> {
        let read = async {
            let methods = self.methods();
            let Some((jwt, token)) = methods.bearer_token(headers)? else { return Ok(None) };
            jwt.token(token).await.map(Some).map_err(IdentifyError::Token)
        };
        read.await.inspect_err(metrics::bad_credentials)
    }

    /// Removes the headers that only a trusted proxy may set, unless the peer is one. Returns the
    /// removed names. A client therefore cannot forge them for the inner service.
    pub fn strip_untrusted(&self, headers: &mut HeaderMap, peer: Option<IpAddr>) -> Vec<HeaderName> {
        let methods = self.methods();
        if methods.trusts(peer) {
            return Vec::new();
        }
        let forwarded = methods.address.and_then(ForwardedHeader::header);
        let only_trusted = [methods.header.as_ref(), methods.class_header.as_ref(), forwarded.as_ref()];
        let stripped = only_trusted.into_iter().flatten().filter(|name| headers.remove(*name).is_some());
        stripped.cloned().collect()
    }

    /// Replaces all methods, for all clones. Clients that are already identified are not affected.
    pub fn replace(&self, other: &Identifier) {
        let methods = other.methods();
        *self.methods.write() = methods;
    }

    /// Copies the token and API keys of `other`, for all clones. Only methods that both have get
    /// new keys. No method and no trusted proxy is added or removed, and the header of the API
    /// keys stays.
    pub fn renew_keys(&self, other: &Identifier) {
        let (fresh, mut methods) = (other.methods(), (*self.methods()).clone());
        if methods.jwt.is_some() && fresh.jwt.is_some() {
            methods.jwt.clone_from(&fresh.jwt);
        }
        if let (Some(running), Some(fresh)) = (&mut methods.api_keys, &fresh.api_keys) {
            *running = fresh.clone().header(running.header_name().clone());
        }
        *self.methods.write() = Arc::new(methods);
    }

    fn methods(&self) -> Arc<IdentityMethods> {
        Arc::clone(&self.methods.read())
    }

    fn with_methods(self, change: impl FnOnce(&mut IdentityMethods)) -> Self {
        let mut methods = (*self.methods()).clone();
        change(&mut methods);
        Identifier { methods: Arc::new(RwLock::new(Arc::new(methods))) }
    }
}

impl IdentityMethods {
    fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.proxies.iter().any(|network| network.contains(peer)))
    }

    fn are_anonymous_only(&self) -> bool {
        self.jwt.is_none() && self.api_keys.is_none() && self.header.is_none()
    }

    async fn by_token(&self, headers: &HeaderMap) -> Result<Option<ClientIdentity>, IdentifyError> {
        let Some((jwt, token)) = self.bearer_token(headers)? else { return Ok(None) };
        let subject = jwt.check(token).await.map_err(IdentifyError::Token)?;
        subject.identity().map(Some)
    }

    /// Returns the bearer token and its verifier, if there is one.
    fn bearer_token<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> Result<Option<(&'a Jwt, &'a str)>, IdentifyError> {
        let Some(jwt) = &self.jwt else { return Ok(None) };
        let Some(value) = single(headers, &AUTHORIZATION)? else { return Ok(None) };
        let Some(token) = bearer(value) else { return Ok(None) };
        if token.len() > jwt::MAX_TOKEN_BYTES {
            return Err(IdentifyError::too_long(&AUTHORIZATION, token.len(), jwt::MAX_TOKEN_BYTES));
        }
        // API keys may use the same header; a known key is not a token.
        let keys = self.api_keys.as_ref().filter(|keys| *keys.header_name() == AUTHORIZATION);
        if keys.is_some_and(|keys| keys.owner(token).is_some()) {
            return Ok(None);
        }
        let token = std::str::from_utf8(token).map_err(|_| IdentifyError::Token(TokenFault::Malformed))?;
        Ok(Some((jwt, token)))
    }

    fn by_api_key(&self, headers: &HeaderMap) -> Result<Option<ClientIdentity>, IdentifyError> {
        let Some(keys) = &self.api_keys else { return Ok(None) };
        let name = keys.header_name();
        let Some(value) = single(headers, name)? else { return Ok(None) };
        let key = if *name == AUTHORIZATION { bearer(value) } else { Some(value.as_bytes()) };
        let Some(key) = key else { return Ok(None) };
        if key.len() > api_key::MAX_KEY_BYTES {
            return Err(IdentifyError::too_long(name, key.len(), api_key::MAX_KEY_BYTES));
        }
        let owner = keys.owner(key).ok_or_else(|| IdentifyError::ApiKey { header: name.clone() })?;
        Ok(Some(owner.clone()))
    }

    /// Identifies by the trusted header. Call only for a trusted peer.
    fn by_header(&self, headers: &HeaderMap) -> Result<Option<ClientIdentity>, IdentifyError> {
        let Some(name) = &self.header else { return Ok(None) };
        let Some(value) = single(headers, name)? else { return Ok(None) };
        let id = value.to_str().or_else(|_| std::str::from_utf8(value.as_bytes()));
        let id = id.map_err(|_| IdentifyError::Unreadable { header: name.clone() })?.trim();
        if id.is_empty() {
            return Ok(None);
        }
        let client = ClientIdentity::user(id).map_err(IdentifyError::Id)?;
        let class = self.class_header.as_ref().and_then(|name| headers.get(name)?.to_str().ok());
        Ok(Some(with_class(client, class)))
    }

    fn by_address(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> ClientIdentity {
        match (self.address, peer) {
            (Some(by), Some(peer)) => {
                ClientIdentity::address(forwarded::client_address(peer, by, headers, &self.proxies))
            }
            (None, _) | (_, None) => ClientIdentity::anonymous(),
        }
    }
}

fn with_class(client: ClientIdentity, class: Option<&str>) -> ClientIdentity {
    match class {
        Some(class) => client.class(Class::new(class)),
        None => client,
    }
}

/// Returns the only value of a header. With two values, a proxy and this process might use
/// different ones.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, IdentifyError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(IdentifyError::Ambiguous { header: name.clone() });
    }
    Ok(first)
}

/// Returns the part after `Bearer`, case-insensitively; it may be empty.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(6)?;
    let ends = token.first().is_none_or(|letter| *letter == b' ');
    (ends && scheme.eq_ignore_ascii_case(b"bearer")).then(|| token.trim_ascii())
}

/// Why a client's credentials are rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifyError {
    /// The token is invalid.
    #[error("{0}")]
    Token(TokenFault),
    /// The API key is unknown.
    #[error("the API key is unknown")]
    ApiKey {
        /// Header of the key.
        header: HeaderName,
    },
    /// The header occurs more than once, so its value is ambiguous.
    #[error("the header {header} is there more than once")]
    Ambiguous {
        /// Name of the header.
        header: HeaderName,
    },
    /// The header is not UTF-8 text.
    #[error("the header {header} is no UTF-8 text")]
    Unreadable {
        /// Name of the header.
        header: HeaderName,
    },
    /// The header exceeds its maximum length.
    #[error("the header {header} holds {bytes} bytes; at most {max} are taken")]
    TooLong {
        /// Name of the header.
        header: HeaderName,
        /// Its length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// The user id is invalid.
    #[error("{0}")]
    Id(InvalidUserId),
}

impl IdentifyError {
    /// Returns the name in logs, metrics and response bodies.
    pub fn as_str(&self) -> &'static str {
        match self {
            IdentifyError::Token(fault) => fault.as_str(),
            IdentifyError::ApiKey { .. } => "unknown_api_key",
            IdentifyError::Ambiguous { .. } => "ambiguous_header",
            IdentifyError::Unreadable { .. } => "unreadable_header",
            IdentifyError::TooLong { .. } | IdentifyError::Id(InvalidUserId::TooLong { .. }) => "too_long",
            IdentifyError::Id(InvalidUserId::Empty | InvalidUserId::ControlCharacter) => "bad_id",
        }
    }

    fn too_long(header: &HeaderName, bytes: usize, max: usize) -> Self {
        IdentifyError::TooLong { header: header.clone(), bytes, max }
    }
}
