//! Table group: the shapes of one table, and the effect of a row change on each.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use forebay_pgoutput::{Relation, Tuple, TupleValue};

use super::followed::Member;
use super::transaction::{Effect, RowChangeKeys, Transaction, Values, Written};
use crate::definition::TableSchema;
use crate::filter::{Candidate, ColumnType, EvalError, Index};
use crate::row_keys::{self, HASHES};
use crate::shape::Shape;

/// Shapes that were created with the same version of a table.
#[derive(Debug)]
pub(super) struct Group {
    table: Arc<TableSchema>,
    index: Index,
    members: HashMap<u64, Member>,
    /// Version of the relation that changed last, and the mapping of its columns.
    columns: (u64, Places),
    /// Mappings of other relations by version. The changes of a partitioned table come from many.
    known: HashMap<u64, Places>,
}

/// For each column of a table, its index in the rows of a relation.
type Places = Arc<[Option<usize>]>;

/// Maximum number of entries of `TableGroup::mappings`, which is cleared when it is full. Relations
/// with the same order of columns share a mapping.
const KNOWN: usize = 1024;

/// Table as described by the stream or by the catalog.
#[derive(Debug)]
pub(super) struct Described {
    /// Version: above all earlier ones. 0 for a description from the catalog.
    pub(super) version: u64,
    /// Schema and name. `None`: the table is identified by its oid only.
    name: Option<(String, String)>,
    /// Names, type oids and type modifiers of the columns.
    columns: Arc<[(String, (u32, i32))]>,
    /// `None` for a description from the stream.
    catalog: Option<Catalog>,
}

/// Properties of a table that only the catalog has.
#[derive(Debug)]
struct Catalog {
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
pub(super) enum RowChange<'a> {
    Insert(Tuple<'a>),
    Update(Tuple<'a>, Tuple<'a>),
    Delete(Tuple<'a>),
    /// The stream doesn't contain the whole old row, so the shapes that contain it are unknown.
    Untold,
}

/// Buffers for one row change, reused.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    old: Vec<Candidate>,
    new: Vec<Candidate>,
    /// Messages encoded for this change.
    written: Vec<Written>,
    /// Ids of the shapes whose logs can't represent the change.
    pub(super) unfit: Vec<u64>,
}

impl Described {
    /// Returns the description of a table by the catalog.
    pub(super) fn of(table: &TableSchema) -> Self {
        let columns = table.types.columns.iter().zip(&table.stream_types);
        let columns = columns.map(|(column, kind)| (column.name.clone(), *kind)).collect();
        let types = table.types.columns.iter().map(|column| column.column_type.clone()).collect();
        let (numbers, lineage) = (table.numbers.clone(), table.lineage.clone());
        let (key, key_is_deferrable) = (key(table), table.key_is_deferrable);
        let catalog = Some(Catalog { types, numbers, key, key_is_deferrable, lineage });
        let name = Some((table.schema.clone(), table.name.clone()));
        Described { version: 0, name, columns, catalog }
    }

    pub(super) fn new(relation: &Relation<'_>, version: u64) -> Self {
        let columns = relation.columns.iter();
        let columns = columns.map(|column| (column.name.to_owned(), (column.type_oid, column.type_modifier)));
        let name = Some((relation.namespace.to_owned(), relation.name.to_owned()));
        Described { version, name, columns: columns.collect(), catalog: None }
    }

    /// Returns the description without the name, to compare it with a partitioned table above. When
    /// that table is renamed, the stream doesn't describe its partitions again; only the catalog
    /// has the new name.
    pub(super) fn unnamed(&self) -> Self {
        let (version, columns) = (self.version, Arc::clone(&self.columns));
        Described { version, name: None, columns, catalog: None }
    }

    /// Returns whether it has a column of a table: the same name and type and, if the catalog is
    /// known, the same number and collation.
    fn has(&self, table: &TableSchema, index: usize) -> bool {
        let (column, kind) = (&table.types.columns[index], table.stream_types.get(index));
        let Some(place) =
            self.columns.iter().position(|(name, other)| *name == column.name && Some(other) == kind)
        else {
            return false;
        };
        let is_same = |catalog: &Catalog| {
            catalog.types.get(place) == Some(&column.column_type)
                && catalog.numbers.get(place) == table.numbers.get(index)
        };
        self.catalog.as_ref().is_none_or(is_same)
    }

    /// Returns whether it describes a table: the same name and, if the catalog is known, the same
    /// key.
    fn is_of(&self, table: &TableSchema) -> bool {
        let is_kept = |catalog: &Catalog| {
            (&catalog.key, catalog.key_is_deferrable) == (&key(table), table.key_is_deferrable)
                && catalog.lineage == table.lineage
        };
        let has_name = |(schema, name): &(String, String)| (schema, name) == (&table.schema, &table.name);
        self.name.as_ref().is_none_or(has_name) && self.catalog.as_ref().is_none_or(is_kept)
    }
}

fn key(table: &TableSchema) -> Vec<String> {
    table.key.iter().map(|index| table.types.columns[*index].name.clone()).collect()
}

impl Group {
    pub(super) fn new(table: Arc<TableSchema>) -> Self {
        let (index, members) = (Index::new(), HashMap::new());
        Group { table, index, members, columns: (0, Arc::default()), known: HashMap::new() }
    }

    pub(super) fn is_of(&self, table: &TableSchema) -> bool {
        *self.table == *table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn shapes(&self) -> impl Iterator<Item = u64> {
        self.members.keys().copied()
    }

    pub(super) fn member(&mut self, shape: u64) -> Option<&mut Member> {
        self.members.get_mut(&shape)
    }

    pub(super) fn add(&mut self, member: Member) {
        self.index.add(member.shape.id, member.shape.filter.as_ref(), &self.table.types);
        self.members.insert(member.shape.id, member);
        // The new shape's table wasn't compared with the stream's description yet.
        self.columns.0 = 0;
        self.known.clear();
    }

    pub(super) fn remove(&mut self, shape: u64) {
        if self.members.remove(&shape).is_some() {
            self.index.remove(shape);
        }
    }

    /// Applies a row change to the shapes that it concerns. Adds the unfit shapes to
    /// `scratch.unfit`.
    pub(super) fn change(
        &mut self,
        described: &Described,
        change: RowChange<'_>,
        transaction: &mut Transaction,
        scratch: &mut Scratch,
    ) {
        if self.columns.0 != described.version {
            self.locate(described, scratch);
        }
        let (old, new) = match change {
            RowChange::Insert(new) => (None, self.values(new, None)),
            RowChange::Update(old, new) => (self.values(old, None), self.values(new, Some(old))),
            RowChange::Delete(old) => (self.values(old, None), None),
            RowChange::Untold => (None, None),
        };
        let is_told = match change {
            RowChange::Insert(_) => new.is_some(),
            RowChange::Update(..) => old.is_some() && new.is_some(),
            RowChange::Delete(_) => old.is_some(),
            RowChange::Untold => false,
        };
        if !is_told {
            return scratch.unfit.extend(self.members.keys());
        }
        if self.table.key_is_deferrable {
            let (left, entered) = self.rekeyed(old.as_ref(), new.as_ref());
            if !transaction.rekey(left, entered) {
                return scratch.unfit.extend(self.members.keys());
            }
        }
        for (row, found) in [(&old, &mut scratch.old), (&new, &mut scratch.new)] {
            found.clear();
            if let Some(row) = row {
                self.index.candidates(row, found);
                found.sort_unstable_by_key(|candidate| candidate.id);
            }
        }
        scratch.written.clear();
        let mut keys = None;
        let (mut was, mut is) = (scratch.old.iter().peekable(), scratch.new.iter().peekable());
        while let Some(shape) =
            [was.peek(), is.peek()].into_iter().flatten().map(|candidate| candidate.id).min()
        {
            let was = was.next_if(|candidate| candidate.id == shape);
            let is = is.next_if(|candidate| candidate.id == shape);
            let Some(member) = self.members.get(&shape).filter(|member| !member.has_seen(transaction)) else {
                continue;
            };
            let rows = (old.as_ref(), new.as_ref());
            let is_fit = match effect(&member.shape, (was, is), rows) {
                Ok(None) => true,
                Ok(Some(effect)) => {
                    if self.table.key.is_empty() {
                        // Equal for all shapes of the table.
                        let keys = keys.get_or_insert_with(|| row_keys(&member.shape, rows));
                        transaction.note_keys(shape, effect, keys);
                    }
                    transaction.write(&member.shape, effect, rows, &mut scratch.written)
                }
                Err(_) => false,
            };
            if !is_fit {
                scratch.unfit.push(shape);
            }
        }
    }

    /// Returns hashes of the key that a row leaves and of the key that it gets.
    fn rekeyed<'a>(&self, old: Option<&Values<'a>>, new: Option<&Values<'a>>) -> (Option<u64>, Option<u64>) {
        let key =
            |row: &Values<'a>| -> Values<'a> { self.table.key.iter().map(|index| row[*index]).collect() };
        let (old, new) = (old.map(key), new.map(key));
        if old == new {
            return (None, None);
        }
        // The group is hashed, too: another group of the table may have another key.
        let group = Arc::as_ptr(&self.table).addr();
        let hash = |key| HASHES.hash_one((group, key));
        (old.map(hash), new.map(hash))
    }

    /// Selects the column mapping of a relation. Adds the shapes that don't fit it to
    /// `scratch.unfit`.
    fn locate(&mut self, described: &Described, scratch: &mut Scratch) {
        if let Some(places) = self.known.get(&described.version) {
            self.columns = (described.version, Arc::clone(places));
            return;
        }
        let place = |name: &str| described.columns.iter().position(|(other, _)| other == name);
        let mut places: Places = self.table.types.columns.iter().map(|column| place(&column.name)).collect();
        if places == self.columns.1 {
            places = Arc::clone(&self.columns.1);
        }
        if self.known.len() == KNOWN {
            self.known.clear();
        }
        self.known.insert(described.version, Arc::clone(&places));
        self.columns = (described.version, places);
        scratch.unfit.extend(self.unfit(described));
    }

    /// Returns the shapes that are incorrect for a description of the table. Causes: another name
    /// or key, another type or collation of a needed column, a missing column, or a new one if the
    /// shape has all columns.
    pub(super) fn unfit(&self, described: &Described) -> Vec<u64> {
        let is_same_table = described.is_of(&self.table);
        let is_same = |index: usize| described.has(&self.table, index);
        let all_same = (0..self.table.types.columns.len()).all(is_same);
        if is_same_table && all_same && described.columns.len() == self.table.types.columns.len() {
            return Vec::new();
        }
        let goes_on = |member: &Member| {
            let definition = member.shape.definition();
            let filtered = member.shape.filter.as_ref().map_or(&[][..], |filter| filter.columns());
            let needed = definition.selected().into_iter().chain(filtered.iter().copied());
            let mut needed = needed.chain(self.table.key.iter().copied());
            // Without a key, all columns are the key.
            definition.choice.columns.is_some() && !self.table.key.is_empty() && needed.all(is_same)
        };
        let members = self.members.iter();
        members.filter(|(_, member)| !is_same_table || !goes_on(member)).map(|(id, _)| *id).collect()
    }

    /// Returns a row in the order of the table's columns; `None`: the stream doesn't contain all
    /// values.
    fn values<'a>(&self, tuple: Tuple<'a>, before: Option<Tuple<'a>>) -> Option<Values<'a>> {
        let told: Vec<_> = tuple.iter().collect();
        let before = |place: usize| match before?.get(place)? {
            TupleValue::Unchanged => None,
            known => Some(known),
        };
        let value = |place: &Option<usize>| match *place {
            None => Some(None),
            Some(place) => match *told.get(place)? {
                TupleValue::Unchanged => before(place).map(TupleValue::bytes),
                known => Some(known.bytes()),
            },
        };
        self.columns.1.iter().map(value).collect()
    }
}

/// Returns hashes of the keys of both rows, in the form that messages have.
fn row_keys(shape: &Shape, (old, new): (Option<&Values<'_>>, Option<&Values<'_>>)) -> RowChangeKeys {
    let mut text = Vec::new();
    let mut key = |row: &Values<'_>| {
        text.clear();
        shape.layout.key(&mut text, row);
        row_keys::hash(&text)
    };
    RowChangeKeys { old: old.map(&mut key), new: new.map(key) }
}

/// Returns the effect of a change on a shape. `was` and `is` are the index's candidates for the old
/// and the new row.
fn effect(
    shape: &Shape,
    (was, is): (Option<&Candidate>, Option<&Candidate>),
    (old, new): (Option<&Values<'_>>, Option<&Values<'_>>),
) -> Result<Option<Effect>, EvalError> {
    let within =
        |candidate: Option<&Candidate>, row: Option<&Values<'_>>| match (candidate, row, &shape.filter) {
            (Some(candidate), Some(row), Some(filter)) => {
                Ok(candidate.certain || filter.matches(row)? == Some(true))
            }
            (Some(_), Some(_), None) => Ok(true),
            (None, _, _) | (_, None, _) => Ok(false),
        };
    Ok(match (within(was, old)?, within(is, new)?) {
        (false, false) => None,
        (false, true) => Some(Effect::Insert),
        (true, false) => Some(Effect::Delete),
        (true, true) => match (old, new) {
            (Some(old), Some(new)) if !shape.layout.has_same_key(old, new) => Some(Effect::Rekey),
            _ => Some(Effect::Update),
        },
    })
}
