//! Queries to Postgres for shapes: descriptions of tables, validation of clauses, and snapshots.
//!
//! Invariant: a snapshot and the replication stream describe the same rows with the same text.
//! Enforced by: the snapshot's own transaction locks the table and checks its description. It fails
//! if the table was altered since, or a policy hides rows. Its settings decide how values are
//! written and how a clause is read (`snapshot.rs`). Before the snapshot, the caller waits for
//! transactions that wrote to the table before it was published (`writers.rs`).
//! Out of scope: the publication and the stream; see `forebay_replication`.
//!
//! | topic | file |
//! |---|---|
//! | the description of a table, and what it contains | `describe.rs`, `table_description.rs`, `collation.rs` |
//! | a table's catalog rows, for cheap comparisons | `catalog_entry.rs` |
//! | reading rows; errors | `snapshot.rs`, `snapshot_error.rs` |
//! | transactions that wrote before the publication | `writers.rs` |
//! | evaluating a clause on rows of the stream | `row_judgement.rs` |
//! | clauses that Postgres rejects; functions they may use | `clause_rejection.rs`, `builtins.rs` |

mod builtins;
mod catalog_entry;
mod clause_rejection;
mod collation;
mod describe;
mod row_judgement;
mod snapshot;
mod snapshot_error;
mod table_description;
mod writers;

pub use self::builtins::{Builtins, DisallowedBuiltin};
pub use self::catalog_entry::{CatalogEntry, TableSelection, current_snapshot, partition_tree, read_entries};
pub use self::clause_rejection::{ClauseRejection, ValidateError, validate_clause};
pub use self::describe::{CatalogError, DescribeError, describe, describe_ignoring_privileges};
pub use self::row_judgement::{Judgement, JudgementError, JudgementStatement, RowOutcome};
pub use self::snapshot::{RowSink, SnapshotQuery, SnapshotSummary, SubsetPage, snapshot};
pub use self::snapshot_error::SnapshotError;
pub use self::table_description::{
    ColumnDescription, ColumnSelectionError, DisplayType, ElementType, ReplicaIdentity, TableDescription,
};
pub use self::writers::{WritersError, is_altering_table, wait_for_writers};

use std::error::Error as _;

use forebay_replication::reservoir::{PostgresServerError, tokio_postgres};

/// Returns a name as a quoted SQL identifier.
fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the server's message. The error's own text is just "db error".
fn server_message(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db_error), _) => PostgresServerError::from(db_error).to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
