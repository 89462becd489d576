//! Shutdown at every step: it ends in time, and leaves only the slot and the publication, or
//! nothing.
//!
//! `start_connection_pool` and `start_streaming` are left within one call of the machine: no status
//! shows them, and no shutdown can start there.

mod process;

use std::time::{Duration, Instant};

use forebay_replication::reservoir::{PostgresConnect, tokio_postgres};
use forebay_replication::{
    ConsumerError, Manager, ManagerConfig, ManagerPhase, ManagerStep, NotReady, PoolError, TableName,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, TEST_TIMEOUT, within};

use crate::followed_database::{FollowedDatabase, insert};
use crate::journal::JournalConsumer;
use crate::supervision::{ConsumerCall, ConsumerScript, ScriptedAction, ScriptedConsumer};

/// Sum of the deadlines, and 10 s more for a busy machine. Snapshot pool 1 s, checkpoint 10 s,
/// stream 1 s, backend 1 s, admin pool 2 s.
const DEADLINES: Duration = Duration::from_secs(25);
/// Sum of the deadlines with 5 s each for the publication and the slot, without a margin.
const DROP_DEADLINES: Duration = Duration::from_secs(25);
/// Time limit if nothing delays the shutdown: shorter than the checkpoint's deadline.
const UNOBSTRUCTED: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownKind {
    Keep,
    Drop,
}

impl ShutdownKind {
    const BOTH: [ShutdownKind; 2] = [ShutdownKind::Keep, ShutdownKind::Drop];

    /// Shuts down a manager at a step, and checks its status and the server.
    async fn check(
        self,
        manager: &Manager,
        followed: &FollowedDatabase<'_>,
        at: ManagerStep,
        most: Duration,
    ) {
        assert_eq!(manager.status().step, at);
        let started_at = Instant::now();
        match self {
            ShutdownKind::Keep => within("it ends", manager.shutdown()).await,
            ShutdownKind::Drop => within("it ends", manager.shutdown_and_drop()).await,
        }
        let took = started_at.elapsed();
        println!("{self:?} at {at}: {took:?}");
        assert_eq!(manager.status().step, ManagerStep::Stopped);
        assert!(took < most, "{self:?} at {at} took {took:?}");
        self.check_server(followed).await;
    }

    /// Checks which slot, publication and backends remain on the server.
    async fn check_server(self, followed: &FollowedDatabase<'_>) {
        let (database, slot) = (&followed.database, &followed.slot);
        let ours = format!(
            "datname = '{database}' AND application_name <> 'other_client' AND pid <> pg_backend_pid()"
        );
        wait_until_true(
            "no backend",
            followed,
            &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE {ours}"),
        )
        .await;
        let locks = "FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory'";
        wait_until_true("no lock", followed, &format!("SELECT count(*) = 0 {locks} AND {ours}")).await;
        let slots = format!("FROM pg_replication_slots WHERE slot_name = '{slot}'");
        match self {
            ShutdownKind::Keep => {
                wait_until_true(
                    "no active slot",
                    followed,
                    &format!("SELECT count(*) = 0 {slots} AND active"),
                )
                .await
            }
            ShutdownKind::Drop => {
                assert_eq!(followed.query_value(&format!("SELECT count(*) {slots}")).as_deref(), Some("0"));
                assert_eq!(followed.query_value("SELECT count(*) FROM pg_publication").as_deref(), Some("0"));
            }
        }
    }
}

/// Waits until a query returns true: a backend ends with a delay.
async fn wait_until_true(what: &str, followed: &FollowedDatabase<'_>, query: &str) {
    let started_at = Instant::now();
    while followed.query_value(query).as_deref() != Some("t") {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{what}: not {TEST_TIMEOUT:?} after the end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates slot and publication with an earlier manager.
async fn run_once_before(followed: &FollowedDatabase<'_>) {
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
}

async fn reaches(manager: &Manager, step: ManagerStep) {
    within(step.as_str(), manager.wait_until(|status| status.step == step)).await.unwrap();
}

/// Opens a connection of another client and runs SQL on it.
async fn other_client(followed: &FollowedDatabase<'_>, sql: &str) -> tokio_postgres::Client {
    let url = format!("{}?application_name=other_client", followed.url());
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
    client
}

fn url_through(proxy: &Proxy, followed: &FollowedDatabase<'_>) -> String {
    format!("postgres://postgres@{}/{}", proxy.addr(), followed.database)
}

/// Returns a configuration with only replication through the proxy.
fn replication_through(proxy: &Proxy, followed: &FollowedDatabase<'_>) -> ManagerConfig {
    let direct = PostgresConnect::new(&followed.url()).unwrap();
    followed.config_at(&url_through(proxy, followed)).pooled(direct)
}

#[tokio::test]
async fn it_ends_in_time_before_it_connects() {
    for end in ShutdownKind::BOTH {
        let followed = FollowedDatabase::new(Postgres::shared());
        run_once_before(&followed).await;
        let manager = followed.start();
        end.check(&manager, &followed, ManagerStep::StartReplicationClient, UNOBSTRUCTED).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_delays_the_login() {
    let followed = FollowedDatabase::new(Postgres::shared());
    run_once_before(&followed).await;
    let proxy = Proxy::start(followed.server.addr());
    proxy.stall(Direction::ToClient);
    // The login succeeds, but the reply doesn't arrive.
    let manager = followed
        .start_with(followed.config_at(&format!("{}?sslmode=disable", url_through(&proxy, &followed))));
    within("it connects", proxy.wait_for_connections(1)).await;
    wait_until_true(
        "a backend",
        &followed,
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'walsender'",
    )
    .await;
    ShutdownKind::Keep
        .check(&manager, &followed, ManagerStep::ReplicationClientConnecting, UNOBSTRUCTED)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_without_a_network_and_drops_everything_if_it_comes_back() {
    let comes_back = async {
        let followed = FollowedDatabase::new(Postgres::shared());
        run_once_before(&followed).await;
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::Both);
        let manager = followed.start_with(followed.config_at(&url_through(&proxy, &followed)));
        within("it connects", proxy.wait_for_connections(1)).await;
        let mut status = manager.watch();
        let recovery = async {
            status.wait_for(|status| status.phase == ManagerPhase::Stopped).await.unwrap();
            proxy.resume();
        };
        let ending = ShutdownKind::Drop.check(
            &manager,
            &followed,
            ManagerStep::ReplicationClientConnecting,
            DROP_DEADLINES,
        );
        tokio::join!(ending, recovery);
    };
    let stays_away = async {
        let followed = FollowedDatabase::new(Postgres::shared());
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::Both);
        let manager = followed.start_with(followed.config_at(&url_through(&proxy, &followed)));
        within("it connects", proxy.wait_for_connections(1)).await;
        // There is nothing to drop, and no connection to check that.
        ShutdownKind::Drop
            .check(&manager, &followed, ManagerStep::ReplicationClientConnecting, DROP_DEADLINES)
            .await;
    };
    tokio::join!(comes_back, stays_away);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_another_instance_holds_the_lock() {
    for end in ShutdownKind::BOTH {
        let followed = FollowedDatabase::new(Postgres::shared());
        run_once_before(&followed).await;
        let lock = format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot);
        let other = other_client(&followed, &lock).await;
        let manager = followed.start();
        reaches(&manager, ManagerStep::AcquiringLock).await;
        let mut status = manager.watch();
        let leaving = async {
            status.wait_for(|status| status.phase == ManagerPhase::Stopped).await.unwrap();
            // Without the lock, nothing is dropped.
            if end == ShutdownKind::Drop {
                drop(other);
            }
        };
        let ending = end.check(&manager, &followed, ManagerStep::AcquiringLock, UNOBSTRUCTED);
        tokio::join!(ending, leaving);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_waits_for_the_lock_drops_nothing() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let first = followed.running().await;
    followed.table(&first, "orders").await;
    reaches(&first, ManagerStep::Streaming).await;
    let second =
        Manager::start(followed.config(), JournalConsumer::open(&followed.journal().with_extension("other")))
            .unwrap();
    reaches(&second, ManagerStep::AcquiringLock).await;
    let started_at = Instant::now();
    within("it ends", second.shutdown_and_drop()).await;
    assert!(started_at.elapsed() < DROP_DEADLINES, "{:?}", started_at.elapsed());
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert_eq!((first.status().step, followed.resets()), (ManagerStep::Streaming, vec!["first".to_owned()]));
    ShutdownKind::Drop.check(&first, &followed, ManagerStep::Streaming, UNOBSTRUCTED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_slot_and_a_manual_publication_are_not_dropped() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let slot = &followed.slot;
    followed.sql("CREATE PUBLICATION forebay");
    followed.sql(&format!("SELECT pg_create_physical_replication_slot('{slot}')"));
    let manager = followed.start_with(followed.config().manual_publication());
    reaches(&manager, ManagerStep::Halted).await;
    let started_at = Instant::now();
    within("it ends", manager.shutdown_and_drop()).await;
    assert!(started_at.elapsed() < UNOBSTRUCTED, "{:?}", started_at.elapsed());
    assert_eq!(
        followed
            .query_value(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'"))
            .as_deref(),
        Some("1")
    );
    assert_eq!(followed.query_value("SELECT count(*) FROM pg_publication").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_slot_creation_waits_for_an_open_transaction() {
    for end in ShutdownKind::BOTH {
        let followed = FollowedDatabase::new(Postgres::shared());
        let other = other_client(&followed, "BEGIN; SELECT pg_current_xact_id()").await;
        let manager = followed.start();
        reaches(&manager, ManagerStep::ConfiguringConnection).await;
        // There, the backend doesn't notice a closed connection.
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock' \
             AND datname = current_database()";
        wait_until_true("the server waits", &followed, waits).await;
        end.check(&manager, &followed, ManagerStep::ConfiguringConnection, DEADLINES).await;
        drop(other);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_pools_get_no_connection() {
    let ending = async |end: ShutdownKind| {
        let followed = FollowedDatabase::new(Postgres::shared());
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::ToClient);
        let pooled = PostgresConnect::new(&url_through(&proxy, &followed)).unwrap();
        let manager = followed.start_with(followed.config().pooled(pooled));
        reaches(&manager, ManagerStep::ConnectionPoolConnecting).await;
        within("the pools connect", proxy.wait_for_connections(1)).await;
        end.check(&manager, &followed, ManagerStep::ConnectionPoolConnecting, DEADLINES).await;
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_consumer_loads_its_bookmark() {
    let ending = async |end: ShutdownKind| {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        script.then(ConsumerCall::Bookmark, ScriptedAction::WaitForever);
        let manager = Manager::start(followed.config(), ScriptedConsumer::new(&followed, &script)).unwrap();
        reaches(&manager, ManagerStep::StartShapes).await;
        end.check(&manager, &followed, ManagerStep::StartShapes, DEADLINES).await;
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_does_not_confirm_the_stream() {
    let ending = async |end: ShutdownKind| {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        let proxy = std::sync::Arc::new(Proxy::start(followed.server.addr()));
        let stalled = proxy.clone();
        script.then(
            ConsumerCall::Bookmark,
            ScriptedAction::Run(Box::new(move || stalled.stall(Direction::ToClient))),
        );
        let config = replication_through(&proxy, &followed);
        let manager = Manager::start(config, ScriptedConsumer::new(&followed, &script)).unwrap();
        let step = ManagerStep::WaitingForStreamingConfirmation;
        reaches(&manager, step).await;
        let mut status = manager.watch();
        let recovery = async {
            status.wait_for(|status| status.phase == ManagerPhase::Stopped).await.unwrap();
            // A server that doesn't reply drops nothing.
            if end == ShutdownKind::Drop {
                proxy.resume();
            }
        };
        tokio::join!(end.check(&manager, &followed, step, DEADLINES), recovery);
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_it_streams() {
    for end in ShutdownKind::BOTH {
        let followed = FollowedDatabase::new(Postgres::shared());
        let manager = followed.running().await;
        followed.table(&manager, "orders").await;
        followed.sql("INSERT INTO orders VALUES (1, 'new')");
        followed.eventually_changes(1).await;
        reaches(&manager, ManagerStep::Streaming).await;
        end.check(&manager, &followed, ManagerStep::Streaming, UNOBSTRUCTED).await;
        // Durable changes were acknowledged and aren't sent again.
        if end == ShutdownKind::Keep {
            let manager = followed.running().await;
            followed.sql("INSERT INTO orders VALUES (2, 'new')");
            assert_eq!(
                followed.eventually_changes(2).await,
                [insert("orders", 1, "new"), insert("orders", 2, "new")]
            );
            manager.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_consumer_is_stuck() {
    let ending = async |end: ShutdownKind| {
        let followed = FollowedDatabase::new(Postgres::shared());
        let (manager, gate) = followed.streaming_orders_with_gate().await;
        let held = gate.lock().await;
        // More than the socket buffers hold, so that the server blocks, too.
        followed.sql("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n");
        let stuck = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event = 'WalSenderWriteData' \
             AND datname = current_database()";
        wait_until_true("the server blocks", &followed, stuck).await;
        end.check(&manager, &followed, ManagerStep::Streaming, DEADLINES).await;
        drop(held);
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_it_backs_off_is_halted_or_sleeps() {
    let ending = async |end: ShutdownKind, error: ConsumerError, step: ManagerStep| {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        script.then(ConsumerCall::Bookmark, ScriptedAction::Fail(error));
        let manager = Manager::start(followed.config(), ScriptedConsumer::new(&followed, &script)).unwrap();
        within("it fails", manager.wait_until(|status| status.step == step)).await.unwrap();
        end.check(&manager, &followed, step, UNOBSTRUCTED).await;
    };
    for end in ShutdownKind::BOTH {
        ending(end, ConsumerError::retry("not now"), ManagerStep::BackingOff).await;
        ending(end, ConsumerError::fatal("never"), ManagerStep::Halted).await;
        let followed = FollowedDatabase::new(Postgres::shared());
        let manager = followed.start_with(followed.config().idle_after(Duration::from_millis(10)));
        reaches(&manager, ManagerStep::Sleeping).await;
        end.check(&manager, &followed, ManagerStep::Sleeping, UNOBSTRUCTED).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_a_held_connection_delays_falling_asleep() {
    let ending = async |end: ShutdownKind| {
        let followed = FollowedDatabase::new(Postgres::shared());
        let manager = followed.start_with(followed.config().idle_after(Duration::from_millis(100)));
        // Awake until the connection is checked out: on a busy machine it would fall asleep before.
        let awake = within("the manager is ready", manager.wake()).await.unwrap();
        let guard = manager.snapshot().await.unwrap();
        drop(awake);
        reaches(&manager, ManagerStep::FallingAsleep).await;
        let ending = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(guard);
        });
        end.check(&manager, &followed, ManagerStep::FallingAsleep, UNOBSTRUCTED).await;
        ending.await.unwrap();
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_and_repeated_shutdowns_end_once_and_later_calls_fail() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                manager.shutdown().await;
                manager.status().step
            })
        })
        .collect();
    for other in others {
        assert_eq!(within("it ends", other).await.unwrap(), ManagerStep::Stopped);
    }
    within("it has ended", manager.shutdown()).await;
    within("it has ended", manager.shutdown_and_drop()).await;
    while within("the event Stopped", events.recv()).await.unwrap()
        != forebay_replication::ManagerEvent::Stopped
    {}
    assert!(events.try_recv().is_err(), "once");
    ShutdownKind::Keep.check_server(&followed).await;
    assert_eq!(manager.ready().await, Err(NotReady::Stopped));
    assert!(matches!(manager.wake().await, Err(NotReady::Stopped)));
    assert_eq!(manager.retry().await, Err(NotReady::Stopped));
    assert!(matches!(manager.snapshot().await, Err(PoolError::Closed)));
    assert!(manager.add_table(&TableName::new("public", "orders")).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_is_down_or_frozen() {
    let server = Postgres::start().unwrap();
    for (end, most) in [(ShutdownKind::Keep, DEADLINES), (ShutdownKind::Drop, DROP_DEADLINES)] {
        let followed = FollowedDatabase::new(&server);
        let manager = followed.running().await;
        server.stop().unwrap();
        reaches(&manager, ManagerStep::BackingOff).await;
        let started_at = Instant::now();
        match end {
            ShutdownKind::Keep => within("it ends", manager.shutdown()).await,
            ShutdownKind::Drop => within("it ends", manager.shutdown_and_drop()).await,
        }
        println!("{end:?} while the server is down: {:?}", started_at.elapsed());
        assert!(manager.status().step == ManagerStep::Stopped && started_at.elapsed() < most);
        server.revive().unwrap();
        ShutdownKind::Keep.check_server(&followed).await;
    }
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    reaches(&manager, ManagerStep::Streaming).await;
    server.freeze();
    let started_at = Instant::now();
    within("it ends", manager.shutdown()).await;
    println!("while the server is frozen: {:?}", started_at.elapsed());
    assert!(manager.status().step == ManagerStep::Stopped && started_at.elapsed() < DEADLINES);
    server.thaw();
    ShutdownKind::Keep.check_server(&followed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_connection_delays_shutdown_by_two_seconds_at_most_and_stays_usable() {
    let ending = async |end: ShutdownKind| {
        let followed = FollowedDatabase::new(Postgres::shared());
        let manager = followed.running().await;
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(manager.snapshot().await.unwrap());
        }
        guards.push(manager.admin().await.unwrap());
        let started_at = Instant::now();
        match end {
            ShutdownKind::Keep => within("it ends", manager.shutdown()).await,
            ShutdownKind::Drop => within("it ends", manager.shutdown_and_drop()).await,
        }
        let took = started_at.elapsed();
        println!("{end:?} while all connections are checked out: {took:?}");
        assert!(manager.status().step == ManagerStep::Stopped && took < UNOBSTRUCTED, "{took:?}");
        for guard in &guards {
            guard.batch_execute("SELECT 1").await.unwrap();
        }
        drop(guards);
        end.check_server(&followed).await;
    };
    tokio::join!(ending(ShutdownKind::Keep), ending(ShutdownKind::Drop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_checkpoint_does_not_delay_shutdown() {
    for action in [ScriptedAction::Fail(ConsumerError::retry("the disk is full")), ScriptedAction::Panic] {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        let manager = Manager::start(followed.config(), ScriptedConsumer::new(&followed, &script)).unwrap();
        reaches(&manager, ManagerStep::Streaming).await;
        script.then(ConsumerCall::Checkpoint, action);
        ShutdownKind::Keep.check(&manager, &followed, ManagerStep::Streaming, UNOBSTRUCTED).await;
        assert!(script.is_done());
    }
}
