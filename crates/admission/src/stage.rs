//! What is written about a stream: the seed's stage codes, and who it was, hashed.
//!
//! Invariant: every line about a stream has the fields `stage`, `thread_id` and `user`, and `user` is never the id itself.
//! Kept by: [`UserHash`] is made only by [`Hasher`], under a key that is random or configured; lines are written by the macro
//! [`staged`] alone. Refusals are written at most [`LINES_PER_SECOND`] times in a second: a flood of requests must not become
//! a flood of lines.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Serialize, Serializer};

use crate::visitor::User;

/// The seed's stages. `CP` stands for connection pool.
pub(crate) mod code {
    /// The admission was built.
    pub(crate) const BUILT: &str = "CP.0";
    /// A visitor asks.
    pub(crate) const ASKED: &str = "CP.1";
    /// What is in use.
    pub(crate) const COUNTED: &str = "CP.1.1";
    /// Refused for all: the global limit, or this process.
    pub(crate) const EXHAUSTED: &str = "CP.1.2";
    /// Refused for this user.
    pub(crate) const USER_LIMIT: &str = "CP.1.3";
    /// Admitted.
    pub(crate) const ADMITTED: &str = "CP.1.4";
    /// The stream ended.
    pub(crate) const RELEASING: &str = "CP.4";
    /// Its permit is given back.
    pub(crate) const RELEASED: &str = "CP.4.1";
    /// The state of the house changed.
    pub(crate) const HEALTH: &str = "CP.5";
}

const LINES_PER_SECOND: u64 = 10;

/// A user in logs and status: the same user has the same hash, and nobody finds the user from it.
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

/// A hash, or a dash for nobody.
pub(crate) struct OrNobody(pub(crate) Option<UserHash>);

impl fmt::Display for OrNobody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(hash) => hash.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// Hashes users, under a key.
#[derive(Clone)]
pub(crate) struct Hasher(hmac::Key);

impl Hasher {
    /// Equal salts make equal hashes, in every process.
    pub(crate) fn with_salt(salt: &[u8]) -> Self {
        Hasher(hmac::Key::new(hmac::HMAC_SHA256, salt))
    }

    /// Hashes that nobody can relate to those of another process.
    pub(crate) fn random() -> Self {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).expect("the system has randomness");
        Self::with_salt(&key)
    }

    pub(crate) fn hash(&self, user: &User) -> UserHash {
        let tag = hmac::sign(&self.0, user.key().as_bytes());
        let (first, _) = tag.as_ref().split_first_chunk().expect("an HMAC has more than 8 bytes");
        UserHash(u64::from_be_bytes(*first))
    }
}

/// Lets a few lines through in each second, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Trickle {
    second: AtomicU64,
    written: AtomicU64,
    withheld: AtomicU64,
}

impl Trickle {
    /// How many lines were withheld before this one, or nothing if this one is withheld. `now` is since any fixed moment.
    pub(crate) fn allows(&self, now: Duration) -> Option<u64> {
        // A race between two threads lets a line more through, no worse.
        let second = now.as_secs() + 1;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.written.store(0, Ordering::Relaxed);
        }
        if self.written.fetch_add(1, Ordering::Relaxed) < LINES_PER_SECOND {
            return Some(self.withheld.swap(0, Ordering::Relaxed));
        }
        self.withheld.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// One line about a stream, at a level.
macro_rules! staged {
    ($level:ident, $stage:expr, $thread:expr, $user:expr, $($rest:tt)+) => {
        tracing::$level!(
            stage = $stage,
            thread_id = %$thread,
            user = %$crate::stage::OrNobody($user),
            $($rest)+
        )
    };
}
pub(crate) use staged;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::visitor::Visitor;

    fn user(id: &str) -> User {
        Visitor::user(id).unwrap().user.unwrap()
    }

    #[test]
    fn a_salt_makes_hashes_that_are_the_same_everywhere() {
        let hash = Hasher::with_salt(b"salt").hash(&user("alice"));
        assert_eq!(hash, Hasher::with_salt(b"salt").hash(&user("alice")));
        assert_ne!(hash, Hasher::with_salt(b"salt").hash(&user("bob")));
        assert_ne!(hash, Hasher::with_salt(b"pepper").hash(&user("alice")));
        assert_ne!(hash, Hasher::random().hash(&user("alice")));
        // The first half of: printf %s u:alice | openssl dgst -sha256 -hmac salt
        assert_eq!(hash.to_string(), "c30403fc6e1cf206");
    }

    #[test]
    fn a_few_lines_pass_in_a_second_and_the_rest_is_counted() {
        let trickle = Trickle::default();
        let passed = |now| (0..100).filter_map(|_| trickle.allows(now)).collect::<Vec<_>>();
        assert_eq!(passed(Duration::from_millis(10)), [0; 10]);
        assert_eq!(passed(Duration::from_millis(990)), [0; 0]);
        let next = passed(Duration::from_millis(1_000));
        assert_eq!((next.len(), next[0], next[1]), (10, 190, 0));
    }
}
