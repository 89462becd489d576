//! The README's code is part of `examples/replication_readme.rs`.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    // The example uses a temporary server.
    let replacements = [("\"postgres://app@db.internal/shop\"", "&server.url(\"postgres\")")];
    let blocks = readme_blocks_run(
        include_str!("../README.md"),
        include_str!("../examples/replication_readme.rs"),
        &replacements,
    );
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
