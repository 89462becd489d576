use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use forebay_sandbox::{PgBouncer, Postgres, StartError};

use super::postgres::{SASL, TRUSTED, greet, message};
use super::{eventually, folder_of, runs};

/// Client that queries one value at a time.
struct BouncerClient(TcpStream);

impl BouncerClient {
    fn connect(bouncer: &PgBouncer) -> BouncerClient {
        let mut stream = TcpStream::connect(bouncer.addr()).expect("the server listens");
        assert_eq!(greet(&mut stream, "postgres"), Ok(TRUSTED));
        let mut client = BouncerClient(stream);
        client.until_ready();
        client
    }

    /// Returns the first value of the result.
    fn query(&mut self, sql: &str) -> Option<String> {
        let length = u32::try_from(sql.len() + 5).expect("a short statement").to_be_bytes();
        self.0.write_all(&[b"Q", &length[..], sql.as_bytes(), b"\0"].concat()).expect("the server reads");
        self.until_ready()
    }

    fn until_ready(&mut self) -> Option<String> {
        let mut value = None;
        loop {
            match message(&mut self.0) {
                (b'Z', _) => return value,
                (b'D', body) => value = Some(String::from_utf8_lossy(&body[6..]).into_owned()),
                (b'E', body) => panic!("{}", String::from_utf8_lossy(&body)),
                _ => {}
            }
        }
    }
}

#[test]
fn in_transaction_mode_two_clients_share_one_server_connection() {
    const BACKEND: &str = "SELECT pg_backend_pid()";
    let postgres = Postgres::start().unwrap();
    let bouncer = PgBouncer::builder(&postgres).transaction_mode().start().unwrap();
    assert_eq!(bouncer.url("x"), format!("postgres://postgres@127.0.0.1:{}/x", bouncer.port()));
    let (mut one, mut two) = (BouncerClient::connect(&bouncer), BouncerClient::connect(&bouncer));
    let backend = one.query(BACKEND);
    assert_eq!(two.query(BACKEND), backend);
    one.query("BEGIN");
    assert_eq!(one.query(BACKEND), backend);
    assert_ne!(two.query(BACKEND), backend, "the first connection is in use");

    postgres.restart_fast().unwrap();
    assert!(BouncerClient::connect(&bouncer).query(BACKEND).is_some(), "the same port again");
}

#[test]
fn in_session_mode_each_client_has_its_own_server_connection() {
    let bouncer = PgBouncer::builder(Postgres::shared()).config("default_pool_size", "3").start().unwrap();
    let (mut one, mut two) = (BouncerClient::connect(&bouncer), BouncerClient::connect(&bouncer));
    assert_ne!(one.query("SELECT pg_backend_pid()"), two.query("SELECT pg_backend_pid()"));
}

#[test]
fn all_roles_are_trusted_unless_users_with_passwords_are_configured() {
    for version in [15, 18] {
        let postgres = Postgres::shared_version(version);
        postgres.execute("postgres", "CREATE ROLE bare LOGIN").unwrap();
        let bouncer = PgBouncer::builder(postgres).start().unwrap();
        let authenticate = |user| greet(&mut TcpStream::connect(bouncer.addr()).unwrap(), user);
        assert_eq!((authenticate("bare"), authenticate("postgres")), (Ok(TRUSTED), Ok(TRUSTED)));
        assert!(authenticate("stranger").is_err());

        let builder = PgBouncer::builder(postgres).user("app", "sec\"ret").user("postgres", "p");
        let bouncer = builder.start().unwrap();
        let authenticate = |user| greet(&mut TcpStream::connect(bouncer.addr()).unwrap(), user);
        assert_eq!((authenticate("app"), authenticate("postgres")), (Ok(SASL), Ok(SASL)));
        assert_eq!(bouncer.url("x"), format!("postgres://postgres:p@127.0.0.1:{}/x", bouncer.port()));
        let url = bouncer.url_as("app", "sec\"ret", "x");
        assert!(url.starts_with("postgres://app:sec%22ret@127.0.0.1:"), "{url}");
    }
}

#[test]
fn a_revival_waits_for_its_port() {
    let bouncer = PgBouncer::builder(Postgres::shared()).start().unwrap();
    bouncer.kill();
    let squatter = TcpListener::bind(bouncer.addr()).unwrap();
    thread::scope(|scope| {
        let revival = scope.spawn(|| bouncer.revive());
        // PgBouncer itself would run without the port.
        eventually("the port is taken", || bouncer.log().contains("Address already in use"));
        drop(squatter);
        revival.join().unwrap().unwrap();
    });
    BouncerClient::connect(&bouncer);
}

#[test]
fn a_pgbouncer_ends_with_its_handle_is_revived_and_reports_its_errors() {
    let bouncer = PgBouncer::builder(Postgres::shared()).start().unwrap();
    let (pid, port) = (bouncer.pid(), bouncer.port());
    bouncer.kill();
    assert!(!runs(pid));
    bouncer.revive().unwrap();
    bouncer.restart().unwrap();
    assert_eq!(bouncer.port(), port);
    let (pid, folder) = (bouncer.pid(), folder_of(bouncer.pid()));
    drop(bouncer);
    assert!(!runs(pid) && !folder.exists());

    let error = PgBouncer::builder(Postgres::shared()).config("pool_mode", "swimming").start().unwrap_err();
    assert!(matches!(error, StartError::Exited { name: "pgbouncer", .. }), "{error}");
    assert!(error.to_string().contains("pool_mode"), "{error}");
}
