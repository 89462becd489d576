//! Tests of clauses that Postgres evaluates on rows of the stream.

use std::time::Duration;

use forebay_serve::database::{JudgementError, JudgementStatement, RowOutcome};
use forebay_shapes::TableSchema;
use forebay_shapes::filter::{Filter, PostgresRules};
use forebay_testkit::TestRng;

use super::Database;
use crate::deadline::within;

const LIMIT: Duration = Duration::from_secs(5);

type Texts = Vec<Option<String>>;

/// Returns the parts of a table's description that a judgement needs.
async fn table(database: &Database, table: &str) -> TableSchema {
    let description = database.describe(table).await;
    TableSchema {
        oid: description.oid,
        schema: description.name.schema.clone(),
        name: description.name.name.clone(),
        types: description.schema(),
        membership: 0,
        stream_types: description.columns.iter().map(|column| column.stream_type).collect(),
        key: description.key(),
        numbers: description.columns.iter().map(|column| column.number).collect(),
        key_is_deferrable: false,
        lineage: String::new(),
        state: None,
        notes: Vec::new(),
    }
}

fn quoted(table: &TableSchema) -> String {
    format!("\"{}\"", table.name.replace('"', "\"\""))
}

fn parse(clause: &str, table: &TableSchema) -> Filter {
    Filter::parse_with(clause, &[], &table.types, PostgresRules::Stored)
        .unwrap_or_else(|error| panic!("{clause}: {error}"))
}

/// Judges all rows of a table as the stream would deliver them.
async fn judge(
    database: &Database,
    table: &TableSchema,
    clause: &str,
    limit: Duration,
) -> Result<(Vec<RowOutcome>, usize), JudgementError> {
    let filter = parse(clause, table);
    let texts: Vec<String> = filter
        .columns()
        .iter()
        .map(|column| format!("\"{}\"", table.types.columns[*column].name))
        // concat() calls the type's output function, as the stream does. A cast drops blanks.
        .map(|name| format!("CASE WHEN {name} IS NOT NULL THEN concat({name}) END"))
        .collect();
    let texts = if texts.is_empty() { "1".to_owned() } else { texts.join(", ") };
    let settings = "SET bytea_output = hex; SET DateStyle = 'ISO, DMY'; SET TimeZone = 'UTC'; \
        SET IntervalStyle = iso_8601";
    let rows: Vec<Texts> =
        database.run(&format!("{settings}; SELECT {texts} FROM {} ORDER BY id", quoted(table)));
    let mut client = database.client().await;
    let statement =
        JudgementStatement::new(&client, table, filter.columns(), filter.canonical()).await.unwrap();
    let (mut outcomes, mut statements) = (Vec::new(), 0);
    // A judgement that ends early has evaluated the first rows.
    while outcomes.len() < rows.len() {
        let rest = &rows[outcomes.len()..];
        let outcome = within("a judgement", statement.judge(&mut client, rest, limit)).await;
        assert!(client.is_reusable(), "the connection can be used again");
        let judgement = outcome?;
        assert!(judgement.statements <= 17, "one more may verify that the clause is accepted");
        let evaluated: Vec<_> = judgement.outcomes.iter().map_while(|outcome| *outcome).collect();
        assert!(!evaluated.is_empty() && judgement.outcomes[evaluated.len()..].iter().all(Option::is_none));
        outcomes.extend(evaluated);
        statements += judgement.statements;
    }
    Ok((outcomes, statements))
}

/// Compares with the ids that Postgres selects from the table itself.
async fn compare(database: &Database, table: &TableSchema, clause: &str) {
    let (outcomes, _) = judge(database, table, clause, LIMIT).await.unwrap();
    let canonical = parse(clause, table).canonical().to_owned();
    let settings = "SET search_path = pg_catalog; SET TimeZone = 'UTC'; SET DateStyle = 'ISO, DMY'";
    let theirs = database
        .run(&format!("{settings}; SELECT ({canonical}) IS TRUE FROM public.{} ORDER BY id", quoted(table)));
    assert_eq!(outcomes.len(), theirs.len());
    for (index, (ours, theirs)) in outcomes.iter().zip(theirs).enumerate() {
        assert_eq!(*ours == RowOutcome::True, theirs[0].as_deref() == Some("t"), "{clause}: row {index}");
    }
}

const WORDS: [&str; 20] = [
    "straße",
    "STRASSE",
    "Straße",
    "Timișoara",
    "TIMIȘOARA",
    "Việt",
    "VIỆT",
    "Ελλάς",
    "ΕΛΛΆΣ",
    "İstanbul",
    "istanbul",
    "Երևան",
    "თბილისი",
    "ＦＵＬＬ",
    "ｆｕｌｌ",
    "Zebra",
    "apple",
    "Äpfel",
    "a b",
    "",
];

#[tokio::test]
async fn texts_are_judged_as_in_the_table_under_every_kind_of_collation() {
    for (version, options) in [
        (15, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C' ENCODING UTF8"),
        (18, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C' ENCODING UTF8"),
        (18, "LOCALE 'C' ENCODING UTF8"),
    ] {
        let database = Database::of(
            version,
            options,
            "postgres",
            "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE DOMAIN word AS text COLLATE \"C\";
             CREATE TABLE words (id int PRIMARY KEY, t text, ci text COLLATE ci, w word, b char(12), v varchar(20) COLLATE \"tr-x-icu\")",
        );
        for (index, word) in WORDS.iter().enumerate() {
            let word = word.replace('\'', "''");
            database.run(&format!(
                "INSERT INTO words VALUES ({index}, '{word}', '{word}', '{word}', '{word}', '{word}')"
            ));
        }
        database.run("INSERT INTO words VALUES (100, NULL, NULL, NULL, NULL, NULL)");
        let table = table(&database, "words").await;
        let seed = forebay_testkit::seed();
        let mut random = TestRng::new(seed);
        for _ in 0..150 {
            let column = random.pick(&["t", "ci", "w", "b", "v", "words.t"]);
            let other = random.pick(&["t", "ci", "w", "v"]);
            let word = random.pick(&WORDS).replace('\'', "''");
            let clause = match random.below(9) {
                0 => format!("{column} < '{word}'"),
                1 => format!("{column} BETWEEN '{word}' AND 'zz'"),
                2 => format!("{column} = '{word}'"),
                3 => format!("{column} IN ('{word}', 'Apple')"),
                4 => format!("upper({column}) = upper('{word}')"),
                5 => format!("{column} COLLATE \"de-x-icu\" > '{word}'"),
                6 => format!("{column} COLLATE \"C\" ~* '^{}'", word.chars().take(2).collect::<String>()),
                7 => format!("greatest({column}, '{word}') = {column}"),
                _ => format!("{column} > '{word}' AND length({other}) > 4 OR {other} IS NULL"),
            };
            compare(&database, &table, &clause).await;
        }
    }
}

#[tokio::test]
async fn values_of_all_types_are_judged_as_in_the_table() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            "CREATE TYPE mood AS ENUM ('sad', 'glad');
             CREATE DOMAIN small AS int CHECK (VALUE < 10);
             CREATE TABLE \"It\"\"ems\" (id int PRIMARY KEY, \"row_number\" small, m mood, ms mood[], j jsonb, n numeric(10, 2),
                d date, ts timestamptz, i interval, by bytea, r int4range, ip inet, a text[], c char(5));
             INSERT INTO \"It\"\"ems\" VALUES
                (1, 5, 'glad', '{sad,NULL}', '{\"a\": [1, \"x\"]}', 1.50, '2024-02-29', '2024-01-01 10:00+02', '1 day 2:03',
                 '\\x00ff', '[1,5)', '10.0.0.1/8', '{a,\"b c\",NULL}', 'ab'),
                (2, NULL, 'sad', '{}', '[]', -3, 'infinity', '-infinity', '-1 mon', '', 'empty', '::1', '{}', ''),
                (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        );
        // A value that the domain would no longer accept is judged as the value that it is.
        database.run("ALTER DOMAIN small ADD CONSTRAINT more CHECK (VALUE > 7) NOT VALID");
        let table = table(&database, "It\"ems").await;
        for clause in [
            "\"row_number\" = 5 AND c = 'ab'",
            "m > 'sad'",
            "'sad' = ANY (ms)",
            "j @> '{\"a\": [1]}'",
            "j -> 'a' ->> 1 ~ 'x'",
            "n * 2 = 3 AND n::text = '1.50'",
            "d > '2024-01-01' OR ts < '2024-01-01'",
            "ts = '2024-01-01 08:00+00'",
            "i > '1 day'",
            "by = '\\x00ff' OR length(by) = 0",
            "r @> 3 OR isempty(r)",
            "ip << '10.0.0.0/7'",
            "a[2] = 'b c' OR cardinality(a) = 0",
            "length(c) = 2 AND c LIKE 'ab   '",
            "'a' ~ 'a'",
            "j ? 'a' IS NOT TRUE",
        ] {
            compare(&database, &table, clause).await;
        }
    }
}

#[tokio::test]
async fn rows_on_which_the_clause_fails_do_not_change_the_outcome_of_others() {
    let database = Database::new(
        18,
        "CREATE TABLE items (id int PRIMARY KEY, note text);
         INSERT INTO items SELECT n, CASE WHEN n % 7 = 0 THEN 'x' ELSE (n % 3)::text END FROM generate_series(1, 1000) AS n",
    );
    let table = table(&database, "items").await;
    let (outcomes, statements) = judge(&database, &table, "note::jsonb = '1'", LIMIT).await.unwrap();
    for (id, outcome) in (1..).zip(outcomes) {
        let expected = match (id % 7, id % 3) {
            (0, _) => RowOutcome::Failed,
            (_, 1) => RowOutcome::True,
            _ => RowOutcome::NotTrue,
        };
        assert_eq!(outcome, expected, "{id}");
    }
    // Of the 16 statements of a judgement, two find that a part fails.
    assert!(statements <= 1000 * 16 / 14 + 16, "{statements}");
    let (outcomes, statements) = judge(&database, &table, "id::text ~ '^1$'", LIMIT).await.unwrap();
    assert_eq!((outcomes[0], outcomes[1], statements), (RowOutcome::True, RowOutcome::NotTrue, 1));
}

#[tokio::test]
async fn a_row_whose_error_looks_like_a_wrong_statement_does_not_reject_the_clause() {
    let database = Database::new(
        18,
        "CREATE TABLE items (id int PRIMARY KEY, format text);
         INSERT INTO items VALUES (1, '9'), (2, '9EEEE9'), (3, 'FM9'), (4, '9EEEE9EEEE'), (5, '9')",
    );
    let table = table(&database, "items").await;
    // The server calls these formats syntax errors (42601).
    let clause = "to_char(id, format) ~ '^ ?[0-9]$'";
    let (outcomes, _) = judge(&database, &table, clause, LIMIT).await.unwrap();
    let (holds, fails) = (RowOutcome::True, RowOutcome::Failed);
    assert_eq!(outcomes, [holds, fails, holds, fails, holds]);
}

#[tokio::test]
async fn a_missing_privilege_rejects_the_clause_and_no_error_shows_a_value() {
    let database = Database::of(
        18,
        "ENCODING UTF8",
        "reader_of_judgements",
        "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'hidden');
         GRANT SELECT ON items TO reader_of_judgements",
    );
    let table = table(&database, "items").await;
    let filter = parse("note ~ 'hidden' AND length(note) > 1", &table);
    let mut client = database.client().await;
    let statement =
        JudgementStatement::new(&client, &table, filter.columns(), filter.canonical()).await.unwrap();
    let rows = [vec![Some("hidden".to_owned())]];
    assert_eq!(statement.judge(&mut client, &rows, LIMIT).await.unwrap().outcomes, [Some(RowOutcome::True)]);
    database.run("REVOKE EXECUTE ON FUNCTION pg_catalog.textregexeq(text, text) FROM PUBLIC");
    let error = statement.judge(&mut client, &rows, LIMIT).await.unwrap_err();
    assert!(matches!(error, JudgementError::Rejected(_)), "{error:?}");
    assert_eq!(error.to_string(), "Postgres rejects the clause: SQLSTATE 42501");
}

#[tokio::test]
async fn a_clause_that_takes_too_long_on_a_row_ends_the_judgement() {
    let database = Database::new(
        18,
        "CREATE TABLE items (id int PRIMARY KEY, note text);
         INSERT INTO items VALUES (1, repeat('a', 1000) || 'c' || repeat('b', 1000)), (2, 'b'), (3, 'c')",
    );
    let table = table(&database, "items").await;
    // Postgres tries every way to split the text before it compares the back-references.
    let slow = "note ~ '^(.+)(.+)(.+)(.+)c\\4\\3\\2\\1$'";
    let limit = Duration::from_millis(200);
    let outcome = judge(&database, &table, slow, limit).await;
    assert!(matches!(outcome, Err(JudgementError::TooSlow { .. })), "{outcome:?}");
    assert!(database.is_quiet(), "no statement still runs");
}

#[tokio::test]
async fn a_clause_that_no_longer_fits_its_table_is_rejected() {
    let database = Database::new(
        18,
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE items (id int PRIMARY KEY, m mood, note text);
         INSERT INTO items VALUES (1, 'sad', 'x')",
    );
    let table = table(&database, "items").await;
    let filter = parse("m::text ~ 's' AND note ~ 'x'", &table);
    let mut client = database.client().await;
    let statement =
        JudgementStatement::new(&client, &table, filter.columns(), filter.canonical()).await.unwrap();
    database.run("ALTER TYPE mood RENAME TO feeling");
    let rows = [vec![Some("sad".to_owned()), Some("x".to_owned())]];
    let outcome = statement.judge(&mut client, &rows, LIMIT).await;
    assert!(matches!(outcome, Err(JudgementError::Rejected(_))), "{outcome:?}");
    let again = JudgementStatement::new(&client, &table, filter.columns(), filter.canonical()).await.unwrap();
    assert_eq!(again.judge(&mut client, &rows, LIMIT).await.unwrap().outcomes, [Some(RowOutcome::True)]);
    database.run("ALTER TABLE items DROP COLUMN note");
    let altered = JudgementStatement::new(&client, &table, filter.columns(), filter.canonical()).await;
    assert!(matches!(altered, Err(JudgementError::Altered)), "{altered:?}");
}
