//! A server that is played, over memory: what it may say, and what it may not.

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
use crate::wire::pace::{BREATH, LONG_BREATH};
use crate::wire::start::Hello;
use crate::wire::{Copy, Wire, WireError};

/// What fits between the two sides.
const ROOM: usize = 1 << 20;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &length, body].concat()
}

fn data(payload: &[u8]) -> Vec<u8> {
    message(b'd', &[&b"w"[..], &[0; 24], payload].concat())
}

fn welcome() -> Vec<u8> {
    [
        message(b'R', &[0; 4]),
        message(b'S', b"server_version\x0015.1\0"),
        message(b'K', &[0, 0, 1, 2, 9, 9, 9, 9]),
        message(b'Z', b"I"),
    ]
    .concat()
}

fn hello() -> Hello<'static> {
    let identity = Identity {
        user: "me",
        password: Some("secret"),
        binding: ChannelBinding::Prefer,
        server_end_point: None,
    };
    Hello {
        address: "played".to_owned(),
        identity,
        database: Some("db"),
        application_name: None,
        options: None,
    }
}

async fn open() -> (Wire<DuplexStream>, DuplexStream) {
    let (ours, mut theirs) = duplex(ROOM);
    theirs.write_all(&welcome()).await.unwrap();
    let wire = hello().say(ours).await.unwrap();
    let length = theirs.read_u32().await.unwrap();
    let mut said = vec![0; length as usize - 4];
    theirs.read_exact(&mut said).await.unwrap();
    (wire, theirs)
}

async fn stream() -> (Copy<DuplexStream>, DuplexStream) {
    let (wire, mut theirs) = open().await;
    theirs.write_all(&message(b'W', &[0, 0, 0])).await.unwrap();
    let copy = wire.start_replication("slot", Lsn(0), &[]).await.unwrap();
    assert_eq!(hear(&mut theirs).await, (b'Q', b"START_REPLICATION SLOT \"slot\" LOGICAL 0/0\0".to_vec()));
    (copy, theirs)
}

/// The next message of ours.
async fn hear(theirs: &mut DuplexStream) -> (u8, Vec<u8>) {
    let tag = theirs.read_u8().await.unwrap();
    let mut body = vec![0; theirs.read_u32().await.unwrap() as usize - 4];
    theirs.read_exact(&mut body).await.unwrap();
    (tag, body)
}

/// Polls once.
async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn a_start_up_says_who_and_what_and_remembers_the_server() {
    let (ours, mut theirs) = duplex(ROOM);
    theirs.write_all(&welcome()).await.unwrap();
    let wire = hello().say(ours).await.unwrap();
    assert_eq!((wire.backend_pid(), wire.address()), (0x0102, "played"));
    assert_eq!((wire.parameter("server_version"), wire.parameter("x")), (Some("15.1"), None));
    let mut said = vec![0; theirs.read_u32().await.unwrap() as usize - 4];
    theirs.read_exact(&mut said).await.unwrap();
    assert_eq!(said, b"\0\x03\0\0client_encoding\0UTF8\0user\0me\0replication\0database\0database\0db\0\0");
}

#[tokio::test]
async fn whoever_isnt_postgres_is_found_out() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "the connection was lost"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "isn't Postgres"),
        (b"Ecould not fork new process for connection\n\0", "its log does"),
        (b"R\0\0\0\0", "isn't Postgres"),
        (b"R\0\0\0\x08\0\0\0\x63", "isn't Postgres"),
        (b"Z\0\0\0\x05I", "isn't Postgres"),
        (b"R\0\0\0\x08\0\0\0\0W\0\0\0\x04", "isn't Postgres"),
    ];
    for (said, wanted) in cases {
        let (ours, mut theirs) = duplex(ROOM);
        theirs.write_all(said).await.unwrap();
        theirs.shutdown().await.unwrap();
        let error = within("an error", hello().say(ours)).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{:?}: {error}", String::from_utf8_lossy(said));
        assert!(error.to_string().starts_with("played: "), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_keeps_its_sqlstate() {
    let (ours, mut theirs) = duplex(ROOM);
    theirs.write_all(&message(b'E', b"SFATAL\0VFATAL\0C53300\0Mtoo many\0\0")).await.unwrap();
    match hello().say(ours).await.unwrap_err() {
        PostgresError::Server { error: said, .. } => {
            assert_eq!((said.code(), said.message()), ("53300", "too many"))
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_answer_is_the_rows_of_its_last_result() {
    let (mut wire, mut theirs) = open().await;
    let row = |values: &[u8]| message(b'D', &[&[0, 2][..], values].concat());
    let answer = [
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
    // However it is cut.
    let cut = async {
        for byte in answer.concat() {
            theirs.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let (rows, ()) = tokio::join!(wire.query("SELECT"), cut);
    assert_eq!(rows.unwrap(), [[Some("hi".to_owned()), None]]);
    assert_eq!(wire.parameter("TimeZone"), Some("UTC"));
    assert_eq!(hear(&mut theirs).await, (b'Q', b"SELECT\0".to_vec()));
}

#[tokio::test]
async fn an_error_leaves_a_connection_that_can_be_used_and_a_fatal_one_doesnt() {
    let (mut wire, mut theirs) = open().await;
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Mwhat?\0\0");
    theirs.write_all(&[error, message(b'Z', b"I")].concat()).await.unwrap();
    match wire.query("SELCT").await.unwrap_err() {
        WireError::Server(said) => assert_eq!(said.code(), "42601"),
        other => panic!("{other}"),
    }
    assert!(!wire.is_broken());
    theirs.write_all(&message(b'Z', b"I")).await.unwrap();
    assert!(wire.query("").await.unwrap().is_empty());

    theirs.write_all(&message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mgoing down\0\0")).await.unwrap();
    theirs.shutdown().await.unwrap();
    let error = wire.query("SELECT 1").await.unwrap_err();
    assert_eq!(error.to_string(), "going down [57P01]", "its last word, not that it hung up");
    assert!(wire.is_broken());
    assert!(matches!(wire.query("SELECT 1").await, Err(WireError::Broken)));
}

#[tokio::test]
async fn a_query_that_is_given_up_breaks_the_connection_for_good() {
    let (mut wire, mut theirs) = open().await;
    assert!(once(wire.query("SELECT 1")).await.is_none());
    theirs.write_all(&message(b'Z', b"I")).await.unwrap();
    assert!(wire.is_broken());
    assert!(matches!(wire.query("SELECT 2").await, Err(WireError::Broken)));
    assert!(matches!(wire.start_replication("s", Lsn(0), &[]).await, Err(WireError::Broken)));
}

#[tokio::test]
async fn an_answer_is_bounded() {
    let one = message(b'D', b"\0\x01\xff\xff\xff\xff");
    let (mut wire, mut theirs) = open().await;
    let sending = async { theirs.write_all(&one.repeat(20_000)).await };
    let (error, _) = tokio::join!(wire.query("SELECT"), sending);
    assert!(matches!(error, Err(WireError::Big { rows: 10_000, .. })), "{error:?}");
    assert!(wire.is_broken());

    let (mut wire, mut theirs) = open().await;
    theirs.write_all(b"D\x7f\0\0\0").await.unwrap();
    let error = wire.query("SELECT").await.unwrap_err();
    assert!(error.to_string().contains("a message 'D' of 2130706433 bytes is over the limit"), "{error}");
}

#[tokio::test]
async fn frames_come_between_whatever_else_is_said() {
    let (mut copy, mut theirs) = stream().await;
    let said = [
        data(b"one"),
        message(b'N', b"SNOTICE\0C00000\0Mrow values\0\0"),
        message(b'S', b"TimeZone\0UTC\0"),
        message(b'd', b"k\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\x01"),
        data(b"two"),
        data(b"cut")[..9].to_vec(),
    ];
    theirs.write_all(&said.concat()).await.unwrap();
    copy.filled().await.unwrap();
    assert_eq!(payloads(&mut copy).unwrap(), [b"one", b"two"]);
    assert!(
        once(copy.filled()).await.is_none(),
        "what is cut isn't there yet, and giving up the wait loses nothing"
    );
    theirs.write_all(&data(b"cut")[9..]).await.unwrap();
    copy.filled().await.unwrap();
    assert_eq!(payloads(&mut copy).unwrap(), [b"cut"]);
}

#[tokio::test]
async fn what_was_taken_is_consumed_and_the_rest_is_not() {
    let (mut copy, mut theirs) = stream().await;
    theirs.write_all(&[data(b"one"), data(b"two"), data(b"six")].concat()).await.unwrap();
    copy.filled().await.unwrap();
    let (mut frames, _) = copy.split();
    frames.next().unwrap().unwrap();
    within("there is more", copy.filled()).await.unwrap();
    assert_eq!(payloads(&mut copy).unwrap(), [b"two", b"six"]);
}

#[tokio::test]
async fn a_stream_ends_with_a_reason_that_stays() {
    let cases: [(Vec<u8>, &str); 7] = [
        (message(b'c', b""), "the server ended the replication stream"),
        (message(b'C', b"COPY 0\0"), "the server ended the replication stream"),
        (message(b'E', b"SFATAL\0C57P01\0Mterminating\0\0"), "terminating [57P01]"),
        (message(b'd', b"x"), "what the protocol doesn't allow"),
        (message(b'Z', b"I"), "a message 0x5a in a replication stream"),
        (b"d\0\0\0\x03".to_vec(), "whose length is 3"),
        (b"d\x7f\xff\xff\xff".to_vec(), "a message 'd' of 2147483648 bytes is over the limit"),
    ];
    for (said, wanted) in cases {
        let (mut copy, mut theirs) = stream().await;
        theirs.write_all(&[data(b"one"), said].concat()).await.unwrap();
        copy.filled().await.unwrap();
        let (mut frames, _) = copy.split();
        frames.next().unwrap().unwrap();
        for _ in 0..2 {
            let error = frames.next().unwrap().unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
    for said in [data(b"one"), data(b"one")[..20].to_vec()] {
        let (mut copy, mut theirs) = stream().await;
        theirs.write_all(&said).await.unwrap();
        theirs.shutdown().await.unwrap();
        let _until_the_end = copy.filled().await;
        let _whole = payloads(&mut copy).unwrap();
        let error = copy.filled().await.unwrap_err();
        assert!(matches!(error, WireError::Lost(_)), "{error}");
        assert!(error.to_string().contains("the server closed the connection"), "{error}");
    }
}

#[tokio::test]
async fn a_frame_over_the_limit_that_was_set_is_refused() {
    let (mut copy, mut theirs) = stream().await;
    copy.limit_frames(100);
    theirs.write_all(&data(&[7; 100])).await.unwrap();
    let error = copy.filled().await.unwrap_err();
    assert!(matches!(error, WireError::Long { tag: b'd', bytes: 130, limit: 100 }), "{error}");
}

#[tokio::test]
async fn the_server_is_answered_while_frames_are_held() {
    let (mut copy, mut theirs) = stream().await;
    theirs.write_all(&data(b"held")).await.unwrap();
    copy.filled().await.unwrap();
    let (mut frames, mut answer) = copy.split();
    let Frame::XLogData { payload: held, .. } = frames.next().unwrap().unwrap() else { panic!("it is data") };
    let status = StandbyStatusUpdate { flushed: Lsn(9), ..StandbyStatusUpdate::default() };
    answer.status(status).await.unwrap();
    assert_eq!(hear(&mut theirs).await, (b'd', status.encode().to_vec()));
    assert_eq!(held, b"held");
}

#[tokio::test]
async fn a_server_that_doesnt_read_is_still_read() {
    let (ours, mut theirs) = duplex(64);
    let opening = async {
        let wire = hello().say(ours).await.unwrap();
        wire.start_replication("slot", Lsn(0), &[]).await.unwrap()
    };
    let welcoming = async {
        let mut said = vec![0; theirs.read_u32().await.unwrap() as usize - 4];
        theirs.read_exact(&mut said).await.unwrap();
        theirs.write_all(&[welcome(), message(b'W', &[0, 0, 0])].concat()).await.unwrap();
        hear(&mut theirs).await;
    };
    let (mut copy, ()) = tokio::join!(opening, welcoming);
    for number in 0..10 {
        let (_, mut answer) = copy.split();
        let status = StandbyStatusUpdate { flushed: Lsn(number), ..StandbyStatusUpdate::default() };
        within("no answer waits", answer.status(status)).await.unwrap();
    }
    for payload in [&b"one"[..], b"two"] {
        theirs.write_all(&data(payload)).await.unwrap();
        within("reading goes on", copy.filled()).await.unwrap();
        assert_eq!(payloads(&mut copy).unwrap(), [payload]);
    }
    // As soon as it reads, it gets the newest, while we wait for more.
    let hearing = async { [hear(&mut theirs).await, hear(&mut theirs).await, hear(&mut theirs).await] };
    let heard = tokio::select! {
        heard = within("the newest", hearing) => heard,
        more = copy.filled() => panic!("nothing more comes: {more:?}"),
    };
    let flushed = heard.map(|(_, status)| status[16]);
    assert_eq!(flushed, [0, 1, 9], "what fitted, what was begun, and the newest");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_closed_in_order_and_not_for_ever() {
    let (mut copy, mut theirs) = stream().await;
    let status = StandbyStatusUpdate { flushed: Lsn(9), ..StandbyStatusUpdate::default() };
    copy.split().1.status(status).await.unwrap();
    let begun = tokio::time::Instant::now();
    copy.close().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1), "this server never lets go");
    let mut said = Vec::new();
    theirs.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, [message(b'd', &status.encode()), message(b'c', b""), message(b'X', b"")].concat());

    let (wire, mut theirs) = open().await;
    let letting_go = async {
        let heard = hear(&mut theirs).await;
        drop(theirs);
        heard
    };
    let begun = tokio::time::Instant::now();
    let ((), heard) = tokio::join!(wire.close(), letting_go);
    assert_eq!((heard, begun.elapsed()), ((b'X', vec![]), Duration::ZERO));
}

#[tokio::test]
async fn a_slot_that_isnt_given_is_an_error_and_a_goodbye() {
    let (wire, mut theirs) = open().await;
    let said = message(b'E', b"SERROR\0VERROR\0C55006\0Mslot is active\0\0");
    theirs.write_all(&[said, message(b'Z', b"I")].concat()).await.unwrap();
    let listening = async {
        let heard = [hear(&mut theirs).await.0, hear(&mut theirs).await.0];
        drop(theirs);
        heard
    };
    let (started, heard) = tokio::join!(wire.start_replication("slot", Lsn(0), &[]), listening);
    match started.unwrap_err() {
        WireError::Server(said) => assert_eq!(said.code(), "55006"),
        other => panic!("{other}"),
    }
    assert_eq!(heard, [b'Q', b'X']);
}

/// Tags that mean something, with lengths that may.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop::sample::select(b"RSKZENATDCIWdcGHv1".to_vec());
    let body = prop::collection::vec(prop_oneof![Just(0_u8), 0..14_u8, any::<u8>()], 0..40);
    let one = (tag, body).prop_map(|(tag, body)| message(tag, &body));
    let raw = prop::collection::vec(any::<u8>(), 0..30);
    prop::collection::vec(prop_oneof![4 => one, 1 => raw], 0..8).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn nothing_that_a_server_says_is_more_than_an_error(
        first in nonsense(),
        second in nonsense(),
        welcomes in any::<bool>(),
        streams in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(within("an end", async {
            let (ours, mut theirs) = duplex(ROOM);
            let begin = if welcomes { welcome() } else { first.clone() };
            let then = if streams { message(b'W', &[0, 0, 0]) } else { Vec::new() };
            theirs.write_all(&[begin, then, second].concat()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let Ok(mut wire) = hello().say(ours).await else { return };
            if !streams {
                let _error = wire.query("SELECT 1").await;
                return;
            }
            let Ok(mut copy) = wire.start_replication("slot", Lsn(0), &[]).await else { return };
            while copy.filled().await.is_ok() && payloads(&mut copy).is_ok() {}
        }));
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_follows_a_crowd_waits_without_waking_us() {
    let (mut copy, mut theirs) = stream().await;
    let transaction = [data(&[&b"B"[..], &[0; 20]].concat()), data(&[&b"C"[..], &[0; 25]].concat())].concat();
    for (count, is_crowd, waits) in [(1, false, BREATH), (4, true, LONG_BREATH), (1, false, BREATH)] {
        theirs.write_all(&transaction.repeat(count)).await.unwrap();
        copy.filled().await.unwrap();
        assert_eq!(payloads(&mut copy).unwrap().len(), 2 * count);
        let read_at = Instant::now();
        theirs.write_all(&transaction).await.unwrap();
        assert!(once(copy.filled()).await.is_none(), "{count}: read at once");
        assert_eq!(copy.is_gathering(), is_crowd, "{count}");
        copy.filled().await.unwrap();
        assert_eq!(read_at.elapsed(), waits, "{count}");
        assert!(!copy.is_gathering(), "{count}: the mark stays");
        payloads(&mut copy).unwrap();
        tokio::time::sleep(LONG_BREATH).await; // the next is alone
    }
}
