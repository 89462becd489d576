//! Test table: a column of every type, and rows of edge cases.

use forebay_filter::{Collation, Column, Schema, TypeDetails, TypeKind, UserType};
use forebay_testkit::TestRng;

/// A column: its name, its type in SQL, pg_type.oid, and the type's short name.
pub(crate) struct TestColumn {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    pub(crate) oid: u32,
    pub(crate) kind: &'static str,
}

/// The oid of the test's enum. Servers assign others, which have no effect.
const MOOD: u32 = 90_001;
const CITEXT: u32 = 90_003;

#[rustfmt::skip]
pub(crate) const COLUMNS: &[TestColumn] = &[
    TestColumn { name: "b", sql: "bool", oid: 16, kind: "bool" },
    TestColumn { name: "i2", sql: "int2", oid: 21, kind: "int2" },
    TestColumn { name: "i4", sql: "int4", oid: 23, kind: "int4" },
    TestColumn { name: "j4", sql: "int4", oid: 23, kind: "int4" },
    TestColumn { name: "i8", sql: "int8", oid: 20, kind: "int8" },
    TestColumn { name: "n", sql: "numeric", oid: 1700, kind: "numeric" },
    TestColumn { name: "m", sql: "numeric", oid: 1700, kind: "numeric" },
    TestColumn { name: "f4", sql: "float4", oid: 700, kind: "float4" },
    TestColumn { name: "f8", sql: "float8", oid: 701, kind: "float8" },
    TestColumn { name: "t", sql: "text", oid: 25, kind: "text" },
    TestColumn { name: "u", sql: "text", oid: 25, kind: "text" },
    TestColumn { name: "\"V c\"", sql: "varchar(20)", oid: 1043, kind: "varchar" },
    TestColumn { name: "bp", sql: "char(4)", oid: 1042, kind: "bpchar" },
    TestColumn { name: "id", sql: "uuid", oid: 2950, kind: "uuid" },
    TestColumn { name: "d", sql: "date", oid: 1082, kind: "date" },
    TestColumn { name: "ti", sql: "time", oid: 1083, kind: "time" },
    TestColumn { name: "tz", sql: "timetz", oid: 1266, kind: "timetz" },
    TestColumn { name: "ts", sql: "timestamp", oid: 1114, kind: "timestamp" },
    TestColumn { name: "tstz", sql: "timestamptz", oid: 1184, kind: "timestamptz" },
    TestColumn { name: "iv", sql: "interval", oid: 1186, kind: "interval" },
    TestColumn { name: "ai", sql: "int4[]", oid: 1007, kind: "int4[]" },
    TestColumn { name: "at", sql: "text[]", oid: 1009, kind: "text[]" },
    TestColumn { name: "an", sql: "numeric[]", oid: 1231, kind: "numeric[]" },
    TestColumn { name: "ad", sql: "date[]", oid: 1182, kind: "date[]" },
    TestColumn { name: "js", sql: "jsonb", oid: 3802, kind: "jsonb" },
    TestColumn { name: "ks", sql: "jsonb", oid: 3802, kind: "jsonb" },
    TestColumn { name: "by", sql: "bytea", oid: 17, kind: "bytea" },
    TestColumn { name: "ip", sql: "inet", oid: 869, kind: "inet" },
    TestColumn { name: "ip2", sql: "inet", oid: 869, kind: "inet" },
    TestColumn { name: "net", sql: "cidr", oid: 650, kind: "cidr" },
    TestColumn { name: "mac", sql: "macaddr", oid: 829, kind: "macaddr" },
    TestColumn { name: "r4", sql: "int4range", oid: 3904, kind: "int4range" },
    TestColumn { name: "s4", sql: "int4range", oid: 3904, kind: "int4range" },
    TestColumn { name: "r8", sql: "int8range", oid: 3926, kind: "int8range" },
    TestColumn { name: "nr", sql: "numrange", oid: 3906, kind: "numrange" },
    TestColumn { name: "tr", sql: "tsrange", oid: 3908, kind: "tsrange" },
    TestColumn { name: "tzr", sql: "tstzrange", oid: 3910, kind: "tstzrange" },
    TestColumn { name: "dr", sql: "daterange", oid: 3912, kind: "daterange" },
    TestColumn { name: "m4", sql: "int4multirange", oid: 4451, kind: "int4multirange" },
    TestColumn { name: "nm", sql: "nummultirange", oid: 4532, kind: "nummultirange" },
    TestColumn { name: "dm", sql: "datemultirange", oid: 4535, kind: "datemultirange" },
    TestColumn { name: "mood", sql: "mood", oid: MOOD, kind: "mood" },
    TestColumn { name: "mood2", sql: "mood", oid: MOOD, kind: "mood" },
    TestColumn { name: "am", sql: "mood[]", oid: MOOD + 1, kind: "mood[]" },
    TestColumn { name: "ci", sql: "citext", oid: CITEXT, kind: "citext" },
    TestColumn { name: "cj", sql: "citext", oid: CITEXT, kind: "citext" },
    TestColumn { name: "ac", sql: "citext[]", oid: CITEXT + 1, kind: "citext[]" },
    TestColumn { name: "aby", sql: "bytea[]", oid: 1001, kind: "bytea[]" },
    TestColumn { name: "aip", sql: "inet[]", oid: 1041, kind: "inet[]" },
    TestColumn { name: "ar", sql: "int4range[]", oid: 3905, kind: "int4range[]" },
];

/// Returns edge cases of a type's values, as text.
#[rustfmt::skip]
pub(crate) fn values(kind: &str) -> &'static [&'static str] {
    match kind {
        "bool" => &["t", "f"],
        "int2" => &["0", "1", "-1", "2", "7", "100", "32767", "-32768"],
        "int4" => &["0", "1", "-1", "2", "3", "5", "10", "42", "2147483647", "-2147483648"],
        "int8" => &["0", "1", "-1", "3", "9223372036854775807", "-9223372036854775808", "5000000000"],
        "numeric" => &["0", "1", "-1", "0.1", "0.10", "3.14159", "-2.5", "1.5", "1e20", "99999999999999999999.999", "-0.00001", "NaN",
            "Infinity", "-Infinity", "12345678901234567890123456789", "10000", "0.0001"],
        "float4" => &["0", "1", "-1", "0.1", "3.5", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "16777217"],
        "float8" => &["0", "1", "-1", "0.1", "0.3", "2.5", "-0", "NaN", "Infinity", "-Infinity", "1.7976931348623157e308", "5e-324",
            "1e15", "1e-5", "9007199254740993", "0.5", "1.5"],
        "text" | "varchar" | "bpchar" | "citext" => &["", "a", "A", "b", "ab", "aB", "a ", " a", "abc", "%", "_", "a%", "a\\", "\\", "é", "É", "日本", "ß",
            "1", "12", "-5", "t", "null", "x'y", "a_b", "aé"],
        "uuid" => &["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
        "date" => &["2000-01-01", "1999-12-31", "2024-02-29", "infinity", "-infinity", "0001-01-01 BC", "5874897-12-31", "4714-11-24 BC",
            "2023-03-31", "1970-01-01", "294277-01-01"],
        "time" => &["00:00:00", "24:00:00", "12:34:56.789", "23:59:59.999999", "01:00:00"],
        "timetz" => &["00:00:00+00", "24:00:00-15:59", "12:34:56.789+05:30", "01:00:00+01", "00:00:00-01:30:15"],
        "timestamp" | "timestamptz" => &["2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "2024-02-29 12:00:00", "infinity", "-infinity",
            "0044-03-15 12:00:00 BC", "294276-12-31 23:59:59.999999", "2023-01-31 00:00:00.5", "1970-01-01 00:00:00"],
        "interval" => &["PT0S", "P1D", "PT24H", "P1M", "P30D", "P1Y2M3DT4H5M6.7S", "P-1M30D", "PT-0.000001S", "P100Y", "P1DT-1H", "PT1H", "P2147483647D"],
        "int4[]" => &["{}", "{1}", "{1,2,3}", "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={5,42}", "{NULL}", "{2,1}", "{{1},{2}}"],
        "text[]" => &["{}", "{a}", "{a,b}", "{\"\",NULL}", "{\"a \",\"x'y\"}", "{A,é}", "{{a,b},{c,d}}"],
        "numeric[]" => &["{}", "{1}", "{1.0,2.50}", "{NaN,NULL}", "{0.1}"],
        "date[]" => &["{}", "{2000-01-01}", "{infinity,NULL}", "{2024-02-29,1999-12-31}"],
        // In the layout that Postgres writes.
        "jsonb" => &["{}", "[]", "null", "true", "false", "1", "1.50", "-2500", "\"a\"", "\"\"", "[1, 2, 3]", "[1.0, [2], {\"a\": 1}]",
            "[\"a\", \"b\", null, \"é\"]", "{\"a\": 1, \"b\": [1, 2.0, {\"c\": null}], \"k\": \"v\"}", "{\"a\": {\"b\": {\"c\": \"d\"}}}",
            "{\"a\": 1.0}", "{\"a\": true, \"k\": \"1\"}", "{\"\": 0, \"b\": 1, \"aa\": 2, \"é\": []}", "\"x'y \\n\\\"\\\\ é\"", "[[1], [2, {\"a\": 1}]]",
            "{\"a\": [\"b\"], \"n\": 100}", "[true, \"A\"]", "[null]", "[{}, []]", "{\"a\": \"B\"}", "{\"a\": \"a\"}", "{\"B\": 1}"],
        "bytea" => &["\\x", "\\x00", "\\x6162", "\\xff00", "abc", "a\\\\b", "\\001x", "\\xFFfe", "\\x61"],
        "inet" => &["10.1.2.3", "10.0.0.0/8", "10.0.0.0/9", "192.168.1.5/24", "0.0.0.0/0", "255.255.255.255", "::1", "::/0", "2001:db8::1/32",
            "::ffff:10.1.2.3", "10.1.0.0/16", "fe80::1:0:0:0", "::10.1.2.3", "::10.1", "::ffff:10.1..3/104", "1:2:3:4:5:6:7:8:/64"],
        "cidr" => &["10.0.0.0/8", "10.1.0.0/16", "10", "192.168.1", "0.0.0.0/0", "::/0", "2001:db8::/32", "10.1.2.3/32", "::1/128"],
        "macaddr" => &["08:00:2b:01:02:03", "08-00-2b-01-02-03", "0800.2b01.0203", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"],
        "int4range" => &["empty", "[1,5)", "[1,5]", "(1,5)", "(,5)", "[5,)", "(,)", "[5,9]", "[3,3]", "[0,1)", "[-2147483648,2147483647)", "[5,6)"],
        "int8range" => &["empty", "[1,5)", "[1,5]", "(,5)", "[5,)", "(,)", "[3,3]", "[9223372036854775806,9223372036854775807)"],
        "numrange" => &["empty", "[1,5)", "[1.0,5.00]", "(1,5)", "(,5)", "[5,)", "(,)", "(1,1.5]", "[NaN,NaN]", "[-2.5,Infinity)"],
        "tsrange" | "tstzrange" => &["empty", "[2000-01-01 00:00:00,2024-02-29 12:00:00)", "(,2000-01-01 00:00:00]", "[2000-01-01 00:00:00,)",
            "(,)", "[2000-01-01 00:00:00,infinity]", "(1999-12-31 23:59:59.999999,2000-01-01 00:00:00)"],
        "daterange" => &["empty", "[2000-01-01,2024-02-29)", "[2000-01-01,2000-01-01]", "(1999-12-31,2000-01-02)", "(,2000-01-01]", "[2000-01-01,)", "(,)",
            "[2000-01-01,infinity)", "[2000-01-01,infinity]", "(-infinity,2000-01-01)"],
        "int4multirange" | "int8multirange" => &["{}", "{[1,5)}", "{[1,2),[3,5)}", "{(,)}", "{[5,),(,1)}", "{[3,3],[4,5]}", "{[0,1),[5,6)}",
            "{[1,5), empty ,[4,9]}"],
        "nummultirange" => &["{}", "{[1,5)}", "{[1.0,1.50],(1.5,3)}", "{(,)}", "{[-2.5,0),(0,Infinity)}", "{[NaN,NaN]}", "{(1,5.00]}"],
        "tsmultirange" | "tstzmultirange" => &["{}", "{(,)}", "{[2000-01-01 00:00:00,2024-02-29 12:00:00)}",
            "{(,\"1999-12-31 23:59:59.999999\"),[2000-01-01 00:00:00,infinity]}"],
        "datemultirange" => &["{}", "{(,)}", "{[2000-01-01,2024-02-29)}", "{[1970-01-01,2000-01-01],[2000-01-03,infinity]}", "{[2000-01-01,2000-01-01]}"],
        "mood" => &["sad", "happy", "it's", "Zest", "able"],
        "mood[]" => &["{}", "{sad}", "{sad,happy}", "{it's,NULL}", "{able,Zest}", "{{sad,able},{happy,Zest}}"],
        "citext[]" => &["{}", "{a}", "{A,b}", "{\"\",NULL}", "{É,\"aB\"}", "{{a,B},{Ab,\"NULL\"}}", "[0:1]={\"x'Y\",B}"],
        "bytea[]" => &["{}", "{a}", "{\"\\\\x6162\",NULL}", "{b,a}"],
        "inet[]" => &["{}", "{10.1.2.3}", "{10.0.0.0/8,::1}", "{NULL,10.1.2.3}"],
        "int4range[]" => &["{}", "{\"[1,5)\"}", "{empty,NULL}", "{\"[1,4]\",\"(,)\"}"],
        other => panic!("no values of {other}"),
    }
}

/// Columns of texts that keep the database's collation if others have one of their own.
const UNCOLLATED: &[&str] = &["u", "at"];
/// SQL of a collation that ignores case: texts of different bytes are equal.
pub(crate) const NONDETERMINISTIC: &str = "CREATE COLLATION nondeterministic \
     (provider = icu, locale = 'und-u-ks-level2', deterministic = false);";

/// Returns whether the column may have a collation of its own.
fn has_own_collation(shown: &TestColumn) -> bool {
    let is_text = matches!(shown.kind.trim_end_matches("[]"), "text" | "varchar" | "bpchar");
    is_text && !UNCOLLATED.contains(&shown.name)
}

/// Returns the schema of a table whose columns of texts mostly are nondeterministic.
pub(crate) fn nondeterministic_schema(collation: &Collation, version: u32) -> Schema {
    let mut schema = schema(collation, version);
    for (column, shown) in schema.columns.iter_mut().zip(COLUMNS) {
        column.column_type.collation = has_own_collation(shown).then_some(Collation::Nondeterministic);
    }
    schema
}

/// Returns the table's schema.
pub(crate) fn schema(collation: &Collation, version: u32) -> Schema {
    let column = |shown: &TestColumn| {
        let name = shown.name.trim_matches('"');
        let mut column = Column::new(name, shown.oid, shown.kind);
        let column_type = &mut column.column_type;
        let is_array = shown.sql.ends_with(']');
        column_type.dimensions = u32::from(is_array);
        if shown.kind.ends_with("range") {
            column_type.kind = TypeKind::Other;
        }
        if shown.kind.trim_end_matches("[]") == "mood" {
            column_type.kind = if is_array { TypeKind::Base } else { TypeKind::Enum };
            column_type.details = TypeDetails(Some(Box::new(mood(is_array))));
        }
        if shown.kind.trim_end_matches("[]") == "citext" {
            column_type.details = TypeDetails(Some(Box::new(user_type(CITEXT, "citext", is_array, None))));
        }
        column
    };
    let columns: Vec<_> = COLUMNS.iter().map(column).collect();
    Schema {
        table: Some("rows".to_owned()),
        columns,
        database_collation: collation.clone(),
        server_version: version,
    }
}

fn mood(is_array: bool) -> UserType {
    let labels = values("mood").iter().map(|label| label.to_string()).collect();
    user_type(MOOD, "mood", is_array, Some(labels))
}

fn user_type(oid: u32, name: &str, is_array: bool, labels: Option<Vec<String>>) -> UserType {
    UserType { oid, schema: "public".into(), name: name.into(), is_array, labels, base_array: None }
}

/// Returns the SQL that creates the table. `collation`: of columns of texts, as a clause.
pub(crate) fn create(collation: &str) -> String {
    let column = |shown: &TestColumn| {
        let collation = if has_own_collation(shown) { collation } else { "" };
        format!("{} {} {collation}", shown.name, shown.sql)
    };
    let columns: Vec<_> = COLUMNS.iter().map(column).collect();
    format!(
        "CREATE EXTENSION citext;
          CREATE TYPE mood AS ENUM ('sad', 'happy', 'it''s', 'Zest', 'able');
          CREATE TABLE rows (rn int PRIMARY KEY, {});",
        columns.join(", ")
    )
}

/// Returns the INSERT of one row.
pub(crate) fn insert(rng: &mut TestRng, rn: usize) -> String {
    let values: Vec<_> = COLUMNS.iter().map(|shown| value(rng, shown)).collect();
    format!("({rn}, {})", values.join(", "))
}

fn value(rng: &mut TestRng, shown: &TestColumn) -> String {
    if rng.percent(12) {
        return "NULL".to_owned();
    }
    let mut all: Vec<&str> = values(shown.kind).to_vec();
    if shown.kind == "bpchar" {
        all.retain(|text| text.chars().count() <= 4);
    }
    format!("'{}'", rng.pick(&all).replace('\'', "''"))
}
