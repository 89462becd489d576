//! Tests with a scripted server in memory: valid and invalid messages.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use forebay_pgoutput::{Frame, Lsn, StandbyStatusUpdate};
use forebay_reservoir::{ChannelBinding, PostgresError};
use forebay_testkit::within;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::payloads;
use crate::wire::auth::Identity;
use crate::wire::pace::{COALESCE_WINDOW, LONG_COALESCE_WINDOW};
use crate::wire::start::StartupRequest;
use crate::wire::{ReplicationConnection, ReplicationStream, WireError};

/// Capacity of the in-memory stream.
const CAPACITY: usize = 1 << 20;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &length, body].concat()
}

fn data(payload: &[u8]) -> Vec<u8> {
    message(b'd', &[&b"w"[..], &[0; 24], payload].concat())
}

fn welcome_messages() -> Vec<u8> {
    [
        message(b'R', &[0; 4]),
        message(b'S', b"server_version\x0015.1\0"),
        message(b'K', &[0, 0, 1, 2, 9, 9, 9, 9]),
        message(b'Z', b"I"),
    ]
    .concat()
}

fn startup_request() -> StartupRequest<'static> {
    let identity = Identity {
        user: "me",
        password: Some("secret"),
        binding: ChannelBinding::Prefer,
        server_end_point: None,
    };
    StartupRequest {
        address: "test server".to_owned(),
        identity,
        database: Some("db"),
        application_name: None,
        options: None,
    }
}

async fn open() -> (ReplicationConnection<DuplexStream>, DuplexStream) {
    let (client, mut server) = duplex(CAPACITY);
    server.write_all(&welcome_messages()).await.unwrap();
    let connection = startup_request().open(client).await.unwrap();
    let length = server.read_u32().await.unwrap();
    let mut sent = vec![0; length as usize - 4];
    server.read_exact(&mut sent).await.unwrap();
    (connection, server)
}

async fn stream() -> (ReplicationStream<DuplexStream>, DuplexStream) {
    let (connection, mut server) = open().await;
    server.write_all(&message(b'W', &[0, 0, 0])).await.unwrap();
    let stream = connection.start_replication("slot", Lsn(0), &[]).await.unwrap();
    assert_eq!(receive(&mut server).await, (b'Q', b"START_REPLICATION SLOT \"slot\" LOGICAL 0/0\0".to_vec()));
    (stream, server)
}

/// Reads the client's next message.
async fn receive(server: &mut DuplexStream) -> (u8, Vec<u8>) {
    let tag = server.read_u8().await.unwrap();
    let mut body = vec![0; server.read_u32().await.unwrap() as usize - 4];
    server.read_exact(&mut body).await.unwrap();
    (tag, body)
}

/// Polls a future once; `None` if it is pending.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn a_startup_sends_user_and_database_and_stores_the_servers_parameters() {
    let (client, mut server) = duplex(CAPACITY);
    server.write_all(&welcome_messages()).await.unwrap();
    let connection = startup_request().open(client).await.unwrap();
    assert_eq!((connection.backend_pid(), connection.address()), (0x0102, "test server"));
    assert_eq!((connection.parameter("server_version"), connection.parameter("x")), (Some("15.1"), None));
    let mut sent = vec![0; server.read_u32().await.unwrap() as usize - 4];
    server.read_exact(&mut sent).await.unwrap();
    assert_eq!(sent, b"\0\x03\0\0client_encoding\0UTF8\0user\0me\0replication\0database\0database\0db\0\0");
}

#[tokio::test]
async fn a_server_that_isnt_postgres_is_detected() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "the connection was lost"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "isn't Postgres"),
        (b"Ecould not fork new process for connection\n\0", "see its log"),
        (b"R\0\0\0\0", "isn't Postgres"),
        (b"R\0\0\0\x08\0\0\0\x63", "isn't Postgres"),
        (b"Z\0\0\0\x05I", "isn't Postgres"),
        (b"R\0\0\0\x08\0\0\0\0W\0\0\0\x04", "isn't Postgres"),
    ];
    for (bytes, wanted) in cases {
        let (client, mut server) = duplex(CAPACITY);
        server.write_all(bytes).await.unwrap();
        server.shutdown().await.unwrap();
        let error = within("an error", startup_request().open(client)).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{:?}: {error}", String::from_utf8_lossy(bytes));
        assert!(error.to_string().starts_with("test server: "), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_keeps_its_sqlstate() {
    let (client, mut server) = duplex(CAPACITY);
    server.write_all(&message(b'E', b"SFATAL\0VFATAL\0C53300\0Mtoo many\0\0")).await.unwrap();
    match startup_request().open(client).await.unwrap_err() {
        PostgresError::Server { error, .. } => {
            assert_eq!((error.code(), error.message()), ("53300", "too many"))
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_result_has_the_rows_of_the_last_statement() {
    let (mut connection, mut server) = open().await;
    let row = |values: &[u8]| message(b'D', &[&[0, 2][..], values].concat());
    let messages = [
        message(b'T', &[0, 0]),
        row(b"\0\0\0\x01x\0\0\0\x01y"),
        message(b'C', b"SELECT 1\0"),
        message(b'N', b"SNOTICE\0C01000\0Msecret\0\0"),
        message(b'A', b"\0\0\0\x01c\0m\0"),
        message(b'S', b"TimeZone\0UTC\0"),
        message(b'T', &[0, 0]),
        row(b"\0\0\0\x02hi\xff\xff\xff\xff"),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ];
    // One byte at a time.
    let cut = async {
        for byte in messages.concat() {
            server.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let (rows, ()) = tokio::join!(connection.query("SELECT"), cut);
    assert_eq!(rows.unwrap(), [[Some("hi".to_owned()), None]]);
    assert_eq!(connection.parameter("TimeZone"), Some("UTC"));
    assert_eq!(receive(&mut server).await, (b'Q', b"SELECT\0".to_vec()));
}

#[tokio::test]
async fn after_an_error_the_connection_is_usable_unless_it_was_fatal() {
    let (mut connection, mut server) = open().await;
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Mwhat?\0\0");
    server.write_all(&[error, message(b'Z', b"I")].concat()).await.unwrap();
    match connection.query("SELCT").await.unwrap_err() {
        WireError::Server(error) => assert_eq!(error.code(), "42601"),
        other => panic!("{other}"),
    }
    assert!(!connection.is_broken());
    server.write_all(&message(b'Z', b"I")).await.unwrap();
    assert!(connection.query("").await.unwrap().is_empty());

    server.write_all(&message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mgoing down\0\0")).await.unwrap();
    server.shutdown().await.unwrap();
    let error = connection.query("SELECT 1").await.unwrap_err();
    assert_eq!(error.to_string(), "going down [57P01]", "the error, not that the connection was closed");
    assert!(connection.is_broken());
    assert!(matches!(connection.query("SELECT 1").await, Err(WireError::Broken)));
}

#[tokio::test]
async fn a_cancelled_query_makes_the_connection_unusable() {
    let (mut connection, mut server) = open().await;
    assert!(poll_once(connection.query("SELECT 1")).await.is_none());
    server.write_all(&message(b'Z', b"I")).await.unwrap();
    assert!(connection.is_broken());
    assert!(matches!(connection.query("SELECT 2").await, Err(WireError::Broken)));
    assert!(matches!(connection.start_replication("s", Lsn(0), &[]).await, Err(WireError::Broken)));
}

#[tokio::test]
async fn a_result_is_bounded() {
    let one = message(b'D', b"\0\x01\xff\xff\xff\xff");
    let (mut connection, mut server) = open().await;
    let sending = async { server.write_all(&one.repeat(20_000)).await };
    let (error, _) = tokio::join!(connection.query("SELECT"), sending);
    assert!(matches!(error, Err(WireError::TooBig { rows: 10_000, .. })), "{error:?}");
    assert!(connection.is_broken());

    let (mut connection, mut server) = open().await;
    server.write_all(b"D\x7f\0\0\0").await.unwrap();
    let error = connection.query("SELECT").await.unwrap_err();
    assert!(error.to_string().contains("a message 'D' of 2130706433 bytes is over the limit"), "{error}");
}

#[tokio::test]
async fn frames_are_read_between_other_messages() {
    let (mut stream, mut server) = stream().await;
    let messages = [
        data(b"one"),
        message(b'N', b"SNOTICE\0C00000\0Mrow values\0\0"),
        message(b'S', b"TimeZone\0UTC\0"),
        message(b'd', b"k\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\x01"),
        data(b"two"),
        data(b"cut")[..9].to_vec(),
    ];
    server.write_all(&messages.concat()).await.unwrap();
    stream.readable().await.unwrap();
    assert_eq!(payloads(&mut stream).unwrap(), [b"one", b"two"]);
    assert!(
        poll_once(stream.readable()).await.is_none(),
        "the incomplete frame isn't returned, and cancelling the wait loses nothing"
    );
    server.write_all(&data(b"cut")[9..]).await.unwrap();
    stream.readable().await.unwrap();
    assert_eq!(payloads(&mut stream).unwrap(), [b"cut"]);
}

#[tokio::test]
async fn frames_that_were_read_are_consumed_and_others_are_not() {
    let (mut stream, mut server) = stream().await;
    server.write_all(&[data(b"one"), data(b"two"), data(b"six")].concat()).await.unwrap();
    stream.readable().await.unwrap();
    let (mut frames, _) = stream.split();
    frames.next().unwrap().unwrap();
    within("more frames", stream.readable()).await.unwrap();
    assert_eq!(payloads(&mut stream).unwrap(), [b"two", b"six"]);
}

#[tokio::test]
async fn every_read_after_the_end_returns_the_reason() {
    let cases: [(Vec<u8>, &str); 7] = [
        (message(b'c', b""), "the server ended the replication stream"),
        (message(b'C', b"COPY 0\0"), "the server ended the replication stream"),
        (message(b'E', b"SFATAL\0C57P01\0Mterminating\0\0"), "terminating [57P01]"),
        (message(b'd', b"x"), "protocol violation"),
        (message(b'Z', b"I"), "a message 0x5a in a replication stream"),
        (b"d\0\0\0\x03".to_vec(), "whose length is 3"),
        (b"d\x7f\xff\xff\xff".to_vec(), "a message 'd' of 2147483648 bytes is over the limit"),
    ];
    for (bytes, wanted) in cases {
        let (mut stream, mut server) = stream().await;
        server.write_all(&[data(b"one"), bytes].concat()).await.unwrap();
        stream.readable().await.unwrap();
        let (mut frames, _) = stream.split();
        frames.next().unwrap().unwrap();
        for _ in 0..2 {
            let error = frames.next().unwrap().unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
    for bytes in [data(b"one"), data(b"one")[..20].to_vec()] {
        let (mut stream, mut server) = stream().await;
        server.write_all(&bytes).await.unwrap();
        server.shutdown().await.unwrap();
        let _until_the_end = stream.readable().await;
        let _whole = payloads(&mut stream).unwrap();
        let error = stream.readable().await.unwrap_err();
        assert!(matches!(error, WireError::Lost(_)), "{error}");
        assert!(error.to_string().contains("the server closed the connection"), "{error}");
    }
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused() {
    let (mut stream, mut server) = stream().await;
    stream.limit_frames(100);
    server.write_all(&data(&[7; 100])).await.unwrap();
    let error = stream.readable().await.unwrap_err();
    assert!(matches!(error, WireError::TooLong { tag: b'd', bytes: 130, limit: 100 }), "{error}");
}

#[tokio::test]
async fn statuses_are_sent_while_frames_are_borrowed() {
    let (mut stream, mut server) = stream().await;
    server.write_all(&data(b"held")).await.unwrap();
    stream.readable().await.unwrap();
    let (mut frames, mut sender) = stream.split();
    let Frame::XLogData { payload: held, .. } = frames.next().unwrap().unwrap() else { panic!("it is data") };
    let status = StandbyStatusUpdate { flushed: Lsn(9), ..StandbyStatusUpdate::default() };
    sender.send(status).await.unwrap();
    assert_eq!(receive(&mut server).await, (b'd', status.encode().to_vec()));
    assert_eq!(held, b"held");
}

#[tokio::test]
async fn frames_are_read_while_the_server_doesnt_read() {
    let (client, mut server) = duplex(64);
    let opening = async {
        let connection = startup_request().open(client).await.unwrap();
        connection.start_replication("slot", Lsn(0), &[]).await.unwrap()
    };
    let welcoming = async {
        let mut sent = vec![0; server.read_u32().await.unwrap() as usize - 4];
        server.read_exact(&mut sent).await.unwrap();
        server.write_all(&[welcome_messages(), message(b'W', &[0, 0, 0])].concat()).await.unwrap();
        receive(&mut server).await;
    };
    let (mut stream, ()) = tokio::join!(opening, welcoming);
    for number in 0..10 {
        let (_, mut sender) = stream.split();
        let status = StandbyStatusUpdate { flushed: Lsn(number), ..StandbyStatusUpdate::default() };
        within("a status is queued", sender.send(status)).await.unwrap();
    }
    for payload in [&b"one"[..], b"two"] {
        server.write_all(&data(payload)).await.unwrap();
        within("a frame", stream.readable()).await.unwrap();
        assert_eq!(payloads(&mut stream).unwrap(), [payload]);
    }
    // When the server reads again, it gets the newest status, while the client waits for frames.
    let receiving =
        async { [receive(&mut server).await, receive(&mut server).await, receive(&mut server).await] };
    let received = tokio::select! {
        received = within("the newest", receiving) => received,
        more = stream.readable() => panic!("nothing more comes: {more:?}"),
    };
    let flushed = received.map(|(_, status)| status[16]);
    assert_eq!(flushed, [0, 1, 9], "what fit the stream, what was being written, and the newest");
}

#[tokio::test(start_paused = true)]
async fn closing_a_stream_sends_pending_messages_and_waits_a_second_at_most() {
    let (mut stream, mut server) = stream().await;
    let status = StandbyStatusUpdate { flushed: Lsn(9), ..StandbyStatusUpdate::default() };
    stream.split().1.send(status).await.unwrap();
    let started_at = tokio::time::Instant::now();
    stream.close().await;
    assert_eq!(started_at.elapsed(), Duration::from_secs(1), "this server never closes the connection");
    let mut sent = Vec::new();
    server.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, [message(b'd', &status.encode()), message(b'c', b""), message(b'X', b"")].concat());

    let (connection, mut server) = open().await;
    let closing = async {
        let received = receive(&mut server).await;
        drop(server);
        received
    };
    let started_at = tokio::time::Instant::now();
    let ((), received) = tokio::join!(connection.close(), closing);
    assert_eq!((received, started_at.elapsed()), ((b'X', vec![]), Duration::ZERO));
}

#[tokio::test]
async fn a_refused_slot_is_an_error_and_closes_the_connection() {
    let (connection, mut server) = open().await;
    let error = message(b'E', b"SERROR\0VERROR\0C55006\0Mslot is active\0\0");
    server.write_all(&[error, message(b'Z', b"I")].concat()).await.unwrap();
    let receiving = async {
        let received = [receive(&mut server).await.0, receive(&mut server).await.0];
        drop(server);
        received
    };
    let (started, received) = tokio::join!(connection.start_replication("slot", Lsn(0), &[]), receiving);
    match started.unwrap_err() {
        WireError::Server(error) => assert_eq!(error.code(), "55006"),
        other => panic!("{other}"),
    }
    assert_eq!(received, [b'Q', b'X']);
}

/// Messages with valid tags and random bodies, and random bytes.
fn random_messages() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop::sample::select(b"RSKZENATDCIWdcGHv1".to_vec());
    let body = prop::collection::vec(prop_oneof![Just(0_u8), 0..14_u8, any::<u8>()], 0..40);
    let one = (tag, body).prop_map(|(tag, body)| message(tag, &body));
    let raw = prop::collection::vec(any::<u8>(), 0..30);
    prop::collection::vec(prop_oneof![4 => one, 1 => raw], 0..8).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn no_message_of_a_server_causes_more_than_an_error(
        first in random_messages(),
        second in random_messages(),
        welcomes in any::<bool>(),
        streams in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(within("an end", async {
            let (client, mut server) = duplex(CAPACITY);
            let begin = if welcomes { welcome_messages() } else { first.clone() };
            let then = if streams { message(b'W', &[0, 0, 0]) } else { Vec::new() };
            server.write_all(&[begin, then, second].concat()).await.unwrap();
            server.shutdown().await.unwrap();
            let Ok(mut connection) = startup_request().open(client).await else { return };
            if !streams {
                let _error = connection.query("SELECT 1").await;
                return;
            }
            let Ok(mut stream) = connection.start_replication("slot", Lsn(0), &[]).await else { return };
            while stream.readable().await.is_ok() && payloads(&mut stream).is_ok() {}
        }));
    }
}

#[tokio::test(start_paused = true)]
async fn only_after_a_burst_is_the_low_water_mark_raised() {
    let (mut stream, mut server) = stream().await;
    let transaction = [data(&[&b"B"[..], &[0; 20]].concat()), data(&[&b"C"[..], &[0; 25]].concat())].concat();
    for (count, is_burst, window) in
        [(1, false, COALESCE_WINDOW), (4, true, LONG_COALESCE_WINDOW), (1, false, COALESCE_WINDOW)]
    {
        server.write_all(&transaction.repeat(count)).await.unwrap();
        stream.readable().await.unwrap();
        assert_eq!(payloads(&mut stream).unwrap().len(), 2 * count);
        let read_at = Instant::now();
        server.write_all(&transaction).await.unwrap();
        assert!(poll_once(stream.readable()).await.is_none(), "{count}: read at once");
        assert_eq!(stream.is_low_water_raised(), is_burst, "{count}");
        stream.readable().await.unwrap();
        assert_eq!(read_at.elapsed(), window, "{count}");
        assert!(!stream.is_low_water_raised(), "{count}: still raised");
        payloads(&mut stream).unwrap();
        tokio::time::sleep(LONG_COALESCE_WINDOW).await; // so that the next one is no burst
    }
}
