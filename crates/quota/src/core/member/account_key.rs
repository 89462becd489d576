//! `AccountKey`: a key of a keyed limit, with its account name and hash.
//!
//! Invariant: two different pairs of limit and key never share an account. Keys may come from
//! clients.
//! Enforced by: the account is `k:LIMIT:KEY`, and colons and percent signs of the limit's name are
//! percent-encoded, so the second colon ends it. Release 0.1 doesn't encode; names without these
//! characters are the same in both releases.
//! The hash is computed once, with std's keyed hasher, because a decision looks up its account
//! about twelve times.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

#[derive(Debug, Clone)]
pub(crate) struct AccountKey {
    account: Arc<str>,
    hash: u64,
}

/// The common prefix of the account names of a keyed limit.
#[derive(Debug, Clone)]
pub(crate) struct KeyPrefix(Arc<str>);

impl KeyPrefix {
    pub(crate) fn for_limit(limit: &str) -> Self {
        let mut prefix = String::from("k:");
        for character in limit.chars() {
            match character {
                ':' => prefix.push_str("%3A"),
                '%' => prefix.push_str("%25"),
                plain => prefix.push(plain),
            }
        }
        prefix.push(':');
        KeyPrefix(prefix.into())
    }
}

impl AccountKey {
    /// Creates the key `key` of a limit.
    pub(crate) fn new(limit: &KeyPrefix, key: &str) -> Self {
        let account: Arc<str> = [&limit.0, key].concat().into();
        AccountKey { hash: HASHES.hash_one(&account), account }
    }

    /// Returns the name of its account in the store.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.account
    }
}

impl PartialEq for AccountKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (Arc::ptr_eq(&self.account, &other.account) || self.account == other.account)
    }
}

impl Eq for AccountKey {}

impl Hash for AccountKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Uses the hash that an [`AccountKey`] already has.
pub(crate) type IdentityHashBuilder = BuildHasherDefault<IdentityHasher>;

#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account(limit: &str, key: &str) -> String {
        AccountKey::new(&KeyPrefix::for_limit(limit), key).account().to_string()
    }

    #[test]
    fn only_colons_and_percent_signs_of_the_limit_are_encoded() {
        assert_eq!(account("user", "ann"), "k:user:ann");
        assert_eq!(account("user", "ip:1.2.3.4"), "k:user:ip:1.2.3.4");
        assert_eq!(account("", ""), "k::");
        assert_eq!(account("user:ip", "1.2.3.4"), "k:user%3Aip:1.2.3.4");
        assert_eq!(account("100%", "%3A"), "k:100%25:%3A");
    }

    proptest! {
        #[test]
        fn no_two_limits_and_keys_share_an_account(
            one in ("[:%3A5ab\0é]{0,6}", "[:%3A5ab\0é]{0,6}"),
            other in ("[:%3A5ab\0é]{0,6}", "[:%3A5ab\0é]{0,6}"),
        ) {
            let same = account(&one.0, &one.1) == account(&other.0, &other.1);
            prop_assert_eq!(same, one == other);
        }

        #[test]
        fn moving_a_colon_between_limit_and_key_changes_the_account(text in "[:%ab]{1,12}", at in 0_usize..12) {
            let halves = |at: usize| text.split_at(at.min(text.len()));
            let ((limit, key), whole) = (halves(at), (text.as_str(), ""));
            prop_assert_eq!(account(limit, key) == account(whole.0, whole.1), (limit, key) == whole);
        }
    }
}
