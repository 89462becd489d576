//! What a filter must know of its table.

use serde::{Deserialize, Serialize};

use crate::typing::Type;

/// A table's columns, and what of the server decides how texts compare. The database's encoding is UTF8.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schema {
    /// The table's name, so that a column may be written `table.column`; without it, columns stand alone.
    pub table: Option<String>,
    /// In the order in which rows have their values.
    pub columns: Vec<Column>,
    /// The collation of texts that have none of their own.
    pub database_collation: Collation,
    /// The server's major version: 15, 18. Some texts are numbers only since 16.
    pub server_version: u32,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Column {
    /// As pg_attribute has it: neither quoted nor folded.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
}

/// A column's type. A domain's column has the domain's base type here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ColumnType {
    /// pg_type.oid.
    pub oid: u32,
    /// pg_type.typname, for messages.
    pub name: String,
    /// pg_attribute.atttypmod. Values fit it already, so nothing here depends on it.
    pub typmod: i32,
    /// pg_attribute.attndims; the oid says that it is an array, and of what.
    pub dimensions: u32,
    /// What kind of type it is.
    pub kind: TypeKind,
    /// The column's own collation, where it isn't the database's.
    pub collation: Option<Collation>,
}

/// pg_type.typtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TypeKind {
    /// A base type, or an array of one.
    Base,
    /// An enum.
    Enum,
    /// A row type, for which IS NULL means something else.
    Composite,
    /// A range, a multirange, or whatever comes.
    Other,
}

/// How texts compare, and what their letters' other case is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Collation {
    /// `C` or `POSIX`: by bytes; only ASCII letters have two cases.
    C,
    /// Postgres' own provider (17 and newer): by bytes; letters by Unicode.
    Builtin,
    /// The C library's, by its name, such as `en_US.UTF-8`.
    Libc(String),
    /// ICU's, by its name, such as `en-US` or `und`.
    Icu(String),
    /// One in which different bytes may be equal.
    Nondeterministic,
}

impl Column {
    /// A column of a base type, or of an array of one, without a collation of its own.
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
    pub(crate) fn known(&self) -> Option<Type> {
        match self.kind {
            TypeKind::Base => Type::by_oid(self.oid),
            TypeKind::Enum | TypeKind::Composite | TypeKind::Other => None,
        }
    }
}

impl Collation {
    /// Of pg_collation (or pg_database): the provider `c`, `i` or `b`, the locale, and whether it is deterministic.
    pub fn of_catalog(provider: char, locale: &str, deterministic: bool) -> Self {
        match provider {
            _ if !deterministic => Collation::Nondeterministic,
            'i' => Collation::Icu(locale.to_owned()),
            'b' => Collation::Builtin,
            _ if locale == "C" || locale == "POSIX" => Collation::C,
            _ => Collation::Libc(locale.to_owned()),
        }
    }

    /// Whether a text is less than another exactly if its bytes are.
    pub(crate) fn orders_by_bytes(&self) -> bool {
        match self {
            Collation::C | Collation::Builtin => true,
            // By code points, which is by bytes in UTF-8.
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
