//! Shapes of partitioned tables and of their partitions, side by side.

use super::support::{Event, Place, Reader, Serve, column, short};
use crate::wire::{until, within};

const PARTITIONED: &str =
    "CREATE TABLE m (id int, at int, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE m_1 PARTITION OF m FOR VALUES FROM (0) TO (10);
    CREATE TABLE m_2 PARTITION OF m FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id);
    CREATE TABLE m_2_rest PARTITION OF m_2 DEFAULT;
    INSERT INTO m VALUES (1, 5, 'a'), (2, 15, 'b')";
const LIVE: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

fn shape(table: &str) -> [(&str, &str); 1] {
    [("table", table)]
}

/// What a reader gets until so many changes have come.
async fn gets(serve: &Serve, reader: &mut Reader<'_>, count: usize) -> Vec<String> {
    short(&reader.live_changes(serve, count).await)
}

#[tokio::test]
async fn a_root_and_its_partitions_are_served_side_by_side() {
    for version in [15, 18] {
        let place = Place::on(forebay_sandbox::Postgres::shared_version(version), PARTITIONED);
        let serve = place.serve_with(&LIVE).await;
        // The root first: from then on, Postgres names all changes after it, until the first
        // partition is asked for.
        let tables = ["m", "m_1", "m_2", "m_2_rest"];
        let mut root = serve.reader(&shape("m")).await;
        let mut first = serve.reader(&shape("m_1")).await;
        let mut second = serve.reader(&shape("m_2")).await;
        let mut rest = serve.reader(&shape("m_2_rest")).await;
        place.sql("INSERT INTO m VALUES (3, 6, 'c'), (4, 16, 'd')");
        assert_eq!(gets(&serve, &mut root, 2).await, ["insert 3/6", "insert 4/16"]);
        assert_eq!(gets(&serve, &mut first, 1).await, ["insert 3/6"]);
        assert_eq!(gets(&serve, &mut second, 1).await, ["insert 4/16"]);
        assert_eq!(gets(&serve, &mut rest, 1).await, ["insert 4/16"]);
        // From one partition to another; and by the partition's own name.
        place.sql("UPDATE m SET at = 17 WHERE id = 3");
        place.sql("UPDATE m_1 SET note = 'x' WHERE id = 1");
        assert_eq!(gets(&serve, &mut root, 3).await, ["delete 3/6", "insert 3/17", "update 1/5"]);
        assert_eq!(gets(&serve, &mut first, 2).await, ["delete 3/6", "update 1/5"]);
        assert_eq!(gets(&serve, &mut second, 1).await, ["insert 3/17"]);
        assert_eq!(gets(&serve, &mut rest, 1).await, ["insert 3/17"]);
        for table in tables {
            let sql = format!("SELECT string_agg(id::text, ' ' ORDER BY id::text) FROM {table}");
            let expected: Vec<_> =
                place.ask(&sql).unwrap_or_default().split(' ').map(str::to_owned).collect();
            assert_eq!(column(&serve, &shape(table), "id").await, expected, "{table}");
        }
        // TRUNCATE of a partition is one of its ancestors' rows, and of no other's.
        place.sql("TRUNCATE m_2_rest");
        for reader in [&mut root, &mut second, &mut rest] {
            reader.starts_over(&serve).await;
        }
        assert_eq!(column(&serve, &shape("m"), "id").await, ["1"]);
        place.sql("INSERT INTO m VALUES (9, 9, 'last')");
        assert_eq!(gets(&serve, &mut first, 1).await, ["insert 9/9"]);
    }
}

#[tokio::test]
async fn a_partition_s_shape_goes_on_when_its_root_comes_later_and_after_a_restart() {
    let place = Place::new(PARTITIONED);
    let serve = place.serve_with(&LIVE).await;
    let mut first = serve.reader(&shape("m_1")).await;
    let mut root = serve.reader(&shape("m")).await;
    place.sql("INSERT INTO m VALUES (3, 6, 'c')");
    assert_eq!(gets(&serve, &mut first, 1).await, ["insert 3/6"]);
    assert_eq!(gets(&serve, &mut root, 1).await, ["insert 3/6"]);
    serve.stop().await;
    place.sql("INSERT INTO m VALUES (4, 7, 'd'), (5, 15, 'e')");
    let serve = place.serve_with(&LIVE).await;
    assert_eq!(gets(&serve, &mut first, 1).await, ["insert 4/7"]);
    assert_eq!(gets(&serve, &mut root, 2).await, ["insert 4/7", "insert 5/15"]);
}

#[tokio::test]
async fn a_followed_table_that_is_attached_and_detached_is_never_frozen() {
    let place = Place::new(PARTITIONED);
    place.sql("CREATE TABLE extra (id int, at int, note text, PRIMARY KEY (id, at)); INSERT INTO extra VALUES (7, 25, 'x')");
    let serve = place.serve_with(&LIVE).await;
    let mut root = serve.reader(&shape("m")).await;
    let mut extra = serve.reader(&shape("extra")).await;
    place.sql("ALTER TABLE m ATTACH PARTITION extra FOR VALUES FROM (20) TO (30)");
    place.sql("INSERT INTO m VALUES (8, 26, 'y')");
    root.starts_over(&serve).await;
    assert_eq!(column(&serve, &shape("m"), "id").await, ["1", "2", "7", "8"]);
    // Its shape starts over, or goes on: in the end it has the row.
    serve.has_column(&mut extra, &shape("extra"), "id", &["7", "8"]).await;
    let (mut root, mut extra) = (serve.reader(&shape("m")).await, serve.reader(&shape("extra")).await);
    place.sql("INSERT INTO m VALUES (9, 27, 'z')");
    assert_eq!(gets(&serve, &mut root, 1).await, ["insert 9/27"]);
    assert_eq!(gets(&serve, &mut extra, 1).await, ["insert 9/27"]);

    place.sql("ALTER TABLE m DETACH PARTITION extra");
    place.sql("INSERT INTO extra VALUES (10, 28, 'alone')");
    serve.has_column(&mut extra, &shape("extra"), "id", &["10", "7", "8", "9"]).await;
    root.starts_over(&serve).await;
    assert_eq!(column(&serve, &shape("m"), "id").await, ["1", "2"]);
}

#[tokio::test]
async fn a_shape_made_between_an_attach_and_a_detach_is_replaced() {
    let place = Place::new(PARTITIONED);
    place.sql("CREATE TABLE extra (id int, at int, note text, PRIMARY KEY (id, at)); INSERT INTO extra VALUES (7, 25, 'x')");
    let serve = place.serve_with(&[LIVE[0], ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "3600000")]).await;
    // The table is as it was at the last comparison of shapes and catalog, and the shape isn't. An
    // open stream makes no request, which would have the table compared.
    for clause in ["id > 0", "id > -1", "id > -2"] {
        let shape = [("table", "m"), ("where", clause)];
        let first = [&shape[..], &[("offset", "-1")]].concat();
        place.sql("ALTER TABLE m ATTACH PARTITION extra FOR VALUES FROM (20) TO (30)");
        // 503 while the server's description of the table is the one from before.
        until("the shape is made", async || serve.get(&first).await.head.status == 200).await;
        let reader = serve.reader(&shape).await;
        let mut events = serve.events(&reader).await;
        place.sql("ALTER TABLE m DETACH PARTITION extra");
        within("the stream ends", async { while events.next().await != Event::End {} }).await;
        until("the shape is made again", async || serve.get(&first).await.head.status == 200).await;
        assert_eq!(column(&serve, &shape, "id").await, ["1", "2"]);
    }
}

#[tokio::test]
async fn where_the_publication_is_kept_by_hand_a_partition_is_refused_by_name() {
    let place = Place::new(PARTITIONED);
    let slot = &place.slot;
    place.sql(&format!(
        "ALTER TABLE m REPLICA IDENTITY FULL; ALTER TABLE m_1 REPLICA IDENTITY FULL; ALTER TABLE m_2_rest REPLICA IDENTITY FULL;
         CREATE PUBLICATION {slot} FOR TABLE m WITH (publish_via_partition_root = true)"
    ));
    let settings = [LIVE[0], ("FOREBAY_DATABASE_MANUAL_PUBLICATION", "true")];
    let serve = place.serve_with(&settings).await;
    let mut root = serve.reader(&shape("m")).await;
    let refused = serve.get(&[("table", "m_1"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 400, "{}", refused.head.text);
    let said = refused.json()["errors"]["table"][0].as_str().unwrap().to_owned();
    assert!(said.contains("is a partition") && said.contains("publish_via_partition_root = false"), "{said}");
    place.sql(&format!("ALTER PUBLICATION {slot} SET (publish_via_partition_root = false)"));
    root.starts_over(&serve).await;
    place.sql(&format!("ALTER PUBLICATION {slot} ADD TABLE m_1"));
    let (mut root, mut first) = (serve.reader(&shape("m")).await, serve.reader(&shape("m_1")).await);
    place.sql("INSERT INTO m VALUES (3, 6, 'c')");
    assert_eq!(gets(&serve, &mut root, 1).await, ["insert 3/6"]);
    assert_eq!(gets(&serve, &mut first, 1).await, ["insert 3/6"]);
}
