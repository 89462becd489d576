//! Qualified name of a table.

use std::fmt;

use serde::Serialize;

use crate::sql;

/// Schema and name of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The table's name.
    pub name: String,
}

impl TableName {
    /// Takes both as the catalog stores them: unquoted, case sensitive.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        TableName { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", sql::name(&self.schema), sql::name(&self.name))
    }
}
