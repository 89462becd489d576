//! Tests of the validation of where clauses.

use forebay_serve::database::{ClauseRejection, ValidateError, validate_clause};

use super::{Database, name};

async fn rejection(database: &Database, clause: &str) -> ClauseRejection {
    let client = database.client().await;
    match validate_clause(&client, &name("Items"), clause).await {
        Err(ValidateError::Refused(rejection)) => rejection,
        other => panic!("{clause}: {other:?}"),
    }
}

fn items() -> Database {
    Database::new(
        15,
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE \"Items\" (id int PRIMARY KEY, é text, m mood);
         INSERT INTO \"Items\" VALUES (0, 'a', 'sad')",
    )
}

#[tokio::test]
async fn a_clause_is_validated_and_not_run() {
    let database = items();
    let client = database.client().await;
    for clause in [
        "true",
        "id > 1 AND \"Items\".é = 'x'",
        "m = 'sad'",
        "m = $1 AND id = $2",
        "1 / id = 1",
        "id = 1 -- ok",
    ] {
        validate_clause(&client, &name("Items"), clause)
            .await
            .unwrap_or_else(|error| panic!("{clause}: {error}"));
    }
    let rejection = rejection(&database, "true; DELETE FROM \"Items\"").await;
    assert_eq!(rejection.to_string(), "cannot insert multiple commands into a prepared statement");
    assert_eq!(database.value("SELECT count(*) FROM \"Items\""), "1");
    assert!(client.is_reusable());
}

#[tokio::test]
async fn errors_have_postgres_message_and_the_location_in_the_clause() {
    let database = items();
    for (clause, sqlstate, location, message) in [
        ("id = ", "42601", Some(20), "At location 20: syntax error at end of input"),
        ("id x", "42601", Some(18), "At location 18: syntax error at or near \"x\""),
        ("é = 'a' AND é x", "42601", Some(29), "At location 29: syntax error at or near \"x\""),
        ("id = 'abc", "42601", Some(20), "At location 20: unterminated quoted string at or near \"'abc\""),
        ("", "42601", Some(15), "At location 15: syntax error at end of input"),
        ("id = 1 AND y = 1", "42703", Some(26), "column \"y\" does not exist"),
        ("other.id = 1", "42P01", Some(15), "missing FROM-clause entry for table \"other\""),
        ("id = é", "42883", Some(18), "operator does not exist: integer = text"),
        ("id = 'abc'", "22P02", Some(20), "invalid input syntax for type integer: \"abc\""),
        ("id", "42804", Some(15), "argument of WHERE must be type boolean, not type integer"),
        ("id = (SELECT x FROM nowhere)", "42P01", Some(35), "relation \"nowhere\" does not exist"),
        ("a\0b", "22021", None, "invalid byte sequence for encoding \"UTF8\": 0x00"),
    ] {
        let rejection = rejection(&database, clause).await;
        assert_eq!(
            (rejection.sqlstate.as_str(), rejection.location, rejection.to_string().as_str()),
            (sqlstate, location, message),
            "{clause}"
        );
    }
}

#[tokio::test]
async fn a_missing_table_and_a_lost_connection_are_not_rejections() {
    let database = items();
    let client = database.client().await;
    for table in ["items", "nowhere.items"] {
        let error = validate_clause(&client, &name(table), "true").await.unwrap_err();
        assert!(matches!(error, ValidateError::NotFound { .. }), "{error}");
    }
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    database.run(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    let error = validate_clause(&client, &name("Items"), "true").await.unwrap_err();
    assert!(matches!(error, ValidateError::Database(_)), "{error}");
}

/// Settings that a database may have, which would change what a clause means or how values look.
const OTHER_SETTINGS: &[&str] = &[
    "array_nulls = off",
    "backslash_quote = off",
    "bytea_output = 'escape'",
    "DateStyle = 'German, MDY'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'America/New_York'",
    "timezone_abbreviations = 'India'",
    "extra_float_digits = 0",
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "transform_null_equals = on",
    "quote_all_identifiers = on",
    "xmlbinary = 'hex'",
    "xmloption = 'document'",
    "gin_fuzzy_search_limit = 1",
    "search_path = 'elsewhere'",
    "row_security = on",
    "default_transaction_isolation = 'serializable'",
];

/// Clauses that such a setting would change, with the ids of their rows.
const CLAUSES: &[(&str, &[i64])] = &[
    ("texts = '{NULL}'", &[1]),
    ("texts IN ('{NULL}', '{x}')", &[1]),
    ("bytes::text = '\\x0a'", &[1, 2]),
    ("day = '03/02/2001'", &[1]),
    ("day::text = '2001-02-03'", &[1]),
    ("span = '-1 1:00:00'", &[1]),
    ("span::text = 'P-1DT1H'", &[1]),
    ("moment = '2001-02-03 10:00'", &[1]),
    ("moment = '2001-02-03 12:00 IST'", &[1]),
    ("moment::text = '2001-02-03 10:00:00+00'", &[1]),
    ("float::text = '0.30000000000000004'", &[1]),
    ("note = 'a\\b'", &[1]),
    ("note = NULL", &[]),
    ("note IS NULL", &[2]),
    ("kind::text = 'int4'", &[1]),
];

#[tokio::test]
async fn settings_of_the_database_do_not_change_what_a_clause_means() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            r#"CREATE TABLE t (id int PRIMARY KEY, texts text[], bytes bytea, day date, span interval,
                moment timestamptz, float float8, note text, kind text);
            INSERT INTO t VALUES
                (1, '{NULL}', '\x0a', '2001-02-03', '-1 day 01:00', '2001-02-03 10:00+00', 0.1::float8 + 0.2, 'a\b', 'int4'),
                (2, '{"NULL"}', '\x0a', NULL, NULL, NULL, NULL, NULL, NULL)"#,
        );
        let ids = |rows: Vec<serde_json::Value>| -> Vec<i64> {
            let id = |row: &serde_json::Value| row["value"]["id"].as_str().unwrap().parse().unwrap();
            let mut ids: Vec<_> = rows.iter().map(id).collect();
            ids.sort_unstable();
            ids
        };
        let plain = database.rows("t", None).await;
        let name = database.value("SELECT current_database()");
        for setting in OTHER_SETTINGS {
            database.run(&format!("ALTER DATABASE {name} SET {setting}"));
            // Only new connections have the setting.
            let again = database.reopened();
            for (clause, expected) in CLAUSES {
                let rows = again.rows("t", Some(clause)).await;
                assert_eq!(ids(rows), *expected, "{version}, {setting}: {clause}");
            }
            assert_eq!(again.rows("t", None).await, plain, "{version}, {setting}");
            let key = setting.split(' ').next().unwrap();
            database.run(&format!("ALTER DATABASE {name} RESET {key}"));
        }
    }
}
