//! Clauses with conditions that only Postgres can evaluate.

use forebay_filter::{
    Collation, Column, Expression, Filter, FilterError, Index, IndexCondition, PostgresRules, RowVerdict,
    Schema,
};

fn schema() -> Schema {
    Schema {
        table: Some("items".to_owned()),
        columns: vec![
            Column::new("org", 23, "int4"),
            Column::new("name", 25, "text"),
            Column::new("doc", 142, "xml"),
            Column::new("seen", 1184, "timestamptz"),
            Column::new("during", 3912, "daterange"),
        ],
        database_collation: Collation::Icu("en-US".to_owned()),
        server_version: 15,
    }
}

fn allow_all(_: &Expression) -> Result<(), String> {
    Ok(())
}

fn parse(clause: &str) -> Filter {
    let rules = PostgresRules::Checked(&allow_all);
    Filter::parse_with(clause, &[], &schema(), rules).unwrap_or_else(|error| panic!("{clause}: {error}"))
}

#[track_caller]
fn check(clause: &str, org: &str, name: &str, expected: RowVerdict) {
    let row = [Some(org.as_bytes()), Some(name.as_bytes()), None, None, None];
    assert_eq!(parse(clause).judge(&row), expected, "{clause} of {org}, {name}");
}

#[test]
fn a_text_of_a_row_that_means_the_current_time_is_no_date() {
    use RowVerdict::{Match, NoMatch, Undecided};
    for (clause, name, expected) in [
        ("name::date > '2020-01-01'", "2024-02-29", Match),
        ("name::date > '2020-01-01'", "today", NoMatch),
        ("NOT (name::date > '2020-01-01')", " Tomorrow ", NoMatch),
        ("name::timestamptz > '2020-01-01' OR org = 5", "now", Match),
        ("name::time > '10:00' OR name ~ 'zz'", "now", Undecided),
        ("name::time > '10:00' AND name ~ 'zz'", "now", Undecided),
        ("('{' || name || '}')::date[] && '{2024-02-29}'", "2024-01-01,yesterday", NoMatch),
        ("('{' || name || '}')::date[] && '{2024-02-29}'", "2024-01-01,2024-02-29", Match),
    ] {
        check(clause, "5", name, expected);
    }
    for (clause, sql) in [
        (
            "name::date > '2020-01-01'",
            "((regexp_replace(((\"name\")::text COLLATE \"C\"), 'now|today|tomorrow|yesterday', 'the current time', 'gi'))::date > '2020-01-01')",
        ),
        ("seen::date > '2020-01-01' AND name = 'today'", "unchanged"),
        ("'2024-01-01'::date > '2020-01-01' AND name::interval > '1 day'", "unchanged"),
    ] {
        let filter = parse(clause);
        let is_same = filter.postgres_sql() == filter.canonical();
        assert_eq!(is_same, sql == "unchanged", "{clause}");
        if !is_same {
            assert_eq!(
                filter
                    .postgres_sql()
                    .replace("\"regexp_replace\"", "regexp_replace")
                    .replace("\"text\"", "text")
                    .replace("\"date\"", "date"),
                sql
            );
        }
    }
}

#[test]
fn native_operands_decide_a_row_wherever_they_can() {
    use RowVerdict::{Match, NoMatch, Undecided};
    for (clause, org, expected) in [
        ("name ~ '^a'", "5", Undecided),
        ("org = 5 AND name ~ '^a'", "5", Undecided),
        ("org = 5 AND name ~ '^a'", "4", NoMatch),
        ("name ~ '^a' AND org = 5", "4", NoMatch),
        ("name ~ '^a' OR org = 5", "5", Match),
        ("name ~ '^a' OR org = 5", "4", Undecided),
        ("NOT (name ~ '^a' AND org = 5)", "4", Match),
        ("((name > 'm') IS TRUE) AND org = 5", "4", NoMatch),
        ("(name > 'm') IS NOT UNKNOWN", "4", Undecided),
        ("name ~ '^a' AND NULL", "4", Undecided),
        ("name ~ '^a' AND false", "4", NoMatch),
        ("CASE WHEN org = 5 THEN name > 'm' ELSE false END", "5", Undecided),
        ("(org = 5) AND (CASE WHEN (org = 5) THEN (name ~ 'a') ELSE false END)", "4", NoMatch),
        // A condition that fails doesn't hide one that decides.
        ("10 / (org - 5) > 2 AND name ~ 'a' AND org = 4", "5", NoMatch),
        ("10 / (org - 5) > 2 OR name ~ 'a' OR org = 5", "5", Match),
        ("10 / (org - 5) > 2 AND name ~ 'a'", "5", Undecided),
    ] {
        check(clause, org, "x", expected);
    }
}

#[test]
fn a_row_on_which_the_clause_fails_does_not_satisfy_it() {
    use RowVerdict::{Match, NoMatch};
    for (clause, org, expected) in [
        ("10 / org > 2", "0", NoMatch),
        ("10 / org > 2", "4", NoMatch),
        ("10 / org > 2", "3", Match),
        ("10 / org > 2 AND org <> 0", "0", NoMatch),
        ("org <> 0 AND 10 / org > 2", "3", Match),
        ("NOT (10 / org > 2)", "0", NoMatch),
        ("name::int4 > 0", "1", NoMatch),
    ] {
        check(clause, org, "x", expected);
    }
}

#[test]
fn letters_whose_case_depends_on_the_collation_are_undecided_on_their_rows_alone() {
    use RowVerdict::{Match, NoMatch, Undecided};
    for (name, expected) in [
        ("street", Match),
        ("Straße", Undecided),
        ("lane", NoMatch),
        ("STÄDTE", NoMatch),
        ("Timișoara", Undecided),
        ("Ελλάς", Undecided),
    ] {
        check("name ILIKE 'str%'", "1", name, expected);
        check("org = 2 AND name ILIKE 'str%'", "1", name, NoMatch);
    }
    for (clause, may_be) in [
        ("name ILIKE 'str%'", true),
        ("name ILIKE ANY ('{a}')", true),
        ("lower(name) = 'a'", true),
        ("name ~ 'a'", true),
        ("name LIKE 'str%' AND org IN (1, 2)", false),
    ] {
        assert_eq!(parse(clause).may_be_undecided(), may_be, "{clause}");
    }
}

#[test]
fn the_index_finds_a_clause_by_its_native_operands() {
    let filter = parse("org = 5 AND name ~ '^a'");
    assert!(matches!(&filter.conditions()[0].conditions[..], [IndexCondition::Equals { column: 0, .. }]));
    assert!(filter.conditions()[0].rest, "the row must still be judged");
    let mut index = Index::new();
    index.add(1, Some(&filter), &schema());
    let mut found = Vec::new();
    index.candidates(&[Some(&b"4"[..]), Some(b"a"), None, None, None], &mut found);
    assert!(found.is_empty());
    index.candidates(&[Some(&b"5"[..]), Some(b"a"), None, None, None], &mut found);
    assert!(found.len() == 1 && !found[0].certain);
}

#[test]
fn a_clause_reports_the_columns_of_all_its_conditions() {
    for (clause, columns, needs_postgres) in [
        ("doc::text ~ 'a' AND org = 5", &[0, 2][..], true),
        ("'a' ~ 'b'", &[], true),
        ("name = 'a'", &[1], false),
        ("name ILIKE 'a'", &[1], false),
    ] {
        let filter = parse(clause);
        assert_eq!((filter.columns(), filter.needs_postgres()), (columns, needs_postgres), "{clause}");
        assert!(!needs_postgres || filter.may_fail(), "{clause}");
    }
}

#[test]
fn a_stored_clause_gives_the_same_filter_as_the_one_that_was_checked() {
    for clause in
        ["org = 5 AND items.name ~ '^a'", "name > 'm' OR name COLLATE \"de-x-icu\" < 'b'", "NOT name ~ 'a'"]
    {
        let checked = parse(clause);
        let stored = Filter::parse_with(checked.canonical(), &[], &schema(), PostgresRules::Stored).unwrap();
        assert_eq!((stored.canonical(), stored.columns()), (checked.canonical(), checked.columns()));
        assert_eq!(stored.conditions(), checked.conditions());
    }
}

#[test]
fn a_condition_is_refused_without_rules_and_by_the_rules() {
    let clause = "org = 5 AND name ~ '^a'";
    let error = Filter::parse(clause, &[], &schema()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the operator ~ is not supported in where clauses (at location 32); the nearest supported is LIKE"
    );
    let refuse = |expression: &Expression| {
        let operators: Vec<_> = expression.operators().map(str::to_owned).collect();
        Err(format!("no {}", operators.join(" ")))
    };
    let rules = PostgresRules::Checked(&refuse);
    let error = Filter::parse_with(clause, &[], &schema(), rules).unwrap_err();
    assert_eq!(
        error,
        FilterError::Disallowed { message: "no ~".to_owned() },
        "only the condition is checked"
    );
    // What Postgres refuses is refused with its words, and what the grammar refuses by name.
    for (clause, words) in [
        ("nowhere ~ 'a'", "column \"nowhere\" does not exist"),
        ("name ~ 'a' AND org", "argument of AND must be type boolean, not type integer"),
        ("name ~ (SELECT 'a')", "subqueries are not supported in where clauses (at location 23)"),
    ] {
        let rules = PostgresRules::Checked(&allow_all);
        let error = Filter::parse_with(clause, &[], &schema(), rules).unwrap_err();
        assert_eq!(error.to_string(), words, "{clause}");
    }
}

#[test]
fn a_condition_whose_value_depends_on_the_clock_is_reported() {
    let depends = |clause: &str| Expression::parse(clause, &[], &schema(), &[]).unwrap().depends_on_clock();
    for clause in [
        "seen > 'now' AND name ~ 'a'",
        "seen > 'TODAY 12:00'",
        "name::date > '2024-01-01'",
        "(name || 'x')::timestamptz IS NULL",
        "string_to_array(name, ',')::date[] IS NULL",
        "during @> 'tomorrow'",
        "during && '[yesterday,)'",
        "name ~ 'a' = ('now'::timestamp > '2024-01-01')",
        "date_part('year', 'now') = 2024",
        "daterange('today', NULL) IS NULL",
        "'{now}' = ARRAY[seen]",
    ] {
        assert!(depends(clause), "{clause}");
    }
    for clause in [
        "name ~ 'now'",
        "seen::date > '2024-01-01'",
        "date_trunc('day', seen) = '2024-01-01'::date::timestamptz",
        "(seen + '1 day') > '2024-01-01'",
        "name::interval > '1 day'",
        "during @> '2024-01-01'::date",
    ] {
        assert!(!depends(clause), "{clause}");
    }
}
