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
