//! Properties that hold for any text from a client or a row.
//!
//! Invariant: nothing panics. A clause that is accepted has a canonical text, which is accepted too
//! and has the same canonical text. A jsonb document that is accepted equals, contains and is found
//! by the text that Postgres would write for it.
//! The fuzz targets check them on generated input, the tests on the corpora.

#![allow(dead_code, reason = "each target checks one of the properties")]

use forebay_filter::{
    Collation, Column, EnumType, Expression, Filter, Index, IndexCondition, Schema, TypeDetails, TypeKind,
    UserType,
};

/// Number of columns of the schema.
const COLUMNS: usize = 14;
const JSON: usize = 2;
const CITEXT: usize = 6;

fn schema() -> Schema {
    let mut columns = vec![
        Column::new("i", 23, "int4"),
        Column::new("t", 25, "text"),
        Column::new("js", 3802, "jsonb"),
        Column::new("n", 1700, "numeric"),
        Column::new("ts", 1114, "timestamp"),
        Column::new("at", 1009, "text[]"),
        Column::new("ci", 90_001, "citext"),
        Column::new("mood", 90_002, "mood"),
        Column::new("span", 1186, "interval"),
        Column::new("tstz", 1184, "timestamptz"),
        Column::new("raw", 17, "bytea"),
        Column::new("ip", 869, "inet"),
        Column::new("r", 3904, "int4range"),
        Column::new("f8", 701, "float8"),
    ];
    assert_eq!(columns.len(), COLUMNS);
    let user = |name: &str, oid, labels| {
        let user = UserType {
            oid,
            schema: "s".into(),
            name: name.into(),
            is_array: false,
            labels,
            base_array: None,
        };
        TypeDetails(Some(Box::new(user)))
    };
    columns[CITEXT].column_type.details = user("citext", 90_001, None);
    columns[CITEXT + 1].column_type.kind = TypeKind::Enum;
    columns[CITEXT + 1].column_type.details =
        user("mood", 90_002, Some(vec!["sad".to_owned(), "happy".to_owned()]));
    columns[12].column_type.kind = TypeKind::Other;
    Schema { table: Some("rows".to_owned()), columns, database_collation: Collation::C, server_version: 18 }
}

/// Checks a text as a where clause.
pub(crate) fn clause(input: &[u8]) {
    let (Ok(text), schema) = (std::str::from_utf8(input), schema()) else { return };
    let params = ["5", "it's", "{\"a\": 1}"];
    let _ =
        Expression::parse(text, &params, &schema, &[EnumType { schema: "s".into(), name: "mood".into() }]);
    let Ok(filter) = Filter::parse(text, &params, &schema) else { return };
    let again = Filter::parse(filter.canonical(), &[], &schema).expect("canonical text is a clause");
    assert_eq!(again.canonical(), filter.canonical());
    let rows: [[Option<&[u8]>; COLUMNS]; 3] = [
        [None; COLUMNS],
        [
            "5",
            "a",
            "{\"a\": 1}",
            "1.50",
            "2000-01-01 00:00:00",
            "{a}",
            "Ab",
            "sad",
            "P1Y2M",
            "2000-01-01 00:00:00+00",
            "\\x00ff",
            "10.0.0.1",
            "[1,5)",
            "-0.5",
        ]
        .map(|text| Some(text.as_bytes())),
        [
            "x",
            "\u{fffd}",
            "{\"a\"",
            "-",
            "infinity",
            "{",
            "ß",
            "?",
            "P",
            "-infinity",
            "\\x0",
            "::/129",
            "[",
            "e",
        ]
        .map(|text| Some(text.as_bytes())),
    ];
    let mut index = Index::new();
    index.add(1, Some(&filter), &schema);
    for row in &rows {
        let (answer, mut found) = (filter.matches(row), Vec::new());
        assert_eq!(again.matches(row), answer);
        index.candidates(row, &mut found);
        assert!(!found.is_empty() || answer != Ok(Some(true)), "true, and not found");
        assert!(
            !found.iter().any(|candidate| candidate.certain) || answer == Ok(Some(true)),
            "certain, not true"
        );
    }
}

/// Checks two texts, separated by a line break, as a citext constant and a citext value.
pub(crate) fn citext(input: &[u8]) {
    let (Ok(text), schema) = (std::str::from_utf8(input), schema()) else { return };
    let (left, right) = text.split_once('\n').unwrap_or((text, text));
    // Postgres has no text with a zero byte.
    if text.contains('\0') {
        return;
    }
    let row_of = |value| {
        let mut row: [Option<&[u8]>; COLUMNS] = [None; COLUMNS];
        row[CITEXT] = Some(str::as_bytes(value));
        row
    };
    let answer = |clause: &str, constant: &str, value| {
        let filter = Filter::parse(clause, &[constant], &schema).ok()?;
        let (row, mut index, mut found) = (row_of(value), Index::new(), Vec::new());
        index.add(1, Some(&filter), &schema);
        index.candidates(&row, &mut found);
        let answer = filter.matches(&row).ok()?;
        assert!(!found.is_empty() || answer != Some(true), "{clause} is not found");
        assert!(!found.iter().any(|found| found.certain) || answer == Some(true), "{clause} is certain");
        answer
    };
    let (equal, converse) = (answer("ci = $1", left, right), answer("ci = $1", right, left));
    assert_eq!(equal, converse);
    assert_eq!(equal, answer("ci IN ($1)", left, right));
    assert_eq!(equal.map(|equal| !equal), answer("ci <> $1", left, right));
    let (less, greater) = (answer("ci < $1", left, right), answer("ci > $1", right, left));
    assert_eq!(less, greater);
    assert!(equal != Some(true) || less == Some(false));
    assert!(answer("ci = $1", left, left) != Some(false), "{left:?} = {left:?}");
    assert!(left.contains('\\') || answer("ci LIKE $1", left, left) != Some(false), "{left:?} LIKE {left:?}");
    let _ = (answer("ci LIKE $1", left, right), answer("ci ILIKE $1 OR ci::text ~~* $1", left, right));
}

/// Checks a text as a jsonb constant, and as the text of a jsonb column.
pub(crate) fn jsonb(input: &[u8]) {
    let (Ok(text), schema) = (std::str::from_utf8(input), schema()) else { return };
    let lookups = "js -> 'a' = '1' OR js ->> -1 = 'x' OR js #>> '{a,0}' = 'x' OR js ? 'a' OR js @> '{\"a\":[1]}' OR
        js < '{\"a\":2}' OR js - 'a' = '{}' OR js || '[1]' = '[]' OR js::text = 'x' OR jsonb_typeof(js) = 'x'";
    let any = Filter::parse(lookups, &[], &schema).expect("a clause");
    let _ = any.matches(&row_of(text.as_bytes()));
    let Some(written) = written(text, &schema) else { return };
    assert_eq!(self::written(&written, &schema).as_deref(), Some(&*written), "it is read again");
    let row = row_of(written.as_bytes());
    assert!(any.matches(&row).is_ok() || written.len() > 100);
    for (clause, answer) in [
        ("js = $1", true),
        ("js @> $1 AND js <@ $1 AND js <= $1 AND NOT js < $1", true),
        ("js || '[]' <> js AND js = $1 AND false", false),
        ("js::text::jsonb = js AND js IN ($1, '0')", true),
    ] {
        let filter = Filter::parse(clause, &[text], &schema).expect("the constant is accepted");
        let (matches, mut index, mut found) = (filter.matches(&row), Index::new(), Vec::new());
        // Containment refuses great depth.
        assert!(matches == Ok(Some(answer)) || matches.is_err(), "{clause}: {matches:?}");
        index.add(1, Some(&filter), &schema);
        index.candidates(&row, &mut found);
        assert!(found.len() == 1 || !answer, "{clause} is not found");
    }
}

fn row_of(json: &[u8]) -> [Option<&[u8]>; COLUMNS] {
    let mut row = [None; COLUMNS];
    row[JSON] = Some(json);
    row
}

/// Returns what Postgres would write for a document; `None` if it is refused.
fn written(text: &str, schema: &Schema) -> Option<String> {
    let filter = Filter::parse("t = $1::jsonb::text", &[text], schema).ok()?;
    match &filter.conditions()[..] {
        [only] => match &only.conditions[..] {
            [IndexCondition::Equals { keys, .. }] => keys[0].as_text().map(str::to_owned),
            other => panic!("it is one equality: {other:?}"),
        },
        other => panic!("it has one alternative: {other:?}"),
    }
}
