use forebay_sandbox::Postgres;

use super::{authentication, value};

#[test]
fn query_returns_rows_as_text_with_nulls() {
    let postgres = Postgres::shared();
    let rows = postgres.query("postgres", "SELECT 1, NULL, ''; SELECT 'two', 'é', '\\x00ff'::bytea").unwrap();
    let one = vec![Some("1".to_owned()), None, Some(String::new())];
    let two = ["two", "é", "\\x00ff"].map(|text| Some(text.to_owned())).to_vec();
    assert_eq!(rows, [one, two]);
    assert_eq!(postgres.query("postgres", "SELECT WHERE false").unwrap(), Vec::<Vec<_>>::new());
    let long = value(postgres, "SELECT repeat('x', 2000000)");
    assert_eq!(long.len(), 2_000_000);
    let error = postgres.query("postgres", "SELECT 1; SELECT 1 / 0").unwrap_err();
    assert_eq!(error.to_string(), "division by zero (22012)");
    let error = postgres.execute("postgres", "CREATE TEMP TABLE t (id int); COPY t FROM STDIN").unwrap_err();
    assert!(error.to_string().contains("COPY"), "{error}");
}

#[test]
fn a_changed_setting_takes_effect_with_a_reload_or_a_restart() {
    for version in [15, 18] {
        let postgres = Postgres::builder().version(version).start().unwrap();
        let old_pid = postgres.pid();
        postgres.set_config("work_mem", "9MB").unwrap();
        postgres.set_config("max_wal_senders", "3").unwrap();
        postgres.reload().unwrap();
        assert_eq!(value(&postgres, "SHOW work_mem"), "9MB");
        assert_eq!(value(&postgres, "SHOW max_wal_senders"), "10");
        postgres.restart_fast().unwrap();
        assert_eq!(value(&postgres, "SHOW max_wal_senders"), "3");
        assert_ne!(postgres.pid(), old_pid);

        postgres.set_config("work_mem", "a lot").unwrap();
        let error = postgres.reload().unwrap_err().to_string();
        assert!(error.contains("work_mem"), "{error}");
    }
}

#[test]
fn an_immediate_restart_recovers_committed_data() {
    for version in [15, 18] {
        let postgres = Postgres::builder().version(version).start().unwrap();
        let port = postgres.port();
        postgres.execute("postgres", "CREATE TABLE kept AS SELECT 1 AS id").unwrap();
        let (session, _) = authentication(&postgres);
        postgres.restart_immediate().unwrap();
        assert_eq!((postgres.port(), value(&postgres, "SELECT id FROM kept")), (port, "1".to_owned()));
        let log = postgres.log();
        assert!(log.contains("received immediate shutdown request"), "{log}");
        assert!(log.contains("automatic recovery in progress"), "{log}");
        drop(session);

        postgres.stop().unwrap();
        assert!(postgres.execute("postgres", "SELECT 1").is_err());
        postgres.revive().unwrap();
        assert_eq!(value(&postgres, "SELECT id FROM kept"), "1");
    }
}
