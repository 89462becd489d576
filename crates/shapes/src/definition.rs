//! What a shape is, and when two are the same.

mod state;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::state::is_newer;
pub use self::state::{CatalogChange, CatalogState};
use crate::encode::{self, RowEncoder};
use crate::filter::{Filter, FilterError, Schema};

/// A table, as shapes depend on it.
///
/// Tables that differ only in `state` are equal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TableSchema {
    /// pg_class.oid.
    pub oid: u32,
    /// Its schema's name.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in the order in which rows have their values, and what decides how they compare.
    pub types: Schema,
    /// Which entry of the publication has it. After another one, changes are missing.
    pub membership: u32,
    /// The columns' types and their modifiers as the stream tells them: pg_attribute's atttypid and atttypmod.
    pub stream_types: Vec<(u32, i32)>,
    /// Which column each is, whatever it is called: pg_attribute.attnum. One that was dropped and added again is another.
    #[serde(default)]
    pub numbers: Vec<i32>,
    /// The primary key's columns by their places, in the key's order; none: all columns tell rows apart.
    pub key: Vec<usize>,
    /// What else must stay as it is, in its maker's words: under another, messages would be wrong though names, types and key are the same.
    #[serde(default)]
    pub lineage: String,
    /// Whatever its maker wants to know of each column again.
    pub notes: Vec<String>,
    /// Whether the primary key is DEFERRABLE: within a transaction, two rows may have the same key.
    #[serde(default)]
    pub key_is_deferrable: bool,
    /// What the catalog said when the table was described; `None`: not known. See
    /// [`Shapes::refit`](crate::Shapes::refit).
    #[serde(default)]
    pub state: Option<CatalogState>,
}

impl PartialEq for TableSchema {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.key_is_deferrable == other.key_is_deferrable
    }
}

impl Eq for TableSchema {}

/// Stays what it is from version to version: the log names tables by it, and instances of two
/// versions read one log.
impl Hash for TableSchema {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
        if self.key_is_deferrable {
            true.hash(hasher);
        }
    }
}

/// A view of a table that clients can follow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShapeDefinition {
    /// Of which table.
    pub table: Arc<TableSchema>,
    /// What of it.
    pub choice: ShapeOptions,
}

/// What a shape takes of its table, and how it tells it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShapeOptions {
    /// Which rows: a where clause in its one form ([`Filter::canonical`]); `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// Which columns, by name; `None`: all that the table has, so that another column makes it another shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// How much of a row a change shows.
    pub replica: ReplicaMode,
    /// Whether the log begins with what is there already.
    pub log: LogMode,
}

/// How much of a row a change shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaMode {
    /// The key, and what changed.
    #[default]
    Default,
    /// The whole row, and the old values of what changed.
    Full,
}

/// Whether the log begins with what is there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogMode {
    /// With the rows as they are.
    #[default]
    Full,
    /// With what changes from now on.
    ChangesOnly,
}

impl TableSchema {
    /// The columns, as they are encoded.
    pub fn columns(&self) -> Vec<encode::ColumnSchema> {
        let place = |index: usize| self.key.iter().position(|key| *key == index);
        let columns = self.types.columns.iter().enumerate();
        columns
            .map(|(index, column)| encode::ColumnSchema {
                name: column.name.clone(),
                key_index: place(index),
            })
            .collect()
    }

    /// Everything but the state.
    fn identity(&self) -> impl Hash + PartialEq {
        let TableSchema {
            oid,
            schema,
            name,
            types,
            membership,
            stream_types,
            numbers,
            key,
            lineage,
            notes,
            ..
        } = self;
        (oid, schema, name, types, membership, stream_types, numbers, key, lineage, notes)
    }

    /// Tells tables apart, and versions of one.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.types.columns.iter().position(|column| column.name == name)
    }
}

impl ShapeDefinition {
    /// The first part of a handle.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The columns that are shown, by their places.
    pub fn selected(&self) -> Vec<usize> {
        match &self.choice.columns {
            None => (0..self.table.types.columns.len()).collect(),
            Some(names) => {
                let mut selected: Vec<_> = names.iter().filter_map(|name| self.table.column(name)).collect();
                selected.sort_unstable();
                selected.dedup();
                selected
            }
        }
    }

    pub(crate) fn filter(&self) -> Result<Option<Filter>, FilterError> {
        let parse = |clause| Filter::parse(clause, &[], &self.table.types);
        self.choice.clause.as_deref().map(parse).transpose()
    }

    /// How its rows are written. Shapes with equal ones share what is written.
    pub(crate) fn layout(&self) -> RowEncoder {
        let TableSchema { schema, name, .. } = &*self.table;
        let is_full = self.choice.replica == ReplicaMode::Full;
        RowEncoder::new(schema, name, &self.table.columns(), &self.selected(), is_full)
    }
}
