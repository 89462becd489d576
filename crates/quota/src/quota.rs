//! What callers hold: a member's handle, and those of its budgets and limits.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::config::{BudgetConfig, MemberConfig, RateConfig};
use crate::core::member::{AccountRef, Key, KeyPrefix, budget_name};
use crate::error::Refusal;
use crate::lease::{KeyedLease, Lease, Unit};
use crate::memory::MemoryStore;
use crate::rate::Rate;
use crate::shared::{Shared, Taken};
use crate::status::{Mode, Status, Usage};
use crate::store::{Holdings, Share, Store, StoreError};

/// One member of a namespace. Cheap to clone; when the last handle and the last lease are gone, the member leaves.
#[derive(Clone)]
pub struct Quota {
    shared: Arc<Shared>,
}

impl Quota {
    /// Joins the members that share `store`, and waits a moment to be let in. It never fails: without the store it begins by
    /// its [`Policy`](crate::Policy) and joins as soon as it can. Needs a tokio runtime, on which its beats then run.
    pub async fn join(store: impl Store, config: MemberConfig) -> Quota {
        let patience = config.join_timeout;
        let shared = Shared::begin(Arc::new(store), config);
        // Past the deadline it goes on as it does whenever the store is away; the log has said so.
        let _ = tokio::time::timeout(patience, shared.settled_in()).await;
        Quota { shared }
    }

    /// A member of its own, which counts in memory. Needs a tokio runtime.
    pub fn local() -> Quota {
        Quota { shared: Shared::begin(Arc::new(MemoryStore::new()), MemberConfig::new("local")) }
    }

    /// The budget of this name. Asked for again, its limit is set anew.
    pub fn budget(&self, name: &str, config: BudgetConfig) -> Budget {
        let BudgetConfig { limit, sharing } = config;
        let (index, freed) = self.shared.budget(|member| member.budget(name, limit, sharing));
        Budget { shared: self.shared.clone(), of: AccountRef::Budget(index), index, freed }
    }

    /// The keyed limit of this name: each key may have up to `limit` units. Asked for again, its limit is set anew.
    pub fn keyed(&self, name: &str, limit: u32) -> Keyed {
        let index = self.shared.change(|member, _| member.keyed(name, limit));
        Keyed { shared: self.shared.clone(), prefix: KeyPrefix::of(name), index }
    }

    /// The rate of this name.
    pub fn rate(&self, name: &str, config: RateConfig) -> Rate {
        Rate::new(self.shared.clone(), name, config)
    }

    /// The kind of its store: `memory`, `redis`, `dynamodb`, or what yours is called.
    pub fn store_kind(&self) -> &'static str {
        self.shared.store.kind()
    }

    /// How this member decides at present.
    pub fn mode(&self) -> Mode {
        self.shared.look(|member, now| member.mode(now))
    }

    /// How many members live, as the store last told.
    pub fn members(&self) -> u32 {
        self.shared.look(|member, _| member.members())
    }

    /// Everything that this member knows, without asking anybody. It looks at every key in use here.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Asks the store who lives and who holds how much of the budgets.
    pub async fn look(&self) -> Result<Holdings, StoreError> {
        let names =
            self.shared.look(|member, _| member.budgets().map(|(name, _)| budget_name(name)).collect());
        self.shared.in_time(self.shared.store.look(names)).await
    }

    /// Gives everything back at once: others need not wait for the TTL. Nothing is granted by this member any more.
    pub async fn leave(&self) {
        if let Err(error) = self.shared.leave().await {
            tracing::warn!(%error, "couldn't tell the quota store that this member leaves; it will notice by itself");
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota").field("member", &self.status().member).finish_non_exhaustive()
    }
}

/// A cluster-wide bounded count, lent out of this member's slice of it.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
    of: AccountRef,
    index: usize,
    freed: Arc<Notify>,
}

impl Budget {
    /// Takes one unit: at once if this member's slice has one, else after asking the store.
    pub async fn take(&self) -> Result<Lease, Refusal> {
        take(&self.shared, &self.of).await.map(|unit| Lease { _unit: unit })
    }

    /// Takes one unit of this member's slice, and asks nobody.
    pub fn try_take(&self) -> Result<Lease, Refusal> {
        self.shared.try_take(&self.of).map(|unit| Lease { _unit: unit })
    }

    /// The limit, as this member has it.
    pub fn limit(&self) -> u32 {
        self.shared.look(|member, _| member.usage(self.index).limit)
    }

    /// Sets the limit. What is lent stays lent; a lower one holds as soon as enough has come back.
    pub fn set_limit(&self, limit: u32) {
        self.shared.change(|member, _| member.set_budget_limit(self.index, limit));
    }

    /// How much of it is in use.
    pub fn usage(&self) -> Usage {
        self.shared.look(|member, _| member.usage(self.index))
    }

    /// Resolves when a unit has come back here or the store has answered callers of this member. Enable it before you look, and nothing is missed.
    pub fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}

/// An exact cluster-wide bounded count for each key.
#[derive(Clone)]
pub struct Keyed {
    shared: Arc<Shared>,
    prefix: KeyPrefix,
    index: usize,
}

impl Keyed {
    /// Takes one unit of `key`'s limit.
    pub async fn take(&self, key: &str) -> Result<KeyedLease, Refusal> {
        take(&self.shared, &AccountRef::Key(self.index, Key::new(&self.prefix, key)))
            .await
            .map(|unit| KeyedLease { _unit: unit })
    }

    /// Each key's limit, as this member has it.
    pub fn limit(&self) -> u32 {
        self.shared.look(|member, _| member.keyed_limit(self.index))
    }

    /// Sets the limit. What is lent stays lent.
    pub fn set_limit(&self, limit: u32) {
        self.shared.change(|member, _| member.set_keyed_limit(self.index, limit));
    }

    /// Asks the store who holds how much for `key`.
    pub async fn holders(&self, key: &str) -> Result<Vec<Share>, StoreError> {
        let account = Key::new(&self.prefix, key).account().clone();
        let holdings = self.shared.in_time(self.shared.store.look(vec![account])).await?;
        Ok(holdings.accounts.into_iter().flat_map(|account| account.shares).collect())
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

async fn take(shared: &Arc<Shared>, of: &AccountRef) -> Result<Unit, Refusal> {
    match shared.take(of) {
        Taken::Now(result) => result,
        Taken::Later(verdict) => verdict.await,
    }
}
