//! The README shows only code that `examples/reservoir_readme.rs` runs.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    // The temporary server has another address than the README shows.
    let instead = [("\"postgres://app@db.internal/shop\"", "&server.url(\"postgres\")")];
    let blocks = readme_blocks_run(
        include_str!("../README.md"),
        include_str!("../examples/reservoir_readme.rs"),
        &instead,
    );
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
