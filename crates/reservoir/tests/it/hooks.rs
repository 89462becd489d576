//! Hooks on connections to a real Postgres server.

use std::sync::Arc;
use std::time::Duration;

use forebay_quota::RateConfig;
use forebay_reservoir::{
    CheckoutError, ConnectionGuard, ConnectionLimits, HookFuture, PostgresClient, PostgresConnect, Reservoir,
    ReservoirConfig, ReservoirHooks,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually};
use parking_lot::Mutex;

type PostgresReservoir = Reservoir<PostgresClient>;

/// Starts a reservoir with hooks on a new database.
fn start(config: ReservoirConfig, hooks: ReservoirHooks<PostgresClient>) -> (String, PostgresReservoir) {
    let url = Postgres::shared().url(&Postgres::shared().create_database("hooks").unwrap());
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6));
    let connect = PostgresConnect::new(&url).unwrap();
    (url, Reservoir::start_with_hooks(connect, config, limits, hooks).unwrap())
}

fn config(target: u32) -> ReservoirConfig {
    let config = ReservoirConfig::new(target).low_watermark(target);
    config.checkout_timeout(TEST_TIMEOUT).hook_timeout(TEST_TIMEOUT)
}

async fn pid(client: &PostgresClient) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Backends that a hook has seen, in this order.
#[derive(Clone, Default)]
struct SeenBackends(Arc<Mutex<Vec<i32>>>);

impl SeenBackends {
    fn all(&self) -> Vec<i32> {
        self.0.lock().clone()
    }

    /// Returns a hook that records the backend and fails for the first `failures` ones.
    fn hook(
        &self,
        failures: usize,
    ) -> impl for<'a> Fn(&'a mut PostgresClient) -> HookFuture<'a> + Send + Sync + use<> {
        let seen = self.clone();
        move |client| {
            let seen = seen.clone();
            Box::pin(async move {
                let pid = pid(client).await;
                let count = {
                    let mut seen = seen.0.lock();
                    seen.push(pid);
                    seen.len()
                };
                if count <= failures { Err("as the test wants".into()) } else { Ok(()) }
            })
        }
    }
}

/// Returns whether the server has no backend of these.
async fn are_closed(client: &ConnectionGuard<PostgresClient>, pids: &[i32]) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)";
    client.query_one(sql, &[&pids]).await.unwrap().get::<_, i64>(0) == 0
}

#[tokio::test]
async fn the_after_connect_hook_runs_once_on_each_connection() {
    let seen = SeenBackends::default();
    let (_url, reservoir) = start(config(3), ReservoirHooks::new().after_connect(seen.hook(0)));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let mut lent = Vec::new();
    for _ in 0..3 {
        let client = reservoir.checkout().await.unwrap();
        lent.push((pid(&client).await, client));
    }
    drop(reservoir.try_checkout().unwrap());
    let mut lent: Vec<_> = lent.into_iter().map(|(pid, _)| pid).collect();
    drop(reservoir.checkout().await.unwrap());
    let mut seen = seen.all();
    lent.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, lent);
}

#[tokio::test]
async fn a_connection_that_fails_the_after_connect_hook_is_closed_and_not_lent() {
    let seen = SeenBackends::default();
    let (_url, reservoir) = start(config(1), ReservoirHooks::new().after_connect(seen.hook(2)));
    let client = reservoir.checkout().await.unwrap();
    let all = seen.all();
    assert_eq!((all.len(), all[2]), (3, pid(&client).await), "the third dial passed");
    eventually("the first two are closed", true, async || are_closed(&client, &all[..2]).await).await;
    eventually("their slots are free", 0, async || reservoir.status().counts.retiring).await;
}

#[tokio::test]
async fn an_after_connect_hook_that_hangs_ends_at_its_timeout() {
    let hooks = ReservoirHooks::new().after_connect(|client: &mut PostgresClient| {
        Box::pin(async move { Ok(client.batch_execute("SELECT pg_sleep(3600)").await?) })
    });
    let (_url, reservoir) = start(config(1).hook_timeout(Duration::from_millis(50)), hooks);
    let text =
        "the after-connect hook failed: no result within 50ms; speed up the hook, or raise hook_timeout";
    eventually("the dial fails", Some(text.to_owned()), async || reservoir.status().last_failure).await;
    assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0, "the sleeping backends were cancelled");
}

#[tokio::test]
async fn the_before_lend_hook_runs_before_each_checkout_and_after_the_reset() {
    let hooks = ReservoirHooks::new().before_lend(|client: &mut PostgresClient| {
        Box::pin(async move { Ok(client.batch_execute("SET work_mem = '3MB'").await?) })
    });
    let (_url, reservoir) = start(config(1), hooks);
    for round in 0..3 {
        let client = reservoir.checkout().await.unwrap();
        let row = client.query_one("SELECT current_setting('work_mem')", &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "3MB", "round {round}");
        client.batch_execute("SET work_mem = '1MB'").await.unwrap();
    }
    let error = reservoir.try_checkout().unwrap_err();
    assert!(matches!(error, CheckoutError::HookNeedsWait), "{error:?}");
    assert_eq!(reservoir.status().counts.lent, 0);
}

#[tokio::test]
async fn a_connection_that_fails_the_before_lend_hook_is_replaced_by_another() {
    let seen = SeenBackends::default();
    let (_url, reservoir) = start(config(2), ReservoirHooks::new().before_lend(seen.hook(2)));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let client = reservoir.checkout().await.unwrap();
    let all = seen.all();
    assert_eq!((all.len(), all[2]), (3, pid(&client).await), "the third connection passed");
    eventually("the first two are closed", true, async || are_closed(&client, &all[..2]).await).await;
}

#[tokio::test]
async fn a_checkout_whose_before_lend_hook_never_passes_says_why() {
    let seen = SeenBackends::default();
    let hooks = ReservoirHooks::new().before_lend(seen.hook(usize::MAX));
    let (_url, reservoir) = start(config(2), hooks);
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let error = reservoir.checkout_within(Duration::from_millis(200)).await.unwrap_err();
    let CheckoutError::Hook { why, waited } = error else { panic!("{error:?}") };
    assert_eq!(why, "as the test wants");
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
    assert!(!seen.all().is_empty());
    assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0);
}

#[tokio::test]
async fn a_checkout_that_is_dropped_during_its_hook_leaks_no_connection() {
    let hooks = ReservoirHooks::new().before_lend(|client: &mut PostgresClient| {
        Box::pin(async move { Ok(client.batch_execute("SELECT pg_sleep(0.2)").await?) })
    });
    let (_url, reservoir) = start(config(1), hooks);
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(20), reservoir.checkout()).await;
    assert!(dropped.is_err(), "the hook takes longer");
    assert_eq!(reservoir.status().counts.lent, 0);
    drop(reservoir.checkout().await.unwrap());
}

/// Pools on top of a reservoir keep a connection for several users.
#[cfg(all(feature = "deadpool", feature = "bb8"))]
#[tokio::test]
async fn deadpool_and_bb8_run_the_before_lend_hook_for_each_user() {
    let seen = SeenBackends::default();
    let (_url, reservoir) = start(config(2), ReservoirHooks::new().before_lend(seen.hook(0)));
    let pool: deadpool::managed::Pool<_> =
        deadpool::managed::Pool::builder(reservoir.view("deadpool", 1)).max_size(1).build().unwrap();
    for users in 1..=3 {
        drop(pool.get().await.unwrap());
        assert_eq!(seen.all().len(), users);
    }
    let pool = bb8::Pool::builder().max_size(1).build(reservoir.view("bb8", 1)).await.unwrap();
    let before = seen.all().len();
    for users in 1..=3 {
        drop(pool.get().await.unwrap());
        assert!(seen.all().len() >= before + users, "{:?}", seen.all());
    }
}
