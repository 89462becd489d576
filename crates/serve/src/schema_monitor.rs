//! Compares the tables that the replication stream describes with what their shapes were made of.
//!
//! Invariant: no change of a row reaches a shape whose table was another when the row was changed.
//! Enforced by: Postgres describes a table (Relation) before its first change after anything was
//! done to the table or to the publication, and says names and types. The stream waits there until
//! the catalog, which has the rest, was read with a snapshot that sees what that transaction did to
//! the table. Shapes that don't fit are deleted.
//!
//! Partitions: with `publish_via_partition_root = false` a partition's changes come under its own
//! name, and concern the shapes of its ancestors, too. [`SchemaMonitor::fit`] returns which they are. A
//! partition that was attached or detached since the change replaces the shapes of its ancestors,
//! because their lineage has the list of partitions: so what the catalog says now is right for
//! every shape that is left.
//! Not here: what is done to a table whose rows don't change; see `catalog_watch.rs`.
//! Bounds: while nobody answers, nothing is read from the server, which hears from us all the same; but not for longer than [`PATIENCE`]. A server
//! that shuts down lets nobody else in and waits for whoever streams: the stream ends then, and comes again from where it was.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_replication::TableName;
use forebay_replication::pgoutput::Relation;
use forebay_replication::reservoir::PostgresClient;
use forebay_shapes::{PartitionTree, Shapes, TableSchema};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::warn;

use super::catalog_watch::{CatalogLook, ComparedLook};
use super::database::{self, CatalogEntry, DescribeError, TableSelection};
use super::shape_factory::{EARLY, ShapeFactory, followed};

/// How long the database may say nothing: more than both pools take to say that they have no connection, and less than whoever stops a server
/// waits for that.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time that the catalog may take for a table that no shape depends on.
const BRIEFLY: Duration = Duration::from_secs(1);
/// How long until the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// How many times the stream has described a table. What was known before may be wrong then.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchemaEpoch(Arc<State>);

#[derive(Debug, Default)]
struct State {
    times: AtomicU64,
    /// Who has connections. It has the manager, whose end the stream's own hold on it would prevent.
    making: OnceLock<Weak<ShapeFactory>>,
}

impl SchemaEpoch {
    pub(crate) fn anew(&self) {
        self.0.times.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn times(&self) -> u64 {
        self.0.times.load(Ordering::Acquire)
    }

    pub(super) fn asks(&self, making: &Arc<ShapeFactory>) {
        // It is made once.
        let _first = self.0.making.set(Arc::downgrade(making));
    }
}

/// Compares the tables that the replication stream describes with what their shapes were made of,
/// in the stream's order.
#[derive(Debug)]
pub(crate) struct SchemaMonitor {
    shapes: Shapes,
    described: SchemaEpoch,
    /// The last look at each table that has shapes.
    looks: HashMap<u32, ComparedLook>,
}

pub(crate) type CompareError = Box<dyn Error + Send + Sync>;

impl SchemaMonitor {
    pub(crate) fn new(shapes: Shapes, described: SchemaEpoch) -> Self {
        SchemaMonitor { shapes, described, looks: HashMap::new() }
    }

    /// Another stream begins. Another process may have written in between, and made other shapes.
    pub(crate) fn restart(&mut self) {
        self.looks.clear();
        self.described.anew();
    }

    /// Waits until the shapes of a table that transaction `xid` describes fit the table as it is,
    /// with what the transaction did to it. Returns the table's partitions and ancestors.
    ///
    /// # Errors
    /// When the catalog can't be read for [`PATIENCE`].
    pub(crate) async fn fit(
        &mut self,
        relation: &Relation<'_>,
        xid: Option<u32>,
    ) -> Result<PartitionTree, CompareError> {
        let table = TableName::new(relation.namespace, relation.name);
        if !self.concerns_shapes(relation.oid) {
            // Shapes of partitioned tables that come later want to know of whom it is a part, but
            // nothing is to wait for that.
            let fit = timeout(BRIEFLY, self.try_fit(relation.oid, None)).await;
            return Ok(fit.ok().and_then(Result::ok).flatten().unwrap_or_default());
        }
        let mut until = Instant::now() + PATIENCE;
        loop {
            match timeout_at(until, self.try_fit(relation.oid, xid)).await {
                Ok(Ok(Some(relatives))) => return Ok(relatives),
                Ok(Ok(None)) => {
                    until = Instant::now() + PATIENCE;
                    sleep(EARLY).await;
                }
                Ok(Err(why)) if Instant::now() + PAUSE < until => {
                    warn!(%table, %why, "replication paused: catalog unavailable");
                    sleep(PAUSE).await;
                }
                Ok(Err(why)) => return Err(why),
                Err(_) => {
                    return Err(format!("the catalog didn't describe {table} within {PATIENCE:?}").into());
                }
            }
        }
    }

    /// Compares the shapes of partitioned tables with the catalog, before changes of partitions are
    /// taken: Postgres describes a partition anew when it is attached or detached itself, and not
    /// when another one is.
    ///
    /// # Errors
    /// When the catalog can't be read for [`PATIENCE`].
    pub(crate) async fn fit_partitioned(&mut self) -> Result<(), CompareError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match timeout_at(until, self.try_fit_partitioned()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) if Instant::now() + PAUSE < until => {
                    warn!(%why, "replication paused: catalog unavailable");
                    sleep(PAUSE).await;
                }
                Ok(Err(why)) => return Err(why),
                Err(_) => return Err(format!("the catalog didn't answer within {PATIENCE:?}").into()),
            }
        }
    }

    async fn try_fit_partitioned(&mut self) -> Result<(), CompareError> {
        let oids = self.shapes.table_oids();
        if oids.is_empty() {
            return Ok(());
        }
        let making =
            self.described.0.making.get().and_then(Weak::upgrade).ok_or("the server starts or ends")?;
        let client = making.connection().await?;
        let tables = TableSelection::Listed { all: &[], partitioned: &oids };
        let looked = making.look(&client, tables).await?;
        self.compare_all(&client, &looked).await
    }

    /// Compares shapes with looks, except where both are as they were at the last comparison.
    async fn compare_all(
        &mut self,
        client: &PostgresClient,
        looked: &CatalogLook,
    ) -> Result<(), CompareError> {
        for look in &looked.looks {
            let newest_shape = looked.newest_shapes.get(&look.oid).copied();
            if self.looks.get(&look.oid).is_some_and(|last| last.equals(look, newest_shape)) {
                continue;
            }
            let fits = self.compare(client, look).await?;
            if fits && looked.is_settled {
                self.looks.insert(look.oid, ComparedLook { look: look.clone(), newest_shape });
            }
        }
        Ok(())
    }

    /// Returns whether shapes may depend on a table: their own, or one that they have partitions of.
    fn concerns_shapes(&self, oid: u32) -> bool {
        self.shapes.follows(oid) || self.shapes.tables().iter().any(|table| has_partitions(table))
    }

    /// Returns `None` while what the transaction did to the table isn't visible.
    async fn try_fit(&mut self, oid: u32, xid: Option<u32>) -> Result<Option<PartitionTree>, CompareError> {
        let making =
            self.described.0.making.get().and_then(Weak::upgrade).ok_or("the server starts or ends")?;
        let client = making.connection().await?;
        // A partition's changes concern its ancestors, also those that it had when it was changed, and
        // has no more: whichever shapes of partitioned tables there are must fit, too.
        let partitioned = self.shapes.table_oids();
        self.looks.retain(|oid, _| partitioned.contains(oid));
        let tables = TableSelection::Listed { all: &[oid], partitioned: &partitioned };
        let looked = making.look(&client, tables).await?;
        if let Some(xid) = xid.filter(|xid| !looked.seen.sees(*xid))
            && !changes_rows_only(&client, oid, xid).await?
        {
            return Ok(None);
        }
        let is_there = looked.looks.iter().any(|look| look.oid == oid);
        self.compare_all(&client, &looked).await?;
        if !is_there {
            self.shapes.delete_table(oid);
        }
        if !looked.looks.iter().any(|look| look.oid == oid && look.has_relatives) {
            return Ok(Some(PartitionTree::default()));
        }
        let relatives = database::relatives(&client, oid).await?;
        // A partition that was detached since the first look is one of its ancestor's no more, and its next change may be
        // from before that: the second look comes after the relatives were read, and finds the ancestor changed.
        let tables = TableSelection::Listed { all: &[], partitioned: &partitioned };
        let looked = making.look(&client, tables).await?;
        self.compare_all(&client, &looked).await?;
        Ok(Some(relatives))
    }

    /// Deletes the shapes of a table that don't fit it any more. Returns whether all that are left
    /// fit the look.
    async fn compare(&self, client: &PostgresClient, look: &CatalogEntry) -> Result<bool, CompareError> {
        let Some(table) = self.shapes.tables().into_iter().find(|table| table.oid == look.oid) else {
            return Ok(false);
        };
        let name = TableName::new(&table.schema, &table.name);
        match database::describe_unread(client, &name).await {
            Ok(now) if now.oid == look.oid => {
                self.shapes.refit(&followed(&now, 0, Some(look.state.clone())));
                Ok(true)
            }
            Err(DescribeError::Database(error)) => Err(error.into()),
            // It has another name by now, or is gone, or can't be followed any more.
            Ok(_) | Err(_) => {
                self.shapes.delete_table(look.oid);
                Ok(false)
            }
        }
    }
}

/// The lineage of a table has its primary key's constraint, if it has one, and then a hash of its
/// partitions, if it has any.
fn has_partitions(table: &TableSchema) -> bool {
    let words = table.lineage.split_whitespace().count();
    words > usize::from(!table.key.is_empty())
}

/// Postgres writes a commit to its log, and shows it only then, or when its standbys have it. Until then the transaction has its locks, which tell
/// what it did; `false`: it may have changed the table, or has ended by now.
async fn changes_rows_only(client: &PostgresClient, oid: u32, xid: u32) -> Result<bool, CompareError> {
    let is_changing = database::is_changing(client, oid, xid).await?;
    // Only of one that is still open do its locks tell anything.
    let seen = database::current_snapshot(client).await?;
    Ok(!is_changing && !seen.sees(xid))
}
