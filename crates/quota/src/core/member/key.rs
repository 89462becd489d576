//! A key of a keyed limit, as its account is named in the store, hashed once.
//!
//! A decision looks its account up a dozen times. Keys come from outside, so they are hashed by std's keyed hash; doing it
//! once for each decision is what makes that cheap.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

#[derive(Debug, Clone)]
pub(crate) struct Key {
    account: Arc<str>,
    hash: u64,
}

impl Key {
    /// The key `key` of the limit `limit`.
    pub(crate) fn new(limit: &str, key: &str) -> Self {
        let account: Arc<str> = ["k:", limit, ":", key].concat().into();
        Key { hash: HASHES.hash_one(&account), account }
    }

    /// The name of its account in the store.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.account
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (Arc::ptr_eq(&self.account, &other.account) || self.account == other.account)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes a [`Key`]'s hash as it is.
pub(crate) type PreHashed = BuildHasherDefault<AsItIs>;

#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only a key's own hash is written");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
