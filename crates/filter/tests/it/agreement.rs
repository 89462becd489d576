//! Random clauses over random rows: results are those of real servers.

use std::collections::BTreeMap;
use std::time::Instant;

use forebay_filter::{Collation, Filter, FilterError, IndexCondition, IndexKey, RowVerdict};
use forebay_testkit::TestRng;

use crate::grammar::Grammar;
use crate::server::ReferenceServer;

const ROWS: usize = 40;
const BATCH: usize = 50;

#[derive(Default)]
struct AgreementTally {
    clauses: usize,
    refused: usize,
    pairs: usize,
    errors: usize,
    /// Errors of the same SQLSTATE class with different codes.
    near: BTreeMap<(String, String), usize>,
    /// Pairs that the filter refused (0A000).
    unsure: usize,
    reasons: BTreeMap<String, usize>,
    /// Number of each result of Postgres.
    answers: BTreeMap<String, usize>,
    /// Pairs that an index would skip.
    indexed: usize,
    wrong: Vec<String>,
}

impl AgreementTally {
    fn report(&self, name: &str, seed: u64, begun: Instant) {
        let AgreementTally { clauses, refused, pairs, errors, unsure, indexed, .. } = self;
        eprintln!(
            "{name}: {pairs} pairs ({errors} errors, {unsure} unsure, {indexed} left out by an index) of {clauses} clauses, {refused} refused, \
             seed {seed}, {:?}",
            begun.elapsed()
        );
        eprintln!("  {:?}; near: {:?}", self.answers, self.near);
        for (reason, count) in &self.reasons {
            eprintln!("  {count} × {reason}");
        }
        assert!(self.wrong.is_empty(), "{} wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
        // Most comparisons of nondeterministic columns are refused.
        let most = match name {
            _ if name.starts_with("flat") => 10,
            _ if name.starts_with("nondeterministic") => 50,
            _ => 5,
        };
        assert!(refused * 100 < clauses * most, "{refused} of {clauses} clauses refused");
        assert!(unsure * 100 < pairs * 5, "{unsure} of {pairs} pairs unsure");
    }
}

fn compare(server: &ReferenceServer, clause: &str, answers: &[Option<String>], tally: &mut AgreementTally) {
    tally.clauses += 1;
    let filter = match Filter::parse(clause, &[], &server.schema) {
        Ok(filter) => filter,
        Err(FilterError::Unsupported { what, .. }) => {
            tally.refused += 1;
            *tally.reasons.entry(what).or_default() += 1;
            return;
        }
        // Postgres notices the conflict of collations when it compares, which another operand may
        // prevent. A filter is refused.
        Err(error) if error.sqlstate() == "42P22" => {
            tally.refused += 1;
            *tally.reasons.entry(error.to_string()).or_default() += 1;
            return;
        }
        Err(error) => {
            let class = &error.sqlstate()[..2];
            let agreed =
                answers.iter().all(|answer| answer.as_deref().is_some_and(|state| state.starts_with(class)));
            if !agreed {
                tally.wrong.push(format!("{clause}\n    we refuse: {error}; Postgres: {:?}", answers[0]));
            }
            let theirs = answers[0].clone().unwrap_or_default();
            if theirs != error.sqlstate() {
                *tally.near.entry((error.sqlstate().to_owned(), theirs)).or_default() += 1;
            }
            tally.errors += answers.len();
            tally.pairs += answers.len();
            return;
        }
    };
    for (row, theirs) in server.rows.iter().zip(answers) {
        tally.pairs += 1;
        let (ours, why) = match filter.matches(row) {
            Ok(answer) => (answer.map(|answer| answer.to_string()), String::new()),
            Err(error) => (Some(error.sqlstate().to_owned()), error.to_string()),
        };
        let held = conditions_hold(server, &filter, row);
        tally.indexed += usize::from(!held);
        if !held && theirs.as_deref() == Some("true") {
            tally
                .wrong
                .push(format!("{clause}\n    true, but not by its conditions: {:?}", filter.conditions()));
            return;
        }
        // Where Postgres fails, the judgement is this crate's own.
        let fits = match (filter.judge(row), theirs.as_deref()) {
            (RowVerdict::Match, theirs) => !matches!(theirs, Some("false") | None),
            (RowVerdict::NoMatch, theirs) => theirs != Some("true"),
            (RowVerdict::Undecided, _) => filter.may_be_undecided(),
        };
        if !fits {
            tally.wrong.push(format!("{clause}\n    judged {:?}, Postgres' {theirs:?}", filter.judge(row)));
            return;
        }
        *tally.answers.entry(theirs.clone().unwrap_or_else(|| "null".to_owned())).or_default() += 1;
        if ours == *theirs {
            continue;
        }
        let class = |answer: &Option<String>| {
            answer.as_deref().filter(|answer| answer.len() == 5).map(|answer| answer[..2].to_owned())
        };
        match (class(&ours), class(theirs)) {
            (Some(class), Some(other)) if class == other && class != "fa" => {
                let codes = (ours.unwrap_or_default(), theirs.clone().unwrap_or_default());
                *tally.near.entry(codes).or_default() += 1;
            }
            (Some(ours), _) if ours == "0A" => {
                tally.unsure += 1;
                *tally.reasons.entry(format!("(row) {why}")).or_default() += 1;
            }
            _ => {
                let used: Vec<_> = filter
                    .columns()
                    .iter()
                    .map(|&column| (&server.schema.columns[column].name, &row[column]))
                    .collect();
                tally
                    .wrong
                    .push(format!("{clause}\n    ours {ours:?} {why}, Postgres' {theirs:?}, of {used:?}"));
                return;
            }
        }
    }
}

/// Returns whether an index would find the filter for the row.
fn conditions_hold(server: &ReferenceServer, filter: &Filter, row: &[Option<String>]) -> bool {
    let kind = |column: usize| &server.schema.columns[column].column_type;
    let key = |column: usize| {
        let text = row[column].as_ref()?;
        IndexKey::of_row(kind(column), text.as_bytes())
            .expect("rows are read")
            .or_else(|| panic!("{column} has keys"))
    };
    let holds = |condition: &IndexCondition| match condition {
        IndexCondition::Equals { column, keys } => {
            key(*column).is_some_and(|key| keys.binary_search(&key).is_ok())
        }
        IndexCondition::Range { column, lower, upper } => key(*column).is_some_and(|key| {
            let above =
                lower.as_ref().is_none_or(|bound| key > bound.key || (bound.inclusive && key == bound.key));
            let below =
                upper.as_ref().is_none_or(|bound| key < bound.key || (bound.inclusive && key == bound.key));
            above && below
        }),
        IndexCondition::Prefix { column, prefix } => {
            row[*column].as_ref().is_some_and(|text| text.starts_with(prefix))
        }
        IndexCondition::Elements { column, keys } => row[*column].as_ref().is_some_and(|text| {
            let elements = IndexKey::of_elements(kind(*column), text.as_bytes())
                .expect("rows are read")
                .expect("it has keys");
            keys.iter().all(|key| elements.contains(key))
        }),
        IndexCondition::InSet { .. } => unreachable!("the clause has no subquery"),
        IndexCondition::Expression { expression, keys } => {
            // If evaluation fails, the index returns the filter.
            expression.key(&row).map_or(true, |key| key.is_some_and(|key| keys.contains(&key)))
        }
    };
    filter.conditions().iter().any(|alternative| alternative.conditions.iter().all(holds))
}

fn run(
    name: &str,
    server: &ReferenceServer,
    seed: u64,
    pairs: usize,
    mut make: impl FnMut(&mut Grammar) -> String,
    orders_texts: bool,
) {
    run_with(name, server, Grammar::new(TestRng::new(seed), orders_texts), seed, pairs, &mut make);
}

fn run_with(
    name: &str,
    server: &ReferenceServer,
    mut grammar: Grammar,
    seed: u64,
    pairs: usize,
    make: &mut dyn FnMut(&mut Grammar) -> String,
) {
    let (begun, mut tally) = (Instant::now(), AgreementTally::default());
    while tally.pairs < pairs && tally.wrong.len() < 20 {
        let clauses: Vec<_> = (0..BATCH).map(|_| make(&mut grammar)).collect();
        let answers = server.judge(&clauses);
        for (clause, answers) in clauses.iter().zip(&answers) {
            compare(server, clause, answers, &mut tally);
        }
    }
    tally.report(name, seed, begun);
}

#[test]
fn random_clauses_agree_with_postgres_15() {
    let seed = forebay_testkit::seed();
    let server = ReferenceServer::start(15, "", &Collation::C, seed, ROWS);
    run("C on 15", &server, seed, 160_000, Grammar::clause, true);
}

#[test]
fn random_clauses_agree_with_postgres_18() {
    let seed = forebay_testkit::seed() + 1;
    let server = ReferenceServer::start(18, "", &Collation::C, seed, ROWS);
    run("C on 18", &server, seed, 100_000, Grammar::clause, true);
}

#[test]
fn jsonb_agrees_under_every_collation() {
    let seed = forebay_testkit::seed() + 4;
    for (version, options, collation) in [
        (15, "", Collation::C),
        (18, "", Collation::C),
        (15, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", Collation::Icu("en-US".to_owned())),
        (18, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'", Collation::Icu("en-US".to_owned())),
    ] {
        let server = ReferenceServer::start(version, options, &collation, seed, 60);
        let orders = collation == Collation::C;
        run(
            &format!("jsonb, {collation:?} on {version}"),
            &server,
            seed,
            40_000,
            Grammar::json_clause,
            orders,
        );
    }
}

#[test]
fn operators_without_parentheses_bind_as_in_postgres() {
    let seed = forebay_testkit::seed() + 3;
    for version in [15, 18] {
        let server = ReferenceServer::start(version, "", &Collation::C, seed, 12);
        run(&format!("flat on {version}"), &server, seed, 30_000, Grammar::flat, true);
    }
}

#[test]
fn texts_agree_under_other_collations() {
    let seed = forebay_testkit::seed() + 2;
    let icu = |locale: &str| Collation::Icu(locale.to_owned());
    for (version, options, collation) in [
        (15, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", icu("en-US")),
        (15, "LOCALE 'C.UTF-8'", Collation::Libc("C.UTF-8".to_owned())),
        (18, "LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'", icu("und")),
        (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'", Collation::Builtin),
        (18, "LOCALE 'C.UTF-8'", Collation::Libc("C.UTF-8".to_owned())),
    ] {
        let server = ReferenceServer::start(version, options, &collation, seed, ROWS);
        let orders = collation == Collation::Builtin;
        run(&format!("{collation:?} on {version}"), &server, seed, 20_000, Grammar::text_clause, orders);
    }
}

/// Databases' collations are deterministic, but those of columns may be nondeterministic.
#[test]
fn columns_with_a_nondeterministic_collation_agree_or_are_refused() {
    compare_nondeterministic(20_000);
}

fn compare_nondeterministic(pairs: usize) {
    let seed = forebay_testkit::seed() + 5;
    let icu = Collation::Icu("en-US".to_owned());
    for (version, options, collation) in
        [(15, "", Collation::C), (18, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'", icu)]
    {
        let server = ReferenceServer::nondeterministic(version, options, &collation, seed, ROWS);
        let orders = collation == Collation::C;
        for (kind, share, make) in [
            ("texts", pairs / 2, Grammar::text_clause as fn(&mut Grammar) -> String),
            ("all", pairs / 2, Grammar::clause),
        ] {
            let name = format!("nondeterministic columns, {kind}, {collation:?} on {version}");
            let grammar = Grammar::nondeterministic(TestRng::new(seed), orders);
            run_with(&name, &server, grammar, seed, share, &mut { make });
        }
    }
}

/// Sessions that read snapshots search only pg_catalog, where citext has no operators.
#[test]
fn canonical_clauses_on_citext_mean_the_same_without_the_extension_s_schema() {
    let mut grammar = Grammar::new(TestRng::new(forebay_testkit::seed()), true);
    for version in [15, 18] {
        let server = ReferenceServer::start(version, "", &Collation::C, forebay_testkit::seed(), ROWS);
        let clauses: Vec<_> = (0..300).map(|_| grammar.citext()).collect();
        let canonical = |clause: &String| {
            let filter = Filter::parse(clause, &[], &server.schema);
            filter.unwrap_or_else(|error| panic!("{clause}: {error}")).canonical().to_owned()
        };
        let canonical: Vec<_> = clauses.iter().map(canonical).collect();
        let elsewhere = server.judge_in(&canonical, "pg_catalog");
        for ((clause, canonical), (here, there)) in
            clauses.iter().zip(&canonical).zip(server.judge(&clauses).iter().zip(&elsewhere))
        {
            assert_eq!(here, there, "{clause} as {canonical}");
        }
    }
}

/// Set `FOREBAY_PAIRS=2000000 FOREBAY_SEED=7`, and run
/// `cargo test -p forebay-filter --release -- --ignored --nocapture millions`.
#[test]
#[ignore = "long: FOREBAY_PAIRS sets the number of pairs"]
fn millions_of_random_clauses_agree_with_postgres() {
    let pairs = std::env::var("FOREBAY_PAIRS").map_or(1_000_000, |pairs| pairs.parse().expect("a number"));
    for (offset, version) in [(10, 15), (11, 18)] {
        let seed = forebay_testkit::seed() + offset;
        let server = ReferenceServer::start(version, "", &Collation::C, seed, ROWS);
        run(&format!("C on {version}"), &server, seed, pairs / 2, Grammar::clause, true);
        run(&format!("flat on {version}"), &server, seed, pairs / 10, Grammar::flat, true);
        let icu = Collation::Icu("en-US".to_owned());
        let options = match version {
            15 => "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'",
            _ => "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'",
        };
        let server = ReferenceServer::start(version, options, &icu, seed, ROWS);
        run(&format!("en-US on {version}"), &server, seed, pairs / 4, Grammar::clause, false);
    }
    compare_nondeterministic(pairs / 2);
}
