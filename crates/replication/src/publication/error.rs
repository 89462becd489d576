//! Errors of publishing a table. Their texts reach HTTP responses.

use forebay_reservoir::tokio_postgres;

use super::TableName;
use crate::pools::PoolError;
use crate::sql;

/// Why a table can't be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The table doesn't exist.
    #[error("there is no table {table}")]
    NotFound {
        /// The table.
        table: TableName,
    },
    /// The relation isn't a logged table.
    #[error(
        "{table} isn't a table or a partitioned table with a log: views, foreign and unlogged tables have no changes to follow"
    )]
    NotATable {
        /// The table.
        table: TableName,
    },
    /// The table or the publication needs a change. Either this role may not make it, or the
    /// publication is managed manually.
    #[error("{table} {problem}, and that can't be changed from here: {statement}, as {owner}")]
    NotPermitted {
        /// The table.
        table: TableName,
        /// The defect, as a phrase that follows the table's name.
        problem: &'static str,
        /// The SQL statement that repairs it.
        statement: String,
        /// The role that may run it.
        owner: String,
    },
    /// The publication has a row filter or a column list for the table.
    #[error(
        "the publication has a row filter or a column list for {table}: changes would be missing; publish it whole"
    )]
    Filtered {
        /// The table.
        table: TableName,
    },
    /// The table has a virtual generated column, which can't be published. With replica identity
    /// full, Postgres would refuse all updates and deletes of the table.
    #[error(
        "{table} has the virtual generated column {column}, and Postgres would refuse its updates and deletes if it were published with \
         old rows: make the column STORED, or use a view in its place"
    )]
    VirtualColumn {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
    },
    /// The table is a partition, and the publication has `publish_via_partition_root = true`.
    /// [`Manager::publish_partitions`](crate::Manager::publish_partitions) sets it to `false`.
    #[error("{table} is a partition, and the publication has publish_via_partition_root = true")]
    PublishedViaRoot {
        /// The table.
        table: TableName,
    },
    /// The publication lacks an operation. The next reconciliation repairs it.
    #[error(
        "the publication leaves out a kind of change: ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, \
         truncate'), and generated columns where it can have them"
    )]
    Narrowed {
        /// The publication's name.
        publication: String,
    },
    /// The publication doesn't exist.
    #[error("the publication is gone")]
    NoPublication,
    /// The table's lock wasn't free within the lock timeout.
    #[error("{table} is in use, and couldn't be changed within 2 s: try again")]
    Busy {
        /// The table.
        table: TableName,
    },
    /// The server, or the consumer's `table_changed`, took too long.
    #[error("no answer within 30 s: try again")]
    Timeout,
    /// No connection was available.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// The server returned an error.
    #[error("{}", sql::error_text(.0))]
    Server(#[from] tokio_postgres::Error),
}
