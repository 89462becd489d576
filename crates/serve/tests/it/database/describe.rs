//! Tests of table descriptions.

use forebay_replication::TableName;
use forebay_serve::database::{
    ColumnDescription, ColumnSelectionError, DescribeError, ReplicaIdentity, describe,
};
use forebay_shapes::filter::{Collation, Filter, TypeKind};

use super::{Database, name};

async fn refusal(database: &Database, table: &str) -> DescribeError {
    let client = database.client().await;
    describe(&client, &name(table)).await.unwrap_err()
}

#[tokio::test]
async fn a_description_agrees_with_the_catalog() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            "CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (a int, b text); CREATE DOMAIN word AS varchar(9);
             CREATE DOMAIN short AS word CHECK (length(VALUE) < 5); CREATE DOMAIN ints AS int[]; CREATE DOMAIN moody AS mood;
             CREATE TABLE t (gone int, b int, note varchar(20), a text NOT NULL, n numeric(10, 2), ai int[], av varchar(7)[][],
                 m mood, c pair, r int4range, d short, di ints, dm moody, ts timestamptz(3), ca \"char\", iv int2vector,
                 PRIMARY KEY (b, a) INCLUDE (note));
             ALTER TABLE t DROP COLUMN gone; ALTER TABLE t REPLICA IDENTITY FULL;
             CREATE TABLE made AS SELECT ARRAY[1] AS x",
        );
        let table = database.describe("t").await;
        assert_eq!(
            (table.oid.to_string(), table.server_version),
            (database.value("SELECT 't'::regclass::oid"), version)
        );
        assert_eq!((table.replica_identity, table.is_partitioned), (ReplicaIdentity::Full, false));
        assert_eq!(table.database_collation, Collation::C);
        let shown: Vec<_> = table
            .header_columns(&table.all_columns())
            .into_iter()
            .map(|column| (column.name, column.type_name, column.type_modifier, column.dims))
            .collect();
        let expected = [
            ("b", "int4", -1, 0),
            ("note", "varchar", 24, 0),
            ("a", "text", -1, 0),
            ("n", "numeric", 655_366, 0),
            ("ai", "int4", -1, 1),
            ("av", "varchar", 11, 2),
            ("m", "mood", -1, 0),
            ("c", "pair", -1, 0),
            ("r", "int4range", -1, 0),
            ("d", "short", -1, 0),
            ("di", "ints", -1, 0),
            ("dm", "moody", -1, 0),
            ("ts", "timestamptz", 3, 0),
            ("ca", "char", -1, 0),
            ("iv", "int2vector", -1, 0),
        ];
        let expected =
            expected.map(|(name, kind, modifier, dims)| (name.to_owned(), kind.to_owned(), modifier, dims));
        assert_eq!(shown, expected);
        let filtered: Vec<_> = table
            .columns
            .iter()
            .map(|column| {
                (column.filter_type.name.as_str(), column.filter_type.typmod, column.filter_type.kind)
            })
            .skip(4)
            .take(9)
            .collect();
        let expected = [
            ("_int4", -1, TypeKind::Base),
            ("_varchar", 11, TypeKind::Base),
            ("mood", -1, TypeKind::Enum),
            ("pair", -1, TypeKind::Composite),
            ("int4range", -1, TypeKind::Other),
            ("varchar", 13, TypeKind::Base),
            ("_int4", -1, TypeKind::Base),
            ("mood", -1, TypeKind::Enum),
            ("timestamptz", 3, TypeKind::Base),
        ];
        assert_eq!(filtered, expected);
        let keys: Vec<_> =
            table.encoder_columns().into_iter().map(|column| column.key_index).take(3).collect();
        assert_eq!((keys, table.key()), (vec![Some(0), None, Some(1)], vec![0, 2]));
        let not_null = |column: &&ColumnDescription| column.is_not_null;
        assert_eq!(table.columns.iter().filter(not_null).count(), 2, "the columns of the key");
        assert_eq!(table.header_columns(&[0, 2])[1].pk_index, Some(1));
        assert_eq!(database.describe("made").await.header_columns(&[0])[0].dims, 1);
    }
}

#[tokio::test]
async fn a_filter_of_a_described_table_evaluates_its_rows() {
    let database = Database::new(
        15,
        "CREATE DOMAIN short AS varchar(9); CREATE TYPE mood AS ENUM ('sad');
         CREATE TABLE \"T\" (id int PRIMARY KEY, d short, m mood, n text COLLATE \"C\")",
    );
    let schema = database.describe("T").await.schema();
    let filter = Filter::parse("\"T\".d LIKE 'a%' AND m::text = 'sad' AND n < 'b'", &[], &schema).unwrap();
    let row: [Option<&[u8]>; 4] = [Some(b"1"), Some(b"ab"), Some(b"sad"), Some(b"a")];
    assert_eq!(filter.matches(&row), Ok(Some(true)));
}

#[tokio::test]
async fn clauses_on_arrays_and_domains_of_one_another_mean_the_same_in_postgres() {
    for version in [15, 18] {
        let database = Database::new(
            version,
            "CREATE EXTENSION citext; CREATE DOMAIN short AS varchar(9); CREATE DOMAIN shorter AS short;
             CREATE DOMAIN numbers AS int[]; CREATE DOMAIN span AS int4range;
             CREATE TABLE t (id int PRIMARY KEY, tags shorter[], n numbers, spans span[], emails citext[], deep numbers[]);
             INSERT INTO t VALUES (1, '{a,B}', '{1,2}', '{\"[1,5)\"}', '{X,NULL}')",
        );
        let schema = database.describe("t").await.schema();
        let row: [Option<&[u8]>; 6] =
            [Some(b"1"), Some(b"{a,B}"), Some(b"{1,2}"), Some(b"{\"[1,5)\"}"), Some(b"{X,NULL}"), None];
        let client = database.client().await;
        client.batch_execute("SET search_path = pg_catalog").await.unwrap();
        for clause in [
            "tags @> ARRAY['a']::varchar[]",
            "tags && '{x,B}' AND tags <@ '{a,B,c}'",
            "'B' = ANY (tags) AND 'b' <> ALL (tags)",
            "tags = '{a,B}' AND tags[2] = 'B' AND tags > ARRAY['a'::varchar]",
            "cardinality(tags) = 2 AND tags IS NOT NULL",
            "n @> ARRAY[1] AND n = '{1,2}' AND 2 = ANY (n) AND n[1] = 1",
            "int4range '[1,4]' = ANY (spans) AND spans @> '{\"[1,5)\"}'",
            "emails @> '{x}' AND 'x' = ANY (emails) AND emails = '{x,NULL}' AND emails && '{x,y}'",
            "cardinality(emails) = 2 AND emails <> '{x}' AND NOT emails @> '{NULL}'",
            "deep IS NULL",
        ] {
            let parsed = |clause: &str| {
                Filter::parse(clause, &[], &schema).unwrap_or_else(|error| panic!("{clause}: {error}"))
            };
            let filter = parsed(clause);
            assert_eq!(filter.matches(&row), Ok(Some(true)), "{clause}");
            let canonical = filter.canonical();
            assert_eq!(parsed(canonical).canonical(), canonical, "{clause}");
            let sql = format!("SELECT coalesce({canonical}, false) FROM public.t");
            assert!(client.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0), "{canonical}");
        }
        let error = Filter::parse("deep = '{}'", &[], &schema).unwrap_err().to_string();
        assert!(error.starts_with("the type _numbers is not supported"), "{error}");
    }
}

#[tokio::test]
async fn names_with_special_characters_are_described() {
    let (schema, table) = ("My \"Schema\".", "we'ird \\ \"Ta.ble\" /é$1");
    let longest = "é".repeat(31) + "x";
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let database = Database::new(
        15,
        &format!(
            "CREATE SCHEMA {0}; CREATE TABLE {0}.{1} ({2} int PRIMARY KEY, {3} text, \"select\" int)",
            quoted(schema),
            quoted(table),
            quoted("a\"b;--"),
            quoted(&longest),
        ),
    );
    let name = TableName::new(schema, table);
    let client = database.client().await;
    let described = describe(&client, &name).await.unwrap();
    let names: Vec<_> = described.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["a\"b;--", &longest, "select"]);
    assert_eq!(described.schema().table.as_deref(), Some(table));
}

#[tokio::test]
async fn partitioned_tables_and_tables_without_columns_or_key_are_described() {
    let database = Database::new(
        15,
        "CREATE TABLE parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
         CREATE TABLE bare (); CREATE TABLE keyless (a int, b int);
         CREATE TABLE half (id int NOT NULL) PARTITION BY LIST (id); CREATE TABLE half_1 PARTITION OF half FOR VALUES IN (1);
         ALTER TABLE ONLY half ADD PRIMARY KEY (id)",
    );
    assert!(database.describe("parts").await.is_partitioned);
    let bare = database.describe("bare").await;
    assert!(bare.columns.is_empty() && bare.key().is_empty() && bare.select::<&str>(&[]) == Ok(vec![]));
    assert!(database.describe("keyless").await.key().is_empty());
    // The key isn't valid until each partition has one.
    assert!(database.describe("half").await.key().is_empty());
}

#[tokio::test]
async fn relations_other_than_tables_are_refused_with_their_kind() {
    let database = Database::new(
        15,
        "CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS a; CREATE MATERIALIZED VIEW m AS SELECT 1 AS a;
         CREATE SEQUENCE s; CREATE TYPE c AS (a int); CREATE UNLOGGED TABLE u (a int);
         CREATE FOREIGN DATA WRAPPER w; CREATE SERVER elsewhere FOREIGN DATA WRAPPER w;
         CREATE FOREIGN TABLE f (a int) SERVER elsewhere",
    );
    for (table, kind) in [
        ("v", "a view"),
        ("m", "a materialized view"),
        ("s", "a sequence"),
        ("c", "a composite type"),
        ("u", "an unlogged table"),
        ("f", "a foreign table"),
        ("t_pkey", "an index"),
        ("pg_catalog.pg_class", "a table of the system"),
    ] {
        let error = refusal(&database, table).await;
        assert!(
            matches!(error, DescribeError::NotATable { kind: found, .. } if found == kind),
            "{table}: {error}"
        );
        assert!(error.to_string().contains(&format!("is {kind}: only")), "{error}");
    }
    for table in ["T", "x", "nowhere.t", "public.t\" --"] {
        let error = refusal(&database, table).await;
        assert!(matches!(error, DescribeError::NotFound { .. }), "{table}: {error}");
    }
    assert_eq!(refusal(&database, "x").await.to_string(), "there is no table \"public\".\"x\"");
}

#[tokio::test]
async fn a_role_that_may_not_read_all_rows_gets_the_grant_that_it_needs() {
    let database = Database::of(
        15,
        "",
        "reader_of_few",
        "CREATE SCHEMA hidden; CREATE TABLE hidden.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)",
    );
    for (table, grant) in [
        ("hidden.t", "GRANT USAGE ON SCHEMA \"hidden\" TO \"reader_of_few\""),
        ("hidden.t", "GRANT SELECT ON \"hidden\".\"t\" TO \"reader_of_few\""),
        ("t", "GRANT SELECT ON \"public\".\"t\" TO \"reader_of_few\""),
    ] {
        let error = refusal(&database, table).await;
        assert!(matches!(error, DescribeError::NoPermission { .. }), "{error}");
        assert!(error.to_string().ends_with(&format!("can't be read: {grant}")), "{error}");
        database.run(grant);
    }
    database.describe("hidden.t").await;
    database.describe("t").await;
    database.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY");
    let error = refusal(&database, "t").await.to_string();
    let (_, remedy) = error.split_once("from \"reader_of_few\": ").unwrap_or_else(|| panic!("{error}"));
    database.run(remedy);
    database.describe("t").await;
}

#[tokio::test]
async fn generated_columns_are_described_only_if_the_stream_has_them() {
    let sql =
        "CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, b int);
        CREATE TABLE k (a int, twice int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)";
    let old = Database::new(15, sql);
    let table = old.describe("t").await;
    assert_eq!((table.columns.len(), table.excluded.as_slice()), (3, &["twice".to_owned()][..]));
    assert_eq!(table.select(&["id", "twice"]), Err(ColumnSelectionError::Generated("twice".to_owned())));
    assert_eq!(table.select(&["id", "b"]), Ok(vec![0, 2]));
    let error = refusal(&old, "k").await;
    assert!(matches!(&error, DescribeError::GeneratedKey { column, .. } if column == "twice"), "{error}");

    let new = Database::new(18, sql);
    new.run("ALTER TABLE t ADD COLUMN thrice int GENERATED ALWAYS AS (a * 3) VIRTUAL");
    let table = new.describe("t").await;
    assert_eq!(table.select(&["id", "twice"]), Ok(vec![0, 2]));
    assert!(table.columns[2].is_generated && table.excluded == ["thrice"]);
    assert_eq!(new.describe("k").await.key(), [1]);
}

#[tokio::test]
async fn collations_are_the_column_s_or_the_database_s() {
    let sql = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE t (id int PRIMARY KEY, plain text, said text COLLATE \"default\", c text COLLATE \"C\", posix text COLLATE \"POSIX\",
            icu text COLLATE \"en-x-icu\", loose text COLLATE loose, a text[] COLLATE \"C\")";
    let icu = |locale: &str| Collation::Icu(locale.to_owned());
    for (version, options, database_collation) in [
        (15, "", Collation::C),
        (15, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", icu("en-US")),
        (15, "LOCALE 'C.UTF-8'", Collation::Libc("C.UTF-8".to_owned())),
        (15, "LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'", Collation::Libc("C.UTF-8".to_owned())),
        (18, "LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'", icu("und")),
        (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'", Collation::Builtin),
        (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C'", Collation::C),
    ] {
        let database = Database::of(version, options, "postgres", sql);
        let table = database.describe("t").await;
        assert_eq!(table.database_collation, database_collation, "{version} {options}");
        let collations: Vec<_> =
            table.columns.iter().map(|column| column.filter_type.collation.clone()).collect();
        let own = [
            None,
            None,
            None,
            Some(Collation::C),
            Some(Collation::C),
            Some(icu("en")),
            Some(Collation::Nondeterministic),
            Some(Collation::C),
        ];
        assert_eq!(collations, own, "{version} {options}");
    }
}

#[tokio::test]
async fn the_fingerprint_changes_only_with_what_a_shape_depends_on() {
    let database = Database::new(
        15,
        "CREATE DOMAIN word AS varchar(9); CREATE TYPE mood AS ENUM ('sad');
         CREATE TABLE t (id int PRIMARY KEY, a varchar(5), w word, m mood, x int)",
    );
    let first = database.describe("t").await;
    let (mut last, mut edition) = (first.fingerprint(), first.edition);
    database.run("INSERT INTO t VALUES (0, 'a', 'b', 'sad', 2); ANALYZE t");
    assert_eq!(database.describe("t").await.edition, edition, "rows don't change the edition");
    for same in [
        "INSERT INTO t VALUES (1, 'a', 'b', 'sad', 2)",
        "CREATE INDEX ON t (a)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER COLUMN x SET DEFAULT 5",
        "ALTER TYPE mood ADD VALUE 'glad'",
        "VACUUM FULL t",
    ] {
        database.run(same);
        assert_eq!(database.describe("t").await.fingerprint(), last, "{same}");
    }
    for change in [
        "ALTER TABLE t ALTER COLUMN a TYPE varchar(6)",
        "ALTER TABLE t ALTER COLUMN a TYPE text",
        "ALTER TABLE t ALTER COLUMN a TYPE text COLLATE \"POSIX\"",
        "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE t RENAME COLUMN a TO b",
        "ALTER TABLE t DROP COLUMN x",
        "ALTER TABLE t ADD COLUMN x int",
        "ALTER TYPE mood RENAME TO feeling",
        "ALTER DOMAIN word RENAME TO wort",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id, b)",
        "CREATE TABLE new (LIKE t INCLUDING ALL); DROP TABLE t; ALTER TABLE new RENAME TO t",
    ] {
        database.run(change);
        let described = database.describe("t").await;
        let now = described.fingerprint();
        assert_ne!(now, last, "{change}");
        assert_ne!(described.edition, edition, "{change}");
        (last, edition) = (now, described.edition);
    }
}
