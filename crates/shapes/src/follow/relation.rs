//! Relations of the stream: their columns, and the partitioned tables and partitions that their
//! changes concern.

use forebay_pgoutput::Relation;

use super::group::Described;

/// Where a table stands in a tree of partitions. Empty for one that isn't partitioned and no
/// partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionTree {
    /// The oids of the partitioned tables that it is a part of.
    pub ancestors: Vec<u32>,
    /// The oids of all tables below it.
    pub descendants: Vec<u32>,
}

/// A relation as the stream describes it, and for whom its changes are.
#[derive(Debug)]
pub(super) struct StreamRelation {
    pub(super) described: Described,
    /// Its columns without its name: what a change of it has for the shapes of its ancestors.
    pub(super) unnamed: Described,
    /// Oids.
    pub(super) ancestors: Vec<u32>,
    /// Oids, sorted.
    pub(super) descendants: Vec<u32>,
}

impl StreamRelation {
    /// `version`: above those of all before.
    pub(super) fn new(relation: &Relation<'_>, relatives: Option<&PartitionTree>, version: u64) -> Self {
        let described = Described::new(relation, version);
        let PartitionTree { ancestors, mut descendants } = relatives.cloned().unwrap_or_default();
        descendants.sort_unstable();
        StreamRelation { unnamed: described.unnamed(), described, ancestors, descendants }
    }

    pub(super) fn has_relatives(&self) -> bool {
        !self.ancestors.is_empty() || !self.descendants.is_empty()
    }
}
