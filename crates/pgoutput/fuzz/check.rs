//! What holds for any bytes from a server.
//!
//! Invariant: they are a message or an error, never a panic. A message that is written again is the same bytes, no byte more
//! or less is one, and what it borrows can be walked to its end. The fuzz target checks it on whatever it invents, the
//! ordinary tests on the corpus.

use forebay_pgoutput::{
    DecodeError, Decoder, Frame, LogicalMessage, Message, OldTuple, PgTime, Prepare, Relation, Relations,
    ReplicaIdentity, Table, Truncate, Tuple, Value,
};

/// Messages up to this many bytes are cut at every place.
const CUT_LEN: usize = 512;

/// Checks one input: as a frame, as a message outside of a stream, and as one inside.
pub(crate) fn check(input: &[u8]) {
    check_frame(input);
    check_message(&Decoder::new(), input);
    check_message(&streaming(), input);
}

/// A decoder between `StreamStart` and `StreamStop`.
pub(crate) fn streaming() -> Decoder {
    let mut decoder = Decoder::new();
    decoder.decode(b"S\0\0\x02\xF0\x01").expect("it is a StreamStart");
    decoder
}

fn check_frame(input: &[u8]) {
    let mut written = Vec::new();
    match Frame::decode(input) {
        Err(error) => return check_error(input, &error),
        Ok(Frame::Data { start, end, clock, payload }) => {
            numbers(&mut written, b"w", &[start.0, end.0, micros(clock)]);
            written.extend(payload);
            check_message(&Decoder::new(), payload);
        }
        Ok(Frame::Keepalive { end, clock, reply }) => {
            numbers(&mut written, b"k", &[end.0, micros(clock)]);
            written.push(reply.into());
        }
    }
    assert_eq!(written, input, "a frame is another one when it is written again");
}

fn check_message(decoder: &Decoder, input: &[u8]) {
    let decode = |input| decoder.clone().decode(input).map(drop);
    let message = match decoder.clone().decode(input) {
        Ok(message) => message,
        Err(error) => return check_error(input, &error),
    };
    assert_eq!(encode(&message), input, "{message:?} is another one when it is written again");
    check_parts(&message);

    let longer = [input, b"\0"].concat();
    assert!(decode(&longer).is_err(), "{message:?} has room for one byte more");
    // Its length tells of which protocol it is, so that the shorter one is the beginning of the longer.
    if input.len() <= CUT_LEN && !matches!(message, Message::StreamAbort(_)) {
        for length in 0..input.len() {
            assert!(decode(&input[..length]).is_err(), "{message:?} needs only its first {length} bytes");
        }
    }
}

fn check_error(input: &[u8], error: &DecodeError) {
    assert_eq!(error.tag, input.first().copied(), "{error}");
    assert!(error.at <= input.len(), "{error} is past the end, {}", input.len());
}

fn check_parts(message: &Message<'_>) {
    match message {
        Message::Insert(insert) => check_tuple(&insert.new),
        Message::Update(update) => {
            update.old.iter().for_each(|old| check_tuple(&old.tuple()));
            check_tuple(&update.new);
        }
        Message::Delete(delete) => check_tuple(&delete.old.tuple()),
        Message::Truncate(truncate) => {
            assert_eq!(truncate.relations.iter().count(), truncate.relations.len());
        }
        Message::Relation(relation) => check_relation(relation),
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
    let mut relations = Relations::new();
    assert!(relations.apply(relation), "it is new");
    assert!(!relations.apply(relation), "it is known");
    let table: &Table = relations.get(relation.oid).expect("it was announced");
    assert_eq!(table.columns.len(), relation.columns.len());
}

/// Writes a message as a server would.
pub(crate) fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        Message::Begin(begin) => {
            numbers(&mut out, b"B", &[begin.final_lsn.0, micros(begin.clock)]);
            out.extend(begin.xid.to_be_bytes());
        }
        Message::Commit(commit) => {
            numbers(&mut out, b"C\0", &[commit.lsn.0, commit.end.0, micros(commit.clock)]);
        }
        Message::Origin(origin) => {
            numbers(&mut out, b"O", &[origin.lsn.0]);
            text(&mut out, origin.name);
        }
        Message::Relation(announced) => relation(&mut out, announced),
        Message::Type(named) => {
            head(&mut out, b'Y', named.xid, &[named.oid]);
            text(&mut out, named.namespace);
            text(&mut out, named.name);
        }
        Message::Insert(insert) => {
            head(&mut out, b'I', insert.xid, &[insert.relation]);
            tuple(&mut out, b'N', &insert.new);
        }
        Message::Update(update) => {
            head(&mut out, b'U', update.xid, &[update.relation]);
            update.old.iter().for_each(|row| old(&mut out, row));
            tuple(&mut out, b'N', &update.new);
        }
        Message::Delete(delete) => {
            head(&mut out, b'D', delete.xid, &[delete.relation]);
            old(&mut out, &delete.old);
        }
        Message::Truncate(emptied) => truncate(&mut out, emptied),
        Message::Logical(written) => logical(&mut out, written),
        Message::StreamStart(start) => {
            head(&mut out, b'S', None, &[start.xid]);
            out.push(start.first.into());
        }
        Message::StreamStop => out.push(b'E'),
        Message::StreamCommit(commit) => {
            head(&mut out, b'c', None, &[commit.xid]);
            numbers(&mut out, b"\0", &[commit.lsn.0, commit.end.0, micros(commit.clock)]);
        }
        Message::StreamAbort(abort) => {
            head(&mut out, b'A', None, &[abort.xid, abort.subxid]);
            abort.abort.iter().for_each(|at| numbers(&mut out, b"", &[at.lsn.0, micros(at.clock)]));
        }
        Message::BeginPrepare(begin) => prepare(&mut out, b"b", begin),
        Message::Prepare(end) => prepare(&mut out, b"P\0", end),
        Message::StreamPrepare(end) => prepare(&mut out, b"p\0", end),
        Message::CommitPrepared(commit) => {
            numbers(&mut out, b"K\0", &[commit.lsn.0, commit.end.0, micros(commit.clock)]);
            xid_and_gid(&mut out, commit.xid, commit.gid);
        }
        Message::RollbackPrepared(rollback) => {
            let clocks = [micros(rollback.prepare_clock), micros(rollback.clock)];
            numbers(&mut out, b"r\0", &[rollback.prepare_end.0, rollback.end.0]);
            numbers(&mut out, b"", &clocks);
            xid_and_gid(&mut out, rollback.xid, rollback.gid);
        }
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
            Value::Null => out.push(b'n'),
            Value::Unchanged => out.push(b'u'),
            Value::Text(bytes) => counted(out, b"t", bytes),
            Value::Binary(bytes) => counted(out, b"b", bytes),
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
    numbers(out, head, &[prepare.lsn.0, prepare.end.0, micros(prepare.clock)]);
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
