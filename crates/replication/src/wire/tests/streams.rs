//! Replication streams of real servers.

use std::time::Duration;

use forebay_pgoutput::{
    Frame, Lsn, PgOutputDecoder, PgOutputMessage, PgTime, StandbyStatusUpdate, TupleValue,
};
use forebay_reservoir::PostgresConnect;
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::wire::{Copy, Wire, WireError};

/// A server with a table, a publication and a slot of its own, and what is streamed from it.
struct Streamed {
    copy: Copy,
    decoder: PgOutputDecoder,
    has_gathered: bool,
}

fn prepare(postgres: &Postgres) {
    let setup =
        "CREATE TABLE things (id bigint PRIMARY KEY, name text); ALTER TABLE things REPLICA IDENTITY FULL;
                 CREATE PUBLICATION all_things FOR ALL TABLES";
    postgres.execute("postgres", setup).unwrap();
}

async fn open(words: &str) -> Wire {
    let connect = PostgresConnect::new(words).unwrap();
    within("a connection", Wire::open(&connect)).await.unwrap()
}

async fn stream_by(words: &str, slot: &str) -> Streamed {
    let mut wire = open(words).await;
    let create = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput NOEXPORT_SNAPSHOT");
    within("a slot", wire.query(&create)).await.unwrap();
    resume(wire, slot).await.unwrap()
}

async fn resume(wire: Wire, slot: &str) -> Result<Streamed, WireError> {
    let options = [("proto_version", "1"), ("publication_names", "\"all_things\"")];
    let copy = within("a stream", wire.start_replication(slot, Lsn(0), &options)).await?;
    Ok(Streamed { copy, decoder: PgOutputDecoder::new(), has_gathered: false })
}

impl Streamed {
    /// Reads until a commit, and gives the names of what was inserted, and where the commit ends.
    async fn transaction(&mut self) -> Result<(Vec<String>, Lsn), WireError> {
        let mut names = Vec::new();
        loop {
            within("frames", self.copy.filled()).await?;
            self.has_gathered |= self.copy.is_gathering();
            let (mut frames, _) = self.copy.split();
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

    /// Confirms whatever the server says: one that shuts down waits for that.
    async fn agree_until_the_end(&mut self) -> WireError {
        loop {
            if let Err(error) = self.copy.filled().await {
                return error;
            }
            let (mut frames, mut answer) = self.copy.split();
            while let Some(frame) = frames.next() {
                match frame {
                    Ok(Frame::Keepalive { wal_end, .. }) => answer.status(status(wal_end)).await.unwrap(),
                    Ok(Frame::XLogData { .. }) => {}
                    Err(error) => return error,
                }
            }
        }
    }

    async fn tell(&mut self, lsn: Lsn) {
        self.copy.split().1.status(status(lsn)).await.unwrap();
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
async fn every_insert_comes_once_in_order_whatever_it_comes_through() {
    let postgres = Postgres::builder().tls().start().unwrap();
    prepare(&postgres);
    let socket = postgres.socket_dir().display().to_string();
    let mut next = 1;
    for (number, (host, mode)) in
        [("127.0.0.1", "disable"), ("127.0.0.1", "require"), (&socket, "disable")].into_iter().enumerate()
    {
        let words = format!("user=postgres dbname=postgres host={host} port={}", postgres.port());
        let mut streamed = stream_by(&format!("{words} sslmode={mode}"), &format!("slot_{number}")).await;
        for size in [1, 3, 60_000, 1] {
            insert(&postgres, next, next + size - 1);
            let (came, _) = streamed.transaction().await.unwrap();
            assert!(came == names(next, next + size - 1), "{host} {mode} {size}: {} came", came.len());
            next += size;
        }
        within("the server's goodbye", streamed.copy.close()).await;
        assert_eq!(one(&postgres, "SELECT count(*) FROM pg_replication_slots WHERE active"), "0");
    }
}

#[tokio::test]
async fn a_backlog_is_gathered_and_what_happens_now_is_not() {
    let postgres = Postgres::builder().tls().start().unwrap();
    prepare(&postgres);
    for (number, mode) in ["disable", "require"].into_iter().enumerate() {
        let url = format!("{}?sslmode={mode}", postgres.url("postgres"));
        let slot = format!("slot_{number}");
        stream_by(&url, &slot).await.copy.close().await;
        let first = 100_000 * u32::try_from(number).unwrap() + 1;
        for from in [first, first + 20_000, first + 40_000] {
            insert(&postgres, from, from + 19_999);
        }
        tokio::time::sleep(Duration::from_millis(700)).await;

        let mut streamed = resume(open(&url).await, &slot).await.unwrap();
        for from in [first, first + 20_000, first + 40_000] {
            let (came, _) = streamed.transaction().await.unwrap();
            assert!(came == names(from, from + 19_999), "{mode}: {} came", came.len());
        }
        assert!(streamed.has_gathered, "{mode}");

        // On a machine that is busy, even what happens now may be sent late.
        let mut is_read_at_once = async |id| {
            streamed.has_gathered = false;
            insert(&postgres, id, id);
            assert_eq!(streamed.transaction().await.unwrap().0, names(id, id));
            !streamed.has_gathered
        };
        let mut ids = first + 60_000..first + 61_000;
        while !is_read_at_once(ids.next().expect("one of a thousand is in time")).await {}
    }
}

#[tokio::test]
async fn what_is_told_as_flushed_isnt_sent_again() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut streamed = stream_by(&postgres.url("postgres"), "s").await;
    insert(&postgres, 1, 10);
    let (_, first) = streamed.transaction().await.unwrap();
    streamed.tell(first).await;
    let confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots";
    eventually("the server knows", first.to_string(), async || one(&postgres, confirmed)).await;

    insert(&postgres, 11, 12);
    let (_, second) = streamed.transaction().await.unwrap();
    streamed.copy.close().await;
    let mut streamed = resume(open(&postgres.url("postgres")).await, "s").await.unwrap();
    let (came, again) = streamed.transaction().await.unwrap();
    assert_eq!((came, again), (names(11, 12), second), "what wasn't told comes again");
    streamed.tell(second).await;
    // What is told last counts, though it is followed by the goodbye.
    streamed.copy.close().await;
    assert_eq!(one(&postgres, confirmed), second.to_string());
}

#[tokio::test]
async fn a_huge_row_comes_whole_and_its_memory_goes() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut streamed = stream_by(&postgres.url("postgres"), "s").await;
    let before = streamed.copy.buffer_bytes();
    postgres.execute("postgres", "INSERT INTO things VALUES (1, repeat('huge', 5000000))").unwrap();
    let (came, _) = streamed.transaction().await.unwrap();
    assert_eq!(came, ["huge".repeat(5_000_000)]);
    assert!(streamed.copy.buffer_bytes() > 20_000_000);
    insert(&postgres, 2, 3);
    let (came, _) = streamed.transaction().await.unwrap();
    assert_eq!(came, names(2, 3));
    assert_eq!(streamed.copy.buffer_bytes(), before);

    let mut wire = open(&postgres.url("postgres")).await;
    wire.query("CREATE_REPLICATION_SLOT small LOGICAL pgoutput NOEXPORT_SNAPSHOT").await.unwrap();
    let mut streamed = resume(wire, "small").await.unwrap();
    streamed.copy.limit_frames(1_000_000);
    postgres.execute("postgres", "INSERT INTO things VALUES (4, repeat('huge', 5000000))").unwrap();
    let error = streamed.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::Long { tag: b'd', .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_ends_says_so_in_its_way() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut streamed = stream_by(&postgres.url("postgres"), "killed").await;
    postgres.kill();
    let error = streamed.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::Lost(_)), "{error}");
    within("no goodbye", streamed.copy.close()).await;
    postgres.revive().unwrap();

    let mut streamed = resume(open(&postgres.url("postgres")).await, "killed").await.unwrap();
    postgres
        .execute("postgres", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        .unwrap();
    match streamed.transaction().await.unwrap_err() {
        WireError::Server(said) => assert_eq!(said.code(), "57P01"),
        other => panic!("{other}"),
    }

    let mut streamed = resume(open(&postgres.url("postgres")).await, "killed").await.unwrap();
    let waiting = async {
        let error = streamed.agree_until_the_end().await;
        streamed.copy.close().await;
        error
    };
    let stopping = tokio::task::spawn_blocking(move || postgres.stop().map(|()| postgres));
    let error = within("the end", waiting).await;
    assert!(matches!(error, WireError::Ended | WireError::Server(_)), "{error}");
    within("a clean stop", stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_slot_that_is_in_use_or_missing_is_told_apart() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let _streamed = stream_by(&postgres.url("postgres"), "taken").await;
    for (slot, code) in [("taken", "55006"), ("nowhere", "42704")] {
        match resume(open(&postgres.url("postgres")).await, slot).await.map(drop).unwrap_err() {
            WireError::Server(said) => assert_eq!(said.code(), code, "{said}"),
            other => panic!("{other}"),
        }
        let senders = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'";
        assert_eq!(one(&postgres, senders), "1", "whoever wasn't served has gone");
    }
}

#[tokio::test]
async fn a_stream_is_read_whatever_the_network_does_to_it() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.addr());
    let mut streamed = stream_by(&url, "s").await;
    insert(&postgres, 1, 20_000);
    proxy.throttle(2_000_000);
    let (came, end) = streamed.transaction().await.unwrap();
    assert!(came == names(1, 20_000), "{} came", came.len());
    proxy.resume();

    // Whoever waits doesn't keep others from answering, nor the other way round.
    proxy.stall(Direction::ToServer);
    for _ in 0..1000 {
        within("no answer waits", streamed.tell(end)).await;
    }
    insert(&postgres, 20_001, 20_001);
    assert_eq!(streamed.transaction().await.unwrap().0, names(20_001, 20_001));
    proxy.resume();
    proxy.cut();
    let error = streamed.transaction().await.unwrap_err();
    assert!(matches!(error, WireError::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_wait_that_is_given_up_all_the_time_loses_nothing() {
    let postgres = Postgres::start().unwrap();
    prepare(&postgres);
    let mut streamed = stream_by(&postgres.url("postgres"), "s").await;
    insert(&postgres, 1, 100_000);
    let (mut came, mut given_up) = (0, 0);
    'reading: loop {
        tokio::select! {
            biased;
            filled = streamed.copy.filled() => filled.unwrap(),
            () = tokio::time::sleep(Duration::from_micros(300)) => {
                given_up += 1;
                continue;
            }
        }
        let (mut frames, _) = streamed.copy.split();
        while let Some(frame) = frames.next() {
            let Frame::XLogData { payload, .. } = frame.unwrap() else { continue };
            match streamed.decoder.decode(payload).unwrap() {
                PgOutputMessage::Insert(_) => came += 1,
                PgOutputMessage::Commit(_) => break 'reading,
                _ => {}
            }
        }
    }
    assert_eq!(came, 100_000, "given up {given_up} times");
}
