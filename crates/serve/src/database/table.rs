//! A table as the catalog has it, and what the other parts want to know of it.
//!
//! Invariant: the columns are those whose values both COPY and the stream of changes have, in the table's order.

use forebay_replication::TableName;
use forebay_shapes::encode;
use forebay_shapes::filter::{self, Collation, ColumnType, Schema, TypeKind};

use crate::protocol::schema::SchemaColumn;

/// A table. Columns are named by their places in [`columns`](Self::columns).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDescription {
    /// Its name.
    pub name: TableName,
    /// pg_class.oid.
    pub oid: u32,
    /// Whether its rows are in partitions.
    pub is_partitioned: bool,
    /// What old rows the stream has. Partitions have their own.
    pub replica_identity: ReplicaIdentity,
    /// Whether the primary key is DEFERRABLE: within a transaction, two rows may have one key.
    pub key_is_deferrable: bool,
    /// The columns that can be followed, in the table's order.
    pub columns: Vec<ColumnDescription>,
    /// Generated columns that can't: the stream has stored ones since Postgres 18, and never those that aren't stored.
    pub left_out: Vec<String>,
    /// The server's major version.
    pub server_version: u32,
    /// The collation of texts that have none of their own.
    pub database_collation: Collation,
    /// What tells it from a table that only looks the same: see [`describe`](super::describe).
    pub lineage: String,
    /// Which rows of the catalog say so: as long as they are the same, so is all of this.
    pub edition: String,
}

/// pg_class.relreplident.
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
    /// Its type as clients see it.
    pub shown: TypeShown,
    /// Its type as filters see it: under all domains.
    pub filtered: ColumnType,
    /// The same, by name; of an array, its element's.
    pub element: ElementType,
    /// Whether it is never NULL.
    pub is_not_null: bool,
    /// Its place in the primary key, if it is in there.
    pub key_index: Option<usize>,
    /// Whether the database computes it.
    pub is_generated: bool,
    /// pg_attribute's atttypid and atttypmod: its type as the stream tells it.
    pub stream_type: (u32, i32),
}

/// A type as clients see it: an array's is its element's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeShown {
    /// pg_type.oid.
    pub oid: u32,
    /// pg_type.typname.
    pub name: String,
    /// pg_attribute.atttypmod.
    pub modifier: i32,
    /// 0: it isn't an array.
    pub dimensions: u32,
}

/// A type by its name, as SQL can name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementType {
    /// Its schema.
    pub schema: String,
    /// pg_type.typname.
    pub name: String,
    /// Whether it came with Postgres.
    pub is_builtin: bool,
    /// Whether it is an enum.
    pub is_enum: bool,
    /// Whether it is an enum, and the database has casts from it or to it that call functions.
    pub has_casts: bool,
}

/// Why columns can't be chosen. Its text may be shown to whoever chose them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The table has none of that name.
    #[error("column {} does not exist", super::quoted(.0))]
    NotFound(String),
    /// The stream doesn't have it.
    #[error(
        "column {} is generated, and its changes are not in the stream: Postgres publishes stored generated columns \
         since version 18, and others never",
        super::quoted(.0)
    )]
    Generated(String),
    /// Without the whole key, rows couldn't be told apart.
    #[error("column {} is in the primary key, and must be chosen too", super::quoted(.0))]
    KeyMissing(String),
}

impl TableDescription {
    /// What filters need to know.
    pub fn schema(&self) -> Schema {
        let column = |column: &ColumnDescription| filter::Column {
            name: column.name.clone(),
            column_type: column.filtered.clone(),
        };
        Schema {
            table: Some(self.name.name.clone()),
            columns: self.columns.iter().map(column).collect(),
            database_collation: self.database_collation.clone(),
            server_version: self.server_version,
        }
    }

    /// What messages need to know.
    pub fn columns(&self) -> Vec<encode::ColumnSchema> {
        let column = |column: &ColumnDescription| encode::ColumnSchema {
            name: column.name.clone(),
            key_index: column.key_index,
        };
        self.columns.iter().map(column).collect()
    }

    /// What the schema's header shows of these columns.
    pub fn shown(&self, selected: &[usize]) -> Vec<SchemaColumn> {
        let columns = selected.iter().filter_map(|index| self.columns.get(*index));
        let shown = |column: &ColumnDescription| SchemaColumn {
            name: column.name.clone(),
            type_name: column.shown.name.clone(),
            dims: column.shown.dimensions,
            pk_index: column.key_index,
            not_null: column.is_not_null,
            type_modifier: column.shown.modifier,
            type_oid: column.shown.oid,
        };
        columns.map(shown).collect()
    }

    /// The primary key's columns in the key's order; none: all columns tell rows apart.
    pub fn key(&self) -> Vec<usize> {
        let mut key: Vec<usize> = (0..self.columns.len()).collect();
        key.retain(|index| self.columns[*index].key_index.is_some());
        key.sort_by_key(|index| self.columns[*index].key_index);
        key
    }

    /// All columns.
    pub fn all(&self) -> Vec<usize> {
        (0..self.columns.len()).collect()
    }

    /// The columns of these names, in the table's order, each once.
    ///
    /// # Errors
    /// When one isn't there, can't be followed, or is missing from the key.
    pub fn choose<N: AsRef<str>>(&self, names: &[N]) -> Result<Vec<usize>, ChoiceError> {
        let mut chosen = Vec::with_capacity(names.len());
        for name in names.iter().map(AsRef::as_ref) {
            chosen.push(self.find(name)?);
        }
        chosen.sort_unstable();
        chosen.dedup();
        match self.key().into_iter().find(|index| !chosen.contains(index)) {
            None => Ok(chosen),
            Some(missing) => Err(ChoiceError::KeyMissing(self.columns[missing].name.clone())),
        }
    }

    fn find(&self, name: &str) -> Result<usize, ChoiceError> {
        let place = self.columns.iter().position(|column| column.name == name);
        place.ok_or_else(|| match self.left_out.iter().any(|left_out| left_out == name) {
            true => ChoiceError::Generated(name.to_owned()),
            false => ChoiceError::NotFound(name.to_owned()),
        })
    }

    /// Differs if anything does that a shape depends on: name, identity, columns, how they compare, how they are shown. The
    /// same in every process and version of this program, so it can be kept.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.text(&self.name.schema).text(&self.name.name).number(self.oid).flag(self.is_partitioned);
        hash.text(&self.lineage).number(self.server_version).collation(Some(&self.database_collation));
        for column in &self.columns {
            let ColumnDescription { shown, filtered, .. } = column;
            hash.text(&column.name).number(column.number.cast_unsigned());
            hash.flag(column.is_not_null).flag(column.is_generated);
            hash.number(column.key_index.map_or(0, |index| index as u32 + 1));
            hash.number(shown.oid).text(&shown.name).number(shown.modifier.cast_unsigned());
            hash.number(shown.dimensions);
            hash.number(filtered.oid).text(&filtered.name).number(filtered.typmod.cast_unsigned());
            hash.number(match filtered.kind {
                TypeKind::Base => 0,
                TypeKind::Enum => 1,
                TypeKind::Composite => 2,
                TypeKind::Other => 3,
            });
            hash.collation(filtered.collation.as_ref());
        }
        self.left_out.iter().for_each(|name| _ = hash.text(name));
        if self.key_is_deferrable {
            hash.flag(true);
        }
        hash.0
    }
}

/// FNV-1a: `std`'s own hash may change with the compiler.
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

    /// With its length, or `a`, `bc` would be `ab`, `c`.
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
        let filtered = filter::Column::new(name, 23, "int4").column_type;
        let shown = TypeShown { oid: 23, name: "int4".to_owned(), modifier: -1, dimensions: 0 };
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
            shown,
            filtered,
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
            left_out: vec!["total".to_owned()],
            server_version: 15,
            database_collation: Collation::C,
            lineage: "16404".to_owned(),
            edition: String::new(),
        }
    }

    #[test]
    fn columns_are_chosen_by_name_in_the_table_s_order() {
        let table = orders();
        assert_eq!(table.key(), [2, 0]);
        assert_eq!(table.choose(&["id", "note", "line", "id"]), Ok(vec![0, 1, 2]));
        assert_eq!(table.choose(&["id", "line"]), Ok(vec![0, 2]));
        assert_eq!(table.choose(&["line"]), Err(ChoiceError::KeyMissing("id".to_owned())));
        assert_eq!(table.choose(&["id", "line", "x"]), Err(ChoiceError::NotFound("x".to_owned())));
        let error = table.choose(&["id", "line", "total"]).unwrap_err();
        assert_eq!(error, ChoiceError::Generated("total".to_owned()));
        assert!(error.to_string().starts_with("column \"total\" is generated, and"), "{error}");
    }

    #[test]
    fn the_fingerprint_tells_whatever_a_shape_depends_on() {
        let change = |change: fn(&mut TableDescription)| {
            let mut table = orders();
            change(&mut table);
            table.fingerprint()
        };
        let same = orders().fingerprint();
        assert_eq!(change(|_| {}), same);
        // Kept on disk: another number is another table.
        assert_eq!(same, 3_616_383_484_321_217_685);
        // Who sees to old rows is somebody else.
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
            |table| table.columns[1].shown.modifier = 8,
            |table| table.columns[1].shown.name.push('x'),
            |table| table.columns[1].filtered.kind = TypeKind::Enum,
            |table| table.columns[1].filtered.collation = Some(Collation::C),
            |table| table.left_out.clear(),
        ];
        let mut seen = vec![same];
        for (index, changed) in changes.into_iter().map(change).enumerate() {
            assert!(!seen.contains(&changed), "the change {index}");
            seen.push(changed);
        }
    }
}
