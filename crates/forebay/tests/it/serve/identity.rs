//! Rows that share a key for a while, or for ever: clients end with what the table has.

use super::support::{Place, column, short};

const LIVE: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];
const POS: [(&str, &str); 1] = [("table", "pos")];
const NOTES: [(&str, &str); 1] = [("table", "notes")];

#[tokio::test]
async fn keys_that_move_up_under_a_deferrable_primary_key_replace_the_shape() {
    let place = Place::new(
        "CREATE TABLE pos (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, note text);
         INSERT INTO pos VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    );
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&POS).await;
    // No key is taken before it is left.
    place.sql("UPDATE pos SET id = id + 10");
    assert_eq!(reader.live_changes(&serve, 6).await.iter().filter(|m| m.get("key").is_some()).count(), 6);
    place.sql("UPDATE pos SET note = 'x' WHERE id = 11; INSERT INTO pos VALUES (1, 'new'); DELETE FROM pos WHERE id = 13");
    assert_eq!(short(&reader.live_changes(&serve, 3).await), ["update 11", "insert 1", "delete 13"]);
    // Rows are visited in the order in which they were written: 12 is taken while another row has it.
    place.sql(
        "UPDATE pos SET id = id + 1 WHERE id = 11; UPDATE pos SET id = id + 1 WHERE id = 12 AND note = 'b'",
    );
    reader.starts_over(&serve).await;
    assert_eq!(column(&serve, &POS, "id").await, ["1", "12", "13"]);
}

#[tokio::test]
async fn one_of_two_equal_rows_that_goes_leaves_the_other() {
    let place = Place::new(
        "CREATE TABLE notes (note text, kind int);
         INSERT INTO notes VALUES ('twin', 1), ('twin', 1), ('single', 1), (NULL, 2)",
    );
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&NOTES).await;
    // Rows that are alone come and go.
    place.sql("DELETE FROM notes WHERE note IS NULL; UPDATE notes SET kind = 3 WHERE note = 'single'");
    let told = short(&reader.live_changes(&serve, 3).await);
    assert_eq!(told.iter().filter(|told| told.starts_with("delete")).count(), 2, "{told:?}");
    place.sql("DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE note = 'twin')");
    reader.starts_over(&serve).await;
    assert_eq!(column(&serve, &NOTES, "note").await, ["single", "twin"]);
    // A twin that comes later, and one that goes after a restart.
    let mut reader = serve.reader(&NOTES).await;
    place.sql("INSERT INTO notes VALUES ('twin', 1)");
    assert_eq!(reader.live_changes(&serve, 1).await.len(), 2);
    serve.stop().await;
    place.sql("DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE note = 'twin')");
    let serve = place.serve_with(&LIVE).await;
    reader.starts_over(&serve).await;
    assert_eq!(column(&serve, &NOTES, "note").await, ["single", "twin"]);
}
