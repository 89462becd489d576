//! `Allowance`: by how much the leases of an account may exceed its limit.
//!
//! Invariant: every excess has a cause: a write that the store lost, a member that it expired too
//! early, a unit lent by policy, or a limit that was lowered.
//! A store that has no record of some units grants them a second time, but no more than those. So a
//! process is excused for the units it holds that the store doesn't count, now or after it has
//! applied the calls in flight.
//! When the process reports them, the units granted meanwhile become debt. Debt is at most the
//! excess of all claims over the limit.

use std::collections::HashMap;

use super::AccountId;

#[derive(Debug, Default)]
pub(super) struct Allowance {
    excused: HashMap<(u64, AccountId), u32>,
    /// The least that the store counted for each process at the last check.
    counted: HashMap<(u64, AccountId), u32>,
    debt: HashMap<AccountId, u32>,
    limits: HashMap<AccountId, u32>,
}

/// What a process holds of an account.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) process: u64,
    pub(super) claim: u32,
    /// What the store counts now.
    pub(super) counted: u32,
    /// The least that the store counts, now and after it has applied the calls in flight.
    pub(super) least: u32,
}

impl Allowance {
    /// Allows the excess of `unknown` units of a process, of which the store may have no record.
    pub(super) fn excuse(&mut self, process: u64, account: &AccountId, unknown: u32) {
        let excused = self.excused.entry((process, account.clone())).or_default();
        *excused = unknown.max(*excused);
    }

    /// Allows the excess of one unit that was lent without the store; `claim` is the new total. If
    /// the store still counts that many, from units returned meanwhile, the unit is debt at once.
    pub(super) fn excuse_one(&mut self, process: u64, account: &AccountId, claim: u32) {
        let account_id = (process, account.clone());
        if self.counted.get(&account_id).is_some_and(|counted| claim <= *counted) {
            *self.debt.entry(account.clone()).or_default() += 1;
        } else {
            *self.excused.entry(account_id).or_default() += 1;
        }
    }

    /// Removes a process that has ended, with its leases.
    pub(super) fn forget(&mut self, process: u64) {
        self.excused.retain(|(number, _), _| *number != process);
        self.counted.retain(|(number, _), _| *number != process);
    }

    pub(super) fn excused(&self, process: u64) -> u32 {
        self.excused.iter().filter(|((number, _), _)| *number == process).map(|(_, count)| count).sum()
    }

    /// Returns the excess that is allowed now.
    pub(super) fn update(&mut self, account: &AccountId, limit: u32, claims: &[Claim]) -> u32 {
        let lowered = self.limits.insert(account.clone(), limit).unwrap_or(limit).saturating_sub(limit);
        let (mut debt, mut excused) = (self.debt.get(account).copied().unwrap_or(0) + lowered, 0);
        for Claim { process, claim, least, .. } in claims {
            let account_id = (*process, account.clone());
            let reported = least.saturating_sub(self.counted.insert(account_id.clone(), *least).unwrap_or(0));
            let Some(excuse) = self.excused.get_mut(&account_id) else { continue };
            let still = (*excuse).min(claim.saturating_sub(*least));
            debt += reported.min(*excuse - still);
            (*excuse, excused) = (still, excused + still);
        }
        let claimed: u32 = claims.iter().map(|claim| claim.claim.max(claim.counted)).sum();
        debt = debt.min(claimed.saturating_sub(limit));
        self.debt.insert(account.clone(), debt);
        debt + excused
    }
}
