//! Shape definitions: a table, a where clause, columns and modes. Requests with equal definitions
//! get the same shape.

mod fingerprint;
#[cfg(test)]
mod fingerprint_tests;
mod state;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::state::{CatalogChange, CatalogState};
use crate::encode::{self, RowEncoder};
use crate::filter::{Filter, FilterError, PostgresRules, Schema};

/// Properties of a table on which its shapes depend.
///
/// Tables that differ only in `state` are equal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TableSchema {
    /// pg_class.oid.
    pub oid: u32,
    /// Name of its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Columns in the order of the values in rows, and the settings that decide comparisons.
    pub types: Schema,
    /// Oid of the table's row in pg_publication_rel. If the row was replaced, the stream may have
    /// missed changes.
    pub membership: u32,
    /// Type oid and modifier of each column, as the stream describes them: pg_attribute's atttypid
    /// and atttypmod.
    pub stream_types: Vec<(u32, i32)>,
    /// pg_attribute.attnum of each column. A column that was dropped and added again has another
    /// number.
    #[serde(default)]
    pub numbers: Vec<i32>,
    /// Indexes of the primary key's columns, in the key's order. Empty: all columns together are
    /// the key.
    pub key: Vec<usize>,
    /// Other properties that must not change, as a text that the caller chooses. If it differs,
    /// messages would be wrong although names, types and key are equal.
    #[serde(default)]
    pub lineage: String,
    /// Text that the caller chooses for each column. The store only stores and compares it.
    pub notes: Vec<String>,
    /// Whether the primary key is DEFERRABLE. Within a transaction, two rows may have the same
    /// value of such a key.
    #[serde(default)]
    pub key_is_deferrable: bool,
    /// Catalog state when the table was described; `None`: unknown. See
    /// [`Shapes::check_schema`](crate::Shapes::check_schema).
    #[serde(default)]
    pub state: Option<CatalogState>,
}

impl PartialEq for TableSchema {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for TableSchema {}

/// Definition of a shape: a table, and the options of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeDefinition {
    /// The table.
    pub table: Arc<TableSchema>,
    /// The rows and columns, and the form of the messages.
    pub options: ShapeOptions,
}

/// Options of a shape: which rows and columns it has, and the form of its messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShapeOptions {
    /// Where clause in canonical form ([`Filter::canonical`]); `None`: all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// Names of the columns; `None`: all columns of the table. With `None`, the shape is deleted
    /// when the table gets a new column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Columns that a change contains.
    pub replica: ReplicaMode,
    /// Whether the log begins with a snapshot.
    pub log: LogMode,
}

/// Columns that the message of a change contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicaMode {
    /// The key and the changed columns.
    #[default]
    Default,
    /// All columns, and the old values of the changed columns.
    Full,
}

/// Whether a log begins with a snapshot of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogMode {
    /// With a snapshot of the existing rows.
    #[default]
    Full,
    /// Without a snapshot: only changes.
    ChangesOnly,
}

impl TableSchema {
    /// Returns the columns for the encoder.
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

    /// Returns all fields that decide equality. The fingerprint has the same fields.
    fn identity(&self) -> impl PartialEq {
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
            key_is_deferrable,
            state: _,
        } = self;
        let table = (oid, schema, name, lineage, membership, key_is_deferrable);
        (table, types, stream_types, numbers, key, notes)
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.types.columns.iter().position(|column| column.name == name)
    }
}

impl ShapeDefinition {
    /// Returns the indexes of the shown columns, ascending.
    pub fn selected(&self) -> Vec<usize> {
        match &self.options.columns {
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
        // Conditions that only Postgres can evaluate were checked when the shape was created.
        let parse = |clause| Filter::parse_with(clause, &[], &self.table.types, PostgresRules::Stored);
        self.options.clause.as_deref().map(parse).transpose()
    }

    /// Returns the encoder of the shape's rows. Shapes with equal encoders share encoded messages.
    pub(crate) fn encoder(&self) -> RowEncoder {
        let TableSchema { schema, name, .. } = &*self.table;
        let is_full = self.options.replica == ReplicaMode::Full;
        RowEncoder::new(schema, name, &self.table.columns(), &self.selected(), is_full)
    }
}
