//! Which history is followed: recoveries, promotions, and another server in the place of the old one.

use forebay_replication::{TableChange, TableName};
use forebay_sandbox::{Postgres, RecoveryTarget};
use forebay_testkit::{Proxy, eventually, within};

use crate::journal::{Change, Line};
use crate::support::{Followed, insert, streams, told};

/// Waits until the standby has the slot of the manager.
async fn synchronized(primary: &Postgres, standby: &Postgres) {
    eventually("the standby has the slot", Some("1".to_owned()), async || {
        // It needs a list of what runs that is younger than the slot.
        primary.execute("postgres", "SELECT pg_log_standby_snapshot()").unwrap();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        standby.query("postgres", slots).unwrap()[0][0].clone()
    })
    .await;
}

/// The timelines that were adopted.
fn adopted(followed: &Followed<'_>) -> Vec<u32> {
    let timeline = |line| match line {
        Line::Adopt(timeline) => Some(timeline.timeline_id),
        _ => None,
    };
    followed.lines().into_iter().filter_map(timeline).collect()
}

/// What the journal has since it was last started over.
fn since_the_reset(followed: &Followed<'_>) -> Vec<Change> {
    let lines = followed.lines();
    let reset = lines.iter().rposition(|line| matches!(line, Line::Reset(..))).unwrap();
    let changes = |line: &Line| match line {
        Line::Transaction(transaction) => transaction.changes.clone(),
        _ => vec![],
    };
    lines[reset..].iter().flat_map(changes).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_to_a_point_before_what_the_consumer_has_starts_it_over() {
    for version in [15, 18] {
        let server = Postgres::builder().version(version).archive().start().unwrap();
        let followed = Followed::new(&server);
        let proxy = Proxy::start(server.addr());
        let manager = followed.start_with(followed.config_through(&proxy));
        streams(&manager).await;
        followed.table(&manager, "orders").await;
        let backup = server.backup().unwrap();
        followed.sql("INSERT INTO orders VALUES (1, 'kept')");
        followed.sql("SELECT pg_create_restore_point('here')");
        followed.sql("INSERT INTO orders VALUES (2, 'undone')");
        followed.eventually_changes(2).await;
        let restored = server.restore_to(&backup, RecoveryTarget::Name("here")).unwrap();

        // Under a manager that streams.
        proxy.fail_over_to(restored.addr());
        followed.started_over(&manager, &["first", "timeline_changed"]).await;
        restored.execute(&followed.database, "INSERT INTO orders VALUES (3, 'anew')").unwrap();
        let after = async || since_the_reset(&followed);
        eventually("the new history comes", vec![insert("orders", 3, "anew")], after).await;
        assert_eq!(adopted(&followed), [0_u32; 0]);

        // And while nobody is there: the first history again, which is another one by now.
        manager.shutdown().await;
        proxy.fail_over_to(server.addr());
        let manager = followed.start_with(followed.config_through(&proxy));
        followed.started_over(&manager, &["first", "timeline_changed", "timeline_changed"]).await;
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_of_everything_goes_on_in_the_same_history_but_without_its_slot() {
    let server = Postgres::builder().archive().start().unwrap();
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    let backup = server.backup().unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'kept')");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
    let restored = server.restore_to(&backup, RecoveryTarget::Latest).unwrap();
    let manager = followed.start_with(followed.config_at(&restored.url(&followed.database)));
    followed.started_over(&manager, &["first", "slot_created"]).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_in_the_place_of_the_old_one_starts_over() {
    let followed = Followed::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let manager = followed.start_with(followed.config_through(&proxy));
    streams(&manager).await;
    followed.table(&manager, "orders").await;
    followed.table(&manager, "notes").await;
    followed.sql("INSERT INTO orders VALUES (1, 'of the first')");
    followed.eventually_changes(1).await;
    let other = Postgres::start().unwrap();
    other.execute("postgres", &format!("CREATE DATABASE {}", followed.database)).unwrap();
    other.execute(&followed.database, "CREATE TABLE notes (id int PRIMARY KEY, note text)").unwrap();
    let mut events = manager.events();
    proxy.fail_over_to(other.addr());
    followed.started_over(&manager, &["first", "other_database"]).await;
    // Whoever followed a table there hears that it isn't this one.
    told(&mut events, "notes", TableChange::Gone).await;
    told(&mut events, "orders", TableChange::Gone).await;
    within("the table is added", manager.add_table(&TableName::new("public", "notes"))).await.unwrap();
    other.execute(&followed.database, "INSERT INTO notes VALUES (1, 'of the second')").unwrap();
    let after = async || since_the_reset(&followed);
    eventually("changes come", vec![insert("notes", 1, "of the second")], after).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_ahead_of_the_servers_log_starts_over() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
    // What it looks like when a snapshot of the server's disk was put back.
    let ahead = serde_json::to_string(&Line::Advance(1 << 40)).unwrap();
    let written = std::fs::read_to_string(followed.journal()).unwrap();
    std::fs::write(followed.journal(), format!("{written}{ahead}\n")).unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'in the new history')");
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first", "timeline_changed"]);
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "in the new history")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_kept_the_slot_goes_on_without_a_loss_or_a_repetition() {
    let primary = Postgres::builder().version(18).start().unwrap();
    let followed = Followed::new(&primary);
    let standby = primary.standby().failover_slots().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let manager = followed.start_with(followed.config_through(&proxy).failover_slot());
    streams(&manager).await;
    followed.table(&manager, "orders").await;
    synchronized(&primary, &standby).await;
    for id in 1..=20 {
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'before')"));
    }
    followed.eventually_changes(20).await;
    // Some of these may be lost with the primary; none that the journal has.
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
    let kept: Vec<_> = kept.into_iter().map(|row| Change::Insert("public.orders".into(), row)).collect();
    eventually("the journal has what the database has", kept, async || followed.changes()).await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_of_a_standby_that_has_missed_something_starts_over() {
    let primary = Postgres::builder().version(18).start().unwrap();
    let followed = Followed::new(&primary);
    let standby = primary.standby().failover_slots().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let manager = followed.start_with(followed.config_through(&proxy).failover_slot());
    streams(&manager).await;
    followed.table(&manager, "orders").await;
    synchronized(&primary, &standby).await;
    // From now on the stream may get ahead of the standby.
    primary.set_config("synchronized_standby_slots", "").unwrap();
    primary.reload().unwrap();
    standby.stop().unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'missed')");
    followed.eventually_changes(1).await;
    primary.kill();
    standby.revive().unwrap();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    followed.started_over(&manager, &["first", "timeline_changed"]).await;
    standby.execute(&followed.database, "INSERT INTO orders VALUES (2, 'after')").unwrap();
    let after = async || since_the_reset(&followed);
    eventually("changes come", vec![insert("orders", 2, "after")], after).await;
    assert_eq!(adopted(&followed), [0_u32; 0]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_lost_the_slot_starts_over_and_a_standby_is_waited_for() {
    for version in [15, 18] {
        let primary = Postgres::builder().version(version).start().unwrap();
        let followed = Followed::new(&primary);
        let standby = primary.standby().start().unwrap();
        let proxy = Proxy::start(primary.addr());
        let manager = followed.start_with(followed.config_through(&proxy));
        streams(&manager).await;
        followed.table(&manager, "orders").await;
        followed.sql("INSERT INTO orders VALUES (1, 'before')");
        followed.eventually_changes(1).await;
        // In good order, so that the standby has all of it.
        primary.stop().unwrap();
        proxy.fail_over_to(standby.addr());
        let told = |words: &str| words.contains("the server is a standby: connect to the primary");
        let waits = manager.wait_until(|status| status.trouble.as_deref().is_some_and(told));
        let status = within("the standby is found out", waits).await.unwrap();
        assert!(!status.is_ready());
        standby.promote().unwrap();
        followed.started_over(&manager, &["first", "slot_created"]).await;
        standby.execute(&followed.database, "INSERT INTO orders VALUES (2, 'after')").unwrap();
        let after = async || since_the_reset(&followed);
        eventually("changes come", vec![insert("orders", 2, "after")], after).await;
        assert_eq!(adopted(&followed), [0_u32; 0]);
        manager.shutdown().await;
    }
}
