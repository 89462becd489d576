mod authentication;
mod recovery;
mod settings;
mod standby;
mod versions;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_sandbox::{Postgres, StartError};

pub(crate) const TRUSTED: u32 = 0;
pub(crate) const SASL: u32 = 10;

/// Connects over TCP and returns the requested authentication method.
fn authentication(postgres: &Postgres) -> (TcpStream, u32) {
    let mut stream = TcpStream::connect(postgres.addr()).expect("the server listens");
    let kind = greet(&mut stream, "postgres").expect("the server authenticates");
    (stream, kind)
}

/// Sends a startup message; returns the requested authentication method, or the SQLSTATE.
pub(crate) fn greet(stream: &mut (impl Read + Write), user: &str) -> Result<u32, String> {
    let parameters = format!("user\0{user}\0database\0postgres\0\0");
    let length = u32::try_from(parameters.len() + 8).expect("a short message").to_be_bytes();
    stream
        .write_all(&[&length[..], b"\0\x03\0\0", parameters.as_bytes()].concat())
        .expect("the server reads");
    let (kind, body) = message(stream);
    if kind == b'R' {
        return Ok(u32::from_be_bytes(*body.first_chunk().expect("a kind")));
    }
    let state = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&b'C'));
    Err(String::from_utf8_lossy(&state.expect("an error has a state")[1..]).into_owned())
}

/// Reads a message; returns its kind and its body.
pub(crate) fn message(stream: &mut impl Read) -> (u8, Vec<u8>) {
    let mut head = [0; 5];
    stream.read_exact(&mut head).expect("the server replies");
    let [kind, length @ ..] = head;
    let mut body = Vec::new();
    let length = u64::from(u32::from_be_bytes(length)) - 4;
    let read = stream.take(length).read_to_end(&mut body).expect("the server replies");
    assert_eq!(u64::try_from(read), Ok(length), "the whole message");
    (kind, body)
}

/// Returns the only value of the only row.
pub(crate) fn value(postgres: &Postgres, sql: &str) -> String {
    let rows = postgres.query("postgres", sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!((rows.len(), rows[0].len()), (1, 1), "{sql}: {rows:?}");
    rows[0][0].clone().unwrap_or_else(|| panic!("{sql}: NULL"))
}

#[test]
fn settings_take_effect_and_databases_are_separate() {
    let postgres =
        Postgres::builder().config("work_mem", "7MB").config("wal_level", "replica").start().unwrap();
    assert_eq!(authentication(&postgres).1, TRUSTED, "all users are trusted");
    for (setting, wanted) in [("work_mem", "7MB"), ("wal_level", "replica"), ("fsync", "off")] {
        assert_eq!(value(&postgres, &format!("SHOW {setting}")), wanted, "{setting}");
    }

    let (one, two) = (postgres.create_database("shop").unwrap(), postgres.create_database("shop").unwrap());
    assert_ne!(one, two);
    assert_eq!(postgres.url(&one), format!("postgres://postgres@127.0.0.1:{}/{one}", postgres.port()));
    postgres.execute(&one, "CREATE TABLE t (id int)").unwrap();
    let error = postgres.execute(&two, "SELECT * FROM t").unwrap_err();
    assert_eq!(error.to_string(), "relation \"t\" does not exist (42P01)");
    assert!(postgres.socket_dir().is_dir());
}

#[test]
fn one_backend_can_be_frozen_and_thawed() {
    let postgres = Postgres::start().unwrap();
    postgres.execute("postgres", "CREATE ROLE app LOGIN").unwrap();
    assert_eq!(postgres.backends("app"), Vec::<u32>::new());
    let mut stream = TcpStream::connect(postgres.addr()).unwrap();
    assert_eq!(greet(&mut stream, "app"), Ok(TRUSTED));
    while message(&mut stream).0 != b'Z' {}
    let [pid] = postgres.backends("app")[..] else { panic!("one") };
    postgres.freeze_backend(pid);
    // Terminate: a running backend closes the connection.
    stream.write_all(b"X\0\0\0\x04").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(postgres.backends("app"), [pid]);
    postgres.thaw_backend(pid);
    stream.set_read_timeout(None).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_password_is_required_on_tcp_only() {
    let postgres = Postgres::builder().password("s/cret").start().unwrap();
    assert_eq!(authentication(&postgres).1, SASL);
    assert!(postgres.url("x").starts_with("postgres://postgres:s%2Fcret@127.0.0.1:"));
    postgres.execute("postgres", "SELECT 1").unwrap();
}

#[test]
fn an_unknown_setting_fails_with_the_server_s_message() {
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
        "backends are stopped too"
    );
    postgres.thaw();
    postgres.execute("postgres", "INSERT INTO kept VALUES (2)").unwrap();

    postgres.kill();
    assert!(!super::runs(pid));
    assert_eq!(TcpStream::connect(postgres.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    postgres.revive().unwrap();
    postgres.restart().unwrap();
    assert_eq!(postgres.port(), port);
    assert_eq!(value(&postgres, "SELECT count(*) FROM kept"), "2");
    assert!(postgres.log().contains("received fast shutdown request"), "{}", postgres.log());
}

#[test]
fn there_is_one_shared_server() {
    assert_eq!(Postgres::shared().pid(), Postgres::shared().pid());
    let database = Postgres::shared().create_database("mine").unwrap();
    Postgres::shared().execute(&database, "SELECT 1").unwrap();
    assert_eq!(Postgres::shared_version(Postgres::shared().version()).pid(), Postgres::shared().pid());
}
