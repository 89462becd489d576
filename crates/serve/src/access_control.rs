//! Access control: the access rules of a running service, which the program may change.

use std::sync::Arc;

use parking_lot::RwLock;

use super::protocol::Access;

/// Access rules that can be changed while a service uses them. Clones share the rules.
///
/// A change applies to requests that arrive after it.
#[derive(Debug, Clone, Default)]
pub struct AccessControl {
    rules: Arc<RwLock<Access>>,
}

impl AccessControl {
    /// Changes the rules, for all clones.
    pub fn change(&self, change: impl FnOnce(&mut Access)) {
        change(&mut self.rules.write());
    }

    /// Calls a function with the current rules. The rules can't change meanwhile.
    pub(crate) fn with<R>(&self, check: impl FnOnce(&Access) -> R) -> R {
        check(&self.rules.read())
    }
}

impl From<Access> for AccessControl {
    fn from(rules: Access) -> Self {
        AccessControl { rules: Arc::new(RwLock::new(rules)) }
    }
}
