use std::collections::BTreeSet;

use forebay_sandbox::{Postgres, StartError};

use super::value;

#[test]
fn a_server_has_the_requested_version() {
    for version in [15, 18] {
        let postgres = Postgres::builder().version(version).start().unwrap();
        assert_eq!(postgres.version(), version);
        let number: u32 = value(&postgres, "SHOW server_version_num").parse().unwrap();
        assert_eq!(number / 10_000, version);
        assert_eq!(value(&postgres, "SHOW wal_level"), "logical");
    }
}

#[test]
fn each_version_has_one_shared_server() {
    let versions = [15, 18];
    let pids: BTreeSet<_> = versions.map(|version| Postgres::shared_version(version).pid()).into();
    let again: BTreeSet<_> = versions.map(|version| Postgres::shared_version(version).pid()).into();
    assert_eq!((pids.len(), &pids), (2, &again));
}

#[test]
fn a_missing_version_fails_and_names_the_install_script() {
    let error = Postgres::builder().version(9).start().unwrap_err();
    assert!(matches!(error, StartError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("run script/bootstrap"), "{error}");
}

#[test]
fn every_server_has_its_own_system_identifier() {
    let identifier = |version| {
        let postgres = Postgres::builder().version(version).start().unwrap();
        // Recovery checks the identifier in the WAL files.
        postgres.kill();
        postgres.revive().unwrap();
        value(&postgres, "SELECT system_identifier FROM pg_control_system()")
    };
    let identifiers: BTreeSet<_> = [15, 15, 18, 18].map(identifier).into();
    assert_eq!(identifiers.len(), 4);
}

#[test]
fn both_versions_order_texts_by_bytes_or_by_icu_rules() {
    for version in [15, 18] {
        let postgres = Postgres::shared_version(version);
        let smaller = |database: &str| {
            let rows = postgres.query(database, "SELECT 'a' < 'B', 'é' < 'z'").unwrap();
            rows[0].iter().map(|value| value.as_deref() == Some("t")).collect::<Vec<_>>()
        };
        assert_eq!(smaller(&postgres.create_database("bytes").unwrap()), [false, false]);
        assert_eq!(smaller(&postgres.create_icu_database("english", "en-US").unwrap()), [true, true]);
    }
}

#[test]
fn both_versions_decode_changes() {
    for version in [15, 18] {
        let postgres = Postgres::shared_version(version);
        let database = postgres.create_database("decoded").unwrap();
        let run = |sql: &str| postgres.query(&database, sql).unwrap();
        run("CREATE TABLE t (id int)");
        run("SELECT pg_create_logical_replication_slot('decoded', 'pgoutput')");
        run("CREATE PUBLICATION p FOR ALL TABLES");
        run("INSERT INTO t VALUES (1)");
        let changes = run("SELECT data FROM pg_logical_slot_get_binary_changes('decoded', NULL, NULL, \
             'proto_version', '1', 'publication_names', 'p')");
        assert!(changes.len() >= 3, "{changes:?}");
        run("SELECT pg_drop_replication_slot('decoded')");
    }
}
