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

#[test]
fn lists_of_ten_thousand_constants_are_searched_by_containment_and_existence() {
    let schema = table::schema(&Collation::C, 15);
    let list: Vec<_> = (0..10_000).map(|number| format!("t{number}")).collect();
    let list = format!("{{{},NULL}}", list.join(","));
    let strings: Vec<_> = (0..10_000).map(|number| format!("\"t{number}\"")).collect();
    let strings = format!("[{}]", strings.join(", "));
    for (clause, column, value, expected) in [
        ("at && $1", "at", "{x,t77}", true),
        ("at && $1", "at", "{x,NULL}", false),
        ("at <@ $1", "at", "{t1,t2,t1}", true),
        ("at <@ $1", "at", "{t1,x}", false),
        ("at @> $1", "at", "{t1,t2}", false),
        ("js ?| $1", "js", r#"{"t5": 1, "x": 2}"#, true),
        ("js ?| $1", "js", r#"{"t10000": 1}"#, false),
        ("js ?& $1", "js", r#"["t5", "t6"]"#, false),
        ("js ?& $1", "js", strings.as_str(), true),
    ] {
        let filter = Filter::parse(clause, &[&list], &schema).unwrap();
        let row = row(&schema, &[(column, value)]);
        assert_eq!(filter.matches(&row), Ok(Some(expected)), "{clause} {value}");
    }
}

#[test]
fn more_than_ten_thousand_patterns_are_refused_by_name() {
    let schema = table::schema(&Collation::C, 15);
    let list = |count: usize| format!("{{{}}}", vec!["a%"; count].join(","));
    for operator in ["LIKE ANY", "NOT ILIKE ALL"] {
        let parse = |count| Filter::parse(&format!("t {operator} ($1)"), &[&list(count)], &schema);
        parse(10_000).unwrap();
        let long = vec!["a_long_pattern%"; 10_000].join(",");
        assert!(Filter::parse(&format!("t {operator} ($1)"), &[&format!("{{{long}}}")], &schema).is_ok());
        let error = parse(10_001).unwrap_err().to_string();
        assert!(error.starts_with("LIKE ANY/ALL of more than 10000 patterns is"), "{error}");
    }
}
