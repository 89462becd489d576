//! Keyed hashes of users, for logs and status.
//!
//! Invariant: logs and status contain hashes of users, never their ids.
//! Enforced by: only [`UserHasher`] creates a [`UserHash`]. Its HMAC key is the configured salt, or
//! random.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Serialize, Serializer};

use crate::client_identity::UserId;

/// Keyed hash of a user, for logs and status. Equal users have equal hashes; the user cannot be
/// recovered without the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UserHash(u64);

impl fmt::Display for UserHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for UserHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for UserHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Hashes users with HMAC-SHA-256.
#[derive(Clone)]
pub(crate) struct UserHasher(hmac::Key);

impl UserHasher {
    /// Creates a hasher with the salt as its HMAC key. Equal salts give equal hashes in every
    /// process.
    pub(crate) fn with_salt(salt: &[u8]) -> Self {
        UserHasher(hmac::Key::new(hmac::HMAC_SHA256, salt))
    }

    /// Creates a hasher with a random key. Its hashes differ from those of other processes.
    pub(crate) fn random() -> Self {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).expect("the system provides random bytes");
        Self::with_salt(&key)
    }

    /// Returns the first 8 bytes of the HMAC.
    pub(crate) fn hash(&self, user: &UserId) -> UserHash {
        let tag = hmac::sign(&self.0, user.key().as_bytes());
        let (first, _) = tag.as_ref().split_first_chunk().expect("an HMAC has more than 8 bytes");
        UserHash(u64::from_be_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_identity::ClientIdentity;

    fn user(id: &str) -> UserId {
        ClientIdentity::user(id).unwrap().user.unwrap()
    }

    #[test]
    fn equal_salts_give_equal_hashes() {
        let hash = UserHasher::with_salt(b"salt").hash(&user("alice"));
        assert_eq!(hash, UserHasher::with_salt(b"salt").hash(&user("alice")));
        assert_ne!(hash, UserHasher::with_salt(b"salt").hash(&user("bob")));
        assert_ne!(hash, UserHasher::with_salt(b"pepper").hash(&user("alice")));
        assert_ne!(hash, UserHasher::random().hash(&user("alice")));
        // The first 8 bytes of: printf %s u:alice | openssl dgst -sha256 -hmac salt
        assert_eq!(hash.to_string(), "c30403fc6e1cf206");
    }
}
