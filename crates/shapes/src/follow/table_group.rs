//! Table group: the shapes of one table, and the effect of a row change on each.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::mem;
use std::sync::Arc;

use forebay_pgoutput::{Relation, Tuple, TupleValue};

use super::followed_shape::{FollowedShape, HoldOutcome};
use super::held_transaction::ChangedRows;
use super::open_transaction::{EncodedChange, OpenTransaction};
use super::row_effect::{DecodedRow, RowChangeKeys, RowEffect, RowsOfChange};
use crate::definition::TableSchema;
use crate::filter::{Candidate, ColumnType, Index, RowVerdict};
use crate::row_keys::HASH_STATE;

/// Shapes that were created with the same version of a table.
#[derive(Debug)]
pub(crate) struct TableGroup {
    table: Arc<TableSchema>,
    index: Index,
    followed: HashMap<u64, FollowedShape>,
    /// Version of the relation that changed last, and the mapping of its columns.
    mapping: (u64, ColumnMapping),
    /// Mappings of other relations by version. The changes of a partitioned table come from many.
    mappings: HashMap<u64, ColumnMapping>,
}

/// For each column of a table, its index in the rows of a relation.
type ColumnMapping = Arc<[Option<usize>]>;

/// Maximum number of entries of `TableGroup::mappings`, which is cleared when it is full. Relations
/// with the same order of columns share a mapping.
const MAX_MAPPINGS: usize = 1024;

/// Table as described by the stream or by the catalog.
#[derive(Debug)]
pub(crate) struct DescribedTable {
    /// Version: above all earlier ones. 0 for a description from the catalog.
    pub(crate) version: u64,
    /// Schema and name. `None`: the table is identified by its oid only.
    name: Option<(String, String)>,
    /// Names, type oids and type modifiers of the columns.
    columns: Arc<[(String, (u32, i32))]>,
    /// `None` for a description from the stream.
    catalog: Option<CatalogFacts>,
}

/// Properties of a table that only the catalog has.
#[derive(Debug)]
struct CatalogFacts {
    /// Type of each column, with its collation.
    types: Vec<ColumnType>,
    numbers: Vec<i32>,
    /// Names of the primary key's columns.
    key: Vec<String>,
    key_is_deferrable: bool,
    lineage: String,
}

/// Change of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowChange<'a> {
    Insert(Tuple<'a>),
    Update(Tuple<'a>, Tuple<'a>),
    Delete(Tuple<'a>),
    /// The stream doesn't contain the whole old row, so the shapes that contain it are unknown.
    Incomplete,
}

/// Buffers for one row change, reused.
#[derive(Debug, Default)]
pub(crate) struct ChangeScratch {
    old: Vec<Candidate>,
    new: Vec<Candidate>,
    /// Messages encoded for this change.
    encoded: Vec<EncodedChange>,
    /// Hashes of the row keys, if a shape needs them.
    keys: Option<RowChangeKeys>,
    /// The rows, if a shape holds the change.
    changed_rows: Option<Arc<ChangedRows>>,
    /// Ids of the shapes for which too much is held.
    pub(crate) overfull: Vec<u64>,
    /// Ids of the shapes whose logs can't represent the change.
    pub(crate) unfit: Vec<u64>,
}

impl DescribedTable {
    /// Returns the description of a table by the catalog.
    pub(crate) fn of_catalog(table: &TableSchema) -> Self {
        let columns = table.types.columns.iter().zip(&table.stream_types);
        let columns = columns.map(|(column, kind)| (column.name.clone(), *kind)).collect();
        let types = table.types.columns.iter().map(|column| column.column_type.clone()).collect();
        let (numbers, lineage) = (table.numbers.clone(), table.lineage.clone());
        let (key, key_is_deferrable) = (key_names(table), table.key_is_deferrable);
        let catalog = Some(CatalogFacts { types, numbers, key, key_is_deferrable, lineage });
        let name = Some((table.schema.clone(), table.name.clone()));
        DescribedTable { version: 0, name, columns, catalog }
    }

    /// Returns the description of a table by the stream.
    pub(crate) fn of_stream(relation: &Relation<'_>, version: u64) -> Self {
        let columns = relation.columns.iter();
        let columns = columns.map(|column| (column.name.to_owned(), (column.type_oid, column.type_modifier)));
        let name = Some((relation.namespace.to_owned(), relation.name.to_owned()));
        DescribedTable { version, name, columns: columns.collect(), catalog: None }
    }

    /// Returns the description without the name, to compare it with a partitioned table above. When
    /// that table is renamed, the stream doesn't describe its partitions again; only the catalog
    /// has the new name.
    pub(crate) fn unnamed(&self) -> Self {
        let (version, columns) = (self.version, Arc::clone(&self.columns));
        DescribedTable { version, name: None, columns, catalog: None }
    }

    /// Returns whether the description has a column of `table`: the same name and type and, if it
    /// is from the catalog, the same number and collation.
    fn has(&self, table: &TableSchema, index: usize) -> bool {
        let (column, kind) = (&table.types.columns[index], table.stream_types.get(index));
        let Some(place) =
            self.columns.iter().position(|(name, other)| *name == column.name && Some(other) == kind)
        else {
            return false;
        };
        let is_same = |catalog: &CatalogFacts| {
            catalog.types.get(place) == Some(&column.column_type)
                && catalog.numbers.get(place) == table.numbers.get(index)
        };
        self.catalog.as_ref().is_none_or(is_same)
    }

    /// Returns whether this is a description of `table`: the same name and, if it is from the
    /// catalog, the same key and lineage.
    fn is_of(&self, table: &TableSchema) -> bool {
        let is_kept = |catalog: &CatalogFacts| {
            (&catalog.key, catalog.key_is_deferrable) == (&key_names(table), table.key_is_deferrable)
                && catalog.lineage == table.lineage
        };
        let has_name = |(schema, name): &(String, String)| (schema, name) == (&table.schema, &table.name);
        self.name.as_ref().is_none_or(has_name) && self.catalog.as_ref().is_none_or(is_kept)
    }
}

fn key_names(table: &TableSchema) -> Vec<String> {
    table.key.iter().map(|index| table.types.columns[*index].name.clone()).collect()
}

impl TableGroup {
    pub(crate) fn new(table: Arc<TableSchema>) -> Self {
        let (index, followed) = (Index::new(), HashMap::new());
        TableGroup { table, index, followed, mapping: (0, Arc::default()), mappings: HashMap::new() }
    }

    pub(crate) fn is_of(&self, table: &TableSchema) -> bool {
        *self.table == *table
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }

    pub(crate) fn shapes(&self) -> impl Iterator<Item = u64> {
        self.followed.keys().copied()
    }

    pub(crate) fn followed_shape(&mut self, shape: u64) -> Option<&mut FollowedShape> {
        self.followed.get_mut(&shape)
    }

    pub(super) fn followed_shapes(&mut self) -> impl Iterator<Item = &mut FollowedShape> {
        self.followed.values_mut()
    }

    pub(crate) fn add(&mut self, followed: FollowedShape) {
        self.index.add(followed.shape.id, followed.shape.filter.as_ref(), &self.table.types);
        self.followed.insert(followed.shape.id, followed);
        self.clear_mappings();
    }

    /// Forces a comparison of all shapes with the stream's descriptions of the table.
    pub(super) fn clear_mappings(&mut self) {
        self.mapping.0 = 0;
        self.mappings.clear();
    }

    pub(crate) fn remove(&mut self, shape: u64) {
        if self.followed.remove(&shape).is_some() {
            self.index.remove(shape);
        }
    }

    /// Applies a row change to the shapes that it concerns. Adds the unfit shapes to
    /// `scratch.unfit`.
    pub(crate) fn change(
        &mut self,
        described: &DescribedTable,
        change: RowChange<'_>,
        transaction: &mut OpenTransaction,
        scratch: &mut ChangeScratch,
    ) {
        if self.mapping.0 != described.version {
            self.select_mapping(described, scratch);
        }
        let (old, new) = match change {
            RowChange::Insert(new) => (None, self.values(new, None)),
            RowChange::Update(old, new) => (self.values(old, None), self.values(new, Some(old))),
            RowChange::Delete(old) => (self.values(old, None), None),
            RowChange::Incomplete => (None, None),
        };
        let is_complete = match change {
            RowChange::Insert(_) => new.is_some(),
            RowChange::Update(..) => old.is_some() && new.is_some(),
            RowChange::Delete(_) => old.is_some(),
            RowChange::Incomplete => false,
        };
        if !is_complete {
            return scratch.unfit.extend(self.followed.keys());
        }
        if self.table.key_is_deferrable {
            let (left, entered) = self.key_move_hashes(old.as_ref(), new.as_ref());
            if transaction.move_deferrable_key(left, entered).is_err() {
                return scratch.unfit.extend(self.followed.keys());
            }
        }
        for (row, found) in [(&old, &mut scratch.old), (&new, &mut scratch.new)] {
            found.clear();
            if let Some(row) = row {
                self.index.candidates(row, found);
                found.sort_unstable_by_key(|candidate| candidate.id);
            }
        }
        scratch.encoded.clear();
        (scratch.keys, scratch.changed_rows) = (None, None);
        let (old_found, new_found) = (mem::take(&mut scratch.old), mem::take(&mut scratch.new));
        let (mut was, mut is) = (old_found.iter().peekable(), new_found.iter().peekable());
        while let Some(shape) =
            [was.peek(), is.peek()].into_iter().flatten().map(|candidate| candidate.id).min()
        {
            let was = was.next_if(|candidate| candidate.id == shape);
            let is = is.next_if(|candidate| candidate.id == shape);
            if let Some(followed) = self.followed.get_mut(&shape) {
                change_shape(followed, (was, is), (old.as_ref(), new.as_ref()), transaction, scratch);
            }
        }
        (scratch.old, scratch.new) = (old_found, new_found);
    }

    /// Returns hashes of the key that a row leaves and of the key that it gets.
    fn key_move_hashes<'a>(
        &self,
        old: Option<&DecodedRow<'a>>,
        new: Option<&DecodedRow<'a>>,
    ) -> (Option<u64>, Option<u64>) {
        let key = |row: &DecodedRow<'a>| -> DecodedRow<'a> {
            self.table.key.iter().map(|index| row[*index]).collect()
        };
        let (old, new) = (old.map(key), new.map(key));
        if old == new {
            return (None, None);
        }
        // The group is hashed, too: another group of the table may have another key.
        let group = Arc::as_ptr(&self.table).addr();
        let hash = |key| HASH_STATE.hash_one((group, key));
        (old.map(hash), new.map(hash))
    }

    /// Selects the column mapping of a relation. Adds the shapes that don't fit it to
    /// `scratch.unfit`.
    fn select_mapping(&mut self, described: &DescribedTable, scratch: &mut ChangeScratch) {
        if let Some(mapping) = self.mappings.get(&described.version) {
            self.mapping = (described.version, Arc::clone(mapping));
            return;
        }
        let place = |name: &str| described.columns.iter().position(|(other, _)| other == name);
        let mut mapping: ColumnMapping =
            self.table.types.columns.iter().map(|column| place(&column.name)).collect();
        if mapping == self.mapping.1 {
            mapping = Arc::clone(&self.mapping.1);
        }
        if self.mappings.len() == MAX_MAPPINGS {
            self.mappings.clear();
        }
        self.mappings.insert(described.version, Arc::clone(&mapping));
        self.mapping = (described.version, mapping);
        scratch.unfit.extend(self.unfit_shapes(described));
    }

    /// Returns the shapes that are incorrect for a description of the table. Causes: another name,
    /// key or lineage, another type or collation of a needed column, a missing column, or a new
    /// column if the shape has all columns.
    pub(crate) fn unfit_shapes(&self, described: &DescribedTable) -> Vec<u64> {
        let is_same_table = described.is_of(&self.table);
        let is_same = |index: usize| described.has(&self.table, index);
        let all_same = (0..self.table.types.columns.len()).all(is_same);
        if is_same_table && all_same && described.columns.len() == self.table.types.columns.len() {
            return Vec::new();
        }
        let remains = |followed: &FollowedShape| {
            let definition = followed.shape.definition();
            let filtered = followed.shape.filter.as_ref().map_or(&[][..], |filter| filter.columns());
            let needed = definition.selected().into_iter().chain(filtered.iter().copied());
            let mut needed = needed.chain(self.table.key.iter().copied());
            // Without a key, all columns are the key.
            definition.options.columns.is_some() && !self.table.key.is_empty() && needed.all(is_same)
        };
        let followed = self.followed.iter();
        followed.filter(|(_, followed)| !is_same_table || !remains(followed)).map(|(id, _)| *id).collect()
    }

    /// Returns a row in the order of the table's columns; `None`: the stream doesn't contain all
    /// values. A value that the tuple marks as unchanged is taken from `before`, the old row.
    fn values<'a>(&self, tuple: Tuple<'a>, before: Option<Tuple<'a>>) -> Option<DecodedRow<'a>> {
        let values: Vec<_> = tuple.iter().collect();
        let before = |place: usize| match before?.get(place)? {
            TupleValue::Unchanged => None,
            known => Some(known),
        };
        let value = |place: &Option<usize>| match *place {
            None => Some(None),
            Some(place) => match *values.get(place)? {
                TupleValue::Unchanged => before(place).map(TupleValue::bytes),
                known => Some(known.bytes()),
            },
        };
        self.mapping.1.iter().map(value).collect()
    }
}

/// Applies a row change to a shape. `was` and `is` are the index's candidates for the old and the
/// new row. Adds the shape to `scratch` if it is unfit, or if too much is held for it.
fn change_shape(
    followed: &mut FollowedShape,
    (was, is): (Option<&Candidate>, Option<&Candidate>),
    rows: RowsOfChange<'_, '_>,
    transaction: &mut OpenTransaction,
    scratch: &mut ChangeScratch,
) {
    if followed.skips(transaction) {
        return;
    }
    let verdicts = (followed.judge(was, rows.0), followed.judge(is, rows.1));
    let is_undecided = verdicts.0 == RowVerdict::Undecided || verdicts.1 == RowVerdict::Undecided;
    let (was, is) = if is_undecided || followed.keeps_rows() {
        match followed.hold_change(transaction, rows, verdicts, &mut scratch.changed_rows) {
            HoldOutcome::Decided(was, is) => (was, is),
            HoldOutcome::Held => return,
            HoldOutcome::Overfull => return scratch.overfull.push(followed.shape.id),
        }
    } else {
        (verdicts.0 == RowVerdict::Match, verdicts.1 == RowVerdict::Match)
    };
    let shape = &followed.shape;
    let Some(effect) = RowEffect::of(&shape.encoder, (was, is), rows) else { return };
    if shape.definition().table.key.is_empty() {
        // The hashes are equal for all shapes of the table.
        let keys = scratch.keys.get_or_insert_with(|| RowChangeKeys::of(shape, rows));
        transaction.add_key_changes(shape.id, effect, keys);
    }
    if transaction.write(shape, effect, rows, &mut scratch.encoded).is_err() {
        scratch.unfit.push(shape.id);
    }
}
