use forebay_sandbox::{Postgres, RecoveryTarget, StartError};

use super::super::folder_of;
use super::value;

const COUNT: &str = "SELECT count(*) FROM t";
const IDENTIFIER: &str = "SELECT system_identifier FROM pg_control_system()";

fn timeline(postgres: &Postgres) -> String {
    value(postgres, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
}

#[test]
fn a_backup_is_restored_to_a_name_a_position_a_time_and_the_end() {
    for version in [15, 18] {
        let postgres = Postgres::builder().version(version).archive().start().unwrap();
        let write = |id: u32| postgres.execute("postgres", &format!("INSERT INTO t VALUES ({id})")).unwrap();
        postgres.execute("postgres", "CREATE TABLE t (id int)").unwrap();
        postgres.execute("postgres", "SELECT pg_create_logical_replication_slot('app', 'pgoutput')").unwrap();
        let backup = postgres.backup().unwrap();
        write(1);
        postgres.execute("postgres", "SELECT pg_create_restore_point('one')").unwrap();
        write(2);
        let lsn = value(&postgres, "SELECT pg_current_wal_insert_lsn()");
        write(3);
        let time = value(&postgres, "SELECT clock_timestamp()");
        write(4);

        let targets = [
            (RecoveryTarget::Name("one"), "1", "00000002"),
            (RecoveryTarget::Lsn(&lsn), "2", "00000003"),
            (RecoveryTarget::Time(&time), "3", "00000004"),
            (RecoveryTarget::Latest, "4", "00000005"),
        ];
        for (target, rows, new_timeline) in targets {
            let restored = postgres.restore_to(&backup, target).unwrap();
            assert_eq!(value(&restored, COUNT), rows, "{target:?}");
            assert_eq!(timeline(&restored), new_timeline, "{target:?}");
            assert_eq!(value(&restored, IDENTIFIER), value(&postgres, IDENTIFIER));
            assert_eq!(value(&restored, "SELECT count(*) FROM pg_replication_slots"), "0");
            restored.execute("postgres", "INSERT INTO t VALUES (0)").unwrap();
        }
        assert_eq!((value(&postgres, COUNT), timeline(&postgres)), ("4".to_owned(), "00000001".to_owned()));
    }
}

#[test]
fn a_backup_outlives_its_server_and_a_restored_server_can_be_backed_up() {
    let postgres = Postgres::builder().archive().start().unwrap();
    postgres.execute("postgres", "CREATE TABLE t AS SELECT 1 AS id").unwrap();
    let backup = postgres.backup().unwrap();
    let first = postgres.restore_to(&backup, RecoveryTarget::Latest).unwrap();
    postgres.kill();
    let second = postgres.restore_to(&backup, RecoveryTarget::Latest).unwrap();
    drop(postgres);

    second.execute("postgres", "INSERT INTO t VALUES (2)").unwrap();
    second.execute("postgres", "SELECT pg_create_restore_point('two')").unwrap();
    assert_eq!((value(&first, COUNT), value(&second, COUNT)), ("1".to_owned(), "2".to_owned()));
    let again = second.backup().unwrap();
    second.execute("postgres", "INSERT INTO t VALUES (3)").unwrap();
    second.execute("postgres", "SELECT pg_create_restore_point('three')").unwrap();
    second.execute("postgres", "INSERT INTO t VALUES (4)").unwrap();
    let third = second.restore_to(&again, RecoveryTarget::Name("three")).unwrap();
    assert_eq!(value(&third, COUNT), "3");
    let standby = third.standby().start().unwrap();
    assert!(standby.is_in_recovery().unwrap());
    let folders = [first.pid(), second.pid(), third.pid(), standby.pid()].map(folder_of);
    drop((backup, again, first, second, third, standby));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

#[test]
fn an_unreachable_target_and_a_server_without_an_archive_are_rejected() {
    let postgres = Postgres::builder().archive().start().unwrap();
    let backup = postgres.backup().unwrap();
    let error = postgres.restore_to(&backup, RecoveryTarget::Name("never")).unwrap_err();
    assert!(error.to_string().contains("before configured recovery target was reached"), "{error}");

    let error = Postgres::shared().backup().unwrap_err();
    assert!(matches!(error, StartError::Original { .. }), "{error}");
    assert!(format!("{error:?}").contains("archive()"), "{error:?}");
}
