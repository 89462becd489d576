//! Where clauses on enums, citext, network addresses, ranges and bytea, followed live.

use super::support::{ServeFixture, summarize};

const CREATE_ITEMS: &str = "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN feeling AS mood;
    CREATE TABLE items (id int PRIMARY KEY, m mood, f feeling, email citext, ip inet, during int4range, raw bytea);
    INSERT INTO items VALUES
        (1, 'happy', 'happy', 'Ann@X.org', '10.1.2.3', '[1,9)', '\\xff'), (2, 'sad', 'sad', 'bob@x.org', '11.0.0.1', 'empty', '\\x00')";

/// A matching row, and one that does not match any of the clauses.
const MATCHING: &str = "'happy', 'happy', 'ANN@x.ORG', '10.9.9.9', '[5,6)', '\\xff'";
const OTHER: &str = "'sad', 'sad', 'bob', '12.0.0.1', '[6,9)', '\\x01'";

#[tokio::test]
async fn clauses_on_every_type_follow_live_changes() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[]).await;
    for (number, (clause, param)) in [
        ("m > 'sad'", ""),
        ("m = ANY($1)", "{ok,happy}"),
        ("m = 'happy'::mood", ""),
        ("f::mood BETWEEN 'ok' AND 'happy'", ""),
        ("email = $1", "ann@x.org"),
        ("email LIKE 'ANN%'", ""),
        ("ip << '10.0.0.0/8'", ""),
        ("during @> 5", ""),
        ("raw = $1", "\\xff"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut shape = vec![("table", "items"), ("where", clause)];
        if clause.contains("$1") {
            shape.push(("params[1]", param));
        }
        let mut reader = serve.reader(&shape).await;
        let first = 100 + 10 * number;
        fixture.sql(&format!(
            "INSERT INTO items VALUES ({first}, {OTHER}), ({}, {MATCHING}); DELETE FROM items WHERE id >= 100",
            first + 1
        ));
        let expected = [format!("insert {}", first + 1), format!("delete {}", first + 1)];
        assert_eq!(summarize(&reader.live_changes(&serve, 2).await), expected, "{clause}");
        let snapshot = serve.get(&[&[("offset", "-1")], &shape[..]].concat()).await;
        let rows = snapshot.json();
        let keys: Vec<_> = rows.as_array().unwrap().iter().filter_map(|row| row["key"].as_str()).collect();
        assert_eq!(keys, ["\"public\".\"items\"/\"1\""], "{clause}");
    }
}

#[tokio::test]
async fn postgres_orders_labels_that_are_newer_than_the_shape() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "1000")]).await;
    let mut ordered = serve.reader(&[("table", "items"), ("where", "m >= 'ok'")]).await;
    let mut equal = serve.reader(&[("table", "items"), ("where", "m = 'happy'")]).await;
    fixture.sql("ALTER TYPE mood ADD VALUE 'fine' AFTER 'ok'");
    fixture.sql("INSERT INTO items (id, m) VALUES (3, 'fine'), (4, 'happy')");
    assert_eq!(summarize(&ordered.live_changes(&serve, 2).await), ["insert 3", "insert 4"]);
    assert_eq!(summarize(&equal.live_changes(&serve, 1).await), ["insert 4"]);
    // The new shape knows the label.
    crate::wire::until("a shape with the new label is served", async || {
        serve.get(&[("table", "items"), ("where", "m = 'fine'"), ("offset", "-1")]).await.head.status == 200
    })
    .await;
    fixture.sql("INSERT INTO items (id, m) VALUES (5, 'sad'), (6, 'fine')");
    assert_eq!(summarize(&ordered.live_changes(&serve, 1).await), ["insert 6"]);
}

#[tokio::test]
async fn a_wrong_label_and_a_generated_column_are_explained() {
    let fixture = ServeFixture::new(
        "CREATE TYPE mood AS ENUM ('sad');
         CREATE TABLE items (id int PRIMARY KEY, m mood, twice int GENERATED ALWAYS AS (id * 2) STORED)",
    );
    let serve = fixture.serve_with(&[]).await;
    for (clause, expected) in [
        ("m = 'glum'", "invalid input value for enum mood: \"glum\""),
        ("twice = 2", "column \"twice\" is generated, and its changes are not in the stream"),
        ("items.twice = 2", "column \"twice\" is generated, and its changes are not in the stream"),
    ] {
        let response = serve.get(&[("table", "items"), ("offset", "-1"), ("where", clause)]).await;
        assert_eq!(response.head.status, 400, "{clause}");
        let text = response.json()["errors"]["where"][0].as_str().unwrap().to_owned();
        assert!(text.starts_with(expected), "{clause}: {text}");
    }
}
