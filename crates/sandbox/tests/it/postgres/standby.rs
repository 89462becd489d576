use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay_sandbox::{Postgres, StartError};

use super::super::{eventually, folder_of, runs};
use super::value;

const TIMELINE: &str = "SELECT timeline_id FROM pg_control_checkpoint()";
const IDENTIFIER: &str = "SELECT system_identifier FROM pg_control_system()";

#[test]
fn a_standby_replicates_rejects_writes_and_accepts_them_after_promotion() {
    for version in [15, 18] {
        let primary = Postgres::builder().version(version).password("secret").tls().start().unwrap();
        primary.execute("postgres", "CREATE TABLE t AS SELECT 1 AS id").unwrap();
        let standby = primary.standby().slot("follower").config("work_mem", "9MB").start().unwrap();
        assert_ne!(standby.port(), primary.port());
        assert_eq!(value(&standby, "SHOW work_mem"), "9MB");
        assert_eq!(std::fs::read_to_string(standby.ca_path()).unwrap(), primary.ca_pem());
        assert!(standby.url("x").contains(":secret@"), "{}", standby.url("x"));

        primary.execute("postgres", "INSERT INTO t VALUES (2)").unwrap();
        eventually("the row arrives", || value(&standby, "SELECT count(*) FROM t") == "2");
        let error = standby.execute("postgres", "INSERT INTO t VALUES (3)").unwrap_err();
        assert!(error.to_string().contains("read-only transaction"), "{error}");
        let slot = "SELECT active FROM pg_replication_slots WHERE slot_name = 'follower'";
        assert_eq!((standby.is_in_recovery().unwrap(), value(&primary, slot)), (true, "t".to_owned()));

        let identifier = value(&primary, IDENTIFIER);
        primary.kill();
        standby.promote().unwrap();
        standby.execute("postgres", "INSERT INTO t VALUES (3); CHECKPOINT").unwrap();
        assert_eq!((value(&standby, TIMELINE), value(&standby, IDENTIFIER)), ("2".to_owned(), identifier));
        assert!(standby.promote().is_err(), "it is a primary now");
    }
}

#[test]
fn a_standby_can_have_a_standby_and_both_outlive_their_primary() {
    let primary = Postgres::start().unwrap();
    let standby = primary.standby().start().unwrap();
    let cascaded = standby.standby().start().unwrap();
    primary.execute("postgres", "CREATE TABLE t ()").unwrap();
    eventually("the table arrives", || cascaded.execute("postgres", "SELECT FROM t").is_ok());
    drop(primary);
    standby.promote().unwrap();
    standby.execute("postgres", "CREATE TABLE u ()").unwrap();
    eventually("it follows to the new timeline", || cascaded.execute("postgres", "SELECT FROM u").is_ok());
    let (pid, folder) = (cascaded.pid(), folder_of(cascaded.pid()));
    drop(cascaded);
    assert!(!runs(pid) && !folder.exists());
}

#[test]
fn a_standby_can_be_created_from_a_busy_primary() {
    const WRITE: &str = "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 500) n; \
        CREATE TABLE gone AS SELECT * FROM t LIMIT 500; DROP TABLE gone";
    for version in [15, 18] {
        let primary = Postgres::builder().version(version).start().unwrap();
        primary.execute("postgres", "CREATE TABLE t (id int, word text)").unwrap();
        let made = AtomicBool::new(false);
        let standby = thread::scope(|scope| {
            scope.spawn(|| {
                while !made.load(Ordering::Relaxed) {
                    primary.execute("postgres", WRITE).unwrap();
                }
            });
            let standby = primary.standby().start();
            made.store(true, Ordering::Relaxed);
            standby.unwrap()
        });
        let sum = "SELECT count(*) || ' ' || sum(id) || ' ' || sum(length(word)) FROM t";
        eventually("the standby has caught up", || value(&standby, sum) == value(&primary, sum));
    }
}

#[test]
fn a_failover_slot_exists_after_the_failover() {
    let primary = Postgres::builder().version(18).start().unwrap();
    let standby = primary.standby().slot("standby").failover_slots().start().unwrap();
    assert_eq!(value(&primary, "SHOW synchronized_standby_slots"), "standby");
    let create = "SELECT pg_create_logical_replication_slot('app', 'pgoutput', false, false, true)";
    primary.execute("postgres", create).unwrap();
    eventually("the slot is synchronized", || {
        // The standby needs a running-transactions snapshot younger than the slot.
        primary.execute("postgres", "SELECT pg_log_standby_snapshot()").unwrap();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        value(&standby, slots) == "1"
    });
    primary.kill();
    standby.promote().unwrap();
    let slot = "SELECT slot_name || ' ' || failover FROM pg_replication_slots WHERE slot_type = 'logical'";
    assert_eq!(value(&standby, slot), "app true");
    standby
        .execute("postgres", "CREATE PUBLICATION p FOR ALL TABLES; CREATE TABLE t AS SELECT 1 AS id")
        .unwrap();
    let changes = "SELECT count(*) > 2 FROM pg_logical_slot_get_binary_changes('app', NULL, NULL, \
        'proto_version', '1', 'publication_names', 'p')";
    assert_eq!(value(&standby, changes), "t");
}

#[test]
fn a_version_without_failover_slots_fails_with_its_message() {
    let primary = Postgres::builder().version(15).start().unwrap();
    let error = primary.standby().failover_slots().start().unwrap_err();
    assert!(matches!(error, StartError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("sync_replication_slots"), "{error}");
    assert_eq!(value(&primary, "SELECT count(*) FROM pg_replication_slots"), "0", "the slot was dropped");
    primary.kill();
    let error = primary.standby().start().unwrap_err();
    assert!(matches!(error, StartError::Original { .. }), "{error}");
}
