//! Time to evaluate a row:
//! `cargo test -p forebay-filter --release -- --ignored --nocapture nanoseconds`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use forebay_filter::{Collation, Column, Filter, Schema};

#[test]
#[ignore = "prints times, and asserts none"]
fn nanoseconds_per_row() {
    let schema = Schema {
        table: None,
        columns: vec![
            Column::new("id", 20, "int8"),
            Column::new("name", 25, "text"),
            Column::new("qty", 23, "int4"),
            Column::new("price", 1700, "numeric"),
            Column::new("tags", 1009, "text[]"),
            Column::new("key", 2950, "uuid"),
            Column::new("made", 1184, "timestamptz"),
        ],
        database_collation: Collation::C,
        server_version: 15,
    };
    let row: [Option<&[u8]>; 7] = [
        Some(b"123456"),
        Some(b"x"),
        Some(b"17"),
        Some(b"1234.56"),
        Some(b"{red,green,\"dark blue\"}"),
        Some(b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        Some(b"2024-02-29 12:00:00.5+00"),
    ];
    for clause in [
        "id = 5",
        "name = 'x' AND qty > 3",
        "key = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "name LIKE 'ab%'",
        "id IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)",
        "made > '2024-01-01'",
        "price * 2 > 100",
        "tags @> '{red}'",
        "lower(name) = 'x' OR qty + 1 BETWEEN 3 AND 9",
    ] {
        // The best of many short rounds, to exclude other work on the machine.
        const ROUNDS: u32 = 20_000;
        let filter = Filter::parse(clause, &[], &schema).unwrap();
        let matching = (0..100).map(|_| {
            let begun = Instant::now();
            for _ in 0..ROUNDS {
                let _ = black_box(black_box(&filter).matches(black_box(&row)));
            }
            begun.elapsed()
        });
        let matching = matching.min().unwrap().as_secs_f64() * 1e9 / f64::from(ROUNDS);
        let parsing = (0..1000).map(|_| {
            let begun = Instant::now();
            let _ = black_box(Filter::parse(black_box(clause), &[], &schema));
            begun.elapsed()
        });
        let parsing = parsing.min().unwrap();
        eprintln!("{matching:>6.1} ns a row, {parsing:>7.1?} to parse: {clause}");
    }
}

/// `cargo test -p forebay-filter --release -- --ignored --nocapture megabyte`
#[test]
#[ignore = "prints times, and asserts none"]
fn a_document_of_a_megabyte() {
    let schema = Schema {
        table: None,
        columns: vec![Column::new("js", 3802, "jsonb")],
        database_collation: Collation::C,
        server_version: 15,
    };
    let mut json = String::from(r#"{"a": "first", "list": ["#);
    for id in 0..9_000 {
        let comma = if id == 0 { "" } else { ", " };
        write!(json, r#"{comma}{{"id": {id}, "name": "item {id}", "note": "é\n", "tags": ["red", "blue"], "price": 1.50}}"#)
            .expect("a String");
    }
    json.push_str(r#"], "longest key": "last"}"#);
    let row: [Option<&[u8]>; 1] = [Some(json.as_bytes())];
    eprintln!("{} bytes", json.len());
    for clause in [
        "js ->> 'a' = 'first'",
        "js ->> 'longest key' = 'last'",
        "js #>> '{list,8999,name}' = 'item 8999'",
        r#"js @> '{"a": "first"}'"#,
        r#"js @> '{"list": [{"id": 8999}]}'"#,
        "js ? 'longest key'",
        "js > '[]'",
        "js > js - 'a'",
        "(js - 'a') <> js",
        "js = js::text::jsonb",
    ] {
        let filter = Filter::parse(clause, &[], &schema).unwrap_or_else(|error| panic!("{clause}: {error}"));
        let time = (0..10).map(|_| {
            let begun = Instant::now();
            assert_eq!(black_box(&filter).matches(black_box(&row)), Ok(Some(true)), "{clause}");
            begun.elapsed()
        });
        eprintln!("{:>9.1?} a row: {clause}", time.min().unwrap());
    }
}
