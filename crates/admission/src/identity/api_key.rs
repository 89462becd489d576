//! Users by API key.
//!
//! Invariant: a key is never kept, only its hash; and how long a comparison takes says nothing about any key.
//! Kept by: the table is indexed by an HMAC of the key's SHA-256 under a secret that only this process has, so what the lookup
//! compares is nothing that a caller can choose, and the entry that was found is compared once more in constant time.
//! And: a key that is known is a visitor who can be; an id that can't be is refused when the key is added, not when it is used.

use std::collections::HashMap;

use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::visitor::{BadId, Class, Visitor};

/// The longest key that is looked at, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// The keys that are known, and whose they are.
///
/// ```
/// use forebay_admission::ApiKeys;
///
/// let keys = ApiKeys::new().key("s3cr3t-of-ada", "ada").key("s3cr3t-of-bob", "bob");
/// # drop(keys);
/// ```
#[derive(Clone)]
pub struct ApiKeys {
    header: HeaderName,
    secret: hmac::Key,
    owners: HashMap<[u8; 32], Visitor>,
}

impl ApiKeys {
    /// No keys yet; they will come in the header `X-API-Key`.
    pub fn new() -> Self {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).expect("the system has randomness");
        ApiKeys {
            header: HeaderName::from_static("x-api-key"),
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            owners: HashMap::new(),
        }
    }

    /// The header that carries the key. In `Authorization`, `Bearer ` stands before it; where tokens are known too, what isn't a
    /// key is one.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// A key, and the user whose it is.
    ///
    /// # Panics
    /// If nobody can have this id; see [`try_sha256`](Self::try_sha256) for ids that come from elsewhere.
    pub fn key(self, key: &str, user: &str) -> Self {
        self.sha256(sha256(key), user, None)
    }

    /// A key of a user of a class.
    ///
    /// # Panics
    /// If nobody can have this id.
    pub fn key_of_class(self, key: &str, user: &str, class: Class) -> Self {
        self.sha256(sha256(key), user, Some(class))
    }

    /// The SHA-256 of a key, so that no configuration need hold the key itself. `printf %s KEY | sha256sum` makes one.
    ///
    /// # Panics
    /// If nobody can have this id.
    pub fn sha256(self, hash: [u8; 32], user: &str, class: Option<Class>) -> Self {
        self.try_sha256(hash, user, class).unwrap_or_else(|bad| panic!("the owner of an API key: {bad}"))
    }

    /// As [`sha256`](Self::sha256), for ids that somebody else wrote, such as those in a file.
    pub fn try_sha256(mut self, hash: [u8; 32], user: &str, class: Option<Class>) -> Result<Self, BadId> {
        let visitor = Visitor::user(user)?;
        let visitor = class.into_iter().fold(visitor, Visitor::class);
        self.owners.insert(self.tag(&hash), visitor);
        Ok(self)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn header_name(&self) -> &HeaderName {
        &self.header
    }

    pub(super) fn owner(&self, key: &[u8]) -> Option<&Visitor> {
        let hash = sha256(key);
        let (known, owner) = self.owners.get_key_value(&self.tag(&hash))?;
        hmac::verify(&self.secret, &hash, known).ok()?;
        Some(owner)
    }

    fn tag(&self, hash: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&self.secret, hash);
        tag.as_ref().try_into().expect("an HMAC by SHA-256 has 32 bytes")
    }
}

fn sha256(key: impl AsRef<[u8]>) -> [u8; 32] {
    let hash = digest::digest(&digest::SHA256, key.as_ref());
    hash.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}

impl Default for ApiKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeys").field("header", &self.header).field("keys", &self.owners.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user<'a>(keys: &'a ApiKeys, key: &str) -> Option<&'a str> {
        keys.owner(key.as_bytes()).map(|owner| owner.who().unwrap().id())
    }

    #[test]
    fn a_key_is_found_and_no_other_is() {
        let keys = ApiKeys::new().key("of ada", "ada").key("of bob", "bob").key("of ada too", "ada");
        assert_eq!(user(&keys, "of ada"), Some("ada"));
        assert_eq!(user(&keys, "of ada too"), Some("ada"));
        assert_eq!(user(&keys, "of bob"), Some("bob"));
        for wrong in ["", "of ad", "of ada ", "OF ADA", "of eve"] {
            assert_eq!(user(&keys, wrong), None, "{wrong:?}");
        }
        assert_eq!(user(&ApiKeys::new(), "of ada"), None);
    }

    #[test]
    fn a_hash_does_for_a_key() {
        // printf %s of-ada | sha256sum
        let hash = sha256("of-ada");
        let keys = ApiKeys::new().sha256(hash, "ada", Some(Class::new("free")));
        assert_eq!(user(&keys, "of-ada"), Some("ada"));
        assert_eq!(keys.owner(b"of-ada").unwrap().class, Class::new("free"));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(user(&keys, &hex), None, "a hash is no key");
    }

    #[test]
    fn a_user_who_cannot_be_is_refused_with_his_key() {
        let error = |id: &str| ApiKeys::new().try_sha256(sha256("of ada"), id, None).map(drop).unwrap_err();
        assert_eq!(error(""), BadId::Empty);
        assert_eq!(error(&"x".repeat(300)), BadId::TooLong { bytes: 300 });
        assert_eq!(error("a\tb"), BadId::ControlCharacter);
    }

    #[test]
    #[should_panic(expected = "the owner of an API key: the user's id is empty")]
    fn a_user_in_the_program_who_cannot_be_is_a_mistake_in_the_program() {
        drop(ApiKeys::new().key("of nobody", ""));
    }

    #[test]
    fn debug_tells_no_key() {
        let text = format!("{:?}", ApiKeys::new().key("s3cr3t", "ada"));
        assert!(!text.contains("s3cr3t") && !text.contains("ada"), "{text}");
    }
}
