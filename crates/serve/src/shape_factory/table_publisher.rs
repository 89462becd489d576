//! Table publisher: adds the tables of shapes to the publication, removes tables that no shape
//! needs, and deletes shapes that may miss changes.
//!
//! Invariant: since a shape was created, its table has been in the publication without
//! interruption, and the publication has had every kind of change.
//! Enforced by: a table is published before its shapes are created, and its shapes are deleted if
//! publishing had to repair it. A removal is announced before it begins, and a snapshot of the
//! table waits for its end ([`TablePublisher::wait_for_removal`]).
//! Out of scope: which tables no shape needs; see `catalog_watch.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{Manager, PublicationVersions, PublishError, TableName, TablePublication};
use forebay_shapes::{CatalogState, Shape, Shapes, TableSchema};
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::sleep;
use tracing::{info, warn};

use super::refusals::publish_refusal;
use super::table_describer::TableDescriber;
use super::table_schema;
use crate::catalog_scanner::PublicationChanges;
use crate::database::{self, CatalogError, TableDescription};
use crate::protocol::RequestRefusal;
use crate::schema_monitor::SchemaEpoch;

/// Maximum number of attempts to publish a table that changes meanwhile.
const MAX_PUBLISH_ATTEMPTS: usize = 4;
/// Interval at which a task checks whether a removal has ended. A removal waits at most 2 s for its
/// lock.
const REMOVAL_POLL: Duration = Duration::from_millis(50);

/// Changes which tables are in the publication.
#[derive(Debug)]
pub(crate) struct TablePublisher {
    manager: Manager,
    shapes: Shapes,
    schema_epoch: SchemaEpoch,
    describer: TableDescriber,
    changes: PublicationChanges,
    /// Entries of the publication that this process removes or has removed, by oid of the table and
    /// of the entry.
    removals: Mutex<HashMap<(u32, u32), RemovalState>>,
}

/// State of the removal of a table from the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovalState {
    InProgress,
    /// The entry was removed, or the server's reply was lost.
    Done,
}

/// Whether this process has removed a table's entry from the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalOutcome {
    Kept,
    Removed,
}

/// Why a table isn't in the publication.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TablePublishError {
    #[error(transparent)]
    Refused(#[from] PublishError),
    /// The task that changes the publication panicked, or the runtime is shutting down.
    #[error("the change of the publication was aborted: {0}")]
    Aborted(#[source] JoinError),
}

impl TablePublisher {
    pub(crate) fn new(
        manager: Manager,
        shapes: Shapes,
        schema_epoch: SchemaEpoch,
        describer: TableDescriber,
        changes: PublicationChanges,
    ) -> Self {
        let removals = Mutex::default();
        TablePublisher { manager, shapes, schema_epoch, describer, changes, removals }
    }

    /// Publishes a table and describes it again.
    ///
    /// The publication is verified between two descriptions, which must have the same entry of the
    /// publication. So shapes of the table store an entry that publishes every kind of change.
    pub(super) async fn publish_as_described(
        &self,
        name: &TableName,
        (mut description, mut state): (TableDescription, CatalogState),
    ) -> Result<(TableDescription, TableSchema), RequestRefusal> {
        for _ in 0..MAX_PUBLISH_ATTEMPTS {
            let published = self.publish(name).await.map_err(|error| publish_refusal(&error))?;
            self.delete_stale_shapes(name, Some(published));
            // Publishing may have set the replica identity, and so changed the edition.
            let (again, after) = self.describer.describe(name).await?;
            let is_same_entry = after.publication == state.publication;
            let is_same_table = again.fingerprint() == description.fingerprint();
            (description, state) = (again, after);
            if is_same_entry && is_same_table {
                let table = table_schema(&description, published.membership, Some(state));
                return Ok((description, table));
            }
        }
        Err(RequestRefusal::SnapshotFailed {
            message: "the table or its publication changes: try again".into(),
        })
    }

    /// Adds a table to the publication. The first partition switches the publication to
    /// `publish_via_partition_root = false`.
    pub(crate) async fn publish(&self, name: &TableName) -> Result<TablePublication, TablePublishError> {
        match self.manager.add_table(name).await {
            Err(PublishError::PublishedViaRoot { .. }) => {
                self.publish_partitions(name).await?;
                Ok(self.manager.add_table(name).await?)
            }
            published => Ok(published?),
        }
    }

    /// Publishes partitions under their own names. This changes the publication's row, so the
    /// baselines of all shapes are updated.
    ///
    /// Existing shapes of partitions are deleted: they may have missed changes that came under an
    /// ancestor's name. Runs to completion even if the caller is dropped.
    async fn publish_partitions(&self, table: &TableName) -> Result<(), TablePublishError> {
        let (table, schema_epoch) = (table.clone(), self.schema_epoch.clone());
        let (manager, shapes, changes) = (self.manager.clone(), self.shapes.clone(), self.changes.clone());
        let changing = tokio::spawn(async move {
            let _change = changes.begin();
            // Deleted before the change. If the deletion failed after the change, there would be no
            // second attempt.
            delete_shapes_of_partitions(&manager, &shapes).await?;
            let changed = manager.publish_partitions(&table).await;
            if let Ok(Some(versions)) = &changed {
                shapes.update_baselines(|state| update_version(&mut state.publication, *versions));
                schema_epoch.advance();
                info!(publication = changes.publication(), "partitions published under their own names");
            }
            changed.map(drop)
        });
        Ok(changing.await.map_err(TablePublishError::Aborted)??)
    }

    /// Deletes the shapes of a table's name that may miss changes: those with another oid or
    /// another entry in the publication, and all if publishing had to repair the table. `None`: the
    /// table doesn't exist, or isn't published.
    pub(crate) fn delete_stale_shapes(&self, name: &TableName, published: Option<TablePublication>) {
        let is_stale = |shape: &Arc<Shape>| {
            let TableSchema { schema, name: of, oid, membership, .. } = &*shape.definition().table;
            let is_whole =
                |now: TablePublication| now.was_whole && (now.oid, now.membership) == (*oid, *membership);
            (&**schema, &**of) == (&*name.schema, &*name.name) && !published.is_some_and(is_whole)
        };
        let stale: Vec<_> = self.shapes.all().into_iter().filter(is_stale).collect();
        if !stale.is_empty() {
            // Requests for the new shape must not use the cached table.
            self.schema_epoch.advance();
            info!(table = %name, shapes = stale.len(), "shapes deleted: changes of their table may be missing");
        }
        for shape in stale {
            self.shapes.delete(shape.handle());
        }
    }

    /// Announces the removal of a table's entry. From here on, snapshots of the table wait for its
    /// end. [`TablePublisher::remove`] must follow.
    pub(crate) fn announce_removal(&self, entry: (u32, u32)) {
        self.removals.lock().insert(entry, RemovalState::InProgress);
    }

    /// Removes a table from the publication, unless it has shapes by now.
    ///
    /// Race: a shape may be created meanwhile with the entry that is removed. Either this function
    /// deletes the shape, or its snapshot finds the entry removed and fails.
    pub(crate) async fn remove(&self, table: &TableName, entry: (u32, u32)) {
        if self.shapes.table_oids().contains(&entry.0) {
            self.removals.lock().remove(&entry);
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
                    self.removals.lock().remove(&entry);
                    return;
                }
            }
        }
        self.removals.lock().insert(entry, RemovalState::Done);
        self.delete_stale_shapes(table, None);
    }

    /// Waits for the end of the removal of a table's entry, if one is in progress.
    pub(super) async fn wait_for_removal(&self, table: &TableSchema) -> RemovalOutcome {
        loop {
            let removal = self.removals.lock().get(&(table.oid, table.membership)).copied();
            match removal {
                None => return RemovalOutcome::Kept,
                Some(RemovalState::Done) => return RemovalOutcome::Removed,
                Some(RemovalState::InProgress) => sleep(REMOVAL_POLL).await,
            }
        }
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

    #[tokio::test]
    async fn a_panic_while_the_publication_changes_is_named() {
        let panicked =
            tokio::spawn(async { panic!("of the test") }).await.map_err(TablePublishError::Aborted);
        let error = panicked.expect_err("the task panicked").to_string();
        assert!(error.starts_with("the change of the publication was aborted: "), "{error}");
    }
}
