//! Shapes of partitioned tables and of their partitions at the same time.

use super::support::{ServeFixture, ServeProcess, ShapeReader, SseEvent, column_values, summarize};
use crate::wire::{until, within};

const CREATE_PARTITIONED: &str =
    "CREATE TABLE m (id int, at int, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE m_1 PARTITION OF m FOR VALUES FROM (0) TO (10);
    CREATE TABLE m_2 PARTITION OF m FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id);
    CREATE TABLE m_2_rest PARTITION OF m_2 DEFAULT;
    INSERT INTO m VALUES (1, 5, 'a'), (2, 15, 'b')";
const SHORT_LONG_POLL: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

fn shape(table: &str) -> [(&str, &str); 1] {
    [("table", table)]
}

/// Reads until `count` changes have arrived, and returns their summary.
async fn read_changes(serve: &ServeProcess, reader: &mut ShapeReader<'_>, count: usize) -> Vec<String> {
    summarize(&reader.live_changes(serve, count).await)
}

#[tokio::test]
async fn a_root_and_its_partitions_are_served_at_the_same_time() {
    for version in [15, 18] {
        let fixture =
            ServeFixture::on_postgres(forebay_sandbox::Postgres::shared_version(version), CREATE_PARTITIONED);
        let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
        // The root is requested first. From then on, Postgres sends all changes under the name of
        // the root, until a partition is requested.
        let tables = ["m", "m_1", "m_2", "m_2_rest"];
        let mut root = serve.reader(&shape("m")).await;
        let mut first = serve.reader(&shape("m_1")).await;
        let mut second = serve.reader(&shape("m_2")).await;
        let mut rest = serve.reader(&shape("m_2_rest")).await;
        fixture.sql("INSERT INTO m VALUES (3, 6, 'c'), (4, 16, 'd')");
        assert_eq!(read_changes(&serve, &mut root, 2).await, ["insert 3/6", "insert 4/16"]);
        assert_eq!(read_changes(&serve, &mut first, 1).await, ["insert 3/6"]);
        assert_eq!(read_changes(&serve, &mut second, 1).await, ["insert 4/16"]);
        assert_eq!(read_changes(&serve, &mut rest, 1).await, ["insert 4/16"]);
        // A row moves to another partition, and a statement names a partition.
        fixture.sql("UPDATE m SET at = 17 WHERE id = 3");
        fixture.sql("UPDATE m_1 SET note = 'x' WHERE id = 1");
        assert_eq!(read_changes(&serve, &mut root, 3).await, ["delete 3/6", "insert 3/17", "update 1/5"]);
        assert_eq!(read_changes(&serve, &mut first, 2).await, ["delete 3/6", "update 1/5"]);
        assert_eq!(read_changes(&serve, &mut second, 1).await, ["insert 3/17"]);
        assert_eq!(read_changes(&serve, &mut rest, 1).await, ["insert 3/17"]);
        for table in tables {
            let sql = format!("SELECT string_agg(id::text, ' ' ORDER BY id::text) FROM {table}");
            let expected: Vec<_> =
                fixture.query_value(&sql).unwrap_or_default().split(' ').map(str::to_owned).collect();
            assert_eq!(column_values(&serve, &shape(table), "id").await, expected, "{table}");
        }
        // TRUNCATE of a partition replaces its shapes and those of its ancestors, and no others.
        fixture.sql("TRUNCATE m_2_rest");
        for reader in [&mut root, &mut second, &mut rest] {
            reader.wait_for_refetch(&serve).await;
        }
        assert_eq!(column_values(&serve, &shape("m"), "id").await, ["1"]);
        fixture.sql("INSERT INTO m VALUES (9, 9, 'last')");
        assert_eq!(read_changes(&serve, &mut first, 1).await, ["insert 9/9"]);
    }
}

#[tokio::test]
async fn a_shape_of_a_partition_continues_when_its_root_is_requested_and_after_a_restart() {
    let fixture = ServeFixture::new(CREATE_PARTITIONED);
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut first = serve.reader(&shape("m_1")).await;
    let mut root = serve.reader(&shape("m")).await;
    fixture.sql("INSERT INTO m VALUES (3, 6, 'c')");
    assert_eq!(read_changes(&serve, &mut first, 1).await, ["insert 3/6"]);
    assert_eq!(read_changes(&serve, &mut root, 1).await, ["insert 3/6"]);
    serve.stop().await;
    fixture.sql("INSERT INTO m VALUES (4, 7, 'd'), (5, 15, 'e')");
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    assert_eq!(read_changes(&serve, &mut first, 1).await, ["insert 4/7"]);
    assert_eq!(read_changes(&serve, &mut root, 2).await, ["insert 4/7", "insert 5/15"]);
}

#[tokio::test]
async fn shapes_stay_current_when_their_table_is_attached_and_detached() {
    let fixture = ServeFixture::new(CREATE_PARTITIONED);
    fixture.sql("CREATE TABLE extra (id int, at int, note text, PRIMARY KEY (id, at)); INSERT INTO extra VALUES (7, 25, 'x')");
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut root = serve.reader(&shape("m")).await;
    let mut extra = serve.reader(&shape("extra")).await;
    fixture.sql("ALTER TABLE m ATTACH PARTITION extra FOR VALUES FROM (20) TO (30)");
    fixture.sql("INSERT INTO m VALUES (8, 26, 'y')");
    root.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &shape("m"), "id").await, ["1", "2", "7", "8"]);
    // The shape of the partition is replaced or continues. In both cases it gets the row.
    serve.read_until_column_is(&mut extra, &shape("extra"), "id", &["7", "8"]).await;
    let (mut root, mut extra) = (serve.reader(&shape("m")).await, serve.reader(&shape("extra")).await);
    fixture.sql("INSERT INTO m VALUES (9, 27, 'z')");
    assert_eq!(read_changes(&serve, &mut root, 1).await, ["insert 9/27"]);
    assert_eq!(read_changes(&serve, &mut extra, 1).await, ["insert 9/27"]);

    fixture.sql("ALTER TABLE m DETACH PARTITION extra");
    fixture.sql("INSERT INTO extra VALUES (10, 28, 'alone')");
    serve.read_until_column_is(&mut extra, &shape("extra"), "id", &["10", "7", "8", "9"]).await;
    root.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &shape("m"), "id").await, ["1", "2"]);
}

#[tokio::test]
async fn a_shape_created_between_attach_and_detach_is_replaced() {
    let fixture = ServeFixture::new(CREATE_PARTITIONED);
    fixture.sql("CREATE TABLE extra (id int, at int, note text, PRIMARY KEY (id, at)); INSERT INTO extra VALUES (7, 25, 'x')");
    let serve = fixture.serve_with(&[SHORT_LONG_POLL[0], ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "3600000")]).await;
    // The server may scan the catalog before ATTACH and after DETACH only. Then both scans find the
    // same table, although the shape was created in between and has the row of `extra`. A request
    // would make the server compare the table, but the client of an open stream sends none.
    for clause in ["id > 0", "id > -1", "id > -2"] {
        let shape = [("table", "m"), ("where", clause)];
        let first = [&shape[..], &[("offset", "-1")]].concat();
        fixture.sql("ALTER TABLE m ATTACH PARTITION extra FOR VALUES FROM (20) TO (30)");
        // The response is 503 until the server has read the new definition of the table.
        until("the shape is created", async || serve.get(&first).await.head.status == 200).await;
        let reader = serve.reader(&shape).await;
        let mut events = serve.events(&reader).await;
        fixture.sql("ALTER TABLE m DETACH PARTITION extra");
        within("the stream ends", async { while events.next().await != SseEvent::End {} }).await;
        until("the shape is created again", async || serve.get(&first).await.head.status == 200).await;
        assert_eq!(column_values(&serve, &shape, "id").await, ["1", "2"]);
    }
}

#[tokio::test]
async fn a_manual_publication_via_the_root_refuses_partitions_with_a_reason() {
    let fixture = ServeFixture::new(CREATE_PARTITIONED);
    let slot = &fixture.slot;
    fixture.sql(&format!(
        "ALTER TABLE m REPLICA IDENTITY FULL; ALTER TABLE m_1 REPLICA IDENTITY FULL; ALTER TABLE m_2_rest REPLICA IDENTITY FULL;
         CREATE PUBLICATION {slot} FOR TABLE m WITH (publish_via_partition_root = true)"
    ));
    let settings = [SHORT_LONG_POLL[0], ("FOREBAY_DATABASE_MANUAL_PUBLICATION", "true")];
    let serve = fixture.serve_with(&settings).await;
    let mut root = serve.reader(&shape("m")).await;
    let refused = serve.get(&[("table", "m_1"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 400, "{}", refused.head.text);
    let reason = refused.json()["errors"]["table"][0].as_str().unwrap().to_owned();
    assert!(
        reason.contains("is a partition") && reason.contains("publish_via_partition_root = false"),
        "{reason}"
    );
    fixture.sql(&format!("ALTER PUBLICATION {slot} SET (publish_via_partition_root = false)"));
    root.wait_for_refetch(&serve).await;
    fixture.sql(&format!("ALTER PUBLICATION {slot} ADD TABLE m_1"));
    let (mut root, mut first) = (serve.reader(&shape("m")).await, serve.reader(&shape("m_1")).await);
    fixture.sql("INSERT INTO m VALUES (3, 6, 'c')");
    assert_eq!(read_changes(&serve, &mut root, 1).await, ["insert 3/6"]);
    assert_eq!(read_changes(&serve, &mut first, 1).await, ["insert 3/6"]);
}
