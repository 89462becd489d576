//! Evaluating common clauses allocates no memory, and hostile ones a bounded amount.

use std::fmt::Write as _;

use forebay_filter::{Collation, Column, Filter, RowVerdict, Schema};
use forebay_testkit::PeakAllocator;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

#[test]
fn comparing_a_column_with_a_constant_allocates_nothing() {
    let schema = Schema {
        table: None,
        columns: vec![
            Column::new("id", 20, "int8"),
            Column::new("name", 25, "text"),
            Column::new("key", 2950, "uuid"),
            Column::new("on", 16, "bool"),
            Column::new("made", 1184, "timestamptz"),
            Column::new("raw", 17, "bytea"),
            Column::new("ip", 869, "inet"),
            Column::new("mac", 829, "macaddr"),
        ],
        database_collation: Collation::C,
        server_version: 15,
    };
    let row: [Option<&[u8]>; 8] = [
        Some(b"5"),
        Some(b"apple"),
        Some(b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        Some(b"t"),
        Some(b"2024-02-29 12:00:00.5+00"),
        Some(b"\\x00ff"),
        Some(b"10.1.2.3"),
        Some(b"08:00:2b:01:02:03"),
    ];
    for clause in [
        "id = 5",
        "id IN (1, 2, 5)",
        "name = 'apple'",
        "name LIKE 'app%'",
        "key = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "\"on\"",
        "\"on\" = true AND id > 3 AND name <> 'x'",
        "made > '2024-01-01'",
        "raw = '\\x00ff' AND raw < '\\x01'",
        "ip << '10.0.0.0/8' AND ip = '10.1.2.3'",
        "id + 1 BETWEEN 2 AND 10",
    ] {
        let filter = Filter::parse(clause, &[], &schema).unwrap();
        let (matches, allocated_bytes) = ALLOCATOR.peak_of(|| filter.matches(&row));
        assert_eq!(matches, Ok(Some(true)), "{clause}");
        assert_eq!(allocated_bytes, 0, "{clause}");
    }
}

fn schema() -> Schema {
    let columns = vec![
        Column::new("js", 3802, "jsonb"),
        Column::new("t", 25, "text"),
        Column::new("n", 1700, "numeric"),
        Column::new("tags", 1009, "text[]"),
        Column::new("f", 701, "float8"),
    ];
    Schema { table: None, columns, database_collation: Collation::C, server_version: 18 }
}

/// Returns a document of about a megabyte: members, a list of objects, and 500 nested arrays.
fn large_document() -> String {
    let mut json = String::from(r#"{"deep": "#);
    let _ = write!(json, "{}{}, \"list\": [", "[".repeat(500), "]".repeat(500));
    for id in 0..18_000 {
        let comma = if id == 0 { "" } else { ", " };
        let _ = write!(json, r#"{comma}{{"id": {id}, "name": "item {id}", "tags": ["red"]}}"#);
    }
    json + r#"], "name": "first"}"#
}

/// Most bytes that evaluating a row may hold, per byte of the row and the clause's constants.
const HELD_PER_BYTE: usize = 80;

#[test]
fn hostile_rows_and_constants_take_memory_in_proportion_to_their_size() {
    let schema = schema();
    let (json, list) = (large_document(), format!("{{{}x}}", "a%,".repeat(9_999)));
    let path = format!("{{{}}}", vec!["deep"; 5_000].join(","));
    let arrows = format!("js{} = '1'", " -> 'deep'".repeat(100));
    let (letters, digits) = ("a".repeat(1 << 17), "9".repeat(60_000));
    let deep = format!("{}{}", "[".repeat(900), "]".repeat(900));
    let tags = format!("{{{}}}", vec!["\"a b\""; 100_000].join(","));
    let row: [Option<&[u8]>; 5] = [
        Some(json.as_bytes()),
        Some(letters.as_bytes()),
        Some(digits.as_bytes()),
        Some(tags.as_bytes()),
        Some(b"10"),
    ];
    let (yes, no, undecided) = (RowVerdict::Match, RowVerdict::NoMatch, RowVerdict::Undecided);
    for (clause, params, verdict) in [
        ("js ->> 'name' = 'first'", &[][..], yes),
        ("js #>> $1 = 'x'", &[&*path], no),
        (&*arrows, &[], no),
        ("js @> '{\"list\": [{\"id\": 17999}]}'", &[], yes),
        ("js -> 'deep' @> $1", &[&*deep], undecided),
        ("js - 'list' - 'deep' = '{\"name\": \"first\"}'", &[], yes),
        ("js || js = js", &[], yes),
        ("js = js::text::jsonb", &[], yes),
        ("js > '[]'", &[], yes),
        ("t LIKE $1", &[&*"%a".repeat(30_000)], yes),
        ("t LIKE $1", &[&*format!("%{}b", "a".repeat(30_000))], undecided),
        ("t ILIKE $1", &[&*format!("%{}b", "_a".repeat(30_000))], undecided),
        ("t LIKE ANY ($1)", &[&*list], yes),
        ("btrim(t, $1) = ''", &[&*"bcdefghijklmnopqrstuvwxyza".repeat(2_000)], yes),
        ("replace(t, 'a', 'bbbbbbbbbbbbbbbb') = 'x'", &[], undecided),
        ("repeat(t, 100) = 'x'", &[], undecided),
        ("translate(t, $1, 'b') = 'x'", &[&*"zyxwvutsrqponmlkjihgfedcba".repeat(2_000)], no),
        ("n * n > 1", &[], yes),
        ("n / 7 > 1", &[], yes),
        ("n % 12345678901234567890 > 1", &[], yes),
        ("power(f, 100000) > 1", &[], no),
        ("tags @> '{x}'", &[], no),
        ("tags = tags || tags", &[], no),
        ("cardinality(array_replace(tags, 'a b', 'c')) > 1", &[], yes),
        ("array_position(tags, 'x') > 1", &[], no),
    ] {
        let parsed = ALLOCATOR.peak_of(|| Filter::parse(clause, params, &schema));
        let filter = parsed.0.unwrap_or_else(|error| panic!("{clause}: {error}"));
        let (judged, held) = ALLOCATOR.peak_of(|| filter.judge(&row));
        assert_eq!(judged, verdict, "{clause}");
        assert!(judged != undecided || filter.may_be_undecided(), "{clause}");
        let given = clause.len() + params.iter().map(|param| param.len()).sum::<usize>();
        let used: usize = filter.columns().iter().map(|&column| row[column].map_or(0, <[u8]>::len)).sum();
        let allowed = HELD_PER_BYTE * (given + used) + (1 << 16);
        assert!(held <= allowed, "{clause}: a row holds {held} bytes, more than {allowed}");
        assert!(
            parsed.1 <= HELD_PER_BYTE * 8 * given + (1 << 16),
            "{clause}: parsing holds {} bytes",
            parsed.1
        );
    }
}

#[test]
fn constants_that_grow_without_bound_are_refused_as_postgres_does_or_by_name() {
    for (clause, message) in [
        ("f > power(10::float8, 100000)", "value out of range: overflow"),
        ("f > 10.0::float8 ^ 400", "value out of range: overflow"),
        ("n > 1e200000", "value overflows numeric format"),
        ("t = repeat('x', 2000000000)", "requested length too large"),
        ("t = lpad('x', 2000000000)", "requested length too large"),
    ] {
        let (parsed, held) = ALLOCATOR.peak_of(|| Filter::parse(clause, &[], &schema()));
        let error = parsed.map(|_| ()).expect_err(clause).to_string();
        assert!(error.contains(message), "{clause}: {error}");
        assert!(held < 1 << 20, "{clause}: {held} bytes");
    }
}
