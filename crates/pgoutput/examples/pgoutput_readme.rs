//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-pgoutput --example pgoutput_readme`

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use forebay_pgoutput::{
    Frame, Lsn, PgOutputDecoder, PgOutputMessage, RelationCache, StandbyStatusUpdate, TupleValue,
};

/// Contents of CopyData messages that PostgreSQL sends for `INSERT INTO users VALUES (1, 'ann')`.
const FRAMES: [&[u8]; 5] = [
    b"w\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x90\
        B\0\0\0\0\x01\x7A\x2B\x08\0\x03\x03\x5E\x26\x6B\x8B\x88\0\0\x03\x01",
    b"w\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x90\
        R\0\0\x40\x07public\0users\0d\0\x02\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\0name\0\0\0\0\x19\xFF\xFF\xFF\xFF",
    b"w\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x90\
        I\0\0\x40\x07N\0\x02t\0\0\0\x011t\0\0\0\x03ann",
    b"w\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x90\
        C\0\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x88",
    b"k\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\xA0\x01",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut decoder = PgOutputDecoder::new();
    let mut relations = RelationCache::new();
    let mut durable = Lsn::INVALID; // the position to acknowledge

    for frame in FRAMES {
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
    let reply = status.encode(); // for the server, in a CopyData message
    assert_eq!((durable, reply.len()), ("0/17A2B38".parse()?, StandbyStatusUpdate::LEN));
    Ok(())
}
