//! What a bearer is told of changes: those within the grant, and of them no more than it grants.

use std::time::Instant;

use serde_json::{Value, json};

use super::super::support::{Place, changes, short};
use super::{Bearer, KEY, Keys, SQL, mine, serve_with};
use crate::wire::DEADLINE;

/// What a bearer reads after `sql`: so many changes, and all of it as text.
async fn told_of(
    place: &Place,
    bearer: &Bearer<'_>,
    shape: &[(&str, &str)],
    sql: &str,
    count: usize,
) -> (Vec<Value>, String) {
    let now = bearer.get(&[shape, &[("offset", "now")]].concat()).await;
    assert_eq!(now.head.status, 200, "{}", String::from_utf8_lossy(&now.body));
    place.sql(sql);
    let mut answer = now;
    let (mut messages, mut text) = (Vec::new(), String::new());
    let begun = Instant::now();
    while changes(&messages).len() < count {
        assert!(begun.elapsed() < DEADLINE, "only {messages:?}");
        let named = |name: &str| answer.head.header(name).unwrap().to_owned();
        let (handle, offset) = (named("electric-handle"), named("electric-offset"));
        answer =
            bearer.get(&[shape, &[("handle", &*handle), ("offset", &*offset), ("live", "")]].concat()).await;
        text += &String::from_utf8_lossy(&answer.body);
        messages.extend(answer.json().as_array().unwrap().clone());
    }
    (messages, text)
}

#[tokio::test]
async fn changes_come_only_from_within_the_grant() {
    let (place, keys) = (Place::new(SQL), Keys::new("changes", KEY));
    place.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let shape = [("table", "orders"), ("replica", "full"), ("where", "total < 1000")];
    let sql = "BEGIN; UPDATE orders SET note = 'still theirs' WHERE id = 2; INSERT INTO orders VALUES (5, 8, 1, 'theirs');
         UPDATE orders SET user_id = 8, note = 'theirs now' WHERE id = 3;
         UPDATE orders SET user_id = 7 WHERE id = 2;
         INSERT INTO orders VALUES (6, 7, 2, 'mine'); DELETE FROM orders WHERE id = 5; COMMIT";
    let (messages, text) = told_of(&place, &bearer, &shape, sql, 3).await;
    assert_eq!(short(&messages), ["delete 3", "insert 2", "insert 6"]);
    assert!(!text.contains("theirs now"), "what left the grant is told as it was: {text}");
    assert!(!text.contains("old_value"), "and of what came in, not what it was before: {text}");
}

#[tokio::test]
async fn changes_show_no_column_beyond_the_grant_neither_new_nor_old() {
    let (place, keys) = (Place::new(SQL), Keys::new("columns-live", KEY));
    place.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let mut grant = mine();
    grant["columns"] = json!(["total"]);
    let bearer = Bearer::new(&serve, json!([grant]));
    for (at, replica) in ["default", "full"].into_iter().enumerate() {
        let (shape, id) = ([("table", "orders"), ("replica", replica)], 100 + at);
        let sql = format!(
            "BEGIN; INSERT INTO orders VALUES ({id}, 7, 1, 'hidden'); UPDATE orders SET total = 2, note = 'veiled' WHERE id = {id};
             UPDATE orders SET note = 'unseen' WHERE id = {id}; UPDATE orders SET total = 3 WHERE id = {id};
             DELETE FROM orders WHERE id = {id}; COMMIT"
        );
        let (messages, text) = told_of(&place, &bearer, &shape, &sql, 4).await;
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
async fn a_row_that_leaves_the_grant_under_another_key_does_not_tell_of_that_key() {
    let (place, keys) = (Place::new(SQL), Keys::new("key-changes", KEY));
    place.sql("ALTER TABLE orders REPLICA IDENTITY FULL");
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_LONG_POLL_MS", "5000")]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let sql = "BEGIN; UPDATE orders SET id = -3003, user_id = 8 WHERE id = 3; UPDATE orders SET id = 12, user_id = 7 WHERE id = 2;
         UPDATE orders SET id = 11 WHERE id = 1; COMMIT";
    for replica in ["default", "full"] {
        let shape = [("table", "orders"), ("replica", replica)];
        let (messages, text) = told_of(&place, &bearer, &shape, sql, 4).await;
        assert_eq!(short(&messages), ["delete 3", "insert 12", "delete 1", "insert 11"]);
        // With its sign: the digits alone may be in any position of the log.
        assert!(!text.contains("-3003"), "where it went: {text}");
        let headers: Vec<_> = changes(&messages).iter().map(|message| message["headers"].clone()).collect();
        let tells = |at: usize, name: &str| headers[at].get(name).is_some();
        assert!(!tells(0, "key_change_to") && !tells(1, "key_change_from"), "{replica}: {text}");
        assert!(tells(2, "key_change_to") && tells(3, "key_change_from"), "both are one's own: {text}");
        place.sql(
            "BEGIN; UPDATE orders SET id = 3, user_id = 7 WHERE id = -3003; UPDATE orders SET id = 2, user_id = 8 WHERE id = 12;
             UPDATE orders SET id = 1 WHERE id = 11; COMMIT",
        );
    }
}
