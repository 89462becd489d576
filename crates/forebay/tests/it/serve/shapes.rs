//! Definitions of shapes: where clauses, columns, modes, kinds of tables; and subsets.

use serde_json::{Value, json};

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, path, percent_encode, summarize};
use crate::wire::{HttpResponse, until};

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, kind text, price int);
    INSERT INTO items VALUES (1, 'a', 10), (2, 'b', 20), (3, 'a', 30)";

/// Returns the rows of the first chunk of a shape.
async fn rows(serve: &ServeProcess, shape: &[(&str, &str)]) -> Vec<Value> {
    let response = serve.first_chunk(shape).await;
    let messages = response.json().as_array().unwrap().clone();
    changes(&messages).into_iter().map(|row| row["value"].clone()).collect()
}

#[tokio::test]
async fn a_where_clause_selects_the_rows_of_snapshot_and_changes() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let shape =
        [("table", "items"), ("where", "kind = $1 AND price > $2"), ("params[1]", "a"), ("params[2]", "15")];
    assert_eq!(rows(&serve, &shape).await, [json!({"id": "3", "kind": "a", "price": "30"})]);
    let mut reader = serve.reader(&shape).await;
    fixture.sql("UPDATE items SET price = 40 WHERE id = 2"); // Doesn't match before or after.
    fixture.sql("UPDATE items SET price = 16 WHERE id = 1"); // Matches now.
    fixture.sql("UPDATE items SET price = 17 WHERE id = 1");
    fixture.sql("UPDATE items SET kind = 'c' WHERE id = 3"); // Matches no more.
    fixture.sql("DELETE FROM items WHERE id = 1");
    fixture.sql("INSERT INTO items VALUES (4, 'a', 15), (5, 'a', 16)");
    let messages = reader.live_changes(&serve, 5).await;
    assert_eq!(summarize(&messages), ["insert 1", "update 1", "delete 3", "delete 1", "insert 5"]);
    assert_eq!(
        changes(&messages)[0]["value"],
        json!({"id": "1", "kind": "a", "price": "16"}),
        "an insert has all columns"
    );
}

#[tokio::test]
async fn columns_and_modes_select_the_content_of_messages() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let some = [("table", "items"), ("columns", "price,id")];
    assert_eq!(rows(&serve, &some).await[0], json!({"id": "1", "price": "10"}));
    let queryable = [("table", "items"), ("queryable_columns", "id,kind")];
    assert_eq!(rows(&serve, &queryable).await[0], json!({"id": "1", "kind": "a"}));
    let only = [("table", "items"), ("log", "changes_only")];
    let response = serve.get(&[&only[..], &[("offset", "-1")]].concat()).await;
    let messages = response.json();
    assert_eq!(messages.as_array().unwrap().len(), 1);
    assert_eq!(messages[0]["headers"]["control"], "snapshot-end");

    let (mut some, mut only) = (serve.reader(&some).await, serve.reader(&only).await);
    fixture.sql("UPDATE items SET kind = 'z' WHERE id = 1");
    fixture.sql("UPDATE items SET price = 11 WHERE id = 1");
    let messages = some.live_changes(&serve, 1).await;
    assert_eq!(changes(&messages)[0]["value"], json!({"id": "1", "price": "11"}));
    assert_eq!(changes(&messages).len(), 1, "a change of other columns isn't sent");
    assert_eq!(summarize(&only.live_changes(&serve, 2).await), ["update 1", "update 1"]);
}

#[tokio::test]
async fn every_kind_of_table_has_shapes() {
    let fixture = ServeFixture::new(
        "CREATE SCHEMA \"My Schema\";
         CREATE TABLE \"My Schema\".\"Odd.Na/me\" (\"I d\" text PRIMARY KEY, \"Käse\" text);
         INSERT INTO \"My Schema\".\"Odd.Na/me\" VALUES ('a/b', 'x'), ('ü\"', NULL);
         CREATE TABLE parts (day date, id int, note text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
         CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
         CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
         INSERT INTO parts VALUES ('2026-01-15', 1, 'one');
         CREATE TABLE keyless (a int, b text);
         INSERT INTO keyless VALUES (1, NULL)",
    );
    let serve = fixture.serve().await;
    let odd = [("table", "\"My Schema\".\"Odd.Na/me\""), ("columns", "\"I d\",\"Käse\"")];
    let mut reader = serve.reader(&odd).await;
    assert_eq!(rows(&serve, &odd).await[0], json!({"I d": "a/b", "Käse": "x"}));
    fixture.sql("UPDATE \"My Schema\".\"Odd.Na/me\" SET \"Käse\" = '1' WHERE \"I d\" = 'a/b'");
    let messages = reader.live_changes(&serve, 1).await;
    assert_eq!(messages[0]["key"], "\"My Schema\".\"Odd..Na//me\"/\"a//b\"");
    assert_eq!(messages[0]["headers"]["relation"], json!(["My Schema", "Odd.Na/me"]));

    let mut parts = serve.reader(&[("table", "parts")]).await;
    fixture.sql("INSERT INTO parts VALUES ('2026-02-02', 2, 'two')");
    fixture.sql("UPDATE parts SET day = '2026-02-03' WHERE id = 1"); // From one partition to another.
    let messages = parts.live_changes(&serve, 3).await;
    assert_eq!(summarize(&messages), ["insert 2026-02-02/2", "delete 2026-01-15/1", "insert 2026-02-03/1"]);
    assert!(
        changes(&messages).iter().all(|change| change["headers"]["relation"] == json!(["public", "parts"]))
    );
    let schema = serve.head(&[("table", "parts"), ("offset", "-1")]).await;
    let schema: Value = serde_json::from_str(schema.header("electric-schema").unwrap()).unwrap();
    assert_eq!((&schema["day"]["pk_index"], &schema["id"]["pk_index"]), (&json!(0), &json!(1)));

    let mut keyless = serve.reader(&[("table", "keyless")]).await;
    fixture.sql("INSERT INTO keyless VALUES (2, 'two')");
    fixture.sql("DELETE FROM keyless WHERE a = 1");
    let messages = keyless.live_changes(&serve, 2).await;
    assert_eq!(messages[0]["key"], "\"public\".\"keyless\"/\"2\"/\"two\"");
    assert_eq!(changes(&messages)[1]["key"], "\"public\".\"keyless\"/\"1\"/_");
    assert_eq!(changes(&messages)[1]["value"], json!({"a": "1", "b": null}));
}

#[tokio::test]
async fn values_are_the_same_text_in_snapshot_and_log() {
    let columns = "b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(10,3), t text, v varchar(9), c char(5), \
        y bytea, d date, tm time, ts timestamp, tz timestamptz, iv interval, u uuid, j json, jb jsonb, a int[], ta text[], \
        m mood, ip inet, r int4range";
    let values = "true, -2, 9007199254740993, 0.1, 1e300, 12.5, E'q\"\\\\\\n\\u00e9', 'vc', 'ab', '\\xdeadbeef', '2026-11-16', \
        '01:02:03.5', '2026-11-16 01:02:03', '2026-11-16 01:02:03+02', '1 day 02:00:00', \
        '00000000-0000-0000-0000-000000000001', '{\"a\": 1}', '{\"a\":  1}', '{{1,2},{3,NULL}}', '{\"a b\",\"\"}', 'sad', \
        '10.0.0.1/8', '[1,5)'";
    let fixture = ServeFixture::new(&format!(
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE kinds (id int PRIMARY KEY, {columns});
         INSERT INTO kinds VALUES (1, {values})"
    ));
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&[("table", "kinds")]).await;
    let snapshot = rows(&serve, &[("table", "kinds")]).await;
    fixture.sql(&format!("INSERT INTO kinds VALUES (2, {values})"));
    let messages = reader.live_changes(&serve, 1).await;
    let mut logged = messages[0]["value"].clone();
    logged["id"] = json!("1");
    assert_eq!(logged, snapshot[0]);
    for (column, text) in [
        ("b", "t"),
        ("i8", "9007199254740993"),
        ("n", "12.500"),
        ("t", "q\"\\\né"),
        ("c", "ab   "),
        ("y", "\\xdeadbeef"),
        ("tz", "2026-11-15 23:02:03+00"),
        ("iv", "P1DT2H"),
        ("a", "{{1,2},{3,NULL}}"),
        ("ta", "{\"a b\",\"\"}"),
        ("m", "sad"),
    ] {
        assert_eq!(logged[column], text, "{column}");
    }
}

#[tokio::test]
async fn a_subset_returns_selected_current_rows() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let shape = [("table", "items"), ("offset", "-1"), ("log", "changes_only")];
    let one = serve
        .get(&[&shape[..], &[("subset__where", "kind = $1"), ("subset__params", r#"{"1":"a"}"#)]].concat())
        .await;
    assert_eq!(one.head.status, 200, "{}", String::from_utf8_lossy(&one.body));
    assert_eq!(one.head.header("electric-snapshot"), Some("true"));
    assert_eq!(one.head.header("cache-control"), Some("no-cache"));
    assert!(one.head.header("electric-handle").is_some() && one.head.header("electric-schema").is_some());
    assert_eq!(ids(&one), ["1", "3"]);
    let body = one.json();
    let metadata = &body["metadata"];
    assert!(metadata["xmin"].is_string() && metadata["database_lsn"].is_string(), "{metadata}");
    assert_eq!(body["data"][0]["headers"]["snapshot_mark"], metadata["snapshot_mark"]);
    assert_eq!(body["data"][0]["headers"]["operation"], "insert");

    let page = [("subset__order_by", "price DESC"), ("subset__limit", "1"), ("subset__offset", "1")];
    assert_eq!(ids(&serve.get(&[&shape[..], &page].concat()).await), ["2"]);
    let post = async |body: &str| {
        serve.request("POST", &path(&shape), &["Content-Type: application/json"], body).await
    };
    let response =
        post(r#"{"subset":{"where":"price >= $1","params":{"1":"20"},"order_by":"id","limit":5}}"#).await;
    assert_eq!(response.head.header("cache-control"), Some("no-cache"));
    assert_eq!(ids(&response), ["2", "3"]);
    assert_eq!(ids(&post(r#"{"where":"id = 1"}"#).await), ["1"]);
    // The where clause of the shape applies too.
    let narrow = [&shape[..], &[("where", "kind = 'a'"), ("subset__where", "price < 25 OR id = 2")]].concat();
    assert_eq!(ids(&serve.get(&narrow).await), ["1"]);

    for (bad, field) in [
        (r#"{"limit":1}"#, "limit"),
        (r#"{"order_by":"random()","limit":1}"#, "order_by"),
        (r#"{"order_by":"nothing","limit":1}"#, "order_by"),
        (r#"{"where":"nothing = 1"}"#, "where"),
        (r#"{"where":"id = $1"}"#, "where"),
        ("[]", "body"),
    ] {
        let response = post(bad).await;
        assert_eq!(response.head.status, 400, "{bad}: {}", String::from_utf8_lossy(&response.body));
        let errors = response.json()["errors"].to_string();
        assert!(errors.contains(field), "{bad}: {errors}");
    }
    let hidden =
        format!("{}&queryable_columns=id,kind&subset__where={}", path(&shape), percent_encode("price = 10"));
    assert_eq!(serve.request("GET", &hidden, &[], "").await.head.status, 400);
}

/// Returns the ids in a subset response.
fn ids(response: &HttpResponse) -> Vec<String> {
    assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
    let body = response.json();
    let rows = body["data"].as_array().unwrap();
    rows.iter().map(|row| row["value"]["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_snapshot_waits_for_transactions_from_before_its_table_was_published() {
    let fixture = std::sync::Arc::new(ServeFixture::new(CREATE_ITEMS));
    // Otherwise the server changes the replica identity, and that waits for the writer.
    fixture.sql("ALTER TABLE items REPLICA IDENTITY FULL");
    let serve = fixture.serve().await;
    // One query message is one transaction. It starts before the table is published, so the stream
    // won't contain it.
    let writer = {
        let fixture = std::sync::Arc::clone(&fixture);
        tokio::task::spawn_blocking(move || {
            fixture.sql("INSERT INTO items VALUES (9, 'late', 90); SELECT pg_sleep(3)");
        })
    };
    let is_open = "SELECT 1 FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'RowExclusiveLock' AND granted LIMIT 1";
    until("the writer has started", async || fixture.query_value(is_open).is_some()).await;
    // The first client disconnects after the table is published.
    let first = serve.start_get(&[("table", "items"), ("where", "id > 0"), ("offset", "-1")]).await;
    let published = "SELECT 1 FROM pg_publication_rel WHERE prrelid = 'items'::regclass";
    until("the table is published", async || fixture.query_value(published).is_some()).await;
    drop(first);
    assert_eq!(rows(&serve, &[("table", "items")]).await.len(), 4);
    writer.await.unwrap();
}

#[tokio::test]
async fn a_clause_that_fails_on_a_row_fails_its_shape_and_no_other() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    let failing = [("table", "items"), ("where", "100 / (price - 20) > 0"), ("offset", "-1")];
    let response = serve.get(&failing).await;
    assert_eq!(response.head.status, 400, "{}", response.head.text);
    let errors = response.json()["errors"]["where"].to_string();
    assert!(errors.contains("fails on a row") && errors.contains("22012"), "{errors}");
    // The clause works at first, then fails on a new row: that row isn't in the shape.
    let later = serve.reader(&[("table", "items"), ("where", "100 / (price - 25) > 0")]).await;
    fixture.sql("UPDATE items SET price = 25 WHERE id = 1");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"]);
    let response = serve.get(&later.params()).await;
    assert_eq!(response.head.status, 200, "{}", response.head.text);
    // A new shape reads the row.
    let another = [("table", "items"), ("where", "100 / (price - 25) > 1"), ("offset", "-1")];
    assert_eq!(serve.get(&another).await.head.status, 400);
}

#[tokio::test]
async fn the_least_recently_used_shape_is_evicted() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_STORAGE_MAX_SHAPES", "2")]).await;
    let first = serve.reader(&[("table", "items"), ("where", "id = 1")]).await;
    let second = serve.reader(&[("table", "items"), ("where", "id = 2")]).await;
    assert_eq!(serve.get(&first.params()).await.head.status, 200);
    let third = serve.reader(&[("table", "items"), ("where", "id = 3")]).await;
    assert_eq!(serve.get(&first.params()).await.head.status, 200);
    assert_eq!(serve.get(&third.params()).await.head.status, 200);
    assert_eq!(serve.get(&second.params()).await.head.status, 409);
    until("two shapes are left", async || serve.status().await["shapes"]["count"] == 2).await;
}

#[tokio::test]
async fn a_long_log_is_compacted_and_clients_continue_from_any_offset() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let small = [
        ("FOREBAY_STORAGE_CHUNK_BYTES", "4096"),
        ("FOREBAY_STORAGE_COMPACT_BYTES", "16384"),
        ("FOREBAY_STORAGE_WAL_BYTES", "1048576"),
    ];
    let serve = fixture.serve_with(&small).await;
    let shape = [("table", "items")];
    let mut early = ShapeReader::new(&shape);
    early.catch_up(&serve).await;
    fixture.sql("INSERT INTO items VALUES (4, 'first')");
    let first = early.live_changes(&serve, 1).await;
    assert_eq!(summarize(&first), ["insert 4"]);

    let mut current = early.clone();
    let note = "x".repeat(1_000);
    for round in 0..20 {
        let changes = "FOR n IN 1..100 LOOP UPDATE items SET kind = format('%s %s %s', ";
        fixture.sql(&format!(
            "DO $$ BEGIN {changes} {round}, n, '{note}') WHERE id = 4; COMMIT; END LOOP; END $$"
        ));
    }
    let last = json!(format!("19 100 {note}"));
    while current.long_poll(&serve).await.iter().all(|message| message["value"]["kind"] != last) {}
    let is_compacted = || {
        let files = std::fs::read_dir(fixture.dir.join("shapes")).unwrap();
        files
            .filter_map(|file| file.unwrap().file_name().into_string().ok())
            .any(|name| name.ends_with(".past"))
    };
    until("the log is compacted", async || is_compacted()).await;

    let rest = early.clone().catch_up(&serve).await;
    assert!(summarize(&rest).iter().all(|change| change == "update 4"), "{:?}", summarize(&rest));
    assert!(changes(&rest).len() < 1_500, "{} changes", changes(&rest).len());
    assert_eq!(changes(&rest).last().unwrap()["value"]["kind"], last);
    let mut new = ShapeReader::new(&shape);
    let whole = new.catch_up(&serve).await;
    assert_eq!(summarize(&whole)[3], "insert 4");
    assert_eq!(changes(&whole).last().unwrap()["value"]["kind"], last);
    // The same by events.
    let mut events = serve.events(&early).await;
    let mut streamed = events.until_up_to_date().await.0;
    // A slow client may get up-to-dates in between.
    while changes(&streamed).last().unwrap()["value"]["kind"] != last {
        streamed.extend(events.until_up_to_date().await.0);
    }
    assert!(summarize(&streamed).iter().all(|change| change == "update 4"), "{:?}", summarize(&streamed));
    fixture.sql("UPDATE items SET kind = 'end' WHERE id = 4");
    for reader in [&mut new, &mut current] {
        assert_eq!(reader.live_changes(&serve, 1).await[0]["value"]["kind"], "end");
    }
}
