//! Changes that a bearer gets: only those within the grant, and only granted columns.

use std::time::Instant;

use serde_json::{Value, json};

use super::super::support::{ServeFixture, changes, summarize};
use super::{CREATE_TABLES, KEY, KeyFile, TokenBearer, own_orders, serve_with};
use crate::wire::DEADLINE;

/// Runs `sql`, and reads until the bearer has `count` changes. Returns the messages, and all bodies
/// as text.
async fn changes_after(
    fixture: &ServeFixture,
    bearer: &TokenBearer<'_>,
    shape: &[(&str, &str)],
    sql: &str,
    count: usize,
) -> (Vec<Value>, String) {
    let now = bearer.get(&[shape, &[("offset", "now")]].concat()).await;
    assert_eq!(now.head.status, 200, "{}", String::from_utf8_lossy(&now.body));
    fixture.sql(sql);
    let mut response = now;
    let (mut messages, mut text) = (Vec::new(), String::new());
    let started = Instant::now();
    while changes(&messages).len() < count {
        assert!(started.elapsed() < DEADLINE, "expected {count} changes: {messages:?}");
        let named = |name: &str| response.head.header(name).unwrap().to_owned();
        let (handle, offset) = (named("electric-handle"), named("electric-offset"));
        response =
            bearer.get(&[shape, &[("handle", &*handle), ("offset", &*offset), ("live", "")]].concat()).await;
        text += &String::from_utf8_lossy(&response.body);
        messages.extend(response.json().as_array().unwrap().clone());
    }
    (messages, text)
}

#[tokio::test]
async fn changes_come_only_from_within_the_grant() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("changes", KEY));
    fixture.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let shape = [("table", "orders"), ("replica", "full"), ("where", "total < 1000")];
    let sql = "BEGIN; UPDATE orders SET note = 'still theirs' WHERE id = 2; INSERT INTO orders VALUES (5, 8, 1, 'theirs');
         UPDATE orders SET user_id = 8, note = 'theirs now' WHERE id = 3;
         UPDATE orders SET user_id = 7 WHERE id = 2;
         INSERT INTO orders VALUES (6, 7, 2, 'mine'); DELETE FROM orders WHERE id = 5; COMMIT";
    let (messages, text) = changes_after(&fixture, &bearer, &shape, sql, 3).await;
    assert_eq!(summarize(&messages), ["delete 3", "insert 2", "insert 6"]);
    assert!(!text.contains("theirs now"), "a row that left the grant has its old values: {text}");
    assert!(!text.contains("old_value"), "a row that entered the grant has no old values: {text}");
}

#[tokio::test]
async fn changes_have_no_column_beyond_the_grant_in_new_or_old_values() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("columns-live", KEY));
    fixture.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let mut grant = own_orders();
    grant["columns"] = json!(["total"]);
    let bearer = TokenBearer::new(&serve, json!([grant]));
    for (at, replica) in ["default", "full"].into_iter().enumerate() {
        let (shape, id) = ([("table", "orders"), ("replica", replica)], 100 + at);
        let sql = format!(
            "BEGIN; INSERT INTO orders VALUES ({id}, 7, 1, 'hidden'); UPDATE orders SET total = 2, note = 'veiled' WHERE id = {id};
             UPDATE orders SET note = 'unseen' WHERE id = {id}; UPDATE orders SET total = 3 WHERE id = {id};
             DELETE FROM orders WHERE id = {id}; COMMIT"
        );
        let (messages, text) = changes_after(&fixture, &bearer, &shape, &sql, 4).await;
        for hidden in ["hidden", "veiled", "unseen", "note", "user_id"] {
            assert!(!text.contains(hidden), "{replica}: {hidden} in {text}");
        }
        for message in changes(&messages) {
            for part in ["value", "old_value"] {
                let columns =
                    message.get(part).and_then(Value::as_object).into_iter().flat_map(|row| row.keys());
                assert!(
                    columns.into_iter().all(|name| ["id", "total"].contains(&name.as_str())),
                    "{message}"
                );
            }
        }
        let last = messages.iter().rev().find(|message| message["headers"]["operation"] == "update").unwrap();
        assert_eq!(
            (&last["value"]["total"], last.get("old_value").is_some()),
            (&json!("3"), replica == "full")
        );
    }
}

#[tokio::test]
async fn a_row_that_leaves_the_grant_with_a_new_key_does_not_reveal_that_key() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("key-changes", KEY));
    fixture.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let sql = "BEGIN; UPDATE orders SET id = -3003, user_id = 8 WHERE id = 3; UPDATE orders SET id = 12, user_id = 7 WHERE id = 2;
         UPDATE orders SET id = 11 WHERE id = 1; COMMIT";
    for replica in ["default", "full"] {
        let shape = [("table", "orders"), ("replica", replica)];
        let (messages, text) = changes_after(&fixture, &bearer, &shape, sql, 4).await;
        assert_eq!(summarize(&messages), ["delete 3", "insert 12", "delete 1", "insert 11"]);
        // With the sign, because an LSN may contain the same digits.
        assert!(!text.contains("-3003"), "the new key is revealed: {text}");
        let headers: Vec<_> = changes(&messages).iter().map(|message| message["headers"].clone()).collect();
        let has = |at: usize, name: &str| headers[at].get(name).is_some();
        assert!(!has(0, "key_change_to") && !has(1, "key_change_from"), "{replica}: {text}");
        assert!(
            has(2, "key_change_to") && has(3, "key_change_from"),
            "both keys are within the grant: {text}"
        );
        fixture.sql(
            "BEGIN; UPDATE orders SET id = 3, user_id = 7 WHERE id = -3003; UPDATE orders SET id = 2, user_id = 8 WHERE id = 12;
             UPDATE orders SET id = 1 WHERE id = 11; COMMIT",
        );
    }
}

#[tokio::test]
async fn a_grant_whose_clause_postgres_evaluates_holds_for_snapshots_and_changes() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("judged", KEY));
    fixture.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let grant = json!({"table": "public.orders", "where": "note ~ $1", "params": {"1": "^mine"}});
    let bearer = TokenBearer::new(&serve, json!([grant]));
    assert_eq!(bearer.ids(&[("table", "orders")]).await, ["1", "3"]);
    // Postgres evaluates the client's clause, too, which fails on rows outside the grant.
    let clause = "to_char(total, note) IS NOT NULL AND note ~ 'e'";
    let shape = [("table", "orders"), ("replica", "full"), ("where", clause)];
    let sql = "BEGIN; INSERT INTO orders VALUES (5, 8, 1, 'theirs 9EEEE9'), (6, 7, 2, 'mine, 1');
         UPDATE orders SET note = 'mine now' WHERE id = 2; UPDATE orders SET note = 'theirs now' WHERE id = 3;
         DELETE FROM orders WHERE id = 5; COMMIT";
    let (messages, text) = changes_after(&fixture, &bearer, &shape, sql, 3).await;
    assert_eq!(summarize(&messages), ["insert 6", "insert 2", "delete 3"]);
    assert!(!text.contains("theirs"), "{text}");
}
