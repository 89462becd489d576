//! Values: one text form, one encoding, any length.

use forebay_replication::DISPLAY_SETTINGS;
use forebay_sandbox::Postgres;
use forebay_testkit::eventually;

use super::both_versions;
use crate::followed_database::{FollowedDatabase, insert};
use crate::journal::{JournalChange, OldRow};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_have_one_text_form_for_any_database_settings() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        for setting in [
            "DateStyle = 'SQL, MDY'",
            "TimeZone = 'America/New_York'",
            "bytea_output = 'escape'",
            "extra_float_digits = -3",
            "IntervalStyle = 'postgres_verbose'",
        ] {
            followed.sql(&format!("ALTER DATABASE {} SET {setting}", followed.database));
        }
        let manager = followed.running().await;
        followed.sql(
            "CREATE TYPE mood AS ENUM ('sad', 'it''s \"fine\"'); CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE > 0); \
             CREATE TYPE pair AS (a int, b text); \
             CREATE TABLE v (id int PRIMARY KEY, m mood, ms mood[], p price, c pair, t text, padded char(5), arr int[], texts text[], \
             j json, jb jsonb, b bytea, i interval, d date, tm time, ts timestamp, tz timestamptz, tzs timestamptz[], f4 float4, \
             f8 float8, f8s float8[], n numeric, yes bool, u uuid, ip inet, bits varbit, r int4range, trange tstzrange, x tsvector, \
             blank text, named regclass)",
        );
        followed.add(&manager, "public", "v").await;
        followed.sql(
            r#"INSERT INTO v VALUES (1, 'it''s "fine"', '{sad,"it''s \"fine\""}', 1.5, (1, 'two "words", é'), E'tab\t\\ new\nline é😀',
             'ab', '{{1,2},{3,NULL}}', '{NULL,"null",""," a,b ","\"q\""}', '{"b" : 1, "a":  [1.0] }', '{"b" : 1, "a":  [1.0] }',
             '\x00ff6162', '1 year 2 mons -3 days 04:05:06.7', '2024-02-29', '13:14:15.678', '2024-02-29 13:14:15.000001',
             '2024-07-01 12:00:00+02', '{infinity,"0044-03-15 12:00:00 BC","294276-12-31 23:59:59+00"}', 0.1, 0.1, '{0.30000000000000004,
             NaN,-Infinity,-0,1e300,1e-7}', 12345678901234567890.123456789012345678901234567890, true,
             'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '::ffff:10.0.0.1/100', B'0101', '[1,5]', '[2024-01-01 00:00+00,)', 'a fat cat',
             NULL, 'v')"#,
        );
        let changes = followed.eventually_changes(1).await;
        let [JournalChange::Insert(table, arrived)] = &changes[..] else { panic!("{changes:?}") };
        // Like the result of a query with these settings. A cast to text differs: it trims
        // `padded`, and spells out `yes`.
        let set: String =
            DISPLAY_SETTINGS.iter().map(|(key, value)| format!("SET {key} = '{value}'; ")).collect();
        let queried = server.query(&followed.database, &format!("{set} SELECT * FROM public.v")).unwrap();
        assert_eq!((table.as_str(), arrived), ("public.v", &queried[0]));
        for (column, value) in [
            (6, "ab   "),
            (11, r"\x00ff6162"),
            (12, "P1Y2M-3DT4H5M6.7S"),
            (16, "2024-07-01 10:00:00+00"),
            (19, "0.1"),
            (20, "{0.30000000000000004,NaN,-Infinity,-0,1e+300,1e-07}"),
            (22, "t"),
            (30, "public.v"),
        ] {
            assert_eq!(arrived[column].as_deref(), Some(value));
        }
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_a_database_in_another_encoding_arrive_in_utf_8() {
    let mut followed = FollowedDatabase::new(Postgres::shared());
    let latin = format!("{}_latin", followed.database);
    followed.sql(&format!("CREATE DATABASE {latin} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"));
    followed.database = latin;
    let manager = followed.running().await;
    followed.sql(r#"CREATE TABLE U&"ann\00e9es" (id int PRIMARY KEY, note text)"#);
    followed.add(&manager, "public", "années").await;
    followed.sql(r#"INSERT INTO U&"ann\00e9es" VALUES (1, U&'\00e9t\00e9')"#);
    assert_eq!(followed.eventually_changes(1).await, [insert("années", 1, "été")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_twenty_megabytes_arrives_whole() {
    const BYTES: usize = 20 << 20;
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql(&format!("INSERT INTO orders VALUES (1, repeat('x', {BYTES}))"));
    followed.sql("DELETE FROM orders");
    followed.sql("INSERT INTO orders VALUES (2, 'short')");
    // Reading the journal takes long, so its size is checked first.
    let written = async || std::fs::metadata(followed.journal()).unwrap().len() > 2 * BYTES as u64;
    eventually("the long ones are written", true, written).await;
    let changes = followed.eventually_changes(3).await;
    let [JournalChange::Insert(_, new), JournalChange::Delete(_, OldRow::Full(old)), last] = &changes[..]
    else {
        panic!("unexpected changes")
    };
    assert!(new == old && new[0].as_deref() == Some("1") && *last == insert("orders", 2, "short"));
    let long = new[1].as_deref().unwrap();
    assert!(long.len() == BYTES && long.bytes().all(|byte| byte == b'x'));
    manager.shutdown().await;
}
