use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_sandbox::{Postgres, StartError};

/// Opens a session on TCP and returns the kind of authentication that the server asks for.
fn authentication(postgres: &Postgres) -> (TcpStream, u32) {
    let mut stream = TcpStream::connect(postgres.addr()).expect("it listens");
    stream.write_all(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0").expect("it reads");
    let mut reply = [0; 9];
    stream.read_exact(&mut reply).expect("it answers");
    assert_eq!(reply[0], b'R');
    (stream, u32::from_be_bytes([reply[5], reply[6], reply[7], reply[8]]))
}

#[test]
fn settings_and_databases_are_real() {
    let postgres =
        Postgres::builder().config("work_mem", "7MB").config("wal_level", "replica").start().unwrap();
    assert_eq!(authentication(&postgres).1, 0, "everybody is trusted");
    let check = |setting: &str, value: &str| {
        let query = format!("SELECT 1 / (current_setting('{setting}') = '{value}')::int");
        postgres.execute("postgres", &query).unwrap_or_else(|error| panic!("{setting}: {error}"));
    };
    check("work_mem", "7MB");
    check("wal_level", "replica");
    check("fsync", "off");

    let (one, two) = (postgres.create_database("shop").unwrap(), postgres.create_database("shop").unwrap());
    assert_ne!(one, two);
    assert_eq!(postgres.url(&one), format!("postgres://postgres@127.0.0.1:{}/{one}", postgres.port()));
    postgres.execute(&one, "CREATE TABLE t (id int)").unwrap();
    let error = postgres.execute(&two, "SELECT * FROM t").unwrap_err();
    assert_eq!(error.to_string(), "relation \"t\" does not exist (42P01)");
    assert!(postgres.socket_dir().is_dir());
}

#[test]
fn a_password_is_asked_for_on_tcp_only() {
    const SASL: u32 = 10;
    let postgres = Postgres::builder().password("s/cret").start().unwrap();
    assert_eq!(authentication(&postgres).1, SASL);
    assert!(postgres.url("x").starts_with("postgres://postgres:s%2Fcret@127.0.0.1:"));
    postgres.execute("postgres", "SELECT 1").unwrap();
}

#[test]
fn a_setting_that_postgres_does_not_know_fails_with_its_own_words() {
    let error = Postgres::builder().config("no_such_setting", "1").start().unwrap_err();
    assert!(matches!(error, StartError::Exited { name: "postgres", .. }), "{error}");
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn a_server_is_frozen_killed_revived_and_restarted_on_its_port_with_its_data() {
    let postgres = Postgres::start().unwrap();
    let (port, pid) = (postgres.port(), postgres.pid());
    postgres.execute("postgres", "CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)").unwrap();
    let (mut session, _) = authentication(&postgres);

    postgres.freeze();
    session.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut startup = Vec::new();
    assert_eq!(session.read_to_end(&mut startup).unwrap_err().kind(), ErrorKind::WouldBlock);
    session.write_all(b"Q\0\0\0\x0dSELECT 1\0").unwrap();
    assert_eq!(
        session.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock,
        "backends stand still, too"
    );
    postgres.thaw();
    postgres.execute("postgres", "INSERT INTO kept VALUES (2)").unwrap();

    postgres.kill();
    assert!(!super::runs(pid));
    assert_eq!(TcpStream::connect(postgres.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    postgres.revive().unwrap();
    postgres.restart().unwrap();
    assert_eq!(postgres.port(), port);
    postgres.execute("postgres", "SELECT 1 / (count(*) = 2)::int FROM kept").unwrap();
    assert!(postgres.log().contains("received fast shutdown request"), "{}", postgres.log());
}

#[test]
fn the_shared_server_is_one() {
    assert_eq!(Postgres::shared().pid(), Postgres::shared().pid());
    let database = Postgres::shared().create_database("mine").unwrap();
    Postgres::shared().execute(&database, "SELECT 1").unwrap();
}
