use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use forebay_sandbox::{PgBouncer, Postgres, StartError};

use super::postgres::{SASL, TRUSTED, greet, message};
use super::{eventually, folder_of, runs};

/// A session that may be asked for one value at a time.
struct Client(TcpStream);

impl Client {
    fn connect(bouncer: &PgBouncer) -> Client {
        let mut stream = TcpStream::connect(bouncer.addr()).expect("it listens");
        assert_eq!(greet(&mut stream, "postgres"), Ok(TRUSTED));
        let mut client = Client(stream);
        client.until_ready();
        client
    }

    /// The first value that the statement gives.
    fn ask(&mut self, sql: &str) -> Option<String> {
        let length = u32::try_from(sql.len() + 5).expect("a short statement").to_be_bytes();
        self.0.write_all(&[b"Q", &length[..], sql.as_bytes(), b"\0"].concat()).expect("it reads");
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
fn in_transaction_mode_two_clients_share_one_session() {
    const BACKEND: &str = "SELECT pg_backend_pid()";
    let postgres = Postgres::start().unwrap();
    let bouncer = PgBouncer::builder(&postgres).transaction_mode().start().unwrap();
    assert_eq!(bouncer.url("x"), format!("postgres://postgres@127.0.0.1:{}/x", bouncer.port()));
    let (mut one, mut two) = (Client::connect(&bouncer), Client::connect(&bouncer));
    let backend = one.ask(BACKEND);
    assert_eq!(two.ask(BACKEND), backend);
    one.ask("BEGIN");
    assert_eq!(one.ask(BACKEND), backend);
    assert_ne!(two.ask(BACKEND), backend, "the first one is taken");

    postgres.restart_fast().unwrap();
    assert!(Client::connect(&bouncer).ask(BACKEND).is_some(), "the same port again");
}

#[test]
fn in_session_mode_each_client_has_its_own() {
    let bouncer = PgBouncer::builder(Postgres::shared()).config("default_pool_size", "3").start().unwrap();
    let (mut one, mut two) = (Client::connect(&bouncer), Client::connect(&bouncer));
    assert_ne!(one.ask("SELECT pg_backend_pid()"), two.ask("SELECT pg_backend_pid()"));
}

#[test]
fn it_trusts_every_role_of_its_postgres_until_it_is_given_users_and_then_asks_for_passwords() {
    for version in [15, 18] {
        let postgres = Postgres::shared_version(version);
        postgres.execute("postgres", "CREATE ROLE bare LOGIN").unwrap();
        let bouncer = PgBouncer::builder(postgres).start().unwrap();
        let knock = |user| greet(&mut TcpStream::connect(bouncer.addr()).unwrap(), user);
        assert_eq!((knock("bare"), knock("postgres")), (Ok(TRUSTED), Ok(TRUSTED)));
        assert!(knock("stranger").is_err());

        let builder = PgBouncer::builder(postgres).user("app", "sec\"ret").user("postgres", "p");
        let bouncer = builder.start().unwrap();
        let knock = |user| greet(&mut TcpStream::connect(bouncer.addr()).unwrap(), user);
        assert_eq!((knock("app"), knock("postgres")), (Ok(SASL), Ok(SASL)));
        assert_eq!(bouncer.url("x"), format!("postgres://postgres:p@127.0.0.1:{}/x", bouncer.port()));
        let url = bouncer.url_as("app", "sec\"ret", "x");
        assert!(url.starts_with("postgres://app:sec%22ret@127.0.0.1:"), "{url}");
    }
}

#[test]
fn a_revival_waits_for_its_own_port() {
    let bouncer = PgBouncer::builder(Postgres::shared()).start().unwrap();
    bouncer.kill();
    let squatter = TcpListener::bind(bouncer.addr()).unwrap();
    thread::scope(|scope| {
        let revival = scope.spawn(|| bouncer.revive());
        // It would go on without the port.
        eventually("it finds its port taken", || bouncer.log().contains("Address already in use"));
        drop(squatter);
        revival.join().unwrap().unwrap();
    });
    Client::connect(&bouncer);
}

#[test]
fn it_ends_with_its_handle_comes_back_from_a_kill_and_fails_with_its_own_words() {
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
