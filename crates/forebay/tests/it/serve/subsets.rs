//! Subsets: Postgres evaluates their clauses. No clause reads rows outside of the shape, or does
//! more than evaluate a row.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{ServeFixture, ServeProcess, path};
use crate::wire::{HttpResponse, until};

const CREATE_THINGS: &str = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE SCHEMA \"o\"\"ther\"; CREATE TYPE \"o\"\"ther\".size AS ENUM ('s', 'm');
    CREATE TABLE things (id int PRIMARY KEY, word text, mood mood, moods mood[], doc jsonb, seen timestamptz, day date, n numeric,
        tags text[], span int4range, size \"o\"\"ther\".size, swedish text COLLATE \"sv-x-icu\", hidden text);
    INSERT INTO things VALUES
        (1, 'a', 'sad', '{sad}', '{\"a\": 1, \"b\": [1, 2]}', '2024-01-01 00:00+00', '2024-01-01', 1.5, '{x}', '[1,5)', 's', 'ö', 'h1'),
        (2, 'B', 'ok', '{sad,ok}', '{\"a\": \"x\"}', '2024-06-01 12:00+00', '2024-06-01', -2, '{x,y}', '[5,9)', 'm', 'z', 'h2'),
        (3, 'c', 'happy', '{}', '{\"c\": {\"d\": 1}}', '2025-01-01 00:00+00', '2025-01-01', 3, '{}', 'empty', 's', 'a', 'h3'),
        (4, 'É', 'ok', NULL, '[]', NULL, NULL, 100, '{\"a b\"}', '(,1)', 'm', 'å', 'h4'),
        (5, 'it''s \\ \"quoted\"', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)";

/// Clauses that the filter doesn't support, or not on this database, with their parameters. Each
/// result is compared with Postgres.
const CLAUSES: &[(&str, &[&str])] = &[
    ("word > $1", &["B"]),
    ("word >= $1 AND word < $2", &["a", "É"]),
    ("word BETWEEN 'b' AND 'z' OR word = $1", &["it's \\ \"quoted\""]),
    ("things.word > 'a' COLLATE \"C\"", &[]),
    ("swedish > 'z'", &[]),
    ("mood = ANY($1)", &["{sad,happy}"]),
    ("mood IN ('sad', 'ok') AND mood > 'sad'", &[]),
    ("mood = 'ok'::mood OR mood = CAST('sad' AS public.mood)", &[]),
    ("mood = ANY($1::mood[]) AND length(word) = 1", &["{ok}"]),
    ("mood::text = ANY($1) AND length(word) = 1", &["{ok}"]),
    ("mood 'sad' = mood AND length(word) = 1", &[]),
    ("size = 's'::size OR size = 'm'::\"o\"\"ther\".size", &[]),
    ("moods @> '{sad}'", &[]),
    ("'ok' = ANY(moods)", &[]),
    ("doc ->> 'a' = $1", &["x"]),
    ("doc -> 'b' @> '[2]'", &[]),
    ("doc ? 'c' OR doc ?| ARRAY['a', 'z'] AND doc ?& '{b}'", &[]),
    ("doc #>> '{c,d}' = '1'", &[]),
    ("doc['a'] = '1'", &[]),
    ("doc = '[]'", &[]),
    ("jsonb_array_length(CASE WHEN jsonb_typeof(doc) = 'array' THEN doc END) = 0", &[]),
    ("word ~* '^[a-b]$' OR word !~ '.'", &[]),
    ("word LIKE 'it''s \\\\ %' AND length(word) > 3", &[]),
    ("substring(word, '(q)') IS NOT NULL", &[]),
    ("seen > day AND seen + '1 day' > '2024-01-01'::date", &[]),
    ("length(word) > $1", &["1"]),
    ("LENGTH(CONCAT(word, $1)) = 3", &["xy"]),
    ("substring(word FROM 1 FOR 2) = 'it' OR substring(word, 2) = ''", &[]),
    ("position('q' IN word) > 0 OR strpos(word, 'c') = 1", &[]),
    ("trim(both 'a' from word) = '' OR nullif(word, 'c') IS NULL", &[]),
    ("extract(year FROM seen) = 2024 AND extract('month' FROM day) = 6", &[]),
    ("date_trunc('month', seen) = '2024-06-01' OR to_char(seen, 'YYYY') = '2025'", &[]),
    ("seen AT TIME ZONE 'Europe/Berlin' < '2024-07-01'", &[]),
    ("day + 1 > '2024-06-01' AND word::date IS NULL IS NOT NULL AND false", &[]),
    ("seen > day::timestamptz - interval '1 day'", &[]),
    ("n ^ 2 > 4 AND abs(n) < 50", &[]),
    ("round(n, 0) = -2 OR n % 2 = 1", &[]),
    ("array_length(tags, 1) = 2 OR tags[1] || 'x' = 'a bx'", &[]),
    ("cardinality(tags) = 0", &[]),
    ("span @> 4 OR isempty(span) OR upper(span) = 1", &[]),
    ("span && '[4,6)'::int4range", &[]),
    ("(word > 'a') IS NOT TRUE", &[]),
    ("word < ALL(ARRAY['b', 'z'])", &[]),
    ("greatest(word, 'b') = 'b'", &[]),
    ("CASE mood WHEN 'sad' THEN word > '' ELSE n > 0 END", &[]),
    ("word IS DISTINCT FROM 'a' AND word > ''", &[]),
    ("'\\' < word", &[]),
    ("E'it\\'s' < word AND $$'$$ < word", &[]),
];

/// Requests a subset by POST.
async fn subset(serve: &ServeProcess, shape: &[(&str, &str)], clause: &str, params: &[&str]) -> HttpResponse {
    let params: serde_json::Map<String, Value> =
        params.iter().enumerate().map(|(index, value)| ((index + 1).to_string(), json!(value))).collect();
    let body = json!({"subset": {"where": clause, "params": params}}).to_string();
    let shape = [&[("offset", "-1"), ("log", "changes_only")], shape].concat();
    serve.request("POST", &path(&shape), &["Content-Type: application/json"], &body).await
}

/// Returns the ids in a subset response, sorted.
fn ids(response: &HttpResponse) -> Vec<String> {
    assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
    let body = response.json();
    let rows = body["data"].as_array().unwrap().iter();
    let mut ids: Vec<_> = rows.map(|row| row["value"]["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// Checks that the clause is refused, and returns the reason.
#[track_caller]
fn refusal_reason(response: &HttpResponse, clause: &str) -> String {
    let body = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.head.status, 400, "{clause}: {body}");
    response.json()["errors"]["subset"]["where"][0]
        .as_str()
        .unwrap_or_else(|| panic!("{clause}: {body}"))
        .to_owned()
}

#[tokio::test]
async fn postgres_evaluates_clauses_that_the_filter_does_not_support() {
    for version in [15, 18] {
        let fixture = ServeFixture::with_icu_collation(version, CREATE_THINGS);
        let serve = fixture.serve().await;
        for (clause, params) in CLAUSES {
            let response = subset(&serve, &[("table", "things")], clause, params).await;
            assert_eq!(response.head.status, 200, "{clause}: {}", String::from_utf8_lossy(&response.body));
            let mut sql = (*clause).to_owned();
            for (index, value) in params.iter().enumerate() {
                sql = sql.replace(&format!("${}", index + 1), &format!("'{}'", value.replace('\'', "''")));
            }
            let sql = format!(
                "SET TimeZone = 'UTC'; SET search_path = public, \"o\"\"ther\"; SELECT id FROM things WHERE {sql} ORDER BY id"
            );
            let rows = fixture
                .postgres
                .query(&fixture.database, &sql)
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
            let expected: Vec<_> = rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect();
            assert_eq!(ids(&response), expected, "{version}: {clause}");
        }
        // Subsets can be ordered by any collation.
        let order = [
            ("table", "things"),
            ("offset", "-1"),
            ("subset__order_by", "word DESC"),
            ("subset__limit", "3"),
        ];
        let response = serve.get(&order).await;
        let words: Vec<_> = response.json()["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["value"]["id"].clone())
            .collect();
        assert_eq!(words, ["5", "4", "3"]);
        // So can shapes, of which Postgres evaluates changed rows.
        let shape = serve.get(&[("table", "things"), ("offset", "-1"), ("where", "word > 'a'")]).await;
        assert_eq!(shape.head.status, 200);
    }
}

#[tokio::test]
async fn a_subset_clause_reveals_nothing_about_rows_outside_the_shape() {
    let fixture = ServeFixture::new(
        "CREATE TABLE orders (id int PRIMARY KEY, owner int, total int, note text);
         INSERT INTO orders VALUES (1, 7, 10, '1'), (2, 8, 20, 'theirs'), (3, 7, 30, '3')",
    );
    let serve = fixture.serve().await;
    // A clause of the shape that costs more than that of the subset. In an AND, Postgres evaluates
    // the cheaper one first.
    let shape = [("table", "orders"), ("where", "owner + 0 + 0 + 0 + 0 + 0 + 0 + 0 + 0 = 7")];
    for clause in ["1 / (total - 20) <> 5", "note::int4 > 0", "length(note) > 0 AND note::int4 > 0"] {
        assert_eq!(ids(&subset(&serve, &shape, clause, &[]).await), ["1", "3"], "{clause}");
    }
    let response = subset(&serve, &shape, "1 / (total - 10) <> 5", &[]).await;
    assert_eq!(
        refusal_reason(&response, "its own row"),
        "the where clause fails on a row of the table (22012)"
    );
    // A clause that can't fail uses an index.
    fixture.sql("INSERT INTO orders SELECT n, 7, n, n FROM generate_series(100, 5000) n; ANALYZE orders");
    let scans = || {
        fixture.query_value("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'orders_pkey'")
    };
    let before = scans();
    assert_eq!(ids(&subset(&serve, &shape, "id = 300", &[]).await), ["300"]);
    // A session reports its scans at the end of a transaction, at most once a second.
    until("the index is used", async || {
        assert_eq!(ids(&subset(&serve, &shape, "id = 300", &[]).await), ["300"]);
        scans() != before
    })
    .await;
}

const CREATE_VICTIMS: &str = "CREATE TABLE secrets (id int PRIMARY KEY, word text); INSERT INTO secrets VALUES (1, 'top secret');
    CREATE TABLE things (id int PRIMARY KEY, word text, hidden text, kind regclass, pair secrets);
    INSERT INTO things VALUES (1, 'mine', 'cloaked', 'secrets', (1, 'x')), (2, 'yours', 'cloaked', NULL, NULL);
    CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql AS 'SELECT word FROM secrets';
    CREATE FUNCTION own(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
    CREATE FUNCTION harm() RETURNS int LANGUAGE sql AS 'DELETE FROM things RETURNING 1';
    CREATE OPERATOR <~~> (leftarg = text, rightarg = text, function = texteq)";

/// Injections, and clauses that read or do more than evaluate a row.
const ATTACKS: &[&str] = &[
    // Escape from the statement.
    "true); DELETE FROM things; --",
    "true; DELETE FROM things",
    "word = ''; --",
    "word = '' OR true) TO STDOUT; DROP TABLE things; --",
    "word ~ 'x' /* ; DELETE FROM things",
    "word ~ 'x' */ OR true /*",
    "word ~ $a$ $a$; DELETE FROM things",
    "word ~ '\\'; DELETE FROM things; --'",
    "word ~ E'\\'; DELETE FROM things; --",
    "word ~ U&'\\0027; DELETE FROM things; --'",
    "U&\"w\\006frd\" ~ 'x'",
    "word ~ X'27'",
    "word ~ N'x'",
    "word ~ 'x' ORDER BY 1",
    "word ~ 'x' LIMIT 1",
    "word ~ 'x' UNION SELECT 1",
    "word ~ 'x' FOR UPDATE",
    "word ~ 'x' INTO t",
    // Other rows and tables.
    "word ~ (SELECT word FROM secrets)",
    "word ~ ANY(SELECT word FROM secrets)",
    "EXISTS (SELECT FROM secrets)",
    "word IN (TABLE secrets)",
    "ARRAY(SELECT word FROM secrets) IS NULL",
    "secrets.word ~ 'x'",
    "public.secrets.word ~ 'x'",
    "things IS NULL AND word ~ 'x'",
    "things.* IS NULL",
    "(things).word ~ 'x'",
    "ROW(word) ~ 'x'",
    "ROW(things.*) IS NULL",
    "(pair).word ~ 'x'",
    "pair::text ~ 'x'",
    "length(pair::text) = 1",
    "ctid = '(0,1)'",
    "things.tableoid > 0",
    "xmin::text ~ 'x'",
    "table_to_xml('secrets', true, true, '')::text ~ 'x'",
    "query_to_xml('SELECT * FROM secrets', true, true, '')::text ~ 'x'",
    "'secrets'::regclass::oid > 0",
    "CAST('secrets' AS pg_catalog.regclass) IS NULL",
    "regclass 'secrets' IS NULL",
    "to_regclass('secrets') IS NULL",
    "kind = 'secrets'",
    "kind::text ~ 'x'",
    "'1'::secrets IS NULL",
    "'1'::public.secrets IS NULL",
    "'x=r/postgres'::aclitem IS NULL",
    "satisfies_hash_partition(1, 2, 1, word)",
    // The session, the server, the clock.
    "current_user ~ 'x'",
    "current_setting('data_directory') ~ 'x'",
    "set_config('row_security', 'on', false) ~ 'x'",
    "version() ~ 'x'",
    "pg_read_file('/etc/passwd') ~ 'x'",
    "lo_import('/etc/passwd') > 0",
    "pg_sleep(60) IS NULL",
    "random() < 2",
    "now() > seen",
    "current_timestamp IS NULL",
    "nextval('s') > 0",
    "pg_terminate_backend(1)",
    "dblink('', '') IS NULL",
    // User-defined functions, and results of more than one row.
    "own(word) ~ 'x'",
    "public.own(word) ~ 'x'",
    "public.lower(word) ~ 'x'",
    "harm() = 1",
    "word <~~> 'x'",
    "word OPERATOR(public.<~~>) 'x'",
    "word COLLATE public.x ~ 'x'",
    "generate_series(1, 1000000000) > 0",
    "unnest(ARRAY[1]) = 1",
    "count(*) > 0",
    "max(word) ~ 'x'",
    "row_number() OVER () > 0",
    "concat(VARIADIC ARRAY['x']) ~ 'x'",
    // Large memory in Postgres.
    "repeat(word, 1000000000) ~ 'x'",
    "lpad(word, 1000000000) ~ 'x'",
    "word::char(10485760) ~ 'x'",
    "\"bpchar\"(word, 10485760, true) ~ 'x'",
    "array_fill(1, ARRAY[100000000]) IS NULL",
    "npoints(polygon(60000000, '<(0,0),1>'::circle)) > 0",
    "ts_rewrite('a & a'::tsquery, 'a'::tsquery, 'a & a'::tsquery) IS NULL",
    "jsonb_path_query_array('[1]', '$[0,0,0,0][0,0,0,0]') IS NULL",
    "jsonb_path_exists('[1]', '$ ? (@[0,0,0,0][0,0,0,0] == 2)')",
    "'[1]'::jsonb @? '$ ? (@[0,0,0,0][0,0,0,0] == 2)'",
    "regexp_match(word, '((((.*))))') IS NULL",
    // Text search depends on the catalog and on files.
    "word @@ 'x'",
    "word @@ 'x'::tsquery",
];

#[tokio::test]
async fn no_clause_does_more_than_evaluate_a_row() {
    for version in [15, 18] {
        let fixture = ServeFixture::with_icu_collation(version, CREATE_VICTIMS);
        let serve = fixture.serve().await;
        for clause in ATTACKS {
            let reason = refusal_reason(&subset(&serve, &[("table", "things")], clause, &[]).await, clause);
            assert!(!reason.contains("top secret"), "{clause}: {reason}");
            // As a parameter, the same text is harmless.
            let response =
                subset(&serve, &[("table", "things")], "word ~ 'nothing' OR word > $1 || $1", &[clause])
                    .await;
            assert_eq!(response.head.status, 200, "{clause}: {}", String::from_utf8_lossy(&response.body));
        }
        for clause in ["word > 'a\0b'", "word\0 > 'a'"] {
            assert_eq!(
                subset(&serve, &[("table", "things")], clause, &[]).await.head.status,
                400,
                "{clause:?}"
            );
        }
        assert_eq!(subset(&serve, &[("table", "things")], "word > $1", &["a\0b"]).await.head.status, 400);
        // `lower` of Postgres, not the one that comes first in the default search_path.
        assert_eq!(
            ids(&subset(&serve, &[("table", "things")], "lower(word) > 'mind'", &[]).await),
            ["1", "2"]
        );
        assert_eq!(fixture.query_value("SELECT count(*) FROM things").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn a_clause_that_fails_on_a_row_does_not_reveal_the_row() {
    let fixture = ServeFixture::with_icu_collation(15, CREATE_VICTIMS);
    let serve = fixture.serve().await;
    for clause in [
        "hidden::int4 = 1 AND word > ''",
        "(hidden || ' x')::tsquery IS NULL AND word > ''",
        "hidden::jsonb ->> 'a' = ''",
        "hidden::timestamptz > '2024-01-01'",
        "word ~ ('(' || hidden)",
        "seen::date IS NULL",
        "1 / (id - id) > 0 AND word > ''",
    ] {
        let reason = refusal_reason(&subset(&serve, &[("table", "things")], clause, &[]).await, clause);
        assert!(!reason.contains("cloaked"), "{clause}: {reason}");
    }
    // Errors about constants of the client are reported in full.
    let response = subset(&serve, &[("table", "things")], "word ~ 'x' AND id = 'nine'", &[]).await;
    let reason = refusal_reason(&response, "a constant");
    assert!(reason.contains("invalid input syntax for type integer: \"nine\""), "{reason}");
}

#[tokio::test]
async fn columns_that_are_not_queryable_are_refused_in_clauses() {
    let fixture = ServeFixture::with_icu_collation(15, CREATE_VICTIMS);
    let serve = fixture.serve().await;
    let shape = [("table", "things"), ("queryable_columns", "id,word")];
    assert_eq!(ids(&subset(&serve, &shape, "word > 'n'", &[]).await), ["2"]);
    for clause in ["hidden > 'a'", "length(things.hidden) = 7", "word > '' OR concat(hidden, 'x') > ''"] {
        let reason = refusal_reason(&subset(&serve, &shape, clause, &[]).await, clause);
        assert_eq!(reason, "column \"hidden\" isn't one of the queryable columns", "{clause}");
    }
}

#[tokio::test]
async fn a_clause_that_takes_too_long_is_cancelled_with_a_reason() {
    // Each row has a long text whose hash takes long.
    let fixture = ServeFixture::with_icu_collation(
        15,
        "CREATE TABLE things (id int PRIMARY KEY, word text);
         INSERT INTO things SELECT n, repeat('x', 1000000) FROM generate_series(1, 400) n",
    );
    let serve = fixture.serve().await;
    let started = Instant::now();
    let clause = (0..30).map(|number| format!("md5(word) = '{number}'")).collect::<Vec<_>>().join(" OR ");
    let shape = [("table", "things"), ("columns", "id")];
    let reason = refusal_reason(&subset(&serve, &shape, &clause, &[]).await, &clause);
    assert!(reason.contains("longer than the 5000 ms"), "{reason}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(ids(&subset(&serve, &shape, "id = 1 AND word > ''", &[]).await), ["1"]);
}

#[tokio::test]
async fn casts_that_call_user_defined_functions_are_refused() {
    for version in [15, 18] {
        let fixture = ServeFixture::with_icu_collation(
            version,
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE size AS ENUM ('s', 'm');
             CREATE TABLE things (id int PRIMARY KEY, word text, mood mood, sizes size[]);
             INSERT INTO things VALUES (1, 'a', 'sad', '{s}'), (2, 'B', 'ok', '{m}');
             CREATE FUNCTION own(mood) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
                $$ BEGIN RAISE EXCEPTION 'called' USING ERRCODE = 'P0099'; END $$;
             CREATE FUNCTION own(size[]) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
                $$ BEGIN RAISE EXCEPTION 'called' USING ERRCODE = 'P0099'; END $$;
             CREATE CAST (mood AS int4) WITH FUNCTION own(mood) AS IMPLICIT;
             CREATE CAST (size[] AS int4) WITH FUNCTION own(size[]) AS IMPLICIT",
        );
        let serve = fixture.serve().await;
        for clause in [
            "mood = 1",
            "mood = 1 OR word > ''",
            "mood::int4 = 1",
            "'sad'::mood::int4 = 1",
            "'sad'::public.mood + 1 = 2",
            "abs(mood) = 1",
            "sizes::int4 = 1",
            "'{s}'::size[]::int4 = 1",
        ] {
            let reason = refusal_reason(&subset(&serve, &[("table", "things")], clause, &[]).await, clause);
            assert!(!reason.contains("P0099") && !reason.contains("called"), "{clause}: {reason}");
        }
        assert_eq!(ids(&subset(&serve, &[("table", "things")], "length(word) = 1", &[]).await), ["1", "2"]);
    }
}
