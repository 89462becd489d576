//! Schema monitor: compares the tables that the replication stream describes with the tables that
//! shapes were created for.
//!
//! Invariant: no change of a row reaches a shape whose table was different when the row changed.
//! Enforced by: Postgres sends a Relation message, with names and types, before a table's first
//! change after the table or the publication was altered. Keys and collations are only in the
//! catalog. So at that message, the stream waits until the catalog was read with a snapshot that
//! sees what the transaction did to the table. Shapes that don't fit are deleted.
//!
//! Partitions: with `publish_via_partition_root = false`, a partition's changes come under its own
//! name, and belong to the shapes of its ancestors, too. [`SchemaMonitor::compare_relation`]
//! returns the ancestors. The lineage of an ancestor's shapes contains its list of partitions. So
//! an attach or detach after the change replaces those shapes. For every remaining shape, the
//! current catalog has the ancestors that the partition had at the change.
//! Out of scope: altered tables whose rows don't change; see `catalog_watch.rs`.
//!
//! While the catalog can't be read, nothing is read from the stream, but status updates are still
//! sent. After [`CATALOG_TIMEOUT`] the stream ends, and later resumes from the same position.
//! Without this limit, a Postgres server couldn't shut down: it waits for its walsender, and
//! accepts no connection that could read the catalog.
//! The wait for a commit to become visible has no limit.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_replication::TableName;
use forebay_replication::pgoutput::Relation;
use forebay_replication::reservoir::PostgresClient;
use forebay_shapes::{PartitionTree, Shapes, TableSchema};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::warn;

use super::catalog_scanner::{CatalogScan, CatalogScanner, ComparedEntry};
use super::connection_lender::ConnectionBorrower;
use super::database::{self, CatalogEntry, DescribeError, TableSelection};
use super::shape_factory::{VISIBILITY_RETRY, table_schema};

/// Maximum time for which the stream waits for the catalog. It is longer than both pools take to
/// report that they have no connection, and shorter than operators wait for a server to stop.
const CATALOG_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for which the stream waits for the catalog if no shape depends on the table.
const UNUSED_TABLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Schema epoch: counts the notices of altered tables. A table that was cached in an earlier epoch
/// may be outdated.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchemaEpoch(Arc<AtomicU64>);

impl SchemaEpoch {
    /// Begins the next epoch.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Compares the tables that the replication stream describes with their shapes, in stream order.
#[derive(Debug)]
pub(crate) struct SchemaMonitor {
    shapes: Shapes,
    schema_epoch: SchemaEpoch,
    scanner: CatalogScanner,
    connections: ConnectionBorrower,
    /// By oid: the last compared catalog entry of each table with shapes.
    compared: HashMap<u32, ComparedEntry>,
}

pub(crate) type CompareError = Box<dyn Error + Send + Sync>;

impl SchemaMonitor {
    pub(crate) fn new(
        shapes: Shapes,
        schema_epoch: SchemaEpoch,
        scanner: CatalogScanner,
        connections: ConnectionBorrower,
    ) -> Self {
        SchemaMonitor { shapes, schema_epoch, scanner, connections, compared: HashMap::new() }
    }

    /// Forgets all comparisons, for a new stream. Another process may have written in between and
    /// created other shapes.
    pub(crate) fn restart(&mut self) {
        self.compared.clear();
        self.schema_epoch.advance();
    }

    /// Waits until the catalog shows what transaction `xid` did to the table of `relation`, and
    /// deletes shapes that don't fit the table. Returns the table's partitions and ancestors.
    ///
    /// # Errors
    /// Fails if the catalog can't be read for [`CATALOG_TIMEOUT`].
    pub(crate) async fn compare_relation(
        &mut self,
        relation: &Relation<'_>,
        xid: Option<u32>,
    ) -> Result<PartitionTree, CompareError> {
        let table = TableName::new(relation.namespace, relation.name);
        if !self.concerns_shapes(relation.oid) {
            // A shape of a partitioned table that is created later needs the table's ancestors, but
            // the stream doesn't wait long for them.
            let tree = timeout(UNUSED_TABLE_TIMEOUT, self.try_compare(relation.oid, None)).await;
            return Ok(tree.ok().and_then(Result::ok).flatten().unwrap_or_default());
        }
        let mut until = Instant::now() + CATALOG_TIMEOUT;
        loop {
            match timeout_at(until, self.try_compare(relation.oid, xid)).await {
                Ok(Ok(Some(tree))) => return Ok(tree),
                Ok(Ok(None)) => {
                    until = Instant::now() + CATALOG_TIMEOUT;
                    sleep(VISIBILITY_RETRY).await;
                }
                Ok(Err(why)) if Instant::now() + RETRY_PAUSE < until => {
                    warn!(%table, %why, "replication paused: catalog unavailable");
                    sleep(RETRY_PAUSE).await;
                }
                Ok(Err(why)) => return Err(why),
                Err(_) => {
                    return Err(
                        format!("the catalog didn't describe {table} within {CATALOG_TIMEOUT:?}").into()
                    );
                }
            }
        }
    }

    /// Compares the shapes of partitioned tables with the catalog. Called before changes of
    /// partitions are stored: Postgres describes a partition again when it is attached or detached,
    /// but not when a sibling is.
    ///
    /// # Errors
    /// Fails if the catalog can't be read for [`CATALOG_TIMEOUT`].
    pub(crate) async fn compare_partitioned(&mut self) -> Result<(), CompareError> {
        let until = Instant::now() + CATALOG_TIMEOUT;
        loop {
            match timeout_at(until, self.try_compare_partitioned()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) if Instant::now() + RETRY_PAUSE < until => {
                    warn!(%why, "replication paused: catalog unavailable");
                    sleep(RETRY_PAUSE).await;
                }
                Ok(Err(why)) => return Err(why),
                Err(_) => return Err(format!("the catalog didn't answer within {CATALOG_TIMEOUT:?}").into()),
            }
        }
    }

    async fn try_compare_partitioned(&mut self) -> Result<(), CompareError> {
        let oids = self.shapes.table_oids();
        if oids.is_empty() {
            return Ok(());
        }
        let client = self.connections.borrow().await?;
        let tables = TableSelection::Listed { all: &[], partitioned: &oids };
        let scan = self.scanner.scan(&client, tables).await?;
        self.compare_all(&client, &scan).await
    }

    /// Compares shapes with scanned entries, unless both are unchanged since the last comparison.
    async fn compare_all(&mut self, client: &PostgresClient, scan: &CatalogScan) -> Result<(), CompareError> {
        for entry in &scan.entries {
            let newest_shape = scan.newest_shapes.get(&entry.oid).copied();
            if self.compared.get(&entry.oid).is_some_and(|last| last.equals(entry, newest_shape)) {
                continue;
            }
            let fit = self.compare(client, entry).await?;
            if fit == ShapeFit::Fits && scan.publication_unchanged {
                self.compared.insert(entry.oid, ComparedEntry { entry: entry.clone(), newest_shape });
            }
        }
        Ok(())
    }

    /// Returns whether shapes may depend on a table: on itself, or on an ancestor of it.
    fn concerns_shapes(&self, oid: u32) -> bool {
        self.shapes.follows(oid) || self.shapes.tables().iter().any(|table| has_partitions(table))
    }

    /// Compares shapes once. Returns `None` while the transaction's effect on the table isn't
    /// visible.
    async fn try_compare(
        &mut self,
        oid: u32,
        xid: Option<u32>,
    ) -> Result<Option<PartitionTree>, CompareError> {
        let client = self.connections.borrow().await?;
        // A partition's changes belong to its ancestors, also to those from which it was detached
        // since. So the shapes of all partitioned tables are compared, too.
        let partitioned = self.shapes.table_oids();
        self.compared.retain(|oid, _| partitioned.contains(oid));
        let tables = TableSelection::Listed { all: &[oid], partitioned: &partitioned };
        let scan = self.scanner.scan(&client, tables).await?;
        if let Some(xid) = xid.filter(|xid| !scan.snapshot.sees(*xid))
            && !changes_rows_only(&client, oid, xid).await?
        {
            return Ok(None);
        }
        let exists = scan.entries.iter().any(|entry| entry.oid == oid);
        self.compare_all(&client, &scan).await?;
        if !exists {
            self.shapes.delete_table(oid);
        }
        if !scan.entries.iter().any(|entry| entry.oid == oid && entry.has_partition_tree) {
            return Ok(Some(PartitionTree::default()));
        }
        let tree = database::partition_tree(&client, oid).await?;
        // Race: the partition may be detached between the first scan and `partition_tree`. Then the
        // tree lacks the ancestor, although the next change may be from before the detach. The
        // second scan comes after it, finds the ancestor changed, and deletes its shapes.
        let tables = TableSelection::Listed { all: &[], partitioned: &partitioned };
        let scan = self.scanner.scan(&client, tables).await?;
        self.compare_all(&client, &scan).await?;
        Ok(Some(tree))
    }

    /// Deletes the shapes that don't fit their table any more.
    async fn compare(&self, client: &PostgresClient, entry: &CatalogEntry) -> Result<ShapeFit, CompareError> {
        let Some(table) = self.shapes.tables().into_iter().find(|table| table.oid == entry.oid) else {
            return Ok(ShapeFit::NoShapes);
        };
        let name = TableName::new(&table.schema, &table.name);
        match database::describe_ignoring_privileges(client, &name).await {
            Ok(now) if now.oid == entry.oid => {
                self.shapes.check_schema(&table_schema(&now, 0, Some(entry.state.clone())));
                Ok(ShapeFit::Fits)
            }
            Err(DescribeError::Database(error)) => Err(error.into()),
            // The table was renamed or dropped, or can't be followed any more.
            Ok(_) | Err(_) => {
                self.shapes.delete_table(entry.oid);
                Ok(ShapeFit::NoShapes)
            }
        }
    }
}

/// Whether a table has shapes after a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShapeFit {
    /// All remaining shapes fit the catalog entry.
    Fits,
    /// The table has no shapes, or they were deleted.
    NoShapes,
}

/// Returns whether a table has partitions. Its lineage has one word for the primary key's
/// constraint, if any, and one for the partitions, if any.
fn has_partitions(table: &TableSchema) -> bool {
    let words = table.lineage.split_whitespace().count();
    words > usize::from(!table.key.is_empty())
}

/// Returns whether an open transaction changed only rows of the table. `false`: it may have altered
/// the table, or has ended by now.
///
/// Postgres makes a commit visible after its record is in the WAL, and with synchronous standbys
/// only after they have it. Until then the transaction holds its locks, which show what it did.
async fn changes_rows_only(client: &PostgresClient, oid: u32, xid: u32) -> Result<bool, CompareError> {
    let is_altering = database::is_altering_table(client, oid, xid).await?;
    // A transaction that has ended holds no locks. So the answer is valid only if the transaction
    // is still open after its locks were read.
    let snapshot = database::current_snapshot(client).await?;
    Ok(!is_altering && !snapshot.sees(xid))
}
