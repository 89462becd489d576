//! Changes of table definitions: shapes that they affect are replaced, and the others continue.

use serde_json::Value;

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, summarize};
use crate::wire::until;

const CREATE_TABLES: &str = "CREATE TABLE items (id int PRIMARY KEY, note text, price int);
    INSERT INTO items VALUES (1, 'one', 1);
    CREATE TABLE others (id int PRIMARY KEY, note text);
    INSERT INTO others VALUES (1, 'one')";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
const SOME_COLUMNS_SHAPE: [(&str, &str); 2] = [("table", "items"), ("columns", "id,note")];
const OTHERS_SHAPE: [(&str, &str); 1] = [("table", "others")];

/// Returns the column names of a shape.
async fn columns(serve: &ServeProcess, shape: &[(&str, &str)]) -> Vec<String> {
    let response = serve.first_chunk(shape).await;
    let schema: Value = serde_json::from_str(response.head.header("electric-schema").unwrap()).unwrap();
    schema.as_object().unwrap().keys().cloned().collect()
}

/// Runs DDL on `items`, then a change of a row. Checks that the shape of `items` is replaced, and
/// that the shape of `others` continues.
async fn replaced_by(ddl: &str, change: &str) -> (ServeFixture, ServeProcess) {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEMS_SHAPE).await;
    let mut others = serve.reader(&OTHERS_SHAPE).await;
    fixture.sql(ddl);
    fixture.sql(change);
    let handle = items.wait_for_refetch(&serve).await;
    let fresh = serve.reader(&ITEMS_SHAPE).await;
    assert!(handle.is_empty() || handle == fresh.handle, "{ddl}: the 409 has the handle of the new shape");
    let before = others.handle.clone();
    fixture.sql("UPDATE others SET note = 'uno'");
    assert_eq!(summarize(&others.live_changes(&serve, 1).await), ["update 1"]);
    assert_eq!(others.handle, before, "{ddl}: the shape of another table continues");
    (fixture, serve)
}

#[tokio::test]
async fn adding_a_column_replaces_the_shape() {
    let (fixture, serve) = replaced_by(
        "ALTER TABLE items ADD extra text DEFAULT 'x'",
        "INSERT INTO items VALUES (2, 'two', 2, 'y')",
    )
    .await;
    assert_eq!(columns(&serve, &ITEMS_SHAPE).await, ["extra", "id", "note", "price"]);
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("UPDATE items SET extra = 'z' WHERE id = 2");
    let messages = reader.live_changes(&serve, 1).await;
    assert_eq!(messages[0]["value"]["extra"], "z");
}

#[tokio::test]
async fn a_shape_of_some_columns_continues_while_other_columns_change() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut some = serve.reader(&SOME_COLUMNS_SHAPE).await;
    let handle = some.handle.clone();
    for (ddl, id) in [("ADD extra text", 2), ("DROP price", 3), ("RENAME extra TO more", 4)] {
        fixture.sql(&format!("ALTER TABLE items {ddl}"));
        fixture.sql(&format!("INSERT INTO items (id, note) VALUES ({id}, 'x')"));
        assert_eq!(summarize(&some.live_changes(&serve, 1).await), [format!("insert {id}")]);
    }
    assert_eq!(some.handle, handle);
    fixture.sql("ALTER TABLE items RENAME note TO remark");
    fixture.sql("INSERT INTO items (id) VALUES (5)");
    until("requests for the renamed column are refused", async || {
        let response = serve.get(&[some.params(), vec![("live", "true")]].concat()).await;
        response.head.status == 400
    })
    .await;
}

#[tokio::test]
async fn dropping_a_column_replaces_the_shape() {
    let (_place, serve) =
        replaced_by("ALTER TABLE items DROP price", "INSERT INTO items VALUES (2, 'two')").await;
    assert_eq!(columns(&serve, &ITEMS_SHAPE).await, ["id", "note"]);
}

#[tokio::test]
async fn renaming_a_column_replaces_the_shape() {
    let (_place, serve) =
        replaced_by("ALTER TABLE items RENAME price TO cost", "INSERT INTO items VALUES (2, 'two', 2)").await;
    assert_eq!(columns(&serve, &ITEMS_SHAPE).await, ["cost", "id", "note"]);
}

#[tokio::test]
async fn changing_the_type_of_a_column_replaces_the_shape() {
    let (_place, serve) =
        replaced_by("ALTER TABLE items ALTER price TYPE bigint", "INSERT INTO items VALUES (2, 'two', 2)")
            .await;
    let head = serve.head(&[&ITEMS_SHAPE[..], &[("offset", "-1")]].concat()).await;
    assert!(head.header("electric-schema").unwrap().contains("int8"), "{}", head.text);
}

#[tokio::test]
async fn dropping_a_column_and_adding_it_again_replaces_the_shape() {
    let (fixture, serve) = replaced_by(
        "ALTER TABLE items DROP COLUMN price; ALTER TABLE items ADD COLUMN price int DEFAULT 9",
        "INSERT INTO items VALUES (2, 'two')",
    )
    .await;
    let rows = ShapeReader::new(&ITEMS_SHAPE).catch_up(&serve).await;
    let prices: Vec<_> = changes(&rows).iter().map(|row| row["value"]["price"].clone()).collect();
    assert_eq!(prices, ["9", "9"]);
    drop((serve, fixture));
}

#[tokio::test]
async fn columns_that_exchange_their_names_replace_the_shape() {
    let exchange = "ALTER TABLE items ADD COLUMN more text DEFAULT 'more';
        ALTER TABLE items RENAME note TO away; ALTER TABLE items RENAME more TO note; ALTER TABLE items RENAME away TO more";
    let fixture = ServeFixture::new(CREATE_TABLES);
    fixture.sql("ALTER TABLE items ADD COLUMN other text DEFAULT 'other'");
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&SOME_COLUMNS_SHAPE).await;
    fixture.sql(exchange);
    fixture.sql("UPDATE items SET price = 5");
    items.wait_for_refetch(&serve).await;
    let rows = ShapeReader::new(&SOME_COLUMNS_SHAPE).catch_up(&serve).await;
    assert_eq!(changes(&rows)[0]["value"]["note"], "more");
}

#[tokio::test]
async fn a_new_shape_waits_for_transactions_from_while_its_table_was_unpublished() {
    let fixture = ServeFixture::new(&format!("{CREATE_TABLES}; CREATE TABLE go (now bool)"));
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql(&format!("ALTER PUBLICATION {} DROP TABLE items", fixture.slot));
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let open = "BEGIN; INSERT INTO items VALUES (7, 'from before');
        DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM go); PERFORM pg_sleep(0.01); END LOOP; END $$; COMMIT";
    let writer = std::thread::spawn(move || postgres.execute(&database, open));
    let writing =
        "SELECT count(*) FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'RowExclusiveLock'";
    until("the writer has locked the table", async || fixture.query_value(writing).as_deref() == Some("1"))
        .await;
    // The next replication connection detects that the table is missing, and publishes it again.
    let end =
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND slot_name =";
    fixture.sql(&format!("{end} '{}'", fixture.slot));
    items.wait_for_refetch(&serve).await;
    let mut fresh = ShapeReader::new(&ITEMS_SHAPE);
    let mut request = serve.start_get(&fresh.params()).await;
    fixture.sql("INSERT INTO go VALUES (true)");
    writer.join().unwrap().unwrap();
    let mut rows = fresh.accept(&request.response().await);
    rows.extend(fresh.catch_up(&serve).await);
    assert!(summarize(&rows).contains(&"insert 7".to_owned()), "{:?}", summarize(&rows));
}

#[tokio::test]
async fn truncate_replaces_the_shape() {
    let (_place, serve) = replaced_by("TRUNCATE items", "INSERT INTO items VALUES (7, 'seven', 7)").await;
    let mut fresh = ShapeReader::new(&ITEMS_SHAPE);
    assert_eq!(summarize(&fresh.catch_up(&serve).await), ["insert 7"]);
}

#[tokio::test]
async fn a_new_table_of_the_same_name_replaces_the_shape() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEMS_SHAPE).await;
    let mut others = serve.reader(&OTHERS_SHAPE).await;
    fixture.sql("DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, fresh text); INSERT INTO items VALUES (9, 'n')");
    // The stream doesn't contain DDL. The server detects the new table at a request for it, or
    // within 5 s.
    until("the new table is served", async || columns(&serve, &ITEMS_SHAPE).await == ["fresh", "id"]).await;
    items.wait_for_refetch(&serve).await;
    let mut fresh = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("UPDATE items SET fresh = 'm'");
    assert_eq!(summarize(&fresh.live_changes(&serve, 1).await), ["update 9"]);
    fixture.sql("UPDATE others SET note = 'uno'");
    assert_eq!(summarize(&others.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test]
async fn a_dropped_table_has_no_shapes_and_a_renamed_one_is_served_under_its_new_name() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEMS_SHAPE).await;
    let others = serve.reader(&OTHERS_SHAPE).await;
    fixture.sql("ALTER TABLE items RENAME TO things");
    fixture.sql("INSERT INTO things VALUES (2, 'two', 2)");
    until("requests for the old name are refused", async || {
        let response = serve.get(&[items.params(), vec![("live", "true")]].concat()).await;
        matches!(response.head.status, 400 | 409)
    })
    .await;
    let mut things = serve.reader(&[("table", "things")]).await;
    fixture.sql("INSERT INTO things VALUES (3, 'three', 3)");
    assert_eq!(summarize(&things.live_changes(&serve, 1).await), ["insert 3"]);
    fixture.sql("DROP TABLE others");
    until("requests for the dropped table are refused", async || {
        serve.get(&[&OTHERS_SHAPE[..], &[("offset", "-1")]].concat()).await;
        let response = serve.get(&[others.params(), vec![("live", "true")]].concat()).await;
        matches!(response.head.status, 400 | 409)
    })
    .await;
    items.offset = "-1".to_owned();
    assert_eq!(serve.get(&items.params()).await.head.status, 400);
}

#[tokio::test]
async fn a_new_column_is_soon_served_although_no_row_changed() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve().await;
    assert_eq!(columns(&serve, &ITEMS_SHAPE).await, ["id", "note", "price"]);
    fixture.sql("ALTER TABLE items ADD extra text");
    until("the new column is served", async || {
        columns(&serve, &ITEMS_SHAPE).await.contains(&"extra".to_owned())
    })
    .await;
}

/// Runs scripts with DDL and a change of a row. Checks that the shape ends before it gets the
/// change.
///
/// `statuses`: the possible responses.
async fn ends_before_the_change(
    fixture: &ServeFixture,
    shape: &[(&str, &str)],
    scripts: &[&str],
    statuses: &[u16],
) {
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "20000")]).await;
    let reader = serve.reader(shape).await;
    let mut waiting = serve.start_get(&[reader.params(), vec![("live", "true")]].concat()).await;
    for script in scripts {
        fixture.sql(script);
    }
    let head = waiting.head().await;
    assert!(statuses.contains(&head.status), "{}", head.text);
    let again = serve.get(&reader.params()).await;
    assert!(
        statuses.contains(&again.head.status),
        "{} {}",
        again.head.text,
        String::from_utf8_lossy(&again.body)
    );
}

#[tokio::test]
async fn a_new_primary_key_ends_the_shape_before_rows_share_a_key() {
    const KEY: &str = "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, price)";
    const ROW: &str = "INSERT INTO items VALUES (1, 'uno', 2)";
    let together = format!("{KEY}; {ROW}");
    for scripts in [&[KEY, ROW][..], &[&together]] {
        let fixture = ServeFixture::new(CREATE_TABLES);
        ends_before_the_change(&fixture, &ITEMS_SHAPE, scripts, &[409]).await;
    }
}

#[tokio::test]
async fn a_primary_key_that_was_dropped_for_a_while_ends_the_shape() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let twice = "ALTER TABLE items DROP CONSTRAINT items_pkey; INSERT INTO items VALUES (1, 'uno', 2);
        DELETE FROM items WHERE price = 2; ALTER TABLE items ADD PRIMARY KEY (id)";
    ends_before_the_change(&fixture, &ITEMS_SHAPE, &[twice], &[409]).await;
}

#[tokio::test]
async fn a_new_collation_ends_a_shape_whose_clause_orders_by_it() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let shape = [("table", "items"), ("where", "note < 'p'")];
    let collate = "ALTER TABLE items ALTER note TYPE text COLLATE \"en-x-icu\"";
    // Postgres evaluates the order of the new collation for the next shape.
    ends_before_the_change(&fixture, &shape, &[collate, "INSERT INTO items VALUES (2, 'O', 2)"], &[409])
        .await;
}

#[tokio::test]
async fn ddl_that_changes_no_column_replaces_no_shape() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let handle = reader.handle.clone();
    let harmless = [
        "ANALYZE items",
        "CREATE INDEX ON items (price)",
        "ALTER TABLE items ALTER price SET STATISTICS 10",
        "GRANT SELECT ON items TO PUBLIC",
        "REINDEX TABLE CONCURRENTLY items",
        "VACUUM FULL items",
        "CREATE TABLE more (id int PRIMARY KEY)",
    ];
    for (id, script) in (2..).zip(harmless) {
        fixture.sql(script);
        fixture.sql(&format!("INSERT INTO items VALUES ({id}, 'x', 1)"));
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), [format!("insert {id}")], "{script}");
    }
    assert_eq!(reader.handle, handle);
}

/// Returns a script: a partitioned table with a row in each of two partitions, and a separate table
/// with the same columns and a third row.
fn partitioned(name: &str) -> String {
    let part = |number: i32, from: i32| {
        format!(
            "CREATE TABLE {name}_{number} PARTITION OF {name} FOR VALUES FROM ({from}) TO ({})",
            from + 10
        )
    };
    format!(
        "CREATE TABLE {name} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); {}; {};
         CREATE TABLE {name}_3 (id int PRIMARY KEY, note text);
         INSERT INTO {name} VALUES (1, 'one'), (11, 'two'); INSERT INTO {name}_3 VALUES (21, 'three')",
        part(1, 0),
        part(2, 10)
    )
}

#[tokio::test]
async fn rows_of_attached_and_removed_partitions_are_soon_served() {
    let attach = "ALTER TABLE attached ATTACH PARTITION attached_3 FOR VALUES FROM (20) TO (30)";
    let cases = [
        ("emptied", "TRUNCATE emptied_2", &["insert 1"][..]),
        ("dropped", "DROP TABLE dropped_2", &["insert 1"]),
        ("detached", "ALTER TABLE detached DETACH PARTITION detached_2", &["insert 1"]),
        ("attached", attach, &["insert 1", "insert 11", "insert 21"]),
    ];
    let fixture = ServeFixture::new(&cases.map(|(name, ..)| partitioned(name)).join(";"));
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
    let mut readers = Vec::new();
    for (name, ..) in &cases {
        readers.push(serve.reader(&[("table", name)]).await);
    }
    for (_, script, _) in &cases {
        fixture.sql(script);
    }
    for (reader, (name, script, rows)) in readers.iter_mut().zip(&cases) {
        reader.wait_for_refetch(&serve).await;
        let shape = [("table", *name)];
        let mut fresh = ShapeReader::new(&shape);
        assert_eq!(summarize(&fresh.catch_up(&serve).await), *rows, "{script}");
    }
}

#[tokio::test]
async fn attaching_a_partition_with_rows_ends_the_shape_before_the_next_row() {
    let fixture = ServeFixture::new(&partitioned("parts"));
    let attach = "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (20) TO (30)";
    let row = "INSERT INTO parts VALUES (2, 'more')";
    ends_before_the_change(&fixture, &[("table", "parts")], &[attach, row], &[409]).await;
}
