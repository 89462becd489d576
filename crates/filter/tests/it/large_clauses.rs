//! Large clauses: those within the limits are parsed, the others are refused, each soon.

use std::time::{Duration, Instant};

use forebay_filter::{
    Collation, Filter, FilterError, Index, MAX_CANONICAL_BYTES, MAX_CLAUSE_BYTES, MAX_PARAM_BYTES,
    PostgresRules,
};

use crate::refusals::refusal;
use crate::table;

#[test]
fn the_deepest_allowed_clause_fits_the_stack() {
    let schema = table::schema(&Collation::C, 15);
    for (open, close) in
        [("(", ")"), ("NOT ", ""), ("CASE WHEN ", " THEN b END"), ("b = (", ")"), ("COALESCE(", ", b)")]
    {
        let depth = if open == "b = (" { 31 } else { 62 };
        let clause = format!("{}b{}", open.repeat(depth), close.repeat(depth));
        let filter = Filter::parse(&clause, &[], &schema).unwrap_or_else(|error| panic!("{clause}: {error}"));
        let row: [Option<&[u8]>; 1] = [Some(b"t")];
        assert!(filter.matches(&row).is_ok());
        let again = Filter::parse(filter.canonical(), &[], &schema).map(|again| again.canonical().to_owned());
        assert_eq!(again.as_deref(), Ok(filter.canonical()));
    }
}

#[test]
fn hostile_sizes_are_refused_at_once() {
    let begun = Instant::now();
    for depth in [150, 10_000, 30_000] {
        for (open, close) in [
            ("(", ")"),
            ("NOT ", ""),
            ("- ", ""),
            ("@ ", ""),
            ("ARRAY[", "]"),
            ("lower(", ")"),
            ("CASE WHEN ", " THEN b END"),
        ] {
            let clause = format!("{}b{}", open.repeat(depth), close.repeat(depth));
            let error = refusal(&clause);
            let expected = matches!(error, FilterError::TooDeep { .. } | FilterError::TooLong { .. });
            assert!(expected, "{open} × {depth}: {error}");
        }
    }
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{}i4{} = 1", open.repeat(depth), close.repeat(depth))
    };
    for clause in [
        nested("CASE WHEN (", " BETWEEN 1 AND 2) THEN 1 END", 30),
        nested("CASE WHEN (", " BETWEEN SYMMETRIC 1 AND 2) THEN 1 END", 20),
        nested("CASE WHEN ROW(", ", 1) IN ((1, 1), (2, 1)) THEN 1 END", 30),
        nested("CASE ", " WHEN 1 THEN 1 WHEN 2 THEN 2 END", 30),
    ] {
        let error = refusal(&clause);
        let is_refused = matches!(error, FilterError::TooManyCopies | FilterError::TooDeep { .. });
        assert!(is_refused, "{clause}: {error}");
    }
    let (large, items) = ("x".repeat(1 << 19), "t, ".repeat(1_000));
    let error =
        Filter::parse(&format!("t || $1 IN ({items}t)"), &[&large], &table::schema(&Collation::C, 15));
    assert_eq!(error.unwrap_err(), FilterError::TooManyCopies);
    for chain in ["i4 + ", "t || ", "- "] {
        let error = refusal(&format!("{}i4 = 1", chain.repeat(5_000)));
        assert!(matches!(error, FilterError::TooDeep { .. }), "{chain}: {error}");
    }
    let long = format!("i4 = 1{}", " OR i4 = 2".repeat(110_000));
    assert!(matches!(refusal(&long), FilterError::TooLong { limit: MAX_CLAUSE_BYTES, .. }));
    let wide = format!("i4 = 1{}", " OR i4 = 2".repeat(6_000));
    let schema = table::schema(&Collation::C, 15);
    assert!(Filter::parse(&wide, &[], &schema).is_ok(), "width is no depth");
    let long = "x".repeat(MAX_PARAM_BYTES);
    assert!(Filter::parse("t = $1", &[&long], &schema).is_ok());
    for (clause, params) in [("t = $1 OR t = $1", &[&*long][..]), ("t = $1", &[&long, "x"])] {
        let error = Filter::parse(clause, params, &schema).unwrap_err();
        assert!(matches!(error, FilterError::ParamsTooLong { limit: MAX_PARAM_BYTES, .. }), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn ten_thousand_values_and_ninety_terms_are_a_clause() {
    let schema = table::schema(&Collation::C, 15);
    let begun = Instant::now();
    let ids = |count: usize| (0..count).map(|id| format!("a0eebc99-9c0b-4ef8-bb6d-{id:012}"));
    let array = format!("{{{}}}", ids(10_000).collect::<Vec<_>>().join(","));
    let filter = Filter::parse("id = ANY ($1)", &[&array], &schema).unwrap();
    assert_eq!(filter.conditions().len(), 1);
    let params: Vec<_> = ids(10_000).collect();
    let params: Vec<_> = params.iter().map(String::as_str).collect();
    let marks: Vec<_> = (1..=params.len()).map(|number| format!("${number}")).collect();
    assert!(Filter::parse(&format!("id IN ({})", marks.join(",")), &params, &schema).is_ok());
    let numbers: Vec<_> = (0..10_000).map(|number| number.to_string()).collect();
    assert!(Filter::parse(&format!("i4 IN ({})", numbers.join(",")), &[], &schema).is_ok());
    for chain in ["i4{} > 0", "t{} = ''", "n{} > 0"] {
        let term = if chain.starts_with('t') { " || t" } else { " + 1" };
        let clause = chain.replace("{}", &term.repeat(120));
        let filter = Filter::parse(&clause, &[], &schema).unwrap();
        assert!(Filter::parse(filter.canonical(), &[], &schema).is_ok());
        let row = vec![Some("1"); schema.columns.len()];
        assert!(filter.matches(&row).is_ok_and(|matches| matches.is_some()));
        let clause = chain.replace("{}", &term.repeat(130));
        let error = Filter::parse(&clause, &[], &schema).unwrap_err();
        assert!(matches!(error, FilterError::TooDeep { limit: 64 }), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Clauses of almost a megabyte are parsed, and found by an index, in a bounded time. Their
/// canonical text is parsed again when a store is opened.
#[test]
fn a_clause_of_a_megabyte_is_parsed_and_indexed() {
    let schema = table::schema(&Collation::C, 15);
    let long = "x".repeat(MAX_CLAUSE_BYTES - 6);
    for clause in [
        format!("i4 = 0{}", (0..60_000).map(|number| format!(" OR i4={number}")).collect::<String>()),
        format!("i4 IN (0{})", ",1".repeat(500_000)),
        format!("t = '{long}'"),
        format!("i4 > 0{}", " AND i4<>2".repeat(100_000)),
    ] {
        let begun = Instant::now();
        let filter = Filter::parse(&clause, &[], &schema).unwrap();
        let stored = Filter::parse_with(filter.canonical(), &[], &schema, PostgresRules::Stored).unwrap();
        assert_eq!(stored.canonical(), filter.canonical());
        let mut index = Index::new();
        index.add(1, Some(&filter), &schema);
        index.remove(1);
        assert!(filter.memory() > clause.len() && filter.memory() < 200 * clause.len());
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}: {}", begun.elapsed(), &clause[..20]);
    }
    let params = "y".repeat(MAX_PARAM_BYTES);
    let both = Filter::parse(&format!("t = '{}' OR t = $1", &long[20..]), &[&params], &schema).unwrap();
    assert!(both.canonical().len() > (2 << 20) - 64);
    let wide = Filter::parse(&format!("i4 = 0{}", " OR b".repeat(200_000)), &[], &schema);
    assert!(wide.is_ok_and(|wide| wide.canonical().len() < MAX_CANONICAL_BYTES));
    let pattern = "%x".repeat(40_000);
    for clause in ["t LIKE $1", "t NOT ILIKE $1", "strpos(t, $1) > 0", "t LIKE ANY (ARRAY['a', $1])"] {
        let refused = Filter::parse(clause, &[&pattern], &schema).unwrap_err();
        assert_eq!(refused, FilterError::LongOperand { limit: 65_536 }, "{clause}");
        assert!(Filter::parse(clause, &[&pattern[..60_000]], &schema).is_ok(), "{clause}");
    }
}

/// A release before had no limit for constants in patterns and arguments.
#[test]
fn a_stored_clause_may_have_a_long_constant_in_an_argument() {
    let schema = table::schema(&Collation::C, 15);
    let clause = format!("strpos(t, '{}') > 0", "x".repeat(100_000));
    assert_eq!(refusal(&clause), FilterError::LongOperand { limit: 65_536 });
    assert!(Filter::parse_with(&clause, &[], &schema, PostgresRules::Stored).is_ok());
    let tags = format!("{{{}}}", vec!["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"; 1_800].join(","));
    for clause in ["ac && $1", "t LIKE ANY ($1)"] {
        let found = Filter::parse(clause, &[&tags], &schema).map(|filter| filter.canonical().to_owned());
        assert!(Filter::parse_with(&found.unwrap(), &[], &schema, PostgresRules::Stored).is_ok(), "{clause}");
    }
}
