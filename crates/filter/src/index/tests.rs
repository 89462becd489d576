//! What a search finds, and how many steps it takes.

use std::sync::LazyLock;

use super::{Candidate, Index, visits};
use crate::{Collation, Column, ColumnType, Filter, Schema, TypeDetails, TypeKind, UserType};

/// A row. Columns beyond its end are NULL.
type IndexRow<'t> = [Option<&'t [u8]>];

fn schema() -> Schema {
    let mood = ColumnType { kind: TypeKind::Enum, ..Column::new("", 1, "mood").column_type };
    let columns = vec![
        Column::new("id", 23, "int4"),
        Column::new("name", 25, "text"),
        Column::new("on", 16, "bool"),
        Column::new("tags", 1009, "text[]"),
        Column::new("price", 1700, "numeric"),
        Column { name: "mood".to_owned(), column_type: mood },
        Column::new("js", 3802, "jsonb"),
        Column::new("ip", 869, "inet"),
        Column { name: "email".to_owned(), column_type: citext() },
        Column::new("at", 1114, "timestamp"),
    ];
    let table = Some("rows".to_owned());
    Schema { table, columns, database_collation: Collation::C, server_version: 15 }
}

fn citext() -> ColumnType {
    let (schema, name) = ("public".to_owned(), "citext".to_owned());
    let user = UserType { oid: 2, schema, name, is_array: false, labels: None, base_array: None };
    ColumnType { details: TypeDetails(Some(Box::new(user))), ..Column::new("", 2, "citext").column_type }
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(schema);

fn parsed(clause: &str) -> Filter {
    Filter::parse(clause, &[], &SCHEMA).unwrap_or_else(|error| panic!("{clause}: {error}"))
}

fn add(index: &mut Index, id: u64, clause: &str) {
    index.add(id, Some(&parsed(clause)), &SCHEMA);
}

fn index(clauses: &[&str]) -> Index {
    let mut index = Index::new();
    (0..).zip(clauses).for_each(|(id, clause)| add(&mut index, id, clause));
    index
}

/// Returns the ids found, in order, and whether each is certain.
fn found(index: &Index, row: &IndexRow<'_>) -> Vec<(u64, bool)> {
    let mut found = Vec::new();
    index.candidates(&row, &mut found);
    let mut found: Vec<_> = found.iter().map(|Candidate { id, certain }| (*id, *certain)).collect();
    found.sort_unstable();
    found
}

const ROW: [Option<&[u8]>; 10] = [
    Some(b"5"),
    Some(b"apple"),
    Some(b"t"),
    Some(b"{a,b,b}"),
    Some(b"1.50"),
    Some(b"sad"),
    Some(JSON),
    Some(b"10.0.0.5"),
    Some(b"User5@Example.COM"),
    Some(b"2000-01-06 17:30:00"),
];

const JSON: &[u8] = br#"{"k": "5", "n": {"id": 5.0}, "tags": ["a"]}"#;

#[test]
fn one_exact_condition_makes_a_candidate_certain_and_several_do_not() {
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
        (10, true),
        (11, true),
    ];
    assert_eq!(found(&index(&clauses), &ROW), expected);
}

#[test]
fn a_filter_without_a_clause_matches_every_row() {
    let mut index = Index::new();
    index.add(u64::MAX, None, &schema());
    assert_eq!(found(&index, &[None; 7]), [(u64::MAX, true)]);
    assert_eq!(index.len(), 1);
}

#[test]
fn a_condition_on_a_column_that_the_schema_lacks_is_not_certain() {
    let (filter, mut index) = (Filter::parse("mood = 'sad'", &[], &schema()).unwrap(), Index::new());
    let mut short = schema();
    short.columns.truncate(5);
    index.add(1, Some(&filter), &short);
    assert_eq!(found(&index, &ROW), [(1, false)]);
}

#[test]
fn a_filter_that_several_conditions_find_is_found_once() {
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
    assert_eq!(found(&index, &[None; 7]), [(1, false), (5, false)]);
}

#[test]
fn a_value_that_cannot_be_read_makes_all_filters_of_its_column_candidates() {
    let index = index(&["id = 5", "id IN (1, 2) OR id > 7", "tags @> '{a}'", "name = 'x'", "price < 0"]);
    let row: [Option<&[u8]>; 7] = [Some(b"five"), Some(b"\xff"), None, Some(b"{a"), Some(b""), None, None];
    assert_eq!(found(&index, &row), [(0, false), (1, false), (2, false), (3, false), (4, false)]);
}

#[test]
fn an_expression_that_fails_on_a_row_makes_its_filters_candidates() {
    let clauses = ["10 / id = 3", "10 / id IN (1, 2)", "lower(name) = 'x'", "id = 1 OR 10 / id = 7"];
    let row: [Option<&[u8]>; 7] = [Some(b"0"), Some(b"apple"), None, None, None, None, None];
    assert_eq!(found(&index(&clauses), &row), [(0, false), (1, false), (3, false)]);
    let row: [Option<&[u8]>; 7] = [Some(b"3"), Some(b"X"), None, None, None, None, None];
    assert_eq!(found(&index(&clauses), &row), [(0, true), (2, true)]);
    let row: [Option<&[u8]>; 7] = [Some(b"1"), None, None, None, None, None, None];
    assert_eq!(found(&index(&clauses), &row), [(3, false)]);
}

#[test]
fn one_expression_is_evaluated_once_for_all_of_its_filters() {
    let mut index = index(&["lower(name) = 'a'", "LOWER(\"name\") = 'b'", "'c' = lower((name))"]);
    assert_eq!(index.expressions.len(), 1);
    // Constants of another form, or of another comparison, have keys of their own.
    add(&mut index, 3, "lower(name)::bpchar = 'a'");
    assert_eq!(index.expressions.len(), 2);
}

#[test]
fn adding_a_filter_again_replaces_its_clause() {
    let mut index = index(&["id = 5", "name = 'apple'"]);
    add(&mut index, 0, "id = 6");
    assert_eq!(found(&index, &ROW), [(1, true)]);
    assert_eq!(index.len(), 2);
}

#[test]
fn a_removed_filter_leaves_nothing_behind() {
    let clauses =
        ["id = 5", "id IN (5, 6)", "id > 3", "name LIKE 'a%'", "tags @> '{a}'", "id + 1 = 6", "false"];
    let mut index = index(&clauses);
    for id in 0..clauses.len() as u64 {
        index.remove(id);
        index.remove(id);
        assert!(found(&index, &ROW).iter().all(|(other, _)| *other > id));
    }
    assert!(index.is_empty() && index.columns.is_empty() && index.expressions.is_empty());
    assert!(index.unconditional.is_empty());
}

#[test]
fn of_two_equalities_the_one_with_fewer_filters_is_looked_up() {
    let mut index = Index::new();
    (0..1_000).for_each(|id| add(&mut index, id, &format!("\"on\" AND id = {id}")));
    let row: [Option<&[u8]>; 7] = [Some(b"-1"), None, Some(b"t"), None, None, None, None];
    assert!(found(&index, &row).len() <= 1);
    let mut index = Index::new();
    (0..1_000).for_each(|id| add(&mut index, id, &format!("tags @> '{{all,tag {id}}}'")));
    let row: [Option<&[u8]>; 7] = [None, None, None, Some(b"{all}"), None, None, None];
    assert!(found(&index, &row).len() <= 1);
}

/// Returns the steps of a search for the row among `count` filters, of which it finds exactly one.
fn visits(count: u64, row: &IndexRow<'_>, clause: impl Fn(u64) -> String) -> usize {
    let mut index = Index::new();
    let filters: Vec<_> = (0..count).map(|id| parsed(&clause(id))).collect();
    // As many others are added and removed: a search must not pay for removed filters.
    for first in [count, 0] {
        (first..).zip(&filters).for_each(|(id, filter)| index.add(id, Some(filter), &SCHEMA));
    }
    (0..count).for_each(|id| index.remove(count + id));
    let mut found = Vec::new();
    let visits = visits::count_during(|| index.candidates(&row, &mut found));
    assert_eq!(found, [Candidate { id: 5, certain: true }], "of {}", clause(5));
    visits
}

fn address(id: u64) -> String {
    format!("10.0.{}.{}", id / 256, id % 256)
}

/// Returns a constant, which for 5 is the hour of the row's timestamp.
fn hour(id: u64) -> String {
    format!("timestamp '2000-01-06 12:00:00' + {id} * interval '1 hour'")
}

#[test]
fn a_search_among_ten_thousand_keys_takes_as_many_steps_as_one_among_ten() {
    let clauses: [fn(u64) -> String; 22] = [
        |id| format!("js ->> 'k' = '{id}'"),
        |id| format!("js @> '{{\"k\": \"{id}\"}}'"),
        |id| format!("'{{\"n\": {{\"id\": {id}}}}}' <@ js"),
        |id| format!("js #>> '{{n,id}}' IN ('{id}.0', 'x')"),
        |id| format!("js = '{{\"n\":{{\"id\":{id}}},\"k\":\"5\",\"tags\":[\"a\"]}}'"),
        |id| format!("lower(name) = '{}'", if id == 5 { "apple".to_owned() } else { format!("name {id}") }),
        |id| format!("id + 1 IN ({}, -{})", id + 1, id + 2),
        |id| format!("{id} = COALESCE(id, 0) AND true"),
        |id| format!("ip = '{}'", address(id)),
        |id| format!("ip = '{}/32'", address(id)),
        |id| format!("ip = ANY ('{{{},::{id:x}}}')", address(id)),
        |id| format!("mood = '{}'", if id == 5 { "sad".to_owned() } else { format!("mood {id}") }),
        |id| format!("mood IN ('{}', 'x')", if id == 5 { "sad".to_owned() } else { format!("mood {id}") }),
        |id| format!("email = 'uSER{id}@eXAMPLE.com'"),
        |id| format!("email IN ('user{id}@example.com', 'USER{id}@EXAMPLE.ORG')"),
        |id| format!("date_trunc('day', at) = timestamp '2000-01-01' + {id} * interval '1 day'"),
        |id| format!("{} = date_trunc('hour', at)", hour(id)),
        |id| format!("id = {id}"),
        |id| format!("id IN ({id}, {}, {})", -1 - i64::try_from(id).unwrap(), 1_000_000 + id),
        |id| format!("name = '{}'", if id == 5 { "apple".to_owned() } else { format!("name {id}") }),
        |id| format!("tags @> '{{{}}}'", if id == 5 { "b".to_owned() } else { format!("tag {id}") }),
        |id| format!("{} = ANY (tags)", if id == 5 { "'a'".to_owned() } else { format!("'tag {id}'") }),
    ];
    for clause in clauses {
        let (few, many) = (visits(10, &ROW, clause), visits(10_000, &ROW, clause));
        assert_eq!(few, many, "{}", clause(0));
        assert!(few <= 4, "{few}: {}", clause(0));
    }
}

#[test]
fn a_search_among_ten_thousand_intervals_visits_one_path() {
    let clauses: [fn(u64) -> String; 5] = [
        |id| format!("id BETWEEN {id} AND {id}"),
        |id| format!("id > {}", if id == 5 { 4 } else { 5 + id }),
        |id| format!("{} > id", if id == 5 { "6".to_owned() } else { format!("-{id}") }),
        |id| format!("price >= {id} - 3.75 AND price < {id} - 2.75"),
        |id| format!("name LIKE '{}%'", if id == 5 { "app".to_owned() } else { format!("apq {id}") }),
    ];
    for clause in clauses {
        let (few, many) = (visits(10, &ROW, clause), visits(10_000, &ROW, clause));
        // An AVL tree of ten thousand is at most 19 high. Each node of a path may have a sibling
        // visited.
        assert!(few <= 10 && many <= 38, "{few} and {many}: {}", clause(0));
    }
}

/// Sets of one family by the values that they have.
struct FakeSets(std::collections::HashMap<u64, Vec<u64>>);

impl crate::SetLookup for FakeSets {
    fn each_set_with(&self, family: u64, key: &crate::SetKey, visit: &mut dyn FnMut(u64)) {
        assert_eq!(family, 3);
        let values = self.0.iter();
        let text = format!("{key:?}");
        values
            .filter(|(value, _)| text.contains(&format!("Int({value})")))
            .for_each(|(_, sets)| sets.iter().for_each(|set| visit(*set)));
    }
}

fn add_with_set(index: &mut Index, id: u64, clause: &str, number: u64) {
    let filter =
        Filter::parse_with_subqueries(clause, &[], &SCHEMA, crate::PostgresRules::None, &|_| Some(&SCHEMA));
    let filter = filter.unwrap_or_else(|error| panic!("{clause}: {error}"));
    let sets = [crate::SetId { family: 3, number }];
    index.add_with_sets(id, Some(&filter), &SCHEMA, &sets[..filter.sets().len()]);
}

fn found_with(index: &Index, row: &IndexRow<'_>, sets: &FakeSets) -> Vec<(u64, bool)> {
    let mut found = Vec::new();
    index.candidates_with_sets(&row, sets, &mut found);
    let mut found: Vec<_> = found.iter().map(|Candidate { id, certain }| (*id, *certain)).collect();
    found.sort_unstable();
    found
}

#[test]
fn filters_are_found_by_the_sets_that_have_the_row_s_value() {
    let mut index = Index::new();
    for (id, clause, set) in [
        (1, "id IN (SELECT id FROM items WHERE name = 'x')", 10),
        (2, "id = ANY (SELECT id FROM items) AND \"on\"", 10),
        (3, "EXISTS (SELECT 1 FROM items i WHERE i.id = rows.id AND i.name = 'y')", 11),
        (4, "id IN (SELECT id FROM items) OR name = 'apple'", 11),
        (5, "id NOT IN (SELECT id FROM items)", 10),
        (6, "(id, name) IN (SELECT id, name FROM items)", 10),
        (7, "name = 'pear' AND id IN (SELECT id FROM items)", 11),
    ] {
        add_with_set(&mut index, id, clause, set);
    }
    let sets = FakeSets([(5, vec![10]), (6, vec![11])].into());
    assert_eq!(found_with(&index, &ROW, &sets), [(1, true), (2, false), (4, false), (5, false), (6, true)]);
    let six = [Some(&b"6"[..]), Some(b"pear"), None, None, None, None, None];
    assert_eq!(found_with(&index, &six, &sets), [(3, true), (4, false), (5, false), (7, false)]);
    let null = [None, Some(&b"pear"[..]), None, None, None, None, None];
    assert_eq!(found_with(&index, &null, &sets), [(5, false), (7, false)]);
    // Without the sets, every filter but 2 may match, which its other condition excludes.
    assert_eq!(found(&index, &six).len(), 6);
    (1..=7).for_each(|id| index.remove(id));
    assert!(index.is_empty() && found_with(&index, &ROW, &sets).is_empty());
}

#[test]
fn a_search_among_ten_thousand_sets_takes_as_many_steps_as_one_among_ten() {
    let steps = |sets: u64| {
        let mut index = Index::new();
        for number in 0..sets {
            let clause = format!("\"on\" AND id IN (SELECT id FROM items WHERE name = '{number}')");
            add_with_set(&mut index, number, &clause, number);
        }
        let lookup = FakeSets([(5, vec![3, 4])].into());
        // The first filter is entered under the other condition.
        let steps = visits::count_during(|| assert_eq!(found_with(&index, &ROW, &lookup).len(), 3));
        (steps, index.len() as u64 == sets)
    };
    assert_eq!(steps(10), steps(10_000));
}
