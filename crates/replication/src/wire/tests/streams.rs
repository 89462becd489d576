//! Tests of replication streams of real servers.

use std::time::Duration;

use forebay_pgoutput::{
    Frame, Lsn, PgOutputDecoder, PgOutputMessage, PgTime, StandbyStatusUpdate, TupleValue,
};
use forebay_reservoir::PostgresConnect;
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::wire::{ReplicationConnection, ReplicationStream, WireError};

/// A replication stream of a test server, with a decoder.
struct TestStream {
    stream: ReplicationStream,
    decoder: PgOutputDecoder,
    was_low_water_raised: bool,
}

fn prepare(postgres: &Postgres) {
    let setup =
        "CREATE TABLE things (id bigint PRIMARY KEY, name text); ALTER TABLE things REPLICA IDENTITY FULL;
                 CREATE PUBLICATION all_things FOR ALL TABLES";
    postgres.execute("postgres", setup).unwrap();
}

async fn open(conninfo: &str) -> ReplicationConnection {
    let connect = PostgresConnect::new(conninfo).unwrap();
    within("a connection", ReplicationConnection::open(&connect)).await.unwrap()
}

async fn start_stream(conninfo: &str, slot: &str) -> TestStream {
    let mut connection = open(conninfo).await;
    let create = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT");
    within("a slot", connection.query(&create)).await.unwrap();
    resume(connection, slot).await.unwrap()
}

async fn resume(connection: ReplicationConnection, slot: &str) -> Result<TestStream, WireError> {
    let options = [("proto_version", "1"), ("publication_names", "\"all_things\"")];
    let stream = within("a stream", connection.start_replication(slot, Lsn(0), &options)).await?;
    Ok(TestStream { stream, decoder: PgOutputDecoder::new(), was_low_water_raised: false })
}

impl TestStream {
    /// Reads one transaction. Returns the inserted names, and the end of the commit.
    async fn transaction(&mut self) -> Result<(Vec<String>, Lsn), WireError> {
        let mut names = Vec::new();
        loop {
            within("frames", self.stream.readable()).await?;
            self.was_low_water_raised |= self.stream.is_low_water_raised();
            let (mut frames, _) = self.stream.split();
            while let Some(frame) = frames.next() {
                let Frame::XLogData { payload, .. } = frame? else { continue };
                match self.decoder.decode(payload).unwrap() {
                    PgOutputMessage::Insert(insert) => match insert.new.get(1) {
                        Some(TupleValue::Text(name)) => names.push(String::from_utf8(name.to_vec()).unwrap()),
                        other => panic!("{other:?}"),
                    },
                    PgOutputMessage::Commit(commit) => return Ok((names, commit.end_lsn)),
                    _ => {}
                }
            }
        }
    }

    /// Acknowledges all keepalives until the end: a server that shuts down waits for that.
    async fn acknowledge_until_the_end(&mut self) -> WireError {
        loop {
            if let Err(error) = self.stream.readable().await {
                return error;
            }
            let (mut frames, mut sender) = self.stream.split();
            while let Some(frame) = frames.next() {
                match frame {
                    Ok(Frame::Keepalive { wal_end, .. }) => sender.send(status(wal_end)).await.unwrap(),
                    Ok(Frame::XLogData { .. }) => {}
                    Err(error) => return error,
                }
            }
        }
    }

    async fn acknowledge(&mut self, lsn: Lsn) {
        self.stream.split().1.send(status(lsn)).await.unwrap();
    }
}

fn status(lsn: Lsn) -> StandbyStatusUpdate {
    StandbyStatusUpdate {
        received: lsn,
        flushed: lsn,
        applied: lsn,
        clock: PgTime(0),
        reply_requested: false,
    }
}

fn insert(postgres: &Postgres, from: u32, to: u32) {
    let sql = format!("INSERT INTO things SELECT id, 'thing ' || id FROM generate_series({from}, {to}) id");
    postgres.execute("postgres", &sql).unwrap();
}

fn names(from: u32, to: u32) -> Vec<String> {
    (from..=to).map(|id| format!("thing {id}")).collect()
}

fn one(postgres: &Postgres, sql: &str) -> String {
    postgres.query("postgres", sql).unwrap()[0][0].clone().unwrap()
}

#[tokio::test]
async fn every_insert_arrives_once_in_order_over_tcp_tls_and_unix_sockets() {
    let postgres = Postgres::builder().tls().start().unwrap();
    prepare(&postgres);
    let socket = postgres.socket_dir().display().to_string();
    let mut next = 1;
    for (number, (host, mode)) in
        [("127.0.0.1", "disable"), ("127.0.0.1", "require"), (&socket, "disable")].into_iter().enumerate()
    {
        let conninfo = format!("user=postgres dbname=postgres host={host} port={}", postgres.port());
        let mut test = start_stream(&format!("{conninfo} sslmode={mode}"), &format!("slot_{number}")).await;
        for size in [1, 3, 60_000, 1] {
            insert(&postgres, next, next + size - 1);
            let (came, _) = test.transaction().await.unwrap();
            assert!(came == names(next, next + size - 1), "{host} {mode} {size}: {} came", came.len());
            next += size;
        }
        within("the server closes the connection", test.stream.close()).await;
        assert_eq!(one(&postgres, "SELECT count(*) FROM pg_replication_slots WHERE active"), "0");
    }
}

#[tokio::test]
async fn a_backlog_is_read_in_large_parts_and_recent_changes_at_once() {
    let postgres = Postgres::builder().tls().start().unwrap();
    prepare(&postgres);
    for (number, mode) in ["disable", "require"].into_iter().enumerate() {
        let url = format!("{}?sslmode={mode}", postgres.url("postgres"));
        let slot = format!("slot_{number}");
        start_stream(&url, &slot).await.stream.close().await;
        let first = 100_000 * u32::try_from(number).unwrap() + 1;
        for from in [first, first + 20_000, first + 40_000] {
            insert(&postgres, from, from + 19_999);
        }
        tokio::time::sleep(Duration::from_millis(700)).await;

        let mut test = resume(open(&url).await, &slot).await.unwrap();
        for from in [first, first + 20_000, first + 40_000] {
            let (came, _) = test.transaction().await.unwrap();
            assert!(came == names(from, from + 19_999), "{mode}: {} came", came.len());
        }
        assert!(test.was_low_water_raised, "{mode}");

        // On a busy machine, the server may send even recent changes late.
        let mut is_read_at_once = async |id| {
            test.was_low_water_raised = false;
            insert(&postgres, id, id);
            assert_eq!(test.transaction().await.unwrap().0, names(id, id));
            !test.was_low_water_raised
        };
        let mut ids = first + 60_000..first + 61_000;
        while !is_read_at_once(ids.next().expect("one of a thousand is sent in time")).await {}
    }
}

#[tokio::test]
async fn acknowledged_transactions_arent_sent_again() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut test = start_stream(&postgres.url("postgres"), "s").await;
    insert(&postgres, 1, 10);
    let (_, first) = test.transaction().await.unwrap();
    test.acknowledge(first).await;
    let confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots";
    eventually("the slot has advanced", first.to_string(), async || one(&postgres, confirmed)).await;

    insert(&postgres, 11, 12);
    let (_, second) = test.transaction().await.unwrap();
    test.stream.close().await;
    let mut test = resume(open(&postgres.url("postgres")).await, "s").await.unwrap();
    let (came, again) = test.transaction().await.unwrap();
    assert_eq!((came, again), (names(11, 12), second), "the unacknowledged one is sent again");
    test.acknowledge(second).await;
    // The status before the close is processed.
    test.stream.close().await;
    assert_eq!(one(&postgres, confirmed), second.to_string());
}

#[tokio::test]
async fn a_huge_row_arrives_complete_and_its_memory_is_freed() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut test = start_stream(&postgres.url("postgres"), "s").await;
    let before = test.stream.buffer_bytes();
    postgres.execute("postgres", "INSERT INTO things VALUES (1, repeat('huge', 5000000))").unwrap();
    let (came, _) = test.transaction().await.unwrap();
    assert_eq!(came, ["huge".repeat(5_000_000)]);
    assert!(test.stream.buffer_bytes() > 20_000_000);
    insert(&postgres, 2, 3);
    let (came, _) = test.transaction().await.unwrap();
    assert_eq!(came, names(2, 3));
    assert_eq!(test.stream.buffer_bytes(), before);

    let mut connection = open(&postgres.url("postgres")).await;
    connection.query("CREATE_REPLICATION_SLOT small LOGICAL pgoutput NOEXPORT_SNAPSHOT").await.unwrap();
    let mut test = resume(connection, "small").await.unwrap();
    test.stream.limit_frames(1_000_000);
    postgres.execute("postgres", "INSERT INTO things VALUES (4, repeat('huge', 5000000))").unwrap();
    let error = test.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::TooLong { tag: b'd', .. }), "{error}");
}

#[tokio::test]
async fn each_kind_of_server_end_has_its_error() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut test = start_stream(&postgres.url("postgres"), "killed").await;
    postgres.kill();
    let error = test.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::Lost(_)), "{error}");
    within("the close", test.stream.close()).await;
    postgres.revive().unwrap();

    let mut test = resume(open(&postgres.url("postgres")).await, "killed").await.unwrap();
    postgres
        .execute("postgres", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        .unwrap();
    match test.transaction().await.unwrap_err() {
        WireError::Server(error) => assert_eq!(error.code(), "57P01"),
        other => panic!("{other}"),
    }

    let mut test = resume(open(&postgres.url("postgres")).await, "killed").await.unwrap();
    let waiting = async {
        let error = test.acknowledge_until_the_end().await;
        test.stream.close().await;
        error
    };
    let stopping = tokio::task::spawn_blocking(move || postgres.stop().map(|()| postgres));
    let error = within("the end", waiting).await;
    assert!(matches!(error, WireError::Ended | WireError::Server(_)), "{error}");
    within("a clean stop", stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_active_slot_and_a_missing_slot_have_different_errors() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let _test = start_stream(&postgres.url("postgres"), "taken").await;
    for (slot, code) in [("taken", "55006"), ("nowhere", "42704")] {
        match resume(open(&postgres.url("postgres")).await, slot).await.map(drop).unwrap_err() {
            WireError::Server(error) => assert_eq!(error.code(), code, "{error}"),
            other => panic!("{other}"),
        }
        let senders = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'";
        assert_eq!(one(&postgres, senders), "1", "refused connections have ended");
    }
}

#[tokio::test]
async fn a_stream_is_read_over_slow_and_stalled_networks() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.addr());
    let mut test = start_stream(&url, "s").await;
    insert(&postgres, 1, 20_000);
    proxy.throttle(2_000_000);
    let (came, end) = test.transaction().await.unwrap();
    assert!(came == names(1, 20_000), "{} came", came.len());
    proxy.resume();

    // Reading doesn't wait for writes, and writing doesn't wait for reads.
    proxy.stall(Direction::ToServer);
    for _ in 0..1000 {
        within("a status is queued", test.acknowledge(end)).await;
    }
    insert(&postgres, 20_001, 20_001);
    assert_eq!(test.transaction().await.unwrap().0, names(20_001, 20_001));
    proxy.resume();
    proxy.cut();
    let error = test.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_wait_that_is_cancelled_repeatedly_loses_nothing() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut test = start_stream(&postgres.url("postgres"), "s").await;
    insert(&postgres, 1, 100_000);
    let (mut came, mut cancelled) = (0, 0);
    'reading: loop {
        tokio::select! {
            biased;
            readable = test.stream.readable() => readable.unwrap(),
            () = tokio::time::sleep(Duration::from_micros(300)) => {
                cancelled += 1;
                continue;
            }
        }
        let (mut frames, _) = test.stream.split();
        while let Some(frame) = frames.next() {
            let Frame::XLogData { payload, .. } = frame.unwrap() else { continue };
            match test.decoder.decode(payload).unwrap() {
                PgOutputMessage::Insert(_) => came += 1,
                PgOutputMessage::Commit(_) => break 'reading,
                _ => {}
            }
        }
    }
    assert_eq!(came, 100_000, "cancelled {cancelled} times");
}
