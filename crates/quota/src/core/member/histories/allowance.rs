//! By how much the leases of an account may exceed its limit.
//!
//! Invariant: nothing is excused without a cause: a write that the store lost, a member that it took for dead, a unit lent by
//! policy, a limit that was lowered.
//! A store that doesn't know of some units gives them away a second time, and no more than those. So a process is excused
//! for what it claims and the store doesn't count, or won't once it hears what is on its way to it. When the store is told, what it
//! has given away meanwhile is a debt, and that is no more than all claims exceed the limit by.

use std::collections::HashMap;

use super::AccountRef;

#[derive(Debug, Default)]
pub(super) struct Allowance {
    excused: HashMap<(u64, AccountRef), u32>,
    /// What the store counted of each at the last look, at least.
    counted: HashMap<(u64, AccountRef), u32>,
    debt: HashMap<AccountRef, u32>,
    limits: HashMap<AccountRef, u32>,
}

/// What a process says that it has of an account.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) process: u64,
    pub(super) claim: u32,
    /// What the store counts,
    pub(super) counted: u32,
    /// and what it counts at least, now and when it has heard what is on its way.
    pub(super) least: u32,
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

    /// The excess that is allowed now.
    pub(super) fn update(&mut self, account: &AccountRef, limit: u32, claims: &[Claim]) -> u32 {
        let lowered = self.limits.insert(account.clone(), limit).unwrap_or(limit).saturating_sub(limit);
        let (mut debt, mut excused) = (self.debt.get(account).copied().unwrap_or(0) + lowered, 0);
        for Claim { process, claim, least, .. } in claims {
            let of = (*process, account.clone());
            let told = least.saturating_sub(self.counted.insert(of.clone(), *least).unwrap_or(0));
            let Some(excuse) = self.excused.get_mut(&of) else { continue };
            let still = (*excuse).min(claim.saturating_sub(*least));
            debt += told.min(*excuse - still);
            (*excuse, excused) = (still, excused + still);
        }
        let claimed: u32 = claims.iter().map(|claim| claim.claim.max(claim.counted)).sum();
        debt = debt.min(claimed.saturating_sub(limit));
        self.debt.insert(account.clone(), debt);
        debt + excused
    }
}
