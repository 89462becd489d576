//! Client identity: the user or address that requests a stream, and its class.
//!
//! Invariant: a user id has at most [`MAX_ID_BYTES`] bytes and no control characters. `Debug` never
//! prints it; logs contain its hash. A user and an address never share a key in the store.
//! Enforced by: only this module constructs a [`UserId`]. Its key starts with its kind.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::identity::network::address_group;
use crate::thread_id::ThreadId;

/// Maximum length of a user id in bytes. Ids are keys in the store.
pub const MAX_ID_BYTES: usize = 256;
/// Maximum length of a class name in bytes.
const MAX_CLASS_BYTES: usize = 64;
/// Maximum length of a route in bytes.
const MAX_ROUTE_BYTES: usize = 256;

/// Client that requests a stream.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    pub(crate) user: Option<UserId>,
    pub(crate) class: Class,
    /// Second class whose share applies too.
    pub(crate) route_class: Option<Class>,
    pub(crate) thread: Option<ThreadId>,
    pub(crate) route: Option<Arc<str>>,
}

impl ClientIdentity {
    /// Creates an anonymous client. Only the total limit applies, up to the share of the class
    /// `anonymous`.
    pub fn anonymous() -> Self {
        ClientIdentity::new(None, Class::ANONYMOUS)
    }

    /// Creates a client authenticated by token, API key or trusted proxy.
    pub fn user(id: &str) -> Result<Self, InvalidUserId> {
        Ok(ClientIdentity::new(Some(UserId::named(id)?), Class::USER))
    }

    /// Creates a client identified by its address only. The per-user limit applies to the address
    /// (an IPv6 address by its /64). Its class is `anonymous`.
    pub fn address(address: IpAddr) -> Self {
        ClientIdentity::new(Some(UserId::address(address)), Class::ANONYMOUS)
    }

    /// Sets the class. An unknown class counts as `user`, or as `anonymous` for an address.
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Sets a second class, such as the route's. Of the two, the one with the smaller share
    /// applies. An unknown class has no effect.
    pub fn route_class(mut self, class: Class) -> Self {
        self.route_class = Some(class);
        self
    }

    /// Sets the id of the stream in logs and `/v1/status`. Without it, one is generated.
    pub fn thread_id(mut self, thread: ThreadId) -> Self {
        self.thread = Some(thread);
        self
    }

    /// Sets what the stream is for, such as the pattern of its route, for lists of streams. A text
    /// above 256 bytes is truncated. It must contain no user id and no secret.
    pub fn route(mut self, route: Arc<str>) -> Self {
        self.route = Some(if route.len() > MAX_ROUTE_BYTES {
            truncated(&route, MAX_ROUTE_BYTES).into()
        } else {
            route
        });
        self
    }

    /// Returns the user or address, if any.
    pub fn as_user(&self) -> Option<&UserId> {
        self.user.as_ref()
    }

    /// Returns whether the client is authenticated. An address alone is not.
    pub fn is_authenticated(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_address())
    }

    fn new(user: Option<UserId>, class: Class) -> Self {
        ClientIdentity { user, class, route_class: None, thread: None, route: None }
    }
}

/// User or address that the per-user limit applies to. Cheap to clone. The layer inserts it into
/// the request's extensions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UserId {
    /// Key in the store: `u:alice` or `a:203.0.113.9`.
    key: Arc<str>,
}

impl UserId {
    fn named(id: &str) -> Result<Self, InvalidUserId> {
        match id {
            "" => Err(InvalidUserId::Empty),
            _ if id.len() > MAX_ID_BYTES => Err(InvalidUserId::TooLong { bytes: id.len() }),
            _ if id.chars().any(char::is_control) => Err(InvalidUserId::ControlCharacter),
            _ => Ok(UserId { key: format!("u:{id}").into() }),
        }
    }

    fn address(address: IpAddr) -> Self {
        UserId { key: format!("a:{}", address_group(address)).into() }
    }

    /// Returns the user id or the address. An IPv6 address is shown as its /64 network.
    pub fn id(&self) -> &str {
        &self.key[2..]
    }

    /// Returns whether this is an address.
    pub fn is_address(&self) -> bool {
        self.key.starts_with("a:")
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_address() { "UserId(an address)" } else { "UserId(a user)" })
    }
}

/// Class of clients with a share of the total limit; see [`Builder::class`](crate::Builder::class).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class(Cow<'static, str>);

impl Class {
    /// Clients without authentication. 90 % of the total by default.
    pub const ANONYMOUS: Class = Class(Cow::Borrowed("anonymous"));
    /// Authenticated clients without another class. 100 % of the total by default.
    pub const USER: Class = Class(Cow::Borrowed("user"));

    /// Creates a class, such as `free`. The name is truncated to 64 bytes.
    pub fn new(name: &str) -> Self {
        Class(Cow::Owned(truncated(name, MAX_CLASS_BYTES).to_owned()))
    }

    /// Returns the name in metrics and configuration.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the longest part of at most `max` bytes from the start of a text.
fn truncated(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Error for a text that cannot be a user id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUserId {
    /// The id is empty.
    #[error("the user's id is empty")]
    Empty,
    /// The id is longer than [`MAX_ID_BYTES`].
    #[error("the user's id has {bytes} bytes; at most {MAX_ID_BYTES} are taken")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The id contains a control character, such as a line break that would forge log lines.
    #[error("the user's id has a control character in it")]
    ControlCharacter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_bounded_and_printable() {
        assert!(ClientIdentity::user("alice").is_ok());
        assert!(ClientIdentity::user(&"x".repeat(MAX_ID_BYTES)).is_ok());
        let error = |id: &str| ClientIdentity::user(id).map(drop).unwrap_err();
        assert_eq!(error(""), InvalidUserId::Empty);
        assert_eq!(error(&"x".repeat(1 << 20)), InvalidUserId::TooLong { bytes: 1 << 20 });
        assert_eq!(error("a\nb"), InvalidUserId::ControlCharacter);
    }

    #[test]
    fn a_user_named_like_an_address_has_a_different_key() {
        let (user, address) =
            (UserId::named("203.0.113.9").unwrap(), UserId::address("203.0.113.9".parse().unwrap()));
        assert_eq!(user.id(), address.id());
        assert_ne!(user.key(), address.key());
        assert_ne!(UserId::named("a:203.0.113.9").unwrap().key(), address.key());
    }

    #[test]
    fn ipv6_addresses_of_one_64_bit_network_share_a_key() {
        let user = |text: &str| UserId::address(text.parse().unwrap());
        assert_eq!(user("2001:db8:1:2::7"), user("2001:db8:1:2:ffff::1"));
        assert_ne!(user("2001:db8:1:2::7"), user("2001:db8:1:3::7"));
        assert_eq!(user("2001:db8:1:2::7").id(), "2001:db8:1:2::");
    }

    #[test]
    fn debug_output_contains_no_id() {
        let client = ClientIdentity::user("alice").unwrap();
        assert!(!format!("{client:?}").contains("alice"), "{client:?}");
    }

    #[test]
    fn an_address_is_a_user_but_not_authenticated() {
        let address = ClientIdentity::address("203.0.113.9".parse().unwrap());
        assert!(address.as_user().is_some() && !address.is_authenticated());
        assert!(ClientIdentity::user("alice").unwrap().is_authenticated());
        assert!(!ClientIdentity::anonymous().is_authenticated());
    }

    #[test]
    fn a_class_name_is_truncated() {
        assert_eq!(Class::new("free").as_str(), "free");
        assert_eq!(Class::new(&"é".repeat(100)).as_str().len(), 64);
    }

    #[test]
    fn a_route_is_truncated() {
        let route = |text: &str| ClientIdentity::anonymous().route(text.into()).route.unwrap();
        assert_eq!(&*route("GET /stream"), "GET /stream");
        assert_eq!(route(&"€".repeat(100_000)).len(), 255);
    }
}
