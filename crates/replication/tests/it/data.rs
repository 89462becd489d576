//! Changes of every kind, of every kind of table, in one text form.
//!
//! Wraparound of transaction ids is tested in `xid.rs` and `snapshot.rs` of pgoutput: a server
//! can't reach it within a test.

mod message_log;
mod values;

use forebay_replication::reservoir::tokio_postgres;
use forebay_replication::{Manager, PublishError, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};

use crate::followed_database::{FollowedDatabase, insert, row};
use crate::journal::{JournalChange, OldRow};

type TextRow = Vec<Option<String>>;

/// Returns servers of the oldest and the newest version.
fn both_versions() -> [&'static Postgres; 2] {
    [Postgres::shared_version(15), Postgres::shared_version(18)]
}

/// Returns a row; `-` is NULL.
fn values<const N: usize>(values: [&str; N]) -> TextRow {
    values.map(|value| (value != "-").then(|| value.to_owned())).to_vec()
}

fn inserted<const N: usize>(table: &str, new: [&str; N]) -> JournalChange {
    JournalChange::Insert(table.into(), values(new))
}

fn updated<const N: usize>(table: &str, old: Option<OldRow>, new: [&str; N]) -> JournalChange {
    JournalChange::Update(table.into(), old, values(new))
}

fn full<const N: usize>(old: [&str; N]) -> OldRow {
    OldRow::Full(values(old))
}

fn key<const N: usize>(old: [&str; N]) -> OldRow {
    OldRow::Key(values(old))
}

impl FollowedDatabase<'_> {
    async fn add(&self, manager: &Manager, schema: &str, name: &str) {
        within("the table is added", manager.add_table(&TableName::new(schema, name))).await.unwrap();
    }

    fn refused(&self, sql: &str) -> String {
        self.server.execute(&self.database, sql).unwrap_err().to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_toasted_value_is_in_a_full_old_row_and_never_in_the_new_row() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let manager = followed.running().await;
        followed.sql(
            "CREATE TABLE docs (id int PRIMARY KEY, note text, body text); \
             ALTER TABLE docs ALTER COLUMN body SET STORAGE EXTERNAL",
        );
        followed.add(&manager, "public", "docs").await;
        let (body, other) = ("x".repeat(20_000), "y".repeat(20_000));
        followed.sql("INSERT INTO docs VALUES (1, 'a', repeat('x', 20000))");
        followed.sql("UPDATE docs SET note = 'b'");
        followed.sql("ALTER TABLE docs REPLICA IDENTITY DEFAULT");
        followed.sql("UPDATE docs SET note = 'c'");
        followed.sql("UPDATE docs SET id = 2");
        followed.sql("UPDATE docs SET body = repeat('y', 20000)");
        followed.sql("ALTER TABLE docs REPLICA IDENTITY FULL");
        followed.sql("DELETE FROM docs");
        let expected = [
            inserted("public.docs", ["1", "a", &body]),
            updated("public.docs", Some(full(["1", "a", &body])), ["1", "b", "?"]),
            updated("public.docs", None, ["1", "c", "?"]),
            updated("public.docs", Some(key(["1", "-", "-"])), ["2", "c", "?"]),
            updated("public.docs", None, ["2", "c", &other]),
            JournalChange::Delete("public.docs".into(), full(["2", "c", &other])),
        ];
        assert_eq!(followed.eventually_changes(expected.len()).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_rows_have_the_columns_of_the_replica_identity() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let manager = followed.running().await;
        followed.sql("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, note text); CREATE UNIQUE INDEX t_code ON t (code)");
        followed.add(&manager, "public", "t").await;
        assert_eq!(
            followed.query_value("SELECT relreplident FROM pg_class WHERE relname = 't'").as_deref(),
            Some("f")
        );
        let script = "INSERT INTO t VALUES (1, 'a', 'x'); UPDATE t SET note = 'y'; UPDATE t SET id = 2, code = 'b'; DELETE FROM t";
        followed.sql(script);
        followed.sql("ALTER TABLE t REPLICA IDENTITY DEFAULT");
        followed.sql(script);
        followed.sql("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code");
        followed.sql(script);
        let changes = |olds: [Option<OldRow>; 3]| {
            let [noted, moved, gone] = olds;
            [
                inserted("public.t", ["1", "a", "x"]),
                updated("public.t", noted, ["1", "a", "y"]),
                updated("public.t", moved, ["2", "b", "y"]),
                JournalChange::Delete("public.t".into(), gone.unwrap()),
            ]
        };
        let with_full = [full(["1", "a", "x"]), full(["1", "a", "y"]), full(["2", "b", "y"])].map(Some);
        let with_default = [None, Some(key(["1", "-", "-"])), Some(key(["2", "-", "-"]))];
        let with_index = [None, Some(key(["-", "a", "-"])), Some(key(["-", "b", "-"]))];
        let expected: Vec<_> = [with_full, with_default, with_index].into_iter().flat_map(changes).collect();
        assert_eq!(followed.eventually_changes(expected.len()).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replica_identity_postgres_refuses_updates_and_deletes() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("ALTER TABLE orders REPLICA IDENTITY NOTHING");
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    for (sql, word) in [("UPDATE orders SET note = 'paid'", "updates"), ("DELETE FROM orders", "deletes")] {
        let error = followed.refused(sql);
        assert!(error.contains("does not have a replica identity") && error.contains(word), "{error}");
    }
    followed.sql("TRUNCATE orders");
    // Adding the table again repairs it.
    followed.add(&manager, "public", "orders").await;
    followed.sql("INSERT INTO orders VALUES (2, 'new')");
    followed.sql("DELETE FROM orders");
    let expected = [
        insert("orders", 1, "new"),
        JournalChange::Truncate(vec!["public.orders".into()]),
        insert("orders", 2, "new"),
        JournalChange::Delete("public.orders".into(), OldRow::Full(row(2, "new"))),
    ];
    assert_eq!(followed.eventually_changes(4).await, expected);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_partitions_arrive_under_the_name_of_the_partitioned_table() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let manager = followed.running().await;
        followed.sql(
            "CREATE SCHEMA parts; CREATE TABLE m (id int, at int, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at); \
             CREATE TABLE m_1 PARTITION OF m FOR VALUES FROM (0) TO (10); \
             CREATE TABLE parts.m_2 PARTITION OF m FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id); \
             CREATE TABLE parts.m_2_rest PARTITION OF parts.m_2 DEFAULT",
        );
        followed.add(&manager, "public", "m").await;
        followed.sql("INSERT INTO m VALUES (1, 5, 'a'), (2, 15, 'b')");
        followed.sql("UPDATE m SET note = 'c' WHERE id = 1");
        // From one partition to another.
        followed.sql("UPDATE m SET at = 16 WHERE id = 1");
        followed.sql("DELETE FROM m WHERE id = 2");
        followed.sql("TRUNCATE m");
        let expected = [
            inserted("public.m", ["1", "5", "a"]),
            inserted("public.m", ["2", "15", "b"]),
            updated("public.m", Some(full(["1", "5", "a"])), ["1", "5", "c"]),
            JournalChange::Delete("public.m".into(), full(["1", "5", "c"])),
            inserted("public.m", ["1", "16", "c"]),
            JournalChange::Delete("public.m".into(), full(["2", "15", "b"])),
            JournalChange::Truncate(vec!["public.m".into()]),
        ];
        assert_eq!(followed.eventually_changes(expected.len()).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_partition_is_followed_and_a_detached_one_is_not() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let manager = followed.running().await;
        followed.sql(
            "CREATE TABLE m (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); \
             CREATE TABLE m_1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        );
        followed.add(&manager, "public", "m").await;
        followed.sql("CREATE TABLE m_2 PARTITION OF m FOR VALUES FROM (10) TO (20)");
        followed.sql("INSERT INTO m VALUES (10, 'made')");
        followed.sql("CREATE TABLE m_3 (LIKE m INCLUDING ALL); INSERT INTO m_3 VALUES (20, 'unseen')");
        followed.sql("ALTER TABLE m ATTACH PARTITION m_3 FOR VALUES FROM (20) TO (30)");
        followed.sql("INSERT INTO m VALUES (21, 'attached')");
        // Without old rows, until the table is added again or reconciled.
        followed.sql("UPDATE m SET note = 'a' WHERE id = 21");
        followed.add(&manager, "public", "m").await;
        followed.sql("UPDATE m SET note = 'b' WHERE id = 21");
        followed.sql("ALTER TABLE m DETACH PARTITION m_2");
        followed.sql("INSERT INTO m_2 VALUES (11, 'unseen')");
        followed.sql("INSERT INTO m VALUES (1, 'seen')");
        let expected = [
            inserted("public.m", ["10", "made"]),
            inserted("public.m", ["21", "attached"]),
            updated("public.m", None, ["21", "a"]),
            updated("public.m", Some(full(["21", "a"])), ["21", "b"]),
            inserted("public.m", ["1", "seen"]),
        ];
        assert_eq!(followed.eventually_changes(expected.len()).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_generated_columns_arrive_from_18_on_and_are_left_out_before() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        // As an older version creates it.
        followed.sql("CREATE PUBLICATION forebay");
        let manager = followed.running().await;
        followed.sql(
            "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, note text)",
        );
        followed.add(&manager, "public", "g").await;
        followed.sql("INSERT INTO g (id, note) VALUES (1, 'a')");
        followed.sql("UPDATE g SET id = 2");
        followed.sql("DELETE FROM g");
        let row = |id: &str, twice: &str| match server.version() >= 18 {
            true => values([id, twice, "a"]),
            false => values([id, "a"]),
        };
        let expected = [
            JournalChange::Insert("public.g".into(), row("1", "2")),
            JournalChange::Update("public.g".into(), Some(OldRow::Full(row("1", "2"))), row("2", "4")),
            JournalChange::Delete("public.g".into(), OldRow::Full(row("2", "4"))),
        ];
        assert_eq!(followed.eventually_changes(3).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_a_virtual_generated_column_is_refused_and_stays_writable() {
    let followed = FollowedDatabase::new(Postgres::shared_version(18));
    let manager = followed.running().await;
    followed.sql("CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL)");
    let error = manager.add_table(&TableName::new("public", "g")).await.unwrap_err();
    assert!(matches!(&error, PublishError::VirtualColumn { column, .. } if column == "twice"), "{error}");
    followed.sql("INSERT INTO g VALUES (1)");
    followed.sql("UPDATE g SET id = 2");
    followed.sql("DELETE FROM g");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_changes_never_arrive_not_even_as_an_empty_transaction() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("BEGIN; INSERT INTO orders VALUES (1, 'undone'); ROLLBACK");
    let error = followed.refused("BEGIN; INSERT INTO orders VALUES (1, 'undone'); SELECT 1/0; COMMIT");
    assert!(error.contains("division by zero"), "{error}");
    // More than logical_decoding_work_mem.
    let many = "INSERT INTO orders SELECT n, repeat('x', 200) FROM generate_series(1000, 6000) n";
    followed.sql(&format!("SET logical_decoding_work_mem = '64kB'; BEGIN; {many}; ROLLBACK"));
    followed.sql(&format!("BEGIN; SAVEPOINT s; {many}; ROLLBACK TO s; COMMIT"));
    followed.sql(&format!(
        "BEGIN; INSERT INTO orders VALUES (1, 'kept'); SAVEPOINT a; INSERT INTO orders VALUES (2, 'undone'); ROLLBACK TO a; \
         INSERT INTO orders VALUES (2, 'kept'); SAVEPOINT b; {many}; SAVEPOINT c; INSERT INTO orders VALUES (3, 'undone'); \
         ROLLBACK TO b; INSERT INTO orders VALUES (3, 'kept'); SAVEPOINT d; INSERT INTO orders VALUES (4, 'kept'); RELEASE d; COMMIT"
    ));
    let expected = [1, 2, 3, 4].map(|id| insert("orders", id, "kept"));
    assert_eq!(followed.eventually_changes(4).await, expected);
    assert_eq!(followed.transactions().len(), 1);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interleaved_transactions_arrive_complete_in_commit_order() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    let (first, second) = (manager.snapshot().await.unwrap(), manager.snapshot().await.unwrap());
    let run = async |client: &tokio_postgres::Client, sql: &str| client.batch_execute(sql).await.unwrap();
    run(&first, "BEGIN; INSERT INTO orders VALUES (1, 'first')").await;
    run(&second, "BEGIN; INSERT INTO orders VALUES (2, 'second')").await;
    run(&first, "INSERT INTO orders VALUES (3, 'first')").await;
    run(&second, "INSERT INTO orders VALUES (4, 'second'); COMMIT").await;
    run(&first, "INSERT INTO orders VALUES (5, 'first'); COMMIT").await;
    followed.eventually_changes(5).await;
    let transactions: Vec<_> =
        followed.transactions().into_iter().map(|transaction| transaction.changes).collect();
    let expected = [
        [2, 4].map(|id| insert("orders", id, "second")).to_vec(),
        [1, 3, 5].map(|id| insert("orders", id, "first")).to_vec(),
    ];
    assert_eq!(transactions, expected);
    drop((first, second));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_arrives_when_it_is_committed() {
    let server = Postgres::builder().config("max_prepared_transactions", "5").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("BEGIN; INSERT INTO orders VALUES (1, 'prepared'); PREPARE TRANSACTION 'one'");
    followed.sql("BEGIN; INSERT INTO orders VALUES (2, 'undone'); PREPARE TRANSACTION 'two'");
    followed.sql("BEGIN; INSERT INTO orders VALUES (3, 'after a restart'); PREPARE TRANSACTION 'three'");
    followed.sql("INSERT INTO orders VALUES (4, 'between')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 4, "between")]);
    followed.sql("COMMIT PREPARED 'one'");
    followed.sql("ROLLBACK PREPARED 'two'");
    followed.eventually_changes(2).await;
    manager.shutdown().await;
    let manager = followed.running().await;
    followed.sql("COMMIT PREPARED 'three'");
    followed.eventually_changes(3).await;
    let transactions: Vec<_> =
        followed.transactions().into_iter().map(|transaction| transaction.changes).collect();
    let expected = [(4, "between"), (1, "prepared"), (3, "after a restart")]
        .map(|(id, note)| vec![insert("orders", id, note)]);
    assert_eq!(transactions, expected);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untracked_tables_and_empty_transactions_only_advance_the_position() {
    let server = Postgres::builder().config("wal_sender_timeout", "1s").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("CREATE TABLE unseen (id int PRIMARY KEY)");
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    followed.eventually_changes(1).await;
    for id in 0..50 {
        followed.sql(&format!("INSERT INTO unseen VALUES ({id})"));
        followed.sql("SELECT pg_current_xact_id()");
        followed.sql("SELECT pg_logical_emit_message(true, 'strange', 'text')");
    }
    let position: u64 =
        followed.query_value("SELECT (pg_current_wal_lsn() - '0/0')::bigint").unwrap().parse().unwrap();
    let confirmed = format!(
        "SELECT confirmed_flush_lsn - '0/0' >= {position} FROM pg_replication_slots WHERE slot_name = '{}'",
        followed.slot
    );
    eventually("the slot has advanced", Some("t".to_owned()), async || followed.query_value(&confirmed))
        .await;
    followed.sql("BEGIN; INSERT INTO unseen VALUES (99); INSERT INTO orders VALUES (2, 'seen'); COMMIT");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("orders", 1, "seen"), insert("orders", 2, "seen")]
    );
    assert_eq!(followed.transactions().len(), 2);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_the_same_name_in_several_schemas_are_distinguished() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let schemas = ["public", "Second", "it's \"the\" third.", "четвёртая"];
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    for schema in schemas {
        let schema_name = quoted(schema);
        followed.sql(&format!(
            "CREATE SCHEMA IF NOT EXISTS {schema_name}; CREATE TABLE {schema_name}.\"Or;ders\" (id int PRIMARY KEY, note text)"
        ));
        if schema != "Second" {
            followed.add(&manager, schema, "Or;ders").await;
        }
    }
    for schema in schemas {
        followed.sql(&format!("INSERT INTO {}.\"Or;ders\" VALUES (1, 'new')", quoted(schema)));
    }
    let expected = ["public", "it's \"the\" third.", "четвёртая"]
        .map(|schema| JournalChange::Insert(format!("{schema}.Or;ders"), row(1, "new")));
    assert_eq!(followed.eventually_changes(3).await, expected);
    manager.remove_table(&TableName::new(schemas[2], "Or;ders")).await.unwrap();
    for schema in schemas {
        followed.sql(&format!("DELETE FROM {}.\"Or;ders\"", quoted(schema)));
    }
    let gone = ["public", "четвёртая"]
        .map(|schema| JournalChange::Delete(format!("{schema}.Or;ders"), OldRow::Full(row(1, "new"))));
    assert_eq!(followed.eventually_changes(5).await[3..], gone);
    manager.shutdown().await;
}
