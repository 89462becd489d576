//! Writers: waits for transactions that wrote to a table before it was published.
//!
//! Invariant: after the wait, every transaction that had written to the table before the wait has
//! ended. The stream doesn't have the changes of such a transaction, because the table wasn't
//! published. A snapshot taken before the transaction's end would miss them, too.
//! Enforced by: a transaction that writes holds its lock until it ends, even if it is prepared. It
//! is identified by its virtual transaction id, which is unique and survives PREPARE TRANSACTION.
//! Out of scope: transactions that write later. The stream has their changes, so there is no need
//! to wait for them.

use std::collections::HashSet;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::types::{ToSql, Type};
use forebay_replication::reservoir::tokio_postgres::{self, Client};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::server_message;

/// First pause between two queries; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Selects the transactions that may have written to a table or a partition of it.
///
/// INSERT, UPDATE, DELETE, MERGE and COPY hold RowExclusiveLock, and TRUNCATE AccessExclusiveLock.
/// VACUUM, CREATE INDEX and others hold the modes in between, change no row, and may take hours.
/// `pg_partition_tree` can't be used: it would lock the partitions, and so wait for those writers.
const WRITERS_SQL: &str = "
WITH RECURSIVE tree AS (
    SELECT $1::oid AS oid UNION
    SELECT c.oid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT DISTINCT l.virtualtransaction FROM pg_locks l
WHERE l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'AccessExclusiveLock') AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    AND l.relation IN (SELECT oid FROM tree)
    AND l.pid IS DISTINCT FROM pg_backend_pid()";

/// Selects a row if transaction `$2` holds a lock on table `$1` or a partition of it, in a mode
/// that INSERT, UPDATE, DELETE and SELECT don't use. Every ALTER takes such a lock.
const ALTERING_SQL: &str = "
WITH RECURSIVE tree AS (
    SELECT $1::oid AS oid UNION
    SELECT c.oid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT FROM pg_locks x JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NOT DISTINCT FROM x.pid
WHERE x.locktype = 'transactionid' AND x.granted AND x.transactionid::text = $2
    AND l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM tree)
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
LIMIT 1";

/// Selects the age of the oldest of some transactions, in seconds; NULL if the role may not see it.
const OLDEST_AGE_SQL: &str = "
SELECT extract(epoch FROM max(clock_timestamp() - coalesce(a.xact_start, p.prepared)))::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON x.locktype = 'transactionid' AND x.granted AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
WHERE l.virtualtransaction = ANY($1)";

/// Why the wait for earlier writers ended before they did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WritersError {
    /// Some of the earlier writers are still open at the deadline.
    #[error(
        "{} since before it was published{}: waited {waited:?} for the end",
        transactions(*.open),
        .oldest.map(|oldest| format!(", the oldest for {} s", oldest.as_secs())).unwrap_or_default()
    )]
    Open {
        /// Number of open transactions.
        open: usize,
        /// Age of the oldest; `None`: the role may not see it, or the query for it failed.
        oldest: Option<Duration>,
        /// Duration of the wait.
        waited: Duration,
    },
    /// The server didn't reply by the deadline.
    #[error("the query for the table's open writers had no reply within {waited:?}")]
    NoAnswer {
        /// Duration of the wait.
        waited: Duration,
    },
    /// The query failed.
    #[error("{}", server_message(.0))]
    Database(#[from] tokio_postgres::Error),
}

/// Waits for the transactions that hold a writer's lock on the table or a partition of it when this
/// is called. Returns when all of them have ended. Must not be called in a transaction.
///
/// # Errors
/// Fails if some of them are open at the deadline, or a query fails.
pub async fn wait_for_writers(
    client: &Client,
    table_oid: u32,
    deadline: Instant,
) -> Result<(), WritersError> {
    let begun = Instant::now();
    let no_answer = |_| WritersError::NoAnswer { waited: begun.elapsed() };
    let mut awaited = timeout_at(deadline, open_writers(client, table_oid)).await.map_err(no_answer)??;
    let mut pause = FIRST_PAUSE;
    while !awaited.is_empty() {
        if Instant::now() >= deadline {
            let oldest = oldest_age(client, &awaited).await;
            return Err(WritersError::Open { open: awaited.len(), oldest, waited: begun.elapsed() });
        }
        sleep_until(deadline.min(Instant::now() + pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match timeout_at(deadline + LONGEST_PAUSE, open_writers(client, table_oid)).await {
            Ok(now) => {
                let now = now?;
                awaited.retain(|transaction| now.contains(transaction));
            }
            Err(late) => return Err(no_answer(late)),
        }
    }
    Ok(())
}

/// Returns whether transaction `xid` is open and may have altered the table itself, not only rows.
///
/// # Errors
/// Fails if the query fails.
pub async fn is_altering_table(
    client: &Client,
    table_oid: u32,
    xid: u32,
) -> Result<bool, tokio_postgres::Error> {
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&table_oid, Type::OID), (&xid.to_string(), Type::TEXT)];
    Ok(!client.query_typed(ALTERING_SQL, &params).await?.is_empty())
}

async fn open_writers(client: &Client, table_oid: u32) -> Result<HashSet<String>, tokio_postgres::Error> {
    let rows = client.query_typed(WRITERS_SQL, &[(&table_oid, Type::OID)]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Returns the age of the oldest transaction. `None`: it is unknown. The age is only for a message,
/// so a late or failed reply must not replace the error that has the message.
async fn oldest_age(client: &Client, transactions: &HashSet<String>) -> Option<Duration> {
    let transactions: Vec<&String> = transactions.iter().collect();
    let soon = Instant::now() + LONGEST_PAUSE;
    let params: [(&(dyn ToSql + Sync), Type); 1] = [(&transactions, Type::TEXT_ARRAY)];
    let rows = timeout_at(soon, client.query_typed(OLDEST_AGE_SQL, &params)).await.ok()?.ok()?;
    let seconds = rows.first()?.try_get::<_, Option<f64>>(0).ok()??;
    Duration::try_from_secs_f64(seconds).ok()
}

fn transactions(open: usize) -> String {
    match open {
        1 => "1 transaction has written to the table and been open".to_owned(),
        _ => format!("{open} transactions have written to the table and been open"),
    }
}
