//! What a caller holds: one unit, given back on drop.

use std::fmt;
use std::sync::Arc;

use crate::core::member::AccountRef;
use crate::shared::Shared;

/// One unit of a budget. Dropping it gives it back, without waiting for anything.
#[must_use = "dropping a lease gives its unit back"]
pub struct Lease {
    pub(crate) _unit: Unit,
}

/// One unit of a key's limit. Dropping it gives it back, without waiting for anything.
#[must_use = "dropping a lease gives its unit back"]
pub struct KeyedLease {
    pub(crate) _unit: Unit,
}

/// Made only for a unit that the core has just lent; the one place where it comes back.
pub(crate) struct Unit {
    shared: Arc<Shared>,
    of: AccountRef,
}

impl Unit {
    pub(crate) fn new(shared: Arc<Shared>, of: AccountRef) -> Self {
        Unit { shared, of }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.shared.give(&self.of);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

impl fmt::Debug for KeyedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedLease") // the key may be a user's name
    }
}
