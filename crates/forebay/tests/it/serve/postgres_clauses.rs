//! Shapes whose clauses Postgres evaluates on changed rows.

use std::collections::BTreeSet;

use forebay_testkit::{Direction, Proxy};
use rustix::process::Signal;

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, summarize};
use crate::wire::until;

const WORDS: [&str; 14] = [
    "Straße",
    "STRASSE",
    "Timișoara",
    "Việt",
    "Ελλάς",
    "İstanbul",
    "istanbul",
    "Երևան",
    "თბილისი",
    "ＦＵＬＬ",
    "zebra",
    "Äpfel",
    "apple",
    "Mitte",
];

const CREATE_WORDS: &str = "CREATE TABLE words (id int PRIMARY KEY, a int, word text, note text)";

/// Applies changes to a set of keys.
fn apply(keys: &mut BTreeSet<String>, messages: &[serde_json::Value]) {
    for message in changes(messages) {
        let key = message["key"].as_str().unwrap().to_owned();
        match message["headers"]["operation"].as_str().unwrap() {
            "insert" => assert!(keys.insert(key.clone()), "{key} was there"),
            "update" => assert!(keys.contains(&key), "{key} wasn't there"),
            _ => assert!(keys.remove(&key), "{key} wasn't there"),
        }
    }
}

/// Reads until the client has the rows that Postgres selects.
async fn follow(
    fixture: &ServeFixture,
    serve: &ServeProcess,
    reader: &mut ShapeReader<'_>,
    keys: &mut BTreeSet<String>,
    clause: &str,
) {
    let sql = format!("SELECT string_agg(id::text, ',' ORDER BY id) FROM words WHERE {clause}");
    let expected = fixture.query_value(&sql).unwrap_or_default();
    let expected: BTreeSet<String> = expected
        .split(',')
        .filter(|id| !id.is_empty())
        .map(|id| format!("\"public\".\"words\"/\"{id}\""))
        .collect();
    let handle = reader.handle.clone();
    for _ in 0..40 {
        if *keys == expected {
            break;
        }
        let messages = reader.long_poll(serve).await;
        apply(keys, &messages);
    }
    assert_eq!(*keys, expected, "{clause}");
    assert_eq!(reader.handle, handle, "the shape stays");
}

#[tokio::test]
async fn text_is_ordered_and_compared_by_icu_in_snapshots_and_live() {
    for version in [15, 18] {
        let fixture = ServeFixture::with_icu_collation(
            version,
            "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE TABLE words (id int PRIMARY KEY, a int, word text, note text COLLATE ci)",
        );
        for (id, word) in WORDS.iter().enumerate().step_by(2) {
            fixture.sql(&format!("INSERT INTO words VALUES ({id}, {id}, '{word}', '{word}')"));
        }
        let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
        for clause in [
            "word > 'm'",
            "word BETWEEN 'a' AND 'strasse'",
            "note = 'STRASSE'",
            "word ILIKE '%s%'",
            "upper(word) = 'STRASSE' OR a > 9",
            "word ~ '^[A-Z]' AND a <> 4",
            "word COLLATE \"sv-x-icu\" > 'z'",
        ] {
            let shape = [("table", "words"), ("where", clause)];
            let mut reader = ShapeReader::new(&shape);
            let mut keys = BTreeSet::new();
            let messages = reader.catch_up(&serve).await;
            apply(&mut keys, &messages);
            follow(&fixture, &serve, &mut reader, &mut keys, clause).await;
            for (id, word) in WORDS.iter().enumerate().skip(1).step_by(2) {
                fixture.sql(&format!("INSERT INTO words VALUES ({id}, {id}, '{word}', '{word}')"));
            }
            follow(&fixture, &serve, &mut reader, &mut keys, clause).await;
            fixture.sql("UPDATE words SET word = note, note = word || '', a = a + 1");
            fixture.sql("UPDATE words SET word = reverse(word), note = reverse(note) WHERE id % 3 = 0");
            follow(&fixture, &serve, &mut reader, &mut keys, clause).await;
            fixture.sql("DELETE FROM words WHERE id % 2 = 1");
            follow(&fixture, &serve, &mut reader, &mut keys, clause).await;
        }
    }
}

#[tokio::test]
async fn ten_updates_of_another_column_keep_the_shape_and_ask_once() {
    let fixture = ServeFixture::with_icu_collation(18, CREATE_WORDS);
    for (id, word) in WORDS.iter().enumerate() {
        fixture.sql(&format!("INSERT INTO words VALUES ({id}, 0, '{word}', '')"));
    }
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
    let mut reader = serve.reader(&[("table", "words"), ("where", "word ILIKE '%s%'")]).await;
    let handle = reader.handle.clone();
    fixture.sql("UPDATE words SET a = a + 1");
    let matching = fixture.query_value("SELECT count(*) FROM words WHERE word ILIKE '%s%'").unwrap();
    let matching: usize = matching.parse().unwrap();
    reader.live_changes(&serve, matching).await;
    let judged = serve.metric("forebay_serve_judged_rows_total", &[]).await;
    assert!(judged > 0.0 && judged <= WORDS.len() as f64, "{judged}");
    for _ in 0..9 {
        fixture.sql("UPDATE words SET a = a + 1");
        reader.live_changes(&serve, matching).await;
    }
    assert_eq!(reader.handle, handle);
    assert_eq!(serve.metric("forebay_serve_judged_rows_total", &[]).await, judged, "verdicts are cached");
}

#[tokio::test]
async fn a_row_on_which_the_clause_fails_does_not_end_the_shape() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let serve = fixture.serve().await;
    for clause in ["10 / a > 2", "10 / a > 2 AND a <> 0", "10 / a > 2 AND word ~ 'x'", "note::jsonb = '1'"] {
        let mut reader = serve.reader(&[("table", "words"), ("where", clause)]).await;
        let handle = reader.handle.clone();
        fixture.sql("INSERT INTO words VALUES (1, 0, 'x', '{'), (2, 3, 'x', '1'), (3, 7, 'x', '2')");
        let messages = reader.live_changes(&serve, 1).await;
        assert_eq!(summarize(&messages), ["insert 2"], "{clause}");
        fixture.sql("UPDATE words SET a = 3 - a, note = '1' WHERE id <> 3");
        let messages = reader.live_changes(&serve, 1).await;
        let of_note = clause.starts_with("note");
        let expected = if of_note { vec!["insert 1", "update 2"] } else { vec!["insert 1", "delete 2"] };
        assert_eq!(summarize(&messages), expected, "{clause}");
        assert_eq!(reader.handle, handle);
        fixture.sql("DELETE FROM words");
    }
}

#[tokio::test]
async fn clauses_that_depend_on_more_than_the_row_are_refused() {
    let fixture = ServeFixture::new(
        "CREATE TABLE words (id int PRIMARY KEY, a int, word text, note text, seen timestamptz)",
    );
    let serve = fixture.serve().await;
    for (clause, words) in [
        ("word ~ 'x' AND a > random()", "the function random of 0 arguments is not supported"),
        ("pg_sleep(1) IS NULL", "the function pg_sleep of 1 arguments is not supported"),
        ("seen > now()", "the function now of 0 arguments is not supported"),
        ("seen > 'today'", "depends on the current time"),
        ("note::date::text ~ '2024'", "depends on the current time"),
        ("word ~ (SELECT 'x')", "subqueries are not supported"),
        ("word ~ '('", "(2201B)"),
        ("word ~ nowhere", "column \\\"nowhere\\\" does not exist"),
    ] {
        let response = serve.get(&[("table", "words"), ("offset", "-1"), ("where", clause)]).await;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response.head.status, 400, "{clause}: {text}");
        assert!(text.contains(words), "{clause}: {text}");
    }
    drop(serve);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_POSTGRES_CLAUSES", "false")]).await;
    let response = serve.get(&[("table", "words"), ("offset", "-1"), ("where", "word ~ 'x'")]).await;
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.head.status, 400, "{text}");
    assert!(
        text.contains("the operator ~ is not supported") && text.contains("serve.postgres_clauses"),
        "{text}"
    );
}

#[tokio::test]
async fn a_clause_that_is_too_slow_rotates_only_its_own_shape() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let serve = fixture.serve().await;
    // Postgres tries every way to split the text before it compares the back-references.
    let slow = "word ~ '^(.+)(.+)(.+)(.+)c\\4\\3\\2\\1$'";
    let mut other = serve.reader(&[("table", "words"), ("where", "word ~ '^a'")]).await;
    let mut rotated = serve.reader(&[("table", "words"), ("where", slow)]).await;
    let handles = (other.handle.clone(), rotated.handle.clone());
    fixture.sql("INSERT INTO words VALUES (1, 0, repeat('a', 1000) || 'c' || repeat('b', 1000), '')");
    let messages = other.live_changes(&serve, 1).await;
    assert_eq!(summarize(&messages), ["insert 1"]);
    let next = rotated.wait_for_refetch(&serve).await;
    assert_ne!(next, handles.1);
    fixture.sql("INSERT INTO words VALUES (2, 0, 'ab', '')");
    assert_eq!(summarize(&other.live_changes(&serve, 1).await), ["insert 2"]);
    assert_eq!(other.handle, handles.0);
    assert_eq!(serve.metric("forebay_serve_clauses_given_up_total", &[]).await, 1.0);
    assert!(serve.log().contains(&handles.1), "the log names the shape");
}

#[tokio::test]
async fn a_hold_survives_an_outage_of_the_database_and_a_kill() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let proxy = Proxy::start(fixture.postgres.addr());
    let port = |port: u16| format!(":{port}/");
    let direct = fixture.postgres.url(&fixture.database);
    let pooled = direct.replace(&port(fixture.postgres.port()), &port(proxy.addr().port()));
    assert_ne!(direct, pooled);
    let settings = [("FOREBAY_DATABASE_POOLED_URL", pooled.as_str()), ("FOREBAY_SERVE_LONG_POLL_MS", "300")];
    let serve = fixture.serve_with(&settings).await;
    let mut held = serve.reader(&[("table", "words"), ("where", "word ~ '^a'")]).await;
    let mut free = serve.reader(&[("table", "words"), ("where", "a = 1")]).await;
    fixture.sql("INSERT INTO words VALUES (1, 1, 'ab', '')");
    assert_eq!(summarize(&held.live_changes(&serve, 1).await), ["insert 1"]);
    assert_eq!(summarize(&free.live_changes(&serve, 1).await), ["insert 1"]);
    let handle = held.handle.clone();

    proxy.stall(Direction::Both);
    fixture.sql("INSERT INTO words VALUES (2, 1, 'ac', ''), (3, 1, 'b', '')");
    assert_eq!(summarize(&free.live_changes(&serve, 2).await), ["insert 2", "insert 3"], "it doesn't wait");
    until("a hold is open", async || serve.metric("forebay_shapes_held", &[]).await == 1.0).await;
    assert!(changes(&held.long_poll(&serve).await).is_empty(), "no verdict, no change");
    fixture.sql("UPDATE words SET word = 'x' WHERE id = 1");
    serve.signal(Signal::KILL);
    drop(serve);

    proxy.resume();
    let serve = fixture.serve_with(&settings).await;
    let mut messages = Vec::new();
    while changes(&messages).len() < 2 {
        messages.extend(held.live_changes(&serve, 1).await);
    }
    assert_eq!(summarize(&messages), ["insert 2", "delete 1"]);
    assert_eq!(held.handle, handle, "the shape stays");
    until("no hold is open", async || serve.metric("forebay_shapes_held", &[]).await == 0.0).await;
    assert!(changes(&held.long_poll(&serve).await).is_empty(), "nothing comes twice");
}

#[tokio::test]
async fn a_text_that_means_the_current_time_is_no_date_in_a_snapshot_or_live() {
    let fixture = ServeFixture::new(CREATE_WORDS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_LONG_POLL_MS", "500")]).await;
    for clause in [
        "note::date > '2020-01-01'",
        "note::timestamp > '2020-01-01' AND a < 100",
        // Postgres evaluates these two on rows that the first operand doesn't decide.
        "note::date > '2020-01-01' AND word ~ '^w'",
        "('{' || note || '}')::date[] && '{2021-01-01}' OR note::timestamptz > '2021-01-01' AND word ~ '^w'",
    ] {
        let mut reader = serve.reader(&[("table", "words"), ("where", clause)]).await;
        let handle = reader.handle.clone();
        fixture.sql(
            "INSERT INTO words VALUES (1, 1, 'w', 'today'), (2, 1, 'w', ' NOW '), (3, 1, 'w', '2024-02-29')",
        );
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 3"], "{clause}");
        fixture.sql("UPDATE words SET note = '2024-01-02' WHERE id = 1");
        fixture.sql("UPDATE words SET note = 'tomorrow' WHERE id = 3");
        let messages = reader.live_changes(&serve, 2).await;
        assert_eq!(summarize(&messages), ["insert 1", "delete 3"], "{clause}");
        fixture.sql("UPDATE words SET a = 2");
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"], "{clause}");
        assert_eq!(reader.handle, handle, "{clause}");
        // A snapshot would be right only today.
        let other = format!("{clause} AND a > 0");
        let response = serve.get(&[("table", "words"), ("offset", "-1"), ("where", &other)]).await;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response.head.status, 400, "{clause}: {text}");
        assert!(text.contains("fails on a row of the table (22007)"), "{clause}: {text}");
        fixture.sql("DELETE FROM words");
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["delete 1"], "{clause}");
    }
}

#[tokio::test]
async fn settings_of_the_database_change_no_clause_and_no_value() {
    let fixture = ServeFixture::new(
        "CREATE TABLE \"Times\" (id int PRIMARY KEY, d date, ts timestamptz, i interval, by bytea, f float8, m money)",
    );
    for setting in [
        "DateStyle = 'German, DMY'",
        "TimeZone = 'Asia/Tokyo'",
        "IntervalStyle = sql_standard",
        "bytea_output = escape",
        "extra_float_digits = -10",
        "quote_all_identifiers = on",
        "array_nulls = off",
        "standard_conforming_strings = off",
        "search_path = nowhere",
    ] {
        fixture.sql(&format!("ALTER DATABASE {} SET {setting}", fixture.database));
    }
    let serve = fixture.serve().await;
    for (clause, expected) in [
        ("d::text ~ '^2024-02-03$'", "1"),
        ("ts::text ~ '^2024-02-03 22:00:00.00'", "1"),
        ("i::text ~ '^P1DT2H3M4S$'", "1"),
        ("by ::text ~ '^.x00ff'", "1"),
        ("f::text ~ '^0.30000000000000004$'", "1"),
        ("d > '2024-02-02' AND ts < '2024-02-04' AND i > '1 day' AND id::text ~ '1'", "1"),
    ] {
        let mut reader = serve.reader(&[("table", "\"Times\""), ("where", clause)]).await;
        fixture.sql(
            "INSERT INTO public.\"Times\" VALUES
                (1, '2024-02-03'::date, '2024-02-03 22:00:00.001+00', '1 day 2:03:04', decode('00ff', 'hex'), 0.1::float8 + 0.2, 1),
                (2, '2023-03-02'::date, '2025-02-03 22:00+00', '1 hour', decode('01', 'hex'), 0.3, 2)",
        );
        let messages = reader.live_changes(&serve, 1).await;
        assert_eq!(summarize(&messages), [format!("insert {expected}")], "{clause}");
        let value = &changes(&messages)[0]["value"];
        let texts = ["d", "ts", "by", "f"].map(|column| value[column].as_str().unwrap());
        assert_eq!(texts, ["2024-02-03", "2024-02-03 22:00:00.001+00", "\\x00ff", "0.30000000000000004"]);
        // A new snapshot has the same row.
        let other = format!("({clause}) AND id < 5");
        let mut again = ShapeReader::new(&[("table", "\"Times\""), ("where", &other)]);
        assert_eq!(summarize(&again.catch_up(&serve).await), [format!("insert {expected}")], "{clause}");
        fixture.sql("DELETE FROM public.\"Times\"");
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), [format!("delete {expected}")]);
    }
}
