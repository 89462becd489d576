//! Position of the stream: tasks wait until the consumer has received what they have seen.

use std::time::Duration;

use forebay_replication::NotReady;
use forebay_replication::pgoutput::Lsn;
use forebay_sandbox::Postgres;
use forebay_testkit::within;

use crate::followed_database::{FollowedDatabase, insert, streams};

/// Less than the 15 s after which a silent server is asked for a keepalive.
const BEFORE_A_REQUEST: Duration = Duration::from_secs(12);

fn flushed(followed: &FollowedDatabase<'_>) -> Lsn {
    let flushed = followed.query_value("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint");
    Lsn(flushed.unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_of_an_idle_database_is_reached_at_once() {
    // With this setting, the server sends no keepalives at intervals.
    for version in [15, 18] {
        let server = Postgres::builder().version(version).config("wal_sender_timeout", "0").start().unwrap();
        reaches_positions_without_traffic(&server).await;
    }
}

async fn reaches_positions_without_traffic(server: &Postgres) {
    let followed = FollowedDatabase::new(server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    let neighbour = server.create_database("neighbour").unwrap();
    server.execute(&neighbour, "CREATE TABLE busy (id int)").unwrap();
    for _ in 0..3 {
        server.execute(&neighbour, "INSERT INTO busy SELECT generate_series(1, 100)").unwrap();
        let waiting = manager.wait_until_received(flushed(&followed));
        let waited = tokio::time::timeout(BEFORE_A_REQUEST, waiting).await;
        waited.expect("the position is reached").unwrap();
    }
    manager.shutdown().await;
    let refused = within("the wait ends", manager.wait_until_received(Lsn(u64::MAX))).await;
    assert_eq!(refused, Err(NotReady::Stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_position_all_earlier_commits_were_received() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    streams(&manager).await;
    followed.table(&manager, "orders").await;
    let mut expected = Vec::new();
    for id in 1..=30 {
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'x')"));
        expected.push(insert("orders", id, "x"));
        within("the position is reached", manager.wait_until_received(flushed(&followed))).await.unwrap();
        assert_eq!(followed.changes(), expected);
    }
    manager.shutdown().await;
}
