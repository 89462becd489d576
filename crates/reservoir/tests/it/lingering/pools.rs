//! Backends that end late, under bb8 and deadpool.

use std::ops::Deref;
use std::time::{Duration, Instant};

use forebay_reservoir::{ConnectionGuard, PostgresClient, ReservoirView};
use forebay_sandbox::Postgres;
use forebay_testkit::eventually;
use futures_util::future::join_all;

use super::{MAX, Monitor, PostgresReservoir, TARGET, TestDatabase, pid, recovers};

/// Freezes all backends while they are lent; the pool detects that and requests other connections.
async fn freeze_and_thaw<P: Deref<Target = ConnectionGuard<PostgresClient>>>(
    test_db: &TestDatabase<'_>,
    (reservoir, monitor): (PostgresReservoir, Monitor),
    get: impl AsyncFn() -> Option<P>,
) {
    let clients = join_all((0..TARGET).map(|_| get())).await;
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("one for each")).collect();
    let pids = join_all(clients.iter().map(|client| pid(client))).await;
    pids.iter().for_each(|pid| test_db.server.freeze_backend(*pid));
    drop(clients);
    let until = Instant::now() + Duration::from_secs(5);
    let caller = async || {
        while Instant::now() < until {
            if let Some(client) = get().await {
                let _lost = client.simple_query("SELECT pg_sleep(0.01)").await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    join_all((0..2 * TARGET).map(|_| caller())).await;
    assert!(monitor.most() <= MAX, "{}: {} backends", test_db.name, monitor.most());
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| test_db.server.thaw_backend(*pid));
    eventually("nothing lingers", 0, async || reservoir.status().counts.retiring).await;
    let most = monitor.most();
    assert!((TARGET..=MAX).contains(&most), "{}: {most} backends", test_db.name);
}

/// The quota is `max`, so that the pool requests as many connections as it can get.
fn view(reservoir: &PostgresReservoir) -> ReservoirView<PostgresClient> {
    reservoir.view("pool", MAX)
}

async fn deadpool() {
    let test_db = TestDatabase::new(Postgres::shared(), "frozen_deadpool");
    let (reservoir, monitor) = test_db.filled("").await;
    let pool: deadpool::managed::Pool<_> =
        deadpool::managed::Pool::builder(view(&reservoir)).max_size(MAX as usize).build().unwrap();
    let get = async || tokio::time::timeout(Duration::from_secs(2), pool.get()).await.ok()?.ok();
    freeze_and_thaw(&test_db, (reservoir.clone(), monitor), get).await;
    drop(pool);
    recovers(&reservoir).await;
}

async fn bb8() {
    let test_db = TestDatabase::new(Postgres::shared(), "frozen_bb8");
    let (reservoir, monitor) = test_db.filled("").await;
    let builder = bb8::Pool::builder().max_size(MAX).connection_timeout(Duration::from_secs(2));
    let pool = builder.max_lifetime(None).idle_timeout(None).build(view(&reservoir)).await.unwrap();
    let get = async || pool.get_owned().await.ok();
    freeze_and_thaw(&test_db, (reservoir.clone(), monitor), get).await;
    drop(pool);
    recovers(&reservoir).await;
}

#[tokio::test]
async fn frozen_backends_keep_their_slots_under_bb8_and_deadpool() {
    tokio::join!(bb8(), deadpool());
}
