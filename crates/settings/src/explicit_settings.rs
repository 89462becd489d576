//! Explicit settings by key, to compare two loads of the settings.
//!
//! Invariant: values are never printed; only keys are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::Value;

/// Every key that is set, with its value.
#[derive(Clone, Default)]
pub struct ExplicitSettings(BTreeMap<&'static str, Value>);

impl FromIterator<(&'static str, Value)> for ExplicitSettings {
    fn from_iter<I: IntoIterator<Item = (&'static str, Value)>>(settings: I) -> ExplicitSettings {
        ExplicitSettings(settings.into_iter().collect())
    }
}

impl ExplicitSettings {
    /// Returns the keys whose values differ, in order.
    pub fn changed_keys(&self, other: &ExplicitSettings) -> Vec<&'static str> {
        let all: BTreeSet<&'static str> = self.0.keys().chain(other.0.keys()).copied().collect();
        all.into_iter().filter(|key| self.0.get(key) != other.0.get(key)).collect()
    }

    /// Returns whether a key is set.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
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
        let before: ExplicitSettings =
            [("admission.total", 1.into()), ("admission.per_user", 2.into()), ("serve.secret", "one".into())]
                .into_iter()
                .collect();
        let after: ExplicitSettings =
            [("admission.total", 1.into()), ("serve.secret", "two".into()), ("log.filter", "x".into())]
                .into_iter()
                .collect();
        assert_eq!(before.changed_keys(&after), ["admission.per_user", "log.filter", "serve.secret"]);
        assert!(after.changed_keys(&after).is_empty());
        assert!(!format!("{before:?}").contains("one"));
    }
}
