//! Other pools on top of a reservoir.

use std::time::Duration;

use forebay_quota::RateConfig;
use forebay_reservoir::{ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually};

fn reservoir(config: ReservoirConfig) -> Reservoir<PostgresClient> {
    let connect = PostgresConnect::new(&Postgres::shared().url("postgres")).unwrap();
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6));
    Reservoir::start(connect, config.checkout_timeout(TEST_TIMEOUT), limits).unwrap()
}

/// Connections live for three seconds, which is long enough to be reused.
fn short_lived() -> ReservoirConfig {
    ReservoirConfig::new(4)
        .base_lifetime(Duration::from_secs(3))
        .lifetime_jitter(Duration::ZERO)
        .guard_window(Duration::from_millis(100))
}

const PID: &str = "SELECT pg_backend_pid()";

/// Ends the backend of a pool's connection, and waits until the pool lends another one. `pid`
/// returns the backend of a lent connection; `None` if its query failed.
async fn replaces_ended(pid: impl AsyncFn() -> Option<i32>) {
    let first = pid().await.unwrap();
    Postgres::shared().execute("postgres", &format!("SELECT pg_terminate_backend({first})")).unwrap();
    eventually("the pool gets another connection", true, async || {
        pid().await.is_some_and(|pid| pid != first)
    })
    .await;
}

#[tokio::test]
async fn deadpool_reuses_connections_and_drops_expired_ones() {
    use deadpool::managed::Pool;
    let reservoir = reservoir(short_lived());
    let pool: Pool<_> = Pool::builder(reservoir.view("pool", 2)).max_size(2).build().unwrap();
    let first: i32 = pool.get().await.unwrap().query_one(PID, &[]).await.unwrap().get(0);
    let again: i32 = pool.get().await.unwrap().query_one(PID, &[]).await.unwrap().get(0);
    assert_eq!(first, again, "the pool keeps it");
    assert_eq!(reservoir.status().views[1].lent, 1, "and so it counts as lent");
    eventually("the pool gets another connection", true, async || {
        pool.get().await.unwrap().query_one(PID, &[]).await.unwrap().get::<_, i32>(0) != first
    })
    .await;
    pool.close();
    eventually("all have come back", 0, async || reservoir.status().counts.lent).await;
}

#[tokio::test]
async fn deadpool_drops_a_connection_that_the_server_has_ended() {
    use deadpool::managed::Pool;
    let reservoir = reservoir(ReservoirConfig::new(2));
    let pool: Pool<_> = Pool::builder(reservoir.view("pool", 1)).max_size(1).build().unwrap();
    replaces_ended(async || pool.get().await.unwrap().query_one(PID, &[]).await.ok()?.get(0)).await;
}

#[tokio::test]
async fn bb8_reuses_connections_and_drops_expired_ones() {
    let reservoir = reservoir(short_lived());
    let builder = bb8::Pool::builder().max_size(2).max_lifetime(None).idle_timeout(None);
    let pool = builder.build(reservoir.view("pool", 2)).await.unwrap();
    let first: i32 = pool.get().await.unwrap().query_one(PID, &[]).await.unwrap().get(0);
    assert!(reservoir.status().views[1].lent >= 1);
    eventually("the pool gets another connection", true, async || {
        pool.get().await.unwrap().query_one(PID, &[]).await.unwrap().get::<_, i32>(0) != first
    })
    .await;
    drop(pool);
    eventually("all have come back", 0, async || reservoir.status().counts.lent).await;
}

#[tokio::test]
async fn bb8_drops_a_connection_that_the_server_has_ended() {
    let reservoir = reservoir(ReservoirConfig::new(2));
    let pool = bb8::Pool::builder().max_size(1).build(reservoir.view("pool", 1)).await.unwrap();
    replaces_ended(async || pool.get().await.unwrap().query_one(PID, &[]).await.ok()?.get(0)).await;
}

#[tokio::test]
async fn session_state_is_reset_between_users_of_a_pool() {
    let state = "SELECT current_setting('work_mem')";
    let left_open = "SET work_mem = '1MB'; BEGIN; SET LOCAL work_mem = '2MB'";
    let reservoir = reservoir(ReservoirConfig::new(2).leak_after(Duration::from_millis(1)));
    let pool: deadpool::managed::Pool<_> =
        deadpool::managed::Pool::builder(reservoir.view("deadpool", 1)).max_size(1).build().unwrap();
    pool.get().await.unwrap().simple_query(left_open).await.unwrap();
    let setting: String = pool.get().await.unwrap().query_one(state, &[]).await.unwrap().get(0);
    assert_eq!(setting, "4MB");
    let pool = bb8::Pool::builder().max_size(1).build(reservoir.view("bb8", 1)).await.unwrap();
    pool.get().await.unwrap().simple_query(left_open).await.unwrap();
    let setting: String = pool.get().await.unwrap().query_one(state, &[]).await.unwrap().get(0);
    assert_eq!(setting, "4MB");
}
