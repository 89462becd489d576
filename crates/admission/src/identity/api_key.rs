//! Identification by API key.
//!
//! Invariant 1: only hashes of keys are stored, and the time of a lookup reveals nothing about any
//! key.
//! Enforced by: the table is indexed by an HMAC of the key's SHA-256 under a secret of this
//! process. The compared values cannot be chosen by a client. A found entry is compared again in
//! constant time.
//! Invariant 2: every stored key has a valid user id.
//! Enforced by: an invalid id is refused when the key is added.

use std::collections::HashMap;

use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::client_identity::{Class, ClientIdentity, InvalidUserId};

/// Maximum length of an API key in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// API keys and their owners.
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
    owners: HashMap<[u8; 32], ClientIdentity>,
}

impl ApiKeys {
    /// Creates an empty set. Keys are read from the header `X-API-Key`.
    pub fn new() -> Self {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).expect("the system has randomness");
        ApiKeys {
            header: HeaderName::from_static("x-api-key"),
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            owners: HashMap::new(),
        }
    }

    /// Sets the header of the key. In `Authorization` the key follows `Bearer `. If tokens use that
    /// header too, an unknown key is treated as a token.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Adds a key of a user.
    ///
    /// # Panics
    /// Panics if the user id is invalid. Use [`try_sha256`](Self::try_sha256) for ids from a file.
    pub fn key(self, key: &str, user: &str) -> Self {
        self.sha256(sha256(key), user, None)
    }

    /// Adds a key of a user with a class.
    ///
    /// # Panics
    /// Panics if the user id is invalid.
    pub fn key_of_class(self, key: &str, user: &str, class: Class) -> Self {
        self.sha256(sha256(key), user, Some(class))
    }

    /// Adds a key by its SHA-256, so that no configuration contains the key itself. `printf %s KEY
    /// | sha256sum` prints it.
    ///
    /// # Panics
    /// Panics if the user id is invalid.
    pub fn sha256(self, hash: [u8; 32], user: &str, class: Option<Class>) -> Self {
        self.try_sha256(hash, user, class).unwrap_or_else(|bad| panic!("the owner of an API key: {bad}"))
    }

    /// Adds a key by its SHA-256, as [`sha256`](Self::sha256). Fails if the user id is invalid.
    pub fn try_sha256(
        mut self,
        hash: [u8; 32],
        user: &str,
        class: Option<Class>,
    ) -> Result<Self, InvalidUserId> {
        let client = ClientIdentity::user(user)?;
        let client = class.into_iter().fold(client, ClientIdentity::class);
        self.owners.insert(self.tag(&hash), client);
        Ok(self)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn header_name(&self) -> &HeaderName {
        &self.header
    }

    pub(super) fn owner(&self, key: &[u8]) -> Option<&ClientIdentity> {
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
        keys.owner(key.as_bytes()).map(|owner| owner.as_user().unwrap().id())
    }

    #[test]
    fn only_added_keys_are_found() {
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
    fn a_key_can_be_added_by_its_hash() {
        // printf %s of-ada | sha256sum
        let hash = sha256("of-ada");
        let keys = ApiKeys::new().sha256(hash, "ada", Some(Class::new("free")));
        assert_eq!(user(&keys, "of-ada"), Some("ada"));
        assert_eq!(keys.owner(b"of-ada").unwrap().class, Class::new("free"));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(user(&keys, &hex), None, "a hash is not a key");
    }

    #[test]
    fn a_key_with_an_invalid_user_id_is_refused() {
        let error = |id: &str| ApiKeys::new().try_sha256(sha256("of ada"), id, None).map(drop).unwrap_err();
        assert_eq!(error(""), InvalidUserId::Empty);
        assert_eq!(error(&"x".repeat(300)), InvalidUserId::TooLong { bytes: 300 });
        assert_eq!(error("a\tb"), InvalidUserId::ControlCharacter);
    }

    #[test]
    #[should_panic(expected = "the owner of an API key: the user's id is empty")]
    fn adding_a_key_with_an_invalid_user_id_panics() {
        drop(ApiKeys::new().key("without owner", ""));
    }

    #[test]
    fn debug_output_contains_no_key() {
        let text = format!("{:?}", ApiKeys::new().key("s3cr3t", "ada"));
        assert!(!text.contains("s3cr3t") && !text.contains("ada"), "{text}");
    }
}
