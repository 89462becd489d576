//! Who asks: ordered ways to find out, each of them opt-in.
//!
//! Invariant: nobody is believed on his word. A token is verified, a key is known, a header counts only from a peer in the
//! list of trusted proxies, and an address is the peer's or one that a trusted proxy vouches for. A credential that is
//! presented and wrong is refused ([`Unidentified`]); it never makes an anonymous visitor.
//! Kept by: [`Identify::identify`] is the only way from a request to a [`Visitor`], and tries them in this order: token, API
//! key, trusted header, address. Only where tokens and keys share a header does a key that is known come before the token.
//! Not here: what the visitor may do then.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};

use crate::metrics;
use crate::visitor::{BadId, Class, Visitor};

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
mod token;

pub use api_key::ApiKeys;
pub use forwarded::ForwardedBy;
pub use jwt::{Jwt, TokenFault};
pub use keys::KeyError;
pub use network::{Network, NetworkError};
pub use token::Token;

/// The address of the peer. Whoever accepts connections puts it into the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// How a request is identified. Without any of its ways, everybody is anonymous.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_admission::{ApiKeys, ForwardedBy, Identify, Jwt};
///
/// let identify = Identify::new()
///     .jwt(Jwt::secret(b"a secret of thirty-two bytes, or more")?)
///     .api_keys(ApiKeys::new().key("s3cr3t", "ada"))
///     .trusted_proxies(["10.0.0.0/8".parse()?])
///     .trusted_header() // X-User-ID, from these proxies only
///     .address(ForwardedBy::XForwardedFor); // for everybody else
/// # drop(identify);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Identify {
    /// Clones share them, until one is built upon.
    ways: Arc<RwLock<Arc<Ways>>>,
}

#[derive(Clone, Default)]
struct Ways {
    jwt: Option<Jwt>,
    api_keys: Option<ApiKeys>,
    header: Option<HeaderName>,
    class_header: Option<HeaderName>,
    address: Option<ForwardedBy>,
    proxies: Vec<Network>,
}

impl Identify {
    /// Everybody is anonymous.
    pub fn new() -> Self {
        Self::default()
    }

    /// Users by signed token in `Authorization: Bearer`.
    pub fn jwt(self, jwt: Jwt) -> Self {
        self.with(|ways| ways.jwt = Some(jwt))
    }

    /// Users by API key.
    pub fn api_keys(self, keys: ApiKeys) -> Self {
        self.with(|ways| ways.api_keys = Some(keys))
    }

    /// The peers whose headers are believed. Default none.
    pub fn trusted_proxies(self, networks: impl IntoIterator<Item = Network>) -> Self {
        self.with(|ways| ways.proxies = networks.into_iter().collect())
    }

    /// Users by the header `X-User-ID` from a trusted proxy.
    pub fn trusted_header(self) -> Self {
        self.trusted_header_named(HeaderName::from_static("x-user-id"))
    }

    /// Users by a header of this name from a trusted proxy.
    pub fn trusted_header_named(self, name: HeaderName) -> Self {
        self.with(|ways| ways.header = Some(name))
    }

    /// The class of such a user, by another header from a trusted proxy.
    pub fn trusted_class_header(self, name: HeaderName) -> Self {
        self.with(|ways| ways.class_header = Some(name))
    }

    /// Everybody else by address: the peer's, or the one that a trusted proxy tells.
    pub fn address(self, by: ForwardedBy) -> Self {
        self.with(|ways| ways.address = Some(by))
    }

    /// Who sent these headers. `peer` is whom the connection is with.
    pub async fn identify(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Visitor, Unidentified> {
        let ways = self.ways();
        if let Some(visitor) = ways.by_token(headers).await? {
            return Ok(visitor);
        }
        if let Some(visitor) = ways.by_api_key(headers)? {
            return Ok(visitor);
        }
        if ways.trusts(peer)
            && let Some(visitor) = ways.by_header(headers)?
        {
            return Ok(visitor);
        }
        let visitor = ways.by_address(headers, peer);
        // Room is kept from the anonymous for those who are known. Where nobody can be, it would be kept for nobody.
        Ok(if ways.know_nobody() { visitor.class(Class::USER) } else { visitor })
    }

    /// The token in these headers, with its claims, for those who let a token say more than who somebody is. `None`: there is
    /// none, or tokens aren't known. There is no leeway for its `exp`, at which whatever it opens should end. One that is
    /// refused is counted.
    pub async fn token(&self, headers: &HeaderMap) -> Result<Option<Token>, Unidentified> {
        let read = async {
            let ways = self.ways();
            let Some((jwt, token)) = ways.shown_token(headers)? else { return Ok(None) };
            jwt.token(token).await.map(Some).map_err(Unidentified::Token)
        };
        read.await.inspect_err(metrics::bad_credentials)
    }

    /// Takes away the headers that only a trusted proxy may set, if they come from somebody else, before anybody behind
    /// believes them; tells which they were.
    pub fn strip_untrusted(&self, headers: &mut HeaderMap, peer: Option<IpAddr>) -> Vec<HeaderName> {
        let ways = self.ways();
        if ways.trusts(peer) {
            return Vec::new();
        }
        let forwarded = ways.address.and_then(ForwardedBy::header);
        let only_trusted = [ways.header.as_ref(), ways.class_header.as_ref(), forwarded.as_ref()];
        let stripped = only_trusted.into_iter().flatten().filter(|name| headers.remove(*name).is_some());
        stripped.cloned().collect()
    }

    /// Puts other ways in place of these, for all clones: keys that were changed, say. What was decided before stays so.
    pub fn replace(&self, other: &Identify) {
        let ways = other.ways();
        *self.ways.write().unwrap_or_else(PoisonError::into_inner) = ways;
    }

    /// Takes over the keys of those ways that both have, for all clones; no way is added or taken away, and whose headers are believed stays as it is.
    pub fn renew_keys(&self, other: &Identify) {
        let (fresh, mut ways) = (other.ways(), (*self.ways()).clone());
        if ways.jwt.is_some() && fresh.jwt.is_some() {
            ways.jwt.clone_from(&fresh.jwt);
        }
        if ways.api_keys.is_some() && fresh.api_keys.is_some() {
            ways.api_keys.clone_from(&fresh.api_keys);
        }
        *self.ways.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ways);
    }

    fn ways(&self) -> Arc<Ways> {
        Arc::clone(&self.ways.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn with(self, change: impl FnOnce(&mut Ways)) -> Self {
        let mut ways = (*self.ways()).clone();
        change(&mut ways);
        Identify { ways: Arc::new(RwLock::new(Arc::new(ways))) }
    }
}

impl Ways {
    fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.proxies.iter().any(|network| network.contains(peer)))
    }

    fn know_nobody(&self) -> bool {
        self.jwt.is_none() && self.api_keys.is_none() && self.header.is_none()
    }

    async fn by_token(&self, headers: &HeaderMap) -> Result<Option<Visitor>, Unidentified> {
        let Some((jwt, token)) = self.shown_token(headers)? else { return Ok(None) };
        let subject = jwt.check(token).await.map_err(Unidentified::Token)?;
        let visitor = Visitor::user(&subject.user).map_err(Unidentified::Id)?;
        Ok(Some(of_class(visitor, subject.class.as_deref())))
    }

    /// What looks like a token, and how it is checked.
    fn shown_token<'a>(&'a self, headers: &'a HeaderMap) -> Result<Option<(&'a Jwt, &'a str)>, Unidentified> {
        let Some(jwt) = &self.jwt else { return Ok(None) };
        let Some(value) = single(headers, &AUTHORIZATION)? else { return Ok(None) };
        let Some(token) = bearer(value) else { return Ok(None) };
        if token.len() > jwt::MAX_TOKEN_BYTES {
            return Err(Unidentified::too_long(&AUTHORIZATION, token.len(), jwt::MAX_TOKEN_BYTES));
        }
        // Keys may come in the same header; what is one of them is no token.
        let keys = self.api_keys.as_ref().filter(|keys| *keys.header_name() == AUTHORIZATION);
        if keys.is_some_and(|keys| keys.owner(token).is_some()) {
            return Ok(None);
        }
        let token = std::str::from_utf8(token).map_err(|_| Unidentified::Token(TokenFault::Malformed))?;
        Ok(Some((jwt, token)))
    }

    fn by_api_key(&self, headers: &HeaderMap) -> Result<Option<Visitor>, Unidentified> {
        let Some(keys) = &self.api_keys else { return Ok(None) };
        let name = keys.header_name();
        let Some(value) = single(headers, name)? else { return Ok(None) };
        let key = if *name == AUTHORIZATION { bearer(value) } else { Some(value.as_bytes()) };
        let Some(key) = key else { return Ok(None) };
        if key.len() > api_key::MAX_KEY_BYTES {
            return Err(Unidentified::too_long(name, key.len(), api_key::MAX_KEY_BYTES));
        }
        let owner = keys.owner(key).ok_or_else(|| Unidentified::ApiKey { header: name.clone() })?;
        Ok(Some(owner.clone()))
    }

    /// Only for a trusted peer.
    fn by_header(&self, headers: &HeaderMap) -> Result<Option<Visitor>, Unidentified> {
        let Some(name) = &self.header else { return Ok(None) };
        let Some(value) = single(headers, name)? else { return Ok(None) };
        let id = value.to_str().or_else(|_| std::str::from_utf8(value.as_bytes()));
        let id = id.map_err(|_| Unidentified::Unreadable { header: name.clone() })?.trim();
        if id.is_empty() {
            return Ok(None);
        }
        let visitor = Visitor::user(id).map_err(Unidentified::Id)?;
        let class = self.class_header.as_ref().and_then(|name| headers.get(name)?.to_str().ok());
        Ok(Some(of_class(visitor, class)))
    }

    fn by_address(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Visitor {
        match (self.address, peer) {
            (Some(by), Some(peer)) => Visitor::address(forwarded::client(peer, by, headers, &self.proxies)),
            (None, _) | (_, None) => Visitor::anonymous(),
        }
    }
}

fn of_class(visitor: Visitor, class: Option<&str>) -> Visitor {
    match class {
        Some(class) => visitor.class(Class::new(class)),
        None => visitor,
    }
}

/// One value. Of two, a proxy and we might each believe another.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Unidentified> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Unidentified::Ambiguous { header: name.clone() });
    }
    Ok(first)
}

/// What follows `Bearer`, in any case of letters; nothing may.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(6)?;
    let ends = token.first().is_none_or(|letter| *letter == b' ');
    (ends && scheme.eq_ignore_ascii_case(b"bearer")).then(|| token.trim_ascii())
}

/// Why a visitor who says who he is isn't let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unidentified {
    /// The token doesn't hold.
    #[error("{0}")]
    Token(TokenFault),
    /// Nobody has this key.
    #[error("the API key is unknown")]
    ApiKey {
        /// Where the key was.
        header: HeaderName,
    },
    /// The header is there more than once, and which to believe is nobody's guess.
    #[error("the header {header} is there more than once")]
    Ambiguous {
        /// Which.
        header: HeaderName,
    },
    /// The header is no text.
    #[error("the header {header} is no UTF-8 text")]
    Unreadable {
        /// Which.
        header: HeaderName,
    },
    /// The header is longer than anything that belongs there.
    #[error("the header {header} holds {bytes} bytes; at most {max} are taken")]
    TooLong {
        /// Which.
        header: HeaderName,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The id can't be one.
    #[error("{0}")]
    Id(BadId),
}

impl Unidentified {
    /// The name in logs, metrics and answers.
    pub fn as_str(&self) -> &'static str {
        match self {
            Unidentified::Token(fault) => fault.as_str(),
            Unidentified::ApiKey { .. } => "unknown_api_key",
            Unidentified::Ambiguous { .. } => "ambiguous_header",
            Unidentified::Unreadable { .. } => "unreadable_header",
            Unidentified::TooLong { .. } | Unidentified::Id(BadId::TooLong { .. }) => "too_long",
            Unidentified::Id(BadId::Empty | BadId::ControlCharacter) => "bad_id",
        }
    }

    fn too_long(header: &HeaderName, bytes: usize, max: usize) -> Self {
        Unidentified::TooLong { header: header.clone(), bytes, max }
    }
}
