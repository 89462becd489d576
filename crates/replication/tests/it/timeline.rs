//! Timelines: recoveries, promotions, and another cluster at the same address.

use forebay_replication::{Manager, TableChange, TableName};
use forebay_sandbox::{Postgres, RecoveryTarget};
use forebay_testkit::{Proxy, eventually, within};

use crate::followed_database::{FollowedDatabase, insert, table_event};
use crate::journal::{JournalChange, JournalLine};

/// Waits until the standby has the slot of the manager.
async fn synchronized(primary: &Postgres, standby: &Postgres) {
    eventually("the standby has the slot", Some("1".to_owned()), async || {
        // Synchronization needs a snapshot record that is younger than the slot.
        primary.execute("postgres", "SELECT pg_log_standby_snapshot()").unwrap();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        standby.query("postgres", slots).unwrap()[0][0].clone()
    })
    .await;
}

/// Starts a standby that has the slot of a manager. The manager follows `orders` through the proxy.
async fn follow_with_standby(followed: &FollowedDatabase<'_>) -> (Postgres, Proxy, Manager) {
    let standby = followed.server.standby().failover_slots().start().unwrap();
    let proxy = Proxy::start(followed.server.addr());
    let manager = followed.streaming_orders(followed.config_through(&proxy).failover_slot()).await;
    synchronized(followed.server, &standby).await;
    (standby, proxy, manager)
}

/// Returns the adopted timelines.
fn adopted(followed: &FollowedDatabase<'_>) -> Vec<u32> {
    let timeline = |line| match line {
        JournalLine::Adopt(timeline) => Some(timeline.timeline_id),
        _ => None,
    };
    followed.lines().into_iter().filter_map(timeline).collect()
}

/// Returns the changes since the last reset.
fn since_the_reset(followed: &FollowedDatabase<'_>) -> Vec<JournalChange> {
    let lines = followed.lines();
    let reset = lines.iter().rposition(|line| matches!(line, JournalLine::Reset(..))).unwrap();
    let changes = |line: &JournalLine| match line {
        JournalLine::Transaction(transaction) => transaction.changes.clone(),
        _ => vec![],
    };
    lines[reset..].iter().flat_map(changes).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_to_a_point_before_the_bookmark_resets_the_consumer() {
    for version in [15, 18] {
        let server = Postgres::builder().version(version).archive().start().unwrap();
        let followed = FollowedDatabase::new(&server);
        let proxy = Proxy::start(server.addr());
        let manager = followed.streaming_orders(followed.config_through(&proxy)).await;
        let backup = server.backup().unwrap();
        followed.sql("INSERT INTO orders VALUES (1, 'kept')");
        followed.sql("SELECT pg_create_restore_point('here')");
        followed.sql("INSERT INTO orders VALUES (2, 'undone')");
        followed.eventually_changes(2).await;
        let restored = server.restore_to(&backup, RecoveryTarget::Name("here")).unwrap();

        // While a manager streams.
        proxy.fail_over_to(restored.addr());
        followed.was_reset(&manager, &["first", "timeline_changed"]).await;
        restored.execute(&followed.database, "INSERT INTO orders VALUES (3, 'anew')").unwrap();
        let after = async || since_the_reset(&followed);
        eventually("the new history comes", vec![insert("orders", 3, "anew")], after).await;
        assert_eq!(adopted(&followed), [0_u32; 0]);

        // While no manager runs: back to the first server, whose history differs by now.
        manager.shutdown().await;
        proxy.fail_over_to(server.addr());
        let manager = followed.start_with(followed.config_through(&proxy));
        followed.was_reset(&manager, &["first", "timeline_changed", "timeline_changed"]).await;
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_to_the_latest_point_has_no_slot_and_resets_the_consumer() {
    let server = Postgres::builder().archive().start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    let backup = server.backup().unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'kept')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    let restored = server.restore_to(&backup, RecoveryTarget::Latest).unwrap();
    let manager = followed.start_with(followed.config_at(&restored.url(&followed.database)));
    followed.was_reset(&manager, &["first", "slot_created"]).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_at_the_same_address_resets_the_consumer() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let manager = followed.streaming_orders(followed.config_through(&proxy)).await;
    followed.table(&manager, "notes").await;
    followed.sql("INSERT INTO orders VALUES (1, 'of the first')");
    followed.eventually_changes(1).await;
    let other = Postgres::start().unwrap();
    other.execute("postgres", &format!("CREATE DATABASE {}", followed.database)).unwrap();
    other.execute(&followed.database, "CREATE TABLE notes (id int PRIMARY KEY, note text)").unwrap();
    let mut events = manager.events();
    proxy.fail_over_to(other.addr());
    followed.was_reset(&manager, &["first", "other_database"]).await;
    // Tables of the other cluster have other oids.
    table_event(&mut events, "notes", TableChange::Gone).await;
    table_event(&mut events, "orders", TableChange::Gone).await;
    within("the table is added", manager.add_table(&TableName::new("public", "notes"))).await.unwrap();
    other.execute(&followed.database, "INSERT INTO notes VALUES (1, 'of the second')").unwrap();
    let after = async || since_the_reset(&followed);
    eventually("changes come", vec![insert("notes", 1, "of the second")], after).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_ahead_of_the_servers_wal_is_reset() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
    // As if the server's disk was restored from an older copy.
    let ahead = serde_json::to_string(&JournalLine::Advance(1 << 40)).unwrap();
    let written = std::fs::read_to_string(followed.journal()).unwrap();
    std::fs::write(followed.journal(), format!("{written}{ahead}\n")).unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'in the new history')");
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first", "timeline_changed"]);
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "in the new history")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_kept_the_slot_continues_without_loss_or_repetition() {
    let primary = Postgres::builder().version(18).start().unwrap();
    let followed = FollowedDatabase::new(&primary);
    let (standby, proxy, manager) = follow_with_standby(&followed).await;
    for id in 1..=20 {
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'before')"));
    }
    followed.eventually_changes(20).await;
    // The primary may lose some of these, but none that the journal has.
    for id in 21..=40 {
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'at the edge')"));
    }
    primary.kill();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    eventually("the new timeline is adopted", vec![2], async || adopted(&followed)).await;
    for id in 41..=60 {
        standby.execute(&followed.database, &format!("INSERT INTO orders VALUES ({id}, 'after')")).unwrap();
    }
    let kept = standby.query(&followed.database, "SELECT id, note FROM orders ORDER BY id").unwrap();
    let kept: Vec<_> =
        kept.into_iter().map(|row| JournalChange::Insert("public.orders".into(), row)).collect();
    eventually("the journal has what the database has", kept, async || followed.changes()).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_of_a_standby_with_missing_changes_resets_the_consumer() {
    let primary = Postgres::builder().version(18).start().unwrap();
    let followed = FollowedDatabase::new(&primary);
    let (standby, proxy, manager) = follow_with_standby(&followed).await;
    // From here on the stream may be ahead of the standby.
    primary.set_config("synchronized_standby_slots", "").unwrap();
    primary.reload().unwrap();
    standby.stop().unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'missed')");
    followed.eventually_changes(1).await;
    primary.kill();
    standby.revive().unwrap();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    followed.was_reset(&manager, &["first", "timeline_changed"]).await;
    standby.execute(&followed.database, "INSERT INTO orders VALUES (2, 'after')").unwrap();
    let after = async || since_the_reset(&followed);
    eventually("changes come", vec![insert("orders", 2, "after")], after).await;
    assert_eq!(adopted(&followed), [0_u32; 0]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_without_the_slot_resets_the_consumer_and_a_standby_is_retried() {
    for version in [15, 18] {
        let primary = Postgres::builder().version(version).start().unwrap();
        let followed = FollowedDatabase::new(&primary);
        let standby = primary.standby().start().unwrap();
        let proxy = Proxy::start(primary.addr());
        let manager = followed.streaming_orders(followed.config_through(&proxy)).await;
        followed.sql("INSERT INTO orders VALUES (1, 'before')");
        followed.eventually_changes(1).await;
        // A clean stop, so that the standby has everything.
        primary.stop().unwrap();
        proxy.fail_over_to(standby.addr());
        let is_standby = |text: &str| text.contains("the server is a standby: connect to the primary");
        let waits = manager.wait_until(|status| status.trouble.as_deref().is_some_and(is_standby));
        let status = within("the standby is detected", waits).await.unwrap();
        assert!(!status.is_ready());
        standby.promote().unwrap();
        followed.was_reset(&manager, &["first", "slot_created"]).await;
        standby.execute(&followed.database, "INSERT INTO orders VALUES (2, 'after')").unwrap();
        let after = async || since_the_reset(&followed);
        eventually("changes come", vec![insert("orders", 2, "after")], after).await;
        assert_eq!(adopted(&followed), [0_u32; 0]);
        manager.shutdown().await;
    }
}
