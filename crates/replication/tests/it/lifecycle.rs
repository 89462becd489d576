//! From start to shutdown, without failures.

use forebay_replication::{ManagerEvent, ManagerPhase, ManagerStep, ReadyCondition, ResetReason, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};

use crate::followed_database::{FollowedDatabase, insert, row};
use crate::journal::{JournalChange, OldRow};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_an_added_table_arrive_in_commit_order() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'new'), (2, 'new')");
    followed.sql("UPDATE orders SET note = 'paid' WHERE id = 1");
    followed.sql("DELETE FROM orders WHERE id = 2");
    let changes = followed.eventually_changes(4).await;
    let expected = [
        insert("orders", 1, "new"),
        insert("orders", 2, "new"),
        JournalChange::Update("public.orders".into(), Some(OldRow::Full(row(1, "new"))), row(1, "paid")),
        JournalChange::Delete("public.orders".into(), OldRow::Full(row(2, "new"))),
    ];
    assert_eq!(changes, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_continues_at_the_bookmark() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    assert_eq!(manager.status().step, ManagerStep::Stopped);
    assert!(!followed.slot_is_active());
    followed.sql("INSERT INTO orders VALUES (2, 'meanwhile')");
    let manager = followed.running().await;
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    let changes = followed.eventually_changes(3).await;
    let expected =
        [insert("orders", 1, "before"), insert("orders", 2, "meanwhile"), insert("orders", 3, "after")];
    assert_eq!(changes, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_seven_conditions_hold_when_it_is_ready_and_events_report_it() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.start();
    let mut events = manager.events();
    let status = within("the manager is ready", manager.ready()).await.unwrap();
    assert!(ReadyCondition::ALL.iter().all(|condition| status.condition(*condition).holds));
    assert_eq!(status.phase, ManagerPhase::Running);
    assert_eq!(events.recv().await.unwrap(), ManagerEvent::Reset(ResetReason::First));
    assert_eq!(events.recv().await.unwrap(), ManagerEvent::Ready);
    manager.shutdown().await;
    assert_eq!(events.recv().await.unwrap(), ManagerEvent::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_changes_are_acknowledged() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    followed.eventually_changes(1).await;
    let end = followed.transactions().last().unwrap().end;
    let slot = &followed.slot;
    let query = format!(
        "SELECT confirmed_flush_lsn - '0/0' >= {end} FROM pg_replication_slots WHERE slot_name = '{slot}'"
    );
    eventually("the slot has moved", Some("t".to_owned()), async || followed.query_value(&query)).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_table_sends_no_changes() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.table(&manager, "notes").await;
    manager.remove_table(&TableName::new("public", "notes")).await.unwrap();
    followed.sql("INSERT INTO notes VALUES (1, 'unseen')");
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_and_drop_leaves_nothing_on_the_server() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    manager.shutdown_and_drop().await;
    let slot = &followed.slot;
    assert_eq!(
        followed.query_value(&format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'")),
        None
    );
    assert_eq!(followed.query_value("SELECT 1 FROM pg_publication"), None);
    let backends = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        followed.database
    );
    // Backends of earlier test queries end with a delay.
    eventually("no backend is left", Some("0".to_owned()), async || followed.query_value(&backends)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_handle_shuts_it_down() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    assert!(followed.slot_is_active());
    drop(manager);
    eventually("the slot is free", false, async || followed.slot_is_active()).await;
}
