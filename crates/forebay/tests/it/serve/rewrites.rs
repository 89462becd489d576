//! Tables whose rows are rewritten though no row changes in the stream: their shapes start over,
//! open streams too. What leaves the rows as they are replaces no shape.

use super::support::{Event, Place, Serve, column, short};
use crate::wire::until;

const LIVE: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

/// Waits until open streams of a shape end after a change of its table that changes no row, and
/// until its readers start over.
async fn replaced(place: &Place, serve: &Serve, table: &str, ddl: &str) {
    let shape = [("table", table)];
    let mut reader = serve.reader(&shape).await;
    let mut events = serve.events(&reader).await;
    place.sql(ddl);
    loop {
        match events.next().await {
            Event::End => break,
            Event::KeepAlive | Event::Message(_) => {}
        }
    }
    reader.starts_over(serve).await;
}

#[tokio::test]
async fn a_column_is_computed_anew_with_the_same_type() {
    let place =
        Place::new("CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)");
    let serve = place.serve_with(&LIVE).await;
    replaced(&place, &serve, "items", "ALTER TABLE items ALTER amount TYPE int USING amount * 100").await;
    assert_eq!(column(&serve, &[("table", "items")], "amount").await, ["500"]);
    // A new shape is no worse for what came before it.
    let mut reader = serve.reader(&[("table", "items")]).await;
    place.sql("UPDATE items SET amount = 6");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test]
async fn streams_on_an_instance_that_only_reads_end_too() {
    let place =
        Place::new("CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)");
    let writer = place.serve_with(&LIVE).await;
    let second = place.spawn(&LIVE);
    second.becomes("waiting").await;
    writer.reader(&[("table", "items")]).await;
    let first = [("table", "items"), ("offset", "-1")];
    until("it has read of the shape", async || second.get(&first).await.head.status == 200).await;
    let mut reader = second.reader(&[("table", "items")]).await;
    let mut events = second.events(&reader).await;
    place.sql("ALTER TABLE items ALTER amount TYPE int USING amount * 100");
    while events.next().await != Event::End {}
    reader.starts_over(&second).await;
}

#[tokio::test]
async fn a_rewrite_while_the_server_is_away_is_found_at_its_start() {
    let place =
        Place::new("CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)");
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    serve.stop().await;
    place.sql("ALTER TABLE items ALTER amount TYPE int USING amount * 100");
    let serve = place.serve_with(&LIVE).await;
    reader.starts_over(&serve).await;
    assert_eq!(column(&serve, &[("table", "items")], "amount").await, ["500"]);
}

#[tokio::test]
async fn a_generated_column_gets_another_expression() {
    // Before 18, generated columns are in no shape; and 17 is the first that can do this.
    let postgres = forebay_sandbox::Postgres::shared_version(18);
    let place = Place::on(
        postgres,
        "CREATE TABLE items (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
         INSERT INTO items VALUES (1)",
    );
    let serve = place.serve_with(&LIVE).await;
    assert_eq!(column(&serve, &[("table", "items")], "twice").await, ["2"]);
    replaced(&place, &serve, "items", "ALTER TABLE items ALTER twice SET EXPRESSION AS (id * 3)").await;
    assert_eq!(column(&serve, &[("table", "items")], "twice").await, ["3"]);
}

#[tokio::test]
async fn labels_of_an_enum_are_renamed_wherever_it_is_used() {
    let place = Place::new(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN some_mood AS mood; CREATE TYPE pair AS (a int, b mood);
         CREATE TABLE plain (id int PRIMARY KEY, m mood); INSERT INTO plain VALUES (1, 'sad');
         CREATE TABLE arrays (id int PRIMARY KEY, m mood[]); INSERT INTO arrays VALUES (1, '{sad}');
         CREATE TABLE domains (id int PRIMARY KEY, m some_mood); INSERT INTO domains VALUES (1, 'sad');
         CREATE TABLE pairs (id int PRIMARY KEY, m pair[]); INSERT INTO pairs VALUES (1, '{\"(1,sad)\"}')",
    );
    let serve = place.serve_with(&LIVE).await;
    let (mut before, tables) = ("sad".to_owned(), ["plain", "arrays", "domains", "pairs"]);
    for table in tables {
        let label = format!("for_{table}");
        replaced(&place, &serve, table, &format!("ALTER TYPE mood RENAME VALUE '{before}' TO '{label}'"))
            .await;
        for table in tables {
            // The others have no open stream: requests find out.
            until("the label is the new one", async || {
                column(&serve, &[("table", table)], "m").await[0].contains(&label)
            })
            .await;
        }
        before = label;
    }
}

#[tokio::test]
async fn a_composite_type_gets_another_attribute() {
    let place = Place::new(
        "CREATE TYPE point2 AS (x int, y int); CREATE TABLE items (id int PRIMARY KEY, at point2);
         INSERT INTO items VALUES (1, '(1,2)')",
    );
    let serve = place.serve_with(&LIVE).await;
    replaced(&place, &serve, "items", "ALTER TYPE point2 ADD ATTRIBUTE z int").await;
    assert_eq!(column(&serve, &[("table", "items")], "at").await, ["(1,2,)"]);
}

#[tokio::test]
async fn what_leaves_the_rows_as_they_are_replaces_no_shape() {
    let place = Place::new(
        "CREATE TYPE mood AS ENUM ('sad');
         CREATE TABLE items (id int PRIMARY KEY, amount int, m mood); INSERT INTO items VALUES (1, 5, 'sad')",
    );
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    let mut events = serve.events(&reader).await;
    let handle = reader.handle.clone();
    let harmless = [
        "VACUUM FULL items",
        "CLUSTER items USING items_pkey",
        "ANALYZE items",
        "ALTER TABLE items ALTER amount SET DEFAULT 7",
        "ALTER TABLE items ALTER amount SET STATISTICS 10",
        "VACUUM FULL items",
        "ALTER TYPE mood ADD VALUE 'happy'",
        "ALTER TABLE items ALTER amount DROP DEFAULT",
    ];
    for (number, ddl) in harmless.into_iter().enumerate() {
        place.sql(ddl);
        place.sql(&format!("UPDATE items SET amount = {}", 100 + number));
        assert_eq!(short(&reader.live_changes(&serve, 1).await), ["update 1"], "{ddl}");
        assert_eq!(reader.handle, handle, "{ddl}");
        let (messages, _) = events.up_to_date().await;
        assert_eq!(short(&messages), ["update 1"], "{ddl}");
    }
}
