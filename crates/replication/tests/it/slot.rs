//! Slots: lost, dropped, active, temporary, failover, blocked.

use std::process::Command;
use std::time::{Duration, Instant};

use forebay_replication::{Manager, ManagerStep, ReadyCondition};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};

use crate::followed_database::{FollowedDatabase, insert, streams};
use crate::journal::JournalLine;
use crate::other_client::{backend, connect_client, occupy};

/// Starts a server that invalidates a slot two segments behind.
fn small_wal_server(version: u32) -> Postgres {
    Postgres::builder()
        .version(version)
        .config("max_slot_wal_keep_size", "1MB")
        .config("min_wal_size", "32MB")
        .config("max_wal_size", "32MB")
        .config("wal_sender_timeout", "3s")
        .start()
        .unwrap()
}

/// Writes WAL until the slot is invalidated.
async fn invalidate_slot(followed: &FollowedDatabase<'_>) {
    for _ in 0..4 {
        followed.sql("SELECT pg_logical_emit_message(false, 'log', 'filler')");
        followed.sql("SELECT pg_switch_wal()");
    }
    followed.sql("CHECKPOINT");
    eventually("the slot is lost", Some("lost".to_owned()), async || slot(followed, "wal_status")).await;
}

/// Returns a column of the slot.
fn slot(followed: &FollowedDatabase<'_>, column: &str) -> Option<String> {
    followed.query_value(&format!(
        "SELECT {column} FROM pg_replication_slots WHERE slot_name = '{}'",
        followed.slot
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_lost_its_wal_while_no_manager_ran_is_recreated() {
    let server = small_wal_server(15);
    let followed = FollowedDatabase::new(&server);
    followed.follow_first_order().await;
    followed.sql("INSERT INTO orders VALUES (2, 'lost')");
    invalidate_slot(&followed).await;
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first", "slot_created"]);
    assert_ne!(slot(&followed, "wal_status").as_deref(), Some("lost"));
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("orders", 1, "before"), insert("orders", 3, "after")]
    );
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_loses_its_wal_under_a_stalled_consumer_is_recreated() {
    let server = small_wal_server(18);
    let followed = FollowedDatabase::new(&server);
    let (manager, gate) = followed.streaming_orders_with_gate().await;
    let stalled = gate.lock().await;
    followed.sql("INSERT INTO orders VALUES (1, 'never taken')");
    invalidate_slot(&followed).await;
    followed.was_reset(&manager, &["first", "slot_created"]).await;
    drop(stalled);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 2, "after")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_slot_is_recreated() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    // While a manager streams, before it has reconnected.
    let name = &followed.slot;
    eventually("the slot is dropped", true, async || {
        let end = format!(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
        );
        followed.sql(&end);
        followed.server.execute(&followed.database, &format!("SELECT pg_drop_replication_slot('{name}')")).is_ok()
    })
    .await;
    followed.was_reset(&manager, &["first", "slot_created"]).await;
    followed.sql("INSERT INTO orders VALUES (1, 'new slot')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;

    // While no manager runs.
    followed.sql(&format!("SELECT pg_drop_replication_slot('{name}')"));
    followed.sql("INSERT INTO orders VALUES (2, 'lost')");
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first", "slot_created", "slot_created"]);
    followed.sql("INSERT INTO orders VALUES (3, 'newer slot')");
    let expected = [insert("orders", 1, "new slot"), insert("orders", 3, "newer slot")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_slot_is_retried_without_a_reset() {
    let followed = FollowedDatabase::new(Postgres::shared());
    followed.follow_first_order().await;
    let occupied = occupy(&followed).await;
    followed.sql("INSERT INTO orders VALUES (2, 'meanwhile')");
    let manager = followed.start();
    let is_in_use = |text: &str| text.contains("the slot is in use by another connection; retrying");
    let tried =
        manager.wait_until(|status| status.retries >= 2 && status.trouble.as_deref().is_some_and(is_in_use));
    within("it is retried", tried).await.unwrap();
    assert_eq!(followed.changes(), [insert("orders", 1, "before")]);
    drop(occupied);
    streams(&manager).await;
    let expected = [insert("orders", 1, "before"), insert("orders", 2, "meanwhile")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_slot_ends_with_its_connection_and_each_one_resets_the_consumer() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.start_with(followed.config().temporary_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("t"));
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'first slot')");
    followed.eventually_changes(1).await;
    followed.sql(&format!("SELECT pg_terminate_backend({})", manager.positions().backend_pid.unwrap()));
    followed.was_reset(&manager, &["first", "slot_created"]).await;
    followed.sql("INSERT INTO orders VALUES (2, 'second slot')");
    let expected = [insert("orders", 1, "first slot"), insert("orders", 2, "second slot")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    manager.shutdown().await;
    assert_eq!(slot(&followed, "slot_name"), None);

    // A permanent slot next, and a temporary one that replaces it.
    let manager = followed.running().await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("f"));
    manager.shutdown().await;
    let manager = followed.start_with(followed.config().temporary_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("t"));
    assert_eq!(followed.resets(), ["first", "slot_created", "slot_created", "slot_created"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_behind_the_slot_is_reset_at_start() {
    let followed = FollowedDatabase::new(Postgres::shared());
    followed.follow_first_order().await;
    followed.sql("INSERT INTO orders VALUES (2, 'taken by another client')");
    let name = &followed.slot;
    followed.sql(&format!("SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())"));
    let confirmed = slot(&followed, "confirmed_flush_lsn - '0/0'").unwrap();
    let manager = followed.running().await;
    let begin = |line| match line {
        JournalLine::Reset(reason, begin) => Some((reason, begin.durable.0.to_string())),
        _ => None,
    };
    assert_eq!(followed.lines().into_iter().rev().find_map(begin), Some(("behind".to_owned(), confirmed)));
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("orders", 1, "before"), insert("orders", 3, "after")]
    );
    manager.shutdown().await;
}

/// Waits until the reason of a blocked setup contains all texts.
async fn is_blocked(manager: &Manager, texts: &[&str]) {
    let blocked = manager.wait_until(|status| {
        let why = &status.condition(ReadyCondition::ReplicationClientReady).why;
        texts.iter().all(|text| why.contains(text))
    });
    let status = within(&format!("the status contains {texts:?}"), blocked).await.unwrap();
    assert_eq!(status.step, ManagerStep::ConfiguringConnection);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_that_blocks_slot_creation_is_named_in_the_status() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let client = connect_client(&followed, &followed.database).await;
    client.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let pid = backend(&client).await.to_string();
    let manager = followed.start();
    is_blocked(&manager, &["backend", &pid, "\"other_client\"", "pg_terminate_backend", "open for"]).await;
    client.batch_execute("COMMIT").await.unwrap();
    streams(&manager).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_that_blocks_slot_creation_is_named_and_an_idle_server_logs_a_snapshot() {
    let server = Postgres::builder().version(18).config("max_prepared_transactions", "2").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    // Transactions of other databases block, too.
    server
        .execute("postgres", "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        .unwrap();
    let manager = followed.start();
    is_blocked(&manager, &["\"forgotten\"", "database \"postgres\"", "ROLLBACK PREPARED"]).await;
    // From here on no transaction blocks the walsender, which is stopped.
    let walsender = manager.positions().backend_pid.unwrap();
    signal("-STOP", walsender);
    server.execute("postgres", "ROLLBACK PREPARED 'forgotten'").unwrap();
    is_blocked(&manager, &["setup waits for the server to log its running transactions"]).await;
    signal("-CONT", walsender);
    streams(&manager).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

fn signal(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_slot_is_created_or_altered_if_the_server_supports_it() {
    let followed = FollowedDatabase::new(Postgres::shared_version(18));
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("t"));
    manager.shutdown_and_drop().await;

    let followed = FollowedDatabase::new(Postgres::shared_version(18));
    let manager = followed.running().await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("f"));
    manager.shutdown().await;
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("t"));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;

    let followed = FollowedDatabase::new(Postgres::shared_version(15));
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    manager.shutdown().await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("f"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_and_drop_without_a_server_ends_in_time_and_drops_nothing_later() {
    let server = Postgres::start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    server.kill();
    let noticed = manager.wait_until(|status| status.retries > 0);
    within("the manager notices", noticed).await.unwrap();
    let started_at = Instant::now();
    within("the manager ends", manager.shutdown_and_drop()).await;
    // The sum of all deadlines.
    assert!(started_at.elapsed() < Duration::from_secs(25), "{:?}", started_at.elapsed());
    assert_eq!(manager.status().step, ManagerStep::Stopped);

    server.revive().unwrap();
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
