//! Table comparer: deletes shapes that don't fit their table in the catalog any more.
//!
//! The replication stream describes an altered table only before the next change of a row, and a
//! dropped table never. So the tables of shapes are also compared with the catalog when they are
//! requested, and by the catalog watch.

use std::sync::Arc;

use forebay_replication::TableName;
use forebay_shapes::{Shape, Shapes};

use super::table_cache::{CachedTable, TableCache};
use super::table_describer::TableDescriber;
use crate::protocol::RequestRefusal;

/// Compares the shapes of tables with the catalog. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TableComparer {
    shapes: Shapes,
    describer: TableDescriber,
    tables: Arc<TableCache>,
}

/// Whether the shapes of a table were compared with the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComparisonOutcome {
    /// The remaining shapes fit the table.
    Compared,
    /// The catalog couldn't be read.
    Unavailable,
}

impl TableComparer {
    pub(crate) fn new(shapes: Shapes, describer: TableDescriber, tables: Arc<TableCache>) -> Self {
        TableComparer { shapes, describer, tables }
    }

    /// Compares the table of a requested shape in a new task, unless the table was read within the
    /// last few seconds.
    pub(crate) fn recheck(&self, shape: &Shape) {
        let table = &shape.definition().table;
        let name = TableName::new(&table.schema, &table.name);
        if !self.shapes.is_writing() || self.tables.is_fresh(&name) {
            return;
        }
        let (comparer, oid) = (self.clone(), table.oid);
        tokio::spawn(async move {
            let looked_up = comparer.tables.get(&name).await;
            let _outcome = comparer.compare_shapes(oid, &name, looked_up).await;
        });
    }

    /// Looks a table up in the catalog, and deletes its shapes that don't fit it.
    pub(crate) async fn compare(&self, oid: u32, name: &TableName) -> ComparisonOutcome {
        let looked_up = self.tables.look_up(name).await;
        self.compare_shapes(oid, name, looked_up).await
    }

    async fn compare_shapes(
        &self,
        oid: u32,
        name: &TableName,
        looked_up: Result<CachedTable, RequestRefusal>,
    ) -> ComparisonOutcome {
        match looked_up {
            Ok(CachedTable { description: None, .. }) => return ComparisonOutcome::Unavailable,
            Ok(cached) if cached.table.oid == oid => self.shapes.check_schema(&cached.table),
            Ok(_) => self.shapes.delete_table(oid),
            // Only a dropped table affects its shapes; for instance, a missing privilege doesn't.
            Err(RequestRefusal::Invalid(_)) => {
                if self.describer.is_dropped(name).await {
                    self.shapes.delete_table(oid);
                }
            }
            Err(_) => return ComparisonOutcome::Unavailable,
        }
        ComparisonOutcome::Compared
    }
}
