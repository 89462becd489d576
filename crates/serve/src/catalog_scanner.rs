//! Catalog scanner: reads the catalog entries of tables with one snapshot.
//!
//! Invariant: a change that this process makes to the whole publication is never mistaken for an
//! alteration from outside.
//! Enforced by: while [`PublicationChanges`] has a change in progress, or one ended during the
//! scan, the scanned state of the publication is replaced by that of the shapes' baselines.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_replication::pgoutput::Snapshot;
use forebay_replication::reservoir::PostgresClient;
use forebay_shapes::{CatalogState, Shapes};

use super::database::{self, CatalogEntry, CatalogError, TableSelection};

/// Reads catalog entries. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CatalogScanner {
    shapes: Shapes,
    changes: PublicationChanges,
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
    pub(super) publication_unchanged: bool,
}

impl CatalogScanner {
    pub(crate) fn new(shapes: Shapes, changes: PublicationChanges) -> Self {
        CatalogScanner { shapes, changes }
    }

    /// Reads the catalog entries of tables with one snapshot.
    pub(super) async fn scan(
        &self,
        client: &PostgresClient,
        tables: TableSelection<'_>,
    ) -> Result<CatalogScan, CatalogError> {
        let (before, newest_shapes) = (self.changes.ended_if_idle(), self.shapes.newest_shapes());
        let (snapshot, mut entries) =
            database::read_entries(client, self.changes.publication(), tables).await?;
        let publication_unchanged = before.is_some() && before == self.changes.ended_if_idle();
        for entry in entries.iter_mut().filter(|_| !publication_unchanged) {
            if let Some(CatalogState { publication, .. }) = self.shapes.baseline(entry.oid) {
                entry.state.publication = publication;
            }
        }
        Ok(CatalogScan { snapshot, entries, newest_shapes, publication_unchanged })
    }
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

/// Counts the changes of the whole publication that this process makes. Clones share the counts.
#[derive(Debug, Clone)]
pub(crate) struct PublicationChanges {
    /// Name of the publication.
    publication: Arc<str>,
    counts: Arc<ChangeCounts>,
}

#[derive(Debug, Default)]
struct ChangeCounts {
    in_progress: AtomicU64,
    ended: AtomicU64,
}

impl PublicationChanges {
    pub(crate) fn new(publication: &str) -> Self {
        PublicationChanges { publication: publication.into(), counts: Arc::default() }
    }

    /// Returns the name of the publication.
    pub(super) fn publication(&self) -> &str {
        &self.publication
    }

    /// Marks a change as in progress until the guard is dropped.
    pub(super) fn begin(&self) -> PublicationChangeGuard {
        self.counts.in_progress.fetch_add(1, Ordering::AcqRel);
        PublicationChangeGuard { counts: Arc::clone(&self.counts) }
    }

    /// Returns the number of changes that have ended. `None`: one is in progress.
    fn ended_if_idle(&self) -> Option<u64> {
        let ended = self.counts.ended.load(Ordering::Acquire);
        (self.counts.in_progress.load(Ordering::Acquire) == 0).then_some(ended)
    }
}

/// A change of the whole publication by this process.
#[must_use = "the change ends when this is dropped"]
pub(super) struct PublicationChangeGuard {
    counts: Arc<ChangeCounts>,
}

impl Drop for PublicationChangeGuard {
    fn drop(&mut self) {
        self.counts.ended.fetch_add(1, Ordering::AcqRel);
        self.counts.in_progress.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_notices_a_change_in_progress_and_one_that_ended_meanwhile() {
        let changes = PublicationChanges::new("forebay");
        let before = changes.ended_if_idle();
        assert!(before.is_some());
        let change = changes.begin();
        assert_eq!(changes.ended_if_idle(), None);
        drop(change);
        assert!(changes.ended_if_idle().is_some_and(|ended| before != Some(ended)));
    }
}
