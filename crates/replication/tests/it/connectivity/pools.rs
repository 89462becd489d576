//! Connections of the pools: a pooler, wrong passwords, lost connections.

use std::path::PathBuf;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::types::Type;
use forebay_replication::reservoir::{ConnectionLimits, PasswordFile, PostgresClient, PostgresConnect};
use forebay_replication::{
    ConnectionStatus, ManagerPhase, ManagerStatus, ManagerStep, PoolStatus, ReadyCondition,
};
use forebay_sandbox::{PgBouncer, Postgres};
use forebay_testkit::{Proxy, eventually, within};

use super::{advance_clock, backend_column, query_value, started};
use crate::followed_database::{FollowedDatabase, insert};
use crate::refusals::{contains_all, halted};

/// Time after which the pools report missing first connections.
const FILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum delay before the pools dial again.
const MAX_DIAL_DELAY: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pools_use_the_pooler_and_replication_connects_directly() {
    let followed = FollowedDatabase::new(Postgres::shared());
    // One server connection, so that each transaction gets the state that the last one left.
    let bouncer = PgBouncer::builder(followed.server)
        .transaction_mode()
        .config("default_pool_size", "1")
        .start()
        .unwrap();
    let pooled = PostgresConnect::new(&bouncer.url(&followed.database)).unwrap();
    let manager = started(&followed, followed.config().pooled(pooled)).await;
    assert_eq!(backend_column(&followed, &manager, "host(client_addr)").as_deref(), Some("127.0.0.1"));
    let past = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND backend_type = 'client backend' AND client_addr IS NOT NULL",
        followed.database
    );
    assert_eq!(
        followed.query_value(&past).as_deref(),
        Some("0"),
        "the pooler uses the Unix socket, and there are no other clients"
    );
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);

    let admin = manager.admin().await.unwrap();
    let rows = admin.query_typed("SELECT $1 + id FROM orders", &[(&41_i32, Type::INT4)]).await.unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 42);
    drop(admin);
    let snapshot = manager.snapshot().await.unwrap();
    snapshot
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL statement_timeout = '7s'")
        .await
        .unwrap();
    assert_eq!(query_value(&snapshot, "SHOW statement_timeout").await.as_deref(), Some("7s"));
    let rows =
        snapshot.query_typed("SELECT note FROM orders WHERE id = $1", &[(&1_i32, Type::INT4)]).await.unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), "seen");
    snapshot.batch_execute("COMMIT").await.unwrap();
    assert_eq!(query_value(&snapshot, "SHOW statement_timeout").await.as_deref(), Some("0"));
    // A guard is dropped inside a transaction.
    snapshot.batch_execute("BEGIN").await.unwrap();
    drop(snapshot);
    let admin = within("the server's connection is free again", manager.admin()).await.unwrap();
    assert_eq!(
        query_value(&admin, "SELECT count(*) FROM pg_prepared_statements").await.as_deref(),
        Some("0")
    );
    assert_eq!(query_value(&admin, "SHOW lock_timeout").await.as_deref(), Some("0"), "of adding the table");
    drop(admin);
    manager.shutdown_and_drop().await;
    assert_eq!(followed.query_value("SELECT 1 FROM pg_publication"), None);
    assert_eq!(followed.query_value("SELECT 1 FROM pg_replication_slots"), None);
}

/// Returns a pool configuration with a wrong password in a file.
fn with_wrong_password(followed: &FollowedDatabase<'_>, url: &str) -> (PostgresConnect, PathBuf) {
    let file = followed.journal().with_extension("password");
    std::fs::write(&file, "wrong").unwrap();
    let connect = PostgresConnect::builder(url).unwrap().password_from(PasswordFile::new(&file));
    (connect.build().unwrap(), file)
}

/// Single-threaded, so that its clock can be advanced.
#[tokio::test]
async fn pools_with_a_wrong_password_halt_and_the_error_names_the_pools() {
    let server = Postgres::builder().password("right").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let (pooled, file) = with_wrong_password(&followed, &server.url_as("postgres", "", &followed.database));
    let manager = followed.start_with(followed.config().pooled(pooled));
    eventually("they are refused", true, async || server.log().contains("password authentication failed"))
        .await;
    advance_clock(FILL_TIMEOUT).await;
    let why = halted(&manager).await;
    contains_all(
        &why,
        &[
            "the pools have no connection",
            &server.addr().to_string(),
            "[28P01]",
            "check the user, and its password",
        ],
    );
    std::fs::write(&file, "right").unwrap();
    manager.retry().await.unwrap();
    within("it is ready after all", manager.ready()).await.unwrap();
    manager.shutdown().await;
}

/// PgBouncer returns 08P01 for a wrong password and for too many clients, so it is retried.
#[tokio::test]
async fn a_pooler_that_refuses_the_password_is_retried_and_the_conditions_have_the_reason() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let bouncer =
        PgBouncer::builder(followed.server).transaction_mode().user("postgres", "right").start().unwrap();
    let (pooled, file) = with_wrong_password(&followed, &bouncer.url_as("postgres", "", &followed.database));
    let manager = followed.start_with(followed.config().pooled(pooled));
    eventually("they are refused", true, async || bouncer.log().contains("authentication failed")).await;
    advance_clock(FILL_TIMEOUT).await;
    let address = bouncer.addr().to_string();
    let refused = |status: &ManagerStatus| {
        let why = &status.condition(ReadyCondition::AdminConnectionPoolReady).why;
        why.contains(&address) && why.contains("authentication failed")
    };
    let status = within("the reason", manager.wait_until(refused)).await.unwrap();
    assert_eq!(
        (status.step, status.admin_pool),
        (ManagerStep::ConnectionPoolConnecting, PoolStatus::Starting)
    );
    std::fs::write(&file, "right").unwrap();
    advance_clock(MAX_DIAL_DELAY).await;
    within("they get in", manager.ready()).await.unwrap();
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_starting_ready_and_repopulating_pools() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    proxy.refuse();
    let manager = followed.start_with(followed.config().pooled(PostgresConnect::new(&url).unwrap()));
    let until = async |what: &str, step: ManagerStep, pools: PoolStatus| {
        let wanted = manager.wait_until(|status| {
            (status.step, status.admin_pool, status.snapshot_pool) == (step, pools, pools)
        });
        within(what, wanted).await.unwrap()
    };
    let status = until("the pools start", ManagerStep::ConnectionPoolConnecting, PoolStatus::Starting).await;
    assert!(!status.is_ready() && status.condition(ReadyCondition::ReplicationClientReady).holds);
    proxy.accept();
    let status = until("they are ready", ManagerStep::Streaming, PoolStatus::Ready).await;
    assert!(status.is_ready());
    followed.table(&manager, "orders").await;

    proxy.refuse();
    followed.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    let lost = |status: &ManagerStatus| {
        let (admin, snapshot) =
            (ReadyCondition::AdminConnectionPoolReady, ReadyCondition::SnapshotConnectionPoolReady);
        let refused = |condition| status.condition(condition).why.contains("refused");
        status.admin_pool == PoolStatus::Repopulating && refused(admin) && refused(snapshot)
    };
    let status = within("they have lost connections", manager.wait_until(lost)).await.unwrap();
    assert!(!status.is_ready() && status.phase == ManagerPhase::Running, "{status:?}");
    // The stream needs none of them.
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);
    proxy.accept();
    until("they are ready again", ManagerStep::Streaming, PoolStatus::Ready).await;
    assert!(manager.status().is_ready() && manager.status().retries == 0);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_leave_the_metadata_connections_free_on_a_nearly_full_server() {
    let followed = FollowedDatabase::new(Postgres::shared());
    // The pools want 2 and 6 connections, and the server gives them 3.
    let role = format!("pools_{}", followed.database);
    followed.sql(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 3"));
    let pooled = PostgresConnect::new(&followed.server.url_as(&role, "", &followed.database)).unwrap();
    let manager = followed.start_with(followed.config().pool_size(8).pooled(pooled));
    let wanted = manager.wait_until(|status| {
        status.step == ManagerStep::Streaming
            && (status.admin_pool, status.snapshot_pool) == (PoolStatus::Ready, PoolStatus::Repopulating)
    });
    let status = within("it streams, and snapshots lack connections", wanted).await.unwrap();
    assert!(status.condition(ReadyCondition::AdminConnectionPoolReady).holds);
    let snapshots = status.condition(ReadyCondition::SnapshotConnectionPoolReady);
    assert!(!snapshots.holds, "{snapshots:?}");
    assert_eq!(status.connection, ConnectionStatus::Starting);
    let wanted = manager.wait_until(|status| {
        let condition = status.condition(ReadyCondition::SnapshotConnectionPoolReady);
        condition.why.contains("too many connections for role")
    });
    within("the condition has the reason", wanted).await.unwrap();

    let first = within("one snapshot connection", manager.snapshot()).await.unwrap();
    let admins = async { [manager.admin().await, manager.admin().await] };
    let (second, admins) = tokio::join!(manager.snapshot(), admins);
    assert!(second.is_err(), "the snapshot pool has one connection");
    for admin in &admins {
        let client = admin.as_ref().expect("snapshots don't take the connections for metadata");
        assert_eq!(query_value(client, "SELECT current_user").await.as_deref(), Some(role.as_str()));
    }
    let pools = manager.pool_status().unwrap();
    let lent: Vec<_> = pools.views.iter().map(|view| (view.name.as_str(), view.quota, view.lent)).collect();
    assert_eq!(lent, [("admin", 2, 2), ("snapshot", 6, 1)]);
    assert_eq!((pools.counts.lent, pools.target), (3, 8));
    drop((first, admins));
    followed.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT -1"));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_metadata_connections_get_places_of_a_full_server_before_snapshots() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let role = format!("pools_{}", followed.database);
    let limit = |most: u32| followed.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT {most}"));
    followed.sql(&format!("CREATE ROLE {role} LOGIN"));
    let pooled = PostgresConnect::new(&followed.server.url_as(&role, "", &followed.database)).unwrap();
    let manager = started(&followed, followed.config().pool_size(8).pooled(pooled)).await;
    let mut snapshots = Vec::new();
    for _ in 0..6 {
        snapshots.push(within("a snapshot connection", manager.snapshot()).await.unwrap());
    }
    let admins = [manager.admin().await.unwrap(), manager.admin().await.unwrap()];

    // Metadata loses both of its connections, and the server is full with those for snapshots.
    limit(6);
    for admin in admins {
        terminate(&followed, &admin).await;
    }
    let refused = manager.wait_until(|status| {
        status.admin_pool == PoolStatus::Repopulating
            && status.condition(ReadyCondition::AdminConnectionPoolReady).why.contains("too many connections")
    });
    within("metadata dials are refused", refused).await.unwrap();
    // A place becomes free while metadata waits for its next dial. The snapshot pool doesn't wait.
    let lost = snapshots.pop().unwrap();
    terminate(&followed, &lost).await;
    drop(lost);
    let (snapshot, admin) = tokio::join!(manager.snapshot(), manager.admin());
    let admin = admin.expect("metadata gets the place");
    let refused = snapshot.expect_err("the snapshot pool leaves it to metadata").to_string();
    assert!(refused.contains("metadata connections are opened first"), "{refused}");
    // The server stays full: a returned snapshot connection makes room for the other one.
    snapshots.pop();
    let two = async || manager.admin().await.is_ok();
    eventually("metadata gets the place of a snapshot connection", true, two).await;
    assert_eq!(query_value(&admin, "SELECT current_user").await.as_deref(), Some(role.as_str()));
    let counts = manager.pool_status().unwrap().counts;
    assert_eq!(counts.ready + counts.lent + counts.resetting, 6, "{counts:?}");

    drop(admin);
    limit(100);
    within("all connections are there", manager.ready()).await.unwrap();
    eventually("the pools are full", 8, async || {
        let counts = manager.pool_status().unwrap().counts;
        counts.ready + counts.lent + counts.resetting
    })
    .await;
    drop(snapshots);
    manager.shutdown().await;
}

/// Ends the backend of a lent connection, and waits until the client has seen that.
async fn terminate(followed: &FollowedDatabase<'_>, client: &PostgresClient) {
    let pid = query_value(client, "SELECT pg_backend_pid()").await.unwrap();
    followed.sql(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
    eventually("the client sees the end", true, async || client.is_closed()).await;
}

/// Single-threaded, so that its clock can be advanced.
#[tokio::test]
async fn the_stream_starts_on_a_server_with_room_for_metadata_connections_only() {
    let followed = FollowedDatabase::new(Postgres::shared());
    // The pools want 4 and 16 connections, and the server gives them 4.
    let role = format!("pools_{}", followed.database);
    followed.sql(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 4 IN ROLE postgres"));
    let pooled = PostgresConnect::new(&followed.server.url_as(&role, "", &followed.database)).unwrap();
    let manager = followed.start_with(followed.config().pool_size(20).pooled(pooled));
    let wanted = manager.wait_until(|status| status.step == ManagerStep::Streaming);
    let status = within("it streams", wanted).await.unwrap();
    assert_eq!((status.admin_pool, status.snapshot_pool), (PoolStatus::Ready, PoolStatus::Starting));
    assert!(!status.is_ready() && status.connection == ConnectionStatus::Starting, "{status:?}");
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);

    eventually("a dial is refused", true, async || {
        manager.pool_status().unwrap().last_failure.is_some_and(|why| why.contains("too many connections"))
    })
    .await;
    advance_clock(FILL_TIMEOUT).await;
    let refused = manager.wait_until(|status| {
        let condition = status.condition(ReadyCondition::SnapshotConnectionPoolReady);
        condition.why.contains("too many connections for role")
    });
    within("the condition has the reason", refused).await.unwrap();
    followed.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT -1"));
    advance_clock(MAX_DIAL_DELAY).await;
    within("it is ready", manager.ready()).await.unwrap();
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_of_connections_is_split_between_the_pools() {
    let followed = FollowedDatabase::new(Postgres::shared());
    for (budget, quotas) in [(2, [1, 1]), (4, [1, 2]), (8, [2, 5])] {
        let limits = ConnectionLimits::local().connections(budget);
        let manager = started(&followed, followed.config().pool_size(budget).limits(limits)).await;
        let pools = manager.pool_status().unwrap();
        let [admin, snapshot] = quotas;
        let views: Vec<_> = pools.views.iter().map(|view| (view.name.as_str(), view.quota)).collect();
        assert_eq!(views, [("admin", admin), ("snapshot", snapshot)]);
        assert_eq!(pools.max, budget, "both pools together stay within the budget");
        let mut snapshots = Vec::new();
        for _ in 0..snapshot {
            snapshots.push(within("a snapshot connection", manager.snapshot()).await.unwrap());
        }
        // While snapshots hold all that they may have, a lost metadata connection is replaced.
        let admin = manager.admin().await.unwrap();
        let pid = query_value(&admin, "SELECT pg_backend_pid()").await.unwrap();
        followed.sql(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
        drop(admin);
        let another = async || {
            let admin = manager.admin().await.ok()?;
            query_value(&admin, "SELECT pg_backend_pid()").await.filter(|found| *found != pid)
        };
        eventually("another one", true, async || another().await.is_some()).await;
        drop(snapshots);
        manager.shutdown().await;
    }
}
