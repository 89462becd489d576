//! Table describer: reads a table's description and its catalog entry.

use forebay_replication::{Manager, TableName};
use forebay_shapes::CatalogState;
use tracing::warn;

use super::refusals::{describe_refusal, pool_refusal};
use crate::catalog_scanner::CatalogScanner;
use crate::database::{self, DescribeError, TableDescription, TableSelection};
use crate::protocol::RequestRefusal;

/// Reads descriptions of tables. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TableDescriber {
    manager: Manager,
    scanner: CatalogScanner,
}

impl TableDescriber {
    pub(crate) fn new(manager: Manager, scanner: CatalogScanner) -> Self {
        TableDescriber { manager, scanner }
    }

    /// Describes a table. The catalog entry is read first: if the table changes in between, the
    /// next scan finds a difference.
    pub(super) async fn describe(
        &self,
        name: &TableName,
    ) -> Result<(TableDescription, CatalogState), RequestRefusal> {
        let client = self.manager.admin().await.map_err(|error| pool_refusal(&error))?;
        let tables = TableSelection::Named(&name.schema, &name.name);
        let (scan, description) = tokio::join!(
            biased;
            self.scanner.scan(&client, tables),
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

    /// Returns whether no table has this name any more. `false` if the database can't be queried.
    pub(super) async fn is_dropped(&self, name: &TableName) -> bool {
        let Ok(client) = self.manager.admin().await else { return false };
        let described = database::describe(&client, name).await;
        matches!(described, Err(DescribeError::NotFound { .. } | DescribeError::NotATable { .. }))
    }
}
