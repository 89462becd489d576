//! The publication and its tracked tables.
//!
//! Invariant: a tracked table is published completely, with replica identity full, or the consumer
//! is notified. A manually managed publication is checked and never changed.
//! Enforced by: [`Publication::reconcile`] repeats each notification until the consumer accepts it.

mod catalog_table;
mod error;
mod publish;
mod table_name;

use std::collections::BTreeMap;
use std::pin::Pin;

use forebay_reservoir::tokio_postgres::error::SqlState;
use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::tokio_postgres::{self, Row};
use forebay_reservoir::{ConnectionGuard, PostgresClient};
use parking_lot::Mutex;
use serde::Serialize;

pub use self::catalog_table::decodes_with_stale_catalog;
pub use self::error::PublishError;
pub use self::table_name::TableName;
use crate::config::ManagerConfig;
use crate::error::ReplicationError;
use crate::pools::Pools;
use crate::sql;

/// Time limit for the table locks of a change. Later statements on the table wait behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";

/// SQLSTATEs of a missing table or schema.
const MISSING_TABLE: [SqlState; 2] = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];

/// Change of a tracked table that was made outside the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TableChange {
    /// The table was dropped, renamed or replaced.
    Gone,
    /// The table was not in the publication for a while, or lacked replica identity full: changes
    /// may be missing. It is repaired.
    Gap,
    /// Like `Gap`, but the manager can't repair it.
    Unpublished,
}

/// A table's entry in the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TablePublication {
    /// The table's oid.
    pub oid: u32,
    /// The oid of the table's row in pg_publication_rel; 0 if the publication includes all tables
    /// of the database or the schema. It changes when the table is removed and added again, so a
    /// consumer that stores it detects missing changes.
    pub membership: u32,
    /// Whether the table needed no repair. If it did, and it was tracked before, changes may be
    /// missing.
    pub was_whole: bool,
}

/// Versions (`xmin`) of the publication's row in pg_publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicationVersions {
    /// Before the change.
    pub before: u32,
    /// After the change.
    pub after: u32,
}

/// Receives changes of tracked tables.
pub(crate) trait TableObserver: Send + Sync {
    /// Returns `false` if the notification must be repeated.
    fn notify<'a>(&'a self, table: &'a TableName, change: TableChange) -> NotifyFuture<'a>;
}

/// Future of [`TableObserver::notify`].
pub(crate) type NotifyFuture<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// The publication of one manager, with its tracked tables.
pub(crate) struct Publication {
    name: String,
    /// Name of the slot that reads it.
    slot: String,
    is_manual: bool,
    tracked: Mutex<BTreeMap<TableName, TrackedTable>>,
    /// Serializes changes of the catalog.
    change_lock: tokio::sync::Mutex<()>,
}

/// A table whose changes the consumer needs.
#[derive(Debug, Clone, Copy)]
struct TrackedTable {
    oid: u32,
    membership: u32,
    /// The table was or may have been repaired, and the consumer isn't notified yet.
    has_gap: bool,
}

impl Publication {
    pub(crate) fn new(config: &ManagerConfig) -> Self {
        Publication {
            name: config.publication.clone(),
            slot: config.slot.clone(),
            is_manual: config.manual_publication,
            tracked: Mutex::default(),
            change_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Publishes and tracks a table. Notifies the observer if a tracked table was changed.
    pub(crate) async fn add(
        &self,
        pools: &Pools,
        table: &TableName,
        observer: &dyn TableObserver,
    ) -> Result<TablePublication, PublishError> {
        let _guard = self.change_lock.lock().await;
        let client = pools.admin().await?;
        let published = self.ensure_published(&client, table).await?;
        let TablePublication { oid, membership, .. } = published;
        let before = self.tracked.lock().get(table).copied();
        let change = match before {
            Some(before) if before.oid != oid => Some(TableChange::Gone),
            Some(before) if before.has_gap || before.membership != membership => Some(TableChange::Gap),
            Some(_) | None => None,
        };
        let has_gap = match change {
            Some(change) => !observer.notify(table, change).await,
            None => false,
        };
        self.tracked.lock().insert(table.clone(), TrackedTable { oid, membership, has_gap });
        Ok(published)
    }

    /// Removes a table. If that fails, it stays tracked.
    pub(crate) async fn remove(&self, pools: &Pools, table: &TableName) -> Result<(), PublishError> {
        let _guard = self.change_lock.lock().await;
        if !self.is_manual {
            let client = pools.admin().await?;
            let statement = format!(
                "{LOCK_TIMEOUT}; ALTER PUBLICATION {} DROP TABLE ONLY {table}",
                sql::name(&self.name)
            );
            match client.batch_execute(&statement).await {
                // Not in the publication, or no such table.
                Err(error)
                    if is_any(&error, &MISSING_TABLE) || is_any(&error, &[SqlState::UNDEFINED_OBJECT]) => {}
                Err(error) if is_any(&error, &[SqlState::LOCK_NOT_AVAILABLE]) => {
                    return Err(PublishError::Busy { table: table.clone() });
                }
                done => done?,
            }
        }
        self.tracked.lock().remove(table);
        Ok(())
    }

    /// Returns the tables of the publication with their oids and the oids of their entries, except
    /// for `needed` ones and those that this role couldn't add again. The result is empty in manual
    /// mode, and while the database has another pgoutput slot, which may read the same publication.
    pub(crate) async fn unneeded_tables(
        &self,
        pools: &Pools,
        needed: &[u32],
    ) -> Result<BTreeMap<TableName, (u32, u32)>, PublishError> {
        if self.is_manual {
            return Ok(BTreeMap::new());
        }
        let client = pools.admin().await?;
        let query = "SELECT n.nspname::text, c.relname::text, c.oid, r.oid FROM pg_publication p \
             JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE p.pubname = $1 AND c.oid <> ALL ($2) AND pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (SELECT FROM pg_replication_slots s \
                 WHERE s.plugin = 'pgoutput' AND s.database = current_database() AND s.slot_name <> $3)";
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&self.name, Type::TEXT), (&needed, Type::OID_ARRAY), (&self.slot, Type::TEXT)];
        let rows = client.query_typed(query, &params).await?;
        let table = |row: &Row| {
            let name = TableName::new(row.get::<_, String>(0), row.get::<_, String>(1));
            (name, (row.get(2), row.get(3)))
        };
        Ok(rows.iter().map(table).collect())
    }

    /// Compares the publication with the tracked tables, repairs it, and notifies the observer.
    ///
    /// `oid` is the publication that the slot was created with. Returns an error for the machine if
    /// the publication was dropped, replaced or narrowed.
    pub(crate) async fn reconcile(
        &self,
        pools: &Pools,
        oid: u32,
        observer: &dyn TableObserver,
    ) -> Result<Option<ReplicationError>, PublishError> {
        let _guard = self.change_lock.lock().await;
        let client = pools.admin().await?;
        if let Some(what) = self.defect(&client, oid).await? {
            return Ok(Some(ReplicationError::PublicationLost { name: self.name.clone(), what }));
        }
        let tracked: Vec<_> =
            self.tracked.lock().iter().map(|(table, tracked)| (table.clone(), *tracked)).collect();
        let mut failed = None;
        for (table, before) in tracked {
            let change = match self.ensure_published(&client, &table).await {
                Ok(now) if now.oid != before.oid => Some(TableChange::Gone),
                Ok(now) => self.has_gap(&table, now.membership).then_some(TableChange::Gap),
                Err(PublishError::NotFound { .. } | PublishError::NotATable { .. }) => {
                    Some(TableChange::Gone)
                }
                Err(
                    PublishError::NotPermitted { .. }
                    | PublishError::Filtered { .. }
                    | PublishError::VirtualColumn { .. }
                    | PublishError::PublishedViaRoot { .. }
                    | PublishError::Narrowed { .. },
                ) => Some(TableChange::Unpublished),
                Err(error) if client.is_closed() => return Err(error),
                // Other tables aren't affected. The next reconciliation tries this one again.
                Err(error) => {
                    tracing::warn!(%table, %error, "table not reconciled");
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let Some(change) = change else { continue };
            tracing::warn!(%table, ?change, "tracked table changed");
            if observer.notify(&table, change).await {
                match change {
                    TableChange::Gone => _ = self.tracked.lock().remove(&table),
                    TableChange::Gap => self.clear_gap(&table),
                    TableChange::Unpublished => {}
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Records the membership. Returns whether the table has a gap that the consumer wasn't
    /// notified of.
    fn has_gap(&self, table: &TableName, membership: u32) -> bool {
        self.tracked.lock().get_mut(table).is_some_and(|tracked| {
            tracked.has_gap |= std::mem::replace(&mut tracked.membership, membership) != membership;
            tracked.has_gap
        })
    }

    fn clear_gap(&self, table: &TableName) {
        self.tracked.lock().get_mut(table).into_iter().for_each(|tracked| tracked.has_gap = false);
    }

    /// Returns how the publication was changed, if it can't be repaired while streaming.
    async fn defect(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        oid: u32,
    ) -> Result<Option<&'static str>, PublishError> {
        // `pubgencols` exists since version 18. In manual mode the operator decides on generated
        // columns.
        let query = "SELECT oid, pubinsert AND pubupdate AND pubdelete AND pubtruncate \
             AND ($2 OR to_jsonb(p) ->> 'pubgencols' IS DISTINCT FROM 'n') FROM pg_publication p WHERE pubname = $1";
        let rows =
            client.query_typed(query, &[(&self.name, Type::TEXT), (&self.is_manual, Type::BOOL)]).await?;
        Ok(match rows.first() {
            None => Some("dropped"),
            Some(row) if row.get::<_, u32>(0) != oid => Some("replaced"),
            Some(row) if !row.get::<_, bool>(1) => Some("narrowed"),
            Some(_) => None,
        })
    }
}

/// Returns whether the error has one of these SQLSTATEs.
fn is_any(error: &tokio_postgres::Error, states: &[SqlState]) -> bool {
    error.code().is_some_and(|code| states.contains(code))
}
