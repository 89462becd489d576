//! Scale to zero: an unused database has no connections, and a use opens them.

use std::time::{Duration, Instant};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    ConnectionStatus, Manager, ManagerEvent, ManagerPhase, ManagerStep, PoolError, ReadyCondition,
    ResetReason,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Proxy, TestRng, eventually, within};
use tokio::sync::broadcast::error::TryRecvError;

use crate::followed_database::{FollowedDatabase, insert};

const IDLE: Duration = Duration::from_millis(100);

fn start(followed: &FollowedDatabase<'_>) -> Manager {
    followed.start_with(followed.config().idle_after(IDLE))
}

async fn asleep(manager: &Manager) {
    within("it sleeps", manager.wait_until(|status| status.step == ManagerStep::Sleeping)).await.unwrap();
}

/// Waits until the database has no backends.
async fn no_backend_is_left(followed: &FollowedDatabase<'_>) {
    let backends = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        followed.database
    );
    // Backends of earlier test queries end with a delay.
    eventually("no backend is left", Some("0".to_owned()), async || followed.query_value(&backends)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unused_database_has_no_connections_and_keeps_its_slot() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = start(&followed);
    let mut events = manager.events();
    asleep(&manager).await;
    no_backend_is_left(&followed).await;
    let status = manager.status();
    assert_eq!((status.phase, status.connection), (ManagerPhase::Sleeping, ConnectionStatus::Sleeping));
    assert_eq!((status.trouble.as_deref(), status.retries, manager.positions().backend_pid), (None, 0, None));
    let held: Vec<_> =
        ReadyCondition::ALL.into_iter().filter(|condition| status.condition(*condition).holds).collect();
    assert_eq!(held, [ReadyCondition::SupervisorProcessesReady]);
    for expected in [ManagerEvent::Reset(ResetReason::First), ManagerEvent::Ready, ManagerEvent::ScaledDown] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    assert!(manager.keep_awake().is_none());
    assert!(matches!(manager.snapshot().await, Err(PoolError::Closed)));
    assert!(matches!(manager.admin().await, Err(PoolError::Closed)));
    let slot = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{}'", followed.slot);
    assert_eq!(followed.query_value(&slot).as_deref(), Some("f"));
    // It doesn't wake without a use.
    let woke = manager.wait_until(|status| status.step != ManagerStep::Sleeping);
    assert!(tokio::time::timeout(5 * IDLE, woke).await.is_err());
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_concurrent_uses_wake_it_once_and_all_find_it_ready() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    // Only replication goes through the proxy.
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let config = followed.config_at(&url).pooled(PostgresConnect::new(&followed.url()).unwrap());
    let manager = followed.start_with(config.idle_after(IDLE));
    let mut events = manager.events();
    asleep(&manager).await;
    while events.recv().await.unwrap() != ManagerEvent::ScaledDown {}
    assert_eq!(proxy.connections(), 1);
    let wakers: Vec<_> = (0..50)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let awake = within("it is awake", manager.wake()).await.unwrap();
                assert!(manager.status().is_ready());
                let guard = manager.snapshot().await.unwrap();
                guard.batch_execute("SELECT 1").await.unwrap();
                drop(guard);
                awake
            })
        })
        .collect();
    let mut awake = Vec::new();
    for waker in wakers {
        awake.push(waker.await.unwrap());
    }
    assert_eq!(events.recv().await.unwrap(), ManagerEvent::WakingUp);
    assert_eq!(events.recv().await.unwrap(), ManagerEvent::Ready);
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(proxy.connections(), 2);
    drop(awake);
    asleep(&manager).await;
    no_backend_is_left(&followed).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stays_awake_while_a_guard_exists_and_sleeps_after_the_last() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = start(&followed);
    let first = within("it is awake", manager.wake()).await.unwrap();
    let second = manager.keep_awake().unwrap();
    let falls_asleep = async || manager.wait_until(|status| status.phase != ManagerPhase::Running).await;
    assert!(tokio::time::timeout(5 * IDLE, falls_asleep()).await.is_err());
    drop(first);
    assert!(tokio::time::timeout(5 * IDLE, falls_asleep()).await.is_err());
    let dropped = Instant::now();
    drop(second);
    asleep(&manager).await;
    let took = dropped.elapsed();
    println!("asleep {took:?} after the last use, with idle_after({IDLE:?})");
    assert!(took >= IDLE, "{took:?}");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_made_during_sleep_arrive_after_waking() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = start(&followed);
    let awake = within("it is awake", manager.wake()).await.unwrap();
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'awake')");
    followed.eventually_changes(1).await;
    drop(awake);
    for id in 2..=4 {
        asleep(&manager).await;
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'asleep')"));
        let awake = within("it is awake", manager.wake()).await.unwrap();
        followed.eventually_changes(id).await;
        drop(awake);
    }
    let expected = [(1, "awake"), (2, "asleep"), (3, "asleep"), (4, "asleep")]
        .map(|(id, note)| insert("orders", id, note));
    assert_eq!(followed.changes(), expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_use_while_it_falls_asleep_gets_a_connection() {
    const TIMES: u32 = 50;
    let seed = forebay_testkit::seed();
    println!("FOREBAY_SEED={seed}");
    let mut random = TestRng::new(seed);
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = start(&followed);
    let mut events = manager.events();
    let counting = tokio::spawn(async move {
        let mut slept = 0;
        loop {
            match events.recv().await.unwrap() {
                ManagerEvent::ScaledDown => slept += 1,
                ManagerEvent::Ready | ManagerEvent::WakingUp | ManagerEvent::Reset(ResetReason::First) => {}
                ManagerEvent::Stopped => return slept,
                event => panic!("{event:?}"),
            }
        }
    });
    let mut falling = 0;
    for time in 0..TIMES {
        let awake = within("it is awake", manager.wake()).await;
        let awake = awake.unwrap_or_else(|error| panic!("seed {seed}, time {time}: {error}"));
        assert!(manager.status().is_ready(), "seed {seed}, time {time}");
        let guard = manager.admin().await.unwrap_or_else(|error| panic!("seed {seed}, time {time}: {error}"));
        guard.batch_execute("SELECT 1").await.unwrap();
        drop((guard, awake));
        // From before the idle timeout to after all connections are closed.
        tokio::time::sleep(IDLE + Duration::from_micros(random.roll() % 30_000) - IDLE / 20).await;
        falling += u32::from(manager.status().step == ManagerStep::FallingAsleep);
    }
    manager.shutdown().await;
    let slept = within("the event Stopped", counting).await.unwrap();
    println!("of {TIMES} times it slept {slept} times, and was met while it fell asleep {falling} times");
    assert!(slept > 0, "seed {seed}");
    assert_eq!(followed.resets(), ["first"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_use_while_the_server_is_down_waits_for_it() {
    let server = Postgres::start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = start(&followed);
    asleep(&manager).await;
    server.stop().unwrap();
    let waking = tokio::spawn({
        let manager = manager.clone();
        async move { manager.wake().await }
    });
    within("it tries", manager.wait_until(|status| status.step == ManagerStep::BackingOff)).await.unwrap();
    assert!(!waking.is_finished());
    server.revive().unwrap();
    let _awake = within("it is awake", waking).await.unwrap().unwrap();
    assert!(manager.status().is_ready());
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
