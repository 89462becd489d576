//! Relations of the stream: their columns, and the partitioned tables and partitions that their
//! changes concern.

use forebay_pgoutput::Relation;

use super::group::Described;

/// Where a table stands in a tree of partitions. Empty for one that isn't partitioned and no
/// partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relatives {
    /// The partitioned tables that it is a part of.
    pub ancestors: Vec<Ancestor>,
    /// The oids of all tables below it.
    pub descendants: Vec<u32>,
}

/// A partitioned table above a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestor {
    /// pg_class.oid.
    pub oid: u32,
    /// Its schema's name.
    pub schema: String,
    /// Its name.
    pub name: String,
}

/// A relation as the stream describes it, and for whom its changes are.
#[derive(Debug)]
pub(super) struct StreamRelation {
    pub(super) described: Described,
    /// Its ancestors' oids; each with the relation's columns under the ancestor's name.
    pub(super) ancestors: Vec<(u32, Described)>,
    /// Sorted.
    pub(super) descendants: Vec<u32>,
}

impl StreamRelation {
    /// `version`: above those of all before.
    pub(super) fn new(relation: &Relation<'_>, relatives: Option<&Relatives>, version: u64) -> Self {
        let described = Described::new(relation, version);
        let (mut ancestors, mut descendants) = (Vec::new(), Vec::new());
        if let Some(relatives) = relatives {
            let renamed = |Ancestor { oid, schema, name }: &Ancestor| (*oid, described.renamed(schema, name));
            ancestors = relatives.ancestors.iter().map(renamed).collect();
            descendants.clone_from(&relatives.descendants);
            descendants.sort_unstable();
        }
        StreamRelation { described, ancestors, descendants }
    }

    pub(super) fn has_relatives(&self) -> bool {
        !self.ancestors.is_empty() || !self.descendants.is_empty()
    }
}
