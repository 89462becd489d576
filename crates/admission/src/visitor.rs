//! Who asks for a stream: a user or nobody in particular, and of which class.
//!
//! Invariant: an id is bounded ([`MAX_ID_BYTES`]), without control characters, and never printed by `Debug`: logs carry its
//! hash. A user and an address never share a key, whatever the user calls himself.
//! Kept by: [`User`] is made only here, and its key begins with its kind.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::identity::network::customer;
use crate::thread_id::ThreadId;

/// The longest id of a user, in bytes. Ids are keys in the store, and longer ones are abuse.
pub const MAX_ID_BYTES: usize = 256;
/// The longest name of a class.
const MAX_CLASS_BYTES: usize = 64;

/// One who asks for a stream.
#[derive(Debug, Clone)]
pub struct Visitor {
    pub(crate) user: Option<User>,
    pub(crate) class: Class,
    /// A second class whose share holds, too.
    pub(crate) within: Option<Class>,
    pub(crate) thread: Option<ThreadId>,
}

impl Visitor {
    /// Nobody in particular: only the global limit holds, up to the share of the class `anonymous`.
    pub fn anonymous() -> Self {
        Visitor::new(None, Class::ANONYMOUS)
    }

    /// A user who is known, by token, key or a proxy's word.
    pub fn user(id: &str) -> Result<Self, BadId> {
        Ok(Visitor::new(Some(User::named(id)?), Class::USER))
    }

    /// Known by address only: limited like a user (an IPv6 address by its /64), of the class `anonymous`.
    pub fn address(address: IpAddr) -> Self {
        Visitor::new(Some(User::address(address)), Class::ANONYMOUS)
    }

    /// Of another class; one that the admission doesn't know counts as `user`, or stays `anonymous` for an address.
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Held to this class as well, such as that of the route: of the two, the one with the smaller share counts. One that the
    /// admission doesn't know changes nothing.
    pub fn within(mut self, class: Class) -> Self {
        self.within = Some(class);
        self
    }

    /// With the id under which logs and `/v1/status` show the stream. Without, one is made.
    pub fn thread_id(mut self, thread: ThreadId) -> Self {
        self.thread = Some(thread);
        self
    }

    /// Who it is, if it is anybody.
    pub fn who(&self) -> Option<&User> {
        self.user.as_ref()
    }

    /// Whether the visitor proved or was vouched to be somebody; an address proves nothing.
    pub fn is_known(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_address())
    }

    fn new(user: Option<User>, class: Class) -> Self {
        Visitor { user, class, within: None, thread: None }
    }
}

/// A user, or an address that stands for one. Cheap to clone. The layer puts it into the request's extensions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// `u:alice` or `a:203.0.113.9`: the key in the store.
    key: Arc<str>,
}

impl User {
    fn named(id: &str) -> Result<Self, BadId> {
        match id {
            "" => Err(BadId::Empty),
            _ if id.len() > MAX_ID_BYTES => Err(BadId::TooLong { bytes: id.len() }),
            _ if id.chars().any(char::is_control) => Err(BadId::ControlCharacter),
            _ => Ok(User { key: format!("u:{id}").into() }),
        }
    }

    fn address(address: IpAddr) -> Self {
        User { key: format!("a:{}", customer(address)).into() }
    }

    /// The id as the client knows it: for an IPv6 address, its network.
    pub fn id(&self) -> &str {
        &self.key[2..]
    }

    /// Whether this is only an address.
    pub fn is_address(&self) -> bool {
        self.key.starts_with("a:")
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_address() { "User(an address)" } else { "User(a name)" })
    }
}

/// A class of visitors, for which a share of the limit is kept; see [`Builder::class`](crate::Builder::class).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class(Cow<'static, str>);

impl Class {
    /// Nobody in particular, or known by address only. Stops at 90 % unless configured.
    pub const ANONYMOUS: Class = Class(Cow::Borrowed("anonymous"));
    /// Everybody who is known and of no other class. May use all.
    pub const USER: Class = Class(Cow::Borrowed("user"));

    /// A class of your own, such as `free`. Cut at 64 bytes.
    pub fn new(name: &str) -> Self {
        let end = (0..=MAX_CLASS_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        Class(Cow::Owned(name[..end.unwrap_or(0)].to_owned()))
    }

    /// Its name in metrics and configuration.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What can't be the id of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadId {
    /// Nothing is no id.
    #[error("the user's id is empty")]
    Empty,
    /// Longer than [`MAX_ID_BYTES`].
    #[error("the user's id has {bytes} bytes; at most {MAX_ID_BYTES} are taken")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A line break in an id is an attack on somebody's log.
    #[error("the user's id has a control character in it")]
    ControlCharacter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_bounded_and_printable() {
        assert!(Visitor::user("alice").is_ok());
        assert!(Visitor::user(&"x".repeat(MAX_ID_BYTES)).is_ok());
        let error = |id: &str| Visitor::user(id).map(drop).unwrap_err();
        assert_eq!(error(""), BadId::Empty);
        assert_eq!(error(&"x".repeat(1 << 20)), BadId::TooLong { bytes: 1 << 20 });
        assert_eq!(error("a\nb"), BadId::ControlCharacter);
    }

    #[test]
    fn a_user_who_calls_himself_an_address_shares_no_key_with_it() {
        let (user, address) =
            (User::named("203.0.113.9").unwrap(), User::address("203.0.113.9".parse().unwrap()));
        assert_eq!(user.id(), address.id());
        assert_ne!(user.key(), address.key());
        assert_ne!(User::named("a:203.0.113.9").unwrap().key(), address.key());
    }

    #[test]
    fn neighbours_in_one_ipv6_network_are_one_customer() {
        let user = |text: &str| User::address(text.parse().unwrap());
        assert_eq!(user("2001:db8:1:2::7"), user("2001:db8:1:2:ffff::1"));
        assert_ne!(user("2001:db8:1:2::7"), user("2001:db8:1:3::7"));
        assert_eq!(user("2001:db8:1:2::7").id(), "2001:db8:1:2::");
    }

    #[test]
    fn debug_tells_no_id() {
        let visitor = Visitor::user("alice").unwrap();
        assert!(!format!("{visitor:?}").contains("alice"), "{visitor:?}");
    }

    #[test]
    fn an_address_is_somebody_but_not_known() {
        let address = Visitor::address("203.0.113.9".parse().unwrap());
        assert!(address.who().is_some() && !address.is_known());
        assert!(Visitor::user("alice").unwrap().is_known());
        assert!(!Visitor::anonymous().is_known());
    }

    #[test]
    fn a_class_has_a_short_name() {
        assert_eq!(Class::new("free").as_str(), "free");
        assert_eq!(Class::new(&"é".repeat(100)).as_str().len(), 64);
    }
}
