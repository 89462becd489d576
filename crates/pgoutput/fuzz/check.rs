//! Properties that hold for any bytes from a server.
//!
//! Invariant: bytes decode to a message or an error, never a panic. Encoding a decoded message
//! yields the same bytes. No prefix of it and no extension by a byte is a message. Its iterators
//! reach their ends.
//! The fuzz target checks them on generated input, the tests on the corpus.

use forebay_pgoutput::{
    CachedRelation, DecodeError, Frame, LogicalMessage, OldTuple, PgOutputDecoder, PgOutputMessage, PgTime,
    Prepare, Relation, RelationCache, ReplicaIdentity, Truncate, Tuple, TupleValue,
};

/// Messages up to this length are truncated at every offset.
const CUT_LEN: usize = 512;

/// Checks one input: as a frame, as a message outside a stream segment, and as one within.
pub(crate) fn check(input: &[u8]) {
    check_frame(input);
    check_message(&PgOutputDecoder::new(), input);
    check_message(&streaming(), input);
}

/// Returns a decoder between `StreamStart` and `StreamStop`.
pub(crate) fn streaming() -> PgOutputDecoder {
    let mut decoder = PgOutputDecoder::new();
    decoder.decode(b"S\0\0\x02\xF0\x01").expect("it is a StreamStart");
    decoder
}

fn check_frame(input: &[u8]) {
    let mut written = Vec::new();
    match Frame::decode(input) {
        Err(error) => return check_error(input, &error),
        Ok(Frame::XLogData { wal_start, wal_end, clock, payload }) => {
            numbers(&mut written, b"w", &[wal_start.0, wal_end.0, micros(clock)]);
            written.extend(payload);
            check_message(&PgOutputDecoder::new(), payload);
        }
        Ok(Frame::Keepalive { wal_end, clock, reply_requested }) => {
            numbers(&mut written, b"k", &[wal_end.0, micros(clock)]);
            written.push(reply_requested.into());
        }
    }
    assert_eq!(written, input, "re-encoding a frame changed it");
}

fn check_message(decoder: &PgOutputDecoder, input: &[u8]) {
    let decode = |input| decoder.clone().decode(input).map(drop);
    let message = match decoder.clone().decode(input) {
        Ok(message) => message,
        Err(error) => return check_error(input, &error),
    };
    assert_eq!(encode(&message), input, "re-encoding {message:?} changed it");
    check_parts(&message);

    let longer = [input, b"\0"].concat();
    assert!(decode(&longer).is_err(), "{message:?} accepts a trailing byte");
    // A protocol 2 abort is a prefix of a protocol 4 abort.
    if input.len() <= CUT_LEN && !matches!(message, PgOutputMessage::StreamAbort(_)) {
        for length in 0..input.len() {
            assert!(decode(&input[..length]).is_err(), "{message:?} is complete after {length} bytes");
        }
    }
}

fn check_error(input: &[u8], error: &DecodeError) {
    assert_eq!(error.tag, input.first().copied(), "{error}");
    assert!(error.at <= input.len(), "{error} is past the end, {}", input.len());
}

fn check_parts(message: &PgOutputMessage<'_>) {
    match message {
        PgOutputMessage::Insert(insert) => check_tuple(&insert.new),
        PgOutputMessage::Update(update) => {
            update.old.iter().for_each(|old| check_tuple(&old.tuple()));
            check_tuple(&update.new);
        }
        PgOutputMessage::Delete(delete) => check_tuple(&delete.old.tuple()),
        PgOutputMessage::Truncate(truncate) => {
            assert_eq!(truncate.relations.iter().count(), truncate.relations.len());
        }
        PgOutputMessage::Relation(relation) => check_relation(relation),
        other => assert!(!format!("{other:?}").is_empty()),
    }
}

fn check_tuple(tuple: &Tuple<'_>) {
    assert_eq!((tuple.iter().count(), tuple.iter().len()), (tuple.len(), tuple.len()));
    assert_eq!(tuple.get(0), tuple.iter().next());
    assert_eq!(tuple.get(tuple.len()), None);
}

fn check_relation(relation: &Relation<'_>) {
    assert_eq!(relation.columns.iter().count(), relation.columns.len());
    let mut relations = RelationCache::new();
    assert!(relations.apply(relation), "it is new");
    assert!(!relations.apply(relation), "it is known");
    let table: &CachedRelation = relations.get(relation.oid).expect("it was announced");
    assert_eq!(table.columns.len(), relation.columns.len());
}

/// Encodes a message as a server does.
pub(crate) fn encode(message: &PgOutputMessage<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        PgOutputMessage::Begin(begin) => {
            numbers(&mut out, b"B", &[begin.final_lsn.0, micros(begin.commit_time)]);
            out.extend(begin.xid.to_be_bytes());
        }
        PgOutputMessage::Commit(commit) => {
            numbers(&mut out, b"C\0", &[commit.commit_lsn.0, commit.end_lsn.0, micros(commit.commit_time)]);
        }
        PgOutputMessage::Origin(origin) => {
            numbers(&mut out, b"O", &[origin.commit_lsn.0]);
            text(&mut out, origin.name);
        }
        PgOutputMessage::Relation(announced) => relation(&mut out, announced),
        PgOutputMessage::Type(named) => {
            head(&mut out, b'Y', named.xid, &[named.oid]);
            text(&mut out, named.namespace);
            text(&mut out, named.name);
        }
        PgOutputMessage::Insert(insert) => {
            head(&mut out, b'I', insert.xid, &[insert.relation]);
            tuple(&mut out, b'N', &insert.new);
        }
        PgOutputMessage::Update(update) => {
            head(&mut out, b'U', update.xid, &[update.relation]);
            update.old.iter().for_each(|row| old(&mut out, row));
            tuple(&mut out, b'N', &update.new);
        }
        PgOutputMessage::Delete(delete) => {
            head(&mut out, b'D', delete.xid, &[delete.relation]);
            old(&mut out, &delete.old);
        }
        PgOutputMessage::Truncate(emptied) => truncate(&mut out, emptied),
        PgOutputMessage::Logical(written) => logical(&mut out, written),
        PgOutputMessage::StreamStart(start) => {
            head(&mut out, b'S', None, &[start.xid]);
            out.push(start.first.into());
        }
        PgOutputMessage::StreamStop => out.push(b'E'),
        PgOutputMessage::StreamCommit(commit) => {
            head(&mut out, b'c', None, &[commit.xid]);
            numbers(&mut out, b"\0", &[commit.commit_lsn.0, commit.end_lsn.0, micros(commit.commit_time)]);
        }
        PgOutputMessage::StreamAbort(abort) => {
            head(&mut out, b'A', None, &[abort.xid, abort.subxid]);
            abort
                .abort
                .iter()
                .for_each(|at| numbers(&mut out, b"", &[at.abort_lsn.0, micros(at.abort_time)]));
        }
        PgOutputMessage::BeginPrepare(begin) => prepare(&mut out, b"b", begin),
        PgOutputMessage::Prepare(end) => prepare(&mut out, b"P\0", end),
        PgOutputMessage::StreamPrepare(end) => prepare(&mut out, b"p\0", end),
        PgOutputMessage::CommitPrepared(commit) => {
            numbers(&mut out, b"K\0", &[commit.commit_lsn.0, commit.end_lsn.0, micros(commit.commit_time)]);
            xid_and_gid(&mut out, commit.xid, commit.gid);
        }
        PgOutputMessage::RollbackPrepared(rollback) => {
            let clocks = [micros(rollback.prepare_time), micros(rollback.rollback_time)];
            numbers(&mut out, b"r\0", &[rollback.prepare_end_lsn.0, rollback.rollback_end_lsn.0]);
            numbers(&mut out, b"", &clocks);
            xid_and_gid(&mut out, rollback.xid, rollback.gid);
        }
        other => unreachable!("no encoding of {other:?}"),
    }
    out
}

fn relation(out: &mut Vec<u8>, relation: &Relation<'_>) {
    head(out, b'R', relation.xid, &[relation.oid]);
    text(out, relation.namespace);
    text(out, relation.name);
    out.push(match relation.identity {
        ReplicaIdentity::Default => b'd',
        ReplicaIdentity::Nothing => b'n',
        ReplicaIdentity::Full => b'f',
        ReplicaIdentity::Index => b'i',
    });
    out.extend(u16::try_from(relation.columns.len()).expect("a count has 16 bits").to_be_bytes());
    for column in relation.columns {
        out.push(column.is_key.into());
        text(out, column.name);
        out.extend(column.type_oid.to_be_bytes());
        out.extend(column.type_modifier.to_be_bytes());
    }
}

fn old(out: &mut Vec<u8>, row: &OldTuple<'_>) {
    match row {
        OldTuple::Key(key) => tuple(out, b'K', key),
        OldTuple::Full(full) => tuple(out, b'O', full),
    }
}

fn tuple(out: &mut Vec<u8>, kind: u8, tuple: &Tuple<'_>) {
    out.push(kind);
    out.extend(u16::try_from(tuple.len()).expect("a count has 16 bits").to_be_bytes());
    for value in tuple {
        match value {
            TupleValue::Null => out.push(b'n'),
            TupleValue::Unchanged => out.push(b'u'),
            TupleValue::Text(bytes) => counted(out, b"t", bytes),
            TupleValue::Binary(bytes) => counted(out, b"b", bytes),
        }
    }
}

fn truncate(out: &mut Vec<u8>, truncate: &Truncate<'_>) {
    let count = u32::try_from(truncate.relations.len()).expect("a count has 31 bits");
    head(out, b'T', truncate.xid, &[count]);
    out.push(u8::from(truncate.cascade) | u8::from(truncate.restart_identity) << 1);
    truncate.relations.iter().for_each(|oid| out.extend(oid.to_be_bytes()));
}

fn logical(out: &mut Vec<u8>, logical: &LogicalMessage<'_>) {
    head(out, b'M', logical.xid, &[]);
    numbers(out, &[logical.transactional.into()], &[logical.lsn.0]);
    text(out, logical.prefix);
    counted(out, b"", logical.content);
}

fn prepare(out: &mut Vec<u8>, head: &[u8], prepare: &Prepare<'_>) {
    numbers(out, head, &[prepare.prepare_lsn.0, prepare.end_lsn.0, micros(prepare.prepare_time)]);
    xid_and_gid(out, prepare.xid, prepare.gid);
}

fn xid_and_gid(out: &mut Vec<u8>, xid: u32, gid: &str) {
    out.extend(xid.to_be_bytes());
    text(out, gid);
}

fn head(out: &mut Vec<u8>, tag: u8, xid: Option<u32>, fields: &[u32]) {
    out.push(tag);
    xid.iter().chain(fields).for_each(|field| out.extend(field.to_be_bytes()));
}

fn numbers(out: &mut Vec<u8>, head: &[u8], numbers: &[u64]) {
    out.extend(head);
    numbers.iter().for_each(|number| out.extend(number.to_be_bytes()));
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(text.as_bytes());
    out.push(0);
}

fn counted(out: &mut Vec<u8>, head: &[u8], bytes: &[u8]) {
    out.extend(head);
    out.extend(u32::try_from(bytes.len()).expect("a length has 31 bits").to_be_bytes());
    out.extend(bytes);
}

fn micros(clock: PgTime) -> u64 {
    clock.0.cast_unsigned()
}
