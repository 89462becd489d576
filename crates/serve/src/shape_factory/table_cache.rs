//! Table cache: descriptions of requested tables, read from the catalog and shared by requests.
//!
//! Invariant: a cached table is used only while it is younger than [`CACHE_TTL`] and of the current
//! [`SchemaEpoch`]. A table that a lookup returns is in the publication.
//! At most one lookup runs per table. All requests that arrive meanwhile wait for its result, so a
//! burst of requests takes one admin connection.
//! Lock order: `tables` and `lookups` are never held together, nor across an await.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_replication::{Manager, ManagerStep, TableName};
use forebay_shapes::{Shapes, TableSchema};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use super::refusals::{manager_refusal, not_writing_refusal};
use super::table_describer::TableDescriber;
use super::table_publisher::TablePublisher;
use super::table_schema;
use crate::database::TableDescription;
use crate::protocol::RequestRefusal;
use crate::schema_monitor::SchemaEpoch;

/// How long a description is used without a query, while the schema epoch is the same.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Maximum duration of a lookup. If a shape of the table exists, a request waits only a fifth of
/// it, and then uses the table of that shape.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The tables that were requested recently.
#[derive(Debug)]
pub(crate) struct TableCache {
    manager: Manager,
    shapes: Shapes,
    schema_epoch: SchemaEpoch,
    describer: TableDescriber,
    publisher: Arc<TablePublisher>,
    /// The last description of each requested table.
    tables: Mutex<HashMap<TableName, CachedTable>>,
    /// Lookups in flight. Requests for the same table share one.
    lookups: Mutex<HashMap<TableName, Weak<PendingLookup>>>,
}

/// A table that was requested recently.
#[derive(Debug, Clone)]
pub(super) struct CachedTable {
    /// The schema epoch when the lookup began.
    epoch: u64,
    /// The table in the catalog. `None`: the database can't be queried, and `table` is taken from
    /// the newest shape.
    pub(super) description: Option<Arc<TableDescription>>,
    pub(super) table: Arc<TableSchema>,
    /// The end of the lookup.
    at: Instant,
}

/// A lookup in flight; its result goes to all requests that wait for it.
type PendingLookup = OnceCell<Result<CachedTable, RequestRefusal>>;

impl TableCache {
    pub(crate) fn new(
        manager: Manager,
        shapes: Shapes,
        schema_epoch: SchemaEpoch,
        describer: TableDescriber,
        publisher: Arc<TablePublisher>,
    ) -> Self {
        let (tables, lookups) = (Mutex::default(), Mutex::default());
        TableCache { manager, shapes, schema_epoch, describer, publisher, tables, lookups }
    }

    /// Returns a table, from the catalog unless the cache has it. If the database can't be queried,
    /// returns the table of the newest shape.
    pub(super) async fn get(&self, name: &TableName) -> Result<CachedTable, RequestRefusal> {
        let epoch = self.schema_epoch.current();
        let before = self.tables.lock().get(name).cloned();
        let is_current = |cached: &&CachedTable| cached.epoch == epoch && cached.at.elapsed() < CACHE_TTL;
        if let Some(cached) = before.as_ref().filter(is_current) {
            return Ok(cached.clone());
        }
        let fallback = self.table_of_newest_shape(name);
        let max_wait = if fallback.is_some() { LOOKUP_TIMEOUT / 5 } else { LOOKUP_TIMEOUT };
        match timeout(max_wait, self.lookup_since(epoch, name, before)).await {
            Ok(Ok(cached)) => Ok(cached),
            Ok(Err(refusal @ RequestRefusal::Invalid(_))) => Err(refusal),
            Ok(Err(refusal)) => fallback.ok_or(refusal),
            Err(_) => fallback.ok_or(RequestRefusal::DatabaseUnreachable),
        }
    }

    /// Reads a table from the catalog, whether it is cached or not.
    pub(super) async fn look_up(&self, name: &TableName) -> Result<CachedTable, RequestRefusal> {
        self.schema_epoch.advance();
        let epoch = self.schema_epoch.current();
        let before = self.tables.lock().get(name).cloned();
        self.lookup_since(epoch, name, before).await
    }

    /// Returns whether a table was read within the last [`CACHE_TTL`].
    pub(super) fn is_fresh(&self, name: &TableName) -> bool {
        self.tables.lock().get(name).is_some_and(|cached| cached.at.elapsed() < CACHE_TTL)
    }

    /// Removes a table, so that the next request looks it up.
    pub(super) fn forget(&self, name: &TableName) {
        self.tables.lock().remove(name);
    }

    /// Removes a table, and makes the results of lookups in flight outdated.
    pub(crate) fn invalidate(&self, name: &TableName) {
        self.schema_epoch.advance();
        self.forget(name);
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

    /// Returns the result of a lookup that began in this epoch or a later one.
    async fn lookup_since(
        &self,
        epoch: u64,
        name: &TableName,
        before: Option<CachedTable>,
    ) -> Result<CachedTable, RequestRefusal> {
        match self.lookup_shared(name, before.clone()).await {
            // The shared lookup began before this epoch, so its result may be outdated.
            Ok(cached) if cached.epoch < epoch => self.lookup_shared(name, before).await,
            looked_up => looked_up,
        }
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

    /// Describes a table and publishes it, unless it is as before.
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
        let (description, state) = self.describer.describe(name).await?;
        // The publication may have changed although the table didn't. Each notice of that advances
        // the epoch.
        let is_same = |cached: &&CachedTable| {
            let is_same_table = cached.description.as_deref() == Some(&description);
            cached.epoch == epoch && is_same_table && cached.table.state.as_ref() == Some(&state)
        };
        let (description, table) = match before.as_ref().filter(is_same) {
            Some(cached) => (description, Arc::clone(&cached.table)),
            None => {
                // Before publishing, which may fail: shapes that don't fit are deleted either way.
                self.shapes.check_schema(&table_schema(&description, 0, Some(state.clone())));
                let described = (description, state);
                let (description, table) = self.publisher.publish_as_described(name, described).await?;
                // New clients must not get a shape that doesn't fit the table any more.
                self.shapes.check_schema(&table);
                (description, Arc::new(table))
            }
        };
        let cached =
            CachedTable { epoch, description: Some(Arc::new(description)), table, at: Instant::now() };
        self.tables.lock().insert(name.clone(), cached.clone());
        Ok(cached)
    }
}
