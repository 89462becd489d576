//! Operators and casts exist for the same pairs of types as in real servers' catalogs, and
//! functions have the same rows.

use forebay_filter::{Collation, Filter, FilterError, tables};
use forebay_sandbox::Postgres;

use crate::server::ReferenceServer;
use crate::table::COLUMNS;

const OPERATORS: &[&str] = &[
    "=", "<", ">=", "+", "-", "*", "/", "%", "^", "&", "|", "#", "||", "~~", "!~~*", "@>", "<@", "&&", "<<",
    "<<=", ">>", ">>=", "&<", "&>", "-|-",
];
const PREFIXES: &[&str] = &["-", "+", "@", "~", "|/"];

/// Checks clauses `(operand) IS NULL`: they accept every type, and fail only for types.
fn check(server: &ReferenceServer, clauses: &[String]) {
    let mut wrong = Vec::new();
    for (clause, answers) in clauses.iter().zip(server.judge(clauses)) {
        let theirs = answers[0].clone().unwrap_or_default();
        let by_type = theirs.starts_with("42");
        match Filter::parse(clause, &[], &server.schema) {
            Err(FilterError::Unsupported { .. }) => {}
            Err(error) if error.sqlstate() == theirs => {}
            Err(error) if !by_type && error.sqlstate()[..2] == theirs[..2] => {}
            Ok(_) if !by_type => {}
            ours => wrong.push(format!("{clause}: {:?}, Postgres: {theirs}", ours.map(|_| ()))),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn operands() -> Vec<String> {
    let mut operands: Vec<_> = COLUMNS.iter().map(|shown| shown.name.to_owned()).collect();
    operands.extend(["'1'".to_owned(), "NULL".to_owned()]);
    operands
}

#[test]
fn every_operator_exists_for_the_types_that_postgres_has_it_for() {
    for version in [15, 18] {
        let server = ReferenceServer::start(version, "", &Collation::C, 1, 1);
        let mut clauses = Vec::new();
        for left in operands() {
            clauses.extend(PREFIXES.iter().map(|operator| format!("({operator} {left}) IS NULL")));
            for right in operands() {
                clauses
                    .extend(OPERATORS.iter().map(|operator| format!("({left} {operator} {right}) IS NULL")));
                clauses.push(format!("({left} = ANY ({right})) IS NULL"));
                clauses.push(format!("COALESCE({left}, {right}) IS NULL"));
                clauses.push(format!("({left} IN ({right}, '2')) IS NULL"));
            }
        }
        clauses.chunks(500).for_each(|clauses| check(&server, clauses));
    }
}

#[test]
fn every_cast_exists_that_postgres_has() {
    for version in [15, 18] {
        let server = ReferenceServer::start(version, "", &Collation::C, 1, 1);
        let mut clauses = Vec::new();
        for from in operands() {
            for to in COLUMNS {
                clauses.push(format!("({from}::{}) IS NULL", to.kind));
            }
        }
        clauses.chunks(500).for_each(|clauses| check(&server, clauses));
    }
}

/// Returns rows of one text each.
fn lines(version: u32, sql: &str) -> Vec<String> {
    let rows = Postgres::shared_version(version).query("postgres", sql).expect("the catalog is readable");
    rows.into_iter().map(|row| row[0].clone().expect("a text")).collect()
}

#[test]
fn every_function_has_all_the_overloads_that_postgres_has() {
    for version in [15, 18] {
        let functions = tables::functions(version);
        let mut ours: Vec<_> = functions
            .iter()
            .map(|row| {
                let volatility = if row.is_stable { 's' } else { 'i' };
                format!("{}({}) {} {volatility} {}", row.name, row.arguments, row.result, row.is_strict)
            })
            .collect();
        ours.sort_unstable();
        let names: Vec<_> = functions.iter().map(|row| format!("'{}'", row.name)).collect();
        let sql = format!(
            "SELECT format('%s(%s) %s %s %s', proname, (
                SELECT string_agg(CASE WHEN position = pronargs AND provariadic <> 0 THEN 'variadic ' ELSE '' END
                    || regexp_replace(typname, '^_(.*)', '\\1[]'), ', ' ORDER BY position)
                FROM unnest(proargtypes) WITH ORDINALITY AS a (type, position) JOIN pg_type t ON t.oid = type
            ), (SELECT regexp_replace(typname, '^_(.*)', '\\1[]') FROM pg_type t WHERE t.oid = prorettype), provolatile,
                CASE WHEN proisstrict THEN 'true' ELSE 'false' END)
            FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN ({})",
            names.join(", ")
        );
        let mut theirs = lines(version, &sql);
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "Postgres {version}");
    }
}

#[test]
fn types_of_refused_overloads_have_the_category_and_the_casts_that_postgres_has() {
    let scalars: Vec<_> = tables::scalar_types().iter().map(|kind| format!("'{}'", kind.name)).collect();
    for version in [15, 18] {
        for mut foreign in tables::foreign_types() {
            foreign.sources.sort_unstable();
            let sql = format!(
                "SELECT format('%s %s %s', typcategory, CASE WHEN typispreferred THEN 'true' ELSE 'false' END, (
                    SELECT string_agg(s.typname, ',' ORDER BY s.typname COLLATE \"C\") FROM pg_cast JOIN pg_type s ON s.oid = castsource
                    WHERE casttarget = t.oid AND castcontext = 'i' AND s.typname IN ({})
                )) FROM pg_type t WHERE typname = '{}'",
                scalars.join(", "),
                foreign.name
            );
            let ours = format!("{} {} {}", foreign.category, foreign.is_preferred, foreign.sources.join(","));
            assert_eq!(lines(version, &sql), [ours], "{} on {version}", foreign.name);
        }
    }
}
