//! Looks at the catalog every few seconds: finds tables that were changed while no row of them was,
//! and publications that others changed, and takes tables that no shape needs out of the publication.
//!
//! Invariant: shapes of a table that was rewritten, whose enum labels were renamed, or whose place in
//! the publication was changed are replaced within 5 s.
//! Enforced by: every [`INTERVAL`], the instance that writes looks at the tables that have shapes,
//! with one query: streams of a shape may be open on other instances. A look that differs from the
//! last one has the table described, and its shapes compared. With more than [`MAX_TABLES`] tables
//! it takes longer, except for shapes that are asked for here: see `ShapeFactory::look_again`.
//! Out of scope: changes of tables that the replication stream describes; see `fitting.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_replication::pgoutput::Snapshot;
use forebay_replication::reservoir::PostgresClient;
use forebay_replication::{Manager, PublicationVersions, PublishError, TableName};
use forebay_shapes::{CatalogState, Shapes, TableSchema};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use super::database::{self, CatalogEntry, CatalogError, TableSelection};
use super::shape_factory::{ShapeFactory, lock};

/// Time between two looks. Twice this, and what it takes to describe a table, is below 5 s.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time that a look may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Time between two looks whether a removal has ended. It takes 2 s for a lock at most.
const PAUSE: Duration = Duration::from_millis(50);
/// Most tables that one look has. With more, they take turns.
const MAX_TABLES: usize = 500;
/// Longest time between two looks for tables that no shape needs.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What the looks at the catalog go by.
#[derive(Debug, Default)]
pub(crate) struct CatalogWatch {
    /// Its name.
    publication: String,
    /// How long a table stays in the publication after its last shape; `None`: for ever.
    unpublish_after: Option<Duration>,
    /// The last look at each table that has shapes.
    looks: Mutex<HashMap<u32, ComparedLook>>,
    /// Changes of the publication as a whole by this process: how many are under way, and how many
    /// have ended.
    changing: AtomicU64,
    changed: AtomicU64,
    /// Entries of the publication, as (table, entry), that this process removes, or has removed.
    retired: Mutex<HashMap<(u32, u32), Removal>>,
}

/// A look at a table that its shapes were compared with, and fit.
///
/// A table may change and change back between two looks, such as by ATTACH and DETACH. A shape that
/// was made in between doesn't fit, though the looks are equal.
#[derive(Debug, Clone)]
pub(super) struct ComparedLook {
    pub(super) look: CatalogEntry,
    /// Id of the table's newest shape before the look. Shapes that are newer weren't compared.
    pub(super) newest_shape: Option<u64>,
}

impl ComparedLook {
    /// Returns whether neither the table nor its shapes have changed since the comparison.
    pub(super) fn equals(&self, look: &CatalogEntry, newest_shape: Option<u64>) -> bool {
        self.newest_shape == newest_shape && self.look == *look
    }
}

/// How far the removal of a table from the publication is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    UnderWay,
    /// Done, or its answer was lost.
    Done,
}

/// The result of a look.
#[derive(Debug)]
pub(super) struct CatalogLook {
    pub(super) seen: Snapshot,
    pub(super) looks: Vec<CatalogEntry>,
    /// Id of the newest shape of each table before the look. Newer ones are compared with the next.
    pub(super) newest_shapes: HashMap<u32, u64>,
    /// Whether this process didn't change the publication meanwhile. If it did, the looks have the
    /// publication as the shapes' baselines have it.
    pub(super) is_settled: bool,
}

impl CatalogWatch {
    pub(crate) fn new(publication: &str, unpublish_after: Option<Duration>) -> Arc<Self> {
        let publication = publication.to_owned();
        Arc::new(CatalogWatch { publication, unpublish_after, ..CatalogWatch::default() })
    }

    /// Waits for the end of the removal of a table's entry in the publication, if one is under way.
    /// Returns whether the entry is gone.
    pub(super) async fn is_retired(&self, table: &TableSchema) -> bool {
        loop {
            let removal = lock(&self.retired).get(&(table.oid, table.membership)).copied();
            match removal {
                None => return false,
                Some(Removal::Done) => return true,
                Some(Removal::UnderWay) => sleep(PAUSE).await,
            }
        }
    }

    /// The number of changes so far, unless one is under way.
    fn settled(&self) -> Option<u64> {
        let changed = self.changed.load(Ordering::Acquire);
        (self.changing.load(Ordering::Acquire) == 0).then_some(changed)
    }
}

impl ShapeFactory {
    /// Looks at tables, as the returned snapshot sees them.
    pub(super) async fn look(
        &self,
        client: &PostgresClient,
        tables: TableSelection<'_>,
    ) -> Result<CatalogLook, CatalogError> {
        let (before, newest_shapes) = (self.watch.settled(), self.shapes.newest_shapes());
        let (seen, mut looks) = database::look(client, &self.watch.publication, tables).await?;
        let is_settled = before.is_some() && before == self.watch.settled();
        for look in looks.iter_mut().filter(|_| !is_settled) {
            if let Some(CatalogState { publication, .. }) = self.shapes.state(look.oid) {
                look.state.publication = publication;
            }
        }
        Ok(CatalogLook { seen, looks, newest_shapes, is_settled })
    }

    /// Has partitions published under their own names, which changes the publication's row: the
    /// baselines of all shapes follow. Shapes of partitions from before may have missed changes that
    /// came under an ancestor's name, and go. Runs to its end, though the caller may leave.
    pub(super) async fn publish_partitions(&self, table: &TableName) -> Result<(), PublishError> {
        let (table, described) = (table.clone(), self.described.clone());
        let (manager, shapes, watch) = (self.manager.clone(), self.shapes.clone(), Arc::clone(&self.watch));
        let changing = tokio::spawn(async move {
            let _changing = PublicationChangeGuard::begin(&watch);
            // Before the change: should this fail after it, it wouldn't be tried again.
            delete_partitions(&manager, &shapes).await?;
            let changed = manager.publish_partitions(&table).await;
            if let Ok(Some(versions)) = &changed {
                shapes.update_states(|state| follow(&mut state.publication, *versions));
                described.anew();
                info!(publication = watch.publication, "partitions published under their own names");
            }
            changed.map(drop)
        });
        changing.await.unwrap_or(Err(PublishError::Timeout))
    }

    /// Looks at the tables that have shapes, and for tables that no shape needs, for as long as the
    /// process lives.
    pub(crate) async fn watch_catalog(self: Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut unneeded, mut turn, mut next) = (UnneededTables::default(), None, 0);
        loop {
            ticks.tick().await;
            if self.shapes.turn() != turn {
                // Another process may have written in between, and made other shapes.
                turn = self.shapes.turn();
                unneeded = UnneededTables::default();
                lock(&self.watch.looks).clear();
            }
            if turn.is_none() {
                continue;
            }
            let mut tables = self.shapes.table_oids();
            tables.sort_unstable();
            let from = if next < tables.len() { next } else { 0 };
            next = from + MAX_TABLES;
            let some = &tables[from..next.min(tables.len())];
            match timeout(ANSWER, self.look_at(some)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "catalog not looked at"),
                Err(_) => debug!("catalog not looked at: no answer"),
            }
            if let Some(after) = self.watch.unpublish_after {
                self.unpublish(&mut unneeded, after, turn).await;
            }
        }
    }

    /// Compares the shapes of all tables with the catalog.
    pub(super) async fn look_at_all(&self) {
        if let Err(error) = self.look_at(&self.shapes.table_oids()).await {
            warn!(%error, "tables not compared with the catalog");
        }
    }

    async fn look_at(&self, oids: &[u32]) -> Result<(), LookError> {
        let (tables, partitioned) = (self.shapes.tables(), &[]);
        let looked = {
            let client = self.connection().await?;
            self.look(&client, TableSelection::Listed { all: oids, partitioned }).await?
        };
        self.shapes.forget_visible(&looked.seen);
        let current = self.shapes.table_oids();
        lock(&self.watch.looks).retain(|oid, _| current.contains(oid));
        let looks: HashMap<u32, &CatalogEntry> = looked.looks.iter().map(|look| (look.oid, look)).collect();
        let oids: HashSet<u32> = oids.iter().copied().collect();
        for table in tables.iter().filter(|table| oids.contains(&table.oid)) {
            let look = looks.get(&table.oid).copied();
            let newest_shape = looked.newest_shapes.get(&table.oid).copied();
            let last = lock(&self.watch.looks).get(&table.oid).cloned();
            if look.zip(last).is_some_and(|(look, last)| last.equals(look, newest_shape)) {
                continue;
            }
            let is_compared = self.check(table.oid, &TableName::new(&table.schema, &table.name)).await;
            // Should it have changed in between, the next look differs.
            if let Some(look) = look.filter(|_| looked.is_settled && is_compared) {
                let compared = ComparedLook { look: look.clone(), newest_shape };
                lock(&self.watch.looks).insert(table.oid, compared);
            }
        }
        Ok(())
    }

    async fn unpublish(&self, unneeded: &mut UnneededTables, after: Duration, turn: Option<u64>) {
        let now = Instant::now();
        if unneeded.looked.is_some_and(|looked| now < looked + (after / 4).min(LONGEST_PAUSE)) {
            return;
        }
        unneeded.looked = Some(now);
        let Ok(tables) = self.manager.unneeded_tables(&self.shapes.table_oids()).await else { return };
        unneeded.since.retain(|table, _| tables.contains_key(table));
        for (table, place) in tables {
            let since = *unneeded.since.entry(table.clone()).or_insert(now);
            // Another process may write by now, and need it.
            if now >= since + after && self.shapes.turn() == turn {
                self.unpublish_one(&table, place).await;
            }
        }
    }

    /// Takes a table out of the publication that no shape needs. A shape that is made meanwhile with
    /// the entry that goes is deleted here or given up in [`ShapeFactory::fill`], whichever comes last.
    async fn unpublish_one(&self, table: &TableName, place: (u32, u32)) {
        lock(&self.watch.retired).insert(place, Removal::UnderWay);
        self.forget_known(table);
        if self.shapes.table_oids().contains(&place.0) {
            lock(&self.watch.retired).remove(&place);
            return;
        }
        match self.manager.remove_table(table).await {
            Ok(()) => info!(
                %table,
                "table removed from the publication: no shape needs it; its REPLICA IDENTITY stays as it is"
            ),
            Err(error) => {
                // The next look tries again. Unless the answer was lost, the entry is still there.
                let is_refused = matches!(&error, PublishError::Busy { .. } | PublishError::Pool(_))
                    || matches!(&error, PublishError::Server(error) if error.code().is_some());
                warn!(%table, %error, "table not removed from the publication");
                if is_refused {
                    lock(&self.watch.retired).remove(&place);
                    return;
                }
            }
        }
        lock(&self.watch.retired).insert(place, Removal::Done);
        self.leave_stale(table, None);
    }
}

/// A change of the publication as a whole by this process, from here to its drop.
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
async fn delete_partitions(manager: &Manager, shapes: &Shapes) -> Result<(), PublishError> {
    let client = manager.admin().await?;
    for oid in shapes.table_oids() {
        match database::relatives(&client, oid).await {
            Ok(relatives) if relatives.ancestors.is_empty() => {}
            Ok(_) => shapes.delete_table(oid),
            Err(CatalogError::Database(error)) => return Err(error.into()),
            Err(CatalogError::NoAnswer) => return Err(PublishError::Timeout),
        }
    }
    Ok(())
}

/// Tables in the publication that no shape needs, and since when.
#[derive(Debug, Default)]
struct UnneededTables {
    looked: Option<Instant>,
    since: HashMap<TableName, Instant>,
}

/// Why the catalog wasn't looked at.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Pool(#[from] forebay_replication::PoolError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// A publication's words begin with its oid and the xmin of its row.
fn follow(publication: &mut String, versions: PublicationVersions) {
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
    fn a_change_of_our_own_is_followed_and_no_other() {
        let follow = |publication: &str| {
            let mut publication = publication.to_owned();
            super::follow(&mut publication, PublicationVersions { before: 7, after: 9 });
            publication
        };
        assert_eq!(follow("16400 7 table 5 7"), "16400 9 table 5 7");
        assert_eq!(follow("16400 8 table 5 7"), "16400 8 table 5 7");
        assert_eq!(follow("7"), "7");
        assert_eq!(follow(""), "");
    }
}
