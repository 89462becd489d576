//! The lock: waiting, taking over, and terminating an abandoned holder.

use std::time::{Duration, Instant};

use forebay_replication::reservoir::{PostgresClient, PostgresConnect, ReservoirConnection as _};
use forebay_replication::{ConnectionStatus, LockTimeouts, Manager, ManagerStep, ReadyCondition};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};
use tokio::sync::oneshot;

use crate::followed_database::{FollowedDatabase, insert};
use crate::other_client::{backend, backend_exists, connect_client, occupy};
use crate::supervision::{ConsumerCall, ConsumerScript, ScriptedAction, ScriptedConsumer};

/// Lock timeouts in milliseconds.
fn timeouts(check_interval: u64, silence_timeout: u64) -> LockTimeouts {
    LockTimeouts {
        check_interval: Duration::from_millis(check_interval),
        silence_timeout: Duration::from_millis(silence_timeout),
    }
}

async fn is_at(manager: &Manager, step: ManagerStep) {
    within(&format!("the manager is at {step}"), manager.wait_until(|status| status.step == step))
        .await
        .unwrap();
}

async fn waits_for_lock(manager: &Manager) {
    let waits = manager.wait_until(|status| {
        let lock = status.condition(ReadyCondition::PgLockAcquired);
        status.connection == ConnectionStatus::WaitingOnLock
            && lock.why.contains("another instance holds the lock")
    });
    let status = within("the manager waits for the lock", waits).await.unwrap();
    assert!(!status.is_ready());
}

/// Returns the backend that streams from the slot.
fn active_pid(followed: &FollowedDatabase<'_>) -> Option<i32> {
    let query = format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{}'", followed.slot);
    followed.query_value(&query).map(|pid| pid.parse().unwrap())
}

/// Opens a connection that holds the lock. Returns it with its backend.
async fn lock_holder(followed: &FollowedDatabase<'_>, database: &str) -> (PostgresClient, i32) {
    let client = connect_client(followed, database).await;
    let pid = backend(&client).await;
    client.batch_execute(&format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot)).await.unwrap();
    (client, pid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_waits_takes_over_when_the_other_shuts_down() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let first = followed.running().await;
    followed.table(&first, "orders").await;
    let second = followed.start();
    waits_for_lock(&second).await;
    followed.sql("INSERT INTO orders VALUES (1, 'first')");
    followed.eventually_changes(1).await;
    assert_eq!(active_pid(&followed), first.positions().backend_pid);
    first.shutdown().await;
    is_at(&second, ManagerStep::Streaming).await;
    assert_eq!(active_pid(&followed), second.positions().backend_pid);
    followed.sql("INSERT INTO orders VALUES (2, 'second')");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("orders", 1, "first"), insert("orders", 2, "second")]
    );
    assert_eq!(followed.resets(), ["first"]);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_waits_takes_over_when_the_other_is_lost_and_that_one_waits_in_turn() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let first = followed.start_with(followed.config_through(&proxy));
    is_at(&first, ManagerStep::Streaming).await;
    followed.table(&first, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'first')");
    followed.eventually_changes(1).await;
    let second = followed.start();
    waits_for_lock(&second).await;
    // For the server, this is a killed process.
    proxy.refuse();
    proxy.cut();
    is_at(&second, ManagerStep::Streaming).await;
    followed.sql("INSERT INTO orders VALUES (2, 'second')");
    followed.eventually_changes(2).await;
    proxy.accept();
    waits_for_lock(&first).await;
    second.shutdown().await;
    is_at(&first, ManagerStep::Streaming).await;
    followed.sql("INSERT INTO orders VALUES (3, 'first')");
    let expected =
        [insert("orders", 1, "first"), insert("orders", 2, "second"), insert("orders", 3, "first")];
    assert_eq!(followed.eventually_changes(3).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    first.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_instances_one_streams_however_often_it_is_ended() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let managers = [followed.running().await, followed.start(), followed.start()];
    followed.table(&managers[0], "orders").await;
    for round in 1..=4 {
        eventually("one instance streams and the others wait", true, async || {
            let streaming = |manager: &&Manager| manager.status().step == ManagerStep::Streaming;
            let waiting = |manager: &&Manager| manager.status().connection == ConnectionStatus::WaitingOnLock;
            let pids: Vec<_> =
                managers.iter().filter(streaming).map(|manager| manager.positions().backend_pid).collect();
            pids.len() == 1
                && pids[0] == active_pid(&followed)
                && managers.iter().filter(waiting).count() == 2
        })
        .await;
        followed.sql(&format!("INSERT INTO orders VALUES ({round}, 'once')"));
        followed.eventually_changes(round).await;
        followed.sql(&format!("SELECT pg_terminate_backend({})", active_pid(&followed).unwrap()));
    }
    let expected: Vec<_> = (1..=4).map(|round| insert("orders", round, "once")).collect();
    assert_eq!((followed.changes(), followed.resets()), (expected, vec!["first".to_owned()]));
    for manager in &managers {
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_holder_without_an_active_slot_is_terminated() {
    // The lock's key is signed, and pg_locks shows it as two unsigned halves.
    for sign in ["<", ">"] {
        let mut followed = FollowedDatabase::new(Postgres::shared());
        let name = format!(
            "SELECT 'slot_' || n FROM generate_series(1, 100) n WHERE hashtext('slot_' || n) {sign} 0"
        );
        followed.slot = followed.query_value(&name).unwrap();
        let (held, pid) = lock_holder(&followed, &followed.database).await;
        let manager = followed.start_with(followed.config().lock_timeouts(timeouts(200, 500)));
        is_at(&manager, ManagerStep::Streaming).await;
        assert!(!backend_exists(&followed, pid));
        eventually("the holder's connection is closed", true, async || held.is_closed()).await;
        manager.shutdown_and_drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_runs_queries_or_is_in_another_database_is_never_terminated() {
    let followed = FollowedDatabase::new(Postgres::shared());
    // One opened before and one after: pg_locks has no defined order.
    let others = ["before", "after"].map(|name| followed.server.create_database(name).unwrap());
    let before = lock_holder(&followed, &others[0]).await;
    let (held, here) = lock_holder(&followed, &followed.database).await;
    let after = lock_holder(&followed, &others[1]).await;
    let manager = followed.start_with(followed.config().lock_timeouts(timeouts(100, 3_000)));
    waits_for_lock(&manager).await;
    let started_at = Instant::now();
    while started_at.elapsed() < Duration::from_secs(7) {
        held.batch_execute("SELECT 1").await.unwrap();
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Now it is silent and gets terminated, so the checks do run. The others were silent all the
    // time.
    is_at(&manager, ManagerStep::Streaming).await;
    assert!(!backend_exists(&followed, here));
    assert!(backend_exists(&followed, before.1) && backend_exists(&followed, after.1));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_holder_with_an_active_slot_is_not_terminated() {
    let followed = FollowedDatabase::new(Postgres::shared());
    followed.running().await.shutdown().await;
    let (_held, pid) = lock_holder(&followed, &followed.database).await;
    let occupied = occupy(&followed).await;
    let manager = followed.start_with(followed.config().lock_timeouts(timeouts(100, 300)));
    waits_for_lock(&manager).await;
    let started_at = Instant::now();
    while started_at.elapsed() < Duration::from_secs(3) {
        assert!(backend_exists(&followed, pid), "after {:?}", started_at.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(occupied);
    is_at(&manager, ManagerStep::Streaming).await;
    assert!(!backend_exists(&followed, pid));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_this_user_may_not_terminate_is_waited_for() {
    let followed = FollowedDatabase::new(Postgres::shared());
    followed.sql("CREATE ROLE waiter LOGIN REPLICATION; GRANT pg_read_all_stats TO waiter");
    followed.sql(&format!("GRANT CREATE ON DATABASE {} TO waiter", followed.database));
    let (held, pid) = lock_holder(&followed, &followed.database).await;
    let url = followed.server.url_as("waiter", "", &followed.database);
    let manager = followed.start_with(followed.config_at(&url).lock_timeouts(timeouts(100, 200)));
    waits_for_lock(&manager).await;
    eventually("termination is tried and refused", true, async || {
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        followed.server.log().contains("must be a superuser to terminate")
    })
    .await;
    let started_at = Instant::now();
    while started_at.elapsed() < Duration::from_secs(1) {
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(backend_exists(&followed, pid));
    held.close().await;
    is_at(&manager, ManagerStep::Streaming).await;
    manager.shutdown().await;
}

/// Returns a proxy that refuses connections, and the settings of a pooler at its address.
fn closed_pooler(followed: &FollowedDatabase<'_>) -> (Proxy, PostgresConnect) {
    let pooler = Proxy::start(followed.server.addr());
    pooler.refuse();
    let url = format!("postgres://postgres@{}/{}", pooler.addr(), followed.database);
    (pooler, PostgresConnect::new(&url).unwrap())
}

/// Checks that the first keeps the lock for longer than the second's silence timeout.
async fn keeps_lock(first: &Manager, second: &Manager, step: ManagerStep) {
    let (started_at, backend) = (Instant::now(), first.positions().backend_pid);
    while started_at.elapsed() < Duration::from_secs(5) {
        assert_eq!((first.status().step, first.positions().backend_pid), (step, backend));
        assert_eq!(second.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_with_a_slow_setup_keeps_the_lock() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let (pooler, pooled) = closed_pooler(&followed);
    let (script, (closed, opened)) = (ConsumerScript::default(), oneshot::channel());
    script.then(ConsumerCall::Bookmark, ScriptedAction::WaitUntilDropped(opened));
    let slow = ScriptedConsumer::new(&followed, &script);
    let timeouts = timeouts(100, 2_000);
    let first = Manager::start(followed.config().lock_timeouts(timeouts).pooled(pooled), slow).unwrap();
    is_at(&first, ManagerStep::ConnectionPoolConnecting).await;
    let second = followed.start_with(followed.config().lock_timeouts(timeouts));
    waits_for_lock(&second).await;
    keeps_lock(&first, &second, ManagerStep::ConnectionPoolConnecting).await;
    pooler.accept();
    is_at(&first, ManagerStep::StartShapes).await;
    keeps_lock(&first, &second, ManagerStep::StartShapes).await;
    drop(closed);
    is_at(&first, ManagerStep::Streaming).await;
    first.shutdown().await;
    is_at(&second, ManagerStep::Streaming).await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_cut_off_during_setup_loses_the_lock() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let (_pooler, pooled) = closed_pooler(&followed);
    let timeouts = timeouts(100, 2_000);
    let first = followed.start_with(followed.config_through(&proxy).lock_timeouts(timeouts).pooled(pooled));
    is_at(&first, ManagerStep::ConnectionPoolConnecting).await;
    let second = followed.start_with(followed.config().lock_timeouts(timeouts));
    waits_for_lock(&second).await;
    proxy.stall(Direction::Both);
    is_at(&second, ManagerStep::Streaming).await;
    proxy.resume();
    waits_for_lock(&first).await;
    second.shutdown().await;
    first.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_during_a_heartbeat_query_is_not_lost() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let (pooler, pooled) = closed_pooler(&followed);
    let manager =
        followed.start_with(followed.config_through(&proxy).lock_timeouts(timeouts(100, 600)).pooled(pooled));
    is_at(&manager, ManagerStep::ConnectionPoolConnecting).await;
    proxy.stall(Direction::ToClient);
    // A heartbeat query runs every 100 ms. Its reply is still pending when the pools are ready and
    // the command is sent.
    tokio::time::sleep(Duration::from_millis(500)).await;
    pooler.accept();
    is_at(&manager, ManagerStep::StartShapes).await;
    // The command follows the status.
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.resume();
    is_at(&manager, ManagerStep::Streaming).await;
    manager.shutdown().await;
}
