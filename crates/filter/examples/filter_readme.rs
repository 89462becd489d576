//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-filter --example filter_readme`

use forebay_filter::{Collation, Column, Filter, Index, Schema};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = Schema {
        table: Some("orders".into()),
        columns: vec![Column::new("id", 23, "int4"), Column::new("state", 25, "text")],
        database_collation: Collation::C,
        server_version: 18,
    };

    // A where clause with a parameter, and rows as Postgres writes them. NULL is `None`.
    let filter = Filter::parse("state IN ('open', $1) AND id > 5", &["paid"], &schema)?;
    assert_eq!(filter.matches(&[Some("7"), Some("paid")])?, Some(true));
    assert_eq!(filter.matches(&[Some("7"), Some("sent")])?, Some(false));
    assert_eq!(filter.matches(&[Some("7"), None])?, None);

    // The error names the unsupported construct.
    let refused = Filter::parse("state = (SELECT 'open')", &[], &schema).expect_err("a subquery");
    assert_eq!(refused.to_string(), "subqueries are not supported in where clauses (at location 24)");

    // The index finds the filters that may match a row, without evaluating each.
    let mut index = Index::new();
    for number in 0..10_000 {
        let one_order = Filter::parse("id = $1", &[&number.to_string()], &schema)?;
        index.add(number, Some(&one_order), &schema);
    }
    let mut found = Vec::new();
    index.candidates(&[Some("7"), Some("paid")], &mut found);
    assert_eq!(found.len(), 1);
    assert!(found[0].certain); // an exact match: `Filter::matches` need not be called
    Ok(())
}
