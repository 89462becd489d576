//! A search of the index finds what evaluating every filter finds.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use forebay_filter::{
    Alternative, Bound, Candidate, Collation, Column, Filter, Index, IndexCondition, IndexKey, Schema,
    TextRow,
};
use forebay_testkit::TestRng;

use crate::grammar::Grammar;
use crate::table::{self, COLUMNS, TestColumn};

type RowCells = Vec<Option<Vec<u8>>>;

/// Number of cases of each kind: the test fails if it has covered too few.
#[derive(Debug, Default)]
struct IndexTally {
    pairs: usize,
    satisfied: usize,
    certain: usize,
    failed: usize,
    passed_over: usize,
    exact: usize,
}

#[test]
fn random_filters_are_found_as_if_each_were_evaluated() {
    let seed = forebay_testkit::seed();
    eprintln!("seed {seed}");
    let (mut rng, mut grammar) = (TestRng::new(seed), Grammar::new(TestRng::new(!seed), true));
    let schema = table::schema(&Collation::C, 15);
    let (mut index, mut filters, mut tally) = (Index::new(), BTreeMap::new(), IndexTally::default());
    for step in 0..6_000 {
        // The number of filters falls and rises.
        let removals = if step % 2_000 < 1_000 { 25 } else { 50 };
        match rng.below(100) {
            0..20 => check(&index, &filters, &row(&mut rng), &schema, &mut tally),
            roll if roll < 20 + removals => {
                let id = rng.below(600) as u64;
                filters.remove(&id);
                index.remove(id);
            }
            _ => {
                let (id, text) = (rng.below(600) as u64, clause(&mut rng, &mut grammar));
                if let Ok(filter) = Filter::parse(&text, &[], &schema) {
                    index.add(id, Some(&filter), &schema);
                    filters.insert(id, (text, filter));
                }
            }
        }
        assert_eq!(index.len(), filters.len());
    }
    eprintln!("{tally:?}");
    let IndexTally { pairs, satisfied, certain, failed, passed_over, exact } = tally;
    assert!(pairs > 100_000 && satisfied > 10_000 && certain > 5_000 && failed > 1_000 && exact > 20_000);
    assert!(passed_over * 2 > pairs, "{passed_over} of {pairs} passed over");
}

fn check(
    index: &Index,
    filters: &BTreeMap<u64, (String, Filter)>,
    (cells, broken): &(RowCells, bool),
    schema: &Schema,
    tally: &mut IndexTally,
) {
    let mut list = Vec::new();
    index.candidates(cells, &mut list);
    let found: BTreeMap<_, _> = list.iter().map(|candidate| (candidate.id, candidate.certain)).collect();
    assert_eq!(found.len(), list.len(), "a filter was found twice");
    assert!(found.keys().all(|id| filters.contains_key(id)), "a removed filter was found");
    for (id, (text, filter)) in filters {
        let (answer, alternatives) = (filter.matches(cells), filter.conditions());
        let refuted = |condition: &IndexCondition| !may_hold(condition, cells, schema);
        let context = || {
            let used: Vec<_> = filter.columns().iter().map(|&column| shown(schema, column, cells)).collect();
            format!("{text}\n    {answer:?}, of {used:?}, by {alternatives:?}")
        };
        tally.pairs += 1;
        let is_true = answer == Ok(Some(true));
        tally.satisfied += usize::from(is_true);
        tally.failed += usize::from(answer.is_err());
        match found.get(id) {
            Some(certain) => {
                tally.certain += usize::from(*certain);
                assert!(is_true || !certain, "certain, and not true: {}", context());
                let finds = |condition: &IndexCondition| is_several(condition) || !refuted(condition);
                let possible =
                    |found: &Alternative| found.conditions.is_empty() || found.conditions.iter().any(finds);
                assert!(alternatives.iter().any(possible), "found, and by nothing: {}", context());
            }
            None => {
                tally.passed_over += 1;
                let never = alternatives.iter().all(|found| found.conditions.iter().any(refuted));
                assert!(!is_true && never, "passed over: {}", context());
            }
        }
        if let ([Alternative { conditions, rest: false }], false) = (&alternatives[..], broken)
            && let [condition] = &conditions[..]
            && !is_several(condition)
        {
            tally.exact += 1;
            // A filter whose expression fails on the row is a candidate.
            let expected = if answer.is_err() { Some(&false) } else { is_true.then_some(&true) };
            assert_eq!(found.get(id), expected, "the condition is the whole clause: {}", context());
        }
    }
}

/// Returns whether the condition has several elements, of which one is looked up.
fn is_several(condition: &IndexCondition) -> bool {
    matches!(condition, IndexCondition::Elements { keys, .. } if keys.len() > 1)
}

fn shown(schema: &Schema, column: usize, cells: &RowCells) -> (String, Option<String>) {
    let text = cells.text(column).map(|text| String::from_utf8_lossy(text).into_owned());
    (schema.columns[column].name.clone(), text)
}

/// Evaluates a condition by its definition. Values that can't be parsed may satisfy it.
fn may_hold(condition: &IndexCondition, cells: &RowCells, schema: &Schema) -> bool {
    if let IndexCondition::Expression { expression, keys } = condition {
        return expression.key(cells).map_or(true, |key| key.is_some_and(|key| keys.contains(&key)));
    }
    let column = condition.column().expect("only an expression has no column");
    let kind = &schema.columns[column].column_type;
    let Some(text) = cells.text(column) else { return false };
    if let IndexCondition::Elements { keys, .. } = condition {
        let Ok(elements) = IndexKey::of_elements(kind, text) else { return true };
        let elements = elements.expect("they have keys");
        return keys.iter().all(|key| elements.contains(key));
    }
    let Ok(key) = IndexKey::of_row(kind, text).map(|key| key.expect("it has keys")) else { return true };
    let above = |bound: &Bound| key > bound.key || (bound.inclusive && key == bound.key);
    let below = |bound: &Bound| key < bound.key || (bound.inclusive && key == bound.key);
    match condition {
        IndexCondition::Equals { keys, .. } => keys.contains(&key),
        IndexCondition::Range { lower, upper, .. } => {
            lower.as_ref().is_none_or(above) && upper.as_ref().is_none_or(below)
        }
        IndexCondition::Prefix { prefix, .. } => text.starts_with(prefix.as_bytes()),
        IndexCondition::Elements { .. } | IndexCondition::Expression { .. } => {
            unreachable!("handled above")
        }
        IndexCondition::InSet { .. } => unreachable!("the clause has no subquery"),
    }
}

/// Returns a row, and whether one of its texts may be no value of its column's type.
fn row(rng: &mut TestRng) -> (RowCells, bool) {
    let broken = rng.percent(20);
    let mut cells: RowCells = COLUMNS
        .iter()
        .map(|shown| match rng.below(100) {
            0..8 => None,
            8..16 if broken => Some(
                rng.pick(&[&b""[..], b"\xff", b"{", b"99999999999999999999", b"x", b"{{1},2}", b"-"])
                    .to_vec(),
            ),
            _ => Some(rng.pick(table::values(shown.kind)).as_bytes().to_vec()),
        })
        .collect();
    cells.push(rng.pick(&[None, Some("sad"), Some("happy")]).map(|label| label.as_bytes().to_vec()));
    (cells, broken)
}

/// Returns a clause, mostly of conditions that an index can look up.
fn clause(rng: &mut TestRng, grammar: &mut Grammar) -> String {
    match rng.below(10) {
        0 => return grammar.clause(),
        1 => return grammar.flat(),
        _ => {}
    }
    let mut clause = term(rng);
    for _ in 0..rng.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        let (operator, other) = (rng.pick(&["AND", "AND", "OR"]), term(rng));
        let swap = rng.percent(50);
        clause = if swap {
            format!("({other} {operator} {clause})")
        } else {
            format!("({clause} {operator} {other})")
        };
    }
    clause
}

fn term(rng: &mut TestRng) -> String {
    // Few columns, so that several terms of one clause often have the same column.
    let names =
        ["i4", "i4", "t", "b", "n", "f8", "bp", "id", "d", "tstz", "ai", "at", "an", "\"V c\"", "f4", "ts"];
    let name = rng.pick(&names);
    let TestColumn { kind, .. } =
        COLUMNS.iter().find(|shown| shown.name == name).expect("there is such a column");
    let mut constant = || format!("'{}'", rng.pick(table::values(kind)).replace('\'', "''"));
    let (one, two, three) = (constant(), constant(), constant());
    if kind.ends_with(']') {
        return match rng.below(4) {
            0 => format!("{name} @> {one}"),
            1 => format!("{one} <@ {name}"),
            2 => format!("{name} && {one}"),
            _ => format!("({one}::{kind})[1] = ANY ({name})"),
        };
    }
    if rng.percent(15) {
        return expression_term(rng);
    }
    match rng.below(14) {
        0..3 => format!("{name} = {one}"),
        3 => format!("{name} IN ({one}, {two}, {three})"),
        4 => format!("{name} = ANY (ARRAY[{one}, NULL, {two}]::{kind}[])"),
        5 => format!("{name} BETWEEN {one} AND {two}"),
        6 => format!("{name} IS NOT DISTINCT FROM {one}"),
        7 => format!("mood = {}", rng.pick(&["'sad'", "'happy'"])),
        8 => format!("1 / {} = 1", rng.pick(&["i4", "i2", "j4"])),
        9 => rng
            .pick(&["b", "NOT b", "true", "NULL", "t::bpchar = 'a'", "bp LIKE 'a%'", "i4 = ANY ('{}')"])
            .to_owned(),
        10 | 11 => {
            let pattern = rng.pick(&["a%", "ab%", "a%b", "é%", "a\\%%", "日_", "%", "a\\", "", "A%%", " %"]);
            format!("{} LIKE '{pattern}'", rng.pick(&["t", "u", "\"V c\""]))
        }
        _ => format!("{name} {} {one}", rng.pick(&["<", "<=", ">", ">=", "<>"])),
    }
}

/// Returns a comparison of an expression with a constant.
fn expression_term(rng: &mut TestRng) -> String {
    let (text, number) = (rng.pick(&["a", "ab", "b", "é", "x'y", " a"]).replace('\'', "''"), rng.below(4));
    let json = rng.pick(table::values("jsonb")).replace('\'', "''");
    match rng.below(13) {
        9 => format!("js = '{json}'"),
        10 => format!("js @> '{json}'"),
        11 => format!("js ->> 'k' = '{text}' OR js ->> 'k' IN ('v', '1')"),
        12 => format!("ks -> 'a' = '{json}'"),
        0 => format!("lower(t) = '{text}'"),
        1 => format!("lower(u) IN ('{text}', 'abc')"),
        2 => format!("lower(t) = '{text}' OR lower(t) = 'ab'"),
        3 => format!("{number} = i4 + j4"),
        4 => format!("10 / i4 = {number}"),
        5 => format!("t::bpchar = '{text}'"),
        6 => format!("COALESCE(i4, 3) = {number}"),
        7 => format!("t || u IS NOT DISTINCT FROM '{text}'"),
        _ => format!("ts::date = '{}'", rng.pick(&["2000-01-01", "infinity"])),
    }
}

/// `cargo test -p forebay-filter --release -- --ignored --nocapture one_row_among`
#[test]
#[ignore = "prints times, and asserts none"]
fn one_row_among_many_filters() {
    let columns = vec![
        Column::new("id", 20, "int8"),
        Column::new("name", 25, "text"),
        Column::new("price", 1700, "numeric"),
        Column::new("tags", 1009, "text[]"),
    ];
    let schema = Schema { table: None, columns, database_collation: Collation::C, server_version: 15 };
    let row: [Option<&[u8]>; 4] = [Some(b"5"), Some(b"user 5 and more"), Some(b"5.5"), Some(b"{red,tag 5}")];
    let clauses: [fn(u64) -> String; 6] = [
        |id| format!("id = {id}"),
        |id| format!("id IN ({id}, -{id}, 1{id:06})"),
        |id| format!("price >= {id} AND price < {id} + 1"),
        |id| format!("name LIKE 'user {id} %'"),
        |id| format!("tags @> '{{red,tag {id}}}'"),
        |id| format!("name = 'user {id} and more' AND id > 3"),
    ];
    for (clause, count) in clauses.iter().flat_map(|clause| [10, 1_000, 100_000].map(|count| (clause, count)))
    {
        let filters: Vec<_> =
            (0..count).map(|id| Filter::parse(&clause(id), &[], &schema).expect("a clause")).collect();
        let (mut index, mut found) = (Index::new(), Vec::new());
        let begun = Instant::now();
        (0..).zip(&filters).for_each(|(id, filter)| index.add(id, Some(filter), &schema));
        let adding = begun.elapsed() / count as u32;
        let best = (0..50).map(|_| time(|| search(&index, &row, &mut found))).min().expect("some rounds");
        let begun = Instant::now();
        (0..count).for_each(|id| index.remove(id));
        let removing = begun.elapsed() / count as u32;
        eprintln!("{best:>8.1?} a row, {adding:?} to add, {removing:?} to remove, of {count}: {}", clause(5));
    }
}

fn search(index: &Index, row: &dyn TextRow, found: &mut Vec<Candidate>) {
    found.clear();
    index.candidates(black_box(row), found);
    assert!(!found.is_empty());
}

fn time(mut work: impl FnMut()) -> Duration {
    const ROUNDS: u32 = 1_000;
    let begun = Instant::now();
    (0..ROUNDS).for_each(|_| work());
    begun.elapsed() / ROUNDS
}
