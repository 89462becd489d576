//! No clause and no row causes a panic.

use forebay_filter::{Collation, Filter};
use forebay_testkit::TestRng;
use proptest::prelude::*;

use crate::grammar::Grammar;
use crate::table;

/// Returns `PROPTEST_CASES`, or a default.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000)
}

/// Returns a clause of the grammar with some bytes changed.
fn mutated(seed: u64) -> String {
    let mut grammar = Grammar::new(TestRng::new(seed), true);
    let mut clause: Vec<char> =
        if seed.is_multiple_of(3) { grammar.flat() } else { grammar.clause() }.chars().collect();
    let mut rng = TestRng::new(!seed);
    for _ in 0..rng.below(4) {
        let (at, other) = (rng.below(clause.len() + 1), rng.below(clause.len() + 1));
        match rng.below(4) {
            0 => clause.insert(
                at,
                rng.pick(&[
                    '(', ')', '\'', '"', '$', '[', ']', ':', ',', '.', '-', 'é', '\\', '%', ' ', '0', 'E',
                    '\0',
                ]),
            ),
            1 if at < clause.len() => drop(clause.remove(at)),
            2 if at < clause.len() && other < clause.len() => clause.swap(at, other),
            _ => {
                let (from, to) = (at.min(other), at.max(other));
                let part = clause[from..to].to_vec();
                clause.splice(from..from, part);
            }
        }
    }
    clause.into_iter().collect()
}

/// Returns a text that is a value of some type, or random bytes.
fn cell() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        Just(None),
        "[-+0-9.eE:PTYMDHS,{}\" ]{0,24}".prop_map(|text| Some(text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..24).prop_map(Some),
        (0..table::COLUMNS.len(), any::<u64>()).prop_map(|(column, seed)| {
            let all = table::values(table::COLUMNS[column].kind);
            Some(TestRng::new(seed).pick(all).as_bytes().to_vec())
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_never_panics(text in "\\PC{0,60}", seed in any::<u64>()) {
        let schema = table::schema(&Collation::C, if seed % 2 == 0 { 15 } else { 18 });
        let _ = Filter::parse(&text, &["1"], &schema);
        let _ = Filter::parse(&mutated(seed), &[], &schema);
    }

    #[test]
    fn matching_never_panics(seed in any::<u64>(), row in proptest::collection::vec(cell(), table::COLUMNS.len() + 2)) {
        let schema = table::schema(&Collation::C, 15);
        if let Ok(filter) = Filter::parse(&mutated(seed), &[], &schema) {
            let _ = filter.matches(&row);
            let _ = filter.matches(&Vec::<Option<Vec<u8>>>::new());
            let _ = filter.conditions();
        }
    }

    #[test]
    fn the_canonical_text_is_a_clause_with_the_same_text_and_meaning(seed in any::<u64>()) {
        let schema = table::schema(&Collation::C, 15);
        let mut grammar = Grammar::new(TestRng::new(seed), true);
        let clause = if seed % 3 == 0 { grammar.flat() } else { grammar.clause() };
        if let Ok(filter) = Filter::parse(&clause, &[], &schema) {
            let again = Filter::parse(filter.canonical(), &[], &schema).map_err(|error| {
                TestCaseError::fail(format!("{clause}\n{}: {error}", filter.canonical()))
            })?;
            prop_assert_eq!(again.canonical(), filter.canonical());
            prop_assert_eq!(again.conditions(), filter.conditions());
            prop_assert_eq!(again.columns(), filter.columns());
        }
    }
}

#[test]
fn the_canonical_text_does_not_depend_on_how_a_clause_is_written() {
    let schema = table::schema(&Collation::C, 15);
    let canonical = |clause: &str| Filter::parse(clause, &[], &schema).unwrap().canonical().to_owned();
    for (one, other) in [
        ("i4=5 and t  LIKE 'a%'", "((I4 = (5)) /* x */ AND (t ~~ 'a%'))"),
        ("i4 != 1", "NOT_EQUAL"),
        ("i4 = 1 OR (b OR NOT b)", "i4 = 1 OR b OR NOT b"),
        ("i4::integer = 1", "CAST(i4 AS int4) = 1"),
        ("d = date '2000-01-01'", "d = '2000-01-01'::date"),
        ("t = 'a''b'", "\"t\" = $q$a'b$q$"),
        ("i4 ISNULL", "i4 IS NULL"),
        ("i4 = -1", "i4 = -(1)"),
        ("ts AT TIME ZONE 'UTC' = tstz", "timezone('UTC', ts) = tstz"),
        ("t NOT LIKE 'a'", "t !~~ 'a'"),
        ("i4 = SOME (ai)", "i4 = ANY (ai)"),
        ("bp = 'a'::char(3)", "bp = 'a'::character(3)"),
    ] {
        let other = if other == "NOT_EQUAL" { "i4 <> 1" } else { other };
        assert_eq!(canonical(one), canonical(other));
    }
    assert_ne!(canonical("i4 = 1 AND b OR b"), canonical("i4 = 1 AND (b OR b)"));
    assert_ne!(canonical("t = 'A'"), canonical("t = 'a'"));
}
