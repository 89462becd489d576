//! Connectivity: addresses, TLS, sockets, poolers, network faults and server restarts.
//!
//! Out of scope: a host name with IPv4 and IPv6 addresses, which a test can't create. A list of
//! hosts takes the same code path.

mod faults;
mod pools;

use std::time::Duration;

use forebay_replication::reservoir::PostgresClient;
use forebay_replication::reservoir::tokio_postgres::SimpleQueryMessage;
use forebay_replication::{Manager, ManagerConfig};
use forebay_sandbox::Postgres;
use forebay_testkit::within;
use tokio::net::TcpListener;

use crate::followed_database::FollowedDatabase;
use crate::refusals::{contains_all, halted};

/// Returns a column of the stream's backend.
fn backend_column(followed: &FollowedDatabase<'_>, manager: &Manager, what: &str) -> Option<String> {
    let pid = manager.positions().backend_pid.expect("it streams");
    followed.query_value(&format!(
        "SELECT {what} FROM pg_stat_activity LEFT JOIN pg_stat_ssl USING (pid) WHERE pid = {pid}"
    ))
}

async fn started(followed: &FollowedDatabase<'_>, config: ManagerConfig) -> Manager {
    let manager = followed.start_with(config);
    within("the manager is ready", manager.ready()).await.unwrap();
    manager
}

/// Returns a keyword/value connection string.
fn conninfo(followed: &FollowedDatabase<'_>, host: &str, rest: &str) -> String {
    format!("user=postgres dbname={} host={host} port={} {rest}", followed.database, followed.server.port())
}

/// Returns the first column of the first row.
async fn query_value(client: &PostgresClient, sql: &str) -> Option<String> {
    client.simple_query(sql).await.unwrap().into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
        _ => None,
    })
}

/// Advances the clock of a single-threaded test.
pub(crate) async fn advance_clock(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_addresses_are_skipped() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let (port, database) = (followed.server.port(), &followed.database);
    // The server doesn't listen on IPv6.
    let manager = started(
        &followed,
        followed.config_at(&format!("postgres://postgres@[::1]:{port},127.0.0.1:{port}/{database}")),
    )
    .await;
    assert_eq!(backend_column(&followed, &manager, "host(client_addr)").as_deref(), Some("127.0.0.1"));
    manager.shutdown().await;
    // A listener that never replies.
    let silent = TcpListener::bind("[::1]:0").await.unwrap();
    let hosts = format!(
        "hostaddr=::1,127.0.0.1 port={},{port} connect_timeout=1",
        silent.local_addr().unwrap().port()
    );
    let manager = started(
        &followed,
        followed.config_at(&format!("user=postgres dbname={database} {hosts}")).pool_size(2),
    )
    .await;
    manager.shutdown().await;
    // A name is resolved, and each address is tried.
    let manager = started(&followed, followed.config_at(&conninfo(&followed, "localhost", ""))).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_and_unix_sockets_are_supported() {
    let server = Postgres::builder().listen("::1").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = started(&followed, followed.config_at(&conninfo(&followed, "::1", ""))).await;
    assert_eq!(backend_column(&followed, &manager, "host(client_addr)").as_deref(), Some("::1"));
    manager.shutdown().await;
    let socket = server.socket_dir().to_str().unwrap();
    let manager =
        started(&followed, followed.config_at(&conninfo(&followed, socket, "sslmode=require"))).await;
    assert_eq!(
        backend_column(&followed, &manager, "coalesce(host(client_addr), 'a socket')").as_deref(),
        Some("a socket")
    );
    assert_eq!(followed.resets(), ["first"], "the same server");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_follows_sslmode_for_replication_and_pools() {
    let builder = Postgres::builder().version(18).tls().password("secret");
    let server = builder.hba("hostssl all all 127.0.0.1/32 scram-sha-256").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let (ca, wrong_ca) = (server.ca_path().display(), server.wrong_ca_path().display());
    let config = |host: &str, rest: &str| {
        followed.config_at(&conninfo(&followed, host, &format!("password=secret {rest}")))
    };

    let encrypted = [
        ("127.0.0.1", "sslmode=require channel_binding=require".to_owned()),
        ("127.0.0.1", format!("sslmode=verify-ca sslrootcert={ca}")),
        ("localhost", format!("sslmode=verify-full sslrootcert={ca}")),
        // The name is verified, not the address.
        ("localhost", format!("hostaddr=127.0.0.1 sslrootcert={ca}")),
        ("127.0.0.1", "sslmode=require sslnegotiation=direct".to_owned()),
        ("127.0.0.1", "sslmode=prefer".to_owned()),
    ];
    for (host, rest) in &encrypted {
        let manager = started(&followed, config(host, rest)).await;
        assert_eq!(backend_column(&followed, &manager, "ssl").as_deref(), Some("t"), "{rest}");
        let admin = manager.admin().await.unwrap();
        let ssl = query_value(&admin, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await;
        assert_eq!(ssl.as_deref(), Some("t"), "the pools: {rest}");
        drop(admin);
        manager.shutdown().await;
    }
    let trust = "the authorities that are trusted didn't sign the server's certificate: check sslrootcert";
    let refused = [
        ("127.0.0.1", "sslmode=disable".to_owned(), "what pg_hba.conf says about it"),
        ("127.0.0.1", format!("sslmode=verify-full sslrootcert={wrong_ca}"), trust),
        ("127.0.0.1", format!("sslmode=verify-ca sslrootcert={wrong_ca}"), trust),
        (
            "db.test",
            format!("hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={ca}"),
            "connect by a name that the certificate is for",
        ),
    ];
    for (host, rest, advice) in &refused {
        let manager = followed.start_with(config(host, rest));
        contains_all(&halted(&manager).await, &[advice]);
        manager.shutdown().await;
    }
    // pg_hba.conf refuses TLS, and `prefer` falls back.
    server.set_hba(&["hostnossl all all 127.0.0.1/32 scram-sha-256"]).unwrap();
    server.reload().unwrap();
    let manager = started(&followed, config("127.0.0.1", "sslmode=prefer")).await;
    assert_eq!(backend_column(&followed, &manager, "ssl").as_deref(), Some("f"));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_if_required_and_accepted_if_preferred() {
    let followed = FollowedDatabase::new(Postgres::shared());
    for mode in ["require", "verify-full"] {
        let manager = followed.start_with(followed.config_at(&conninfo(
            &followed,
            "127.0.0.1",
            &format!("sslmode={mode}"),
        )));
        let why = format!("the server has no TLS, and sslmode={mode} asks for it");
        contains_all(&halted(&manager).await, &[&why, "set ssl = on there, or use another sslmode"]);
        manager.shutdown().await;
    }
    let manager =
        started(&followed, followed.config_at(&conninfo(&followed, "127.0.0.1", "sslmode=prefer"))).await;
    assert_eq!(backend_column(&followed, &manager, "ssl").as_deref(), Some("f"));
    manager.shutdown().await;
}
