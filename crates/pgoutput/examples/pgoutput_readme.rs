//! The README's example, compiled and run. `tests/readme.rs` checks that both are equal.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_pgoutput::{
    Frame, Lsn, PgOutputDecoder, PgOutputMessage, RelationCache, StandbyStatusUpdate, TupleValue,
};

/// Payloads that PostgreSQL 18 sends for `INSERT INTO users VALUES (1, 'ann', 'happy', 'short')`.
const MESSAGES: [&[u8]; 5] = [
    b"B\0\0\0\0\x01\x7A\x2B\x08\0\x03\x03\x5E\x26\x6B\x8B\x88\0\0\x03\x01",
    b"Y\0\0\x40\x02public\0mood\0",
    b"R\0\0\x40\x07public\0users\0d\0\x04\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\0name\0\0\0\x04\x13\0\0\0\x24\
        \0feels\0\0\0\x40\x02\xFF\xFF\xFF\xFF\0bio\0\0\0\0\x19\xFF\xFF\xFF\xFF",
    b"I\0\0\x40\x07N\0\x04t\0\0\0\x011t\0\0\0\x03annt\0\0\0\x05happyt\0\0\0\x05short",
    b"C\0\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x88",
];
const DATA: &[u8] = b"w\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x90";
const KEEPALIVE: &[u8] = b"k\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\xA0\x01";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut frames: Vec<Vec<u8>> = MESSAGES.iter().map(|message| [DATA, message].concat()).collect();
    frames.push(KEEPALIVE.to_vec());
    let frames = frames.iter().map(Vec::as_slice);
    let mut sent = Vec::new();
    let mut send = |bytes: &[u8]| sent.extend_from_slice(bytes);

    let mut decoder = PgOutputDecoder::new();
    let mut relations = RelationCache::new();
    let mut durable = Lsn::INVALID; // the position to acknowledge

    for frame in frames {
        match Frame::decode(frame)? {
            Frame::XLogData { payload, .. } => match decoder.decode(payload)? {
                PgOutputMessage::Relation(relation) => drop(relations.apply(&relation)), // precedes a table's first change
                PgOutputMessage::Insert(insert) => {
                    let table = relations.get(insert.relation).ok_or("unknown relation")?;
                    for (column, value) in table.columns.iter().zip(insert.new) {
                        match value {
                            TupleValue::Text(text) => {
                                println!("{} is {}", column.name, str::from_utf8(text)?)
                            }
                            TupleValue::Binary(bytes) => {
                                println!("{} has {} bytes", column.name, bytes.len())
                            }
                            TupleValue::Null => println!("{} is NULL", column.name),
                            TupleValue::Unchanged => println!("{} is unchanged", column.name),
                        }
                    }
                }
                PgOutputMessage::Commit(commit) => durable = commit.end_lsn, // exactly, not `end_lsn + 1`
                other => println!("{other:?}"),                              // prints lengths, not values
            },
            Frame::Keepalive { reply_requested, .. } => println!("reply requested: {reply_requested}"),
        }
    }

    let status = StandbyStatusUpdate {
        received: durable,
        flushed: durable,
        applied: durable,
        ..StandbyStatusUpdate::default()
    };
    send(&status.encode()); // in a CopyData message
    assert_eq!(durable, "0/17A2B38".parse()?);
    assert_eq!(sent.len(), StandbyStatusUpdate::LEN);
    Ok(())
}
