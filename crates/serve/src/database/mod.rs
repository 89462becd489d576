//! What a shape asks of Postgres: what its table is, whether its clause is one, and the rows that are there.
//!
//! Invariant: a snapshot and the stream of changes describe the same rows in the same text. What could make them differ is an
//! error, never a difference: a table that changed since it was described, rows that a policy hides, writers that nobody follows.
//! Kept by: the table is locked and described again in the snapshot's own transaction, whose settings decide how values are
//! written and how a clause is read (`snapshot.rs`); writers from before are waited for (`writers.rs`).
//! Not here: the publication and the stream; see `forebay_replication`.

mod builtins;
mod catalog_entry;
mod clause;
mod collation;
mod describe;
mod error;
mod snapshot;
mod table;
mod writers;

pub use self::builtins::{Builtins, NotAllowed};
pub use self::catalog_entry::{CatalogEntry, TableSelection, current_snapshot, look, relatives};
pub use self::clause::{ClauseRejection, ValidateError, validate};
pub use self::describe::{CatalogError, DescribeError, describe, describe_unread};
pub use self::error::SnapshotError;
pub use self::snapshot::{RowSink, SnapshotQuery, SnapshotSummary, SubsetPage, snapshot};
pub use self::table::{
    ChoiceError, ColumnDescription, ElementType, ReplicaIdentity, TableDescription, TypeShown,
};
pub use self::writers::{WritersError, is_changing, wait_for_writers};

use std::error::Error as _;

use forebay_replication::reservoir::{PostgresServerError, tokio_postgres};

/// As a name, whatever it holds.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What happened, in the server's words: the error's own are "db error".
fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => PostgresServerError::from(said).to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
