//! Evaluating common clauses allocates no memory.

use forebay_filter::{Collation, Column, Filter, Schema};
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
