//! Waiting for those who wrote before anybody followed.
//!
//! Invariant: when the wait is over, every transaction that had written to the table when it began has ended. What such a one
//! wrote is in no stream, since the table wasn't published yet, and would be missing from a snapshot that is taken before its end.
//! Kept by: a writer keeps its lock until it ends, even as a prepared transaction. It is known by its virtual transaction, which no
//! other one gets, and which PREPARE TRANSACTION leaves as it is.
//! Not here: those who come later. Their changes are in the stream, and they aren't waited for, however many there are.

use std::collections::HashSet;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::types::{ToSql, Type};
use forebay_replication::reservoir::tokio_postgres::{self, Client};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::words;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Who may have written: INSERT, UPDATE, DELETE, MERGE and COPY hold RowExclusiveLock, TRUNCATE AccessExclusiveLock. Those between
/// are held by VACUUM, CREATE INDEX and the like, which change no row and may take hours. `pg_partition_tree` isn't for this: it
/// would lock the partitions, and so wait for those very writers.
const HOLDERS: &str = "
WITH RECURSIVE tree AS (
    SELECT $1::oid AS oid UNION
    SELECT c.oid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT DISTINCT l.virtualtransaction FROM pg_locks l
WHERE l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'AccessExclusiveLock') AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    AND l.relation IN (SELECT oid FROM tree)
    AND l.pid IS DISTINCT FROM pg_backend_pid()";

/// Whether a transaction that hasn't ended holds a lock that no writer of rows has, on a table or a partition of it: whatever changes a table
/// takes one.
const CHANGING: &str = "
WITH RECURSIVE tree AS (
    SELECT $1::oid AS oid UNION
    SELECT c.oid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT FROM pg_locks x JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NOT DISTINCT FROM x.pid
WHERE x.locktype = 'transactionid' AND x.granted AND x.transactionid::text = $2
    AND l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM tree)
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
LIMIT 1";

/// How long the oldest of some has been open, in seconds; NULL where we may not see it.
const AGE: &str = "
SELECT extract(epoch FROM max(clock_timestamp() - coalesce(a.xact_start, p.prepared)))::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON x.locktype = 'transactionid' AND x.granted AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
WHERE l.virtualtransaction = ANY($1)";

/// Why the writers from before weren't waited for to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WritersError {
    /// They are still open.
    #[error(
        "{} since before it was published{}: waited {waited:?} for the end",
        transactions(*.open),
        .oldest.map(|oldest| format!(", the oldest for {} s", oldest.as_secs())).unwrap_or_default()
    )]
    Open {
        /// How many.
        open: usize,
        /// How long the oldest has been open; `None`: we may not see it.
        oldest: Option<Duration>,
        /// How long we waited.
        waited: Duration,
    },
    /// The database didn't answer by the deadline.
    #[error("the database didn't say within {waited:?} who writes to the table")]
    NoAnswer {
        /// How long we waited.
        waited: Duration,
    },
    /// The database can't be asked.
    #[error("{}", words(.0))]
    Database(#[from] tokio_postgres::Error),
}

/// Waits until every transaction has ended that holds a lock of a writer on the table, or on a partition of it, now. Not to be
/// called in a transaction.
///
/// # Errors
/// When some are open at the deadline, or nobody answers.
pub async fn wait_for_writers(
    client: &Client,
    table_oid: u32,
    deadline: Instant,
) -> Result<(), WritersError> {
    let begun = Instant::now();
    let no_answer = |_| WritersError::NoAnswer { waited: begun.elapsed() };
    let mut awaited = timeout_at(deadline, holders(client, table_oid)).await.map_err(no_answer)??;
    let mut pause = FIRST_PAUSE;
    while !awaited.is_empty() {
        if Instant::now() >= deadline {
            let oldest = oldest(client, &awaited).await?;
            return Err(WritersError::Open { open: awaited.len(), oldest, waited: begun.elapsed() });
        }
        sleep_until(deadline.min(Instant::now() + pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match timeout_at(deadline + LONGEST_PAUSE, holders(client, table_oid)).await {
            Ok(now) => {
                let now = now?;
                awaited.retain(|transaction| now.contains(transaction));
            }
            Err(late) => return Err(no_answer(late)),
        }
    }
    Ok(())
}

/// Whether a transaction that hasn't ended may have changed the table itself, and not only rows.
///
/// # Errors
/// When the database can't be asked.
pub async fn is_changing(client: &Client, table_oid: u32, xid: u32) -> Result<bool, tokio_postgres::Error> {
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&table_oid, Type::OID), (&xid.to_string(), Type::TEXT)];
    Ok(!client.query_typed(CHANGING, &params).await?.is_empty())
}

async fn holders(client: &Client, table_oid: u32) -> Result<HashSet<String>, tokio_postgres::Error> {
    let rows = client.query_typed(HOLDERS, &[(&table_oid, Type::OID)]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

async fn oldest(
    client: &Client,
    transactions: &HashSet<String>,
) -> Result<Option<Duration>, tokio_postgres::Error> {
    let transactions: Vec<&String> = transactions.iter().collect();
    let soon = Instant::now() + LONGEST_PAUSE;
    // It is only for the message.
    let asked = timeout_at(soon, client.query_typed(AGE, &[(&transactions, Type::TEXT_ARRAY)])).await;
    let Ok(rows) = asked else { return Ok(None) };
    let seconds = rows?.first().map(|row| row.try_get::<_, Option<f64>>(0)).transpose()?.flatten();
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
}

fn transactions(open: usize) -> String {
    match open {
        1 => "1 transaction has written to the table and been open".to_owned(),
        _ => format!("{open} transactions have written to the table and been open"),
    }
}
