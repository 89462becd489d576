//! Clauses with subqueries over tables full of NULLs: results are those of real servers.

use std::collections::BTreeMap;

use forebay_filter::{
    Collation, Column, Filter, FilterError, PostgresRules, Schema, SetChanges, SetCounts, SetId, TableName,
    subquery_tables,
};
use forebay_sandbox::Postgres;
use forebay_testkit::TestRng;

type TestRow = Vec<Option<String>>;

/// Columns of every table, with their types and the values that they have.
#[rustfmt::skip]
const COLUMNS: &[(&str, &str, u32, &[&str])] = &[
    ("a", "int4", 23, &["1", "2", "3", "4"]),
    ("b", "int8", 20, &["1", "2", "3", "5"]),
    ("t", "text", 25, &["a", "b", "a ", "A"]),
    ("v", "varchar", 1043, &["a", "b", "c"]),
    ("p", "bpchar", 1042, &["a", "a ", "b"]),
    ("n", "numeric", 1700, &["1", "1.0", "2.50", "2.5"]),
    ("u", "uuid", 2950, &["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]),
    ("d", "date", 1082, &["2024-02-29", "2000-01-01"]),
    ("ts", "timestamptz", 1184, &["2024-02-29 12:00:00+00", "2000-01-01 00:00:00+00"]),
    ("f", "bool", 16, &["t", "f"]),
];
/// Columns whose types are compared by one class of keys.
const CLASSES: &[&[&str]] =
    &[&["a", "b"], &["t", "v"], &["p"], &["n"], &["u"], &["d"], &["ts"], &["f"], &["a", "b"], &["t", "v"]];
/// The first is the table of the clause.
const TABLES: [&str; 4] = ["tasks", "members", "teams", "Odd \"one"];

/// Number of clauses for each database.
const BATCH: usize = 100;

/// A database, and the rows of its tables.
struct Database {
    postgres: &'static Postgres,
    name: String,
    schemas: BTreeMap<TableName, Schema>,
    rows: BTreeMap<TableName, Vec<TestRow>>,
}

impl Database {
    /// Creates the tables. Columns have no NULLs, few or many.
    fn create(version: u32, rng: &mut TestRng) -> Self {
        let postgres = Postgres::shared_version(version);
        let name = postgres.create_database("subqueries").expect("it is new");
        let (mut schemas, mut rows) = (BTreeMap::new(), BTreeMap::new());
        let mut sql = "SET TimeZone = 'UTC';".to_owned();
        for table in TABLES {
            let columns = COLUMNS.iter().map(|(name, kind, ..)| format!("{name} {kind}"));
            let quoted = quote(table);
            sql += &format!("CREATE TABLE {quoted} (rn int, {});", columns.collect::<Vec<_>>().join(", "));
            let count = if table == TABLES[0] { 30 } else { rng.pick(&[0, 1, 4, 9]) };
            let nulls: Vec<_> = COLUMNS.iter().map(|_| rng.pick(&[0, 0, 10, 50])).collect();
            for rn in 0..count {
                let values =
                    COLUMNS.iter().zip(&nulls).map(|((.., values), nulls)| match rng.percent(*nulls) {
                        true => "NULL".to_owned(),
                        false => format!("'{}'", rng.pick(values)),
                    });
                let values = values.collect::<Vec<_>>().join(", ");
                sql += &format!("INSERT INTO {quoted} VALUES ({rn}, {values});");
            }
        }
        postgres.query(&name, &sql).unwrap_or_else(|error| panic!("{error}"));
        for table in TABLES {
            let key = TableName { schema: "public".to_owned(), name: table.to_owned() };
            let columns = COLUMNS.iter().map(|(name, kind, oid, _)| Column::new(name, *oid, kind)).collect();
            let schema = Schema {
                table: Some(table.to_owned()),
                columns,
                database_collation: Collation::C,
                server_version: version,
            };
            let select = format!("SET TimeZone = 'UTC'; SELECT * FROM {} ORDER BY rn", quote(table));
            let found = postgres.query(&name, &select).unwrap_or_else(|error| panic!("{error}"));
            rows.insert(key.clone(), found.into_iter().map(|row| row[1..].to_vec()).collect());
            schemas.insert(key, schema);
        }
        Database { postgres, name, schemas, rows }
    }

    fn tasks(&self) -> TableName {
        TableName { schema: "public".to_owned(), name: TABLES[0].to_owned() }
    }

    fn parse(&self, clause: &str) -> Result<Filter, FilterError> {
        let table = |name: &TableName| self.schemas.get(name);
        Filter::parse_with_subqueries(
            clause,
            &["1", "a"],
            &self.schemas[&self.tasks()],
            PostgresRules::None,
            &table,
        )
    }

    /// Counts the rows of a filter's sets, the sets of nested subqueries first.
    fn count(&self, filter: &Filter) -> (SetCounts, Vec<SetId>) {
        let mut counts = SetCounts::new();
        let ids: Vec<_> = (0..filter.sets().len() as u64).map(|number| SetId { family: 0, number }).collect();
        for (set, id) in filter.sets().iter().zip(&ids) {
            let inner = set.filter().map(|filter| (filter, self.count(filter)));
            let mut changes = SetChanges::new();
            for row in &self.rows[set.table()] {
                let is_selected = inner.as_ref().is_none_or(|(filter, (counts, ids))| {
                    let truth = filter.matches_with(row, &counts.of_filter(ids));
                    truth.expect("these clauses don't fail") == Some(true)
                });
                if is_selected {
                    *changes.entry(set.key(row).expect("rows are read")).or_default() += 1;
                }
            }
            counts.apply(*id, changes).expect("rows are only added");
        }
        (counts, ids)
    }

    /// Returns the server's result of each clause for each row.
    fn judge(&self, clauses: &[String]) -> Vec<Vec<Option<bool>>> {
        let column =
            |clause: &String| format!("(({}))::text", clause.replace("$1", "'1'").replace("$2", "'a'"));
        let columns = clauses.iter().map(column).collect::<Vec<_>>().join(", ");
        let sql =
            format!("SET TimeZone = 'UTC'; SET jit = off; SELECT {columns} FROM public.tasks ORDER BY rn");
        let found = self.postgres.query(&self.name, &sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        let truth = |row: &TestRow, clause: usize| row[clause].as_deref().map(|text| text == "true");
        let results = |clause: usize| found.iter().map(|row| truth(row, clause)).collect();
        (0..clauses.len()).map(results).collect()
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Random clauses with subqueries.
struct Clauses {
    rng: TestRng,
    /// Number of subqueries in the clause so far.
    subqueries: usize,
    aliases: usize,
}

impl Clauses {
    fn next(&mut self) -> String {
        self.subqueries = 0;
        let clause = self.condition("tasks", 3, 0);
        match self.subqueries {
            0 => self.next(),
            _ => clause,
        }
    }

    /// `scope` is how the columns of the table are qualified.
    fn condition(&mut self, scope: &str, height: usize, depth: usize) -> String {
        let kind = if height == 0 { self.rng.below(6) } else { self.rng.below(16) };
        let next = height.saturating_sub(1);
        match kind {
            0..=1 => self.native(scope),
            2..=4 => self.in_select(scope, depth),
            5 => self.exists(scope, depth),
            6..=8 => {
                format!("({} AND {})", self.condition(scope, next, depth), self.condition(scope, next, depth))
            }
            9..=10 => {
                format!("({} OR {})", self.condition(scope, next, depth), self.condition(scope, next, depth))
            }
            11..=13 => format!("NOT ({})", self.condition(scope, next, depth)),
            14 => {
                let test =
                    self.rng.pick(&["IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NULL", "IS NOT UNKNOWN"]);
                format!("({}) {test}", self.condition(scope, next, depth))
            }
            _ => format!(
                "CASE WHEN {} THEN {} ELSE {} END",
                self.condition(scope, next, depth),
                self.condition(scope, next, depth),
                self.native(scope)
            ),
        }
    }

    fn column(&mut self, scope: &str, name: &str) -> String {
        match self.rng.percent(50) {
            true => name.to_owned(),
            false => format!("{scope}.{name}"),
        }
    }

    fn native(&mut self, scope: &str) -> String {
        let (name, _, _, values) = self.rng.pick(COLUMNS);
        let column = self.column(scope, name);
        let value = self.rng.pick(values);
        match self.rng.below(6) {
            0 => format!("{column} IS NULL"),
            1 => format!("{column} <> '{value}'"),
            2 => format!("{column} IN ('{value}', '{}')", self.rng.pick(values)),
            3 if name == "a" => format!("{column} > $1"),
            3 if name == "t" => format!("{column} = $2"),
            _ => format!("{column} = '{value}'"),
        }
    }

    /// Returns a table in FROM, and how its columns are qualified.
    fn table(&mut self) -> (String, String) {
        let table = self.rng.pick(&TABLES);
        let schema = if self.rng.percent(30) { "public." } else { "" };
        match self.rng.below(3) {
            0 => (format!("{schema}{}", quote(table)), quote(table)),
            kind => {
                self.aliases += 1;
                let alias = format!("x{}", self.aliases);
                (format!("{schema}{} {}{alias}", quote(table), if kind == 1 { "AS " } else { "" }), alias)
            }
        }
    }

    fn where_clause(&mut self, scope: &str, depth: usize) -> String {
        match self.rng.below(3) {
            0 => String::new(),
            1 => format!(" WHERE {}", self.native(scope)),
            _ if depth < 2 => format!(" WHERE {}", self.condition(scope, 1, depth + 1)),
            _ => format!(" WHERE {} AND {}", self.native(scope), self.native(scope)),
        }
    }

    fn in_select(&mut self, scope: &str, depth: usize) -> String {
        self.subqueries += 1;
        let (table, inner) = self.table();
        let columns = if self.rng.percent(15) { 2 } else { 1 };
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for _ in 0..columns {
            let class = self.rng.pick(CLASSES);
            let (outer, selected) = (self.rng.pick(class), self.rng.pick(class));
            left.push(self.column(scope, outer));
            right.push(self.column(&inner, selected));
        }
        let (left, right) = (left.join(", "), right.join(", "));
        let left = if columns > 1 { format!("({left})") } else { left };
        let operator = self.rng.pick(&["IN", "IN", "IN", "NOT IN", "NOT IN", "= ANY", "= SOME", "<> ALL"]);
        format!("{left} {operator} (SELECT {right} FROM {table}{})", self.where_clause(&inner, depth))
    }

    /// The inner table has an alias: the outer one may be the same.
    fn exists(&mut self, scope: &str, depth: usize) -> String {
        self.subqueries += 1;
        self.aliases += 1;
        let (table, inner) = (quote(self.rng.pick(&TABLES)), format!("x{}", self.aliases));
        let mut conditions = Vec::new();
        for _ in 0..self.rng.pick(&[1, 1, 2]) {
            let class = self.rng.pick(CLASSES);
            let sides =
                [format!("{inner}.{}", self.rng.pick(class)), format!("{scope}.{}", self.rng.pick(class))];
            let first = self.rng.below(2);
            conditions.push(format!("{} = {}", sides[first], sides[1 - first]));
        }
        if self.rng.percent(50) {
            conditions.push(match depth < 2 {
                true => format!("({})", self.condition(&inner, 1, depth + 1)),
                false => self.native(&inner),
            });
        }
        let not = if self.rng.percent(40) { "NOT " } else { "" };
        let listed = self.rng.pick(&["1", "*", "NULL"]);
        format!("{not}EXISTS (SELECT {listed} FROM {table} AS {inner} WHERE {})", conditions.join(" AND "))
    }
}

fn subqueries_agree(version: u32, seed: u64, clauses: usize) {
    let mut rng = TestRng::new(seed);
    let mut made = Clauses { rng: TestRng::new(seed + 1), subqueries: 0, aliases: 0 };
    let (mut done, mut refused, mut reasons) = (0, 0, BTreeMap::<String, usize>::new());
    let mut results = BTreeMap::<Option<bool>, usize>::new();
    while done < clauses {
        let database = Database::create(version, &mut rng);
        let batch: Vec<_> = (0..BATCH).map(|_| made.next()).collect();
        let mut canonical = Vec::new();
        for (clause, theirs) in batch.iter().zip(database.judge(&batch)) {
            done += 1;
            let filter = match database.parse(clause) {
                Ok(filter) => filter,
                Err(FilterError::Unsupported { what, .. }) => {
                    refused += 1;
                    *reasons.entry(what).or_default() += 1;
                    continue;
                }
                Err(error) => panic!("seed {seed}: {clause}: {error}"),
            };
            let (counts, ids) = database.count(&filter);
            let rows = &database.rows[&database.tasks()];
            let ours: Vec<_> =
                rows.iter().map(|row| filter.matches_with(row, &counts.of_filter(&ids))).collect();
            let ours: Vec<_> =
                ours.into_iter().map(|truth| truth.expect("these clauses don't fail")).collect();
            if filter.sets().iter().all(|set| set.columns().count() == 1) {
                assert_eq!(ours, theirs, "seed {seed}: {clause}");
            }
            let is_true = |truths: &[Option<bool>]| -> Vec<_> {
                truths.iter().map(|truth| *truth == Some(true)).collect()
            };
            assert_eq!(is_true(&ours), is_true(&theirs), "seed {seed}: {clause}");
            theirs.iter().for_each(|truth| *results.entry(*truth).or_default() += 1);
            check_canonical(&database, clause, &filter);
            canonical.push((filter.canonical().to_owned(), theirs));
        }
        let (canonical, theirs): (Vec<_>, Vec<_>) = canonical.into_iter().unzip();
        for (index, found) in database.judge(&canonical).into_iter().enumerate() {
            assert_eq!(found, theirs[index], "seed {seed}: {}", canonical[index]);
        }
    }
    eprintln!("Postgres {version}: {done} clauses, seed {seed}, {refused} refused {reasons:?}; {results:?}");
    assert!(refused * 4 < done, "{refused} of {done} clauses refused: {reasons:?}");
    assert!(results.values().all(|count| *count * 20 > done), "{results:?}");
}

/// The canonical text of the canonical text is itself, and names the tables.
fn check_canonical(database: &Database, clause: &str, filter: &Filter) {
    let canonical = filter.canonical();
    let again = database.parse(canonical).unwrap_or_else(|error| panic!("{canonical}: {error}"));
    assert_eq!(again.canonical(), canonical, "{clause}");
    let tables = subquery_tables(canonical, &[], 18).expect("it was parsed");
    assert!(filter.sets().iter().all(|set| tables.contains(set.table())), "{clause}");
}

/// Number of random clauses: `FOREBAY_CLAUSES`.
fn count() -> usize {
    std::env::var("FOREBAY_CLAUSES").map_or(1_000, |count| count.parse().expect("a number"))
}

#[test]
fn subqueries_agree_with_postgres_15() {
    subqueries_agree(15, forebay_testkit::seed(), count());
}

#[test]
fn subqueries_agree_with_postgres_18() {
    subqueries_agree(18, forebay_testkit::seed() + 1, count());
}

#[test]
fn other_forms_of_subqueries_are_refused_by_name() {
    let database = Database::create(18, &mut TestRng::new(1));
    for (clause, words) in [
        ("a = (SELECT a FROM members)", "subqueries (but in IN, = ANY, <> ALL and EXISTS) are"),
        ("a IN (SELECT a + 1 FROM members)", "anything but columns in the list of a subquery is"),
        ("a IN (SELECT * FROM members)", "anything but columns in the list of a subquery is"),
        ("a IN (SELECT DISTINCT a FROM members)", "DISTINCT and ALL in subqueries are"),
        ("a IN (SELECT a FROM members, teams)", "joins in subqueries are"),
        ("a IN (SELECT a FROM members JOIN teams ON true)", "joins in subqueries are"),
        ("a IN (SELECT a FROM (SELECT 1) x)", "anything but a table in FROM of a subquery is"),
        ("a IN (SELECT a FROM generate_series(1, 2) a)", "anything but a table in FROM of a subquery is"),
        ("a IN (SELECT a FROM members GROUP BY a)", "GROUP in subqueries is"),
        ("a IN (SELECT a FROM members WHERE f ORDER BY a)", "ORDER in subqueries is"),
        ("a IN (SELECT a FROM members LIMIT 1)", "LIMIT in subqueries is"),
        ("a IN (SELECT a FROM members UNION SELECT 1)", "UNION in subqueries is"),
        ("a IN (WITH x AS (SELECT 1) SELECT * FROM x)", "anything but SELECT in a subquery is"),
        ("a IN (VALUES (1))", "anything but SELECT in a subquery is"),
        ("a > ANY (SELECT a FROM members)", "> ANY (SELECT …) is"),
        ("a = ALL (SELECT a FROM members)", "= ALL (SELECT …) is"),
        ("a + 1 IN (SELECT a FROM members)", "anything but columns before IN (SELECT …) is"),
        ("1 IN (SELECT a FROM members)", "anything but columns before IN (SELECT …) is"),
        ("a IN (SELECT n FROM members)", "comparing integer with a subquery's numeric is"),
        ("t IN (SELECT p FROM members)", "comparing text with a subquery's bpchar is"),
        ("a = t", "operator does not exist: integer = text"),
        ("a IN (SELECT t FROM members)", "operator does not exist: integer = text"),
        ("a IN (SELECT a, b FROM members)", "subquery has too many columns"),
        ("(a, b) IN (SELECT a FROM members)", "subquery has too few columns"),
        ("(a, b) NOT IN (SELECT a, b FROM members)", "rows in NOT IN (SELECT …) and in other tests"),
        ("a IN (SELECT a FROM members WHERE tasks.b = 1)", "references to an outer table"),
        ("a IN (SELECT tasks.a FROM members)", "columns of an outer table in a subquery's list are"),
        (
            "EXISTS (SELECT 1 FROM members WHERE a = 1)",
            "EXISTS without column = column of the outer table is",
        ),
        ("EXISTS (SELECT 1 FROM members m WHERE m.a > tasks.a)", "references to an outer table"),
        ("EXISTS (SELECT m.a FROM members m)", "EXISTS (SELECT …) of anything but 1, NULL, TRUE or * is"),
        ("a IN (SELECT nothing FROM members)", "column \"nothing\" does not exist"),
        ("a IN (SELECT a FROM members WHERE nothing)", "column \"nothing\" does not exist"),
        ("a IN (SELECT a FROM nowhere)", "relation \"public.nowhere\" does not exist"),
        ("a IN (SELECT a FROM members WHERE random() > 0)", "the function random is"),
        ("a IN (SELECT a FROM members WHERE t ~ 'x')", "the operator ~ is"),
        ("a IN (SELECT a FROM members WHERE)", "At location"),
    ] {
        let error = database.parse(clause).map(|found| panic!("{clause}: {}", found.canonical()));
        let message = error.unwrap_err().to_string();
        assert!(message.starts_with(words), "{clause}: {message}");
    }
    let nested = |times: usize| {
        format!("{}a = 1{}", "a IN (SELECT a FROM members WHERE ".repeat(times), ")".repeat(times))
    };
    assert!(database.parse(&nested(4)).is_ok());
    let message = database.parse(&nested(5)).unwrap_err().to_string();
    assert!(message.starts_with("subqueries nested more than 4 levels deep are"), "{message}");
    let many = ["a IN (SELECT a FROM members)"; 9].join(" OR ");
    let message = database.parse(&many).unwrap_err().to_string();
    assert!(message.starts_with("more than 8 subqueries are"), "{message}");
}

#[test]
fn without_tables_subqueries_are_refused() {
    let database = Database::create(18, &mut TestRng::new(1));
    let schema = &database.schemas[&database.tasks()];
    for clause in ["a IN (SELECT a FROM members)", "EXISTS (SELECT 1 FROM members)", "a = ANY (SELECT 1)"] {
        let error = Filter::parse(clause, &[], schema).unwrap_err().to_string();
        assert!(error.starts_with("subqueries are not supported"), "{clause}: {error}");
    }
}

/// Equal subqueries share a set, however they are written.
#[test]
fn equal_subqueries_have_one_set() {
    let database = Database::create(15, &mut TestRng::new(1));
    let filter = database
        .parse("a IN (SELECT a FROM members WHERE t = $2) OR b = ANY (select A from public.members where (t) = 'a')")
        .expect("it is supported");
    assert_eq!(filter.sets().len(), 1);
    assert_eq!(filter.sets()[0].select(), r#"SELECT "a" FROM "public"."members" WHERE ("t" = 'a')"#);
    assert_eq!(filter.columns(), [0, 1]);
}

/// Without contents of its sets, a filter doesn't guess.
#[test]
fn a_filter_without_contents_of_its_sets_is_undecided() {
    let database = Database::create(15, &mut TestRng::new(1));
    let filter = database.parse("a IN (SELECT a FROM members) AND b = 7").expect("it is supported");
    let row = |b: &str| -> TestRow {
        COLUMNS.iter().map(|(name, ..)| (*name == "b").then(|| b.to_owned())).collect()
    };
    assert_eq!(filter.judge(&row("7")), forebay_filter::RowVerdict::Undecided);
    assert_eq!(filter.judge(&row("8")), forebay_filter::RowVerdict::NoMatch);
}
