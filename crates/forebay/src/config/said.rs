//! What was said, key by key, so that two readings of the settings can be compared.
//!
//! Invariant: it is never printed; only the keys are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

/// Every key that was set, with its value.
#[derive(Clone, Default)]
pub struct Said(BTreeMap<String, Value>);

impl Said {
    pub(super) fn of(table: &Table) -> Said {
        let keys = table.iter().flat_map(|(section, keys)| {
            let keys = keys.as_table().into_iter().flatten();
            keys.map(move |(key, value)| (format!("{section}.{key}"), value.clone()))
        });
        Said(keys.collect())
    }

    /// The keys that differ, in order.
    pub(crate) fn changed<'a>(&'a self, other: &'a Said) -> Vec<&'a str> {
        let differs = |key: &&String| self.0.get(*key) != other.0.get(*key);
        let all: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        all.into_iter().filter(differs).map(String::as_str).collect()
    }
}

/// Values may be secrets, and two that mean the same may be said in two ways.
impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Said(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_without_its_value() {
        let said = |text: &str| Said::of(&text.parse().unwrap());
        let before = said("[admission]\ntotal = 1\nper_user = 2\n[serve]\nsecret = \"one\"\n");
        let after = said("[admission]\ntotal = 1\n[serve]\nsecret = \"two\"\n[log]\nfilter = \"x\"\n");
        assert_eq!(before.changed(&after), ["admission.per_user", "log.filter", "serve.secret"]);
        assert!(after.changed(&after).is_empty());
        assert!(!format!("{before:?}").contains("one"));
    }
}
