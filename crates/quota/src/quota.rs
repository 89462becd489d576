//! Public handles: a member (`Quota`), its budgets and its keyed limits.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::config::{BudgetConfig, MemberConfig, OutagePolicy, RateConfig};
use crate::core::member::{AccountId, AccountKey, KeyPrefix, budget_account_name};
use crate::error::QuotaRefusal;
use crate::lease::{KeyedLease, Lease, UnitGuard};
use crate::member_runtime::{MemberRuntime, TakeResult};
use crate::memory::MemoryStore;
use crate::rate::Rate;
use crate::status::{QuotaMode, Status, Usage};
use crate::store::{Holdings, MemberId, Share, Store, StoreError};

/// One member of a namespace. Cheap to clone. The member leaves when its last handle and lease are
/// dropped.
#[derive(Clone)]
pub struct Quota {
    runtime: Arc<MemberRuntime>,
}

impl Quota {
    /// Joins the namespace of `store` and waits up to the join timeout.
    /// It never fails: without the store, the member starts with its
    /// [`OutagePolicy`](crate::OutagePolicy) and joins when the store is available. Needs a tokio
    /// runtime, which then runs the member's heartbeats.
    pub async fn join(store: impl Store, config: MemberConfig) -> Quota {
        let join_timeout = config.join_timeout;
        let runtime = MemberRuntime::start(Arc::new(store), config);
        // After the timeout the member continues as in any outage, which the log reports.
        let _ = tokio::time::timeout(join_timeout, runtime.wait_until_join_resolved()).await;
        Quota { runtime }
    }

    /// Waits until this member has joined and the store grants without restriction: the mode is
    /// [`QuotaMode::Normal`].
    ///
    /// A member lends units before that, as its [`OutagePolicy`](crate::OutagePolicy) allows. With
    /// `Closed` it lends none, so wait for this before you accept work. It doesn't resolve while
    /// the store is unavailable; use a timeout. The mode may change again at any time afterwards.
    ///
    /// # Errors
    /// Fails if this member has left, or leaves meanwhile.
    pub async fn ready(&self) -> Result<(), QuotaRefusal> {
        self.runtime.wait_until_ready().await
    }

    /// Creates a single member that counts in memory. Needs a tokio runtime.
    pub fn local() -> Quota {
        Quota { runtime: MemberRuntime::start(Arc::new(MemoryStore::new()), MemberConfig::new("local")) }
    }

    /// Returns the budget `name`. If it exists, its limit is updated.
    pub fn budget(&self, name: &str, config: BudgetConfig) -> Budget {
        let BudgetConfig { limit, allocation } = config;
        let (index, freed) =
            self.runtime.register_budget(|member| member.register_budget(name, limit, allocation));
        Budget { runtime: self.runtime.clone(), account_id: AccountId::Budget(index), index, freed }
    }

    /// Returns the keyed limit `name`: each key has up to `limit` units. If it exists, its limit is
    /// updated.
    pub fn keyed_limit(&self, name: &str, limit: u32) -> KeyedLimit {
        let index = self.runtime.update(|member, _| member.register_keyed_limit(name, limit));
        KeyedLimit { runtime: self.runtime.clone(), prefix: KeyPrefix::for_limit(name), index }
    }

    /// Returns the rate `name`.
    pub fn rate(&self, name: &str, config: RateConfig) -> Rate {
        Rate::new(self.runtime.clone(), name, config)
    }

    /// Returns the kind of the store: `memory`, `redis`, `dynamodb`, or the name of a custom store.
    pub fn store_kind(&self) -> &'static str {
        self.runtime.store.kind()
    }

    /// Returns how this member decides now.
    pub fn mode(&self) -> QuotaMode {
        self.runtime.read(|member, now| member.mode(now))
    }

    /// Returns what this member grants while the store is unavailable or rebuilds.
    pub fn policy(&self) -> OutagePolicy {
        self.runtime.read(|member, _| member.policy())
    }

    /// Returns the number of live members in the store's last heartbeat reply.
    pub fn members(&self) -> u32 {
        self.runtime.read(|member, _| member.members())
    }

    /// Returns the id of this member's current incarnation.
    pub fn member(&self) -> MemberId {
        self.runtime.read(|member, _| member.id().clone())
    }

    /// Returns this member's state without a call to the store. Visits every key in use here.
    pub fn status(&self) -> Status {
        self.runtime.status()
    }

    /// Queries the store for the live members and their shares of the budgets.
    pub async fn query_holdings(&self) -> Result<Holdings, StoreError> {
        let names = self
            .runtime
            .read(|member, _| member.budgets().map(|(name, _)| budget_account_name(name)).collect());
        self.runtime.with_timeout(self.runtime.store.query_holdings(names)).await
    }

    /// Leaves the namespace and returns all units at once. This member grants nothing afterwards.
    pub async fn leave(&self) {
        if let Err(error) = self.runtime.leave().await {
            tracing::warn!(%error, "quota leave failed: units are free after the TTL");
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota").field("member", &self.status().member).finish_non_exhaustive()
    }
}

/// A cluster-wide count with a limit. Units are lent from this member's slice.
#[derive(Clone)]
pub struct Budget {
    runtime: Arc<MemberRuntime>,
    account_id: AccountId,
    index: usize,
    freed: Arc<Notify>,
}

impl Budget {
    /// Takes one unit: at once from this member's slice, otherwise after a call to the store.
    pub async fn take(&self) -> Result<Lease, QuotaRefusal> {
        take(&self.runtime, &self.account_id).await.map(|unit| Lease { _unit: unit })
    }

    /// Takes one unit from this member's slice, without a call to the store.
    pub fn try_take(&self) -> Result<Lease, QuotaRefusal> {
        self.runtime.try_take(&self.account_id).map(|unit| Lease { _unit: unit })
    }

    /// Returns the limit that this member uses.
    pub fn limit(&self) -> u32 {
        self.runtime.read(|member, _| member.usage(self.index).limit)
    }

    /// Sets the limit. Lent units stay lent; a lower limit holds once enough units have been
    /// returned.
    pub fn set_limit(&self, limit: u32) {
        self.runtime.update(|member, _| member.set_budget_limit(self.index, limit));
    }

    /// Returns how much of the budget is in use.
    pub fn usage(&self) -> Usage {
        self.runtime.read(|member, _| member.usage(self.index))
    }

    /// Resolves when a unit was returned here, or when the store has replied to waiting callers of
    /// this member.
    /// Call `enable` on it before checking the budget; then no notification is missed.
    pub fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}

/// A cluster-wide count with a limit for each key. Counts are exact.
#[derive(Clone)]
pub struct KeyedLimit {
    runtime: Arc<MemberRuntime>,
    prefix: KeyPrefix,
    index: usize,
}

impl KeyedLimit {
    /// Takes one unit of `key`'s limit.
    pub async fn take(&self, key: &str) -> Result<KeyedLease, QuotaRefusal> {
        take(&self.runtime, &AccountId::Key(self.index, AccountKey::new(&self.prefix, key)))
            .await
            .map(|unit| KeyedLease { _unit: unit })
    }

    /// Returns the limit of each key that this member uses.
    pub fn limit(&self) -> u32 {
        self.runtime.read(|member, _| member.limit_of_keyed(self.index))
    }

    /// Sets the limit. Lent units stay lent.
    pub fn set_limit(&self, limit: u32) {
        self.runtime.update(|member, _| member.set_keyed_limit(self.index, limit));
    }

    /// Queries the store for the members that hold units of `key`.
    pub async fn holders(&self, key: &str) -> Result<Vec<Share>, StoreError> {
        let account = AccountKey::new(&self.prefix, key).account().clone();
        let holdings = self.runtime.with_timeout(self.runtime.store.query_holdings(vec![account])).await?;
        Ok(holdings.accounts.into_iter().flat_map(|account| account.shares).collect())
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

async fn take(runtime: &Arc<MemberRuntime>, account_id: &AccountId) -> Result<UnitGuard, QuotaRefusal> {
    match runtime.take(account_id) {
        TakeResult::Ready(result) => result,
        TakeResult::Pending(verdict) => verdict.await,
    }
}
