//! Tables that change under their shapes: the right ones start over, the others live on.

use serde_json::Value;

use super::support::{Place, Reader, Serve, changes, short};
use crate::wire::until;

const TABLES: &str = "CREATE TABLE items (id int PRIMARY KEY, note text, price int);
    INSERT INTO items VALUES (1, 'one', 1);
    CREATE TABLE others (id int PRIMARY KEY, note text);
    INSERT INTO others VALUES (1, 'one')";
const ITEM: [(&str, &str); 1] = [("table", "items")];
const SOME: [(&str, &str); 2] = [("table", "items"), ("columns", "id,note")];
const OTHER: [(&str, &str); 1] = [("table", "others")];

async fn columns(serve: &Serve, shape: &[(&str, &str)]) -> Vec<String> {
    let answer = serve.get(&[shape, &[("offset", "-1")]].concat()).await;
    assert_eq!(answer.head.status, 200, "{} {}", answer.head.text, String::from_utf8_lossy(&answer.body));
    let schema: Value = serde_json::from_str(answer.head.header("electric-schema").unwrap()).unwrap();
    schema.as_object().unwrap().keys().cloned().collect()
}

/// The change of the table comes, and then the change of a row.
async fn after(ddl: &str, change: &str) -> (Place, Serve) {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEM).await;
    let mut others = serve.reader(&OTHER).await;
    place.sql(ddl);
    place.sql(change);
    let handle = items.starts_over(&serve).await;
    let anew = serve.reader(&ITEM).await;
    assert!(
        handle.is_empty() || handle == anew.handle,
        "{ddl}: it is told the handle of the shape that is made"
    );
    let before = others.handle.clone();
    place.sql("UPDATE others SET note = 'uno'");
    assert_eq!(short(&others.live_changes(&serve, 1).await), ["update 1"]);
    assert_eq!(others.handle, before, "{ddl}: another table's shape goes on");
    (place, serve)
}

#[tokio::test]
async fn a_column_is_added() {
    let (place, serve) =
        after("ALTER TABLE items ADD extra text DEFAULT 'x'", "INSERT INTO items VALUES (2, 'two', 2, 'y')")
            .await;
    assert_eq!(columns(&serve, &ITEM).await, ["extra", "id", "note", "price"]);
    let mut reader = serve.reader(&ITEM).await;
    place.sql("UPDATE items SET extra = 'z' WHERE id = 2");
    let messages = reader.live_changes(&serve, 1).await;
    assert_eq!(messages[0]["value"]["extra"], "z");
}

#[tokio::test]
async fn a_shape_of_some_columns_goes_on_while_others_come_and_go() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut some = serve.reader(&SOME).await;
    let handle = some.handle.clone();
    for (ddl, id) in [("ADD extra text", 2), ("DROP price", 3), ("RENAME extra TO more", 4)] {
        place.sql(&format!("ALTER TABLE items {ddl}"));
        place.sql(&format!("INSERT INTO items (id, note) VALUES ({id}, 'x')"));
        assert_eq!(short(&some.live_changes(&serve, 1).await), [format!("insert {id}")]);
    }
    assert_eq!(some.handle, handle);
    place.sql("ALTER TABLE items RENAME note TO remark");
    place.sql("INSERT INTO items (id) VALUES (5)");
    until("the reader of a column that is gone is refused", async || {
        let answer = serve.get(&[some.params(), vec![("live", "true")]].concat()).await;
        answer.head.status == 400
    })
    .await;
}

#[tokio::test]
async fn a_column_is_dropped() {
    let (_place, serve) = after("ALTER TABLE items DROP price", "INSERT INTO items VALUES (2, 'two')").await;
    assert_eq!(columns(&serve, &ITEM).await, ["id", "note"]);
}

#[tokio::test]
async fn a_column_is_renamed() {
    let (_place, serve) =
        after("ALTER TABLE items RENAME price TO cost", "INSERT INTO items VALUES (2, 'two', 2)").await;
    assert_eq!(columns(&serve, &ITEM).await, ["cost", "id", "note"]);
}

#[tokio::test]
async fn a_column_s_type_is_changed() {
    let (_place, serve) =
        after("ALTER TABLE items ALTER price TYPE bigint", "INSERT INTO items VALUES (2, 'two', 2)").await;
    let head = serve.head(&[&ITEM[..], &[("offset", "-1")]].concat()).await;
    assert!(head.header("electric-schema").unwrap().contains("int8"), "{}", head.text);
}

#[tokio::test]
async fn a_column_that_was_dropped_and_added_again_is_another() {
    let (place, serve) = after(
        "ALTER TABLE items DROP COLUMN price; ALTER TABLE items ADD COLUMN price int DEFAULT 9",
        "INSERT INTO items VALUES (2, 'two')",
    )
    .await;
    let rows = Reader::new(&ITEM).catch_up(&serve).await;
    let prices: Vec<_> = changes(&rows).iter().map(|row| row["value"]["price"].clone()).collect();
    assert_eq!(prices, ["9", "9"]);
    drop((serve, place));
}

#[tokio::test]
async fn columns_that_exchange_their_names_are_others() {
    let swap = "ALTER TABLE items ADD COLUMN more text DEFAULT 'more';
        ALTER TABLE items RENAME note TO away; ALTER TABLE items RENAME more TO note; ALTER TABLE items RENAME away TO more";
    let place = Place::new(TABLES);
    place.sql("ALTER TABLE items ADD COLUMN other text DEFAULT 'other'");
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&SOME).await;
    place.sql(swap);
    place.sql("UPDATE items SET price = 5");
    items.starts_over(&serve).await;
    let rows = Reader::new(&SOME).catch_up(&serve).await;
    assert_eq!(changes(&rows)[0]["value"]["note"], "more");
}

#[tokio::test]
async fn whoever_wrote_while_a_table_was_not_published_is_waited_for() {
    let place = Place::new(&format!("{TABLES}; CREATE TABLE go (now bool)"));
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEM).await;
    place.sql(&format!("ALTER PUBLICATION {} DROP TABLE items", place.slot));
    let (postgres, database) = (place.postgres, place.database.clone());
    let open = "BEGIN; INSERT INTO items VALUES (7, 'from before');
        DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM go); PERFORM pg_sleep(0.01); END LOOP; END $$; COMMIT";
    let writer = std::thread::spawn(move || postgres.execute(&database, open));
    let writing =
        "SELECT count(*) FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'RowExclusiveLock'";
    until("the writer writes", async || place.ask(writing).as_deref() == Some("1")).await;
    // The next stream finds the table missing, and publishes it again.
    let end =
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND slot_name =";
    place.sql(&format!("{end} '{}'", place.slot));
    items.starts_over(&serve).await;
    let mut anew = Reader::new(&ITEM);
    let mut asking = serve.begin(&anew.params()).await;
    place.sql("INSERT INTO go VALUES (true)");
    writer.join().unwrap().unwrap();
    let mut rows = anew.take(&asking.response().await);
    rows.extend(anew.catch_up(&serve).await);
    assert!(short(&rows).contains(&"insert 7".to_owned()), "{:?}", short(&rows));
}

#[tokio::test]
async fn a_table_is_emptied() {
    let (_place, serve) = after("TRUNCATE items", "INSERT INTO items VALUES (7, 'seven', 7)").await;
    let mut anew = Reader::new(&ITEM);
    assert_eq!(short(&anew.catch_up(&serve).await), ["insert 7"]);
}

#[tokio::test]
async fn a_table_is_replaced_by_another_of_its_name() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEM).await;
    let mut others = serve.reader(&OTHER).await;
    place.sql("DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, fresh text); INSERT INTO items VALUES (9, 'n')");
    // Nothing in the stream tells of it: it is seen when the table is asked for, or within a minute.
    until("the new table's shape", async || columns(&serve, &ITEM).await == ["fresh", "id"]).await;
    items.starts_over(&serve).await;
    let mut anew = serve.reader(&ITEM).await;
    place.sql("UPDATE items SET fresh = 'm'");
    assert_eq!(short(&anew.live_changes(&serve, 1).await), ["update 9"]);
    place.sql("UPDATE others SET note = 'uno'");
    assert_eq!(short(&others.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test]
async fn a_table_that_is_dropped_has_no_shapes_and_one_renamed_has_them_under_its_new_name() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut items = serve.reader(&ITEM).await;
    let others = serve.reader(&OTHER).await;
    place.sql("ALTER TABLE items RENAME TO things");
    place.sql("INSERT INTO things VALUES (2, 'two', 2)");
    until("the reader of the old name is refused", async || {
        let answer = serve.get(&[items.params(), vec![("live", "true")]].concat()).await;
        matches!(answer.head.status, 400 | 409)
    })
    .await;
    let mut things = serve.reader(&[("table", "things")]).await;
    place.sql("INSERT INTO things VALUES (3, 'three', 3)");
    assert_eq!(short(&things.live_changes(&serve, 1).await), ["insert 3"]);
    place.sql("DROP TABLE others");
    until("the dropped table's reader is refused", async || {
        serve.get(&[&OTHER[..], &[("offset", "-1")]].concat()).await;
        let answer = serve.get(&[others.params(), vec![("live", "true")]].concat()).await;
        matches!(answer.head.status, 400 | 409)
    })
    .await;
    items.offset = "-1".to_owned();
    assert_eq!(serve.get(&items.params()).await.head.status, 400);
}

#[tokio::test]
async fn a_table_that_changed_without_a_row_is_soon_seen_as_it_is() {
    let place = Place::new(TABLES);
    let serve = place.serve().await;
    assert_eq!(columns(&serve, &ITEM).await, ["id", "note", "price"]);
    place.sql("ALTER TABLE items ADD extra text");
    until("the new column is there", async || columns(&serve, &ITEM).await.contains(&"extra".to_owned()))
        .await;
}

/// What is done to the table, with a change of a row in the same transaction or right after it, must end the shape before the change reaches it.
async fn ends_before_the_change(place: &Place, shape: &[(&str, &str)], scripts: &[&str], told: &[u16]) {
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "20000")]).await;
    let reader = serve.reader(shape).await;
    let mut waiting = serve.begin(&[reader.params(), vec![("live", "true")]].concat()).await;
    for script in scripts {
        place.sql(script);
    }
    let head = waiting.head().await;
    assert!(told.contains(&head.status), "{}", head.text);
    let again = serve.get(&reader.params()).await;
    assert!(
        told.contains(&again.head.status),
        "{} {}",
        again.head.text,
        String::from_utf8_lossy(&again.body)
    );
}

#[tokio::test]
async fn another_primary_key_ends_a_shape_before_rows_can_share_a_key() {
    const KEY: &str = "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, price)";
    const ROW: &str = "INSERT INTO items VALUES (1, 'uno', 2)";
    let at_once = format!("{KEY}; {ROW}");
    for scripts in [&[KEY, ROW][..], &[&at_once]] {
        let place = Place::new(TABLES);
        ends_before_the_change(&place, &ITEM, scripts, &[409]).await;
    }
}

#[tokio::test]
async fn a_primary_key_that_was_away_for_a_while_ends_a_shape() {
    let place = Place::new(TABLES);
    let twice = "ALTER TABLE items DROP CONSTRAINT items_pkey; INSERT INTO items VALUES (1, 'uno', 2);
        DELETE FROM items WHERE price = 2; ALTER TABLE items ADD PRIMARY KEY (id)";
    ends_before_the_change(&place, &ITEM, &[twice], &[409]).await;
}

#[tokio::test]
async fn another_collation_ends_a_shape_whose_clause_orders_by_it() {
    let place = Place::new(TABLES);
    let shape = [("table", "items"), ("where", "note < 'p'")];
    let collate = "ALTER TABLE items ALTER note TYPE text COLLATE \"en-x-icu\"";
    // Under the new one, no clause may order by it.
    ends_before_the_change(&place, &shape, &[collate, "INSERT INTO items VALUES (2, 'O', 2)"], &[400]).await;
}

#[tokio::test]
async fn what_leaves_a_table_as_it_is_leaves_its_shapes_alone() {
    let place = Place::new(TABLES);
    let serve = place.serve().await;
    let mut reader = serve.reader(&ITEM).await;
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
        place.sql(script);
        place.sql(&format!("INSERT INTO items VALUES ({id}, 'x', 1)"));
        assert_eq!(short(&reader.live_changes(&serve, 1).await), [format!("insert {id}")], "{script}");
    }
    assert_eq!(reader.handle, handle);
}

/// A partitioned table with a row in each of two partitions, and a table of its form with a third row.
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
async fn rows_that_come_and_go_with_a_partition_are_soon_seen() {
    let attach = "ALTER TABLE attached ATTACH PARTITION attached_3 FOR VALUES FROM (20) TO (30)";
    let cases = [
        ("emptied", "TRUNCATE emptied_2", &["insert 1"][..]),
        ("dropped", "DROP TABLE dropped_2", &["insert 1"]),
        ("detached", "ALTER TABLE detached DETACH PARTITION detached_2", &["insert 1"]),
        ("attached", attach, &["insert 1", "insert 11", "insert 21"]),
    ];
    let place = Place::new(&cases.map(|(name, ..)| partitioned(name)).join(";"));
    let serve = place.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
    let mut readers = Vec::new();
    for (name, ..) in &cases {
        readers.push(serve.reader(&[("table", name)]).await);
    }
    for (_, script, _) in &cases {
        place.sql(script);
    }
    for (reader, (name, script, rows)) in readers.iter_mut().zip(&cases) {
        reader.starts_over(&serve).await;
        let shape = [("table", *name)];
        let mut anew = Reader::new(&shape);
        assert_eq!(short(&anew.catch_up(&serve).await), *rows, "{script}");
    }
}

#[tokio::test]
async fn a_filled_partition_is_there_with_the_next_row() {
    let place = Place::new(&partitioned("parts"));
    let attach = "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (20) TO (30)";
    let row = "INSERT INTO parts VALUES (2, 'more')";
    ends_before_the_change(&place, &[("table", "parts")], &[attach, row], &[409]).await;
}
