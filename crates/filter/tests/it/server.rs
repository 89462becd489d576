//! Reference server: a database with the test table, and a function that evaluates clauses in it.

use std::fmt::Write as _;

use forebay_filter::{Collation, Schema};
use forebay_sandbox::Postgres;
use forebay_testkit::TestRng;

use crate::table;

pub(crate) const SETTINGS: &str = "SET bytea_output = hex; SET DateStyle = 'ISO, DMY'; SET TimeZone = 'UTC';
    SET extra_float_digits = 1; SET IntervalStyle = iso_8601; SET jit = off;";

/// SQL function: returns each row's result or SQLSTATE. Rows are evaluated one by one if one fails.
const JUDGE: &str = r"
    CREATE FUNCTION judge(clause text) RETURNS text[] LANGUAGE plpgsql AS $$
    DECLARE
        answers text[];
        answer text;
        failed text;
        id int;
    BEGIN
        BEGIN
            EXECUTE format(E'SELECT array_agg((NOT (NOT (%s\n)))::text ORDER BY rn) FROM public.rows', clause) INTO answers;
            RETURN answers;
        EXCEPTION WHEN others THEN
            failed := SQLSTATE;
        END;
        FOR id IN SELECT rn FROM public.rows ORDER BY rn LOOP
            -- What Postgres refuses before it looks at a row, it refuses for each.
            IF failed NOT LIKE '42%' THEN
                BEGIN
                    EXECUTE format(E'SELECT (NOT (NOT (%s\n)))::text FROM public.rows WHERE rn = %s', clause, id) INTO answer;
                EXCEPTION WHEN others THEN
                    answer := SQLSTATE;
                END;
            ELSE
                answer := failed;
            END IF;
            answers := answers || answer;
        END LOOP;
        RETURN answers;
    END $$;";

/// SQL function: returns the server's error for a statement.
const COMPLAINT: &str = r"
    CREATE FUNCTION complaint(statement text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        message text;
    BEGIN
        EXECUTE statement;
        RETURN NULL;
    EXCEPTION WHEN others THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
        RETURN message;
    END $$;";

pub(crate) struct ReferenceServer {
    postgres: &'static Postgres,
    database: String,
    pub(crate) schema: Schema,
    pub(crate) rows: Vec<Vec<Option<String>>>,
}

impl ReferenceServer {
    /// Starts a server and fills the table. `options` are those of CREATE DATABASE.
    pub(crate) fn start(version: u32, options: &str, collation: &Collation, seed: u64, rows: usize) -> Self {
        let schema = table::schema(collation, version);
        Self::with_table(version, options, schema, &table::create(""), seed, rows)
    }

    /// Starts a server whose table has columns with a nondeterministic collation.
    pub(crate) fn nondeterministic(
        version: u32,
        options: &str,
        collation: &Collation,
        seed: u64,
        rows: usize,
    ) -> Self {
        let schema = table::nondeterministic_schema(collation, version);
        let create = table::create("COLLATE nondeterministic");
        Self::with_table(
            version,
            options,
            schema,
            &format!("{}{create}", table::NONDETERMINISTIC),
            seed,
            rows,
        )
    }

    fn with_table(version: u32, options: &str, schema: Schema, create: &str, seed: u64, rows: usize) -> Self {
        let postgres = Postgres::shared_version(version);
        let database = postgres.create_database("filter").expect("it is new");
        let database = if options.is_empty() {
            database
        } else {
            let name = format!("{database}_collated");
            let create = format!("CREATE DATABASE {name} TEMPLATE template0 {options}");
            postgres.execute("postgres", &create).unwrap_or_else(|error| panic!("{create}: {error}"));
            name
        };
        let mut server = ReferenceServer { postgres, database, schema, rows: Vec::new() };
        let mut rng = TestRng::new(seed);
        let mut sql = format!("{SETTINGS} {create} {JUDGE} {COMPLAINT} INSERT INTO rows VALUES ");
        for rn in 0..rows {
            write!(sql, "{}{}", if rn == 0 { "" } else { ", " }, table::insert(&mut rng, rn))
                .expect("a String");
        }
        server.run(&sql);
        let all = server.run(&format!("{SETTINGS} SELECT * FROM rows ORDER BY rn"));
        server.rows = all.into_iter().map(|row| row[1..].to_vec()).collect();
        server
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    pub(crate) fn run(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.query(&self.database, sql).unwrap_or_else(|error| {
            panic!("{}: {error}", sql.chars().take(2000).collect::<String>());
        })
    }

    /// Returns the server's result for each clause and row: `true`, `false`, `None` or a SQLSTATE.
    pub(crate) fn judge(&self, clauses: &[String]) -> Vec<Vec<Option<String>>> {
        self.judge_in(clauses, "public")
    }

    /// Returns the results of [`judge`](Self::judge) with this search_path for the clauses.
    pub(crate) fn judge_in(&self, clauses: &[String], search_path: &str) -> Vec<Vec<Option<String>>> {
        let quoted: Vec<_> =
            clauses.iter().map(|clause| format!("('{}')", clause.replace('\'', "''"))).collect();
        let sql = format!(
            "{SETTINGS} SET search_path = {search_path}; SELECT array_to_string(public.judge(c), ',', '-') FROM (VALUES {}) AS v (c)",
            quoted.join(", ")
        );
        let answer = |row: Vec<Option<String>>| -> Vec<Option<String>> {
            let text = row.into_iter().next().flatten().unwrap_or_default();
            text.split(',').map(|word| (word != "-").then(|| word.to_owned())).collect()
        };
        self.run(&sql).into_iter().map(answer).collect()
    }
}
