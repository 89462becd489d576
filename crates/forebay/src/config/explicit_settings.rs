//! Explicit settings by key, to compare two loads of the settings.
//!
//! Invariant: values are never printed; only keys are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

/// Every key that is set, with its value.
#[derive(Clone, Default)]
pub struct ExplicitSettings(BTreeMap<String, Value>);

impl ExplicitSettings {
    /// Collects the keys of all sections.
    pub(super) fn of(table: &Table) -> ExplicitSettings {
        let keys = table.iter().flat_map(|(section, keys)| {
            let keys = keys.as_table().into_iter().flatten();
            keys.map(move |(key, value)| (format!("{section}.{key}"), value.clone()))
        });
        ExplicitSettings(keys.collect())
    }

    /// Returns the keys whose values differ, in order.
    pub(crate) fn changed_keys<'a>(&'a self, other: &'a ExplicitSettings) -> Vec<&'a str> {
        let differs = |key: &&String| self.0.get(*key) != other.0.get(*key);
        let all: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        all.into_iter().filter(differs).map(String::as_str).collect()
    }
}

/// Hides the values: they may be secrets. Tests compare the `Debug` output of two configs, one with
/// explicit defaults and one without; it must be the same.
impl fmt::Debug for ExplicitSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExplicitSettings(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_listed_and_values_are_not_printed() {
        let settings = |text: &str| ExplicitSettings::of(&text.parse().unwrap());
        let before = settings("[admission]\ntotal = 1\nper_user = 2\n[serve]\nsecret = \"one\"\n");
        let after = settings("[admission]\ntotal = 1\n[serve]\nsecret = \"two\"\n[log]\nfilter = \"x\"\n");
        assert_eq!(before.changed_keys(&after), ["admission.per_user", "log.filter", "serve.secret"]);
        assert!(after.changed_keys(&after).is_empty());
        assert!(!format!("{before:?}").contains("one"));
    }
}
