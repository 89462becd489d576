//! The index of shapes finds what trying each of them finds.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use forebay_filter::{
    Alternative, Bound, Candidate, Collation, Column, Condition, Filter, Index, Key, Row, Schema,
};
use forebay_testkit::Dice;

use crate::grammar::Grammar;
use crate::table::{self, COLUMNS, Shown};

type Cells = Vec<Option<Vec<u8>>>;

/// How often what happened: a test that sees nothing proves nothing.
#[derive(Debug, Default)]
struct Tally {
    pairs: usize,
    satisfied: usize,
    certain: usize,
    failed: usize,
    passed_over: usize,
    exact: usize,
}

#[test]
fn shapes_that_come_and_go_are_found_as_if_each_were_tried() {
    let seed = forebay_testkit::seed();
    eprintln!("seed {seed}");
    let (mut dice, mut grammar) = (Dice::new(seed), Grammar::new(Dice::new(!seed), true));
    let schema = table::schema(&Collation::C, 15);
    let (mut index, mut shapes, mut tally) = (Index::new(), BTreeMap::new(), Tally::default());
    for step in 0..6_000 {
        // Few at times, many at others.
        let goes = if step % 2_000 < 1_000 { 25 } else { 50 };
        match dice.below(100) {
            0..20 => check(&index, &shapes, &row(&mut dice), &schema, &mut tally),
            roll if roll < 20 + goes => {
                let shape = dice.below(600) as u64;
                shapes.remove(&shape);
                index.remove(shape);
            }
            _ => {
                let (shape, text) = (dice.below(600) as u64, clause(&mut dice, &mut grammar));
                if let Ok(filter) = Filter::parse(&text, &[], &schema) {
                    index.add(shape, Some(&filter), &schema);
                    shapes.insert(shape, (text, filter));
                }
            }
        }
        assert_eq!(index.len(), shapes.len());
    }
    eprintln!("{tally:?}");
    let Tally { pairs, satisfied, certain, failed, passed_over, exact } = tally;
    assert!(pairs > 100_000 && satisfied > 10_000 && certain > 5_000 && failed > 1_000 && exact > 20_000);
    assert!(passed_over * 2 > pairs, "{passed_over} of {pairs} passed over");
}

fn check(
    index: &Index,
    shapes: &BTreeMap<u64, (String, Filter)>,
    (cells, broken): &(Cells, bool),
    schema: &Schema,
    tally: &mut Tally,
) {
    let mut list = Vec::new();
    index.candidates(cells, &mut list);
    let found: BTreeMap<_, _> = list.iter().map(|candidate| (candidate.shape, candidate.certain)).collect();
    assert_eq!(found.len(), list.len(), "a shape was found twice");
    assert!(found.keys().all(|shape| shapes.contains_key(shape)), "a shape was found that is gone");
    for (shape, (text, filter)) in shapes {
        let (answer, alternatives) = (filter.matches(cells), filter.conditions());
        let refuted = |condition: &Condition| !may_hold(condition, cells, schema);
        let context = || {
            let used: Vec<_> = filter.columns().iter().map(|&column| shown(schema, column, cells)).collect();
            format!("{text}\n    {answer:?}, of {used:?}, by {alternatives:?}")
        };
        tally.pairs += 1;
        let is_true = answer == Ok(Some(true));
        tally.satisfied += usize::from(is_true);
        tally.failed += usize::from(answer.is_err());
        match found.get(shape) {
            Some(certain) => {
                tally.certain += usize::from(*certain);
                assert!(is_true || !certain, "certain, and not true: {}", context());
                let finds = |condition: &Condition| is_several(condition) || !refuted(condition);
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
            let expected = is_true.then_some(&true);
            assert_eq!(found.get(shape), expected, "one condition says it all: {}", context());
        }
    }
}

/// Whether it takes several elements, of which one is looked up.
fn is_several(condition: &Condition) -> bool {
    matches!(condition, Condition::Elements { keys, .. } if keys.len() > 1)
}

fn shown(schema: &Schema, column: usize, cells: &Cells) -> (String, Option<String>) {
    let text = cells.text(column).map(|text| String::from_utf8_lossy(text).into_owned());
    (schema.columns[column].name.clone(), text)
}

/// By its definition. What can't be read may hold.
fn may_hold(condition: &Condition, cells: &Cells, schema: &Schema) -> bool {
    let kind = &schema.columns[condition.column()].column_type;
    let Some(text) = cells.text(condition.column()) else { return false };
    if let Condition::Elements { keys, .. } = condition {
        let Ok(elements) = Key::of_elements(kind, text) else { return true };
        let elements = elements.expect("they have keys");
        return keys.iter().all(|key| elements.contains(key));
    }
    let Ok(key) = Key::of_row(kind, text).map(|key| key.expect("it has keys")) else { return true };
    let above = |bound: &Bound| key > bound.key || (bound.inclusive && key == bound.key);
    let below = |bound: &Bound| key < bound.key || (bound.inclusive && key == bound.key);
    match condition {
        Condition::Equals { keys, .. } => keys.contains(&key),
        Condition::Range { lower, upper, .. } => {
            lower.as_ref().is_none_or(above) && upper.as_ref().is_none_or(below)
        }
        Condition::Prefix { prefix, .. } => text.starts_with(prefix.as_bytes()),
        Condition::Elements { .. } => unreachable!("seen above"),
    }
}

/// A row, and whether one of its texts is perhaps no value of its column.
fn row(dice: &mut Dice) -> (Cells, bool) {
    let broken = dice.percent(20);
    let mut cells: Cells = COLUMNS
        .iter()
        .map(|shown| match dice.below(100) {
            0..8 => None,
            8..16 if broken => Some(
                dice.pick(&[&b""[..], b"\xff", b"{", b"99999999999999999999", b"x", b"{{1},2}", b"-"])
                    .to_vec(),
            ),
            _ => Some(dice.pick(table::values(shown.kind)).as_bytes().to_vec()),
        })
        .collect();
    cells.push(dice.pick(&[None, Some("sad"), Some("happy")]).map(|label| label.as_bytes().to_vec()));
    cells.push(dice.pick(&[None, Some("{}")]).map(|json| json.as_bytes().to_vec()));
    (cells, broken)
}

/// Mostly what an index can use, joined as clauses are.
fn clause(dice: &mut Dice, grammar: &mut Grammar) -> String {
    match dice.below(10) {
        0 => return grammar.clause(),
        1 => return grammar.flat(),
        _ => {}
    }
    let mut clause = term(dice);
    for _ in 0..dice.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        let (operator, other) = (dice.pick(&["AND", "AND", "OR"]), term(dice));
        let swap = dice.percent(50);
        clause = if swap {
            format!("({other} {operator} {clause})")
        } else {
            format!("({clause} {operator} {other})")
        };
    }
    clause
}

fn term(dice: &mut Dice) -> String {
    // Few columns, so that terms of one clause often meet in one.
    let names =
        ["i4", "i4", "t", "b", "n", "f8", "bp", "id", "d", "tstz", "ai", "at", "an", "\"V c\"", "f4", "ts"];
    let name = dice.pick(&names);
    let Shown { kind, .. } = COLUMNS.iter().find(|shown| shown.name == name).expect("there is such a column");
    let mut constant = || format!("'{}'", dice.pick(table::values(kind)).replace('\'', "''"));
    let (one, two, three) = (constant(), constant(), constant());
    if kind.ends_with(']') {
        return match dice.below(4) {
            0 => format!("{name} @> {one}"),
            1 => format!("{one} <@ {name}"),
            2 => format!("{name} && {one}"),
            _ => format!("({one}::{kind})[1] = ANY ({name})"),
        };
    }
    match dice.below(14) {
        0..3 => format!("{name} = {one}"),
        3 => format!("{name} IN ({one}, {two}, {three})"),
        4 => format!("{name} = ANY (ARRAY[{one}, NULL, {two}]::{kind}[])"),
        5 => format!("{name} BETWEEN {one} AND {two}"),
        6 => format!("{name} IS NOT DISTINCT FROM {one}"),
        7 => format!("mood = {}", dice.pick(&["'sad'", "'happy'"])),
        8 => format!("1 / {} = 1", dice.pick(&["i4", "i2", "j4"])),
        9 => dice
            .pick(&["b", "NOT b", "true", "NULL", "t::bpchar = 'a'", "bp LIKE 'a%'", "i4 = ANY ('{}')"])
            .to_owned(),
        10 | 11 => {
            let pattern = dice.pick(&["a%", "ab%", "a%b", "é%", "a\\%%", "日_", "%", "a\\", "", "A%%", " %"]);
            format!("{} LIKE '{pattern}'", dice.pick(&["t", "u", "\"V c\""]))
        }
        _ => format!("{name} {} {one}", dice.pick(&["<", "<=", ">", ">=", "<>"])),
    }
}

/// `cargo test -p forebay-filter --release -- --ignored --nocapture one_row_among`
#[test]
#[ignore = "prints times, and asserts none"]
fn one_row_among_many_shapes() {
    let columns = vec![
        Column::new("id", 20, "int8"),
        Column::new("name", 25, "text"),
        Column::new("price", 1700, "numeric"),
        Column::new("tags", 1009, "text[]"),
    ];
    let schema = Schema { table: None, columns, database_collation: Collation::C, server_version: 15 };
    let row: [Option<&[u8]>; 4] = [Some(b"5"), Some(b"user 5 and more"), Some(b"5.5"), Some(b"{red,tag 5}")];
    let clauses: [fn(u64) -> String; 6] = [
        |shape| format!("id = {shape}"),
        |shape| format!("id IN ({shape}, -{shape}, 1{shape:06})"),
        |shape| format!("price >= {shape} AND price < {shape} + 1"),
        |shape| format!("name LIKE 'user {shape} %'"),
        |shape| format!("tags @> '{{red,tag {shape}}}'"),
        |shape| format!("name = 'user {shape} and more' AND id > 3"),
    ];
    for (clause, count) in clauses.iter().flat_map(|clause| [10, 1_000, 100_000].map(|count| (clause, count)))
    {
        let filters: Vec<_> =
            (0..count).map(|shape| Filter::parse(&clause(shape), &[], &schema).expect("a clause")).collect();
        let (mut index, mut found) = (Index::new(), Vec::new());
        let begun = Instant::now();
        (0..).zip(&filters).for_each(|(shape, filter)| index.add(shape, Some(filter), &schema));
        let adding = begun.elapsed() / count as u32;
        let best = (0..50).map(|_| time(|| search(&index, &row, &mut found))).min().expect("some rounds");
        let begun = Instant::now();
        (0..count).for_each(|shape| index.remove(shape));
        let removing = begun.elapsed() / count as u32;
        eprintln!("{best:>8.1?} a row, {adding:?} to add, {removing:?} to remove, of {count}: {}", clause(5));
    }
}

fn search(index: &Index, row: &dyn Row, found: &mut Vec<Candidate>) {
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
