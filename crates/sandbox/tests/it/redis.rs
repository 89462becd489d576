use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_sandbox::{Redis, StartError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Sends inline commands and reads the first line of each reply.
struct RedisClient<S>(BufReader<S>);

impl RedisClient<TcpStream> {
    fn connect(redis: &Redis) -> Self {
        RedisClient::new(TcpStream::connect(redis.addr()).expect("the server listens"))
    }
}

impl<S: Read + Write> RedisClient<S> {
    fn new(stream: S) -> Self {
        RedisClient(BufReader::new(stream))
    }

    fn send(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("the server reads");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server replies");
        line.trim_end().to_owned()
    }
}

#[test]
fn a_plain_server_replies_on_its_port_and_on_its_socket() {
    let redis = Redis::start().unwrap();
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert_eq!(RedisClient::connect(&redis).send("PING"), "+PONG");

    assert_eq!(redis.unix_url(), format!("unix://{}", redis.unix_path().display()));
    assert_eq!(RedisClient::new(UnixStream::connect(redis.unix_path()).unwrap()).send("PING"), "+PONG");
}

#[test]
fn a_password_may_contain_quotes_and_backslashes() {
    let redis = Redis::builder().password(r#"a "quoted\" word"#).start().unwrap();
    let mut client = RedisClient::connect(&redis);
    assert!(client.send("PING").starts_with("-NOAUTH"));
    assert_eq!(client.send(r#"AUTH "a \"quoted\\\" word""#), "+OK");
    assert_eq!(client.send("PING"), "+PONG");
}

#[test]
fn an_acl_user_has_its_own_rights() {
    let redis = Redis::builder().acl_user("reader", "on >pw ~* +get").start().unwrap();
    let mut client = RedisClient::connect(&redis);
    assert_eq!(client.send("AUTH reader pw"), "+OK");
    assert_eq!(client.send("GET nothing"), "$-1");
    assert!(client.send("SET a 1").starts_with("-NOPERM"));
}

#[test]
fn tls_is_verified_by_name_and_by_address_against_the_throwaway_authority() {
    let redis = Redis::builder().tls().start().unwrap();
    assert_eq!(redis.tls_url(), format!("rediss://localhost:{}", redis.tls_port()));
    assert_eq!(std::fs::read_to_string(redis.ca_path()).unwrap(), redis.ca_pem());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(redis.ca_pem().as_bytes()).unwrap()).unwrap();
    let config = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    for name in ["localhost", "127.0.0.1"] {
        let tls = ClientConnection::new(Arc::clone(&config), ServerName::try_from(name).unwrap()).unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", redis.tls_port())).unwrap();
        assert_eq!(RedisClient::new(StreamOwned::new(tls, tcp)).send("PING"), "+PONG", "{name}");
    }
    assert_eq!(RedisClient::connect(&redis).send("PING"), "+PONG", "the plain port works too");
}

#[test]
fn the_debug_command_and_other_settings_can_be_enabled() {
    let redis = Redis::builder().debug_command().config("maxclients", "7").start().unwrap();
    let mut client = RedisClient::connect(&redis);
    assert_eq!(client.send("DEBUG SLEEP 0"), "+OK");
    assert_eq!(client.send("CONFIG GET maxclients"), "*2");
}

#[test]
fn an_unknown_setting_fails_with_the_server_s_message() {
    let error = Redis::builder().config("no-such-setting", "1").start().unwrap_err();
    assert!(matches!(error, StartError::Exited { name: "redis-server", .. }), "{error}");
    assert!(format!("{error}").contains("no-such-setting"), "{error}");
}

#[test]
#[should_panic(expected = "a setting is one line")]
fn a_setting_of_two_lines_is_refused() {
    let _ = Redis::builder().config("maxclients", "7\nport 6379");
}

#[test]
fn a_killed_server_is_revived_on_its_port_with_its_data() {
    let builder = Redis::builder().config("appendonly", "yes").config("appendfsync", "always");
    let redis = builder.start().unwrap();
    let before = (redis.port(), redis.pid());
    let mut client = RedisClient::connect(&redis);
    assert_eq!(client.send("SET kept 1"), "+OK");

    redis.kill();
    assert!(!super::runs(before.1));
    assert_eq!(TcpStream::connect(redis.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    redis.kill();

    redis.revive().unwrap();
    assert_eq!(redis.port(), before.0);
    assert_ne!(redis.pid(), before.1);
    assert_eq!(RedisClient::connect(&redis).send("GET kept"), "$1");
    let pid = redis.pid();
    redis.revive().unwrap();
    assert_eq!(redis.pid(), pid, "a running server is not restarted");
}

#[test]
fn a_revival_waits_for_its_port() {
    let redis = Redis::start().unwrap();
    redis.kill();
    let squatter = TcpListener::bind(redis.addr()).unwrap();
    thread::scope(|scope| {
        let revival = scope.spawn(|| redis.revive());
        super::eventually("the port is taken", || redis.log().contains("Address already in use"));
        drop(squatter);
        revival.join().unwrap().unwrap();
    });
    assert_eq!(RedisClient::connect(&redis).send("PING"), "+PONG");
}

#[test]
fn a_restart_stops_gracefully() {
    let redis = Redis::builder().config("appendonly", "yes").config("appendfsync", "no").start().unwrap();
    assert_eq!(RedisClient::connect(&redis).send("SET kept 1"), "+OK");
    redis.freeze();
    redis.restart().unwrap();
    assert_eq!(RedisClient::connect(&redis).send("GET kept"), "$1");
    assert!(redis.log().contains("Redis is now ready to exit"), "{}", redis.log());
}

#[test]
fn a_frozen_server_replies_only_after_it_is_thawed() {
    let redis = Redis::start().unwrap();
    let mut client = RedisClient::connect(&redis);
    assert_eq!(client.send("PING"), "+PONG");

    redis.freeze();
    let stream = client.0.get_mut();
    stream.write_all(b"PING\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);

    redis.thaw();
    stream.set_read_timeout(None).unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn there_is_one_shared_server() {
    assert_eq!(Redis::shared().pid(), Redis::shared().pid());
    assert_eq!(RedisClient::connect(Redis::shared()).send("PING"), "+PONG");
}
