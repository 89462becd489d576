//! Catalog watch: scans the catalog every few seconds for altered tables and publications, and
//! removes tables that no shape needs from the publication.
//!
//! Invariant: with at most [`MAX_TABLES`] tables, shapes are replaced within 5 s after their table
//! was rewritten, labels of its enums were renamed, or its entry in the publication was changed.
//! Enforced by: every [`SCAN_INTERVAL`], the writing instance scans the entries of all tables with
//! shapes in one query. It scans all of them, because streams may be open on other instances. A
//! table whose entry differs from the last one is described, and its shapes are compared.
//! With more tables, a round takes several scans. Tables of shapes that are requested on this
//! instance are also compared at the request (`TableComparer::recheck`).
//! Each time that replication starts, the tables of all shapes are published again
//! ([`CatalogWatch::republish`]).
//! Out of scope: alterations that the replication stream describes; see `schema_monitor.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{Manager, PublishError, TableName};
use forebay_shapes::Shapes;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use super::catalog_scanner::{CatalogScanner, ComparedEntry};
use super::connection_lender::any_connection;
use super::database::{CatalogEntry, CatalogError, TableSelection};
use super::shape_factory::{ComparisonOutcome, TableCache, TableComparer, TablePublishError, TablePublisher};

/// Time between two scans. Twice this, plus the description of a table, is below 5 s.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a scan and the comparisons after it.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of tables in one periodic scan. With more, the next scan reads the next ones.
const MAX_TABLES: usize = 500;
/// Maximum time between two searches for tables that no shape needs.
const MAX_UNNEEDED_INTERVAL: Duration = Duration::from_secs(60);
/// Pause before tables that couldn't be published are tried again.
const REPUBLISH_RETRY: Duration = Duration::from_secs(5);

/// Compares the tables of all shapes with the catalog, and the publication with the shapes.
#[derive(Debug)]
pub(crate) struct CatalogWatch {
    pub(crate) manager: Manager,
    pub(crate) shapes: Shapes,
    pub(crate) scanner: CatalogScanner,
    pub(crate) tables: Arc<TableCache>,
    pub(crate) comparer: TableComparer,
    pub(crate) publisher: Arc<TablePublisher>,
    /// How long a table stays in the publication after its last shape; `None`: for ever.
    pub(crate) unpublish_after: Option<Duration>,
    /// By oid: the last compared entry of each table with shapes.
    pub(crate) compared: Mutex<HashMap<u32, ComparedEntry>>,
}

impl CatalogWatch {
    /// Scans the tables with shapes, and searches for tables that no shape needs. Never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut unneeded, mut turn, mut next) = (UnneededTables::default(), None, 0);
        loop {
            ticks.tick().await;
            if self.shapes.turn() != turn {
                // Another process may have written in between and created other shapes.
                turn = self.shapes.turn();
                unneeded = UnneededTables::default();
                self.compared.lock().clear();
            }
            if turn.is_none() {
                continue;
            }
            let mut tables = self.shapes.table_oids();
            tables.sort_unstable();
            let from = if next < tables.len() { next } else { 0 };
            next = from + MAX_TABLES;
            let some = &tables[from..next.min(tables.len())];
            match timeout(SCAN_TIMEOUT, self.compare_tables(some)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "catalog scan failed"),
                Err(_) => debug!("catalog scan timed out"),
            }
            if let Some(after) = self.unpublish_after {
                self.unpublish(&mut unneeded, after, turn).await;
            }
        }
    }

    /// Publishes the tables of all existing shapes, and deletes the shapes that may miss changes.
    /// Returns when every table is published or doesn't exist.
    pub(crate) async fn republish(&self) {
        let shapes = self.shapes.all();
        let tables = shapes.iter().map(|shape| &shape.definition().table);
        let mut tables: HashSet<_> = tables.map(|table| TableName::new(&table.schema, &table.name)).collect();
        let mut is_first = true;
        loop {
            tables = self.publish_all(tables).await;
            if std::mem::take(&mut is_first)
                && let Err(error) = self.compare_tables(&self.shapes.table_oids()).await
            {
                warn!(%error, "tables not compared with the catalog");
            }
            if tables.is_empty() {
                return;
            }
            sleep(REPUBLISH_RETRY).await;
        }
    }

    /// Publishes tables once. Returns those that couldn't be published.
    async fn publish_all(&self, tables: HashSet<TableName>) -> HashSet<TableName> {
        let mut left = HashSet::new();
        for table in tables {
            match self.publisher.publish(&table).await {
                Ok(published) => self.publisher.delete_stale_shapes(&table, Some(published)),
                Err(TablePublishError::Refused(
                    PublishError::NotFound { .. } | PublishError::NotATable { .. },
                )) => self.publisher.delete_stale_shapes(&table, None),
                Err(error) => {
                    warn!(%table, %error, "table with shapes not added to the publication");
                    left.insert(table);
                }
            }
        }
        left
    }

    /// Scans these tables, and compares the shapes of those whose entry or shapes have changed.
    async fn compare_tables(&self, oids: &[u32]) -> Result<(), ScanError> {
        let (tables, partitioned) = (self.shapes.tables(), &[]);
        let scan = {
            let client = any_connection(&self.manager).await?;
            self.scanner.scan(&client, TableSelection::Listed { all: oids, partitioned }).await?
        };
        self.shapes.forget_visible(&scan.snapshot);
        let current = self.shapes.table_oids();
        self.compared.lock().retain(|oid, _| current.contains(oid));
        let entries: HashMap<u32, &CatalogEntry> =
            scan.entries.iter().map(|entry| (entry.oid, entry)).collect();
        let oids: HashSet<u32> = oids.iter().copied().collect();
        for table in tables.iter().filter(|table| oids.contains(&table.oid)) {
            let entry = entries.get(&table.oid).copied();
            let newest_shape = scan.newest_shapes.get(&table.oid).copied();
            let last = self.compared.lock().get(&table.oid).cloned();
            if entry.zip(last).is_some_and(|(entry, last)| last.equals(entry, newest_shape)) {
                continue;
            }
            let name = TableName::new(&table.schema, &table.name);
            let outcome = self.comparer.compare(table.oid, &name).await;
            let is_compared = scan.publication_unchanged && outcome == ComparisonOutcome::Compared;
            // If the table changed after the scan, the next scan differs.
            if let Some(entry) = entry.filter(|_| is_compared) {
                let compared = ComparedEntry { entry: entry.clone(), newest_shape };
                self.compared.lock().insert(table.oid, compared);
            }
        }
        Ok(())
    }

    /// Removes from the publication the tables that no shape has needed for `after`.
    async fn unpublish(&self, unneeded: &mut UnneededTables, after: Duration, turn: Option<u64>) {
        let now = Instant::now();
        let pause = (after / 4).min(MAX_UNNEEDED_INTERVAL);
        if unneeded.searched.is_some_and(|searched| now < searched + pause) {
            return;
        }
        unneeded.searched = Some(now);
        let Ok(tables) = self.manager.unneeded_tables(&self.shapes.table_oids()).await else { return };
        unneeded.since.retain(|table, _| tables.contains_key(table));
        for (table, entry) in tables {
            let since = *unneeded.since.entry(table.clone()).or_insert(now);
            // Another process may have become the writer, and need the table.
            if now >= since + after && self.shapes.turn() == turn {
                // Announced first: a request that still gets the cached table creates its shape
                // before the removal searches for shapes, or waits for the end of the removal.
                self.publisher.announce_removal(entry);
                self.tables.invalidate(&table);
                self.publisher.remove(&table, entry).await;
            }
        }
    }
}

/// Tables in the publication that no shape needs.
#[derive(Debug, Default)]
struct UnneededTables {
    /// Time of the last search.
    searched: Option<Instant>,
    /// When each table was first found unneeded.
    since: HashMap<TableName, Instant>,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    #[error(transparent)]
    Pool(#[from] forebay_replication::PoolError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}
