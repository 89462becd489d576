//! Schema: the columns and collations that a clause refers to.

use std::hash::{Hash, Hasher};

use forebay_values::{Collation, Scalar};
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
    /// What filters need to know about a user-defined type.
    #[serde(default, skip_serializing_if = "TypeDetails::is_none")]
    pub details: TypeDetails,
}

/// Details of a user-defined type; none for a type of Postgres.
///
/// Details are no part of a type's identity: all are equal. Schemas that were stored without
/// details equal those with them, and an enum's new label makes no other type of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TypeDetails(pub Option<Box<UserType>>);

/// A user-defined type that filters support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserType {
    /// pg_type.oid of the type; for a column of arrays, of the element type.
    pub oid: u32,
    /// The schema of the type.
    pub schema: String,
    /// pg_type.typname.
    pub name: String,
    /// Whether the column has arrays of the type.
    pub is_array: bool,
    /// The labels of an enum, in the order of pg_enum.enumsortorder. `None`: the type is citext, of
    /// the extension of that name, or a domain.
    pub labels: Option<Vec<String>>,
    /// For arrays of a domain: pg_type.oid of the arrays of its base type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_array: Option<u32>,
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
            details: TypeDetails(None),
        };
        Column { name: name.to_owned(), column_type }
    }
}

impl ColumnType {
    /// Returns the type, if filters support it.
    pub(crate) fn sql_type(&self) -> Option<SqlType> {
        match self.kind {
            TypeKind::Base => match &self.details.0 {
                Some(user) if user.labels.is_some() => Some(SqlType::Array(Scalar::Enum(user.oid))),
                Some(user) => match user.base_array {
                    Some(base) => SqlType::by_oid(base),
                    None if user.is_array => Some(SqlType::Array(Scalar::Text)),
                    None => Some(SqlType::TEXT),
                },
                None => SqlType::by_oid(self.oid),
            },
            TypeKind::Enum => Some(SqlType::Scalar(Scalar::Enum(self.oid))),
            // Ranges have their own kind; those of Postgres are known by their oid.
            TypeKind::Other => SqlType::by_oid(self.oid),
            TypeKind::Composite => None,
        }
    }

    /// Returns whether the column has citext values, not arrays of them.
    pub(crate) fn is_citext(&self) -> bool {
        self.citext().is_some_and(|user| !user.is_array)
    }

    /// Returns whether the column has arrays of citext.
    pub(crate) fn is_citext_array(&self) -> bool {
        self.citext().is_some_and(|user| user.is_array)
    }

    fn citext(&self) -> Option<&UserType> {
        self.details.0.as_deref().filter(|user| user.labels.is_none() && user.base_array.is_none())
    }

    /// Returns the type of arrays of the base type, if the column has arrays of a domain.
    pub(crate) fn base_array(&self) -> Option<SqlType> {
        SqlType::by_oid(self.details.0.as_ref()?.base_array?)
    }
}

impl Schema {
    /// Returns the enum with this oid, if the schema knows its labels.
    pub(crate) fn enum_type(&self, oid: u32) -> Option<&UserType> {
        self.user_types().find(|user| user.oid == oid && user.labels.is_some())
    }

    /// Returns the user-defined types of the columns, with repetitions.
    pub(crate) fn user_types(&self) -> impl Iterator<Item = &UserType> {
        self.columns.iter().filter_map(|column| column.column_type.details.0.as_deref())
    }

    /// Returns whether both schemas have the same details. Equality of schemas ignores them.
    pub fn has_same_details(&self, other: &Schema) -> bool {
        let details = |schema: &Schema| -> Vec<Option<UserType>> {
            schema.columns.iter().map(|column| column.column_type.details.0.as_deref().cloned()).collect()
        };
        details(self) == details(other)
    }
}

impl TypeDetails {
    fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl PartialEq for TypeDetails {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TypeDetails {}

impl Hash for TypeDetails {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
