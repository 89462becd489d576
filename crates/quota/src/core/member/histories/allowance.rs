//! By how much the leases of an account may exceed its limit.
//!
//! Invariant: nothing is excused without a cause: a write that the store lost, a member that it took for dead, a unit lent by
//! policy, a limit that was lowered.
//! A store that doesn't know of some units gives them away a second time, and no more than those. So a process is excused
//! for what it claims and the store doesn't count. When the store is told, what it has given away meanwhile is a debt, and that
//! is no more than all claims exceed the limit by.

use std::collections::HashMap;

use super::AccountRef;

#[derive(Debug, Default)]
pub(super) struct Allowance {
    excused: HashMap<(u64, AccountRef), u32>,
    /// What the store counted of each at the last look.
    counted: HashMap<(u64, AccountRef), u32>,
    debt: HashMap<AccountRef, u32>,
    limits: HashMap<AccountRef, u32>,
}

impl Allowance {
    /// The store may not know of so much.
    pub(super) fn excuse(&mut self, process: u64, account: &AccountRef, unknown: u32) {
        let excused = self.excused.entry((process, account.clone())).or_default();
        *excused = unknown.max(*excused);
    }

    /// A unit was lent without the store, which makes `claim` in all. If the store still has that much down, of units that came
    /// back meanwhile, it is a debt at once.
    pub(super) fn excuse_one(&mut self, process: u64, account: &AccountRef, claim: u32) {
        let of = (process, account.clone());
        if self.counted.get(&of).is_some_and(|counted| claim <= *counted) {
            *self.debt.entry(account.clone()).or_default() += 1;
        } else {
            *self.excused.entry(of).or_default() += 1;
        }
    }

    /// A process has ended, and its leases with it.
    pub(super) fn forget(&mut self, process: u64) {
        self.excused.retain(|(number, _), _| *number != process);
        self.counted.retain(|(number, _), _| *number != process);
    }

    pub(super) fn excused(&self, process: u64) -> u32 {
        self.excused.iter().filter(|((number, _), _)| *number == process).map(|(_, count)| count).sum()
    }

    /// The excess that is allowed now. `claims`: of each process, what it claims, and what the store counts.
    pub(super) fn update(&mut self, account: &AccountRef, limit: u32, claims: &[(u64, u32, u32)]) -> u32 {
        let lowered = self.limits.insert(account.clone(), limit).unwrap_or(limit).saturating_sub(limit);
        let (mut debt, mut excused) = (self.debt.get(account).copied().unwrap_or(0) + lowered, 0);
        for (process, claim, counted) in claims {
            let of = (*process, account.clone());
            let told = counted.saturating_sub(self.counted.insert(of.clone(), *counted).unwrap_or(0));
            let Some(excuse) = self.excused.get_mut(&of) else { continue };
            let still = (*excuse).min(claim.saturating_sub(*counted));
            debt += told.min(*excuse - still);
            (*excuse, excused) = (still, excused + still);
        }
        let claimed: u32 = claims.iter().map(|(_, claim, counted)| claim.max(counted)).sum();
        debt = debt.min(claimed.saturating_sub(limit));
        self.debt.insert(account.clone(), debt);
        debt + excused
    }
}
