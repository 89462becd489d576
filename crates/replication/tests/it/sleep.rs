//! Scale to zero: when nobody needs the database there is no connection, and whoever needs it has one.

use std::time::{Duration, Instant};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Condition, ConnectionStatus, Manager, Phase, PoolError, ResetReason, StackEvent, Step,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Proxy, eventually, within};
use tokio::sync::broadcast::error::TryRecvError;

use crate::support::{Followed, insert};

const IDLE: Duration = Duration::from_millis(100);

fn start(followed: &Followed<'_>) -> Manager {
    followed.start_with(followed.config().idle_after(IDLE))
}

async fn asleep(manager: &Manager) {
    within("it sleeps", manager.wait_until(|status| status.step == Step::Sleeping)).await.unwrap();
}

/// The server has no connection of ours, whatever its kind.
async fn nobody_is_left(followed: &Followed<'_>) {
    let backends = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        followed.database
    );
    // Those of the questions before this one take a moment to end.
    eventually("nobody is left", Some("0".to_owned()), async || followed.ask(&backends)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_nobody_needs_the_database_every_connection_is_closed_and_the_slot_stays() {
    let followed = Followed::new(Postgres::shared());
    let manager = start(&followed);
    let mut events = manager.events();
    asleep(&manager).await;
    nobody_is_left(&followed).await;
    let status = manager.status();
    assert_eq!((status.phase, status.connection), (Phase::Sleeping, ConnectionStatus::Sleeping));
    assert_eq!((status.trouble.as_deref(), status.retries, manager.positions().backend_pid), (None, 0, None));
    let held: Vec<_> =
        Condition::ALL.into_iter().filter(|condition| status.condition(*condition).holds).collect();
    assert_eq!(held, [Condition::SupervisorProcessesReady, Condition::IntegrityChecksPassed]);
    for expected in [StackEvent::Reset(ResetReason::First), StackEvent::Ready, StackEvent::ScaledDown] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    assert!(manager.keep_awake().is_none());
    assert!(matches!(manager.snapshot().await, Err(PoolError::Closed)));
    assert!(matches!(manager.admin().await, Err(PoolError::Closed)));
    let slot = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{}'", followed.slot);
    assert_eq!(followed.ask(&slot).as_deref(), Some("f"));
    // Nothing wakes it by itself.
    let woke = manager.wait_until(|status| status.step != Step::Sleeping);
    assert!(tokio::time::timeout(5 * IDLE, woke).await.is_err());
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_that_need_it_at_once_wake_it_once_and_all_find_it_ready() {
    let followed = Followed::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    // Only replication goes through the proxy.
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let config = followed.config_at(&url).pooled(PostgresConnect::new(&followed.url()).unwrap());
    let manager = followed.start_with(config.idle_after(IDLE));
    let mut events = manager.events();
    asleep(&manager).await;
    while events.recv().await.unwrap() != StackEvent::ScaledDown {}
    assert_eq!(proxy.connections(), 1);
    let wakers: Vec<_> = (0..50)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let awake = within("it is awake", manager.awake()).await.unwrap();
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
    assert_eq!(events.recv().await.unwrap(), StackEvent::WakingUp);
    assert_eq!(events.recv().await.unwrap(), StackEvent::Ready);
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(proxy.connections(), 2);
    drop(awake);
    asleep(&manager).await;
    nobody_is_left(&followed).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stays_awake_for_as_long_as_one_needs_it_and_sleeps_soon_after() {
    let followed = Followed::new(Postgres::shared());
    let manager = start(&followed);
    let first = within("it is awake", manager.awake()).await.unwrap();
    let second = manager.keep_awake().unwrap();
    let falls_asleep = async || manager.wait_until(|status| status.phase != Phase::Running).await;
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
async fn changes_made_while_it_slept_arrive_when_it_wakes() {
    let followed = Followed::new(Postgres::shared());
    let manager = start(&followed);
    let awake = within("it is awake", manager.awake()).await.unwrap();
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'awake')");
    followed.eventually_changes(1).await;
    drop(awake);
    for id in 2..=4 {
        asleep(&manager).await;
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'asleep')"));
        let awake = within("it is awake", manager.awake()).await.unwrap();
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
async fn whoever_comes_while_it_falls_asleep_gets_a_connection_all_the_same() {
    const TIMES: u32 = 50;
    let seed = forebay_testkit::seed();
    println!("FOREBAY_SEED={seed}");
    let mut dice = seed;
    let followed = Followed::new(Postgres::shared());
    let manager = start(&followed);
    let mut events = manager.events();
    let counting = tokio::spawn(async move {
        let mut slept = 0;
        loop {
            match events.recv().await.unwrap() {
                StackEvent::ScaledDown => slept += 1,
                StackEvent::Ready | StackEvent::WakingUp | StackEvent::Reset(ResetReason::First) => {}
                StackEvent::Stopped => return slept,
                event => panic!("{event:?}"),
            }
        }
    });
    let mut falling = 0;
    for time in 0..TIMES {
        let awake = within("it is awake", manager.awake()).await;
        let awake = awake.unwrap_or_else(|error| panic!("seed {seed}, time {time}: {error}"));
        assert!(manager.status().is_ready(), "seed {seed}, time {time}");
        let guard = manager.admin().await.unwrap_or_else(|error| panic!("seed {seed}, time {time}: {error}"));
        guard.batch_execute("SELECT 1").await.unwrap();
        drop((guard, awake));
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // From before it is idle for long enough to after it has closed everything.
        tokio::time::sleep(IDLE + Duration::from_micros((dice >> 33) % 30_000) - IDLE / 20).await;
        falling += u32::from(manager.status().step == Step::FallingAsleep);
    }
    manager.shutdown().await;
    let slept = within("it says that it has ended", counting).await.unwrap();
    println!("of {TIMES} times it slept {slept} times, and was met while it fell asleep {falling} times");
    assert!(slept > 0, "seed {seed}");
    assert_eq!(followed.resets(), ["first"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_wakes_while_the_server_is_away_waits_for_it() {
    let server = Postgres::start().unwrap();
    let followed = Followed::new(&server);
    let manager = start(&followed);
    asleep(&manager).await;
    server.stop().unwrap();
    let waking = tokio::spawn({
        let manager = manager.clone();
        async move { manager.awake().await }
    });
    within("it tries", manager.wait_until(|status| status.step == Step::BackingOff)).await.unwrap();
    assert!(!waking.is_finished());
    server.revive().unwrap();
    let _awake = within("it is awake", waking).await.unwrap().unwrap();
    assert!(manager.status().is_ready());
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
