//! What a search finds, and how much it looks at.

use std::sync::LazyLock;

use super::{Candidate, Index, visits};
use crate::{Collation, Column, ColumnType, Filter, Schema, TypeKind};

type Cells<'t> = [Option<&'t [u8]>; 6];

fn schema() -> Schema {
    let mood = ColumnType { kind: TypeKind::Enum, ..Column::new("", 1, "mood").column_type };
    let columns = vec![
        Column::new("id", 23, "int4"),
        Column::new("name", 25, "text"),
        Column::new("on", 16, "bool"),
        Column::new("tags", 1009, "text[]"),
        Column::new("price", 1700, "numeric"),
        Column { name: "mood".to_owned(), column_type: mood },
    ];
    Schema { table: None, columns, database_collation: Collation::C, server_version: 15 }
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(schema);

fn parsed(clause: &str) -> Filter {
    Filter::parse(clause, &[], &SCHEMA).unwrap_or_else(|error| panic!("{clause}: {error}"))
}

fn add(index: &mut Index, shape: u64, clause: &str) {
    index.add(shape, Some(&parsed(clause)), &SCHEMA);
}

fn index(clauses: &[&str]) -> Index {
    let mut index = Index::new();
    (0..).zip(clauses).for_each(|(shape, clause)| add(&mut index, shape, clause));
    index
}

/// In order, with what is certain.
fn found(index: &Index, row: &Cells<'_>) -> Vec<(u64, bool)> {
    let mut found = Vec::new();
    index.candidates(row, &mut found);
    let mut found: Vec<_> = found.iter().map(|Candidate { shape, certain }| (*shape, *certain)).collect();
    found.sort_unstable();
    found
}

const ROW: Cells<'static> =
    [Some(b"5"), Some(b"apple"), Some(b"t"), Some(b"{a,b,b}"), Some(b"1.50"), Some(b"sad")];

#[test]
fn one_exact_condition_makes_it_certain_and_more_must_be_tried() {
    let clauses = [
        "id = 5",
        "id IN (4, 5) AND name LIKE 'a%'",
        "tags @> '{b}'",
        "tags @> '{a,b}'",
        "name LIKE 'app%'",
        "name LIKE 'app%e'",
        "price >= 1.5 AND price < 2",
        "price > 1.5",
        "mood = 'sad'",
        "\"on\"",
        "id + 1 = 6",
        "true",
        "false",
        "id = 4",
        "name LIKE 'b%'",
    ];
    let expected = [
        (0, true),
        (1, false),
        (2, true),
        (3, false),
        (4, true),
        (5, false),
        (6, true),
        (8, true),
        (9, true),
        (10, false),
        (11, true),
    ];
    assert_eq!(found(&index(&clauses), &ROW), expected);
}

#[test]
fn a_shape_without_a_clause_takes_every_row() {
    let mut index = Index::new();
    index.add(u64::MAX, None, &schema());
    assert_eq!(found(&index, &[None; 6]), [(u64::MAX, true)]);
    assert_eq!(index.len(), 1);
}

#[test]
fn a_condition_on_a_column_that_the_schema_lacks_is_left_to_trying() {
    let (filter, mut index) = (Filter::parse("mood = 'sad'", &[], &schema()).unwrap(), Index::new());
    let mut short = schema();
    short.columns.pop();
    index.add(1, Some(&filter), &short);
    assert_eq!(found(&index, &ROW), [(1, false)]);
}

#[test]
fn what_several_conditions_find_is_found_once() {
    let clauses = [
        "id = 5 OR id > 3 OR id < 9",
        "id = 5 OR name = 'apple' OR tags @> '{a}' OR tags @> '{b}'",
        "id = 5 OR (id = 5 AND id < 3)",
        "(id = 5 AND id < 3) OR id = 5",
        "id IN (5, 5, 5)",
        "id > 3 OR (id IN (5, 6) AND id < 9)",
    ];
    assert_eq!(
        found(&index(&clauses), &ROW),
        [(0, true), (1, false), (2, true), (3, true), (4, true), (5, true)]
    );
}

#[test]
fn null_satisfies_no_condition() {
    let index =
        index(&["id = 5", "id <> 5 OR id > 1", "id < 9", "name LIKE 'a%'", "tags @> '{a}'", "id IS NULL"]);
    assert_eq!(found(&index, &[None; 6]), [(1, false), (5, false)]);
}

#[test]
fn what_cannot_be_read_is_for_the_clauses_to_say() {
    let index = index(&["id = 5", "id IN (1, 2) OR id > 7", "tags @> '{a}'", "name = 'x'", "price < 0"]);
    let row: Cells<'_> = [Some(b"five"), Some(b"\xff"), None, Some(b"{a"), Some(b""), None];
    assert_eq!(found(&index, &row), [(0, false), (1, false), (2, false), (3, false), (4, false)]);
}

#[test]
fn another_clause_takes_the_place_of_the_first() {
    let mut index = index(&["id = 5", "name = 'apple'"]);
    add(&mut index, 0, "id = 6");
    assert_eq!(found(&index, &ROW), [(1, true)]);
    assert_eq!(index.len(), 2);
}

#[test]
fn nothing_is_left_of_what_was_removed() {
    let clauses =
        ["id = 5", "id IN (5, 6)", "id > 3", "name LIKE 'a%'", "tags @> '{a}'", "id + 1 = 6", "false"];
    let mut index = index(&clauses);
    for shape in 0..clauses.len() as u64 {
        index.remove(shape);
        index.remove(shape);
        assert!(found(&index, &ROW).iter().all(|(other, _)| *other > shape));
    }
    assert!(index.is_empty() && index.columns.is_empty() && index.everywhere.is_empty());
}

#[test]
fn of_two_equalities_the_one_with_fewer_shapes_is_looked_up() {
    let mut index = Index::new();
    (0..1_000).for_each(|shape| add(&mut index, shape, &format!("\"on\" AND id = {shape}")));
    let row: Cells<'_> = [Some(b"-1"), None, Some(b"t"), None, None, None];
    assert!(found(&index, &row).len() <= 1);
    let mut index = Index::new();
    (0..1_000).for_each(|shape| add(&mut index, shape, &format!("tags @> '{{all,tag {shape}}}'")));
    let row: Cells<'_> = [None, None, None, Some(b"{all}"), None, None];
    assert!(found(&index, &row).len() <= 1);
}

/// What a search for the row visits among so many shapes, of which exactly one is found.
fn visits(count: u64, row: &Cells<'_>, clause: impl Fn(u64) -> String) -> usize {
    let mut index = Index::new();
    let filters: Vec<_> = (0..count).map(|shape| parsed(&clause(shape))).collect();
    // Some come and go, since a search mustn't pay for what is no more.
    for first in [count, 0] {
        (first..).zip(&filters).for_each(|(shape, filter)| index.add(shape, Some(filter), &SCHEMA));
    }
    (0..count).for_each(|shape| index.remove(count + shape));
    let mut found = Vec::new();
    let visits = visits::of(|| index.candidates(row, &mut found));
    assert_eq!(found, [Candidate { shape: 5, certain: true }], "of {}", clause(5));
    visits
}

#[test]
fn a_search_among_ten_thousand_keys_looks_at_as_much_as_one_among_ten() {
    let clauses: [fn(u64) -> String; 5] = [
        |shape| format!("id = {shape}"),
        |shape| format!("id IN ({shape}, {}, {})", -1 - i64::try_from(shape).unwrap(), 1_000_000 + shape),
        |shape| format!("name = '{}'", if shape == 5 { "apple".to_owned() } else { format!("name {shape}") }),
        |shape| format!("tags @> '{{{}}}'", if shape == 5 { "b".to_owned() } else { format!("tag {shape}") }),
        |shape| {
            format!("{} = ANY (tags)", if shape == 5 { "'a'".to_owned() } else { format!("'tag {shape}'") })
        },
    ];
    for clause in clauses {
        let (few, many) = (visits(10, &ROW, clause), visits(10_000, &ROW, clause));
        assert_eq!(few, many, "{}", clause(0));
        assert!(few <= 4, "{few}: {}", clause(0));
    }
}

#[test]
fn a_search_among_ten_thousand_intervals_goes_down_one_path() {
    let clauses: [fn(u64) -> String; 5] = [
        |shape| format!("id BETWEEN {shape} AND {shape}"),
        |shape| format!("id > {}", if shape == 5 { 4 } else { 5 + shape }),
        |shape| format!("{} > id", if shape == 5 { "6".to_owned() } else { format!("-{shape}") }),
        |shape| format!("price >= {shape} - 3.75 AND price < {shape} - 2.75"),
        |shape| {
            format!("name LIKE '{}%'", if shape == 5 { "app".to_owned() } else { format!("apq {shape}") })
        },
    ];
    for clause in clauses {
        let (few, many) = (visits(10, &ROW, clause), visits(10_000, &ROW, clause));
        // A balanced tree of ten thousand is at most 19 high; on the way down each node has another beside it.
        assert!(few <= 10 && many <= 38, "{few} and {many}: {}", clause(0));
    }
}
