//! Table cache: descriptions of requested tables, read from the catalog and shared by requests.
//!
//! Invariant: a cached table is used only while it is younger than [`CACHE_TTL`] and of the current
//! [`SchemaEpoch`](crate::schema_monitor::SchemaEpoch).
//! At most one lookup runs per table. All requests that arrive meanwhile wait for its result, so a
//! burst of requests takes one admin connection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_replication::{ManagerStep, TableName};
use forebay_shapes::{CatalogState, Shape, TableSchema};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::refusals::{describe_refusal, manager_refusal, not_writing_refusal, pool_refusal};
use super::{ShapeFactory, table_schema};
use crate::database::{self, Builtins, DescribeError, TableSelection};
use crate::protocol::RequestRefusal;

/// How long a description is used without a query, while the schema epoch is the same.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Maximum duration of a lookup. If a shape of the table exists, a request waits only a fifth of
/// it, and then uses the table of that shape.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A table that was requested recently.
#[derive(Debug, Clone)]
pub(super) struct CachedTable {
    /// The schema epoch when the lookup began.
    epoch: u64,
    /// The table in the catalog. `None`: the database can't be queried, and `table` is taken from
    /// the newest shape.
    pub(super) description: Option<Arc<database::TableDescription>>,
    pub(super) table: Arc<TableSchema>,
    /// The end of the lookup.
    at: Instant,
}

/// A lookup in flight; its result goes to all requests that wait for it.
pub(super) type PendingLookup = OnceCell<Result<CachedTable, RequestRefusal>>;

impl ShapeFactory {
    /// Compares a shape's table with the catalog in a new task, at most once per [`CACHE_TTL`].
    ///
    /// The stream describes an altered table only before the next change of a row, and a dropped
    /// table never.
    pub(crate) fn recheck_table(self: &Arc<Self>, shape: &Arc<Shape>) {
        let table = &shape.definition().table;
        let name = TableName::new(&table.schema, &table.name);
        let is_fresh = |cached: &CachedTable| cached.at.elapsed() < CACHE_TTL;
        if !self.shapes.is_writing() || self.tables.lock().get(&name).is_some_and(is_fresh) {
            return;
        }
        let (factory, oid) = (Arc::clone(self), table.oid);
        tokio::spawn(async move {
            let looked_up = factory.table(&name).await;
            let _compared = factory.compare_shapes(oid, &name, looked_up).await;
        });
    }

    /// Looks the table up in the catalog and deletes its shapes that don't fit it. Returns whether
    /// the shapes were compared.
    pub(crate) async fn compare_table(&self, oid: u32, name: &TableName) -> bool {
        self.schema_epoch.advance();
        let epoch = self.schema_epoch.current();
        let before = self.tables.lock().get(name).cloned();
        let looked_up = match self.lookup_shared(name, before.clone()).await {
            // The shared lookup began before this call, so its result may be outdated.
            Ok(cached) if cached.epoch < epoch => self.lookup_shared(name, before).await,
            looked_up => looked_up,
        };
        self.compare_shapes(oid, name, looked_up).await
    }

    /// Compares the shapes of a table with a lookup's result. Returns whether they were compared.
    async fn compare_shapes(
        &self,
        oid: u32,
        name: &TableName,
        looked_up: Result<CachedTable, RequestRefusal>,
    ) -> bool {
        match looked_up {
            // The database can't be queried at the moment.
            Ok(CachedTable { description: None, .. }) => return false,
            Ok(cached) if cached.table.oid == oid => self.shapes.refit(&cached.table),
            Ok(_) => self.shapes.delete_table(oid),
            // Only a dropped table affects its shapes; for instance, a missing privilege doesn't.
            Err(RequestRefusal::Invalid(_)) => {
                if self.is_dropped(name).await {
                    self.shapes.delete_table(oid);
                }
            }
            Err(_) => return false,
        }
        true
    }

    /// Returns whether no table has this name any more.
    async fn is_dropped(&self, name: &TableName) -> bool {
        let Ok(client) = self.manager.admin().await else { return false };
        let described = database::describe(&client, name).await;
        matches!(described, Err(DescribeError::NotFound { .. } | DescribeError::NotATable { .. }))
    }

    /// Returns a table, from the catalog unless the cache has it. If the database can't be queried,
    /// returns the table of the newest shape.
    pub(super) async fn table(&self, name: &TableName) -> Result<CachedTable, RequestRefusal> {
        let epoch = self.schema_epoch.current();
        let before = self.tables.lock().get(name).cloned();
        let is_current = |cached: &&CachedTable| cached.epoch == epoch && cached.at.elapsed() < CACHE_TTL;
        if let Some(cached) = before.as_ref().filter(is_current) {
            return Ok(cached.clone());
        }
        let fallback = self.table_of_newest_shape(name);
        let patience = if fallback.is_some() { LOOKUP_TIMEOUT / 5 } else { LOOKUP_TIMEOUT };
        let lookup = async {
            match self.lookup_shared(name, before.clone()).await {
                // The shared lookup began before the current epoch, so its result may be outdated.
                Ok(cached) if cached.epoch < epoch => self.lookup_shared(name, before).await,
                looked_up => looked_up,
            }
        };
        match timeout(patience, lookup).await {
            Ok(Ok(cached)) => Ok(cached),
            Ok(Err(refusal @ RequestRefusal::Invalid(_))) => Err(refusal),
            Ok(Err(refusal)) => fallback.ok_or(refusal),
            Err(_) => fallback.ok_or(RequestRefusal::DatabaseUnreachable),
        }
    }

    /// Removes a table from the cache, so that the next request looks it up.
    pub(crate) fn invalidate_table(&self, name: &TableName) {
        self.schema_epoch.advance();
        self.tables.lock().remove(name);
    }

    fn table_of_newest_shape(&self, name: &TableName) -> Option<CachedTable> {
        let of_name =
            |table: &&Arc<TableSchema>| (&*table.schema, &*table.name) == (&*name.schema, &*name.name);
        let shapes = self.shapes.all();
        let tables = shapes.iter().map(|shape| &shape.definition().table);
        // Handles end with a timestamp: the newest shape has the newest table.
        let newest = tables.zip(&shapes).filter(|(table, _)| of_name(table));
        let newest = newest.max_by_key(|(_, shape)| shape.handle().rsplit('-').next().map(str::to_owned));
        newest.map(|(table, _)| CachedTable {
            epoch: self.schema_epoch.current(),
            description: None,
            table: Arc::clone(table),
            at: Instant::now(),
        })
    }

    /// Joins the lookup in flight for this table, or starts one.
    async fn lookup_shared(
        &self,
        name: &TableName,
        before: Option<CachedTable>,
    ) -> Result<CachedTable, RequestRefusal> {
        let lookup = {
            let mut all = self.lookups.lock();
            all.retain(|_, lookup| lookup.strong_count() > 0);
            let current = all.get(name).and_then(Weak::upgrade).filter(|lookup| !lookup.initialized());
            current.unwrap_or_else(|| {
                let lookup = Arc::new(PendingLookup::new());
                all.insert(name.clone(), Arc::downgrade(&lookup));
                lookup
            })
        };
        // If the request that runs the lookup is dropped, the next waiting request runs it.
        lookup.get_or_init(|| self.lookup(name, before)).await.clone()
    }

    async fn lookup(
        &self,
        name: &TableName,
        before: Option<CachedTable>,
    ) -> Result<CachedTable, RequestRefusal> {
        if self.manager.status().step == ManagerStep::AcquiringLock {
            return Err(not_writing_refusal());
        }
        let epoch = self.schema_epoch.current();
        let _awake = self.manager.wake().await.map_err(|error| manager_refusal(&error))?;
        let (description, state) = self.describe(name).await?;
        // The publication may have changed although the table didn't. Each notice of that advances
        // the epoch.
        let is_same = |cached: &&CachedTable| {
            let is_same_table = cached.description.as_deref() == Some(&description);
            cached.epoch == epoch && is_same_table && cached.table.state.as_ref() == Some(&state)
        };
        let is_as_before = before.as_ref().filter(is_same);
        let (description, table) = match is_as_before {
            Some(cached) => (description, Arc::clone(&cached.table)),
            None => {
                // Before publishing, which may fail: shapes that don't fit are deleted either way.
                self.shapes.refit(&table_schema(&description, 0, Some(state.clone())));
                let (description, table) = self.publish_as_described(name, (description, state)).await?;
                // New clients must not get a shape that doesn't fit the table any more.
                self.shapes.refit(&table);
                (description, Arc::new(table))
            }
        };
        let cached =
            CachedTable { epoch, description: Some(Arc::new(description)), table, at: Instant::now() };
        self.tables.lock().insert(name.clone(), cached.clone());
        Ok(cached)
    }

    /// Describes a table. The catalog entry is read first: if the table changes in between, the
    /// next scan finds a difference.
    pub(super) async fn describe(
        &self,
        name: &TableName,
    ) -> Result<(database::TableDescription, CatalogState), RequestRefusal> {
        let client = self.manager.admin().await.map_err(|error| pool_refusal(&error))?;
        let tables = TableSelection::Named(&name.schema, &name.name);
        let (scan, description) = tokio::join!(
            biased;
            self.scan_catalog(&client, tables),
            database::describe(&client, name),
        );
        let description = description.map_err(|error| describe_refusal(&error))?;
        let scan = scan.map_err(|error| {
            warn!(%error, "catalog entry of a table not read");
            RequestRefusal::DatabaseUnreachable
        })?;
        let entry = scan.entries.into_iter().find(|entry| entry.oid == description.oid);
        // `None`: the table was replaced between the two queries.
        let entry = entry.ok_or_else(|| RequestRefusal::SnapshotFailed {
            message: "the table changed: try again".into(),
        })?;
        Ok((description, entry.state))
    }

    /// Returns the functions, operators and types that clauses may use. They are read once per
    /// major version of the server.
    pub(crate) async fn builtins(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let loading = timeout(LOOKUP_TIMEOUT, self.load_builtins(server_version));
        loading.await.unwrap_or(Err(RequestRefusal::DatabaseUnreachable))
    }

    async fn load_builtins(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let mut cached = self.builtins.lock().await;
        if let Some((_, builtins)) = cached.as_ref().filter(|(version, _)| *version == server_version) {
            return Ok(Arc::clone(builtins));
        }
        let _awake = self.manager.wake().await.map_err(|error| manager_refusal(&error))?;
        let client = self.manager.admin().await.map_err(|error| pool_refusal(&error))?;
        let loaded = Builtins::load(&client).await.map_err(|error| describe_refusal(&error.into()))?;
        let builtins = Arc::new(loaded);
        *cached = Some((server_version, Arc::clone(&builtins)));
        Ok(builtins)
    }
}
