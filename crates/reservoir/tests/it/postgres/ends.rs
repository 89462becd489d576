//! End of connections: `close` waits for the server, and nothing leaks.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use forebay_reservoir::{Connect, PostgresClient, PostgresConnect, ReservoirConnection};
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};

use super::certificates::{Authority, PASSWORD, start};
use super::{ask, count, open, open_by, run};

/// The role may have one connection, so the next dial fails if the server still counts the last
/// one.
async fn open_and_close_in_turn(connect: &PostgresConnect) {
    for turn in 0..15 {
        let client = open_by(connect).await.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        assert_eq!(ask(&client, "SELECT 1").await, "1");
        within("the server's close", client.close()).await;
    }
}

#[tokio::test]
async fn a_closed_connection_doesnt_count_any_more() {
    let postgres = start(&Authority::new().server(&["localhost"]));
    run(&postgres, &[&format!("CREATE ROLE once LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 1")]);
    let port = postgres.port();
    let socket = postgres.socket_dir().to_str().unwrap();
    for (host, mode) in [("127.0.0.1", "disable"), ("127.0.0.1", "require"), (socket, "disable")] {
        let conninfo =
            format!("user=once dbname=postgres host={host} port={port} password='{PASSWORD}' sslmode={mode}");
        open_and_close_in_turn(&PostgresConnect::new(&conninfo).unwrap()).await;
    }
}

#[tokio::test]
async fn a_connection_that_was_refused_doesnt_count_any_more() {
    let postgres = Postgres::start().unwrap();
    run(&postgres, &["CREATE ROLE once LOGIN CONNECTION LIMIT 1"]);
    let to = |database: &str| format!("postgres://once@127.0.0.1:{}/{database}", postgres.port());
    for turn in 0..30 {
        let error = open(&to("nowhere")).await.unwrap_err();
        assert!(error.to_string().contains("[3D000]"), "turn {turn}: {error}");
        let client = open(&to("postgres")).await.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        within("the server's close", client.close()).await;
    }
}

#[tokio::test]
async fn the_server_doesnt_list_a_connection_whose_close_has_resolved() {
    let postgres = Postgres::shared();
    let watcher = open(&postgres.url("postgres")).await.unwrap();
    let url = format!("{}?application_name=listed", postgres.url("postgres"));
    for state in ["", "BEGIN", "BEGIN; SELECT 1 / 0", "LISTEN news"] {
        let client = open(&url).await.unwrap();
        let _may_fail = client.batch_execute(state).await;
        assert_eq!(count(&watcher, "listed").await, "1", "{state}");
        within("the server's close", client.close()).await;
        assert_eq!(count(&watcher, "listed").await, "0", "{state}");
    }
}

#[tokio::test]
async fn closing_a_busy_connection_cancels_its_query() {
    let postgres = start(&Authority::new().server(&["localhost"]));
    let watcher = open(&postgres.url("postgres")).await.unwrap();
    for mode in ["disable", "require"] {
        let url = format!("{}?application_name=busy&sslmode={mode}", postgres.url("postgres"));
        let client = open(&url).await.unwrap();
        // The query is sent, and its future is dropped.
        let mut query = Box::pin(client.simple_query("SELECT pg_sleep(3600)"));
        assert!(futures_util::poll!(&mut query).is_pending());
        drop(query);
        within("the server's close", client.close()).await;
        assert_eq!(count(&watcher, "busy").await, "0", "{mode}");
    }
}

#[tokio::test]
async fn dropping_a_close_closes_the_socket() {
    let postgres = Postgres::start().unwrap();
    let watcher = open(&postgres.url("postgres")).await.unwrap();
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres@{}/postgres?application_name=stalled", proxy.addr());
    for busy in [false, true] {
        let client = open(&url).await.unwrap();
        proxy.stall(Direction::ToClient);
        let mut query = Box::pin(client.simple_query("SELECT 1"));
        if busy {
            assert!(futures_util::poll!(&mut query).is_pending());
        }
        drop(query);
        let closed = tokio::time::timeout(Duration::from_millis(300), client.close()).await;
        assert!(closed.is_err(), "the server's close does not arrive");
        let none = "0".to_owned();
        eventually("the server notices", none, async || count(&watcher, "stalled").await).await;
        proxy.resume();
    }
}

#[tokio::test]
async fn dropping_a_client_sends_terminate() {
    let postgres = Postgres::start().unwrap();
    let watcher = open(&postgres.url("postgres")).await.unwrap();
    drop(open(&format!("{}?application_name=dropped", postgres.url("postgres"))).await.unwrap());
    eventually("the backend has ended", "0".to_owned(), async || count(&watcher, "dropped").await).await;
    assert!(!postgres.log().contains("unexpected EOF on client connection"), "{}", postgres.log());
}

#[tokio::test]
async fn a_connection_that_the_server_ends_is_closed() {
    let postgres = Postgres::start().unwrap();
    let ended = |client: PostgresClient| async move {
        eventually("the client detects the close", true, async || client.is_closed()).await;
        within("closing a closed connection", client.close()).await;
    };
    let (first, second) =
        (open(&postgres.url("postgres")).await.unwrap(), open(&postgres.url("postgres")).await);
    let pid = ask(&first, "SELECT pg_backend_pid()").await;
    run(&postgres, &[&format!("SELECT pg_terminate_backend({pid})")]);
    ended(first).await;
    postgres.kill();
    let mut second = second.unwrap();
    let error = within("an error", second.reset("SELECT 1")).await.unwrap_err();
    assert_eq!(error.kind().as_str(), "unreachable", "{error}");
    ended(second).await;
}

/// Polls a dial at most `polls` times and drops it, at a different point each time.
#[tokio::test]
async fn a_dropped_dial_leaves_no_backend() {
    let postgres = start(&Authority::new().server(&["localhost"]));
    let watcher = open(&postgres.url("postgres")).await.unwrap();
    for mode in ["disable", "require"] {
        let url = format!("{}?application_name=given_up&sslmode={mode}", postgres.url("postgres"));
        let connect = PostgresConnect::new(&url).unwrap();
        let mut made = 0;
        for polls in 1..60 {
            let mut making = pin!(async { connect.connect(connect.credentials().await?).await });
            let mut left = polls;
            let outcome = within(
                "an end",
                std::future::poll_fn(|cx| match making.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => {
                        left -= 1;
                        Poll::Pending
                    }
                }),
            )
            .await;
            if let Some(result) = outcome {
                made += 1;
                drop(result.unwrap());
            }
            if made > 2 {
                break;
            }
        }
        assert!(made > 2, "some were made: {mode}");
        eventually("none is left", "0".to_owned(), async || count(&watcher, "given_up").await).await;
    }
}
