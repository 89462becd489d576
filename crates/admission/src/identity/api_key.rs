//! Users by API key.
//!
//! Invariant: a key is never kept, only its hash; and how long a comparison takes says nothing about any key.
//! Kept by: the table is indexed by an HMAC of the key's SHA-256 under a secret that only this process has, so what the lookup
//! compares is nothing that a caller can choose, and the entry that was found is compared once more in constant time.

use std::collections::HashMap;

use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::visitor::{Class, MAX_ID_BYTES};

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
    owners: HashMap<[u8; 32], Owner>,
}

/// Whose a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: String,
    pub(super) class: Option<Class>,
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

    /// The header that carries the key. In `Authorization`, `Bearer ` stands before it.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// A key, and the user whose it is.
    pub fn key(self, key: &str, user: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, key.as_bytes());
        self.insert(hash.as_ref(), user, None)
    }

    /// A key of a user of a class.
    pub fn key_of_class(self, key: &str, user: &str, class: Class) -> Self {
        let hash = digest::digest(&digest::SHA256, key.as_bytes());
        self.insert(hash.as_ref(), user, Some(class))
    }

    /// The SHA-256 of a key, so that no configuration need hold the key itself. `printf %s KEY | sha256sum` makes one.
    pub fn sha256(self, hash: [u8; 32], user: &str, class: Option<Class>) -> Self {
        self.insert(&hash, user, class)
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

    pub(super) fn owner(&self, key: &str) -> Option<&Owner> {
        let hash = digest::digest(&digest::SHA256, key.as_bytes());
        let tag = self.tag(hash.as_ref());
        let (known, owner) = self.owners.get_key_value(&tag)?;
        hmac::verify(&self.secret, hash.as_ref(), known).ok()?;
        Some(owner)
    }

    fn insert(mut self, hash: &[u8], user: &str, class: Option<Class>) -> Self {
        debug_assert!((1..=MAX_ID_BYTES).contains(&user.len()));
        let tag = self.tag(hash);
        self.owners.insert(tag, Owner { user: user.to_owned(), class });
        self
    }

    fn tag(&self, hash: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&self.secret, hash);
        tag.as_ref().try_into().expect("an HMAC by SHA-256 has 32 bytes")
    }
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
        keys.owner(key).map(|owner| owner.user.as_str())
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
        let hash = digest::digest(&digest::SHA256, b"of-ada").as_ref().try_into().unwrap();
        let keys = ApiKeys::new().sha256(hash, "ada", Some(Class::new("free")));
        assert_eq!(user(&keys, "of-ada"), Some("ada"));
        assert_eq!(keys.owner("of-ada").unwrap().class, Some(Class::new("free")));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(user(&keys, &hex), None, "a hash is no key");
    }

    #[test]
    fn debug_tells_no_key() {
        let text = format!("{:?}", ApiKeys::new().key("s3cr3t", "ada"));
        assert!(!text.contains("s3cr3t") && !text.contains("ada"), "{text}");
    }
}
