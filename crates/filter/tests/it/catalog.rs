//! Operators and casts exist for the same pairs of types as in real servers' catalogs.

use forebay_filter::{Collation, Filter, FilterError};

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
