//! Leases: guards that hold one unit and return it on drop.

use std::fmt;
use std::sync::Arc;

use crate::core::member::AccountId;
use crate::member_runtime::MemberRuntime;

/// One unit of a budget. Dropping the lease returns the unit without blocking.
#[must_use = "dropping a lease returns its unit"]
pub struct Lease {
    pub(crate) _unit: UnitGuard,
}

/// One unit of a key's limit. Dropping the lease returns the unit without blocking.
#[must_use = "dropping a lease returns its unit"]
pub struct KeyedLease {
    pub(crate) _unit: UnitGuard,
}

/// Guard of one lent unit. Created only after the core has lent the unit. Dropping it is the only
/// way to return the unit.
pub(crate) struct UnitGuard {
    runtime: Arc<MemberRuntime>,
    account_id: AccountId,
}

impl UnitGuard {
    pub(crate) fn new(runtime: Arc<MemberRuntime>, account_id: AccountId) -> Self {
        UnitGuard { runtime, account_id }
    }
}

impl Drop for UnitGuard {
    fn drop(&mut self) {
        self.runtime.release(&self.account_id);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

impl fmt::Debug for KeyedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedLease") // the key may identify a user
    }
}
