//! Catalog watch: scans the catalog every few seconds for altered tables and publications, and
//! removes tables that no shape needs from the publication.
//!
//! Invariant: with at most [`MAX_TABLES`] tables, shapes are replaced within 5 s after their table
//! was rewritten, labels of its enums were renamed, or its entry in the publication was changed.
//! Enforced by: every [`SCAN_INTERVAL`], the writing instance scans the entries of all tables with
//! shapes in one query. It scans all of them, because streams may be open on other instances. A
//! table whose entry differs from the last one is described, and its shapes are compared.
//! With more tables, a round takes several scans. Tables of shapes that are requested on this
//! instance are also compared at the request (`ShapeFactory::recheck_table`).
//! Out of scope: alterations that the replication stream describes; see `schema_monitor.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_replication::pgoutput::Snapshot;
use forebay_replication::reservoir::PostgresClient;
use forebay_replication::{Manager, PublicationVersions, PublishError, TableName};
use forebay_shapes::{CatalogState, Shapes, TableSchema};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use super::database::{self, CatalogEntry, CatalogError, TableSelection};
use super::shape_factory::ShapeFactory;

/// Time between two scans. Twice this, plus the description of a table, is below 5 s.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a scan and the comparisons after it.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a task checks whether a removal has ended. A removal waits at most 2 s for its
/// lock.
const REMOVAL_POLL: Duration = Duration::from_millis(50);
/// Maximum number of tables in one periodic scan. With more, the next scan reads the next ones.
const MAX_TABLES: usize = 500;
/// Maximum time between two searches for tables that no shape needs.
const MAX_UNNEEDED_INTERVAL: Duration = Duration::from_secs(60);

/// State of the catalog scans.
#[derive(Debug, Default)]
pub(crate) struct CatalogWatch {
    /// Name of the publication.
    publication: String,
    /// How long a table stays in the publication after its last shape; `None`: for ever.
    unpublish_after: Option<Duration>,
    /// By oid: the last compared entry of each table with shapes.
    compared: Mutex<HashMap<u32, ComparedEntry>>,
    /// Number of changes of the whole publication that this process is making now.
    changing: AtomicU64,
    /// Number of changes of the whole publication that this process has finished.
    changed: AtomicU64,
    /// Entries of the publication that this process removes or has removed, by oid of the table and
    /// of the entry.
    retired: Mutex<HashMap<(u32, u32), RemovalState>>,
}

/// The catalog entry that the shapes of a table were last compared with. Those shapes fit it.
///
/// A table may change and change back between two scans, for instance by ATTACH and DETACH. A shape
/// created in between doesn't fit, although the entries of both scans are equal.
#[derive(Debug, Clone)]
pub(super) struct ComparedEntry {
    pub(super) entry: CatalogEntry,
    /// Id of the table's newest shape before the scan. Newer shapes weren't compared.
    pub(super) newest_shape: Option<u64>,
}

impl ComparedEntry {
    /// Returns whether neither the table nor its shapes have changed since the comparison.
    pub(super) fn equals(&self, entry: &CatalogEntry, newest_shape: Option<u64>) -> bool {
        self.newest_shape == newest_shape && self.entry == *entry
    }
}

/// State of the removal of a table from the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalState {
    InProgress,
    /// The entry was removed, or the server's reply was lost.
    Done,
}

/// The result of a scan.
#[derive(Debug)]
pub(super) struct CatalogScan {
    /// The snapshot that the entries were read with.
    pub(super) snapshot: Snapshot,
    pub(super) entries: Vec<CatalogEntry>,
    /// By oid: id of the newest shape of each table before the scan. Newer shapes are compared with
    /// the next scan.
    pub(super) newest_shapes: HashMap<u32, u64>,
    /// `false` if this process changed the publication during the scan. Then the scanned
    /// [`CatalogState::publication`] is replaced by that of the shapes' baselines.
    pub(super) is_settled: bool,
}

impl CatalogWatch {
    pub(crate) fn new(publication: &str, unpublish_after: Option<Duration>) -> Arc<Self> {
        let publication = publication.to_owned();
        Arc::new(CatalogWatch { publication, unpublish_after, ..CatalogWatch::default() })
    }

    /// Waits for the end of the removal of a table's entry in the publication, if one is in
    /// progress. Returns whether the entry was removed.
    pub(super) async fn is_retired(&self, table: &TableSchema) -> bool {
        loop {
            let removal = self.retired.lock().get(&(table.oid, table.membership)).copied();
            match removal {
                None => return false,
                Some(RemovalState::Done) => return true,
                Some(RemovalState::InProgress) => sleep(REMOVAL_POLL).await,
            }
        }
    }

    /// Returns the number of changes of the publication that have ended. `None`: one is in
    /// progress.
    fn settled(&self) -> Option<u64> {
        let changed = self.changed.load(Ordering::Acquire);
        (self.changing.load(Ordering::Acquire) == 0).then_some(changed)
    }
}

impl ShapeFactory {
    /// Reads the catalog entries of tables with one snapshot.
    pub(super) async fn scan_catalog(
        &self,
        client: &PostgresClient,
        tables: TableSelection<'_>,
    ) -> Result<CatalogScan, CatalogError> {
        let (before, newest_shapes) = (self.watch.settled(), self.shapes.newest_shapes());
        let (snapshot, mut entries) = database::read_entries(client, &self.watch.publication, tables).await?;
        let is_settled = before.is_some() && before == self.watch.settled();
        for entry in entries.iter_mut().filter(|_| !is_settled) {
            if let Some(CatalogState { publication, .. }) = self.shapes.state(entry.oid) {
                entry.state.publication = publication;
            }
        }
        Ok(CatalogScan { snapshot, entries, newest_shapes, is_settled })
    }

    /// Publishes partitions under their own names. This changes the publication's row, so the
    /// baselines of all shapes are updated.
    ///
    /// Existing shapes of partitions are deleted: they may have missed changes that came under an
    /// ancestor's name. Runs to completion even if the caller is dropped.
    pub(super) async fn publish_partitions(&self, table: &TableName) -> Result<(), PublishError> {
        let (table, schema_epoch) = (table.clone(), self.schema_epoch.clone());
        let (manager, shapes, watch) = (self.manager.clone(), self.shapes.clone(), Arc::clone(&self.watch));
        let changing = tokio::spawn(async move {
            let _changing = PublicationChangeGuard::begin(&watch);
            // Deleted before the change. If the deletion failed after the change, there would be no
            // second attempt.
            delete_shapes_of_partitions(&manager, &shapes).await?;
            let changed = manager.publish_partitions(&table).await;
            if let Ok(Some(versions)) = &changed {
                shapes.update_states(|state| update_version(&mut state.publication, *versions));
                schema_epoch.advance();
                info!(publication = watch.publication, "partitions published under their own names");
            }
            changed.map(drop)
        });
        changing.await.unwrap_or(Err(PublishError::Timeout))
    }

    /// Scans the tables with shapes, and searches for tables that no shape needs. Never returns.
    pub(crate) async fn watch_catalog(self: Arc<Self>) {
        let mut ticks = interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut unneeded, mut turn, mut next) = (UnneededTables::default(), None, 0);
        loop {
            ticks.tick().await;
            if self.shapes.turn() != turn {
                // Another process may have written in between and created other shapes.
                turn = self.shapes.turn();
                unneeded = UnneededTables::default();
                self.watch.compared.lock().clear();
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
            if let Some(after) = self.watch.unpublish_after {
                self.unpublish(&mut unneeded, after, turn).await;
            }
        }
    }

    /// Compares the shapes of all tables with the catalog.
    pub(super) async fn compare_all_tables(&self) {
        if let Err(error) = self.compare_tables(&self.shapes.table_oids()).await {
            warn!(%error, "tables not compared with the catalog");
        }
    }

    /// Scans these tables, and compares the shapes of those whose entry or shapes have changed.
    async fn compare_tables(&self, oids: &[u32]) -> Result<(), ScanError> {
        let (tables, partitioned) = (self.shapes.tables(), &[]);
        let scan = {
            let client = self.connection().await?;
            self.scan_catalog(&client, TableSelection::Listed { all: oids, partitioned }).await?
        };
        self.shapes.forget_visible(&scan.snapshot);
        let current = self.shapes.table_oids();
        self.watch.compared.lock().retain(|oid, _| current.contains(oid));
        let entries: HashMap<u32, &CatalogEntry> =
            scan.entries.iter().map(|entry| (entry.oid, entry)).collect();
        let oids: HashSet<u32> = oids.iter().copied().collect();
        for table in tables.iter().filter(|table| oids.contains(&table.oid)) {
            let entry = entries.get(&table.oid).copied();
            let newest_shape = scan.newest_shapes.get(&table.oid).copied();
            let last = self.watch.compared.lock().get(&table.oid).cloned();
            if entry.zip(last).is_some_and(|(entry, last)| last.equals(entry, newest_shape)) {
                continue;
            }
            let name = TableName::new(&table.schema, &table.name);
            let is_compared = self.compare_table(table.oid, &name).await;
            // If the table changed after the scan, the next scan differs.
            if let Some(entry) = entry.filter(|_| scan.is_settled && is_compared) {
                let compared = ComparedEntry { entry: entry.clone(), newest_shape };
                self.watch.compared.lock().insert(table.oid, compared);
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
                self.unpublish_one(&table, entry).await;
            }
        }
    }

    /// Removes from the publication a table that no shape needs.
    ///
    /// Race: a shape may be created meanwhile with the entry that is removed. Either this function
    /// deletes the shape, or [`ShapeFactory::write_snapshot`] finds the entry removed and fails.
    async fn unpublish_one(&self, table: &TableName, entry: (u32, u32)) {
        self.watch.retired.lock().insert(entry, RemovalState::InProgress);
        self.invalidate_table(table);
        if self.shapes.table_oids().contains(&entry.0) {
            self.watch.retired.lock().remove(&entry);
            return;
        }
        match self.manager.remove_table(table).await {
            Ok(()) => info!(
                %table,
                "table removed from the publication: no shape needs it; its REPLICA IDENTITY is unchanged"
            ),
            Err(error) => {
                // The next search tries again. Unless the reply was lost, the entry still exists.
                let is_refused = matches!(&error, PublishError::Busy { .. } | PublishError::Pool(_))
                    || matches!(&error, PublishError::Server(error) if error.code().is_some());
                warn!(%table, %error, "table not removed from the publication");
                if is_refused {
                    self.watch.retired.lock().remove(&entry);
                    return;
                }
            }
        }
        self.watch.retired.lock().insert(entry, RemovalState::Done);
        self.delete_stale_shapes(table, None);
    }
}

/// Marks a change of the whole publication by this process, until it is dropped.
struct PublicationChangeGuard<'a>(&'a CatalogWatch);

impl<'a> PublicationChangeGuard<'a> {
    fn begin(watch: &'a CatalogWatch) -> Self {
        watch.changing.fetch_add(1, Ordering::AcqRel);
        PublicationChangeGuard(watch)
    }
}

impl Drop for PublicationChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.changed.fetch_add(1, Ordering::AcqRel);
        self.0.changing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Deletes the shapes of tables that are partitions.
async fn delete_shapes_of_partitions(manager: &Manager, shapes: &Shapes) -> Result<(), PublishError> {
    let client = manager.admin().await?;
    for oid in shapes.table_oids() {
        match database::partition_tree(&client, oid).await {
            Ok(tree) if tree.ancestors.is_empty() => {}
            Ok(_) => shapes.delete_table(oid),
            Err(CatalogError::Database(error)) => return Err(error.into()),
            Err(CatalogError::NoAnswer) => return Err(PublishError::Timeout),
        }
    }
    Ok(())
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

/// Replaces the version in a [`CatalogState::publication`], if it is the one before the change. Its
/// first two words are the publication's oid and the xmin of its row.
fn update_version(publication: &mut String, versions: PublicationVersions) {
    let mut words: Vec<_> = publication.split(' ').map(str::to_owned).collect();
    if let Some(version) = words.get_mut(1).filter(|version| **version == versions.before.to_string()) {
        *version = versions.after.to_string();
        *publication = words.join(" ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_before_our_own_change_is_updated() {
        let update = |publication: &str| {
            let mut publication = publication.to_owned();
            update_version(&mut publication, PublicationVersions { before: 7, after: 9 });
            publication
        };
        assert_eq!(update("16400 7 table 5 7"), "16400 9 table 5 7");
        assert_eq!(update("16400 8 table 5 7"), "16400 8 table 5 7");
        assert_eq!(update("7"), "7");
        assert_eq!(update(""), "");
    }
}
