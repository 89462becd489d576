//! Table description: a table as the catalog defines it, and the views of it that other parts need.
//!
//! Invariant: the columns are those whose values both COPY and the replication stream have, in the
//! table's order.

use forebay_replication::TableName;
use forebay_shapes::encode;
use forebay_shapes::filter::{self, Collation, ColumnType, Schema, TypeKind};

use crate::protocol::schema::SchemaColumn;

/// A table. Columns are identified by their index in [`columns`](Self::columns).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDescription {
    /// Its name.
    pub name: TableName,
    /// pg_class.oid.
    pub oid: u32,
    /// Whether its rows are in partitions.
    pub is_partitioned: bool,
    /// Which columns of old rows the stream has. Each partition has its own replica identity.
    pub replica_identity: ReplicaIdentity,
    /// Whether the primary key is DEFERRABLE: within a transaction, two rows may have the same key.
    pub key_is_deferrable: bool,
    /// The columns that can be followed, in the table's order.
    pub columns: Vec<ColumnDescription>,
    /// Generated columns that can't be followed: the stream has stored ones since Postgres 18, and
    /// virtual ones never.
    pub excluded: Vec<String>,
    /// The server's major version.
    pub server_version: u32,
    /// The collation of columns without their own.
    pub database_collation: Collation,
    /// Differs between tables that otherwise look the same; see `describe.rs`.
    pub lineage: String,
    /// Versions of the catalog rows. While they are the same, so is the whole description.
    pub edition: String,
}

/// Replica identity: which columns of old rows the stream has (pg_class.relreplident).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key.
    Default,
    /// No old rows at all.
    Nothing,
    /// Whole old rows.
    Full,
    /// The columns of an index.
    Index,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnDescription {
    /// Its name.
    pub name: String,
    /// pg_attribute.attnum.
    pub number: i32,
    /// The type that clients receive.
    pub display_type: DisplayType,
    /// The type that filters use: the base type under all domains.
    pub filter_type: ColumnType,
    /// The name of that type; for an array, of its element.
    pub element: ElementType,
    /// Whether it is NOT NULL.
    pub is_not_null: bool,
    /// Its index in the primary key, if it is in the key.
    pub key_index: Option<usize>,
    /// Whether it is a generated column.
    pub is_generated: bool,
    /// atttypid and atttypmod of pg_attribute, as in Relation messages.
    pub stream_type: (u32, i32),
}

/// A type as clients receive it. For an array, it is the element's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisplayType {
    /// pg_type.oid.
    pub oid: u32,
    /// pg_type.typname.
    pub name: String,
    /// pg_attribute.atttypmod.
    pub modifier: i32,
    /// Number of dimensions; 0 if it isn't an array.
    pub dimensions: u32,
}

/// A type by its qualified name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementType {
    /// Its schema.
    pub schema: String,
    /// pg_type.typname.
    pub name: String,
    /// Whether it comes with Postgres.
    pub is_builtin: bool,
    /// Whether it is an enum.
    pub is_enum: bool,
    /// Whether it is an enum, and the database has casts from or to it that call functions.
    pub has_casts: bool,
}

/// Why columns can't be selected. The text may be shown to the client that selected them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnSelectionError {
    /// The table has no column of that name.
    #[error("column {} does not exist", super::quote_identifier(.0))]
    NotFound(String),
    /// The stream doesn't have this generated column.
    #[error(
        "column {} is generated, and its changes are not in the stream: Postgres publishes stored generated columns \
         since version 18, and others never",
        super::quote_identifier(.0)
    )]
    Generated(String),
    /// A column of the key is missing. Without it, rows couldn't be identified.
    #[error("column {} is in the primary key, and must be chosen too", super::quote_identifier(.0))]
    KeyMissing(String),
}

impl TableDescription {
    /// Returns the schema for filters.
    pub fn schema(&self) -> Schema {
        let column = |column: &ColumnDescription| filter::Column {
            name: column.name.clone(),
            column_type: column.filter_type.clone(),
        };
        Schema {
            table: Some(self.name.name.clone()),
            columns: self.columns.iter().map(column).collect(),
            database_collation: self.database_collation.clone(),
            server_version: self.server_version,
        }
    }

    /// Returns the columns for the encoder of messages.
    pub fn encoder_columns(&self) -> Vec<encode::ColumnSchema> {
        let column = |column: &ColumnDescription| encode::ColumnSchema {
            name: column.name.clone(),
            key_index: column.key_index,
        };
        self.columns.iter().map(column).collect()
    }

    /// Returns these columns for the schema header.
    pub fn header_columns(&self, selected: &[usize]) -> Vec<SchemaColumn> {
        let columns = selected.iter().filter_map(|index| self.columns.get(*index));
        let header_column = |column: &ColumnDescription| SchemaColumn {
            name: column.name.clone(),
            type_name: column.display_type.name.clone(),
            dims: column.display_type.dimensions,
            pk_index: column.key_index,
            not_null: column.is_not_null,
            type_modifier: column.display_type.modifier,
            type_oid: column.display_type.oid,
        };
        columns.map(header_column).collect()
    }

    /// Returns the primary key's columns in the key's order. Without a primary key, it is empty,
    /// and all columns together identify a row.
    pub fn key(&self) -> Vec<usize> {
        let mut key: Vec<usize> = (0..self.columns.len()).collect();
        key.retain(|index| self.columns[*index].key_index.is_some());
        key.sort_by_key(|index| self.columns[*index].key_index);
        key
    }

    /// Returns the indices of all columns.
    pub fn all_columns(&self) -> Vec<usize> {
        (0..self.columns.len()).collect()
    }

    /// Returns the columns of these names, in the table's order, each once.
    ///
    /// # Errors
    /// Fails if one doesn't exist or can't be followed, or if a column of the key is missing.
    pub fn select<N: AsRef<str>>(&self, names: &[N]) -> Result<Vec<usize>, ColumnSelectionError> {
        let mut chosen = Vec::with_capacity(names.len());
        for name in names.iter().map(AsRef::as_ref) {
            chosen.push(self.find(name)?);
        }
        chosen.sort_unstable();
        chosen.dedup();
        match self.key().into_iter().find(|index| !chosen.contains(index)) {
            None => Ok(chosen),
            Some(missing) => Err(ColumnSelectionError::KeyMissing(self.columns[missing].name.clone())),
        }
    }

    fn find(&self, name: &str) -> Result<usize, ColumnSelectionError> {
        let index = self.columns.iter().position(|column| column.name == name);
        index.ok_or_else(|| match self.excluded.iter().any(|excluded| excluded == name) {
            true => ColumnSelectionError::Generated(name.to_owned()),
            false => ColumnSelectionError::NotFound(name.to_owned()),
        })
    }

    /// Returns a hash of everything that a shape depends on: name, identity, columns, and how they
    /// compare and are displayed. It is the same in every process and version, so it can be stored.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.text(&self.name.schema).text(&self.name.name).number(self.oid).flag(self.is_partitioned);
        hash.text(&self.lineage).number(self.server_version).collation(Some(&self.database_collation));
        for column in &self.columns {
            let ColumnDescription { display_type, filter_type, .. } = column;
            hash.text(&column.name).number(column.number.cast_unsigned());
            hash.flag(column.is_not_null).flag(column.is_generated);
            hash.number(column.key_index.map_or(0, |index| index as u32 + 1));
            hash.number(display_type.oid)
                .text(&display_type.name)
                .number(display_type.modifier.cast_unsigned());
            hash.number(display_type.dimensions);
            hash.number(filter_type.oid).text(&filter_type.name).number(filter_type.typmod.cast_unsigned());
            hash.number(match filter_type.kind {
                TypeKind::Base => 0,
                TypeKind::Enum => 1,
                TypeKind::Composite => 2,
                TypeKind::Other => 3,
            });
            hash.collation(filter_type.collation.as_ref());
        }
        self.excluded.iter().for_each(|name| _ = hash.text(name));
        if self.key_is_deferrable {
            hash.flag(true);
        }
        hash.0
    }
}

/// FNV-1a. The hash of `std` may change with the compiler.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, mix);
        self
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.bytes(&[u8::from(flag)])
    }

    /// Includes the length, so that `a`, `bc` and `ab`, `c` differ.
    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u32).bytes(text.as_bytes())
    }

    fn collation(&mut self, collation: Option<&Collation>) -> &mut Self {
        match collation {
            None => self.number(0),
            Some(Collation::C) => self.number(1),
            Some(Collation::Builtin) => self.number(2),
            Some(Collation::Libc(name)) => self.number(3).text(name),
            Some(Collation::Icu(name)) => self.number(4).text(name),
            Some(Collation::Nondeterministic) => self.number(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, number: i32, key_index: Option<usize>) -> ColumnDescription {
        let filter_type = filter::Column::new(name, 23, "int4").column_type;
        let display_type = DisplayType { oid: 23, name: "int4".to_owned(), modifier: -1, dimensions: 0 };
        let name = name.to_owned();
        let element = ElementType {
            schema: "pg_catalog".to_owned(),
            name: "int4".to_owned(),
            is_builtin: true,
            is_enum: false,
            has_casts: false,
        };
        ColumnDescription {
            name,
            number,
            display_type,
            filter_type,
            element,
            is_not_null: false,
            key_index,
            is_generated: false,
            stream_type: (25, -1),
        }
    }

    fn orders() -> TableDescription {
        TableDescription {
            name: TableName::new("public", "orders"),
            oid: 16_400,
            is_partitioned: false,
            replica_identity: ReplicaIdentity::Full,
            key_is_deferrable: false,
            columns: vec![column("line", 1, Some(1)), column("note", 2, None), column("id", 4, Some(0))],
            excluded: vec!["total".to_owned()],
            server_version: 15,
            database_collation: Collation::C,
            lineage: "16404".to_owned(),
            edition: String::new(),
        }
    }

    #[test]
    fn columns_are_selected_by_name_in_the_table_s_order() {
        let table = orders();
        assert_eq!(table.key(), [2, 0]);
        assert_eq!(table.select(&["id", "note", "line", "id"]), Ok(vec![0, 1, 2]));
        assert_eq!(table.select(&["id", "line"]), Ok(vec![0, 2]));
        assert_eq!(table.select(&["line"]), Err(ColumnSelectionError::KeyMissing("id".to_owned())));
        assert_eq!(table.select(&["id", "line", "x"]), Err(ColumnSelectionError::NotFound("x".to_owned())));
        let error = table.select(&["id", "line", "total"]).unwrap_err();
        assert_eq!(error, ColumnSelectionError::Generated("total".to_owned()));
        assert!(error.to_string().starts_with("column \"total\" is generated, and"), "{error}");
    }

    #[test]
    fn the_fingerprint_differs_with_everything_that_a_shape_depends_on() {
        let change = |change: fn(&mut TableDescription)| {
            let mut table = orders();
            change(&mut table);
            table.fingerprint()
        };
        let same = orders().fingerprint();
        assert_eq!(change(|_| {}), same);
        // Stored on disk: a new value would make every table a different one.
        assert_eq!(same, 3_616_383_484_321_217_685);
        // The manager checks the replica identity.
        assert_eq!(change(|table| table.replica_identity = ReplicaIdentity::Default), same);
        let changes: [fn(&mut TableDescription); 20] = [
            |table| table.key_is_deferrable = true,
            |table| table.oid += 1,
            |table| table.name = TableName::new("public", "order"),
            |table| table.name = TableName::new("publico", "rders"),
            |table| table.is_partitioned = true,
            |table| table.lineage = "16408".to_owned(),
            |table| table.server_version = 18,
            |table| table.database_collation = Collation::Builtin,
            |table| table.columns.swap(0, 1),
            |table| _ = table.columns.pop(),
            |table| table.columns[1].name.push('s'),
            |table| table.columns[1].number = 7,
            |table| table.columns[1].is_not_null = true,
            |table| table.columns[1].is_generated = true,
            |table| table.columns[1].key_index = Some(2),
            |table| table.columns[1].display_type.modifier = 8,
            |table| table.columns[1].display_type.name.push('x'),
            |table| table.columns[1].filter_type.kind = TypeKind::Enum,
            |table| table.columns[1].filter_type.collation = Some(Collation::C),
            |table| table.excluded.clear(),
        ];
        let mut seen = vec![same];
        for (index, changed) in changes.into_iter().map(change).enumerate() {
            assert!(!seen.contains(&changed), "the change {index}");
            seen.push(changed);
        }
    }
}
