//! Tests of snapshots that fail, and of their connections afterwards.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_serve::database::{RowSink, SnapshotError, SnapshotQuery, snapshot};

use super::{CollectingSink, Database, query};
use crate::deadline::until;

type Failure = SnapshotError<Infallible>;

fn items(version: u32) -> Database {
    Database::new(
        version,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (0, 'top secret', NULL), (1, '2', NULL)",
    )
}

/// Returns the error of a snapshot, and verifies that its connection is clean.
async fn failure(database: &Database, query: &SnapshotQuery<'_>) -> Failure {
    let mut client = database.client().await;
    let error = snapshot(&mut client, query, &mut CollectingSink::default()).await.unwrap_err();
    assert!(client.is_reusable(), "{error}");
    let state = client
        .query_one("SELECT 1 WHERE current_setting('transaction_isolation') = 'read committed'", &[])
        .await;
    state.unwrap_or_else(|left| panic!("after {error}: {left}"));
    error
}

#[tokio::test]
async fn a_clause_that_postgres_rejects_fails_with_its_location() {
    let database = items(15);
    let table = database.describe("t").await;
    for (clause, sqlstate, location, message) in [
        ("(\"id\" = 1) AND (\"nope\" = 1)", "42703", Some(31), "column \"nope\" does not exist"),
        ("\"id\" = \"a\"", "42883", Some(20), "operator does not exist: integer = text"),
        ("\"id\" = = 1", "42601", Some(22), "At location 22: syntax error at or near \"=\""),
        ("\"other\".\"id\" = 1", "42P01", Some(15), "missing FROM-clause entry for table \"other\""),
        // These fail on a row, and Postgres' message contains its values.
        ("1 / \"id\" = 1", "22012", None, "the where clause fails on a row of the table (22012)"),
        ("\"a\"::\"int4\" = 1", "22P02", None, "the where clause fails on a row of the table (22P02)"),
    ] {
        let error = failure(&database, &query(&table, &[0], Some(clause))).await;
        assert_eq!(error.to_string(), message, "{clause}");
        assert!(!error.is_temporary());
        let SnapshotError::Refused(refusal) = error else { panic!("{clause}: {error:?}") };
        assert_eq!((refusal.sqlstate.as_str(), refusal.location), (sqlstate, location), "{clause}");
    }
    assert!(database.is_quiet());
}

#[tokio::test]
async fn an_analysed_clause_fails_with_its_own_constants_and_never_with_values_of_rows() {
    let database = items(15);
    let table = database.describe("t").await;
    for (clause, message) in [
        ("\"id\" = 'x'", "invalid input syntax for type integer: \"x\""),
        ("\"nope\" = 1", "column \"nope\" does not exist"),
        ("\"id\"", "argument of WHERE must be type boolean, not type integer"),
        ("\"a\"::\"int4\" = 1", "the where clause fails on a row of the table (22P02)"),
        // The SQLSTATE is that of a syntax error, and the message contains the row's text.
        ("(\"a\" || ' x')::\"tsquery\" IS NULL", "the where clause fails on a row of the table (42601)"),
    ] {
        let query = SnapshotQuery { analyses: true, ..query(&table, &[0], Some(clause)) };
        let error = failure(&database, &query).await;
        assert_eq!(error.to_string(), message, "{clause}");
        assert!(matches!(error, SnapshotError::Refused(_)), "{clause}: {error:?}");
    }
    let fits = SnapshotQuery { analyses: true, ..query(&table, &[0], Some("length(\"a\") > 0")) };
    database.read(&fits, &mut CollectingSink::default()).await.unwrap();
    assert!(database.is_quiet());
}

#[tokio::test]
async fn a_table_that_was_altered_since_its_description_is_not_read() {
    for version in [15, 18] {
        let database = items(version);
        for change in [
            "ALTER TABLE t ADD COLUMN c int",
            "ALTER TABLE t DROP COLUMN c",
            "ALTER TABLE t ALTER COLUMN b TYPE varchar(10)",
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a text, b varchar(10))",
            "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u",
        ] {
            let table = database.describe("t").await;
            database.run(change);
            let error = failure(&database, &query(&table, &[0], None)).await;
            assert!(matches!(error, SnapshotError::Changed { .. }), "{change}: {error:?}");
        }
        database.run("DROP VIEW t; ALTER TABLE u RENAME TO t");
        let table = database.describe("t").await;
        database.run("DROP TABLE t");
        let error = failure(&database, &query(&table, &[0], None)).await;
        assert!(matches!(error, SnapshotError::NotFound { .. }), "{error:?}");
        assert_eq!(error.to_string(), "there is no table \"public\".\"t\"");
    }
}

#[tokio::test]
async fn a_role_that_may_not_read_all_rows_reads_none() {
    let database = Database::of(
        15,
        "",
        "reader_no_more",
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2); GRANT SELECT ON t TO reader_no_more",
    );
    let table = database.describe("t").await;
    for (change, message) in [
        (
            "CREATE POLICY p ON t USING (id = 1); ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "policies hide rows of it from",
        ),
        (
            "ALTER TABLE t DISABLE ROW LEVEL SECURITY; REVOKE SELECT ON t FROM reader_no_more",
            "permission denied for table t",
        ),
    ] {
        database.run(change);
        let error = failure(&database, &query(&table, &[0], None)).await;
        assert!(matches!(error, SnapshotError::NoPermission { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[tokio::test]
async fn a_snapshot_that_times_out_or_is_cancelled_may_be_tried_again() {
    let database = items(15);
    let table = database.describe("t").await;
    let slow = query(&table, &[0], Some("(pg_sleep(60) IS NOT NULL)"));
    let timed = SnapshotQuery { timeout: Some(Duration::from_millis(50)), ..slow };
    let error = failure(&database, &timed).await;
    assert!(matches!(error, SnapshotError::TimedOut { .. }) && error.is_temporary(), "{error:?}");
    assert!(error.to_string().contains("longer than the 50 ms"), "{error}");

    let cancelling = async {
        let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        until("it sleeps", async || !database.run(cancel).is_empty()).await;
    };
    let (error, ()) = tokio::join!(failure(&database, &slow), cancelling);
    assert!(matches!(error, SnapshotError::Cancelled(_)), "{error:?}");
}

#[tokio::test]
async fn a_lost_connection_is_not_reused() {
    let database = items(15);
    let table = database.describe("t").await;
    let mut client = database.client().await;
    let terminating = async {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        until("it sleeps", async || !database.run(end).is_empty()).await;
    };
    let (slow, mut sink) =
        (query(&table, &[0], Some("(pg_sleep(60) IS NOT NULL)")), CollectingSink::default());
    let (outcome, ()) = tokio::join!(snapshot(&mut client, &slow, &mut sink), terminating);
    let error = outcome.unwrap_err();
    assert!(matches!(error, SnapshotError::Lost(_)) && error.is_temporary(), "{error:?}");
    assert!(!client.is_reusable());
}

#[derive(Debug, thiserror::Error)]
#[error("the disk is full")]
struct DiskFull;

/// A sink that accepts one piece, and then fails or never returns.
struct StallingSink {
    pieces: usize,
    fails: bool,
}

impl RowSink for StallingSink {
    type Error = DiskFull;

    async fn begin(&mut self, _snapshot: &Snapshot, _lsn: Lsn) -> Result<(), DiskFull> {
        Ok(())
    }

    async fn rows(&mut self, _messages: Bytes) -> Result<(), DiskFull> {
        self.pieces += 1;
        match self.pieces {
            1 => Ok(()),
            _ if self.fails => Err(DiskFull),
            _ => pending().await,
        }
    }
}

/// Creates a table that is larger than all buffers between client and server.
fn large() -> Database {
    Database::new(
        15,
        "CREATE TABLE t (id int PRIMARY KEY, a text); ALTER TABLE t ALTER COLUMN a SET STORAGE EXTERNAL;
         INSERT INTO t SELECT i, repeat('x', 1000000) FROM generate_series(1, 60) i",
    )
}

const COPYING: &str = "SELECT wait_event FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%' \
    AND state = 'active'";

#[tokio::test]
async fn a_sink_that_fails_ends_the_snapshot_and_the_copy() {
    let database = large();
    let table = database.describe("t").await;
    let mut client = database.client().await;
    let all = table.all_columns();
    let outcome =
        snapshot(&mut client, &query(&table, &all, None), &mut StallingSink { pieces: 0, fails: true }).await;
    let error = outcome.unwrap_err();
    assert!(
        matches!(error, SnapshotError::Sink(DiskFull)) && error.to_string() == "the disk is full",
        "{error:?}"
    );
    assert!(!client.is_reusable());
    drop(client);
    until("the server stops", async || database.run(COPYING).is_empty()).await;
}

#[tokio::test]
async fn a_slow_sink_slows_the_server_and_a_dropped_snapshot_stops_it() {
    let database = large();
    let table = database.describe("t").await;
    let mut client = database.client().await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let (all, mut sink) = (table.all_columns(), StallingSink { pieces: 0, fails: false });
    let query = query(&table, &all, None);
    let waiting = until("the server waits for us", async || {
        tokio::time::sleep(Duration::from_millis(1)).await;
        database.run(COPYING) == [[Some("ClientWrite".to_owned())]]
    });
    tokio::select! {
        outcome = snapshot(&mut client, &query, &mut sink) => panic!("{outcome:?}"),
        () = waiting => {}
    }
    assert!(!client.is_reusable(), "the next user must not receive the rest of the rows");
    drop(client);
    let alive = format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid}");
    until("the backend has ended", async || database.run(&alive).is_empty()).await;
}

#[tokio::test]
async fn a_table_that_stays_locked_fails_the_snapshot_after_the_lock_timeout() {
    let database = items(15);
    let table = database.describe("t").await;
    let blocker = database.client().await;
    blocker.batch_execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut client = database.client().await;
    let (query, mut sink) = (query(&table, &[0], None), CollectingSink::default());
    let outcome = snapshot(&mut client, &query, &mut sink).await;
    assert!(matches!(outcome, Err(SnapshotError::Cancelled(_))), "{outcome:?}");
    assert!(client.is_reusable(), "the connection is reusable");
    drop(client);
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(database.rows("t", None).await.len(), 2);
}

#[tokio::test]
async fn a_snapshot_dropped_before_its_rows_leaves_no_transaction_behind() {
    let database = items(15);
    let table = database.describe("t").await;
    let blocker = database.client().await;
    blocker.batch_execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut client = database.client().await;
    let waiting =
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let (query, mut sink) = (query(&table, &[0], None), CollectingSink::default());
    tokio::select! {
        outcome = snapshot(&mut client, &query, &mut sink) => panic!("{outcome:?}"),
        () = until("it waits for the lock", async || {
            tokio::time::sleep(Duration::from_millis(1)).await;
            !database.run(waiting).is_empty()
        }) => {}
    }
    assert!(!client.is_reusable());
    drop(client);
    until("no backend waits any more", async || database.run(waiting).is_empty()).await;
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(database.rows("t", None).await.len(), 2);
}

/// A sink that runs SQL between the snapshot and its rows.
struct InterferingSink<'a> {
    database: &'a Database,
    sql: &'static str,
    rows: usize,
}

impl RowSink for InterferingSink<'_> {
    type Error = Infallible;

    async fn begin(&mut self, _: &Snapshot, _: Lsn) -> Result<(), Infallible> {
        self.database.run(self.sql);
        Ok(())
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), Infallible> {
        self.rows += messages.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        Ok(())
    }
}

#[tokio::test]
async fn a_partition_attached_or_truncated_after_the_snapshot_began_fails_it() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
             CREATE TABLE p_11 PARTITION OF p_1 FOR VALUES FROM (0) TO (5);
             CREATE TABLE p_2 (id int PRIMARY KEY); CREATE TABLE p_12 (id int PRIMARY KEY);
             INSERT INTO p VALUES (1), (2); INSERT INTO p_2 VALUES (11); INSERT INTO p_12 VALUES (6)",
        );
        let mut client = database.client().await;
        for (sql, expected) in [
            ("SELECT", Some(2)),
            ("ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (10) TO (20)", None),
            ("SELECT", Some(3)),
            ("ALTER TABLE p_1 ATTACH PARTITION p_12 FOR VALUES FROM (5) TO (10)", None),
            ("SELECT", Some(4)),
            ("ALTER TABLE p_1 DETACH PARTITION p_12", None),
            ("SELECT", Some(3)),
            ("TRUNCATE p_11", None),
            ("SELECT", Some(1)),
            ("INSERT INTO p VALUES (3)", Some(1)),
            ("SELECT", Some(2)),
        ] {
            let table = database.describe("p").await;
            let mut sink = InterferingSink { database: &database, sql, rows: 0 };
            let outcome = snapshot(&mut client, &query(&table, &[0], None), &mut sink).await;
            match expected {
                Some(rows) => {
                    assert_eq!((outcome.unwrap().rows, sink.rows), (rows, rows as usize), "{version}: {sql}")
                }
                None => {
                    assert!(matches!(outcome, Err(Failure::Changed { .. })), "{version}: {sql}: {outcome:?}")
                }
            }
            assert!(client.is_reusable(), "{version}: {sql}");
        }
        // A lock on a partition that the clause doesn't select doesn't block the snapshot.
        let other = database.client().await;
        other.batch_execute("BEGIN; LOCK TABLE p_2 IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let table = database.describe_by(&client, "p").await;
        let mut sink = CollectingSink::default();
        let outcome = snapshot(&mut client, &query(&table, &[0], Some("\"id\" < 5")), &mut sink).await;
        assert_eq!(outcome.unwrap().rows, 1, "{version}");
    }
}
