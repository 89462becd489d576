//! Under pools of other makes.

use std::ops::Deref;
use std::time::{Duration, Instant};

use forebay_reservoir::{Guard, PostgresClient, View};
use forebay_sandbox::Postgres;
use forebay_testkit::eventually;
use futures_util::future::join_all;

use super::{MAX, Monitor, Pg, Site, TARGET, is_well_again, pid};

/// As many as there are connections, frozen while they are lent and given back to the pool, which finds that out and asks for
/// others.
async fn freeze_and_thaw<P: Deref<Target = Guard<PostgresClient>>>(
    site: &Site<'_>,
    (reservoir, monitor): (Pg, Monitor),
    get: impl AsyncFn() -> Option<P>,
) {
    let clients = join_all((0..TARGET).map(|_| get())).await;
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("one for each")).collect();
    let pids = join_all(clients.iter().map(|client| pid(client))).await;
    pids.iter().for_each(|pid| site.server.freeze_backend(*pid));
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
    assert!(monitor.most() <= MAX, "{}: {} backends", site.name, monitor.most());
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| site.server.thaw_backend(*pid));
    eventually("nothing lingers", 0, async || reservoir.status().counts.retiring).await;
    let most = monitor.most();
    assert!((TARGET..=MAX).contains(&most), "{}: {most} backends", site.name);
}

/// `max_size`: all that the reservoir may have, so that the pool asks for as many as it can get.
fn view(reservoir: &Pg) -> View<PostgresClient> {
    reservoir.view("pool", MAX)
}

async fn deadpool() {
    let site = Site::new(Postgres::shared(), "frozen_deadpool");
    let (reservoir, monitor) = site.filled("").await;
    let pool: deadpool::managed::Pool<_> =
        deadpool::managed::Pool::builder(view(&reservoir)).max_size(MAX as usize).build().unwrap();
    let get = async || tokio::time::timeout(Duration::from_secs(2), pool.get()).await.ok()?.ok();
    freeze_and_thaw(&site, (reservoir.clone(), monitor), get).await;
    drop(pool);
    is_well_again(&reservoir).await;
}

async fn bb8() {
    let site = Site::new(Postgres::shared(), "frozen_bb8");
    let (reservoir, monitor) = site.filled("").await;
    let builder = bb8::Pool::builder().max_size(MAX).connection_timeout(Duration::from_secs(2));
    let pool = builder.max_lifetime(None).idle_timeout(None).build(view(&reservoir)).await.unwrap();
    let get = async || pool.get_owned().await.ok();
    freeze_and_thaw(&site, (reservoir.clone(), monitor), get).await;
    drop(pool);
    is_well_again(&reservoir).await;
}

#[tokio::test]
async fn frozen_backends_keep_their_places_under_bb8_and_deadpool_too() {
    tokio::join!(bb8(), deadpool());
}
