//! Types of pg_type that filters don't support, and pseudo-types. Overloads of functions take them,
//! so resolution must know them. `tests/it/catalog.rs` compares them with real servers.

use forebay_values::Scalar;

use super::sql_type::{Category, SqlType};

/// A row of pg_type that is no [`Scalar`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ForeignType {
    /// Name in the catalog.
    pub(crate) name: &'static str,
    pub(crate) category: Category,
    pub(crate) is_preferred: bool,
    /// Supported types that Postgres casts to it implicitly.
    pub(crate) sources: &'static [Scalar],
}

const TEXTS: &[Scalar] = &[Scalar::Text, Scalar::Varchar, Scalar::Bpchar];
const INTEGERS: &[Scalar] = &[Scalar::Int2, Scalar::Int4, Scalar::Int8];

const FOREIGN_TYPES: &[ForeignType] = &[
    foreign("anyenum", Category::Pseudo),
    foreign("anymultirange", Category::Pseudo),
    foreign("anyrange", Category::Pseudo),
    foreign("bit", Category::BitString),
    foreign("lseg", Category::Geometric),
    ForeignType { sources: &[Scalar::Macaddr], ..foreign("macaddr8", Category::User) },
    ForeignType { sources: TEXTS, ..foreign("name", Category::String) },
    ForeignType { sources: INTEGERS, is_preferred: true, ..foreign("oid", Category::Number) },
    foreign("path", Category::Geometric),
    foreign("tsvector", Category::User),
    foreign("xid", Category::User),
];

const fn foreign(name: &'static str, category: Category) -> ForeignType {
    ForeignType { name, category, is_preferred: false, sources: &[] }
}

impl ForeignType {
    pub(crate) fn by_name(name: &str) -> Option<&'static ForeignType> {
        FOREIGN_TYPES.iter().find(|foreign| foreign.name == name)
    }

    pub(crate) fn all() -> impl Iterator<Item = &'static ForeignType> {
        FOREIGN_TYPES.iter()
    }

    /// Returns whether Postgres casts the type to it implicitly.
    pub(crate) fn accepts(&self, given: SqlType) -> bool {
        match given {
            SqlType::Unknown => true,
            SqlType::Scalar(scalar) => self.sources.contains(&scalar),
            SqlType::Array(_) | SqlType::Opaque(_) => false,
        }
    }
}
