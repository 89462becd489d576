//! Tests of the rows of a snapshot and of their text.

use std::convert::Infallible;

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_serve::database::{RowSink, SnapshotError, SnapshotQuery, SubsetPage};
use serde_json::{Value, json};

use super::{CollectingSink, Database, query};

const SETTINGS: &str =
    "SET bytea_output = hex; SET DateStyle = 'ISO, DMY'; SET TimeZone = 'UTC'; SET extra_float_digits = 1;
    SET IntervalStyle = iso_8601; SET search_path = pg_catalog;";

/// Types with values of each.
#[rustfmt::skip]
const VALUES: &[(&str, &[&str])] = &[
    ("bool", &["true", "false"]),
    ("int2", &["-32768"]), ("int4", &["2147483647"]), ("int8", &["-9223372036854775808"]),
    ("numeric", &["0.10", "NaN", "-Infinity", "123456789012345678901234567890.123456789"]), ("numeric(6,2)", &["1.5"]),
    ("float4", &["0.1", "NaN", "-0", "1e-45"]), ("float8", &["0.1", "Infinity", "5e-324", "1e15"]), ("money", &["1.23"]),
    ("text", &["", "\\N", "N", "\\", "\\\\", "a\tb", "a\nb\r\n", "\u{1}\u{8}\u{b}\u{c}\u{1b}\u{7f}", "\"quoted\"", "é日本\u{1f600}", "\\.", "\\x41", "a/b", ","]),
    ("varchar(5)", &["ab   "]), ("char(5)", &["ab"]), ("\"char\"", &["a", "\\"]), ("name", &["x y"]), ("bytea", &["\\x00ff5c", ""]),
    ("date", &["2024-02-29", "infinity", "0044-03-15 BC"]), ("time", &["24:00:00", "12:34:56.789"]), ("timetz", &["12:00:00+05:30"]),
    ("timestamp", &["2024-02-29 12:00:00.5", "-infinity"]), ("timestamptz", &["2024-02-29 12:00:00+07", "0044-03-15 12:00:00 BC"]),
    ("interval", &["1 year 2 mons -3 days 04:05:06.7", "-1 sec"]), ("uuid", &["A0EEBC999C0B4EF8BB6D6BB9BD380A11"]),
    ("json", &["{\"a\" : [1, \"\\t\\n\\u0001\"]}"]), ("jsonb", &["{\"b\": \"\\\\\", \"a\": null}"]), ("xml", &["<a>\t&lt;</a>"]),
    ("int4[]", &["{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}", "{}"]), ("text[]", &["{\"a\\\\b\",\"c,d\",\"NULL\",NULL,\"\t\"}"]), ("bool[]", &["{t,f}"]),
    ("timestamptz[]", &["{2024-01-01 00:00:00+01}"]), ("bytea[]", &["{\"\\\\x01\"}"]),
    ("int4range", &["[1,5)", "empty"]), ("tstzrange", &["[2024-01-01 00:00:00+01,)"]), ("int4multirange", &["{[1,2],[5,6]}"]),
    ("point", &["(0.1,2)"]), ("polygon", &["((0,0),(1,1),(0,1))"]), ("inet", &["10.0.0.1/8", "::1"]), ("cidr", &["10.0.0.0/8"]), ("macaddr", &["08:00:2b:01:02:03"]),
    ("bit(3)", &["101"]), ("varbit", &["10101"]), ("tsvector", &["'a':1A 'b\\\\c':2"]), ("tsquery", &["'a' & !'b'"]),
    ("pg_lsn", &["16/B374D848"]), ("regclass", &["things"]), ("regtype", &["int4"]), ("xid8", &["7"]), ("oid", &["7"]), ("pg_snapshot", &["10:20:10,14"]),
    ("mood", &["it's \\sad"]), ("pair", &["(1,\"a\"\"\\\\b\tc\")"]), ("word", &["x"]),
];

#[tokio::test]
async fn every_value_is_the_text_that_postgres_writes() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            r"CREATE TYPE mood AS ENUM (E'it''s \\sad'); CREATE TYPE pair AS (a int, b text);
            CREATE DOMAIN word AS text; CREATE TABLE things (id int PRIMARY KEY)",
        );
        let columns: Vec<_> =
            VALUES.iter().enumerate().map(|(index, (kind, _))| format!("c{index} {kind}")).collect();
        let most = VALUES.iter().map(|(_, values)| values.len()).max().unwrap();
        // One more row than any type has values: all NULL.
        let row = |row: usize| {
            let value = |(_, values): &(&str, &[&str])| match values.get(row) {
                Some(value) => format!("'{}'", value.replace('\'', "''")),
                None => "NULL".to_owned(),
            };
            format!("({row}, {})", VALUES.iter().map(value).collect::<Vec<_>>().join(", "))
        };
        let rows: Vec<_> = (0..=most).map(row).collect();
        database.run(&format!(
            "CREATE TABLE t (id int PRIMARY KEY, {}); INSERT INTO t VALUES {}",
            columns.join(", "),
            rows.join(", ")
        ));
        // The database overrides every display setting.
        database.run(&format!(
            "ALTER DATABASE {0} SET bytea_output = escape; ALTER DATABASE {0} SET DateStyle = 'German';
            ALTER DATABASE {0} SET TimeZone = 'Asia/Tokyo'; ALTER DATABASE {0} SET extra_float_digits = -5;
            ALTER DATABASE {0} SET IntervalStyle = postgres_verbose",
            database.name
        ));
        let theirs = database.run(&format!("{SETTINGS} SELECT * FROM public.t ORDER BY id"));
        let theirs: Vec<_> = theirs.into_iter().filter(|row| row.len() > 1).collect();
        let ours = database.rows("t", None).await;
        assert_eq!((ours.len(), theirs.len()), (most + 1, most + 1));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours["value"]["id"], json!(theirs[0]));
            for (index, (kind, _)) in VALUES.iter().enumerate() {
                assert_eq!(
                    ours["value"][format!("c{index}")],
                    json!(theirs[index + 1]),
                    "{kind} on {version}"
                );
            }
        }
        assert_eq!(ours[0]["value"]["c0"], "t", "booleans are written as in the log");
    }
}

#[tokio::test]
async fn every_character_of_a_text_is_preserved() {
    let database = Database::new(
        15,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text);
        INSERT INTO t SELECT i, chr(i) || 'x' || chr(i), 'y' || chr(i) FROM generate_series(1, 1000) i",
    );
    for message in database.rows("t", None).await {
        let value = &message["value"];
        let id: u32 = value["id"].as_str().unwrap().parse().unwrap();
        let char = char::from_u32(id).unwrap();
        assert_eq!(
            (&value["a"], &value["b"]),
            (&json!(format!("{char}x{char}")), &json!(format!("y{char}")))
        );
    }
}

#[tokio::test]
async fn a_row_is_a_message_with_its_key() {
    let database = Database::new(15, "CREATE SCHEMA s; CREATE TABLE s.\"T\" (a text, b int, c text, PRIMARY KEY (c, b));
        INSERT INTO s.\"T\" VALUES (NULL, 1, 'x/y'); CREATE TABLE keyless (a int, b int); INSERT INTO keyless VALUES (1, NULL)");
    let message = json!({
        "key": "\"s\".\"T\"/\"x//y\"/\"1\"",
        "value": {"a": null, "b": "1", "c": "x/y"},
        "headers": {"operation": "insert", "relation": ["s", "T"]},
    });
    assert_eq!(database.rows("s.T", None).await, [message]);
    // A column that isn't selected isn't read, unless the key has it.
    let table = database.describe("keyless").await;
    let mut sink = CollectingSink::default();
    database.read(&query(&table, &[1], None), &mut sink).await.unwrap();
    let message = &sink.messages()[0];
    assert_eq!(
        (&message["key"], &message["value"]),
        (&json!("\"public\".\"keyless\"/\"1\"/_"), &json!({"b": null}))
    );
}

#[tokio::test]
async fn columns_that_are_not_selected_are_not_read() {
    let database = Database::of(
        15,
        "",
        "reader_of_columns",
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text);
        INSERT INTO t VALUES (1, 'a', repeat('b', 1000)); GRANT SELECT ON t TO reader_of_columns",
    );
    let table = database.describe("t").await;
    let mut sink = CollectingSink::default();
    let summary = database.read(&query(&table, &[0, 1], None), &mut sink).await.unwrap();
    assert_eq!(sink.messages()[0]["value"], json!({"id": "1", "a": "a"}));
    assert_eq!((summary.rows, summary.bytes), (1, sink.pieces[0].len() as u64));
}

#[tokio::test]
async fn rows_of_partitions_are_read_and_rows_of_inheriting_tables_are_not() {
    let database = Database::new(
        15,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id);
        CREATE TABLE twelve PARTITION OF high FOR VALUES IN (12); INSERT INTO parts VALUES (1), (12);
        CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE heir (more text) INHERITS (parent);
        INSERT INTO parent VALUES (1); INSERT INTO heir VALUES (2, 'x')",
    );
    let ids = |messages: Vec<Value>| {
        messages.iter().map(|message| message["value"]["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(database.rows("parts", None).await), ["1", "12"]);
    assert_eq!(ids(database.rows("parts", Some("(\"id\" > 5)")).await), ["12"]);
    assert_eq!(ids(database.rows("parent", None).await), ["1"]);
}

#[tokio::test]
async fn a_clause_and_a_page_select_rows() {
    let database = Database::new(
        15,
        "CREATE TABLE \"T\" (id int PRIMARY KEY, note text);
        INSERT INTO \"T\" SELECT i, CASE WHEN i % 2 = 0 THEN 'it''s \\' END FROM generate_series(1, 20) i;
        CREATE TABLE empty (id int PRIMARY KEY)",
    );
    let clause = r#"(("T"."note" = 'it''s \') AND ("id" > 4))"#;
    assert_eq!(database.rows("T", Some(clause)).await.len(), 8);
    let table = database.describe("T").await;
    let page = Some(SubsetPage { order_by: "\"id\" DESC", limit: Some(2), offset: Some(1) });
    let mut sink = CollectingSink::default();
    let query = SnapshotQuery { page, ..query(&table, &[0], Some(clause)) };
    database.read(&query, &mut sink).await.unwrap();
    let ids: Vec<_> = sink.messages().iter().map(|message| message["value"]["id"].clone()).collect();
    assert_eq!(ids, ["18", "16"]);
    assert!(database.rows("empty", None).await.is_empty());
}

#[tokio::test]
async fn settings_and_operators_of_the_database_do_not_change_a_clause() {
    let database = Database::new(
        15,
        "CREATE TABLE t (id int PRIMARY KEY, v varchar); INSERT INTO t VALUES (1, 'a'), (2, 'a\\');
        CREATE FUNCTION never(varchar, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
        CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = text, FUNCTION = never)",
    );
    database.run(&format!("ALTER DATABASE {0} SET standard_conforming_strings = off; ALTER DATABASE {0} SET transform_null_equals = on",
        database.name));
    assert_eq!(database.rows("t", Some("(\"v\" = ('a')::\"text\")")).await.len(), 1);
    assert_eq!(
        database.rows("t", Some(r"(('a\' = 'a\') AND (NOT (('\' || ' OR true -- ') = '')))")).await.len(),
        2
    );
    assert_eq!(database.rows("t", Some("((\"id\" = NULL) IS NULL)")).await.len(), 2);
}

/// A sink that inserts a row as soon as the snapshot is taken.
struct InsertingSink<'d> {
    database: &'d Database,
    sink: CollectingSink,
    before: u32,
    after: u32,
}

impl RowSink for InsertingSink<'_> {
    type Error = Infallible;

    async fn begin(&mut self, snapshot: &Snapshot, lsn: Lsn) -> Result<(), Infallible> {
        let write = "INSERT INTO t VALUES (2) RETURNING txid_current()";
        self.after = self.database.value(write).parse().unwrap();
        self.sink.begin(snapshot, lsn).await
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), Infallible> {
        self.sink.rows(messages).await
    }
}

#[tokio::test]
async fn the_rows_are_those_of_the_transactions_that_the_snapshot_sees() {
    let database = Database::new(15, "CREATE TABLE t (id int PRIMARY KEY)");
    let before: u32 = database.value("INSERT INTO t VALUES (1) RETURNING txid_current()").parse().unwrap();
    let written: Lsn = database.value("SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    let table = database.describe("t").await;
    let mut sink = InsertingSink { database: &database, sink: CollectingSink::default(), before, after: 0 };
    let summary = database.read(&query(&table, &[0], None), &mut sink).await.unwrap();
    assert_eq!(sink.sink.messages().len(), 1);
    let (snapshot, lsn) = sink.sink.begun.clone().unwrap();
    assert!(snapshot.sees(sink.before) && !snapshot.sees(sink.after));
    assert!(lsn >= written);
    assert_eq!((summary.snapshot, summary.lsn, summary.rows), (snapshot, lsn, 1));
}

#[tokio::test]
async fn rows_come_in_pieces_of_whole_messages() {
    let database = Database::new(15, "CREATE TABLE t (id int PRIMARY KEY, a text);
        INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 5000) i; INSERT INTO t VALUES (0, repeat('y', 3000000))");
    let table = database.describe("t").await;
    let mut sink = CollectingSink::default();
    let summary = database.read(&query(&table, &table.all_columns(), None), &mut sink).await.unwrap();
    assert_eq!((summary.rows, sink.messages().len()), (5001, 5001));
    let lengths: Vec<_> = sink.pieces.iter().map(Bytes::len).collect();
    assert_eq!(summary.bytes, lengths.iter().sum::<usize>() as u64);
    let (_, full) = lengths.split_last().unwrap();
    assert!(
        full.iter().filter(|length| !(64 << 10..256 << 10).contains(*length)).count() <= 1,
        "{lengths:?}"
    );
}

#[tokio::test]
async fn a_clause_is_validated_even_if_no_rows_are_read() {
    let database = Database::new(15, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)");
    let table = database.describe("t").await;
    for clause in [None, Some("id > 1 OR true"), Some("id = 1 -- one\n")] {
        let mut sink = CollectingSink::default();
        let query = SnapshotQuery { is_empty: true, ..query(&table, &[0], clause) };
        let summary = database.read(&query, &mut sink).await.unwrap();
        assert_eq!((summary.rows, sink.begun.is_some()), (0, true), "{clause:?}");
    }
    let query = SnapshotQuery { is_empty: true, ..query(&table, &[0], Some("id = 1 AND nope = 2")) };
    let error = database.read(&query, &mut CollectingSink::default()).await.unwrap_err();
    let SnapshotError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(
        (refusal.location, refusal.to_string().as_str()),
        (Some(26), "column \"nope\" does not exist")
    );
}
