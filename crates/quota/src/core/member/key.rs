//! A key of a keyed limit, as its account is named in the store, hashed once.
//!
//! Invariant: no two pairs of a limit and a key have the same account, whatever the key: keys come from clients. An
//! account's name is `k:LIMIT:KEY`, where the limit's name has no colon: its colons and percent signs are percent-encoded. So
//! the second colon ends it. Release 0.1 doesn't encode; names without these two signs are the same in both.
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

/// The beginning of the names of a keyed limit's accounts.
#[derive(Debug, Clone)]
pub(crate) struct KeyPrefix(Arc<str>);

impl KeyPrefix {
    pub(crate) fn of(limit: &str) -> Self {
        let mut prefix = String::from("k:");
        for letter in limit.chars() {
            match letter {
                ':' => prefix.push_str("%3A"),
                '%' => prefix.push_str("%25"),
                plain => prefix.push(plain),
            }
        }
        prefix.push(':');
        KeyPrefix(prefix.into())
    }
}

impl Key {
    /// The key `key` of a limit.
    pub(crate) fn new(limit: &KeyPrefix, key: &str) -> Self {
        let account: Arc<str> = [&limit.0, key].concat().into();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account(limit: &str, key: &str) -> String {
        Key::new(&KeyPrefix::of(limit), key).account().to_string()
    }

    #[test]
    fn a_name_that_was_unambiguous_stays_what_it_is() {
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
        fn wherever_a_colon_stands_it_belongs_to_one_of_the_two(text in "[:%ab]{1,12}", at in 0_usize..12) {
            let halves = |at: usize| text.split_at(at.min(text.len()));
            let ((limit, key), whole) = (halves(at), (text.as_str(), ""));
            prop_assert_eq!(account(limit, key) == account(whole.0, whole.1), (limit, key) == whole);
        }
    }
}
