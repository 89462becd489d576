//! The example of the README, compiled and run; `tests/readme.rs` makes sure that they are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_pgoutput::{Decoder, Frame, Lsn, Message, Relations, StandbyStatus, Value};

/// The content of the CopyData messages in which Postgres 18 tells of
/// `INSERT INTO users VALUES (1, 'ann', 'happy', 'short')`, and a keepalive.
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
    let mut answered = Vec::new();
    let mut answer = |bytes: &[u8]| answered.extend_from_slice(bytes);

    let mut decoder = Decoder::new();
    let mut relations = Relations::new();
    let mut safe = Lsn::NONE; // what to acknowledge

    for frame in frames {
        match Frame::decode(frame)? {
            Frame::Data { payload, .. } => match decoder.decode(payload)? {
                Message::Relation(relation) => drop(relations.apply(&relation)), // before a table's first change
                Message::Insert(insert) => {
                    let table = relations.get(insert.relation).ok_or("not announced")?;
                    for (column, value) in table.columns.iter().zip(insert.new) {
                        match value {
                            Value::Text(text) => println!("{} is {}", column.name, str::from_utf8(text)?),
                            Value::Binary(bytes) => println!("{} has {} bytes", column.name, bytes.len()),
                            Value::Null => println!("{} is NULL", column.name),
                            Value::Unchanged => println!("{} is as it was", column.name),
                        }
                    }
                }
                Message::Commit(commit) => safe = commit.end, // never plus one
                other => println!("{other:?}"),               // tells how long values are, not what they hold
            },
            Frame::Keepalive { reply, .. } => println!("the server lives, and waits for an answer: {reply}"),
        }
    }

    let status = StandbyStatus { received: safe, flushed: safe, applied: safe, ..StandbyStatus::default() };
    answer(&status.encode()); // in a CopyData message
    assert_eq!(safe, "0/17A2B38".parse()?);
    assert_eq!(answered.len(), StandbyStatus::LEN);
    Ok(())
}
