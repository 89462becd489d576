//! `database.drop_slot_on_shutdown`: slot and publication are dropped at shutdown, and only then.

use rustix::process::Signal;
use serde_json::json;

use super::support::ServeFixture;
use crate::wire::until;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)";

/// Returns how many slots and publications the fixture has.
fn slots_and_publications(fixture: &ServeFixture) -> (String, String) {
    let slot = &fixture.slot;
    let count = |query: String| fixture.query_value(&query).unwrap();
    (
        count(format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'")),
        count(format!("SELECT count(*) FROM pg_publication WHERE pubname = '{slot}'")),
    )
}

#[tokio::test]
async fn electrics_cleanup_variable_drops_slot_and_publication_at_shutdown_and_not_at_a_reconnection() {
    let fixture = ServeFixture::new(ITEMS);
    let mut serve = fixture.serve_with(&[("CLEANUP_REPLICATION_SLOTS_ON_SHUTDOWN", "true")]).await;
    let mapped = serve.wait_for_log("environment variable mapped");
    assert_eq!(mapped["settings"], "database.drop_slot_on_shutdown");
    let mut reader = serve.reader(&[("table", "items")]).await;
    assert_eq!(slots_and_publications(&fixture), ("1".to_owned(), "1".to_owned()));
    let slot = &fixture.slot;
    fixture.sql(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    ));
    serve.wait_for_log("replication recovered");
    fixture.sql("INSERT INTO items VALUES (2)");
    // A 409 would fail here: the shape survives the reconnection.
    reader.live_changes(&serve, 1).await;

    serve.signal(Signal::TERM);
    assert_eq!(serve.end().await.code(), Some(0));
    assert_eq!(slots_and_publications(&fixture), ("0".to_owned(), "0".to_owned()));
}

#[tokio::test]
async fn an_instance_that_waits_drops_nothing_that_another_instance_uses() {
    let fixture = ServeFixture::new(ITEMS);
    let first = fixture.serve().await;
    let mut reader = first.reader(&[("table", "items")]).await;
    let mut second = fixture.spawn(&[("FOREBAY_DATABASE_DROP_SLOT_ON_SHUTDOWN", "true")]);
    second.wait_for_health("waiting").await;
    second.signal(Signal::TERM);
    second.end().await;
    let kept = second.wait_for_log("slot not dropped: it retains WAL");
    assert!(kept["why"].as_str().unwrap().contains("another instance holds the lock"), "{kept}");
    assert_eq!(slots_and_publications(&fixture), ("1".to_owned(), "1".to_owned()));
    fixture.sql("INSERT INTO items VALUES (2)");
    reader.live_changes(&first, 1).await;
    until("the first instance streams", async || {
        first.status().await["database"]["step"] == json!("streaming")
    })
    .await;
}
