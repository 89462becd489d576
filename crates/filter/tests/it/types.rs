//! Types with details of their own: enums of schemas with and without labels, and long lists.

use forebay_filter::{Collation, Filter, Schema};

use crate::table;

fn row<'v>(schema: &Schema, values: &[(&str, &'v str)]) -> Vec<Option<&'v [u8]>> {
    let value = |name: &str| values.iter().find(|(of, _)| *of == name).map(|(_, text)| text.as_bytes());
    schema.columns.iter().map(|column| value(&column.name)).collect()
}

#[test]
fn a_schema_without_labels_allows_equality_and_equals_one_with_labels() {
    let known = table::schema(&Collation::C, 15);
    let mut json = serde_json::to_value(&known).unwrap();
    for column in json["columns"].as_array_mut().unwrap() {
        column["column_type"].as_object_mut().unwrap().remove("details");
    }
    // What an earlier release stored.
    let stored: Schema = serde_json::from_value(json).unwrap();
    assert_eq!(stored, known);
    assert!(!stored.has_same_details(&known));
    let read_again: Schema = serde_json::from_value(serde_json::to_value(&known).unwrap()).unwrap();
    assert!(read_again.has_same_details(&known));
    for clause in ["mood = 'sad'", "mood IN ('sad', 'x')", "mood::text = 'sad'", "mood <> 'happy'"] {
        let filter = Filter::parse(clause, &[], &stored).unwrap_or_else(|error| panic!("{clause}: {error}"));
        assert_eq!(filter.matches(&row(&stored, &[("mood", "sad")])), Ok(Some(true)), "{clause}");
    }
    let error = Filter::parse("mood > 'sad'", &[], &stored).unwrap_err().to_string();
    assert!(error.starts_with("the order of an enum whose labels are not known yet is"), "{error}");
}

#[test]
fn a_label_that_is_newer_than_the_filter_has_no_order() {
    let schema = table::schema(&Collation::C, 15);
    let new = row(&schema, &[("mood", "new")]);
    let matches = |clause: &str| Filter::parse(clause, &[], &schema).unwrap().matches(&new);
    assert_eq!(matches("mood >= 'sad'").unwrap_err().sqlstate(), "0A000");
    assert_eq!(matches("mood = 'sad'"), Ok(Some(false)));
}

#[test]
fn an_enum_is_named_with_its_schema_in_canonical_text() {
    let schema = table::schema(&Collation::C, 15);
    let filter = Filter::parse("mood = 'sad'::mood OR am && '{sad}'::mood[]", &[], &schema).unwrap();
    let expected =
        "((\"mood\" = ('sad')::\"public\".\"mood\") OR (\"am\" && ('{sad}')::\"public\".\"mood\"[]))";
    assert_eq!(filter.canonical(), expected);
    assert_eq!(Filter::parse(expected, &[], &schema).unwrap().canonical(), expected);
}

#[test]
fn lists_of_ten_thousand_constants_are_searched() {
    let schema = table::schema(&Collation::C, 15);
    let numbers: Vec<_> = (0..10_000).map(|number| (number * 2).to_string()).collect();
    let list = format!("{{{},NULL}}", numbers.join(","));
    for (clause, value, expected) in [
        ("i4 = ANY($1)", "19998", Some(true)),
        ("i4 = ANY($1)", "7", None),
        ("i4 <> ALL($1)", "0", Some(false)),
        ("i4 <> ALL($1)", "19999", None),
        ("t = ANY($1)", "500", Some(true)),
        ("t = ANY($1)", "501", None),
    ] {
        let filter = Filter::parse(clause, &[&list], &schema).unwrap();
        let row = row(&schema, &[("i4", value), ("t", value)]);
        assert_eq!(filter.matches(&row), Ok(expected), "{clause} {value}");
    }
}
