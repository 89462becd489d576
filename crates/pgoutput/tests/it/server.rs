//! Messages of real servers, read through SQL: `pg_logical_slot_peek_binary_changes` returns the
//! bytes of the stream.

use std::collections::BTreeMap;

use forebay_pgoutput::{
    Begin, Commit, Lsn, OldTuple, Origin, PgOutputDecoder, PgOutputMessage, RelationCache, ReplicaIdentity,
    Snapshot, StreamAbort, Tuple, TupleValue,
};
use forebay_sandbox::Postgres;

use crate::decoder::check::encode;

/// The oldest supported version, and the newest.
const VERSIONS: [u32; 2] = [15, 18];
const PLAIN: &str = "'proto_version', '1', 'messages', 'true'";
const TABLES: &str = "
    CREATE TYPE mood AS ENUM ('sad', 'happy');
    CREATE TABLE users (id int PRIMARY KEY, name varchar(32), feels mood, bio text);
    ALTER TABLE users ALTER bio SET STORAGE EXTERNAL;
    CREATE TABLE whole (id int, note text);
    ALTER TABLE whole REPLICA IDENTITY FULL, ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE indexed (a int, b text NOT NULL, c text);
    CREATE UNIQUE INDEX by_b ON indexed (b);
    ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_b;
    CREATE TABLE bare ();
    CREATE PUBLICATION everything FOR ALL TABLES";

/// A server with a database and publication, whose logical slots are read through SQL.
struct SlotSource {
    postgres: Postgres,
    database: String,
}

impl SlotSource {
    fn start(version: u32) -> Self {
        let builder = Postgres::builder().version(version).config("max_prepared_transactions", "10");
        let postgres = builder.config("logical_decoding_work_mem", "64kB").start().expect("a server starts");
        let database = postgres.create_database("pgoutput").expect("it is new");
        let source = SlotSource { postgres, database };
        source.run(TABLES);
        source
    }

    #[track_caller]
    fn run(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.query(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    #[track_caller]
    fn column(&self, sql: &str) -> Vec<String> {
        self.run(sql).into_iter().map(|mut row| row.swap_remove(0).expect("it is not NULL")).collect()
    }

    /// Creates a slot. It retains all later changes.
    fn create_slot(&self, name: &str, two_phase: bool) {
        self.run(&format!(
            "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, {two_phase})"
        ));
    }

    fn unix_micros(&self) -> i64 {
        let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        self.column(micros)[0].parse().expect("it is a number")
    }

    /// Returns all messages after the slot's confirmed position.
    fn messages(&self, slot: &str, options: &str) -> Vec<Vec<u8>> {
        let sql = format!(
            "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL,
                'publication_names', 'everything', {options})"
        );
        self.column(&sql).iter().map(|hex| from_hex(hex)).collect()
    }

    fn acknowledge_all(&self, slot: &str) {
        self.run(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_insert_lsn())"));
    }

    /// Returns the commits that a slot would send.
    fn commits(&self, slot: &str) -> Vec<Commit> {
        let messages = self.messages(slot, PLAIN);
        let commits = decode_all(&messages).into_iter().filter_map(|message| match message {
            PgOutputMessage::Commit(commit) => Some(commit),
            _ => None,
        });
        commits.collect()
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("encode writes hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Decodes the messages of one connection and checks each one's invariants.
#[track_caller]
fn decode_all(messages: &[Vec<u8>]) -> Vec<PgOutputMessage<'_>> {
    let (mut decoder, mut relations) = (PgOutputDecoder::new(), RelationCache::new());
    let mut decoded = Vec::new();
    for bytes in messages {
        let message = decoder.decode(bytes).unwrap_or_else(|error| panic!("{error} in {bytes:?}"));
        assert_eq!(encode(&message), *bytes, "{message:?}");
        match &message {
            PgOutputMessage::Relation(relation) => drop(relations.apply(relation)),
            PgOutputMessage::Insert(insert) => assert_fits(&relations, insert.relation, &insert.new),
            PgOutputMessage::Update(update) => {
                update.old.iter().for_each(|old| assert_fits(&relations, update.relation, &old.tuple()));
                assert_fits(&relations, update.relation, &update.new);
            }
            PgOutputMessage::Delete(delete) => assert_fits(&relations, delete.relation, &delete.old.tuple()),
            PgOutputMessage::Truncate(truncate) => {
                assert!(truncate.relations.iter().all(|oid| relations.get(oid).is_some()));
            }
            _ => {}
        }
        decoded.push(message);
    }
    decoded
}

#[track_caller]
fn assert_fits(relations: &RelationCache, oid: u32, tuple: &Tuple<'_>) {
    let table = relations.get(oid).expect("a table is announced before its changes");
    assert_eq!(tuple.len(), table.columns.len(), "{}", table.name);
}

fn texts(tuple: Tuple<'_>) -> Vec<&str> {
    let text = |value| match value {
        TupleValue::Null => "NULL",
        TupleValue::Unchanged => "UNCHANGED",
        TupleValue::Text(text) => str::from_utf8(text).expect("client_encoding is UTF8"),
        TupleValue::Binary(_) => panic!("binary was not requested"),
    };
    tuple.iter().map(text).collect()
}

#[test]
fn a_transaction_is_decoded_as_executed() {
    for source in VERSIONS.map(SlotSource::start) {
        source.create_slot("plain", false);
        let before = source.unix_micros();
        source.run("INSERT INTO users VALUES (1, 'Zoë', 'happy', NULL); INSERT INTO bare DEFAULT VALUES");
        source.run("TRUNCATE users, whole RESTART IDENTITY CASCADE");
        let messages = source.messages("plain", PLAIN);
        let messages = decode_all(&messages);
        let [
            PgOutputMessage::Begin(Begin { final_lsn, commit_time, xid }),
            PgOutputMessage::Type(mood),
            PgOutputMessage::Relation(users),
            PgOutputMessage::Insert(ann),
            PgOutputMessage::Relation(bare),
            PgOutputMessage::Insert(nothing),
            PgOutputMessage::Commit(commit),
            PgOutputMessage::Begin(_),
            ..,
            PgOutputMessage::Truncate(truncate),
            PgOutputMessage::Commit(_),
        ] = &messages[..]
        else {
            panic!("{messages:#?}")
        };
        assert_eq!((*final_lsn, *commit_time), (commit.commit_lsn, commit.commit_time));
        assert!(commit.commit_lsn < commit.end_lsn && *xid >= 3);
        assert_eq!((mood.namespace, mood.name), ("public", "mood"));
        assert_eq!(
            (users.namespace, users.name, users.identity),
            ("public", "users", ReplicaIdentity::Default)
        );
        let columns: Vec<_> = users
            .columns
            .iter()
            .map(|column| (column.name, column.type_oid, column.type_modifier, column.is_key))
            .collect();
        let expected = [
            ("id", 23, -1, true),
            ("name", 1043, 36, false),
            ("feels", mood.oid, -1, false),
            ("bio", 25, -1, false),
        ];
        assert_eq!(columns, expected);
        assert_eq!(texts(ann.new), ["1", "Zoë", "happy", "NULL"]);
        assert!(bare.columns.is_empty() && nothing.new.is_empty());
        assert!(
            truncate.cascade
                && truncate.restart_identity
                && truncate.relations.iter().next() == Some(users.oid)
        );
        assert!((before..=source.unix_micros()).contains(&commit_time.to_unix_micros()), "{commit_time:?}");
    }
}

#[test]
fn old_rows_depend_on_the_replica_identity() {
    for source in VERSIONS.map(SlotSource::start) {
        source.run("INSERT INTO users VALUES (1, 'ann', NULL, repeat('x', 5000))");
        source
            .run("INSERT INTO whole VALUES (1, repeat('y', 5000)); INSERT INTO indexed VALUES (1, 'b', 'c')");
        source.create_slot("old", false);
        source.run(
            "UPDATE users SET name = 'anna'; UPDATE users SET id = 2; DELETE FROM users;
             UPDATE whole SET id = 2; DELETE FROM whole;
             UPDATE indexed SET c = 'd'; UPDATE indexed SET b = 'e'; DELETE FROM indexed",
        );
        let messages = source.messages("old", PLAIN);
        let rows: Vec<_> = decode_all(&messages).iter().filter_map(rows).collect();
        let long = "y".repeat(5000);
        let expected: [OldAndNewRow<'_>; 8] = [
            (None, Some(vec!["1", "anna", "NULL", "UNCHANGED"])),
            (Some(("key", vec!["1", "NULL", "NULL", "NULL"])), Some(vec!["2", "anna", "NULL", "UNCHANGED"])),
            (Some(("key", vec!["2", "NULL", "NULL", "NULL"])), None),
            (Some(("full", vec!["1", &long])), Some(vec!["2", "UNCHANGED"])),
            (Some(("full", vec!["2", &long])), None),
            (None, Some(vec!["1", "b", "d"])),
            (Some(("key", vec!["NULL", "b", "NULL"])), Some(vec!["1", "e", "d"])),
            (Some(("key", vec!["NULL", "e", "NULL"])), None),
        ];
        assert_eq!(rows, expected);
    }
}

/// The old row with its kind, and the new row.
type OldAndNewRow<'a> = (Option<(&'static str, Vec<&'a str>)>, Option<Vec<&'a str>>);

fn rows<'a>(message: &PgOutputMessage<'a>) -> Option<OldAndNewRow<'a>> {
    let old = |old: OldTuple<'a>| match old {
        OldTuple::Key(key) => ("key", texts(key)),
        OldTuple::Full(full) => ("full", texts(full)),
    };
    match message {
        PgOutputMessage::Update(update) => Some((update.old.map(old), Some(texts(update.new)))),
        PgOutputMessage::Delete(delete) => Some((Some(old(delete.old)), None)),
        _ => None,
    }
}

#[test]
fn logical_messages_and_origins_are_decoded_as_written() {
    for source in VERSIONS.map(SlotSource::start) {
        source.create_slot("notes", false);
        source.run("SELECT pg_replication_origin_create('upstream')");
        source.run("SELECT pg_logical_emit_message(true, 'audit', 'within')");
        source.run(r"BEGIN; SELECT pg_logical_emit_message(false, 'audit', '\x00ff'::bytea); ROLLBACK");
        source.run(
            "SELECT pg_replication_origin_session_setup('upstream'); BEGIN;
             SELECT pg_replication_origin_xact_setup('16/B374D848', now());
             INSERT INTO bare DEFAULT VALUES; COMMIT",
        );
        let messages = source.messages("notes", PLAIN);
        let messages = decode_all(&messages);
        let [
            PgOutputMessage::Begin(_),
            PgOutputMessage::Logical(within),
            PgOutputMessage::Commit(_),
            PgOutputMessage::Logical(outside),
            PgOutputMessage::Begin(_),
            PgOutputMessage::Origin(origin),
            PgOutputMessage::Relation(_),
            PgOutputMessage::Insert(_),
            PgOutputMessage::Commit(_),
        ] = &messages[..]
        else {
            panic!("{messages:#?}")
        };
        assert_eq!((within.transactional, within.prefix, within.content), (true, "audit", &b"within"[..]));
        assert_eq!(
            (outside.transactional, outside.prefix, outside.content),
            (false, "audit", &b"\x00\xFF"[..])
        );
        assert_eq!(*origin, Origin { commit_lsn: Lsn(0x16_B374_D848), name: "upstream" });
    }
}

#[test]
fn streamed_segments_add_up_to_the_committed_rows() {
    for (source, options) in [
        (SlotSource::start(15), "'proto_version', '2', 'streaming', 'on'"),
        (SlotSource::start(18), "'proto_version', '4', 'streaming', 'on'"),
        (SlotSource::start(18), "'proto_version', '4', 'streaming', 'parallel'"),
    ] {
        source.create_slot("streamed", false);
        source.run(
            "BEGIN; INSERT INTO whole SELECT n, 'kept' FROM generate_series(1, 2000) n;
             SAVEPOINT a; INSERT INTO whole SELECT n, 'undone' FROM generate_series(2001, 4000) n;
             ROLLBACK TO a; INSERT INTO whole SELECT n, 'kept' FROM generate_series(4001, 6000) n; COMMIT",
        );
        source.run("BEGIN; INSERT INTO whole SELECT n, 'undone' FROM generate_series(1, 2000) n; ROLLBACK");
        source.run("INSERT INTO whole VALUES (0, 'small')");
        let messages = source.messages("streamed", options);

        let mut receiver = Receiver::default();
        decode_all(&messages).iter().for_each(|message| receiver.take(message));
        receiver.committed.sort_unstable();
        assert_eq!(receiver.committed, source.column("SELECT id FROM whole ORDER BY id::text COLLATE \"C\""));
        assert!(receiver.segments.is_empty() && !receiver.aborts.is_empty());
        let parallel = options.contains("parallel");
        let rows = |abort: &StreamAbort| abort.abort.is_some() == parallel;
        assert!(receiver.aborts.iter().all(rows), "{:?}", receiver.aborts);
    }
}

/// A receiver that buffers streamed segments until their transactions end.
#[derive(Default)]
struct Receiver {
    /// First column of the rows of committed transactions.
    committed: Vec<String>,
    /// First column of the rows of in-progress transactions, with the subtransaction's xid.
    segments: BTreeMap<u32, Vec<(u32, String)>>,
    current: Option<u32>,
    aborts: Vec<StreamAbort>,
}

impl Receiver {
    fn take(&mut self, message: &PgOutputMessage<'_>) {
        match message {
            PgOutputMessage::StreamStart(start) => {
                assert_eq!(start.first, !self.segments.contains_key(&start.xid));
                self.segments.entry(start.xid).or_default();
                self.current = Some(start.xid);
            }
            PgOutputMessage::StreamStop => self.current = None,
            PgOutputMessage::Insert(insert) => {
                let row = texts(insert.new)[0].to_owned();
                match (self.current, insert.xid) {
                    (Some(xid), Some(subxid)) => self.segments.entry(xid).or_default().push((subxid, row)),
                    (None, None) => self.committed.push(row),
                    other => panic!("an xid is present exactly within a segment: {other:?}"),
                }
            }
            PgOutputMessage::StreamAbort(abort) => {
                self.aborts.push(*abort);
                if abort.subxid == abort.xid {
                    self.segments.remove(&abort.xid);
                } else {
                    let part = self.segments.get_mut(&abort.xid).expect("it was streamed");
                    part.retain(|(subxid, _)| *subxid != abort.subxid);
                }
            }
            PgOutputMessage::StreamCommit(commit) => {
                let rows = self.segments.remove(&commit.xid).expect("it was streamed");
                self.committed.extend(rows.into_iter().map(|(_, row)| row));
            }
            PgOutputMessage::Relation(_) | PgOutputMessage::Begin(_) | PgOutputMessage::Commit(_) => {}
            other => panic!("unexpected message: {other:?}"),
        }
    }
}

#[test]
fn prepared_transactions_are_sent_at_prepare_and_their_outcome_follows() {
    for source in VERSIONS.map(SlotSource::start) {
        source.create_slot("prepared", true);
        source.run("BEGIN; INSERT INTO bare DEFAULT VALUES; PREPARE TRANSACTION 'kept'");
        source.run("COMMIT PREPARED 'kept'");
        source.run("BEGIN; INSERT INTO bare DEFAULT VALUES; PREPARE TRANSACTION 'undone'");
        source.run("ROLLBACK PREPARED 'undone'");
        let many = "INSERT INTO whole SELECT n, 'long' FROM generate_series(1, 2000) n";
        source.run(&format!("BEGIN; {many}; PREPARE TRANSACTION 'long'"));
        let messages = source.messages("prepared", "'proto_version', '3', 'streaming', 'on'");
        let messages = decode_all(&messages);
        let [
            PgOutputMessage::BeginPrepare(begin),
            PgOutputMessage::Relation(_),
            PgOutputMessage::Insert(_),
            PgOutputMessage::Prepare(prepare),
            PgOutputMessage::CommitPrepared(commit),
            PgOutputMessage::BeginPrepare(_),
            PgOutputMessage::Insert(_),
            PgOutputMessage::Prepare(undone),
            PgOutputMessage::RollbackPrepared(rollback),
            PgOutputMessage::StreamStart(start),
            ..,
            PgOutputMessage::StreamStop,
            PgOutputMessage::StreamPrepare(long),
        ] = &messages[..]
        else {
            panic!("{messages:#?}")
        };
        assert_eq!((begin, prepare.gid, prepare.xid), (prepare, "kept", commit.xid));
        assert!(
            prepare.prepare_lsn < prepare.end_lsn
                && prepare.end_lsn <= commit.commit_lsn
                && commit.commit_lsn < commit.end_lsn
        );
        assert_eq!((commit.gid, rollback.gid), ("kept", "undone"));
        assert_eq!((rollback.prepare_end_lsn, rollback.prepare_time), (undone.end_lsn, undone.prepare_time));
        assert!(
            rollback.rollback_end_lsn > undone.end_lsn
                && rollback.rollback_time >= undone.prepare_time
                && rollback.xid == undone.xid
        );
        assert_eq!((long.gid, long.xid), ("long", start.xid));
    }
}

#[test]
fn the_end_of_a_commit_is_what_to_acknowledge_and_a_byte_more_loses_the_next() {
    let source = SlotSource::start(18);
    source.create_slot("exact", false);
    // A concurrent WAL record may come between the two commits; retry then.
    let (first, second) = (0..20)
        .find_map(|_| {
            source.acknowledge_all("exact");
            for name in ["first", "second"] {
                source.run(&format!("BEGIN; INSERT INTO bare DEFAULT VALUES; PREPARE TRANSACTION '{name}'"));
            }
            source.run("COMMIT PREPARED 'first'");
            source.run("COMMIT PREPARED 'second'");
            let [first, second] = source.commits("exact")[..] else { panic!("there are two") };
            (first.end_lsn == second.commit_lsn).then_some((first, second))
        })
        .expect("one commit follows the other at once");

    // Copies of the slot start at the same position, so the three attempts are independent.
    let left_after = |name: &str, position: Lsn| {
        source.run(&format!("SELECT pg_copy_logical_replication_slot('exact', '{name}')"));
        source.run(&format!("SELECT pg_replication_slot_advance('{name}', '{position}')"));
        source.commits(name)
    };
    assert_eq!(left_after("less", first.commit_lsn), [first, second], "the first is sent again");
    assert_eq!(left_after("equal", first.end_lsn), [second]);
    assert_eq!(left_after("more", Lsn(first.end_lsn.0 + 1)), [], "the second is lost");
}

#[test]
fn a_snapshot_agrees_with_pg_visible_in_snapshot() {
    let source = SlotSource::start(18);
    let epoch = 1_u64 << 32;
    for (xmin, length) in [(795, 30), (epoch - 20, 40), (3 * epoch - 7, 20), (5 * epoch + 3, 0)] {
        let xmax = xmin + length;
        let xip: Vec<String> = (xmin..xmax).step_by(3).map(|xid| xid.to_string()).collect();
        let text = format!("{xmin}:{xmax}:{}", xip.join(","));
        let snapshot: Snapshot = text.parse().unwrap();
        let ids: Vec<u64> = (xmin - 40..xmax + 40).filter(|full| *full as u32 >= 3).collect();
        let list: Vec<String> = ids.iter().map(|full| format!("('{full}'::xid8)")).collect();
        let sql =
            format!("SELECT pg_visible_in_snapshot(x, '{text}') FROM (VALUES {}) AS t(x)", list.join(","));
        let seen: Vec<String> = source.column(&sql);
        for (full, seen) in ids.iter().zip(&seen) {
            assert_eq!(snapshot.sees(*full as u32), seen == "t", "{full} in {text}");
        }
    }
    let current = source.column("SELECT pg_current_snapshot()")[0].clone();
    let snapshot: Snapshot = current.parse().unwrap();
    assert!(!snapshot.sees(snapshot.xmax as u32), "{current}");
}
