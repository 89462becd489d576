//! What becomes of the slot.

use std::process::Command;
use std::time::{Duration, Instant};

use forebay_replication::{Condition, Manager, Step};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};

use crate::journal::{Journal, Line};
use crate::stranger::{backend, occupy, session};
use crate::support::{Followed, insert, streams};

/// A server that invalidates a slot as soon as it is two segments behind.
fn forgetful(version: u32) -> Postgres {
    Postgres::builder()
        .version(version)
        .config("max_slot_wal_keep_size", "1MB")
        .config("min_wal_size", "32MB")
        .config("max_wal_size", "32MB")
        .config("wal_sender_timeout", "3s")
        .start()
        .unwrap()
}

/// Writes log until the slot is invalidated.
async fn outrun(followed: &Followed<'_>) {
    for _ in 0..4 {
        followed.sql("SELECT pg_logical_emit_message(false, 'log', 'goes on')");
        followed.sql("SELECT pg_switch_wal()");
    }
    followed.sql("CHECKPOINT");
    eventually("the slot is lost", Some("lost".to_owned()), async || slot(followed, "wal_status")).await;
}

/// A column of the slot.
fn slot(followed: &Followed<'_>, column: &str) -> Option<String> {
    followed.ask(&format!("SELECT {column} FROM pg_replication_slots WHERE slot_name = '{}'", followed.slot))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_lost_its_log_while_nobody_was_there_is_made_anew() {
    let server = forgetful(15);
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    followed.sql("INSERT INTO orders VALUES (2, 'lost')");
    outrun(&followed).await;
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
async fn a_slot_that_loses_its_log_under_a_stalled_consumer_is_made_anew() {
    let server = forgetful(18);
    let followed = Followed::new(&server);
    let journal = Journal::open(&followed.journal());
    let gate = journal.gate.clone();
    let manager = Manager::start(followed.config(), journal).unwrap();
    streams(&manager).await;
    followed.table(&manager, "orders").await;
    let stalled = gate.lock().await;
    followed.sql("INSERT INTO orders VALUES (1, 'never taken')");
    outrun(&followed).await;
    followed.started_over(&manager, &["first", "slot_created"]).await;
    drop(stalled);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 2, "after")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_drops_is_made_anew() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    // Under a manager that streams, before it is back.
    let name = &followed.slot;
    eventually("the slot is dropped", true, async || {
        let end = format!(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
        );
        followed.sql(&end);
        followed.server.execute(&followed.database, &format!("SELECT pg_drop_replication_slot('{name}')")).is_ok()
    })
    .await;
    followed.started_over(&manager, &["first", "slot_created"]).await;
    followed.sql("INSERT INTO orders VALUES (1, 'new slot')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;

    // And while nobody is there.
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
async fn a_slot_in_use_is_waited_for_and_nothing_starts_over() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    let occupied = occupy(&followed).await;
    followed.sql("INSERT INTO orders VALUES (2, 'meanwhile')");
    let manager = followed.start();
    let told = |words: &str| words.contains("the slot is in use by another connection; it is tried again");
    let tried =
        manager.wait_until(|status| status.retries >= 2 && status.trouble.as_deref().is_some_and(told));
    within("it is tried again", tried).await.unwrap();
    assert_eq!(followed.changes(), [insert("orders", 1, "before")]);
    drop(occupied);
    streams(&manager).await;
    let expected = [insert("orders", 1, "before"), insert("orders", 2, "meanwhile")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_slot_goes_with_its_connection_and_each_one_starts_over() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.start_with(followed.config().temporary_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("t"));
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'first slot')");
    followed.eventually_changes(1).await;
    followed.sql(&format!("SELECT pg_terminate_backend({})", manager.positions().backend_pid.unwrap()));
    followed.started_over(&manager, &["first", "slot_created"]).await;
    followed.sql("INSERT INTO orders VALUES (2, 'second slot')");
    let expected = [insert("orders", 1, "first slot"), insert("orders", 2, "second slot")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    manager.shutdown().await;
    assert_eq!(slot(&followed, "slot_name"), None);

    // A permanent one after it, and a temporary one in the place of that.
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
async fn a_store_that_is_behind_the_slot_starts_over() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    followed.sql("INSERT INTO orders VALUES (2, 'taken by somebody else')");
    let name = &followed.slot;
    followed.sql(&format!("SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())"));
    let confirmed = slot(&followed, "confirmed_flush_lsn - '0/0'").unwrap();
    let manager = followed.running().await;
    let begin = |line| match line {
        Line::Reset(reason, begin) => Some((reason, begin.durable.0.to_string())),
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

/// What the manager says of a set-up that takes long.
async fn says(manager: &Manager, words: &[&str]) {
    let told = manager.wait_until(|status| {
        let why = &status.condition(Condition::ReplicationClientReady).why;
        words.iter().all(|word| why.contains(word))
    });
    let status = within(&format!("the status says {words:?}"), told).await.unwrap();
    assert_eq!(status.step, Step::ConfiguringConnection);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_that_holds_up_a_new_slot_is_named_until_it_ends() {
    let followed = Followed::new(Postgres::shared());
    let session = session(&followed, &followed.database).await;
    session.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let pid = backend(&session).await.to_string();
    let manager = followed.start();
    says(&manager, &["backend", &pid, "\"stranger\"", "pg_terminate_backend", "open for"]).await;
    session.batch_execute("COMMIT").await.unwrap();
    streams(&manager).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_that_holds_up_a_new_slot_is_named_and_a_quiet_server_is_helped() {
    let server = Postgres::builder().version(18).config("max_prepared_transactions", "2").start().unwrap();
    let followed = Followed::new(&server);
    // It counts in whichever database it is.
    server
        .execute("postgres", "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        .unwrap();
    let manager = followed.start();
    says(&manager, &["\"forgotten\"", "database \"postgres\"", "ROLLBACK PREPARED"]).await;
    // From now on nothing is in its way, and it doesn't move all the same.
    let walsender = manager.positions().backend_pid.unwrap();
    signal("-STOP", walsender);
    server.execute("postgres", "ROLLBACK PREPARED 'forgotten'").unwrap();
    says(&manager, &["it waits for the server to log which transactions are open: asked it to"]).await;
    signal("-CONT", walsender);
    streams(&manager).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

fn signal(signal: &str, pid: i32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_slot_is_made_where_the_server_has_them_and_an_old_slot_becomes_one() {
    let followed = Followed::new(Postgres::shared_version(18));
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("t"));
    manager.shutdown_and_drop().await;

    let followed = Followed::new(Postgres::shared_version(18));
    let manager = followed.running().await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("f"));
    manager.shutdown().await;
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    assert_eq!(slot(&followed, "failover").as_deref(), Some("t"));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;

    let followed = Followed::new(Postgres::shared_version(15));
    let manager = followed.start_with(followed.config().failover_slot());
    streams(&manager).await;
    manager.shutdown().await;
    assert_eq!(slot(&followed, "temporary").as_deref(), Some("f"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_while_the_server_is_down_ends_in_time_and_drops_nothing_later() {
    let server = Postgres::start().unwrap();
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    server.kill();
    let noticed = manager.wait_until(|status| status.retries > 0);
    within("the manager knows", noticed).await.unwrap();
    let begun = Instant::now();
    within("the manager ends", manager.shutdown_and_drop()).await;
    // What its steps may take, all together.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert_eq!(manager.status().step, Step::Stopped);

    server.revive().unwrap();
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
