//! Relations of the stream: their columns, and the partitioned tables and partitions that their
//! changes concern.

use forebay_pgoutput::Relation;

use super::table_group::DescribedTable;

/// Relatives of a table in its partition tree. Empty for a table that is neither partitioned nor a
/// partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionTree {
    /// Oids of the partitioned tables above it.
    pub ancestors: Vec<u32>,
    /// Oids of all tables below it.
    pub descendants: Vec<u32>,
}

/// Relation as described by the stream, with its relatives.
#[derive(Debug)]
pub(crate) struct StreamRelation {
    pub(crate) described: DescribedTable,
    /// Its columns without its name. Shapes of its ancestors are compared with them.
    pub(crate) unnamed: DescribedTable,
    /// Oids of the partitioned tables above it.
    pub(crate) ancestors: Vec<u32>,
    /// Oids of all tables below it, sorted.
    pub(crate) descendants: Vec<u32>,
}

impl StreamRelation {
    /// Returns the description of a relation. `version` must be above all earlier versions.
    pub(crate) fn new(relation: &Relation<'_>, relatives: Option<&PartitionTree>, version: u64) -> Self {
        let described = DescribedTable::of_stream(relation, version);
        let PartitionTree { ancestors, mut descendants } = relatives.cloned().unwrap_or_default();
        descendants.sort_unstable();
        StreamRelation { unnamed: described.unnamed(), described, ancestors, descendants }
    }

    pub(crate) fn has_relatives(&self) -> bool {
        !self.ancestors.is_empty() || !self.descendants.is_empty()
    }
}
