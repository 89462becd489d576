//! Rows that share a key, for a while or permanently. Clients still converge to the rows of the
//! table.

use super::support::{ServeFixture, column_values, summarize};

const SHORT_LONG_POLL: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];
const POS_SHAPE: [(&str, &str); 1] = [("table", "pos")];
const NOTES_SHAPE: [(&str, &str); 1] = [("table", "notes")];

#[tokio::test]
async fn keys_that_move_up_under_a_deferrable_primary_key_replace_the_shape() {
    let fixture = ServeFixture::new(
        "CREATE TABLE pos (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, note text);
         INSERT INTO pos VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&POS_SHAPE).await;
    // No row gets a key that another row still has.
    fixture.sql("UPDATE pos SET id = id + 10");
    assert_eq!(reader.live_changes(&serve, 6).await.iter().filter(|m| m.get("key").is_some()).count(), 6);
    fixture.sql("UPDATE pos SET note = 'x' WHERE id = 11; INSERT INTO pos VALUES (1, 'new'); DELETE FROM pos WHERE id = 13");
    assert_eq!(summarize(&reader.live_changes(&serve, 3).await), ["update 11", "insert 1", "delete 13"]);
    // Between the two statements, two rows have key 12.
    fixture.sql(
        "UPDATE pos SET id = id + 1 WHERE id = 11; UPDATE pos SET id = id + 1 WHERE id = 12 AND note = 'b'",
    );
    reader.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &POS_SHAPE, "id").await, ["1", "12", "13"]);
}

#[tokio::test]
async fn deleting_one_of_two_equal_rows_keeps_the_other() {
    let fixture = ServeFixture::new(
        "CREATE TABLE notes (note text, kind int);
         INSERT INTO notes VALUES ('twin', 1), ('twin', 1), ('single', 1), (NULL, 2)",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&NOTES_SHAPE).await;
    // Rows without an equal row are deleted and updated.
    fixture.sql("DELETE FROM notes WHERE note IS NULL; UPDATE notes SET kind = 3 WHERE note = 'single'");
    let changes = summarize(&reader.live_changes(&serve, 3).await);
    assert_eq!(changes.iter().filter(|change| change.starts_with("delete")).count(), 2, "{changes:?}");
    fixture.sql("DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE note = 'twin')");
    reader.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &NOTES_SHAPE, "note").await, ["single", "twin"]);
    // An equal row is inserted, and one is deleted while the server is down.
    let mut reader = serve.reader(&NOTES_SHAPE).await;
    fixture.sql("INSERT INTO notes VALUES ('twin', 1)");
    assert_eq!(reader.live_changes(&serve, 1).await.len(), 2);
    serve.stop().await;
    fixture.sql("DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE note = 'twin')");
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    reader.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &NOTES_SHAPE, "note").await, ["single", "twin"]);
}
