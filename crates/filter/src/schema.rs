//! Schema: the columns and collations that a clause refers to.

use serde::{Deserialize, Serialize};

use crate::typing::SqlType;

/// The columns of a table, and the server's settings that decide comparisons. The database's
/// encoding is UTF8.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schema {
    /// The table's name. With it, a clause may write `table.column`.
    pub table: Option<String>,
    /// The columns, in the order of a row's values.
    pub columns: Vec<Column>,
    /// The collation of columns without a collation of their own.
    pub database_collation: Collation,
    /// The server's major version, such as 15 or 18. Versions parse some constants differently.
    pub server_version: u32,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Column {
    /// pg_attribute.attname: neither quoted nor folded.
    pub name: String,
    /// The column's type.
    pub column_type: ColumnType,
}

/// A column's type. For a domain, its base type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ColumnType {
    /// pg_type.oid.
    pub oid: u32,
    /// pg_type.typname, used in messages.
    pub name: String,
    /// pg_attribute.atttypmod. It has no effect on evaluation: stored values fit it.
    pub typmod: i32,
    /// pg_attribute.attndims. The oid decides whether it is an array, and of which type.
    pub dimensions: u32,
    /// The kind of type.
    pub kind: TypeKind,
    /// The column's collation, if it is not the database's default.
    pub collation: Option<Collation>,
}

/// Kind of type (pg_type.typtype).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TypeKind {
    /// A base type, or an array of one.
    Base,
    /// An enum.
    Enum,
    /// A row type, for which IS NULL has another meaning.
    Composite,
    /// A range, a multirange, or any other kind.
    Other,
}

/// How texts compare, and how letters change case.
///
/// The enum is exhaustive: code that stores a collation must handle each variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Collation {
    /// `C` or `POSIX`: orders by bytes; only ASCII letters change case.
    C,
    /// Postgres' builtin provider (17 and newer): orders by bytes; letters change case by Unicode.
    Builtin,
    /// A collation of the C library, by name, such as `en_US.UTF-8`.
    Libc(String),
    /// A collation of ICU, by name, such as `en-US` or `und`.
    Icu(String),
    /// A nondeterministic collation: texts with different bytes may be equal.
    Nondeterministic,
}

impl Column {
    /// Returns a column of a base type, or of an array of one, with the database's collation.
    pub fn new(name: &str, oid: u32, type_name: &str) -> Self {
        let column_type = ColumnType {
            oid,
            name: type_name.to_owned(),
            typmod: -1,
            dimensions: 0,
            kind: TypeKind::Base,
            collation: None,
        };
        Column { name: name.to_owned(), column_type }
    }
}

impl ColumnType {
    /// Returns the type, if filters support it.
    pub(crate) fn sql_type(&self) -> Option<SqlType> {
        match self.kind {
            TypeKind::Base => SqlType::by_oid(self.oid),
            TypeKind::Enum | TypeKind::Composite | TypeKind::Other => None,
        }
    }
}

impl Collation {
    /// Returns the collation of a row of pg_collation or pg_database. `provider` is `c`, `i` or
    /// `b`.
    pub fn of_catalog(provider: char, locale: &str, deterministic: bool) -> Self {
        match provider {
            _ if !deterministic => Collation::Nondeterministic,
            'i' => Collation::Icu(locale.to_owned()),
            'b' => Collation::Builtin,
            _ if locale == "C" || locale == "POSIX" => Collation::C,
            _ => Collation::Libc(locale.to_owned()),
        }
    }

    /// Returns whether texts have the order of their bytes.
    pub(crate) fn orders_by_bytes(&self) -> bool {
        match self {
            Collation::C | Collation::Builtin => true,
            // The order of code points, which in UTF-8 is the order of bytes.
            Collation::Libc(name) => matches!(&*name.to_ascii_lowercase(), "c.utf-8" | "c.utf8"),
            Collation::Icu(_) | Collation::Nondeterministic => false,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Collation::C => "C",
            Collation::Builtin => "builtin",
            Collation::Libc(name) | Collation::Icu(name) => name,
            Collation::Nondeterministic => "nondeterministic",
        }
    }
}
