//! Catalog state of a table: detects changes that the replication stream doesn't describe.
//!
//! Out of scope: names, types, key and columns of a table. They are in
//! [`TableSchema`](super::TableSchema) and compared one by one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// State of a table in the catalog. Shapes are correct for one such state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogState {
    /// `pg_class.relfilenode`.
    pub filenode: u32,
    /// `attnum` and `xmin` of each row in pg_attribute, without dropped columns.
    pub columns: Vec<(i32, u32)>,
    /// Hashes of the names that are part of values: labels of enums, attributes of composite types.
    /// Sorted.
    pub facts: Vec<i64>,
    /// Rows of pg_publication and pg_publication_rel that publish the table.
    pub publication: String,
}

/// Catalog change after which the shapes of a table are incorrect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatalogChange {
    /// An ALTER TABLE rewrote all rows. The stream contains no changes for it.
    Rewritten,
    /// An enum label or an attribute of a composite type was renamed. The text of rows changed.
    ValuesRenamed,
    /// The publication, or the table's entry in it, was altered. Changes may be missing.
    PublicationChanged,
}

impl CatalogState {
    /// Returns the change since `before` that makes the shapes of that state incorrect.
    ///
    /// VACUUM FULL and CLUSTER change only the filenode; SET DEFAULT and SET STATISTICS change only
    /// pg_attribute. An ALTER TABLE that rewrites the table changes both. A VACUUM FULL and a SET
    /// DEFAULT between two catalog queries change both, too, and count as a rewrite.
    ///
    /// A column that `before` doesn't have is skipped: it was added since. Shapes of all columns
    /// are deleted by the comparison of columns, and other shapes don't contain it.
    pub fn change_since(&self, before: &CatalogState) -> Option<CatalogChange> {
        if self.publication != before.publication {
            return Some(CatalogChange::PublicationChanged);
        }
        if !before.facts.iter().all(|fact| self.facts.binary_search(fact).is_ok()) {
            return Some(CatalogChange::ValuesRenamed);
        }
        let was_altered = |(number, xmin): &(i32, u32)| {
            let old = before.columns.iter().find(|(other, _)| other == number);
            old.is_some_and(|(_, old)| old != xmin)
        };
        let is_rewritten = self.filenode != before.filenode && self.columns.iter().any(was_altered);
        is_rewritten.then_some(CatalogChange::Rewritten)
    }
}

impl fmt::Display for CatalogChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CatalogChange::Rewritten => "an ALTER TABLE rewrote the table",
            CatalogChange::ValuesRenamed => {
                "a label of an enum or an attribute of a composite type was renamed"
            }
            CatalogChange::PublicationChanged => "the publication of the table was altered",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> CatalogState {
        CatalogState {
            filenode: 16400,
            columns: vec![(1, 700), (2, 700)],
            facts: vec![-5, 9],
            publication: "forebay 1".into(),
        }
    }

    fn changed(change: impl FnOnce(&mut CatalogState)) -> Option<CatalogChange> {
        let mut now = state();
        change(&mut now);
        now.change_since(&state())
    }

    fn rewrite(now: &mut CatalogState, xid: u32) {
        now.filenode += 1;
        now.columns[1].1 = xid;
    }

    #[test]
    fn vacuum_full_or_a_new_default_is_not_a_change() {
        assert_eq!(changed(|_| {}), None);
        assert_eq!(changed(|now| now.filenode += 1), None);
        assert_eq!(changed(|now| now.columns[0].1 = 705), None);
        assert_eq!(changed(|now| now.columns.push((3, 705))), None);
    }

    #[test]
    fn a_rewritten_table_stays_changed_after_later_vacuums_and_defaults() {
        assert_eq!(changed(|now| rewrite(now, 705)), Some(CatalogChange::Rewritten));
        let then_vacuumed = |now: &mut CatalogState| {
            rewrite(now, 705);
            now.filenode += 1;
        };
        assert_eq!(changed(then_vacuumed), Some(CatalogChange::Rewritten));
        let then_defaulted = |now: &mut CatalogState| {
            rewrite(now, 705);
            now.columns[1].1 = 706;
        };
        assert_eq!(changed(then_defaulted), Some(CatalogChange::Rewritten));
        // A new or dropped column was in no shape that still exists.
        let with_another = |now: &mut CatalogState| {
            now.filenode += 1;
            now.columns = vec![(1, 700), (3, 705)];
        };
        assert_eq!(changed(with_another), None);
    }

    #[test]
    fn a_name_may_be_added_but_not_removed() {
        assert_eq!(changed(|now| now.facts.insert(1, 4)), None);
        assert_eq!(changed(|now| now.facts[0] = -6), Some(CatalogChange::ValuesRenamed));
    }

    #[test]
    fn another_publication_is_a_change() {
        assert_eq!(changed(|now| now.publication.push('2')), Some(CatalogChange::PublicationChanged));
    }
}
