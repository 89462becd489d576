//! Table publishing: adds the tables of shapes to the publication, and deletes shapes that may miss
//! changes.
//!
//! Invariant: since a shape was created, its table has been in the publication without
//! interruption, and the publication has had every kind of change.
//! Out of scope: taking tables out of the publication; see `catalog_watch.rs`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{PublishError, TableName, TablePublication};
use forebay_shapes::{CatalogState, Shape, TableSchema};
use tracing::{info, warn};

use super::refusals::publish_refusal;
use super::{ShapeFactory, table_schema};
use crate::database;
use crate::protocol::RequestRefusal;

/// Maximum number of attempts to publish a table that changes meanwhile.
const MAX_PUBLISH_ATTEMPTS: usize = 4;
/// Pause before tables that couldn't be published are tried again.
const REPUBLISH_RETRY: Duration = Duration::from_secs(5);

impl ShapeFactory {
    /// Publishes the tables of all existing shapes, and deletes the shapes that may miss changes.
    /// Returns when every table is published or doesn't exist.
    pub(crate) async fn republish(&self) {
        let shapes = self.shapes.all();
        let tables = shapes.iter().map(|shape| &shape.definition().table);
        let mut tables: HashSet<_> = tables.map(|table| TableName::new(&table.schema, &table.name)).collect();
        let mut is_first = true;
        loop {
            let mut left = HashSet::new();
            for table in tables {
                match self.publish(&table).await {
                    Ok(published) => self.delete_stale_shapes(&table, Some(published)),
                    Err(PublishError::NotFound { .. } | PublishError::NotATable { .. }) => {
                        self.delete_stale_shapes(&table, None);
                    }
                    Err(error) => {
                        warn!(%table, %error, "table with shapes not added to the publication");
                        left.insert(table);
                    }
                }
            }
            if std::mem::take(&mut is_first) {
                self.compare_all_tables().await;
            }
            if left.is_empty() {
                return;
            }
            tables = left;
            tokio::time::sleep(REPUBLISH_RETRY).await;
        }
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

    /// Publishes a table and describes it again.
    ///
    /// The publication is verified between two descriptions, which must have the same entry of the
    /// publication. So shapes of the table store an entry that publishes every kind of change.
    pub(super) async fn publish_as_described(
        &self,
        name: &TableName,
        (mut description, mut state): (database::TableDescription, CatalogState),
    ) -> Result<(database::TableDescription, TableSchema), RequestRefusal> {
        for _ in 0..MAX_PUBLISH_ATTEMPTS {
            let published = self.publish(name).await.map_err(|error| publish_refusal(&error))?;
            self.delete_stale_shapes(name, Some(published));
            // Publishing may have set the replica identity, and so changed the edition.
            let (again, after) = self.describe(name).await?;
            let is_settled = after.publication == state.publication;
            let is_same = again.fingerprint() == description.fingerprint();
            (description, state) = (again, after);
            if is_settled && is_same {
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
    async fn publish(&self, name: &TableName) -> Result<TablePublication, PublishError> {
        match self.manager.add_table(name).await {
            Err(PublishError::PublishedViaRoot { .. }) => {
                self.publish_partitions(name).await?;
                self.manager.add_table(name).await
            }
            published => published,
        }
    }
}
