//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-shapes --example shapes_readme`

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::sync::Arc;

use forebay_shapes::filter::{Collation, Column, Filter, Schema};
use forebay_shapes::pgoutput::{PgOutputDecoder, Snapshot};
use forebay_shapes::{
    LogMode, Offset, ReplicaMode, ShapeDefinition, ShapeOptions, Shapes, StoreConfig, TableSchema,
};

/// `INSERT INTO orders VALUES (2, 'open'), (3, 'paid')`, as pgoutput messages.
const MESSAGES: [&[u8]; 5] = [
    b"B\0\0\0\0\0\0\x07\xD0\0\0\0\0\0\0\0\0\0\0\x02\xBD",
    b"R\0\0\x40\0public\0orders\0f\0\x02\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\x01state\0\0\0\0\x19\xFF\xFF\xFF\xFF",
    b"I\0\0\x40\0N\0\x02t\0\0\0\x012t\0\0\0\x04open",
    b"I\0\0\x40\0N\0\x02t\0\0\0\x013t\0\0\0\x04paid",
    b"C\0\0\0\0\0\0\0\x07\xD0\0\0\0\0\0\0\x07\xE0\0\0\0\0\0\0\0\0",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("forebay-shapes-{}", std::process::id()));
    let table = orders();

    let store = Shapes::open(StoreConfig::new(&dir))?;
    if store.begin_writing()?.is_none() {
        store.reset("this database".into(), 1_000).await?; // first start: follow from LSN 1000 on
    }

    // A shape of the open orders.
    let clause = Filter::parse("state = $1", &["open"], &table.types)?;
    let options = ShapeOptions {
        clause: Some(clause.canonical().to_owned()),
        columns: None,
        replica: ReplicaMode::Default,
        log: LogMode::Full,
    };
    let (shape, creation) = store.find_or_create(ShapeDefinition { table, options }, 1)?;
    if let Some(mut creation) = creation {
        creation.follow(); // before the snapshot is taken, so that no change is missed
        let snapshot: Snapshot = "700:701:".parse()?; // pg_current_snapshot()
        assert!(creation.snapshot_taken(&snapshot, 1_500).is_in_time());
        let mut rows = Vec::new();
        shape.encoder().snapshot_row(&mut rows, &[Some(b"1"), Some(b"open")]);
        creation.rows(rows.into())?;
        creation.seal()?;
        creation.complete().await?; // durable
    }

    // The stream: each change is matched, encoded once, and durable before a client can read it.
    let (mut decoder, mut follower) = (PgOutputDecoder::new(), store.follower());
    for message in MESSAGES {
        follower.apply(&decoder.decode(message)?)?;
    }
    shape.wait_for_log_after(Offset::SNAPSHOT_END).await?;
    let page = shape.log_after(Offset::SNAPSHOT_END)?;
    let log = String::from_utf8(shape.read_log(&page, page.from, page.to)?.concat())?;
    print!("{log}"); // the insert of 2, as clients receive it
    assert!(log.contains(r#""value":{"id":"2","state":"open"}"#));
    store.end_writing();
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

/// `CREATE TABLE orders (id int PRIMARY KEY, state text)`, as described by the catalog.
fn orders() -> Arc<TableSchema> {
    let columns = vec![Column::new("id", 23, "int4"), Column::new("state", 25, "text")];
    let types = Schema {
        table: Some("orders".into()),
        columns,
        database_collation: Collation::C,
        server_version: 18,
    };
    Arc::new(TableSchema {
        oid: 0x4000,
        schema: "public".into(),
        name: "orders".into(),
        types,
        membership: 1,
        stream_types: vec![(23, -1), (25, -1)],
        key: vec![0],
        numbers: Vec::new(),
        lineage: String::new(),
        key_is_deferrable: false,
        state: None,
        notes: Vec::new(),
    })
}
